# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reset on folders of this machine: recorded files are removed by name, files of others stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployed, host_lock, made, reset
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostFile, HostState, Unit
from ansible_collections.dgxspark.vllm.plugins.modules import deploy

SHOWN = "Id={}\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\n"


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostState:
    """The unit files that the host is found to have."""
    monkeypatch.setattr(deployed, "find_units", lambda _root=Path("/"): HostState())
    return HostState()


@pytest.fixture
def call(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, units: HostState) -> Any:
    monkeypatch.setattr(reset, "CACHES", tmp_path / "own-caches")
    monkeypatch.setattr(reset, "TREES", (str(tmp_path / "etc"),))
    monkeypatch.setattr(reset, "NFT_TABLE", [str(tmp_path / "nft")])
    monkeypatch.setattr(reset, "ACCOUNTS", ())
    monkeypatch.setattr(
        made, "OWN", (*made.OWN, str(tmp_path / "etc"), str(made.state_dir()), str(host_lock.run_dir()))
    )
    calls: list[list[str]] = []

    def run(argv: list[str], *_arguments: Any) -> tuple[int, str, str]:
        calls.append(argv)
        return 0, "".join(SHOWN.format(name) for name in argv[argv.index("--") + 1 :]) if "show" in argv else "", ""

    monkeypatch.setattr(deploy.command, "runner", lambda _module: run)

    def call(**args: Any) -> dict[str, Any]:
        calls.clear()
        result = call_module(deploy, {"state": "absent", **args}, capsys)
        assert not result.get("failed"), result
        return {**result, "calls": [argv for argv in calls if "show" not in argv]}

    return call


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A disk of the owner with caches and weights of the collection next to the owner's files."""
    data = tmp_path / "data"
    (data / "photos").mkdir(parents=True)
    (data / "photos/one.jpg").write_text("mine")
    made.make_folder(data / "caches", "shared")
    made.make_folder(data / "caches/heavy", "cache")
    (data / "caches/heavy/graph").write_text("compiled")
    (data / "caches/notes.txt").write_text("mine")
    made.make_folder(data / "hf", "shared")
    for repo, ours in (("Org/Theirs", False), ("Org/Ours", True)):
        if ours:
            made.begin_fetch(data / "hf", repo)
        blobs = data / "hf/hub" / f"models--{made.repo_name(repo)}" / "blobs"
        blobs.mkdir(parents=True)
        (blobs / "a").write_text("weights")
        if ours:
            made.end_fetch(data / "hf", repo)
    state = made.state_dir()
    (state / "receipts").mkdir()
    (state / "open-webui").mkdir()
    (state / "open-webui/chats.db").write_text("a year of chats")
    (state / "models/Org--Ours.json").write_text("{}")
    return data


def tree(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_caches_and_notes_go_and_weights_stay_with_their_notes(call: Any, host: Path) -> None:
    result = call()
    assert result["changed"] and str(host / "caches/heavy") in result["removed"]
    assert result["left"] == [{"path": str(host / "caches"), "why": "not empty: notes.txt"}]
    assert tree(host) == [
        "caches/notes.txt",
        "hf/hub/models--Org--Ours/blobs/a",
        "hf/hub/models--Org--Theirs/blobs/a",
        "photos/one.jpg",
    ]
    assert tree(made.state_dir()) == ["made", "models/Org--Ours.made", "open-webui/chats.db"]
    assert not call()["changed"]


def test_hostile_weights_that_were_there_before_stay_whatever_is_asked(call: Any, host: Path) -> None:
    message = call(weights=True, _ansible_check_mode=True)
    assert tree(host) and "hf/hub/models--Org--Ours/blobs/a" in tree(host)
    result = call(weights=True)
    assert message["removed"] == [
        path for path in result["removed"] if not path.startswith(str(made.state_dir() / "models"))
    ]
    assert f"Org/Ours below {host / 'hf'}" in result["removed"] and result["freed_bytes"] == len("weights")
    assert tree(host) == ["caches/notes.txt", "hf/hub/models--Org--Theirs/blobs/a", "photos/one.jpg"]
    assert {"path": str(host / "hf"), "why": "not empty: hub"} in result["left"]
    assert tree(made.state_dir()) == ["made", "open-webui/chats.db"]


def test_all_recorded_rows_go_except_the_relay_of_the_network(call: Any, tmp_path: Path) -> None:
    files = [tmp_path / "etc/a", tmp_path / "etc/key", tmp_path / "relay"]
    (tmp_path / "etc").mkdir()
    for path in files:
        path.write_text("x")
    state = HostState(
        files=(HostFile(str(files[0]), part="a"), HostFile(str(files[2]), part="fabric")),
        units=(Unit("a.service", part="a"), Unit("relay.service", restart_on=(), part="fabric")),
    )
    deployed.save(deployed.Deployed(state, {"a": "1"}, (str(files[1]),)))
    check = call(_ansible_check_mode=True)
    assert check["changed"] and check["stopped"] == ["a.service"] and files[0].exists() and check["calls"] == []
    result = call()
    assert result["stopped"] == ["a.service"] and not (tmp_path / "etc").exists() and files[2].exists()
    assert set(check["removed"]) <= set(result["removed"])
    record = deployed.load()
    assert record is not None and record.state == state.of_parts({"fabric"}) and record.retired == ()
    assert not call()["changed"]
    assert call(fabric=True)["stopped"] == ["relay.service"] and not files[2].exists()
    assert not deployed.record_path().exists() and not host_lock.run_dir().exists()


def test_a_host_without_a_record_loses_the_units_that_bear_the_mark(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / "spark-a.service"
    unit.write_text("x")
    record = HostState(files=(HostFile(str(unit)),), units=(Unit(unit.name),))
    monkeypatch.setattr(deployed, "find_units", lambda _root=Path("/"): record)
    (tmp_path / "nft").write_text("")
    result = call()
    assert result["stopped"] == ["spark-a.service"] and not unit.exists()
    assert [str(tmp_path / "nft"), "delete"] in result["calls"] and "table inet dgxspark" in result["removed"]


def test_a_host_that_nothing_was_put_on_is_left_alone(call: Any) -> None:
    result = call(weights=True, fabric=True)
    assert (result["changed"], result["removed"], result["left"]) == (False, [], [])
