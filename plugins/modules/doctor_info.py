#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report what only a running host shows: logs, receipts, disks, clock, images, answers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor_info
short_description: Report what only a running host shows
version_added: 0.1.0
description:
  - Reads what M(dgxspark.vllm.doctor) needs in addition to facts, plan and proof. It searches the logs of the kernel and of engines for
    known messages, and reads receipts and their age, disks, clock, load of the GPU, pending reboots, images that no container uses,
    registries that Docker is logged in to, and compile caches.
  - Sends each service one prompt, with greedy sampling, to detect degenerate output. O(ask=false) skips that.
  - Of logs only counts and the last matching line are returned.
options:
  services:
    description: The services, as M(dgxspark.vllm.plan) returns them; only the listed keys are read.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the service.
        type: str
        required: true
      unit:
        description: Its unit.
        type: str
        required: true
      container:
        description: Its container.
        type: str
        required: true
      cache_dir:
        description: Its folder of compile caches.
        type: path
      probe:
        description: Where it answers; C(url), C(model) and C(api_key_file) are read.
        type: dict
        default: {}
  paths:
    description: Folders whose disks are looked at, beside those of logs and of Docker.
    type: list
    elements: path
    default: []
  lines:
    description: Last lines that are read of each log of an engine.
    type: int
    default: 500
  ask:
    description: Whether to ask each service a question.
    type: bool
    default: true
  timeout:
    description: Seconds that a service has for its answer.
    type: float
    default: 30
  receipts:
    description: Folder of the receipts.
    type: path
    default: /var/lib/dgxspark/receipts
  starts:
    description: Folder with what the stages of the last starts of services took.
    type: path
    default: /var/lib/dgxspark/starts
    version_added: 0.1.0
  root:
    description: Where C(/sys) is read. Simulated Sparks show their own there.
    type: path
    default: /
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.doctor
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Query the host
  dgxspark.vllm.doctor_info:
    services:
      - name: heavy
        unit: spark-heavy.service
        container: spark-heavy
        probe: {url: http://127.0.0.1:8001, model: heavy}
    paths: [/srv/huggingface]
  become: true
  register: looked
"""

RETURN = r"""
doctor:
  description: What was found. Parts that could not be read are empty or null.
  returned: success
  type: dict
  sample:
    clock: {now: 1790000000.2, synchronized: true}
    disks: {/srv/huggingface: {total_gib: 3755.1, free_gib: 1210.4, exists: true}}
    docker_proxies: {/home/me/.docker/config.json: [HTTPS_PROXY]}
    driver_packages: {'595': [libnvidia-compute-595]}
    gpu_error: ''
    gpu_load: {utilization: 97.0, sm_mhz: 2411.0, power_w: 61.0}
    helpers: {docker.service: {active: true, enabled: true}}
    kernel_log: {}
    last_boot: {ended: 1789990000.0, shut_down: true}
    no_initrd: [6.17.0-1032-nvidia]
    reboot_required: false
    reboot_packages: []
    receipts: {heavy: {path: /var/lib/dgxspark/receipts/heavy.json, age_days: 3.1, image: 'nvcr.io/nvidia/vllm:26.04-py3'}}
    registries: [nvcr.io]
    shm_gib: 0.0
    soc_c: 48.2
    starts: {heavy: [{at: '2026-11-23T08:00:00Z', launch: 5f1c, seconds: 214.0, stages: {gate: 4.0, load: 120.0}, said: {compile_seconds: 38.0}}]}
    unused_images: [{ref: 'vllm/vllm-openai:v0.19.0', gib: 21.3}]
    services:
      heavy:
        log: {id: none, stage: serving, error: '', cause: 'none: the engine serves, and the log has no error', fix: '', source: none}
        answer: {text: The sea is wide., error: ''}
        cache: {path: /var/cache/dgxspark/heavy, oldest: 1790000000.0}
        unit_changed: 1790000000.0
"""

import os
import pwd
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import doctor_signs
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker_facts, host_update, machine, units
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain, receipts
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import endpoint, start_stages, state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import (
    answered,
    noted,
    reader,
    says_missing,
)

LOOK_SECONDS = 15.0  # that a program may take

HELPERS = ("docker.service", "earlyoom.service", "nvidia-persistenced.service")
LOAD_QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,clocks.sm,power.draw", "--format=csv,noheader,nounits"]
KERNEL_LINES = 20000
PROXIES = {
    "allProxy": "ALL_PROXY",
    "ftpProxy": "FTP_PROXY",
    "httpProxy": "HTTP_PROXY",
    "httpsProxy": "HTTPS_PROXY",
    "noProxy": "NO_PROXY",
}
"""Keys of C(proxies) in Docker's configuration, and the variables that its client makes of them, also in lower case."""
LAST_LINES = 40  # what follows a shutdown's last message is few
SHUTDOWN = re.compile(
    r"systemd-shutdown\[|systemd-journald\[\d+\]: Journal stopped|Reached target (?:\S+ - )?System (?:Power Off|Reboot|Halt)"
)
THERMAL_ZONES = 8
MOST_FILES = 2000
"""Files of a compile cache that are looked at."""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "services": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "unit": {"type": "str", "required": True},
                    "container": {"type": "str", "required": True},
                    "cache_dir": {"type": "path"},
                    "probe": {"type": "dict", "default": {}},
                },
            },
            "paths": {"type": "list", "elements": "path", "default": []},
            "lines": {"type": "int", "default": 500},
            "ask": {"type": "bool", "default": True},
            "timeout": {"type": "float", "default": 30},
            "receipts": {"type": "path", "default": "/var/lib/dgxspark/receipts"},
            "starts": {"type": "path", "default": "/var/lib/dgxspark/starts"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params, run = module.params, reader(LOOK_SECONDS)
    unknown: dict[str, str] = {}
    rc, text, _err = noted(unknown, (124, "", ""), run, docker_facts.INFO_COMMAND)
    docker = noted(unknown, {}, docker_facts.parse_info, text) if rc != 127 else {}
    boxes = noted(unknown, [], HostView(run).containers)
    running = {item["name"] for item in boxes if item["state"] == "running"}
    with ThreadPoolExecutor(max_workers=max(len(params["services"]), 1)) as pool:
        asked = [pool.submit(question, one, params["timeout"]) for one in params["services"] if params["ask"]]
        services = {one["name"]: look_at(run, one, running, params["lines"], unknown) for one in params["services"]}
        for one, answer in zip(params["services"], asked):
            services[one["name"]]["answer"] = answer.result()
    load, error = noted(unknown, ({}, ""), gpu_load, run)
    paths = [*params["paths"], "/", "/var/log", *([docker["root_dir"]] if docker.get("root_dir") else [])]
    found = {
        "clock": {"now": time.time(), "synchronized": noted(unknown, None, synchronized, run)},
        "disks": machine.read_disks(dict.fromkeys(paths)),
        "docker_proxies": docker_proxies(one["unit"] for one in params["services"]),
        "driver_packages": noted(unknown, {}, driver_packages, run, params["root"]),
        "gpu_error": error,
        "gpu_load": load,
        "helpers": noted(unknown, {}, helpers, run),
        "kernel_log": noted(unknown, {}, kernel_log, run),
        "last_boot": noted(unknown, {}, last_boot, run),
        "no_initrd": no_initrd(Path(params["root"], "boot")),
        **reboot(),
        "receipts": read_receipts(Path(params["receipts"])),
        "registries": registries(Path("/root/.docker/config.json")),
        "shm_gib": used_gib("/dev/shm"),
        "soc_c": warmest(params["root"]),
        "starts": {one["name"]: last_starts(Path(params["starts"]), one["name"]) for one in params["services"]},
        "unused_images": noted(unknown, [], unused_images, run) if docker.get("reachable") else [],
        "services": services,
        "unknown": unknown,
    }
    module.exit_json(changed=False, doctor=found)


def look_at(
    run: Any, service: dict[str, Any], running: set[str], lines: int, unknown: dict[str, str]
) -> dict[str, Any]:
    """Read the log of a service, and when its unit and its caches were written.

    :param run: runs programs
    :param service: the service
    :param running: names of containers that run
    :param lines: of the log, at most
    :param unknown: takes what could not be read, and why
    :returns: what was found
    """
    of_docker = ["docker", "logs", f"--tail={lines}", service["container"]]
    argv = of_docker if service["container"] in running else units.journal_command(service["unit"], lines)
    text = noted(unknown, "", read_log, run, argv)
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


def read_log(run: Any, argv: list[str]) -> str:
    """What a program prints of a log; nothing where there is no such container. Raises NoAnswer."""
    rc, out, err = run(argv)
    if rc != 0 and says_missing(err):  # it ended since it was seen
        return ""
    answered(argv[0], rc, err)
    return f"{out}\n{err}" if rc == 0 else ""


def question(service: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Ask a service something that has a plain answer; thoughts count as one."""
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
        client = endpoint.Client(probe["url"], endpoint.read_api_key(probe.get("api_key_file")))
        answer = client.request_json("POST", "/v1/chat/completions", body, timeout)
        message = answer["choices"][0]["message"]
        parts = [message.get(key) for key in ("reasoning_content", "reasoning", "content")]
    except endpoint.Problem as problem:
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


def gpu_load(run: Any) -> tuple[dict[str, float | None], str]:
    """Return load, clock and power of the GPU, and what nvidia-smi says where it cannot tell."""
    rc, out, err = run(LOAD_QUERY)
    if rc != 0:
        said = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()]
        return {}, (said[0][:200] if said else f"exit code {rc}") if rc != 127 else ""
    cells = [cell.strip() for cell in out.strip().splitlines()[0].split(",")] if out.strip() else []
    names = ("utilization", "sm_mhz", "power_w")
    return {name: number(cell) for name, cell in zip(names, cells)}, ""


def number(text: str) -> float | None:
    """Read a figure; nvidia-smi writes [N/A] for what it does not know."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def synchronized(run: Any) -> bool | None:
    """Whether somebody keeps the clock; None where systemd does not know."""
    rc, out, _err = run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return {"yes": True, "no": False}.get(out.strip()) if rc == 0 else None


def helpers(run: Any) -> dict[str, dict[str, Any]]:
    """State of other units that matter; those that are not there are left out."""
    return {
        unit["name"]: {"active": unit["active_state"] == "active", "enabled": unit["enabled"]}
        for unit in units.ask(run, list(HELPERS))
        if unit["load_state"] == "loaded"
    }


def kernel_log(run: Any) -> dict[str, Any]:
    """Signs in the log since the boot of the kernel and of the programs that load its modules."""
    command = [
        "journalctl",
        "--boot",
        "--no-pager",
        "--quiet",
        "--output=short-iso",
        f"--lines={KERNEL_LINES}",
        "_TRANSPORT=kernel",
        "+",
        "_COMM=modprobe",
        "+",
        "_SYSTEMD_UNIT=systemd-modules-load.service",
    ]
    rc, out, err = run(command)
    answered("journalctl", rc, err)
    return doctor_signs.count_signs(out.splitlines(), doctor_signs.KERNEL_SIGNS) if rc == 0 else {}


def last_boot(run: Any) -> dict[str, Any]:
    """When the boot before this one ended, in seconds since 1970, and whether that was a shutdown; empty where the journal does not reach back."""
    options = ["--boot=-1", "--no-pager", "--quiet", "--output=short-unix", f"--lines={LAST_LINES}"]
    rc, out, err = run(["journalctl", *options])
    if rc == 1 and re.search(r"is not available|no persistent journal", err, re.IGNORECASE):
        return {}
    answered("journalctl", rc, err)
    lines = [line for line in out.splitlines() if re.match(r"\d+\.\d+ ", line)]
    if rc != 0 or not lines:
        return {}
    return {"ended": float(lines[-1].split()[0]), "shut_down": any(SHUTDOWN.search(line) for line in lines)}


def reboot() -> dict[str, Any]:
    """Whether the host waits for a reboot, and for which packages."""
    packages = machine.read_text("/", "var/run/reboot-required.pkgs") or ""
    return {
        "reboot_required": Path("/var/run/reboot-required").exists(),
        "reboot_packages": sorted(set(packages.split()))[:8],
    }


def read_receipts(folder: Path) -> dict[str, dict[str, Any]]:
    """What each receipt says of its age and image."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        entry: dict[str, Any] = {"path": str(path)}
        try:
            entry["age_days"] = round((time.time() - path.stat().st_mtime) / 86400, 2)
            image = receipts.load(path.read_text(encoding="utf-8")).deployed.get("image")
            entry["image"] = image.get("ref") if isinstance(image, dict) else image
        except (OSError, ValueError) as error:
            entry["error"] = str(error)[:200]
        found[path.stem] = entry
    return found


def last_starts(folder: Path, name: str) -> list[dict[str, Any]]:
    """What the stages of the last starts of a service took, the oldest first."""
    return start_stages.checked(state_file.read(folder / f"{name}.json"))


def registries(config: Path) -> list[str]:
    """Name the registries that root's Docker has an account at; no account is read."""
    try:
        content = parse_json(config.read_text(encoding="utf-8"), str(config))
        found = {name for key in ("auths", "credHelpers") for name in content.get(key) or {}}
    except (OSError, ValueError, AttributeError):
        return []
    return sorted(re.sub(r"^https?://|/.*$", "", name) for name in found)


def docker_proxies(units: Iterable[str]) -> dict[str, list[str]]:
    """Return the variables that C(docker run) of units sets in every container, by the file that has them; values may hold passwords.

    Docker's client reads the configuration of the account that runs it, and adds the proxies that the command does not set
    (docker/cli, cli/config/configfile, ParseProxyConfig).

    :param units: names
    """
    texts = (machine.read_text("/", f"etc/systemd/system/{unit}") for unit in units)
    users = {(re.findall(r"^User=(\S+)$", text, re.MULTILINE) or ["root"])[-1] for text in texts if text}
    found = {}
    for user in sorted(users):
        try:
            config = Path(pwd.getpwnam(user).pw_dir, ".docker/config.json")
        except KeyError:
            continue
        names = proxies_of(config)
        if names:
            found[str(config)] = names
    return found


def proxies_of(config: Path) -> list[str]:
    """Name the variables that Docker's client makes of its configuration; none of a file that is missing or malformed."""
    try:
        hosts = parse_json(config.read_text(encoding="utf-8"), str(config)).get("proxies") or {}
        keys = {key for proxies in hosts.values() for key, value in proxies.items() if value}
    except (OSError, ValueError, AttributeError):
        return []
    return sorted(name for key, name in PROXIES.items() if key in keys)


def driver_packages(run: Any, root: str) -> dict[str, list[str]]:
    """Packages of another branch than the loaded driver, by branch; raises NoAnswer."""
    loaded = (machine.read_text(root, "sys/module/nvidia/version") or "").strip()
    show = "--showformat=${Package} ${Version} ${db:Status-Status}\\n"
    rc, out, _err = run(["dpkg-query", "--show", show, "nvidia-*", "libnvidia-*"]) if loaded else (0, "", "")
    rows = [line.split() for line in out.splitlines() if line.endswith(" installed")] if rc == 0 else []
    return host_update.other_branch({row[0]: row[1] for row in rows if len(row) == 3}, loaded)


def no_initrd(boot: Path) -> list[str]:
    """Kernels without an initial RAM disk."""
    try:
        files = [file.name for file in boot.iterdir() if file.is_file() and file.stat().st_size]
    except OSError:
        return []
    return host_update.kernels_without_initrd(files)


def used_gib(path: str) -> float:
    """What a file system in memory holds."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return 0.0
    return round((stat.f_blocks - stat.f_bfree) * stat.f_frsize / GIB, 3)


def warmest(root: str) -> float | None:
    """Degrees of the warmest thermal zone of the board, None where none can be read."""
    found = [
        machine.read_text(root, f"sys/class/thermal/thermal_zone{number}/temp") or "" for number in range(THERMAL_ZONES)
    ]
    return max((int(text) / 1000 for text in found if text.strip().isdigit()), default=None)


def unused_images(run: Any) -> list[dict[str, Any]]:
    """Images that no container uses, running or not, with their size."""
    rc, out, err = run(["docker", "image", "ls", "--no-trunc", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"])
    answered("docker", rc, err)
    names: dict[str, str] = {}
    for line in out.splitlines() if rc == 0 else []:
        image_id, _space, name = line.partition(" ")
        docker_facts.read_ids(image_id)
        names.setdefault(image_id, name)
    if not names:
        return []
    used = {container["image_id"] for container in HostView(run).containers()}
    # One that is removed between the two calls makes inspect fail, but it still prints the others.
    rc, out, err = run(["docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", "--", *names])
    answered("docker", 0 if says_missing(err) else rc, err)
    found = []
    for line in out.splitlines():
        image_id, _space, size = line.partition(" ")
        if image_id in names and image_id not in used and size.isdigit():
            found.append({"ref": names[image_id], "gib": round(int(size) / GIB, 2)})
    return sorted(found, key=lambda image: str(image["ref"]))


if __name__ == "__main__":
    main()
