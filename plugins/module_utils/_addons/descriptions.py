# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The descriptions of add-on services: C(roles/ROLE/meta/addon.yml) has the options of the inventory, the containers and the findings.

These files are on the controller alone, so modules must not use the planners of add-on services. The files are read at first use: ansible-test
imports this file without PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from .._common import component_versions, plain_data, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._runtime import guard, load_guard, quality, wedge

ROLES = Path(__file__).resolve().parents[3] / "roles"
TYPES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "number": NUMBER, "list": list, "dict": dict}
FORMS: dict[str, Callable[[str], Any]] = {
    "address": plain_data.is_address,
    "address or empty": lambda text: not text or plain_data.is_address(text),
    "e-mail address": lambda text: "@" in text and plain_data.is_line(text),
    "image": validation.IMAGE_REF.fullmatch,
    "line": plain_data.is_line,
    "not empty": bool,
    "web address": plain_data.web_address,
}
"""Tests of texts, by the word for them in C(form). C(pattern) is a regular expression instead."""
PROGRAMS: dict[str, Any] = {
    "guard": guard.Settings(),
    "load_guard": load_guard.Settings(),
    "quality": quality.Settings(),
    "wedge": wedge.Settings(),
}
"""Settings of programs on hosts, by their file; an option with C(of_program) has the default of the program."""


def component(name: str) -> str:
    """Return the version or image reference of a component. name: C(LITELLM.ref), as C(component_versions) has it."""
    constant, _dot, attribute = name.partition(".")
    return str(getattr(getattr(component_versions, constant), attribute))


T = TypeVar("T")


class Lazy(Mapping[str, T], Generic[T]):
    """A mapping that is made at first use."""

    def __init__(self, make: Callable[[], Mapping[str, T]]) -> None:
        self._make = cache(make)

    def __getitem__(self, key: str) -> T:
        return self._make()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


def _load(role: str) -> dict[str, Any]:
    import yaml

    text = (ROLES / role / "meta" / "addon.yml").read_text(encoding="utf-8")
    return dict(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # both are safe


DESCRIPTIONS: dict[str, Mapping[str, Any]] = {
    role: Lazy(partial(_load, role))
    for role in ("speech", "ollama", "gateway", "clients", "monitoring", "fleet_monitor", "guard", "watchdog")
}
OPTIONS: Mapping[str, Mapping[str, Key]] = Lazy(
    lambda: {
        place: {name: _key(entry, name) for name, entry in table.items()}
        for description in DESCRIPTIONS.values()
        for place, table in description["options"].items()
    }
)
"""Options by their place in the inventory, C(spark_gateway) or C(spark_monitoring.receivers)."""
FINDINGS: Mapping[str, Mapping[str, str]] = Lazy(
    lambda: {rule: text for description in DESCRIPTIONS.values() for rule, text in description["findings"].items()}
)
"""Texts of findings by rule; a rule with several texts has the case as a third part of the name."""


def _key(entry: Mapping[str, Any], name: str = "") -> Key:
    """Return an option as a key of the schema."""
    types, default, of = entry["type"], entry.get("default"), entry.get("of")
    form: Callable[[str], Any] | None = None
    if "component" in entry:
        default = component(entry["component"])
    elif "of_program" in entry:
        default = getattr(PROGRAMS[entry["of_program"]], name)
    if "pattern" in entry:
        form = re.compile(entry["pattern"]).fullmatch
    elif "form" in entry:
        form = FORMS[entry["form"]]
    return Key(
        TYPES[types] if isinstance(types, str) else tuple(TYPES[word] for word in types),
        default,
        entry["meaning"],
        choices=tuple(entry.get("choices", ())),
        form=form,
        like=entry.get("like", "").replace("{default}", str(default)),
        of=options(of) if isinstance(of, str) else of and _key(of),
        **{part: entry[part] for part in ("least", "most", "unit", "page", "required") if part in entry},
    )


def options(place: str) -> Mapping[str, Key]:
    """Return the options of a place in the inventory."""
    return Lazy(lambda: OPTIONS[place])


def finding(rule: str, service: str = "", like: str = "", severity: str = "", **values: Any) -> Finding:
    """Return a finding with the text of its description.

    :param like: the id whose text it has, where several rules have one text
    :param severity: for a text without a severity, which depends on the case
    """
    text = FINDINGS[like or rule]
    return Finding(
        rule,
        severity or text["severity"],
        text["message"].format(**values),
        fix=text.get("fix", "").format(**values),
        service=service,
        source=text.get("source", "").format(**values),
        basis=text.get("basis", "inventory"),
    )
