# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook import.yml as a person runs it, and what the action plugin import_recipe adds to the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.action.import_recipe import (
    env_files,
    report,
    with_settings,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_sources import (
    BrokenYaml,
    document_of,
    read_launch_yaml,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "tests" / "unit" / "plugins" / "fixtures" / "imports"


def run(folder: Path, *options: str) -> tuple[int, str]:
    ran = ansible_playbook("dgxspark.vllm.import", *options, cwd=folder)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_launch_is_printed_as_an_inventory_takes_it(tmp_path: Path) -> None:
    code, text = run(tmp_path, "-e", f"import_src={FIXTURES / 'vllm-qwen36.service'}", "-e", "import_name=heavy")
    assert code == 0, text
    shown = (
        text.partition("TASK [Convert the launch to a service]")[2].partition("ok: [localhost]")[0].partition("\n")[2]
    )
    document: dict[str, Any] = yaml.safe_load(shown)
    assert document["spark_hf_home"] == "/home/milo/.cache/huggingface"
    (service,) = document["spark_services"]
    assert (service["name"], service["port"]) == ("heavy", 8001)
    # The recipe of the collection for this model gave its config, so nothing is left to do.
    assert service["config"]["architectures"] and "# to do" not in shown
    assert "# left out: Restart=on-failure" in shown and "# SPK201 warning" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_form_with_variables_and_features(tmp_path: Path) -> None:
    values = {
        "import_src": str(FIXTURES / "vllm_recipe.txt"),
        "import_variant": "nvfp4",
        "import_features": ["spec_decoding"],
    }
    code, text = run(tmp_path, "--check", "-e", json.dumps(values))
    assert code == 0, text
    assert "vllm/vllm-openai:v0.28.0" in text and "moe_backend: triton" in text and "tool-call-parser" not in text


@pytest.mark.parametrize(
    ("values", "needle"),
    [
        ({"import_src": "gone.service"}, "gone.service' cannot be read"),
        ({"import_src": str(FIXTURES / "vllm.txt")}, "waits for HF_MODEL_HANDLE"),
        ({"import_src": str(FIXTURES / "compose.txt"), "import_select": "x"}, "there is no 'x' among"),
    ],
)
def test_what_cannot_be_read_fails_with_the_reason(tmp_path: Path, values: dict[str, Any], needle: str) -> None:
    code, text = run(tmp_path, "-e", json.dumps(values))
    assert code == 2 and needle in " ".join(text.split())


def test_broken_yaml_is_said_with_its_line(tmp_path: Path) -> None:
    """The message does not repeat that line."""
    (tmp_path / "compose.yml").write_text("services:\n  vllm:\n    command: [--api-key, swordfish9\n    image: x\n")
    code, text = run(tmp_path, "-e", "import_src=compose.yml")
    assert code == 2 and "As YAML it is broken" in text and "at line 4, column" in " ".join(text.split())
    assert "swordfish" not in text


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "\n".join(
            ["a0: &a0 [x,x,x,x,x,x,x,x,x]", *(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
        ),
    ],
)
def test_aliases_without_end_are_refused(text: str) -> None:
    with pytest.raises(BrokenYaml, match="aliases"):
        read_launch_yaml(text)


def test_env_files_are_read_beside_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    (tmp_path / "b.env").write_text("B=2\n")
    assert env_files("docker run --env-file ./a.env --env-file=b.env x", tmp_path) == {
        "./a.env": "A=1\n",
        "b.env": "B=2\n",
    }
    assert env_files("[Service]\nEnvironmentFile=-a.env\n", tmp_path) == {"a.env": "A=1\n"}
    for listed in ("\n      - a.env\n      - path: b.env\n", " [a.env, {path: b.env}]\n"):
        compose = f"services:\n  x:\n    env_file:{listed}"
        assert env_files(compose, tmp_path) == {"a.env": "A=1\n", "b.env": "B=2\n"}
    assert env_files('docker run --env-file "./a.env" x', tmp_path) == {"./a.env": "A=1\n"}
    assert env_files("--env-file gone.env", tmp_path) == {}


def test_settings_that_a_script_sources_are_read_beside_it(tmp_path: Path) -> None:
    """A head and a worker with Ray, in the manner of vllm-dgx-spark: settings in a file, vllm serve by docker exec."""
    (tmp_path / "start_cluster.sh").write_text((FIXTURES / "ray-head-by-exec.sh").read_text())
    code, text = run(tmp_path, "--check", "-e", "import_src=start_cluster.sh")
    assert code == 0, text
    assert "openai/gpt-oss-120b" in text and "max-model-len: 8192" in text and "config.env" in text
    (tmp_path / "config.env").write_text(
        '# settings\nMODEL="${MODEL:-Qwen/Qwen3-8B}"\nMAX_MODEL_LEN="${MAX_MODEL_LEN:-16384}"\nTENSOR_PARALLEL="1"\n'
    )
    code, text = run(tmp_path, "--check", "-e", "import_src=start_cluster.sh")
    assert code == 0, text
    assert "Qwen/Qwen3-8B" in text and "max-model-len: 16384" in text and "gpt-oss" not in text


def test_only_settings_of_the_scripts_own_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "other.env").write_text("MODEL=x")
    (tmp_path / "in" / "link.env").symlink_to(tmp_path / "other.env")
    script = "source ../other.env\nsource link.env\n. /etc/hostname\nsource .venv/bin/activate"
    assert with_settings(script, tmp_path / "in") == script
    (tmp_path / "in" / "other.env").write_text("MODEL=y")
    assert with_settings('  source "${HERE}/other.env"', tmp_path / "in") == "MODEL=y"


def test_only_a_mapping_is_yaml() -> None:
    assert document_of("docker run x") is None
    assert document_of("{broken") is None
    assert document_of("meta: {date_added: 2026-04-16}\n") == {"meta": {"date_added": "2026-04-16"}}


def test_the_report_names_everything() -> None:
    launch = {
        "nodes": 2,
        "spark_cluster": {"name": "pair_a", "services": []},
        "missing": ["service: 'config' is missing."],
        "left_out": [{"item": "--rm", "reason": "of no use"}],
        "findings": [{"rule": "SPK201", "severity": "warning", "message": "It does nothing.", "fix": "Remove it."}],
        "before": [{"rule": "SPKU01", "severity": "warning", "message": "It is deprecated.", "fix": "Use +."}],
    }
    assert report(launch) == [
        "to do: put 2 hosts into a group pair_a, and this into the variables of that group",
        "to do: service: 'config' is missing.",
        "left out: --rm: of no use",
        "SPK201 warning: It does nothing. Remove it.",
        "the original: SPKU01 warning: It is deprecated. Use +.",
    ]
