# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: from inventory, recipes and (where known) host facts to what each host will run. Pure functions.

The same input gives the same plan on any machine; nothing here reads a file, a clock or a network.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import (
    around,
    bundle,
    clustering,
    expected_path,
    fabric,
    firewall,
    image_catalogue,
    image_check,
    preflight,
    ray_cluster,
    recipes,
    verbs,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils import lock as lock_file
from ansible_collections.dgxspark.vllm.plugins.module_utils.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils.clustering import PORTS, Cluster
from ansible_collections.dgxspark.vllm.plugins.module_utils.compat import check_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils.docker_facts import FINGERPRINT_LABEL
from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils.image_catalogue import split_image
from ansible_collections.dgxspark.vllm.plugins.module_utils.launch import render
from ansible_collections.dgxspark.vllm.plugins.module_utils.service_memory import InputError

SCHEMA = 1
GIB = 2**30

VARIABLES: dict[str, tuple[type | tuple[type, ...], Any, str]] = {
    "spark_services": (list, [], "services of this host, see the table of service keys"),
    "spark_defaults": (dict, {}, "what all services of the host share: args, env, image, api_key_file ..."),
    "spark_recipe_dirs": (list, [], "further folders with recipes, on the controller; later ones win"),
    "spark_model_dir": (str, "", "folder on the controller that model.path is relative to"),
    "spark_management_address": (str, "", "address that keyed engines listen on; asked from the host when left out"),
    "spark_listen": (str, "", "address that every engine of the host listens on, whatever else holds"),
    "spark_hf_home": (str, "/srv/huggingface", "HF_HOME on the host: where weights are kept"),
    "spark_cache_dir": (str, "/var/cache/dgxspark", "compile and JIT caches on the host, a folder per service"),
    "spark_hf_token_file": (str, "", "file on the controller with a Hugging Face token, for gated models"),
    "spark_hf_endpoint": (str, "", "address of a Hugging Face mirror; the public hub when left out"),
    "spark_gpu_args": (list, ["--gpus", "all"], "how docker run is given the GPU"),
    "spark_ulimits": (list, ["memlock=-1", "stack=67108864"], "ulimits of the engines' containers"),
    "spark_shm_size": (str, "8g", "private /dev/shm of each engine; an upper bound, taken from the same memory"),
    "spark_docker_args": (list, [], "further options of docker run for every engine of the host"),
    "spark_sysroot": (str, "/", "where the host's /proc and /sys are read; for simulated hosts"),
    "spark_total_gib": ((int, float), None, "total memory as CUDA reports it, GiB; measured, else 119.67"),
    "spark_os_reserve_gib": ((int, float), 5.2, "memory of everything but the services, GiB"),
    "spark_safety_margin_gib": ((int, float), 2.0, "memory kept free above the reserve, GiB"),
    "spark_overheads": (dict, {}, "overheads of an engine, see the module memory_budget"),
    "spark_sidecars": (list, [], "what else runs on the host and holds memory: a list of name and memory_gib"),
    "spark_image_catalogue": (list, [], "further entries of the image catalogue"),
    "spark_ignore_rules": (list, [], "ids of rules that the host does not want to hear of"),
    "spark_autofix": (bool, False, "repair launches where that cannot change what was meant; usually given by -e"),
    "spark_plan_facts": (
        str,
        "auto",
        "whether hosts are asked before planning: auto, never or required; site.yml asks unless told never, plan.yml only when told by -e",
    ),
    "spark_plan_file": (str, "", "where plan.json is written, on the controller"),
    "spark_status_timeout": ((int, float), 10, "seconds that status.yml gives a service for its answer"),
    "spark_status_show": (str, "auto", "how status.yml shows a fleet: auto, table (a line a service), groups or none"),
    "spark_status_file": (str, "", "file on the controller for the JSON of status.yml; - prints it as one line"),
    "spark_status_fail_on": (str, "down", "what lets status.yml end with an error: down, look or never"),
    "spark_drift_show": (str, "groups", "how drift.yml shows differences: groups, lines (one for each host) or none"),
    "spark_drift_file": (str, "", "file on the controller for the JSON of drift.yml; - prints it as one line"),
    "spark_drift_fail_on": (
        str,
        "never",
        "the mildest difference that lets drift.yml end with an error: error, warning, info or never",
    ),
    "spark_doctor_file": (str, "", "file on the controller for the JSON of doctor.yml; - prints it as one line"),
    "spark_doctor_fail_on": (str, "error", "what lets doctor.yml end with an error: error, warning or never"),
    "spark_doctor_answers": (bool, True, "whether doctor.yml reads an answer of each service"),
    "spark_support_dir": (
        str,
        "",
        "folder on the controller for support bundles, else .spark/support beside the inventory",
    ),
    "spark_support_mib": (int, 16, "MiB of text that a support bundle takes from one host at most"),
    "spark_support_lines": (int, 2000, "lines of each log in a support bundle"),
    "spark_lock_file": (str, "", "lock file on the controller; spark.lock.yml beside the inventory when left out"),
    "spark_lock_ask": (
        bool,
        True,
        "whether site.yml asks registries and the hub what locked tags and branches stand for by now",
    ),
    "spark_site_mirrors": (
        list,
        [],
        "images, models: what every host takes from the site's own mirror instead of from another host",
    ),
    "spark_spread_fabric": (
        str,
        "",
        "name of the fast network that a host shares with others of that name; that of its cluster when left out",
    ),
    "spark_moving_hosts": (
        int,
        2,
        "Sparks up to which a moving tag or revision without a lock entry is only warned of",
    ),
    "spark_allow_moving": (
        bool,
        False,
        "deploys moving tags and revisions without a lock entry on any number of Sparks",
    ),
    "spark_verify": (
        str,
        "changed",
        "which locked files of a model are hashed: changed (those that are new or were touched), all, or size (none)",
    ),
    "spark_bundle_dir": (
        str,
        "",
        "folder on the controller that bundle.yml packs into, and that site.yml takes images and weights from",
    ),
    "spark_cluster": (dict, {}, "one engine across several hosts, set on their group: see the table of its keys"),
    "spark_fabric_addresses": (
        dict,
        {},
        "addresses of the QSFP interfaces of a host, CIDR by interface; chosen when left out",
    ),
    "spark_fabric_args": (
        list,
        ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"],
        "options of docker run that give a rank of a cluster RDMA",
    ),
    "spark_firewall": (
        bool,
        True,
        "close engine, Ray and torch ports of a cluster's hosts to other networks than the fabric",
    ),
    "spark_firewall_allowed": (
        list,
        [],
        "ports that the firewall leaves open beside those of engines with a key: 4000, or 51820/udp",
    ),
    "spark_ray_pip_env": (dict, {}, "PIP_* variables for building an image with Ray, such as an index of one's own"),
    "spark_bench": (dict, {}, "what bench.yml measures, see docs/benchmarks.md"),
    "spark_bench_services": ((str, list), "", "services that bench.yml measures, by name; all when empty"),
    "spark_bench_dest": (str, "", "file on the controller that bench.yml writes its figures to, as JSON"),
    "spark_stop_permanent": (bool, False, "lets what stop.yml stops stay stopped over a reboot"),
    "spark_memory_timeout": ((int, float), 240, "seconds that stop.yml, start.yml and swap.yml wait for memory"),
    "spark_adopt_confirm": (
        bool,
        False,
        "lets adopt.yml take over containers and units; without it, it shows what it would do",
    ),
    "spark_adopt_undo": (bool, False, "has adopt.yml bring back what it has taken over"),
    "spark_adopt_wait_seconds": (int, 1800, "seconds that what adopt.yml brings back is given to answer"),
    "spark_clean_remove": (
        (str, list),
        "",
        "what clean.yml removes: images, caches, downloads, revisions; nothing when empty",
    ),
    "spark_clean_weights": (bool, False, "lets clean.yml remove weights: revisions and models that no service names"),
    "spark_clean_keep": (
        list,
        [],
        "images and models that clean.yml never removes, as they are written in the inventory",
    ),
    "spark_update_confirm": (bool, False, "lets update_host.yml change hosts; without it, it shows what it would do"),
    "spark_update_batch": (int, 1, "hosts that update_host.yml has out of service at once; a cluster is never split"),
    "spark_update_hold": (list, [], "packages that update_host.yml holds back, shell patterns of their names"),
    "spark_update_firmware": (bool, True, "whether update_host.yml brings firmware, too"),
    "spark_update_reboot": (
        str,
        "auto",
        "when update_host.yml reboots: auto (when something asks for it), always or never",
    ),
    "spark_update_reboot_minutes": (int, 30, "minutes that a host may take to come back; flashing takes up to 15"),
    "spark_update_lock_minutes": (
        int,
        30,
        "minutes that update_host.yml waits for another program that installs packages",
    ),
    "spark_rollout_canary": (
        (str, list),
        "",
        "hosts or clusters that rollout.yml changes first, each alone; the first one when empty, nobody when none",
    ),
    "spark_rollout_batch": (
        (int, str),
        "25%",
        "hosts that rollout.yml changes at once after that, a number or a share",
    ),
    "spark_rollout_max_fail_percentage": (
        (int, float),
        0,
        "share of a batch that may fail, and go back alone; with more the batch goes back and rollout.yml stops",
    ),
    "spark_rollout_bench": ((bool, dict), True, "whether rollout.yml measures; keys of spark_bench set what"),
    "spark_rollout_slower_percent": (
        (int, float),
        20,
        "how much slower than before a service may decode in rollout.yml, where the two can be compared",
    ),
    "spark_apply_all": (
        bool,
        False,
        "has site.yml apply everything, also to hosts that were proved as what is planned",
    ),
    "spark_rollout_all": (bool, False, "has rollout.yml go through hosts that run what is wanted, too"),
    "spark_rollback_batch": ((int, str), "100%", "hosts that rollback.yml takes back at once, a number or a share"),
    "spark_rollback_drain_seconds": (
        int,
        120,
        "seconds that requests are given to end before rollback.yml restarts a service",
    ),
    "spark_generations_keep": (
        int,
        5,
        "generations that are kept on a host; images that only older ones name go with them",
    ),
    "spark_reset_confirm": (bool, False, "lets reset.yml run"),
    "spark_reset_weights": (bool, False, "lets reset.yml remove the weights too"),
    "spark_reset_fabric": (bool, False, "lets reset.yml put the QSFP network back to what it was"),
}
"""Every variable that a person writes: type, default, meaning."""

# What an engine's host-side processes hold beside its GPU memory; nvidia-smi does not list it (13.8 - 11.97 GiB for
# the 4B of "Two Qwen3 models on one DGX Spark").
HOST_SIDE_GIB = 1.83
CONTAINER_HF_HOME = "/root/.cache/huggingface"
CONTAINER_CACHE = "/root/.cache/dgxspark"
CONTAINER_SECRETS = "/run/dgxspark/secrets"
SNAPSHOTS = "snapshots"
"""Folder below HF_HOME with a link to each snapshot that a service names files of: such a path does not hold a commit."""
WITH_SECRETS = "/usr/local/libexec/dgxspark/with-secrets"
STOP_SECONDS = 60
MEMORY_WAIT_SECONDS = 240
STARTS = 3
RESTART_SECONDS = 10


class Inventory(Exception):
    """The inventory cannot be planned; C(messages) says everything that is wrong."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


def make_plan(
    hosts: Mapping[str, Mapping[str, Any]],
    known_recipes: Mapping[str, Mapping[str, Any]],
    digest: Callable[[str], str | None] = lambda _path: None,
    groups: Mapping[str, Sequence[str]] | None = None,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    lock: Mapping[str, Any] | None = None,
    pin: bool = True,
    upstream: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Plan every host.

    hosts: host name to C({vars, address, measured, images, fabric}): the C(spark_*) variables, C(ansible_host),
    C(spark) of M(dgxspark.vllm.spark_info) or null, C(images) of M(dgxspark.vllm.image_info) by reference or null, and what
    the role fabric has planned in this run, if it has.
    known_recipes: recipe name to recipe. digest: the SHA-256 of a file on the controller, None where there is none.
    groups: of the inventory, in its order; clusters are named after them. others: hosts that are no Sparks and run something
    of what stands around the engines, to C({vars, address}).
    lock: the lock file as C(lock.read) gives it. pin: whether what it has is deployed by digest and commit; without, the plan is
    of the names as they are written, which is what a lock is made from. upstream: what M(dgxspark.vllm.upstream_info) says of locked names.
    Returns C({schema, hosts, clusters, around}), the last by host, Sparks and others; raises C(Inventory) with all messages when the input is malformed.
    """
    messages: list[str] = []
    resolved: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    hosts = {
        host: {
            **given,
            "images": lock_file.see(given.get("images") or {}, lock, _machine(given), pin),
            "said": given.get("images") or {},
            "lock": lock,
            "pin": pin,
            "upstream": upstream,
            "sparks": len(hosts),
        }
        for host, given in hosts.items()
    }
    for host in sorted(hosts):
        settings, services, problems = _read_host(host, hosts[host], known_recipes, digest)
        messages.extend(problems)
        resolved[host] = (settings, services)
    other_settings: dict[str, dict[str, Any]] = {}
    for host in sorted(others or {}):
        other_settings[host], problems = around.read(host, (others or {})[host].get("vars") or {}, (), is_spark=False)
        messages += problems
    clusters, problems = clustering.read_clusters(
        {host: settings["spark_cluster"] for host, (settings, _services) in resolved.items()}, groups or {}
    )
    messages += problems
    spanned: dict[str, dict[str, Any]] = {}
    for name, cluster in sorted(clusters.items()):
        if set(cluster.hosts) <= set(resolved):
            spanned[name], problems = _plan_cluster(cluster, hosts, resolved, known_recipes, digest)
            messages += problems
    if messages:
        raise Inventory(messages)
    planned = {}
    for host in sorted(hosts):
        try:
            planned[host] = _plan_host(hosts[host], *resolved[host], digest)
        except InputError as error:
            messages += [f"host {host}: {message}" for message in error.messages]
        except ValueError as error:
            messages.append(f"host {host}: {error}")
    if messages:
        raise Inventory(messages)
    for name, cluster in sorted(clusters.items()):
        _join_ranks(cluster, spanned[name], hosts, resolved, planned)
        verbs.join_states([planned[host]["services"] for host in cluster.hosts])
    for finding in clustering.check_addresses({name: spanned[name]["fabric"] for name in sorted(clusters)}):
        planned[clusters[finding.service].head]["findings"].append({**finding.to_dict(), "service": ""})
    surroundings = _plan_around(hosts, resolved, planned, spanned, other_settings, others or {})
    return {"schema": SCHEMA, "hosts": planned, "clusters": spanned, "around": surroundings}


def _plan_around(
    hosts: Mapping[str, Mapping[str, Any]],
    resolved: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]],
    planned: dict[str, dict[str, Any]],
    spanned: Mapping[str, Mapping[str, Any]],
    other_settings: Mapping[str, Mapping[str, Any]],
    others: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Plan what stands around the engines; a Spark's part goes with its other findings and images."""
    places: dict[str, dict[str, Any]] = {
        host: {
            "address": str(settings["spark_management_address"] or hosts[host].get("address") or host),
            "settings": settings["around"],
            "planned": planned[host],
            "measured": hosts[host].get("measured"),
            "images": hosts[host].get("images"),
            "gpu_args": settings["spark_gpu_args"],
            "sysroot": settings["spark_sysroot"],
            "rails": {},
        }
        for host, (settings, _services) in resolved.items()
    }
    for whole in spanned.values():
        for host, part in ((whole["fabric"] or {}).get("hosts") or {}).items():
            places[host]["rails"] = {rail["netdev"]: rail["mtu"] for rail in part["rails"]}
    places |= {
        host: {
            "address": str(others[host].get("address") or host),
            "settings": settings,
            "planned": None,
            "measured": None,
            "images": None,
            "gpu_args": [],
            "sysroot": "/",
            "rails": {},
        }
        for host, settings in other_settings.items()
    }
    outcome, findings = around.plan(places)
    for host, body in planned.items():
        for service in body["services"]:
            # Before a restart it is drained there; the head's alone, since its ranks are restarted together.
            service["gateway"] = around.gateway_of(outcome, host, service)
    for host, body in planned.items():
        # Bundles have them, too.
        body["images_beside"] = around.images(outcome[host])
    for host, found in findings.items():
        told = [finding.to_dict() for finding in found]
        if host in planned:
            ignored = set(resolved[host][0]["spark_ignore_rules"])
            planned[host]["findings"] += [finding for finding in told if finding["rule"] not in ignored]
            outcome[host]["findings"] = []
        else:
            outcome[host]["findings"] = told
    return outcome


