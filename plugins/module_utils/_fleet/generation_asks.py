# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What no generation holds of a host that is believed up to date: the network of its cluster, images that are made there, servers that
are no engines.

Each look gives reasons why there may be something to apply, in plain words. What gives no answer is such a reason, too: the roles find out.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._cluster import pings, relay
from .._common.findings import Finding
from .._content import snapshots
from .._runtime.command import NoAnswer, Run
from .generation_host import Host

UFW = "/usr/sbin/ufw"
HEALTH = "/usr/local/libexec/dgxspark/spark_health.py"
SERVER_SECONDS = 30.0  # for a server that runs and was asked before; its role gives a slower one all its time
ASK_SECONDS = 15.0  # for ping, which needs 4 s to lose all its packets, and for ufw
ROOTS = {"owner": "root", "group": "root", "mode": "0644"}
NETWORK_MODE = "0600"  # of the file that the role fabric writes
FIREWALL_PLACES = (
    "/etc/systemd/system/spark-firewall.service",
    "/etc/dgxspark/firewall.nft",
    "/var/lib/dgxspark/firewall",
)
NO_TABLE = (1, 127)  # of nft: there is no such table, or no nft


def lying(host: Host) -> list[str]:
    """Look at what lies on the host.

    :param host: its params are those of M(dgxspark.vllm.generation): C(images), C(bundled), C(network) with C(file),
        C({path, sha256}), and C(firewall)
    :returns: why there may be something to apply
    """
    params = host.params
    return [
        *missing_images(host, params["images"]),
        *(text for model in params["bundled"] for text in unbundled(host, model)),
        *(text for wanted in params["files"] for text in beside(host, wanted)),
        *network_file(host, params["network"].get("file") or {}),
        *(text for wanted in params["network"].get("units") or [] for text in beside(host, wanted)),
        *(firewall_left(host) if params["firewall"] == "absent" else []),
    ]


def missing_images(host: Host, wanted: Sequence[Sequence[str]]) -> list[str]:
    """Say which images are to be there and are not; what has the name of one that is made on hosts is what is wanted.

    :param host: to be looked at
    :param wanted: of each image the names by any of which it may be there
    :returns: why there is something to apply
    """
    there = host.inspect([name for names in wanted for name in names])
    if host.silent:
        return [f"Docker does not say which images there are: {host.silent}"]
    return [f"the image {names[0]} is not there" for names in wanted if not any(name in there for name in names)]


def unbundled(host: Host, model: Mapping[str, Any]) -> list[str]:
    """Say what of a model M(dgxspark.vllm.bundle) would bring.

    :param host: to be looked at
    :param model: C(repo), C(commit), C(revisions) that stand for it, and C(files), by name, as the bundle has them
    :returns: why there is something to apply
    """
    hf_home, repo = host.at(host.params["hf_home"]), str(model["repo"])
    snapshot = snapshots.repo_folder(hf_home, repo) / "snapshots" / str(model["commit"])
    sums = snapshots.Sums(host.at(snapshots.SUMS_DIR), repo)
    wrong = snapshots.check(snapshot, model["files"], sums, str(host.params["settings"].get("verify") or "changed"))
    if not host.check:
        try:
            sums.save()
        except OSError as error:  # they are read again the next time
            host.warn(f"sums of {repo} could not be kept: {error}")
    named = all(snapshots.commit_of(hf_home, repo, name) == model["commit"] for name in model["revisions"])
    other = [] if named else [f"{repo}: the bundle has another commit"]
    return [*(f"{repo}: {each['file']} {each['why']}" for each in wrong), *other]


def beside(host: Host, wanted: Mapping[str, str]) -> list[str]:
    """Say whether a file that lies where no generation looks is not as a role would write it.

    :param host: it lies on
    :param wanted: C({path, sha256}), and C(owner), C(group) and C(mode) where they are not those of root; nothing may be there without a sum, nor
        on a host that lacks C(device)
    :returns: why there is something to apply
    """
    path = host.at(wanted["path"])
    if not wanted["sha256"] or (wanted.get("device") and not host.at(wanted["device"]).exists()):
        return [f"{wanted['path']} is to be gone"] if path.exists() else []
    try:
        same = not path.is_symlink() and hashlib.sha256(path.read_bytes()).hexdigest() == wanted["sha256"]
    except OSError:
        same = False
    seen = host.owner(path) if same else {}
    # Without root, only a test gets here.
    named = ("owner", "group", "mode") if os.geteuid() == 0 else ("mode",)
    right = {**ROOTS, **wanted}
    return (
        [] if same and all(seen[key] == right[key] for key in named) else [f"{wanted['path']} is not as it has to be"]
    )


