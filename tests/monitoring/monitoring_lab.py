"""A fleet of one Spark with real monitoring: Debian's Prometheus, Alertmanager and node_exporter, and the real collector.

Stand-ins replace the hardware: the tree of a GB10, nvidia-smi, docker and systemctl by small programs, an engine, a GPU exporter and a
gateway by a server that tells the fixtures with counters that grow. Everything listens on loopback.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import debian_programs
import generate_docs
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import monitoring
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.addon_documents import addon_document

ROOT = Path(__file__).resolve().parents[2]
MONITORING = "/etc/dgxspark/monitoring"
FIXTURES = Path(__file__).resolve().parent / "fixtures"
AGENT = ROOT / "roles/guard/files/spark_agent.py"
GAUGES = {"vllm:num_requests_running": 2.0, "vllm:num_requests_waiting": 1.0, "vllm:kv_cache_usage_perc": 0.42}
HEAVY = "a" * 64
MEMINFO = """MemTotal:       127535224 kB
MemFree:         1510768 kB
MemAvailable:    1835528 kB
Buffers:           77328 kB
Cached:          2448480 kB
Shmem:            755460 kB
SReclaimable:     231480 kB
SwapTotal:      16777212 kB
SwapFree:       16723228 kB
"""
RAILS = (("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0"), ("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0"))
PROGRAM = "#!{python}\nimport sys\nanswers = {answers!r}\nprint(next((t for w, t in answers.items() if w in ' '.join(sys.argv)), ''), end='')\n"


def collectors() -> list[str]:
    """Return the options of node_exporter that choose its collectors, as its unit has them."""
    files = addon_document("exporters", {"listen": "127.0.0.1"}, {}).files
    (unit,) = (file.content for file in files if file.path.endswith("spark-node-exporter.service"))
    return re.findall(r"--collector\.(?!textfile\.)[\w-]+", str(unit).replace("\\\n", " "))


def spark(folder: Path) -> list[str]:
    """Lay out a host as the agent reads it; return the command of the agent, whose only loop is the collector of metrics."""
    root = folder / "root"
    files = {"proc/meminfo": MEMINFO, "proc/101/cgroup": f"0::/system.slice/docker-{HEAVY}.scope\n"}
    for netdev, rdma, address in RAILS:
        device = f"sys/devices/{address}"
        port = f"{device}/infiniband/{rdma}/ports/1"
        files.update(
            {
                f"{device}/vendor": "0x15b3",
                f"{device}/device": "0x1021",
                f"{device}/current_link_speed": "32.0 GT/s PCIe",
                f"{device}/current_link_width": "4",
                f"{device}/net/{netdev}/operstate": "up",
                f"{device}/net/{netdev}/mtu": "9000",
                f"{port}/state": "4: ACTIVE",
                f"{port}/rate": "200 Gb/sec (2X NDR)",
                f"{port}/gid_attrs/ndevs/0": netdev,
                f"{port}/counters/port_rcv_data": "81408901908",
                f"{port}/counters/port_xmit_data": "81408901908",
                f"{port}/hw_counters/out_of_sequence": "3",
            }
        )
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + ("" if text.endswith("\n") else "\n"))
    for netdev, rdma, address in RAILS:
        for link, target in {
            f"sys/class/net/{netdev}": f"sys/devices/{address}/net/{netdev}",
            f"sys/class/infiniband/{rdma}": f"sys/devices/{address}/infiniband/{rdma}",
            f"sys/devices/{address}/net/{netdev}/device": f"sys/devices/{address}",
        }.items():
            (root / link).parent.mkdir(parents=True, exist_ok=True)
            (root / link).symlink_to(root / target)
    for name in (
        "etc/services",
        "etc/agent",
        "state/receipts",
        "state/watchdog",
        "state/guard",
        "run/starts",
        "bin",
        "textfile",
        "units",
    ):
        (folder / name).mkdir(parents=True)
    receipt = {
        "schema": 1,
        "deployed": {},
        "measured": {"decode_tokens_per_second": 42.5},
        "baseline": {"decode_tokens_per_second": 43.0},
        "benchmark": {
            "at": "2026-11-09T10:00:00+00:00",
            "decode_tokens_per_second": 41.5,
            "baseline_decode_tokens_per_second": 43.0,
            "ratio": 0.9651,
        },
    }
    guard = {"drops": 3, "compactions": 1, "lowest_free_gib": 1.5}
    for name, content in {
        "etc/agent/exporters.json": {
            "sysroot": str(root),
            "gpu": True,
            "rails": {netdev: 9000 for netdev, _rdma, _address in RAILS},
            "planned_gib": {"heavy": 93.5},
            "interval": 1,
            "textfile_dir": str(folder / "textfile"),
        },
        "etc/services/heavy.json": {"unit": "spark-heavy.service", "model": "heavy", "memory_gib": 90.5},
        "state/receipts/heavy.json": receipt,
        "state/watchdog/state.json": {
            "services": {
                "heavy": {"state": "idle", "restarts_24h": 2, "last_action": {"at": 1_700_000_000, "what": "restart"}}
            }
        },
        "state/watchdog/quality.json": {
            "services": {"heavy": {"state": "good", "counts": {"retrieval good": 4, "retrieval wrong": 1}}}
        },
        "state/guard/state.json": {
            "level": "calm",
            "lowest_gib": 2.5,
            "steps": {"drop": 3, "restart": 1},
            "last": {"at": 1_700_000_000, "what": "restart", "whom": "heavy", "why": "above its plan"},
            "stopped": {"heavy": {"at": 1_700_000_000}},
        },
        "run/starts/spark-heavy.service.json": {"start_seconds": 412.5, "load_guard": guard},
    }.items():
        (folder / name).write_text(json.dumps(content))
    labels = {"dgxspark.managed": "true", "dgxspark.service": "heavy"}
    inspected = [{"Id": HEAVY, "Name": "/spark-heavy", "Config": {"Labels": labels}, "State": {"Status": "running"}}]
    units = "Id=spark-heavy.service\nType=exec\nLoadState=loaded\nActiveState=active\nNRestarts=1\nActiveEnterTimestampMonotonic=1000000\n"
    for name, answers in {
        "nvidia-smi": {
            "--query-compute-apps": "101, VLLM::EngineCore, 95744\n",
            "--query-gpu": "0, NVIDIA GB10, GPU-1, 580.1, 12.1, 55, 35.65, 2522, 96\n",
        },
        "docker": {" ps ": f"{HEAVY}\n", " inspect ": json.dumps(inspected)},
        "systemctl": {" show ": units},
    }.items():
        path = folder / "bin" / name
        path.write_text(PROGRAM.format(python=sys.executable, answers=answers))
        path.chmod(0o755)
    return [
        sys.executable,
        str(AGENT),
        f"--etc={folder / 'etc'}",
        f"--state={folder / 'state'}",
        f"--run={folder / 'run'}",
        f"--units={folder / 'units'}",
    ]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of the agent of such a host."""
    return {"PATH": str(folder / "bin"), "PYTHONPATH": str(ROOT / "collections")}


