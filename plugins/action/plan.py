# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan all hosts of the inventory in one process on the controller; documented in plugins/modules/plan.py."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils import color
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils import (
    around,
    lock,
    model_table,
    picture,
    placement,
    plan_page,
    recipes,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding

display = Display()
MOST_ERRORS = 3  # in the message of the failed task; the plan shows all
RECIPES = Path(__file__).resolve().parents[2] / "playbooks" / "recipes"


class ActionModule(ActionBase):
    """Gather the variables of every host in the group, call the engine, show and write what comes out."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return C(hosts) and C(findings); fail on malformed input, and on errors unless told otherwise."""
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _spec, args = self.validate_argument_spec(
            {
                "group": {"type": "str", "default": "sparks"},
                "measured_from": {"type": "str", "default": ""},
                "images_from": {"type": "str", "default": ""},
                "upstream_from": {"type": "str", "default": ""},
                "dest": {"type": "path", "default": ""},
                "show": {"type": "bool", "default": True},
                "models": {"type": "bool", "default": False},
                "fail_on_error": {"type": "bool", "default": True},
                "whole_clusters": {"type": "bool", "default": False},
                "locked": {"type": "bool", "default": True},
            }
        )
        hosts, messages = self._read_hosts(args, task_vars)
        if args["dest"].endswith(".html"):
            messages.append(
                f"dest: '{args['dest']}' is to hold JSON; name it .json, and the page .html is put beside it."
            )
        known_recipes, wrong = load_recipes(self._recipe_dirs(hosts, messages))
        messages += wrong
        if args["models"]:
            if wrong:
                raise AnsibleActionFail("\n- ".join(["recipes that cannot be read:", *wrong]))
            rows = model_table.model_rows(known_recipes)
            display.display(model_table.models_text(rows))
            result.update(changed=False, models=rows, _ansible_verbose_override=True)
            return result
        locked, wrong = read_lock(lock_path(hosts, task_vars, messages))
        messages += wrong
        plan: dict[str, Any] = {}
        try:
            plan = engine.make_plan(
                hosts,
                known_recipes,
                digest,
                plain(task_vars.get("groups") or {}),
                self._read_others(set(hosts), messages, task_vars),
                locked,
                args["locked"],
                self._upstream(args["upstream_from"], hosts, task_vars),
            )
        except engine.Inventory as error:
            messages += error.messages
        if messages:
            raise AnsibleActionFail(
                f"the inventory cannot be planned, {len(messages)} problem{'s'[: len(messages) != 1]}; no host was "
                "touched:\n- " + "\n- ".join(messages)
            )
        if args["whole_clusters"]:
            messages = cut_clusters(plan["clusters"], task_vars.get("ansible_play_hosts_all") or [])
            if messages:
                raise AnsibleActionFail("no host was touched:\n- " + "\n- ".join(messages))
        for host in plan["hosts"].values():
            host["findings"] += controller_findings(host)
        for host in plan["around"].values():
            host["findings"] += [
                missing_secret(secret.service, secret.name, Path(secret.source)).to_dict()
                for secret in around.secrets(host)
                if not holds_something(Path(secret.source))
            ]
        findings = engine.plan_findings(plan)
        errors = [finding for finding in findings if finding["severity"] == "error"]
        page = None
        if args["dest"] and not self._task.check_mode:
            dest = Path(args["dest"])
            page = dest.with_name(f"{dest.stem}.html")
            write(dest, json.dumps({**plan, "findings": findings}, indent=2, sort_keys=True) + "\n")
            write(page, plan_page.page(plan, findings))
        if args["show"] or (errors and args["fail_on_error"]):
            shown = (plan, findings, display.columns)
            display.display(picture.plan_text(*shown, color.ANSIBLE_COLOR, str(page or "")), screen_only=True)
            if placed := placement.text(plan):
                display.display(placed)
            if constants.DEFAULT_LOG_PATH:  # a file has no use for colours
                display.display(picture.plan_text(*shown, False, str(page or "")), log_only=True)
        result.update(
            changed=False,
            hosts=plan["hosts"],
            clusters=plan["clusters"],
            around=plan["around"],
            keys_of_fleet=sorted(own_keys(plan)),
            locked_names=lock.questions(
                locked, [service["lock"] for host in plan["hosts"].values() for service in host["services"]]
            ),
            findings=findings,
            errors=len(errors),
            placement=placement.check(plan),
            # The plan itself, once on the screen, is not wanted there a second time with -v.
            _ansible_verbose_override=True,
        )
        if errors and args["fail_on_error"]:
            raise AnsibleActionFail(refusal(errors))
        return result

    def _read_hosts(
        self, args: dict[str, Any], task_vars: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return the variables of every host in the group, templated, with what could not be."""
        names = task_vars.get("groups", {}).get(args["group"]) or []
        messages: list[str] = []
        if not names:
            messages.append(f"inventory: the group '{args['group']}' is missing or empty; it holds the DGX Sparks.")
        hosts: dict[str, dict[str, Any]] = {}
        for name in names:
            hostvars = task_vars["hostvars"][name]
            variables = read_variables(name, hostvars, messages)
            measured = hostvars.get(args["measured_from"]) if args["measured_from"] else None
            images = hostvars.get(args["images_from"]) if args["images_from"] else None
            hosts[str(name)] = {
                "vars": variables,
                "address": address_of(name, hostvars),
                "measured": plain((measured or {}).get("spark")),
                "images": plain((images or {}).get("images")) or {},
                "fabric": plain(hostvars.get("fabric_planned")),
            }
        return hosts, messages

    @staticmethod
    def _upstream(name: str, hosts: dict[str, dict[str, Any]], task_vars: dict[str, Any]) -> dict[str, Any] | None:
        """Return what one of the hosts was told by registries and hub; all of them have the same."""
        said = [plain(task_vars["hostvars"][host].get(name)) for host in hosts] if name else []
        return next((each for each in said if each and "unknown" in each), None)

    @staticmethod
    def _read_others(sparks: set[str], messages: list[str], task_vars: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the hosts that are no Sparks and run something of what stands around the engines."""
        others = {}
        for name in task_vars.get("groups", {}).get("all") or []:
            hostvars = task_vars["hostvars"][name]
            if name not in sparks and any(variable in hostvars for variable in around.ANYWHERE):
                others[str(name)] = {
                    "vars": read_variables(name, hostvars, messages),
                    "address": address_of(name, hostvars),
                }
        return others

    @staticmethod
    def _recipe_dirs(hosts: dict[str, dict[str, Any]], messages: list[str]) -> list[Path]:
        folders = [RECIPES]
        for name, host in hosts.items():
            for folder in host["vars"].get("spark_recipe_dirs") or []:
                path = Path(str(folder))
                if not path.is_dir():
                    messages.append(f"host {name}: spark_recipe_dirs names '{folder}', which is no folder here.")
                elif path not in folders:
                    folders.append(path)
        return folders


def lock_path(hosts: dict[str, dict[str, Any]], task_vars: dict[str, Any], messages: list[str]) -> Path | None:
    """Return where the lock file of the fleet is: C(spark_lock_file), else beside the inventory."""
    named = sorted({str(host["vars"].get("spark_lock_file") or "") for host in hosts.values()} - {""})
    if len(named) > 1:
        messages.append(
            f"spark_lock_file differs between hosts ({', '.join(named)}); one lock holds for the fleet. Set it on the group sparks."
        )
    if named:
        return Path(named[0]).expanduser()
    folder = next(
        (task_vars["hostvars"][name].get("inventory_dir") for name in hosts if name in task_vars["hostvars"]), None
    )
    return Path(str(folder), lock.FILE_NAME) if folder else None


def read_lock(path: Path | None) -> tuple[dict[str, Any] | None, list[str]]:
    """Read the lock file; None where there is none."""
    if path is None or not path.exists():
        return None, []
    try:
        return lock.read(plain(yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)) or {}, str(path))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        return None, [f"lock file {path}: cannot be read: {error}. Restore it from version control."]


# What earlier tasks of the playbooks register or set on the hosts: not the user's variables.
RESULTS = (
    "spark_plan",
    "spark_around",
    "spark_planned",
    "spark_measured",
    "spark_images",
    "spark_settled",
    "spark_for_all",
    "spark_upstream",
    "spark_answers",
    "spark_asked",
    "spark_looked",
    "spark_recorded",
    "spark_restored",
    "spark_generation",
)


def read_variables(name: str, hostvars: Any, messages: list[str]) -> dict[str, Any]:
    """Return what a person wrote for a host, templated; complain about what cannot be read."""
    variables = {}
    for variable in hostvars:
        if variable.startswith("spark_") and variable not in RESULTS:
            try:
                variables[variable] = plain(hostvars[variable])
            except (AnsibleError, TypeError, ValueError) as error:
                messages.append(f"host {name}: '{variable}' cannot be read: {error}")
    return variables


def address_of(name: str, hostvars: Any) -> str:
    """Return where a host is reached."""
    return str(hostvars.get("ansible_host") or name)


def controller_findings(host: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with the files of the controller that a host's plan names."""
    found: list[Finding] = []
    for service in host["services"]:
        for secret in service["secrets"]:
            if not holds_something(Path(secret["source"])):
                found.append(missing_secret(service["name"], secret["name"], Path(secret["source"])))
        for file in service["files"]:
            if file["source"] and not file["sha256"]:
                found.append(
                    Finding(
                        rule="file.missing",
                        severity="error",
                        service=service["name"],
                        message=f"{file['path']} is to come from '{file['source']}', which is no file here.",
                        fix="Name an absolute path on the controller, a path relative to the recipe, or {model}/NAME.",
                    )
                )
        source = service["model"]["source"]
        if source and not Path(source, "config.json").is_file():
            found.append(
                Finding(
                    rule="model.missing",
                    severity="error",
                    service=service["name"],
                    message=f"the model is to come from '{source}', which holds no config.json here.",
                    fix="Correct model.path; a relative one is looked up below spark_model_dir.",
                )
            )
    return [finding.to_dict() for finding in found]


def own_keys(plan: dict[str, Any]) -> set[str]:
    """Return the files of the controller with keys that the fleet itself checks, so that any value will do."""
    engines = {
        secret["source"]
        for host in plan["hosts"].values()
        for service in host["services"]
        for secret in service["secrets"]
        if secret["name"] == "VLLM_API_KEY"
    }
    return engines | {
        secret.source for host in plan["around"].values() for secret in around.secrets(host) if secret.own
    }


def holds_something(path: Path) -> bool:
    """Tell whether a file of the controller is named by its whole path and has content."""
    return path.is_absolute() and path.is_file() and bool(path.stat().st_size)


def missing_secret(service: str, name: str, path: Path) -> Finding:
    """Return the finding about a secret that the controller does not have."""
    return Finding(
        rule="secret.missing",
        severity="error",
        service=service,
        message=f"{name} is to come from '{path}', which is not a file with content here.",
        fix='Name an absolute path on the controller, for example "{{ inventory_dir }}/secrets/api_key"; '
        "dgxspark.vllm.keys makes the keys that are missing.",
    )


def cut_clusters(clusters: dict[str, Any], play: list[str]) -> list[str]:
    """Return the clusters that this play has some hosts of, and not all."""
    return [
        f"cluster {name}: the play has {', '.join(host for host in cluster['hosts'] if host in play)}, not "
        f"{', '.join(host for host in cluster['hosts'] if host not in play)}. Ranks of one engine change together: "
        f"--limit {','.join(dict.fromkeys([*play, *cluster['hosts']]))}"
        for name, cluster in sorted(clusters.items())
        if any(host in play for host in cluster["hosts"]) and not all(host in play for host in cluster["hosts"])
    ]


def refusal(errors: list[dict[str, Any]]) -> str:
    """Say in a few lines why the run stops; what vLLM would say and what to change stand with the plan above it."""
    # What moves is decided by a person once, for all of it: every service and every name is said here, with what to do.
    moving = lock.refusal([error for error in errors if error["rule"] == "lock.moving"])
    groups = picture.same_findings([error for error in errors if error["rule"] != "lock.moving"])
    lines = [f"- {group.where}: {group.first['message']} [{group.first['rule']}]" for group in groups[:MOST_ERRORS]]
    lines += [f"- {moving}"] if moving else []
    more = len(groups) - MOST_ERRORS
    return "\n".join(
        [
            f"the plan has {len(errors)} error{'s'[: len(errors) != 1]}; no host was changed. The plan above has the fixes.",
            *lines,
            *([f"- and {more} more"] if more > 0 else []),
        ]
    )


def plain(value: Any) -> Any:
    """Return a value without Ansible's own types, as JSON would carry it."""
    return json.loads(json.dumps(value))


def load_recipes(folders: list[Path]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Read every recipe of the folders; a later folder replaces a recipe of the same name."""
    found: dict[str, dict[str, Any]] = {}
    messages: list[str] = []
    for folder in folders:
        for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
            try:
                recipe = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
            except (OSError, yaml.YAMLError) as error:
                messages.append(f"recipe {path.name}: cannot be read: {error}")
                continue
            wrong = recipes.validate_recipe(recipe, path.name)
            messages += wrong
            if not wrong:
                found[str(recipe["name"])] = recipes.anchor_files(recipe, str(folder.resolve()))
    return found, messages


# libyaml where PyYAML has it: ten times as fast.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def digest(path: str) -> str | None:
    """Return the SHA-256 of a file of the controller, None where there is none."""
    file = Path(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_absolute() and file.is_file() else None


def write(path: Path, text: str) -> None:
    """Write a report for people and tools; one rename, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
