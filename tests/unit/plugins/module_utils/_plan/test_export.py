# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exported launches: importing one plans the same, a shell and systemd read them as meant, and no secret is in them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cluster_fixture
import pytest
import yaml
from recipes_fixture import RECIPES
from systemd_fixture import needs_systemd, read_by_systemd, run_by_systemd, unquoted

from ansible_collections.dgxspark.vllm.plugins.filter.exported_files import exported_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import read_docker_run
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import vocabularies
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import export, importer
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine

KEY = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
PLANNED = ("args", "env", "command", "image", "served_model_name", "host", "port", "entrypoint")
"""Fields that an import plans again."""
SINGLE = sorted(name for name, recipe in RECIPES.items() if recipe.get("nodes", 1) == 1 and name != "scripted-tiny")
AWKWARD = {"ONE": "a b", "TWO": "$HOME 100% \"x\" 'y' \\ {z}", "THREE": ""}


def planned(service: Mapping[str, Any], **variables: Any) -> dict[str, Any]:
    """One service, planned on one Spark."""
    values = {"spark_services": [service], "spark_total_gib": 119.67, **variables}
    plan = engine.make_plan({"spark-1": {"vars": values, "address": "192.0.2.1"}}, RECIPES, lambda _path: "0" * 64)
    return dict(plan["hosts"]["spark-1"]["services"][0])


def spanned(service: Mapping[str, Any], executor: str = "mp") -> list[dict[str, Any]]:
    """The ranks of a service on two Sparks with a cable."""
    names = ("spark-1", "spark-2")
    facts = cluster_fixture.settled_ring(names)
    cluster = {"name": "pair", "services": [service], "executor": executor}
    hosts = {
        name: {
            "vars": {"spark_total_gib": 119.67, "spark_cluster": cluster},
            "address": f"192.0.2.{number}",
            "measured": {"machine": {"is_spark": True}, "fabric": facts[name]["fabric"]},
        }
        for number, name in enumerate(names, 1)
    }
    plan = engine.make_plan(hosts, RECIPES, lambda _path: "0" * 64, groups={"pair": names})
    return [plan["hosts"][name]["services"][0] for name in names]


def imported(text: str) -> dict[str, Any]:
    """The service of an exported file, as import.yml reads it."""
    document = None if text.startswith("#!") or "[Service]" in text else yaml.safe_load(text)
    return importer.import_launch(text, document, known_recipes=RECIPES)


def texts(service: Mapping[str, Any], receipt: Any = None) -> dict[str, str]:
    """The files of a service by their extension, as export.yml writes them."""
    results = [{"item": service["name"], "answers": {"receipt": {"content": receipt}}}]
    files = exported_files([service], [service["name"]], (), results)
    assert not [item["path"] for item in files if item["path"].endswith(("requirements.txt", "io_uring.json"))]
    return {item["path"].split(".", 1)[1]: item["content"] for item in files if "/files/" not in item["path"]}


@pytest.mark.parametrize("recipe", SINGLE)
def test_an_imported_export_plans_the_same(recipe: str) -> None:
    service = planned({"name": "heavy", "recipe": recipe, "port": 8001})
    files = texts(service)
    assert list(files) == ["docker.sh", "compose.yml", "service", "eugr.yaml", "sparkrun.yaml"]
    for form, text in files.items():
        launch = imported(text)
        assert not launch["missing"], form
        again = planned(launch["service"])
        # Checksums of pip are no part of a launch, and recipes hold no packages.
        compared = [key for key in PLANNED if not (service["pip"] and key == "command")]
        assert {key: again[key] for key in compared} == {key: service[key] for key in compared}, form
        assert (again["model"]["repo"], again["model"]["revision"]) == (
            service["model"]["repo"],
            service["model"]["revision"],
        )


