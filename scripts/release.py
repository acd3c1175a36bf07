#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a release; docs/testing.md has the order.

release.py bump major|minor|patch|X.Y.Z   writes the version into galaxy.yml and execution-environment.yml, and the changelog from its fragments
release.py check [vX.Y.Z]                 lists the problems that prevent a release of this tree under this tag
release.py notes                          prints the changelog of this version
release.py build FOLDER                   writes tarball, SBOM (CycloneDX) and SHA256SUMS
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, tool_env, tracked_files

sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons.monitoring import GPU_EXPORTER_SHA256
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.component_versions import COMPONENTS, GPU_EXPORTER

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)
PARTS = ("major", "minor", "patch")
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([\w.!+-]+)", re.MULTILINE)
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/dgxspark/ansible-vllm")
PACKAGE_LISTS = ("roles/clients/files/hermes-*.txt", "roles/ray/files/ray-*.txt")
"""What hosts install with pip, locked by lock_packages.py."""


def current(root: Path = ROOT) -> str:
    """Return the version of the tree."""
    return str(yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))["version"])


def bumped(version: str, how: str) -> str:
    """Return the next version. how: the name of a part, or a version. Raises ValueError for an invalid or older version."""
    old = [int(part) for part in version.split(".")]
    if how in PARTS:
        place = PARTS.index(how)
        return ".".join(str(part) for part in [*old[:place], old[place] + 1, *[0] * (2 - place)])
    if not VERSION.fullmatch(how):
        raise ValueError(f"'{how}' is no semantic version such as 1.2.3, and none of {', '.join(PARTS)}")
    if [int(part) for part in how.split(".")] <= old:
        raise ValueError(f"{how} is not later than {version}, which galaxy.yml has")
    return how


