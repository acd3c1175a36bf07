"""The filter is judged by systemd's own reading of what it writes, where systemd-analyze is there."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.dgxspark.vllm.plugins.filter.systemd_exec import FilterModule, quote

systemd_exec = FilterModule().filters()["systemd_exec"]


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("--port=8001", "--port=8001"),
        ("a b", '"a b"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('{"method":"mtp"}', '"{\\"method\\":\\"mtp\\"}"'),
        ("back\\slash", '"back\\\\slash"'),
        ("it's", '"it\'s"'),
        (";", '";"'),
        ("", '""'),
        ("`id`", '"`id`"'),
    ],
)
def test_each_character_reaches_the_program_as_it_is(argument: str, written: str) -> None:
    assert quote(argument) == written


def test_options_stand_on_lines_of_their_own() -> None:
    assert systemd_exec(["/bin/x", "run", "--a", "1", "--b"]) == "/bin/x run \\\n    --a 1 \\\n    --b"


@pytest.mark.parametrize("argument", ["a\nExecStart=/bin/sh", "a\0b", "\x1b[0m"])
def test_line_breaks_and_control_characters_are_refused(argument: str) -> None:
    with pytest.raises(AnsibleFilterError):
        quote(argument)


@pytest.mark.parametrize("value", [[], "text", None])
def test_only_a_list_with_a_program_is_taken(value: object) -> None:
    with pytest.raises(AnsibleFilterError):
        systemd_exec(value)
