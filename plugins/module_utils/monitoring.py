# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Monitoring: what C(spark_exporters) and C(spark_monitoring) say, what Prometheus is to ask, and where it cannot."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import endpoints as fleet
from ansible_collections.dgxspark.vllm.plugins.module_utils import recipes
from ansible_collections.dgxspark.vllm.plugins.module_utils.endpoints import Endpoint
from ansible_collections.dgxspark.vllm.plugins.module_utils.findings import Finding

Number = (int, float)
Table = dict[str, tuple[Any, Any, str]]

GPU_EXPORTER_VERSION = "1.3.2"
GPU_EXPORTER_SHA256 = {
    "arm64": "a201b3eefe08b2b713ccc9d5a929e9353ecd0b94d2ff6001b32dd2549e722ad5",
    "x86_64": "bc10dd41356625d28d18bf4d34c181050fc5c4cf28beee8774846d0140adac5f",
}
"""Of the release's archives, as a public cookbook that installs them has them; a download that differs is refused."""
GPU_EXPORTER_URL = (
    "https://github.com/utkuozdemir/nvidia_gpu_exporter/releases/download/v{version}/"
    "nvidia_gpu_exporter_{version}_linux_{arch}.tar.gz"
)
GRAFANA_IMAGE = "docker.io/grafana/grafana:12.4.2"
SCRAPE_TIMEOUT = 10
"""Seconds; shorter where the interval is."""

EXPORTERS_KEYS: Table = {
    "node_exporter": (
        str,
        "managed",
        "managed: install the distribution's package and run it as a unit of this collection; existing: one that the host "
        "has already is asked; none",
    ),
    "node_port": (int, 9100, "port of node_exporter"),
    "textfile_dir": (
        str,
        "/var/lib/dgxspark/textfile",
        "folder that the collector writes to; that of the exporter with node_exporter: existing",
    ),
    "gpu_exporter": (
        bool,
        True,
        "run nvidia_gpu_exporter; without it the collector tells power, clock, temperature and utilisation",
    ),
    "gpu_port": (int, 9835, "port of nvidia_gpu_exporter"),
    "gpu_version": (str, GPU_EXPORTER_VERSION, "release of nvidia_gpu_exporter"),
    "gpu_url": (str, GPU_EXPORTER_URL, "where its archive is had; {version} and {arch} (arm64, x86_64) are filled in"),
    "gpu_sha256": (dict, {}, "sum of the archive by arch; known for the default version"),
    "gpu_archive": (str, "", "the archive as a file on the controller, for hosts that reach no other network"),
    "interval": (Number, 30, "seconds between two rounds of the collector"),
    "listen": (str, "", "address that the exporters listen on; the host's management address when left out"),
}
"""Keys of C(spark_exporters): type, default, meaning."""

THRESHOLDS: Table = {
    "wedge_power_watts": (Number, 30, "a GPU below this with requests running and no token is stuck"),
    "memory_warning_gib": (Number, 4, "MemAvailable below this is a warning"),
    "memory_critical_gib": (Number, 2, "MemAvailable below this is critical: the next step freezes the host"),
    "swap_gib": (Number, 1, "swap in use above this is a warning: decoding slows down many times over"),
    "restarts": (int, 3, "restarts of a unit within half an hour that make a loop"),
    "kv_cache_ratio": (Number, 0.95, "share of the KV cache in use that counts as full"),
    "acceptance_ratio": (Number, 0.3, "share of drafted tokens that have to be accepted"),
    "prefix_hits_ratio": (Number, 0.05, "share of prompt tokens that the prefix cache has to have, over an hour"),
    "prefix_tokens_per_second": (
        Number,
        50,
        "prompt tokens a second, over an hour, below which that share is not judged",
    ),
    "receipt_loss_ratio": (Number, 0.1, "loss of decoding speed against the baseline, of a proof and of bench.yml"),
    "residency_gib": (Number, 2, "memory of a service above its plan"),
    "disk_free_ratio": (Number, 0.1, "free share of a file system"),
    "gpu_celsius": (Number, 90, "temperature of the GPU"),
    "gateway_failures_ratio": (Number, 0.05, "share of a backend's requests that fail at the gateway"),
}
"""Keys of C(spark_monitoring.thresholds): type, default, meaning."""

