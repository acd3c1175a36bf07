# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start-up lines of the engines of this host: of their containers, and of Ray's workers. Reads; changes nothing.

What they say of a start that failed is worked out here too: the exception that ended it (C(error_of)), and what that means (C(known)); how far
it came is in C(start_stages.py). The texts are those of vLLM 0.15 to 0.33.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from .._cluster import ray_cluster
from .._common.foreign_text import decode_text
from .._host import beneath, units
from .._runtime.command import noted
from .._runtime.start_stages import newest_start

# systemd tells the second, and the clocks of the two are read one after the other.
SLACK = timedelta(seconds=5)
# A worker says what it took within its first lines.
MOST_BYTES = 4 * 2**20
SESSION_LOGS = ("worker-*.out", "worker-*.err")
# Who prints (API server, engine, worker; Ray's colours around it), the level and the time of vLLM's own lines, and their place in its source.
_WHO = re.compile(r"^(?:\x1b\[\d+m)?(?:\((?:[\w ]+?)(?:_[A-Z]+\d+)* ?(?:pid=\d+)?(?:, ip=[\d.]+)?\)(?:\x1b\[0m)? ?)+")
_LEVEL = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?P<place>[^\]]+)\] ?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Refusal)(?:: .*|$)")
# These only say that another process has failed, and that its reason stands above.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Engine process failed to start|EngineDeadError|"
    r"See root cause above|See stack trace"
)
LONGEST_ERROR = 1500  # characters

# What engines say when they do not start, what it means, and what to do; the first that is found counts.
KNOWN = (
    (
        re.compile(r"no kernel image is available for execution on the device"),
        "the image, or a package in it, has no kernels for this GPU (sm_121)",
        "serve from an image that was built for it, as a recipe names one; image_info says what is in an image",
    ),
    (
        re.compile(r"Failed to find a kernel that can implement the"),
        "this vLLM has no kernel for a layer of this checkpoint on this GPU: its format, its group size or its shape, as happens with "
        "checkpoints that were quantised at home",
        "serve a checkpoint that a recipe names, quantise with that layer left out, or take a newer image",
    ),
    (
        re.compile(r"compiler_interface\.py\", line \d+, in load\b|UnpicklingError|EOFError: Ran out of input"),
        "an entry of the compile cache cannot be read, as after an update or a start that was cut off",
        "stop the unit, remove the folder of this service below spark_cache_dir (/var/cache/dgxspark), and start it again; it compiles "
        "for minutes once",
    ),
    (
        # A healthy start of some versions has a line that begins like this one.
        re.compile(r"Free memory on device.* is less than desired GPU memory utilization"),
        "when the engine started, less memory was free than gpu-memory-utilization asks for",
        "see what else holds memory (status.yml), or lower gpu-memory-utilization",
    ),
    (
        re.compile(r"No available memory for the cache blocks"),
        "weights and overheads leave nothing of gpu-memory-utilization for the KV cache",
        "raise gpu-memory-utilization, or lower max-num-batched-tokens; plan.yml says what fits",
    ),
    (
        re.compile(
            r"To serve at least one request with the model's max seq len|max seq len .* is larger than the maximum number of tokens"
        ),
        "one request of max-model-len tokens does not fit into the KV cache",
        "lower max-model-len to what the text below names, raise gpu-memory-utilization, or set kv-cache-dtype to fp8",
    ),
    (
        re.compile(r"Error in memory profiling\. Initial free memory"),
        "something else gave memory back while the engine measured itself",
        "see that nothing else loads or stops at the same time, and start it again",
    ),
    (
        re.compile(r"In Mamba cache align mode, block_size|mamba_cache_mode.{0,40}align.{0,200}max_num_batched_tokens"),
        "a batch is smaller than one block of this hybrid model",
        "raise max-num-batched-tokens to at least the block size that the text below names, or turn enable-prefix-caching off",
    ),
    (
        re.compile(
            r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA error: out of memory|NV_ERR_NO_MEMORY"
        ),
        "the GPU had no memory left for an allocation",
        "see what else holds memory (status.yml), or lower gpu-memory-utilization so that more is left beside the engine",
    ),
    (
        re.compile(r"AmbiguousGlobalPerLayerAttributeError:"),
        "this vLLM does not know the transformers package in its image: the package is newer than what it was written for",
        "serve from an image whose transformers is older, or whose vLLM is newer",
    ),
)


def read_units(run: Any, names: list[str]) -> dict[str, str | None]:
    """Since when each unit has been active, as far as it is."""
    shown = noted({}, [], units.ask, run, names)
    return {unit["name"]: unit["active_since"] for unit in shown if unit["active_state"] == "active"}


def containers_of(name: str, container: str, containers: list[dict[str, Any]]) -> list[str]:
    """Name the running containers of a service.

    :param name: of the service, which their labels have
    :param container: its own one
    :param containers: of C(gb10.read_containers)
    :returns: their names
    """
    return [
        found["name"]
        for found in containers
        if found["state"] == "running" and (found["name"] == container or found["service"] == name)
    ]


