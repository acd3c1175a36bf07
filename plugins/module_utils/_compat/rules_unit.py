# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about systemd units and C(docker run) commands that somebody wrote by hand (Uxx)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .._common.docker_run import DockerRun, Unit, exec_command, exec_prefix
from .rulebook import FIRES, GUIDE, Hits, error, info, warning

SYSTEMD = "systemd.service(5), systemd.unit(5)"
FIELD = "field reports from GB10 hosts"
ENGINES = "engines observed while they died"


@dataclass
class Written:
    """A unit with or without a C(docker run) in it, or only a command (C(unit) is C(None))."""

    unit: Unit | None = None
    run: DockerRun | None = None
    text: str = ""

    def service(self, key: str) -> str:
        """Return the value of a setting of the section Service, empty without one."""
        return (self.unit.last("Service", key) or "") if self.unit else ""

    @property
    def options(self) -> DockerRun:
        """The options of C(docker run), empty without it."""
        return self.run or DockerRun()

    @property
    def before(self) -> list[str]:
        """Every C(ExecStartPre) line."""
        return self.unit.all("Service", "ExecStartPre") if self.unit else []

    @property
    def inside(self) -> str:
        """The command behind the image, as one line."""
        return " ".join(self.run.command) if self.run else ""


def seconds(text: str) -> float | None:
    """Read a time as systemd writes it (C(90), C(15min), C(1h 30min)); C(None) for infinity or none."""
    units = {"": 1, "s": 1, "sec": 1, "ms": 0.001, "m": 60, "min": 60, "h": 3600, "hr": 3600, "d": 86400}
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not parts or any(unit not in units for _number, unit in parts):
        return None
    return sum(float(number) * units[unit] for number, unit in parts)


_DROPS = re.compile(r"drop_caches")


@warning(
    "SPKU01",
    "PermissionsStartOnly",
    "PermissionsStartOnly= is deprecated: it runs every ExecStartPre= as root although one needs it.",
    "Write ExecStartPre=+... for that command instead.",
    SYSTEMD,
)
def _permissions(written: Written) -> Hits:
    if written.service("PermissionsStartOnly"):
        yield FIRES


@warning(
    "SPKU02",
    "Docker restarts the engine",
    "--restart {policy}{why}.",
    "{fix}",
    f"{FIELD}; {GUIDE}",
    about="Docker has a restart policy. In a unit, docker and systemd then both restart the engine; without "
    "a unit, docker restarts a failing engine forever, keeps its name, and never drops the page cache.",
)
def _restart_policy(written: Written) -> Hits:
    for policy in written.options.values("--restart"):
        if policy == "no" or re.fullmatch(r"on-failure:\d+", policy):
            continue
        if written.unit:
            yield {
                "policy": policy,
                "why": " makes docker restart the engine in addition to systemd; they start and remove each other's containers",
                "fix": "Remove --restart; Restart= of the unit does it.",
            }
        else:
            yield {
                "policy": policy,
                "why": " starts an engine that fails again and again, each time with a little less free memory, and "
                "without dropping the page cache",
                "fix": "Run it under a systemd unit with StartLimitBurst=3, or use --restart on-failure:3.",
            }


@warning(
    "SPKU03",
    "Detached container under systemd",
    "docker run --detach ends at once: with Type={type} systemd considers the service finished and supervises nothing.",
    "Remove --detach from ExecStart.",
    SYSTEMD,
)
def _detached(written: Written) -> Hits:
    kind = written.service("Type") or "simple"
    if written.unit and written.options.has("--detach") and kind in ("simple", "exec", "notify"):
        yield {"type": kind}


@warning(
    "SPKU04",
    "Page cache not dropped before the start",
    "{what} starts the engine without dropping the page cache; CUDA "
    "allocates from free memory and does not reclaim the cache.",
    "{fix}",
    "NVIDIA's guides to DGX Spark",
)
def _no_drop(written: Written) -> Hits:
    if written.run is None or (_DROPS.search(written.text) and True not in _ineffective_drops(written)):
        return
    if written.unit:
        yield {
            "what": "The unit",
            "fix": "Add ExecStartPre=+/bin/sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'.",
        }
    elif set(written.options.values("--restart")) - {"no"}:
        yield {
            "what": "Docker's restart",
            "fix": "Run it under a systemd unit that drops the page cache before every start.",
        }