def _machine(given: Mapping[str, Any]) -> str | None:
    """Return the architecture that a host says it has."""
    found = (given.get("measured") or {}).get("architecture")
    return None if found is None else str(found)


def _resolve(
    entry: Any,
    where: str,
    key: str,
    known_recipes: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
    present: Collection[str],
    given: Mapping[str, Any],
    digest: Callable[[str], str | None],
) -> tuple[dict[str, Any], list[str]]:
    """Merge a service; what the lock file has of it goes by digest and commit. key: C(host/) or C(cluster/)."""
    name = entry.get("name") if isinstance(entry, Mapping) else None
    choice = lock_file.preferred(given.get("lock"), f"{key}{name}") if given.get("pin") else []
    service, wrong = recipes.resolve_service(entry, where, known_recipes, defaults, choice or present)
    if choice and not wrong and service["image"]["ref"] not in choice:
        service, wrong = recipes.resolve_service(entry, where, known_recipes, defaults, present)
    if wrong:
        return service, wrong
    described = lock_file.describe(service, f"{key}{name}", known_recipes.get(str(service["recipe"])), digest)
    if given.get("pin"):
        service = lock_file.pin(service, given.get("lock"), _machine(given))
    return {**service, "lock": described}, wrong


def judge(service: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one resolved service as the only one of a Spark, or as one rank of as many Sparks as its C(nodes).

    Returns C({verdict, vllm_version, memory, findings}).
    """
    settings = {name: default for name, (_types, default, _meaning) in VARIABLES.items()}
    placed = _place(settings, service, lambda _path: None)
    launch = _check_launch(placed, settings, None, {})
    budget = _budget(settings, [placed], {placed["name"]: launch}, None)
    findings = [*launch["findings"], *budget["findings"]]
    refused = any(finding["severity"] == "error" for finding in findings)
    return {
        "verdict": "fails" if refused else budget["verdict"],
        "vllm_version": launch["vllm_version"],
        "memory": budget["services"].get(placed["name"]) or {},
        "findings": findings,
    }


def plan_findings(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of all hosts, each with its host, errors first."""
    order = {"error": 0, "warning": 1, "info": 2}
    found = [
        {"host": host, **finding}
        for part in ("hosts", "around")
        for host, body in (plan.get(part) or {}).items()
        for finding in body["findings"]
    ]
    return sorted(found, key=lambda finding: order[finding["severity"]])


def _read_host(
    host: str,
    given: Mapping[str, Any],
    known_recipes: Mapping[str, Mapping[str, Any]],
    digest: Callable[[str], str | None],
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Check one host's variables and merge its services."""
    problems = recipes.Problems(f"host {host}")
    variables = given.get("vars") or {}
    settings: dict[str, Any] = {}
    for name in variables:
        if name.startswith("spark_") and name not in VARIABLES and name not in around.VARIABLES:
            hint = recipes.nearest(name, [*VARIABLES, *around.VARIABLES])
            if hint != ".":
                problems.add(f"unknown variable '{name}'{hint}")
    for name, (types, default, _meaning) in VARIABLES.items():
        value = variables.get(name)
        if types is bool and isinstance(value, str):  # -e name=true hands over a text
            value = {"true": True, "yes": True, "false": False, "no": False}.get(value.strip().lower(), value)
        elif isinstance(value, str) and types in (int, (int, float)) and value.replace(".", "", 1).isdigit():
            value = float(value) if "." in value else int(value)  # so does -e name=3
        if value is None:
            value = default
        elif not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            wanted = types[0] if isinstance(types, tuple) else types
            problems.add(f"'{name}' is {recipes.kind(value)}; it must be {recipes.kind(wanted())}.")
            value = default
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
            problems.add(f"'{name}' is {value}; a size in GiB cannot be negative.")
        settings[name] = value
    if settings["spark_verify"] not in ("changed", "all", "size"):
        problems.add(f"'spark_verify' is '{settings['spark_verify']}'; it must be changed, all or size.")
    if settings["spark_plan_facts"] not in ("auto", "never", "required"):
        problems.add(f"'spark_plan_facts' is '{settings['spark_plan_facts']}'; it must be auto, never or required.")
    for entry in settings["spark_firewall_allowed"]:
        try:
            _port(entry)
        except ValueError as error:
            problems.add(f"'spark_firewall_allowed': {error}.")
    for name in ("spark_hf_home", "spark_cache_dir", "spark_sysroot"):
        if not str(settings[name]).startswith("/") or recipes.CONTROL.search(str(settings[name])):
            problems.add(f"'{name}' is '{settings[name]}'; it must be an absolute path.")
    problems.unknown(
        [str(key).replace("-", "_") for key in settings["spark_defaults"]],
        recipes.DEFAULTS_KEYS,
        "key of spark_defaults:",
    )

    services: list[dict[str, Any]] = []
    messages: list[str] = []
    present = [ref for ref, image in (given.get("images") or {}).items() if image.get("present")]
    for index, entry in enumerate(settings["spark_services"]):
        where = f"host {host}, spark_services[{index}]"
        service, wrong = _resolve(
            entry, where, f"{host}/", known_recipes, settings["spark_defaults"], present, given, digest
        )
        if service.get("nodes", 1) > 1:
            wrong.append(
                f"host {host}, spark_services[{index}]: recipe {service['recipe']} needs {service['nodes']} Sparks. Put it "
                "into the services of spark_cluster, on a group of so many hosts; docs/pair.md shows how."
            )
        services.append(service)
        messages.extend(wrong)
    for key, what in (("name", "service name"), ("port", "port")):
        seen: dict[Any, int] = {}
        for index, service in enumerate(services):
            value = service.get(key)
            if value in seen:
                messages.append(
                    f"host {host}, spark_services[{index}]: {what} {value!r} is used twice on this host, "
                    f"first by spark_services[{seen[value]}] ({services[seen[value]].get('name')})."
                )
            elif value is not None:
                seen[value] = index
    names: set[Any] = {service.get("name") for service in services}
    settings["around"], wrong = around.read(host, variables, sorted(str(name) for name in names))
    messages += wrong
    # What this collection runs beside the engines takes its memory like what somebody else runs there.
    settings["beside"] = [] if wrong else around.sidecars(settings["around"])
    names |= {each["name"] for each in settings["beside"]}
    messages += _check_sidecars(host, settings["spark_sidecars"], names)
    return settings, services, problems.messages + messages


def _plan_cluster(
    cluster: Cluster,
    hosts: Mapping[str, Mapping[str, Any]],
    resolved: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]],
    known_recipes: Mapping[str, Mapping[str, Any]],
    digest: Callable[[str], str | None],
) -> tuple[dict[str, Any], list[str]]:
    """Give each host of a cluster its ranks, beside the services of its own; return what concerns the whole."""
    settings = {host: resolved[host][0] for host in cluster.hosts}
    messages = _unlike_settings(cluster, settings)
    done = next((hosts[host]["fabric"] for host in cluster.hosts if hosts[host].get("fabric")), None)
    measured = {host: hosts[host].get("measured") for host in cluster.hosts}
    addresses = {host: settings[host]["spark_fabric_addresses"] for host in cluster.hosts}
    network = clustering.plan_fabric(cluster, measured, addresses, done)
    there = [
        {ref for ref, image in (hosts[host].get("images") or {}).items() if image.get("present")}
        for host in cluster.hosts
    ]
    present = set.intersection(*there)
    whole: dict[str, Any] = {
        "hosts": cluster.hosts,
        "head": cluster.head,
        "services": [],
        "fabric": network,
        "settings": dict(cluster.fabric),
        "findings": _network_findings(network),
    }
    own_names = {host: {service.get("name"): service for service in resolved[host][1]} for host in cluster.hosts}
    ports: dict[Any, str] = {service.get("port"): str(service.get("name")) for service in resolved[cluster.head][1]}
    for position, entry in enumerate(cluster.entries):
        where = f"cluster {cluster.name}, services[{position}]"
        service, wrong = _resolve(
            entry,
            where,
            f"{cluster.name}/",
            known_recipes,
            settings[cluster.head]["spark_defaults"],
            present,
            hosts[cluster.head],
            digest,
        )
        messages += wrong
        if wrong:
            continue
        name, port = service["name"], service["port"]
        where = f"{where} ({name})"
        messages += clustering.check_service(cluster, service, where)
        messages += [f"{where}: the name is taken on host {host}." for host in cluster.hosts if name in own_names[host]]
        if port in ports:
            messages.append(f"{where}: port {port} is used on the head {cluster.head} already, by {ports[port]}.")
        ports[port] = str(name)
        for taken in own_names.values():
            taken[name] = service
        executor, reason, ray = _span(cluster, service, hosts[cluster.head], settings[cluster.head])
        if executor == "ray" and service["pip"]:
            messages.append(
                f"{where}: pip with the executor ray would install the packages on the head alone. Build an image that has "
                "them, or take the executor mp."
            )
        whole["services"].append({"name": name, "executor": executor, "reason": reason})
        for rank, host in enumerate(cluster.hosts):
            made = clustering.rank_service(cluster, service, position, rank, executor, network)
            resolved[host][1].append({**made, "ray_image": executor == "ray" and not ray})
    if not messages:
        _level(cluster, hosts, resolved, digest)
    return whole, messages