def test_mounts_variables_and_keys_come_back() -> None:
    written = {
        "name": "heavy",
        "recipe": "qwen3-4b-instruct-2507",
        "port": 8010,
        "api_key_file": "/keys/heavy",
        "env": AWKWARD,
        "docker_args": ["--volume", "/srv/data:/data:ro", "--cpus", "8"],
        "shm_size": "12g",
    }
    service = planned(written)
    for form, text in texts(service).items():
        again = imported(text)["service"]
        if form in ("docker.sh", "compose.yml", "service"):
            assert sorted(again["docker_args"]) == sorted(["--volume", "/srv/data:/data:ro", "--cpus", "8"]), form
            assert again["shm_size"] == "12g"
            assert {name: again["env"].get(name) for name in AWKWARD} == AWKWARD, form
        else:
            assert "not in this form: --volume /srv/data:/data:ro" in text and "not in this form: --cpus 8" in text
        assert again["api_key_file"] and again["port"] == 8010, form
        assert "VLLM_API_KEY" in text and "/etc/dgxspark" not in text and "with-secrets" not in text


def test_no_secret_is_written() -> None:
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001})
    service["env"] = {**service["env"], "HF_TOKEN": "hf_" + "a1B2" * 9, "MY_PASSWORD": "correct-horse-9"}
    service["command"] = [*service["command"], "--chat-template-kwargs", json.dumps({"token": KEY})]
    for text in texts(service).values():
        assert KEY not in text and "correct-horse" not in text and "a1B2a1B2" not in text
        assert "HF_TOKEN" in text and "MY_PASSWORD" in text


def test_the_script_gives_docker_the_planned_words(tmp_path: Path) -> None:
    service = planned({"name": "heavy", "recipe": "qwen3.6-35b-a3b-nvfp4", "port": 8001, "env": AWKWARD})
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n")
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", texts(service)["docker.sh"]], env=env, capture_output=True, text=True, check=True
    )
    run = read_docker_run(["docker", *done.stdout.split("\0")[:-1]])
    assert run is not None and run.image == service["image"]["ref"]
    assert {name: run.env[name] for name in AWKWARD} == AWKWARD
    assert run.command[-len(service["command"]) :] == service["command"]


@needs_systemd
def test_systemd_reads_the_unit_as_meant() -> None:
    service = planned({"name": "heavy", "recipe": "qwen3.6-35b-a3b-nvfp4", "port": 8001, "env": AWKWARD})
    seen = read_by_systemd({"heavy.service": texts(service)["service"]})["heavy.service"]
    (start,) = seen["ExecStart"]
    run = read_docker_run(run_by_systemd(unquoted(start)))
    assert run is not None and run.command == service["command"]
    assert {name: run.env[name] for name in AWKWARD} == AWKWARD


def test_figures_of_the_proof_are_in_the_header() -> None:
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001})
    receipt = {
        "schema": 1,
        "service": "heavy",
        "cluster": None,
        "rank": 0,
        "deployed": {"argv": service["argv"], "vllm_version": "0.19.1"},
        "measured": {"decode_tokens_per_second": 61.25, "ttft_seconds": 0.213, "start_seconds": None, "other": 1},
        "baseline": {},
    }
    for kind, words in ((service["argv"], "# proof: "), (["docker"], "# proof of an earlier deployment: ")):
        receipt["deployed"]["argv"] = kind  # type: ignore[index]
        content = base64.b64encode(json.dumps(receipt).encode()).decode()
        for text in texts(service, content).values():
            assert f"{words}61.2 tokens/s of one request, first token after 0.21 s\n" in text and "vLLM 0.19.1" in text


@pytest.mark.parametrize(
    "receipt", [None, "", "no base64!", base64.b64encode(b"{").decode(), base64.b64encode(b'{"schema": 1}').decode(), 7]
)
def test_without_a_usable_receipt_the_header_says_so(receipt: Any) -> None:
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001})
    assert all("# not proved on this host\n" in text for text in texts(service, receipt).values())


