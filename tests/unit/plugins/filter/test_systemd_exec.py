"""What the filter writes; tests/unit/plugins/module_utils/_plan/test_unit_files.py has systemd itself read it."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.dgxspark.vllm.plugins.filter.systemd_exec import FilterModule

systemd_exec = FilterModule().filters()["systemd_exec"]


def test_options_stand_on_lines_of_their_own() -> None:
    assert systemd_exec(["/bin/x", "run", "--a", "1", "--b"]) == "/bin/x run \\\n    --a 1 \\\n    --b"


@pytest.mark.parametrize("value", [[], "text", None, ["/bin/x", "a\0b"], ["/bin/x", "\ud83d"]])
def test_only_a_list_with_a_program_and_texts_is_taken(value: object) -> None:
    with pytest.raises(AnsibleFilterError):
        systemd_exec(value)
