# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host for generations: its deployed files, units and images, and its recorded generations. Changes nothing.

Rows of documents have paths as on the disk. Other files are below a given root.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._common.foreign_text import parse_json
from .._content import snapshots
from .._host import deployed, deployment, docker, staging, unit_steps, units
from .._host.host_state import Created, HostFile
from .._runtime import state_file
from .._runtime.command import NoAnswer, Run
from .._vllm.image_names import names_of_image
from . import document_check, generations
from .generations import Current, Generation


class Refused(Exception):
    """The request cannot be carried out; the text names the reason and the fix."""


class Host:
    """The host that this runs on.

    params: of M(dgxspark.vllm.generation) or M(dgxspark.vllm.compare). run: runs a program, as C(command.runner) does. check: check mode. warn:
    takes a warning for people. parts: the parts to read, None for all. silent, systemd_silent: why Docker and systemd did not answer, else empty.
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
        self.look = unit_steps.remembering(run)
        self.root = Path(self.params["root"])
        self.folder = self.at(generations.FOLDER)
        self.generations = self._read_generations()
        self.current = self._read_current()
        current = self.generation()
        if current is not None and not deployed.record_path().exists():
            self.record = deployed.Deployed(current.state, current.checksums)
        else:
            self.record = deployed.load(warn=self.warn) or deployed.Deployed()
        self.state = self.record.state if parts is None else self.record.state.of_parts(parts)
        self.clocks = time.clock_gettime(time.CLOCK_MONOTONIC), time.time()
        self.silent = self.systemd_silent = ""
        self.seen = self._read_units()
        self.units = {name: {"enabled": unit.enabled, "active": unit.active} for name, unit in self.seen.items()}
        self._inspected: dict[str, dict[str, Any] | None] = {}
        self.image_ids = self._read_images()
        self.receipts = self._read_receipts()
        self.secrets = self._read_secrets()
        self._differences: document_check.Differences | None = None

    def at(self, path: str) -> Path:
        """Return the place of a path below the root; paths of rows are below it already."""
        is_below = self.root == Path("/") or self.root in Path(path).parents
        return Path(path) if is_below else self.root / path.lstrip("/")

    def read_json(self, path: str) -> dict[str, Any]:
        """Return the object in a file of the host, empty for a missing or malformed file."""
        return state_file.read(self.at(path)) or {}

    # --- generations

    def _read_generations(self) -> dict[int, Generation]:
        by_number = {}
        for path in sorted(self.folder.glob("[0-9]*.json")):
            try:
                generation = generations.load(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, TypeError, AttributeError) as error:
                self.warn(f"{path} is no generation that can be read ({error}); it is left out")
                continue
            by_number[generation.number] = generation
        return by_number

    def stored(self, digest: str) -> bytes | None:
        """Return a file of the store, None for a missing or damaged one."""
        path = self.folder / "store" / digest
        content = path.read_bytes() if path.is_file() else b""
        return content if generations.sha256_of(content) == digest else None

    def _read_current(self) -> Current:
        try:
            text = (self.folder / "current.json").read_text(encoding="utf-8")
            return Current.from_dict(parse_json(text, "current.json"))
        except (OSError, ValueError):
            return Current(max(self.generations, default=None))

    def generation(self) -> Generation | None:
        """Return the current generation."""
        return self.generations.get(self.current.number or 0)

    @property
    def differences(self) -> document_check.Differences:
        """The differences between the host and its deployed document."""
        if self._differences is None:
            self._differences, _units = document_check.check(self.state, self.record, self.look, self.parts)
        return self._differences

    def is_unchanged(self) -> bool:
        """Tell whether the host equals its current generation."""
        current = self.generation()
        if current is None or self.differences.has_content():
            return False
        # A revision may stand for another commit by now.
        models = {
            name: self.model(model["repo"], model["revision"]) if model.get("repo") else model
            for name, model in current.models.items()
        }
        now = replace(current, state=self.record.state, units=self.units, images=self.image_ids, models=models)
        return now.identity == current.identity

    # --- files

    @property
    def services(self) -> set[str]:
        """The names of the deployed services."""
        return generations.service_names(file.path for file in self.state.files)

    def _read_receipts(self) -> dict[str, dict[str, str]]:
        folder = self.at(generations.RECEIPTS)
        receipts = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_file() and not path.is_symlink() and not path.name.startswith((staging.PREFIX, ".")):
                checksum = generations.sha256_of(path.read_bytes())
                receipts[f"{generations.RECEIPTS}/{path.name}"] = {"sha256": checksum, **self.owner(path)}
        return receipts

    def _read_secrets(self) -> dict[str, dict[str, str]]:
        """Return mark, owner, group and mode of each key file. No key can be derived from them."""
        paths = {file.path: Path(file.path) for file in self.state.files if file.secret}
        if self.parts is None:
            for path in files_below(self.at(generations.SECRETS)):
                paths.setdefault(str(path), path)
        secrets = {}
        for name, path in sorted(paths.items()):
            if path.is_file():
                content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
                secrets[name] = {"mark": generations.secret_mark(name, content), **self.owner(path)}
        return secrets

    @staticmethod
    def owner(path: Path) -> dict[str, str]:
        """Return owner, group and mode."""
        status = path.lstat()
        return {
            "owner": _account_name(pwd.getpwuid, status.st_uid),
            "group": _account_name(grp.getgrgid, status.st_gid),
            "mode": f"{status.st_mode & 0o7777:04o}",
        }

    def added(self) -> list[str]:
        """Return the files in folders of the collection that nothing has deployed."""
        state = self.record.state
        rows: list[HostFile | Created] = [*state.files, *state.created]
        deployed_paths = {str(self.at(row.path)) for row in rows} | {str(self.at(path)) for path in self.record.retired}
        paths = [path for tree in generations.TREES for path in files_below(self.at(tree))]
        for unit in sorted(self.unit_folder().glob(generations.UNIT_PATTERN)):
            paths += files_below(unit) if unit.is_dir() else [unit]
        created = {Path(row.path) for row in state.created}
        new = [path for path in paths if str(path) not in deployed_paths and created.isdisjoint(path.parents)]
        return sorted(map(str, new))

    # --- units and images

    @staticmethod
    def unit_folder() -> Path:
        """Return the folder of the units that administrators write."""
        return deployment.SYSTEM / "system"

    def _read_units(self) -> dict[str, unit_steps.Seen]:
        names = [unit.name for unit in self.state.units]
        if not names:
            return {}
        try:
            rc, out, err = self.look(units.show_command(names, unit_steps.PROPERTIES))
            if not rc:
                return unit_steps.read_units(names, out, *self.clocks)
            why = (err or out).strip()
        except NoAnswer as silence:
            why = str(silence)
        self.systemd_silent = f"systemd cannot be asked about {', '.join(names)}: {why}"
        return {}

    def _read_images(self) -> dict[str, Any]:
        """Return the image of each unit: its name in the unit, and the id of that name now."""
        names: dict[str, str | None] = {}
        for row in self.state.units:
            with contextlib.suppress(OSError):
                text = (self.unit_folder() / row.name).read_text(encoding="utf-8", errors="replace")
                names[row.name] = generations.image_of(text)
        for service in self.services:
            try:
                of_rank = generations.images_of_rank(self.read_json(f"/etc/dgxspark/services/{service}.json"))
            except (OSError, ValueError, AttributeError):
                continue
            # Ray and engine of a rank are containers of one image.
            unit = f"spark-{service}.service"
            names[unit] = of_rank[-1] if of_rank else names.get(unit)
        # One call to Docker for all names of the task.
        requested = [name for alternatives in self.params.get("images") or [] for name in alternatives]
        ids = self.inspect(sorted({*requested, *(name for name in names.values() if name)}))
        return {unit: {"ref": name, "id": ids.get(name)} for unit, name in sorted(names.items()) if name}

    def inspect(self, references: Iterable[str]) -> dict[str, str]:
        """Return the ids of the existing images by reference; each is asked for once."""
        names = list(references)
        unknown = [name for name in names if name not in self._inspected]
        if unknown:
            images = self.images(unknown)
            self._inspected.update({name: images.get(name) for name in unknown})
        answers = {name: self._inspected[name] for name in names}
        return {name: image["Id"] for name, image in answers.items() if image}

    def images(self, references: list[str]) -> dict[str, dict[str, Any]]:
        """Return C(docker image inspect) of the existing images, by reference; none if Docker fails, see C(silent)."""
        try:
            listed = docker.inspect(self.run, "image", references)
        except NoAnswer as silence:
            self.silent = str(silence)
            return {}
        images = {}
        for image in listed:
            names = names_of_image(image)
            for reference in references:
                if reference in names or names & names_of_image({"RepoTags": [reference]}):
                    images[reference] = image
        return images

    def tags(self) -> set[str]:
        """Return the names that the collection gave to images of generations. Raises Refused if Docker fails."""
        names, why = docker.tags(self.run, generations.TAG)
        if why:
            raise Refused(f"Docker does not say which images are there: {why}")
        return names

    # --- models

    def model(self, repo: str, revision: str, link: str | None = None) -> dict[str, Any]:
        """Return the present commit of a revision, and the target of its link."""
        commit = snapshots.commit_of(self.at(self.params["hf_home"]), repo, revision)
        model: dict[str, Any] = {"repo": repo, "revision": revision, "commit": commit or revision}
        path = f"{self.params['hf_home']}/{link}"
        if link and self.at(path).is_symlink():
            model.update(link=path, leads=str(self.at(path).readlink()))
        return model

    def model_folder(self, repo: str) -> Path:
        """Return the folder of a model in the cache of Hugging Face."""
        return self.at(f"{self.params['hf_home']}/hub/models--{repo.replace('/', '--')}")


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, without drafts of interrupted runs and without caches of Python."""
    paths = []
    for base, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "__pycache__")
        links = [name for name in names if Path(base, name).is_symlink()]
        paths += [Path(base, name) for name in sorted([*files, *links]) if not name.startswith(staging.PREFIX)]
    return paths


def _account_name(find: Callable[[int], Any], number: int) -> str:
    """Return the name of an account or a group, its number without one."""
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)