def growing(text: str, seconds: float) -> str:
    """Return an exposition whose counters and histograms have gone on for so long."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    lines = []
    for line in text.splitlines():
        name = re.match(r"[\w:]+", line)
        if name and not line.startswith("#"):
            start, _space, value = line.rpartition(" ")
            family = re.sub(r"_(bucket|sum|count)$", "", name.group())
            number = float(value)
            if kinds.get(name.group()) == "counter":
                number = (number + 1) * (1 + seconds)
            elif kinds.get(family) == "histogram":
                number *= 1 + seconds
            line = f"{start} {GAUGES.get(name.group(), number)!r}"
        lines.append(line)
    return "\n".join(lines) + "\n"


class Server(http.server.ThreadingHTTPServer):
    """Serves a fixture, or records posted messages."""

    daemon_threads = True

    def __init__(self, fixture: str | None = None) -> None:
        began, posted = time.monotonic(), []
        text = (FIXTURES / fixture).read_text(encoding="utf-8") if fixture else ""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = growing(text, time.monotonic() - began).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                posted.append({"path": self.path, "authorization": self.headers.get("Authorization"), "body": body})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[dict[str, Any]] = posted
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self.server_address[1])


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Lab:
    """The running programs; C(url) is Prometheus."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []  # type: Path, list[subprocess.Popen[bytes]]
        self.engine, self.gpu, self.gateway = (Server(f"{name}_metrics.txt") for name in ("vllm", "gpu", "litellm"))
        self.hook = Server()
        self.node_port, self.port, self.alerts_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start everything, with settings that the engine planned and the role's templates made."""
        host = self.folder / "spark"
        self.run("collector", spark(host), environment(host))
        self.run(
            "node",
            [
                debian_programs.program("prometheus-node-exporter"),
                f"--web.listen-address=127.0.0.1:{self.node_port}",
                *collectors(),
                f"--collector.textfile.directory={host / 'textfile'}",
            ],
        )
        outcome = self.plan()
        config = self.folder / "config"
        secrets = self.folder / "token"
        secrets.write_text("a-token\n")
        for name in ("targets", "rules.d"):
            (config / name).mkdir(parents=True)
        (config / "rules.yml").write_text(yaml.safe_dump(generate_docs.alert_rules()))
        planned = {**outcome, "own_address": "127.0.0.1", "grafana": "none"}
        for file in addon_document("monitoring", planned, {}).files:
            if file.content and file.path.startswith(MONITORING) and not file.path.endswith("/rules.yml"):
                text = file.content.replace(MONITORING, str(config))
                # systemd hands secrets over in the role; nobody waits half a minute for a message here.
                text = text.replace("/run/spark-alertmanager/hook.token_file", str(secrets))
                text = text.replace('group_wait: "30s"', 'group_wait: "1s"')
                Path(file.path.replace(MONITORING, str(config))).write_text(text)
        checked = [
            ["promtool", "check", "config", str(config / "prometheus.yml")],
            ["amtool", "check-config", str(config / "alertmanager.yml")],
        ]
        for program, *words in checked:
            subprocess.run([debian_programs.program(program), *words], check=True, capture_output=True)
        self.run(
            "alertmanager",
            [
                *debian_programs.command("prometheus-alertmanager"),
                f"--config.file={config / 'alertmanager.yml'}",
                f"--storage.path={self.folder / 'alertmanager'}",
                "--cluster.listen-address=",
                f"--web.listen-address=127.0.0.1:{self.alerts_port}",
            ],
        )
        self.run(
            "prometheus",
            [
                debian_programs.program("prometheus"),
                f"--config.file={config / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
        )
        self.wait(lambda: self.answers(f"{self.url}/-/ready"), "Prometheus does not get ready")

    def plan(self) -> dict[str, Any]:
        """Return what the engine plans for this fleet."""
        ports = {"node_port": self.node_port, "gpu_port": self.gpu.port}
        exporter_settings, wrong = monitoring.read_exporters("spark-1", ports)
        receivers = [
            {
                "name": "hook",
                "type": "webhook",
                "url": f"http://127.0.0.1:{self.hook.port}/alerts",
                "token_file": "token",
            }
        ]
        settings, bad = monitoring.read_monitoring(
            "spark-1",
            {
                "grafana": "none",
                "prometheus_port": self.port,
                "alertmanager_port": self.alerts_port,
                "receivers": receivers,
            },
        )
        if wrong or bad:
            raise RuntimeError("; ".join([*wrong, *bad]))
        exporters, _findings = monitoring.plan_exporters("spark-1", exporter_settings, "127.0.0.1")
        engine = endpoints.make("spark-1", "127.0.0.1", "heavy", "vllm", self.engine.port, "127.0.0.1")
        gateway = {"host": "spark-1", "address": "127.0.0.1", "port": self.gateway.port, "listen": "127.0.0.1"}
        outcome, findings = monitoring.plan_monitoring("spark-1", settings, [engine], {"spark-1": exporters}, gateway)
        if findings:
            raise RuntimeError("; ".join(finding.message for finding in findings))
        return {**outcome, "interval": 1, "scrape_timeout": 1}

    def run(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> None:
        """Start a program with its output in a file."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=env or dict(os.environ))
        self.processes.append(process)

    def answers(self, url: str) -> bool:
        """Tell whether a URL answers with 200."""
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait(self, done: Callable[[], Any], else_say: str, seconds: float = 90.0) -> None:
        """Wait until something holds; RuntimeError with the logs after a timeout."""
        give_up = time.monotonic() + seconds
        while not done():
            if time.monotonic() > give_up:
                logs = "\n".join(
                    f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log"))
                )
                raise RuntimeError(f"{else_say}\n{logs}")
            time.sleep(0.5)

    def stop(self) -> None:
        """Stop all programs."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for server in (self.engine, self.gpu, self.gateway, self.hook):
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Lab]:
    """A lab that is always stopped at the end."""
    lab = Lab(folder)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
