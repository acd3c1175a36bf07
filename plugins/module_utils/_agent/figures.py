# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics loop: what no exporter knows about a DGX Spark, as a page for the textfile folder of node_exporter.

A source that fails leaves out its metrics and sets C(dgxspark_collector_source_up) to 0; the others go on. A page costs one call of
nvidia-smi (150 to 250 ms on a GB10), one of docker, one of systemctl, and files that are named one by one: each hardware counter of the
card is a trap into its firmware.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from .._common.foreign_text import parse_json
from .._host import docker_facts, machine, network, nvidia_smi, units
from .._host.host_view import HostView
from .._proof import receipts
from .._runtime import command, hostmem, state_file
from .._runtime.hostmem import GIB
from .._runtime.systemd import journal
from . import services

Run = Callable[[list[str]], "tuple[int, str, str]"]

PAGE = "dgxspark.prom"
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
"""Of values of labels."""
CALL_SECONDS, ROUND_SECONDS = 10.0, 20.0
"""Longest run of one program, and of all silent programs of a page."""
PAGE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Metric(NamedTuple):
    """Type, meaning and labels of a metric."""

    kind: str
    meaning: str
    labels: tuple[str, ...]


TABLE = """
gauge dgxspark_memory_total_bytes: Unified memory of the host.
gauge dgxspark_memory_available_bytes: MemAvailable, which vLLM uses as free memory on an integrated GPU.
gauge dgxspark_memory_free_bytes: MemFree, from which the driver allocates.
gauge dgxspark_memory_page_cache_bytes: Page cache, buffers and reclaimable slab, less shared memory.
gauge dgxspark_memory_swap_used_bytes: Swap in use.
gauge dgxspark_gpu_memory_bytes{service,owner}: GPU memory of processes by owner; service is empty for other processes.
gauge dgxspark_gpu_up: 1 when nvidia-smi answers for a device.
gauge dgxspark_gpu_power_watts: Power of the GPU; only without another exporter for it.
gauge dgxspark_gpu_temperature_celsius: Temperature of the GPU; only without another exporter.
gauge dgxspark_gpu_sm_clock_hertz: SM clock; only without another exporter for it.
gauge dgxspark_gpu_utilization_ratio: Utilisation of the GPU, 0-1; only without another exporter.
gauge dgxspark_service_info{service,unit,model}: 1 for each service that is deployed on the host.
gauge dgxspark_service_planned_bytes{service}: Memory that the plan expects a service to hold.
gauge dgxspark_service_requested_bytes{service}: Memory that the engine asks for when it starts.
gauge dgxspark_service_start_seconds{service}: How long the last start took until the model answered.
gauge dgxspark_load_guard_drops{service}: How often the load guard dropped caches in the last start.
gauge dgxspark_load_guard_compactions{service}: How often the load guard compacted memory in the last start.
gauge dgxspark_load_guard_lowest_free_bytes{service}: Lowest MemFree that the load guard measured in the last start.
gauge dgxspark_unit_active{unit,service}: 1 when a unit of this collection is active.
gauge dgxspark_unit_starting{unit,service}: 1 while a unit starts.
gauge dgxspark_unit_active_seconds{unit,service}: How long a unit has been active.
gauge dgxspark_unit_enabled{unit,service}: 1 when a unit starts at boot; 0 when it was stopped or starts on demand.
gauge dgxspark_unit_failed{unit,service}: 1 when a unit has failed and systemd has given up.
counter dgxspark_unit_restarts_total{unit,service,supervisor}: Restarts by systemd; supervisor=1 for supervisors of ranks, which restart by design.
gauge dgxspark_rail_up{netdev,rdma,cage}: 1 when the interface is up and its RoCE port active.
gauge dgxspark_rail_expected{netdev}: 1 for a rail that the cluster of the host uses.
gauge dgxspark_rail_mtu_bytes{netdev,rdma,cage}: MTU of a rail.
gauge dgxspark_rail_expected_mtu_bytes{netdev}: Planned MTU of the cluster's network.
gauge dgxspark_rail_speed_bits_per_second{netdev,rdma,cage}: Rate of the link as RoCE reports it.
gauge dgxspark_rail_pcie_transfers_per_second{netdev,rdma,cage}: Speed of the PCIe link per lane.
gauge dgxspark_rail_pcie_lanes{netdev,rdma,cage}: Width of the PCIe link.
counter dgxspark_rail_received_bytes_total{netdev,rdma,cage}: Received by a rail, RDMA included.
counter dgxspark_rail_transmitted_bytes_total{netdev,rdma,cage}: Sent by a rail, RDMA included.
counter dgxspark_rail_errors_total{netdev,rdma,cage,counter}: Errors of a rail by the name of the card's counter.
gauge dgxspark_receipt_timestamp_seconds{service}: When the receipt of a service was written.
gauge dgxspark_receipt_measured{service,figure}: Figure of the last proof, in the unit of its name.
gauge dgxspark_receipt_baseline{service,figure}: The same figure when the deployment was first proved.
gauge dgxspark_benchmark_decode_tokens_per_second{service}: Decode rate of the last bench.yml at the shortest prompts.
gauge dgxspark_benchmark_baseline_decode_tokens_per_second{service}: Decode rate of the baseline measurement.
gauge dgxspark_benchmark_ratio{service}: Decode rate relative to its baseline; no sample while the two are not comparable or something else is deployed.
gauge dgxspark_benchmark_timestamp_seconds{service}: When bench.yml last measured a service.
gauge dgxspark_watchdog_state{service,state}: 1 for the current state of a server in the watchdog.
gauge dgxspark_watchdog_restarts_within_day{service}: Restarts by the watchdog within 24 hours.
gauge dgxspark_watchdog_last_action_timestamp_seconds{service}: When the watchdog last acted on a service.
gauge dgxspark_quality_state{service,state}: 1 for the current state of a server's answers: unknown, good, doubtful, degenerate.
counter dgxspark_quality_answers_total{service,question,outcome}: Answers to quality questions: good, degenerate, wrong, no_answer.
gauge dgxspark_guard_level{level}: 1 for the current memory level of the guard: calm, short, critical.
counter dgxspark_guard_steps_total{step}: Steps of the guard by kind.
gauge dgxspark_guard_lowest_available_bytes: Lowest MemAvailable that the guard has seen since its start.
gauge dgxspark_guard_last_action_timestamp_seconds{service,step}: When the guard last restarted or stopped a service, or named another holder (no service).
gauge dgxspark_guard_stopped{service}: 1 for a service that the guard stopped and nobody has started since.
gauge dgxspark_collector_source_up{source}: 1 when a source of metrics could be read.
gauge dgxspark_collector_interval_seconds: Seconds between two runs of the collector.
gauge dgxspark_collector_last_run_timestamp_seconds: When the collector last ran.
gauge dgxspark_collector_duration_seconds: Duration of the last run of the collector.
"""
METRICS = {
    name: Metric(kind, meaning, tuple(filter(None, labels.split(","))))
    for kind, name, labels, meaning in re.findall(r"^(\w+) (\w+)(?:\{(.*)\})?: (.*)$", TABLE, re.MULTILINE)
}
"""The metrics in the order of the page; C(roles/exporters/README.md) lists them."""

