# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry images and weights between hosts and a folder of the controller; documented in plugins/modules/bundle.py."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bundles import manifest_of, read_json, wanted_models
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import of_fleet
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Progress
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
MODULE = "dgxspark.vllm.bundle"
LAYER = "layer.json"
"""What a layer of the bundle is, beside its pieces."""
SLACK_BYTES = 16 * 2**20
"""Above the announced size: the limit holds for ssh's own small files too."""
DRAFTS = ".draft-"
DRAFT_SECONDS = 24 * 3600.0
LAYER_FOLDER = re.compile(r"[0-9a-f]{64}\.(zst|gz)")


class ActionModule(ActionBase):
    """Pack from hosts, write the manifest, bring to hosts."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do what C(action) asks for."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        self.host = str(self.variables.get("inventory_hostname", ""))
        self.args = plain(dict(self._task.args))
        for name in ("action", "dir"):
            if not self.args.get(name):
                raise AnsibleActionFail(f"{name} is missing")
        self.dir = Path(of_fleet(str(self.args["dir"]), self.variables))
        ways = {
            "survey": self._survey,
            "pack": self._pack,
            "finish": self._finish,
            "images": self._images,
            "weights": self._weights,
        }
        if self.args["action"] not in ways:
            raise AnsibleActionFail(f"action is '{self.args['action']}'; it must be one of {', '.join(ways)}")
        result.update({"changed": False, "bytes": 0, "_ansible_verbose_override": True})
        result.update(ways[self.args["action"]]())
        return result

    # --- to the controller ---

    def _survey(self) -> dict[str, Any]:
        """Choose who hands over what, and see that it has room here."""
        plan = plain(self.args["planned"])
        play = [str(host) for host in self.variables.get("ansible_play_hosts") or [] if str(host) in plan]
        for left in self.dir.glob(f"{DRAFTS}*"):  # of a run that was killed
            if time.time() - left.stat().st_mtime > DRAFT_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        images, models = {}, {}
        for host in play:
            own = self.variables["hostvars"][host]
            images[host] = said(own, self.args["images_from"], answers.IMAGES_SECTION, host).get("images") or {}
            models[host] = said(own, self.args["models_from"], answers.MODEL_FILES, host).get("model_files") or []
            images[host] = with_locked(images[host], plan[host].get("images_locked") or {})
        work, refusals = engine.survey(plan, play, images, models)
        if refusals:
            raise AnsibleActionFail("nothing was packed:\n- " + "\n- ".join(refusals))
        weights = sum(self._missing(item) for items in work.values() for item in items if item["kind"] == "model")
        archives = sum(self._missing(item) for items in work.values() for item in items if item["kind"] == "image")
        free = shutil.disk_usage(existing(self.dir)).free
        display.display(
            f"  {self.dir}: {weights / 1e9:.2f} GB of weights and at most {archives / 1e9:.2f} GB of images to come, "
            f"{free / 1e9:.2f} GB free"
        )
        short = engine.no_room(weights + archives, free, f"the file system of {self.dir}", "the bundle")
        if short:
            raise AnsibleActionFail(
                f"{short} Images count with what they take unpacked. Make room, or name another folder."
            )
        return {"work": work}

    def _missing(self, item: Mapping[str, Any]) -> int:
        """Return the bytes of an item that are not here yet."""
        if item["kind"] == "image":
            return 0 if self._packed_image(item) else int(item["bytes"])
        return sum(
            int(file["size"])
            for name, file in item["files"].items()
            if size_of(self.dir / engine.model_file(item["repo"], item["commit"], name)) != file["size"]
        )

    def _packed_image(self, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what an earlier run packed of this very image, if all of it is here."""
        said = read_json(self.dir / item["folder"] / "image.json")
        if not said or said.get("id") != item["id"]:
            return None
        layers = [self._packed_layer(name, said["compression"]) for name in said.get("layers") or []]
        if None in layers:
            return None
        packed = {**said, "layers": layers}
        whole = all(size_of(self.dir / part["path"]) == part["size"] for part in engine.parts(packed))
        return packed if whole else None

    def _packed_layer(self, name: str, compression: str) -> dict[str, Any] | None:
        """Return what was packed of a layer, if all of it is here."""
        folder = self.dir / engine.layer_folder(name, compression)
        said = read_json(folder / LAYER)
        whole = said and all(size_of(folder / piece["name"]) == piece["size"] for piece in said["pieces"])
        return {"name": name, **said} if said and whole else None

    def _pack(self) -> dict[str, Any]:
        """Fetch what this host was chosen for."""
        carried, changed = 0, False
        for item in self.args.get("work") or []:
            # Not by bytes: Docker's figure for a small image is zero.
            here = self._packed_image(item) if item["kind"] == "image" else self._packed_model(item)
            if not here:
                changed = True
                if not self._task.check_mode:
                    carried += self._pack_image(item) if item["kind"] == "image" else self._pack_model(item)
            if item["kind"] == "image":
                changed = self._name_image(item) or changed
        return {"changed": changed, "bytes": carried}

    def _packed_model(self, item: Mapping[str, Any]) -> bool:
        """Whether all of a model is here, and its names lead to it."""
        said = read_json(self.dir / sidecar(item)) or {}
        return (
            not self._missing(item)
            and said.get("files") == kept_files(item)
            and set(item["revisions"]) <= set(said.get("revisions") or [])
            and all(self._leads(item, revision) for revision in item["revisions"])
        )

    def _leads(self, model: Mapping[str, Any], revision: str) -> bool:
        """Whether a branch or tag stands for this commit in the bundle: it may have been packed at another one since."""
        ref = self.dir / engine.repo_folder(model["repo"]) / "refs" / revision
        return revision == model["commit"] or (ref.is_file() and ref.read_text(encoding="utf-8") == model["commit"])

    def _name_image(self, item: Mapping[str, Any]) -> bool:
        """Let a tag stand for the build that was packed last; earlier ones stay, for a lock file to name them by their id."""
        changed = False
        for path in self.dir.glob("images/*/image.json"):
            said = read_json(path) or {}
            current = said.get("id") == item["id"]
            if said.get("ref") == item["ref"] and said.get("current") is not current:
                changed = True
                if not self._task.check_mode:
                    write(path, to_json({**said, "current": current}))
        return changed

    def _pack_image(self, item: dict[str, Any]) -> int:
        """Have the host cut the archive into pieces, and fetch those that are not here."""
        display.display(f"  {self.host}: packing {item['ref']} ({item['bytes'] / 1e9:.2f} GB unpacked)")
        known = {each: sorted(self._layers(each)) for each in ("zstd", "gzip")}
        saved = self._on_host("save", {**item, "known": known})
        compression = saved["compression"]
        said = {key: item[key] for key in ("ref", "id", "digests", "platform", "folder", "bytes", "base")}
        packed = {**said, "current": True, "compression": compression, "diff_ids": saved["diff_ids"]}
        # Of a layer that two hosts have packed, that of the first one stays: the pieces of the other may differ.
        with self._alone():
            here = self._layers(compression)
            layers = [layer for layer in saved["layers"] if layer["name"] not in here]
            lost = [layer["name"][:12] for layer in layers if not layer["pieces"]]
            if lost:
                raise AnsibleActionFail(
                    f"{item['ref']}: {self.host} packed no layers {', '.join(lost)}, and they are not in {self.dir}. Pack again."
                )
            parts = engine.parts({**packed, "layers": layers, "pieces": saved["pieces"]})
            self._drop_strays({str(Path(part["path"]).parent) for part in parts}, {part["path"] for part in parts})
            carried = self._fetch_all(
                item["ref"],
                [(f"{saved['path']}/{part['name']}", part["path"], part["size"], part["sha256"]) for part in parts],
            )
            for layer in layers:
                body = {"size": layer["size"], "pieces": layer["pieces"]}
                self._write(f"{engine.layer_folder(layer['name'], compression)}/{LAYER}", to_json(body))
            names = [layer["name"] for layer in saved["layers"]]
            self._write(f"{item['folder']}/image.json", to_json({**packed, "layers": names, "pieces": saved["pieces"]}))
        self._on_host("clean", item)
        return carried

    def _layers(self, compression: str) -> set[str]:
        """Return the names of the layers that are here, whole."""
        names = [path.parent.name.partition(".")[0] for path in self.dir.glob(f"layers/*/{LAYER}")]
        return {name for name in names if self._packed_layer(name, compression)}

    def _drop_strays(self, folders: Iterable[str], wanted: Collection[str]) -> None:
        """Remove files of folders of the bundle that are not wanted there; all are paths below it."""
        for each in folders:
            folder = self.dir / each
            for stray in folder.glob("*") if folder.is_dir() and not folder.is_symlink() else []:
                if f"{each}/{stray.name}" not in wanted:
                    stray.unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold back other hosts of this run, which are workers side by side, while layers of the bundle are written."""
        path = self._place("layers/.lock")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise AnsibleActionFail(f"{path} cannot be written on the controller: {error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _pack_model(self, item: dict[str, Any]) -> int:
        """Fetch the files of a snapshot that are not here."""
        what = f"{item['repo']}@{item['commit'][:12]}"
        carried = self._fetch_all(
            what,
            [
                (
                    f"{item['path']}/{name}",
                    engine.model_file(item["repo"], item["commit"], name),
                    file["size"],
                    file["sha256"],
                )
                for name, file in item["files"].items()
            ],
        )
        before = read_json(self.dir / sidecar(item)) or {}
        revisions = sorted({*item["revisions"], *(before.get("revisions") or [])})
        for revision in revisions:
            if revision != item["commit"]:
                self._write(f"{engine.repo_folder(item['repo'])}/refs/{revision}", item["commit"])
        body = {"repo": item["repo"], "commit": item["commit"], "revisions": revisions, "files": kept_files(item)}
        self._write(sidecar(item), to_json(body))
        return carried

    def _fetch_all(self, what: str, files: Sequence[tuple[str, str, int, str]]) -> int:
        """Fetch files that are not here with the right size and sum; each gets its name when it was hashed."""
        missing = []
        for remote, relative, size, wanted in files:
            path = self._place(relative)
            if path.is_symlink() or size_of(path) != size or snapshots.sha256_of(path) != wanted:
                missing.append((remote, path, size, wanted))
        total = sum(file[2] for file in missing)
        talk = Progress(self.host, what, total)
        # What a host announces when it packs may be more than it announced for the survey.
        free = shutil.disk_usage(existing(self.dir)).free
        short = engine.no_room(total, free, f"the file system of {self.dir}", what)
        if short:
            raise AnsibleActionFail(f"{short} Make room, or name another folder.")
        with tempfile.TemporaryDirectory(prefix=DRAFTS, dir=existing(self.dir)) as folder:
            for remote, local, size, wanted in missing:
                draft = Path(folder, "draft")
                self._fetch(what, remote, draft, size)
                found = snapshots.sha256_of(draft)
                if found != wanted:
                    raise AnsibleActionFail(
                        f"{what}: {remote} came from {self.host} with the sha256 {found[:12]}, it is to have {wanted[:12]}. The file "
                        "is damaged there: take it away and run site.yml, which fetches it again; then pack again."
                    )
                draft.replace(local)
                talk.add(size)
        return talk.done

    def _fetch(self, what: str, remote: str, draft: Path, size: int) -> None:
        """Fetch a file of at most as many bytes as the host has announced.

        :param what: for messages
        :param remote: path on the host
        :param draft: path here
        :param size: bytes that were announced
        """
        why = ""
        for method in transfer_methods(self._connection):
            try:
                with transfer_by(self._connection, method), most_file_bytes(size + SLACK_BYTES):
                    self._connection.fetch_file(remote, str(draft))
                return
            except (AnsibleError, OSError) as error:
                why = foreign_text.printable(str(error))
            if (size_of(draft) or 0) > size:
                raise AnsibleActionFail(
                    f"{what}: {remote} of {self.host} has more than the {size} bytes that the host announced; the transfer was "
                    "stopped. Is it the expected host? If it is, pack again: the file has changed since."
                )
        raise AnsibleActionFail(
            f"{what}: {remote} could not be fetched from {self.host}: {why}. The login user has to be able to read it: "
            "see the modes of the file and of the folders above it."
        )

    def _finish(self) -> dict[str, Any]:
        """Write the manifest of all that is whole in the folder, and remove layers that no image has any more."""
        images = [said for path in sorted(self.dir.glob("images/*/image.json")) if (said := read_json(path))]
        changed = self._drop_layers(images)
        models = [said for path in sorted(self.dir.glob("models/*.json")) if (said := read_json(path))]
        for model in models:
            model["revisions"] = [revision for revision in model["revisions"] if self._leads(model, revision)]
        whole = [packed for image in images if (packed := self._packed_image(image))]
        text = to_json(engine.make_manifest(whole, models))
        path = self.dir / engine.MANIFEST
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != before and not self._task.check_mode:
            write(path, text)
        return {"changed": changed or text != before}

    def _drop_layers(self, images: Iterable[Mapping[str, Any]]) -> bool:
        """Remove layers that no image has; not if a host has failed, whose run goes on with what it has brought."""
        if len(self.variables.get("ansible_play_hosts") or []) < len(
            self.variables.get("ansible_play_hosts_all") or []
        ):
            return False
        used = {
            engine.layer_folder(name, image["compression"]) for image in images for name in image.get("layers") or []
        }
        folder = self.dir / "layers"
        unused = [
            path
            for path in (sorted(folder.glob("*")) if not folder.is_symlink() else [])
            if LAYER_FOLDER.fullmatch(path.name) and path.is_dir() and f"layers/{path.name}" not in used
        ]
        if unused:
            display.display(f"  {self.dir}: {len(unused)} layers that no image has any more are removed")
        for path in unused if not self._task.check_mode else []:
            shutil.rmtree(path)
        return bool(unused)

    # --- to a host ---

    def _images(self) -> dict[str, Any]:
        """Load images that the host lacks."""
        refs = list(self.args.get("refs") or [])
        locked = self.args.get("locked") or {}
        manifest, found, messages = manifest_of(self.dir), {}, []
        # What the bundle lacks of these, their own roles pull or refuse.
        refs += [
            ref
            for ref in self.args.get("optional") or []
            if engine.find_image(manifest, ref, None, "")[0] and "@" not in ref
        ]
        for ref in refs:
            image, why = engine.find_image(manifest, ref, locked.get(ref), str(self.dir))
            if image and "@" in ref and ref not in locked:
                why = (
                    f"{ref} is named by a digest, which Docker does not know of an image that it has loaded. Lock it with "
                    "dgxspark.vllm.lock, and it is known by its id."
                )
            if why:
                messages.append(why)
            elif image:
                self._see_pieces(image, messages)
                found[ref] = image
                # An image with Ray is made on a host, over the network, from one without. Before its base: a run that is cut off
                # between the two would otherwise find the base there, and make it.
                for made in manifest["images"]:
                    if made.get("base") == image["id"]:
                        self._see_pieces(made, messages)
                        found = {made["ref"]: made, **found}
        if messages:
            raise AnsibleActionFail("\n- ".join([f"{self.host}: images cannot come from the bundle:", *messages]))
        carried = 0
        if not self._task.check_mode:
            for image in {image["id"]: image for image in found.values()}.values():
                carried += self._bring_image(image)
        return {"changed": bool(found), "brought": sorted(found), "bytes": carried}

    def _see_pieces(self, image: Mapping[str, Any], messages: list[str]) -> None:
        messages += [
            f"{self.dir / part['path']} of {image['ref']} is missing or has another size than the manifest says. "
            "Copy the bundle again, or run dgxspark.vllm.bundle again."
            for part in engine.parts(image)
            if size_of(self.dir / part["path"]) != part["size"]
        ]

    def _bring_image(self, image: dict[str, Any]) -> int:
        """Bring what the host lacks of an image; all of it where it does not load without the layers that the host has."""
        carried, tries, whole = 0, 0, False
        while tries < 2:
            staged = self._on_host("stage", {**image, "whole": whole})
            self._asked(staged["known"], [layer["name"] for layer in image.get("layers") or []], "stage")
            known = [] if whole else staged["known"]
            parts = engine.parts(image, known)
            carried += self._put_parts(image["ref"], parts, staged)
            if known:
                some, every = (sum(part["size"] for part in each) for each in (parts, engine.parts(image)))
                display.display(f"  {self.host}: {some} of {every} bytes of {image['ref']}: it has the other layers")
            display.display(f"  {self.host}: loading {image['ref']} ({image['bytes'] / 1e9:.2f} GB unpacked)")
            loaded = self._on_host("load", {**image, "left_out": known})
            bad = loaded["bad"]
            self._asked(bad, [part["name"] for part in parts], "load")
            if known and loaded["refused"]:
                display.display(
                    f"  {self.host}: Docker did not load that part ({loaded['refused'][:300]}); the other layers come, too"
                )
                whole = True
                continue
            if not bad:
                return carried
            self._blame(
                [(self.dir / part["path"], part["sha256"]) for part in parts if part["name"] in bad], image["ref"]
            )
            tries += 1
        raise AnsibleActionFail(
            f"{image['ref']}: pieces {', '.join(bad)} were damaged twice on their way to {self.host}, and are whole in {self.dir}. "
            "See to the host's disk and memory, then run again."
        )

    def _put_parts(self, what: str, parts: Sequence[Mapping[str, Any]], staged: Mapping[str, Any]) -> int:
        """Send files of an image that do not wait on the host yet; returns their bytes."""
        missing = [part for part in parts if staged["staged"].get(part["name"]) != part["size"]]
        talk = Progress(self.host, what, sum(part["size"] for part in missing))
        for part in missing:
            self._connection.put_file(str(self.dir / part["path"]), f"{staged['path']}/{part['name']}")
            talk.add(part["size"])
        return talk.done

    def _weights(self) -> dict[str, Any]:
        """Bring the files of models that the host lacks or has damaged."""
        models, messages = wanted_models(manifest_of(self.dir), self.args.get("models") or [], self.dir)
        if messages:
            raise AnsibleActionFail("\n- ".join([f"{self.host}: weights cannot come from the bundle:", *messages]))
        if not models:
            return {"brought": []}
        looked = self._on_host("look", {"models": models})["models"]
        if len(looked) != len(models):
            raise AnsibleActionFail(
                f"{self.host} was asked about {len(models)} models and answered about {len(looked)}"
            )
        carried, brought = 0, []
        for model, found in zip(models, looked):
            if not found["wrong"] and found["named"]:
                continue
            brought.append(f"{model['repo']}@{model['commit'][:12]}")
            for entry in found["wrong"]:
                if entry["why"] != "is missing":
                    display.display(f"  {self.host}: {brought[-1]}: {entry['file']} {entry['why']}; it comes again")
            if not self._task.check_mode:
                carried += self._bring_model(model, found)
        return {"changed": bool(brought), "brought": brought, "bytes": carried}

    def _bring_model(self, model: dict[str, Any], found: Mapping[str, Any]) -> int:
        names = [entry["file"] for entry in found["wrong"]]
        self._asked(names, model["files"], "look")
        here = {name: self.dir / engine.model_file(model["repo"], model["commit"], name) for name in names}
        lost = [str(path) for name, path in here.items() if size_of(path) != model["files"][name]["size"]]
        if lost:
            raise AnsibleActionFail(
                f"{', '.join(lost[:5])}: missing, or of another size than the manifest says. Copy the bundle again, or run "
                "dgxspark.vllm.bundle again."
            )
        staged, carried = dict(found["staged"]), 0
        for _attempt in range(2):
            # By sum: files of the same content travel once.
            missing = {
                model["files"][name]["sha256"]: name
                for name in names
                if staged.get(model["files"][name]["sha256"]) != model["files"][name]["size"]
            }
            total = sum(model["files"][name]["size"] for name in missing.values())
            talk = Progress(self.host, f"{model['repo']}@{model['commit'][:12]}", total)
            for wanted, name in missing.items():
                self._connection.put_file(str(here[name]), f"{found['folder']}/{wanted}")
                talk.add(model["files"][name]["size"])
                if found["apart"]:  # what waits lies on another file system, which may be a small one
                    self._on_host("place", {"model": model, "names": [name], "last": False})
            carried += talk.done
            bad = self._on_host("place", {"model": model, "names": names, "last": True})["bad"]
            self._asked(bad, names, "place")
            names = bad
            if not names:
                return carried
            self._blame([(here[name], model["files"][name]["sha256"]) for name in names], model["repo"])
            staged = {}
        raise AnsibleActionFail(
            f"{model['repo']}: {', '.join(names)} were damaged twice on their way to {self.host}, and are whole in {self.dir}. See to "
            "the host's disk and memory, then run again."
        )

    def _blame(self, files: Sequence[tuple[Path, str]], what: str) -> None:
        """Fail if it is the bundle that is damaged; else it was the way, and one more try is due."""
        damaged = [str(path) for path, wanted in files if snapshots.sha256_of(path) != wanted]
        if damaged:
            raise AnsibleActionFail(
                f"{what}: {', '.join(damaged)} in the bundle is damaged: its sha256 is not that of the manifest. Nothing of it was "
                "used. Copy the bundle again, or take the file away and run dgxspark.vllm.bundle again."
            )

    def _on_host(self, step: str, item: Mapping[str, Any]) -> dict[str, Any]:
        """Run a step on the host; fail as it fails."""
        kept = ("action", "dir", "hf_home", "verify", "staging", "piece_bytes", "sums_dir")
        args = {key: value for key, value in self.args.items() if key in kept}
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args={**args, "step": step, "item": dict(item)}, task_vars=self.variables
        )
        if result.get("failed"):
            why = str(result.get("msg") or result.get("module_stderr") or f"step {step} failed")
            raise AnsibleActionFail(foreign_text.printable(why))
        return dict(checked_answer(result, answers.BUNDLE[step], self.host, f"step {step} of {MODULE}"))

    def _asked(self, names: Iterable[str], known: Collection[str], step: str) -> None:
        """Fail where the host names files that it was not asked about."""
        checked_answer(
            None, lambda _value, where: answers.among(names, known, where), self.host, f"step {step} of {MODULE}"
        )

    def _place(self, relative: str) -> Path:
        """Return a file's path below the bundle's folder, with the folders above it made; none of them may be a link."""
        path = self.dir / relative
        self.dir.mkdir(parents=True, exist_ok=True)
        try:
            with beneath.folder(self.dir, str(Path(relative).parent), make=True):
                return path
        except OSError as error:
            raise AnsibleActionFail(f"{path} cannot be written on the controller: {error}") from error

    def _write(self, relative: str, content: str) -> None:
        """Write a file below the bundle's folder."""
        try:
            beneath.write(self.dir, relative, content.encode())
        except OSError as error:
            raise AnsibleActionFail(f"{self.dir / relative} cannot be written on the controller: {error}") from error


