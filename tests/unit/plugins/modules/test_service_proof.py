# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a host, against a server that answers, units and containers that are played, and receipts in a folder.

Its parts have their tests: test_endpoint_ready.py, test_engines_section.py, test_receipt.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module
from paced_engine import PacedEngine
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import host_proof, speed_probe
from ansible_collections.dgxspark.vllm.plugins.modules import service_proof

SHOWN = "Id={name}\nLoadState=loaded\nActiveState={state}\nSubState=x\nResult=success\nNRestarts=0\n"
DEPLOYED = {
    "image": {"ref": "vllm:1", "id": "sha256:1"},
    "model": {"repo": "Org/M"},
    "vllm_version": "0.19.0",
    "argv": ["/usr/bin/docker", "run"],
    "env": {"HF_HOME": "/hf"},
}
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, tree: Any, fake_run: Any, tmp_path: Path) -> Call:
    play(monkeypatch, fake_run)
    fake_run.on("docker ps", "").on("nvidia-smi", rc=9)
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="active"))
    (tmp_path / "receipts").mkdir()

    def call(*services: dict[str, Any], **args: Any) -> dict[str, Any]:
        settings = {
            "services": list(services),
            "timeout": 2,
            "receipts_dir": str(tmp_path / "receipts"),
            "root": str(tree),
            "run_dir": str(tmp_path / "run"),
            **args,
        }
        return call_module(service_proof, settings, capsys)

    return call


def receipt_of(tmp_path: Path, name: str) -> dict[str, Any]:
    receipt: dict[str, Any] = json.loads((tmp_path / "receipts" / f"{name}.json").read_text(encoding="utf-8"))
    return receipt


def test_what_answers_has_a_receipt_of_what_is_deployed_and_how_it_measured(
    call: Call, engine: Any, tmp_path: Path
) -> None:
    engine.set(delay=0.002)
    service = {"name": "heavy", "url": engine.url, "served_model_name": "heavy", "checks": {"tools": True}, **DEPLOYED}
    result = call(service, _ansible_diff=True)
    assert "failed" not in result and result["changed"] is True
    assert result["answers"]["heavy"]["ready"] is True and result["answers"]["heavy"]["checks"]["tools"] is True
    receipt = receipt_of(tmp_path, "heavy")
    assert receipt["deployed"] == DEPLOYED and receipt["cluster"] is None and receipt["rank"] == 0
    assert receipt["measured"]["checks"]["completion"] is True and receipt["measured"]["decode_tokens_per_second"] > 0
    assert receipt["measured"].keys() >= {"weights_gib", "residency_gib", "ttft_seconds", "server_version"}
    assert result["diff"][0]["after_header"].endswith("heavy.json") and "diff" not in result["receipts"]["heavy"]
    # Again: the second call does not count as another deployment.
    assert call(service)["changed"] is False


def test_a_rank_behind_the_first_one_is_proved_by_its_unit(call: Call, tmp_path: Path) -> None:
    parts = [{"argv": ["docker", "run", "ray"]}, {"argv": ["docker", "run", "engine"]}]
    cluster = {"name": "pair", "executor": "ray", "hosts": ["a", "b"]}
    result = call({"name": "heavy", "url": "", "rank": 1, "cluster": cluster, "parts": parts, **DEPLOYED})
    assert result["answers"]["heavy"]["stage"] == "unit"
    receipt = receipt_of(tmp_path, "heavy")
    assert (
        receipt["deployed"]["ray_argv"] == ["docker", "run", "ray"]
        and receipt["rank"] == 1
        and receipt["cluster"] == cluster
    )
    assert "checks" not in receipt["measured"] and "ttft_seconds" not in receipt["measured"]


