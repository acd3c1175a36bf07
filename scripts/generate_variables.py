#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write what follows from the schema. Run with PYTHONPATH=collections; --check only compares.

The schema is C(VARIABLES) in C(plugins/module_utils/_common/variables.py), the tables of keys of the subjects (C(TABLES) below), and
C(roles/*/meta/variables.yml). From it come C(defaults/main.yml), C(meta/argument_specs.yml) and the table of C(README.md) of each
role, and the tables of C(docs/) that stand below a line C(<!-- keys of spark_gateway: scripts/generate_variables.py -->),
C(arguments of import) or C(variables).

C(variables.yml) is written as a role's argument specification, with three words more. C(as: spark_gateway.port) takes type, default,
choices and meaning from a key of the inventory. C(keys_of: spark_exporters) does so for each key that is not listed in C(without).
C(default_of: spark_monitoring.thresholds) is a mapping of the defaults of a table. Further keys next to these words override them.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, markdown_table, with_tables, write_generated

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import (
    descriptions,
    fleet_monitor,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import clustering
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import on_demand_keys
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.schema import Key, Keys
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.variables import PLAYBOOKS, VARIABLES
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import registries
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    kv_tiers,
    lora,
    recipe_references,
    service_keys,
    tuning,
    wishes,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark

ROLES = ROOT / "roles"
DOCS = ROOT / "docs"
SELF = "scripts/generate_variables.py"
AUTHOR = "dgxspark.vllm contributors"


def below(table: Keys, prefix: str = "") -> dict[str, Key]:
    """Return the keys of a table and the keys below them by full names: C(model.repo), and C(files[].path) of a list."""
    keys_below = {}
    for name, key in table.items():
        place = f"{prefix}{name}{'[]' if key.listed == (list,) else ''}."
        for inner, inner_key in key.of.items() if isinstance(key.of, Mapping) else ():
            keys_below[f"{place}{inner}"] = inner_key
            keys_below.update(below({inner: inner_key}, place))
    return keys_below


TABLES: dict[str, Keys] = {
    **descriptions.OPTIONS,
    "spark_bench": benchmark.KEYS,
    "spark_cluster": clustering.CLUSTER_KEYS,
    "spark_cluster.fabric": clustering.FABRIC_KEYS,
    "recipes": service_keys.OWN,
    "recipes.expect": service_keys.EXPECT,
    "spark_fleet_monitor.notify": {**below(fleet_monitor.NOTIFIERS), "name": fleet_monitor.NOTIFY["name"]},
    "spark_recipe_sources": recipe_references.KEYS,
    "spark_registries": registries.KEYS,
    "spark_services": service_keys.SERVICE,
    "spark_services.below": {
        name: key
        for name, key in below(service_keys.SERVICE).items()
        if not name.startswith(("image.files", "model.extra[]"))
    },
    "spark_services.kv_tiers": kv_tiers.KEYS,
    "spark_services.lora": lora.KEYS,
    "spark_services.on_demand": on_demand_keys.KEYS,
    "spark_tune": tuning.KEYS,
    "spark_wishes": wishes.KEYS,
}
"""Tables of keys below a variable."""
TYPES = {str: "str", bool: "bool", int: "int", float: "float", list: "list", dict: "dict"}
"""Types of YAML, as argument specifications name them."""
LONGEST_DEFAULT = 60
"""Characters of a default that a table shows."""
WIDE = 65535
"""A range that ends here or later goes without saying: ports, a week in seconds."""
MARKER = rf"<!-- (?P<what>variables|keys of (?P<table>[\w.]+)|arguments of (?P<playbook>\w+)): {re.escape(SELF)} -->"


class Dumper(yaml.SafeDumper):
    """Indents lists below their key, as yamllint requires; lists of single words are on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent each level, lists too."""
        super().increase_indent(flow, False)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Return a list, on one line if it has single words."""
        words = all(isinstance(entry, str) and re.fullmatch(r"[\w.-]+", entry) for entry in sequence)
        return super().represent_sequence(tag, sequence, words)


def main() -> int:
    """Write the files, or compare them; returns the exit code."""
    texts = {path: page(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
    for source in sorted(ROLES.glob("*/meta/variables.yml")):
        texts |= of_role(source.parent.parent)
    return write_generated(texts)


def of_role(folder: Path) -> dict[Path, str]:
    """Return the generated files of a role with their texts."""
    points = yaml.safe_load((folder / "meta" / "variables.yml").read_text(encoding="utf-8"))
    specs: dict[str, Any] = {}
    for name, point in points.items():
        options = {}
        if table := point.get("keys_of"):
            keys = [key for key in TABLES[table] if key not in point.get("without", ())]
            options = {f"{folder.name}_{key}": {"as": f"{table}.{key}"} for key in keys}
        for option_name, settings in point.get("options", {}).items():
            options[option_name] = {**options.get(option_name, {}), **settings}
        specs[name] = {
            **{key: point[key] for key in ("short_description", "description")},
            "author": [AUTHOR],
            "options": {key: option(settings) for key, settings in options.items()},
        }
    options = specs["main"].get("options", {})
    defaults = ["---", f"# Written by {SELF} from ../meta/variables.yml; change that.", ""]
    spec = f"---\n# Written by {SELF} from variables.yml; change that.\n" + dump({"argument_specs": specs})
    for name, entry in options.items():
        if not entry.get("required"):
            comment = as_markdown(entry["description"]).replace("`", "")
            defaults += textwrap.wrap(comment, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
            defaults.append(dump({name: entry["default"]}).rstrip("\n"))
    readme = folder / "README.md"
    return {
        folder / "defaults" / "main.yml": "\n".join(defaults) + "\n",
        folder / "meta" / "argument_specs.yml": spec,
        readme: page(readme.read_text(encoding="utf-8"), options),
    }


def option(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return one option of a specification, with the properties of its inventory key."""
    base: dict[str, Any] = {}
    if "as" in settings:  # a key by its place, C(spark_hf_home) or C(spark_gateway.port)
        table, _dot, name = settings["as"].rpartition(".")
        key = TABLES[table][name] if table else VARIABLES[name]
        meaning = re.sub(r"`([^`]*)`", r"C(\1)", key.meaning)
        base = {
            "description": meaning[0].upper() + meaning[1:] + ".",
            "type": "float" if float in key.listed else TYPES[key.listed[0]],
            "default": key.default,
            **({"choices": list(key.choices)} if key.choices else {}),
        }
    if "default_of" in settings:
        base["default"] = {name: key.default for name, key in TABLES[settings["default_of"]].items()}
    if settings.get("required"):
        base.pop("default", None)
    merged = {**base, **{key: value for key, value in settings.items() if key not in ("as", "default_of")}}
    order = ["description", "type", "elements", "required", "choices", "default", "options"]
    return {key: merged[key] for key in order if key in merged}


def page(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Return a page with its tables as the schema has them. options: of the role whose README it is."""

    def table(match: re.Match[str]) -> str:
        if options is not None:
            return options_table(options)
        if match["table"]:
            return variables_table(TABLES[match["table"]], "key")
        return variables_table(PLAYBOOKS[match["playbook"]] if match["playbook"] else VARIABLES)

    return with_tables(text, MARKER, table)


def variables_table(keys: Keys, title: str = "variable") -> str:
    """Return a table of the keys of an inventory."""
    rows = []
    for name, key in keys.items():
        link = key.page.replace("inventory.md#", "#")
        default = "" if key.default is None or key.default in ("", [], {}) else code(key.default)
        default = "required" if key.required else default
        wide = key.least is None or key.most is None or key.most >= WIDE
        span = "" if wide else f" ({key.least:g} to {key.most:g})"
        kind = ", ".join(filter(None, [key.type_words, default]))
        rows.append([f"[`{name}`]({link})" if link else f"`{name}`", kind, f"{key.meaning}{span}"])
    return markdown_table((title, "type, default", "meaning"), rows)


def options_table(options: Mapping[str, Any]) -> str:
    """Return the table of a role's variables."""
    rows = []
    for name, entry in options.items():
        default = "required" if entry.get("required") else code(entry["default"])
        if len(default) > LONGEST_DEFAULT:
            default = "[defaults](defaults/main.yml)"
        meaning = as_markdown(entry["description"])
        choices = [f"`{choice}`" for choice in entry.get("choices", ()) if f"`{choice}`" not in meaning]
        allowed = f" One of {', '.join(choices)}." if len(choices) > 1 else ""
        rows.append([f"`{name}`", entry["type"], default, f"{meaning}{allowed}"])
    return markdown_table(("variable", "type", "default", "meaning"), rows)


def code(default: Any) -> str:
    """Return a value as code, as YAML has it on one line."""
    if isinstance(default, str):
        return f"`{default}`" if default else '`""`'
    is_whole = isinstance(default, float) and default.is_integer()
    return f"`{json.dumps(int(default) if is_whole else default, ensure_ascii=False)}`"


def as_markdown(description: str | list[str]) -> str:
    """Return a description with Ansible's markup as Markdown."""
    text = description if isinstance(description, str) else " ".join(description)
    return re.sub(r"\b[BCIMOPV]\(([^()]*)\)", r"`\1`", text)


def dump(value: Any) -> str:
    """Return YAML with lines of at most 150 characters."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=140, allow_unicode=True)


if __name__ == "__main__":
    sys.exit(main())