def network_file(host: Host, wanted: Mapping[str, str]) -> list[str]:
    """Say whether the file of the role fabric is not what it would write.

    :param host: it lies on
    :param wanted: C({path, sha256}); empty where the network is somebody else's
    :returns: why there is something to apply
    """
    return beside(host, {**wanted, "mode": NETWORK_MODE}) if wanted else []


def firewall_left(host: Host) -> list[str]:
    """Say what is left of a firewall that is to be gone."""
    left = [path for path in FIREWALL_PLACES if host.at(path).exists()]
    rc, _out, err = host.run(["/usr/sbin/nft", "--stateless", "list", "table", "inet", "dgxspark"])
    if rc == 0:
        left.append("its table")
    elif rc not in NO_TABLE:
        left.append(f"perhaps its table: {err.strip()}")
    return [f"of the firewall is left: {', '.join(left)}"] if left else []


def answers(run: Run, root: Path, params: Mapping[str, Any], check: bool) -> list[str]:
    """Ask what answers beside the engines; in the order of the roles, the first that is not well ends it.

    :param run: asks a program, raises NoAnswer on silence
    :param root: where the host's files are
    :param params: of M(dgxspark.vllm.generation): C(network) with C(ufw), C({netdevs, peers}), C(routes) of C(relay.routes_of), and
        C(relay) and C(pings), of C(fabric.plan);
        C(servers), each with C(name), C(settings), the file that it is asked by, and C(seconds)
    :param check: whether the roles would ask no server either
    :returns: why there may be something to apply
    """
    try:
        why = closed(run, root, params["network"].get("ufw") or {})
        why = why or astray(run, params["network"])
        why = why or lost(run, params["network"].get("pings") or [])
        for server in [] if check or why else params["servers"]:
            why = unwell(run, server)
            if why:
                break
    except NoAnswer as nothing:
        return [str(nothing)]
    return why


def closed(run: Run, root: Path, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Say what ufw keeps out that the role fabric lets in."""
    if not wanted or not (root / UFW.lstrip("/")).exists():
        return []
    rc, out, err = run(["ufw", "status"], ASK_SECONDS)
    if rc:
        return [f"ufw does not say what it lets in: {(err or out).strip()}"]
    if not re.search(r"^Status. active", out, re.MULTILINE):
        return []
    netdevs = [name for name in wanted["netdevs"] if not re.search(rf"Anywhere on {re.escape(name)} +ALLOW", out)]
    peers = [
        name for name in wanted["peers"] if not re.search(rf"ALLOW( IN)? +{re.escape(name)} *$", out, re.MULTILINE)
    ]
    return [f"ufw does not let in what comes by {name}" for name in [*netdevs, *peers]]


def astray(run: Run, wanted: Mapping[str, Any]) -> list[str]:
    """Say what a host of a ring has lost of its routes, and of what lets it pass on packets for others."""

    def ask(argv: list[str]) -> tuple[int, str, str]:
        return run(argv, ASK_SECONDS)

    return relay.lost_routes(ask, wanted.get("routes") or []) + relay.not_passed_on(ask, wanted.get("relay") or [])


def lost(run: Run, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which hosts of the cluster packets do not get to."""
    found: list[Finding] = []
    for each in wanted:
        found += pings.judge_pings([pings.send(lambda argv: run(argv, ASK_SECONDS), each)])
        if found:  # the role sends all of them
            break
    return [finding.message for finding in found]


def unwell(run: Run, server: Mapping[str, Any]) -> list[str]:
    """Say why a server does not give a real answer, as the roles speech and ollama ask it; Ollama is asked what it has, and pulls nothing."""
    seconds = min(float(server["seconds"]), SERVER_SECONDS)
    asked = ["/usr/bin/python3", HEALTH, "prove", str(server["settings"]), "--seconds", f"{seconds:g}"]
    rc, out, err = run(asked, seconds + ASK_SECONDS)
    said = ((err or out).strip().splitlines() or [f"exit code {rc}"])[0]
    return [f"{server['name']}: {said[:300]}"] if rc else []
