# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and folders of the controller in an inventory: their paths, and the check that Ansible does not read them as inventory.

C(~) is expanded. A relative path is relative to the inventory folder of its host (C(inventory_dir)), or, for files of the whole fleet such
as the lock file, to the inventory folder of the first Spark. Ansible reads every file in a folder that is an inventory source as a list of
hosts, except hidden ones, some extensions, C(group_vars) and C(host_vars).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ansible import constants
from ansible.inventory.manager import IGNORED

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import MODEL_FOLDER

KEYS = ".secrets"
"""Below the inventory folder: keys, tokens and passwords."""
STATE = ".spark"
"""Below the inventory folder: the lock file, reports and kept files."""

_SERVICE = ("api_key_file", "secrets.*", "files.*.source", "image.files.*.source")
_NOTIFIER = ("token_file", "url_file", "headers_file", "password_file")
_WRITTEN = (
    "spark_bench_dest",
    "spark_doctor_file",
    "spark_drift_file",
    "spark_events",
    "spark_lock_file",
    "spark_measurements_file",
    "spark_plan_file",
    "spark_result",
    "spark_status_file",
    "spark_status_page",
    "spark_status_timeline",
    "spark_support_dir",
    "spark_timeline",
    "spark_wishes_file",
)
PLACES: tuple[str, ...] = (
    *_WRITTEN,
    "spark_bundle_dir",
    "spark_hf_token_file",
    "spark_model_dir",
    "spark_recipe_dirs.*",
    "spark_registries.*.password_file",
    "spark_recipe_sources.*.path",
    *(f"spark_defaults.{key}" for key in _SERVICE),
    *(f"spark_services.*.{key}" for key in _SERVICE),
    *(f"spark_cluster.services.*.{key}" for key in _SERVICE),
    "spark_speech.*.api_key_file",
    "spark_gateway.master_key_file",
    "spark_gateway.metrics_key_file",
    "spark_gateway.clients.*.key_file",
    # The backends of a name are one, a list, or below backends.
    "spark_gateway.aliases.*.api_key_file",
    "spark_gateway.aliases.*.*.api_key_file",
    "spark_gateway.aliases.*.backends.*.api_key_file",
    "spark_clients.open_webui.key_file",
    "spark_clients.open_webui.secret_key_file",
    "spark_clients.open_webui.admin.password_file",
    "spark_clients.hermes.key_file",
    "spark_clients.hermes.api_key_file",
    "spark_clients.hermes.requirements_file",
    "spark_exporters.gpu_archive",
    "spark_live.api_key_file",
    "spark_monitoring.grafana_password_file",
    *(f"spark_monitoring.receivers.*.{key}" for key in ("url_file", "token_file", "password_file")),
    # One notifier, or a list.
    *(f"spark_fleet_monitor.notify.{depth}{key}" for depth in ("*.", "*.*.") for key in _NOTIFIER),
    "spark_fleet_monitor.extra.*.api_key_file",
    "spark_fleet_monitor.page_key_file",
)
"""Every place of a path of the controller in variables; C(*) stands for each entry of a list or mapping."""

_MODELS = ("spark_services.*.model.path", "spark_cluster.services.*.model.path")
"""Folders that are relative to C(spark_model_dir), or without it to the inventory folder."""
_OF_FLEET = {*_WRITTEN, "spark_bundle_dir"}
_FOLDERS = frozenset(("spark_bundle_dir", "spark_model_dir", "spark_recipe_dirs", "spark_recipe_sources"))


def resolve(path: str, folder: str | None) -> str:
    """Return the absolute form of a path. folder: of the inventory; without one a relative path stays unchanged."""
    path = posixpath.expanduser(path)
    return absolute(f"{folder}/{path}") if path and folder and not path.startswith("/") else path


def absolute(path: str) -> str:
    """Return a path from the root, without C(.) and C(..), and without following links."""
    return posixpath.normpath(f"/{Path.cwd().joinpath(path)}").replace("//", "/")


def of_host(path: str, hostvars: Mapping[str, Any]) -> str:
    """Return the absolute form of a path in a variable or task of a host."""
    return resolve(path, str(hostvars.get("inventory_dir") or ""))


def fleet_folders(task_vars: Mapping[str, Any], group: str = "sparks") -> list[str]:
    """Return the inventory folders of the Sparks, each once. task_vars: of an action."""
    return list(dict.fromkeys(_folders(task_vars, group)))


def fleet_folder(task_vars: Mapping[str, Any], group: str = "sparks") -> str:
    """Return the first inventory folder of the Sparks, or an empty text; it does not read the variables of all hosts."""
    return next(_folders(task_vars, group), "")


