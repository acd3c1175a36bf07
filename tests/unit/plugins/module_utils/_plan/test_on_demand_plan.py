"""Services that start with their first request: reading, planning, and files of the host."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.validation import Problems
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import AtOnce, memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import on_demand, picture, unit_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template


def service(name: str, port: int, share: float | None = None, **more: Any) -> dict[str, Any]:
    args = {"gpu-memory-utilization": share} if share else {}
    return {"name": name, "recipe": "qwen3-4b-instruct-2507", "port": port, "args": args, **more}


def plan_of(*services: dict[str, Any], measured: dict[str, Any] | None = None, **variables: Any) -> dict[str, Any]:
    host_input = {
        "vars": {"spark_services": list(services), **variables},
        "address": "192.168.1.11",
        "measured": measured,
    }
    planned: dict[str, Any] = engine.make_plan({"spark-1": host_input}, RECIPES)["hosts"]["spark-1"]
    return planned


def refused(*services: dict[str, Any]) -> str:
    with pytest.raises(InventoryError) as problem:
        plan_of(*services)
    return str(problem.value)


def of_set(share: float, keep: int | None = None, **more: Any) -> dict[str, Any]:
    values = {"exclusive": "big", **({"keep": keep} if keep else {})}
    return {"share": share, "on_demand": values, **more}


def three(keep: int | None = None) -> list[dict[str, Any]]:
    return [service(name, 8001 + place, **of_set(0.4, keep)) for place, name in enumerate(("a", "b", "c"))]


def text_of(file: dict[str, Any]) -> str:
    return render_template(file["template"], file["values"])


def test_the_program_that_answers_for_cold_engines_has_its_memory() -> None:
    def rows(planned: dict[str, Any]) -> list[str]:
        return [row["service"] for row in planned["memory_map"]]

    planned = plan_of(service("a", 8001, on_demand={}))
    assert rows(planned).count("on-demand") == 1
    assert planned["settings"]["reserve_gib"] == plan_of()["settings"]["reserve_gib"] + on_demand.PROXY_GIB
    assert f"MemoryMax={on_demand.PROXY_GIB * 1024:.0f}M" in text_of(unit_files.demand_unit([]))
    stopped = service("a", 8001, on_demand={}, state="stopped")
    for services in ([service("a", 8001)], [stopped], []):
        assert "on-demand" not in rows(plan_of(*services))


def test_the_engine_is_behind_its_port() -> None:
    planned = plan_of(service("a", 8001, on_demand={}))["services"][0]
    assert (planned["state"], planned["port"], planned["url"]) == ("on_demand", 8001, "http://127.0.0.1:8001")
    assert planned["probe"]["url"] == planned["settings"]["url"] == "http://127.0.0.1:18001"
    argv = planned["argv"]
    assert argv[argv.index("--port") + 1] == "18001" and argv[argv.index("--host") + 1] == "127.0.0.1"
    settings = planned["on_demand"]
    assert (settings["idle_seconds"], settings["hold_seconds"], settings["while_loading"]) == (1200, 900, "wait")
    plain = plan_of(service("a", 8001))["services"][0]
    assert "on_demand" not in plain and plain["state"] == "started" and plain["probe"]["url"] == plain["url"]


def test_a_high_port_has_its_engine_below() -> None:
    assert plan_of(service("a", 60000, on_demand={}))["services"][0]["probe"]["url"].endswith(":50000")


def test_what_fits_beside_each_other_is_worked_out() -> None:
    planned = plan_of(*three())
    assert planned["verdict"] != "fails" and planned["utilization_sum"] == 0.4
    pairs = [["a", "b"], ["a", "c"], ["b", "c"]]
    assert all(service["on_demand"]["combinations"] == pairs for service in planned["services"])
    notes = picture.label_notes(planned["services"])
    assert "set big: at most these run together: a + b or a + c or b + c" in notes


def test_what_is_always_there_takes_its_part() -> None:
    always = service("always", 8010, 0.3)
    planned = plan_of(*three(), always)
    settings = {planned_service["name"]: planned_service.get("on_demand") for planned_service in planned["services"]}
    assert settings["a"]["combinations"] == [["a"], ["b"], ["c"]] and settings["always"] is None


def test_what_ollama_may_hold_is_kept_beside_each_combination() -> None:
    """Ollama loads a model for a request while engines run; idle_minutes limits how long it keeps the model."""
    ollama = {"models": ["gpt-oss:20b"], "on_demand": {"idle_minutes": 5}}

    def combinations(memory_gib: int) -> list[list[str]]:
        planned = plan_of(*three(), spark_ollama={**ollama, "memory_gib": memory_gib})
        fitting: list[list[str]] = planned["services"][0]["on_demand"]["combinations"]
        return fitting

    assert combinations(8) == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert combinations(30) == [["a"], ["b"], ["c"]]


def test_keep_bounds_how_many_run() -> None:
    assert plan_of(*three(keep=1))["services"][0]["on_demand"]["combinations"] == [["a"], ["b"], ["c"]]


def test_a_set_of_which_one_does_not_fit_is_refused() -> None:
    planned = plan_of(service("a", 8001, **of_set(0.99)), service("b", 8002, **of_set(0.2)))
    assert planned["verdict"] == "fails"
    assert {
        planned_service["name"]: planned_service["on_demand"]["combinations"] for planned_service in planned["services"]
    } == {
        "a": [["b"]],
        "b": [["b"]],
    }


def two_sets(share: float, count: int = 2, **more: Any) -> list[dict[str, Any]]:
    return [
        service(f"{name}{number}", port + number, share, on_demand={"exclusive": name}, **more)
        for name, port in (("a", 8001), ("b", 8101))
        for number in range(count)
    ]


def combinations_of(planned: dict[str, Any]) -> dict[str, list[list[str]]]:
    return {service["on_demand"]["set"]: service["on_demand"]["combinations"] for service in planned["services"]}


def test_any_combination_of_one_set_fits_beside_any_of_another() -> None:
    """Four of a quarter each ask for all memory: each set alone holds its two, but not both sets at the same time."""
    planned = plan_of(*two_sets(0.25))
    assert combinations_of(planned) == {"a": [["a0", "a1"]], "b": [["b0"], ["b1"]]}
    [finding] = [item for item in planned["findings"] if item["rule"] == "on_demand.sets"]
    assert finding["severity"] == "warning"
    assert "of the set b, b0 + b1 would fit together, but not together with a0 + a1 of the set a" in finding["message"]
    assert finding["message"].endswith("So at most b0 or b1 run.")
    roomy = plan_of(*two_sets(0.15))
    assert combinations_of(roomy) == {"a": [["a0", "a1"]], "b": [["b0", "b1"]]}
    assert not [item for item in roomy["findings"] if item["rule"] == "on_demand.sets"]


def test_of_sets_that_do_not_fit_together_the_one_of_the_highest_priority_has_the_larger_combination() -> None:
    sets = two_sets(0.25)
    sets[3] = {**sets[3], "on_demand": {"exclusive": "b", "priority": 1}}
    assert combinations_of(plan_of(*sets)) == {"a": [["a0"], ["a1"]], "b": [["b0", "b1"]]}


def test_the_message_about_sets_lists_the_first_of_many() -> None:
    findings = [finding for finding in plan_of(*two_sets(0.2, 4))["findings"] if finding["rule"] == "on_demand.sets"]
    assert len(findings) == 2 and all(
        "or 2 more" in finding["message"] and len(finding["message"]) < 500 for finding in findings
    )


def test_what_a_small_spark_holds_is_what_it_says_of_itself() -> None:
    """Of a host with half the memory the plan knows the total only by asking it."""
    measured = {"memory": {"total_gib": 12.0, "available_gib": 11.0}}
    services = [service(name, 8001 + place, **of_set(0.35)) for place, name in enumerate(("a", "b"))]
    big, small = plan_of(*services), plan_of(*services, measured=measured)
    assert big["services"][0]["on_demand"]["combinations"] == [["a", "b"]]
    assert small["services"][0]["on_demand"]["combinations"] != [["a", "b"]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([6, 10, 20, 25, 30, 40, 60]), min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.sampled_from([5, 20]), max_size=1),
    st.sampled_from([None, 1, 2]),
)
def test_each_mixture_of_combinations_fits_and_no_combination_is_left_out(
    shares: list[list[int]], always: list[int], keep: int | None
) -> None:
    """Against the budget itself, asked about each mixture of services as if it were all that the host has."""

    def entry(name: str, gib: int, name_of_set: str = "") -> dict[str, Any]:
        return {"name": name, "memory_gib": float(gib), "exclusive": name_of_set}

    names = {
        f"set{place}": [f"s{place}-{number}" for number in range(len(members_of_set))]
        for place, members_of_set in enumerate(shares)
    }
    gib = {
        f"s{place}-{number}": permanent
        for place, members_of_set in enumerate(shares)
        for number, permanent in enumerate(members_of_set)
    }
    permanent_entries = [entry("always", permanent) for permanent in always]

    def holds(chosen: Iterable[str]) -> bool:
        entries = [*permanent_entries, *(entry(name, gib[name]) for name in chosen)]
        return bool(memory_budget({"services": entries})["verdict"] != "fails")

    node = AtOnce(
        {
            "services": [
                *permanent_entries,
                *(
                    entry(permanent, gib[permanent], set_name)
                    for set_name, members_of_set in names.items()
                    for permanent in members_of_set
                ),
            ]
        }
    )
    sets = {
        set_name: [
            SimpleNamespace(name=permanent, on_demand={"keep": keep})
            for permanent in members_of_set
            if node.alone(permanent)
        ]
        for set_name, members_of_set in names.items()
    }
    fitting, cuts = on_demand.combinations_that_fit(sets, node.fit)  # type: ignore[arg-type]
    largest = [fitting[set_name] or [[]] for set_name in names]
    for mixture in itertools.product(*largest):
        assert holds(itertools.chain(*mixture)) or not any(mixture), mixture
    if any(not holds(combination) for combination in itertools.product(*names.values())):
        return  # not even one of each fits: the plan of such a host fails
    for set_name, members_of_set in names.items():
        beside = list(itertools.product(*(fitting[other] for other in names if other != set_name)))
        for size in range(1, min(keep or len(members_of_set), len(members_of_set)) + 1):
            for chosen in itertools.combinations(members_of_set, size):
                if not any(set(chosen) <= set(combination) for combination in fitting[set_name]):
                    assert not all(holds([*chosen, *itertools.chain(*permanent)]) for permanent in beside), (
                        set_name,
                        chosen,
                    )
    assert not cuts or len(names) > 1


@pytest.mark.parametrize(
    ("services", "says"),
    [
        ([service("a", 8001, on_demand={"idle_minutes": 0})], "on_demand.idle_minutes"),
        ([service("a", 8001, on_demand={"idle": 5})], "idle"),
        ([service("a", 8001, on_demand=True)], "on_demand"),
        ([service("a", 8001, on_demand={"exclusive": "Big!"})], "on_demand.exclusive"),
        ([service("a", 8001, on_demand={"keep": 2})], "on_demand.keep"),
        ([service("a", 8001, on_demand={}, exclusive="big")], "exclude each other"),
        ([service("a", 8001, on_demand={"engine_port": 8001})], "engine_port"),
        ([service("a", 8001, on_demand={}), service("b", 18001)], "port 18001, which is the port of b"),
        (
            [service("a", 8001, **of_set(0.2)), service("b", 8002, exclusive="big")],
            "the set big has services on demand",
        ),
        ([service("a", 8001, **of_set(0.2, 1)), service("b", 8002, **of_set(0.2, 2))], "differ in on_demand.keep"),
        ([service("on-demand", 8001)], "which is a unit of this collection already"),
    ],
)
def test_what_cannot_be_is_named(services: list[dict[str, Any]], says: str) -> None:
    assert says in refused(*services)


def test_a_set_has_a_bound() -> None:
    many = [service(f"s{number}", 8001 + number, **of_set(0.05)) for number in range(on_demand.MOST_OF_A_SET + 1)]
    assert "8 are the most that are planned" in refused(*many)


def test_what_its_owner_has_stopped_has_no_socket() -> None:
    planned = plan_of(service("a", 8001, on_demand={}, state="stopped"))["services"]
    assert planned[0]["state"] == "stopped"
    made = unit_files.services(planned, "dgxspark", "/srv")
    assert not [file for file in made["files"] if "demand" in file["path"] or file["path"].endswith(".socket")]
    assert [unit["state"] for unit in made["units"]] == ["stopped"]


def test_what_is_always_there_says_nothing_of_it() -> None:
    problems = Problems("x")
    assert on_demand.read(problems, {"port": 8001, "on_demand": None}) == {} and not problems.messages


# --- speech servers -------------------------------------------------------------------------------------------------------


def ears(memory_gib: float, port: int = 8765, name: str = "ears", **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "kind": "asr", "image": "example/whisper:1", "memory_gib": memory_gib, "port": port, "on_demand": changes,
    }  # fmt: skip


def with_speech(
    *services: dict[str, Any], speech: list[dict[str, Any]], **variables: Any
) -> tuple[Any, list[Any], Any]:
    """Return the planned host, its speech servers, and the files of the host for the services."""
    host_vars = {
        "vars": {"spark_services": list(services), "spark_speech": speech, **variables},
        "address": "192.168.1.11",
        "measured": None,
    }
    plan = engine.make_plan({"spark-1": host_vars}, RECIPES)
    host, servers = plan["hosts"]["spark-1"], plan["addons"]["spark-1"]["speech"]["services"]
    made = {name: located(part) for name, part in unit_files.render(host, plan["addons"]["spark-1"]).items()}
    return host, servers, made


def test_a_speech_server_shares_the_memory_of_a_set() -> None:
    host, (server,), _made = with_speech(*three(), speech=[ears(30, exclusive="big")])
    combinations_on_host = [["a", "b"], ["a", "c"], ["a", "ears"], ["b", "c"], ["b", "ears"], ["c", "ears"]]
    assert (
        host["services"][0]["on_demand"]["combinations"] == server["on_demand"]["combinations"] == combinations_on_host
    )
    assert "set big: at most these run together: a + b or a + c or a + ears or" in "\n".join(
        picture.label_notes(host["services"])
    )
    # A small server fits with each pair; without a set its memory is reserved for every combination.
    host, (server,), _made = with_speech(*three(), speech=[ears(8, exclusive="big")])
    assert server["on_demand"]["combinations"] == [["a", "b", "ears"], ["a", "c", "ears"], ["b", "c", "ears"]]
    host, (server,), _made = with_speech(*three(), speech=[ears(30)])
    assert (
        host["services"][0]["on_demand"]["combinations"] == [["a"], ["b"], ["c"]] and server["on_demand"]["set"] is None
    )


def test_speech_servers_may_be_a_set_of_their_own() -> None:
    always = service("always", 8001, 0.5)
    host, servers, made = with_speech(
        always, speech=[ears(30, exclusive="s", keep=1), ears(30, 8766, "mouth", exclusive="s", keep=1)]
    )
    assert host["sets"] == {"s": [["ears"], ["mouth"]]}
    assert [server["on_demand"]["combinations"] for server in servers] == [[["ears"], ["mouth"]]] * 2
    assert picture.label_notes([], host["sets"]) == ["set s: at most these run together: ears or mouth"]
    # Only the larger server is planned; the reserve counts the memory in use before the first engine.
    assert host["settings"]["reserve_gib"] == pytest.approx(5.2 + on_demand.PROXY_GIB)
    assert [entry["gib"] for entry in host["memory_map"] if entry["service"] in ("ears", "mouth")] == [30.0]
    assert made["guard"]["files"] and '"ears": {' in next(
        file["content"] for file in made["guard"]["files"] if file["path"] == "/etc/dgxspark/agent/guard.json"
    )


def test_the_port_of_a_speech_server_is_held_by_the_program() -> None:
    speech = [ears(8, listen="192.168.1.11"), {"name": "talk", "kind": "tts"}]
    speech[0]["listen"] = speech[0]["on_demand"].pop("listen")
    host, (server, _talk), made = with_speech(service("plain", 8001), speech=speech)
    files = {file["path"]: file.get("content", "") for name in ("services", "speech") for file in made[name]["files"]}
    assert [speech_server["name"] for speech_server in host["speech"]] == ["ears"] and host["speech"][0]["probe"][
        "url"
    ] is None
    assert "ListenStream=192.168.1.11:8765\n" in files["/etc/systemd/system/spark-ears.socket"]
    assert (
        "/etc/systemd/system/spark-talk.socket" not in files and "/etc/systemd/system/spark-plain.socket" not in files
    )
    settings = json.loads(files["/etc/dgxspark/on_demand/settings.json"])["services"]
    assert list(settings) == ["ears"] and settings["ears"]["kind"] == "asr" and settings["ears"]["health"] == "/health"
    assert (
        settings["ears"]["engine"] == "http://127.0.0.1:18765"
        and settings["ears"]["start_seconds"] > server["start_timeout"]
    )
    unit = files["/etc/systemd/system/spark-ears.service"]
    for line in (
        "Restart=no\n",
        "StartLimitIntervalSec=0\n",
        "spark_unit.py gate ears\n",
        "spark_unit.py started ears\n",
        "spark_unit.py release ears\n",
    ):
        assert line in unit
    always = files["/etc/systemd/system/spark-talk.service"]
    assert (
        "Restart=always\n" in always and "spark_unit.py gate" not in always and "Before=spark-plain.service" in always
    )
    states = {
        unit["name"]: (unit.get("state", "started"), unit["enabled"])
        for name in ("services", "speech")
        for unit in made[name]["units"]
    }
    assert states["spark-ears.service"] == ("triggered", False) and states["spark-ears.socket"] == ("triggered", True)
    assert states["spark-talk.service"] == states["spark-on-demand.service"] == ("started", True)
    # The part of the server itself has its socket: it removes that before the server takes the port.
    sockets = {
        name: [unit["name"] for unit in made[name]["units"] if unit["name"].endswith(".socket")] for name in made
    }
    assert sockets["speech"] == ["spark-ears.socket"] and "spark-ears.socket" not in sockets["services"]
    program = next(unit for unit in made["services"]["units"] if unit["name"] == "spark-on-demand.service")
    assert "/etc/systemd/system/spark-ears.socket" in program["restart_on"]
    assert "/etc/systemd/system/spark-talk.socket" not in files


def test_ports_and_sets_of_speech_servers_are_checked_with_those_of_engines() -> None:
    def problem(*services: dict[str, Any], speech: list[dict[str, Any]]) -> str:
        with pytest.raises(InventoryError) as refused:
            with_speech(*services, speech=speech)
        return str(refused.value)

    assert "ears: its engine would listen on port 8001, which is the port of a" in problem(
        service("a", 8001), speech=[ears(8, engine_port=8001)]
    )
    assert "a: its engine would listen on port 8765, which is the port of ears" in problem(
        service("a", 8001, on_demand={"engine_port": 8765}), speech=[ears(8)]
    )
    assert "the set big has services on demand (ears) and others (a)" in problem(
        service("a", 8001, exclusive="big"), speech=[ears(8, exclusive="big")]
    )
    assert "services of the set big differ in on_demand.keep" in problem(
        service("a", 8001, on_demand={"exclusive": "big", "keep": 1}), speech=[ears(8, exclusive="big")]
    )


# --- clusters -------------------------------------------------------------------------------------------------------------


def pair_of(
    *services: dict[str, Any],
    services_of_hosts: dict[str, list[dict[str, Any]]] | None = None,
    executor: str = "mp",
    **more: Any,
) -> dict[str, Any]:
    """The plan of two hosts, the first one the head. services_of_hosts: other services by host."""
    cluster = {"name": "two", "executor": executor, "services": list(services), **more}
    hosts = {
        name: {
            "vars": {"spark_services": (services_of_hosts or {}).get(name, []), "spark_cluster": cluster},
            "address": f"192.168.1.1{place}",
            "measured": None,
        }
        for place, name in enumerate(("spark-1", "spark-2"))
    }
    return engine.make_plan(hosts, RECIPES, groups={"two": ["spark-1", "spark-2"]})["hosts"]


def refused_pair(*services: dict[str, Any], **more: Any) -> str:
    with pytest.raises(InventoryError) as problem:
        pair_of(*services, **more)
    return str(problem.value)


def sets_at(planned: dict[str, Any], host: str) -> dict[str, Any]:
    return {
        planned_service["name"]: planned_service["on_demand"]["combinations"]
        for planned_service in planned[host]["services"]
        if planned_service.get("on_demand")
    }


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_the_engine_of_a_cluster_is_behind_the_port_of_its_head(executor: str) -> None:
    planned = pair_of(service("pair", 8001, 0.4, on_demand={}), executor=executor)
    head, behind = (planned[host]["services"][0] for host in ("spark-1", "spark-2"))
    assert (head["state"], head["url"], head["probe"]["url"]) == (
        "on_demand",
        "http://127.0.0.1:8001",
        "http://127.0.0.1:18001",
    )
    assert (behind["state"], behind["url"], behind["probe"]["url"], behind["rank"]) == ("on_demand", None, None, 1)
    argv = head["argv"]
    assert argv[argv.index("--port") + 1] == "18001" and argv[argv.index("--host") + 1] == "127.0.0.1"
    assert head["settings"]["on_demand"] is behind["settings"]["on_demand"] is True
    files, made = files_of(planned["spark-1"]["services"])
    assert "ListenStream=127.0.0.1:8001\n" in files["/etc/systemd/system/spark-pair.socket"]
    assert set(json.loads(files["/etc/dgxspark/on_demand/settings.json"])["services"]) == {"pair"}
    unit = files["/etc/systemd/system/spark-pair.service"]
    assert "Restart=no\n" in unit and "SuccessExitStatus" not in unit and "spark_rank.py" in unit
    # It waits for the memory of the other hosts within the time that a stop may take.
    stops = 215 * (2 if executor == "ray" else 1) + unit_files.RELEASE_SECONDS
    assert f"TimeoutStopSec={stops}\n" in unit
    # The unit has no start limit, since it waits for another host. The program has a limit.
    settings = json.loads(files["/etc/dgxspark/on_demand/settings.json"])["services"]["pair"]
    assert "TimeoutStartSec=infinity\n" in unit and settings["start_seconds"] == 3000 + 45 + stops + 30
    states = {unit["name"]: (unit.get("state", "started"), unit["enabled"]) for unit in made["units"]}
    assert states["spark-pair.service"] == ("triggered", False) and states["spark-pair.socket"] == ("triggered", True)


def test_the_first_rank_wakes_the_others_by_their_sockets() -> None:
    planned = pair_of(service("pair", 8001, 0.4, on_demand={}), service("next", 8002, 0.2, on_demand={}))["spark-2"][
        "services"
    ]
    files, made = files_of(planned)
    assert not [path for path in files if "on_demand" in path]  # nothing of this host asks for them
    for item in planned:
        socket = files[f"/etc/systemd/system/spark-{item['name']}.socket"]
        rank = item["settings"]["rank"]
        assert f"ListenDatagram={rank['address']}:{rank['port']}\n" in socket and "FlushPending=true\n" in socket
        unit = files[f"/etc/systemd/system/spark-{item['name']}.service"]
        assert "Restart=no\n" in unit and "After=spark-" not in unit
    states = {unit["name"]: (unit.get("state", "started"), unit["enabled"]) for unit in made["units"]}
    assert states == {
        "spark-pair.service": ("triggered", False),
        "spark-next.service": ("triggered", False),
        "spark-pair.socket": ("started", True),
        "spark-next.socket": ("started", True),
    }
    # systemd starts no socket while what it wakes runs, so a new one ends the rank first.
    of_unit = next(unit for unit in made["units"] if unit["name"] == "spark-pair.service")
    assert "/etc/systemd/system/spark-pair.socket" in of_unit["restart_on"]


def test_a_cluster_that_is_always_there_keeps_its_units() -> None:
    planned = pair_of(service("pair", 8001, 0.4))
    for host in planned:
        files, made = files_of(planned[host]["services"])
        assert "/etc/systemd/system/spark-pair.socket" not in files
        assert "Restart=always\n" in files["/etc/systemd/system/spark-pair.service"]
        assert [unit["name"] for unit in made["units"]] == ["spark-pair.service"]


def test_each_combination_fits_on_every_host_that_it_spans() -> None:
    """The second host has a permanent service, so a combination that fits on the first host does not fit there."""
    members = [service(name, port, 0.3, on_demand={"exclusive": "big"}) for name, port in (("x", 8001), ("y", 8002))]
    services_of_hosts = {"spark-1": [service("alone", 8003, 0.3, on_demand={"exclusive": "big"})]}
    free = pair_of(*members, services_of_hosts=services_of_hosts)
    everything = [["alone", "x", "y"]]
    assert sets_at(free, "spark-1") == dict.fromkeys(("x", "y", "alone"), everything)
    assert sets_at(free, "spark-2") == dict.fromkeys(("x", "y"), everything)
    full = pair_of(*members, services_of_hosts={**services_of_hosts, "spark-2": [service("always", 8004, 0.4)]})
    one_of_both = [["alone", "x"], ["alone", "y"]]
    assert sets_at(full, "spark-1") == dict.fromkeys(("x", "y", "alone"), one_of_both)
    assert sets_at(full, "spark-2") == dict.fromkeys(("x", "y"), one_of_both)
    settings = json.loads(files_of(full["spark-1"]["services"])[0]["/etc/dgxspark/on_demand/settings.json"])
    assert settings["sets"]["big"]["combinations"] == [["alone", "x"], ["alone", "y"]]


def test_sets_of_several_hosts_fit_beside_each_other_on_each_of_them() -> None:
    """The services of the pair hold memory on the second host, which has another set; the first host has free memory."""
    pair = [service(f"a{number}", 8001 + number, 0.25, on_demand={"exclusive": "a"}) for number in range(2)]
    services_of_hosts = {
        "spark-2": [service(f"b{number}", 8101 + number, 0.25, on_demand={"exclusive": "b"}) for number in range(2)]
    }
    planned = pair_of(*pair, services_of_hosts=services_of_hosts)
    both = [["a0", "a1"]]
    assert sets_at(planned, "spark-1") == {"a0": both, "a1": both}
    assert sets_at(planned, "spark-2") == {"a0": both, "a1": both, "b0": [["b0"], ["b1"]], "b1": [["b0"], ["b1"]]}
    assert [finding["rule"] for finding in planned["spark-2"]["findings"]].count("on_demand.sets") == 1
    assert "on_demand.sets" not in [finding["rule"] for finding in planned["spark-1"]["findings"]]
    # The set that the second host cuts is the pair's where its own set is more important; so it is cut on the first one too.
    services_of_hosts["spark-2"][0]["on_demand"]["priority"] = 1
    planned = pair_of(*pair, services_of_hosts=services_of_hosts)
    singles = [["a0"], ["a1"]]
    assert sets_at(planned, "spark-1") == {"a0": singles, "a1": singles}
    assert sets_at(planned, "spark-2") == {"a0": singles, "a1": singles, "b0": [["b0", "b1"]], "b1": [["b0", "b1"]]}


def test_a_set_of_the_other_host_stays_its_own() -> None:
    services_of_hosts = {
        "spark-2": [
            service(name, port, 0.3, on_demand={"exclusive": "small"}) for name, port in (("m", 8003), ("n", 8004))
        ]
    }
    planned = pair_of(service("pair", 8001, 0.4, on_demand={"exclusive": "big"}), services_of_hosts=services_of_hosts)
    assert sets_at(planned, "spark-1") == {"pair": [["pair"]]}
    assert sets_at(planned, "spark-2") == {"pair": [["pair"]], "m": [["m"], ["n"]], "n": [["m"], ["n"]]}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(["a", "b"], [["a", "b"]])], [["a", "b"]]),
        ([(["a", "b"], [["a"], ["b"]]), (["b"], [["b"]])], [["a"], ["b"]]),
        ([(["a", "b", "c"], [["a", "b", "c"]]), (["b", "c"], [["b"], ["c"]])], [["a", "b"], ["a", "c"]]),
        ([(["a", "b"], [["a", "b"]]), (["b"], [])], [["a"]]),
        ([(["a"], [])], []),
    ],
)
def test_what_fits_everywhere(parts: list[tuple[list[str], list[list[str]]]], expected: list[list[str]]) -> None:
    assert on_demand.combinations_on_all_hosts(parts) == expected


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcde"), min_size=1), st.lists(st.sets(st.sampled_from("abcde")))),
        min_size=1,
        max_size=4,
    )
)
def test_what_fits_everywhere_is_what_each_host_holds_its_part_of(
    given_parts: list[tuple[set[str], list[set[str]]]],
) -> None:
    parts = [
        (sorted(names), [sorted(combination & names) for combination in fitting]) for names, fitting in given_parts
    ]
    largest = [set(combination) for combination in on_demand.combinations_on_all_hosts(parts)]
    everyone = sorted(set().union(*(names for names, _fitting in given_parts)))
    for size in range(1, len(everyone) + 1):
        for chosen in map(set, itertools.combinations(everyone, size)):
            holds = all(
                not chosen & names or any(chosen & names <= combination & names for combination in fitting)
                for names, fitting in given_parts
            )
            assert holds == any(chosen <= combination for combination in largest)


@pytest.mark.parametrize(
    ("services", "services_of_hosts", "says"),
    [
        (
            [service("pair", 8001, **of_set(0.3))],
            {"spark-2": [service("alone", 8002, **of_set(0.3))]},
            "host spark-2: the set big has services that different hosts start: pair (by spark-1) and alone (by spark-2)",
        ),
        (
            [service("pair", 8001, **of_set(0.3))],
            {"spark-1": [service("alone", 8002, 0.3, exclusive="big")]},
            "host spark-1: the set big has services on demand (pair) and others (alone)",
        ),
        (
            [service("pair", 8001, 0.3, on_demand={})],
            {"spark-1": [service("alone", 18001, 0.3)]},
            "host spark-1: pair: its engine would listen on port 18001, which is the port of alone",
        ),
        ([service("pair", 8001, 0.3, on_demand={"idle_minutes": 0})], {}, "on_demand.idle_minutes"),
    ],
)
def test_what_a_cluster_cannot_have_is_named(
    services: list[dict[str, Any]], services_of_hosts: dict[str, list[dict[str, Any]]], says: str
) -> None:
    assert says in refused_pair(*services, services_of_hosts=services_of_hosts)


def test_the_port_of_an_engine_of_the_head_is_free_on_the_other_hosts() -> None:
    services_of_hosts = {"spark-2": [service("alone", 18001, 0.3)]}
    assert (
        pair_of(service("pair", 8001, 0.3, on_demand={}), services_of_hosts=services_of_hosts)["spark-2"]["verdict"]
        != "fails"
    )


def files_of(planned: list[dict[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    made = located(unit_files.services(planned, "dgxspark", "/srv"))
    return {file["path"]: file.get("content", "") for file in made["files"]}, made


def test_what_lies_on_the_host() -> None:
    planned = plan_of(*three(), service("always", 8010, 0.1))["services"]
    files, made = files_of(planned)
    engine_unit = files["/etc/systemd/system/spark-a.service"]
    assert "Restart=no" in engine_unit and "StartLimitIntervalSec=0" in engine_unit
    assert "Restart=always" in files["/etc/systemd/system/spark-always.service"]
    socket = files["/etc/systemd/system/spark-b.socket"]
    assert "ListenStream=127.0.0.1:8002\n" in socket and "FileDescriptorName=b\n" in socket
    assert (
        "Sockets=spark-a.socket spark-b.socket spark-c.socket\n" in files["/etc/systemd/system/spark-on-demand.service"]
    )
    settings = json.loads(files["/etc/dgxspark/on_demand/settings.json"])
    assert settings["sets"] == {"big": {"keep": None, "combinations": [["a", "b"], ["a", "c"], ["b", "c"]]}}
    assert settings["services"]["c"]["engine"] == "http://127.0.0.1:18003" and set(settings["services"]) == {
        "a",
        "b",
        "c",
    }
    states = {unit["name"]: unit.get("state", "started") for unit in made["units"]}
    assert states["spark-a.service"] == states["spark-a.socket"] == "triggered"
    assert states["spark-always.service"] == states["spark-on-demand.service"] == "started"
    boots = {unit["name"]: unit["enabled"] for unit in made["units"]}
    assert not boots["spark-a.service"] and boots["spark-a.socket"] and boots["spark-on-demand.service"]


def test_without_a_service_on_demand_nothing_of_it_is_installed() -> None:
    files, made = files_of(plan_of(service("a", 8001))["services"])
    assert [unit["name"] for unit in made["units"]] == ["spark-a.service"]
    assert not [path for path in files if "on_demand" in path or path.endswith(".socket")]
    assert made["created"] == ["/var/lib/dgxspark/receipts/a.json", "/var/lib/dgxspark/starts/a.json"]


def test_an_ipv6_address_is_one_for_a_socket() -> None:
    planned = plan_of(service("a", 8001, on_demand={}), spark_listen="::1")["services"]
    assert "ListenStream=[::1]:8001\n" in files_of(planned)[0]["/etc/systemd/system/spark-a.socket"]


def test_its_socket_is_no_stranger_at_its_port() -> None:
    measured = {
        "services": ["a"],
        "listening": [{"port": 8001, "address": "127.0.0.1", "process": "systemd"}],
        "units": [{"name": "spark-on-demand.service", "active_state": "active"}],
    }
    rule = "host.port_taken"
    assert rule not in [
        finding["rule"] for finding in plan_of(service("a", 8001, on_demand={}), measured=measured)["findings"]
    ]
    # It was on demand until now, and its socket goes with this run.
    assert rule not in [finding["rule"] for finding in plan_of(service("a", 8001), measured=measured)["findings"]]
    measured["services"] = []
    assert rule in [
        finding["rule"] for finding in plan_of(service("a", 8001, on_demand={}), measured=measured)["findings"]
    ]


def test_neither_gateway_nor_monitor_ask_it_for_a_token() -> None:
    first, other = service("a", 8001, 0.1, on_demand={}), service("b", 8002, 0.1)
    variables = {
        "spark_services": [first, other],
        "spark_gateway": {
            "aliases": {"both": {"backends": ["spark-1/a"], "fallback": ["b"]}, "b": {"backends": ["spark-1/b"]}}
        },
        "spark_fleet_monitor": {"notify": []},
    }
    planned = engine.make_plan({"spark-1": {"vars": variables, "address": "192.168.1.11"}}, RECIPES)["addons"][
        "spark-1"
    ]
    checks = {key: backend["check"] for key, backend in planned["gateway"]["settings"]["backends"].items()}
    assert checks == {"spark-1/a": "/v1/models", "spark-1/b": "completion"}
    assert all("a" not in name for name in planned["gateway"]["settings"]["tools"])
    watched = {
        watched_endpoint["key"]: watched_endpoint
        for watched_endpoint in planned["fleet_monitor"]["settings"]["endpoints"]
    }
    assert (watched["spark-1/a"]["complete"], watched["spark-1/b"]["complete"]) == (False, True)
    assert watched["spark-1/gateway"]["models"] == ["b"]
