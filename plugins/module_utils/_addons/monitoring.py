# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Monitoring: what C(spark_exporters) and C(spark_monitoring) say, what Prometheus is to ask, and where it cannot."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import endpoints as fleet
from .._cluster.endpoints import Endpoint
from .._common import component_versions, plain_data, schema, validation
from .._common.findings import Finding
from .._common.schema import NUMBER, Key
from .._host import host_paths

GPU_EXPORTER_VERSION = component_versions.GPU_EXPORTER.version
GPU_EXPORTER_SHA256 = {
    "arm64": "a201b3eefe08b2b713ccc9d5a929e9353ecd0b94d2ff6001b32dd2549e722ad5",
    "x86_64": "bc10dd41356625d28d18bf4d34c181050fc5c4cf28beee8774846d0140adac5f",
}
"""Of the release's archives, as a public cookbook that installs them has them; a download that differs is refused."""
GPU_EXPORTER_URL = (
    f"https://github.com/{component_versions.GPU_EXPORTER.release}/releases/download/v{{version}}/"
    "nvidia_gpu_exporter_{version}_linux_{arch}.tar.gz"
)
GRAFANA_IMAGE = component_versions.GRAFANA.ref
DAY = 86400
SCRAPE_TIMEOUT = 10
"""Seconds; shorter where the interval is."""

EXPORTERS_KEYS: dict[str, Key] = {
    "node_exporter": Key(
        str,
        "managed",
        "which node_exporter: `managed` (the distribution's package, run as a unit of this collection), `existing` (the host's own one is "
        "scraped, and the collector writes to its textfile folder) or `none`",
        choices=("managed", "existing", "none"),
    ),
    "node_port": Key(int, 9100, "port of node_exporter", least=1, most=65535),
    "textfile_dir": Key(
        str,
        "/var/lib/dgxspark/textfile",
        "textfile folder that the collector writes to; with `node_exporter: existing`, that of the host's own exporter",
    ),
    "gpu_exporter": Key(
        bool,
        True,
        "run nvidia_gpu_exporter; without it the collector exports power, clock, temperature and utilisation",
    ),
    "gpu_port": Key(int, 9835, "port of nvidia_gpu_exporter", least=1, most=65535),
    "gpu_version": Key(str, GPU_EXPORTER_VERSION, "release of nvidia_gpu_exporter"),
    "gpu_url": Key(
        str,
        GPU_EXPORTER_URL,
        "URL of its archive; `{version}` and `{arch}` (arm64, x86_64) are replaced",
    ),
    "gpu_sha256": Key(dict, {}, "SHA-256 checksum of the archive by architecture; known for the default version"),
    "gpu_archive": Key(str, "", "the archive as a file on the controller, for hosts without internet access"),
    "interval": Key(NUMBER, 30, "seconds between two runs of the collector", least=5, most=DAY),
    "listen": Key(str, "", "address that the exporters listen on; the host's management address when left out"),
}
"""Keys of C(spark_exporters)."""

