# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""tune.yml on a played host: a unit whose speed follows the speed model for the options that it was deployed with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
PLAYED = '''
"""Plays a host: every module that tune.yml runs on one."""
import json
import os
import re
import signal
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import speeds
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain


def of_host(name):
    return Path(os.environ["PLAYED_HOST"]) / name


def log(line):
    with of_host("log").open("a") as file:
        file.write(line + "\\n")


def listed(name):
    return of_host(name).read_text().split() if of_host(name).exists() else []


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        name = "PLAYED_NAME"
        return {"changed": False, **getattr(self, name)(plain(dict(self._task.args)), task_vars)}

    def spark_info(self, args, task_vars):
        return {"images": {}, "spark": {"services": ["heavy"]}}

    def endpoint_ready(self, args, task_vars):
        return {}

    def generation(self, args, task_vars):
        log("recorded")
        return {}

    def service_proof(self, args, task_vars):
        batched = self.deployed()["max-num-batched-tokens"]
        if batched in listed("broken") or (args["receipts_dir"] and batched in listed("broken_later")):
            return {"failed": True, "msg": f"garbage with {batched}"}
        return {"findings": []}

    def deployed(self):
        return json.loads(of_host("unit").read_text())

    def deploy(self, args, task_vars):
        text = json.dumps(args.get("documents") or args["units"])
        unit = dict(re.findall(r"--(max-num-seqs|max-num-batched-tokens)[^0-9a-z]+([0-9]+)", text))
        if args.get("parts") == []:
            return {"changed": True}
        old = self.deployed() if of_host("unit").exists() else {}
        if not self._task.check_mode and unit != old:
            of_host("unit").write_text(json.dumps(unit))
            log(f"deployed {unit['max-num-seqs']} {unit['max-num-batched-tokens']}")
        due = ["spark-heavy.service"] if unit != old else []
        return {"changed": unit != old, "restart_due": due, "started": [], "starting": []}

    def service_bench(self, args, task_vars):
        unit = self.deployed()
        log(f"measured {unit['max-num-seqs']} {unit['max-num-batched-tokens']}")
        if unit["max-num-seqs"] in listed("cut"):
            os.kill(os.getppid(), signal.SIGKILL)
        (service,) = args["planned"]["spark-1"]["services"]
        options = {**service["args"], **{key: int(value) for key, value in unit.items()}}
        assert {key: service["args"][key] for key in unit} == {key: int(value) for key, value in unit.items()}
        recipe = load_recipes([RECIPES])[0][service["recipe"]]
        speed = speeds.of_launch({"config": recipe["config"], "vllm_version": service["vllm_version"]}, options)
        rate, prompt = speed.one_stream.typical, 8192 / speed.first_token_8k.typical
        row = {"prompt_tokens": 8192, "decode_tokens_per_second": {"median": rate}, "prefill_tokens_per_second": {"median": prompt}}
        loads = [{"concurrency": speed.streams, "output_tokens_per_second": speed.all_streams.typical}]
        return {"results": [{"where": "spark-1/heavy", "single": [row], "concurrency": loads}], "refused": []}
'''
NAMES = ("deploy", "endpoint_ready", "generation", "service_bench", "service_proof", "spark_info")


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection, with a played host."""
    folder = tmp_path_factory.mktemp("collections")
    collection = folder / "ansible_collections" / "dgxspark" / "vllm"
    collection.mkdir(parents=True)
    for name in ("meta", "playbooks", "roles", "galaxy.yml"):
        (collection / name).symlink_to(ROOT / name)
    for kind in ("action", "doc_fragments", "filter", "lookup", "module_utils", "modules", "plugin_utils"):
        (collection / "plugins" / kind).mkdir(parents=True)
        for path in (ROOT / "plugins" / kind).iterdir():
            if path.name != "__pycache__" and not (kind == "action" and path.stem in NAMES):
                (collection / "plugins" / kind / path.name).symlink_to(path)
    for name in NAMES:
        (collection / "plugins" / "action" / f"{name}.py").write_text(PLAYED.replace("PLAYED_NAME", name))
    return folder


class Host:
    """A Spark with one service, deployed as its inventory says."""

    def __init__(self, folder: Path, collections: Path) -> None:
        self.folder, self.collections = folder, collections
        service = {
            "name": "heavy",
            "recipe": "qwen3-8b",
            "port": 8001,
            "args": {"max-num-seqs": 4, "max-num-batched-tokens": 4096, "max-model-len": 16384},
        }
        hosts = {"spark-1": {"ansible_connection": "local", "ansible_become": False, "spark_services": [service]}}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}))
        (folder / "unit").write_text(json.dumps({"max-num-batched-tokens": "4096", "max-num-seqs": "4"}))

    def play(self, *options: str, cold: bool = False, tune: Any = None, **extra_vars: Any) -> tuple[int, str]:
        variables = {"service": "heavy", "spark_tune": {"levers": ["chunk", "streams"], **(tune or {})}, **extra_vars}
        ran = ansible_playbook(
            *("-i", "hosts.yml", "dgxspark.vllm.tune", *options, "-e", json.dumps(variables)),
            cwd=self.folder,
            env={
                "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
                "PLAYED_HOST": str(self.folder),
                "PATH": os.environ["PATH"],
            },
            cold=cold,
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def unit(self) -> tuple[int, int]:
        unit = json.loads((self.folder / "unit").read_text())
        return int(unit["max-num-seqs"]), int(unit["max-num-batched-tokens"])


@pytest.fixture
def host(tmp_path: Path, collections: Path) -> Host:
    return Host(tmp_path, collections)


def test_the_best_variant_stays_and_the_inventory_has_it_only_if_asked(host: Host) -> None:
    code, text = host.play(tune={"goal": "together"})
    assert code == 0, text
    # More streams raise the rate of all of them; larger chunks do not.
    assert host.unit == (16, 4096), text
    measured = [line for line in host.log() if line.startswith("measured")]
    assert measured[0] == "measured 4 4096" and len(measured) == len(set(measured)) == 7
    assert host.log()[-2:] == ["deployed 16 4096", "recorded"]
    assert "* streams-16" in text and "site.yml would undo it" in text
    assert not (host.folder / "host_vars").exists()
    # All is measured already: nothing is tried again.
    code, text = host.play(tune={"goal": "together"}, spark_tune_write=True)
    assert code == 0, text
    assert [line for line in host.log() if line.startswith("measured")] == measured
    written = host.folder / "host_vars" / "spark-1.yml"
    assert yaml.safe_load(written.read_text()) == {"spark_tuned": {"heavy": {"max-num-seqs": 16}}}
    # The next run starts from there.
    code, text = host.play("--check")
    assert code == 0 and "streams-32" in text and "Nothing is tried in check mode" in text
    assert host.unit == (16, 4096)


@pytest.mark.nightly
def test_what_fails_its_proof_is_not_kept_and_the_old_one_comes_back(host: Host) -> None:
    (host.folder / "broken").write_text("8192 16384 2048")
    code, text = host.play(tune={"levers": ["chunk"], "goal": "prompt"})
    assert code == 0, text
    assert host.unit == (4, 4096) and "heavy stays as the inventory has it" in text and "garbage with 16384" in text
    assert [line for line in host.log() if line.startswith("measured")] == ["measured 4 4096"]


@pytest.mark.nightly
def test_a_best_variant_that_fails_later_is_replaced_by_the_old_one(host: Host) -> None:
    (host.folder / "broken_later").write_text("16384")
    code, text = host.play(tune={"levers": ["chunk"], "goal": "prompt"})
    assert code == 0, text
    assert host.unit == (4, 4096) and host.log()[-2:] == ["deployed 4 4096", "recorded"]


@pytest.mark.nightly
def test_an_interrupted_run_goes_on_and_ends_with_the_best(host: Host) -> None:
    (host.folder / "cut").write_text("16")
    code, text = host.play(cold=True, tune={"levers": ["streams"], "goal": "together"})
    assert code != 0
    assert host.unit == (16, 4096)  # an engine that nobody asked for
    (host.folder / "cut").unlink()
    before = len(host.log())
    code, text = host.play(tune={"levers": ["streams"], "goal": "together"})
    assert code == 0, text
    measured = [line for line in host.log()[before:] if line.startswith("measured")]
    assert measured == ["measured 16 4096", "measured 2 4096"] and host.unit == (16, 4096)


@pytest.mark.nightly
def test_the_budget_ends_a_run_and_what_has_no_plan_is_not_tried(host: Host) -> None:
    impossible = {"variants": {"none": {"max-num-seqs": -1}, "huge": {"max-model-len": 9000000}}}
    code, text = host.play(tune={"restarts": 1, "goal": "together", **impossible})
    assert code == 0, text
    assert "none: it does not fit" in text and "huge: it does not fit" in text
    assert len([line for line in host.log() if line.startswith("measured")]) == 2
    assert "the 1 restarts of this run are used up" in text


def test_wrong_requests_change_nothing(host: Host) -> None:
    for variables, message in (
        ({"service": "havy"}, "did you mean 'heavy'?"),
        ({"service": ""}, "name the service: -e service=NAME"),
    ):
        code, text = host.play(**variables)
        assert code != 0 and message in text
    code, text = host.play(tune={"levers": ["chonk"]})
    assert code != 0 and "nothing was tuned" in text and "chonk" in text
    (host.folder / "unit").write_text(json.dumps({"max-num-batched-tokens": "1024", "max-num-seqs": "4"}))
    code, text = host.play()
    assert code != 0 and "spark-1 differs from the inventory" in text and host.unit == (4, 1024)
    assert host.log() == []