@pytest.mark.parametrize("measured", [{"ttft_seconds": "fast"}, {"ttft_seconds": True}, {"ttft_seconds": []}])
def test_figures_of_another_type_are_left_out(measured: dict[str, Any]) -> None:
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001})
    made = export.export(service, {"measured": measured, "deployed": None})
    assert "not proved on this host" in made["heavy.docker.sh"]["header"]


def test_a_mount_that_may_not_be_written_stays_so() -> None:
    mounts = [
        ("--volume", "/srv/a:/a:ro,z"),
        ("--mount", "type=bind,source=/srv/b,target=/b,ro"),
        ("--mount", "type=bind,src=/srv/c,dst=/c,readonly=true"),
        ("--volume", "/anonymous"),
        ("--volume", "cache:/d"),
        ("--mount", "type=tmpfs,target=/e,tmpfs-size=1g"),
    ]
    words = [word for mount in mounts for word in mount]
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "docker_args": words})
    text = texts(service)["compose.yml"]
    document = yaml.safe_load(text)
    wanted = ["/srv/a:/a:ro,z", "/srv/b:/b:ro", "/srv/c:/c:ro", "/anonymous", "cache:/d"]
    assert document["services"]["heavy"]["volumes"][-5:] == wanted and document["volumes"] == {"cache": None}
    assert "# not in this form: --mount type=tmpfs,target=/e,tmpfs-size=1g\n" in text


def test_variables_of_docker_args_are_part_of_every_form() -> None:
    words = ["--env", "MODE=a $b", "--env", "FROM_SHELL"]
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "docker_args": words})
    for form, text in texts(service).items():
        assert "# set FROM_SHELL in the environment before the start\n" in text
        assert imported(text)["service"]["env"]["MODE"] == "a $b", form


def test_bash_reads_the_variables_of_a_recipe_of_eugr_as_meant() -> None:
    """Its launcher puts each value between double quotes."""
    awkward = {**AWKWARD, "FOUR": "$(echo run) `echo run` ${HOME} \\$ \\\\"}
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "env": awkward})
    text = texts(service)["eugr.yaml"]
    env = yaml.safe_load(text)["env"]
    for name, value in awkward.items():
        script = f'export {name}="{env[name]}"; printf %s "${name}"'
        assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == value
    assert {name: imported(text)["service"]["env"][name] for name in AWKWARD} == AWKWARD


def test_files_with_one_name_stay_apart() -> None:
    files = [{"source": f"/here/{name}/chat.jinja", "path": f"/{name}/chat.jinja"} for name in ("one", "two")]
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "files": files})
    wanted = {f"files/{name}-chat.jinja": f"/here/{name}/chat.jinja" for name in ("one", "two")}
    assert export.sources(service) == wanted
    assert "/srv/heavy-files/two-chat.jinja:/two/chat.jinja:ro" in texts(service)["docker.sh"]


def test_files_of_the_controller_go_along() -> None:
    written = {
        "name": "heavy",
        "recipe": "qwen3-4b-instruct-2507",
        "port": 8001,
        "files": [{"source": "/here/chat.jinja", "path": "/templates/chat.jinja"}],
        "args": {"chat-template": "/templates/chat.jinja"},
    }
    service = planned(written)
    assert export.sources(service) == {"files/chat.jinja": "/here/chat.jinja"}
    text = texts(service)["docker.sh"]
    assert "--volume /srv/heavy-files/chat.jinja:/templates/chat.jinja:ro" in text
    assert "# copy files/chat.jinja to /srv/heavy-files\n" in text
    again = planned(imported(text)["service"])
    assert again["args"]["chat-template"] == "/templates/chat.jinja"


def test_packages_are_installed_before_the_engine() -> None:
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001, "pip": ["av==19.0.2"]})
    for form in ("docker.sh", "compose.yml", "service"):
        again = planned(imported(texts(service)[form])["service"])
        assert again["pip"] == ["av==19.0.2"] and again["command"] == service["command"], form
    assert "pip install" in texts(service)["eugr.yaml"]