BENCHMARK = {
    "dgxspark_benchmark_decode_tokens_per_second": "decode_tokens_per_second",
    "dgxspark_benchmark_baseline_decode_tokens_per_second": "baseline_decode_tokens_per_second",
    "dgxspark_benchmark_ratio": "ratio",
}
"""Keys of a benchmark in a receipt, by metric."""
DATA_COUNTERS = {
    "dgxspark_rail_received_bytes_total": "counters/port_rcv_data",
    "dgxspark_rail_transmitted_bytes_total": "counters/port_xmit_data",
}
"""Counters of a port of the card, each named: a walk through hw_counters is some 240 traps into the firmware."""
WORD = 4
"""Bytes of a unit of these two."""
ERROR_COUNTERS = (
    "counters/port_rcv_errors",
    "counters/link_downed",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
)

say = journal("exporters", errors=True)


class Page:
    """Samples by metric."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}

    def add(self, name: str, value: Any, **labels: Any) -> None:
        """Add a sample. An unknown value (None) has no sample rather than a zero."""
        names = METRICS[name].labels
        if set(labels) != set(names):
            raise KeyError(f"{name} has the labels {names}, not {tuple(labels)}")
        if value is None or isinstance(value, str) or not math.isfinite(value):
            return
        texts = {label: "" if labels[label] is None else str(labels[label]) for label in names}
        self.samples.setdefault(name, []).append((texts, float(value)))

    def add_all(self, values: Mapping[str, Any], **labels: Any) -> None:
        """Add samples with the same labels. values: by metric."""
        for name, value in values.items():
            self.add(name, value, **labels)

    def text(self) -> str:
        """Return the page in the exposition format."""
        lines = []
        for name, metric in METRICS.items():
            if name not in self.samples:
                continue
            lines += [f"# HELP {name} {metric.meaning}", f"# TYPE {name} {metric.kind}"]
            for labels, value in self.samples[name]:
                inner = ",".join(f'{label}="{text.translate(ESCAPES)}"' for label, text in labels.items())
                lines.append(f"{name}{{{inner}}} {_format(value)}" if inner else f"{name} {_format(value)}")
        return "\n".join(lines) + "\n"


def _format(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)


def load(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError or ValueError."""
    value = parse_json(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object")
    return value


def load_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the JSON objects of a folder by the names of their files, without those that cannot be read."""
    contents = {path.stem: state_file.read(path) for path in sorted(folder.glob("*.json"))}
    return {name: content for name, content in contents.items() if content is not None}


class SourceError(Exception):
    """A source did not answer; the text is the reason."""


class Collector:
    """Makes pages. Containers are inspected once, since they do not change."""

    def __init__(self, etc: Path, state_dir: Path, run_dir: Path, unit_dir: str, call: Run | None = None) -> None:
        """Set the sources. call: runs programs; a reader with a limit for each page by default."""
        self.etc, self.state_dir, self.run_dir, self.unit_dir = etc, state_dir, run_dir, unit_dir
        self.fixed_call = call
        self.inspected: dict[str, dict[str, Any]] = {}
        self.logged: set[str] = set()

    def collect(self, interval: float) -> str:
        """Return a new page. interval: seconds between two pages."""
        start = time.monotonic()
        self.call = self.fixed_call or command.reader(CALL_SECONDS, ROUND_SECONDS)
        page = Page()
        try:
            self.settings = load(services.settings_path(self.etc, services.EXPORTERS))
        except (OSError, ValueError) as error:
            self.settings = {}
            self.log_once("settings", str(error))
        self.root = str(self.settings.get("sysroot") or "/")
        self.services = load_folder(self.etc / "services")
        sources = {
            "memory": self.add_memory,
            "gpu": self.add_gpu,
            "services": self.add_services,
            "units": self.add_units,
            "fabric": self.add_rails,
            "receipts": self.add_receipts,
            "watchdog": self.add_watchdog,
            "quality": self.add_quality,
            "guard": self.add_guard,
        }
        for name, add in sources.items():
            is_read = False
            with self.attempt(name):
                add(page)
                is_read = True
                self.logged.discard(name)
            page.add("dgxspark_collector_source_up", int(is_read), source=name)
        page.add("dgxspark_collector_interval_seconds", interval)
        page.add("dgxspark_collector_last_run_timestamp_seconds", round(time.time(), 3))
        page.add("dgxspark_collector_duration_seconds", round(time.monotonic() - start, 4))
        return page.text()

    @contextlib.contextmanager
    def attempt(self, source: str) -> Iterator[None]:
        """Go on if something cannot be read; the reason is logged, again only after it was read in between. source: its name in the log."""
        try:
            yield
        except Exception as error:
            self.log_once(source, str(error) if isinstance(error, (SourceError, command.NoAnswer)) else repr(error))

    def log_once(self, source: str, text: str) -> None:
        """Log why a source is missing, once."""
        if source not in self.logged:
            self.logged.add(source)
            say(f"{source}: {text}", 4)

    def add_memory(self, page: Page) -> None:
        """Add the unified memory as the kernel counts it."""
        meminfo = hostmem.read_meminfo(self.root)
        for metric, field in (("total", "MemTotal"), ("available", "MemAvailable"), ("free", "MemFree")):
            page.add(f"dgxspark_memory_{metric}_bytes", meminfo[field] * 1024)
        page.add("dgxspark_memory_page_cache_bytes", round(hostmem.page_cache_gib(meminfo) * GIB))
        page.add("dgxspark_memory_swap_used_bytes", (meminfo.get("SwapTotal", 0) - meminfo.get("SwapFree", 0)) * 1024)

    def containers(self) -> list[dict[str, Any]]:
        """Return running containers; only new ones are inspected."""
        rc, out, err = self.call(["docker", "ps", "--quiet", "--no-trunc"])
        if rc not in (0, 127):
            raise SourceError(f"docker ps ended with {rc}: {err.strip() or 'no message'}")
        ids = docker_facts.read_ids(out) if rc == 0 else []
        new = [container_id for container_id in ids if container_id not in self.inspected]
        if new:
            rc, text, err = self.call(["docker", "container", "inspect", "--", *new])
            if rc != 0 and not command.says_missing(err):
                raise SourceError(f"docker container inspect ended with {rc}: {err.strip() or 'no message'}")
            parsed = docker_facts.parse_containers(text, err)
            self.inspected.update({container["id"]: container for container in parsed})
        self.inspected = {key: self.inspected[key] for key in ids if key in self.inspected}
        return list(self.inspected.values())

    def add_gpu(self, page: Page) -> None:
        """Add GPU memory by owner, which is a container or a unit, and further figures if no exporter has them."""
        if self.settings.get("gpu"):
            self.add_gpu_figures(page)
        rc, out, err = self.call(nvidia_smi.COMPUTE_APPS_QUERY)
        page.add("dgxspark_gpu_up", int(rc == 0))
        if rc != 0:
            raise SourceError(f"nvidia-smi ended with {rc}: {(err or out).strip() or 'no message'}")
        containers = {container["id"]: container for container in self.containers()}
        for (service, owner), size in sorted(self._gpu_sizes(nvidia_smi.parse_compute_apps(out), containers).items()):
            page.add("dgxspark_gpu_memory_bytes", size, service=service, owner=owner)

    def _gpu_sizes(
        self, apps: list[dict[str, Any]], containers: Mapping[str, Mapping[str, Any]]
    ) -> dict[tuple[str, str], int]:
        """Return bytes by service and owner. apps: of nvidia-smi; containers: by id."""
        running = [container for container in containers.values() if container["service"] in self.services]
        sizes: dict[tuple[str, str], int] = {(container["service"], container["name"]): 0 for container in running}
        for app in apps:
            if app["used_mib"] is None:
                continue
            place = machine.read_cgroup(app["pid"], self.root, containers)
            container = containers.get(place["container"] or "") or {}
            holder = (container.get("service") or "", container.get("name") or place["unit"] or app["name"])
            sizes[holder] = sizes.get(holder, 0) + app["used_mib"] * 1024**2
        return sizes

    def add_gpu_figures(self, page: Page) -> None:
        """Add power, temperature, clock and utilisation of the GPU."""
        rc, out, _err = self.call(nvidia_smi.GPU_QUERY)
        for device in (nvidia_smi.parse_gpu_query(out) if rc == 0 else [])[:1]:
            page.add("dgxspark_gpu_power_watts", device["power_w"])
            page.add("dgxspark_gpu_temperature_celsius", device["temperature_c"])
            page.add("dgxspark_gpu_sm_clock_hertz", _scaled(device["sm_clock_mhz"], 1e6))
            busy = device["utilization_percent"]
            page.add("dgxspark_gpu_utilization_ratio", None if busy is None else busy / 100)

    def add_services(self, page: Page) -> None:
        """Add plan and last start of each service."""
        planned = self.settings.get("planned_gib") or {}
        starts = load_folder(self.run_dir / "starts")
        for name, service in self.services.items():
            with self.attempt(f"the service {name}"):
                unit, model = service.get("unit"), service.get("model")
                page.add("dgxspark_service_info", 1, service=name, unit=unit, model=model)
                record = starts.get(str(unit)) or {}
                guard = record.get("load_guard") or {}
                values = {
                    "dgxspark_service_planned_bytes": _scaled(planned.get(name), GIB),
                    "dgxspark_service_requested_bytes": _scaled(service.get("memory_gib"), GIB),
                    "dgxspark_service_start_seconds": _number(record.get("start_seconds")),
                    "dgxspark_load_guard_drops": _number(guard.get("drops")),
                    "dgxspark_load_guard_compactions": _number(guard.get("compactions")),
                    "dgxspark_load_guard_lowest_free_bytes": _scaled(guard.get("lowest_free_gib"), GIB),
                }
                page.add_all(values, service=name)

    def add_units(self, page: Page) -> None:
        """Add states and restarts of the units of the collection."""
        listed_units = HostView(self.call, self.root, unit_dir=self.unit_dir).units()
        if not listed_units:
            raise SourceError("systemctl lists no unit spark-*.service, not even the one of this agent")
        names = {service.get("unit"): name for name, service in self.services.items()}
        for unit in listed_units:
            state = unit["active_state"]
            labels = {"unit": unit["name"], "service": names.get(unit["name"], "")}
            values = {
                "dgxspark_unit_active": int(state in units.UP),
                "dgxspark_unit_starting": int(state == "activating"),
                "dgxspark_unit_active_seconds": unit["active_seconds"] if state in units.UP else None,
                "dgxspark_unit_enabled": int(unit["enabled"] is not False),
                "dgxspark_unit_failed": int(state == "failed"),
            }
            page.add_all(values, **labels)
            supervisor = int(units.comes_back(unit))
            page.add("dgxspark_unit_restarts_total", unit["n_restarts"], supervisor=supervisor, **labels)

    def add_rails(self, page: Page) -> None:
        """Add the rails. A Spark without a cable has no card on its bus, so a missing rail is no fault by itself."""
        rails = {str(name): mtu for name, mtu in (self.settings.get("rails") or {}).items()}
        rdma = network.read_rdma(self.root)
        for name, mtu in sorted(rails.items()):
            page.add("dgxspark_rail_expected", 1, netdev=name)
            page.add("dgxspark_rail_expected_mtu_bytes", mtu, netdev=name)
        for name in sorted({device["netdev"] for device in rdma if device["netdev"]} | set(rails)):
            self._add_rail(page, name, network.read_netdev(self.root, name, {}, rdma))

    def _add_rail(self, page: Page, name: str, netdev: Mapping[str, Any]) -> None:
        """Add one rail."""
        device = netdev["rdma"] or {}
        labels = {"netdev": name, "rdma": device.get("name"), "cage": netdev["function"]}
        is_up = netdev["up"] and device.get("state") == "ACTIVE"
        values = {
            "dgxspark_rail_up": int(is_up),
            "dgxspark_rail_mtu_bytes": netdev["mtu"],
            "dgxspark_rail_speed_bits_per_second": _scaled(device.get("rate_gbps"), 1e9) if is_up else 0,
            "dgxspark_rail_pcie_transfers_per_second": _scaled(netdev["link_speed_gts"], 1e9),
            "dgxspark_rail_pcie_lanes": netdev["link_width"],
        }
        page.add_all(values, **labels)
        if not device:
            return
        for metric, path in DATA_COUNTERS.items():
            page.add(metric, _scaled(self.read_counter(device["name"], path), WORD), **labels)
        for path in ERROR_COUNTERS if is_up else ():
            counter = path.rpartition("/")[2]
            count = self.read_counter(device["name"], path)
            page.add("dgxspark_rail_errors_total", count, counter=counter, **labels)

    def read_counter(self, device: str, path: str) -> int | None:
        """Return a counter of the first port of a card."""
        text = machine.read_text(self.root, f"sys/class/infiniband/{device}/ports/1/{path}")
        return int(text) if text and text.isdigit() else None

    def add_receipts(self, page: Page) -> None:
        """Add the measurements of the last and of the first proof of each service."""
        for path in sorted((self.state_dir / "receipts").glob("*.json")):
            with self.attempt(str(path)):
                self.add_receipt(page, path)

    def add_receipt(self, page: Page, path: Path) -> None:
        """Add one receipt."""
        service = path.stem
        receipt = receipts.load(path.read_text(encoding="utf-8"))
        page.add("dgxspark_receipt_timestamp_seconds", round(path.stat().st_mtime), service=service)
        for metric, figures in (("measured", receipt.measured), ("baseline", receipt.baseline)):
            for figure in receipts.FIGURES:
                page.add(f"dgxspark_receipt_{metric}", _number(figures.get(figure)), service=service, figure=figure)
        section = receipt.benchmark or {}
        # A stale section has no ratio, so its alert does not fire.
        page.add_all({metric: _number(section.get(key)) for metric, key in BENCHMARK.items()}, service=service)
        with contextlib.suppress(TypeError, ValueError):
            moment = datetime.fromisoformat(section.get("at")).timestamp()  # type: ignore[arg-type]
            page.add("dgxspark_benchmark_timestamp_seconds", round(moment), service=service)

    def add_watchdog(self, page: Page) -> None:
        """Add the state of each server as the watchdog sees it, if one runs."""
        path = self.state_dir / "watchdog" / "state.json"
        for service, note in load(path)["services"].items() if path.exists() else ():
            with self.attempt(f"the watchdog's note of {service}"):
                page.add("dgxspark_watchdog_state", 1, service=service, state=note["state"])
                moment = _number((note.get("last_action") or {}).get("at"))
                page.add("dgxspark_watchdog_last_action_timestamp_seconds", moment, service=service)
                restarts = _number(note.get("restarts_24h"))
                page.add("dgxspark_watchdog_restarts_within_day", restarts, service=service)

    def add_quality(self, page: Page) -> None:
        """Add the answers of each server to quality questions, if they are asked."""
        path = self.state_dir / "watchdog" / "quality.json"
        for service, note in load(path)["services"].items() if path.exists() else ():
            page.add("dgxspark_quality_state", 1, service=service, state=note["state"])
            for key, count in note["counts"].items():
                question, outcome = key.split()
                labels = {"service": service, "question": question, "outcome": outcome}
                page.add("dgxspark_quality_answers_total", _number(count), **labels)

    def add_guard(self, page: Page) -> None:
        """Add the state of the memory guard, if one runs."""
        path = self.state_dir / "guard" / "state.json"
        if not path.exists():
            return
        state = load(path)
        page.add("dgxspark_guard_level", 1, level=state["level"])
        for step, count in sorted(state["steps"].items()):
            page.add("dgxspark_guard_steps_total", _number(count), step=step)
        page.add("dgxspark_guard_lowest_available_bytes", _scaled(state.get("lowest_gib"), GIB))
        last = state.get("last") or {}
        step = last.get("what")
        if step in ("restart", "stop", "name"):
            moment = _number(last.get("at"))
            page.add("dgxspark_guard_last_action_timestamp_seconds", moment, service=last.get("whom"), step=step)
        for service in sorted(state.get("stopped") or {}):
            page.add("dgxspark_guard_stopped", 1, service=service)


def _number(value: Any) -> float | None:
    """Return a number of a file; None for any other value."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _scaled(value: Any, factor: float) -> int | None:
    """Return a number in a smaller unit, as a whole number; None for any other value."""
    number = _number(value)
    return None if number is None else round(number * factor)


def write(folder: Path, text: str) -> None:
    """Replace the page at one go: node_exporter may read it at any moment.

    The folder may belong to another account, so the draft is a new file in the opened folder, through no link.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    draft = f".{PAGE}.{secrets.token_hex(8)}"  # node_exporter ignores it
    try:
        with os.fdopen(os.open(draft, PAGE_FLAGS, 0o644, dir_fd=descriptor), "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(text)
        os.replace(draft, PAGE, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=descriptor)
        raise
    finally:
        os.close(descriptor)
