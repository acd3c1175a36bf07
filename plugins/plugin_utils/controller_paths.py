# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and folders of the controller that an inventory names: where they are, and that Ansible does not read them as inventory.

One rule for every path: C(~) is expanded, and a relative one is relative to the inventory folder, the folder of the inventory file
that names the host (C(inventory_dir)); where an inventory has several, what there is once for all hosts, such as the lock file, is
relative to that of the first Spark. Given a folder as its source, Ansible reads each file below it as an inventory, except hidden
ones, some extensions, C(group_vars) and C(host_vars): a line of any other file there is the name of a host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import MODEL_FOLDER

KEYS = ".secrets"
"""Below the inventory folder: keys, tokens and passwords."""
STATE = ".spark"
"""Below the inventory folder: the lock file, and what is written for people and tools."""

_SERVICE = ("api_key_file", "secrets.*", "files.*.source", "image.files.*.source")
_NOTIFIER = ("token_file", "url_file", "headers_file", "password_file")
PLACES: tuple[str, ...] = (
    "spark_bench_dest",
    "spark_bundle_dir",
    "spark_doctor_file",
    "spark_drift_file",
    "spark_hf_token_file",
    "spark_lock_file",
    "spark_measurements_file",
    "spark_model_dir",
    "spark_plan_file",
    "spark_status_file",
    "spark_status_page",
    "spark_support_dir",
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
    # A name's backend is one, a list of them, or below backends.
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
    "spark_monitoring.grafana_password_file",
    *(f"spark_monitoring.receivers.*.{key}" for key in ("url_file", "token_file", "password_file")),
    # A notifier, or a list of them.
    *(f"spark_fleet_monitor.notify.{depth}{key}" for depth in ("*.", "*.*.") for key in _NOTIFIER),
    "spark_fleet_monitor.extra.*.api_key_file",
)
"""Every place of a variable that holds a path of the controller; C(*) stands for each entry of a list or mapping."""

_MODELS = ("spark_services.*.model.path", "spark_cluster.services.*.model.path")
"""Folders that are relative to C(spark_model_dir), and to the inventory folder where that is left out."""
_WRITTEN = frozenset(
    (
        "spark_bench_dest",
        "spark_doctor_file",
        "spark_drift_file",
        "spark_lock_file",
        "spark_measurements_file",
        "spark_plan_file",
        "spark_status_file",
        "spark_status_page",
        "spark_support_dir",
    )
)
_OF_FLEET = _WRITTEN | {"spark_bundle_dir"}
_FOLDERS = frozenset(("spark_bundle_dir", "spark_model_dir", "spark_recipe_dirs", "spark_recipe_sources"))


def resolve(path: str, folder: str | None) -> str:
    """Return where a path leads on the controller.

    path: as a person wrote it. folder: of the inventory; without one a relative path comes back as it is.
    """
    path = expanded(path)
    if not path or not folder or is_whole(path):
        return path
    return whole(f"{folder}/{path}")


def expanded(path: str) -> str:
    """Return a path with the home of whoever runs Ansible for C(~); one of nobody's home comes back as it is."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


def is_whole(path: str) -> bool:
    """Whether a path begins at the root."""
    return path.startswith("/")


def whole(path: str) -> str:
    """Return a path from the root, without C(.) and C(..), by its names alone: links are not followed."""
    parts: list[str] = []
    for part in Path.cwd().joinpath(path).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/" + "/".join(parts)


def real(path: str) -> str:
    """Return where a path leads when links are followed."""
    return str(Path(path).resolve())


def of_host(path: str, hostvars: Mapping[str, Any]) -> str:
    """Return where a path leads that a host's variable names, or a task of the host; hostvars: what Ansible knows of the host."""
    return resolve(path, str(hostvars.get("inventory_dir") or ""))


def fleet_folders(task_vars: Mapping[str, Any], group: str = "sparks") -> list[str]:
    """Return the inventory folders that the Sparks come from, each once; task_vars: as an action has them."""
    return list(dict.fromkeys(_folders(task_vars, group)))


