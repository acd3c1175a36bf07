"""Show the effect of the guard with a real kernel that runs out of memory: in a virtual machine, with the guard and without it.

Real: the kernel and its out-of-memory killer, systemd, sshd, Docker, the memory, the program of the guard with its unit and the protection of the
host as the role installs them. Played: the machine (QEMU, with an emulated processor on machines without KVM; no GB10), its size (floors and engines are
scaled down with it), the engines (a program that holds memory and answers; there is no GPU, so nvidia-smi is missing and all memory is what
processes hold), their gate, and the program that eats memory.

Logins are timed from outside, and compared with logins to the same machine at rest: an emulated processor takes over a second for the keys alone.

Needs root, x86-64, Debian or Ubuntu with debootstrap, e2fsprogs, qemu-system-x86 and 8 GiB of free memory. Run as `make guard-memory`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import io
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/sim")]

from simlib.build import apt_environment, find_release
from simlib.engine import which

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "python3", "iproute2", "openssh-server", "procps", "kmod"),
    *("initramfs-tools", "zstd", "docker.io", "iptables", "ca-certificates"),
)
TOOLS = ("debootstrap", "mkfs.ext4", "qemu-system-x86_64", "ssh", "ssh-keygen")
MEMORY_MIB = 6144
SSH_PORT = 2401
ENGINES = {"heavy": (8001, 2.5), "fast": (8002, 1.0)}  # port, GiB; the most important one first
OUTSIDE = 10000  # added to a port of the machine
GUEST = "/usr/local/lib/guard_guest.py"
FLOORS = {
    "floor_gib": 0.75,
    "start_floor_gib": 0.75,
    "free_floor_gib": 0.25,
    "contiguous_floor_gib": 0.01,
    "last_gib": 0.35,
}
RESERVE_GIB = 0.5
MORE_GIB = 0.3  # taken beyond the available memory
# An emulated processor takes ten times as long for all that the guard asks and does; what eats goes at its pace.
BITE_GIB, BITE_SECONDS, AT_ONCE_SECONDS = 0.2, 8.0, 60.0
HOLD_SECONDS = 30.0  # for what comes after the last bite
EATEN_SECONDS = 45.0
BOOT_SECONDS, LOGIN_SECONDS, START_SECONDS = 300.0, 30.0, 120.0
REACH_SECONDS = 2.0  # that a login may take beyond one of the machine at rest
KILLED = re.compile(r"Out of memory: Killed process \d+ \(([\w-]+)\)")


class Failed(Exception):
    """Something that was to be there is not."""


def wait(condition: Callable[[], Any], seconds: float, reason: str) -> Any:
    """Return what a condition returns once it holds. Raises Failed after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.5)
    raise Failed(f"not within {seconds:.0f} s: {reason}")


# --- the machine ------------------------------------------------------------------------------------------------------------