THRESHOLDS: dict[str, Key] = {
    "wedge_power_watts": Key(
        NUMBER,
        30,
        "an engine with running requests, no new tokens and GPU power below this is wedged",
        least=0,
        most=10**6,
    ),
    "memory_warning_gib": Key(NUMBER, 4, "MemAvailable below this is a warning", least=0, most=10**6),
    "memory_critical_gib": Key(
        NUMBER, 2, "MemAvailable below this is critical: the host may freeze", least=0, most=10**6
    ),
    "swap_gib": Key(
        NUMBER, 1, "swap in use above this is a warning: decoding becomes several times slower", least=0, most=10**6
    ),
    "restarts": Key(int, 3, "restarts of a unit within half an hour that count as a loop", least=0, most=10**6),
    "kv_cache_ratio": Key(NUMBER, 0.95, "share of the KV cache in use that counts as full", least=0, most=1),
    "acceptance_ratio": Key(NUMBER, 0.3, "lowest share of accepted draft tokens", least=0, most=1),
    "prefix_hits_ratio": Key(
        NUMBER, 0.05, "lowest prefix cache hit rate in prompt tokens, over an hour", least=0, most=1
    ),
    "prefix_tokens_per_second": Key(
        NUMBER,
        50,
        "prompt tokens per second, over an hour, below which the hit rate is not evaluated",
        least=0,
        most=10**6,
    ),
    "receipt_loss_ratio": Key(
        NUMBER, 0.1, "loss of decode rate against the baseline, of a proof and of bench.yml", least=0, most=1
    ),
    "residency_gib": Key(NUMBER, 2, "GPU memory of a service above its plan, in GiB", least=0, most=10**6),
    # The report of two models on one Spark (June 2026): beyond a tenth, in either direction, the sizing model is wrong.
    "residency_ratio": Key(
        NUMBER, 0.1, "GPU memory of a service above or below its plan, as a share of it", least=0, most=1
    ),
    "disk_free_ratio": Key(NUMBER, 0.1, "lowest free share of a file system", least=0, most=1),
    "gpu_celsius": Key(NUMBER, 90, "highest temperature of the GPU", least=0, most=10**6),
    "gateway_failures_ratio": Key(
        NUMBER, 0.05, "share of failed requests of a backend of the gateway", least=0, most=1
    ),
}
"""Keys of C(spark_monitoring.thresholds)."""

_DURATION = re.compile(r"[1-9]\d*(ms|s|m|h|d|w|y)\Z")
_SIZE = re.compile(r"[1-9]\d*(KB|MB|GB|TB)\Z")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
JOBS = ("node", "gpu", "vllm", "gateway", "prometheus", "alertmanager")
"""Jobs of Prometheus that the plan fills; C(targets) may add others."""
NEEDED = {
    "webhook": (("url", "url_file"),),
    "ntfy": (("topic",),),
    "telegram": (("token_file",), ("chat_id",)),
    "email": (("to",), ("from",), ("smarthost",)),
}
"""What a receiver of each type cannot do without: of each group one."""
OF_TYPE = {
    "webhook": {"url", "url_file", "token_file"},
    "ntfy": {"server", "topic", "token_file"},
    "telegram": {"token_file", "chat_id"},
    "email": {"to", "from", "smarthost", "username", "password_file"},
}
_URL: Any = {"form": plain_data.web_address, "like": "an address that begins with http:// or https://"}
RECEIVER_KEYS: dict[str, Key] = {
    "name": Key(
        str,
        None,
        "name of the receiver, unique",
        required=True,
        form=lambda text: _NAME.match(text) and text != "nobody",
        like="of lower-case letters, digits, - and _, and not nobody",
    ),
    "type": Key(str, None, "webhook, ntfy, telegram or email", choices=tuple(NEEDED), required=True),
    "severities": Key(
        list,
        ["critical", "warning"],
        "severities of the alerts that it receives: critical, warning, info",
        choices=("critical", "warning", "info"),
    ),
    "url": Key(str, "", "webhook: URL that messages are posted to, if it is not secret", **_URL),
    "url_file": Key(str, "", "webhook: file on the controller with that URL"),
    "server": Key(str, "https://ntfy.sh", "ntfy: URL of the server", **_URL),
    "topic": Key(str, "", "ntfy: topic"),
    "token_file": Key(str, "", "webhook, ntfy: bearer token; telegram: token of the bot. A file on the controller"),
    "chat_id": Key(int, 0, "telegram: ID of the chat"),
    "to": Key(str, "", "email: recipient"),
    "from": Key(str, "", "email: sender"),
    "smarthost": Key(str, "", "email: HOST:PORT of the mail server"),
    "username": Key(str, "", "email: account at the mail server"),
    "password_file": Key(str, "", "email: file on the controller with its password"),
}
"""Keys of an entry of C(spark_monitoring.receivers)."""

