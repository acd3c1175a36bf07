# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Monitoring: C(spark_exporters) and C(spark_monitoring), the targets of Prometheus, and findings about targets that it cannot reach."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, schema, validation
from .._common.findings import Finding
from .._host import host_paths
from .descriptions import DESCRIPTIONS, finding, options
from .servers import is_moving

EXPORTERS_KEYS = options("spark_exporters")
MONITORING_KEYS = options("spark_monitoring")
RECEIVER_KEYS = options("spark_monitoring.receivers")
TARGET_KEYS = options("spark_monitoring.targets")
THRESHOLDS = options("spark_monitoring.thresholds")
DESCRIPTION = DESCRIPTIONS["monitoring"]

GPU_EXPORTER_VERSION = component_versions.GPU_EXPORTER.version
GPU_EXPORTER_SHA256 = {
    "arm64": "a201b3eefe08b2b713ccc9d5a929e9353ecd0b94d2ff6001b32dd2549e722ad5",
    "x86_64": "bc10dd41356625d28d18bf4d34c181050fc5c4cf28beee8774846d0140adac5f",
}
"""Of the release's archives, from a public cookbook that installs them; a download with another checksum is refused."""
GRAFANA_IMAGE = component_versions.GRAFANA.ref
SCRAPE_TIMEOUT = 10
"""Seconds; shorter if the interval is."""
JOBS = ("node", "gpu", "vllm", "gateway", "prometheus", "alertmanager")
"""Jobs of Prometheus that the plan fills; C(targets) may add others."""
_VERSION = re.compile(r"[0-9][\w.+-]{0,40}\Z", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


# --- exporters ----------------------------------------------------------------------------------------------------


def read_exporters(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_exporters) of a Spark; returns its settings with every default, and messages about wrong values."""
    problems = validation.Problems(f"host {host}, spark_exporters")
    settings = schema.filled(problems, problems.mapping(value, "spark_exporters"), EXPORTERS_KEYS)
    _check_ports(problems, settings, ("node_port", "gpu_port"))
    if not _VERSION.match(settings["gpu_version"]):
        problems.add(
            f"'gpu_version' is {plain_data.shown(settings['gpu_version'])}; it must be like {GPU_EXPORTER_VERSION}."
        )
    if plain_data.web_address(settings["gpu_url"].replace("{version}", "1").replace("{arch}", "arm64")) is None:
        problems.add(f"'gpu_url' is {plain_data.shown(settings['gpu_url'])}; it must begin with http:// or https://.")
    folder = settings["textfile_dir"]
    if not folder.startswith("/") or folder != posixpath.normpath(folder) or plain_data.CONTROL.search(folder):
        problems.add(f"'textfile_dir' is '{folder}'; it must be an absolute path, such as /var/lib/dgxspark/textfile.")
    elif host_paths.problem(folder):
        problems.add(
            f"'textfile_dir' is '{folder}': {host_paths.problem(folder).partition('; ')[0]}. Name a separate folder, such as "
            "/var/lib/dgxspark/textfile."
        )
    for arch, checksum in settings["gpu_sha256"].items():
        if arch not in GPU_EXPORTER_SHA256 or not _SHA256.match(str(checksum)):
            problems.add(
                f"'gpu_sha256' has {arch}: {checksum}; it must be arm64 or x86_64, and the 64 hexadecimal digits of the archive."
            )
    return settings, problems.messages


def _check_ports(problems: validation.Problems, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Report ports that two of some keys share."""
    first_keys: dict[int, str] = {}
    for key in keys:
        port = settings[key]
        if port in first_keys:
            problems.add(f"'{key}' and '{first_keys[port]}' are both {port}. Give each its own port.")
        first_keys.setdefault(port, key)


def plan_exporters(
    host: str,
    settings: Mapping[str, Any],
    address: str,
    planned_gib: Mapping[str, float] | None = None,
    rails: Mapping[str, int] | None = None,
    sysroot: str = "/",
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role C(exporters) without their prefix, and findings.

    :param address: to listen on by default
    :param planned_gib: the planned memory of each service of the host, for comparison with its use
    :param rails: interfaces of the cluster's network on this host, with their planned MTU
    """
    is_default = settings["gpu_version"] == GPU_EXPORTER_VERSION
    checksums = settings["gpu_sha256"] or (GPU_EXPORTER_SHA256 if is_default else {})
    values = {
        **settings,
        "listen": settings["listen"] or address,
        "gpu_sha256": dict(checksums),
        "planned_gib": dict(planned_gib or {}),
        "rails": dict(sorted((rails or {}).items())),
        "sysroot": sysroot,
    }
    outcome = {name: values[name] for name in DESCRIPTION["exporters_variables"]}
    findings = []
    if settings["gpu_exporter"] and not checksums:
        findings.append(finding("exporters.no_checksum", host=host, version=settings["gpu_version"]))
    if settings["node_exporter"] == "none":
        findings.append(finding("exporters.no_node_exporter", host=host, folder=settings["textfile_dir"]))
    return outcome, findings


# --- monitoring ---------------------------------------------------------------------------------------------------


def read_monitoring(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_monitoring) of a host; returns its settings with every default, and messages about wrong values."""
    problems = validation.Problems(f"host {host}, spark_monitoring")
    settings = schema.filled(problems, problems.mapping(value, "spark_monitoring"), MONITORING_KEYS)
    _check_ports(problems, settings, ("prometheus_port", "alertmanager_port", "grafana_port"))
    _check_grafana(problems, settings)
    settings["thresholds"] = schema.filled(problems, settings["thresholds"], THRESHOLDS, "thresholds.")
    if settings["thresholds"]["memory_critical_gib"] > settings["thresholds"]["memory_warning_gib"]:
        problems.add("'memory_critical_gib' is above 'memory_warning_gib'. It is the lower of the two.")
    for index, receiver in enumerate(settings["receivers"]):
        # Entries of a wrong type are left out, so the index may differ from the index in the inventory.
        if receiver["type"] is not None and not problems.named(f"receivers[{index}]"):
            _check_receiver(problems, f"receivers[{index}]", receiver)
    for index, target in enumerate(settings["targets"]):
        _read_labels(problems, f"targets[{index}]", target)
    return settings, problems.messages


def _check_grafana(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    if settings["grafana"] != "none" and not settings["grafana_password_file"]:
        problems.add(
            "'grafana_password_file' is missing: Grafana would start with the password admin. Name a file on the controller, "
            "or set grafana: none."
        )
    image = settings["grafana_image"]
    if settings["grafana"] == "image" and not validation.IMAGE_REF.fullmatch(image):
        problems.add(f"'grafana_image' is {plain_data.shown(image)}; it must be a reference like {GRAFANA_IMAGE}.")
    elif settings["grafana"] == "image" and is_moving(image):
        problems.add(f"'grafana_image' is '{image}', which moves. Name a version or a digest.")


def _check_receiver(problems: validation.Problems, where: str, receiver: Mapping[str, Any]) -> None:
    kind = receiver["type"]
    options = DESCRIPTION["receiver_options"][kind]
    for group in DESCRIPTION["receiver_needs"][kind]:
        if not any(receiver[key] for key in group):
            problems.add(f"{where}: a receiver of type {kind} needs '{' or '.join(group)}'.")
    changed = {key for key, value in receiver.items() if value != RECEIVER_KEYS[key].default}
    if useless := changed - {"name", "type", "severities", *options}:
        problems.add(f"{where}: {_listed(useless)} mean nothing for type {kind}, which knows {_listed(options)}.")
    if receiver["url"] and receiver["url_file"]:
        problems.add(f"{where}: 'url' and 'url_file' are both given. Keep one.")
    if receiver["username"] and not receiver["password_file"]:
        problems.add(f"{where}: 'username' has no 'password_file'.")
    if not receiver["severities"]:
        problems.add(
            f"{where}: 'severities' is empty; it must have {schema.one_of(RECEIVER_KEYS['severities'].choices)}."
        )


def _read_labels(problems: validation.Problems, where: str, target: dict[str, Any]) -> None:
    """Set the labels of a target to texts, and report wrong names and values."""
    labels = target["labels"]
    if wrong_names := [name for name in labels if not _LABEL.match(str(name))]:
        problems.add(
            f"{where}: 'labels' has {_listed(wrong_names)}, which Prometheus does not take as the name of a label."
        )
    if wrong_values := [name for name, value in labels.items() if isinstance(value, (dict, list, bool))]:
        problems.add(f"{where}: 'labels' has {_listed(wrong_values)}, whose values are no texts. Quote them.")
    target["labels"] = {str(name): str(value) for name, value in labels.items()}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def plan_monitoring(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    exporters: Mapping[str, Mapping[str, Any]],
    gateway: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role C(monitoring) without their prefix, and findings about unreachable targets.

    :param exporters: Spark to the outcome of C(plan_exporters), for Sparks with exporters
    :param gateway: C({host, address, port, listen}) of LiteLLM if it has metrics, with C(path) if it is not /metrics, and
        C(token_file) on the controller if it requires a key
    """
    scrape = _Scrape(host)
    scrape.add_exporters(exporters, endpoints)
    scrape.add_engines(endpoints)
    scrape.find_gaps(endpoints, exporters)
    if gateway:
        scrape.add_gateway(gateway)
    local_address = _local_address(settings)
    for job in ("prometheus", *(["alertmanager"] if settings["alertmanager"] else [])):
        scrape.add_target(job, local_address, settings[f"{job}_port"], {"host": host, "service": job})
    for target in settings["targets"]:
        job, path = target["job"], target["path"]
        scrape.add_target(job, target["address"], target["port"], target["labels"])
        if scrape.paths.setdefault(job, path) != path:
            scrape.add_finding("monitoring.two_paths", job=job, first=scrape.paths[job], second=path)
    token = (gateway or {}).get("token_file")
    jobs = []
    for job, targets in scrape.targets.items():
        jobs.append({"name": job, "path": scrape.paths.get(job, "/metrics"), "targets": targets})
        if job == "gateway" and token:
            jobs[-1]["token_file"] = token
    if settings["alertmanager"] and not settings["receivers"]:
        scrape.add_finding("monitoring.nobody_told")
    elif settings["receivers"] and not settings["alertmanager"]:
        scrape.add_finding("monitoring.receivers_unused")
    values = {
        **settings,
        "own_address": local_address,
        "scrape_timeout": min(SCRAPE_TIMEOUT, settings["interval"]),
        "jobs": jobs,
    }
    return {name: values[name] for name in DESCRIPTION["monitoring_variables"]}, scrape.findings


def _local_address(settings: Mapping[str, Any]) -> str:
    return "127.0.0.1" if fleet.is_any(settings["listen"]) else str(settings["listen"])


def prometheus_url(settings: Mapping[str, Any] | None) -> str:
    """Return where programs of its host ask Prometheus, empty without one. settings: of C(read_monitoring)."""
    if not settings:
        return ""
    return f"http://{fleet.bracketed(_local_address(settings))}:{settings['prometheus_port']}"


class _Scrape:
    """The targets and paths of the Prometheus on a host by job, and findings about targets that it cannot reach."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.targets: dict[str, list[dict[str, Any]]] = {job: [] for job in JOBS}
        self.paths: dict[str, str] = {}
        self.findings: list[Finding] = []

    def add_finding(self, rule: str, service: str = "", **values: Any) -> None:
        """Add a finding; see C(descriptions.finding) for the arguments."""
        self.findings.append(finding(rule, service, monitor=self.host, **values))

    def add_target(self, job: str, address: str, port: int, labels: Mapping[str, str]) -> None:
        """Add a target to a job; labels without a text are left out."""
        texts = {name: text for name, text in labels.items() if text}
        target = {"targets": [f"{fleet.bracketed(address)}:{port}"], "labels": texts}
        self.targets.setdefault(job, []).append(target)

    def add_exporters(self, exporters: Mapping[str, Mapping[str, Any]], endpoints: Sequence[Endpoint]) -> None:
        """Add node and GPU exporters of the Sparks; endpoints tell the clusters of each Spark."""
        for spark, planned in sorted(exporters.items()):
            clusters = {_cluster_of(endpoint) for endpoint in endpoints if spark in endpoint["hosts"]} - {""}
            labels = {"host": spark, "cluster": ",".join(sorted(clusters))}
            if planned["node_exporter"] != "none":
                self.add_target("node", planned["listen"], planned["node_port"], labels)
            if planned["gpu_exporter"]:
                self.add_target("gpu", planned["listen"], planned["gpu_port"], labels)
            if fleet.is_loopback(planned["listen"]) and spark != self.host:
                self.add_finding("exporters.unreachable", host=spark, listen=planned["listen"])

    def add_engines(self, endpoints: Sequence[Endpoint]) -> None:
        """Add the engines; speech servers and Ollama have no metrics."""
        for endpoint in endpoints:
            host, service, listen = endpoint["host"], endpoint["service"], endpoint["listen"]
            if endpoint["kind"] != "vllm":
                continue
            if not fleet.reachable(endpoint, self.host):
                self.add_finding("monitoring.unreachable", service, host=host, name=service, listen=listen)
                continue
            model = endpoint["models"][0] if endpoint["models"] else ""
            labels = {"host": host, "service": service, "model": model, "cluster": _cluster_of(endpoint)}
            is_local = host == self.host and fleet.is_any(listen)
            self.add_target("vllm", "127.0.0.1" if is_local else endpoint["address"], endpoint["port"], labels)

    def find_gaps(self, endpoints: Sequence[Endpoint], exporters: Collection[str]) -> None:
        """Add findings if there is nothing to watch, and about hosts of engines without exporters."""
        if not exporters and not self.targets["vllm"]:
            self.add_finding("monitoring.nothing")
        engine_hosts = {host for endpoint in endpoints if endpoint["kind"] == "vllm" for host in endpoint["hosts"]}
        if exporters and engine_hosts - set(exporters):
            self.add_finding("monitoring.no_exporters", hosts=_listed(engine_hosts - set(exporters)))

    def add_gateway(self, gateway: Mapping[str, Any]) -> None:
        """Add the gateway; gateway: see C(plan_monitoring)."""
        self.paths["gateway"] = str(gateway.get("path") or "/metrics")
        host, address = gateway["host"], gateway["address"]
        listen = str(gateway.get("listen") or address)
        if host != self.host and fleet.is_loopback(listen):
            self.add_finding("monitoring.gateway_unreachable", host=host, listen=listen)
            return
        if host == self.host and not fleet.is_any(listen):
            address = listen
        self.add_target("gateway", address, gateway["port"], {"host": host, "service": "gateway"})


def _cluster_of(endpoint: Endpoint) -> str:
    """Return the cluster of an engine over several hosts, else an empty text."""
    return endpoint["key"].partition("/")[0] if len(endpoint["hosts"]) > 1 else ""
