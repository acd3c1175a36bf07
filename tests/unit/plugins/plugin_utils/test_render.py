# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of roles: what a template author cannot get wrong, and every template of every role with hostile values."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_inventories
import pytest
import role_files
import yaml
from systemd_fixture import needs_systemd, read_by_systemd, run_by_systemd, unquoted

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import file_syntax
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import render


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The templates of a role."""
    monkeypatch.setattr(render, "ROLES", tmp_path)
    folder = tmp_path / "one" / "templates"
    folder.mkdir(parents=True)
    return folder


def test_values_are_escaped_by_the_name_of_the_template(role: Path) -> None:
    for name in ("x.service.j2", "x.yml.j2", "x.env.j2", "x.sh.j2"):
        (role / name).write_text("[Unit]\n{% if value %}\nA={{ value }}{{ 1 }}\n{% endif %}\n")
    value = "50 % $x"
    assert render.render_template("one/x.service.j2", {"value": value}) == '[Unit]\nA="50 %% $x1"\n'
    assert render.render_template("one/x.env.j2", {"value": value}) == "[Unit]\nA=50 % $x1\n"
    assert render.render_template("one/x.sh.j2", {"value": value}) == "[Unit]\nA='50 % $x'1\n"
    with pytest.raises(ValueError, match=r"one/x\.yml\.j2: '50 % \$x' stands within a scalar"):
        render.render_template("one/x.yml.j2", {"value": value})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A={{ missing }}\n", "'missing' is undefined"),
        ("{% if missing %}\n{% endif %}\n", "'missing' is undefined"),
        ("A={{ value.missing }}\n", "no attribute 'missing'"),
        ("A={{ none }}\n", "None is neither a text nor a number"),
        ("A={{ [1, [2]] }}\n", "neither a text nor a number"),
        ("{% set all %}x{{ value }}{% endset %}\nA={{ all }}\n", r"contains (U\+0000|a control character)"),
        ("A={{ value\n", "unexpected end of template"),
    ],
)
def test_a_mistake_in_a_template_is_an_error_that_names_it(role: Path, text: str, why: str) -> None:
    (role / "x.service.j2").write_text(text)
    with pytest.raises(ValueError, match=rf"(?s)^one/x\.service\.j2: .*{why}"):
        render.render_template("one/x.service.j2", {"value": "x"})
    with pytest.raises(ValueError, match=r"one/other\.service\.j2"):
        render.render_template("one/other.service.j2", {})


def test_a_template_with_double_braces_of_its_own_names_its_delimiters(role: Path) -> None:
    first = "#jinja2: variable_start_string: '[[', variable_end_string: ']]'\n"
    (role / "x.yml.j2").write_text(f"{first}a: {{{{ $labels.host }}}}\nb: [[ value ]]\n")
    assert render.names_in("one/x.yml.j2") == {"value"}
    assert render.render_template("one/x.yml.j2", {"value": 7}) == "a: {{ $labels.host }}\nb: 7\n"


def test_a_template_that_has_changed_is_read_again(role: Path) -> None:
    path = role / "x.env.j2"
    for moment, text in enumerate(("A={{ value }}\n", "B={{ value }}\n")):
        path.write_text(text)
        os.utime(path, (moment, moment))
        assert render.render_template("one/x.env.j2", {"value": "x"}) == text.replace("{{ value }}", "x")


# --- every template of every role ---------------------------------------------------------------------------------------

FIXTURE = Path(__file__).parents[1] / "fixtures" / "template_values.yml"
VALUES: dict[str, dict[str, Any]] = yaml.safe_load(FIXTURE.read_text(encoding="utf-8"))
UNITS = (".service.j2", ".socket.j2", ".timer.j2", ".conf.j2")
TOKEN = "Token0Token"
# Templates that look into a text: a part of it decides between branches or is cut off.
LOOKS_INTO = {
    "clients/state.yml.j2": "/",
    "exporters/spark-gpu-exporter.service.j2": ":",
    "exporters/spark-node-exporter.service.j2": ":",
    "fabric/revert.sh.j2": "/",
    "firewall/firewall.nft.j2": ":",
    "monitoring/alertmanager.yml.j2": "/",
    "monitoring/datasource.yml.j2": ":",
    "monitoring/prometheus.yml.j2": ":",
    "monitoring/spark-alertmanager.service.j2": ":",
    "monitoring/spark-prometheus.service.j2": ":",
}
TEXTS = [text for text in hostile_inventories.TEXTS if text and len(text) < 1000]
SEED = 20261128


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of texts in a value."""
    if isinstance(value, str) and value:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """A copy of a value with another text at a place."""
    if not path:
        return text
    if isinstance(value, dict):
        return {key: replaced(item, path[1:], text) if key == path[0] else item for key, item in value.items()}
    return [replaced(item, path[1:], text) if index == path[0] else item for index, item in enumerate(value)]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """The text at a place of a value."""
    for key in path:
        value = value[key]
    return value


