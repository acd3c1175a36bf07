from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from programs_fixture import play
from returned_fixture import named

from ansible_collections.dgxspark.vllm.plugins.modules import spark_info

LOG = """\
(EngineCore pid=83) INFO 11-20 09:25:20 [core.py:105] Initializing a V1 LLM engine (v0.23.0) with config: model='x', \
speculative_config=SpeculativeConfig(method='mtp', model='x', num_spec_tokens=3), quantization=None, enforce_eager=False, \
kv_cache_dtype=fp8, device_config=cuda, enable_prefix_caching=True, enable_chunked_prefill=True, \
compilation_config={{'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}}
(EngineCore pid=83) INFO 11-20 09:25:31 [cuda.py:379] Using {attention} attention backend out of potential backends: ['A', 'B'].
(EngineCore pid=83) INFO 11-20 09:25:32 [nvfp4.py:190] Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['A'].
"""
METRICS = """\
vllm:spec_decode_num_drafts_total{model_name="heavy"} 105.0
vllm:spec_decode_num_draft_tokens_total{model_name="heavy"} 630.0
vllm:spec_decode_num_accepted_tokens_total{model_name="heavy"} 149.0
vllm:cache_config_info{enable_prefix_caching="True"} 1.0
"""
CONTAINERS = [
    {
        "Id": "1" * 64,
        "Name": "/spark-heavy",
        "Image": "sha256:aa",
        "Config": {"Image": "vllm", "Labels": {"dgxspark.managed": "true"}},
        "State": {"Status": "running", "Pid": 77},
        "HostConfig": {"PortBindings": {}},
    }
]
UNIT = (
    "Id=spark-heavy.service\nLoadState=loaded\nActiveState=active\nActiveEnterTimestamp=Fri 2026-11-20 09:33:00 UTC\n"
)
EXPECTED = {
    "attention_backend": {
        "any_of": ["FLASHINFER"],
        "why": "attention-backend asks for it",
        "option": "attention-backend",
    },
    "min_acceptance": {"share": 0.4, "why": "the recipe says so (a guide)"},
    "draft": {"method": "mtp", "tokens": 3},
    "kv_cache_dtype": "fp8",
}


@pytest.fixture
def spark(fake_run: Any) -> Any:
    fake_run.on("docker ps", f"{'1' * 64}\n").on("docker container inspect", json.dumps(CONTAINERS))
    fake_run.on("systemctl show", UNIT)
    fake_run.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", LOG.format(attention="FLASHINFER"))
    return fake_run


@pytest.fixture
def counts() -> Any:
    """A server with counters, for clients with and without the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *_words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def info(spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def call(services: list[dict[str, Any]], **args: Any) -> dict[str, Any]:
        warnings: list[str] = []
        play(monkeypatch, spark)
        monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: warnings.append(text))
        with (
            patch_module_args({"gather": ["engines"], "services": services, "run_dir": str(tmp_path), **args}),
            pytest.raises(SystemExit) as ended,
        ):
            spark_info.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert ended.value.code == 0, answer
        return {**answer["engines"], "told": warnings}

    return call


def verdicts(answer: dict[str, Any]) -> dict[str, str]:
    return {name: check["verdict"] for name, check in answer["services"]["heavy"]["checks"].items()}


def test_what_runs_is_compared_with_what_was_meant(info: Callable[..., Any], spark: Any, counts: str) -> None:
    answer = info([{"name": "heavy", "fast_path": EXPECTED, "probe": {"url": counts}}])
    heavy = answer["services"]["heavy"]
    assert heavy["runs"]["attention"] == ["FLASHINFER"] and heavy["counted"]["acceptance"] == 0.237
    assert [finding["rule"] for finding in answer["findings"]] == ["fast_path.acceptance", "fast_path.fp4_weight_only"]
    assert heavy["fast_path"]["summary"] == "1 off" and "24% of the drafted tokens" in answer["told"][0]
    assert {name for name, verdict in verdicts(answer).items() if verdict == "ok"} == {
        "attention_backend",
        "cuda_graphs",
        "draft",
        "kv_cache_dtype",
    }
    # One look at the units, at the containers, and at each log.
    assert len([call for call in spark.calls if call[0] == "systemctl"]) == 1
    assert len([call for call in spark.calls if call[:2] == ["docker", "logs"]]) == 1


def test_other_kernels_are_a_warning_with_the_fix(info: Callable[..., Any], spark: Any) -> None:
    spark.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", LOG.format(attention="TRITON_ATTN"))
    answer = info([{"name": "heavy", "fast_path": EXPECTED}])
    warning, weight_only = answer["told"]
    assert "MARLIN" in weight_only
    assert "heavy runs its attention on TRITON_ATTN, not on FLASHINFER; attention-backend asks for it." in warning
    assert "take attention-backend out" in warning
    assert answer["services"]["heavy"]["checks"]["acceptance"]["reason"] == "it answers no requests"


def test_without_expectations_it_says_what_runs(info: Callable[..., Any], counts: str) -> None:
    answer = info([{"name": "heavy", "probe": {"url": counts}}])
    # Experts on MARLIN compute in 16 bits, which is said without expectations, too.
    assert [finding["rule"] for finding in answer["findings"]] == ["fast_path.fp4_weight_only"]
    assert verdicts(answer)["attention_backend"] == "not_asked"
    assert answer["services"]["heavy"]["runs"]["moe"] == [{"name": "marlin", "format": "nvfp4"}]


def test_what_cannot_be_read_has_a_reason(info: Callable[..., Any], spark: Any, closed_port: int) -> None:
    spark.on(
        "docker logs", rc=1, err="Error response from daemon: configured logging driver does not support reading\n"
    )
    spark.answers.pop("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy")
    probe = {"url": f"http://127.0.0.1:{closed_port}"}
    answer = info([{"name": "heavy", "fast_path": EXPECTED, "probe": probe}, {"name": "gone", "fast_path": EXPECTED}])
    checks = answer["services"]["heavy"]["checks"]
    assert "does not support reading" in checks["attention_backend"]["reason"]
    assert checks["acceptance"]["reason"].startswith("/metrics: ")
    assert answer["services"]["gone"]["checks"]["draft"]["reason"] == "the container spark-gone is not running"
    assert answer["findings"] == [] and answer["services"]["heavy"]["fast_path"]["summary"] == "-"


def test_rays_workers_say_what_they_run(info: Callable[..., Any], spark: Any, tmp_path: Path) -> None:
    spark.on("docker logs --until=2026-11-20T09:33:05+00:00 spark-heavy", "nothing of it\n")
    logs = tmp_path / "ray/heavy/session/session_2026-11-20_09-25-00_1/logs"
    logs.mkdir(parents=True)
    (logs / "worker-1.out").write_text(
        "INFO [cuda.py:1] Using TRITON_ATTN attention backend out of potential backends: ['A'].\n"
    )
    answer = info([{"name": "heavy", "cluster": {"executor": "ray"}, "fast_path": EXPECTED}])
    assert answer["services"]["heavy"]["checks"]["attention_backend"]["verdict"] == "off"


def test_the_documented_results_are_the_results(info: Callable[..., Any], counts: str) -> None:
    answer = info([{"name": "heavy", "probe": {"url": counts}}])
    names = named(spark_info.RETURN, "engines")
    assert set(answer) - {"changed", "invocation", "warnings", "told"} - names == set()
    assert set(answer["services"]["heavy"]) - names == set()