def _network_findings(network: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return what is wrong with the network of a cluster.

    What the role fabric is about to repair is no error. An MTU that differs it refuses itself: it tries it out and can say
    what gets lost.
    """
    actions = {own["action"] for own in ((network or {}).get("hosts") or {}).values()}
    repairs = bool(actions & set(fabric.WRITES)) and "refuse" not in actions
    return [
        {**finding, "severity": "warning"}
        if finding["severity"] == "error"
        and (finding["rule"] == "fabric.mtu_differs" or (repairs and finding["rule"] in fabric.REPAIRED))
        else dict(finding)
        for finding in (network or {}).get("findings") or []
    ]


NO_FIREWALL: dict[str, Any] = {
    "state": "absent",
    "fabric": [],
    "peers": [],
    "allowed": [],
    "allowed_udp": [],
    "closed": [],
}

# What ranks of one engine must agree in beside the launch itself.
ALIKE = ("spark_defaults", "spark_hf_home", "spark_cache_dir", "spark_recipe_dirs")


def _unlike_settings(cluster: Cluster, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return where hosts of a cluster differ in what its ranks must agree in."""
    return [
        f"cluster {cluster.name}: {name} of host {host} differs from that of {cluster.head}; ranks of one engine need the "
        "same. Set it on the group."
        for name in ALIKE
        for host in cluster.hosts[1:]
        if settings[host][name] != settings[cluster.head][name]
    ]


def _span(
    cluster: Cluster, service: Mapping[str, Any], given: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[str, str, bool]:
    """Decide on the executor by the head's image: C((executor, why, whether the image has Ray))."""
    ref = service["image"]["ref"]
    there = (given.get("images") or {}).get(ref) or {}
    probe = there.get("probe") or {}
    entry = image_catalogue.lookup(ref, settings["spark_image_catalogue"])
    version = (
        image_check.credible(probe.get("vllm_version"))
        or service["image"].get("vllm_version")
        or image_check.credible(there.get("vllm_version"))
        or (entry or {}).get("vllm_version")
    )
    ray = clustering.has_ray(version, probe, entry)
    executor, reason = clustering.choose_executor(cluster, version, probe, ray)
    return executor, reason, ray


def _level(
    cluster: Cluster,
    hosts: Mapping[str, Mapping[str, Any]],
    resolved: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]],
    digest: Callable[[str], str | None],
) -> None:
    """Work out what ranks left open once for all of them: the least that any of their hosts has for it."""
    ranks = {
        host: [service for service in resolved[host][1] if (service.get("cluster") or {}).get("name") == cluster.name]
        for host in cluster.hosts
    }
    if all(
        key in service["args"] and not _is_open(key, service["args"][key])
        for service in ranks[cluster.head]
        for key in SOLVED
    ):
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for host in cluster.hosts:
        settings, services = resolved[host]
        measured = hosts[host].get("measured")
        placed = [_place(settings, service, digest) for service in services]
        launches = {
            service["name"]: _check_launch(service, settings, measured, hosts[host].get("images") or {})
            for service in placed
        }
        solved = memory_budget(_budget_request(settings, placed, launches, measured))["services"]
        for service in ranks[host]:
            found.setdefault(service["name"], []).append(_solved_args(solved.get(service["name"]) or {}))
    for host in cluster.hosts:
        for service in ranks[host]:
            every = found[service["name"]]
            least = {
                key: min(each[key] for each in every)
                for key in SOLVED
                if all(each.get(key) is not None for each in every)
            }
            service["args"] = {**service["args"], **least}
            service["levelled"] = least