MONITORING_KEYS: Table = {
    "listen": (str, "127.0.0.1", "address that Prometheus, Alertmanager and Grafana listen on"),
    "prometheus_port": (int, 9090, "port of Prometheus"),
    "retention": (str, "30d", "how long samples are kept"),
    "retention_size": (str, "20GB", "how much disk they may take"),
    "interval": (Number, 15, "seconds between two scrapes, and two evaluations of the rules"),
    "alertmanager": (bool, True, "run Alertmanager"),
    "alertmanager_port": (int, 9093, "port of Alertmanager"),
    "receivers": (list, [], "who is told of alerts, see the keys of a receiver; nobody when left out"),
    "thresholds": (dict, {}, "where alerts begin, see the thresholds"),
    "grafana": (
        str,
        "image",
        "image: run a container; package: the host has grafana from a repository of its own; none",
    ),
    "grafana_image": (str, GRAFANA_IMAGE, "image of Grafana"),
    "grafana_port": (int, 3000, "port of Grafana"),
    "grafana_password_file": (
        str,
        "",
        "file on the controller with the password of admin; needed unless grafana: none",
    ),
    "external_url": (str, "", "address of Prometheus as people reach it, for links in messages"),
    "targets": (list, [], "further things to ask: a list of job, address, port, path and labels"),
}
"""Keys of C(spark_monitoring): type, default, meaning."""

RECEIVER_KEYS: Table = {
    "name": (str, "", "name of the receiver, unique"),
    "type": (str, "", "webhook, ntfy, telegram or email"),
    "severities": (list, ["critical", "warning"], "which alerts it is told of: critical, warning, info"),
    "url": (str, "", "webhook: address that messages are posted to, if it is no secret"),
    "url_file": (str, "", "webhook: file on the controller with that address"),
    "server": (str, "https://ntfy.sh", "ntfy: address of the server"),
    "topic": (str, "", "ntfy: topic"),
    "token_file": (str, "", "webhook, ntfy: bearer token; telegram: token of the bot. A file on the controller"),
    "chat_id": (int, 0, "telegram: number of the chat"),
    "to": (str, "", "email: address that is written to"),
    "from": (str, "", "email: address that it comes from"),
    "smarthost": (str, "", "email: HOST:PORT of the mail server"),
    "username": (str, "", "email: account at the mail server"),
    "password_file": (str, "", "email: file on the controller with its password"),
}
"""Keys of an entry of C(spark_monitoring.receivers): type, default, meaning."""

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
TARGET_KEYS = ("job", "address", "port", "path", "labels")
SEVERITIES = ("critical", "warning", "info")
JOBS = ("node", "gpu", "vllm", "gateway", "prometheus", "alertmanager")
"""Jobs of Prometheus that the plan fills; C(targets) may add others."""

ALERTMANAGER_FLOOR = "0.25.0"
FILES_FLOOR = "0.26.0"
"""Alertmanager before this takes neither url_file nor bot_token_file; Debian 12 has 0.25, Ubuntu 24.04 has 0.26."""
PROMETHEUS_FLOOR = "2.42.0"
"""Debian 12's, the oldest that the rules are tested with."""

_DURATION = re.compile(r"[1-9]\d*(ms|s|m|h|d|w|y)\Z")
_SIZE = re.compile(r"[1-9]\d*(KB|MB|GB|TB)\Z")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def _is(value: Any, types: Any) -> bool:
    if isinstance(value, bool):
        return types is bool
    return isinstance(value, types)


def _filled(problems: recipes.Problems, given: Mapping[str, Any], keys: Table, prefix: str = "") -> dict[str, Any]:
    """Return every key with its value or its default; complain of unknown keys and wrong types."""
    problems.unknown(given, tuple(keys))
    filled: dict[str, Any] = {}
    for key, (types, default, _meaning) in keys.items():
        value = given.get(key)
        if value is not None and not _is(value, types):
            wanted = types[0] if isinstance(types, tuple) else types
            problems.add(f"'{prefix}{key}' is {recipes.kind(value)}; it must be {recipes.kind(wanted())}.")
            value = None
        filled[key] = (
            (type(default)(default) if isinstance(default, (dict, list)) else default) if value is None else value
        )
    return filled