def test_who_does_not_answer_is_told_with_all_others_and_leaves_no_receipt(
    call: Call, engine: Any, closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interval is longer than the timeout: a server without an answer is asked once.
    monkeypatch.setattr(host_proof, "INTERVAL", 999.0)
    silent = f"http://127.0.0.1:{closed_port}"
    result = call(
        {"name": "one", "url": silent, "served_model_name": "one", "unit": "spark-heavy.service", **DEPLOYED},
        {"name": "heavy", "url": engine.url, "served_model_name": "heavy", **DEPLOYED},
        {"name": "two", "url": silent, "served_model_name": "two", "unit": "spark-heavy.service", **DEPLOYED},
        timeout=120,
    )
    assert result["failed"] is True
    assert f"one at {silent} is not ready" in result["msg"] and f"two at {silent} is not ready" in result["msg"]
    assert result["answers"]["heavy"]["ready"] is True
    assert list((tmp_path / "receipts").iterdir()) == []


def test_without_a_folder_nothing_is_kept(call: Call, engine: Any, tmp_path: Path) -> None:
    result = call({"name": "heavy", "url": engine.url, "served_model_name": "heavy", **DEPLOYED}, receipts_dir="")
    assert result["receipts"] == {} and result["changed"] is False
    assert list((tmp_path / "receipts").iterdir()) == []


def test_a_figure_that_got_worse_and_a_finding_are_warnings(
    call: Call, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: warnings.append(text))
    expected = {"moe_backend": {"any_of": ["marlin"], "why": "it is asked for", "required": False}}
    service = {
        "name": "heavy", "url": engine.url, "served_model_name": "heavy", "fast_path": expected, **DEPLOYED,
    }  # fmt: skip
    engine.set(delay=0.002)  # a burst has no rate
    call(service)
    receipt = receipt_of(tmp_path, "heavy")
    receipt["baseline"]["decode_tokens_per_second"] = 1e9
    (tmp_path / "receipts" / "heavy.json").write_text(json.dumps(receipt))
    warnings.clear()
    result = call(service)
    assert any("decode_tokens_per_second of heavy is" in text for text in warnings)
    assert result["services"]["heavy"]["checks"]["moe_backend"]["verdict"] == "unknown"


def test_check_mode_writes_nothing_and_waits_for_nothing(
    call: Call, fake_run: Any, closed_port: int, tmp_path: Path
) -> None:
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="inactive"))
    result = call(
        {"name": "heavy", "url": f"http://127.0.0.1:{closed_port}", "served_model_name": "heavy", **DEPLOYED},
        _ansible_check_mode=True,
        timeout=60,
    )
    assert result["answers"]["heavy"]["ready"] is None and result["changed"] is True
    assert list((tmp_path / "receipts").iterdir()) == []


STAGES = {"gate": 1.0, "load": 70.5, "profile": 20.0}


@pytest.mark.parametrize(
    ("record", "starts", "known"),
    [
        (
            {"began": 100.0, "ready": {"clock": 191.4}},
            [{"stages": {"load": 5}}, {"stages": STAGES, "said": {"x": 1}}],
            True,
        ),
        # The record of the present start is newer than the stages of the last kept one.
        ({"began": 100.0, "ready": {"clock": 130.0}}, [{"stages": STAGES}], False),
        ({"began": 100.0, "gate": {"clock": 101.0}}, [{"stages": STAGES}], False),
        *(
            ({"began": "x", "ready": []}, [{"stages": STAGES}], False),
            ({"began": 100.0, "ready": {"clock": 191.4}}, [{"stages": 7}], False),
        ),
    ],
)
def test_the_last_start_of_a_service_has_its_stages(
    call: Call, engine: Any, tmp_path: Path, record: Any, starts: Any, known: bool
) -> None:
    for path, content in (
        ("run/starts/spark-heavy.service", record),
        ("state/starts/heavy", {"version": 1, "starts": starts}),
    ):
        file = tmp_path / f"{path}.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(content))
    service = {"name": "heavy", "url": engine.url, "served_model_name": "heavy", **DEPLOYED}
    result = call(service, state_dir=str(tmp_path / "state"))["starts"]
    if not known:
        assert result == {}
        return
    age = result["heavy"].pop("age_seconds")
    assert result["heavy"] == {"seconds": 91.5, "stages": STAGES, "said": {}} and age >= 0


