# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn a launch that somebody has into a service, on the controller; documented in plugins/modules/import_recipe.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.action.plan import LOADER, RECIPES, load_recipes, plain
from ansible_collections.dgxspark.vllm.plugins.module_utils import importer

display = Display()
# Where a text names env files: docker's option, a setting of a unit, a key of compose or a list below one.
ENV_FILES = re.compile(
    r"""(?:--env-file[= ][ ]*|EnvironmentFile=-?|env_file:[ ]*|^[ ]*-[ ]+(?:path:[ ]*)?)([^\s,\[\]"']+)""", re.MULTILINE
)


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
        try:
            found = importer.import_launch(
                text,
                document_of(text),
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
            raise AnsibleActionFail(f"import_recipe: {args['src'] or 'content'}: {error}") from error
        inventory = {**found["host_vars"], "spark_services": [found["service"]]}
        text = yaml.safe_dump(inventory, sort_keys=False, width=120)
        lines = report(found)
        if args["show"]:
            display.display("\n".join(["", *(f"# {line}" for line in lines), text]))
        result.update(changed=False, yaml=text, report=lines, **found)
        return result


def report(found: dict[str, Any]) -> list[str]:
    """Say in lines what is left to do, what was left out, and what the rules say."""
    lines = [f"to do: {message}" for message in found["missing"]]
    lines += [f"left out: {item['item']}: {item['reason']}" for item in found["left_out"]]
    return lines + [
        f"{finding['rule']} {finding['severity']}: {finding['message']} {finding.get('fix', '')}".rstrip()
        for finding in found["findings"]
    ]


def document_of(text: str) -> Any:
    """Return a text as YAML where it is a mapping in YAML, else None."""
    try:
        document = yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError):
        return None
    return plain_dates(document) if isinstance(document, dict) else None


def plain_dates(value: Any) -> Any:
    """Return a YAML document as JSON would have it: recipes have dates in them."""
    if isinstance(value, dict):
        return {str(key): plain_dates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_dates(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def env_files(text: str, folder: Path) -> dict[str, str]:
    """Return the content of the env files that a text names, by the name it gives them."""
    found = {}
    for name in ENV_FILES.findall(text):
        path = Path(name).expanduser()
        path = path if path.is_absolute() else folder / path
        if path.is_file() and path.stat().st_size < 100_000:
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found
