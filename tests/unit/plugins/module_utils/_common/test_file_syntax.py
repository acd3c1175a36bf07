# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values at their places in files; plugin_utils/test_render.py fills all templates of the roles with hostile texts."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import file_syntax
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.file_syntax import Verbatim, command_line, fill

VALUE = "\x000\x00"  # NUL, the number of the value, NUL
OTHER = "\x001\x00"


def test_options_stand_on_lines_of_their_own() -> None:
    assert command_line(["/bin/x", "run", "--a", 1, "--b"]) == "/bin/x run \\\n    --a 1 \\\n    --b"


@pytest.mark.parametrize("value", [[], "text", None, ["/bin/x", "a\0b"], ["/bin/x", "\ud83d"]])
def test_only_a_list_with_a_program_and_texts_is_a_command_line(value: Any) -> None:
    with pytest.raises(ValueError):
        command_line(value)


@pytest.mark.parametrize(
    ("line", "values", "filled"),
    [
        (f"Description=On {VALUE}", ["a % \"b\""], 'Description=On a %% "b"'),
        (f"ListenStream={VALUE}:{OTHER}", ["[::1]", 80], "ListenStream=[::1]:80"),
        (f"ExecStart={VALUE}", [["/bin/x", "--a", "b c"]], 'ExecStart=/bin/x \\\n    --a "b c"'),
        (f"ExecStartPre=+{VALUE}", [["/bin/x", "$a"]], 'ExecStartPre=+/bin/x "$$a"'),
        (f"ExecStop=/bin/x {VALUE}", [["--a", "b"]], "ExecStop=/bin/x --a b"),
        (f"ExecStart=/bin/x {VALUE} {OTHER}", ["a b", "\n"], 'ExecStart=/bin/x "a b" "\\n"'),
        (f"ExecStart=-/{VALUE}/x --y={OTHER}.z", ["a", "%$"], 'ExecStart=-/a/x "--y=%%$$.z"'),
        (f"ExecStart=-{VALUE} \\\n    {OTHER} $MAINPID", ["/a b", "c"], 'ExecStart=-"/a b" \\\n    c $MAINPID'),
        (f"After=x.service {VALUE}", [["a.service", "b.service"]], "After=x.service a.service b.service"),
        (f"After={VALUE}", [[]], "After="),
        (f"ReadWritePaths=-{VALUE}", ["/a $b"], 'ReadWritePaths=-"/a $b"'),
        (f"Environment={VALUE}={OTHER}", ["A", "b%"], 'Environment="A=b%%"'),
        (f"# of {VALUE}", ["100 %"], "# of 100 %%"),
    ],
)  # fmt: skip
def test_a_unit_gets_values_as_its_settings_read_them(line: str, values: list[Any], filled: str) -> None:
    assert fill(f"[Unit]\n{line}\n", values, "service") == f"[Unit]\n{filled}\n"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"Description={VALUE}", "a\nb"),
        (f"SyslogIdentifier={VALUE}", "a\\"),
        (f"ExecStart={VALUE}", ["-/bin/x"]),
        (f"ExecStart={VALUE} a", "+/bin/x"),
        (f"ExecStart=-{VALUE}/x", "!/bin"),
        (f"After={VALUE}", "a\nb"),
        (f"ExecStart={VALUE}", []),
        (f"ExecStart=/bin/x --a={VALUE}", ["a"]),
        (f'ExecStart=/bin/x "{VALUE}"', "a"),
        (f"User={VALUE}", None),
        (f"User={VALUE}", True),
        (f"User={VALUE}", ["a"]),
        (f"# {VALUE}", "a\nb"),
        (f"ExecStart=/bin/x {VALUE}", "a\0b"),
    ],
)
def test_a_unit_refuses_what_its_line_cannot_hold(line: str, value: Any) -> None:
    with pytest.raises(ValueError):
        fill(line, [value], "service")


@pytest.mark.parametrize(
    ("text", "value", "filled"),
    [
        (f"a: {VALUE}", "b: #c", 'a: "b: #c"'),
        (f"a: {VALUE}", "é\n", 'a: "\\U000000E9\\n"'),
        (f"  - {VALUE}", 5, "  - 5"),
        (f"a: {{b: {VALUE}, c: d}}", True, "a: {b: true, c: d}"),
        (f'a: "{VALUE}s"', 15, 'a: "15s"'),
        (f"a: http://{VALUE}/", "b.c", "a: http://b.c/"),
        (f"a: {VALUE}", None, "a: null"),
        (f"{VALUE}", Verbatim("a:\n  - b"), "a:\n  - b"),
    ],
)
def test_yaml_gets_a_scalar(text: str, value: Any, filled: str) -> None:
    assert fill(text, [value], "yml") == filled


@pytest.mark.parametrize(
    ("text", "value", "syntax"),
    [
        (f'a: "{VALUE}"', 'b"', "yaml"),
        (f"a: x {VALUE}", "b: c", "yaml"),
        (f"a: {VALUE}", ["b"], "yaml"),
        (f"a: {VALUE}", float("nan"), "yaml"),
        (f"A={VALUE}", "b\nC=d", "env"),
        (f"elements = {{ {VALUE} }}", "a }", "nft"),
        (f"FROM {VALUE}", "a\nRUN b", "Dockerfile"),
        (f"FROM {VALUE}", "a$(b)", "Dockerfile"),
        (f"x {VALUE}", None, "sh"),
        (f"A={VALUE}", Verbatim("a\0b"), "env"),
    ],
)
def test_a_value_that_would_be_read_otherwise_is_refused(text: str, value: Any, syntax: str) -> None:
    with pytest.raises(ValueError):
        fill(text, [value], syntax)


@pytest.mark.parametrize(
    ("text", "value", "syntax", "filled"),
    [
        (f"A={VALUE}", "b 'c' \"d\" #\t$e", "env", "A=b 'c' \"d\" #\t$e"),
        (f"{{ {VALUE} }}", ["10.0.0.0/8", 22], "nft", "{ 10.0.0.0/8, 22 }"),
        (f"x {VALUE} y", "a'b\n", "sh", "x 'a'\"'\"'b\n' y"),
        (f"x {VALUE}", ["a b", 1], "sh", "x 'a b' 1"),
    ],
)
def test_other_files_get_values_in_their_syntax(text: str, value: Any, syntax: str, filled: str) -> None:
    assert fill(text, [value], syntax) == filled


def test_the_name_of_a_template_tells_its_syntax() -> None:
    names = ("a.service.j2", "b/c.d.nft.j2", "ray/Dockerfile.j2", "x.yml.j2")
    assert [file_syntax.syntax_of(name) for name in names] == ["service", "nft", "Dockerfile", "yml"]
    with pytest.raises(ValueError, match="tells no syntax"):
        file_syntax.syntax_of("revert.j2")