@error(
    "SPKU05",
    "Page cache dropped without permission",
    "ExecStartPre= writes /proc/sys/vm/drop_caches as {user}, without permission: the unit fails.",
    "Write ExecStartPre=+/bin/sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'.",
    SYSTEMD,
    "Permission denied",
)
def _drop_as_user(written: Written) -> Hits:
    if False in _ineffective_drops(written):
        yield {"user": written.service("User")}


def _ineffective_drops(written: Written) -> list[bool]:
    """Return, for each line that drops the page cache as an unprivileged user, whether the unit ignores its failure."""
    user = written.service("User")
    if user in ("", "root", "0") or written.service("PermissionsStartOnly").lower() in ("true", "yes", "1", "on"):
        return []
    is_ignored = []
    for line in written.before:
        prefix = exec_prefix(line)
        if _DROPS.search(line) and not set(prefix) & set("+!") and "sudo" not in line:
            is_ignored.append("-" in prefix or "|| true" in line)
    return is_ignored


@warning(
    "SPKU06",
    "Start timeout that is too short",
    "TimeoutStartSec={value} also covers ExecStartPost=; loading took 6 to 18 minutes on users' hosts, and "
    "a first start also compiles.",
    "Set TimeoutStartSec to 1800 or more.",
    FIELD,
)
def _start_timeout(written: Written) -> Hits:
    if not written.unit or not written.run or not written.unit.all("Service", "ExecStartPost"):
        return
    value = written.service("TimeoutStartSec") or written.service("TimeoutSec") or "90"
    limit = seconds(value)
    if limit is not None and 0 < limit < 1800:
        yield {"value": value}


@warning(
    "SPKU07",
    "Docker is not required",
    "The unit runs docker without Requires=docker.service{order}: systemd does not stop and start it together with "
    "docker.",
    "Add Requires=docker.service and After=docker.service.",
    SYSTEMD,
)
def _requires(written: Written) -> Hits:
    if not written.unit or not written.run:
        return

    def names(key: str) -> str:
        return " ".join(written.unit.all("Unit", key)) if written.unit else ""

    bound = f"{names('Requires')} {names('BindsTo')} {names('Requisite')}"
    ordered = "docker.service" in names("After") or "docker.socket" in names("After")
    if "docker.service" not in bound and "docker.socket" not in bound:
        yield {"order": "" if ordered else " and After=docker.service"}


@warning(
    "SPKU08",
    "Restarts without a limit",
    "Restart={restart} with RestartSec={pause} never reaches systemd's limit ({burst} starts in "
    "{interval} s): a failing engine restarts forever, each time with less free memory.",
    "Set StartLimitIntervalSec=1800 and StartLimitBurst=3 in [Unit].",
    f"{SYSTEMD}; report on two Qwen3 models on one DGX Spark (19 restarts)",
)
def _endless(written: Written) -> Hits:
    restart = written.service("Restart")
    if not written.unit or restart in ("", "no"):
        return
    interval = (
        written.unit.last("Unit", "StartLimitIntervalSec") or written.unit.last("Unit", "StartLimitInterval") or "10"
    )
    burst = written.unit.last("Unit", "StartLimitBurst") or "5"
    pause = written.service("RestartSec") or "0.1"
    pause_seconds, window_seconds = seconds(pause), seconds(interval)
    if (
        pause_seconds is not None
        and window_seconds is not None
        and burst.isdecimal()
        and (window_seconds == 0 or pause_seconds * int(burst) >= window_seconds)
    ):
        yield {"restart": restart, "pause": pause, "burst": burst, "interval": interval}


@warning(
    "SPKU09",
    "Restart that ignores a dead engine",
    "Restart={restart} waits for a failure, but vllm serve ends with 0 when its engine dies.",
    "Set Restart=always.",
    ENGINES,
)
def _restart_on_failure(written: Written) -> Hits:
    restart = written.service("Restart")
    if written.run and restart in ("on-failure", "on-abnormal", "on-abort", "on-watchdog"):
        yield {"restart": restart}


