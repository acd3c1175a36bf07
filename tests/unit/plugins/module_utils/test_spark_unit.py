from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/host/files/spark_unit.py"
LIB = REPO / "plugins/module_utils"

SYSTEMCTL = """#!{python}
import pathlib, sys
state = pathlib.Path({state!r}) / sys.argv[-1]
print(state.read_text() if state.exists() else "ActiveState=inactive\\nSubState=dead\\nInvocationID=\\nMainPID=0")
"""
NVIDIA_SMI = """#!{python}
print("197277, VLLM::EngineCore, 102625")
"""


class Host:
    """A host with its own /etc/dgxspark, /run/dgxspark, systemctl and nvidia-smi."""

    def __init__(self, tmp: Path, tree: Any) -> None:
        self.tmp, self.tree = tmp, tree
        self.etc, self.run_dir, self.bin, self.state = (tmp / name for name in ("etc", "run", "bin", "state"))
        for path in (self.etc / "services", self.bin, self.state):
            path.mkdir(parents=True)
        for name, text in {"systemctl": SYSTEMCTL, "nvidia-smi": NVIDIA_SMI}.items():
            path = self.bin / name
            path.write_text(text.format(python=sys.executable, state=str(self.state)))
            path.chmod(0o755)

    def service(self, name: str, **settings: Any) -> None:
        service = {
            "name": name,
            "unit": f"spark-{name}.service",
            "container": f"spark-{name}",
            "url": "http://127.0.0.1:9",
            "model": name,
            "api_key_file": None,
            "start_deadline_seconds": 5,
            "memory_gib": 1.0,
            "memory_wait_seconds": 0,
            "sysroot": str(self.tree),
            **settings,
        }
        (self.etc / "services" / f"{name}.json").write_text(json.dumps(service))

    def unit(self, name: str, active: str, sub: str = "start-pre", invocation: str = "") -> None:
        text = f"ActiveState={active}\nSubState={sub}\nInvocationID={invocation}\nMainPID=0\n"
        (self.state / f"spark-{name}.service").write_text(text)

    def start(self, step: str, name: str, script: Path = SCRIPT, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), step, name, f"--etc={self.etc}", f"--run={self.run_dir}", "--poll=0.05"],
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "SPARK_UNIT_LIB": str(LIB), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, step: str, name: str, **env: Any) -> tuple[int, str]:
        process = self.start(step, name, **env)
        text, _err = process.communicate(timeout=20)
        return process.returncode, text

    def owner(self) -> str | None:
        path = self.run_dir / "start.json"
        return json.loads(path.read_text())["unit"] if path.exists() else None


@pytest.fixture
def host(tmp_path: Path, tree: Any) -> Host:
    # Nothing cached: else every gate would wait a moment for somebody to keep this tree up to date.
    tree.write("proc/meminfo", "MemTotal: 127535224 kB\nMemFree: 4510768 kB\nMemAvailable: 23135528 kB\n")
    host = Host(tmp_path, tree)
    host.service("heavy")
    host.service("fast")
    return host


def test_gate_takes_the_lock_drops_the_cache_and_finds_the_memory(host: Host) -> None:
    rc, text = host("gate", "heavy", INVOCATION_ID="a1")
    assert rc == 0, text
    assert json.loads((host.run_dir / "start.json").read_text()) == {"unit": "spark-heavy.service", "invocation": "a1"}
    assert (host.tree.root / "proc/sys/vm/drop_caches").read_text() == "3\n"
    assert "spark-heavy.service: memory is there: needs 1.00 GiB" in text


def test_the_next_waits_until_the_first_lets_go(host: Host) -> None:
    host.unit("heavy", "activating", "start-post", "a1")
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    second = host.start("gate", "fast", INVOCATION_ID="b1")
    time.sleep(0.6)
    assert second.poll() is None and host.owner() == "spark-heavy.service"
    assert host("release", "heavy")[0] == 0
    text, _err = second.communicate(timeout=20)
    assert second.returncode == 0 and host.owner() == "spark-fast.service"
    assert text.count("waits for spark-heavy.service, which is starting") == 1


