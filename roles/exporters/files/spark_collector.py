# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What no exporter tells of a DGX Spark, as a page for the textfile directory of node_exporter.

GPU memory by service, the unified memory and its page cache, both rails of the QSFP network with what RDMA moved (which
/proc/net/dev does not see), units, receipts, what the watchdog did. Power, clock and temperature only where no other exporter
has them.

The readers are those of the modules, installed as dgxspark_vllm beside it. A source that fails leaves its figures
out and says so in C(dgxspark_collector_source_up); the others go on. A round is one call of nvidia-smi (150-250 ms on a GB10),
one of docker, one of systemctl, and files that are named one by one: each hardware counter of the card is a trap into its
firmware.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._common.foreign_text import parse_json
from dgxspark_vllm._host import docker_facts, machine, network, nvidia_smi, units
from dgxspark_vllm._host.host_view import HostView
from dgxspark_vllm._proof import receipts
from dgxspark_vllm._runtime import command, hostmem
from dgxspark_vllm._runtime.hostmem import GIB

Run = Callable[[list[str]], "tuple[int, str, str]"]

PAGE = "dgxspark.prom"
CALL_SECONDS, ROUND_SECONDS = 10.0, 20.0  # that one program may take, and that all may wait in vain

# name -> (type, meaning, labels). docs/monitoring.md is made of it.
METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dgxspark_memory_total_bytes": ("gauge", "Unified memory of the host.", ()),
    "dgxspark_memory_available_bytes": (
        "gauge",
        "MemAvailable: what vLLM takes as free on an integrated GPU.",
        (),
    ),
    "dgxspark_memory_free_bytes": ("gauge", "MemFree: what the driver allocates from.", ()),
    "dgxspark_memory_page_cache_bytes": ("gauge", "Page cache, buffers and reclaimable slab, less shared memory.", ()),
    "dgxspark_memory_swap_used_bytes": ("gauge", "Swap in use.", ()),
    "dgxspark_gpu_memory_bytes": (
        "gauge",
        "GPU memory of processes by owner; service is empty for processes outside of this collection.",
        ("service", "owner"),
    ),
    "dgxspark_gpu_up": ("gauge", "1 when nvidia-smi answers for a device.", ()),
    "dgxspark_gpu_power_watts": ("gauge", "Power of the GPU; only without another exporter for it.", ()),
    "dgxspark_gpu_temperature_celsius": ("gauge", "Temperature of the GPU; only without another exporter.", ()),
    "dgxspark_gpu_sm_clock_hertz": ("gauge", "SM clock; only without another exporter for it.", ()),
    "dgxspark_gpu_utilization_ratio": ("gauge", "Utilisation of the GPU, 0-1; only without another exporter.", ()),
    "dgxspark_service_info": (
        "gauge",
        "1 for each service that is deployed on the host.",
        ("service", "unit", "model"),
    ),
    "dgxspark_service_planned_bytes": ("gauge", "Memory that the plan expects a service to hold.", ("service",)),
    "dgxspark_service_requested_bytes": ("gauge", "Memory that the engine asks for when it starts.", ("service",)),
    "dgxspark_service_start_seconds": ("gauge", "How long the last start took until the model answered.", ("service",)),
    "dgxspark_load_guard_drops": ("gauge", "How often the load guard dropped caches in the last start.", ("service",)),
    "dgxspark_load_guard_compactions": (
        "gauge",
        "How often the load guard compacted memory in the last start.",
        ("service",),
    ),
    "dgxspark_load_guard_lowest_free_bytes": (
        "gauge",
        "Lowest MemFree that the load guard measured in the last start.",
        ("service",),
    ),
    "dgxspark_unit_active": ("gauge", "1 when a unit of this collection is active.", ("unit", "service")),
    "dgxspark_unit_starting": ("gauge", "1 when a unit is on its way up.", ("unit", "service")),
    "dgxspark_unit_active_seconds": ("gauge", "How long a unit has been active.", ("unit", "service")),
    "dgxspark_unit_enabled": (
        "gauge",
        "1 when a unit starts at boot, 0 for what its owner has stopped or requests start.",
        ("unit", "service"),
    ),
    "dgxspark_unit_failed": ("gauge", "1 when a unit has failed and systemd has given up.", ("unit", "service")),
    "dgxspark_unit_restarts_total": (
        "counter",
        "Restarts by systemd; supervisors of ranks, which come back by design, have supervisor=1.",
        ("unit", "service", "supervisor"),
    ),
    "dgxspark_rail_up": ("gauge", "1 when the interface is up and its RoCE port active.", ("netdev", "rdma", "cage")),
    "dgxspark_rail_expected": ("gauge", "1 for a rail that the cluster of the host uses.", ("netdev",)),
    "dgxspark_rail_mtu_bytes": ("gauge", "MTU of a rail.", ("netdev", "rdma", "cage")),
    "dgxspark_rail_expected_mtu_bytes": ("gauge", "MTU that the cluster's network was planned with.", ("netdev",)),
    "dgxspark_rail_speed_bits_per_second": (
        "gauge",
        "Rate of the link as RoCE reports it.",
        ("netdev", "rdma", "cage"),
    ),
    "dgxspark_rail_pcie_transfers_per_second": (
        "gauge",
        "Speed of the PCIe link per lane.",
        ("netdev", "rdma", "cage"),
    ),
    "dgxspark_rail_pcie_lanes": ("gauge", "Width of the PCIe link.", ("netdev", "rdma", "cage")),
    "dgxspark_rail_received_bytes_total": ("counter", "Received by a rail, RDMA included.", ("netdev", "rdma", "cage")),
    "dgxspark_rail_transmitted_bytes_total": ("counter", "Sent by a rail, RDMA included.", ("netdev", "rdma", "cage")),
    "dgxspark_rail_errors_total": (
        "counter",
        "Errors of a rail by the name of the card's counter.",
        ("netdev", "rdma", "cage", "counter"),
    ),
    "dgxspark_receipt_timestamp_seconds": ("gauge", "When the receipt of a service was written.", ("service",)),
    "dgxspark_receipt_measured": (
        "gauge",
        "Figure of the last proof, in the unit that its name states.",
        ("service", "figure"),
    ),
    "dgxspark_receipt_baseline": (
        "gauge",
        "The same figure when the deployment was first proved.",
        ("service", "figure"),
    ),
    "dgxspark_benchmark_decode_tokens_per_second": (
        "gauge",
        "Decode rate of the last bench.yml at the shortest prompts.",
        ("service",),
    ),
    "dgxspark_benchmark_baseline_decode_tokens_per_second": (
        "gauge",
        "Decode rate of the baseline measurement.",
        ("service",),
    ),
    "dgxspark_benchmark_ratio": (
        "gauge",
        "Decode rate relative to its baseline; no sample while the two are not comparable or something else is deployed.",
        ("service",),
    ),
    "dgxspark_benchmark_timestamp_seconds": ("gauge", "When bench.yml last measured a service.", ("service",)),
    "dgxspark_watchdog_state": (
        "gauge",
        "1 for the current state of a server as the watchdog sees it.",
        ("service", "state"),
    ),
    "dgxspark_watchdog_restarts_within_day": ("gauge", "Restarts by the watchdog within 24 hours.", ("service",)),
    "dgxspark_watchdog_last_action_timestamp_seconds": (
        "gauge",
        "When the watchdog last acted on a service.",
        ("service",),
    ),
    "dgxspark_guard_level": (
        "gauge",
        "1 for how short memory is as the guard sees it: calm, short, critical.",
        ("level",),
    ),
    "dgxspark_guard_steps_total": ("counter", "Steps of the guard by kind.", ("step",)),
    "dgxspark_guard_lowest_available_bytes": (
        "gauge",
        "Lowest MemAvailable that the guard has seen since its start.",
        (),
    ),
    "dgxspark_guard_last_action_timestamp_seconds": (
        "gauge",
        "When the guard last restarted or stopped a service, or said who else took the memory; service is empty then.",
        ("service", "step"),
    ),
    "dgxspark_guard_stopped": (
        "gauge",
        "1 for a service that the guard stopped and nobody has started since.",
        ("service",),
    ),
    "dgxspark_collector_source_up": ("gauge", "1 when a source of these metrics could be read.", ("source",)),
    "dgxspark_collector_interval_seconds": ("gauge", "Seconds between two runs of the collector.", ()),
    "dgxspark_collector_last_run_timestamp_seconds": ("gauge", "When the collector last ran.", ()),
    "dgxspark_collector_duration_seconds": ("gauge", "Duration of the last run of the collector.", ()),
}

