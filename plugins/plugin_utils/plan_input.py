# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The input of the engine from an inventory, and the checks of a plan that need files of the controller."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import key_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

RESOLVE_SECONDS = 5.0  # for the name of a host without a known address
UNREADABLE = (AnsibleError, TypeError, ValueError)  # errors of templates

# Variables of the playbooks on the hosts, which are not the user's.
RESULTS = (
    "spark_plan",
    "spark_addons",
    "spark_planned",
    "spark_measured",
    "spark_compared",
    "spark_for_all",
    "spark_lacking",
    "spark_upstream",
    "spark_answers",
    "spark_asked",
    "spark_looked",
    "spark_image_plans",
    "spark_recorded",
    "spark_restored",
    "spark_generation",
)


def read_variables(name: str, hostvars: Any, messages: list[str], fleet: str = "") -> dict[str, Any]:
    """Return the templated variables of a host, with absolute paths of the controller.

    messages: receives the unreadable variables. fleet: the inventory folder of the first Spark.
    """
    variables = {}
    for variable in hostvars:
        # YAML allows names that are no texts; no variable of this collection has one.
        if isinstance(variable, str) and variable.startswith("spark_") and variable not in RESULTS:
            try:
                variables[variable] = plain(hostvars[variable])
            except UNREADABLE as error:
                messages.append(f"host {name}: '{variable}' cannot be read: {error}")
    folder = str(hostvars.get("inventory_dir") or "")
    variables, relative = controller_paths.resolve_variables(variables, folder, fleet)
    messages += [
        f"host {name}: {place}, a relative path, and the host comes from no inventory file that it could be relative to. Name the whole path."
        for place in relative
    ]
    return variables


