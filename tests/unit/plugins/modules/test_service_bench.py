"""One measurement a call, of a server whose pace is known by its own count; docker and the GPU are played by scripts."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from bench_fixture import standin

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark, receipts, workloads
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
VLLM = """\
#!/bin/sh
echo "noise on stdout"
[ "${OPENAI_API_KEY-}" = "$(cat "$BENCH_TEST/key" 2>/dev/null)" ] || { echo "ValueError: no key" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case "$1" in --result-dir) dir=$2;; --tokenizer) echo "$2" > "$BENCH_TEST/tokenizer";; esac
    shift
done
cp "$BENCH_TEST/result.json" "$dir/result.json"
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

    def has_vllm(self) -> None:
        self.program("vllm", VLLM)
        result = Path(__file__).parents[1] / "fixtures" / "bench" / "serve-0.32.0.json"
        (self.folder / "result.json").write_text(result.read_text())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("BENCH_TEST", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    return made


def call(capsys: Any, step: str, url: str, **task: Any) -> dict[str, Any]:
    given = {"name": "heavy", "url": url, "model": "heavy", "container": "spark-heavy", "beside": [], "api": "chat"}
    given.update(extras=0, output_tokens=32, seconds=60, receipts="/nowhere", sysroot="/")
    given.update(task)
    with patch_module_args({"step": step, "task": given}), pytest.raises(SystemExit):
        service_bench.main()
    return json.loads(capsys.readouterr().out)


def stream(capsys: Any, url: str, **task: Any) -> dict[str, Any]:
    return call(capsys, "stream", url, **{"characters": 600, "seed": "s", **task})


def test_what_is_measured_is_what_the_server_did(host: Host, capsys: Any) -> None:
    """The server adds up the gaps between its tokens itself: the rate has to be theirs, whatever the machine's load."""
    with standin(0.02) as (url, state):
        found = stream(capsys, url, gpu=True)["figures"]
    served = state.between.counts[-1] / state.between.total
    assert found["completion_tokens"] == 32 == state.generated and found["counted_by"] == "events"
    assert served / 3 < found["decode_tokens_per_second"] < served * 3
    assert found["prompt_tokens"] == state.prompt_tokens
    assert found["seen"]["disturbed"] is False and found["seen"]["foreign_tokens"] == 0


def test_the_length_is_forced_and_reasoning_counted(host: Host, capsys: Any) -> None:
    with standin(0.0005) as (url, _state):
        found = stream(capsys, url, output_tokens=64)["figures"]
        quiet = stream(capsys, url, output_tokens=64, extras=len(benchmark.EXTRAS) - 1)["figures"]
    assert found["completion_tokens"] == found["asked_tokens"] == 64
    # Left to itself it thinks ten tokens and says six: all of them are counted, by the engine's last word.
    assert quiet["completion_tokens"] == 16 and quiet["arrivals"] == 16 and quiet["counted_by"] == "usage"


def test_no_two_requests_begin_alike(host: Host, capsys: Any, engine: Any) -> None:
    for _time in range(2):
        stream(capsys, engine.url)
    one, two = (body["messages"][0]["content"] for _path, body in engine.requests)
    assert one[:12] != two[:12] and one[-100:] == two[-100:]


def test_a_server_without_chat_is_found_out(host: Host, capsys: Any, engine: Any) -> None:
    engine.set(chat="no-template")
    found = stream(capsys, engine.url, find_out=True)
    assert found["api"] == "completions" and found["extras"] == 0
    assert found["figures"]["counted_by"] == "usage"  # this server does not count in each event


def test_the_gpu_is_looked_at_meanwhile(host: Host, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_bench, "SAMPLE_SECONDS", 0.04)
    with standin(0.02) as (url, _state):
        samples = stream(capsys, url, gpu=True)["gpu"]
        assert stream(capsys, url)["gpu"] == []
    assert samples and samples[0]["sm_clock_mhz"] == 2405 and samples[0]["power_limit_watts"] is None


def test_others_that_are_served_meanwhile_are_noticed(host: Host, capsys: Any) -> None:
    with standin(0.005) as (url, state):
        before = service_bench.Bench.counters
        calls: list[int] = []

        def busy(self: Any, url: str | None = None) -> dict[str, float | None]:
            if calls:  # what another client had since the first look
                state.generated += 500
            calls.append(1)
            return before(self, url)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service_bench.Bench, "counters", busy)
            found = stream(capsys, url)["figures"]["seen"]
    assert found["disturbed"] is True and found["foreign_tokens"] == 500


