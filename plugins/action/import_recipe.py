# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn a launch that somebody has into a service, on the controller; documented in plugins/modules/import_recipe.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.action.plan import LOADER, RECIPES, load_recipes, plain
from ansible_collections.dgxspark.vllm.plugins.module_utils import importer

display = Display()
# Where a text names env files: docker's option, or a setting of a unit.
ENV_FILES = re.compile(r"""(?:--env-file[= ]\s*|EnvironmentFile=-?)["']?([^\s,"']+)""")
# Aliases let a short text stand for an endless one.
MOST_NODES = 100_000


class ActionModule(ActionBase):
    """Read the text and the env files beside it, call the engine, write the service as YAML."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the service and all that could not be carried over; fail where there is no launch of vLLM."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            {
                "src": {"type": "path"},
                "content": {"type": "str"},
                "form": {"type": "str", "default": "auto", "choices": ["auto", *importer.FORMS]},
                "name": {"type": "str"},
                "port": {"type": "int"},
                "image": {"type": "str"},
                "select": {"type": "str"},
                "variables": {"type": "dict", "default": {}},
                "variant": {"type": "str", "default": "default"},
                "features": {"type": "list", "elements": "str"},
                "config": {"type": "dict"},
                "catalogue": {"type": "list", "elements": "dict", "default": []},
                "show": {"type": "bool", "default": False},
            },
            mutually_exclusive=[("src", "content")],
            required_one_of=[("src", "content")],
        )
        folder = Path.cwd()
        text = args["content"]
        if args["src"]:
            source = Path(args["src"])
            folder = source.parent
            try:
                text = source.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise AnsibleActionFail(f"import_recipe: '{source}' cannot be read: {error}") from error
        known_recipes, _wrong = load_recipes([RECIPES])
        broken = document = None
        try:
            document = read_yaml(text)
        except BrokenYaml as error:  # as a docker command is, too
            broken = error
        try:
            found = importer.import_launch(
                text,
                document,
                form=args["form"],
                name=args["name"],
                port=args["port"],
                image=args["image"],
                variables={str(name): str(value) for name, value in plain(args["variables"]).items()},
                files=env_files(text, folder),
                select=args["select"],
                variant=args["variant"],
                features=args["features"],
                known_recipes=known_recipes,
                config=plain(args["config"]),
                catalogue=plain(args["catalogue"]),
            )
        except ValueError as error:
            hint = (
                f". As YAML it is broken: {broken}" if broken and meant_as_yaml(args["src"], args["form"], text) else ""
            )
            raise AnsibleActionFail(f"import_recipe: {args['src'] or 'content'}: {error}{hint}") from error
        inventory = {**found["host_vars"], "spark_services": [found["service"]]}
        text = yaml.safe_dump(inventory, sort_keys=False, width=120)
        lines = report(found)
        if args["show"]:
            display.display("\n".join(["", *(f"# {line}" for line in lines), text]))
        result.update(changed=False, yaml=text, report=lines, **found)
        return result


def meant_as_yaml(src: str | None, form: str, text: str) -> bool:
    """Tell whether a text that is no YAML was meant to be: by its name, the form asked for, or a key at its beginning."""
    if (src or "").endswith((".yml", ".yaml")) or form in ("compose", "eugr", "sparkrun", "vllm_recipe"):
        return True
    return form == "auto" and re.match(r"(?:\s*#.*\n|\s*\n)*[A-Za-z_]\w*:(?:\s|$)", text) is not None


def report(found: dict[str, Any]) -> list[str]:
    """Say in lines what is left to do, what was left out, and what the rules say."""
    lines = [f"to do: {message}" for message in found["missing"]]
    lines += [f"left out: {item['item']}: {item['reason']}" for item in found["left_out"]]
    for kind, prefix in (("findings", ""), ("before", "as it was: ")):
        lines += [
            f"{prefix}{finding['rule']} {finding['severity']}: {finding['message']} {finding.get('fix', '')}".rstrip()
            for finding in found[kind]
        ]
    return lines


class BrokenYaml(ValueError):
    """A text that was meant to be YAML and is not; the message says where, and repeats nothing of it."""


def document_of(text: str) -> Any:
    """Return a text as YAML where it is a mapping in YAML, else None."""
    try:
        return read_yaml(text)
    except BrokenYaml:
        return None


def read_yaml(text: str) -> Any:
    """Like C(document_of), but raises C(BrokenYaml) where a text is no YAML at all."""
    try:
        document = yaml.load(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BrokenYaml(f"{error.problem or 'cannot be read'}{where}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BrokenYaml("it has characters or values that YAML does not have") from error
    try:
        return plain_dates(document, iter(range(MOST_NODES))) if isinstance(document, dict) else None
    except RecursionError:
        raise BrokenYaml("its aliases have no end") from None


def plain_dates(value: Any, budget: Iterator[int]) -> Any:
    """Return a YAML document as JSON would have it: recipes have dates in them. C(budget) ends before aliases blow it up."""
    if next(budget, None) is None:
        raise BrokenYaml("its aliases make it too large")
    if isinstance(value, dict):
        return {str(key): plain_dates(item, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_dates(item, budget) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def env_files(text: str, folder: Path) -> dict[str, str]:
    """Return the content of the env files that a text names, by the name it gives them."""
    found = {}
    for name in [*ENV_FILES.findall(text), *_compose_env_files(document_of(text))]:
        path = Path(name).expanduser()
        path = path if path.is_absolute() else folder / path
        if path.is_file() and path.stat().st_size < 100_000:
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def _compose_env_files(document: Any) -> list[str]:
    """Return the env files of the services of a compose file: C(env_file) is a path, or a list of paths and mappings."""
    services = document.get("services") if isinstance(document, dict) else None
    found: list[str] = []
    for service in services.values() if isinstance(services, dict) else []:
        named = service.get("env_file") if isinstance(service, dict) else None
        for item in named if isinstance(named, list) else [named]:
            path = item.get("path") if isinstance(item, dict) else item
            found += [path] if isinstance(path, str) else []
    return found
