#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of a bundle on a host; the action plugin of the same name runs them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Pack images and weights of hosts into a folder, and deploy from it
description:
  - Packs images (C(docker save), compressed with zstd or, where there is none, gzip) and weights from hosts into a folder on the
    controller, with a manifest of sizes and sums, and takes them from there to hosts that cannot reach a registry or a hub.
  - Files are transferred over Ansible's connection to the host. Interrupted runs are resumed at the piece or file. Everything is hashed before it is used.
    A layer that several images have is packed once, and sent to a host only if it lacks the layer.
options:
  action:
    description: V(survey) chooses the host that hands over each image and model, and checks the free space of the controller. V(pack) packs the
      items that were chosen for the host. V(finish) writes the manifest. V(images) and V(weights) bring missing items to the host.
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
  sample: ["vllm/vllm-openai:v0.24.0-ubuntu2404"]
bytes:
  description: Bytes that travelled.
  returned: success
  type: int
"""

import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    bundle,
    file_sums,
    image_archive,
    incoming,
    snapshots,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, docker, host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import (
    WORK_SECONDS,
    NoAnswer,
    Run,
    failing,
    runner,
)


def pieces_of(folder: Path, start: str = "") -> list[dict[str, Any]]:
    """Describe the pieces in a folder, of a layer or of the other members. start: of their names."""
    return [
        {"name": file.name[len(start) :], "size": file.stat().st_size, "sha256": snapshots.sha256_of(file)}
        for file in sorted(folder.iterdir())
        if file.name.startswith(start) and file.name[len(start) :].isdigit()
    ]


def check_room(module: AnsibleModule, needs: list[tuple[Path, int, str]]) -> None:
    """Fail if there is too little free space. needs: see C(incoming.missing_room)."""
    message = incoming.missing_room(needs)
    if message:
        module.fail_json(msg=message)


def save(module: AnsibleModule, run: Run, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Split the archive of an image into pieces, unless an earlier run has. C(known) of the item: layers that need no pieces, by compression."""
    done = folder / "done.json"
    try:
        saved = dict(parse_json(done.read_text(encoding="utf-8"), str(done)))
        # The bundle may have lost a layer that it had then.
        if all(layer["pieces"] or layer["name"] in item["known"][saved["compression"]] for layer in saved["layers"]):
            return saved
    except (OSError, ValueError, LookupError, TypeError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    check_room(module, [(folder, item["bytes"], f"the archive of {item['ref']} at most")])
    incoming.make_folder(folder)
    title = f"docker save {item['ref']} ({item['id'][7:19]})"
    diff_ids: list[str] = []
    try:
        diff_ids = docker.image_layers(run, item["id"])
    except NoAnswer as error:
        module.fail_json(msg=f"{title} failed: {error}")
    compression = "zstd" if module.get_bin_path("zstd") else "gzip"
    compress, known = image_archive.COMPRESS[compression], item["known"][compression]
    layers: list[dict[str, Any]] = []
    try:
        layers = image_archive.pack(item["id"], folder, compress, known, diff_ids, module.params["piece_bytes"])
    except (image_archive.UnexpectedContent, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        module.fail_json(msg=f"{title} failed: {error}")
    saved = {
        "compression": compression,
        "pieces": pieces_of(folder),
        "layers": [{**layer, "pieces": pieces_of(folder, f"{layer['name']}-")} for layer in layers],
        "diff_ids": diff_ids,
    }
    state_file.write(done, saved)
    return saved


def known_layers(run: Run, item: dict[str, Any]) -> list[str]:
    """Return the names, in the bundle, of the layers that this host has; none if they are not known. item: the image."""
    layers, diff_ids = item["layers"], item["diff_ids"]
    if item.get("whole") or not layers or not diff_ids:
        return []
    try:
        present = image_archive.shared_layers(diff_ids, docker.present_layers(run))
    except NoAnswer:
        return []
    return [layer["name"] for layer in layers if f"sha256:{layer.get('diff_id') or layer['name']}" in present]


def stage(module: AnsibleModule, run: Run, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Prepare for the pieces of an image.

    Returns the sizes of the pieces that an earlier run has sent, and the layers to leave out. C(whole) of the item: all of it is sent.
    """
    staged, known = incoming.staged_sizes(folder), known_layers(run, item)
    packed = sum(part["size"] for part in bundle.parts(item, known) if staged.get(part["name"]) != part["size"])
    known_bytes = sum(int(layer["size"]) for layer in item["layers"] if layer["name"] in known)
    unpacked = max(int(item["bytes"]) - known_bytes, 0)
    images = folder
    try:
        images = Path(docker.data_folder(run))
    except NoAnswer as error:
        module.fail_json(msg=f"docker info does not say where images lie: {error}")
    ref = item["ref"]
    if incoming.device(folder) == incoming.device(images):
        check_room(module, [(images, packed + unpacked, f"archive and image of {ref}")])
    else:
        check_room(module, [(folder, packed, f"the archive of {ref}"), (images, unpacked, f"the image of {ref}")])
    if not module.check_mode:
        incoming.make_folder(folder)
    return {"staged": staged, "known": known}


def load(module: AnsibleModule, run: Run, item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Load an image from its pieces, after each of them was hashed.

    C(left_out) of the item has the layers that were not sent; C(refused) is the reason why Docker did not load the image without them.
    """
    left_out = item.get("left_out") or []
    parts = bundle.parts(item, left_out)
    bad = []
    for part in parts:
        file = folder / part["name"]
        if not file.is_file() or snapshots.sha256_of(file) != part["sha256"]:
            bad.append(part["name"])
            file.unlink(missing_ok=True)
    if bad:
        return {"bad": bad, "refused": ""}
    unpack = image_archive.UNPACK[item["compression"]]
    if not module.get_bin_path(unpack[0]):
        module.fail_json(msg=f"the pieces of {item['ref']} are packed with {unpack[0]}: apt-get install {unpack[0]}.")
    output = ""
    try:
        # The tag follows once the image has the expected id.
        with image_archive.output_of(["cat", *(str(folder / part["name"]) for part in parts)], unpack) as stream:
            output = image_archive.load(image_archive.members(stream), "")
    except (image_archive.UnexpectedContent, OSError) as error:
        if left_out:
            return {"bad": [], "refused": str(error) or "it did not say why"}
        module.fail_json(msg=f"docker load of {item['ref']} failed: {error}")
    with failing(module):
        is_loaded = docker.has_image(run, item["id"])
    if not is_loaded:
        module.fail_json(
            msg=f"docker load of {item['ref']} went through ({output.strip()}), but there is no image {item['id'][7:19]} now: this host "
            "keeps images in another kind of store (docker info: Driver) than the one that it was packed on."
        )
    if "@" not in item["ref"]:
        reason = docker.act(run, "tag", item["id"], item["ref"])
        if reason:
            module.fail_json(msg=f"docker tag {item['id'][7:19]} {item['ref']} failed: {reason}")
    shutil.rmtree(folder)
    return {"bad": [], "refused": ""}


def look(module: AnsibleModule, _run: Run, item: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Return the missing and damaged files of models, and the sizes of the files that an earlier run has sent."""
    params = module.params
    hf_home, staging = Path(params["hf_home"]), Path(params["staging"])
    is_apart = incoming.device(staging) != incoming.device(hf_home)
    states: list[dict[str, Any]] = []
    missing: list[int] = []
    for model in item["models"]:
        sums = file_sums.Sums(Path(params["sums_dir"]), model["repo"])
        snapshot = snapshots.repo_folder(hf_home, model["repo"]) / "snapshots" / model["commit"]
        wrong = snapshots.check(snapshot, model["files"], sums, params["verify"])
        if not module.check_mode:
            sums.save()
        is_named = all(
            snapshots.commit_of(hf_home, model["repo"], revision) == model["commit"] for revision in model["revisions"]
        )
        folder = staging_folder(staging, model)
        staged = incoming.staged_sizes(folder)
        needs = {model["files"][entry["file"]]["sha256"]: model["files"][entry["file"]]["size"] for entry in wrong}
        missing += [size for sha256, size in needs.items() if staged.get(sha256) != size]
        states.append({"wrong": wrong, "named": is_named, "staged": staged, "folder": str(folder), "apart": is_apart})
        if wrong and not module.check_mode:
            incoming.make_folder(folder)
    needs_room = [(hf_home, sum(missing), "what the bundle brings")]
    if is_apart:  # then files are placed one after the other
        needs_room.append((staging, max(missing, default=0), "the largest file of it"))
    check_room(module, needs_room)
    return {"models": states}


def staging_folder(staging: Path, model: dict[str, Any]) -> Path:
    """Return the folder in which files of a model wait until they are hashed; others may write to the folder of models."""
    return staging / f"weights--{model['repo'].replace('/', '--')}@{model['commit'][:12]}"


def place(module: AnsibleModule, _run: Run, item: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Move received files into the model's folder, each after it was hashed; the reference of the revision comes last."""
    hf_home, model = Path(module.params["hf_home"]), item["model"]
    repo = snapshots.repo_folder(hf_home, model["repo"])
    snapshot = repo / "snapshots" / model["commit"]
    sums = file_sums.Sums(Path(module.params["sums_dir"]), model["repo"])
    paths = [repo / "refs" / revision for revision in model["revisions"]]
    for name in item["names"]:
        paths += [snapshot / name, repo / blob_of(model["files"][name])]
    noted = made.note(hf_home, made.repo_name(model["repo"]), [str(path.relative_to(hf_home)) for path in paths])
    hf_home.mkdir(mode=0o755, parents=True, exist_ok=True)
    with beneath.folder(hf_home, f"hub/{repo.name}", make=True) as root:
        placement = Placement(module, model, snapshot, root, sums)
        bad = [name for name in item["names"] if not placement.place(name)]
        if not bad and item["last"]:
            for revision in model["revisions"]:
                if revision != model["commit"]:
                    beneath.write(root, f"refs/{revision}", model["commit"].encode())
            shutil.rmtree(placement.folder, ignore_errors=True)
    sums.follow({str(hf_home / path): marks for path, marks in made.hand_over(hf_home, noted).items()})
    sums.save()
    return {"bad": bad}


def blob_of(file: dict[str, Any]) -> str:
    """Return the place of a file's bytes, below the folder of its model."""
    return f"blobs/{file.get('blob') or file['sha256']}"


class Placement:
    """Places files of one snapshot. root: descriptor of the model's folder; sums: recorded digests."""

    def __init__(
        self, module: AnsibleModule, model: dict[str, Any], snapshot: Path, root: int, sums: file_sums.Sums
    ) -> None:
        self.model, self.snapshot, self.root, self.sums = model, snapshot, root, sums
        self.hf_home = Path(module.params["hf_home"])
        self.sums_dir = Path(module.params["sums_dir"])
        self.folder = staging_folder(Path(module.params["staging"]), model)
        self.present = snapshots.listing(snapshot)[0]

    def place(self, name: str) -> bool:
        """Place a file and link it into the snapshot; returns whether it is whole."""
        file = self.model["files"][name]
        blob = blob_of(file)
        if (self.folder / file["sha256"]).is_file() and not self.move(name, file["sha256"], blob):
            return False
        if beneath.size(self.root, blob) != file["size"]:
            return False
        target = "/".join([".."] * (2 + name.count("/")) + [blob])
        beneath.link(self.root, f"snapshots/{self.model['commit']}/{name}", target)
        return True

    def move(self, name: str, sha256: str, blob: str) -> bool:
        """Move a received file to its blob if it has the expected digest, and replace a damaged file of that name.

        Returns whether it was moved. blob: its place below the folder of the model.
        """
        repo = self.model["repo"]
        if name in self.present:
            file_sums.note_repair(self.sums_dir, repo)
        with beneath.open_file(self.folder, sha256) as handle:
            is_whole = beneath.place(handle, sha256, self.root, blob)
        (self.folder / sha256).unlink()
        if not is_whole:
            return False
        # A link to another, damaged blob is removed together with that blob.
        if name in self.present and self.present[name].real != blob:
            snapshots.drop(self.hf_home, repo, self.snapshot, name)
        info = beneath.info(self.root, blob)
        if info:
            self.sums.note(beneath.stat_key(info), str(self.snapshot.parents[1] / blob), sha256)
        return True


def clean(_module: AnsibleModule, _run: Run, _item: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Remove the pieces of an image."""
    shutil.rmtree(folder, ignore_errors=True)
    return {}


STEPS = {"save": save, "clean": clean, "stage": stage, "load": load, "look": look, "place": place}


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
            "sums_dir": {"type": "path", "default": file_sums.SUMS_DIR},
            "step": {"type": "str", "choices": [*STEPS]},
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
            result = STEPS[step](module, run, item, folder)
    except beneath.Refused as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=step in ("save", "load", "place"), path=str(folder), **result)


if __name__ == "__main__":
    main()
