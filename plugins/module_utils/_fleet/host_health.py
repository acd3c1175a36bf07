# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs, receipts, disks, clock, pending reboots and answers of a host: the section C(health) of M(dgxspark.vllm.spark_info).

C(doctor.py) makes findings of it on the controller. Logs are searched for known messages; only counts and the last matching line are returned.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from .._common.foreign_text import Untrusted, parse_json
from .._common.reader import LINE, NUMBER, Maybe, Most, optional, read
from .._common.sizes import GIB
from .._host import docker, driver_packages, machine, nvidia_smi
from .._host.host_view import HostView, Request
from .._proof import explain, receipts, service_arguments, speed_proof
from .._runtime import engine_client, start_stages, state_file
from .._runtime.command import NoAnswer, Run, answered, noted, says_missing
from . import doctor_signs

KERNEL_LINES = 20000
PROXIES = {f"{name}Proxy": f"{name.upper()}_PROXY" for name in ("all", "ftp", "http", "https", "no")}
"""Keys of C(proxies) in Docker's configuration, and the variables that its client makes of them, also in lower case."""
LAST_LINES = 40  # few lines follow the last message of a shutdown
SHUTDOWN = re.compile(
    r"systemd-shutdown\[|systemd-journald\[\d+\]: Journal stopped|Reached target (?:\S+ - )?System (?:Power Off|Reboot|Halt)"
)
THERMAL_ZONES = 8
MOST_FILES = 2000
"""Files of a compile cache that are looked at."""


def section(view: HostView, request: Request) -> dict[str, Any]:
    """Return what only a running host shows; parts that could not be read are empty or None, with the reason in C(unknown)."""
    params, run = request.params, view.run
    services = service_arguments.complete(params["services"])
    names, state = [service["name"] for service in services], Path(params["state_dir"])
    unknown: dict[str, str] = {}
    docker = view.docker() or {}
    boxes = noted(unknown, [], view.containers)
    running = {box["name"] for box in boxes if box["state"] == "running"}
    with ThreadPoolExecutor(max_workers=max(len(services), 1)) as pool:
        questions = [
            pool.submit(question, service, params["answer_timeout"]) for service in services if params["ask_services"]
        ]
        engines = {
            service["name"]: look_at(view, service, running, params["log_lines"], unknown) for service in services
        }
        for name, answer in zip(names, questions):
            engines[name]["answer"] = answer.result()
    load, error = noted(unknown, ({}, ""), gpu_load, view)
    paths = [*params["disk_paths"], "/", "/var/log", *([docker["root_dir"]] if docker.get("root_dir") else [])]
    health = {
        "clock": {"now": time.time(), "synchronized": noted(unknown, None, synchronized, run)},
        "disks": machine.read_disks(dict.fromkeys(paths)),
        "docker_proxies": docker_proxies(service["unit"] for service in services),
        "driver_packages": noted(unknown, {}, other_driver_packages, run, view.root),
        "gpu_error": error,
        "gpu_load": load,
        "helpers": noted(unknown, {}, helpers, view),
        "kernel_log": noted(unknown, {}, kernel_log, view),
        "last_boot": noted(unknown, {}, last_boot, view),
        "no_initrd": no_initrd(Path(view.root, "boot")),
        "nvidia_tools": ask_nvidia_tools(run, Path(view.root), unknown),
        "reboot_required": Path("/var/run/reboot-required").exists(),
        "reboot_packages": sorted(set((machine.read_text("/", "var/run/reboot-required.pkgs") or "").split()))[:8],
        "receipts": read_receipts(state / "receipts"),
        "registries": registries(Path("/root/.docker/config.json")),
        "shm_gib": used_gib("/dev/shm"),
        "soc_c": warmest(view.root),
        # What the stages of the last starts took, the oldest first.
        "starts": {name: start_stages.checked(state_file.read(state / "starts" / f"{name}.json")) for name in names},
        "unused_images": noted(unknown, [], unused_images, view) if docker.get("reachable") else [],
        "services": engines,
    }
    return {**health, "unknown": {**view.unknown, **unknown}}