def state_folder(task_vars: Mapping[str, Any], name: str) -> Path | None:
    """Return a folder of C(.spark) in the inventory folder, None without an inventory folder."""
    folder = fleet_folder(task_vars)
    return Path(folder, STATE, name) if folder else None


def host_file(folder: Path | None, host: str) -> Path | None:
    """Return the file of a host in a folder of C(.spark); the name of a host may hold any characters."""
    return folder / f"{quote(host, safe='')}.json" if folder is not None else None


def _folders(task_vars: Mapping[str, Any], group: str) -> Iterator[str]:
    hostvars = task_vars.get("hostvars") or {}
    names = (task_vars.get("groups") or {}).get(group) or []
    folders = (hostvars[name].get("inventory_dir") for name in names if name in hostvars)
    return (str(folder) for folder in folders if folder)


def of_fleet(path: str, task_vars: Mapping[str, Any]) -> str:
    """Return the absolute form of a path that is the same for all hosts. task_vars: of an action."""
    path = resolve(path, None)
    if not path or path.startswith("/"):
        return path
    return resolve(path, fleet_folder(task_vars) or str(task_vars.get("inventory_dir") or ""))


Change = Callable[[str, str], str]
"""Returns a new path for a place and its path."""


def _map(value: Any, keys: Sequence[str], change: Change, where: str) -> Any:
    """Return a value with changed paths at one place; a value of another shape stays unchanged, its reader reports it."""
    if not keys:
        # C(-) is the screen, and C({model}/NAME) a file of the checkpoint.
        is_path = isinstance(value, str) and value not in ("", "-") and not value.startswith(MODEL_FOLDER)
        return change(where, value) if is_path else value
    first, below = keys[0], keys[1:]
    if isinstance(value, Mapping):
        return {
            key: _map(item, below, change, f"{where}.{key}") if first in ("*", key) else item
            for key, item in value.items()
        }
    if isinstance(value, list) and first == "*":
        return [_map(item, below, change, f"{where}[{number}]") for number, item in enumerate(value)]
    return value


def _map_places(variables: Mapping[str, Any], places: Sequence[str], change: Change) -> dict[str, Any]:
    """Return variables with changed paths at some places."""
    mapped = dict(variables)
    for place in places:
        name, *keys = place.split(".")
        if name in mapped:
            mapped[name] = _map(mapped[name], keys, change, name)
    return mapped


