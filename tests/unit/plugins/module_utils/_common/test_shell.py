# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shell scripts from documentation; the words are compared with the real sh if it is installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import shell, shell_script


def words(text: str, **variables: str) -> list[list[str]]:
    return [command.words for command in shell_script.read_script(text, variables)]


@pytest.mark.parametrize(
    "text",
    [
        "CMD a  b\tc",
        "CMD 'a b' \"c d\" e\\ f '' \"\"",
        'CMD "a \'b\' \\"c\\" \\$d \\\\ \\n"',
        "CMD 'a \\ \"b\" $HOME'",
        'CMD \'{"method":"mtp","n":2}\' --x={1}',
        "CMD a \\\n  b \\\n c",
        "X=1\nCMD $X ${X} ${X}b ${Y:-two} \"$X\" '$X' a$X",
        "CMD a # a comment",
        "CMD a#b '#c'",
        "CMD a > /dev/null",
        "CMD a 2>&1",
        "export A=1 B='x y'\nCMD $A \"$B\"",
        "CMD a=b --c=d",
        'CMD "a\nb"',
    ],
)
def test_words_are_those_of_a_shell(text: str) -> None:
    show = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]), file=sys.stderr)'"
    ran = subprocess.run(["sh", "-c", text.replace("CMD", show)], capture_output=True, text=True, check=True)
    output = ran.stderr or ran.stdout
    expected = json.loads(output) if output else None
    commands = [command[1:] for command in words(text) if command[0] == "CMD"]
    # Redirected output is not seen; the words are known all the same.
    assert commands == [expected if expected is not None else ["a"]]


def test_operators_separate_commands() -> None:
    assert words("a 1 && b || c; d | e & f\n(g)") == [["a", "1"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]


def test_variables_in_front_and_exported() -> None:
    first, second = shell_script.read_script("export A=1\nB=2\nC=$B run\nrun again")
    assert (first.words, first.variables) == (["run"], {"A": "1", "C": "2"})
    assert second.variables == {"A": "1"}


def test_what_a_script_sets_is_told() -> None:
    variables = {"HOME": "/home/me"}
    assert [command.words for command in shell_script.read_script("A=~/x\nrun $A ~/y ~", variables)] == [
        ["run", "/home/me/x", "/home/me/y", "/home/me"]
    ]
    assert variables["A"] == "/home/me/x"


@pytest.mark.parametrize(
    ("text", "word", "unknown"),
    [
        ("$A", "${A}", ["A"]),
        ("${A}/b", "${A}/b", ["A"]),
        ("${A:?needed}", "${A}", ["A"]),
        ("<HF_MODEL_HANDLE>", "${HF_MODEL_HANDLE}", ["HF_MODEL_HANDLE"]),
        ('"$(openssl rand -hex 32)"', "$(openssl rand -hex 32)", ["$(openssl rand -hex 32)"]),
        ("`date`", "`date`", ["`date`"]),
        ("cost$", "cost$", []),
    ],
)
def test_what_is_not_known_stays(text: str, word: str, unknown: list[str]) -> None:
    assert words(f"run {text}") == [["run", word]]
    assert shell.unknown_names(word) == unknown


def test_placeholders_of_a_template_can_be_filled() -> None:
    assert words("vllm serve <MODEL> --port 1", MODEL="a/b") == [["vllm", "serve", "a/b", "--port", "1"]]


def test_a_loop_over_an_array_with_unknown_parts_of_words_is_followed() -> None:
    script = 'envs=("A=$unknown" B=2)\nfor e in "${envs[@]}"; do args+=(-e "$e"); done\nrun "${args[@]}"'
    assert words(script) == [["run", "-e", "A=${unknown}", "-e", "B=2"]]


@pytest.mark.parametrize("listed", ["$UNKNOWN", '"${unknown[@]}"', "*.txt", "$(ls)", "{1..3}"])
def test_a_loop_over_a_list_that_the_machine_decides_is_not(listed: str) -> None:
    assert words(f'args=(a)\nfor e in {listed}; do args+=(-e "$e"); done\nrun "${{args[@]}}"') == [["run", "a"]]


def test_blanks_behind_a_continuation_are_forgiven() -> None:
    assert words("run a \\  \n b \\\r\n c") == [["run", "a", "b", "c"]]


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "run `a"])
def test_an_open_quote_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="never closed"):
        shell_script.read_script(text)


def test_lines_that_no_shell_reads_have_no_operators() -> None:
    assert shell.read_words("a 'b c' d;e | f > g\n$H", {"H": "h"}) == ["a", "b c", "d;e", "|", "f", ">", "g", "h"]


def test_expand() -> None:
    variables = {"A": "1", "E": ""}
    assert shell.expand("$A-${A}-${B:-b}-${E:-e}-${E-e}-$$A-${B}", variables) == "1-1-b-e--$A-${B}"