def _ports(problems: recipes.Problems, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    seen: dict[int, str] = {}
    for key in keys:
        port = settings[key]
        if not 0 < port < 65536:
            problems.add(f"'{key}' is {port}; it must be a port from 1 to 65535.")
        elif port in seen:
            problems.add(f"'{key}' and '{seen[port]}' are both {port}. Give each a port of its own.")
        seen.setdefault(port, key)


def _choice(problems: recipes.Problems, settings: Mapping[str, Any], key: str, choices: Sequence[str]) -> None:
    if settings[key] not in choices:
        problems.add(f"'{key}' is '{settings[key]}'; it must be one of {', '.join(choices)}.")


def _positive(problems: recipes.Problems, settings: Mapping[str, Any], key: str, least: float) -> None:
    if settings[key] < least:
        problems.add(f"'{key}' is {settings[key]}; it must be {least:g} or more.")


# --- exporters -----------------------------------------------------------------------------------------------------


def read_exporters(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_exporters) of a Spark: its settings with every default, and what is wrong with them."""
    problems = recipes.Problems(f"host {host}, spark_exporters")
    settings = _filled(problems, problems.mapping(value, "spark_exporters"), EXPORTERS_KEYS)
    _choice(problems, settings, "node_exporter", ("managed", "existing", "none"))
    _ports(problems, settings, ("node_port", "gpu_port"))
    _positive(problems, settings, "interval", 5)
    folder = settings["textfile_dir"]
    if not folder.startswith("/") or folder != posixpath.normpath(folder) or recipes.CONTROL.search(folder):
        problems.add(f"'textfile_dir' is '{folder}'; it must be an absolute path, such as /var/lib/dgxspark/textfile.")
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
    services: Sequence[Mapping[str, Any]] = (),
    rails: Mapping[str, int] | None = None,
    sysroot: str = "/",
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the variables of the role C(exporters) without their prefix, and what will not work.

    address: the host's management address. services: of the host's plan; what they are expected to hold is shown beside what they
    do. rails: interfaces that a cluster uses on this host, with the MTU that its network was planned with.
    """
    sums = settings["gpu_sha256"] or (GPU_EXPORTER_SHA256 if settings["gpu_version"] == GPU_EXPORTER_VERSION else {})
    planned = {}
    for service in services:
        expected = ((service.get("memory") or {}).get("residency_gib") or {}).get("typical")
        if isinstance(expected, Number):
            planned[str(service["name"])] = round(float(expected), 3)
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
        "planned_gib": dict(sorted(planned.items())),
        "rails": dict(sorted((rails or {}).items())),
        "sysroot": sysroot,
    }
    findings = []
    if settings["gpu_exporter"] and not sums:
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
                f"host {host}: spark_exporters.node_exporter is none, so nobody asks for what the collector writes to "
                f"{settings['textfile_dir']}.",
                fix="Set it to managed, or to existing with the textfile_dir of an exporter that the host has.",
            )
        )
    return outcome, findings


# --- monitoring ----------------------------------------------------------------------------------------------------