def test_the_folder_of_a_vocabulary_is_that_of_this_collection_alone() -> None:
    """An engine that is online downloads the vocabulary of gpt-oss itself."""
    service = planned({"name": "heavy", "recipe": "gpt-oss-20b", "port": 8001})
    assert vocabularies.CONTAINER_FOLDER in service["env"].values()
    for form, text in texts(service).items():
        assert vocabularies.CONTAINER_FOLDER not in text and "download it" not in text, form


def test_an_image_that_starts_vllm_itself_gets_a_shell_that_installs_first(tmp_path: Path) -> None:
    service = planned(
        {
            "name": "heavy",
            "recipe": "qwen3-4b-instruct-2507",
            "port": 8001,
            "image": "vllm/vllm-openai:v0.33.0",
            "pip": ["av==19.0.2"],
        }
    )
    assert service["entrypoint"] == "serve"
    for name in ("pip", "vllm"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*"\n')
        (tmp_path / name).chmod(0o755)
    # In place of Docker: the program of --entrypoint with the words behind the image.
    (tmp_path / "docker").write_text(
        '#!/bin/bash\nwhile [ "$1" != --entrypoint ]; do shift; done; program=$2\n'
        f'while [ "$1" != {service["image"]["ref"]} ]; do shift; done; shift; exec "$program" "$@"\n'
    )
    (tmp_path / "docker").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", texts(service)["docker.sh"]], env=env, capture_output=True, text=True, check=True
    )
    installed, started = done.stdout.splitlines()
    assert installed == "pip install av==19.0.2"
    assert started.startswith("vllm serve Qwen/Qwen3-4B-Instruct-2507 ") and "--port 8001" in started


# --- several Sparks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["deepseek-v4-flash", "qwen3-235b-a22b-gptq-int4", "glm-5.3-flash-nvfp4"])
def test_an_exported_cluster_plans_the_same(recipe: str) -> None:
    head, worker = spanned({"name": "big", "recipe": recipe, "port": 8001})
    assert list(texts(worker)) == ["docker.sh", "compose.yml", "service"]
    for form, text in texts(head).items():
        launch = imported(text)
        assert launch["nodes"] == 2, form
        again, other = spanned(launch["service"])
        for rank, before in ((again, head), (other, worker)):
            assert {key: rank[key] for key in PLANNED} == {key: before[key] for key in PLANNED}, form
    recipes = [yaml.safe_load(texts(head)[form]) for form in ("eugr.yaml", "sparkrun.yaml")]
    assert recipes[0]["cluster_only"] is True and recipes[1]["min_nodes"] == 2
    for document in recipes:
        assert document["defaults"]["tensor_parallel"] == 2
        assert not {"NCCL_SOCKET_IFNAME", "VLLM_HOST_IP", "NCCL_IB_HCA"} & set(document["env"])
        assert not [word for word in ("--nnodes", "--node-rank", "--master-addr") if word in document["command"]]


def test_a_launch_with_ray_has_recipes_alone() -> None:
    head, worker = spanned({"name": "big", "recipe": "qwen3-235b-a22b-gptq-int4", "port": 8001}, "ray")
    assert list(texts(head)) == ["eugr.yaml", "sparkrun.yaml"] and not texts(worker)
    assert yaml.safe_load(texts(head)["sparkrun.yaml"])["runtime"] == "vllm-ray"


def test_forms_and_services_can_be_chosen() -> None:
    service = planned({"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001})
    assert [item["path"] for item in exported_files([service], ["heavy"], "eugr")] == ["heavy/heavy.eugr.yaml"]
    assert exported_files([service], ["other"]) == []
    with pytest.raises(Exception, match="there is no form 'helm'"):
        exported_files([service], ["heavy"], ["helm"])
