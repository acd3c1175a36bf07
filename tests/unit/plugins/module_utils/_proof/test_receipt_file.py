"""Tests of receipt_file.py: the file of a receipt, as modules write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipt_file, receipts

DEPLOYED = {"image": "sha256:1", "argv": ["a"]}


@pytest.fixture
def call(capsys: Any, tmp_path: Path) -> Any:
    def call(**args: Any) -> dict[str, Any]:
        path = str(args.pop("path", tmp_path / "heavy.json"))
        check = args.pop("check", False)

        def make(previous: receipts.Receipt | None) -> tuple[receipts.Receipt, list[Finding]]:
            values = {"deployed": DEPLOYED, "measured": {}, "cluster": None, "rank": 0, **args}
            receipt = receipts.build(
                "heavy", values["deployed"], values["measured"], previous, values["cluster"], values["rank"]
            )
            return receipt, receipts.compare(previous, receipt)

        settings = {"_ansible_diff": True, "_ansible_check_mode": check}
        with patch_module_args(settings), pytest.raises(SystemExit):
            module = AnsibleModule({}, supports_check_mode=True)
            if "benchmark" in args:
                module.exit_json(**receipt_file.keep_benchmark(module, path, args["benchmark"]))
            module.exit_json(**receipt_file.keep(module, path, make))
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return call


def test_first_receipt(call: Any, tmp_path: Path) -> None:
    result = call(measured={"ttft_seconds": 0.2})
    assert result["changed"] is True and result["previous"] is None and result["findings"] == []
    path = tmp_path / "heavy.json"
    assert json.loads(path.read_text()) == result["receipt"]
    assert result["receipt"]["service"] == "heavy"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir() if "receipt" in entry.name] == []


def test_new_measurements_are_written_but_are_no_change(call: Any, tmp_path: Path) -> None:
    call(measured={"decode_tokens_per_second": 42.0})
    result = call(measured={"decode_tokens_per_second": 20.0})
    assert result["changed"] is False
    assert json.loads((tmp_path / "heavy.json").read_text())["measured"] == {"decode_tokens_per_second": 20.0}
    assert result["previous"]["measured"] == {"decode_tokens_per_second": 42.0}
    assert [entry["rule"] for entry in result["findings"]] == ["receipt.decode_tokens_per_second"]
    assert result["diff"]["before"] == result["diff"]["after"]


def test_another_deployment_is_a_change_with_drift_and_diff(call: Any) -> None:
    call()
    result = call(deployed={**DEPLOYED, "image": "sha256:2"}, measured={"ttft_seconds": 1})
    assert result["changed"] is True and result["findings"][0]["rule"] == "receipt.drift"
    assert "sha256:1" in result["diff"]["before"] and "sha256:2" in result["diff"]["after"]
    assert "ttft" not in json.dumps(result["diff"])


def test_same_again_does_not_touch_the_file(call: Any, tmp_path: Path) -> None:
    call()
    before = (tmp_path / "heavy.json").stat()
    assert call()["changed"] is False
    after = (tmp_path / "heavy.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_mode_is_put_right(call: Any, tmp_path: Path) -> None:
    call()
    (tmp_path / "heavy.json").chmod(0o600)
    assert call()["changed"] is True
    assert (tmp_path / "heavy.json").stat().st_mode & 0o777 == 0o644


def test_check_mode_writes_nothing(call: Any, tmp_path: Path) -> None:
    result = call(path=str(tmp_path / "new/dir/heavy.json"), check=True)
    assert result["changed"] is True and not (tmp_path / "new").exists()
    call()
    result = call(measured={"ttft_seconds": 1}, check=True)
    assert result["changed"] is False
    assert json.loads((tmp_path / "heavy.json").read_text())["measured"] == {}


def test_damaged_receipt_is_made_anew_with_a_warning(call: Any, tmp_path: Path) -> None:
    (tmp_path / "heavy.json").write_text("{")
    result = call()
    assert result["changed"] is True and result["previous"] is None
    assert json.loads((tmp_path / "heavy.json").read_text())["deployed"] == DEPLOYED


def test_missing_directory_is_named(call: Any, tmp_path: Path) -> None:
    result = call(path=str(tmp_path / "no/heavy.json"))
    assert (
        result["failed"] is True and f"the directory {tmp_path / 'no'} of the receipt does not exist" in result["msg"]
    )


def test_a_rank_has_a_receipt_of_its_own(call: Any, tmp_path: Path) -> None:
    span = {"name": "pair_a", "size": 2, "head": "spark-1", "executor": "mp", "hosts": ["spark-1", "spark-2"]}
    assert call(cluster=span, rank=1, measured={"residency_gib": 95.0})["changed"] is True
    written = json.loads((tmp_path / "heavy.json").read_text())
    assert (written["cluster"], written["rank"]) == (span, 1) and written["measured"] == {"residency_gib": 95.0}
    assert call(cluster=span, rank=1, measured={"residency_gib": 96.0})["changed"] is False
    result = call(cluster={**span, "executor": "ray"}, rank=1)
    assert result["changed"] is True and '"executor": "ray"' in result["diff"]["after"]


def test_a_benchmark_goes_into_the_receipt_that_is_there(call: Any, tmp_path: Path) -> None:
    before = call(measured={"ttft_seconds": 0.2})["receipt"]
    section = {"decode_tokens_per_second": 41.5, "ratio": 0.97}
    result = call(benchmark=section)
    assert result["changed"] is False and result["findings"] == []
    assert json.loads((tmp_path / "heavy.json").read_text()) == {**before, "benchmark": {**section, "stale": False}}
    assert call(measured={"ttft_seconds": 0.2})["receipt"]["benchmark"] == {**section, "stale": False}


def test_a_benchmark_makes_no_receipt(call: Any, tmp_path: Path) -> None:
    result = call(benchmark={"ratio": 1.0})
    assert result["failed"] is True and "site.yml --tags prove" in result["msg"]
    assert not (tmp_path / "heavy.json").exists()
