# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs inside a Ray container to say which nodes Ray has: C(docker exec -i C python3 - ADDRESS NODES GPUS SECONDS < this file).

It waits up to SECONDS until the cluster at ADDRESS (host:port) has so many living nodes and GPUs, then prints one line

    {"ready": true, "nodes": [{"address", "id", "alive", "resources", "used"}], "gpus": 2, "ray": "2.55.1", "error": ""}

and exits with 0 when it is ready, with 1 when not, with 2 for wrong arguments. It ends at the latest ANSWER_SECONDS after SECONDS.

Ray is asked by its Python API, not by the text of C(ray status), which lags behind and is no interface. The status call needs
no driver: C(ray.init) would register a job and start a Python process for each CPU of the node.
It runs on the image's Python, so it is plain Python with the standard library and Ray alone.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

ANSWER_SECONDS = 30
"""For one answer, the import of Ray included: a Ray that hangs must not hold up who asks."""
CALL_SECONDS = 10
CONNECT_SECONDS = 3
INTERVAL = 0.5

Ask = Callable[[str], "list[dict[str, Any]]"]


class TemporaryFailure(Exception):
    """There is no answer, and asking again may help."""


class PermanentFailure(Exception):
    """There is no answer, and asking again will not help."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of C(host:port)."""
    host, _colon, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(
            f"{address!r} is not an address of Ray: host:port is expected, for example 192.168.100.10:6379"
        )
    return host.strip("[]"), int(port)


def describe(node: Any, alive: bool) -> dict[str, Any]:
    """Turn a node of Ray's status into plain data."""
    usage = getattr(getattr(node, "resource_usage", None), "usage", None) or ()
    return {
        "address": str(node.ip_address),
        "id": str(node.node_id or ""),
        "alive": alive,
        "resources": {str(row.resource_name): float(row.total) for row in usage},
        "used": {str(row.resource_name): float(row.used) for row in usage if row.used},
    }


def ask_ray(address: str) -> list[dict[str, Any]]:
    """Ask the head once for all nodes that it knows, the dead ones too."""
    host, port = split_address(address)
    try:  # first, because Ray's own client takes 40 s to say that nobody listens
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise TemporaryFailure(f"nothing answers at {address} (Ray's head): {error}") from None
    try:
        sdk = importlib.import_module("ray.autoscaler.v2.sdk")
    except ImportError as error:
        raise PermanentFailure(
            f"the Python of this container ({sys.executable}) has no Ray that can be asked: {error}"
        ) from None
    try:
        status = sdk.get_cluster_status(address, timeout=CALL_SECONDS)
    except Exception as error:  # Ray's classes of errors differ from version to version
        raise TemporaryFailure(f"Ray at {address} gives no status: {type(error).__name__}: {error}") from None
    living = [describe(node, True) for node in [*status.active_nodes, *status.idle_nodes]]
    return [*living, *(describe(node, False) for node in status.failed_nodes)]


def ray_version() -> str:
    """Return the version of the Ray that was asked, empty when it was not imported."""
    return str(getattr(sys.modules.get("ray"), "__version__", ""))


def judge(nodes_alive: Iterable[dict[str, Any]], nodes: int, gpus: int) -> dict[str, Any]:
    """Return C({ready, nodes, gpus, ray, error}): whether the nodes are complete. nodes_alive: C({id, alive, address, resources}) each."""
    rows = sorted(nodes_alive, key=lambda row: (not row["alive"], row["address"], row["id"]))
    living = [row for row in rows if row["alive"]]
    addresses = [row["address"] for row in living]
    count = sum(int(row["resources"].get("GPU", 0)) for row in living)
    # A node that came back before Ray has missed the earlier one stands there twice, with GPUs that do not exist.
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    error = ""
    if twice:
        error = f"Ray counts {', '.join(twice)} twice: it has not noticed yet that an earlier node there is gone"
    elif len(living) < nodes or count < gpus:
        suffix = f" ({', '.join(addresses)})" if addresses else ""
        error = f"Ray has {len(living)} of {nodes} nodes{suffix} and {count} of {gpus} GPUs"
    return {"ready": not error, "nodes": rows, "gpus": count, "ray": ray_version(), "error": error}


def unknown(error: str) -> dict[str, Any]:
    """Return the answer of nobody."""
    return {"ready": False, "nodes": [], "gpus": 0, "ray": ray_version(), "error": error}


def wait(
    address: str,
    nodes: int,
    gpus: int,
    seconds: float,
    tell: Callable[[dict[str, Any]], None],
    ask: Ask = ask_ray,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask Ray's head (HOST:PORT) until all nodes are there or time is up. tell: gets every answer; the last one counts."""
    deadline = clock() + seconds
    while True:
        try:
            answer = judge(ask(address), nodes, gpus)
        except TemporaryFailure as error:
            answer = unknown(str(error))
        except PermanentFailure as error:
            tell(unknown(str(error)))
            return
        tell(answer)
        if answer["ready"] or clock() + INTERVAL > deadline:
            return
        sleep(INTERVAL)


def main(argv: list[str], write: Callable[[str], Any], ask: Ask = ask_ray) -> int:
    """Run the program with ADDRESS NODES GPUS SECONDS; returns 0 when the nodes are there, 1 when not, 2 for wrong arguments."""
    try:
        address, nodes, gpus, seconds = argv[0], int(argv[1]), int(argv[2]), float(argv[3])
        split_address(address)
    except (IndexError, ValueError) as error:
        write(json.dumps(unknown(f"wrong arguments {argv}, expected ADDRESS NODES GPUS SECONDS: {error}")) + "\n")
        return 2
    answers = [unknown(f"Ray at {address} did not answer within {seconds + ANSWER_SECONDS:.0f} seconds")]
    # In a thread, because a call into Ray's core cannot be interrupted.
    asking = threading.Thread(target=wait, args=(address, nodes, gpus, seconds, answers.append, ask), daemon=True)
    asking.start()
    asking.join(seconds + ANSWER_SECONDS)
    write(json.dumps(answers[-1], sort_keys=True) + "\n")
    return 0 if answers[-1]["ready"] else 1


if __name__ == "__main__":
    answer_stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of Ray itself go to standard error
    code = main(sys.argv[1:], answer_stream.write)
    for stream in (answer_stream, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # without the threads of Ray, which may hang on a head that is gone