TARGET_KEYS: dict[str, Key] = {
    "job": Key(
        str,
        None,
        "job that it belongs to, with a name of its own",
        required=True,
        form=lambda text: _NAME.match(text) and text not in JOBS,
        like="a name of its own, of lower-case letters, digits, - and _",
    ),
    "address": Key(
        str, None, "address or name of its host", required=True, form=plain_data.is_address, like="an address or a name"
    ),
    "port": Key(int, None, "its port", required=True, least=1, most=65535),
    "path": Key(
        str,
        "/metrics",
        "its path",
        form=lambda text: text.startswith("/") and " " not in text,
        like="a path that begins with /",
    ),
    "labels": Key(dict, {}, "labels of its series"),
}
"""Keys of an entry of C(spark_monitoring.targets)."""
MONITORING_KEYS: dict[str, Key] = {
    "listen": Key(
        str,
        "127.0.0.1",
        "address that Prometheus, Alertmanager and Grafana listen on",
        form=plain_data.is_address,
        like="an address of the host",
    ),
    "prometheus_port": Key(int, 9090, "port of Prometheus", least=1, most=65535),
    "retention": Key(str, "30d", "how long samples are kept", form=_DURATION.match, like="a duration like 30d"),
    "retention_size": Key(str, "20GB", "how much disk they may take", form=_SIZE.match, like="a size like 20GB"),
    "interval": Key(int, 15, "scrape interval and rule evaluation interval in seconds", least=5, most=DAY),
    "alertmanager": Key(bool, True, "run Alertmanager"),
    "alertmanager_port": Key(int, 9093, "port of Alertmanager", least=1, most=65535),
    "receivers": Key(list, [], "receivers of alerts, see the keys of a receiver; none by default", of=RECEIVER_KEYS),
    "thresholds": Key(dict, {}, "thresholds of alerts, see below"),
    "grafana": Key(
        str,
        "image",
        "how Grafana is installed: `image` (a container), `package` (from a repository that the host has) or `none`",
        choices=("image", "package", "none"),
    ),
    "grafana_image": Key(str, GRAFANA_IMAGE, "image of Grafana"),
    "grafana_port": Key(int, 3000, "port of Grafana", least=1, most=65535),
    "grafana_password_file": Key(
        str,
        "",
        "file on the controller with the password of admin; required unless grafana: none",
    ),
    "external_url": Key(str, "", "external URL of Prometheus, for links in messages", **_URL),
    "targets": Key(list, [], "further scrape targets: a list of job, address, port, path and labels", of=TARGET_KEYS),
}
"""Keys of C(spark_monitoring)."""