def read_monitoring(host: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Read C(spark_monitoring) of the host that watches: its settings with every default, and what is wrong with them."""
    problems = recipes.Problems(f"host {host}, spark_monitoring")
    settings = _filled(problems, problems.mapping(value, "spark_monitoring"), MONITORING_KEYS)
    _choice(problems, settings, "grafana", ("image", "package", "none"))
    _ports(problems, settings, ("prometheus_port", "alertmanager_port", "grafana_port"))
    _positive(problems, settings, "interval", 5)
    for key, pattern, example in (("retention", _DURATION, "30d"), ("retention_size", _SIZE, "20GB")):
        if not pattern.match(settings[key]):
            problems.add(f"'{key}' is '{settings[key]}'; it must be like {example}.")
    if settings["grafana"] != "none" and not settings["grafana_password_file"]:
        problems.add(
            "'grafana_password_file' is missing: Grafana would start with the password admin. Name a file on the controller, "
            "or set grafana: none."
        )
    if settings["grafana"] == "image" and re.search(
        r"(:latest|^[^:@]+)\Z", settings["grafana_image"].rpartition("/")[2]
    ):
        problems.add(f"'grafana_image' is '{settings['grafana_image']}', which moves. Name a version or a digest.")
    thresholds = recipes.Problems(f"host {host}, spark_monitoring.thresholds")
    settings["thresholds"] = _filled(thresholds, settings["thresholds"], THRESHOLDS)
    for key, number in settings["thresholds"].items():
        if number < 0 or (key.endswith("_ratio") and number > 1):
            thresholds.add(
                f"'{key}' is {number}; it must be {'from 0 to 1' if key.endswith('_ratio') else '0 or more'}."
            )
    if settings["thresholds"]["memory_critical_gib"] > settings["thresholds"]["memory_warning_gib"]:
        thresholds.add("'memory_critical_gib' is above 'memory_warning_gib'. It is the lower of the two.")
    settings["receivers"], wrong = _read_receivers(host, settings["receivers"])
    settings["targets"], odd = _read_targets(host, settings["targets"])
    return settings, [*problems.messages, *thresholds.messages, *wrong, *odd]


def _read_receivers(host: str, given: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    found: list[dict[str, Any]] = []
    messages: list[str] = []
    for index, entry in enumerate(given):
        problems = recipes.Problems(f"host {host}, spark_monitoring.receivers[{index}]")
        body = problems.mapping(entry, "receiver")
        receiver = _filled(problems, body, RECEIVER_KEYS)
        name, kind = receiver["name"], receiver["type"]
        if not _NAME.match(name) or name == "nobody":
            problems.add(f"'name' is '{name}'; it must be of lower-case letters, digits, - and _, and not nobody.")
        elif name in [other["name"] for other in found]:
            problems.add(f"'name' is '{name}' a second time. Give each receiver a name of its own.")
        if kind not in NEEDED:
            problems.add(f"'type' is '{kind}'; it must be one of {', '.join(NEEDED)}.")
        else:
            for group in NEEDED[kind]:
                if not any(receiver[key] for key in group):
                    problems.add(f"a receiver of type {kind} needs '{' or '.join(group)}'.")
            others = set(body) & (set(RECEIVER_KEYS) - {"name", "type", "severities"} - OF_TYPE[kind])
            if others:
                problems.add(
                    f"{', '.join(sorted(others))} mean nothing for type {kind}, which knows {_listed(OF_TYPE[kind])}."
                )
        if receiver["url"] and receiver["url_file"]:
            problems.add("'url' and 'url_file' are both given. Keep one.")
        for key in ("url", "server"):
            if receiver[key] and not re.match(r"https?://[^\s/]+", receiver[key]):
                problems.add(f"'{key}' is '{receiver[key]}'; it must begin with http:// or https://.")
        if receiver["username"] and not receiver["password_file"]:
            problems.add("'username' has no 'password_file'.")
        wrong = [str(each) for each in receiver["severities"] if each not in SEVERITIES]
        if wrong or not receiver["severities"]:
            problems.add(f"'severities' has {_listed(wrong) or 'nothing'}; it must be of {', '.join(SEVERITIES)}.")
        messages += problems.messages
        if not problems.messages:
            found.append(receiver)
    return found, messages


def _read_targets(host: str, given: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    found: list[dict[str, Any]] = []
    messages: list[str] = []
    for index, entry in enumerate(given):
        problems = recipes.Problems(f"host {host}, spark_monitoring.targets[{index}]")
        body = problems.mapping(entry, "target")
        problems.unknown(body, TARGET_KEYS)
        job, address, port, path = body.get("job"), body.get("address"), body.get("port"), body.get("path", "/metrics")
        labels = problems.mapping(body.get("labels"), "labels")
        if not isinstance(job, str) or not _NAME.match(job) or job in JOBS:
            problems.add(f"'job' is {job!r}; it must be a name of its own, of lower-case letters, digits, - and _.")
        if not isinstance(address, str) or not address:
            problems.add(f"'address' is {address!r}; it must be an address or a name.")
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            problems.add(f"'port' is {port!r}; it must be a port from 1 to 65535.")
        if not isinstance(path, str) or not path.startswith("/"):
            problems.add(f"'path' is {path!r}; it must begin with /.")
        bad = [name for name in labels if not _LABEL.match(name)]
        if bad:
            problems.add(f"'labels' has {_listed(bad)}, which Prometheus does not take as the name of a label.")
        messages += problems.messages
        if not problems.messages:
            texts = {name: str(text) for name, text in labels.items()}
            found.append({"job": job, "address": address, "port": port, "path": path, "labels": texts})
    return found, messages


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

    endpoints: of the whole fleet. exporters: Spark to the outcome of C(plan_exporters), for those that have exporters.
    gateway: C({host, address, port, listen}) of LiteLLM where it tells figures, with C(path) when that is not /metrics and
    C(token_file), on the controller, when it asks for a key.
    """
    findings: list[Finding] = []
    targets: dict[str, list[dict[str, Any]]] = {job: [] for job in JOBS}

    for spark, planned in sorted(exporters.items()):
        clusters = sorted(
            {e["key"].partition("/")[0] for e in endpoints if len(e["hosts"]) > 1 and spark in e["hosts"]}
        )
        labels = {"host": spark, "cluster": ",".join(clusters)}
        if planned["node_exporter"] != "none":
            targets["node"].append(_target(planned["listen"], planned["node_port"], labels))
        if planned["gpu_exporter"]:
            targets["gpu"].append(_target(planned["listen"], planned["gpu_port"], labels))
        if fleet.is_loopback(planned["listen"]) and spark != host:
            findings.append(
                Finding(
                    "exporters.unreachable",
                    "error",
                    f"host {spark}: its exporters listen on {planned['listen']}, which Prometheus on {host} cannot reach.",
                    fix="Leave spark_exporters.listen out, or give the management address: the one of ansible_host or "
                    "spark_management_address.",
                )
            )

    for endpoint in endpoints:
        if endpoint["kind"] != "vllm":
            continue  # the speech servers and Ollama tell no figures
        if not fleet.reachable(endpoint, host):
            findings.append(
                Finding(
                    "monitoring.unreachable",
                    "warning",
                    f"host {endpoint['host']}, service {endpoint['service']}: it listens on {endpoint['listen']} alone, so "
                    f"Prometheus on {host} cannot ask it for its figures; the alerts on its tokens keep silent.",
                    fix="Give the service an api_key_file, by which it listens on the management address (/metrics needs no "
                    "key), or set spark_monitoring on the same host.",
                    service=endpoint["service"],
                )
            )
            continue
        whole = len(endpoint["hosts"]) > 1
        labels = {
            "host": endpoint["host"],
            "service": endpoint["service"],
            "model": endpoint["models"][0] if endpoint["models"] else "",
            "cluster": endpoint["key"].partition("/")[0] if whole else "",
        }
        targets["vllm"].append(_target(_from(host, endpoint), endpoint["port"], labels))

    if not exporters and not targets["vllm"]:
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

    if gateway:
        listen = str(gateway.get("listen") or gateway["address"])
        if gateway["host"] != host and fleet.is_loopback(listen):
            findings.append(
                Finding(
                    "monitoring.gateway_unreachable",
                    "warning",
                    f"host {gateway['host']}: the gateway listens on {listen} alone, which Prometheus on {host} cannot reach.",
                    fix="Let the gateway listen on the management address, or run both on one host.",
                )
            )
        else:
            address = listen if gateway["host"] == host and not fleet.is_any(listen) else str(gateway["address"])
            targets["gateway"].append(
                _target(address, int(gateway["port"]), {"host": str(gateway["host"]), "service": "gateway"})
            )

    own = "127.0.0.1" if fleet.is_any(settings["listen"]) else settings["listen"]
    targets["prometheus"].append(_target(own, settings["prometheus_port"], {"host": host, "service": "prometheus"}))
    if settings["alertmanager"]:
        targets["alertmanager"].append(
            _target(own, settings["alertmanager_port"], {"host": host, "service": "alertmanager"})
        )
    paths = {"gateway": str((gateway or {}).get("path") or "/metrics")}
    for extra in settings["targets"]:
        targets.setdefault(extra["job"], []).append(_target(extra["address"], extra["port"], extra["labels"]))
        if paths.setdefault(extra["job"], extra["path"]) != extra["path"]:
            findings.append(
                Finding(
                    "monitoring.two_paths",
                    "error",
                    f"host {host}: spark_monitoring.targets has job {extra['job']} with the paths {paths[extra['job']]} and "
                    f"{extra['path']}; a job has one.",
                    fix="Give the second one a job of its own.",
                )
            )
    if settings["alertmanager"] and not settings["receivers"]:
        findings.append(
            Finding(
                "monitoring.nobody_told",
                "info",
                f"host {host}: spark_monitoring.receivers is empty; alerts are shown by Prometheus, Alertmanager and Grafana, and "
                "nobody is told.",
                fix="Add a receiver: webhook, ntfy, telegram or email.",
            )
        )
    if settings["receivers"] and not settings["alertmanager"]:
        findings.append(
            Finding(
                "monitoring.receivers_unused",
                "error",
                f"host {host}: spark_monitoring has receivers, and alertmanager: false, which is what tells them.",
                fix="Set alertmanager: true, or take the receivers out.",
            )
        )
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
                "path": paths.get(job, "/metrics"),
                "targets": found,
                **({"token_file": token} if job == "gateway" and token else {}),
            }
            for job, found in targets.items()
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
    return outcome, findings


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
