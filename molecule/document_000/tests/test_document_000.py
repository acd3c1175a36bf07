"""Two models on one Spark behind one URL; the mistakes that took the author days are refused before any change.

The tests run in order on the shared nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
sys.path.insert(0, str(ROOT / "molecule"))

from nodes import SUBNET, node

KEYS = ROOT / ".cache" / "molecule" / "document_000"
HEAVY, FAST = (
    {"recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001},
    {"recipe": "qwen3-4b-instruct-2507", "port": 8002},
)


def chat(model, **more):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + (KEYS / "hermes").read_text().strip()}
    request = urllib.request.Request(f"http://{SUBNET}.0.11:4000/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]


def units():
    """What runs on the Spark, and since which start."""
    return node("spark-1", "systemctl", "show", "--property=Id,ActiveState,InvocationID", "spark-*.service")


def site(inventory, *options):
    """Run site.yml with another inventory on top of the scenario's."""
    argv = ["ansible-playbook"]
    for path in (ROOT / "molecule/inventory.yml", ROOT / "molecule/document_000/inventory.yml", inventory):
        argv += ["-i", str(path)]
    return subprocess.run(
        [*argv, "dgxspark.vllm.site", *options], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("alias", ["writer", "reviewer", "sources"])
def test_every_alias_answers(alias):
    choice = chat(alias, max_tokens=32)
    assert choice["message"]["content"] or choice["message"].get("reasoning_content")


def test_a_tool_call_ends_as_agents_want_it():
    weather = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    choice = chat("sources", tools=[{"type": "function", "function": weather}], tool_choice="auto")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_both_are_resident_and_none_has_restarted():
    shown = units()
    for name in ("heavy", "fast", "gateway"):
        assert f"Id=spark-{name}.service\nActiveState=active" in "\n".join(sorted_blocks(shown))
    listening = node("spark-1", "ss", "-H", "-tln")
    assert "127.0.0.1:8001" in listening and "127.0.0.1:8002" in listening  # the gateway is the one way in


def sorted_blocks(shown):
    """Properties of each unit in a fixed order, independent of systemd's."""
    for block in shown.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines())
        yield f"Id={values['Id']}\nActiveState={values['ActiveState']}"


# Attempts of the report, the words in which each failed there, and the message of the plan.
ATTEMPTS = {
    # The report has 0.75 for it, which cannot be: docs/memory.md says why.
    "a share that leaves no blocks": (
        [
            {
                **HEAVY,
                "name": "heavy",
                "args": {"gpu-memory-utilization": 0.62, "max-model-len": 65536, "max-num-seqs": 4},
            },
            {**FAST, "name": "fast", "args": {"gpu-memory-utilization": 0.10, "max-model-len": 16384}},
        ],
        "No available memory for the cache blocks",
    ),
    "0.85 beside a 4B that is resident": (
        [
            {
                **HEAVY,
                "name": "heavy",
                "args": {"gpu-memory-utilization": 0.85, "max-model-len": 65536, "max-num-seqs": 4},
            },
            {
                **FAST,
                "name": "fast",
                "args": {"gpu-memory-utilization": 0.12, "max-model-len": 65536, "max-num-seqs": 8},
            },
        ],
        "is less than desired GPU memory utilization",
    ),
    "64k for the 4B at 0.10": (
        [
            {
                **HEAVY,
                "name": "heavy",
                "args": {"gpu-memory-utilization": 0.80, "max-model-len": 65536, "max-num-seqs": 4},
            },
            {
                **FAST,
                "name": "fast",
                "args": {"gpu-memory-utilization": 0.10, "max-model-len": 65536, "max-num-seqs": 8},
            },
        ],
        "To serve at least one request with the models's max seq len (65536)",
    ),
}


@pytest.mark.parametrize(
    "attempt",
    [
        first := "0.85 beside a 4B that is resident",
        *(pytest.param(further, marks=pytest.mark.nightly) for further in ATTEMPTS if further != first),
    ],
)
def test_a_failed_attempt_of_the_report_is_refused_in_vllms_own_words(attempt, tmp_path):
    services, words = ATTEMPTS[attempt]
    inventory = tmp_path / "zz.yml"
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": {"spark_services": services}}}}))
    before = units()
    ran = site(inventory, "--limit", "spark-1")
    output = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode != 0 and words in output and "no host was changed" in output, output[-3000:]
    assert units() == before


def test_a_further_alias_is_taken_over_without_a_restart(tmp_path):
    document = yaml.safe_load((ROOT / "molecule/document_000/inventory.yml").read_text(encoding="utf-8"))
    gateway = document["sparks"]["hosts"]["spark-1"]["spark_gateway"]
    gateway["aliases"]["editor"] = {"backends": ["spark-1/fast"]}
    gateway["clients"][0]["aliases"].append("editor")
    inventory = tmp_path / "zz.yml"
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": {"spark_gateway": gateway}}}}))
    with pytest.raises(urllib.error.HTTPError):
        chat("editor")
    before = units()
    ran = site(inventory, "--tags", "gateway")
    assert ran.returncode == 0, ran.stdout[-3000:]
    choice = chat("editor", max_tokens=8)
    assert choice["message"]["content"] or choice["message"].get("reasoning_content")
    assert units() == before


def test_the_tag_prove_alone_asks_every_service_and_applies_nothing(tmp_path):
    inventory = tmp_path / "zz.yml"
    inventory.write_text("sparks: {}\n")
    before = units()
    ran = site(inventory, "--tags", "prove")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert "Install the unit files" not in ran.stdout and "Prove the services" in ran.stdout
    assert units() == before
    node("spark-1", "systemctl", "stop", "spark-fast.service")
    try:
        ran = site(inventory, "--tags", "prove")
        output = " ".join((ran.stdout + ran.stderr).split())
        assert ran.returncode != 0 and "spark-fast" in output, output[-3000:]
    finally:
        node("spark-1", "systemctl", "start", "spark-fast.service")
    assert len([line for line in units().splitlines() if line == "ActiveState=active"]) >= 2
