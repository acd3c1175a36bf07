# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images and models of a host, file by file, and how other nodes reach it: the section C(distribution) of M(dgxspark.vllm.spark_info)."""

from __future__ import annotations

import fnmatch
import ipaddress
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._host import beneath, docker, machine, network
from .._host.host_view import BadRequest, HostView, Request
from .._runtime.command import Unknown
from . import incoming, snapshots, spread_files, spread_names

# Of containers and virtual machines; no cable of theirs leads to another node.
VIRTUAL = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "tailscale", "wg", "tun", "tap")


def section(view: HostView, request: Request) -> dict[str, Any]:
    """Return what C(spreading.py) plans with. Files are not read: which of them were verified and have not changed since is noted.

    :raises BadRequest: for a model without repository or revision
    :raises Unknown: if Docker or C(ip) do not answer
    """
    params, options = request.params, request.params["distribution"] or {}
    for model in params["models"]:
        if not isinstance(model.get("repo"), str) or not isinstance(model.get("revision"), str):
            raise BadRequest(f"models: {model} needs 'repo' and 'revision', both texts")
    home, refs = Path(params["hf_home"]), list(dict.fromkeys(params["images"]))
    address = options.get("address") or machine.management_address()
    return {
        "images": describe_images(view, refs, options.get("locked") or {}),
        "models": {spread_names.model_key(model): describe_model(home, model) for model in params["models"]},
        "hf_home": str(home),
        "address": address,
        "fabric": options.get("fabric") or "",
        "interfaces": interfaces(view, str(address)),
        "disks": {
            "models": disk(home),
            "images": disk(image_folder(view) if refs else Path("/var/lib/docker")),
            "saved": disk(spread_files.SAVED),
        },
        "tools_missing": [tool for tool in spread_names.TOOLS if not machine.has_program(tool)],
        "left_open": Path(spread_names.RUN_DIR).exists() or bool(spread_files.finished_images()),
    }


def describe_images(view: HostView, refs: Sequence[str], locked: Mapping[str, Any]) -> dict[str, Any]:
    """Return Docker's report on each image; one with a digest may have come under its alias, or from a bundle.

    :param locked: by reference the entry of the lock file
    :raises Unknown: if Docker does not answer
    """
    names = {
        ref: spread_names.names_of(ref, [str(each) for each in (locked.get(ref) or {}).get("ids") or []])
        for ref in refs
    }
    asked = list(dict.fromkeys(name for several in names.values() for name in several))
    present = docker.images(view.run, asked) if asked else {}
    images: dict[str, Any] = dict.fromkeys(refs)
    for ref, several in names.items():
        name, image = next(((name, present[name]) for name in several if present[name]), ("", None))
        images[ref] = image and {**spread_files.describe(image), "name": name}
    return images


def describe_model(hf_home: Path, model: dict[str, Any]) -> dict[str, Any]:
    """Return the files of a snapshot, and the files of an interrupted transfer (C(staged))."""
    repo, revision, only = model["repo"], model["revision"], list(model.get("only") or [])
    state = snapshots.look(hf_home, repo, revision, only)
    folder = snapshots.repo_folder(hf_home, repo).name
    staging = f"{spread_files.STAGING}/{folder}"
    try:
        staged_files = [entry for entry in beneath.walk(hf_home, staging) if stat.S_ISREG(entry[1].st_mode)]
    except OSError:  # the folder is not ours; the transfer reports that
        staged_files = []
    exists = state["path"] is not None
    return {
        "repo": repo,
        "revision": revision,
        "only": only,
        "folder": folder,
        "commit": state["commit"],
        "complete": state["complete"],
        "files": model_files(hf_home, repo, state["commit"], only) if exists else [],
        "staged": {path[len(spread_files.STAGING) + 1 :]: info.st_size for path, info in staged_files},
    }


def model_files(hf_home: Path, repo: str, commit: str, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """List the files of a snapshot.

    :param only: patterns of the files that are meant; all when empty
    :returns: C([{path, store, link, size, sha256, known}]). path: below the snapshot. store: where its bytes are, below the hub
        folder. link: the text of its link, empty for a plain file. size: bytes; None where a link leads nowhere, or out of the
        model's folder: such files are never sent. sha256, known: C(Sums.recorded)
    """
    folder = snapshots.repo_folder(hf_home, repo)
    files, strange = snapshots.listing(folder / "snapshots" / commit)
    sums = spread_files.sums_of(folder.name)
    rows = []
    for name in sorted([*files, *strange]):
        path = f"snapshots/{commit}/{name}"
        row: dict[str, Any] = {"path": name, "store": f"{folder.name}/{path}", "link": "", "size": None}
        row.update(sha256=None, known="no")
        status = beneath.info(hf_home, f"hub/{folder.name}/{files[name].real}") if name in files else None
        if status:
            real = files[name].real
            row.update(store=f"{folder.name}/{real}", size=status.st_size)
            row["link"] = "/".join([".."] * path.count("/") + [real]) if real != path else ""
            row["known"], row["sha256"] = sums.recorded(str(folder / real), beneath.stat_key(status))
        rows.append(row)
    return [row for row in rows if not only or any(fnmatch.fnmatch(row["path"], pattern) for pattern in only)]


def interfaces(view: HostView, address: str) -> list[dict[str, str]]:
    """List the IPv4 addresses of the host's interfaces but for the one with its address on the LAN.

    :raises Unknown: if C(ip) does not answer: unknown cables are not missing cables
    """
    rc, out, err = view.ipv4_addresses()
    query, printed = " ".join(network.IPV4_COMMAND), err.strip() or f"exit code {rc}"
    if rc != 0:
        raise Unknown(f"the interfaces of this host are not known: {query} failed: {printed}")
    entries = []
    try:
        for link in parse_json(out or "[]", query):
            infos = [info for info in link.get("addr_info", []) if info.get("local")]
            if link.get("ifname", "lo").startswith(VIRTUAL) or any(info["local"] == address for info in infos):
                continue
            for info in infos:
                subnet = ipaddress.ip_interface(f"{info['local']}/{info['prefixlen']}").network
                entries.append({"interface": link["ifname"], "address": info["local"], "network": str(subnet)})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unknown(
            f"the interfaces of this host are not known: what {query} printed cannot be read ({error!r})"
        ) from error
    return sorted(entries, key=lambda entry: (entry["interface"], entry["address"]))


def disk(path: Path) -> dict[str, Any]:
    """Return the free bytes of the file system of a folder, which may be made later."""
    return {"path": str(path), "device": str(incoming.device(path)), "free": incoming.free_bytes(path)}


def image_folder(view: HostView) -> Path:
    """Return the folder in which the engine keeps images. Raises Unknown without an answer: images may have no room there."""
    engine = view.docker() or {"error": "there is no docker"}
    if not engine.get("root_dir"):
        raise Unknown(f"docker info does not name the folder of images: {engine['error']}")
    return Path(engine["root_dir"])
