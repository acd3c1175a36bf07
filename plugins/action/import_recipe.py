# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn an existing launch into a service, on the controller; documented in plugins/modules/import_recipe.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import home_path
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_sources import (
    BrokenYaml,
    document_of,
    read_launch_yaml,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
# Env files in a text: options of docker, or settings of a unit.
ENV_FILES = re.compile(r"""(?:--env-file[= ]\s*|EnvironmentFile=-?)["']?([^\s,"']+)""")
# A script that sources settings from a file next to it, with any folder in front of the name.
SOURCED = re.compile(r"""^[ \t]*(?:source|\.)[ \t]+["']?(?:[^\s"';|&]*/)?([\w.-]+\.env)["']?[ \t]*$""", re.MULTILINE)
MOST_SCRIPTS = 200
MOST_BYTES = 100_000
"""Size above which env files and scripts are not read."""
# Texts that Ansible evaluates: Jinja's delimiters, and the line that sets others.
TEMPLATE = re.compile(r"\{[{%#]|^#jinja2:")


class ActionModule(ControllerAction):
    """Read the text and its env files, call the engine, write the service as YAML."""

    RULES: Mapping[str, Any] = {"mutually_exclusive": [("src", "content")], "required_one_of": [("src", "content")]}

    def act(self) -> dict[str, Any]:
        """Return the service and all omissions; fail without a launch of vLLM."""
        args = self.args
        launch = imported(args, *source_of(args["src"], args["content"]))
        text, lines = yaml_of(inventory_of(launch)), report(launch)
        if args["show"]:
            display.display(page(text, lines))
        return {"changed": False, "yaml": text, "report": lines, **launch}


def source_of(src: str | None, content: str | None) -> tuple[str, Path]:
    """Return the text of a launch, and the folder of its env files; fails if C(src) cannot be read."""
    if not src:
        return str(content), Path.cwd()
    path = Path(src)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may have no end
            raise ValueError("it is no ordinary file")
        with path.open(encoding="utf-8") as stream:
            return stream.read(importer.MOST_BYTES + 1), path.parent
    except (OSError, ValueError) as error:
        raise AnsibleActionFail(f"import_recipe: '{path}' cannot be read: {error}") from error


def imported(args: dict[str, Any], text: str, folder: Path) -> dict[str, Any]:
    """Have the engine read a launch. Raises AnsibleActionFail without a launch of vLLM."""
    text = with_settings(text, folder)
    known_recipes, _messages = load_recipes([RECIPES])
    broken = document = None
    try:
        document = read_launch_yaml(text)
    except BrokenYaml as error:  # a docker command is no YAML either
        broken = error
    options = {key: args[key] for key in ("form", "name", "port", "image", "select", "variant", "features")}
    try:
        return importer.import_launch(
            text,
            document,
            **options,
            variables={str(name): str(value) for name, value in plain(args["variables"]).items()},
            files=env_files(text, folder),
            scripts=scripts_beside(text, folder),
            known_recipes=known_recipes,
            config=plain(args["config"]),
            catalogue=plain(args["catalogue"]),
        )
    except ValueError as error:
        hint = ""
        starts_with_key = re.match(r"(?:\s*#.*\n|\s*\n)*[A-Za-z_]\w*:(?:\s|$)", text) is not None
        is_yaml = (args["src"] or "").endswith((".yml", ".yaml")) or args["form"] not in ("auto", "docker", "systemd")
        is_yaml = is_yaml or (args["form"] == "auto" and starts_with_key)
        if broken and is_yaml and "render it first" not in str(error):
            hint = f". As YAML it is broken: {broken}"
        raise AnsibleActionFail(f"import_recipe: {args['src'] or 'content'}: {error}{hint}") from error


def inventory_of(launch: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of a host for an imported launch, or of the group of Sparks that it spans."""
    if launch["spark_cluster"]:
        return {**launch["host_vars"], "spark_cluster": launch["spark_cluster"]}
    return {**launch["host_vars"], "spark_services": [launch["service"]]}


def page(text: str, lines: list[str]) -> str:
    """Return the printed text, to paste into an inventory: the report as comments, and the YAML."""
    return "\n".join(["", *(f"# {line}" for line in lines), text])


class Dumper(yaml.SafeDumper):
    """Writes texts that look like templates with C(!unsafe), so that Ansible does not evaluate them."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("!unsafe" if TEMPLATE.search(value) else "tag:yaml.org,2002:str", value, style=style)


Dumper.add_representer(str, _represent_text)


def yaml_of(value: Any) -> str:
    """Return YAML for an inventory. Texts of a launch are a stranger's; Ansible evaluates none of them."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=120)


def report(launch: dict[str, Any]) -> list[str]:
    """Return the remaining work, the omissions and the findings of the rules as lines."""
    lines = [f"to do: {message}" for message in launch["missing"]]
    if launch["spark_cluster"]:
        group = launch["spark_cluster"]["name"]
        put = f"put {launch['nodes']} hosts into a group {group}, and this into the variables of that group"
        lines.insert(0, f"to do: {put}")
    lines += [f"left out: {item['item']}: {item['reason']}" for item in launch["left_out"]]
    for kind, prefix in (("findings", ""), ("before", "the original: ")):
        lines += [
            f"{prefix}{finding['rule']} {finding['severity']}: {finding['message']} {finding.get('fix', '')}".rstrip()
            for finding in launch[kind]
        ]
    # A comment is one line: text behind a line end in a stranger's text would be inventory.
    return [" ".join(printable(line).split()) for line in lines]


def _small_text(path: Path) -> str | None:
    """Return the text of a small ordinary file, None for others."""
    if not path.is_file() or path.stat().st_size >= MOST_BYTES:
        return None
    return path.read_text(encoding="utf-8", errors="replace")


def env_files(text: str, folder: Path) -> dict[str, str]:
    """Return the content of the env files of a text, by the name that the text has for them."""
    names, document = ENV_FILES.findall(text), document_of(text)
    services = document.get("services") if isinstance(document, dict) else None
    for service in services.values() if isinstance(services, dict) else []:
        # C(env_file) of compose is a path, or a list of paths and mappings.
        named = service.get("env_file") if isinstance(service, dict) else None
        paths = [
            item.get("path") if isinstance(item, dict) else item
            for item in (named if isinstance(named, list) else [named])
        ]
        names += [path for path in paths if isinstance(path, str)]
    contents = {name: _small_text(folder / home_path(name)) for name in names}
    return {name: content for name, content in contents.items() if content is not None}


def scripts_beside(text: str, folder: Path) -> dict[str, str]:
    """Return the scripts in a folder, and one below it, that a launch names: content by path relative to the folder, without links."""
    scripts = {}
    for path in sorted([*folder.glob("*.sh"), *folder.glob("*/*.sh")])[:MOST_SCRIPTS]:
        linked = path.is_symlink() or path.parent.is_symlink()
        content = _small_text(path) if path.name in text and not linked else None
        if content is not None:
            scripts[str(path.relative_to(folder))] = content
    return scripts


def with_settings(text: str, folder: Path) -> str:
    """Return a script with the contents of the settings files next to it in place of C(source config.env)."""

    budget = importer.MOST_BYTES

    def content(match: re.Match[str]) -> str:
        nonlocal budget
        path = folder / match.group(1)
        if path.is_symlink() or not path.is_file() or path.stat().st_size >= min(budget, MOST_BYTES):
            return match.group(0)
        budget -= path.stat().st_size
        return path.read_text(encoding="utf-8", errors="replace")

    return SOURCED.sub(content, text)
