#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the lists of Python packages that hosts install, each with the SHA-256 of its wheels for Linux on aarch64 and x86_64.

lock_packages.py NAME          writes the list of that name below
lock_packages.py PACKAGE==X    prints entries for 'pip' of a recipe or service, one per package, for the Python of vLLM's images

uv resolves; what an existing list names stays at its version. A list has wheels alone: a package without one is refused.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tomllib
from common import BIN, ROOT

sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.component_versions import HERMES, RAY


class List(NamedTuple):
    """A list of packages: its file, its requirements, and its Python versions."""

    path: Path
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    about: str


LISTS = {
    "hermes": List(
        ROOT / f"roles/clients/files/hermes-{HERMES.version}.txt",
        (f"{HERMES.package}=={HERMES.version}", "aiohttp"),
        ("3.11", "3.12", "3.13"),
        f"Packages of the Hermes agent {HERMES.version} with its API server; docs/clients.md says how a list for another version is made.",
    ),
    "ray": List(
        ROOT / f"roles/ray/files/ray-{RAY.version}.txt",
        (f"ray=={RAY.version}",),
        ("3.10", "3.11", "3.12", "3.13"),
        f"Ray {RAY.version} and what it needs; an image keeps what it has of them where Ray takes that version.",
    ),
}
IMAGES = ("3.12",)
"""Python of the images that engines run in."""
MACHINES = ("aarch64", "x86_64")


def fits(wheel: str, pythons: tuple[str, ...]) -> bool:
    """Tell whether a wheel is for Linux on one of the machines, and for one of the Pythons."""
    tags, abis, platforms = (part.split(".") for part in wheel.removesuffix(".whl").split("-")[-3:])
    minors = [int(python.partition(".")[2]) for python in pythons]
    on_linux = platforms == ["any"] or any(
        platform.startswith(("manylinux", "linux")) and platform.endswith(MACHINES) for platform in platforms
    )
    return on_linux and any(fits_python(tag, abis, minors) for tag in tags)


def fits_python(tag: str, abis: list[str], minors: list[int]) -> bool:
    """Tell whether a Python tag of a wheel with some ABI tags is for one of the Pythons 3.x. minors: their x."""
    match = re.fullmatch(r"(cp|py)3(\d*)", tag)
    if not match:
        return False
    if match[1] == "py" or "abi3" in abis:  # that one and later ones
        return not match[2] or int(match[2]) <= max(minors)
    return match[2] != "" and int(match[2]) in minors and not any(abi.endswith("t") for abi in abis)


def resolve(requirements: list[str], python: str, universal: bool) -> list[dict[str, Any]]:
    """Return the packages of C(pylock.toml) that uv makes of requirements."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "wanted.in"), Path(folder, "pylock.toml")
        source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        argv = [str(BIN / "uv"), "pip", "compile", "--quiet", "--universal", "--python-version", python]
        argv += [] if universal else ["--no-deps"]
        subprocess.run([*argv, "--format", "pylock.toml", "--output-file", str(target), str(source)], check=True)
        return list(tomllib.loads(target.read_text(encoding="utf-8"))["packages"])


def file_name(wheel: dict[str, Any]) -> str:
    """Return the file name of a wheel in C(pylock.toml)."""
    return str(wheel.get("name") or wheel["url"].rpartition("/")[2])


def entries(
    packages: list[dict[str, Any]], pythons: tuple[str, ...], sources: bool = False
) -> list[tuple[str, list[str]]]:
    """Return each requirement with the sums of its wheels; those for other systems are left out.

    sources: without a wheel, take the sum of the source archive, whose build requirements are not checked; else the program ends.
    """
    lines, lacking = [], []
    for package in packages:
        oldest = rf"^python_full_version >= '{re.escape(pythons[0])}'(?: and )?"
        marker = re.sub(oldest, "", str(package.get("marker") or ""))
        if "sys_platform == 'win32'" in marker or "sys_platform == 'darwin'" in marker:
            continue
        wheels = [wheel for wheel in package.get("wheels") or [] if fits(file_name(wheel), pythons)]
        sums = sorted({str(wheel["hashes"]["sha256"]) for wheel in wheels})
        if not sums and sources and package.get("sdist"):
            sums = [str(package["sdist"]["hashes"]["sha256"])]
            print(f"{package['name']}: no wheel; this is the sum of its source archive", file=sys.stderr)
        if not sums:
            lacking.append(f"{package['name']} {package['version']}")
        lines.append((f"{package['name']}=={package['version']}{f' ; {marker}' if marker else ''}", sums))
    if lacking:
        raise SystemExit(f"no wheel for Linux and Python {', '.join(pythons)}: {', '.join(lacking)}")
    return lines


def versions(path: Path) -> list[str]:
    """Return what an existing list names, each with its version."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.rstrip("\\ ") for line in lines if re.match(r"[A-Za-z0-9]", line)]


def main() -> int:
    """Write a list, or print entries; returns the exit code."""
    names = sys.argv[1:]
    if not names:
        print(__doc__)
        return 2
    for name in [name for name in names if name in LISTS]:
        chosen = LISTS[name]
        packages = resolve([*chosen.requirements, *versions(chosen.path)], chosen.pythons[0], universal=True)
        lines = [f"# {chosen.about}", f"# Written by scripts/lock_packages.py {name}."]
        for requirement, sums in entries(packages, chosen.pythons):
            lines += [" \\\n".join([requirement, *(f"    --hash=sha256:{checksum}" for checksum in sums)])]
        chosen.path.parent.mkdir(exist_ok=True)
        chosen.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unknown_names = [name for name in names if name not in LISTS]
    if unknown_names:
        for requirement, sums in entries(resolve(unknown_names, IMAGES[0], universal=False), IMAGES, sources=True):
            print(" ".join([requirement, *(f"--hash=sha256:{checksum}" for checksum in sums)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
