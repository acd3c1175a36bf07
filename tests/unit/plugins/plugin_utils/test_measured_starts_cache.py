# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines took, as the controller keeps it: by the action of a proof, and for plans."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.action import compare, service_proof
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.measured_starts import MeasuredStarts

START: dict[str, Any] = {
    **{"image_id": "sha256:" + "a" * 64, "image_ref": "an/image:1", "model": "1" * 32, "options": "2" * 32},
    **{"max_model_len": 16384, "max_num_batched_tokens": 8192, "max_num_seqs": 256, "gpu_memory_utilization": 0.5},
    **{
        "vllm_version": "0.26.0",
        "driver": "580.159.04",
        "gpu": "NVIDIA GB10",
        "requested_gib": 59.835,
        "weights_gib": 7.64,
    },
    **{"kv_cache_gib": 51.16, "inside_gib": 1.03, "outside_gib": -1.5, "peak_gib": 0.8, "non_torch_gib": 0.22},
    **{"graphs_estimate_gib": None, "graphs_gib": 0.6},
}


def variables(folder: Path, host: str = "a") -> dict[str, Any]:
    return {
        "inventory_hostname": host,
        "groups": {"sparks": [host]},
        "hostvars": {host: {"inventory_dir": str(folder)}},
    }


def start_row(**other: Any) -> dict[str, Any]:
    """Return the answer of a proof of two services with one measured start; other: changed values of START."""
    start = other.get("start", START)
    return {"changed": True, "receipts": {"x": {"receipt": {"service": "x", "start": start}}, "y": {"receipt": {}}}}


def prove(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], check: bool = False, host: str = "a"
) -> dict[str, Any]:
    task = SimpleNamespace(args={"services": []}, check_mode=check, async_val=0)
    action = service_proof.ActionModule.__new__(service_proof.ActionModule)
    action._task = task  # type: ignore[assignment]
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(action, "_execute_module", lambda **_arguments: answer)
    return dict(action.run(task_vars=variables(folder, host)))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_proof_keeps_what_it_measured_and_the_next_plan_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prove(tmp_path, monkeypatch, start_row())["changed"] is True
    assert files(tmp_path) == [".spark/measured/a.json"]
    store = MeasuredStarts(variables(tmp_path))
    (start,) = store.of_hosts(["a", "b"])["a"]
    assert start == {**START, "inside_gib": [1.03, 1.03], "outside_gib": [-1.5, -1.5]}
    before = (tmp_path / ".spark/measured/a.json").read_bytes()
    prove(tmp_path, monkeypatch, start_row())
    assert (tmp_path / ".spark/measured/a.json").read_bytes() == before
    assert store.keep("a", []) is False


PROVED = {"seconds": 71.0, "stages": {"load": 71.0}, "said": {"compile_seconds": 4.0}, "age_seconds": 3.5}


@pytest.mark.parametrize(
    ("start", "known"),
    [
        *((PROVED, PROVED), (None, None), ({}, None), ("x", None), ({**PROVED, "age_seconds": float("nan")}, None)),
        *(
            ({**PROVED, "age_seconds": True}, None),
            ({**PROVED, "age_seconds": -1}, None),
            ({**PROVED, "stages": {"load": 1e300}}, None),
        ),
        (
            {**PROVED, "said": {"<script>": 1}, "stages": {"load": 2.0, "<i>": 1.0}},
            {**PROVED, "seconds": 2.0, "stages": {"load": 2.0}, "said": {}},
        ),
    ],
)
def test_the_event_of_a_proof_has_the_start_that_the_host_measured(start: Any, known: Any) -> None:
    fields = service_proof.proof_fields({"answers": {"x": {"ready": True}}, "starts": {"x": start}}, "x")
    assert fields["ready"] is True and fields["start"] == known


@pytest.mark.parametrize(
    ("answer", "check"), [(start_row(), True), ({"failed": True, "msg": "x"}, False), (start_row(start=None), False)]
)
def test_a_check_run_and_a_failed_proof_write_nothing(
    answer: dict[str, Any], check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prove(tmp_path, monkeypatch, answer, check).items() >= answer.items()
    assert files(tmp_path) == []


def test_where_the_controller_may_not_write_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".spark").write_text("a file in the way")
    warned: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text: warned.append(text))
    assert prove(tmp_path, monkeypatch, start_row())["changed"] is True
    assert "what a measured is on its receipts alone" in warned[0]


def test_a_comparison_that_proves_a_host_keeps_the_same_and_registers_no_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = {"up_to_date": True, "proved": True, "answers": {"x": {"ready": True}}, **start_row()}
    action = compare.ActionModule.__new__(compare.ActionModule)
    action._task = SimpleNamespace(args={"proof": {}}, check_mode=False, _uuid="0")  # type: ignore[assignment]
    action._templar = SimpleNamespace(template=str)
    monkeypatch.setattr(ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(action, "_execute_module", lambda **_arguments: looked)
    result = action.run(task_vars=variables(tmp_path))
    assert result["proved"] is True and "receipts" not in result and files(tmp_path) == [".spark/measured/a.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "../../x"},
        {"image_id": "x"},
        {"weights_gib": "1"},
        {"inside_gib": float("nan")},
        {"max_num_seqs": -1},
        {"gpu": "a\nb"},
    ],
)
def test_what_a_host_says_is_checked(change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleActionFail, match="invalid answer"):
        prove(tmp_path, monkeypatch, start_row(start={**START, **change}))
    assert files(tmp_path) == []


@pytest.mark.parametrize("host", ["../../up", "a/b", "fe80::1", "..", "ü"])
def test_the_name_of_a_host_is_no_path(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(tmp_path, monkeypatch, start_row(), host=host)
    assert [path for path in files(tmp_path) if not path.startswith(".spark/measured/")] == [] and len(
        files(tmp_path)
    ) == 1
    assert len(MeasuredStarts(variables(tmp_path, host)).of_host(host)) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "starts": [{}]}', "[" * 100_000])
def test_a_file_that_cannot_be_right_counts_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / ".spark/measured/a.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    store = MeasuredStarts(variables(tmp_path))
    assert store.of_hosts(["a"]) == {}
    assert store.keep("a", [START]) is True and json.loads(path.read_text())["schema"] == 1
    assert MeasuredStarts({}).of_hosts(["a"]) == {} and MeasuredStarts({}).keep("a", [START]) is False