def words(setting: str) -> list[str]:
    """The words of a setting that is no command, as systemd.syntax(7) says."""
    groups = re.findall(r'([^" ]*)(?:"((?:[^"\\]|\\.)*)")?(?: |$)', setting)
    return [(plain + re.sub(r"\\(.)", r"\1", quoted)).replace("%%", "%") for plain, quoted in groups if plain or quoted]


def parsed(name: str, text: str) -> Any:
    """What the program that reads a file finds in it."""
    if name.endswith(UNITS):
        return [[section, key, *setting_of(key, value)] for section, key, value in role_files.settings_of(text)]
    if name.endswith((".yml.j2", ".yaml.j2")):
        return yaml.safe_load(text)
    if name.endswith(".sh.j2"):
        return [shlex.split(text, comments=True)]
    return text.split("\n")


def setting_of(key: str, value: str) -> list[str]:
    """The value of a setting of a unit: one text, or its words."""
    if key in file_syntax.ONE_TEXT:
        return [value.replace("%%", "%")]
    if not key.startswith("Exec"):
        return words(value)
    prefix = re.match(r"[-+]*", value)
    return [prefix[0], *role_files.words_of(value[prefix.end() :].replace("$MAINPID", "MAINPID"))] if prefix else []


def with_text(value: Any, text: str) -> Any:
    """Return the parsed value with a text in place of the token."""
    if isinstance(value, str):
        return value.replace(TOKEN, text)
    if isinstance(value, dict):
        return {with_text(key, text): with_text(item, text) for key, item in value.items()}
    return [with_text(item, text) for item in value] if isinstance(value, (list, tuple)) else value


def test_each_template_has_values_for_the_names_that_it_reads() -> None:
    templates = {f"{path.parts[-3]}/{path.name}" for path in render.ROLES.glob("*/templates/*")}
    assert set(VALUES) == templates
    for name, values in VALUES.items():
        assert set(values) == render.names_in(name), name
        assert name not in LOOKS_INTO or leaves(values)


@pytest.mark.parametrize("name", VALUES)
def test_a_hostile_text_stays_in_its_place(name: str) -> None:
    """Each text of the values is replaced by hostile ones: the template is refused, or its program reads the text and nothing else changes."""
    chance = random.Random(SEED)
    accepted = 0
    for place in leaves(VALUES[name]):
        usual = parsed(name, render.render_template(name, replaced(VALUES[name], place, TOKEN)))
        for text in [*chance.sample(TEXTS, 12), "a b", "x\nExecStart=/bin/sh", "x: y", "a\nb=c"]:
            if text and LOOKS_INTO.get(name, "\0") in text:
                continue
            try:
                made = render.render_template(name, replaced(VALUES[name], place, text))
            except ValueError:
                continue
            accepted += 1
            assert parsed(name, made) == with_text(usual, text), (place, text)
    assert accepted or not list(leaves(VALUES[name]))


@needs_systemd
def test_systemd_reads_the_commands_of_all_units_as_they_are_meant() -> None:
    chance = random.Random(SEED)
    # Without what systemd refuses in the name of a program.
    texts = [text for text in TEXTS if not re.search(r"[\x00-\x1f\x7f/\\\"'\ud800-\udfff]", text)]
    units: dict[str, str] = {}
    commands: dict[str, list[list[str]]] = {}
    for name in (name for name in VALUES if name.endswith(".service.j2")):
        for number, place in enumerate(leaves(VALUES[name])):
            values = replaced(VALUES[name], place, f"{at(VALUES[name], place)}{chance.choice(texts)}")
            try:
                text = render.render_template(name, values)
            except ValueError:
                continue
            unit = f"{name.partition('/')[0]}-{len(units)}-{number}.service"
            units[unit] = text
            commands[unit] = [
                setting_of(key, value) for _section, key, value in role_files.settings_of(text) if key == "ExecStart"
            ]
    seen = read_by_systemd(units)
    assert len(units) > 100
    for unit, expected in commands.items():
        assert [run_by_systemd(unquoted(line)) for line in seen[unit]["ExecStart"]] == [
            words[1:] for words in expected
        ], unit