def test_two_at_once_never_both_own_the_lock(host: Host) -> None:
    for name in ("heavy", "fast"):
        host.unit(name, "activating")
        host.service(name, start_deadline_seconds=0.3)
    processes = [host.start("gate", name) for name in ("heavy", "fast")]
    texts = [process.communicate(timeout=20)[0] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1], texts
    loser = texts[0] if processes[0].returncode else texts[1]
    assert "gave up after" in loser and "is still starting" in loser


@pytest.mark.parametrize(
    ("active", "sub", "invocation"),
    [
        ("failed", "failed", "a1"),
        ("inactive", "dead", ""),
        ("active", "running", "a1"),
        ("activating", "auto-restart", ""),
        ("activating", "start-pre", "another-start"),
    ],
)
def test_an_owner_that_is_not_starting_any_more_does_not_count(
    host: Host, active: str, sub: str, invocation: str
) -> None:
    host.unit("heavy", active, sub, invocation)
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    rc, text = host("gate", "fast", INVOCATION_ID="b1")
    assert rc == 0 and host.owner() == "spark-fast.service"
    assert "takes the start lock from spark-heavy.service" in text


def test_a_damaged_owner_file_does_not_block(host: Host) -> None:
    host.run_dir.mkdir()
    (host.run_dir / "start.json").write_text("{")
    assert host("gate", "fast")[0] == 0 and host.owner() == "spark-fast.service"


def test_memory_short_names_need_state_and_holders_and_frees_the_lock(host: Host) -> None:
    host.service("heavy", memory_gib=95.74)
    rc, text = host("gate", "heavy")
    assert rc == 1 and host.owner() is None
    (line,) = [line for line in text.splitlines() if "not enough memory" in line]
    assert "needs 95.74 GiB, 22.06 GiB available, 4.30 GiB free" in line
    assert "held by VLLM::EngineCore (pid 197277) 100.22 GiB" in line


def test_memory_available_but_not_free_goes_on_with_a_warning(host: Host) -> None:
    host.service("heavy", memory_gib=20)  # with no time to wait for the rest
    rc, text = host("gate", "heavy")
    assert rc == 0 and "warning: 20.00 GiB are available but not free" in text


def test_page_cache_that_cannot_be_dropped_is_a_warning(host: Host) -> None:
    shutil.rmtree(host.tree.root / "proc/sys")
    rc, text = host("gate", "heavy")
    assert rc == 0 and "warning: the page cache was not dropped" in text


def test_ready_says_its_stages_and_releases_the_lock(host: Host, engine: Any) -> None:
    host.service("heavy", url=engine.url)
    assert host("gate", "heavy")[0] == 0
    rc, text = host("ready", "heavy", MAINPID=str(os.getpid()))
    assert rc == 0, text
    assert [line.split(": ")[2] for line in text.splitlines()[:3]] == ["health", "models", "completion"]
    assert "ready after" in text and host.owner() is None


def test_ready_ends_when_the_main_process_is_gone_and_keeps_the_lock(host: Host) -> None:
    host.service("heavy", start_deadline_seconds=60)
    assert host("gate", "heavy")[0] == 0
    main = subprocess.Popen(["/bin/sleep", "60"])
    waiting = host.start("ready", "heavy", MAINPID=str(main.pid))
    time.sleep(0.5)
    assert waiting.poll() is None
    main.kill()
    main.wait()
    text, _err = waiting.communicate(timeout=20)
    assert waiting.returncode == 1 and f"(docker run, pid {main.pid}) has ended" in text
    assert host.owner() == "spark-heavy.service"  # the memory is not back yet; ExecStopPost releases


def test_ready_ends_when_the_main_process_was_gone_before(host: Host) -> None:
    main = subprocess.Popen(["/bin/true"])
    main.wait()
    rc, text = host("ready", "heavy", MAINPID=str(main.pid))
    assert rc == 1 and "has ended" in text


def test_ready_without_main_pid_looks_at_the_container(host: Host) -> None:
    rc, text = host("ready", "heavy")  # there is no docker on this PATH that knows it
    assert rc == 1 and "the container spark-heavy is not running" in text


