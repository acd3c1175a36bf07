# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""bench.yml as a person runs it, on a host that this machine plays, and the actions behind it with settings of all kinds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench_fixture import around, stand_in_vllm, standin
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.action import service_bench
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark, receipts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RECIPE = "qwen3-coder-next-fp8"  # which has a published figure


class Fleet:
    """Hosts that are this machine, with one engine each, and a playbook that hands over what the variables would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, Any] = {}
        (folder / "receipts").mkdir()
        (folder / "bin").mkdir()
        stand_in_vllm(folder / "bin")
        docker = folder / "bin" / "docker"
        docker.write_text('#!/bin/sh\n[ "$1" = exec ] || exit 1\nshift 2\nexec "$@"\n')
        docker.chmod(0o755)

    def host(self, name: str, url: str, service: str = "heavy", cluster: str = "") -> None:
        settings = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "ansible_become": False,
        }
        port = int(url.rpartition(":")[2])
        entry = {"name": service, "recipe": RECIPE, "served_model_name": "heavy", "port": port}
        self.hosts[name] = {**settings, "spark_services": [entry], "spark_sysroot": str(self.folder)}

    def receipt(self, service: str = "heavy") -> Path:
        path = self.folder / "receipts" / f"{service}.json"
        if not path.exists():
            path.write_text(receipts.dump(receipts.build(service, {"image": "a"}, {"ttft_seconds": 0.2}, None)))
        return path

    def run(self, playbook: str, *options: str) -> tuple[int, str]:
        inventory = self.folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"sparks": {"hosts": self.hosts}}, sort_keys=False))
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        ran = ansible_playbook("-i", inventory, playbook, *options, cwd=self.folder, env={"PATH": path})
        return ran.returncode, ran.stdout + ran.stderr

    def bench(self, settings: dict[str, Any], only: Any = "", *options: str) -> tuple[int, str]:
        """Run the two actions with these settings and receipts of the test's own."""
        tasks = [
            {
                "dgxspark.vllm.plan": {"show": "none", "fail_on_error": False},
                "run_once": True,
                "register": "spark_planned",
            },
            {
                "dgxspark.vllm.service_bench": {
                    "planned": "{{ spark_planned.hosts }}",
                    "settings": {
                        "output_tokens": 32,
                        "repeats": 2,
                        "concurrency": [],
                        "prefix_tokens": 0,
                        "prompt_tokens": [64],
                        **settings,
                    },
                    "only": only,
                    "receipts": str(self.folder / "receipts"),
                },
                "register": "benched",
            },
            {
                "dgxspark.vllm.service_bench": {"report_from": "benched", "dest": str(self.folder / "out.json")},
                "run_once": True,
                "when": "not ansible_check_mode",
            },
        ]
        play = self.folder / "play.yml"
        play.write_text(yaml.safe_dump([{"hosts": "sparks", "gather_facts": False, "tasks": tasks}], sort_keys=False))
        return self.run(str(play), *options)

    def out(self) -> dict[str, Any]:
        return json.loads((self.folder / "out.json").read_text())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_the_playbook(fleet: Fleet) -> None:
    """As delivered: the default lengths, of which one fits."""
    with standin(0.0005, max_model_len=1024) as (url, state):
        fleet.host("spark-1", url)
        code, text = fleet.run("dgxspark.vllm.bench", "-e", '{"spark_bench": {"concurrency": [2, 4]}}')
    assert code == 0, text
    assert "spark-1/heavy: 1/3: prompt 512: prefill" in text and "spark-1/heavy: 3/3: 4 at once: " in text
    assert "decode tok/s" in text
    assert "left out: prompts of 16384 tokens: the context is 1024" in text
    assert "published 43 tokens/s" in text and "not called comparable" in text
    assert "left out: a shared prefix of 8192 tokens: the context is 1024" in text
    assert state.generated == 4 * 256 + (2 + 4) * 3 * 256


@pytest.mark.nightly
def test_the_table_of_a_report_can_be_repeated(fleet: Fleet) -> None:
    """Answers of four contents, three requests at once, a shared prefix, and a rate: one command."""
    fleet.receipt()
    settings = {
        "contents": ["medium", "long", "code", "reasoning"],
        "concurrency": [3],
        "request_rates": [20],
        "rate_requests": 6,
    }
    with standin(0.0005, max_model_len=4096) as (url, state):
        fleet.host("spark-1", url)
        code, text = fleet.bench({**settings, "repeats": 1, "prefix_tokens": 1024})
    assert code == 0, text
    section = json.loads(fleet.receipt().read_text())["benchmark"]
    assert [(row["content"], row["output_tokens"]) for row in section["contents"]] == [
        ("medium", 300), ("long", 600), ("code", 300), ("reasoning", 300)
    ]  # fmt: skip
    assert section["prefix_cache"]["hit_rate"] > 0.9 and section["prefix_cache"]["repeats"] == 1
    assert section["request_rates"][0]["request_rate"] == 20 and section["concurrency"][0]["concurrency"] == 3
    assert "content reasoning: " in text and "from the prefix cache" in text
    contents = 2 * (300 + 600 + 300 + 300)
    loads = (3 + 6) * 32 + (4 + 6) * 32
    assert state.generated == 2 * 32 + contents + 2 * 64 + loads


