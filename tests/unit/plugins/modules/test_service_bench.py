"""Each call runs the stand-in's vllm bench serve once; scripts play docker and the GPU."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from bench_fixture import stand_in_vllm, standin
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark, receipts
from ansible_collections.dgxspark.vllm.plugins.modules import service_bench

CONTAINER = {
    "Id": "c1",
    "Name": "/spark-heavy",
    "Image": "sha256:" + "a1" * 32,
    "Config": {"Image": "x", "Labels": {"dgxspark.managed": "true", "dgxspark.fingerprint": "f00"}},
    "State": {"Status": "running"},
}
DOCKER = """\
#!/bin/sh
if [ "$1" = container ]; then cat "$BENCH_TEST/container.json"; exit; fi
shift 2
case "$1" in */with-secrets) shift; VLLM_API_KEY=$(cat "$BENCH_TEST/key"); export VLLM_API_KEY;; esac
for word in "$@"; do printf '%s\\n' "$word"; done >> "$BENCH_TEST/words"
exec "$@"
"""
GPU = "#!/bin/sh\necho '580.173.02, 2405, 45.1, [N/A], 61'\n"


class Host:
    """A host whose programs are scripts in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "container.json").write_text(json.dumps([CONTAINER]))
        self.program("docker", DOCKER)
        self.program("nvidia-smi", GPU)

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    stand_in_vllm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("BENCH_TEST", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    return made


def call(capsys: Any, step: str, url: str, **task: Any) -> dict[str, Any]:
    defaults = {"name": "heavy", "url": url, "model": "heavy", "container": "spark-heavy", "beside": [], "api": "chat"}
    defaults.update(seconds=60, receipts="/nowhere", sysroot="/")
    return call_module(service_bench, {"step": step, "task": {**defaults, **task}}, capsys)


def measure(capsys: Any, url: str, workload: benchmark.Workload, **task: Any) -> dict[str, Any]:
    defaults = {"thinking": None, "args": {}, "tokenizer": ["", "", "/m"], "wrapper": "", "gpu": False}
    return call(capsys, "measure", url, workload=asdict(workload), **{**defaults, **task})


SINGLE = benchmark.Workload("single", "prompt 256", 256, 32, 3, 1)
LOAD = benchmark.Workload("concurrency", "3 at once", 100, 32, 6, 3, level=3)
RATE = benchmark.Workload("request_rates", "20 a second", 100, 32, 12, 4, rate=20.0)


def test_single_requests(host: Host, capsys: Any) -> None:
    """The server adds up the gaps between its tokens itself: the rate has to match them at any load of the machine."""
    with standin(0.02) as (url, state):
        answer = measure(capsys, url, SINGLE)
    row, served = answer["row"], state.between.counts[-1] / state.between.total
    assert (row["repeats"], row["output_tokens"], row["short"]) == (3, 32, 0) and state.generated == 4 * 32
    assert served / 3 < row["decode_tokens_per_second"]["median"] < served * 3
    assert row["prompt_tokens"] == 256 and 230 < row["prompt_tokens_measured"] <= 256
    assert state.prompt_tokens == pytest.approx(4 * row["prompt_tokens_measured"], rel=0.05)
    assert row["disturbed"] == 0 and row["cached_share"] < 0.1 and answer["gpu"] == []


def test_the_gpu_is_sampled_while_requests_run(host: Host, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_bench, "SAMPLE_SECONDS", 0.04)
    with standin(0.02) as (url, _state):
        samples = measure(capsys, url, SINGLE, gpu=True)["gpu"]
    assert samples and samples[0]["sm_clock_mhz"] == 2405 and samples[0]["power_limit_watts"] is None


def test_requests_of_others_are_noticed(host: Host, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with standin(0.001) as (url, state):
        counters = service_bench.Bench.counters
        calls: list[int] = []

        def busy(self: Any, url: str | None = None) -> dict[str, float | None]:
            if calls:  # tokens of another client since the first look
                state.generated += 500
            calls.append(1)
            return counters(self, url)

        monkeypatch.setattr(service_bench.Bench, "counters", busy)
        assert measure(capsys, url, SINGLE)["row"]["disturbed"] == 1


def test_a_model_that_thinks(host: Host, capsys: Any, engine: Any) -> None:
    measure(capsys, engine.url, SINGLE, thinking=False)
    assert len(engine.requests) == 4
    for path, body in engine.requests:
        assert path == "/v1/chat/completions" and body["ignore_eos"] is True and body["max_completion_tokens"] == 32
        assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}


def test_look(host: Host, capsys: Any, tmp_path: Path) -> None:
    receipt = receipts.with_benchmark(receipts.build("heavy", {"image": "a"}, {}, None), {"ratio": 0.5})
    (tmp_path / "heavy.json").write_text(receipts.dump(receipt))
    with standin() as (url, state), standin() as (other, theirs):
        theirs.running = 2
        beside = [{"name": "fast", "url": other}]
        answer = call(capsys, "look", url, receipts=str(tmp_path), beside=beside)
        state.running = 1
        assert call(capsys, "look", url)["busy"] == ["heavy (1 running, 0 waiting)"]
    assert answer["busy"] == ["fast (2 running, 0 waiting)"]
    assert answer["max_model_len"] == 2048 and answer["receipt"]["benchmark"]["ratio"] == 0.5
    assert answer["conditions"] == {
        "image_id": CONTAINER["Image"],
        "fingerprint": "f00",
        "vllm_version": "0.32.0",
        "gpu": True,
        "driver": "580.173.02",
        "power_limit_watts": None,
    }


def test_a_host_without_gpu_docker_or_receipt(host: Host, capsys: Any) -> None:
    host.program("nvidia-smi", "#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    host.program("docker", "#!/bin/sh\nexit 1\n")
    with standin() as (url, _state):
        answer = call(capsys, "look", url)
    assert answer["receipt"] is None and answer["conditions"]["gpu"] is False
    assert answer["conditions"]["image_id"] is None is answer["conditions"]["driver"]


def test_another_model_on_the_port(host: Host, capsys: Any) -> None:
    with standin(names=["other"]) as (url, _state):
        answer = call(capsys, "look", url)
    assert "serves other, not heavy" in answer["problem"] and "site.yml" in answer["fix"]


def test_nothing_on_the_port(host: Host, capsys: Any, closed_port: int) -> None:
    answer = call(capsys, "look", f"http://127.0.0.1:{closed_port}")
    assert answer["problem"].startswith("connection refused")


def test_requests_at_once(host: Host, capsys: Any) -> None:
    with standin(0.002) as (url, state):
        row = measure(capsys, url, LOAD)["row"]
    assert (row["client"], row["concurrency"], row["requests"], row["failed"]) == ("vllm", 3, 6, 0)
    assert row["output_tokens"] == 32 and state.generated == (6 + 3) * 32
    assert row["output_tokens_per_second"] == pytest.approx(6 * 32 / row["seconds"], rel=0.01)
    assert row["disturbed"] is False


def test_answers_of_a_content(host: Host, capsys: Any, engine: Any) -> None:
    workload = benchmark.Workload("contents", "content code", 0, 300, 1, 1, content="code")
    row = measure(capsys, engine.url, workload)["row"]
    assert row["content"] == "code" and row["repeats"] == 1
    (path, first), (_path, second) = engine.requests
    assert path == "/v1/chat/completions" and first["max_completion_tokens"] == 300
    text, other = (body["messages"][0]["content"][0]["text"] for body in (first, second))
    assert "interval tree" in text and text[:14] != other[:14] and text[-60:] == other[-60:]


def test_requests_that_share_a_prefix(host: Host, capsys: Any) -> None:
    """The engine has a prefix cache: the first request fills it, later ones differ only at their end."""
    workload = benchmark.Workload("prefix_cache", "shared prefix", 1024, 16, 4)
    with standin(0.0005) as (url, _state):
        row = measure(capsys, url, workload)["row"]
        other = measure(capsys, url, workload)["row"]
    assert row["hit_rate"] > 0.9 and row["repeats"] == 3 and row["prompt_tokens"] == 1024 + benchmark.SUFFIX_TOKENS
    assert other["hit_rate"] == row["hit_rate"]  # another prefix: nothing was left in the cache


def test_requests_at_a_rate(host: Host, capsys: Any) -> None:
    with standin(0.002) as (url, _state):
        row = measure(capsys, url, RATE)["row"]
    assert (row["request_rate"], row["requests"], row["failed"]) == (20.0, 12, 0) and "concurrency" not in row
    assert "--num-prompts\n12\n--num-warmups\n4\n--request-rate\n20\n" in (host.folder / "words").read_text()


def test_the_key_and_the_tokenizer(host: Host, capsys: Any) -> None:
    """The key is a file in the container, never an argument; the tokenizer is the snapshot of the revision."""
    (host.folder / "key").write_text("s3cret")
    commit = host.folder / "hub" / "models--Org--M" / "snapshots" / "abc"
    commit.mkdir(parents=True)
    refs = host.folder / "hub" / "models--Org--M" / "refs"
    refs.mkdir()
    (refs / "v1").write_text("abc")
    vllm = (host.folder / "bin" / "vllm").read_text()
    lines = f"#!{sys.executable}\nimport sys\nopen({str(host.folder / 'options')!r}, 'w').write(' '.join(sys.argv))\n"
    host.program("vllm", lines + vllm)
    wrapper = "/usr/local/libexec/dgxspark/with-secrets"
    with standin(0.0005, keys=["s3cret"]) as (url, _state), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(host.folder))
        answer = measure(capsys, url, LOAD, wrapper=wrapper, tokenizer=["models--Org--M", "v1", "Org/M"])
        assert answer["row"]["failed"] == 0
        refused = measure(capsys, url, LOAD, tokenizer=["models--Org--M", "v1", "Org/M"])
    assert "all requests of vllm bench serve failed" in refused["problem"]
    words = (host.folder / "words").read_text()
    assert "s3cret" not in words and "s3cret" not in json.dumps(answer)
    assert f"--tokenizer {commit} " in (host.folder / "options").read_text()


def test_an_image_without_the_program_says_so(host: Host, capsys: Any) -> None:
    host.program("vllm", "#!/bin/sh\necho \"vllm: error: invalid choice: 'bench'\" >&2\nexit 2\n")
    with standin(0.0005) as (url, _state):
        assert "invalid choice: 'bench'" in measure(capsys, url, SINGLE)["problem"]


def test_a_host_without_memory_for_a_second_vllm(host: Host, capsys: Any) -> None:
    (host.folder / "proc").mkdir()
    (host.folder / "proc" / "meminfo").write_text("MemTotal: 127535224 kB\nMemAvailable: 1048576 kB\n")
    with standin(0.0005) as (url, state):
        answer = measure(capsys, url, SINGLE, sysroot=str(host.folder))
    assert "1.0 GiB are free" in answer["problem"] and state.generated == 0


def test_a_run_that_takes_too_long_ends(host: Host, capsys: Any) -> None:
    with standin(0.05) as (url, _state):
        answer = measure(capsys, url, SINGLE, seconds=1)
    assert "did not end in time" in answer["problem"]


def test_the_module_alone_says_what_it_is(capsys: Any) -> None:
    with patch_module_args({"planned": {}}), pytest.raises(SystemExit):
        service_bench.main()
    assert "action plugin" in json.loads(capsys.readouterr().out)["msg"]
