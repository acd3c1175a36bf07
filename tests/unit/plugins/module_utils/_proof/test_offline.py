# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model without its server: the command from the launch of a service, and what it printed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench_fixture import stand_in_vllm

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark, offline
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import launch

SETTINGS = {**benchmark.read("h", {})[0], "prompt_tokens": [1024, 4096], "rate_requests": 64}
SERVICE: dict[str, Any] = {
    "argv": [
        *("/usr/bin/docker", "run", "--label", "dgxspark.fingerprint=f0", "--rm", "--name", "spark-heavy"),
        *("--env-file", "/etc/dgxspark/env/heavy.env", "--gpus", "all", "--entrypoint", "/x/with-secrets"),
        *("an/image:1", "vllm", "serve", "Org/M", "--port", "8001"),
    ],
    "image": {"run": "an/image:1"},
    "entrypoint": "serve",
    "container": "spark-heavy",
    "model": {"argument": "Org/M", "repo": "Org/M", "revision": "abc"},
    "args": {
        "quantization": "modelopt",
        "tool-call-parser": "hermes",
        "enable-auto-tool-choice": True,
        "max-model-len": 8192,
    },
    "cluster": None,
    "pip": [],
}


def test_the_container_is_that_of_the_service_with_another_program() -> None:
    words = offline.command(SERVICE, launch.render(offline.engine_args(SERVICE)), SETTINGS, 900)
    image = words.index("an/image:1")
    assert words[:3] == ["docker", "run", "--rm"] and "--env-file" in words[:image]
    assert "spark-heavy" not in words and "dgxspark.fingerprint=f0" not in words
    assert (
        words[image - 2 : image] == ["--entrypoint", "/bin/sh"]
        and words[words.index("--name") + 1] == "spark-heavy-bench"
    )
    program_words = words[words.index("bench") + 1 :]
    assert program_words[:3] == ["900", "--model", "Org/M"]
    assert program_words[-6:] == ["--input-len", "1024", "--output-len", "256", "--num-prompts", "64"]
    pairs = dict(zip(program_words, program_words[1:]))
    assert pairs["--quantization"] == "modelopt" and pairs["--revision"] == "abc" and pairs["--max-model-len"] == "8192"
    assert not {"--tool-call-parser", "--enable-auto-tool-choice", "--port"} & set(program_words)


def test_nvidias_entrypoint_stays() -> None:
    words = offline.command({**SERVICE, "entrypoint": "passthrough"}, [], SETTINGS, 900)
    image = words.index("an/image:1")
    assert "--entrypoint" not in words and words[image + 1 : image + 3] == ["/bin/sh", "-c"]


def test_what_cannot_be_measured_so_says_why() -> None:
    assert offline.refusal(SERVICE) == ""
    assert "spans hosts" in offline.refusal({**SERVICE, "cluster": {"name": "pair"}})
    assert "installs packages" in offline.refusal({**SERVICE, "pip": ["arctic-inference"]})


def test_the_script_returns_the_result_and_not_the_log(tmp_path: Path) -> None:
    """The script itself, with a program that writes what vLLM writes."""
    program = tmp_path / "vllm"
    program.write_text(
        '#!/bin/sh\necho "noise"; [ "$1 $2" = "bench throughput" ] || exit 9\n'
        'for word; do [ "$last" = --output-json ] && out=$word; last=$word; done\n'
        'echo \'{"elapsed_time": 10.0, "num_requests": 64, "tokens_per_second": 8192.0}\' > "$out"\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", benchmark.THROUGHPUT_SCRIPT, "bench", "60", "--model", "m"],
        capture_output=True, text=True, check=False, env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert "noise" not in done.stdout
    result = benchmark.parse_output(done.returncode, done.stdout, done.stderr, "vllm bench throughput")
    assert offline.row(result, SETTINGS) == {
        "requests": 64, "prompt_tokens": 1024, "output_tokens": 256, "seconds": 10.0, "requests_per_second": 6.4,
        "tokens_per_second": 8192.0, "output_tokens_per_second": 1638.0,
    }  # fmt: skip


def test_the_stand_in_engine_writes_such_a_result(tmp_path: Path) -> None:
    stand_in_vllm(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    words = [
        "--model",
        str(tmp_path),
        "--max-model-len",
        "4096",
        "--input-len",
        "64",
        "--output-len",
        "16",
        "--num-prompts",
        "8",
    ]
    done = subprocess.run(
        ["/bin/sh", "-c", benchmark.THROUGHPUT_SCRIPT, "bench", "60", *words],
        capture_output=True, text=True, check=False, env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    result = benchmark.parse_output(done.returncode, done.stdout, done.stderr, "vllm bench throughput")
    row = offline.row(result, SETTINGS)
    assert row["requests"] == 8 and row["tokens_per_second"] > row["output_tokens_per_second"] / 16 > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"elapsed_time": 0}, "invalid figures"),
        ({"num_requests": "many"}, "be read"),
        ({"tokens_per_second": None}, "be read"),
    ],
)
def test_figures_that_make_no_sense(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        offline.row({"elapsed_time": 1, "num_requests": 1, "tokens_per_second": 1, **changes}, SETTINGS)


def test_no_option_of_the_engine_is_taken_for_the_servers() -> None:
    """By the parser of vLLM 0.33.0: the server's are declared first, the engine's begin with --model."""
    options = json.loads((Path(__file__).parents[4] / "sim" / "engine" / "args.json").read_text())["options"]
    flags = [[flag[2:] for flag in option["flags"] if flag.startswith("--")] for option in options]
    begin = next(number for number, names in enumerate(flags) if "model" in names)
    servers = {names[0] for names in flags[:begin]} - {"help"}  # behind it, how it is switched off
    engines = {name for names in flags[begin:] for name in names}
    assert servers - offline.SERVER_OPTIONS == set()
    assert offline.SERVER_OPTIONS & engines <= {"reasoning-parser", "reasoning-parser-plugin", "served-model-name"}