def test_check_mode_asks_nothing(fleet: Fleet) -> None:
    with standin(0.0005) as (url, state):
        fleet.host("spark-1", url)
        code, text = fleet.run("dgxspark.vllm.bench", "--check")
    assert code == 0, text
    assert state.generated == 0


@pytest.mark.nightly
def test_figures_are_kept_and_compared(fleet: Fleet) -> None:
    path = fleet.receipt()
    with standin(0.005) as (url, _state):
        fleet.host("spark-1", url)
        code, text = fleet.bench({})
    assert code == 0, text
    receipt = receipts.load(path.read_text())
    first = receipt.benchmark
    assert receipt.deployed == {"image": "a"} and receipt.measured == {"ttft_seconds": 0.2}
    assert first["ratio"] == 1.0 and first["decode_tokens_per_second"] == first["baseline_decode_tokens_per_second"]
    assert fleet.out()["services"][0]["where"] == "spark-1/heavy" and fleet.out()["not_measured"] == []
    # As if it had been much faster: the speed here depends on the load of this machine.
    first["baseline"]["single"][0]["decode_tokens_per_second"] = around(1e6)
    path.write_text(receipts.dump(receipt))
    with standin(0.005) as (url, _state):
        fleet.host("spark-1", url)
        code, text = fleet.bench({"repeats": 1})
    assert code == 0, text
    assert "WARNING spark-1/heavy: decode at 64 tokens of heavy is" in text and "[bench.decode]" in text
    second = receipts.load(path.read_text()).benchmark
    assert second["baseline_decode_tokens_per_second"] == 1e6
    assert second["ratio"] < 0.9 and second["comparable"] is True
    proved = receipts.build("heavy", {"image": "a"}, {"ttft_seconds": 0.3}, receipts.load(path.read_text()))
    assert proved.benchmark == {**second, "stale": False}


def test_a_service_in_use_is_left_alone(fleet: Fleet) -> None:
    fleet.receipt()
    with standin(0.0005) as (url, state):
        fleet.host("spark-1", url)
        state.running = 2
        code, text = fleet.bench({"idle_seconds": 0})
        assert code != 0 and "others are being served: heavy (2 running, 0 waiting)" in text
        assert "spark-1/heavy was not measured" in text and state.generated == 0
        assert fleet.out()["not_measured"][0]["where"] == "spark-1/heavy"
        code, text = fleet.bench({"idle_seconds": 0, "disturb": True, "repeats": 1})
    assert code == 0, text
    assert state.generated == 2 * 32


@pytest.mark.nightly
def test_services_are_picked(fleet: Fleet) -> None:
    with standin(0.0005) as (url, first), standin(0.0005) as (other_url, second):
        fleet.host("spark-1", url)
        fleet.host("spark-2", other_url, "fast")
        code, text = fleet.bench({"repeats": 1}, "fast")
        assert code == 0, text
        assert "site.yml --tags prove writes it; the figures were not kept" in text
        assert list((fleet.folder / "receipts").iterdir()) == []
        assert first.generated == 0 and second.generated == 64
        code, text = fleet.bench({"repeats": 1, "services": ["heavy"]}, "", "--limit", "spark-1")
        assert code == 0, text
        assert first.generated == 64 and second.generated == 64
        code, text = fleet.bench({}, "heavi")
    assert code != 0 and "no host of the inventory has a service 'heavi'; did you mean 'heavy'?" in text


def test_wrong_settings_stop_before_a_request(fleet: Fleet) -> None:
    with standin(0.0005) as (url, state):
        fleet.host("spark-1", url)
        code, text = fleet.bench({"repeat": 3})
    assert code != 0 and "host spark-1, spark_bench: unknown key 'repeat'; did you mean 'repeats'?" in " ".join(
        text.split()
    )
    assert state.generated == 0


def test_a_service_that_is_down_does_not_stop_the_others(fleet: Fleet, closed_port: int) -> None:
    with standin(0.0005) as (url, state):
        fleet.host("spark-1", f"http://127.0.0.1:{closed_port}")
        fleet.host("spark-2", url, "fast")
        code, text = fleet.bench({"repeats": 1})
    assert code != 0
    assert "spark-1/heavy was not measured: connection refused" in text and "spark-2/fast: 1/1" in text
    assert state.generated == 64


def runs(*answers: Any) -> tuple[service_bench.ActionModule, list[str]]:
    """An action whose steps give these answers, or raise them; and the APIs that were asked."""
    action = service_bench.ActionModule.__new__(service_bench.ActionModule)
    action.settings, action.until = {"disturb": False, "seconds": 600}, time.monotonic() + 600
    action.service = {"api": "chat"}
    apis: list[str] = []
    following = iter(answers)

    def step(_name: str, **_task: Any) -> dict[str, Any]:
        apis.append(action.service["api"])
        answer = next(following)
        if isinstance(answer, Exception):
            raise answer
        return {"row": {"disturbed": answer}, "gpu": []}

    action.step = step
    return action, apis


