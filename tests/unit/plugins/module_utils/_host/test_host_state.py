# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge

DOCUMENT: dict[str, Any] = {
    "accounts": [{"name": "dgxspark", "home": "/nonexistent", "shell": "/usr/sbin/nologin"}],
    "folders": [{"path": "/etc/a", "mode": "0750"}],
    "files": [{"path": "/etc/a/one", "content": "1"}, {"path": "/etc/a/key", "source": "/keys/one", "secret": True}],
    "units": [{"name": "a.service", "enabled": True}],
    "created": ["/var/lib/a.json"],
    "removed": ["/etc/old"],
}


def test_a_document_is_read_back_as_it_was_written() -> None:
    state = HostState.from_dict(DOCUMENT, "a")
    assert HostState.from_dict(json.loads(state.dump())) == state
    assert state.dump() == HostState.from_dict(json.loads(json.dumps(DOCUMENT)), "a").dump()
    assert {row.part for kind in vars(state).values() for row in kind} == {"a"}
    assert state.to_dict()["removed"] == [{"path": "/etc/old", "part": "a"}]


def test_rows_of_a_part_are_those_that_it_owns() -> None:
    both = merge([HostState.from_dict(DOCUMENT, "a"), HostState.from_dict({"files": [{"path": "/b"}]}, "b")])
    assert both.of_parts({"b"}) == HostState.from_dict({"files": [{"path": "/b", "part": "b"}]})
    assert both.of_parts({"a"}) == HostState.from_dict(DOCUMENT, "a")


def test_a_file_that_two_parts_share_is_sent_once_and_restarts_units_of_both() -> None:
    shared = {"path": "/lib/x.py", "content": "1"}
    states = [
        HostState.from_dict({"files": [shared, {"path": f"/{part}"}], "units": [{"name": f"{part}.service"}]}, part)
        for part in ("a", "b")
    ]
    state = merge(states).distinct()
    assert [file.path for file in state.files] == ["/lib/x.py", "/a", "/b"]
    assert [unit.restart_on for unit in state.units] == [("/lib/x.py", "/a"), ("/lib/x.py", "/b")]
    assert state.distinct() == state


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"files": [{"path": "/a", "mod": "0644"}]}, "files: unknown keys mod; known are path,"),
        ({"units": [{"state": "started"}]}, "units: a row lacks name"),
        ({"files": [{"path": "/a", "content": {"a": 1}}]}, "files: content must not be a mapping"),
        ({"files": [{"path": "/a", "content": "1"}, {"path": "/a", "content": "2"}]}, "/a is listed twice"),
        ({"files": [{"path": "/a"}, {"path": "/a", "mode": "0600"}]}, "/a is listed twice"),
    ],
)
def test_a_row_that_is_none_is_refused(document: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        HostState.from_dict(document).distinct()
