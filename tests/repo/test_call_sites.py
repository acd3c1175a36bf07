# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of a host are called in module_utils/_host alone: there, a failure is told from an answer, once for all callers.

The agent, module_utils/_agent, is a program that stays on hosts, as those of roles; they call command.py directly.

A command line is found as a list, a tuple or the arguments of a call that begin with the name of a program.
"""

from __future__ import annotations

import ast

import tree

ROOMS = ("plugins/module_utils/_host/", "plugins/module_utils/_agent/")
PROGRAMS = ("systemctl", "docker", "nvidia-smi", "journalctl", "ip", "ss")
WORDS = (
    "run",
    "exec",
    "ps",
    "inspect",
    "container",
    "image",
    "save",
    "load",
    "logs",
    "info",
    "system",
    "rm",
    "tag",
    "show",
)


def command_lines(text: str) -> list[int]:
    """Return the lines of a file on which a command line of such a program begins."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.List, ast.Tuple)):
            continue
        words = node.elts
        first = words[0] if words else None
        if isinstance(first, ast.Name) and first.id in PROGRAMS:  # a parameter with the program's name
            lines.append(node.lineno)
        if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            continue
        constants = [word.value for word in words[1:] if isinstance(word, ast.Constant)]
        is_name = first.value.rpartition("/")[2] in PROGRAMS and not set(constants) & {"podman", "compose", "free"}
        # A tuple of constants is a choice of words, unless it goes into a longer command line.
        is_choice = (
            isinstance(node, ast.Tuple) and not set(constants) & {*WORDS, "-i"} and len(constants) == len(words) - 1
        )
        if is_name and not is_choice:
            lines.append(node.lineno)
    return lines


def test_programs_of_a_host_are_called_in_one_place() -> None:
    names = [*tree.below("plugins/module_utils/", suffix=".py"), *tree.below("plugins/modules/", suffix=".py")]
    elsewhere = [name for name in names if not name.startswith(ROOMS) and command_lines(tree.read(name))]
    assert elsewhere == [], "call a function of module_utils/_host, or add one there"


def test_a_new_call_is_found() -> None:
    for text in (
        'run(["systemctl", "stop", unit])',
        'ROUTES = ["ip", "route"]',
        'argv = [*("docker", "run", "--rm"), name]',
        'run(["/usr/bin/docker", *words])',
        "run([docker, 'save', image])",
    ):
        assert command_lines(text), text
    for text in ('kind in ("docker", "compose")', 'raise NoAnswer("docker", why)', 'PROGRAMS = {"docker": 1}'):
        assert not command_lines(text), text