def _join_ranks(
    cluster: Cluster,
    whole: dict[str, Any],
    hosts: Mapping[str, Mapping[str, Any]],
    resolved: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]],
    planned: Mapping[str, dict[str, Any]],
) -> None:
    """Put in what needs all ranks: the mark of what they run, and what is wrong with them as a whole."""
    findings: list[dict[str, Any]] = list(whole.pop("findings"))
    for about in whole["services"]:
        name = about["name"]
        ranks = {
            host: next(service for service in planned[host]["services"] if service["name"] == name)
            for host in cluster.hosts
        }
        mark = clustering.fingerprint([[host, rank["settings"]["rank"], rank["env"]] for host, rank in ranks.items()])
        levelled = next(
            service.get("levelled") or {} for service in resolved[cluster.head][1] if service["name"] == name
        )
        for rank in ranks.values():
            rank["settings"]["rank"]["fingerprint"] = mark
            rank["memory"]["solved"] = sorted(levelled)
        found = clustering.check_images(cluster, name, {host: rank["image"] for host, rank in ranks.items()})
        findings += [finding.to_dict() for finding in found]
        findings.append(_span_finding(cluster, about, levelled, ranks[cluster.head]).to_dict())
    planned[cluster.head]["findings"] += findings
    for host in cluster.hosts:
        measured = hosts[host].get("measured")
        for service in resolved[host][1]:
            if (service.get("cluster") or {}).get("name") == cluster.name:
                wrong = clustering.check_interfaces(service, measured, host)
                planned[host]["findings"] += [finding.to_dict() for finding in wrong]
        planned[host]["cluster"] = {
            "name": cluster.name,
            "hosts": cluster.hosts,
            "rank": cluster.hosts.index(host),
            "fabric": {**clustering.FABRIC_DEFAULTS, **cluster.fabric},
            "fabric_addresses": resolved[host][0]["spark_fabric_addresses"],
        }
        wall = _firewall(resolved[host][0], planned[host], whole["fabric"], host)
        planned[host]["firewall"] = wall
        if wall["state"] == "present":
            shut = firewall.shut_out((measured or {}).get("listening") or [], wall["allowed"], wall["closed"])
            planned[host]["findings"] += [finding.to_dict() for finding in shut]
        ignored = set(resolved[host][0]["spark_ignore_rules"])
        planned[host]["findings"] = [f for f in planned[host]["findings"] if f["rule"] not in ignored]


def _span_finding(
    cluster: Cluster, about: Mapping[str, Any], levelled: Mapping[str, Any], head: Mapping[str, Any]
) -> Finding:
    """Say how a service spans its hosts, and what was worked out for all of its ranks."""
    message = f"spans {', '.join(cluster.hosts)} by the executor {about['executor']}: {about['reason']}."
    if head["ray_image"]:
        message += f" Its image has no Ray; one with Ray {cluster.ray_version} is built from it on each host."
    if levelled:
        values = ", ".join(f"{key} {value}" for key, value in sorted(levelled.items()))
        message += f" Worked out for all ranks: {values}."
    return Finding(
        rule="cluster.executor",
        severity="info",
        service=about["name"],
        message=message,
        fix="" if cluster.executor != "auto" else "Set executor in spark_cluster to have the other one.",
    )


def _firewall(
    settings: Mapping[str, Any], planned: Mapping[str, Any], network: Mapping[str, Any] | None, host: str
) -> dict[str, Any]:
    """Return what the role firewall closes and leaves open on a host of a cluster."""
    peers = ((network or {}).get("hosts") or {}).get(host, {}).get("firewall") or {}
    open_ports = [_port(entry) for entry in settings["spark_firewall_allowed"]]
    keyed = [
        service["port"]
        for service in planned["services"]
        if service["url"] and service["host"] not in ("127.0.0.1", "localhost", "::1")
    ]
    return {
        "state": "present" if settings["spark_firewall"] else "absent",
        "fabric": list(peers.get("fabric") or []),
        "peers": list(peers.get("peers") or []),
        "allowed": sorted({*keyed, *(port for port, kind in open_ports if kind == "tcp")}),
        "allowed_udp": sorted({port for port, kind in open_ports if kind == "udp"}),
        "closed": sorted({service["port"] for service in planned["services"] if service["cluster"]}),
    }


def _port(entry: Any) -> tuple[int, str]:
    """Read a port: a number is TCP, C(51820/udp) is UDP. Raises ValueError."""
    number, _slash, kind = str(entry).partition("/")
    if not number.isdigit() or not 0 < int(number) < 65536 or kind not in ("", "tcp", "udp"):
        raise ValueError(f"{entry!r} is no port; write 4000 or 51820/udp")
    return int(number), kind or "tcp"