def make_disk(work: Path) -> None:
    """Make the disk of the machine, once: Debian with systemd, sshd, Docker, Python and its own kernel."""
    if (work / "disk.img").exists():
        return
    release, root = find_release(), work / "root"
    env = {**os.environ, **apt_environment(), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    log = (work / "disk.log").open("wb")

    def run(*argv: str) -> None:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, timeout=1800, check=False
        )
        if done.returncode:
            raise Failed(f"{' '.join(argv[:4])} failed, see {log.name}")

    shutil.rmtree(root, ignore_errors=True)
    kernel = "linux-image-cloud-amd64" if "ubuntu" not in release.mirror else "linux-image-virtual"
    run(
        *(str(which("debootstrap")), "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *(f"--components={release.components}", release.suite, str(root), release.mirror),
    )
    run("chroot", str(root), "apt-get", "-q", "install", "-y", "--no-install-recommends", kernel)
    if not (work / "key").exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(work / "key"))
    files = {
        "etc/hostname": "spark-1\n",
        "etc/hosts": "127.0.0.1 localhost spark-1\n",
        "etc/fstab": "/dev/vda / ext4 defaults 0 1\n",
        "root/.ssh/authorized_keys": (work / "key.pub").read_text(encoding="utf-8"),
        "etc/systemd/network/10-all.network": "[Match]\nName=e*\n[Network]\nDHCP=yes\n",
        "etc/docker/daemon.json": '{"iptables": false, "bridge": "none"}\n',
        # Modules of PAM alone take an emulated processor two seconds a login.
        "etc/ssh/sshd_config.d/quick.conf": "UsePAM no\nUseDNS no\nPrintMotd no\nPrintLastLog no\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "root/.ssh").chmod(0o700)
    run("chroot", str(root), "systemctl", "enable", "systemd-networkd")
    timers = ("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer", "dpkg-db-backup.timer")
    run("chroot", str(root), "systemctl", "mask", "systemd-networkd-wait-online.service", *timers)
    run("chroot", str(root), "usermod", "--shell", "/bin/sh", "root")
    for name in ("vmlinuz", "initrd.img"):
        shutil.copy(next((root / "boot").glob(f"{name}-*")), work / name)
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
    run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", str(root), str(work / "disk.new"), "3G")
    (work / "disk.new").rename(work / "disk.img")
    shutil.rmtree(root, ignore_errors=True)


class Machine:
    """The virtual machine, whose disk is as new at each boot."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.console = work / "console.log"
        self.kvm = os.access("/dev/kvm", os.W_OK) and re.search(
            r"^flags.*\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text(), re.M
        )
        self.process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Start it anew, and wait until it lets people in."""
        self.end()
        ports = {SSH_PORT: 22, **{OUTSIDE + port: port for port, _gib in ENGINES.values()}}
        forwards = "".join(
            f",hostfwd=tcp:127.0.0.1:{host_port}-:{guest_port}" for host_port, guest_port in ports.items()
        )
        # Its processors come first: waiting for cores of a busy machine is no fault of the guard.
        argv = [
            *(
                "nice",
                "-n",
                "-19",
                "qemu-system-x86_64",
                "-accel",
                "kvm" if self.kvm else "tcg,thread=multi",
                "-cpu",
                "max",
            ),
            *("-m", str(MEMORY_MIB), "-smp", "2", "-display", "none", "-serial", f"file:{self.console}", "-snapshot"),
            *("-kernel", str(self.work / "vmlinuz"), "-initrd", str(self.work / "initrd.img")),
            *("-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off nokaslr apparmor=0 random.trust_cpu=on"),
            *("-drive", f"file={self.work / 'disk.img'},if=virtio,format=raw,cache=unsafe"),
            *("-netdev", f"user,id=n0{forwards}", "-device", "virtio-net-pci,netdev=n0"),
        ]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait(lambda: self.run("true", seconds=10, check=False) is not None, BOOT_SECONDS, "the machine lets people in")
        wait(lambda: self.run("docker version", seconds=20, check=False), BOOT_SECONDS, "Docker answers")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
        self.process = None

    def ssh(self, command: str) -> list[str]:
        options = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
            "IdentitiesOnly=yes",
        ]
        options += ["ControlMaster=no", "ControlPath=none", f"ConnectTimeout={LOGIN_SECONDS:.0f}"]
        return [
            "ssh",
            "-F",
            "none",
            "-i",
            str(self.work / "key"),
            "-p",
            str(SSH_PORT),
            *(f"-o{option}" for option in options),
            "root@127.0.0.1",
            command,
        ]

    def run(self, command: str, seconds: float = 60.0, data: bytes = b"", check: bool = True) -> str | None:
        """Return the output of a command in the machine; None if it failed and check is false. Raises Failed."""
        try:
            done = subprocess.run(self.ssh(command), input=data, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            if check:
                raise Failed(f"{command}: no answer within {seconds:.0f} s") from None
            return None
        if done.returncode and check:
            raise Failed(f"{command}: {done.stderr.decode(errors='replace').strip() or done.returncode}")
        return None if done.returncode else done.stdout.decode(errors="replace")

    def put(self, files: dict[str, str]) -> None:
        """Write files of the machine."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.size, entry.mode = len(text.encode()), 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))
        self.run("tar -C / -xf -", data=packed.getvalue())

    def log_in(self) -> float | None:
        """Seconds from the start of a client to the end of its first command; None after a failure."""
        began = time.monotonic()
        return round(time.monotonic() - began, 2) if self.run("true", LOGIN_SECONDS, check=False) is not None else None


# --- what runs in it ----------------------------------------------------------------------------------------------------------


def engine_unit(name: str, on_demand: bool) -> str:
    """The unit of an engine in the shape of the collection's own: a container that systemd starts and stops, behind a gate."""
    port, gib = ENGINES[name]
    mounts = "-v /usr:/usr:ro -v /etc/ld.so.cache:/etc/ld.so.cache:ro"
    return f"""[Unit]
Requires=docker.service
After=docker.service
StartLimitIntervalSec=0
[Service]
Type=exec
ExecStartPre=-/usr/bin/docker rm --force spark-{name}
ExecStartPre=/usr/bin/python3 {GUEST} gate {gib}
ExecStart=/usr/bin/docker run --rm --name spark-{name} --network host {mounts} engine /usr/bin/python3 {GUEST} engine {name} {port} {gib}
ExecStop=/usr/bin/docker stop --time 10 spark-{name}
ExecStopPost=-/usr/bin/docker rm --force spark-{name}
Restart={"no" if on_demand else "always"}
RestartSec=10
TimeoutStartSec=600
"""


WATCH = f"""[Service]
ExecStart=/usr/bin/python3 {GUEST} watch 0.5
OOMScoreAdjust=-1000
MemoryMin=32M
Nice=-5
"""
# An image of nothing but names: its programs come from the machine.
IMAGE = (
    "mkdir -p /tmp/i/usr /tmp/i/etc /tmp/i/proc /tmp/i/sys /tmp/i/dev /tmp/i/tmp && cd /tmp/i && "
    "ln -sfn usr/bin bin && ln -sfn usr/lib lib && ln -sfn usr/lib64 lib64 && tar -c . | docker import - engine"
)


def installed(parts: dict[str, Any]) -> dict[str, str]:
    """The files of a component, as the role copies them."""
    versions = {}
    for file in located(parts)["files"]:
        versions[file["path"]] = (
            file["content"] if "content" in file else Path(file["source"]).read_text(encoding="utf-8")
        )
    return versions


@dataclass(frozen=True)
class Case:
    """One run. guard: settings besides the floors, None without the guard and the protection. bites: GiB at a second, from the available GiB."""

    title: str
    bites: Callable[[float], list[tuple[float, float]]]
    guard: dict[str, Any] | None
    idle: bool = False


@dataclass
class Result:
    """The result of a run. logins: seconds, None for a failed login; failed: failed requests of each engine, of all its requests."""

    title: str
    lowest: float = 0.0
    logins: list[float | None] = field(default_factory=list)
    requests_made: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    active: dict[str, str] = field(default_factory=dict)
    stalled: float = 0.0
    idle_login: float = 0.0

    @property
    def slowest(self) -> float | None:
        """The slowest login; None if any login failed."""
        return (
            None
            if None in self.logins
            else max((seconds for seconds in self.logins if seconds is not None), default=None)
        )


def in_steps(available: float) -> list[tuple[float, float]]:
    """More than there is, bite by bite."""
    bites: list[tuple[float, float]] = []
    remaining = available + MORE_GIB
    while remaining > 0:
        bites.append((min(BITE_GIB, remaining), len(bites) * BITE_SECONDS))
        remaining -= BITE_GIB
    return bites


def within(available: float) -> list[tuple[float, float]]:
    """Nearly all available memory, bite by bite."""
    return in_steps(available - MORE_GIB - FLOORS["last_gib"] + 0.1)


def at_once(available: float) -> list[tuple[float, float]]:
    """Nearly all available memory at once; a minute later more than was available."""
    return [(available - FLOORS["last_gib"], 0.0), (FLOORS["last_gib"] + MORE_GIB, AT_ONCE_SECONDS)]


def in_a_moment(available: float) -> list[tuple[float, float]]:
    """More than there is in one moment."""
    return [(available + MORE_GIB, 0.0)]


GIVE_WAY = {"stop_for_others": True}
CASES = {
    "off-steps": Case("off, in steps, more than there is", in_steps, None),
    "off-once": Case("off, at once, then more than there is", at_once, None),
    "within": Case("on, in steps, less than there is", within, {}),
    "idle": Case("on, in steps, more than there is; `fast` on demand and idle", in_steps, {}, idle=True),
    "steps": Case("on with `stop_for_others`, in steps, more than there is", in_steps, GIVE_WAY),
    "once": Case("on with `stop_for_others`, at once, then more than there is", at_once, GIVE_WAY),
    "named": Case("on, in steps, more than there is", in_steps, {}),
    "moment": Case("on with `stop_for_others`, in one moment, more than there is", in_a_moment, GIVE_WAY),
}


class Bench:
    """Has the machine go through cases."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.idle_login: list[float] = []

    def console(self, start: int = 0) -> str:
        return self.machine.console.read_bytes()[start:].decode(errors="replace")

    def prepare(self) -> None:
        """Boot, and bring what all cases use."""
        machine = self.machine
        machine.boot()
        guest = (Path(__file__).parent / "guard_guest.py").read_text(encoding="utf-8")
        machine.put({GUEST: guest, "/etc/systemd/system/watch.service": WATCH})
        machine.run(IMAGE)
        machine.run("systemctl daemon-reload && systemctl start watch")
        machine.run("dd if=/dev/zero of=/var/weights bs=1M count=400 status=none", seconds=180)

    def rendered(self, case: Case) -> dict[str, str]:
        """The files of the guard and of the services."""
        services = {
            name: {
                "unit": f"spark-{name}.service",
                "container": f"spark-{name}",
                "url": f"http://127.0.0.1:{port}",
                **({"on_demand": {"idle_minutes": 10}} if case.idle and name == "fast" else {}),
            }
            for name, (port, _gib) in ENGINES.items()
        }
        files = {f"/etc/dgxspark/services/{name}.json": json.dumps(service) for name, service in services.items()}
        files |= {
            f"/etc/systemd/system/spark-{name}.service": engine_unit(name, case.idle and name == "fast")
            for name in ENGINES
        }
        if case.guard is None:
            return files
        planned = {name: {"planned_gib": gib} for name, (_port, gib) in ENGINES.items()}
        settings = {
            **FLOORS,
            "order": list(ENGINES),
            "services": planned,
            "beside": [],
            "reserve_gib": RESERVE_GIB,
            "sysroot": "/",
        }
        files |= installed(unit_files.guard({**settings, **case.guard}))
        return files | installed(unit_files.protection({"ssh_mib": 512, "sessions_mib": 512, "journal_mib": 128}))

    def begin(self, case: Case) -> float:
        """Start the engines and the guard of a case; returns the available memory, GiB."""
        machine = self.machine
        protected = " ".join(installed(unit_files.protection({"ssh_mib": 1, "sessions_mib": 1, "journal_mib": 1})))
        machine.run("systemctl stop eater spark-agent spark-heavy spark-fast; true", seconds=90)
        machine.run(
            f"rm -rf /var/lib/dgxspark /etc/dgxspark /run/dgxspark {protected}; mkdir -p /var/lib/dgxspark/guard"
        )
        machine.put(self.rendered(case))
        machine.run("systemctl daemon-reload && systemctl start --no-block spark-heavy spark-fast")
        wait(lambda: all(ask(port) for port, _gib in ENGINES.values()), START_SECONDS, "the engines answer")
        # Weights that were just read are in the page cache.
        machine.run("cat /var/weights > /dev/null", seconds=60)
        if case.guard is not None:
            machine.run("systemctl start spark-agent", seconds=90)
        self.idle_login = [took for took in (machine.log_in() for _attempt in range(5)) if took is not None]
        return float(self.memory(0)[-1][0])

    def memory(self, start: int) -> list[tuple[float, float]]:
        """The available memory, GiB, and the pressure, percent, at each look since a place in the console's text."""
        figures = re.findall(r"^MEMORY ([0-9.]+) ([0-9.]+) ", self.console(start), re.MULTILINE)
        return [(float(available), float(stalled)) for available, stalled in figures]

    def play(self, case: Case) -> Result:
        """One case from the first bite to the end."""
        machine, result = self.machine, Result(case.title)
        bites = case.bites(self.begin(case))
        result.idle_login = max(self.idle_login, default=0.0)
        place, moment = machine.console.stat().st_size, self.machine.run("date +%s")
        words = " ".join(f"{gib:.3f}@{at:g}" for gib, at in bites)
        with knocking(machine, result), asking(result):
            machine.run(f"systemd-run --unit=eater --collect --slice=user.slice python3 {GUEST} eat {words}")
            time.sleep(bites[-1][1])
            with contextlib.suppress(
                Failed
            ):  # a kernel without memory gives the last of it slowly, or kills who asks for it
                wait(lambda: self.console(place).count("EATEN ") >= len(bites), EATEN_SECONDS, "all is eaten")
            time.sleep(HOLD_SECONDS)
        seen = self.memory(place)
        result.lowest = min(available for available, _stalled in seen)
        result.stalled = max(stalled for _available, stalled in seen)
        result.killed = KILLED.findall(self.console(place))
        try:
            for name in ENGINES:
                shown = machine.run(f"systemctl show --property=ActiveState --value spark-{name}") or ""
                result.active[name] = shown.strip()
            if case.guard is not None:
                text = (
                    machine.run(f"journalctl -u spark-agent -o cat --no-pager --since @{(moment or '').strip()}") or ""
                )
                result.steps = text.splitlines()
        except Failed as error:
            result.steps.append(f"afterwards: {error}")
        return result


def ask(port: int, seconds: float = 20.0) -> bool:
    """Whether an engine answers a request from outside."""
    body = json.dumps({"max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{OUTSIDE + port}/v1/chat/completions", body)
    with (
        contextlib.suppress(OSError, ValueError, LookupError, http.client.HTTPException),
        urllib.request.urlopen(request, timeout=seconds) as answer,
    ):
        return bool(json.load(answer)["choices"])
    return False


@contextlib.contextmanager
def beside(*bodies: Callable[[], None]) -> Iterator[None]:
    """Do something once a second while the block runs."""
    over = threading.Event()

    def repeated(body: Callable[[], None]) -> None:
        while not over.wait(1.0):
            body()

    threads = [threading.Thread(target=repeated, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def knocking(machine: Machine, result: Result) -> contextlib.AbstractContextManager[None]:
    """Log in again and again."""
    return beside(lambda: result.logins.append(machine.log_in()))


def asking(result: Result) -> contextlib.AbstractContextManager[None]:
    """Ask both engines again and again."""

    def ask_one(name: str, port: int) -> None:
        good = ask(port)
        result.requests_made[name] = result.requests_made.get(name, 0) + 1
        result.failed[name] = result.failed.get(name, 0) + (not good)

    return beside(*(functools.partial(ask_one, name, port) for name, (port, _gib) in ENGINES.items()))


# --- report -------------------------------------------------------------------------------------------------------------------


def faults(key: str, result: Result) -> list[str]:
    """Return the faults that a run shows."""
    problems = []
    case = CASES[key]
    lost = [*result.killed, *(["requests of heavy"] if result.failed.get("heavy") else [])]
    if case.guard is None:
        return [] if lost else ["nothing was lost without the guard"]
    if result.slowest is None or result.slowest > result.idle_login + REACH_SECONDS:
        problems.append(f"the slowest login took {result.slowest} s, at rest {result.idle_login} s")
    if key not in ("named", "moment") and lost:  # these are for what the guard cannot, or may not, do anything about
        problems.append(f"lost: {', '.join(lost)}")
    stops = [line for line in result.steps if re.search(r": stops \w+", line)]
    expected = {"within": [], "named": [], "idle": ["fast"], "steps": ["fast"], "once": ["fast"]}.get(key)
    if expected is not None and [re.search(r": stops (\w+)", line)[1] for line in stops] != expected:  # type: ignore[index]
        problems.append(f"stopped: {stops}, not {expected}")
    if key in ("within", "named") and not any("no service of this host: notebook" in line for line in result.steps):
        problems.append("it was not said who took the memory")
    return problems


def row(result: Result) -> str:
    """A line of the table."""
    times = [seconds for seconds in result.logins if seconds is not None]
    missed = result.logins.count(None)
    reach = f"{result.idle_login:.1f} / {statistics.median(times):.1f} / {max(times):.1f} s" if times else "none"
    requests = ", ".join(f"{name} {result.failed.get(name, 0)}/{result.requests_made.get(name, 0)}" for name in ENGINES)
    return (
        f"| {result.title} | {result.lowest:.2f} GiB | {', '.join(result.killed) or 'none'} | {requests} | "
        f"{reach}{f', {missed} failed' if missed else ''} | {result.stalled:.0f} % |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a virtual machine out of memory, with the guard and without it.")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".cache/guard-vm", help="where its disk is kept (default: %(default)s)"
    )
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one; may be repeated")
    args = parser.parse_args()
    missing = [name for name in TOOLS if which(name) is None]
    if os.geteuid() or platform.machine() != "x86_64" or missing:
        raise SystemExit(
            f"needs root on x86-64, and {', '.join(TOOLS)}; missing here: {', '.join(missing) or 'no program'}"
        )
    signal.signal(signal.SIGTERM, lambda *_words: sys.exit(1))  # the machine ends with this program
    args.work.mkdir(parents=True, exist_ok=True)
    make_disk(args.work)
    machine = Machine(args.work)
    bench, wrong = Bench(machine), []
    rows = []
    try:
        bench.prepare()
        print(
            f"processor: {'KVM' if machine.kvm else 'emulated'}; {MEMORY_MIB / 1024:g} GiB",
            flush=True,
        )
        for key in args.case or list(CASES):
            try:
                result = bench.play(CASES[key])
            except Failed as error:  # a machine that froze is of no use to the next case
                print(f"{key}: {error}; the machine is started anew", flush=True)
                bench.prepare()
                result = bench.play(CASES[key])
            rows.append(row(result))
            problems = faults(key, result)
            wrong += [f"{key}: {problem}" for problem in problems]
            print(
                rows[-1],
                *(f"    {line}" for line in result.steps),
                f"    now {result.active}",
                *(f"    WRONG: {problem}" for problem in problems),
                sep="\n",
                flush=True,
            )
    finally:
        machine.end()
    print(
        "\n| guard, what eats | lowest `MemAvailable` | killed by the kernel | requests that failed | logins: at rest / median / slowest | pressure |"
    )
    print("|---|---|---|---|---|---|", *rows, sep="\n")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