WORKLOAD = benchmark.Workload("single", "prompt 512", 512, 256, 3, 1)
TEMPLATELESS = service_bench.Refused(
    "ValueError: Cannot use chat template functions: tokenizer.chat_template is not set"
)


def test_a_model_without_a_chat_template_is_asked_by_plain_completions() -> None:
    action, apis = runs(TEMPLATELESS, 0, 0)
    action._run(WORKLOAD, False)
    action._run(WORKLOAD, False)
    assert apis == ["chat", "completions", "completions"]
    action, _apis = runs(service_bench.Refused("OSError: no tokenizer"))
    with pytest.raises(service_bench.Refused, match="no tokenizer"):
        action._run(WORKLOAD, False)


def test_a_disturbed_run_is_repeated_once() -> None:
    action, apis = runs(1, 0)
    assert action._run(WORKLOAD, False)["row"]["disturbed"] == 0 and len(apis) == 2
    action, apis = runs(1, 1)
    assert action._run(WORKLOAD, False)["row"]["disturbed"] == 1 and len(apis) == 2
    action, apis = runs(1)
    action.settings["disturb"] = True
    assert action._run(WORKLOAD, False)["row"]["disturbed"] == 1 and len(apis) == 1
    action.until = time.monotonic() + 1
    with pytest.raises(service_bench.Refused, match="600 seconds were used up"):
        action._run(WORKLOAD, False)


def test_what_shares_the_gpus_of_a_pair() -> None:
    """The ranks of a model are on both hosts; what listens on the other's loopback cannot be asked from here."""
    pair = {"name": "pair_a", "hosts": ["spark-1", "spark-2"], "size": 2}

    def service(name: str, url: str | None, rank: int = 0, cluster: Any = None) -> dict[str, Any]:
        return {"name": name, "url": url, "rank": rank, "cluster": cluster}

    big = service("big", "http://10.0.0.1:8001", 0, pair)
    planned = {
        "spark-1": {"services": [big, service("fast", "http://127.0.0.1:8002")]},
        "spark-2": {
            "services": [
                service("big", None, 1, pair),
                service("open", "http://10.0.0.2:8003"),
                service("shut", "http://127.0.0.1:8004"),
            ]
        },
        "spark-3": {"services": [service("far", "http://10.0.0.3:8001")]},
    }
    assert service_bench.neighbours(planned, "spark-1", big) == [
        {"name": "fast", "url": "http://127.0.0.1:8002"},
        {"name": "spark-2/open", "url": "http://10.0.0.2:8003"},
    ]
    alone = planned["spark-2"]["services"][1]
    assert service_bench.neighbours(planned, "spark-2", alone) == [{"name": "shut", "url": "http://127.0.0.1:8004"}]


def test_a_variant_brings_its_own_published_figures() -> None:
    recipes = {
        "m": {
            "images": [{"ref": "a"}],
            "args": {"x": 1, "y": 2},
            "expect": [{"what": "w"}],
            "variants": {"fast": {"args": {"y": 3}, "expect": [{"what": "v"}]}, "small": {"args": {"x": 0}}},
        }
    }
    plain = service_bench.of_recipe(recipes, {"recipe": "m", "variant": []})
    assert plain == {"images": [{"ref": "a"}], "args": {"x": 1, "y": 2}, "expect": [{"what": "w"}]}
    fast = service_bench.of_recipe(recipes, {"recipe": "m", "variant": ["fast"]})
    assert fast["args"] == {"x": 1, "y": 3} and fast["expect"] == [{"what": "v"}]
    assert service_bench.of_recipe(recipes, {"recipe": "m", "variant": ["small"]})["expect"] == []
    assert service_bench.of_recipe(recipes, {"recipe": None, "variant": []})["expect"] is None


@pytest.mark.parametrize("is_simulated", [False, True])
def test_measured_rates_stand_beside_the_predicted_ones(fleet: Fleet, is_simulated: bool) -> None:
    with standin(0.04, max_model_len=2048) as (url, _state):
        fleet.host("spark-1", url)
        if not is_simulated:
            fleet.hosts["spark-1"]["spark_sysroot"] = "/"
        code, text = fleet.bench({"repeats": 1})
    assert code == 0, text
    rows = fleet.out()["services"][0]["predicted"]
    if is_simulated:  # whose rates mean nothing
        assert rows == [] and "predicted" not in text
    else:
        assert rows[0]["what"] == "decode, one stream" and rows[0]["low"] <= rows[0]["typical"] <= rows[0]["high"]
        assert rows[0]["share"] == pytest.approx(rows[0]["measured"] / rows[0]["typical"], abs=0.05)
        assert rows[0]["verdict"] in text and "decode, one stream" in text
