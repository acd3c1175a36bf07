# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry images and weights between hosts and a folder of the controller; documented in plugins/modules/bundle.py."""

from __future__ import annotations

import json
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import incoming, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bundles import read_manifest, select_models
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import locked_folder, write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_steps import HostSteps, OutgoingFile
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Progress
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
LAYER = "layer.json"
"""File that describes a layer of the bundle, next to its pieces."""
SLACK_BYTES = 16 * 2**20
"""Bytes above the announced size: the limit also applies to small files of ssh itself."""
DRAFTS = ".draft-"
DRAFT_SECONDS = 24 * 3600.0
LAYER_FOLDER = re.compile(r"[0-9a-f]{64}\.(zst|gz)")
MOST_TRIES = 2
"""How often files are sent to a host; a network that damages them twice is broken."""


class ActionModule(HostSteps):
    """Pack from hosts, write the manifest, bring to hosts."""

    MODULE = "dgxspark.vllm.bundle"
    ANSWERS = answers.BUNDLE
    OPTIONS = ("action", "dir", "hf_home", "verify", "staging", "piece_bytes", "sums_dir")

    def act(self) -> dict[str, Any]:
        """Carry out the action of the task."""
        self.args = plain(self.args)
        for name in ("action", "dir"):
            if not self.args.get(name):
                raise AnsibleActionFail(f"{name} is missing")
        self.dir = Path(of_fleet(str(self.args["dir"]), self.variables))
        actions = {
            "survey": self._survey,
            "pack": self._pack,
            "finish": self._finish,
            "images": self._bring_images,
            "weights": self._bring_weights,
        }
        if self.args["action"] not in actions:
            raise AnsibleActionFail(f"action is '{self.args['action']}'; it must be one of {', '.join(actions)}")
        return {"changed": False, "bytes": 0, "_ansible_verbose_override": True, **actions[self.args["action"]]()}

    # --- packing: from hosts to the controller ---

    def _survey(self) -> dict[str, Any]:
        """Choose the host that hands over each image and model, and check the free space of the controller."""
        plan = plain(self.args["planned"])
        play = [str(host) for host in self.variables.get("ansible_play_hosts") or [] if str(host) in plan]
        for draft in self.dir.glob(f"{DRAFTS}*"):  # of runs that were killed
            if time.time() - draft.stat().st_mtime > DRAFT_SECONDS:
                shutil.rmtree(draft, ignore_errors=True)
        images, models = {}, {}
        for host in play:
            registered = self.variables["hostvars"][host]
            section = registered_answer(registered, self.args["images_from"], answers.IMAGES_SECTION, host)
            images[host] = _with_locked(section.get("images") or {}, plan[host].get("images_locked") or {})
            section = registered_answer(registered, self.args["models_from"], answers.MODEL_FILES, host)
            models[host] = section.get("model_files") or []
        work, refusals = engine.survey(plan, play, images, models)
        if refusals:
            raise AnsibleActionFail("nothing was packed:\n- " + "\n- ".join(refusals))
        missing = {"model": 0, "image": 0}
        for item in (item for items in work.values() for item in items):
            missing[item["kind"]] += self._missing_bytes(item)
        free = incoming.free_bytes(self.dir)
        display.display(
            f"  {self.dir}: {missing['model'] / 1e9:.2f} GB of weights and at most {missing['image'] / 1e9:.2f} GB of images "
            f"to come, {free / 1e9:.2f} GB free"
        )
        message = engine.no_room(sum(missing.values()), free, f"the file system of {self.dir}", "the bundle")
        if message:
            fix = "Images count with their unpacked size. Free disk space, or name another folder."
            raise AnsibleActionFail(f"{message} {fix}")
        return {"work": work}

    def _missing_bytes(self, item: Mapping[str, Any]) -> int:
        """Return the bytes of an item that the bundle lacks."""
        if item["kind"] == "image":
            return 0 if self._packed_image(item) else int(item["bytes"])
        return sum(
            int(file["size"])
            for name, file in item["files"].items()
            if size_of(self.dir / engine.model_file(item["repo"], item["commit"], name)) != file["size"]
        )

    def _packed_image(self, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the entry of an image that the bundle has whole, or None."""
        entry = state_file.read(self.dir / item["folder"] / "image.json")
        if not entry or entry.get("id") != item["id"]:
            return None
        layers = [self._packed_layer(name, entry["compression"]) for name in entry["layers"]]
        if None in layers:
            return None
        entry = {**entry, "layers": layers}
        is_whole = all(size_of(self.dir / part["path"]) == part["size"] for part in engine.parts(entry))
        return entry if is_whole else None

    def _packed_layer(self, name: str, compression: str) -> dict[str, Any] | None:
        """Return the entry of a layer that the bundle has whole, or None."""
        folder = self.dir / engine.layer_folder(name, compression)
        entry = state_file.read(folder / LAYER)
        if entry and all(size_of(folder / piece["name"]) == piece["size"] for piece in entry["pieces"]):
            return {"name": name, **entry}
        return None

    def _pack(self) -> dict[str, Any]:
        """Fetch the items that this host was chosen for."""
        fetched, changed = 0, False
        for item in self.args.get("work") or []:
            is_image = item["kind"] == "image"
            # Not by bytes: Docker reports zero for a small image.
            if not (self._packed_image(item) if is_image else self._has_model(item)):
                changed = True
                if not self._task.check_mode:
                    fetched += self._pack_image(item) if is_image else self._pack_model(item)
            if is_image:
                changed = self._name_image(item) or changed
        return {"changed": changed, "bytes": fetched}

    def _has_model(self, item: Mapping[str, Any]) -> bool:
        """Whether the bundle has a model whole, and its revisions stand for it."""
        entry = state_file.read(self.dir / model_entry_path(item)) or {}
        return (
            not self._missing_bytes(item)
            and entry.get("files") == manifest_files(item)
            and set(item["revisions"]) <= set(entry.get("revisions") or [])
            and all(self._is_current(item, revision) for revision in item["revisions"])
        )

    def _is_current(self, model: Mapping[str, Any], revision: str) -> bool:
        """Whether a branch or tag stands for this commit in the bundle; it may have been packed at another one since."""
        ref = self.dir / engine.repo_folder(model["repo"]) / "refs" / revision
        return revision == model["commit"] or (ref.is_file() and ref.read_text(encoding="utf-8") == model["commit"])

    def _name_image(self, item: Mapping[str, Any]) -> bool:
        """Let a tag stand for the latest packed build; earlier builds stay, since a lock file names them by id."""
        changed = False
        for path in self.dir.glob("images/*/image.json"):
            entry = state_file.read(path) or {}
            is_current = entry.get("id") == item["id"]
            if entry.get("ref") == item["ref"] and entry.get("current") is not is_current:
                changed = True
                if not self._task.check_mode:
                    write(path, to_json({**entry, "current": is_current}))
        return changed

    def _remove_other_pieces(self, expected: set[str]) -> None:
        """Remove other files from the folders of expected pieces. expected: paths below the bundle."""
        for relative in {str(Path(path).parent) for path in expected}:
            folder = self.dir / relative
            for path in folder.glob("*") if folder.is_dir() and not folder.is_symlink() else []:
                if f"{relative}/{path.name}" not in expected:
                    path.unlink()

    def _pack_image(self, item: dict[str, Any]) -> int:
        """Have the host split the archive into pieces, and fetch the missing pieces."""
        display.display(f"  {self.host}: packing {item['ref']} ({item['bytes'] / 1e9:.2f} GB unpacked)")
        known = {compression: sorted(self._layers(compression)) for compression in ("zstd", "gzip")}
        saved = self.run_step("save", item={**item, "known": known})
        compression = saved["compression"]
        about = {key: item[key] for key in ("ref", "id", "digests", "platform", "folder", "bytes", "base")}
        entry = {**about, "current": True, "compression": compression, "diff_ids": saved["diff_ids"]}
        # A layer that two hosts have packed stays as the first one packed it; the pieces of the other may differ.
        with locked_folder(self._target("layers/*").parent):
            present = self._layers(compression)
            layers = [layer for layer in saved["layers"] if layer["name"] not in present]
            lost = [layer["name"][:12] for layer in layers if not layer["pieces"]]
            if lost:
                raise AnsibleActionFail(
                    f"{item['ref']}: {self.host} packed no layers {', '.join(lost)}, and they are not in {self.dir}. Pack again."
                )
            parts = engine.parts({**entry, "layers": layers, "pieces": saved["pieces"]})
            expected = {part["path"] for part in parts}
            self._remove_other_pieces(expected)
            fetched = self._fetch_all(
                item["ref"],
                [(f"{saved['path']}/{part['name']}", part["path"], part["size"], part["sha256"]) for part in parts],
            )
            for layer in layers:
                body = {key: value for key, value in layer.items() if key != "name"}
                self._write(f"{engine.layer_folder(layer['name'], compression)}/{LAYER}", to_json(body))
            names = [layer["name"] for layer in saved["layers"]]
            self._write(f"{item['folder']}/image.json", to_json({**entry, "layers": names, "pieces": saved["pieces"]}))
        self.run_step("clean", item=item)
        return fetched

    def _layers(self, compression: str) -> set[str]:
        """Return the names of the layers that the bundle has whole."""
        names = [path.parent.name.partition(".")[0] for path in self.dir.glob(f"layers/*/{LAYER}")]
        return {name for name in names if self._packed_layer(name, compression)}

    def _pack_model(self, item: dict[str, Any]) -> int:
        """Fetch the missing files of a snapshot."""
        repo, commit = item["repo"], item["commit"]
        files = [
            (f"{item['path']}/{name}", engine.model_file(repo, commit, name), file["size"], file["sha256"])
            for name, file in item["files"].items()
        ]
        fetched = self._fetch_all(f"{repo}@{commit[:12]}", files)
        earlier = state_file.read(self.dir / model_entry_path(item)) or {}
        revisions = sorted({*item["revisions"], *(earlier.get("revisions") or [])})
        for revision in revisions:
            if revision != commit:
                self._write(f"{engine.repo_folder(repo)}/refs/{revision}", commit)
        entry = {"repo": repo, "commit": commit, "revisions": revisions, "files": manifest_files(item)}
        self._write(model_entry_path(item), to_json(entry))
        return fetched

    def _fetch_all(self, title: str, files: Sequence[tuple[str, str, int, str]]) -> int:
        """Fetch missing and damaged files; each gets its name after it was hashed.

        files: path on the host, path below the bundle, size and SHA-256 of each.
        """
        missing = []
        for remote, relative, size, sha256 in files:
            path = self._target(relative)
            if path.is_symlink() or size_of(path) != size or snapshots.sha256_of(path) != sha256:
                missing.append((remote, path, size, sha256))
        progress = Progress(self.host, title, sum(file[2] for file in missing))
        # When it packs, a host may announce more than it did for the survey.
        message = engine.no_room(progress.total, incoming.free_bytes(self.dir), f"the file system of {self.dir}", title)
        if message:
            raise AnsibleActionFail(f"{message} Make room, or name another folder.")
        with tempfile.TemporaryDirectory(prefix=DRAFTS, dir=incoming.nearest(self.dir)) as folder:
            for remote, path, size, sha256 in missing:
                draft = Path(folder, "draft")
                self._fetch(title, remote, draft, size)
                digest = snapshots.sha256_of(draft)
                if digest != sha256:
                    raise AnsibleActionFail(
                        f"{title}: {remote} came from {self.host} with the sha256 {digest[:12]} instead of {sha256[:12]}. The file on the host is "
                        "damaged: remove it and run site.yml, which downloads it again; then pack again."
                    )
                draft.replace(path)
                progress.add(size)
        return progress.done

    def _fetch(self, title: str, remote: str, draft: Path, size: int) -> None:
        """Fetch a file of at most the announced size."""
        reason = ""
        # Of the methods that ssh tries by default the last one is left out: dd through a pipe reads a whole file into memory.
        is_ssh = self._connection.transport == "ssh"
        is_smart = is_ssh and self._connection.get_option("ssh_transfer_method") == "smart"
        for method in ("sftp", "scp") if is_smart else ("",):
            try:
                with transfer_by(self._connection, method), most_file_bytes(size + SLACK_BYTES):
                    self._connection.fetch_file(remote, str(draft))
                return
            except (AnsibleError, OSError) as error:
                reason = foreign_text.printable(str(error))
            if (size_of(draft) or 0) > size:
                raise AnsibleActionFail(
                    f"{title}: {remote} of {self.host} has more than the {size} bytes that the host announced; the transfer was "
                    "stopped. Is it the expected host? If it is, pack again: the file has changed since."
                )
        raise AnsibleActionFail(
            f"{title}: {remote} could not be fetched from {self.host}: {reason}. The login user has to be able to read it: "
            "see the modes of the file and of the folders above it."
        )

    def _finish(self) -> dict[str, Any]:
        """Write the manifest of the bundle, and remove layers that no image uses."""
        images = read_entries(self.dir, "images/*/image.json")
        changed = self._remove_unused_layers(images)
        models = read_entries(self.dir, "models/*.json")
        for model in models:
            model["revisions"] = [revision for revision in model["revisions"] if self._is_current(model, revision)]
        packed = [entry for image in images if (entry := self._packed_image(image))]
        text = to_json(engine.make_manifest(packed, models))
        path = self.dir / engine.MANIFEST
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return {"changed": changed}
        if not self._task.check_mode:
            write(path, text)
        return {"changed": True}

    def _remove_unused_layers(self, images: Iterable[Mapping[str, Any]]) -> bool:
        """Remove layers that no image uses, unless a host has failed: its next run goes on with the layers it has packed."""
        hosts, all_hosts = (self.variables.get(name) or [] for name in ("ansible_play_hosts", "ansible_play_hosts_all"))
        folder = self.dir / "layers"
        if len(hosts) < len(all_hosts) or folder.is_symlink():
            return False
        used = {engine.layer_folder(name, image["compression"]) for image in images for name in image["layers"]}
        layers = [path for path in sorted(folder.glob("*")) if LAYER_FOLDER.fullmatch(path.name) and path.is_dir()]
        unused = [path for path in layers if f"layers/{path.name}" not in used]
        if unused:
            display.display(f"  {self.dir}: {len(unused)} layers that no image has any more are removed")
        for path in unused if not self._task.check_mode else []:
            shutil.rmtree(path)
        return bool(unused)

    # --- bringing: from the controller to a host ---

    def _bring_images(self) -> dict[str, Any]:
        """Load the images that the host lacks."""
        images, messages = self._select_images(read_manifest(self.dir))
        for image in images.values():
            messages += [
                f"{self.dir / part['path']} of {image['ref']} is missing or has another size than the manifest says. "
                "Copy the bundle again, or run dgxspark.vllm.bundle again."
                for part in engine.parts(image)
                if size_of(self.dir / part["path"]) != part["size"]
            ]
        if messages:
            raise AnsibleActionFail("\n- ".join([f"{self.host}: images cannot come from the bundle:", *messages]))
        sent = 0
        if not self._task.check_mode:
            sent = sum(self._bring_image(image) for image in {image["id"]: image for image in images.values()}.values())
        return {"changed": bool(images), "brought": sorted(images), "bytes": sent}

    def _select_images(self, manifest: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return the images for the host, by reference, and messages about images that the bundle lacks."""
        locked = self.args.get("locked") or {}
        # Optional images that the bundle lacks are pulled or refused by their own roles.
        named = self.args.get("optional") or []
        optional = [ref for ref in named if "@" not in ref and engine.find_image(manifest, ref, None, "")[0]]
        images: dict[str, dict[str, Any]] = {}
        messages: list[str] = []
        for ref in [*(self.args.get("refs") or []), *optional]:
            image, reason = engine.find_image(manifest, ref, locked.get(ref), str(self.dir))
            if image and "@" in ref and ref not in locked:
                reason = (
                    f"{ref} is named by a digest, which Docker does not know of an image that it has loaded. Lock it with "
                    "dgxspark.vllm.lock, and it is known by its id."
                )
            if reason or image is None:
                messages.append(reason)
                continue
            images[ref] = image
            # An image with Ray is made on a host, over the network, from its base. It comes before the base: an interrupted run
            # would otherwise find the base and make the image.
            made = {entry["ref"]: entry for entry in manifest["images"] if entry.get("base") == image["id"]}
            images = {**made, **images}
        return images, messages

    def _bring_image(self, image: dict[str, Any]) -> int:
        """Send the missing parts of an image and load it; send all parts if it does not load without the layers of the host."""
        sent, tries, whole, bad = 0, 0, False, []
        while tries < MOST_TRIES:
            staged = self.run_step("stage", item={**image, "whole": whole})
            self.check_names(staged["known"], [layer["name"] for layer in image["layers"]], "stage")
            known = [] if whole else staged["known"]
            parts = engine.parts(image, known)
            outgoing = [
                OutgoingFile(self.dir / part["path"], f"{staged['path']}/{part['name']}", part["size"])
                for part in parts
                if staged["staged"].get(part["name"]) != part["size"]
            ]
            sent += self.send(image["ref"], outgoing)
            if known:
                count, total = (sum(part["size"] for part in group) for group in (parts, engine.parts(image)))
                display.display(f"  {self.host}: {count} of {total} bytes of {image['ref']}: it has the other layers")
            display.display(f"  {self.host}: loading {image['ref']} ({image['bytes'] / 1e9:.2f} GB unpacked)")
            loaded = self.run_step("load", item={**image, "left_out": known})
            bad = loaded["bad"]
            self.check_names(bad, [part["name"] for part in parts], "load")
            if known and loaded["refused"]:
                display.display(
                    f"  {self.host}: Docker did not load that part ({loaded['refused'][:300]}); the other layers come, too"
                )
                whole = True
                continue
            if not bad:
                return sent
            damaged = [(self.dir / part["path"], part["sha256"]) for part in parts if part["name"] in bad]
            self._check_bundle(damaged, image["ref"])
            tries += 1
        raise AnsibleActionFail(
            f"{image['ref']}: pieces {', '.join(bad)} were damaged twice on their way to {self.host}, and are whole in {self.dir}. "
            "See to the host's disk and memory, then run again."
        )

    def _bring_weights(self) -> dict[str, Any]:
        """Send the files of models that the host lacks or has damaged."""
        models, messages = select_models(read_manifest(self.dir), self.args.get("models") or [], self.dir)
        if messages:
            raise AnsibleActionFail("\n- ".join([f"{self.host}: weights cannot come from the bundle:", *messages]))
        if not models:
            return {"brought": []}
        states = self.run_step("look", item={"models": models})["models"]
        if len(states) != len(models):
            raise AnsibleActionFail(
                f"{self.host} was asked about {len(models)} models and answered about {len(states)}"
            )
        sent, brought = 0, []
        for model, state in zip(models, states):
            if not state["wrong"] and state["named"]:
                continue
            brought.append(f"{model['repo']}@{model['commit'][:12]}")
            for entry in state["wrong"]:
                if entry["why"] != "is missing":
                    display.display(f"  {self.host}: {brought[-1]}: {entry['file']} {entry['why']}; it comes again")
            if not self._task.check_mode:
                sent += self._bring_model(model, state)
        return {"changed": bool(brought), "brought": brought, "bytes": sent}

    def _bring_model(self, model: dict[str, Any], state: Mapping[str, Any]) -> int:
        """Send files of a model and have them placed; returns the bytes that were sent. state: of the model on the host."""
        names, files = [entry["file"] for entry in state["wrong"]], model["files"]
        self.check_names(names, files, "look")
        paths = {name: self.dir / engine.model_file(model["repo"], model["commit"], name) for name in names}
        lost = [str(path) for name, path in paths.items() if size_of(path) != files[name]["size"]]
        if lost:
            raise AnsibleActionFail(
                f"{', '.join(lost[:5])}: missing, or of another size than the manifest says. Copy the bundle again, or run "
                "dgxspark.vllm.bundle again."
            )
        sent, staged = 0, dict(state["staged"])
        for _attempt in range(MOST_TRIES):
            # By digest: files with the same content are sent once.
            missing = {
                files[name]["sha256"]: name
                for name in names
                if staged.get(files[name]["sha256"]) != files[name]["size"]
            }
            outgoing = [
                OutgoingFile(paths[name], f"{state['folder']}/{sha256}", files[name]["size"])
                for sha256, name in missing.items()
            ]

            def place(file: OutgoingFile, missing: Mapping[str, str] = missing) -> None:
                name = missing[file.remote.rpartition("/")[2]]
                self.run_step("place", item={"model": model, "names": [name], "last": False})

            # The staging folder may be on another, smaller file system.
            sent += self.send(f"{model['repo']}@{model['commit'][:12]}", outgoing, place if state["apart"] else None)
            bad = self.run_step("place", item={"model": model, "names": names, "last": True})["bad"]
            self.check_names(bad, names, "place")
            if not bad:
                return sent
            self._check_bundle([(paths[name], files[name]["sha256"]) for name in bad], model["repo"])
            names, staged = bad, {}
        raise AnsibleActionFail(
            f"{model['repo']}: {', '.join(names)} were damaged twice on their way to {self.host}, and are whole in {self.dir}. See to "
            "the host's disk and memory, then run again."
        )

    def _check_bundle(self, files: Sequence[tuple[Path, str]], title: str) -> None:
        """Fail if the bundle itself is damaged; otherwise the transfer damaged the files, and they are sent once more."""
        damaged = [str(path) for path, sha256 in files if snapshots.sha256_of(path) != sha256]
        if damaged:
            raise AnsibleActionFail(
                f"{title}: {', '.join(damaged)} in the bundle is damaged: its sha256 differs from the manifest. It was not used. Copy the bundle "
                "again, or remove the file and run dgxspark.vllm.bundle again."
            )

    def _target(self, relative: str) -> Path:
        """Return the path of a file of the bundle, with the folders above it made; none of them may be a link."""
        path = self.dir / relative
        self.dir.mkdir(parents=True, exist_ok=True)
        try:
            with beneath.folder(self.dir, str(Path(relative).parent), make=True):
                return path
        except OSError as error:
            raise AnsibleActionFail(f"{path} cannot be written on the controller: {error}") from error

    def _write(self, relative: str, content: str) -> None:
        """Write a file of the bundle."""
        try:
            beneath.write(self.dir, relative, content.encode())
        except OSError as error:
            raise AnsibleActionFail(f"{self.dir / relative} cannot be written on the controller: {error}") from error


@contextmanager
def most_file_bytes(limit: int) -> Iterator[None]:
    """Have the kernel stop this process and its children from writing a larger file. limit: bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limits = [value for value in (limit, *before) if value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def transfer_by(connection: Any, method: str) -> Iterator[None]:
    """Have a connection transfer files by one method of ssh, or by its own choice if that is empty."""
    if not method:
        yield
        return
    before = connection.get_option("ssh_transfer_method")
    connection.set_option("ssh_transfer_method", method)
    try:
        yield
    finally:
        connection.set_option("ssh_transfer_method", before)


def _with_locked(images: dict[str, Any], locked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the images of a host, also by the references that the lock file gives them. locked: C(images_locked) of the plan."""
    for ref, entry in locked.items():
        present = [image for name in entry["ids"] if (image := images.get(name) or {}).get("present")]
        if present and not (images.get(ref) or {}).get("present"):
            images[ref] = present[0]
    return images


def registered_answer(variables: Mapping[str, Any], name: str, form: Any, host: str) -> dict[str, Any]:
    """Return the answer of a host that is registered under a name, checked."""
    answer = plain(variables.get(name))
    if not isinstance(answer, Mapping) or answer.get("failed") or not answer:
        return {}
    return dict(checked_answer(answer, form, host, name))


def read_entries(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Return the readable JSON files of a bundle that match a pattern, by name."""
    return [entry for path in sorted(folder.glob(pattern)) if (entry := state_file.read(path))]


def model_entry_path(item: Mapping[str, Any]) -> str:
    """Return the file of the bundle that describes a model."""
    return f"models/{str(item['repo']).replace('/', '--')}@{item['commit']}.json"


def manifest_files(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files of a model as the manifest has them."""
    return {
        name: {key: file[key] for key in ("size", "sha256", "blob") if file.get(key)}
        for name, file in sorted(item["files"].items())
    }


def size_of(path: Path) -> int | None:
    """Return the size of a file, None for a missing one."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def to_json(value: Mapping[str, Any]) -> str:
    """Return JSON for people and tools; the same text for the same value."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