@contextmanager
def most_file_bytes(most: int) -> Iterator[None]:
    """Have the kernel stop this process, and what it starts, from writing a file of more than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limits = [limit for limit in (most, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def transfer_methods(connection: Any) -> tuple[str, ...]:
    """Return the methods by which ssh is to transfer files, empty names where that is not for this plugin to choose.

    Of those that ssh tries by itself the last one is left out: dd through a pipe reads a whole file into memory.
    """
    smart = connection.transport == "ssh" and connection.get_option("ssh_transfer_method") == "smart"
    return ("sftp", "scp") if smart else ("",)


@contextmanager
def transfer_by(connection: Any, method: str) -> Iterator[None]:
    """Have a connection transfer files by one method of ssh, by its own choice where that is empty."""
    if not method:
        yield
        return
    before = connection.get_option("ssh_transfer_method")
    connection.set_option("ssh_transfer_method", method)
    try:
        yield
    finally:
        connection.set_option("ssh_transfer_method", before)


def said(own: Mapping[str, Any], name: str, form: Any, host: str) -> dict[str, Any]:
    """Return what a host said that is registered under a name, checked; empty where it said nothing."""
    found = plain(own.get(name))
    return (
        dict(checked_answer(found, form, host, name))
        if isinstance(found, Mapping) and not found.get("failed") and found
        else {}
    )


def with_locked(images: Mapping[str, Any], locked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a host said about images, with those that are locked under the references of the plan."""
    seen = dict(images)
    for ref, entry in locked.items():
        by_id = next((images[each] for each in entry["ids"] if (images.get(each) or {}).get("present")), None)
        if by_id and not (seen.get(ref) or {}).get("present"):
            seen[ref] = by_id
    return seen


def sidecar(item: Mapping[str, Any]) -> str:
    """Return the file of the bundle that says what a model is."""
    return f"models/{str(item['repo']).replace('/', '--')}@{item['commit']}.json"


def kept_files(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return files as the manifest has them."""
    return {
        name: {key: file[key] for key in ("size", "sha256", "blob") if file.get(key)}
        for name, file in sorted(item["files"].items())
    }


def existing(path: Path) -> Path:
    """Return the nearest folder that is there."""
    while not path.exists():
        path = path.parent
    return path


def size_of(path: Path) -> int | None:
    """Return the size of a file, None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def to_json(value: Mapping[str, Any]) -> str:
    """Write JSON for people and tools, always the same for the same."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