def test_ready_gives_up_with_stage_and_reason(host: Host, engine: Any) -> None:
    host.service("heavy", url=engine.set(models=["other"]).url)
    rc, text = host("ready", "heavy", MAINPID=str(os.getpid()))
    assert rc == 1 and "not ready, stage models: the server serves other, not heavy" in text


def test_api_key_is_used_and_not_printed(host: Host, engine: Any, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hidden\n")
    host.service("heavy", url=engine.set(key="sk-hidden").url, api_key_file=str(tmp_path / "key"))
    rc, text = host("ready", "heavy", MAINPID=str(os.getpid()))
    assert rc == 0 and "sk-hidden" not in text


def test_release_leaves_the_lock_of_others_alone(host: Host) -> None:
    assert host("gate", "heavy")[0] == 0
    assert host("release", "fast") == (0, "")
    assert host.owner() == "spark-heavy.service"


@pytest.mark.parametrize("name", ["unknown", "../heavy", "a b"])
def test_release_never_fails(host: Host, name: str) -> None:
    assert host("release", name) == (0, "")


@pytest.mark.parametrize(("name", "words"), [("unknown", "cannot be read"), ("../heavy", "not the name of a service")])
def test_gate_without_settings(host: Host, name: str, words: str) -> None:
    rc, text = host("gate", name)
    assert rc == 1 and words in text and len(text.splitlines()) == 1


def test_settings_that_lack_something(host: Host) -> None:
    (host.etc / "services/heavy.json").write_text('{"unit": "spark-heavy.service"}')
    rc, text = host("gate", "heavy")
    assert rc == 1 and "lacks url, model" in text


def test_installed_beside_its_libraries_it_needs_no_variable(host: Host, tmp_path: Path) -> None:
    """The layout on a host: libexec/dgxspark/spark_unit.py and lib/dgxspark/*.py, and no compiled files left behind."""
    libexec, lib = tmp_path / "usr/libexec/dgxspark", tmp_path / "usr/lib/dgxspark"
    libexec.mkdir(parents=True)
    lib.mkdir(parents=True)
    shutil.copy(SCRIPT, libexec)
    for name in ("endpoint.py", "hostmem.py"):
        shutil.copy(LIB / name, lib)
    process = host.start("gate", "heavy", script=libexec / "spark_unit.py", SPARK_UNIT_LIB="/nowhere")
    text, _err = process.communicate(timeout=20)
    assert process.returncode == 0, text
    assert sorted(path.name for path in lib.iterdir()) == ["endpoint.py", "hostmem.py"]


def read_record(host: Host, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((host.run_dir / f"starts/spark-{name}.service.json").read_text())
    return record


def test_a_start_is_recorded_from_the_gate_to_the_answer(host: Host, engine: Any) -> None:
    host.service("heavy", url=engine.url)
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    record = read_record(host, "heavy")
    assert record["invocation"] == "a1" and record["beside"] == {} and "ready" not in record
    assert (record["gate"]["total_gib"], record["gate"]["available_gib"]) == (121.627, 22.064)
    host.tree.write("proc/meminfo", "MemTotal: 127535224 kB\nMemFree: 4510768 kB\nMemAvailable: 2163728 kB\n")
    assert host("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))[0] == 0
    record = read_record(host, "heavy")
    assert record["ready"]["available_gib"] == 2.063 and record["start_seconds"] >= 0

    host.service("fast", memory_gib=0.5)
    assert host("gate", "fast")[0] == 0
    assert read_record(host, "fast")["beside"] == {"spark-heavy.service": 20.001}
    assert host("release", "heavy") == (0, "")
    assert [path.name for path in (host.run_dir / "starts").iterdir()] == ["spark-fast.service.json"]


def test_the_record_of_another_start_is_not_finished(host: Host, engine: Any) -> None:
    host.service("heavy", url=engine.url)
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    assert host("ready", "heavy", INVOCATION_ID="a2", MAINPID=str(os.getpid()))[0] == 0
    assert "ready" not in read_record(host, "heavy")


def test_a_start_that_cannot_be_recorded_goes_on(host: Host) -> None:
    host.run_dir.mkdir()
    (host.run_dir / "starts").write_text("in the way")
    rc, text = host("gate", "heavy")
    assert rc == 0 and "warning: the start is not recorded" in text
