"""The real programs: Prometheus, promtool, Alertmanager and node_exporter, from Debian's packages, unpacked and not installed.

A program that the machine has is used. Else its package is downloaded by apt and unpacked below .cache/monitoring: nothing on the machine
is changed, no service is started.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache/monitoring"
PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "prometheus-node-exporter": "prometheus-node-exporter",
}


def program(name: str) -> str:
    """Return the path of a program; RuntimeError with instructions if it is missing."""
    path = shutil.which(name)
    if path:
        return path
    package = PACKAGES[name]
    unpacked = CACHE / package
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (unpacked / "usr/bin" / name).is_file():
            _unpack(package, unpacked)
    return str(unpacked / "usr/bin" / name)


def command(name: str) -> list[str]:
    """Return the command line of a program: an unpacked program may need its package's files at their installed paths.

    They are mounted there for this process only, in a separate mount namespace.
    """
    path = Path(program(name))
    shared = path.parents[1] / "share"
    if path.parents[1] == Path("/usr") or name != "prometheus-alertmanager":
        return [str(path)]
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = 'mount --bind "$0" /usr/share && exec "$@"'
    return ["unshare", "--mount", *mapped, "sh", "-c", script, str(shared), str(path)]


def _unpack(package: str, target: Path) -> None:
    folder = CACHE / f"{package}.deb"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if os.geteuid() == 0 and _has_user("_apt"):
        shutil.chown(folder, "_apt")  # apt downloads as this user
    download = ["apt-get", "download", "-q", package]
    first = subprocess.run(download, cwd=folder, capture_output=True, text=True, check=False)
    if first.returncode != 0:  # the lists of a fresh machine are empty
        subprocess.run(["apt-get", "update", "-q"], capture_output=True, text=True, check=False)
        retry = subprocess.run(download, cwd=folder, capture_output=True, text=True, check=False)
        if retry.returncode != 0:
            raise RuntimeError(
                f"the package {package} cannot be had: {retry.stderr.strip()}. Install it (apt-get install {package}), then run this again."
            )
    (archive,) = folder.glob("*.deb")
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["dpkg-deb", "--extract", str(archive), str(target)], check=True)


def _has_user(name: str) -> bool:
    return any(line.startswith(f"{name}:") for line in Path("/etc/passwd").read_text(encoding="utf-8").splitlines())
