# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as generations see it: what it is now, and which states of it are kept. Reads, and changes nothing.

The files of a host are below a root that is given; its units and images are what systemd and Docker say.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._content import snapshots
from .._host import file_times, staging, unit_steps
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run, says_missing
from .._vllm.image_catalogue import names_of_image
from . import generations as engine

AT_BOOT = ("enabled", "enabled-runtime")


class Refused(Exception):
    """What was asked for cannot be done; the text says why, and what to do."""


class Host:
    """The host that this runs on: its present state, and its generations.

    params: those of M(dgxspark.vllm.generation). run: runs an argv and gives (rc, stdout, stderr), as C(command.runner) makes it.
    check: whether nothing may be changed. warn: takes a warning for people.
    """

    def __init__(self, params: Mapping[str, Any], run: Run, check: bool, warn: Callable[[str], None]) -> None:
        self.params, self.run, self.check, self.warn = params, run, check, warn
        self.root = Path(self.params["root"])
        self.folder = self.at(engine.FOLDER)
        self.manifests = self.read_manifests()
        self.current = self.read_current()
        self.texts: dict[str, str] = {}
        self.began: dict[str, float | None] = {}
        self.clocks = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
        self.receipts: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.silent = ""  # why Docker did not answer
        self.state = self.read_state()

    def at(self, path: str) -> Path:
        """Where a path of the host is."""
        return self.root / path.lstrip("/")

    def read_state(self) -> engine.State:
        """Return what the host is now."""
        files: dict[str, Any] = {}
        folders: dict[str, Any] = {}
        for tree in engine.TREES:
            self.read_tree(tree, files, folders)
        for path in sorted(self.at(engine.SYSTEM).glob(engine.UNIT_PATTERN)):
            where = f"{engine.SYSTEM}/{path.name}"
            if path.is_dir() and not path.is_symlink():
                self.read_tree(where, files, folders)
            else:
                files[where] = self.entry(path)
        self.receipts = {}
        self.read_tree(engine.RECEIPTS, self.receipts, {})
        self.secrets = {path: files.pop(path) for path in sorted(files) if engine.is_secret(path)}
        self.texts = {
            name: self.at(f"{engine.SYSTEM}/{name}").read_text(encoding="utf-8", errors="replace")
            for name in (path.rpartition("/")[2] for path in files if path.rpartition("/")[0] == engine.SYSTEM)
            if name.endswith((".service", ".timer", ".socket", ".path")) and "@." not in name
        }
        return engine.State(files, folders, self.read_units(), self.read_images(engine.service_names(files)))

    def read_tree(self, tree: str, files: dict[str, Any], folders: dict[str, Any]) -> None:
        """Note all that lies below a folder."""
        top = self.at(tree)
        if not top.is_dir():
            return
        folders[tree] = self.owner(top)
        for base, names, plain in os.walk(top):
            names[:] = sorted(name for name in names if name != "__pycache__")
            inside = f"{tree}{base[len(str(top)) :]}"
            for name in [*names, *plain]:
                path = Path(base, name)
                if path.is_dir() and not path.is_symlink():
                    folders[f"{inside}/{name}"] = self.owner(path)
                # What a run that was cut off left half written.
                elif not name.startswith(staging.PREFIX):
                    where = f"{inside}/{name}"
                    files[where] = self.secret(where, path) if engine.is_secret(where) else self.entry(path)

    @staticmethod
    def owner(path: Path) -> dict[str, str]:
        """Return owner, group and mode."""
        seen = path.lstat()
        return {
            "owner": owner_name(seen.st_uid),
            "group": group_name(seen.st_gid),
            "mode": f"{seen.st_mode & 0o7777:04o}",
        }

    def secret(self, where: str, path: Path) -> dict[str, str]:
        """Return what is known of a key file: nothing that it could be had from."""
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        return {"mark": engine.secret_mark(where, content), **self.owner(path)}

    def entry(self, path: Path) -> dict[str, str]:
        """Return what a file is."""
        if path.is_symlink():
            return {"link": str(path.readlink())}
        return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **self.owner(path)}

    def read_units(self) -> dict[str, Any]:
        """Ask systemd for the units, and keep since when they run."""
        names = sorted(self.texts)
        if not names:
            return {}
        rc, out, err = self.run(unit_steps.show_command(names))
        if rc:
            raise Refused(f"systemd cannot be asked about {', '.join(names)}: {(err or out).strip()}")
        try:
            seen = unit_steps.read_units(names, out, *self.clocks)
        except NoAnswer as nothing:
            raise Refused(f"systemd cannot be asked about {', '.join(names)}: {nothing}") from nothing
        self.began = {name: unit.began for name, unit in seen.items()}
        files = dict(zip(names, out.strip().split("\n\n")))
        at_boot = {
            name: any(f"UnitFileState={word}\n" in files.get(name, "") + "\n" for word in AT_BOOT) for name in names
        }
        return {name: {"enabled": at_boot[name], "active": seen[name].active} for name in names}

    def read_images(self, services: set[str]) -> dict[str, Any]:
        """Return which image each unit runs: by the name in its unit, and by the id that the name leads to now."""
        refs = {name: engine.image_of(text) for name, text in self.texts.items()}
        for service in services:
            try:
                settings = self.read_json(f"/etc/dgxspark/services/{service}.json")
                ranks = engine.images_of_rank(settings)
            except (OSError, ValueError, AttributeError):
                continue
            # Ray and engine of a rank are containers of one image.
            refs[f"spark-{service}.service"] = ranks[-1] if ranks else refs.get(f"spark-{service}.service")
        found = self.inspect(sorted({ref for ref in refs.values() if ref}))
        return {name: {"ref": ref, "id": found.get(ref)} for name, ref in sorted(refs.items()) if ref}

    def inspect(self, refs: list[str]) -> dict[str, str]:
        """Return the ids of those images that are there."""
        return {ref: image["Id"] for ref, image in self.images(refs).items()}

    def images(self, refs: list[str]) -> dict[str, dict[str, Any]]:
        """Return what Docker says of those images that are there, by the name asked for.

        Where it fails, C(silent) says why: what is not returned then may be there all the same.
        """
        if not refs:
            return {}
        rc, out, err = self.run(["docker", "image", "inspect", *refs])
        if rc not in (0, 127) and not says_missing(err):
            self.silent = err.strip() or f"docker image inspect ended with {rc}"
        try:
            listed = parse_json(out or "[]", "docker image inspect")
        except ValueError:
            self.silent = self.silent or "docker image inspect printed no JSON"
            return {}
        found = {}
        for image in listed:
            names = names_of_image(image)
            for ref in refs:
                if ref in names or names & names_of_image(
                    {"RepoTags": [ref]} if "@" not in ref else {"RepoDigests": [ref]}
                ):
                    found[ref] = image
        return found

    def models(self, services: list[dict[str, Any]]) -> dict[str, Any]:
        """Return which commit of which model each service runs."""
        found: dict[str, Any] = {}
        for service in services:
            model = service.get("model") or {}
            if model.get("repo"):
                found[service["name"]] = self.model(model["repo"], model.get("revision") or "main", model.get("link"))
            elif model.get("path"):
                found[service["name"]] = {"path": model["path"]}
            for more in (service.get("lock") or {}).get("models") or []:
                if more.get("repo") and more["repo"] != model.get("repo"):
                    found[f"{service['name']}/{more['repo']}"] = self.model(
                        more["repo"], more.get("revision") or "main", None
                    )
        return found

    def model(self, repo: str, revision: str, link: str | None) -> dict[str, Any]:
        """Return the commit that a revision is now."""
        commit = snapshots.commit_of(self.at(self.params["hf_home"]), repo, revision)
        entry: dict[str, Any] = {"repo": repo, "revision": revision, "commit": commit or revision}
        place = self.at(f"{self.params['hf_home']}/{link}") if link else None
        if place is not None and place.is_symlink():
            entry.update(link=f"{self.params['hf_home']}/{link}", leads=str(place.readlink()))
        return entry

    def model_folder(self, repo: str) -> Path:
        """Where a model lies in the cache of Hugging Face."""
        return self.at(f"{self.params['hf_home']}/hub/models--{repo.replace('/', '--')}")

    def services_of_receipts(self) -> list[dict[str, Any]]:
        """Return the services that have a receipt and settings, as far as a plan would say of them."""
        found = []
        for name in sorted(engine.service_names(self.state.files)):
            receipt = self.read_json(f"{engine.RECEIPTS}/{name}.json")
            settings = self.read_json(f"/etc/dgxspark/services/{name}.json")
            deployed = receipt.get("deployed") or {}
            found.append(
                {
                    "name": name,
                    "unit": f"spark-{name}.service",
                    "container": settings.get("container") or f"spark-{name}",
                    "url": settings.get("url"),
                    "served_model_name": settings.get("model"),
                    "settings": settings,
                    "start_timeout": settings.get("start_deadline_seconds") or 3000,
                    "model": deployed.get("model") or {},
                    "image": deployed.get("image") or {},
                    "state": "on_demand" if settings.get("on_demand") else "started",
                }
            )
        return found

    def read_json(self, path: str) -> dict[str, Any]:
        """Return a file of the host that holds an object, an empty one when it does not."""
        return state_file.read(self.at(path)) or {}

    def read_manifests(self) -> dict[int, engine.Generation]:
        """Return the generations that are kept, by number."""
        found = {}
        for path in sorted(self.folder.glob("[0-9]*.json")):
            try:
                manifest = engine.load(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                self.warn(f"{path} is no generation that can be read ({error}); it is left out")
                continue
            found[manifest.number] = manifest
        return found

    def read_current(self) -> engine.Current:
        """Return which generation the host is."""
        try:
            return engine.Current.read(
                parse_json((self.folder / "current.json").read_text(encoding="utf-8"), "current.json")
            )
        except (OSError, ValueError):
            return engine.Current(max(self.manifests, default=None))

    def now(self) -> engine.Generation | None:
        """Return the current generation."""
        return self.manifests.get(self.current.number or 0)

    def leave_out(self, paths: Collection[str], models: bool) -> None:
        """Forget what a look is not about: files, folders and units here and in the current generation.

        paths: files, units among them, and folders. models: whether the commits of models are left out, too.
        """
        folder, gone = f"{engine.SYSTEM}/", set(paths)
        units = {path[len(folder) :] for path in gone if path.startswith(folder)}

        def without(entries: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
            return {name: entry for name, entry in entries.items() if name not in names}

        def part(state: engine.State) -> engine.State:
            files, folders = without(state.files, gone), without(state.folders, gone)
            own = without(state.units, units), without(state.images, units)
            return engine.State(files, folders, *own, {} if models else state.models)

        self.state, self.secrets = part(self.state), without(self.secrets, gone)
        self.texts, self.began = without(self.texts, units), without(self.began, units)
        current = self.now()
        if current is not None:
            secrets = without(current.secrets, gone)
            self.manifests[current.number] = replace(current, state=part(current.state), secrets=secrets)

    def same(self) -> bool:
        """Whether the host is what its generation says."""
        current = self.now()
        if current is None:
            return False
        # The same services at the same place, which may have another commit by now.
        models = {
            name: self.model(entry["repo"], entry["revision"], None) if entry.get("repo") else entry
            for name, entry in current.state.models.items()
        }
        return replace(self.state, models=models).identity == current.state.identity

    def kept(self, entry: dict[str, Any]) -> bytes | None:
        """Return what was kept of a file, None when it is gone or damaged."""
        place = self.folder / "store" / entry["sha256"]
        content = place.read_bytes() if place.is_file() else b""
        return content if hashlib.sha256(content).hexdigest() == entry["sha256"] else None

    def tags(self) -> set[str]:
        """Return our own names of images."""
        rc, out, err = self.run(["docker", "image", "ls", "--format", "{{.Tag}}", engine.TAG])
        if rc not in (0, 127):
            raise Refused(f"Docker does not say which images are there: {err.strip() or f'exit code {rc}'}")
        return {f"{engine.TAG}:{tag}" for tag in out.split() if tag != "<none>"}

    def steps_to(self, manifest: engine.Generation) -> engine.Steps:
        """Return what brings the host to a generation."""
        then = manifest.state
        texts = {}
        for name in then.units:
            entry = then.files.get(f"{engine.SYSTEM}/{name}") or {}
            place = self.folder / "store" / str(entry.get("sha256"))
            texts[name] = place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""
        # A link has no date of its own that counts: what it leads to is another file of the host.
        known = (*self.state.files, *self.secrets)
        files = [path for path in known if self.at(path).is_file() and not self.at(path).is_symlink()]
        times = {path: file_times.written_at(self.at(path), *self.clocks) for path in files}
        outdated = [
            name
            for name, began in self.began.items()
            if began is not None
            and any(when > began and engine.concerns(name, texts.get(name, ""), path) for path, when in times.items())
        ]
        retagged = [
            name
            for name, entry in then.images.items()
            if (self.state.images.get(name) or {}).get("id") != entry.get("id")
        ]
        return engine.steps(self.state, then, texts, outdated, retagged)

    def answer(self, **more: Any) -> dict[str, Any]:
        """Return what every action says."""
        current = self.now()
        return {
            "current": engine.summary(current) if current else None,
            "same": self.same(),
            "generations": [engine.summary(self.manifests[number]) for number in sorted(self.manifests)],
            **more,
        }


def owner_name(uid: int) -> str:
    """Return the name of an account, its number without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return the name of a group, its number without one."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
