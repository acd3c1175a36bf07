# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Templates of roles: what a template author cannot get wrong, and every template of every role with hostile values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
        ("{% set all %}x{{ value }}{% endset %}\nA={{ all }}\n", r"holds (U\+0000|a control character)"),
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