def test_look(host: Host, capsys: Any, tmp_path: Path) -> None:
    receipt = receipts.with_benchmark(receipts.build("heavy", {"image": "a"}, {}, None), {"ratio": 0.5})
    (tmp_path / "heavy.json").write_text(receipts.dump(receipt))
    with standin() as (url, state), standin() as (other, theirs):
        theirs.running = 2
        beside = [{"name": "fast", "url": other}]
        found = call(capsys, "look", url, receipts=str(tmp_path), beside=beside)
        state.running = 1
        assert call(capsys, "look", url)["busy"] == ["heavy (1 running, 0 waiting)"]
    assert found["busy"] == ["fast (2 running, 0 waiting)"]
    assert found["max_model_len"] == 2048 and found["receipt"]["benchmark"]["ratio"] == 0.5
    assert found["conditions"] == {
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
        found = call(capsys, "look", url)
    assert found["receipt"] is None and found["conditions"]["gpu"] is False
    assert found["conditions"]["image_id"] is None is found["conditions"]["driver"]


def test_another_model_on_the_port(host: Host, capsys: Any) -> None:
    with standin(names=["other"]) as (url, _state):
        found = call(capsys, "look", url)
    assert "serves other, not heavy" in found["problem"] and "site.yml" in found["fix"]


def test_nothing_on_the_port(host: Host, capsys: Any, closed_port: int) -> None:
    found = call(capsys, "look", f"http://127.0.0.1:{closed_port}")
    assert found["problem"].startswith("connection refused")


def load(capsys: Any, url: str, **task: Any) -> dict[str, Any]:
    given = {"level": 3, "client": "auto", "prompt_tokens": 100, "characters": 600, "seed": "l", "args": {}}
    return call(capsys, "load", url, **{**given, "tokenizer": ["", "", "/m"], "wrapper": "", **task})


def test_requests_at_once_by_the_own_client(host: Host, capsys: Any) -> None:
    with standin(0.002) as (url, state):
        found = load(capsys, url, client="own")
        row = found["row"]
        made = state.generated
    assert (row["client"], row["concurrency"], row["requests"], row["failed"]) == ("own", 3, 3 * benchmark.ROUNDS, 0)
    # Six answers of 32, after three of 16 that warmed up and are not in the row.
    assert row["output_tokens"] == 32 and made == 6 * 32 + 3 * service_bench.WARM_TOKENS
    assert row["output_tokens_per_second"] == pytest.approx(6 * 32 / row["seconds"], rel=0.01)
    assert row["disturbed"] is False and found["reason"] == ""


def test_requests_at_once_are_at_once(host: Host, capsys: Any) -> None:
    most: list[int] = []
    with standin(0.03) as (url, state):
        done = threading.Event()

        def look() -> None:
            while not done.wait(0.005):
                most.append(state.running)

        watcher = threading.Thread(target=look)
        watcher.start()
        load(capsys, url, client="own")
        done.set()
        watcher.join()
    # The server counts a request for a moment longer than its client, which has begun the next one by then.
    assert Counter(filter(None, most)).most_common(1)[0][0] == 3 and max(most) < 6


def test_an_answer_of_a_content(host: Host, capsys: Any, engine: Any) -> None:
    for _time in range(2):
        stream(capsys, engine.url, content="code", output_tokens=300)
    (one, first), (_two, second) = engine.requests
    assert one == "/v1/chat/completions" and first["max_tokens"] == 300
    text, again = first["messages"][0]["content"], second["messages"][0]["content"]
    assert "interval tree" in text and text != again and text[-60:] == again[-60:]


def test_requests_that_share_a_system_prompt(host: Host, capsys: Any) -> None:
    """The engine has a prefix cache of its own: the first request fills it, later ones differ in the question only."""
    with standin(0.0005) as (url, _state):
        task = {"prefix": "abc", "characters": 4000, "output_tokens": 16}
        first, second, third = (stream(capsys, url, number=number, **task)["figures"] for number in range(3))
        other = stream(capsys, url, number=0, **{**task, "prefix": "def"})["figures"]
    assert first["seen"]["cached_share"] == other["seen"]["cached_share"] == 0
    assert second["seen"]["cached_share"] > 0.9 and third["seen"]["cached_share"] > 0.9
    row = workloads.prefix_row(first, [second, third])
    assert row["hit_rate"] > 0.9 and row["repeats"] == 2 and row["prompt_tokens"] == first["prompt_tokens"]


def test_requests_at_a_rate_begin_whether_or_not_others_have_ended(host: Host, capsys: Any) -> None:
    """Answers take 32 x 0.02 s, requests come 20 times a second: several are under way although none waits for another."""
    most: list[int] = []
    with standin(0.02) as (url, state):
        done = threading.Event()

        def look() -> None:
            while not done.wait(0.005):
                most.append(state.running)

        watcher = threading.Thread(target=look)
        watcher.start()
        row = load(capsys, url, client="own", level=None, rate=20.0, requests=12)["row"]
        done.set()
        watcher.join()
    assert (row["request_rate"], row["requests"], row["failed"]) == (20.0, 12, 0) and "concurrency" not in row
    assert max(most) > 4
    assert row["seconds"] >= workloads.arrivals(20.0, 12, "l")[-1]


def test_vllm_bench_at_a_rate(host: Host, capsys: Any) -> None:
    host.has_vllm()
    with standin(0.0005) as (url, _state):
        row = load(capsys, url, level=None, rate=4.0, requests=50)["row"]
    assert row["client"] == "vllm" and row["request_rate"] == 4.0
    assert "--num-prompts\n50\n--request-rate\n4\n" in (host.folder / "words").read_text()


def test_vllm_bench_in_the_container(host: Host, capsys: Any) -> None:
    """The program of the image makes the requests; its key is a file of the container and in no argument."""
    host.has_vllm()
    (host.folder / "key").write_text("s3cret")
    commit = host.folder / "hub" / "models--Org--M" / "snapshots" / "abc"
    commit.mkdir(parents=True)
    refs = host.folder / "hub" / "models--Org--M" / "refs"
    refs.mkdir()
    (refs / "v1").write_text("abc")
    wrapper = "/usr/local/libexec/dgxspark/with-secrets"
    with standin(0.0005) as (url, _state), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(host.folder))
        found = load(capsys, url, wrapper=wrapper, tokenizer=["models--Org--M", "v1", "Org/M"])
    assert found["row"]["client"] == "vllm" and found["row"]["output_tokens_per_second"] == 371.3
    assert found["reason"] == ""
    words = (host.folder / "words").read_text()
    assert "s3cret" not in words and "s3cret" not in json.dumps(found) and "--random-input-len\n100\n" in words
    assert (host.folder / "tokenizer").read_text().strip() == str(commit)


