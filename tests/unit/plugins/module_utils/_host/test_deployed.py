# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployed
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployed import Deployed
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge


def rows(part: str, *paths: str, **more: Any) -> HostState:
    return HostState.from_dict({"files": [{"path": path, "digest": "1"} for path in paths], **more}, part)


def paths(state: HostState) -> list[tuple[str, str]]:
    return [(file.path, file.part) for file in state.files]


def test_the_record_is_read_back_without_contents_and_without_anything_of_secrets(tmp_path: Path) -> None:
    state = HostState.from_dict(
        {
            "files": [
                {"path": "/a", "digest": "1", "data": "MQ==", "content": "1"},
                {"path": "/key", "digest": "2", "data": "Mg==", "secret": True},
                {"path": "/made", "digest": "3", "generate": 32},
            ],
            "units": [{"name": "a.service", "outdated": True}],
            "created": ["/run/a"],
            "removed": ["/old"],
        },
        "a",
    )
    record = Deployed(state, {"a": "sum"}, ("/old/key",))
    assert deployed.save(record, tmp_path) and not deployed.save(record, tmp_path)
    path = tmp_path / "var/lib/dgxspark/deployed.json"
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = deployed.load(tmp_path)
    assert loaded is not None
    assert loaded == replace(record, state=deployed.without_contents(state))
    assert [file.digest for file in loaded.state.files] == ["1", None, None]
    assert "MQ==" not in path.read_text() and loaded.state.removed == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "state": {"files": 3}}']
)
def test_a_damaged_record_is_a_warning_and_nothing_is_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "var/lib/dgxspark/deployed.json"
    warnings: list[str] = []
    assert deployed.load(tmp_path, warnings.append) is None and warnings == []
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert deployed.load(tmp_path, warnings.append) is None
    assert warnings == [f"{path} cannot be read; the current generation of the host counts as deployed"]


def test_a_record_of_this_schema_is_read(tmp_path: Path) -> None:
    """The files of hosts have it."""
    path = tmp_path / "var/lib/dgxspark/deployed.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 1, "state": {"files": [{"path": "/a", "part": "a"}]}, "checksums": {"a": "1"}}')
    loaded = deployed.load(tmp_path)
    assert loaded is not None and paths(loaded.state) == [("/a", "a")] and loaded.checksums == {"a": "1"}


def test_a_record_without_rows_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "var/lib/dgxspark/deployed.json"
    deployed.save(Deployed(rows("a", "/a")), tmp_path)
    assert deployed.save(Deployed(checksums={"a": "1"}), tmp_path) and not path.exists()
    assert not deployed.save(Deployed(), tmp_path)
    # A key that a generation needs is recorded without a row.
    assert deployed.save(Deployed(retired=("/old/key",)), tmp_path) and path.exists()


def test_a_checksum_is_one_of_rows_and_digests_alone() -> None:
    sent = HostState.from_dict({"files": [{"path": "/a", "digest": "1"}], "units": [{"name": "a.service"}]}, "a")
    second = replace(
        sent.resolved(),
        files=(replace(sent.files[0], data="MQ=="),),
        units=(replace(sent.units[0], outdated=True, restart_on=("/a",)),),
    )
    assert deployed.checksum(sent) == deployed.checksum(second)
    changed = [replace(sent.files[0], digest="2"), replace(sent.files[0], mode="0600")]
    sums = {deployed.checksum(replace(sent, files=(file,))) for file in changed} | {deployed.checksum(sent)}
    assert len(sums) == 3
    assert set(deployed.checksums(sent, ["a", "b"])) == {"a", "b"}


def test_a_row_goes_once_no_part_lists_it() -> None:
    before = merge([rows("a", "/one", "/both"), rows("b", "/two", "/both")])
    after = deployed.rows_after(before, HostState(), ["a"])
    assert paths(after) == [("/two", "b"), ("/both", "b")]
    assert paths(deployed.removed_rows(before, after, ["a"])) == [("/one", "a")]
    # Part b does not take rows of a, even if the new document lists them.
    assert paths(deployed.removed_rows(before, HostState(), ["b"])) == [("/two", "b"), ("/both", "b")]


