#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a bundle's way that runs on a host; the action plugin of the same name does the rest."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Pack images and weights of hosts into a folder, and deploy from it
version_added: 0.1.0
description:
  - Packs images (C(docker save), compressed with zstd or, where there is none, gzip) and weights from hosts into a folder on the
    controller, with a manifest of sizes and sums, and takes them from there to hosts that cannot reach a registry or a hub.
  - Files travel over the connection that Ansible has to the host; nothing has to be installed for it. Both ways go on where they
    were cut off, at the piece or file. Everything is hashed before it is used.
  - Layers of an image are packed once, whatever image has them, and come to a host only if it lacks them.
options:
  action:
    description:
      - V(survey) chooses which host hands over what, and sees that there is room on the controller. V(pack) packs what it chose
        for the host. V(finish) writes the manifest. V(images) and V(weights) bring what the host lacks.
    type: str
    required: true
    choices: [survey, pack, finish, images, weights]
  dir:
    description: Folder of the bundle, on the controller.
    type: path
    required: true
  planned:
    description: With V(survey), RV(dgxspark.vllm.plan#module:hosts) of M(dgxspark.vllm.plan).
    type: dict
    default: {}
  images_from:
    description: With V(survey), name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(images) on the hosts.
    type: str
    default: ''
  models_from:
    description: With V(survey), name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(model_files) on the hosts.
    type: str
    default: ''
  work:
    description: With V(pack), what the host hands over, from RV(work).
    type: list
    elements: dict
    default: []
  refs:
    description: With V(images), references that the host lacks.
    type: list
    elements: str
    default: []
  optional:
    description: With V(images), further references that the host lacks, and that come where the bundle has them.
    type: list
    elements: str
    default: []
  locked:
    description: With V(images), C(images_locked) of the host's plan; the name and the ids of references that are locked.
    type: dict
    default: {}
  models:
    description: With V(weights), models that the host needs; C(repo), C(revision), and C(files) where they are locked.
    type: list
    elements: dict
    default: []
  hf_home:
    description: Folder on the host in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  verify:
    description: With V(weights), which files that are there are hashed, as in M(dgxspark.vllm.model_snapshot).
    type: str
    choices: [changed, all, size]
    default: changed
  staging:
    description: Folder on the host where pieces of images and files of models wait. It is removed when they are through.
    type: path
    default: /var/lib/dgxspark/bundle
  piece_bytes:
    description: Size of the pieces that the archive of an image is cut into.
    type: int
    default: 1073741824
  sums_dir:
    description: Folder on the host for the sums of files that were read, a file per model.
    type: path
    default: /var/lib/dgxspark/models
  step:
    description: Set by the action plugin, for the parts that run on the host.
    type: str
    choices: [save, clean, stage, load, look, place]
  item:
    description: Set by the action plugin.
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: none
seealso:
  - module: dgxspark.vllm.lock
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Load images that the host lacks from a bundle
  dgxspark.vllm.bundle:
    action: images
    dir: /media/stick/bundle
    refs: ["vllm/vllm-openai:v0.24.0-ubuntu2404"]
  become: true

- name: Copy weights from the bundle
  dgxspark.vllm.bundle:
    action: weights
    dir: /media/stick/bundle
    models:
      - {repo: Qwen/Qwen3-8B, revision: main}
  become: true
"""

RETURN = r"""
work:
  description: What each host hands over, by host.
  returned: with O(action=survey)
  type: dict
  sample: {spark-1: [{kind: image, ref: "vllm/vllm-openai:v0.24.0-ubuntu2404"}]}
brought:
  description: What came from the bundle, or would come in check mode.
  returned: with O(action=images) and O(action=weights)
  type: list
  elements: str
  sample: ["vllm/vllm-openai:v0.24.0-ubuntu2404"]
bytes:
  description: Bytes that travelled.
  returned: success
  type: int
  sample: 16397000000
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    bundle,
    image_layers,
    image_parts,
    image_stream,
    snapshots,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, docker, host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import (
    WORK_SECONDS,
    NoAnswer,
    failing,
    runner,
)

Run = Callable[[list[str]], "tuple[int, str, str]"]
UNPACK = {"zstd": ["zstd", "-dcq"], "gzip": ["gzip", "-dc"]}


def own_folder(path: Path) -> None:
    """Make a folder that the login user may write to and read: the connection brings and fetches files as that user."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    login = os.environ.get("SUDO_UID", "")
    if login.isdigit() and os.geteuid() == 0:
        os.chown(path, int(login), -1)


def free_bytes(path: Path) -> int:
    """Return the room at a path that may not be there yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def pieces_of(folder: Path, start: str = "") -> list[dict[str, Any]]:
    """Describe the pieces in a folder, of a layer or of what is left. start: of their names."""
    return [
        {"name": file.name[len(start) :], "size": file.stat().st_size, "sha256": snapshots.sha256_of(file)}
        for file in sorted(folder.iterdir())
        if file.name.startswith(start) and file.name[len(start) :].isdigit()
    ]


def save(module: AnsibleModule, run: Run, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Cut the archive of an image into pieces; what an earlier run has finished is there already.

    :param module: of Ansible
    :param run: runs programs
    :param item: the image, with the layers that need no pieces as C(known), by compression
    :param folder: where its pieces go
    :returns: the result of the module
    """
    done = folder / "done.json"
    try:
        saved = dict(parse_json(done.read_text(encoding="utf-8"), str(done)))
        # What the bundle had then, it may have no more.
        if all(layer["pieces"] or layer["name"] in item["known"][saved["compression"]] for layer in saved["layers"]):
            return saved
    except (OSError, ValueError, LookupError, TypeError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    short = bundle.no_room(
        item["bytes"], free_bytes(folder), f"the file system of {folder}", f"the archive of {item['ref']} at most"
    )
    if short:
        module.fail_json(msg=short + " Make room there.")
    own_folder(folder)
    what = f"docker save {item['ref']} ({item['id'][7:19]}) failed"
    diff_ids: list[str] = []
    try:
        diff_ids = docker.image_layers(run, item["id"])
    except NoAnswer as error:
        module.fail_json(msg=f"{what}: {error}")
    compression = "zstd" if module.get_bin_path("zstd") else "gzip"
    splitter = partial(image_parts.Splitter, [item["ref"]], diff_ids, item["known"][compression])
    try:
        layers = image_parts.save(
            item["id"], folder, image_parts.COMPRESS[compression], splitter, module.params["piece_bytes"]
        )
    except (image_stream.UnexpectedContent, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        module.fail_json(msg=f"{what}: {error}")
    saved = {
        "compression": compression,
        "pieces": pieces_of(folder),
        "layers": [
            {"name": name, "size": size, "pieces": pieces_of(folder, f"{name}-")} for name, size in layers.items()
        ],
        "diff_ids": diff_ids,
    }
    state_file.write(done, saved)
    return saved


def known_layers(run: Run, item: dict[str, Any]) -> list[str]:
    """Return names of the layers of an image that this host has, none where that is not known.

    :param run: runs programs
    :param item: the image
    :returns: as the bundle names them
    """

    named = [layer["name"] for layer in item.get("layers") or []]
    diff_ids = item.get("diff_ids") or []
    if item.get("whole") or not named or not diff_ids:
        return []
    try:
        present = image_layers.shared(diff_ids, docker.present_layers(run))
    except NoAnswer:
        return []
    return [name for name in image_layers.stored_as(diff_ids, present) if name in named]


def stage(module: AnsibleModule, run: Run, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make ready for the pieces of an image.

    :param module: of Ansible
    :param run: runs programs
    :param item: the image; with C(whole), all of it is to come
    :param folder: where its pieces come
    :returns: the result of the module, with the pieces that an earlier run has brought, and the layers that need not come
    """
    here = {file.name: file.stat().st_size for file in folder.iterdir()} if folder.is_dir() else {}
    known = known_layers(run, item)
    coming = sum(part["size"] for part in bundle.parts(item, known) if here.get(part["name"]) != part["size"])
    unpacked = int(item["bytes"]) - sum(
        int(layer["size"]) for layer in item.get("layers") or [] if layer["name"] in known
    )
    try:
        root = Path(docker.data_folder(run))
    except NoAnswer as nothing:
        module.fail_json(msg=f"docker info does not say where images lie: {nothing}")
        raise
    needs = [(folder, coming, "the archive"), (root, max(unpacked, 0), "the image")]
    if _device(folder) == _device(root):
        needs = [(root, coming + max(unpacked, 0), "archive and image")]
    short = [
        bundle.no_room(need, free_bytes(path), f"the file system of {path}", f"{what} of {item['ref']}")
        for path, need, what in needs
    ]
    if any(short):
        module.fail_json(msg=" ".join(filter(None, short)) + " Make room there.")
    if not module.check_mode:
        own_folder(folder)
    return {"staged": here, "known": known}


def _device(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


def load(module: AnsibleModule, run: Run, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Load an image from its pieces, after every one of them was hashed.

    :param module: of Ansible
    :param run: runs programs
    :param item: the image, with the layers that did not come as C(left_out)
    :param folder: where its pieces are
    :returns: the result of the module; C(refused) says why Docker did not take it without them, as spread sends all of it then
    """
    bad = []
    left_out = item.get("left_out") or []
    parts = bundle.parts(item, left_out)
    for part in parts:
        file = folder / part["name"]
        if not file.is_file() or snapshots.sha256_of(file) != part["sha256"]:
            bad.append(part["name"])
            file.unlink(missing_ok=True)
    if bad:
        return {"bad": bad, "refused": ""}
    program = UNPACK["zstd" if item["compression"] == "zstd" else "gzip"]
    if not module.get_bin_path(program[0]):
        module.fail_json(msg=f"the pieces of {item['ref']} are packed with {program[0]}: apt-get install {program[0]}.")
    try:
        out = image_stream.load(program, [item["ref"]], [folder / part["name"] for part in parts])
    except (image_stream.UnexpectedContent, OSError) as error:
        if left_out:
            return {"bad": [], "refused": str(error) or "it did not say why"}
        module.fail_json(msg=f"docker load of {item['ref']} failed: {error}")
    with failing(module):
        is_loaded = docker.has_image(run, item["id"])
    if not is_loaded:
        module.fail_json(
            msg=f"docker load of {item['ref']} went through ({out.strip()}), but there is no image {item['id'][7:19]} now: this host "
            "keeps images in another kind of store (docker info: Driver) than the one that it was packed on."
        )
    if "@" not in item["ref"]:
        why = docker.act(run, "tag", item["id"], item["ref"])
        if why:
            module.fail_json(msg=f"docker tag {item['id'][7:19]} {item['ref']} failed: {why}")
    shutil.rmtree(folder)
    return {"bad": [], "refused": ""}


def look(module: AnsibleModule, item: dict[str, Any]) -> dict[str, Any]:
    """Say which files of which models are missing or wrong, and what of them an earlier run has brought."""
    params = module.params
    hf_home = Path(params["hf_home"])
    found: list[dict[str, Any]] = []
    coming = largest = 0
    apart = _device(Path(params["staging"])) != _device(hf_home)
    for model in item["models"]:
        sums = snapshots.Sums(Path(params["sums_dir"]), model["repo"])
        snapshot = snapshots.repo_folder(hf_home, model["repo"]) / "snapshots" / model["commit"]
        wrong = snapshots.check(snapshot, model["files"], sums, params["verify"])
        if not module.check_mode:
            sums.save()
        there = all(
            snapshots.commit_of(hf_home, model["repo"], revision) == model["commit"] for revision in model["revisions"]
        )
        folder = waiting(params["staging"], model)
        staged = {file.name: file.stat().st_size for file in folder.iterdir()} if folder.is_dir() else {}
        need = {model["files"][entry["file"]]["sha256"]: model["files"][entry["file"]]["size"] for entry in wrong}
        coming += sum(size for name, size in need.items() if staged.get(name) != size)
        largest = max([largest, *need.values()])
        found.append({"wrong": wrong, "named": there, "staged": staged, "folder": str(folder), "apart": apart})
        if wrong and not module.check_mode:
            own_folder(folder)
    short = [bundle.no_room(coming, free_bytes(hf_home), f"the file system of {hf_home}", "what the bundle brings")]
    if apart:  # then one file after the other is placed
        staging = Path(params["staging"])
        short.append(
            bundle.no_room(largest, free_bytes(staging), f"the file system of {staging}", "the largest file of it")
        )
    if any(short):
        module.fail_json(msg=" ".join(filter(None, short)) + " Make room there.")
    return {"models": found}


def waiting(staging: str, model: dict[str, Any]) -> Path:
    """Return where files wait until they are hashed: in a folder of root, since others may write to that of the models."""
    return Path(staging) / f"weights--{model['repo'].replace('/', '--')}@{model['commit'][:12]}"


def place(module: AnsibleModule, item: dict[str, Any]) -> dict[str, Any]:
    """Move files that came into the model's folder, each after it was hashed; the revision's name comes last."""
    hf_home = Path(module.params["hf_home"])
    model = item["model"]
    folder, repo = waiting(module.params["staging"], model), snapshots.repo_folder(hf_home, model["repo"])
    snapshot = repo / "snapshots" / model["commit"]
    sums = snapshots.Sums(Path(module.params["sums_dir"]), model["repo"])
    bad = []
    paths = [repo / "refs" / revision for revision in model["revisions"]]
    for name in item["names"]:
        wanted = model["files"][name]
        paths += [snapshot / name, repo / "blobs" / (wanted.get("blob") or wanted["sha256"])]
    new = made.note(hf_home, made.repo_name(model["repo"]), [str(path.relative_to(hf_home)) for path in paths])
    there = snapshots.listing(snapshot)[0]
    hf_home.mkdir(mode=0o755, parents=True, exist_ok=True)
    with beneath.folder(hf_home, f"hub/{repo.name}", make=True) as at:
        for name in item["names"]:
            wanted = model["files"][name]
            blob = f"blobs/{wanted.get('blob') or wanted['sha256']}"
            came = folder / wanted["sha256"]
            if came.is_file():
                if name in there:
                    snapshots.note_repair(Path(module.params["sums_dir"]), model["repo"])
                with beneath.open_file(folder, wanted["sha256"]) as handle:
                    right = beneath.place(handle, wanted["sha256"], at, blob)
                came.unlink()
                if not right:
                    bad.append(name)
                    continue
                # The name, if it leads to another blob that was damaged, goes with that one.
                if name in there and there[name].real != blob:
                    snapshots.drop(hf_home, model["repo"], snapshot, name)
                placed = beneath.info(at, blob)
                if placed:
                    sums.note(beneath.stat_key(placed), str(repo / blob), wanted["sha256"])
            if beneath.size(at, blob) != wanted["size"]:
                bad.append(name)
                continue
            beneath.link(at, f"snapshots/{model['commit']}/{name}", "/".join([".."] * (2 + name.count("/")) + [blob]))
        if not bad and item["last"]:
            for revision in model["revisions"]:
                if revision != model["commit"]:
                    beneath.write(at, f"refs/{revision}", model["commit"].encode())
            shutil.rmtree(folder, ignore_errors=True)
    sums.follow({str(hf_home / path): marks for path, marks in made.hand_over(hf_home, new).items()})
    sums.save()
    return {"bad": bad}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "required": True, "choices": ["survey", "pack", "finish", "images", "weights"]},
            "dir": {"type": "path", "required": True},
            "planned": {"type": "dict", "default": {}},
            "images_from": {"type": "str", "default": ""},
            "models_from": {"type": "str", "default": ""},
            "work": {"type": "list", "elements": "dict", "default": []},
            "refs": {"type": "list", "elements": "str", "default": []},
            "optional": {"type": "list", "elements": "str", "default": []},
            "locked": {"type": "dict", "default": {}},
            "models": {"type": "list", "elements": "dict", "default": []},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "verify": {"type": "str", "choices": ["changed", "all", "size"], "default": "changed"},
            "staging": {"type": "path", "default": bundle.STAGING},
            "piece_bytes": {"type": "int", "default": bundle.PIECE_BYTES},
            "sums_dir": {"type": "path", "default": snapshots.SUMS_DIR},
            "step": {"type": "str", "choices": ["save", "clean", "stage", "load", "look", "place"]},
            "item": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    run = runner(module, 6 * WORK_SECONDS)  # an image of tens of GiB, from or to a slow disk
    step, item = module.params["step"], module.params["item"]
    if step is None:
        module.fail_json(msg="dgxspark.vllm.bundle runs through its action plugin, on the controller")
    folder = Path(module.params["staging"], Path(str(item.get("folder") or "none")).name)
    try:
        with host_lock.held(module):
            result = act(module, run, step, item, folder)
    except beneath.Refused as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=step in ("save", "load", "place"), path=str(folder), **result)


def act(module: AnsibleModule, run: Run, step: str, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Carry out one step.

    :param module: of Ansible
    :param run: runs programs
    :param step: the option C(step)
    :param item: the image or model
    :param folder: for its pieces
    :returns: the result of the module
    """
    if step == "save":
        return save(module, run, item, folder)
    if step == "stage":
        return stage(module, run, item, folder)
    if step == "load":
        return load(module, run, item, folder)
    if step == "look":
        return look(module, item)
    if step == "place":
        return place(module, item)
    shutil.rmtree(folder, ignore_errors=True)
    return {}


if __name__ == "__main__":
    main()