def _check_sidecars(host: str, sidecars: Sequence[Any], taken: set[Any]) -> list[str]:
    """Return what is wrong with C(spark_sidecars); a name may not be that of a service."""
    messages = []
    names = set(taken)
    for index, entry in enumerate(sidecars):
        problems = recipes.Problems(f"host {host}, spark_sidecars[{index}]")
        if not isinstance(entry, Mapping):
            problems.add(f"must be a mapping of name and memory_gib, not {recipes.kind(entry)}.")
        else:
            problems.unknown([str(key) for key in entry], ("name", "memory_gib"))
            name, size = entry.get("name"), entry.get("memory_gib")
            if not isinstance(name, str) or not name:
                problems.add(f"'name' is {name!r}; it must be a text.")
            elif name in names:
                problems.add(f"the name '{name}' is used twice on this host.")
            else:
                names.add(name)
            if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < float("inf"):
                problems.add(f"'memory_gib' is {size!r}; it must be a size in GiB above 0.")
        messages += problems.messages
    return messages


def _plan_host(
    given: Mapping[str, Any],
    settings: dict[str, Any],
    services: list[dict[str, Any]],
    digest: Callable[[str], str | None],
) -> dict[str, Any]:
    measured: Mapping[str, Any] | None = given.get("measured")
    images: Mapping[str, Any] = given.get("images") or {}
    findings: list[dict[str, Any]] = []
    services = [_place(settings, service, digest) for service in services]
    launches = {service["name"]: _check_launch(service, settings, measured, images) for service in services}
    for launch in launches.values():
        findings.extend(launch["findings"])

    budget = _budget(settings, services, launches, measured)
    findings.extend(budget["findings"])
    order = [name for name in budget["start_order"] if name in launches]
    order += [name for name in sorted(launches) if name not in order]
    by_name = {service["name"]: service for service in services}
    planned: list[dict[str, Any]] = []
    for position, name in enumerate(order, start=1):
        planned.append(
            _plan_service(
                given,
                settings,
                by_name[name],
                launches[name],
                budget["services"].get(name) or {},
                position,
                order[: position - 1],
            )
        )
    verbs.choose_states(planned, measured, [service["name"] for service in services])
    if measured:
        wants = {
            "uses_gpu": any("--gpus" in str(arg) or arg == "--runtime" for arg in settings["spark_gpu_args"]),
            "hf_home": settings["spark_hf_home"],
            "download_gib": _download_gib(planned, measured),
            "firewall": bool(settings["spark_cluster"]) and settings["spark_firewall"],
        }
        findings.extend(finding.to_dict() for finding in preflight.check_host(measured, planned, wants))
    for service in planned:
        findings.extend(finding.to_dict() for finding in _service_findings(service, by_name[service["name"]]))
        if settings["spark_bundle_dir"]:
            findings.extend(finding.to_dict() for finding in bundle.findings(service))
        if given.get("pin"):
            told = lock_file.other_image(
                service["image"]["ref"], given["images"], service["name"], settings["spark_bundle_dir"]
            )
            findings.extend(finding.to_dict() for finding in told)
        if given.get("pin"):
            refs = {repo: own.get("refs") or {} for repo, own in ((measured or {}).get("snapshots") or {}).items()}
            # One that no registry knows is an error of its own where the locked one is not there.
            said = {ref: image for ref, image in given["said"].items() if not given["images"][ref].get("other_id")}
            told = lock_file.moved(given["lock"], service["lock"], said, refs, service["name"], given["upstream"])
            findings.extend(finding.to_dict() for finding in told)
        if given.get("pin") and not service["rank"]:
            told = lock_file.findings(given["lock"], service["lock"], service["name"], given["sparks"], settings)
            findings.extend(finding.to_dict() for finding in told)
    ignored = set(settings["spark_ignore_rules"])
    offered = {ref for service in services for ref in service["alternatives"]}
    return {
        "services": planned,
        "verdict": budget["verdict"],
        "start_order": order,
        "utilization_sum": budget["utilization_sum"],
        "total_gib": budget["total_gib"],
        "findings": [f for f in findings if f["rule"] not in ignored],
        "autofix": [{"service": name, **change} for name in order for change in launches[name]["autofix"]],
        "memory_map": budget["memory_map"],
        "basis": "measured" if measured else "inventory",
        "images": sorted({service["image"]["ref"] for service in planned}),
        # What else a recipe offers: the host is asked for all, and the first that is there serves.
        "image_candidates": sorted({*offered, *lock_file.candidates(given.get("lock"), offered, _machine(given))}),
        "models": _models(planned, given.get("lock"), bool(given.get("pin"))),
        # What another host may have: it comes from there then.
        "missing": _missing(planned, given),
        "images_locked": lock_file.locked_images(given.get("lock") if given.get("pin") else None, planned),
        "ray_images": _ray_images(planned),
        "cluster": None,
        # What is left of a cluster that the host is no more part of is taken away.
        "firewall": NO_FIREWALL if (measured or {}).get("firewall") else None,
        "settings": {
            # What is in use before the first engine starts.
            "reserve_gib": settings["spark_os_reserve_gib"]
            + sum(
                float(each["memory_gib"])
                for each in [*settings["spark_sidecars"], *settings.get("beside", ())]
                if not each.get("idle")
            ),
            "hf_home": settings["spark_hf_home"],
            "cache_dir": settings["spark_cache_dir"],
            "sysroot": settings["spark_sysroot"],
            "hf_endpoint": settings["spark_hf_endpoint"],
            "hf_token_file": settings["spark_hf_token_file"],
            "verify": settings["spark_verify"],
            "bundle_dir": settings["spark_bundle_dir"],
        },
    }


def _check_launch(
    service: Mapping[str, Any],
    settings: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    images: Mapping[str, Any],
) -> dict[str, Any]:
    """Ask the compatibility engine about one launch; a probed fact beats what the recipe or the catalogue says."""
    image = service["image"]
    there = images.get(image["ref"]) or {}
    probe = there.get("probe") or {}
    probed_version = image_check.credible(probe.get("vllm_version"))
    gpu = (measured or {}).get("gpu") or {}
    request: dict[str, Any] = {
        "image": image["ref"],
        "vllm_version": probed_version or image.get("vllm_version") or image_check.credible(there.get("vllm_version")),
        "version_source": "probed" if probed_version else "given",
        "model": {
            "repo": service["model"].get("repo") or service["name"],
            "config": service["config"],
            "quant_config": service["quant_config"],
        },
        "args": {key: value for key, value in service["args"].items() if not _is_open(key, value)},
        "env": service["env"],
        "nodes": service["nodes"],
        "docker_args": [
            *_own_docker_args(settings, service),
            *(word for ulimit in settings["spark_ulimits"] for word in ("--ulimit", str(ulimit))),
            *settings["spark_docker_args"],
            *service["docker_args"],
            *_mounts(service["files"]),
        ],
        "packages": [*service["pip"], *(["ray"] if service.get("ray_image") else [])],
        "ignore": [*settings["spark_ignore_rules"], *service["ignore"]],
        "catalogue": settings["spark_image_catalogue"],
    }
    if probe:
        own = image_check.catalogue_entry(image["ref"], probe, settings["spark_image_catalogue"])
        request["catalogue"] = [own, *settings["spark_image_catalogue"]]
    family = _known(there.get("entrypoint_family")) or image.get("entrypoint")
    if family:
        request["entrypoint"] = family
    if gpu.get("driver_version"):
        request["driver_version"] = gpu["driver_version"]
    result = check_launch(request)
    result["env"], result["autofix"] = service["env"], []
    if settings["spark_autofix"]:
        fixed = result["fixed"]
        repairs = [repaired(change).to_dict() for change in fixed["changes"]]
        result.update(args=fixed["args"], env=fixed["env"], autofix=fixed["changes"])
        result["findings"] = [*fixed["findings"], *repairs]
    told = image_check.findings(image["ref"], there, measured or {}, image.get("vllm_version"), service["env"])
    for finding in result["findings"]:
        finding["basis"] = "probed" if probe and image_check.rests_on_image(finding["rule"]) else "inventory"
    result["findings"] += [finding.to_dict() for finding in told if finding.rule not in request["ignore"]]
    for finding in result["findings"]:
        finding["service"] = service["name"]
    return result


def repaired(change: Mapping[str, str]) -> Finding:
    """Say what C(spark_autofix) changed, so that it is seen wherever findings are."""
    return Finding(
        rule=change["rule"],
        severity="info",
        message=f"repaired: {change['before']} -> {change['after'] or 'taken out'}",
        fix="Write it so in the inventory, and it stays so without spark_autofix.",
        source="spark_autofix",
    )


def _known(family: Any) -> str | None:
    return family if family in ("serve", "passthrough") else None


SOLVED = ("gpu-memory-utilization", "max-model-len", "max-num-seqs")


