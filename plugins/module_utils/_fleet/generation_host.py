# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as generations see it: what is deployed on it, and which generations of it are kept. Reads, and changes nothing.

Rows of documents have the paths that they have on the disk. Other files of the host are below a root that is given.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._content import snapshots
from .._host import deployed, deployment, docker, staging, unit_steps
from .._host.host_state import Created, HostFile
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run
from .._vllm.image_names import names_of_image
from . import document_check
from . import generations as engine


class Refused(Exception):
    """What was asked for cannot be done; the text says why, and what to do."""


class Host:
    """The host that this runs on: what is deployed on it, and its generations.

    params: those of M(dgxspark.vllm.generation) or M(dgxspark.vllm.compare). run: runs an argv and gives (rc, stdout, stderr), as
    C(command.runner) makes it. check: whether nothing may be changed. warn: takes a warning for people. parts: the parts that are looked at,
    None for all.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        run: Run,
        check: bool,
        warn: Callable[[str], None],
        parts: Collection[str] | None = None,
    ) -> None:
        self.params, self.run, self.check, self.warn, self.parts = params, run, check, warn, parts
        self.look = remembering(run)
        self.root = Path(self.params["root"])
        self.folder = self.at(engine.FOLDER)
        self.manifests = self.read_manifests()
        self.current = self.read_current()
        self.record = self.read_record()
        self.state = self.record.state if parts is None else self.record.state.of_parts(parts)
        self.clocks = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
        self.silent = ""  # why Docker did not answer
        self.systemd_silent = ""  # why systemd did not answer
        self.seen = self.read_units()
        self.units = {name: {"enabled": unit.enabled, "active": unit.active} for name, unit in self.seen.items()}
        self._inspected: dict[str, dict[str, Any] | None] = {}
        self.image_ids = self.read_images()
        self.receipts = self.read_receipts()
        self.secrets = self.read_secrets()
        self._differences: document_check.Differences | None = None

    def at(self, path: str) -> Path:
        """Return where a path of the host is; one of a row is there already."""
        is_there = self.root == Path("/") or self.root in Path(path).parents
        return Path(path) if is_there else self.root / path.lstrip("/")

    def read_record(self) -> deployed.Deployed:
        """Return the record of what is deployed. Before the first one it is the current generation."""
        now = self.generation()
        if now is not None and not deployed.record_path().exists():
            return deployed.Deployed(now.state, now.checksums)
        record = deployed.load(warn=self.warn) or deployed.Deployed()
        # Unit files from before there was a record have no checksums.
        files = (
            replace(file, digest=deployment.digest_of(Path(file.path)))
            if file.digest is None and not (file.secret or file.generate)
            else file
            for file in record.state.files
        )
        return replace(record, state=replace(record.state, files=tuple(files)))

    @property
    def services(self) -> set[str]:
        """The names of the deployed services."""
        return engine.service_names(file.path for file in self.state.files)

    @property
    def differences(self) -> document_check.Differences:
        """How the host differs from what was deployed on it."""
        if self._differences is None:
            self._differences, _seen = document_check.check(self.state, self.record, self.look, self.parts)
        return self._differences

    def read_receipts(self) -> dict[str, dict[str, str]]:
        """Return checksum, owner and mode of each receipt."""
        folder = self.at(engine.RECEIPTS)
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return {
            f"{engine.RECEIPTS}/{path.name}": {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                **self.owner(path),
            }
            for path in paths
            if path.is_file() and not path.is_symlink() and not path.name.startswith((staging.PREFIX, "."))
        }

    def read_secrets(self) -> dict[str, dict[str, str]]:
        """Return what is known of each key file: nothing that the key could be had from."""
        paths = {file.path: Path(file.path) for file in self.state.files if file.secret}
        if self.parts is None:
            paths.update({str(path): path for path in files_below(self.at(engine.SECRETS)) if str(path) not in paths})
        return {name: self.secret(name, path) for name, path in sorted(paths.items()) if path.is_file()}

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
        """Return the mark, owner, group and mode of a key file."""
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        return {"mark": engine.secret_mark(where, content), **self.owner(path)}

    def added(self) -> list[str]:
        """Return the files below the folders of this collection that nothing has deployed."""
        rows: list[HostFile | Created] = [*self.record.state.files, *self.record.state.created]
        known = {str(self.at(row.path)) for row in rows}
        folders = [self.at(tree) for tree in engine.TREES]
        units = sorted(self.unit_folder().glob(engine.UNIT_PATTERN))
        found = [path for folder in folders for path in files_below(folder)]
        found += [path for unit in units for path in ([unit] if not unit.is_dir() else files_below(unit))]
        retired = {str(self.at(path)) for path in self.record.retired}
        created = [Path(row.path) for row in self.record.state.created]
        return sorted(
            str(path)
            for path in found
            if str(path) not in known | retired and not any(folder in path.parents for folder in created)
        )

    @staticmethod
    def unit_folder() -> Path:
        """Return the folder of the units that administrators write."""
        return deployment.SYSTEM / "system"

    def read_units(self) -> dict[str, unit_steps.Seen]:
        """Ask systemd for the deployed units; where it fails, C(systemd_silent) says why."""
        names = [unit.name for unit in self.state.units]
        if not names:
            return {}
        try:
            rc, out, err = self.look(unit_steps.show_command(names))
            why = (err or out).strip() if rc else ""
            if not rc:
                return unit_steps.read_units(names, out, *self.clocks)
        except NoAnswer as nothing:
            why = str(nothing)
        self.systemd_silent = f"systemd cannot be asked about {', '.join(names)}: {why}"
        return {}

    def unit_text(self, name: str) -> str:
        """Return the text of a unit file, empty without one."""
        try:
            return (self.unit_folder() / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def read_images(self) -> dict[str, Any]:
        """Return the image of each unit: its name in the unit, and the id that the name leads to now."""
        refs = {unit.name: engine.image_of(self.unit_text(unit.name)) for unit in self.state.units}
        for service in self.services:
            try:
                settings = self.read_json(f"/etc/dgxspark/services/{service}.json")
                ranks = engine.images_of_rank(settings)
            except (OSError, ValueError, AttributeError):
                continue
            # Ray and engine of a rank are containers of one image.
            unit = f"spark-{service}.service"
            refs[unit] = ranks[-1] if ranks else refs.get(unit)
        # Docker is asked once for all names of the task.
        others = [name for names in self.params.get("images") or [] for name in names]
        found = self.inspect(sorted({*others, *(ref for ref in refs.values() if ref)}))
        return {name: {"ref": ref, "id": found.get(ref)} for name, ref in sorted(refs.items()) if ref}

    def inspect(self, refs: Iterable[str]) -> dict[str, str]:
        """Return the ids of those images that exist; known answers are used again."""
        wanted = list(refs)
        unknown = [ref for ref in wanted if ref not in self._inspected]
        if unknown:
            answer = self.images(unknown)
            self._inspected.update({ref: answer.get(ref) for ref in unknown})
        found = {ref: self._inspected[ref] for ref in wanted}
        return {ref: image["Id"] for ref, image in found.items() if image}

    def images(self, refs: list[str]) -> dict[str, dict[str, Any]]:
        """Return what Docker says of those images that are there, by the name asked for.

        Where it fails, C(silent) says why: what is not returned then may be there all the same.
        """
        try:
            listed = docker.inspect(self.run, "image", refs)
        except NoAnswer as nothing:
            self.silent = str(nothing)
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
        for name in sorted(self.services):
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
                manifest = engine.load(path.read_text(encoding="utf-8"), self.stored_text)
            except (OSError, ValueError, TypeError, AttributeError) as error:
                self.warn(f"{path} is no generation that can be read ({error}); it is left out")
                continue
            found[manifest.number] = manifest
        return found

    def stored_text(self, digest: str) -> str:
        """Return the text of a file in the store, empty without one."""
        return (self.kept(digest) or b"").decode(errors="replace")

    def read_current(self) -> engine.Current:
        """Return which generation the host is."""
        try:
            return engine.Current.read(
                parse_json((self.folder / "current.json").read_text(encoding="utf-8"), "current.json")
            )
        except (OSError, ValueError):
            return engine.Current(max(self.manifests, default=None))

    def generation(self) -> engine.Generation | None:
        """Return the current generation."""
        return self.manifests.get(self.current.number or 0)

    def same(self) -> bool:
        """Tell whether the host is what its generation says."""
        current = self.generation()
        if current is None or self.differences.has_content():
            return False
        # The same services at the same place, which may have another commit by now.
        models = {
            name: self.model(entry["repo"], entry["revision"], None) if entry.get("repo") else entry
            for name, entry in current.models.items()
        }
        now = replace(current, state=self.record.state, units=self.units, images=self.image_ids, models=models)
        return now.identity == current.identity

    def kept(self, digest: str) -> bytes | None:
        """Return the content of a file in the store, None when it is gone or damaged."""
        place = self.folder / "store" / digest
        content = place.read_bytes() if place.is_file() else b""
        return content if hashlib.sha256(content).hexdigest() == digest else None

    def tags(self) -> set[str]:
        """Return our own names of images."""
        rc, out, err = self.run(["docker", "image", "ls", "--format", "{{.Tag}}", engine.TAG])
        if rc not in (0, 127):
            raise Refused(f"Docker does not say which images are there: {err.strip() or f'exit code {rc}'}")
        return {f"{engine.TAG}:{tag}" for tag in out.split() if tag != "<none>"}

    def answer(self, **more: Any) -> dict[str, Any]:
        """Return what every action says."""
        current = self.generation()
        return {
            "current": engine.summary(current) if current else None,
            "same": self.same(),
            "generations": [engine.summary(self.manifests[number]) for number in sorted(self.manifests)],
            **more,
        }


def remembering(run: Run) -> Run:
    """Return a runner that asks systemd for the state of the same units only once. run: runs a program."""
    answers: dict[tuple[str, ...], tuple[int, str, str]] = {}

    def ask(argv: list[str], *options: Any) -> tuple[int, str, str]:
        if argv[:2] != ["systemctl", "show"]:
            return run(argv, *options)
        key = tuple(argv)
        if key not in answers:
            answers[key] = run(argv, *options)
        return answers[key]

    return ask


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, without drafts of runs that were cut off and without caches of Python."""
    found = []
    for base, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "__pycache__")
        links = [name for name in names if Path(base, name).is_symlink()]
        found += [Path(base, name) for name in sorted([*files, *links]) if not name.startswith(staging.PREFIX)]
    return found


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