def read_others(sparks: set[str], messages: list[str], task_vars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the other hosts with add-on services.

    sparks: names of the Sparks. messages: see C(read_variables). task_vars: of an action.
    """
    hosts = {}
    fleet = controller_paths.fleet_folder(task_vars)
    for name in task_vars.get("groups", {}).get("all") or []:
        if str(name) in sparks:  # reading their variables takes long
            continue
        hostvars = task_vars["hostvars"][name]
        if any(variable in hostvars for variable in addons.ANYWHERE):
            hosts[str(name)] = {
                "vars": read_variables(name, hostvars, messages, fleet),
                "address": address_of(name, hostvars),
            }
    return hosts


def recipe_dirs(hosts: Mapping[str, Mapping[str, Any]], messages: list[str]) -> list[Path]:
    """Return the folders of recipes: of this collection and of variables of hosts; C(messages) receives the missing ones."""
    folders = [RECIPES]
    for name, host in hosts.items():
        listed = host["vars"].get("spark_recipe_dirs") or []
        for folder in listed if isinstance(listed, list) else []:  # the engine reports another value
            if not isinstance(folder, str) or "\0" in folder:
                continue
            path = Path(folder)
            if not path.is_dir():
                messages.append(f"host {name}: spark_recipe_dirs names '{folder}', which is no folder here.")
            elif path not in folders:
                folders.append(path)
    return folders


def check_files(plan: Mapping[str, Any], missing_keys: str) -> None:
    """Add the findings about files of the controller to a plan. missing_keys: severity of a missing key that the playbook keys makes."""
    made = dict.fromkeys(own_keys(plan), missing_keys)
    for host in plan["hosts"].values():
        host["findings"] += controller_findings(host, made)
    for host in plan["addons"].values():
        for secret in addons.secrets(host):
            source = secret.source
            finding = secret_finding(secret.service, secret.name, Path(source), secret.own, made.get(source))
            host["findings"] += [finding.to_dict()] if finding else []
        host["findings"] += unhashed(host)


def address_of(name: str, hostvars: Any) -> str:
    """Return the address of a host."""
    return str(hostvars.get("ansible_host") or name)


def listed_twice(names: Iterable[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Return a message for each host with the address and port of an earlier one, which would be planned and changed twice."""
    first: dict[tuple[str, str, str], str] = {}
    messages = []
    for name in names:
        values = hostvars[name]
        connection = values.get("ansible_connection", "ssh")
        if not values.get("ansible_host") or connection not in ("ssh", "smart", "paramiko"):
            continue
        # Simulated Sparks are folders of one machine.
        sysroot = str(values.get("spark_sysroot") or "/")
        place = (str(values["ansible_host"]), str(values.get("ansible_port") or 22), sysroot)
        if place in first:
            messages.append(
                f"host {name}: ansible_host is {place[0]}, the address of host {first[place]}. List each Spark once: correct the address, or "
                "remove one of the two."
            )
        first.setdefault(place, str(name))
    return messages


def controller_findings(host: dict[str, Any], made: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the findings about files of the controller in a host's plan.

    made: files that the playbook keys makes, with the severity of a missing file.
    """
    findings: list[Finding] = []
    token = host["settings"]["hf_token_file"]
    if token and Path(token).is_absolute() and not (Path(token).is_file() and Path(token).stat().st_size):
        text = f"spark_hf_token_file names '{token}', which is not a file with content on the controller."
        fix = "Write a token of Hugging Face that may read the models into it, or remove the variable."
        findings.append(Finding("secret.missing", "warning", text, fix))
    for service in host["services"]:
        for secret in service["secrets"]:
            is_key, source = secret["name"] == "VLLM_API_KEY", secret["source"]
            finding = secret_finding(service["name"], secret["name"], Path(source), is_key, made.get(source))
            findings += [finding] if finding else []
        for file in service["files"]:
            if file["source"] and not file["sha256"]:
                text = f"the source of {file['path']}, '{file['source']}', is no file on the controller."
                fix = (
                    "Name a file on the controller: a whole path, one relative to the inventory folder or, in a recipe, to the "
                    "recipe; or {model}/NAME."
                )
                findings.append(Finding("file.missing", "error", text, fix, service["name"]))
        source = service["model"]["source"]
        if source and not Path(source, "config.json").is_file():
            text = f"the folder '{source}' of model.path has no config.json on the controller."
            fix = "Correct model.path; a relative one is looked up below spark_model_dir."
            findings.append(Finding("model.missing", "error", text, fix, service["name"]))
    return [finding.to_dict() for finding in findings]


def unhashed(host: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finding about a list of the Hermes agent's packages without checksums; the role refuses a missing list."""
    listed = Path(((host["clients"] or {}).get("hermes") or {}).get("requirements_file") or "")
    try:
        if not listed.is_file() or "--hash=" in listed.read_text(encoding="utf-8", errors="replace"):
            return []
    except OSError:  # the role refuses it
        return []
    text = f"spark_clients.hermes: {listed} has no checksums: the package index decides what is installed and run."
    fix = "Make the list with uv pip compile --generate-hashes (docs/clients.md); pip then refuses other bytes."
    return [Finding("clients.unhashed", "warning", text, fix, "hermes").to_dict()]


def own_keys(plan: Mapping[str, Any]) -> set[str]:
    """Return the files of the controller with keys that services of the fleet check, which may have any value."""
    engines = {
        secret["source"]
        for host in plan["hosts"].values()
        for service in host["services"]
        for secret in service["secrets"]
        if secret["name"] == "VLLM_API_KEY"
    }
    return engines | {
        secret.source for host in plan["addons"].values() for secret in addons.secrets(host) if secret.own
    }


def secret_finding(service: str, name: str, path: Path, is_own: bool, made: str | None = None) -> Finding | None:
    """Return the finding about the file of a secret, None for a right one.

    is_own: a service of the fleet checks it, as a key in a header. made: the severity of a missing key that the playbook keys makes; None for another
    secret.
    """
    if why := key_files.wrong(path, is_own) if path.is_absolute() else "":
        fix = "Put the secret there, in a separate file that you may read."
        if is_own:
            fix = "Remove it and run dgxspark.vllm.keys, which makes another; or put the key there, on one line and nothing else."
        return Finding("secret.unusable", "error", f"the file of {name}, '{path}', {why}.", fix, service)
    if not (path.is_absolute() and path.is_file()):
        problem, fix = f"there is no '{path}' yet", "Run dgxspark.vllm.keys, which creates missing keys."
        if not made or path.exists():
            problem = f"'{path}' is not a file with content here"
            fix = (
                "Put it there, in a separate file. A relative path starts at the inventory folder; "
                f'"{controller_paths.KEYS}/NAME" is below it, where Ansible does not read.'
            )
        text = f"{name}: the key is read from a file on the controller, and {problem}."
        return Finding("secret.missing", made or "error", text, fix, service)
    if not path.stat().st_mode & stat.S_IWOTH:
        return None
    text = f"{name}: every account of this machine can read and change '{path}'."
    fix = f"Run chmod 600 {path}. In WSL this has no effect below /mnt: move the inventory to your Linux home, such as ~/my-sparks."
    return Finding("secret.open", "warning", text, fix, service)


def digest(path: str) -> str | None:
    """Return the SHA-256 of a file of the controller, None for a missing file."""
    file = Path(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_absolute() and file.is_file() else None


@functools.cache
def resolve(name: str) -> tuple[str, ...]:
    """Return the addresses of a host's name on the controller; none without an answer in time."""
    addresses: list[str] = []

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            addresses.extend(
                str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            )

    # getaddrinfo has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(RESOLVE_SECONDS)
    return () if asking.is_alive() else tuple(dict.fromkeys(addresses))