def _is_open(key: str, value: Any) -> bool:
    """Tell whether an option says C(auto) where the plan puts a number; vLLM itself knows that word for the length only."""
    word = str(value).lower()
    return key in SOLVED and (word == "auto" or (word == "-1" and key == "max-model-len"))


def _budget(
    settings: Mapping[str, Any],
    services: Sequence[Mapping[str, Any]],
    launches: Mapping[str, Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Solve what was left open, then judge it.

    What is left open is solved from totals alone: a figure that followed the momentary free memory would change from
    run to run, and every run would restart the engines. What the host says then decides whether that can start.
    """
    request = _budget_request(settings, services, launches, measured)
    solved = memory_budget(request)
    memory = (measured or {}).get("memory") or {}
    if memory.get("available_gib") is None:
        return solved
    for entry in request["services"]:
        entry["args"] = {**entry.get("args", {}), **_solved_args(solved["services"][entry["name"]])}
    wanted = {service["name"] for service in services}
    # Sidecars are taken to run already, so that the momentary figure is without them.
    resident, leaving = [{"name": each["name"], "gib": each["memory_gib"]} for each in settings["spark_sidecars"]], 0.0
    running = {unit["name"] for unit in (measured or {}).get("units") or [] if unit["active_state"] == "active"}
    staying = set()
    for each in settings.get("beside", ()):
        if each["unit"] in running and not each["idle"]:
            resident.append({"name": each["name"], "gib": each["memory_gib"]})
            staying.add(each["name"])
    for holder in (measured or {}).get("resident") or []:
        holds = float(holder["gib"] or 0.0) + HOST_SIDE_GIB
        if holder["name"] in wanted:
            resident.append({"name": holder["name"], "gib": holds})
        elif (
            holder["name"] not in staying
        ):  # a service of ours that this run removes, or a model of Ollama that the gate unloads
            leaving += holds
    request["measured"] = {"mem_available_gib": memory["available_gib"] + leaving, "resident": resident}
    judged = memory_budget(request)
    for name, figures in judged["services"].items():
        if "solved" in figures:
            figures["solved"] = solved["services"][name]["solved"]
    judged["findings"] += [finding for finding in solved["findings"] if finding["rule"] == "memory.solved"]
    return judged


def _solved_args(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the budget worked out."""
    return {key: figures[key.replace("-", "_")] for key in figures.get("solved", ())}


def _budget_request(
    settings: Mapping[str, Any],
    services: Sequence[Mapping[str, Any]],
    launches: Mapping[str, Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "os_reserve_gib": settings["spark_os_reserve_gib"],
        "safety_margin_gib": settings["spark_safety_margin_gib"],
        "overheads": settings["spark_overheads"],
        "services": [
            {
                "name": service["name"],
                "config": service["config"],
                "quant_config": service["quant_config"],
                "weights_gib": service["weights_gib"],
                "draft_weights_gib": service["draft_weights_gib"],
                "draft_config": service["draft_config"],
                "overheads": service["overheads"],
                "vllm_version": launches[service["name"]]["vllm_version"],
                "args": {
                    **launches[service["name"]]["args"],
                    **{key: "auto" for key, value in service["args"].items() if _is_open(key, value)},
                },
                "share": service["memory_share"],
                "exclusive": service.get("exclusive") or "",
                # Behind the host's own services, which are not to wait for another host; and in one order everywhere.
                "last": service["cluster"]["position"] + 1 if service.get("cluster") else 0,
            }
            for service in services
        ]
        + [
            {"name": each["name"], "memory_gib": each["memory_gib"]}
            for each in [*settings["spark_sidecars"], *settings.get("beside", ())]
        ],
    }
    total = settings["spark_total_gib"] or ((measured or {}).get("memory") or {}).get("total_gib")
    if total:
        request["total_gib"] = total
    return request


def _place(
    settings: Mapping[str, Any], service: Mapping[str, Any], digest: Callable[[str], str | None]
) -> dict[str, Any]:
    """Say where a service's files are: those of its checkpoint, and those that the controller has."""
    model = _model(settings, service)
    on_host, in_container = f"{settings['spark_hf_home']}/{model['link']}", f"{CONTAINER_HF_HOME}/{model['link']}"
    if model["path"]:
        on_host, in_container = model["path"], model["argument"]
    files = []
    for entry in service["files"]:
        if entry["source"].startswith(recipes.MODEL_FOLDER):
            files.append({**entry, "source": None, "sha256": None, "host": _filled(entry["source"], on_host)})
            continue
        sha256 = digest(entry["source"])
        # The name holds the content, so a file that changes changes the unit, too, and the engine is restarted.
        name = f"{(sha256 or 'missing')[:12]}-{posixpath.basename(entry['source'])}"
        host = f"/etc/dgxspark/files/{service['name']}/{name}"
        files.append({**entry, "sha256": sha256, "host": host})
    files += _carry_over(service)
    args = _filled(service["args"], in_container)
    linked = not model["path"] and (
        args != service["args"] or any(entry["source"] is entry["sha256"] is None for entry in files)
    )
    return {**service, "args": args, "files": files, "linked": linked}


def _carry_over(service: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the file by which vLLM does not copy the head's own variables to the other ranks; Ray's way has need of it."""
    span = service.get("cluster") or {}
    if span.get("executor") != "ray" or service["rank"] or not span["per_host"]:
        return []
    file = ray_cluster.carry_over(span["per_host"])
    sha256 = hashlib.sha256(file["content"].encode()).hexdigest()
    host = f"/etc/dgxspark/files/{service['name']}/{sha256[:12]}-{posixpath.basename(file['path'])}"
    return [{"source": None, "content": file["content"], "path": file["path"], "sha256": sha256, "host": host}]


def _filled(value: Any, folder: str) -> Any:
    """Put the folder of the model's snapshot wherever a value names it."""
    if isinstance(value, str):
        return value.replace(recipes.MODEL_FOLDER, folder)
    if isinstance(value, Mapping):
        return {key: _filled(item, folder) for key, item in value.items()}
    return [_filled(item, folder) for item in value] if isinstance(value, list) else value


def _mounts(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options of docker run that show an engine its files."""
    return [
        word for entry in files for word in ("--mount", f"type=bind,src={entry['host']},dst={entry['path']},readonly")
    ]


def _listen(given: Mapping[str, Any], settings: Mapping[str, Any], service: Mapping[str, Any]) -> str:
    """Loopback without a key, the management address with one; the service and spark_listen overrule."""
    if settings["spark_listen"] or service["host"]:
        return str(settings["spark_listen"] or service["host"])
    if "VLLM_API_KEY" not in service["secrets"]:
        return "127.0.0.1"
    if settings["spark_management_address"]:
        return str(settings["spark_management_address"])
    address = str(given.get("address") or "")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        measured = (given.get("measured") or {}).get("management_address")
        return str(measured or address or "0.0.0.0")
    return address


def _probe_address(listen: str) -> str:
    """The address that the host itself reaches the engine by."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen, f"[{listen}]" if ":" in listen else listen)


def _plan_service(
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    service: Mapping[str, Any],
    launch: Mapping[str, Any],
    memory: Mapping[str, Any],
    position: int,
    before: Sequence[str],
) -> dict[str, Any]:
    name = service["name"]
    rank, span = service.get("rank", 0), service.get("cluster")
    # Only the first rank answers requests; the others are given the options of the same engine.
    listen = "127.0.0.1" if rank else _listen(given, settings, service)
    url = None if rank else f"http://{_probe_address(listen)}:{service['port']}"
    args = {**launch["args"], **_solved_args(memory)}
    if _is_open("max-model-len", service["args"].get("max-model-len")):
        args.setdefault("max-model-len", "auto")  # could not be worked out: vLLM knows the word, too
    image = _image(service["image"]["ref"], (given.get("images") or {}).get(service["image"]["ref"]) or {})
    model = _model(settings, service)
    secrets = [
        {"name": variable, "source": source, "path": f"/etc/dgxspark/secrets/{name}/{variable}"}
        for variable, source in service["secrets"].items()
    ]
    cache_dir = f"{settings['spark_cache_dir']}/{name}"
    env = {
        "HF_HOME": CONTAINER_HF_HOME,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": f"{CONTAINER_CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{CONTAINER_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CONTAINER_CACHE}/inductor",
        "FLASHINFER_WORKSPACE_BASE": CONTAINER_CACHE,
        **(ray_cluster.environment(span["position"]) if span and span["executor"] == "ray" else {}),
        **launch["env"],
    }
    serve = {**args, "host": listen, "port": service["port"], "served-model-name": service["served_model_name"]}
    if model["revision"] and model["repo"]:
        serve.setdefault("revision", model["revision"])
    command = render_command(launch["entrypoint"], model["argument"], serve, bool(secrets), service["pip"])
    requested = memory.get("requested_bytes")
    ray_image = None
    if span and service.get("ray_image"):
        ray_image = {
            "base": image["run"],
            "version": span["ray_version"],
            "tag": ray_cluster.derived_tag(image["id"] or image["run"], span["ray_version"]),
        }
        image = {**image, "run": ray_image["tag"]}
    probe = {
        "name": name,
        "url": url,
        "model": service["served_model_name"],
        "api_key_file": next((s["path"] for s in secrets if s["name"] == "VLLM_API_KEY"), None),
    }
    result = {
        "name": name,
        "unit": f"spark-{name}.service",
        "container": f"spark-{name}",
        "rank": rank,
        "cluster": span and {key: span[key] for key in ("name", "size", "head", "hosts", "executor")},
        "order": position,
        "after": [f"spark-{earlier}.service" for earlier in before],
        "recipe": service["recipe"],
        "variant": service["variant"],
        "lock": service["lock"],
        "model": model,
        "served_model_name": service["served_model_name"],
        "host": listen,
        "port": service["port"],
        "url": url,
        "image": image,
        "ray_image": ray_image,
        "vllm_version": launch["vllm_version"],
        "version_source": launch["version_source"],
        "entrypoint": launch["entrypoint"],
        "args": args,
        "command": command,
        "env": env,
        "env_file": f"/etc/dgxspark/env/{name}.env",
        "secrets": secrets,
        "files": service["files"],
        "pip": service["pip"],
        "checks": service["checks"],
        "exclusive": service["exclusive"],
        # What is stopped stays deployed; which one of an exclusive set is to run is seen once all are there.
        "state": service["state"],
        "start_timeout": service["start_timeout"],
        "limits": _limits(service["start_timeout"]),
        "cache_dir": cache_dir,
        "linked": service["linked"],
        "folders": _folders(name, cache_dir, secrets, service["files"]),
        "memory": dict(memory),
        "fast_path": expected_path.of_service(service, args, launch),
        "probe": probe,
        "settings": {
            **probe,
            "unit": f"spark-{name}.service",
            "container": f"spark-{name}",
            # The probes give up a little before systemd would, so that the journal says why.
            "start_deadline_seconds": service["start_timeout"] - 30,
            "memory_gib": round(requested / GIB, 2) if requested else 0.0,
            "memory_wait_seconds": min(MEMORY_WAIT_SECONDS, service["start_timeout"] // 2),
            "sysroot": settings["spark_sysroot"],
            **({"exclusive": service["exclusive"]} if service["exclusive"] else {}),
            **({"load_guard": settings["around"]["load_guard"]} if "around" in settings else {}),
        },
    }
    parts = _parts(settings, service, result)
    result["fingerprint"] = fingerprint([word for part in parts for word in part["argv"]], env)
    for part in parts:
        # Behind `docker run`: what the container was started from, for the next run to compare with.
        part["argv"][2:2] = ["--label", f"{FINGERPRINT_LABEL}={result['fingerprint']}"]
    result["parts"], result["argv"] = parts, parts[-1]["argv"]
    if span:
        result["settings"]["rank"] = _rank_settings(settings, service, result)
    running = _running(given.get("measured"), name)
    result["stale"] = running is not None and running != result["fingerprint"]
    return result


def fingerprint(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a short hash of what an engine is started from."""
    return hashlib.sha256(json.dumps([list(argv), dict(env)], sort_keys=True).encode()).hexdigest()[:16]


def _rank_settings(
    settings: Mapping[str, Any], service: Mapping[str, Any], planned: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the supervisor of a rank goes by; the mark of what all ranks run is put in once all are planned."""
    span, model = service["cluster"], planned["model"]
    return {
        "cluster": span["name"],
        "rank": service["rank"],
        "size": span["size"],
        "executor": span["executor"],
        "address": span["address"],
        "port": PORTS + span["position"],
        "peers": [
            {"rank": number, "host": host, "address": span["addresses"][host]}
            for number, host in enumerate(span["hosts"])
            if number != service["rank"]
        ],
        "fingerprint": "",
        # An image with Ray is built on each host, from one that is the same on all of them.
        "image": (planned["ray_image"] or {"base": planned["image"]["run"]})["base"],
        "model": {
            "repo": model["repo"],
            "revision": model["revision"],
            "hub": f"{settings['spark_hf_home']}/hub",
        },
        "peer_timeout_seconds": span["peer_timeout"],
        "starts": planned["limits"]["starts"],
        "start_interval": planned["limits"]["start_interval"],
        "parts": planned["parts"],
    }


def _running(measured: Mapping[str, Any] | None, name: str) -> str | None:
    """Return the fingerprint of the service's running container, or None where there is none.

    It differs from the plan's when an earlier run wrote new files and was cut off before it restarted the unit.
    """
    for container in (measured or {}).get("containers") or []:
        if container.get("service") == name and container.get("state") == "running":
            found = container.get("fingerprint")
            return None if found is None else str(found)
    return None


def _limits(start_timeout: int) -> dict[str, int]:
    """Return the bounds of a unit, in seconds and starts.

    The interval spans all starts at their longest, or a start that always times out would be tried for ever.
    """
    return {
        "starts": STARTS,
        "restart_seconds": RESTART_SECONDS,
        "stop_seconds": STOP_SECONDS,
        "start_interval": STARTS * (start_timeout + STOP_SECONDS + RESTART_SECONDS) + 60,
    }


def _folders(
    name: str, cache_dir: str, secrets: Sequence[Mapping[str, Any]], files: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return the folders that a service needs before its files."""
    folders = [{"path": cache_dir, "mode": "0755"}]
    if secrets:
        folders.append({"path": f"/etc/dgxspark/secrets/{name}", "mode": "0700"})
    if any(entry["source"] or entry["sha256"] for entry in files):
        folders.append({"path": f"/etc/dgxspark/files/{name}", "mode": "0755"})
    return folders


def _image(ref: str, there: Mapping[str, Any]) -> dict[str, Any]:
    """Name an image by what cannot move: the digest that its registry knows it by, else its id, else as it was written."""
    repository, _tag, wanted = split_image(ref)
    digests = [digest for digest in there.get("repo_digests") or [] if split_image(digest)[0] == repository]
    exact = [digest for digest in digests if wanted and digest.endswith(f"@{wanted}")]
    digest = next(iter([*exact, *digests]), None)
    return {"ref": ref, "id": there.get("id"), "digest": digest, "run": digest or there.get("id") or ref}


def _model(settings: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    model = service["model"]
    extra = [
        {"repo": e["repo"], "revision": e.get("revision") or "main", "only": list(e.get("only") or [])}
        for e in model.get("extra") or []
    ]
    if model.get("path"):
        path = str(model["path"])
        leaf = path.rstrip("/").rsplit("/", 1)[-1]
        source = path if path.startswith("/") else f"{settings['spark_model_dir'].rstrip('/') or '.'}/{path}"
        return {
            "repo": None,
            "revision": None,
            "source": source,
            "extra": extra,
            "path": f"{settings['spark_hf_home']}/local/{leaf}",
            "link": None,
            "argument": f"{CONTAINER_HF_HOME}/local/{leaf}",
        }
    revision = model.get("revision") or "main"
    return {
        "repo": model["repo"],
        "revision": revision,
        "source": None,
        "path": None,
        "link": f"{SNAPSHOTS}/{str(model['repo']).replace('/', '--')}@{revision.replace('/', '--')}",
        "extra": extra,
        "argument": model["repo"],
    }


def render_command(
    entrypoint: str, model: str, args: Mapping[str, Any], with_secrets: bool, pip: Sequence[str] = ()
) -> list[str]:
    """Return what follows the image name: as short as the image's entrypoint allows.

    Behind a shell that installs packages first, or behind the secrets' wrapper, the command is whole. NVIDIA's own
    entrypoint stays in either case: it is what makes a newer CUDA run on an older driver.
    """
    serve = ["vllm", "serve"] if with_secrets or pip or entrypoint == "passthrough" else []
    command = [*serve, model, *render(dict(args))]
    if pip:
        shell = ["/bin/sh"] if entrypoint == "passthrough" else []
        wrapper = [WITH_SECRETS] if with_secrets else []
        install = " ".join(
            [f"pip install --no-input --cache-dir {CONTAINER_CACHE}/pip", *(f"'{name}'" for name in pip)]
        )
        return [*shell, "-c", f'{install} && exec "$@"', "vllm", *wrapper, *command]
    return [WITH_SECRETS, *command] if with_secrets and entrypoint == "passthrough" else command


def _own_docker_args(settings: Mapping[str, Any], service: Mapping[str, Any], ipc: str = "private") -> list[str]:
    """Return what every container gets that rules look at."""
    shared = ipc.startswith("container:")  # its /dev/shm is that container's
    shm = [] if shared else ["--shm-size", service["shm_size"] or settings["spark_shm_size"]]
    rdma = [str(arg) for arg in settings["spark_fabric_args"]] if service.get("cluster") else []
    return ["--network", "host", "--ipc", ipc, *shm, *rdma]


def _parts(settings: Mapping[str, Any], service: Mapping[str, Any], planned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a service on this host, in the order of their start, each with its C(docker run)."""
    span = service.get("cluster") or {}
    container = planned["container"]
    if span.get("executor") != "ray":
        return [{"container": container, "argv": docker_argv(settings, service, planned)}]
    own, head, slot = span["address"], span["addresses"][span["head"]], span["position"]
    ray = ray_cluster.container_name(container)
    parts: list[dict[str, Any]] = [
        {
            "container": ray,
            "argv": [
                *_docker_run(settings, service, planned, ray, ray_cluster.IPC),
                *ray_cluster.mounts(service["name"]),
                *(["--entrypoint", "ray"] if planned["entrypoint"] == "serve" else []),
                planned["image"]["run"],
                *([] if planned["entrypoint"] == "serve" else ["ray"]),
                *ray_cluster.start_argv(service["rank"] == 0, own, head, slot),
            ],
        }
    ]
    if service["rank"] == 0:
        more = ray_cluster.engine_args(service["name"], container, head, slot)
        argv = docker_argv(settings, service, planned, f"container:{ray}", more)
        wait = {"address": f"{head}:{ray_cluster.gcs_port(slot)}", "nodes": span["size"], "gpus": span["size"]}
        parts.append({"container": container, "argv": argv, "after": {"ray": wait}})
    return parts


def _docker_run(
    settings: Mapping[str, Any], service: Mapping[str, Any], planned: Mapping[str, Any], container: str, ipc: str
) -> list[str]:
    """Return the part of C(docker run) that all containers of a service have in common."""
    argv = [
        "/usr/bin/docker",
        "run",
        "--rm",
        "--name",
        container,
        "--pull",
        "never",
        "--label",
        "dgxspark.managed=true",
        "--label",
        f"dgxspark.service={planned['name']}",
        *_own_docker_args(settings, service, ipc),
        "--stop-timeout",
        str(STOP_SECONDS),
        "--log-driver",
        "local",
        "--env-file",
        planned["env_file"],
        "--volume",
        f"{settings['spark_hf_home']}:{CONTAINER_HF_HOME}",
        "--volume",
        f"{planned['cache_dir']}:{CONTAINER_CACHE}",
    ]
    for ulimit in settings["spark_ulimits"]:
        argv += ["--ulimit", str(ulimit)]
    argv += [str(arg) for arg in settings["spark_gpu_args"]]
    argv += _mounts(planned["files"])
    argv += [str(arg) for arg in settings["spark_docker_args"]]
    return [*argv, *service["docker_args"]]


def docker_argv(
    settings: Mapping[str, Any],
    service: Mapping[str, Any],
    planned: Mapping[str, Any],
    ipc: str = "private",
    more: Sequence[str] = (),
) -> list[str]:
    """Return the whole C(docker run) of a planned engine, one argument per list item."""
    argv = [*_docker_run(settings, service, planned, planned["container"], ipc), *more]
    if planned["secrets"]:
        argv += [
            "--mount",
            f"type=bind,src=/etc/dgxspark/secrets/{planned['name']},dst={CONTAINER_SECRETS},readonly",
            "--mount",
            f"type=bind,src={WITH_SECRETS},dst={WITH_SECRETS},readonly",
        ]
    if planned["entrypoint"] == "serve" and (planned["pip"] or planned["secrets"]):
        argv += ["--entrypoint", "/bin/sh" if planned["pip"] else WITH_SECRETS]
    return [*argv, planned["image"]["run"], *planned["command"]]


def _models(planned: Sequence[Mapping[str, Any]], lock: Mapping[str, Any] | None, pin: bool) -> list[dict[str, Any]]:
    """Every model snapshot that the host needs, once, with an image that can fetch it and the files that the lock has."""
    wanted: dict[tuple[str, str], dict[str, Any]] = {}
    for service in planned:
        model = service["model"]
        if model["source"]:
            wanted[(model["path"], "")] = {"source": model["source"], "path": model["path"]}
        else:
            key = (model["repo"], model["revision"])
            link = model["link"] if service["linked"] else (wanted.get(key) or {}).get("link", "")
            wanted[key] = {
                "repo": key[0],
                "revision": key[1],
                "only": [],
                "image": service["image"]["run"],
                "link": link,
            }
        for extra in model["extra"]:
            key = (extra["repo"], extra["revision"])
            entry = wanted.setdefault(key, {**extra, "image": service["image"]["run"], "link": ""})
            # Two services may name different files of one repository; without patterns all of them are meant.
            if entry["only"] and extra["only"]:
                entry["only"] = sorted({*entry["only"], *extra["only"]})
            else:
                entry["only"] = []
    for entry in wanted.values():
        if "repo" in entry:
            entry["files"] = lock_file.files_of(lock, entry["repo"], entry["revision"], entry["only"]) if pin else {}
            entry["locked"] = lock_file.commit(lock, entry)
    return [wanted[key] for key in sorted(wanted)]


def _ray_images(planned: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every image with Ray that the host has to make from one without, once."""
    wanted = {service["ray_image"]["tag"]: service["ray_image"] for service in planned if service["ray_image"]}
    return [wanted[tag] for tag in sorted(wanted)]


def _download_gib(planned: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> float:
    """GiB of weights that are not on the host yet."""
    missing = [s for s in planned if s["model"]["repo"] and not _has_model(measured, s["model"])]
    return sum((s["memory"].get("weights_bytes") or 0) / GIB for s in missing)


def _has_model(measured: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Tell whether a host has a model at its revision; by the name alone where the host has said no more."""
    if measured.get("snapshots") is None:
        return model["repo"] in (measured.get("models") or [])
    own = measured["snapshots"].get(model["repo"]) or {}
    return (own.get("refs") or {}).get(model["revision"], model["revision"]) in (own.get("commits") or [])


def _missing(planned: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Images and models that a host that was asked does not have; nothing where it was not asked."""
    images, measured = given.get("images") or {}, given.get("measured")
    wanted = {service["image"]["ref"] for service in planned} if images else set()
    models = [each for service in planned for each in (service["model"], *service["model"]["extra"]) if each["repo"]]
    return {
        "images": sorted(ref for ref in wanted if not (images.get(ref) or {}).get("present")),
        "models": sorted(
            {lock_file.model_key(each["repo"], each["revision"]) for each in models if not _has_model(measured, each)}
            if measured
            else ()
        ),
    }


def _service_findings(service: Mapping[str, Any], given: Mapping[str, Any]) -> list[Finding]:
    findings = []
    first = given["alternatives"][0]
    if service["image"]["ref"] != first:
        findings.append(
            Finding(
                rule="image.alternative",
                severity="info",
                service=service["name"],
                message=f"served from {service['image']['ref']}, which the host has; the recipe's first choice is {first}.",
                fix=f"Set image: {first} to have that one pulled and served instead.",
                basis="probed",
            )
        )
    if service["model"]["repo"] and service["model"]["revision"] == "main":
        findings.append(
            Finding(
                rule="model.moving_revision",
                severity="info",
                service=service["name"],
                message=f"{service['model']['repo']} is taken at 'main', which moves; a host keeps the commit that it has.",
                fix="Set model.revision to a commit; refs/main of the model below HF_HOME names the one that was fetched.",
            )
        )
    findings += [
        Finding(
            rule="model.moving_revision",
            severity="info",
            service=service["name"],
            message=f"{extra['repo']}, which {service['name']} is served with, is taken at 'main', which moves; a host keeps the commit "
            "that it has.",
            fix=f"Set 'revision' of {extra['repo']} below model.extra to a commit, a newer one to have what was repaired since; refs/main of it "
            "below HF_HOME names the one that was fetched.",
        )
        for extra in service["model"]["extra"]
        if extra["revision"] == "main"
    ]
    if service["host"] == "0.0.0.0" and not service["secrets"] and not service["rank"]:
        findings.append(
            Finding(
                rule="service.open",
                severity="warning",
                service=service["name"],
                message="the engine listens on every address without an API key.",
                fix="Set api_key_file, or leave 'host' out to keep it on loopback.",
            )
        )
    return findings