def test_the_documentation_names_every_result(call: Call, engine: Any) -> None:
    result = call({"name": "heavy", "url": engine.url, "served_model_name": "heavy", **DEPLOYED})
    assert set(yaml.safe_load(service_proof.RETURN)) == set(result) - {"changed", "invocation", "warnings"}


def test_what_requests_start_is_not_started_again_for_a_proof(
    call: Call, engine: Any, fake_run: Any, tmp_path: Path
) -> None:
    service = {"name": "heavy", "url": engine.url, "served_model_name": "heavy", "on_demand": {"set": None}, **DEPLOYED}
    cold = SHOWN.format(name="spark-heavy.service", state="inactive")
    fake_run.on("systemctl show", cold)
    # Never proved: the request starts it, in any state of its unit.
    assert call(service)["answers"]["heavy"]["ready"] is True
    requests = len(engine.requests)
    result = call(service)
    assert result["answers"] == {} and result["changed"] is False and len(engine.requests) == requests
    # Its last start failed, or its unit is gone: it is asked.
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="failed"))
    assert call(service).get("answers") != {}
    fake_run.on("systemctl show", cold.replace("LoadState=loaded", "LoadState=not-found"))
    assert call(service).get("answers") != {}
    fake_run.on("systemctl show", cold)
    # With another launch, or without a record, it is asked.
    assert call({**service, "vllm_version": "0.20.0"})["answers"]["heavy"]["ready"] is True
    assert call(service, receipts_dir="")["answers"]["heavy"]["ready"] is True
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="active"))
    assert call({**service, "vllm_version": "0.20.0"})["answers"]["heavy"]["ready"] is True


def test_a_rank_on_demand_goes_with_the_first_one(
    call: Call, fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_proof, "INTERVAL", 0.1)
    cluster = {"name": "pair", "executor": "mp", "hosts": ["a", "b"]}
    service = {"name": "heavy", "url": "", "rank": 1, "cluster": cluster, "on_demand": {"set": None}, **DEPLOYED}
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="inactive"))
    for folder in (str(tmp_path / "receipts"), ""):
        result = call(service, receipts_dir=folder)  # nothing here could start it
        assert result["answers"] == {} and "failed" not in result
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="active"))
    assert call(service)["answers"]["heavy"]["stage"] == "unit"
    assert receipt_of(tmp_path, "heavy")["rank"] == 1
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="failed"))
    assert call(service)["failed"] is True


def test_a_start_on_demand_that_failed_is_told_at_once(
    call: Call, closed_port: int, fake_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_proof, "INTERVAL", 0.1)
    fake_run.on("systemctl show", SHOWN.format(name="spark-heavy.service", state="failed"))
    url = f"http://127.0.0.1:{closed_port}"
    result = call(
        {
            "name": "heavy",
            "url": url,
            "served_model_name": "heavy",
            **DEPLOYED,
            "settings": {"start_deadline_seconds": 600},
            "on_demand": {"set": "x"},
        }
    )
    assert result["failed"] is True and "heavy" in result["msg"]


# --- speed ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Iterator[PacedEngine]:
    monkeypatch.setattr(speed_probe, "LOAD_SECONDS", 0.0)
    server = PacedEngine(steps=800.0)
    yield server
    server.close()


def planned_at(rate: float) -> dict[str, Any]:
    """A prediction of 0.9 to 1.1 of a rate of one stream, and a ceiling of 4 times the rate."""
    span = {"low": 0.9 * rate, "typical": rate, "high": 1.1 * rate}
    return {"proof": {"single": span, "ceilings": {"single": 4 * rate}}}


def of(engine: PacedEngine, rate: float, **more: Any) -> dict[str, Any]:
    model = {"url": engine.url, "served_model_name": "heavy"}
    return {"name": "heavy", **model, "speed": planned_at(rate), **DEPLOYED, **more}