def read_logs(run: Any, containers: list[str], until: str | None) -> tuple[list[str], str]:
    """Read the start-up lines of all containers of a service.

    :param run: runs docker
    :param containers: their names
    :param until: when the unit was active, as ISO 8601, None to read all
    :returns: lines, and why there are none of one of them, or an empty text
    """
    lines: list[str] = []
    reasons = []
    for container in containers:
        own, reason = read_log(run, container, until)
        lines += own
        reasons += [reason] if reason else []
    return lines, "; ".join(reasons)


def read_session(run_dir: Path, service: str) -> tuple[list[str], str]:
    """What the workers of this host wrote in the newest session of Ray, or a reason why there is nothing.

    Sessions are named by the time of their start.
    """
    folder = run_dir / "ray" / service / ray_cluster.SESSION
    try:
        sessions = sorted(path for path in folder.glob("session_2*") if path.is_dir() and not path.is_symlink())
        logs = f"{sessions[-1].name}/logs"
        with beneath.folder(folder, logs) as at:
            names = beneath.names(at)
        lines: list[str] = []
        # Engines write there: what a link leads to is none of their words.
        for name in (name for pattern in SESSION_LOGS for name in names if fnmatch.fnmatch(name, pattern)):
            with beneath.open_file(folder, f"{logs}/{name}") as stream:
                lines += decode_text(stream.read(MOST_BYTES)).splitlines()
    except IndexError:
        return [], f"its workers write into a session of Ray, and {folder} has none"
    except OSError as error:
        return [], f"what its workers wrote cannot be read: {error}"
    return lines, "" if lines else f"its workers write into a session of Ray, and {sessions[-1]} has nothing of them"


def read_log(run: Any, container: str, until: str | None) -> tuple[list[str], str]:
    """Read the start-up lines of a container.

    A container of ours is made anew at every start, so its log has no other start; what came after the unit was active
    (requests, for weeks) is left out.

    :param run: runs docker
    :param container: its name
    :param until: when the unit was active, as ISO 8601, None to read all
    :returns: lines, and a reason why there are none, or an empty text
    """
    if until:
        until = (datetime.fromisoformat(until) + SLACK).isoformat()
    rc, out, err = run(["docker", "logs", *([f"--until={until}"] if until else []), container])
    if rc == 0 and until and not (out or err):
        # Its first line is dated later: the wall clock was set back since then.
        rc, out, err = run(["docker", "logs", container])
    if rc != 0:
        last = err.strip().splitlines()[-1:] or [f"exit code {rc}"]
        return [], f"its log cannot be read: {last[0]}"
    return f"{out}\n{err}".splitlines(), ""


def error_of(lines: list[str]) -> str:
    """Return the exception that ended the last start, in the words of the engine; empty where its log has none.

    It stands far above the end: the tracebacks of the processes around the one that failed follow it. Those that were only warned of,
    as of a package that is not there, do not count.
    """
    found = [text for text, warned in _exceptions(newest_start(lines)) if not warned]
    first_hand = [text for text in found if not _SECOND_HAND.search(text)]
    return (first_hand or found or [""])[0]


def _exceptions(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Each exception at the end of a traceback, with its further lines, and whether it was only a warning."""
    inside = warned = False
    for index, line in enumerate(lines):
        text, source = _bare(line)
        if text.startswith("Traceback (most recent call last)"):
            inside, warned = True, source.startswith(("DEBUG", "INFO", "WARNING"))
        elif inside and _EXCEPTION.match(text):
            inside = False
            yield "\n".join([text, *_rest(lines[index + 1 :], line)])[:LONGEST_ERROR], warned


def _rest(lines: list[str], first: str) -> Iterator[str]:
    """The further lines of an exception: of the same process and the same place in vLLM's source, up to what is something else."""
    who, source = _WHO.match(first), _bare(first)[1]
    for line in lines[:20]:
        text, its_source = _bare(line)
        if its_source != source or (_WHO.match(line) is None) != (who is None) or not text.strip():
            return
        if text.startswith(
            ("Traceback", "Process ", "During handling", "The above exception", "[", "INFO:", "WARNING:", "ERROR:")
        ):
            return
        if _EXCEPTION.match(text):
            return
        yield text


def _bare(line: str) -> tuple[str, str]:
    """A line without who printed it; and its level and its place in vLLM's source, where it has them."""
    text = _WHO.sub("", line, count=1)
    head = _LEVEL.match(text)
    return (text[head.end() :], f"{head['level']} {head['place']}") if head else (text, "")


def known(lines: Iterable[str]) -> tuple[str, str]:
    """Say what a log of an engine that did not start means, and what to do; empty texts where it has nothing that is known."""
    text = "\n".join(lines)
    return next(((cause, fix) for pattern, cause, fix in KNOWN if pattern.search(text)), ("", ""))
