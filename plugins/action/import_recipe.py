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

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer
from ansible_collections.dgxspark.vllm.plugins.modules.import_recipe import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.launch_texts import (
    BrokenYaml,
    document_of,
    read_launch_yaml,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import home_path
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
# Where a text names env files: docker's option, or a setting of a unit.
ENV_FILES = re.compile(r"""(?:--env-file[= ]\s*|EnvironmentFile=-?)["']?([^\s,"']+)""")
# Where a script reads settings of its own: of a file beside it, whatever names its folder.
SOURCED = re.compile(r"""^[ \t]*(?:source|\.)[ \t]+["']?(?:[^\s"';|&]*/)?([\w.-]+\.env)["']?[ \t]*$""", re.MULTILINE)
MOST_SCRIPTS = 200
# What makes Ansible evaluate a text: Jinja's delimiters, and the line that would set others.
TEMPLATE = re.compile(r"\{[{%#]|^#jinja2:")


class ActionModule(ActionBase):
    """Read the text and the env files beside it, call the engine, write the service as YAML."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the service and all that could not be carried over; fail where there is no launch of vLLM."""
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            documented(DOCUMENTATION), mutually_exclusive=[("src", "content")], required_one_of=[("src", "content")]
        )
        found = imported(args, *source_of(args["src"], args["content"]))
        text, lines = yaml_of(inventory_of(found)), report(found)
        if args["show"]:
            display.display(page(text, lines))
        result.update(changed=False, yaml=text, report=lines, **found)
        return result


def source_of(src: str | None, content: str | None) -> tuple[str, Path]:
    """Return the text of a launch, and the folder that its env files are relative to; fails where C(src) cannot be read."""
    if not src:
        return str(content), Path.cwd()
    try:
        return read_start(Path(src), importer.MOST_BYTES + 1), Path(src).parent
    except (OSError, ValueError) as error:
        raise AnsibleActionFail(f"import_recipe: '{Path(src)}' cannot be read: {error}") from error


def read_start(path: Path, most: int) -> str:
    """Return the first C(most) characters of a text file; raises ValueError for a device or a pipe, which may have no end."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no ordinary file")
    with path.open(encoding="utf-8") as stream:
        return stream.read(most)


def imported(args: dict[str, Any], text: str, folder: Path) -> dict[str, Any]:
    """Have the engine read a launch.

    :param args: of the module
    :param text: the launch
    :param folder: where the env files that it names lie
    :returns: as C(importer.import_launch)
    :raises AnsibleActionFail: where there is no launch of vLLM in it
    """
    text = with_settings(text, folder)
    known_recipes, _wrong = load_recipes([RECIPES])
    broken = document = None
    try:
        document = read_launch_yaml(text)
    except BrokenYaml as error:  # as a docker command is, too
        broken = error
    try:
        return importer.import_launch(
            text,
            document,
            form=args["form"],
            name=args["name"],
            port=args["port"],
            image=args["image"],
            variables={str(name): str(value) for name, value in plain(args["variables"]).items()},
            files=env_files(text, folder),
            scripts=scripts_beside(text, folder),
            select=args["select"],
            variant=args["variant"],
            features=args["features"],
            known_recipes=known_recipes,
            config=plain(args["config"]),
            catalogue=plain(args["catalogue"]),
        )
    except ValueError as error:
        meant = broken and "render it first" not in str(error) and meant_as_yaml(args["src"], args["form"], text)
        hint = f". As YAML it is broken: {broken}" if meant else ""
        raise AnsibleActionFail(f"import_recipe: {args['src'] or 'content'}: {error}{hint}") from error


def inventory_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the variables that a launch becomes: of a host, or of the group of Sparks that it spans."""
    if found["spark_cluster"]:
        return {**found["host_vars"], "spark_cluster": found["spark_cluster"]}
    return {**found["host_vars"], "spark_services": [found["service"]]}


def page(text: str, lines: list[str]) -> str:
    """Return what is printed, to be pasted into an inventory: the report as comments, and the YAML."""
    return "\n".join(["", *(f"# {line}" for line in lines), text])


class Dumper(yaml.SafeDumper):
    """Writes texts that Ansible would take for templates with C(!unsafe), so that it takes them for texts."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("!unsafe" if TEMPLATE.search(value) else "tag:yaml.org,2002:str", value, style=style)


Dumper.add_representer(str, _text)


def yaml_of(value: Any) -> str:
    """Return YAML for an inventory. Texts of a launch are a stranger's: none of them is evaluated when the inventory is read."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=120)


def meant_as_yaml(src: str | None, form: str, text: str) -> bool:
    """Tell whether a text that is no YAML was meant to be: by its name, the form asked for, or a key at its beginning.

    :param src: name of the file, None for a text
    :param form: that was asked for
    :param text: as it was given
    :returns: whether it was
    """
    if (src or "").endswith((".yml", ".yaml")) or form in (
        "compose",
        "kubernetes",
        "eugr",
        "sparkrun",
        "vllm_recipe",
        "nvidia",
    ):
        return True
    return form == "auto" and re.match(r"(?:\s*#.*\n|\s*\n)*[A-Za-z_]\w*:(?:\s|$)", text) is not None


def report(found: dict[str, Any]) -> list[str]:
    """Say in lines what is left to do, what was left out, and what the rules say."""
    lines = [f"to do: {message}" for message in found["missing"]]
    if found["spark_cluster"]:
        group = found["spark_cluster"]["name"]
        lines.insert(
            0, f"to do: put {found['nodes']} hosts into a group {group}, and this into the variables of that group"
        )
    lines += [f"left out: {item['item']}: {item['reason']}" for item in found["left_out"]]
    for kind, prefix in (("findings", ""), ("before", "as it was: ")):
        lines += [
            f"{prefix}{finding['rule']} {finding['severity']}: {finding['message']} {finding.get('fix', '')}".rstrip()
            for finding in found[kind]
        ]
    # A comment is one line: what follows a line end in a stranger's text would be inventory.
    return [" ".join(printable(line).split()) for line in lines]


def env_files(text: str, folder: Path) -> dict[str, str]:
    """Return the content of the env files that a text names, by the name it gives them."""
    found = {}
    for name in [*ENV_FILES.findall(text), *_compose_env_files(document_of(text))]:
        path = home_path(name)
        path = path if path.is_absolute() else folder / path
        if path.is_file() and path.stat().st_size < 100_000:
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def scripts_beside(text: str, folder: Path) -> dict[str, str]:
    """Return the scripts in the folder of a launch, and one below it, that its text may have a container run.

    :param text: the launch
    :param folder: where it lies
    :returns: content by path relative to the folder; neither links nor files above 100 kB
    """
    found = {}
    for path in sorted([*folder.glob("*.sh"), *folder.glob("*/*.sh")])[:MOST_SCRIPTS]:
        linked = path.is_symlink() or path.parent.is_symlink()
        if path.name in text and not linked and path.is_file() and path.stat().st_size < 100_000:
            found[str(path.relative_to(folder))] = path.read_text(encoding="utf-8", errors="replace")
    return found


def with_settings(text: str, folder: Path) -> str:
    """Return a script with the settings that it sources (C(source config.env)) in their place, where the file lies beside it."""

    left = importer.MOST_BYTES

    def content(match: re.Match[str]) -> str:
        nonlocal left
        path = folder / match.group(1)
        if path.is_symlink() or not path.is_file() or path.stat().st_size >= min(left, 100_000):
            return match.group(0)
        left -= path.stat().st_size
        return path.read_text(encoding="utf-8", errors="replace")

    return SOURCED.sub(content, text)


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