# Metric -> where the section of bench.yml in a receipt has it.
BENCHMARK = {
    "dgxspark_benchmark_decode_tokens_per_second": "decode_tokens_per_second",
    "dgxspark_benchmark_baseline_decode_tokens_per_second": "baseline_decode_tokens_per_second",
    "dgxspark_benchmark_ratio": "ratio",
}
# Counters of a port of the card, each named: a walk through hw_counters is some 240 traps into the firmware.
DATA_COUNTERS = {
    "dgxspark_rail_received_bytes_total": "counters/port_rcv_data",
    "dgxspark_rail_transmitted_bytes_total": "counters/port_xmit_data",
}
WORD = 4  # those two count in words of four bytes
ERROR_COUNTERS = (
    "counters/port_rcv_errors",
    "counters/link_downed",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
)


class Page:
    """Samples by metric, written in the order of C(METRICS)."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}

    def add(self, name: str, value: Any, **labels: Any) -> None:
        """Keep a sample; what could not be read (None) has no sample rather than a zero."""
        wanted = METRICS[name][2]
        if set(labels) != set(wanted):
            raise KeyError(f"{name} has the labels {wanted}, not {tuple(labels)}")
        if value is None or isinstance(value, str) or not math.isfinite(value):
            return
        texts = {label: "" if labels[label] is None else str(labels[label]) for label in wanted}
        self.samples.setdefault(name, []).append((texts, float(value)))

    def text(self) -> str:
        """Return the page in the exposition format."""
        lines = []
        for name, (kind, meaning, _labels) in METRICS.items():
            if name not in self.samples:
                continue
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            for labels, value in self.samples[name]:
                inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
                lines.append(f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)


def load(path: Path) -> dict[str, Any]:
    """Read a JSON object; ValueError for anything else."""
    value = parse_json(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object")
    return value


def objects(folder: Path) -> dict[str, dict[str, Any]]:
    """Read all JSON objects of a folder by the names of their files; what is half there is left for the next round."""
    found = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            found[path.stem] = load(path)
        except (OSError, ValueError):
            continue
    return found


class Failed(Exception):
    """A source did not answer; the text says why."""


class Collector:
    """Knows where to look, and keeps what does not change between rounds."""

    def __init__(self, etc: Path, state: Path, run_dir: Path, unit_dir: str, call: Run | None = None) -> None:
        self.etc, self.state, self.run_dir, self.unit_dir, self.given = etc, state, run_dir, unit_dir, call
        self.known: dict[str, dict[str, Any]] = {}  # containers by id: what is asked of them does not change
        self.complained: set[str] = set()

    def collect(self, interval: float) -> str:
        """Return the page of this moment."""
        start = time.monotonic()
        self.call = self.given or command.reader(CALL_SECONDS, ROUND_SECONDS)
        page = Page()
        try:
            self.config = load(self.etc / "exporters" / "collector.json")
        except (OSError, ValueError) as error:
            self.config = {}
            self.complain("config", str(error))
        self.root = str(self.config.get("sysroot") or "/")
        self.services = objects(self.etc / "services")
        for name, read in (
            ("memory", self.memory),
            ("gpu", self.gpu),
            ("services", self.of_services),
            ("units", self.of_units),
            ("fabric", self.fabric),
            ("receipts", self.of_receipts),
            ("watchdog", self.watchdog),
            ("guard", self.guard),
        ):
            try:
                read(page)
            except Exception as error:  # whatever a program or a file says: the other sources are read
                page.add("dgxspark_collector_source_up", 0, source=name)
                self.complain(name, f"{error}" if isinstance(error, (Failed, command.NoAnswer)) else repr(error))
            else:
                page.add("dgxspark_collector_source_up", 1, source=name)
                self.complained.discard(name)
        page.add("dgxspark_collector_interval_seconds", interval)
        page.add("dgxspark_collector_last_run_timestamp_seconds", round(time.time(), 3))
        page.add("dgxspark_collector_duration_seconds", round(time.monotonic() - start, 4))
        return page.text()

    @contextlib.contextmanager
    def apart(self, what: str) -> Iterator[None]:
        """Leave out one thing that cannot be read, and go on with the others of its source."""
        try:
            yield
        except Exception as error:  # whatever a file says
            self.complain(what, repr(error))

    def complain(self, source: str, text: str) -> None:
        """Say once in the journal why a source is missing, and again when it came back and went."""
        if source not in self.complained:
            self.complained.add(source)
            print(f"spark-collector: {source}: {text}", file=sys.stderr, flush=True)

    def memory(self, page: Page) -> None:
        """The one pool, as the kernel has it."""
        found = hostmem.read_meminfo(self.root)
        page.add("dgxspark_memory_total_bytes", found["MemTotal"] * 1024)
        page.add("dgxspark_memory_available_bytes", found["MemAvailable"] * 1024)
        page.add("dgxspark_memory_free_bytes", found["MemFree"] * 1024)
        page.add("dgxspark_memory_page_cache_bytes", round(hostmem.page_cache_gib(found) * GIB))
        page.add("dgxspark_memory_swap_used_bytes", (found.get("SwapTotal", 0) - found.get("SwapFree", 0)) * 1024)

    def containers(self) -> list[dict[str, Any]]:
        """Running containers; only those that are new are inspected."""
        rc, out, err = self.call(["docker", "ps", "--quiet", "--no-trunc"])
        if rc not in (0, 127):
            raise Failed(f"docker ps ended with {rc}: {err.strip() or 'no message'}")
        ids = docker_facts.read_ids(out) if rc == 0 else []
        new = [each for each in ids if each not in self.known]
        if new:
            rc, text, err = self.call(["docker", "container", "inspect", "--", *new])
            if rc != 0 and not command.says_missing(err):
                raise Failed(f"docker container inspect ended with {rc}: {err.strip() or 'no message'}")
            self.known.update({each["id"]: each for each in docker_facts.parse_containers(text, err)})
        self.known = {each: self.known[each] for each in ids if each in self.known}
        return list(self.known.values())

    def gpu(self, page: Page) -> None:
        """Who holds GPU memory: process, cgroup, container, service."""
        if self.config.get("gpu"):
            rc, out, _err = self.call(nvidia_smi.GPU_QUERY)
            for device in (nvidia_smi.parse_gpu_query(out) if rc == 0 else [])[:1]:
                page.add("dgxspark_gpu_power_watts", device["power_w"])
                page.add("dgxspark_gpu_temperature_celsius", device["temperature_c"])
                clock, busy = device["sm_clock_mhz"], device["utilization_percent"]
                page.add("dgxspark_gpu_sm_clock_hertz", None if clock is None else clock * 1_000_000)
                page.add("dgxspark_gpu_utilization_ratio", None if busy is None else busy / 100)
        rc, out, err = self.call(nvidia_smi.COMPUTE_APPS_QUERY)
        page.add("dgxspark_gpu_up", int(rc == 0))
        if rc != 0:
            raise Failed(f"nvidia-smi ended with {rc}: {(err or out).strip() or 'no message'}")
        containers = self.containers()
        names = {each["id"]: each for each in containers}
        held: dict[tuple[str, str], int] = {
            (each["service"], each["name"]): 0 for each in containers if each["service"] in self.services
        }
        for app in nvidia_smi.parse_compute_apps(out):
            if app["used_mib"] is None:
                continue
            place = machine.read_cgroup(app["pid"], self.root, names)
            container = names.get(place["container"] or "")
            service = (container or {}).get("service") or ""
            key = (service, container["name"] if container else place["unit"] or app["name"])
            held[key] = held.get(key, 0) + app["used_mib"] * 1024**2
        for (service, owner), size in sorted(held.items()):
            page.add("dgxspark_gpu_memory_bytes", size, service=service, owner=owner)

    def of_services(self, page: Page) -> None:
        """What the plan says of each service, and how its last start went."""
        planned = self.config.get("planned_gib") or {}
        starts = objects(self.run_dir / "starts")
        for name, service in self.services.items():
            with self.apart(f"the service {name}"):
                unit, model = service.get("unit"), service.get("model")
                page.add("dgxspark_service_info", 1, service=name, unit=unit, model=model)
                page.add("dgxspark_service_planned_bytes", _bytes(planned.get(name)), service=name)
                page.add("dgxspark_service_requested_bytes", _bytes(service.get("memory_gib")), service=name)
                record = starts.get(str(unit)) or {}
                page.add("dgxspark_service_start_seconds", _plain(record.get("start_seconds")), service=name)
                guard = record.get("load_guard") or {}
                page.add("dgxspark_load_guard_drops", _plain(guard.get("drops")), service=name)
                page.add("dgxspark_load_guard_compactions", _plain(guard.get("compactions")), service=name)
                page.add("dgxspark_load_guard_lowest_free_bytes", _bytes(guard.get("lowest_free_gib")), service=name)

    def of_units(self, page: Page) -> None:
        """States and restarts of all units of the collection."""
        found = HostView(self.call, self.root, unit_dir=self.unit_dir).units()
        if not found:
            raise Failed("systemctl lists no unit spark-*.service, not even the one of this collector")
        services = {service.get("unit"): name for name, service in self.services.items()}
        for unit in found:
            name, service = unit["name"], services.get(unit["name"], "")
            page.add("dgxspark_unit_active", int(unit["active_state"] in units.UP), unit=name, service=service)
            page.add("dgxspark_unit_starting", int(unit["active_state"] == "activating"), unit=name, service=service)
            up = unit["active_seconds"] if unit["active_state"] in units.UP else None
            page.add("dgxspark_unit_active_seconds", up, unit=name, service=service)
            page.add("dgxspark_unit_enabled", int(unit["enabled"] is not False), unit=name, service=service)
            page.add("dgxspark_unit_failed", int(unit["active_state"] == "failed"), unit=name, service=service)
            page.add(
                "dgxspark_unit_restarts_total",
                unit["n_restarts"],
                unit=name,
                service=service,
                supervisor=int(units.comes_back(unit)),
            )

    def fabric(self, page: Page) -> None:
        """The rails; a Spark without a cable has no card on its bus, so none of them is a fault by itself."""
        rails = {str(name): mtu for name, mtu in (self.config.get("rails") or {}).items()}
        rdma = network.read_rdma(self.root)
        for name, mtu in sorted(rails.items()):
            page.add("dgxspark_rail_expected", 1, netdev=name)
            page.add("dgxspark_rail_expected_mtu_bytes", mtu, netdev=name)
        for name in sorted({each["netdev"] for each in rdma if each["netdev"]} | set(rails)):
            found = network.read_netdev(self.root, name, {}, rdma)
            device = found["rdma"] or {}
            labels = {"netdev": name, "rdma": device.get("name"), "cage": found["function"]}
            up = found["up"] and device.get("state") == "ACTIVE"
            page.add("dgxspark_rail_up", int(up), **labels)
            page.add("dgxspark_rail_mtu_bytes", found["mtu"], **labels)
            rate, speed = device.get("rate_gbps") if up else 0, found["link_speed_gts"]
            page.add("dgxspark_rail_speed_bits_per_second", None if rate is None else rate * 1e9, **labels)
            page.add("dgxspark_rail_pcie_transfers_per_second", None if speed is None else speed * 1e9, **labels)
            page.add("dgxspark_rail_pcie_lanes", found["link_width"], **labels)
            if not device:
                continue
            port = f"sys/class/infiniband/{device['name']}/ports/1"
            for metric, path in DATA_COUNTERS.items():
                count = _count(machine.read_text(self.root, f"{port}/{path}"))
                page.add(metric, None if count is None else count * WORD, **labels)
            for path in ERROR_COUNTERS if up else ():
                count = _count(machine.read_text(self.root, f"{port}/{path}"))
                page.add("dgxspark_rail_errors_total", count, **labels, counter=path.rpartition("/")[2])

    def of_receipts(self, page: Page) -> None:
        """What was measured when the services were last proved, and when they first were."""
        folder = self.state / "receipts"
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            with self.apart(str(path)):
                receipt = receipts.load(path.read_text(encoding="utf-8"))
                page.add("dgxspark_receipt_timestamp_seconds", round(path.stat().st_mtime), service=path.stem)
                for metric, figures in (("measured", receipt.measured), ("baseline", receipt.baseline)):
                    for figure in receipts.FIGURES:
                        value = figures.get(figure)
                        if isinstance(value, (int, float)):
                            page.add(f"dgxspark_receipt_{metric}", value, service=path.stem, figure=figure)
                self.benchmark(page, path.stem, receipt.benchmark or {})

    def benchmark(self, page: Page, service: str, section: Mapping[str, Any]) -> None:
        """What bench.yml measured; a section that is stale has no ratio, which keeps its alert silent."""
        for metric, figure in BENCHMARK.items():
            page.add(metric, _plain(section.get(figure)), service=service)
        with contextlib.suppress(TypeError, ValueError):
            # What is no text is a TypeError, which is left out like a text that is no time.
            at = datetime.fromisoformat(section.get("at")).timestamp()  # type: ignore[arg-type]
            page.add("dgxspark_benchmark_timestamp_seconds", round(at), service=service)

    def watchdog(self, page: Page) -> None:
        """What the watchdog thinks of each server and did about it, where one runs."""
        path = self.state / "watchdog" / "state.json"
        if not path.exists():
            return
        for service, note in load(path)["services"].items():
            with self.apart(f"the watchdog's note of {service}"):
                page.add("dgxspark_watchdog_state", 1, service=service, state=note["state"])
                page.add("dgxspark_watchdog_restarts_within_day", _plain(note.get("restarts_24h")), service=service)
                at = _plain((note.get("last_action") or {}).get("at"))
                page.add("dgxspark_watchdog_last_action_timestamp_seconds", at, service=service)

    def guard(self, page: Page) -> None:
        """How short memory is and what the guard did about it, where one runs."""
        path = self.state / "guard" / "state.json"
        if not path.exists():
            return
        found = load(path)
        page.add("dgxspark_guard_level", 1, level=found["level"])
        for step, count in sorted(found["steps"].items()):
            page.add("dgxspark_guard_steps_total", _plain(count), step=step)
        page.add("dgxspark_guard_lowest_available_bytes", _bytes(found.get("lowest_gib")))
        last = found.get("last") or {}
        if last.get("what") in ("restart", "stop", "name"):
            at = _plain(last.get("at"))
            page.add("dgxspark_guard_last_action_timestamp_seconds", at, service=last.get("whom"), step=last["what"])
        for service in sorted(found.get("stopped") or {}):
            page.add("dgxspark_guard_stopped", 1, service=service)


def _bytes(size: Any) -> int | None:
    return round(size * GIB) if _plain(size) is not None else None


def _plain(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def write(folder: Path, text: str) -> None:
    """Put the page in place in one step: node_exporter may read it at any moment, and looks at nothing but *.prom."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The folder may be another account's: a fresh file, in the folder that was opened, through no link.
        fresh = f".{PAGE}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(fresh, flags, 0o644, dir_fd=at), "w", encoding="utf-8") as stream:
                os.fchmod(stream.fileno(), 0o644)
                stream.write(text)
            os.replace(fresh, PAGE, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=at)
            raise
    finally:
        os.close(at)


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark-collector", description="Figures of a DGX Spark for node_exporter.")
    parser.add_argument("--output", type=Path, help="the textfile directory; the page is printed when left out")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between two rounds; one round when 0")
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument("--state", type=Path, default=Path("/var/lib/dgxspark"), help="receipts (default: %(default)s)")
    parser.add_argument("--run", type=Path, default=Path("/run/dgxspark"), help="starts (default: %(default)s)")
    parser.add_argument("--units", default="/etc/systemd/system", help="unit files (default: %(default)s)")
    args = parser.parse_args()
    collector = Collector(args.etc, args.state, args.run, args.units)
    while True:
        began = time.monotonic()
        text = collector.collect(args.interval)
        if args.output is None:
            sys.stdout.write(text)
        else:
            write(args.output, text)
        if args.interval <= 0:
            return 0
        time.sleep(max(args.interval - (time.monotonic() - began), 1.0))


if __name__ == "__main__":
    sys.exit(main())