@info(
    "SPKU10",
    "Active before it answers",
    "The unit is active as soon as docker runs, minutes before the model answers; units after it do not wait.",
    "Wait for a real answer in ExecStartPost=.",
    FIELD,
)
def _no_readiness(written: Written) -> Hits:
    kind = written.service("Type") or "simple"
    if written.unit and written.run and kind in ("simple", "exec") and not written.unit.all("Service", "ExecStartPost"):
        yield FIRES


@warning(
    "SPKU11",
    "Stop that reaches only docker's client",
    "Without ExecStop= systemd ends the docker command; an engine that ignores the signal stays behind, "
    "with its memory.",
    "Add ExecStop=/usr/bin/docker stop {name}.",
    FIELD,
)
def _no_stop(written: Written) -> Hits:
    if written.unit and written.run and not written.unit.all("Service", "ExecStop"):
        names = written.run.values("--name")
        yield {"name": names[-1] if names else "NAME, and a --name to docker run"}


@info(
    "SPKU12",
    "Not started at boot",
    "The unit has no [Install] section, so it cannot be enabled.",
    "Add [Install] with WantedBy=multi-user.target.",
    SYSTEMD,
)
def _no_install(written: Written) -> Hits:
    if written.unit and not written.unit.sections.get("Install"):
        yield FIRES


@warning(
    "SPKU13",
    "Memory limit that does not limit the engine",
    "{option} does not limit CUDA allocations on GB10 (it counted 8 of 40 GiB), and may kill the engine "
    "while it loads.",
    "Remove it; --gpu-memory-utilization is the limit.",
    FIELD,
)
def _memory_limit(written: Written) -> Hits:
    for option in ("--memory", "--memory-reservation"):
        for value in written.options.values(option):
            yield {"option": f"{option} {value}"}
    if written.run and written.service("MemoryMax") not in ("", "infinity"):
        yield {"option": f"MemoryMax={written.service('MemoryMax')}"}


@warning(
    "SPKU14",
    "Container name that blocks the next start",
    "The container is called {name}, and nothing removes a leftover container of that name.",
    "Add ExecStartPre=-/usr/bin/docker rm -f {name}.",
    FIELD,
)
def _leftover(written: Written) -> Hits:
    if not written.unit or not written.run:
        return
    for name in written.run.values("--name"):
        if not any(re.search(r"\brm\b", line) and name in line for line in written.before):
            yield {"name": name}


@error(
    "SPKU15",
    "Comment after a value",
    "{key}= ends with {comment}: systemd reads the comment as part of the value.",
    "Put the comment on a separate line.",
    SYSTEMD,
)
def _inline_comment(written: Written) -> Hits:
    for settings in written.unit.sections.values() if written.unit else ():
        for key, value in settings:
            match = re.search(r"\s(#.*)$", value)
            if match and not key.startswith(("Exec", "Description")):
                yield {"key": key, "comment": match.group(1)}


@warning(
    "SPKU16",
    "Start limit in the wrong section",
    "{key}= is in [Service], where systemd no longer reads it.",
    "Move it to [Unit].",
    SYSTEMD,
)
def _limit_section(written: Written) -> Hits:
    for key, _value in written.unit.sections.get("Service", []) if written.unit else ():
        if key == "StartLimitIntervalSec":
            yield {"key": key}


@warning(
    "SPKU17",
    "Stop by a process name",
    "{command} ends only the API server; the process VLLM::EngineCore keeps its memory (104 GiB in one report).",
    "Use docker stop on the container.",
    FIELD,
)
def _pkill(written: Written) -> Hits:
    for key in ("ExecStop", "ExecStopPost", "ExecStartPre"):
        for line in written.unit.all("Service", key) if written.unit else ():
            match = re.search(r"\b(pkill|killall)\b.*vllm", line)
            if match:
                yield {"command": exec_command(line)}