def test_the_speed_is_judged_by_the_plan_and_later_by_the_receipt(
    call: Call, paced: PacedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: warnings.append(text))
    result = call(of(paced, 800.0), root="/")
    record = receipt_of(tmp_path, "heavy")["speed"]
    assert result["speeds"]["heavy"] == record and (record["verdict"], warnings) == ("fine", [])
    assert record["first"]["measured"]["single"] == pytest.approx(800, rel=0.2)
    assert record["figures"][0]["against"] == "plan"
    # Half as fast: the prediction is the same, and the receipt tells.
    paced.steps = 400.0
    result = call(of(paced, 440.0), root="/")
    assert result["speeds"]["heavy"]["verdict"] == "wrong" and "failed" not in result
    assert any("heavy is far slower than it should be" in text for text in warnings)
    assert [finding["rule"] for finding in result["findings"]] == ["speed.wrong"]
    assert receipt_of(tmp_path, "heavy")["speed"]["first"] == record["first"]
    # Another deployment has no earlier measurement.
    assert call(of(paced, 400.0, vllm_version="0.20.0"), root="/")["speeds"]["heavy"]["verdict"] == "fine"


def test_too_slow_for_its_plan_is_a_warning_with_the_cause(call: Call, paced: PacedEngine, fake_run: Any) -> None:
    fake_run.on(" ".join(nvidia_smi.LOAD_QUERY), "580.95, 611, 31.0, [N/A], 52\n")
    paced.steps = 300.0
    service = of(paced, 800.0)
    service["speed"]["proof"].update(streams=2, several=service["speed"]["proof"]["single"])
    result = call(service, root="/")
    (finding,) = [finding for finding in result["findings"] if finding["rule"].startswith("speed.")]
    assert finding["severity"] == "warning" and "clock is latched" in finding["message"]
    assert "The GPU ran at 611 MHz" in finding["message"] and "pull its power" in finding["fix"]
    assert result["speeds"]["heavy"]["causes"][0] == "clock"


def test_a_simulated_host_is_measured_and_not_judged(call: Call, paced: PacedEngine, tree: Any) -> None:
    paced.steps = 300.0
    result = call(of(paced, 4000.0))
    record = result["speeds"]["heavy"]
    assert record["verdict"] == "unknown" and "simulated" in record["reason"] and record["measured"]["single"] > 0
    assert not [finding for finding in result["findings"] if finding["rule"].startswith("speed.")]


def test_without_a_prediction_the_first_measurement_is_kept(call: Call, paced: PacedEngine, tmp_path: Path) -> None:
    service = of(paced, 800.0, speed={"proof": {"streams": 2, "unknown": {"decode": "the config is unknown"}}})
    record = call(service, root="/")["speeds"]["heavy"]
    assert (record["verdict"], record["reason"]) == ("unknown", "the config is unknown")
    assert record["first"]["measured"]["streams"] == 2
    paced.steps = 300.0
    assert call(service, root="/")["speeds"]["heavy"]["verdict"] == "wrong"


def test_a_busy_service_keeps_its_last_record(
    call: Call, paced: PacedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_probe, "IDLE_SECONDS", 0.0)
    call(of(paced, 800.0), root="/")
    record = receipt_of(tmp_path, "heavy")["speed"]
    paced.running = 3
    result = call(of(paced, 800.0), root="/")
    assert result["speeds"] == {} and receipt_of(tmp_path, "heavy")["speed"] == record


def test_a_model_that_makes_no_tokens_has_no_speed(call: Call, engine: Any) -> None:
    engine.set(pools="embed")
    result = call({"name": "heavy", "url": engine.url, "served_model_name": "heavy", **DEPLOYED}, root="/")
    assert result["answers"]["heavy"]["ready"] is True and result["speeds"] == {}
    assert not any("ignore_eos" in body for _path, body in engine.requests)