def test_without_vllm_in_the_image_the_own_client_says_why(host: Host, capsys: Any) -> None:
    host.program("vllm", "#!/bin/sh\necho \"vllm: error: invalid choice: 'bench'\" >&2\nexit 2\n")
    with standin(0.0005) as (url, _state):
        found = load(capsys, url)
        assert found["row"]["client"] == "own" and "invalid choice: 'bench'" in found["reason"]
        refused = load(capsys, url, client="vllm")
    assert "invalid choice: 'bench'" in refused["problem"] and "auto" in refused["fix"]


def test_a_host_without_memory_for_a_second_vllm(host: Host, capsys: Any) -> None:
    host.has_vllm()
    (host.folder / "proc").mkdir()
    (host.folder / "proc" / "meminfo").write_text("MemTotal: 127535224 kB\nMemAvailable: 2097152 kB\n")
    with standin(0.0005) as (url, _state):
        found = load(capsys, url, sysroot=str(host.folder))
    assert found["row"]["client"] == "own" and "2.0 GiB that are left" in found["reason"]


def test_an_answer_that_takes_too_long_ends(host: Host, capsys: Any) -> None:
    with standin(0.05) as (url, _state):
        found = stream(capsys, url, seconds=0.2)
    assert "the time was up" in found["problem"] and found["kind"] == "time"


def test_the_module_alone_says_what_it_is(capsys: Any) -> None:
    with patch_module_args({"planned": {}}), pytest.raises(SystemExit):
        service_bench.main()
    assert "action plugin" in json.loads(capsys.readouterr().out)["msg"]