@warning(
    "SPKU18",
    "Packages installed at every start",
    "The container installs packages before it serves: every start needs the network, and gets the newest versions.",
    "Build an image that contains them.",
    FIELD,
)
def _pip_install(written: Written) -> Hits:
    if re.search(r"\b(pip3?|uv pip|apt-get|apt) install\b", written.inside):
        yield FIRES


@error(
    "SPKU19",
    "Container without the GPU",
    "docker run gives the container no GPU.",
    "Add --gpus all.",
    "docker's and NVIDIA's documents",
    "Failed to infer device type",
)
def _no_gpu(written: Written) -> Hits:
    options = written.options
    has_gpu = options.values("--gpus") or any("nvidia" in value for value in options.values("--runtime", "--device"))
    if written.run and not has_gpu and not options.has("--privileged"):
        yield FIRES


@warning(
    "SPKU20",
    "Weights inside the container",
    "No folder of the host is mounted: the weights are lost with the container.",
    "Mount a folder of the host (-v /srv/huggingface:/root/.cache/huggingface).",
    GUIDE,
)
def _no_volume(written: Written) -> Hits:
    if written.run and not written.run.mounts:
        yield FIRES


@warning(
    "SPKU21",
    "Secret in the command line",
    "{name} is in the command itself: docker inspect, ps and the unit show it to every user.",
    "Pass it by --env-file, with mode 0600.",
    "docker's documents",
)
def _secret(written: Written) -> Hits:
    for name, value in written.options.env.items():
        if value and re.search(r"(?:^|_)(?:TOKEN|API_KEY|SECRET|PASSWORD)$", name) and not re.match(r"[$%]", value):
            yield {"name": name}


@info(
    "SPKU22",
    "Port open to every network",
    "--publish {value} opens the port on every address of the host, and bypasses ufw.",
    "Write -p 127.0.0.1:{value}, or the address that the clients use.",
    "docker's documents; field reports from GB10 hosts",
)
def _published(written: Written) -> Hits:
    for value in written.options.values("--publish"):
        if re.fullmatch(r"[\d-]+:[\d-]+(/tcp)?", value):
            yield {"value": value}


@info(
    "SPKU23",
    "Health check that proves nothing",
    "{where} requests /health, which also answers while the engine hangs.",
    "Request a token from /v1/completions instead.",
    FIELD,
)
def _health(written: Written) -> Hits:
    lines = written.unit.all("Service", "ExecStartPost") if written.unit else []
    for line in lines:
        if "/health" in line and "/v1/" not in line:
            yield {"where": "ExecStartPost="}
    for command in written.options.values("--health-cmd"):
        if "/health" in command:
            yield {"where": "--health-cmd"}


@warning(
    "SPKU24",
    "Stop timeout that is too short",
    "TimeoutStopSec={value} ends before docker has waited its {wait} s for the container.",
    "Set TimeoutStopSec to {more} or more.",
    SYSTEMD,
)
def _stop_timeout(written: Written) -> Hits:
    value = written.service("TimeoutStopSec") or written.service("TimeoutSec")
    limit = seconds(value) if value else 90.0
    stops = written.unit.all("Service", "ExecStop") if written.unit else []
    waits = [
        int(timeout) for line in stops for timeout in re.findall(r"docker stop (?:-t|--time|--timeout)[ =](\d+)", line)
    ]
    waits += [int(timeout) for timeout in written.options.values("--stop-timeout") if timeout.isdecimal()]
    wait = max(waits, default=10)
    if written.unit and written.run and limit is not None and limit <= wait:
        yield {"value": value or "90 (systemd's default)", "wait": wait, "more": wait + 30}


@info(
    "SPKU25",
    "Every start contacts the hub",
    "HF_HUB_OFFLINE is not set: every start contacts Hugging Face, and fails or waits if it cannot be reached.",
    "Add -e HF_HUB_OFFLINE=1 once the weights are on the host.",
    FIELD,
)
def _online(written: Written) -> Hits:
    if (
        written.unit
        and written.run
        and written.run.mounts
        and "HF_HUB_OFFLINE" not in written.run.env
        and not written.run.values("--env-file")
    ):
        yield FIRES
