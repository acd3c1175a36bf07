"""The plan of complete hosts, from recipes, budget, rules and facts."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from planned_fixture import MEASURED
from recipes_fixture import FOLDER, RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.variables import VARIABLES

HEAVY = {
    "name": "heavy",
    "recipe": "qwen3-next-80b-a3b-instruct-fp8",
    "port": 8001,
    "args": {"gpu-memory-utilization": 0.80},
}
NGC = {**HEAVY, "image": "nvcr.io/nvidia/vllm:26.04-py3"}
FAST = {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002, "args": {"gpu-memory-utilization": 0.10}}


def host(
    *services: dict[str, Any],
    measured: dict[str, Any] | None = None,
    images: dict[str, Any] | None = None,
    **variables: Any,
) -> dict[str, Any]:
    return {
        "vars": {"spark_services": list(services), **variables},
        "address": "192.168.1.11",
        "measured": measured,
        "images": images or {},
    }


def plan_of(hosts: dict[str, Any]) -> dict[str, Any]:
    return engine.make_plan({"spark-1": hosts}, RECIPES)["hosts"]["spark-1"]


def errors(planned: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in planned["findings"] if finding["severity"] == "error"]


def measured(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(MEASURED), **changes}


def test_the_same_input_gives_the_same_plan_in_any_order() -> None:
    forward = engine.make_plan({"a": host(HEAVY, FAST), "b": host(FAST)}, RECIPES)
    other = engine.make_plan({"b": host(FAST), "a": host(FAST, HEAVY)}, RECIPES)
    assert json.dumps(forward, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("variables", [{}, {"spark_ollama": {"models": ["qwen3:8b"]}}], ids=["nothing", "Ollama alone"])
def test_a_spark_may_have_no_service(variables: dict[str, Any]) -> None:
    planned = plan_of(host(**variables))
    assert planned["services"] == [] and not errors(planned)


def test_the_larger_service_starts_first_and_the_other_waits_for_it() -> None:
    planned = plan_of(host(FAST, HEAVY))
    assert [service["name"] for service in planned["services"]] == ["heavy", "fast"]
    assert planned["services"][1]["after"] == ["spark-heavy.service"]
    assert errors(planned) == []


def test_the_command_fits_the_entrypoint_of_the_image() -> None:
    passthrough = plan_of(host(NGC))["services"][0]
    assert passthrough["command"][:3] == ["vllm", "serve", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"]
    serve = plan_of(host({**HEAVY, "image": "vllm/vllm-openai:v0.24.0-ubuntu2404"}))["services"][0]
    assert serve["command"][0] == "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"
    for service in (passthrough, serve):
        assert service["command"][-2:] != ["", ""]
        assert service["argv"][-len(service["command"]) :] == service["command"]
        assert service["command"][service["command"].index("--port") + 1] == "8001"


def test_a_key_stays_a_file() -> None:
    for image in ("nvcr.io/nvidia/vllm:26.04-py3", "vllm/vllm-openai:v0.24.0-ubuntu2404"):
        service = plan_of(host({**HEAVY, "image": image, "api_key_file": "/keys/one"}))["services"][0]
        assert service["secrets"] == [
            {"name": "VLLM_API_KEY", "source": "/keys/one", "path": "/etc/dgxspark/secrets/heavy/VLLM_API_KEY"}
        ]
        argv = " ".join(service["argv"])
        assert "/keys/one" not in argv
        assert "with-secrets" in argv
        assert "vllm serve Qwen/" in argv
        assert "VLLM_API_KEY" not in service["env"]


@pytest.mark.parametrize(
    ("variables", "service", "listens"),
    [
        ({}, {}, "127.0.0.1"),
        # Nobody on another host has to reach it.
        ({}, {"api_key_file": "/k"}, "127.0.0.1"),
        ({"spark_allow_from": ["192.168.1.5"]}, {"api_key_file": "/k"}, "192.168.1.11"),
        ({"spark_allow_from": ["192.168.1.5"]}, {}, "127.0.0.1"),
        (
            {"spark_allow_from": ["192.168.1.5"], "spark_management_address": "10.0.0.5"},
            {"api_key_file": "/k"},
            "10.0.0.5",
        ),
        ({}, {"host": "0.0.0.0"}, "0.0.0.0"),
        ({"spark_listen": "10.9.9.9"}, {"host": "0.0.0.0"}, "10.9.9.9"),
    ],
)
def test_where_an_engine_listens(variables: dict[str, Any], service: dict[str, Any], listens: str) -> None:
    planned = plan_of(host({**HEAVY, **service}, **variables))["services"][0]
    assert planned["host"] == listens
    assert planned["command"][planned["command"].index("--host") + 1] == listens
    assert planned["url"] == f"http://{'127.0.0.1' if listens == '0.0.0.0' else listens}:8001"


def test_a_host_name_listens_on_the_address_that_the_host_measured() -> None:
    host_input = host(
        {**HEAVY, "api_key_file": "/k"}, measured=measured(management_address="10.1.2.3"), spark_allow_from=["10.1.2.9"]
    )
    assert plan_of({**host_input, "address": "spark-1.local"})["services"][0]["host"] == "10.1.2.3"


@pytest.mark.parametrize(
    ("variables", "service", "fires"),
    [
        ({}, {"host": "0.0.0.0"}, True),
        ({}, {"host": "::"}, True),
        ({}, {"host": "0"}, True),
        ({"spark_listen": "192.168.1.11"}, {}, True),
        ({"spark_listen": "spark-1.lan"}, {}, True),
        ({}, {"host": "127.0.0.1.example.org"}, True),
        ({}, {"host": "0.0.0.0", "secrets": {"OTHER": "/k"}}, True),
        ({"spark_firewall": False}, {"host": "0.0.0.0"}, True),
        ({}, {"host": "0.0.0.0", "ignore": ["service.open"]}, False),
        ({"spark_ignore_rules": ["service.open"]}, {"host": "0.0.0.0"}, False),
        ({}, {"host": "0.0.0.0", "api_key_file": "/k"}, False),
        ({}, {"host": "127.0.0.2"}, False),
        ({}, {"host": "::1"}, False),
        ({}, {}, False),
    ],
)
def test_an_engine_that_others_reach_without_a_key_is_refused(
    variables: dict[str, Any], service: dict[str, Any], fires: bool
) -> None:
    findings = plan_of(host({**HEAVY, **service}, **variables))["findings"]
    assert ("service.open" in [f["rule"] for f in findings if f["severity"] == "error"]) == fires


def test_the_paths_that_a_key_does_not_guard_are_named() -> None:
    keyed = {**HEAVY, "api_key_file": "/k"}

    def listen(**variables: Any) -> dict[str, Any]:
        findings = plan_of(host(keyed, spark_allow_from=["192.168.1.5"], **variables))["findings"]
        return next(f for f in findings if f["rule"] == "service.paths")

    filtered, free = listen(), listen(spark_firewall=False)
    assert filtered["severity"] == "info" and "the hosts that the firewall admits" in filtered["message"]
    assert free["severity"] == "warning" and "every host that reaches that address" in free["message"]
    for path in ("/invocations", "/tokenize", "/score", "/pooling"):
        assert path in free["message"]
    assert "/v1/models" not in free["message"] and "/health" not in free["message"]
    # Nobody reaches it: whom to name, and nothing of paths.
    rules = [f["rule"] for f in plan_of(host(keyed))["findings"]]
    assert "service.local" in rules and "service.paths" not in rules


def test_an_image_is_run_by_digest_or_id_once_it_is_known() -> None:
    ref = "nvcr.io/nvidia/vllm:26.04-py3"
    assert plan_of(host(NGC))["services"][0]["image"]["run"] == ref
    by_id = {ref: {"id": "sha256:" + "a" * 64, "repo_digests": []}}
    assert plan_of(host(NGC, images=by_id))["services"][0]["image"]["run"] == "sha256:" + "a" * 64
    digest = "nvcr.io/nvidia/vllm@sha256:" + "b" * 64
    both = {ref: {"id": "sha256:" + "a" * 64, "repo_digests": [digest]}}
    service = plan_of(host(NGC, images=both))["services"][0]
    assert service["image"]["run"] == digest
    assert digest in service["argv"]


def test_an_image_for_another_architecture_is_refused() -> None:
    images = {"nvcr.io/nvidia/vllm:26.04-py3": {"id": "sha256:1", "architecture": "amd64"}}
    findings = errors(plan_of(host(NGC, measured=measured(), images=images)))
    assert [finding["rule"] for finding in findings] == ["image.architecture"]
    assert findings[0]["basis"] == "probed"


@pytest.mark.parametrize(
    ("ref", "digests", "run"),
    [
        ("docker.io/vllm/vllm-openai:v0.24.0-ubuntu2404", ["vllm/vllm-openai@sha256:" + "b" * 64], 0),
        ("localhost:5000/spark/vllm", ["localhost:5000/spark/vllm@sha256:" + "b" * 64], 0),
        ("a.example/vllm@sha256:" + "c" * 64, [f"a.example/vllm@sha256:{sign * 64}" for sign in "bc"], 1),
        ("a.example/vllm:1", ["b.example/vllm@sha256:" + "b" * 64], None),
    ],
)
def test_the_digest_is_that_of_the_same_repository(ref: str, digests: list[str], run: int | None) -> None:
    images = {ref: {"id": "sha256:1", "repo_digests": digests}}
    service = plan_of(host({**HEAVY, "image": {"ref": ref, "entrypoint": "serve"}}, images=images))["services"][0]
    assert service["image"]["run"] == ("sha256:1" if run is None else digests[run])


def probed(**values: Any) -> dict[str, Any]:
    probe = {"error": None, "vllm_version": "0.24.0", "packages": {"vllm": "0.24.0"}, "names": [], "options": []}
    return {"present": True, "id": "sha256:1", "entrypoint_family": "passthrough", "probe": {**probe, **values}}


def test_what_an_image_says_goes_before_what_is_known_of_it() -> None:
    ref = "nvcr.io/nvidia/vllm:26.04-py3"
    service = plan_of(host(NGC))["services"][0]
    assert (service["vllm_version"], service["version_source"]) == ("0.19.0", "catalogue")
    planned = plan_of(host(NGC, images={ref: probed()}))
    service = planned["services"][0]
    assert (service["vllm_version"], service["version_source"]) == ("0.24.0", "probed")
    stated = {**HEAVY, "image": {"ref": ref, "vllm_version": "0.23.0"}}
    planned = plan_of(host(stated, images={ref: probed()}))
    assert planned["services"][0]["vllm_version"] == "0.24.0"
    assert "image.version" in [finding["rule"] for finding in planned["findings"]]


def test_findings_that_rest_on_the_image_say_so() -> None:
    ref = "nvcr.io/nvidia/vllm:26.04-py3"
    old = {**HEAVY, "env": {"VLLM_USE_V1": "1"}, "args": {**HEAVY["args"], "no-such-option": 1}}

    def bases(images: dict[str, Any] | None) -> dict[str, str]:
        findings = plan_of(host(old, images=images))["findings"]
        return {finding["rule"]: finding["basis"] for finding in findings if finding["rule"].startswith("SPK")}

    assert bases(None)["SPK201"] == "inventory"
    assert bases({ref: probed()})["SPK201"] == "probed" and bases({ref: probed()})["SPK101"] == "probed"


def test_names_that_the_image_knows_are_not_complained_about() -> None:
    ref = "nvcr.io/nvidia/vllm:26.04-py3"
    fork = {**HEAVY, "env": {"VLLM_OF_A_FORK": "1"}}

    def rules(**values: Any) -> set[str]:
        return {finding["rule"] for finding in plan_of(host(fork, images={ref: probed(**values)}))["findings"]}

    assert "SPK203" in rules() and "SPK203" not in rules(names=["VLLM_OF_A_FORK"])


def test_options_that_the_image_takes_are_not_complained_about() -> None:
    ref = "nvcr.io/nvidia/vllm:26.04-py3"
    fork = {
        **HEAVY,
        "args": {**HEAVY.get("args", {}), "prefill-compute-share": "auto", "no-roce-allreduce": True, "bad": 1},
    }

    def unknown(**values: Any) -> list[str]:
        findings = plan_of(host(fork, images={ref: probed(**values)}))["findings"]
        return [finding["message"].partition(" ")[0] for finding in findings if finding["rule"] == "SPK101"]

    assert unknown() == ["--prefill-compute-share", "--no-roce-allreduce", "--bad"]
    assert unknown(options=["prefill-compute-share", "roce-allreduce"]) == ["--bad"]
    command = plan_of(host(fork, images={ref: probed(options=["prefill-compute-share"])}))["services"][0]["command"]
    assert command[command.index("--prefill-compute-share") + 1] == "auto"


FIRST_FAILURE = (
    {**HEAVY, "args": {"gpu-memory-utilization": 0.85}},
    {**FAST, "args": {"gpu-memory-utilization": 0.12}},
)


def test_the_first_failure_of_the_document_is_refused_on_the_live_host_and_its_fix_plans_green() -> None:
    live = measured(
        memory={"total_gib": 119.67, "available_gib": 98.51},
        services=["fast"],
        resident=[{"name": "fast", "gib": 14.17}],
        units=[{"name": "spark-fast.service", "active_state": "active"}],
    )
    planned = plan_of(host(*FIRST_FAILURE, measured=live))
    refusals = [finding for finding in errors(planned) if finding["rule"] == "memory.free_at_start"]
    assert refusals[0]["service"] == "heavy"
    assert refusals[0]["basis"] == "measured"
    assert (
        "Free memory on device cuda:0 (98.51/119.67 GiB) on startup is less than desired GPU memory utilization "
        "(0.85, 101.72 GiB)"
    ) in refusals[0]["vllm_error"]
    assert "gpu-memory-utilization of heavy to 0.79" in refusals[0]["fix"]
    fixed = {**HEAVY, "args": {"gpu-memory-utilization": 0.80}}
    second = plan_of(host(fixed, {**FAST, "args": {"gpu-memory-utilization": 0.10}}, measured=live))
    assert errors(second) == []


def test_the_first_failure_is_refused_from_the_inventory_alone() -> None:
    findings = errors(plan_of(host(*FIRST_FAILURE)))
    assert any("(0.85, 101.72 GiB)" in finding.get("vllm_error", "") for finding in findings)
    assert all(finding["basis"] == "inventory" for finding in findings)


def test_an_unchanged_live_host_plans_green_and_the_same() -> None:
    before = plan_of(host(HEAVY, FAST, measured=measured()))
    live = measured(
        memory={"total_gib": 119.67, "available_gib": 5.1},
        services=["fast", "heavy"],
        resident=[{"name": "heavy", "gib": 93.9}, {"name": "fast", "gib": 12.0}],
        units=[{"name": f"spark-{name}.service", "active_state": "active"} for name in ("heavy", "fast")],
        listening=[{"port": 8001, "address": "127.0.0.1", "process": "vllm"}],
        containers=[{"name": "spark-heavy", "managed": True}],
    )
    after = plan_of(host(HEAVY, FAST, measured=live))
    assert errors(after) == []
    assert [s["argv"] for s in before["services"]] == [s["argv"] for s in after["services"]]


def test_an_engine_that_runs_from_older_files_is_stale() -> None:
    planned = plan_of(host(HEAVY))["services"][0]
    assert planned["stale"] is False
    assert f"dgxspark.fingerprint={planned['fingerprint']}" in planned["argv"]

    def stale(mark: str | None, state: str = "running") -> bool:
        container = {"name": "spark-heavy", "managed": True, "service": "heavy", "state": state, "fingerprint": mark}
        live = measured(services=["heavy"], containers=[container])
        return bool(plan_of(host(HEAVY, measured=live))["services"][0]["stale"])

    assert stale(planned["fingerprint"]) is False
    assert stale("0123456789abcdef") is True
    assert stale("0123456789abcdef", "exited") is False
    assert stale(None) is False
    other = plan_of(host({**HEAVY, "env": {"A": "1"}}))["services"][0]
    assert other["fingerprint"] != planned["fingerprint"]


def test_what_is_left_open_does_not_follow_the_momentary_memory() -> None:
    service = {key: value for key, value in HEAVY.items() if key != "args"}
    solved = [
        plan_of(host(service, measured=measured(memory={"total_gib": 119.67, "available_gib": free})))["services"][0]
        for free in (114.0, 108.0)
    ]
    assert solved[0]["args"]["gpu-memory-utilization"] == solved[1]["args"]["gpu-memory-utilization"]
    assert solved[0]["argv"] == solved[1]["argv"]


def test_the_memory_of_a_service_that_leaves_is_given_back() -> None:
    live = measured(
        memory={"total_gib": 119.67, "available_gib": 20.0}, services=["old"], resident=[{"name": "old", "gib": 92.0}]
    )
    assert errors(plan_of(host(HEAVY, measured=live))) == []


def test_every_problem_of_a_host_is_told_at_once() -> None:
    bad = measured(
        docker=None,
        gpu=None,
        kernel="6.17.0-1008-nvidia",
        machine={"is_spark": False},
        units=[{"name": "spark-heavy.service", "active_state": "active"}],
        containers=[{"name": "spark-heavy", "managed": False}],
        listening=[{"port": 8001, "address": "0.0.0.0", "process": "python3"}],
        disks={"/srv/huggingface": {"free_gib": 10.0, "total_gib": 100.0}},
    )
    rules = {finding["rule"] for finding in plan_of(host(HEAVY, measured=bad))["findings"]}
    assert {
        "host.docker",
        "host.gpu",
        "host.kernel",
        "host.unit_foreign",
        "host.container_foreign",
        "host.port_taken",
        "host.disk",
    } <= rules


def test_a_healthy_host_has_no_host_findings() -> None:
    findings = plan_of(host(HEAVY, measured=measured()))["findings"]
    assert [finding for finding in findings if finding["rule"].startswith("host.")] == []


def test_the_nvidia_runtime_is_asked_for_only_where_the_gpu_is() -> None:
    without = measured(docker={"version": "29", "runtimes": ["runc"]})
    assert "host.nvidia_runtime" in [f["rule"] for f in errors(plan_of(host(HEAVY, measured=without)))]
    assert errors(plan_of(host(HEAVY, measured=without, spark_gpu_args=[]))) == []


def test_models_are_listed_once_with_an_image_that_can_fetch_them() -> None:
    planned = plan_of(
        host(
            {"name": "a", "recipe": "qwen3.6-35b-a3b-nvfp4", "port": 1, "args": {"gpu-memory-utilization": 0.4}},
            {"name": "b", "recipe": "qwen3.6-35b-a3b-nvfp4", "port": 2, "args": {"gpu-memory-utilization": 0.4}},
        )
    )
    assert [(model["repo"], bool(model["only"])) for model in planned["models"]] == [
        ("Qwen/Qwen3.6-35B-A3B", True),
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", False),
    ]
    assert all(model["image"] for model in planned["models"])


def test_a_folder_of_the_controller_is_served_from_where_it_is_copied_to() -> None:
    planned = plan_of(host({"name": "tiny", "recipe": "scripted-tiny", "port": 1}, spark_model_dir="/models/"))
    service = planned["services"][0]
    assert service["model"]["source"] == "/models/scripted"
    assert planned["models"] == [{"source": "/models/scripted", "path": "/srv/huggingface/local/scripted"}]
    assert "/root/.cache/huggingface/local/scripted" in service["command"]


def test_a_start_that_always_times_out_is_still_bounded() -> None:
    limits = plan_of(host({**HEAVY, "start_timeout": 3000}))["services"][0]["limits"]
    assert limits["start_interval"] > limits["starts"] * (3000 + limits["restart_seconds"])


def test_a_drafter_that_moves_is_named_like_the_model() -> None:
    def moving(**revisions: str) -> list[str]:
        model = {"repo": "google/gemma-4-26B-A4B-it", "revision": "a" * 40}
        extra = [{"repo": f"Org/{name}", "revision": revision} for name, revision in revisions.items()]
        made = plan_of(
            host({"name": "gemma", "recipe": "gemma-4-26b-a4b", "port": 8001, "model": {**model, "extra": extra}})
        )
        return [f"{f['message']} {f['fix']}" for f in made["findings"] if f["rule"] == "model.moving_revision"]

    assert moving(pinned="b" * 40) == []
    (finding,) = moving(pinned="b" * 40, drafter="main")
    assert (
        "Org/drafter, which gemma is served with, is used at the branch 'main'" in finding
        and "below model.extra" in finding
    )


def test_rules_may_be_silenced() -> None:
    assert "model.moving_revision" in [f["rule"] for f in plan_of(host(HEAVY))["findings"]]
    silenced = plan_of(host(HEAVY, spark_ignore_rules=["model.moving_revision"]))
    assert "model.moving_revision" not in [f["rule"] for f in silenced["findings"]]


@pytest.mark.parametrize(
    ("variables", "needle"),
    [
        ({"spark_servces": []}, "unknown variable 'spark_servces'; did you mean 'spark_services'?"),
        ({"spark_total_gib": -1}, "'spark_total_gib' is -1; it must be a number of GiB, 0 or more"),
        ({"spark_os_reserve_gib": "much"}, "'spark_os_reserve_gib' is a text"),
        ({"spark_hf_home": "models"}, "it must be an absolute path"),
        (
            {"spark_hf_home": "/srv/a:b,c"},
            "'spark_hf_home' is '/srv/a:b,c': docker takes : and , for the end of a folder",
        ),
        ({"spark_cache_dir": '/srv/"x"'}, "'spark_cache_dir' is '/srv/\"x\"': docker takes \" for the end"),
        (
            {"spark_docker_args": ["--label", "a=\ud83d"]},
            "spark_docker_args[1] contains U+D83D, which is not a character",
        ),
        ({"spark_defaults": {"env": {"A": "\ufffe"}}}, "spark_defaults.env.A contains U+FFFE"),
        ({"spark_defaults": {"\udc00": 1}}, "spark_defaults, a key of it contains U+DC00"),
        ({"spark_overheads": {"outsid": 1}}, "outsid"),
        ({"spark_image_catalogue": ["x"]}, "catalogue"),
        ({"spark_plan_facts": "often"}, "it must be auto, never or required"),
        ({"spark_drift_show": "line"}, "'spark_drift_show' is 'line'; did you mean 'lines'?"),
        ({"spark_cluster": {"name": "pair"}}, "'name' is 'pair'; it must be the group of the inventory"),
        ({"spark_defaults": {"ags": {}}}, "key of spark_defaults: 'ags'; did you mean 'args'?"),
    ],
)
def test_bad_variables_are_named(variables: dict[str, Any], needle: str) -> None:
    with pytest.raises(InventoryError) as caught:
        engine.make_plan({"spark-1": host(HEAVY, **variables)}, RECIPES)
    assert any(needle in message and message.startswith("host spark-1") for message in caught.value.messages)


def test_problems_of_all_hosts_are_told_at_once() -> None:
    twice = {**FAST, "port": 8001}
    with pytest.raises(InventoryError) as caught:
        engine.make_plan({"a": host(HEAVY, twice), "b": host({"name": "x"}), "c": host(HEAVY, HEAVY)}, RECIPES)
    text = "\n".join(caught.value.messages)
    assert "host a, spark_services[1]: port 8001 is used twice on this host, first by spark_services[0] (heavy)" in text
    assert "host b, spark_services[0] (x): 'recipe' is missing" in text
    assert "host c, spark_services[1]: service name 'heavy' is used twice" in text


def test_every_variable_and_key_is_documented() -> None:
    page = (FOLDER.parents[1] / "docs" / "inventory.md").read_text(encoding="utf-8")
    from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import SERVICE

    assert [
        name
        for name in [*VARIABLES, *addons.VARIABLES, *SERVICE]
        if not re.search(rf"^\| \[?`{name}`", page, re.MULTILINE)
    ] == []


WRONG = {
    **FAST,
    "args": {"gpu-memory-utilisation": 0.10, "swap-space": 4},
    "env": {"VLLM_USE_V1": "1"},
}


def test_autofix_repairs_what_cannot_be_meant_otherwise_and_says_so() -> None:
    planned = plan_of(host(WRONG, spark_autofix="true"))
    service = planned["services"][0]
    assert "VLLM_USE_V1" not in service["env"]
    assert service["args"]["gpu-memory-utilization"] == 0.10
    assert "--swap-space" not in service["command"]
    assert errors(planned) == []
    assert {
        (change["service"], change["rule"], change["before"], change["after"]) for change in planned["autofix"]
    } == {
        ("fast", "SPK101", "--gpu-memory-utilisation 0.1", "--gpu-memory-utilization 0.1"),
        ("fast", "SPK101", "--swap-space 4", ""),
        ("fast", "SPK201", "VLLM_USE_V1=1", ""),
    }
    findings = [finding["message"] for finding in planned["findings"] if finding.get("source") == "spark_autofix"]
    assert "repaired: VLLM_USE_V1=1 -> taken out" in findings
    assert len(findings) == 3


def test_without_autofix_nothing_is_repaired() -> None:
    planned = plan_of(host(WRONG))
    assert planned["autofix"] == []
    assert planned["services"][0]["env"]["VLLM_USE_V1"] == "1"
    assert {"SPK101", "SPK201"} <= {finding["rule"] for finding in planned["findings"]}


def test_autofix_is_a_yes_or_a_no() -> None:
    with pytest.raises(InventoryError, match="'spark_autofix' is a text"):
        plan_of(host(FAST, spark_autofix="maybe"))


def test_overheads_of_one_service_leave_the_others_alone() -> None:
    planned = plan_of(host({**HEAVY, "overheads": {"inside_gib": 4.1}}, FAST, spark_overheads={"outside_gib": 2.0}))
    heavy, fast = (service["memory"]["overhead_gib"] for service in planned["services"])
    assert heavy == {"low": 4.1, "typical": 4.1, "high": 4.1} and fast["typical"] < 2.0
    with pytest.raises(InventoryError, match="inside_gbi"):
        plan_of(host({**HEAVY, "overheads": {"inside_gbi": 4.1}}))


SLOW = {
    "docker": {"docker": {"version": None, "runtimes": []}},
    "nvidia-smi": {"gpu": None, "machine": {"is_spark": False}},
    "systemctl": {},
    "ip": {},
}


@pytest.mark.parametrize("tool", SLOW)
def test_a_tool_that_did_not_answer_is_a_warning_and_no_fault_of_the_host(tool: str) -> None:
    unknown = {tool: f"{tool} did not answer in 30 s"}
    # Little memory is free, since an unlisted service runs.
    facts = measured(
        **SLOW[tool], unknown=unknown, memory={"total_gib": 119.67, "available_gib": 40.0 if tool != "ip" else 114.0}
    )
    quick = plan_of(host(HEAVY, measured=measured()))
    planned = plan_of(host(HEAVY, measured=facts))
    assert errors(planned) == []
    findings = [finding for finding in planned["findings"] if finding["rule"] == "host.not_known"]
    assert [finding["message"].split(";")[0] for finding in findings] == [f"{tool} did not answer in 30 s"]
    assert planned["services"][0]["argv"] == quick["services"][0]["argv"]


def test_which_one_of_an_exclusive_set_runs_has_to_be_known() -> None:
    services = [{**HEAVY, "exclusive": "one"}, {**FAST, "exclusive": "one"}]
    facts = measured(unknown={"systemctl": "systemctl did not answer in 30 s"})
    findings = errors(plan_of(host(*services, measured=facts)))
    assert [finding["rule"] for finding in findings] == ["host.not_known"]
    assert "which of" in findings[0]["message"] and "runs is not known" in findings[0]["message"]


def test_the_environment_of_a_service_names_its_model_runner() -> None:
    runners = {
        value: plan_of(host({**HEAVY, "env": {"VLLM_USE_V2_MODEL_RUNNER": value}}))["services"][0]["memory"][
            "model_runner"
        ]
        for value in ("0", "1")
    }
    assert runners == {"0": 1, "1": 2}


def test_the_environment_of_a_service_decides_whether_graphs_reduce_the_cache() -> None:
    services = ({**HEAVY, "env": {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": value}} for value in ("0", "1"))
    plain, counted = (plan_of(host(service))["services"][0]["memory"]["beside_gib"]["typical"] for service in services)
    assert plain > counted