def look_at(
    view: HostView, service: dict[str, Any], running: set[str], lines: int, unknown: dict[str, str]
) -> dict[str, Any]:
    """Return C({log, unit_changed, cache}): the explained log of a service, and when its unit and its caches were written."""
    container = service["container"] if service["container"] in running else None
    text = noted(unknown, "", read_log, view, container, service["unit"], lines)
    try:
        changed: float | None = Path("/etc/systemd/system", service["unit"]).stat().st_mtime
    except OSError:
        changed = None
    cache = Path(service["cache_dir"]) if service["cache_dir"] else None
    return {
        "log": explain.explain(text.splitlines()).to_dict(),
        "unit_changed": changed,
        "cache": {"path": str(cache), "oldest": oldest(cache)} if cache else {},
    }


def read_log(view: HostView, container: str | None, unit: str, lines: int) -> str:
    """Return the last lines of a container's log, or without one of a unit's journal, empty for a missing container; raises NoAnswer."""
    if container:
        rc, out, err = view.container_log(container, f"--tail={lines}")
    else:
        rc, out, err = view.journal("--output=cat", f"--lines={lines}", f"--unit={unit}")
    if rc != 0 and says_missing(err):  # the container ended since it was listed
        return ""
    answered("docker" if container else "journalctl", rc, err)
    return f"{out}\n{err}" if rc == 0 else ""