_VERSION = re.compile(r"[0-9][\w.+-]{0,40}\Z", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def _ports(problems: validation.Problems, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    seen: dict[int, str] = {}
    for key in keys:
        port = settings[key]
        if port in seen:
            problems.add(f"'{key}' and '{seen[port]}' are both {port}. Give each a port of its own.")
        seen.setdefault(port, key)


def _address(problems: validation.Problems, settings: Mapping[str, Any], key: str) -> None:
    if settings[key] and not plain_data.is_address(settings[key]):
        problems.add(f"'{key}' is {plain_data.shown(settings[key])}; it must be an address of the host.")


# --- exporters -----------------------------------------------------------------------------------------------------


def read_exporters(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_exporters) of a Spark: its settings with every default, and what is wrong with them."""
    problems = validation.Problems(f"host {host}, spark_exporters")
    settings = schema.filled(problems, problems.mapping(value, "spark_exporters"), EXPORTERS_KEYS)
    _ports(problems, settings, ("node_port", "gpu_port"))
    _address(problems, settings, "listen")
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
            f"'textfile_dir' is '{folder}': {host_paths.problem(folder).partition('; ')[0]}. Name a folder of its own, such as "
            "/var/lib/dgxspark/textfile."
        )
    for arch, digest in settings["gpu_sha256"].items():
        if arch not in GPU_EXPORTER_SHA256 or not _SHA256.match(str(digest)):
            problems.add(
                f"'gpu_sha256' has {arch}: {digest}; it must be arm64 or x86_64, and the 64 hexadecimal digits of the archive."
            )
    return settings, problems.messages


def plan_exporters(
    host: str,
    settings: Mapping[str, Any],
    address: str,
    planned_gib: Mapping[str, float] | None = None,
    rails: Mapping[str, int] | None = None,
    sysroot: str = "/",
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role C(exporters) without their prefix, and what will not work.

    :param host: name of the host
    :param settings: as C(read_exporters) returns them
    :param address: the host's management address
    :param planned_gib: what each service of the host is planned to hold, in GiB; it is shown beside what they do
    :param rails: interfaces that a cluster uses on this host, with the MTU that its network was planned with
    :param sysroot: where the host's file system begins, / outside of tests
    :returns: the variables, and findings
    """
    sums = settings["gpu_sha256"] or (GPU_EXPORTER_SHA256 if settings["gpu_version"] == GPU_EXPORTER_VERSION else {})
    outcome = {
        "listen": settings["listen"] or address,
        "node_exporter": settings["node_exporter"],
        "node_port": settings["node_port"],
        "textfile_dir": settings["textfile_dir"],
        "gpu_exporter": settings["gpu_exporter"],
        "gpu_port": settings["gpu_port"],
        "gpu_version": settings["gpu_version"],
        "gpu_url": settings["gpu_url"],
        "gpu_sha256": dict(sums),
        "gpu_archive": settings["gpu_archive"],
        "interval": settings["interval"],
        "planned_gib": dict(planned_gib or {}),
        "rails": dict(sorted((rails or {}).items())),
        "sysroot": sysroot,
    }
    return outcome, _exporter_findings(host, settings, bool(sums))


def _exporter_findings(host: str, settings: Mapping[str, Any], checkable: bool) -> list[Finding]:
    """checkable: whether a checksum of the GPU exporter is known."""
    findings = []
    if settings["gpu_exporter"] and not checkable:
        findings.append(
            Finding(
                "exporters.no_checksum",
                "error",
                f"host {host}: the sum of nvidia_gpu_exporter {settings['gpu_version']} is not known, and nothing is installed "
                "that cannot be checked.",
                fix="Give spark_exporters.gpu_sha256 (arm64: the sum in the release's checksums.txt), or set "
                "spark_exporters.gpu_exporter: false, by which the collector tells power and clock.",
            )
        )
    if settings["node_exporter"] == "none":
        findings.append(
            Finding(
                "exporters.no_node_exporter",
                "warning",
                f"host {host}: spark_exporters.node_exporter is none, so the metrics of the collector are not exported from "
                f"{settings['textfile_dir']}.",
                fix="Set it to managed, or to existing with the textfile_dir of an exporter that the host has.",
            )
        )
    return findings


# --- monitoring ----------------------------------------------------------------------------------------------------


def read_monitoring(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_monitoring) of the host that watches: its settings with every default, and what is wrong with them."""
    problems = validation.Problems(f"host {host}, spark_monitoring")
    settings = schema.filled(problems, problems.mapping(value, "spark_monitoring"), MONITORING_KEYS)
    _ports(problems, settings, ("prometheus_port", "alertmanager_port", "grafana_port"))
    if settings["grafana"] != "none" and not settings["grafana_password_file"]:
        problems.add(
            "'grafana_password_file' is missing: Grafana would start with the password admin. Name a file on the controller, "
            "or set grafana: none."
        )
    if settings["grafana"] == "image" and not validation.IMAGE_REF.fullmatch(settings["grafana_image"]):
        problems.add(
            f"'grafana_image' is {plain_data.shown(settings['grafana_image'])}; it must be a reference like {GRAFANA_IMAGE}."
        )
    elif settings["grafana"] == "image" and re.search(
        r"(:latest|^[^:@]+)\Z", settings["grafana_image"].rpartition("/")[2]
    ):
        problems.add(f"'grafana_image' is '{settings['grafana_image']}', which moves. Name a version or a digest.")
    settings["thresholds"] = schema.filled(problems, settings["thresholds"], THRESHOLDS, "thresholds.")
    if settings["thresholds"]["memory_critical_gib"] > settings["thresholds"]["memory_warning_gib"]:
        problems.add("'memory_critical_gib' is above 'memory_warning_gib'. It is the lower of the two.")
    for index, receiver in enumerate(settings["receivers"]):
        # The place of one may be another than it was written at: entries of a wrong type are left out.
        if receiver["type"] is not None and not problems.named(f"receivers[{index}]"):
            _check_receiver(problems, f"receivers[{index}]", receiver)
    for index, target in enumerate(settings["targets"]):
        _check_labels(problems, f"targets[{index}]", target)
    return settings, problems.messages


def _check_receiver(problems: validation.Problems, where: str, receiver: Mapping[str, Any]) -> None:
    kind = receiver["type"]
    for group in NEEDED[kind]:
        if not any(receiver[key] for key in group):
            problems.add(f"{where}: a receiver of type {kind} needs '{' or '.join(group)}'.")
    given = {key for key, value in receiver.items() if value != RECEIVER_KEYS[key].default}
    if others := given - {"name", "type", "severities"} - OF_TYPE[kind]:
        problems.add(f"{where}: {_listed(others)} mean nothing for type {kind}, which knows {_listed(OF_TYPE[kind])}.")
    if receiver["url"] and receiver["url_file"]:
        problems.add(f"{where}: 'url' and 'url_file' are both given. Keep one.")
    if receiver["username"] and not receiver["password_file"]:
        problems.add(f"{where}: 'username' has no 'password_file'.")
    if not receiver["severities"]:
        problems.add(
            f"{where}: 'severities' is empty; it must have {schema.one_of(RECEIVER_KEYS['severities'].choices)}."
        )


def _check_labels(problems: validation.Problems, where: str, target: dict[str, Any]) -> None:
    """Check the labels of a target, and turn their values into texts."""
    labels = target["labels"]
    if bad := [name for name in labels if not _LABEL.match(str(name))]:
        problems.add(f"{where}: 'labels' has {_listed(bad)}, which Prometheus does not take as the name of a label.")
    if odd := [name for name, text in labels.items() if isinstance(text, (dict, list, bool))]:
        problems.add(f"{where}: 'labels' has {_listed(odd)}, whose values are no texts. Quote them.")
    target["labels"] = {str(name): str(text) for name, text in labels.items()}


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def plan_monitoring(
    host: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    exporters: Mapping[str, Mapping[str, Any]],
    gateway: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role C(monitoring) without their prefix, and what Prometheus will not reach.

    :param host: the host of Prometheus
    :param settings: as C(read_monitoring) returns them
    :param endpoints: of the whole fleet
    :param exporters: Spark to the outcome of C(plan_exporters), for those that have exporters
    :param gateway: C({host, address, port, listen}) of LiteLLM where it has metrics, with C(path) when that is
        not /metrics and C(token_file), on the controller, when it asks for a key
    :returns: the variables, and findings
    """
    scrape = _Scrape(host)
    scrape.add_exporters(exporters, endpoints)
    scrape.add_engines(endpoints)
    scrape.findings += _unwatched(host, endpoints, exporters, bool(scrape.targets["vllm"]))
    if gateway:
        scrape.add_gateway(gateway)
    own = "127.0.0.1" if fleet.is_any(settings["listen"]) else settings["listen"]
    scrape.add_own(settings, own)
    scrape.add_extra(settings["targets"])
    interval, token = settings["interval"], (gateway or {}).get("token_file")
    outcome = {
        "listen": settings["listen"],
        "own_address": own,
        "prometheus_port": settings["prometheus_port"],
        "retention": settings["retention"],
        "retention_size": settings["retention_size"],
        "interval": interval,
        "scrape_timeout": min(SCRAPE_TIMEOUT, interval),
        "jobs": [
            {
                "name": job,
                "path": scrape.paths.get(job, "/metrics"),
                "targets": found,
                **({"token_file": token} if job == "gateway" and token else {}),
            }
            for job, found in scrape.targets.items()
        ],
        "thresholds": dict(settings["thresholds"]),
        "alertmanager": settings["alertmanager"],
        "alertmanager_port": settings["alertmanager_port"],
        "receivers": [dict(receiver) for receiver in settings["receivers"]],
        "grafana": settings["grafana"],
        "grafana_image": settings["grafana_image"],
        "grafana_port": settings["grafana_port"],
        "grafana_password_file": settings["grafana_password_file"],
        "external_url": settings["external_url"],
    }
    return outcome, [*scrape.findings, *_receiver_findings(host, settings)]


class _Scrape:
    """The scrape configuration of the Prometheus on C(host): targets and paths by job, and what it will not reach."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.targets: dict[str, list[dict[str, Any]]] = {job: [] for job in JOBS}
        self.paths: dict[str, str] = {}
        self.findings: list[Finding] = []

    def add_exporters(self, exporters: Mapping[str, Mapping[str, Any]], endpoints: Sequence[Endpoint]) -> None:
        """Add node and GPU exporters of the Sparks; endpoints say which cluster a Spark is part of."""
        for spark, planned in sorted(exporters.items()):
            clusters = sorted(
                {e["key"].partition("/")[0] for e in endpoints if len(e["hosts"]) > 1 and spark in e["hosts"]}
            )
            labels = {"host": spark, "cluster": ",".join(clusters)}
            if planned["node_exporter"] != "none":
                self.targets["node"].append(_target(planned["listen"], planned["node_port"], labels))
            if planned["gpu_exporter"]:
                self.targets["gpu"].append(_target(planned["listen"], planned["gpu_port"], labels))
            if fleet.is_loopback(planned["listen"]) and spark != self.host:
                self.findings.append(
                    Finding(
                        "exporters.unreachable",
                        "error",
                        f"host {spark}: its exporters listen on {planned['listen']}, which Prometheus on {self.host} cannot reach.",
                        fix="Leave spark_exporters.listen out, or give the management address: the one of ansible_host or "
                        "spark_management_address.",
                    )
                )

    def add_engines(self, endpoints: Sequence[Endpoint]) -> None:
        """Add the engines; speech servers and Ollama have no metrics."""
        for endpoint in endpoints:
            if endpoint["kind"] != "vllm":
                continue
            if not fleet.reachable(endpoint, self.host):
                self.findings.append(
                    Finding(
                        "monitoring.unreachable",
                        "warning",
                        f"host {endpoint['host']}, service {endpoint['service']}: it listens on {endpoint['listen']} alone, so "
                        f"Prometheus on {self.host} cannot ask it for its figures; the alerts on its tokens keep silent.",
                        fix="Give the service an api_key_file, by which it listens on the management address (/metrics needs no "
                        "key), or set spark_monitoring on the same host.",
                        service=endpoint["service"],
                    )
                )
                continue
            labels = {
                "host": endpoint["host"],
                "service": endpoint["service"],
                "model": endpoint["models"][0] if endpoint["models"] else "",
                "cluster": endpoint["key"].partition("/")[0] if len(endpoint["hosts"]) > 1 else "",
            }
            self.targets["vllm"].append(_target(_from(self.host, endpoint), endpoint["port"], labels))

    def add_gateway(self, gateway: Mapping[str, Any]) -> None:
        """Add the gateway, as C(plan_monitoring) takes it."""
        self.paths["gateway"] = str(gateway.get("path") or "/metrics")
        listen = str(gateway.get("listen") or gateway["address"])
        if gateway["host"] != self.host and fleet.is_loopback(listen):
            self.findings.append(
                Finding(
                    "monitoring.gateway_unreachable",
                    "warning",
                    f"host {gateway['host']}: the gateway listens on {listen} alone, which Prometheus on {self.host} cannot reach.",
                    fix="Let the gateway listen on the management address, or run both on one host.",
                )
            )
            return
        address = listen if gateway["host"] == self.host and not fleet.is_any(listen) else str(gateway["address"])
        labels = {"host": str(gateway["host"]), "service": "gateway"}
        self.targets["gateway"].append(_target(address, int(gateway["port"]), labels))

    def add_own(self, settings: Mapping[str, Any], own: str) -> None:
        """Add Prometheus and Alertmanager themselves; own: the address that the host reaches them by."""
        for job in ("prometheus", "alertmanager"):
            if job == "prometheus" or settings["alertmanager"]:
                labels = {"host": self.host, "service": job}
                self.targets[job].append(_target(own, settings[f"{job}_port"], labels))

    def add_extra(self, targets: Sequence[Mapping[str, Any]]) -> None:
        """Add C(spark_monitoring.targets)."""
        for extra in targets:
            job, path = extra["job"], extra["path"]
            self.targets.setdefault(job, []).append(_target(extra["address"], extra["port"], extra["labels"]))
            if self.paths.setdefault(job, path) != path:
                self.findings.append(
                    Finding(
                        "monitoring.two_paths",
                        "error",
                        f"host {self.host}: spark_monitoring.targets has job {job} with the paths {self.paths[job]} and "
                        f"{path}; a job has one.",
                        fix="Give the second one a job of its own.",
                    )
                )


def _unwatched(
    host: str, endpoints: Sequence[Endpoint], exporters: Mapping[str, Mapping[str, Any]], engines_reached: bool
) -> list[Finding]:
    """Say that there is nothing to watch, or which hosts of engines have no exporters."""
    findings = []
    if not exporters and not engines_reached:
        findings.append(
            Finding(
                "monitoring.nothing",
                "warning",
                f"host {host}: spark_monitoring is set, but no host has spark_exporters and no service can be reached, so there is "
                "nothing to watch.",
                fix="Set spark_exporters: {} in the variables of the Sparks.",
            )
        )
    unwatched = sorted({each for e in endpoints if e["kind"] == "vllm" for each in e["hosts"]} - set(exporters))
    if unwatched and exporters:
        findings.append(
            Finding(
                "monitoring.no_exporters",
                "warning",
                f"{', '.join(unwatched)}: no exporters there, so memory, power and rails of these hosts are not watched.",
                fix="Set spark_exporters: {} for all Sparks, best in the variables of their group.",
            )
        )
    return findings


def _receiver_findings(host: str, settings: Mapping[str, Any]) -> list[Finding]:
    """Say that alerts reach nobody: Alertmanager without receivers, or receivers without Alertmanager."""
    if settings["alertmanager"] and not settings["receivers"]:
        return [
            Finding(
                "monitoring.nobody_told",
                "info",
                f"host {host}: spark_monitoring.receivers is empty; alerts are shown by Prometheus, Alertmanager and Grafana, and "
                "no one is notified.",
                fix="Add a receiver: webhook, ntfy, telegram or email.",
            )
        ]
    if settings["receivers"] and not settings["alertmanager"]:
        return [
            Finding(
                "monitoring.receivers_unused",
                "error",
                f"host {host}: spark_monitoring has receivers, and alertmanager: false, which is what tells them.",
                fix="Set alertmanager: true, or take the receivers out.",
            )
        ]
    return []


def _from(host: str, endpoint: Endpoint) -> str:
    """Return the address by which C(host) reaches an endpoint."""
    own = endpoint["host"] == host and fleet.is_any(endpoint["listen"])
    return "127.0.0.1" if own else endpoint["address"]


def _target(address: str, port: int, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an entry of a file of targets; labels without a text are left out."""
    return {
        "targets": [f"{fleet.bracketed(address)}:{port}"],
        "labels": {name: text for name, text in labels.items() if text},
    }
