# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook plan.yml as a person runs it, on inventories of this file. No host is contacted: the addresses lead nowhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
AS_OF = re.compile("As of [^<]+")
FAST: dict[str, Any] = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002}
HEAVY: dict[str, Any] = {"name": "heavy", "recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001}


class Plan:
    """Runs the playbook on an inventory of the hosts given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "plan.json"
        self.settings: dict[str, str | None] = {}

    def __call__(self, hosts: dict[str, Any], *options: str, group: str = "sparks") -> tuple[int, str]:
        named = {
            name: {"ansible_host": f"192.0.2.{number}", **host}
            for number, (name, host) in enumerate(hosts.items(), start=1)
        }
        return self.run({group: {"hosts": named, "vars": {"spark_plan_file": str(self.file)}}}, *options)

    def run(self, groups: dict[str, Any], *options: str, playbook: str = "plan") -> tuple[int, str]:
        inventory = self.folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump(groups, sort_keys=False))
        ran = ansible_playbook(
            "-i", inventory, f"dgxspark.vllm.{playbook}", *options, cwd=self.folder, env=self.settings
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def written(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return content


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(tmp_path)


def test_a_plan_is_shown_and_written_without_timestamps(plan: Plan) -> None:
    hosts = {"spark-1": {"spark_services": [HEAVY, FAST]}, "spark-2": {"spark_services": [FAST]}}
    code, text = plan(hosts)
    assert code == 0, text
    assert "spark-1: fits" in text
    written = plan.written()
    assert sorted(written["hosts"]) == ["spark-1", "spark-2"]
    assert written["hosts"]["spark-1"]["start_order"] == ["heavy", "fast"]
    page = plan.file.with_suffix(".html")
    before = (plan.file.read_bytes(), AS_OF.sub("", page.read_text(encoding="utf-8")))
    assert "spark-2" in before[1]
    assert str(page) in text
    assert f"inventory {plan.folder.name}." in AS_OF.search(page.read_text(encoding="utf-8"))[0]  # type: ignore[index]
    assert plan(hosts, "--limit", "spark-2")[0] == 0
    # A limit does not change the plan, and the plan contains no time; its page has the time of the run.
    assert (plan.file.read_bytes(), AS_OF.sub("", page.read_text(encoding="utf-8"))) == before
    assert sorted(path.name for path in plan.folder.iterdir()) == ["hosts.yml", "plan.html", "plan.json"]


def test_a_refused_plan_leaves_the_page_of_the_last_good_one(plan: Plan) -> None:
    good = {"spark-1": {"spark_services": [FAST]}}
    bad = {"spark-1": {"spark_services": [{**HEAVY, "args": {"gpu-memory-utilization": 0.93}}, FAST]}}
    page, failed = plan.folder / "plan.html", plan.folder / "plan_failed.html"
    code, text = plan(bad)
    assert code != 0 and f"More in {failed}" in text and "is still that of" not in text and not page.exists()
    assert plan(good)[0] == 0 and not failed.exists()
    before = page.read_bytes()
    code, text = plan(bad)
    assert code != 0 and f"More in {failed}; plan.html still shows the last plan without errors" in text
    assert page.read_bytes() == before and b"Refused plan of 1 DGX Spark" in failed.read_bytes()
    assert plan.written()["hosts"]["spark-1"]["findings"]  # the JSON is that of the last plan
    failed.write_text("mine")
    code, text = plan(good)
    assert code != 0 and "plan_failed.html is no report of this collection" in text and failed.read_text() == "mine"


def test_notes_are_counted_unless_they_are_wanted(plan: Plan) -> None:
    hosts = {"spark-1": {"spark_services": [FAST]}}
    note = "INFO spark-1/fast: "
    for options, printed in (((), False), (("-v",), True), (("-e", "spark_plan_show=full"), True)):
        code, text = plan(hosts, *options)
        assert code == 0 and "spark-1: fits" in text, text
        assert (note in text) is printed and ("in full with -v" in text) is not printed
    code, text = plan(hosts, "-e", "spark_plan_show=none")
    assert code == 0 and "spark-1: fits" not in text
    ran = ansible_playbook(
        "-i", plan.folder / "hosts.yml", "dgxspark.vllm.plan", "-e", "spark_plan_show=json", cwd=plan.folder
    )
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    assert json.loads(line) == plan.written()
    code, text = plan(hosts, "-e", "spark_plan_show=ful")
    assert code != 0 and "spark_plan_show" in text


@pytest.mark.parametrize(
    ("settings", "colored"),
    [
        ({}, False),  # into a pipe
        ({"ANSIBLE_FORCE_COLOR": "1"}, True),
        pytest.param({"ANSIBLE_NOCOLOR": "1"}, False, marks=pytest.mark.nightly),
        pytest.param({"NO_COLOR": "1"}, False, marks=pytest.mark.nightly),
    ],
)
def test_the_bar_has_the_colours_that_ansible_has(plan: Plan, settings: dict[str, str], colored: bool) -> None:
    plan.settings = {"ANSIBLE_NOCOLOR": None, **settings, "ANSIBLE_LOG_PATH": str(plan.folder / "log")}
    code, text = plan({"spark-1": {"spark_services": [FAST]}})
    assert code == 0
    assert ("\033[36m█" in text) == colored
    assert "█" in text
    log = (plan.folder / "log").read_text(encoding="utf-8")
    assert "spark-1: fits" in log
    assert "\033[36m" not in log


def test_the_page_cannot_take_the_place_of_the_plan(plan: Plan) -> None:
    code, text = plan({"spark-1": {"spark_services": [FAST]}}, "-e", f"spark_plan_file={plan.folder}/plan.html")
    assert code != 0
    assert "must be a .json file" in text


def test_a_check_run_writes_nothing(plan: Plan) -> None:
    assert plan({"spark-1": {"spark_services": [FAST]}}, "--check")[0] == 0
    assert [path.name for path in plan.folder.iterdir()] == ["hosts.yml"]


def test_all_that_is_malformed_is_told_at_once(plan: Plan) -> None:
    code, text = plan(
        {
            "spark-1": {"spark_services": [{**FAST, "recipe": "qwen3-4b"}, {**HEAVY, "port": "x"}]},
            "spark-2": {"spark_services": "{{ nowhere }}", "spark_servces": []},
            "spark-3": {"spark_services": [FAST], "spark_recipe_dirs": ["/nowhere"]},
        }
    )
    assert code != 0
    assert "the inventory cannot be planned, 5 problems; no host was touched" in text
    assert "unknown recipe 'qwen3-4b'; did you mean 'qwen3-4b-instruct-2507'?" in text
    assert "'port' is a text; it must be a whole number from 1 to 65535" in text
    assert "host spark-2: 'spark_services' cannot be read" in text
    assert "unknown variable 'spark_servces'; did you mean 'spark_services'?" in text
    assert "spark_recipe_dirs names '/nowhere', which is no folder here" in text


def test_a_missing_group_is_named(plan: Plan) -> None:
    code, text = plan({"spark-1": {"spark_services": [FAST]}}, group="nodes")
    assert code != 0
    assert "has no group 'sparks' but 'nodes'; rename the group 'nodes' to 'sparks'." in text


def test_errors_of_all_hosts_stop_the_play(plan: Plan) -> None:
    too_much = {**HEAVY, "args": {"gpu-memory-utilization": 0.99}}
    code, text = plan({"spark-1": {"spark_services": [too_much]}, "spark-2": {"spark_services": [too_much]}})
    assert code != 0
    assert "ERROR heavy on spark-1..2: " in text
    assert "is less than desired GPU memory utilization (0.99, 118.47 GiB)" in text


def test_a_key_that_is_not_there_is_said_and_one_that_is_none_is_refused(plan: Plan, tmp_path: Path) -> None:
    code, text = plan({"spark-1": {"spark_services": [{**FAST, "api_key_file": str(tmp_path / "key")}]}})
    assert code == 0, "the playbook keys makes it"
    assert "[secret.missing]" in text
    (tmp_path / "key").write_text("\n")
    code, text = plan({"spark-1": {"spark_services": [{**FAST, "api_key_file": str(tmp_path / "key")}]}})
    assert code != 0 and "contains only blanks and line breaks" in text and "[secret.unusable]" in text
    (tmp_path / "key").write_text("secret-of-the-test")
    assert plan({"spark-1": {"spark_services": [{**FAST, "api_key_file": str(tmp_path / "key")}]}})[0] == 0
    assert "secret" not in json.dumps(plan.written()["hosts"]["spark-1"]["services"][0]["argv"]).replace("secrets", "")


def test_recipes_of_ones_own(plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    recipe = yaml.safe_load((ROOT / "playbooks/recipes/qwen3-8b.yml").read_text(encoding="utf-8"))
    (folder / "mine.yml").write_text(yaml.safe_dump({**recipe, "name": "mine", "args": {"max-model-len": 4096}}))
    hosts = {"spark-1": {"spark_recipe_dirs": [str(folder)], "spark_services": [{**FAST, "recipe": "mine"}]}}
    assert plan(hosts)[0] == 0
    assert plan.written()["hosts"]["spark-1"]["services"][0]["args"]["max-model-len"] == 4096
    (folder / "broken.yml").write_text("name: [")
    code, text = plan(hosts)
    assert code != 0
    assert "recipe broken.yml: cannot be read" in text


@pytest.mark.parametrize(
    "engine",
    [
        None,
        pytest.param("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", marks=pytest.mark.nightly),
    ],
)
def test_a_host_may_be_the_controller_itself(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str | None
) -> None:
    """This machine is asked, over the connection `local`, and says that it is no Spark; an engine is not needed for that."""
    if engine:
        docker = tmp_path / "bin" / "docker"
        docker.parent.mkdir()
        docker.write_text(f"#!/bin/sh\necho '{engine}' >&2\nexit 1\n", encoding="utf-8")
        docker.chmod(0o755)
        monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    code, text = plan(
        {"spark-1": {"ansible_connection": "local", "spark_services": [FAST]}},
        "-e",
        "spark_plan_facts=auto",
        "-e",
        "ansible_become=false",
        "-e",
        "ansible_python_interpreter={{ ansible_playbook_python }}",
    )
    assert code != 0
    assert "spark-1: this host does not look like a DGX Spark (GB10)" in text
    assert "[host.gpu]" in text
    assert not engine or "[host.docker]" in text


def pair(*services: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two Sparks of one cluster, the second name first, and a single Spark."""
    large = {"name": "large", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8000}
    return {
        "sparks": {
            "hosts": {"spark-3": {"ansible_host": "192.0.2.3", "spark_services": [FAST]}},
            # Three Sparks without a lock file: unpinned images would be refused, which is not the subject of this test.
            "vars": {"spark_allow_moving": True},
            "children": {
                "pair_a": {
                    "hosts": {
                        "spark-2": {"ansible_host": "192.0.2.2"},
                        "spark-1": {"ansible_host": "192.0.2.1", "spark_services": [FAST]},
                    },
                    "vars": {"spark_cluster": {"name": "pair_a", "services": list(services or [large]), **more}},
                }
            },
        }
    }


def test_a_cluster_is_planned_on_all_of_its_hosts(plan: Plan) -> None:
    code, text = plan.run(pair(), "-e", f"spark_plan_file={plan.file}")
    assert code == 0, text
    assert "large, rank 0 of 2" in text
    written = plan.written()
    assert written["clusters"]["pair_a"]["hosts"] == ["spark-2", "spark-1"], "in the order of the inventory"
    assert [service["name"] for service in written["hosts"]["spark-1"]["services"]] == ["fast", "large"]
    assert written["hosts"]["spark-3"]["cluster"] is None


@pytest.mark.parametrize(
    ("limit", "refused"), [("spark-1", "spark-1,spark-2"), ("spark-3,spark-2", "spark-2,spark-3,spark-1")]
)
def test_a_limit_that_cuts_a_cluster_is_refused_before_any_host_is_contacted(
    plan: Plan, limit: str, refused: str
) -> None:
    code, text = plan.run(pair(), "--limit", limit, playbook="site")
    assert code == 2, text
    assert "Ranks of one engine change together" in text
    suggested = text.split("--limit ", 1)[1].split()[0].strip("'\"")
    assert set(suggested.split(",")) == set(refused.split(","))
    assert "unreachable=0" in text and "UNREACHABLE" not in text
    # To plan, a limit is no matter.
    assert plan.run(pair(), "--limit", limit, "-e", f"spark_plan_file={plan.file}")[0] == 0


@pytest.mark.nightly
def test_keys_that_are_missing_are_made_once_and_those_of_others_are_not(plan: Plan) -> None:
    """Engines and gateway check their own keys; a bot's token is somebody else's."""
    secrets = plan.folder / "secrets"
    host = {
        "spark_services": [{**FAST, "api_key_file": str(secrets / "engine")}],
        "spark_gateway": {
            "master_key_file": str(secrets / "gateway"),
            "aliases": {"a": {"backends": ["spark-1/fast"]}},
        },
        "spark_fleet_monitor": {"notify": [{"telegram": {"token_file": str(secrets / "bot"), "chat_id": "1"}}]},
    }
    groups = {"sparks": {"hosts": {"spark-1": {"ansible_host": "192.0.2.1", **host}}}}
    code, text = plan.run(groups)
    assert code != 0 and "secret.missing" in text and "dgxspark.vllm.keys, which creates missing keys" in text, text
    code, text = plan.run(groups, playbook="keys")
    assert code == 0, text
    made = {path.name: path.read_text() for path in secrets.iterdir()}
    assert sorted(made) == ["engine", "gateway"] and made["engine"] != made["gateway"]
    assert all(len(key.strip()) > 40 and key not in text for key in made.values())
    assert {oct(path.stat().st_mode & 0o777) for path in secrets.iterdir()} == {"0o600"}
    code, text = plan.run(groups, playbook="keys")
    assert code == 0 and "changed=0" in text, text
    assert {path.name: path.read_text() for path in secrets.iterdir()} == made
    code, text = plan.run(groups)
    assert code != 0 and "bot" in text and "1 error" in text, text


# A model that the arithmetic does not know.
NEW: dict[str, Any] = {
    "name": "new",
    "model": {"repo": "org/new"},
    "image": {"ref": "an/image:1", "vllm_version": "0.33.0", "entrypoint": "serve"},
    "config": {"architectures": ["NewForCausalLM"], "model_type": "of_next_year", "transformers_version": "5.0"},
    "args": {"max-model-len": 16384, "max-num-seqs": 4},
    "port": 8001,
}
DOCKER = """#!/bin/sh
# Plays Docker with one image, whose vLLM has planned the model.
echo "$1" >>{folder}/docker.log
case "$1" in
  image) echo '[{{"Id": "sha256:{id}", "RepoTags": ["an/image:1"], "Config": {{}}, "Architecture": "arm64", "Os": "linux"}}]' ;;
  info) echo '{{"ServerVersion": "29.2.1", "Runtimes": {{"nvidia": {{}}}}}}' ;;
  ps) ;;
  run) cat >/dev/null; cat {folder}/said ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Docker whose image says what vLLM 0.33.0 once said; returns the file of its calls."""
    recorded = json.loads((ROOT / "tests/unit/plugins/fixtures/image_plans.json").read_text(encoding="utf-8"))
    answer = json.dumps(recorded["dense"]["answer"])
    (tmp_path / "said").write_text(f"dgxspark-plan-probe:{answer}\n", encoding="utf-8")
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(DOCKER.format(folder=tmp_path, id="a" * 64), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "docker.log"


def test_the_controllers_docker_is_asked_for_a_model_that_is_not_known(plan: Plan, docker: Path) -> None:
    hosts = {"spark-1": {"spark_services": [NEW]}, "spark-2": {"spark_services": [NEW]}}
    code, text = plan(hosts)
    assert code != 0 and "[memory.refused]" in text and not docker.exists()
    code, text = plan(
        hosts, "-e", "spark_probe=controller", "-e", "ansible_python_interpreter={{ ansible_playbook_python }}"
    )
    assert code == 0, text
    for body in plan.written()["hosts"].values():
        assert body["services"][0]["memory"]["sources"] == {"weights": "image", "kv_cache": "image"}
        assert body["services"][0]["memory"]["bytes_per_block"] == 2359296
    assert "new: weights and KV cache by the vLLM of the image" in text
    assert docker.read_text().split().count("run") == 1, "once for the fleet"


def test_where_nothing_has_to_be_asked_nothing_is(plan: Plan, docker: Path) -> None:
    code, text = plan({"spark-1": {"spark_services": [FAST]}}, "-e", "spark_probe=controller")
    assert code == 0 and not docker.exists()
    assert "Ask images how they would plan" not in text


def test_a_spark_that_has_the_image_is_asked_once(plan: Plan, docker: Path) -> None:
    """The machine of the test is no Spark, which is an error; the answer of its image is saved all the same."""
    meminfo = plan.folder / "root" / "proc" / "meminfo"
    meminfo.parent.mkdir(parents=True)
    meminfo.write_text("MemTotal: 125480000 kB\nMemFree: 100000000 kB\nMemAvailable: 110000000 kB\n", encoding="utf-8")
    host = {"ansible_connection": "local", "spark_services": [NEW], "ansible_become": False}
    host["spark_sysroot"] = str(plan.folder / "root")
    options = ["-e", "spark_plan_facts=auto", "-e", "ansible_python_interpreter={{ ansible_playbook_python }}"]
    code, text = plan({"spark-1": host}, *options)
    assert code != 0 and "[host.gpu]" in text
    assert "Ask images how they would plan" in text and "[memory.image]" in text, text
    assert len(list(plan.folder.glob(".spark/image_plans/*.json"))) == 1
    assert docker.read_text().split().count("run") == 1
    code, text = plan({"spark-1": host}, *options)
    assert "[memory.image]" in text and "Ask images how they would plan" not in text
    assert docker.read_text().split().count("run") == 1
    code, text = plan(
        {"spark-1": {**host, "spark_services": [{**NEW, "port": 8002}]}}, *options, "-e", "spark_probe=none"
    )
    assert "[memory.image]" in text, "what was said before is used"


def test_the_task_returns_no_plan_that_lies_in_the_file(plan: Plan) -> None:
    """Ansible goes through every value of a registered result, which took longer than planning a fleet."""
    code, text = plan({"spark-1": {"spark_services": [FAST]}}, "-v")
    assert code == 0, text
    assert '"asking": false' in text
    assert "spark-1: fits" in text and "container_argv" not in text and '"findings"' not in text
    assert plan.written()["hosts"]["spark-1"]["services"]


def lay_down(home: Path) -> None:
    """Put the snapshot of the new model where the hub library would have put it."""
    model = home / "hub" / "models--org--new"
    folder = model / "snapshots" / ("c" * 40)
    folder.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("c" * 40)
    (folder / "config.json").write_text(json.dumps(NEW["config"]))
    (folder / "model.safetensors").write_bytes(b"x")


def test_a_model_that_comes_in_the_run_is_read_on_its_host_and_planned_before_anything_starts(
    plan: Plan, docker: Path
) -> None:
    """The inventory has no config.json: image and model are there only after the first plan, as steps of site.yml bring them."""
    root = plan.folder / "root"
    (root / "proc").mkdir(parents=True)
    meminfo = "MemTotal: 125480000 kB\nMemFree: 100000000 kB\nMemAvailable: 110000000 kB\n"
    (root / "proc" / "meminfo").write_text(meminfo, encoding="utf-8")
    home = plan.folder / "hf"
    service = {key: value for key, value in NEW.items() if key != "config"}
    host = {"ansible_connection": "local", "spark_services": [service], "spark_sysroot": str(root)}
    host.update(spark_hf_home=str(home), spark_plan_file=str(plan.file), spark_gpu_args=[])
    host["spark_ignore_rules"] = ["host.gpu", "image.architecture"]
    bring = yaml.safe_load((ROOT / "playbooks/tasks/bring.yml").read_text(encoding="utf-8"))
    (replan,) = [task for task in bring if task["name"] == "Plan again with the models"]
    replan["ansible.builtin.include_tasks"]["file"] = str(ROOT / "playbooks/tasks/replan.yml")
    first = {"dgxspark.vllm.plan": {"show": "none", "ask": "both", "answer": "looks"}, "register": "spark_planned"}
    snapshot = {"repo": "org/new", "revision": "main", "image": "an/image:1", "hf_home": str(home)}
    tasks = [
        first,
        {
            "ansible.builtin.import_tasks": str(ROOT / "playbooks/tasks/measured_plan.yml"),
            "vars": {"measured_brings": ["images", "models"]},
        },
        {"ansible.builtin.fail": {"msg": "stopped"}, "when": "stop_early | default(false)"},
        {"ansible.builtin.command": f"cp -R {plan.folder}/laid {home}"},
        {
            "dgxspark.vllm.model_snapshot": {**snapshot, "sums_dir": f"{plan.folder}/sums"},
            "loop": [{"repo": "org/new", "revision": "main"}],
            "register": "models_fetched",
        },
        replan,
    ]
    play = {"hosts": "sparks", "gather_facts": False, "tasks": tasks}
    book = plan.folder / "book.yml"
    book.write_text(yaml.safe_dump([play], sort_keys=False), encoding="utf-8")
    lay_down(plan.folder / "laid")
    inventory = plan.folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-1": host}}}), encoding="utf-8")

    def run(*options: str) -> str:
        python = "ansible_python_interpreter={{ ansible_playbook_python }}"
        ran = ansible_playbook("-i", inventory, book, "-e", python, *options, cwd=plan.folder, env=plan.settings)
        return " ".join((ran.stdout + ran.stderr).split())

    text = run("-e", "stop_early=true")
    assert "has the files of the model yet. Once the image is present" in text, text
    assert plan.written()["hosts"]["spark-1"]["image_questions"][0]["state"] == "no_files"
    text = run()
    assert "failed=0" in text, text
    assert docker.read_text().split().count("run") == 1
    body = plan.written()["hosts"]["spark-1"]
    assert body["image_questions"] == []
    assert body["services"][0]["memory"]["sources"] == {"weights": "image", "kv_cache": "image"}
    # The next run knows the commit, and asks nobody.
    replan["when"] = "false"
    book.write_text(yaml.safe_dump([{**play, "tasks": tasks[:2]}], sort_keys=False), encoding="utf-8")
    assert "Ask images how they would plan" not in run() and docker.read_text().split().count("run") == 1
    assert plan.written()["hosts"]["spark-1"]["services"][0]["memory"]["sources"]["kv_cache"] == "image"