def resolve_variables(
    variables: Mapping[str, Any], folder: str | None, fleet: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the variables of a host with absolute paths of the controller, and the places that stay relative.

    fleet: the inventory folder of the first Spark, if any.
    """
    relative: list[str] = []

    def change(where: str, path: str) -> str:
        full = resolve(path, fleet if where in _OF_FLEET else folder)
        if not full.startswith("/"):
            relative.append(f"{where} names '{path}'")
        return full

    resolved = _map_places(variables, PLACES, change)
    below_models = (lambda _where, path: resolve(path, None)) if resolved.get("spark_model_dir") else change
    return _map_places(resolved, _MODELS, below_models), relative


def relative_variables(variables: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return resolved variables with paths relative to the inventory folder, if they are below it."""

    def change(_where: str, path: str) -> str:
        return path[len(folder) + 1 :] if folder and path.startswith(f"{folder}/") else path

    return _map_places(variables, (*PLACES, *_MODELS), change)


def named_paths(variables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the place and the path of each absolute path of the controller in the resolved variables of a host."""
    paths: list[tuple[str, str]] = []

    def note(where: str, path: str) -> str:
        paths.append((where, path))
        return path

    _map_places(variables, (*PLACES, *_MODELS), note)
    yield from ((where, path) for where, path in paths if path.startswith("/"))


class Sources:
    """The inventory sources of a run, and the files that Ansible reads in them.

    sources: paths as Ansible was given them. ignored: whether Ansible skips a file or folder of this name in a source that is a folder;
    extensions: of files with variables.
    """

    def __init__(self, sources: Sequence[str], ignored: Callable[[str], bool], extensions: Sequence[str]) -> None:
        paths = [source for source in sources if "," not in source]
        self.given = list(sources)
        self.missing = [absolute(path) for path in paths if not Path(path).exists()]
        self.folders = [absolute(path) for path in paths if Path(path).is_dir()]
        self._files = [absolute(path) for path in paths if Path(path).is_file()]
        self._variable_folders = list(dict.fromkeys([*self.folders, *(str(Path(file).parent) for file in self._files)]))
        self._ignored = ignored
        self._extensions = ("", *extensions)

    def reads(self, path: str) -> str | None:
        """Return the source that makes Ansible read this path, also of a future file; None if it does not."""
        # By names, and by the targets of links: Ansible may reach it both ways.
        for way in (absolute, lambda name: str(Path(name).resolve())):
            full = way(path)
            for source in self.folders:
                parts = _below(full, way(source))
                if parts is not None and not any(self._ignored(part) for part in parts):
                    return source
            for source in self._variable_folders:
                if self._holds_variables(_below(full, way(source))):
                    return source
        return None

    def _holds_variables(self, parts: list[str] | None) -> bool:
        """Tell whether Ansible reads variables from a file. parts: of its path below a source."""
        return (
            bool(parts)
            and parts is not None
            and parts[0] in ("group_vars", "host_vars")
            and not any(part.startswith(".") or part.endswith("~") for part in parts)
            and Path(parts[-1]).suffix in self._extensions
        )

    def inventory_files(self) -> Iterator[str]:
        """Yield each file with hosts: sources that are files, and files in folders."""
        yield from self._files
        yield from self.files()

    def variable_files(self) -> Iterator[str]:
        """Yield each file with variables of groups and hosts next to or below a source."""
        for source in self._variable_folders:
            for kind in ("group_vars", "host_vars"):
                for path in _walk(f"{source}/{kind}", lambda _name: False):
                    if self._holds_variables(_below(path, source)):
                        yield path

    def files(self) -> Iterator[str]:
        """Yield each file that Ansible reads as an inventory in a source that is a folder."""
        for source in self.folders:
            for path in _walk(source, self._ignored):
                if not self._ignored(Path(path).name):
                    yield path


def inventory_sources(sources: Sequence[str] | None) -> Sources:
    """Return the sources of a run, without the files that Ansible's configuration ignores. sources: C(ansible_inventory_sources)."""

    def ignored(name: str) -> bool:
        return bool(IGNORED.search(name.encode(errors="surrogateescape")))

    return Sources([str(source) for source in sources or ()], ignored, constants.YAML_FILENAME_EXTENSIONS)


def inventory_names(variables: Mapping[str, Any]) -> str:
    """Return the names of the inventory folders of a run, without the paths that lead there. variables: of a task."""
    paths = [Path(str(source)) for source in variables.get("ansible_inventory_sources") or () if "," not in str(source)]
    return ", ".join(dict.fromkeys((path.parent if path.is_file() else path).name for path in paths))


def _walk(folder: str, ignored: Callable[[str], bool]) -> Iterator[str]:
    """Yield the files below a folder in order. ignored: whether to skip a folder of this name."""
    for path, names, files in os.walk(folder, followlinks=True):
        names[:] = sorted(name for name in names if not ignored(name))
        yield from (f"{path}/{name}" for name in sorted(files))


def _below(path: str, folder: str) -> list[str] | None:
    """Return the names on the way from a folder to a path, None if the path is not below the folder."""
    if path == folder:
        return []
    return path[len(folder) :].strip("/").split("/") if path.startswith(f"{folder.rstrip('/')}/") else None


def better_place(where: str, path: str, source: str) -> str:
    """Return a place that Ansible does not read: hidden in the source, or in its folder."""
    folder = source if Path(source).is_dir() else str(Path(source).parent)
    parts = _below(absolute(path), folder) or [Path(path).name]
    name = where.partition(".")[0].partition("[")[0]
    if name in _WRITTEN:
        return str(Path(folder, STATE, parts[-1]))
    if parts[0] in ("group_vars", "host_vars"):
        parts = parts[-1:]
    if len(parts) > 1 or name in _FOLDERS:
        return str(Path(folder, f".{parts[0]}", *parts[1:]))
    return str(Path(folder, KEYS, parts[0]))


def misplaced(hosts: Mapping[str, Mapping[str, Any]], sources: Sources) -> list[str]:
    """Return a message for each path that Ansible reads as inventory. hosts: by name, their resolved variables."""
    hosts_by_path: dict[str, tuple[str, list[str]]] = {}
    for host, variables in hosts.items():
        for where, path in named_paths(variables):
            names = hosts_by_path.setdefault(path, (where, []))[1]
            if host not in names:
                names.append(host)
    messages = []
    for path, (where, names) in hosts_by_path.items():
        source = sources.reads(path)
        if source:
            messages.append(refuse(where, path, source, names))
    return messages


def refuse(where: str, path: str, source: str, hosts: Sequence[str] = ()) -> str:
    """Return the message about a misplaced file, with a better place."""
    more = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
    prefix = f"host {hosts[0]}{more}: " if hosts else ""
    return (
        f"{prefix}{where} names '{path}', which lies where Ansible reads inventory and variables: each line of it may become a host, "
        f"and be printed. Move it to '{better_place(where, path, source)}', which Ansible does not read, and name it so."
    )