def question(service: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Ask a service a simple question; reasoning counts as an answer too."""
    probe = service["probe"]
    if not probe.get("url"):
        return {"text": "", "error": ""}
    body = {
        "model": probe.get("model") or service["name"],
        "max_tokens": doctor_signs.ANSWER_TOKENS,
        "temperature": 0,
        "messages": [{"role": "user", "content": doctor_signs.QUESTION}],
    }
    try:
        client = engine_client.Client(probe["url"], engine_client.read_api_key(probe.get("api_key_file")))
        answer = client.request_json("POST", "/v1/chat/completions", body, timeout)
        message = answer["choices"][0]["message"]
        parts = [message.get(key) for key in ("reasoning_content", "reasoning", "content")]
    except engine_client.Problem as problem:
        return {"text": "", "error": problem.message[:200]}
    except (LookupError, TypeError, AttributeError):
        return {"text": "", "error": "the answer has no message"}
    return {"text": " ".join(part for part in parts if isinstance(part, str))[:600], "error": ""}


def oldest(folder: Path) -> float | None:
    """Return when the oldest file of a folder was written, None for an empty one; only some of many are looked at."""
    times: list[float] = []
    for base, _folders, files in os.walk(folder):
        for name in files:
            try:
                times.append(Path(base, name).lstat().st_mtime)
            except OSError:
                continue
        if len(times) >= MOST_FILES:
            break
    return min(times) if times else None


def gpu_load(view: HostView) -> tuple[dict[str, float | None], str]:
    """Return load, clock and power of the GPU, and the message of nvidia-smi if it fails."""
    rc, out, err = view.gpu_query()
    if rc != 0:
        printed = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()]
        return {}, (printed[0][:200] if printed else f"exit code {rc}") if rc != 127 else ""
    device = next(iter(nvidia_smi.parse_gpu_query(out)), {})
    names = {"utilization": "utilization_percent", "sm_mhz": "sm_clock_mhz", "power_w": "power_w"}
    return {name: device.get(key) for name, key in names.items()} if device else {}, ""


def synchronized(run: Any) -> bool | None:
    """Return whether the clock is synchronized, None if systemd does not know."""
    rc, out, _err = run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return {"yes": True, "no": False}.get(out.strip()) if rc == 0 else None


def helpers(view: HostView) -> dict[str, dict[str, Any]]:
    """Return the state of other units that matter, by name; missing ones are left out."""
    return {
        unit["name"]: {"active": unit["active_state"] == "active", "enabled": unit["enabled"]}
        for unit in view.others()
        if unit["load_state"] == "loaded"
    }


def kernel_log(view: HostView) -> dict[str, Any]:
    """Return signs in the log since the boot, of the kernel and of the programs that load its modules."""
    sources = ["_TRANSPORT=kernel", "+", "_COMM=modprobe", "+", "_SYSTEMD_UNIT=systemd-modules-load.service"]
    rc, out, err = view.journal("--boot", "--output=short-iso", f"--lines={KERNEL_LINES}", *sources)
    answered("journalctl", rc, err)
    return doctor_signs.count_signs(out.splitlines(), doctor_signs.KERNEL_SIGNS) if rc == 0 else {}


def last_boot(view: HostView) -> dict[str, Any]:
    """Return the end of the boot before this one in seconds since 1970, and whether it was a shutdown; {} without such a journal."""
    rc, out, err = view.journal("--boot=-1", "--output=short-unix", f"--lines={LAST_LINES}")
    if rc == 1 and re.search(r"is not available|no persistent journal", err, re.IGNORECASE):
        return {}
    answered("journalctl", rc, err)
    lines = [line for line in out.splitlines() if re.match(r"\d+\.\d+ ", line)]
    if rc != 0 or not lines:
        return {}
    return {"ended": float(lines[-1].split()[0]), "shut_down": any(SHUTDOWN.search(line) for line in lines)}


def read_receipts(folder: Path) -> dict[str, dict[str, Any]]:
    """Return age, image and finding on the speed of each receipt, by service."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        entry: dict[str, Any] = {"path": str(path)}
        try:
            entry["age_days"] = round((time.time() - path.stat().st_mtime) / 86400, 2)
            receipt = receipts.load(path.read_text(encoding="utf-8"))
            image = receipt.deployed.get("image")
            entry["image"] = image.get("ref") if isinstance(image, dict) else image
            entry["speed"] = speed_proof.finding_of(receipt.speed)
        except (OSError, ValueError) as error:
            entry["error"] = str(error)[:200]
        entries[path.stem] = entry
    return entries


def registries(config: Path) -> list[str]:
    """Name the registries that root's Docker has an account at; no account is read."""
    try:
        content = parse_json(config.read_text(encoding="utf-8"), str(config))
        names = {name for key in ("auths", "credHelpers") for name in content.get(key) or {}}
    except (OSError, ValueError, AttributeError):
        return []
    return sorted(re.sub(r"^https?://|/.*$", "", name) for name in names)


def docker_proxies(units: Iterable[str]) -> dict[str, list[str]]:
    """Return the variables that C(docker run) of units sets in every container, by the file that has them; values may hold passwords.

    Docker's client reads the configuration of the account that runs it, and adds the proxies that the command does not set
    (docker/cli, cli/config/configfile, ParseProxyConfig).
    """
    texts = (machine.read_text("/", f"etc/systemd/system/{unit}") for unit in units)
    users = {(re.findall(r"^User=(\S+)$", text, re.MULTILINE) or ["root"])[-1] for text in texts if text}
    variables = {}
    for user in sorted(users):
        try:
            config = Path(pwd.getpwnam(user).pw_dir, ".docker/config.json")
        except KeyError:
            continue
        names = proxies_of(config)
        if names:
            variables[str(config)] = names
    return variables


def proxies_of(config: Path) -> list[str]:
    """Name the variables that Docker's client makes of its configuration; none of a file that is missing or malformed."""
    try:
        hosts = parse_json(config.read_text(encoding="utf-8"), str(config)).get("proxies") or {}
        keys = {key for proxies in hosts.values() for key, value in proxies.items() if value}
    except (OSError, ValueError, AttributeError):
        return []
    return sorted(name for key, name in PROXIES.items() if key in keys)


def other_driver_packages(run: Any, root: str) -> dict[str, list[str]]:
    """Packages of another branch than the loaded driver, by branch; raises NoAnswer."""
    loaded = (machine.read_text(root, "sys/module/nvidia/version") or "").strip()
    show = "--showformat=${Package} ${Version} ${db:Status-Status}\\n"
    rc, out, _err = run(["dpkg-query", "--show", show, "nvidia-*", "libnvidia-*"]) if loaded else (0, "", "")
    rows = [line.split() for line in out.splitlines() if line.endswith(" installed")] if rc == 0 else []
    return driver_packages.other_branch({row[0]: row[1] for row in rows if len(row) == 3}, loaded)


def no_initrd(boot: Path) -> list[str]:
    """Kernels without an initial RAM disk."""
    try:
        files = [file.name for file in boot.iterdir() if file.is_file() and file.stat().st_size]
    except OSError:
        return []
    return driver_packages.kernels_without_initrd(files)


def used_gib(path: str) -> float:
    """What a file system in memory holds."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0.0
    return round((stat.f_blocks - stat.f_bfree) * stat.f_frsize / GIB, 3)


def warmest(root: str) -> float | None:
    """Degrees of the warmest thermal zone of the board, None where none can be read."""
    zones = [f"sys/class/thermal/thermal_zone{number}/temp" for number in range(THERMAL_ZONES)]
    temperatures = [machine.read_text(root, zone) or "" for zone in zones]
    return max((int(text) / 1000 for text in temperatures if text.strip().isdigit()), default=None)


def unused_images(view: HostView) -> list[dict[str, Any]]:
    """Images that no container uses, running or not, with their size."""
    names = docker.image_names(view.run)
    if not names:
        return []
    used = {container["image_id"] for container in view.containers()}
    sizes = docker.image_sizes(view.run, names)
    unused = [
        {"ref": names[image_id], "gib": round(size / GIB, 2)}
        for image_id, size in sizes.items()
        if image_id in names and image_id not in used
    ]
    return sorted(unused, key=lambda image: str(image["ref"]))


# --- NVIDIA's management tools

TOOL_SECONDS = 20.0
MOST_ANSWER = 2**20
"""Bytes of an answer; the tools truncate their texts at 500 kB."""
FOLDERS = (
    "usr/local/bin",
    "usr/bin",
    "opt/dgx_spark_management/bin",
    "opt/DGX_spark_management/bin",
    "opt/nvidia/dgx_spark_management/bin",
)
"""Folders that are searched. The suite is a folder of the owner's choice; tools in homes are not run as root."""
MOST_BESIDE = 10_000
"""Entries of the folder of a tool; in one with more, not all can be looked at."""
NO_LOG = ["--config", "/dev/stdin"]
TOOLS: Mapping[str, tuple[list[str], Any]] = {
    "reset_reason_reporter": (
        [],
        {
            "last_reset": {"reason_code": LINE, "confidence": NUMBER, "summary": LINE},
            "current_boot?": {"uptime_seconds?": Maybe(NUMBER)},
        },
    ),
    "spark_updatectl": (
        ["status"],
        {"pending_reboot": {"pending": bool, **optional({"indicators": Most([LINE], 100)})}},
    ),
    "spark_diagctl": (["crash", "status"], {"crash_dumps_found": Most([{"path": LINE}], 1000)}),
}
"""Arguments and form of C(data) of each tool."""


def ask_nvidia_tools(run: Run, root: Path, unknown: dict[str, str]) -> dict[str, Any]:
    """Return C(data) of each of NVIDIA's tools that the host has, by name. Their answers are untrusted.

    The tools are those of NVIDIA's DGX Spark management suite, 1.1.0. Only their reading commands are used. A configuration on standard input takes
    away their log file, so that nothing is written.

    :param unknown: receives tools without a usable answer, and the reason
    """
    answers = {}
    for name, (words, form) in TOOLS.items():
        candidates = (root / folder / file for folder in FOLDERS for file in (f"{name}.py", name))
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is None:
            continue
        try:
            if not _is_roots_own(path):
                raise NoAnswer(name, f"{path} was not run: others than root may change it")
            argv = ["/usr/bin/python3", str(path), *NO_LOG, *words]
            _rc, out, _err = run(argv, TOOL_SECONDS, data=b'{"log_path": null}', limit=MOST_ANSWER, cwd="/")
            envelope = read({"ok": bool, "data?": Any}, parse_json(out, name, MOST_ANSWER), name)
            if not envelope["ok"]:
                raise NoAnswer(name, f"{name} failed by its own report")
            answers[name] = read(form, envelope.get("data"), f"{name}: data")
        except (NoAnswer, Untrusted, OSError) as error:
            text = str(error)
            unknown[name] = text if text.startswith(name) else f"{name}: {text}"
    return answers


def _is_roots_own(path: Path) -> bool:
    """Tell whether only root (or the account of the look) can change a program, what it may import, and the folders above. Raises OSError."""
    real = path.resolve()
    beside = list(islice(real.parent.rglob("*"), MOST_BESIDE + 1))
    imported = [entry for entry in beside if entry.is_dir() or entry.suffix in (".py", ".pyc", ".so")]
    for entry in (*imported, real, *real.parents):
        status = entry.stat()
        # In a folder such as /tmp, nobody replaces what is root's, but everybody can add a module.
        is_safe_above = entry in real.parents[1:] and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not is_safe_above):
            return False
    return len(beside) <= MOST_BESIDE