def test_every_kind_is_compared_by_what_names_a_row() -> None:
    more: dict[str, Any] = {"accounts": [{"name": "u"}], "units": [{"name": "u.service"}], "created": ["/c"]}
    before = rows("a", "/f", folders=[{"path": "/d"}], **more)
    changed = rows("a", "/f", folders=[{"path": "/d", "mode": "0700"}], **more)
    assert deployed.removed_rows(before, changed, ["a"]) == HostState()
    assert deployed.removed_rows(before, HostState(), ["a"]) == before


def test_rows_without_a_part_are_those_of_a_part_that_lists_them_now() -> None:
    before = rows("", "/one", "/two")
    after = deployed.rows_after(before, rows("a", "/one"), ["a"])
    assert paths(after) == [("/one", "a"), ("/two", "")]


def test_the_union_has_the_rows_of_both_and_each_once_for_a_part() -> None:
    first, second = rows("a", "/one"), merge([rows("a", "/one", "/two"), rows("b", "/one")])
    assert paths(deployed.union(first, second)) == [("/one", "a"), ("/two", "a"), ("/one", "b")]


def test_the_current_generation_is_what_is_deployed_where_there_is_no_record(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/dgxspark/generations"
    folder.mkdir(parents=True)
    (folder / "current.json").write_text('{"number": 3}')
    assert deployed.load(tmp_path) is None
    state = {"files": [{"path": "/etc/dgxspark/env/heavy.env", "part": "service"}]}
    (folder / "3.json").write_text(json.dumps({"schema": 2, "number": 3, "state": state}))
    loaded = deployed.load(tmp_path)
    assert loaded is not None and paths(loaded.state) == [("/etc/dgxspark/env/heavy.env", "service")]
    # Of the form before the first release, or damaged.
    for other in ({"files": {"/etc/dgxspark/env/heavy.env": {"sha256": "2"}}}, []):
        (folder / "3.json").write_text(json.dumps({"schema": 1, "number": 3, "state": other}))
        assert deployed.load(tmp_path) is None


def test_a_generation_with_a_document_is_read_where_the_record_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/dgxspark/generations"
    folder.mkdir(parents=True)
    (folder / "current.json").write_text('{"number": 1}')
    (folder / "1.json").write_text(
        json.dumps({"schema": 2, "state": rows("a", "/a").to_dict(), "checksums": {"a": "1"}})
    )
    (folder.parent / "deployed.json").write_text("{")
    assert deployed.load(tmp_path) == Deployed(rows("a", "/a"), {"a": "1"})


def test_units_of_the_collection_are_known_by_their_first_lines(tmp_path: Path) -> None:
    system = tmp_path / "etc/systemd/system"
    (system / "ssh.service.d").mkdir(parents=True)
    head = "#\n# Managed by Ansible: dgxspark.vllm\n#\n[Unit]\n"
    for name in (
        "spark-heavy.service",
        "spark-heavy.socket",
        "spark-watchdog.service",
        "ssh.service.d/50-dgxspark.conf",
    ):
        (system / name).write_text(head)
    (system / "dgxspark-fabric-relay.service").write_text("# Ansible managed: dgxspark.vllm.fabric\n[Unit]\n")
    (system / "spark-mine.service").write_text("[Unit]\nDescription=Asks the server of dgxspark.vllm\n")
    (system / "spark-link.service").symlink_to(system / "spark-heavy.service")
    state = deployed.find_units(tmp_path)
    assert sorted((unit.name, unit.part) for unit in state.units) == [
        ("dgxspark-fabric-relay.service", "fabric"),
        ("spark-heavy.service", ""),
        ("spark-heavy.socket", ""),
        ("spark-watchdog.service", ""),
    ]
    assert ("/etc/systemd/system/ssh.service.d/50-dgxspark.conf", "") in paths(state)
    assert len(state.files) == 5