def bump(how: str, root: Path = ROOT) -> str:
    """Write the next version into galaxy.yml and its changes into the changelog; returns it."""
    version = bumped(current(root), how)
    if not fragments(root):
        raise ValueError("changelogs/fragments is empty: nothing to release")
    galaxy = root / "galaxy.yml"
    text, count = re.subn(r"(?m)^version: .*$", f"version: {version}", galaxy.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError("galaxy.yml has no line 'version: '")
    galaxy.write_text(text, encoding="utf-8")
    built = root / "execution-environment.yml"
    if built.exists():
        named = re.sub(r"dgxspark-vllm-[\d.]+\.tar", f"dgxspark-vllm-{version}.tar", built.read_text(encoding="utf-8"))
        built.write_text(named, encoding="utf-8")
    subprocess.run(["antsibull-changelog", "release", "--version", version], cwd=root, env=tool_env(), check=True)
    return version


def fragments(root: Path = ROOT) -> list[str]:
    """Return the changes that no release has yet."""
    return sorted(path.name for path in root.glob("changelogs/fragments/*.y*ml"))


def changelog(root: Path = ROOT) -> dict[str, Any]:
    """Return the releases of the changelog by version."""
    read = yaml.safe_load((root / "changelogs/changelog.yaml").read_text(encoding="utf-8")) or {}
    return dict(read.get("releases") or {})


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return the problems that prevent a release. tag: of the release; empty without one."""
    version = current(root)
    messages = []
    if not VERSION.fullmatch(version):
        messages.append(f"galaxy.yml: '{version}' is no semantic version")
    if tag and tag != f"v{version}":
        messages.append(f"the tag is '{tag}', and galaxy.yml has {version}: it would have to be v{version}")
    if version not in changelog(root):
        messages.append(f"changelogs/changelog.yaml has no release {version}: run scripts/release.py bump")
    if remaining := fragments(root):
        messages.append(f"changelogs/fragments has {len(remaining)} that no release has: {', '.join(remaining[:5])}")
    return messages


def notes(root: Path = ROOT) -> str:
    """Return the changelog's section of the tree's version."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.escape(f"v{current(root)}").replace(r"\.", r"\\?\.")
    match = re.search(rf"(?ms)^## {heading}\n(.*?)(?=^<a id=\"v\d+-\d+-\d+\"></a>$|\Z)", text)
    return match.group(1).strip() + "\n" if match else ""


def build(folder: Path, root: Path = ROOT) -> list[Path]:
    """Write the tarball of the tree, its SBOM and the sums of both into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    version = current(root)
    with tempfile.TemporaryDirectory(prefix="release-") as temporary:
        # Only tracked files: no leftover is shipped, and no file disappears while ansible-galaxy reads it.
        for name in tracked_files(root=root):
            (Path(temporary) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, Path(temporary) / name, follow_symlinks=False)
        subprocess.run(
            ["ansible-galaxy", "collection", "build", "--force", "--output-path", str(folder.resolve())],
            cwd=temporary,
            env=tool_env(),
            check=True,
            stdout=subprocess.DEVNULL,
        )
    tarball = folder / f"dgxspark-vllm-{version}.tar.gz"
    bill = folder / f"dgxspark-vllm-{version}.cdx.json"
    bill.write_text(json.dumps(sbom(tarball, root), indent=1) + "\n", encoding="utf-8")
    sums = folder / "SHA256SUMS"
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted([tarball, bill])]
    sums.write_text("".join(lines), encoding="utf-8")
    return [tarball, bill, sums]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sbom(tarball: Path, root: Path = ROOT) -> dict[str, Any]:
    """Return a bill of materials in CycloneDX 1.6: the files of the tarball, and what roles bring to hosts by default.

    The latter has the scope C(optional): it is fetched by a host that is asked to run it, and is not in the tarball.
    """
    version = current(root)
    release = changelog(root).get(version, {})
    about = yaml.safe_load((root / "galaxy.yml").read_text(encoding="utf-8"))
    core = yaml.safe_load((root / "meta/runtime.yml").read_text(encoding="utf-8"))["requires_ansible"]
    itself = f"pkg:generic/dgxspark/vllm@{version}"
    with tarfile.open(tarball) as archive:
        read = archive.extractfile("FILES.json")
        assert read is not None, "a collection has a FILES.json"
        listed: list[Mapping[str, Any]] = json.load(read)["files"]
    files = [
        {
            "type": "file",
            "bom-ref": f"file:{entry['name']}",
            "name": entry["name"],
            "hashes": [{"alg": "SHA-256", "content": entry["chksum_sha256"]}],  # of its own manifest
        }
        for entry in listed
        if entry["ftype"] == "file"
    ]
    brought_parts = brought(root)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest(tarball))}",
        "version": 1,
        "metadata": {
            **({"timestamp": f"{release['release_date']}T00:00:00Z"} if release.get("release_date") else {}),
            "component": {
                "type": "library",
                "bom-ref": itself,
                "group": about["namespace"],
                "name": about["name"],
                "version": version,
                "description": about["description"],
                "licenses": [{"license": {"id": about["license"][0]}}],
                "purl": itself,
                "hashes": [{"alg": "SHA-256", "content": digest(tarball)}],
                "externalReferences": [
                    {"type": "vcs", "url": about["repository"]},
                    {"type": "issue-tracker", "url": about["issues"]},
                ],
                "properties": [{"name": "ansible:requires_ansible", "value": core}],
            },
        },
        "components": [*brought_parts, *files],
        "dependencies": [{"ref": itself, "dependsOn": [part["bom-ref"] for part in brought_parts]}],
    }


def brought(root: Path) -> list[dict[str, Any]]:
    """Return what roles bring to hosts unless an inventory names something else: images, releases and Python packages."""
    components: dict[str, dict[str, Any]] = {}

    def add(kind: str, name: str, version: str, purl: str, **more: Any) -> None:
        part = {"type": kind, "bom-ref": purl, "name": name, "version": version, "scope": "optional", "purl": purl}
        components.setdefault(purl, {**part, **more})

    for component in COMPONENTS:
        name, version = component.image, component.version
        if name:
            add("container", name, version, f"pkg:oci/{name.rpartition('/')[2]}?repository_url={name}&tag={version}")
        elif component.release:
            sums = GPU_EXPORTER_SHA256.values() if component == GPU_EXPORTER else ()
            hashes = [{"alg": "SHA-256", "content": content} for content in sums]
            purl = f"pkg:github/{component.release}@v{version}"
            add("application", component.name, version, purl, hashes=hashes)
    for pattern in PACKAGE_LISTS:
        for path in sorted(root.glob(pattern)):
            for name, version in PIN.findall(path.read_text(encoding="utf-8")):
                add("library", name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")
    return list(components.values())


def main(argv: list[str]) -> int:
    """Run a command; returns 0 on success, 1 if the tree cannot be released."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("bump").add_argument("how", help="major, minor, patch or a version")
    verbs.add_parser("check").add_argument("tag", nargs="?", default="")
    verbs.add_parser("notes")
    verbs.add_parser("build").add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    if options.verb == "bump":
        try:
            print(bump(options.how))
        except ValueError as error:
            print(f"release: {error}", file=sys.stderr)
            return 1
    elif options.verb == "check":
        messages = problems(options.tag)
        print("\n".join(messages) or f"{current()} can be released")
        return int(bool(messages))
    elif options.verb == "notes":
        print(notes(), end="")
    else:
        for path in build(options.folder.resolve()):
            print(f"{digest(path)}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