def fleet_folder(task_vars: Mapping[str, Any], group: str = "sparks") -> str:
    """Return the first of them, an empty one without any; does not read the variables of all hosts, as every host of a run asks for it."""
    return next(_folders(task_vars, group), "")


def _folders(task_vars: Mapping[str, Any], group: str) -> Iterator[str]:
    hostvars = task_vars.get("hostvars") or {}
    names = (task_vars.get("groups") or {}).get(group) or []
    found = (hostvars[name].get("inventory_dir") for name in names if name in hostvars)
    return (str(folder) for folder in found if folder)


def of_fleet(path: str, task_vars: Mapping[str, Any]) -> str:
    """Return where a path leads that is the same for all hosts; task_vars: as an action has them."""
    if not path or is_whole(expanded(path)):
        return resolve(path, None)
    return resolve(path, fleet_folder(task_vars) or str(task_vars.get("inventory_dir") or ""))


def _is_path(value: Any) -> bool:
    """Whether a value is a path of the controller; C(-) is the screen, and C({model}/NAME) a file of the checkpoint."""
    return isinstance(value, str) and value not in ("", "-") and not value.startswith(MODEL_FOLDER)


def _split(places: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """Return the places of each variable."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for place in places:
        name, *keys = place.split(".")
        found.setdefault(name, []).append(tuple(keys))
    return found


_OF_VARIABLE = _split(PLACES)
_OF_MODELS = _split(_MODELS)


def _map(value: Any, keys: Sequence[str], change: Callable[[str, str], str], where: str) -> Any:
    """Return a value with the paths at one place changed; what has another shape is left alone, its reader says so."""
    if not keys:
        return change(where, value) if _is_path(value) else value
    first, rest = keys[0], keys[1:]
    if isinstance(value, Mapping):
        wanted = value if first == "*" else [first] if first in value else []
        return {
            key: _map(item, rest, change, f"{where}.{key}") if key in wanted else item for key, item in value.items()
        }
    if isinstance(value, list) and first == "*":
        return [_map(item, rest, change, f"{where}[{number}]") for number, item in enumerate(value)]
    return value


def resolve_variables(
    variables: Mapping[str, Any], folder: str | None, fleet: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Return a host's variables with every path of the controller resolved, and the places of those that cannot be.

    variables: by name, templated. folder: the inventory folder of the host, if it has one. fleet: that of the first Spark.
    """
    lost: list[str] = []

    def change(where: str, path: str) -> str:
        full = resolve(path, fleet if where in _OF_FLEET else folder)
        if not is_whole(full):
            lost.append(f"{where} names '{path}'")
        return full

    def below_models(where: str, path: str) -> str:
        return expanded(path) if found.get("spark_model_dir") else change(where, path)

    found = dict(variables)
    for table, apply in ((_OF_VARIABLE, change), (_OF_MODELS, below_models)):
        for name, places in table.items():
            for keys in places:
                if name in found:
                    found[name] = _map(found[name], keys, apply, name)
    return found, lost


def named_paths(variables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each path of the controller that a host's variables name, with where it stands; they are resolved already."""
    found: list[tuple[str, str]] = []

    def note(where: str, path: str) -> str:
        found.append((where, path))
        return path

    for table in (_OF_VARIABLE, _OF_MODELS):
        for name, places in table.items():
            for keys in places:
                if name in variables:
                    _map(variables[name], keys, note, name)
    yield from ((where, path) for where, path in found if is_whole(path))


class Sources:
    """The inventory sources of a run, and what Ansible reads below them.

    sources: paths as they were given to Ansible. ignored: whether it leaves out a file or folder of this name in a folder that is a
    source; extensions: of files with variables.
    """

    def __init__(self, sources: Sequence[str], ignored: Callable[[str], bool], extensions: Sequence[str]) -> None:
        self.given = list(sources)
        self.missing = [whole(source) for source in sources if "," not in source and not Path(source).exists()]
        self.folders = [whole(source) for source in sources if "," not in source and Path(source).is_dir()]
        self._files = [whole(source) for source in sources if "," not in source and Path(source).is_file()]
        self._ignored = ignored
        self._extensions = ("", *extensions)

    def reads(self, path: str) -> str | None:
        """Return the source by which Ansible reads a file of this path, or would if it were there; None where it does not."""
        # By the names on the way, and by where links lead: both ways may reach it.
        for way in (whole, real):
            full = way(path)
            for source in self.folders:
                parts = _below(full, way(source))
                if parts is not None and not any(self._ignored(part) for part in parts):
                    return source
            for source in [*self.folders, *(str(Path(file).parent) for file in self._files)]:
                if self._holds_variables(_below(full, way(source))):
                    return source
        return None

    def _holds_variables(self, parts: list[str] | None) -> bool:
        """Whether Ansible takes a file for one with variables."""
        return (
            bool(parts)
            and parts is not None
            and parts[0] in ("group_vars", "host_vars")
            and not any(part.startswith(".") or part.endswith("~") for part in parts)
            and Path(parts[-1]).suffix in self._extensions
        )

    def inventory_files(self) -> Iterator[str]:
        """Yield each file of hosts: sources that are files, and those below folders."""
        yield from self._files
        yield from self.files()

    def variable_files(self) -> Iterator[str]:
        """Yield each file with variables of groups and hosts that lies beside or below a source."""
        for source in dict.fromkeys([*self.folders, *(str(Path(file).parent) for file in self._files)]):
            for kind in ("group_vars", "host_vars"):
                for folder, names, files in os.walk(f"{source}/{kind}", followlinks=True):
                    names.sort()
                    paths = [f"{folder}/{name}" for name in sorted(files)]
                    yield from (path for path in paths if self._holds_variables(_below(path, source)))

    def files(self) -> Iterator[str]:
        """Yield each file that Ansible has read as an inventory because it lies below a source that is a folder."""
        for source in self.folders:
            for folder, names, files in os.walk(source, followlinks=True):
                names[:] = sorted(name for name in names if not self._ignored(name))
                yield from (f"{folder}/{name}" for name in sorted(files) if not self._ignored(name))


def _below(path: str, folder: str) -> list[str] | None:
    """Return the names on the way from a folder to a path; None where it does not lie there."""
    if path == folder:
        return []
    return path[len(folder) :].strip("/").split("/") if path.startswith(f"{folder.rstrip('/')}/") else None


def better_place(where: str, path: str, source: str) -> str:
    """Return where a file may lie that Ansible would read: hidden below the same source, or in its folder.

    where: the variable that names it, as C(named_paths) says it.
    """
    folder = source if Path(source).is_dir() else str(Path(source).parent)
    parts = _below(whole(path), folder) or [Path(path).name]
    name = where.partition(".")[0].partition("[")[0]
    if name in _WRITTEN:
        return str(Path(folder, STATE, parts[-1]))
    if parts[0] in ("group_vars", "host_vars"):
        parts = parts[-1:]
    if len(parts) > 1 or name in _FOLDERS:
        return str(Path(folder, f".{parts[0]}", *parts[1:]))
    return str(Path(folder, KEYS, parts[0]))


def misplaced(hosts: Mapping[str, Mapping[str, Any]], sources: Sources) -> list[str]:
    """Return what is to be moved: paths that Ansible reads as a part of the inventory, each once.

    hosts: by name their variables, paths resolved.
    """
    found: dict[str, tuple[str, str, list[str]]] = {}
    for host, variables in hosts.items():
        for where, path in named_paths(variables):
            if path in found:
                if host not in found[path][2]:
                    found[path][2].append(host)
                continue
            source = sources.reads(path)
            if source:
                found[path] = (where, source, [host])
    return [refuse(where, path, source, names) for path, (where, source, names) in found.items()]


def refuse(where: str, path: str, source: str, hosts: Sequence[str] = ()) -> str:
    """Say why a file may not lie where it does, and where it may."""
    who = f"host {hosts[0]}{f' and {len(hosts) - 1} more' if len(hosts) > 1 else ''}: " if hosts else ""
    return (
        f"{who}{where} names '{path}', which lies where Ansible reads inventory and variables: each line of it may become a host, "
        f"and be printed. Move it to '{better_place(where, path, source)}', which Ansible does not read, and name it so."
    )
