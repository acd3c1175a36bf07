from __future__ import annotations

import http.server
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[4]
SCRIPT = REPO / "roles/host/files/spark_unit.py"
SPEC = importlib.util.spec_from_file_location("spark_unit", SCRIPT)
assert SPEC is not None and SPEC.loader is not None
spark_unit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(spark_unit)

SYSTEMCTL = """#!{python} -SE
import pathlib, sys
if (pathlib.Path({state!r}) / "silent").exists():
    sys.exit("Failed to connect to bus")
for unit in sys.argv[sys.argv.index("--") + 1:]:
    state = pathlib.Path({state!r}) / unit
    print("Id=" + unit)
    print(state.read_text() if state.exists() else "ActiveState=inactive\\nSubState=dead\\nInvocationID=\\nMainPID=0")
"""
NVIDIA_SMI = """#!{python} -SE
print("197277, VLLM::EngineCore, 102625")
"""
DOCKER = """#!{python} -SE
import pathlib, sys
image = pathlib.Path({state!r}) / "image"
if sys.argv[1:3] == ["image", "inspect"] and image.exists():
    print(image.read_text())
    sys.exit()
fingerprint = pathlib.Path({state!r}) / f"fingerprint-{{sys.argv[-1]}}"
if "dgxspark.fingerprint" in " ".join(sys.argv) and fingerprint.exists():
    print(fingerprint.read_text())
    sys.exit(int((pathlib.Path({state!r}) / "broken").exists()))
sys.exit(f"Error response from daemon: No such container: {{sys.argv[-1]}}")
"""


# The program, on a host whose wall clock is set by so many seconds after it has begun.
MOVED = """
import runpy, sys, time
real, begun = time.time, time.monotonic()
time.time = lambda: real() + ({step} if time.monotonic() > begun + 0.3 else 0)
sys.argv[0] = {script!r}
runpy.run_path({script!r}, run_name="__main__")
"""


class Host:
    """A host with its own /etc/dgxspark, /run/dgxspark, systemctl, nvidia-smi and docker."""

    def __init__(self, tmp: Path, tree: Any) -> None:
        self.tmp, self.tree = tmp, tree
        self.etc, self.run_dir, self.bin, self.state = (tmp / name for name in ("etc", "run", "bin", "state"))
        for path in (self.etc / "services", self.bin, self.state):
            path.mkdir(parents=True)
        for name, text in {"systemctl": SYSTEMCTL, "nvidia-smi": NVIDIA_SMI, "docker": DOCKER}.items():
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
            "start_deadline_seconds": 20,
            "memory_gib": 1.0,
            "memory_wait_seconds": 0,
            "sysroot": str(self.tree),
            **settings,
        }
        (self.etc / "services" / f"{name}.json").write_text(json.dumps(service))

    def unit(self, name: str, active: str, sub: str = "start-pre", invocation: str = "", pid: int = 0) -> None:
        text = f"ActiveState={active}\nSubState={sub}\nInvocationID={invocation}\nMainPID={pid}\n"
        (self.state / f"spark-{name}.service").write_text(text)

    def start(self, step: str, name: str, script: Path = SCRIPT, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), step, name, f"--etc={self.etc}", f"--run={self.run_dir}", "--poll=0.05"],
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "PYTHONPATH": str(REPO / "collections"),
                "DGXSPARK_STATE_DIR": str(self.tmp / "lib"),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, step: str, name: str, **env: Any) -> tuple[int, str]:
        process = self.start(step, name, **env)
        text, _err = process.communicate(timeout=120)
        return process.returncode, text

    def owner(self) -> str | None:
        path = self.run_dir / "start.json"
        return json.loads(path.read_text())["unit"] if path.exists() else None


@pytest.fixture
def host(tmp_path: Path, tree: Any) -> Host:
    # No page cache: otherwise every gate would wait for someone to update this tree.
    tree.write("proc/meminfo", "MemTotal: 127535224 kB\nMemFree: 4510768 kB\nMemAvailable: 23135528 kB\n")
    host = Host(tmp_path, tree)
    host.service("heavy")
    host.service("fast")
    return host


def test_gate_takes_the_lock_drops_the_cache_and_finds_the_memory(host: Host) -> None:
    rc, text = host("gate", "heavy", INVOCATION_ID="a1")
    assert rc == 0, text
    assert json.loads((host.run_dir / "start.json").read_text()) == {
        "unit": "spark-heavy.service", "invocation": "a1", "loads": True,
    }  # fmt: skip
    assert (host.tree.root / "proc/sys/vm/drop_caches").read_text() == "3\n"
    assert "spark-heavy.service: memory is there: needs 1.00 GiB" in text


def test_memory_that_is_coming_back_is_waited_for(host: Host) -> None:
    """vLLM ends when the free memory grows while it measures."""
    host.service("heavy", memory_wait_seconds=60)
    host.unit("fast", "deactivating", "stop-post")
    waiting = host.start("gate", "heavy", INVOCATION_ID="a1")
    assert waiting.stdout is not None
    text = next(line for line in waiting.stdout if "waits for spark-fast.service" in line)
    # Nobody may stop another one from here on.
    assert json.loads((host.run_dir / "start.json").read_text())["loads"] is True
    host.unit("fast", "inactive", "dead")
    begin, fresh = time.monotonic(), host.tmp / "meminfo"
    for gib in range(1, 13):
        fresh.write_text(f"MemTotal: 127535224 kB\nMemFree: 4510768 kB\nMemAvailable: {23135528 + gib * 2**20} kB\n")
        fresh.replace(host.tree.root / "proc/meminfo")
        time.sleep(0.25)
    text += waiting.communicate(timeout=60)[0]
    assert waiting.returncode == 0 and "warning" not in text, text
    assert time.monotonic() - begin >= 4  # two seconds after the last growth
    assert json.loads((host.run_dir / "starts/spark-heavy.service.json").read_text())["gate"]


@pytest.mark.parametrize(("silent", "named"), [(False, "spark-fast.service"), (True, "systemd, which does not say")])
def test_a_stop_that_has_no_end_prevents_no_start(host: Host, silent: bool, named: str) -> None:
    host.service("heavy", memory_wait_seconds=0.3)
    if silent:
        (host.state / "silent").touch()
    host.unit("fast", "deactivating", "stop-sigterm")
    rc, text = host("gate", "heavy")
    assert rc == 0 and f"warning: no longer waits for {named}" in text and host.owner() == "spark-heavy.service"


def test_a_speech_server_on_demand_takes_its_turn(host: Host) -> None:
    """Its memory is not charged to an engine that loads. On the CPU the kernel takes it from the page cache itself."""
    (host.etc / "speech").mkdir()
    content = json.loads((host.etc / "services/fast.json").read_text())
    settings = {**content, "unit": "spark-ears.service", "kind": "asr", "device": "cpu", "on_demand": True}
    (host.etc / "speech/ears.json").write_text(json.dumps(settings))
    host("gate", "heavy", INVOCATION_ID="a1")
    host.unit("heavy", "activating", invocation="a1")
    (host.tree.root / "proc/sys/vm/drop_caches").write_text("none")
    waiting = host.start("gate", "ears", INVOCATION_ID="b1")
    assert waiting.stdout is not None and "waits for spark-heavy.service" in waiting.stdout.readline()
    host.unit("heavy", "active", "running", "a1")
    waiting.communicate(timeout=60)
    assert waiting.returncode == 0 and host.owner() == "spark-ears.service"
    assert (host.tree.root / "proc/sys/vm/drop_caches").read_text() == "none"
    assert host("started", "ears", INVOCATION_ID="b1") == (0, "") and host.owner() is None
    record = json.loads((host.run_dir / "starts/spark-ears.service.json").read_text())
    assert "ready" in record and record["gate"]["available_gib"] > 20


def test_what_another_image_compiled_goes_before_the_first_start_from_a_new_one(host: Host) -> None:
    cache = host.tmp / "cache"
    for name in ("vllm/torch_compile_cache", "triton", "pip", ".cache/flashinfer"):
        (cache / name).mkdir(parents=True)
    outside = host.tmp / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (cache / "inductor").symlink_to(outside)
    host.service("heavy", image="vllm/vllm-openai:v0.24.0", cache_dir=str(cache))
    message = "removed what another image compiled"
    rc, text = host("gate", "heavy")  # Docker does not know the image, which changes nothing
    assert rc == 0 and message not in text and (cache / "triton").exists()
    for number, gone in (("1", False), ("1", False), ("2", True), ("2", False)):
        (host.state / "image").write_text(f"sha256:{number * 64}")
        assert host("release", "heavy")[0] == 0
        rc, text = host("gate", "heavy")
        assert rc == 0 and (message in text) is gone, text
        if not gone:
            (cache / "triton").mkdir(exist_ok=True)
    assert sorted(path.name for path in cache.iterdir()) == ["pip", "triton"]
    assert (outside / "file").read_text() == "x"


def test_an_engine_without_a_cache_folder_has_no_caches_to_remove(host: Host) -> None:
    host.service("heavy", image="an/image:1")
    (host.state / "image").write_text("sha256:" + "1" * 64)
    rc, text = host("gate", "heavy")
    assert rc == 0 and "compile" not in text, text


def test_caches_that_cannot_be_removed_stop_no_engine(host: Host) -> None:
    cache = host.tmp / "cache"
    cache.mkdir()
    host.service("heavy", image="an/image:1", cache_dir=str(cache))
    (host.state / "image").write_text("sha256:" + "1" * 64)
    (host.tmp / "lib").write_text("a file where the notes should be")
    rc, text = host("gate", "heavy")
    assert rc == 0 and "warning: compile caches of another image were not removed" in text


@pytest.mark.parametrize("image_id", [None, "an answer about something else"])
def test_kv_files_are_of_no_use_while_docker_does_not_tell_the_image(host: Host, image_id: str | None) -> None:
    """The engine would trust files of another image."""
    if image_id:
        (host.state / "image").write_text(image_id)
    folder = host.tmp / "kv"
    host.service("heavy", image="an/image:1", kv_files={"folder": str(folder), "disk_gib": 1, "key": "k"})
    rc, text = host("gate", "heavy")
    assert rc == 1 and "Docker does not tell the id of an/image:1" in text and not folder.exists()
    assert host.owner() is None


def test_kv_files_of_another_image_are_removed_before_the_start(host: Host) -> None:
    folder = host.tmp / "kv"
    host.service("heavy", image="an/image:1", kv_files={"folder": str(folder), "disk_gib": 1, "key": "k"})
    for number, stays in (("1", True), ("1", True), ("2", False)):
        (host.state / "image").write_text(f"sha256:{number * 64}")
        rc, text = host("gate", "heavy")
        assert rc == 0 and ("GiB of KV cache files" in text) is not stays, text
        if stays:
            (folder / "block").write_bytes(bytes(2**20))
    assert list(folder.iterdir()) == []


def test_the_next_waits_until_the_first_lets_go(host: Host) -> None:
    host.unit("heavy", "activating", "start-post", "a1")
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    second = host.start("gate", "fast", INVOCATION_ID="b1")
    assert second.stdout is not None
    text = next(line for line in second.stdout if "waits for" in line)
    time.sleep(0.3)  # it looks again meanwhile
    assert second.poll() is None and host.owner() == "spark-heavy.service"
    assert host("release", "heavy")[0] == 0
    text += second.communicate(timeout=120)[0]
    assert second.returncode == 0 and host.owner() == "spark-fast.service"
    assert text.count("waits for spark-heavy.service, which is starting") == 1


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_clock_that_is_set_neither_takes_the_lock_nor_ends_the_wait(host: Host, step: int) -> None:
    """The wall clock moves by an hour while a unit waits."""
    host.unit("heavy", "activating", "start-post", "a1")
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    script = host.tmp / "moved.py"
    script.write_text(MOVED.format(script=str(SCRIPT), step=step))
    host.service("fast", start_deadline_seconds=1.5)
    second = host.start("gate", "fast", script, INVOCATION_ID="b1")
    text = second.communicate(timeout=120)[0]
    assert second.returncode == 1 and "gave up after 2 s because spark-heavy.service is still starting" in text
    assert host.owner() == "spark-heavy.service"


def test_two_at_once_never_both_own_the_lock(host: Host) -> None:
    for name in ("heavy", "fast"):
        host.unit(name, "activating")
        host.service(name, start_deadline_seconds=0.3)
    processes = [host.start("gate", name) for name in ("heavy", "fast")]
    texts = [process.communicate(timeout=120)[0] for process in processes]
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
    assert "needs 95.74 GiB, 22.06 GiB available, 4.30 GiB free after 0 s" in line
    assert "used by VLLM::EngineCore (pid 197277) 100.22 GiB" in line


def test_a_wait_for_memory_is_told_once(host: Host) -> None:
    host.service("heavy", memory_gib=95.74, memory_wait_seconds=1)
    (host.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    rc, text = host("gate", "heavy")
    line = "waits for memory: needs 95.74 GiB, 22.06 GiB available, 4.30 GiB free"
    assert rc == 1 and text.count(line) == 1, text
    assert "4.30 GiB free after 1 s; nvidia-smi cannot say who holds it" in text


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
    text, _err = waiting.communicate(timeout=120)
    assert waiting.returncode == 1 and f"(docker run, pid {main.pid}) has ended" in text
    assert host.owner() == "spark-heavy.service"  # the memory is not back yet; ExecStopPost releases


def test_ready_ends_when_the_main_process_was_gone_before(host: Host) -> None:
    main = subprocess.Popen(["/bin/true"])
    main.wait()
    rc, text = host("ready", "heavy", MAINPID=str(main.pid))
    assert rc == 1 and "has ended" in text


def test_ready_without_main_pid_asks_systemd_for_it(host: Host, engine: Any) -> None:
    """Docker does not know the container, but the process lives, so its answer is waited for."""
    host.unit("heavy", "activating", "start-post", pid=os.getpid())
    host.service("heavy", url=engine.url)
    rc, text = host("ready", "heavy")
    assert rc == 0 and "ready after" in text, text
    main = subprocess.Popen(["/bin/true"])
    main.wait()
    host.unit("heavy", "activating", "start-post", pid=main.pid)
    rc, text = host("ready", "heavy")
    assert rc == 1 and f"(docker run, pid {main.pid}) has ended" in text


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ("echo running", False),
        ("echo exited", True),
        ("echo dead", True),
        ("echo Cannot connect to the Docker daemon >&2; exit 1", False),
    ],
)
def test_ready_ends_when_docker_says_that_the_container_has_ended(host: Host, answer: str, ends: bool) -> None:
    """While Docker does not answer, the state of the container is unknown."""
    (host.bin / "docker").write_text(f"#!/bin/sh\n{answer}\n")
    host.service("heavy", start_deadline_seconds=1)
    rc, text = host("ready", "heavy")
    assert rc == 1 and ("the container spark-heavy is not running" in text) is ends, text


def test_ready_looks_at_the_container_when_systemd_does_not_answer(host: Host) -> None:
    (host.state / "silent").touch()
    rc, text = host("ready", "heavy")
    assert rc == 1 and "the container spark-heavy is not running" in text


def test_ready_without_main_pid_looks_at_the_container(host: Host) -> None:
    rc, text = host("ready", "heavy")
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


def test_a_folder_that_cannot_be_made_ends_a_start_but_no_stop(host: Host) -> None:
    host.run_dir.write_text("in the way")
    rc, text = host("gate", "heavy")
    assert rc == 1 and text.startswith("spark-unit: gate heavy: ") and str(host.run_dir) in text
    rc, text = host("release", "heavy")
    assert rc == 0 and text.startswith("spark-unit: release heavy: ")


def test_the_checks_of_servers_and_clients_say_how_they_ended(host: Host) -> None:
    program = [sys.executable, str(SCRIPT)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO / "collections")}
    client = [*program, "client", "ready", "http://127.0.0.1:9", "--seconds", "0"]
    done = subprocess.run(client, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "http://127.0.0.1:9 did not reach the requested state" in done.stderr
    server = [*program, "server", "ready", str(host.tmp / "absent.json")]
    done = subprocess.run(server, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "absent.json" in done.stderr


def test_a_long_wait_is_told_every_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [1000.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(spark_unit, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(spark_unit.start_lock, "is_starting", lambda _owner: True)
    (tmp_path / "start.json").write_text('{"unit": "spark-heavy.service", "invocation": "a1"}')
    service = {"unit": "spark-fast.service", "start_deadline_seconds": 121}
    with pytest.raises(spark_unit.Stop, match=r"gave up after 121 s because spark-heavy\.service is"):
        spark_unit.take_lock(service, tmp_path, 1.0)
    assert capsys.readouterr().out.count("spark-fast.service: waits for spark-heavy.service") == 3


def test_the_start_of_a_process_is_told_in_ticks_since_boot() -> None:
    def uptime() -> float:
        return float(Path("/proc/uptime").read_text().split()[0])

    before = uptime()
    process = subprocess.Popen(["/bin/sleep", "60"])
    after = uptime()
    began = int(spark_unit.units.process_start(str(process.pid))) / os.sysconf("SC_CLK_TCK")
    assert before - 0.05 <= began <= after + 0.05
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert spark_unit.units.process_start(str(process.pid)) is None  # a zombie
    process.wait()
    assert spark_unit.units.process_start(str(process.pid)) is None


def test_files_of_kv_caches_are_kept_in_bounds(host: Host) -> None:
    folder = host.tmp / "kv"
    folder.mkdir()
    for number in range(3):
        path = folder / str(number)
        path.write_bytes(bytes(2**20))
        os.utime(path, (time.time() - 10_000 * (3 - number),) * 2)
    host.service("heavy", kv_files={"folder": str(folder), "disk_gib": 2.5 / 1024})
    process = host.start("keep", "all")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == f"spark-unit: {folder}: removed the oldest files, 0.0 GiB\n"
    assert not (folder / "0").exists() and process.poll() is None
    process.kill()
    process.communicate()


def test_only_the_first_rank_of_a_model_has_an_address(host: Host) -> None:
    settings = {"unit": "spark-heavy.service", "model": "heavy", "rank": {"rank": 1}}
    path = host.etc / "services/heavy.json"
    path.write_text(json.dumps(settings))
    assert spark_unit.load_service(host.etc, "heavy") == settings
    for rank, key, missing in ((0, "unit", "unit, url"), (1, "unit", "unit"), (1, "model", "model")):
        path.write_text(json.dumps({**settings, key: None, "rank": {"rank": rank}}))
        with pytest.raises(spark_unit.Stop, match=rf"lacks {missing}; run the playbook again"):
            spark_unit.load_service(host.etc, "heavy")
    for text in ("[]", "7"):
        path.write_text(text)
        with pytest.raises(spark_unit.Stop, match="is not a JSON object"):
            spark_unit.load_service(host.etc, "heavy")


def test_installed_beside_its_library_it_needs_no_variable(host: Host, installed: Any) -> None:
    """The layout on a host, and no compiled files left behind."""
    libexec = installed("host", SCRIPT)
    before = sorted(libexec.rglob("*"))
    process = host.start("gate", "heavy", script=libexec / "spark_unit.py", PYTHONPATH="/nowhere")
    text, _err = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert sorted(libexec.rglob("*")) == before


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
    assert record["ready"]["available_gib"] == 2.063
    took = record["ready"]["clock"] - record["gate"]["clock"]
    assert record["start_seconds"] == pytest.approx(took, abs=0.051) and took > 0

    host.service("fast", memory_gib=0.5)
    assert host("gate", "fast")[0] == 0
    assert read_record(host, "fast")["beside"] == {"spark-heavy.service": 20.001}
    # Neither its own last start counts nor an engine that is still loading.
    host.service("heavy", url=engine.url, memory_gib=0.5)
    assert host("gate", "heavy")[0] == 0
    assert read_record(host, "heavy")["beside"] == {}
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


JOURNALCTL = """#!{python} -SE
import json, pathlib, sys
said = pathlib.Path({state!r}) / "journal"
if "_SYSTEMD_INVOCATION_ID=a1" in sys.argv and said.exists():
    for clock, line in json.loads(said.read_text()):
        print(json.dumps(dict(__MONOTONIC_TIMESTAMP=str(round(clock * 1e6)), MESSAGE=line, __CURSOR="s")))
"""


def test_what_the_stages_of_a_start_took_is_kept(host: Host, engine: Any) -> None:
    path = host.bin / "journalctl"
    path.write_text(JOURNALCTL.format(python=sys.executable, state=str(host.state)))
    path.chmod(0o755)
    host.service("heavy", url=engine.url)
    record = host.tmp / "lib/starts/heavy.json"
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    rc, text = host("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))
    assert rc == 0 and ": what its stages took is not kept: the journal has nothing" in text and not record.exists()
    gate = read_record(host, "heavy")["gate"]["clock"]
    message = [(gate + 0.001, "Initializing a V1 LLM engine"), (gate + 0.002, "torch.compile took 31.5 s in total")]
    (host.state / "journal").write_text(json.dumps(message))
    rc, text = host("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))
    assert rc == 0 and "spark-heavy.service: the start took " in text
    (start,) = json.loads(record.read_text())["starts"]
    assert list(start["stages"]) == ["gate", "arguments", "device"] and start["said"] == {"compile_seconds": 31.5}
    assert start["seconds"] == pytest.approx(sum(start["stages"].values())) and start["launch"] == ""
    # A second start is listed, too, with the launch that Docker tells; a start without a gate is left out.
    (host.state / "fingerprint-spark-heavy").write_text("f00d\n")
    assert host("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))[0] == 0
    assert host("ready", "heavy", INVOCATION_ID="a2", MAINPID=str(os.getpid()))[0] == 0
    (host.state / "broken").touch()
    assert host("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))[0] == 0
    assert [start["launch"] for start in json.loads(record.read_text())["starts"]] == ["", "f00d", ""]
    record.unlink()
    record.mkdir()
    rc, text = host("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))
    assert rc == 0 and "warning: what its stages took is not kept: " in text


# --- load guard -----------------------------------------------------------------------------------------------------

GUARD = {"enabled": True, "floor_gib": 8.0, "interval_seconds": 0.1}
LOADING = "MemTotal: 127535224 kB\nMemFree: {free} kB\nMemAvailable: 90135528 kB\nBuffers: 0 kB\nCached: {cached} kB\nShmem: 0 kB\n"
FULL = {"free": 3 * 2**20, "cached": 40 * 2**20}
EMPTIED = {"free": 42 * 2**20, "cached": 2**20}


class Kernel:
    """Frees the page cache on each write to drop_caches; an engine fills it again."""

    def __init__(self, tree: Any) -> None:
        self.tree, self.dropped, self.compacted = tree, 0, 0
        self.files = [tree.root / f"proc/sys/vm/{name}" for name in ("drop_caches", "compact_memory")]
        for path in self.files:
            path.write_text("")
        self.helps = True
        self.fill()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def fill(self) -> None:
        self.meminfo(FULL)

    def meminfo(self, figures: dict[str, int]) -> None:
        fresh = self.tree.root / "proc/meminfo.new"
        fresh.write_text(LOADING.format(**figures))
        fresh.replace(self.tree.root / "proc/meminfo")

    def _run(self) -> None:
        while not self.over.is_set():
            for path in self.files:
                if path.read_text() == "1\n":
                    path.write_text("")
                    if path.name == "compact_memory":
                        self.compacted += 1
                    else:
                        self.meminfo(EMPTIED if self.helps else FULL)
                        self.dropped += 1
            time.sleep(0.005)

    def until(self, drops: int) -> None:
        give_up = time.monotonic() + 120
        while self.dropped < drops:
            assert time.monotonic() < give_up, f"{self.dropped} drops"
            time.sleep(0.01)

    def quiet(self) -> bool:
        """Whether nobody drops anything any more, though memory is short."""
        before = self.dropped
        self.fill()
        time.sleep(1.0)
        return self.dropped == before


@pytest.fixture
def kernel(host: Host) -> Any:
    kernel = Kernel(host.tree)
    yield kernel
    kernel.over.set()
    kernel.thread.join(5)


def answer_later(host: Host, engine: Any, **settings: Any) -> None:
    """A loading engine: it is not healthy until the test says so."""
    host.service("heavy", url=engine.set(health=503).url, start_deadline_seconds=60, load_guard=GUARD, **settings)


def test_the_guard_drops_caches_until_the_model_answers_and_says_what_it_did(
    host: Host, engine: Any, kernel: Kernel
) -> None:
    answer_later(host, engine)
    host.tree.write("proc/buddyinfo", "Node 0, zone   Normal  900000 100 0 0 0 0 0 0 0 0 0\n")
    assert host("gate", "heavy", INVOCATION_ID="a1")[0] == 0
    kernel.fill()
    process = host.start("ready", "heavy", INVOCATION_ID="a1", MAINPID=str(os.getpid()))
    assert process.stdout is not None
    first = next(line for line in process.stdout if "load guard" in line)
    kernel.fill()
    kernel.until(2)
    engine.set(health=200)
    text, _err = process.communicate(timeout=120)
    assert process.returncode == 0, text
    lines = [first, *(line for line in text.splitlines() if "load guard" in line)]
    assert len(lines) == 2, text
    assert "MemFree was 3.00 GiB, below the floor of 8; dropped caches, 39936 MiB given back" in lines[0]
    assert "dropped caches twice, 79872 MiB given back, compacted memory" in lines[1]
    assert "lowest MemFree 3.00 GiB" in lines[1]
    record = read_record(host, "heavy")
    assert record["load_guard"]["drops"] == 2 and record["load_guard"]["given_back_mib"] == 79872
    assert record["ready"] and kernel.compacted >= 1
    assert kernel.quiet()  # the unit is ready; nothing of the guard is left


def test_the_guard_compares_memory_to_the_kib(host: Host, engine: Any, kernel: Kernel) -> None:
    """MemFree is one KiB below the floor."""
    guard = {**GUARD, "floor_gib": 60}
    host.service("heavy", url=engine.set(health=503).url, start_deadline_seconds=30, load_guard=guard)
    kernel.meminfo({"free": 60 * 2**20 - 1, "cached": 40 * 2**20})
    process = host.start("ready", "heavy", MAINPID=str(os.getpid()))
    assert process.stdout is not None
    first = next(line for line in process.stdout if "load guard" in line)
    engine.set(health=200)
    process.communicate(timeout=120)
    assert "MemFree was 60.00 GiB, below the floor of 60; dropped caches" in first


def test_the_guard_goes_with_a_start_that_fails(host: Host, engine: Any, kernel: Kernel) -> None:
    answer_later(host, engine)
    main = subprocess.Popen(["/bin/sleep", "60"])
    process = host.start("ready", "heavy", MAINPID=str(main.pid))
    kernel.until(1)
    main.kill()
    main.wait()
    text, _err = process.communicate(timeout=120)
    assert process.returncode == 1 and "load guard: dropped caches" in text and "has ended" in text
    assert kernel.quiet()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_guard_never_outlives_the_step_that_it_belongs_to(
    host: Host, engine: Any, kernel: Kernel, number: signal.Signals
) -> None:
    answer_later(host, engine)
    process = host.start("ready", "heavy", MAINPID=str(os.getpid()))
    kernel.until(1)
    process.send_signal(number)
    text, _err = process.communicate(timeout=120)
    assert process.returncode == -number, text  # systemd sees the very signal that it sent
    assert kernel.quiet()
    accounts = [line for line in text.splitlines() if "lowest MemFree" in line]
    assert len(accounts) == (number == signal.SIGTERM), text


@pytest.mark.parametrize("settings", [{}, {"load_guard": {**GUARD, "enabled": False}}], ids=["old settings", "off"])
def test_without_a_guard_nothing_is_dropped_while_it_loads(
    host: Host, engine: Any, kernel: Kernel, settings: dict[str, Any]
) -> None:
    host.service("heavy", url=engine.set(health=503).url, start_deadline_seconds=60, **settings)
    process = host.start("ready", "heavy", MAINPID=str(os.getpid()))
    assert kernel.quiet()
    engine.set(health=200)
    text, _err = process.communicate(timeout=120)
    assert process.returncode == 0 and "load guard" not in text


def test_drops_that_do_not_help_do_not_go_on_every_time(host: Host, engine: Any, kernel: Kernel) -> None:
    kernel.helps = False
    answer_later(host, engine)
    process = host.start("ready", "heavy", MAINPID=str(os.getpid()))
    kernel.until(2)
    engine.set(health=200)
    text, _err = process.communicate(timeout=120)
    assert process.returncode == 0
    account = next(line for line in text.splitlines() if "lowest MemFree" in line)
    looks = int(account.split(" of ")[1].split()[0])
    assert kernel.dropped <= looks / 2 + 1 and "0 MiB given back" in account, account


def test_a_kernel_that_refuses_is_said_once_and_costs_no_start(host: Host, engine: Any) -> None:
    host.tree.write("proc/meminfo", LOADING.format(**FULL))
    shutil.rmtree(host.tree.root / "proc/sys")
    answer_later(host, engine)
    process = host.start("ready", "heavy", MAINPID=str(os.getpid()))
    assert process.stdout is not None
    text = next(line for line in process.stdout if "refuses to drop" in line)
    time.sleep(0.3)  # it looks again meanwhile
    engine.set(health=200)
    text += process.communicate(timeout=120)[0]
    assert process.returncode == 0 and text.count("the kernel refuses to drop") == 1, text


@pytest.mark.parametrize(
    ("cached", "buffers", "shmem", "drops"),
    [(10, 0, 0, True), (0, 10, 0, True), (10, 0, 10, False), (0.25, 0.25, 0, True), (0.39999, 0, 0, False)],
)
def test_the_guard_drops_what_the_kernel_can_give_back(
    tree: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cached: float,
    buffers: float,
    shmem: float,
    drops: bool,
) -> None:
    """Shared memory counts as cached, and cannot be dropped; less than 0.4 GiB is not worth it."""
    kib = {"MemFree": 3, "Buffers": buffers, "Cached": cached, "Shmem": shmem}
    tree.write("proc/meminfo", "".join(f"{name}: {int(gib * 2**20)} kB\n" for name, gib in kib.items()))
    service = {"unit": "spark-heavy.service", "sysroot": str(tree.root), "load_guard": GUARD}
    dropped: list[str] = []

    def drop(root: str, clean_only: bool) -> dict[str, int]:
        dropped.append(root)
        return {"freed_mib": 0}

    monkeypatch.setattr(spark_unit.hostmem, "drop_caches", drop)
    with spark_unit.LoadGuard(service, tmp_path) as guard:
        running, give_up = guard.guard, time.monotonic() + 60
        while running.looks < 2:
            assert time.monotonic() < give_up
            time.sleep(0.01)
    assert set(dropped) == ({str(tree.root)} if drops else set())


def test_the_guard_ends_with_the_start(tree: Any, tmp_path: Path) -> None:
    tree.write("proc/meminfo", LOADING.format(**EMPTIED))
    service = {"unit": "spark-heavy.service", "sysroot": str(tree.root), "load_guard": GUARD}
    with spark_unit.LoadGuard(service, tmp_path, goes_on=lambda: False) as guard:
        running = guard.guard
        guard.thread.join(5)
        assert not guard.thread.is_alive() and running.looks == 0
        assert guard.status() == ""
    with spark_unit.LoadGuard(service, tmp_path) as guard:
        pass
    assert not guard.thread.is_alive() and guard.status() == ""


def test_what_the_guard_does_is_in_systemctl_status(host: Host, engine: Any, kernel: Kernel) -> None:
    answer_later(host, engine)
    name = f"\0dgxspark-guard-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
        notes.bind(name)
        notes.settimeout(120)
        process = host.start("ready", "heavy", MAINPID=str(os.getpid()), NOTIFY_SOCKET="@" + name[1:])
        assert notes.recv(4096).decode() == "STATUS=load guard: caches dropped once, 39936 MiB"
        engine.set(health=200)
        process.communicate(timeout=120)
        assert notes.recv(4096).decode().startswith("STATUS=load guard: dropped caches once, 39936 MiB given back")


# --- Ollama ---------------------------------------------------------------------------------------------------------


class Ollama:
    """Answers as Ollama does: /api/ps lists loaded models, keep_alive 0 unloads, some only after a while."""

    def __init__(self, models: dict[str, int]) -> None:
        outer = self
        self.models, self.slow, self.broken = dict(models), 0, False
        self.asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, body: Any, status: int = 200) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                outer.slow -= 1
                if outer.asked and outer.slow <= 0:
                    for name in outer.asked:
                        outer.models.pop(name, None)
                self.answer(
                    []
                    if outer.broken
                    else {"models": [{"name": n, "model": n, "size": s} for n, s in outer.models.items()]}
                )

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/api/generate" and body["keep_alive"] == 0, body
                outer.asked.append(body["model"])
                self.answer({"model": body["model"], "done": True, "done_reason": "unload"})

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def ollama(host: Host) -> Any:
    ollama = Ollama({"llama3.2:3b": 3 * 2**30, "nomic-embed-text:latest": 2**29})
    (host.etc / "ollama.json").write_text(json.dumps({"url": ollama.url}))
    yield ollama
    ollama.server.shutdown()
    ollama.server.server_close()


def test_the_gate_has_ollama_unload_its_models_first(host: Host, ollama: Ollama) -> None:
    ollama.slow = 3  # a model that answers goes a moment later
    rc, text = host("gate", "heavy")
    assert rc == 0 and sorted(ollama.asked) == ["llama3.2:3b", "nomic-embed-text:latest"] and not ollama.models
    lines = [line.split(": ", 1)[1] for line in text.splitlines()]
    assert "Ollama unloaded llama3.2:3b (3.00 GiB), nomic-embed-text:latest (0.50 GiB) in" in lines[0], text
    assert "dropped the page cache" in lines[1]


def test_an_ollama_without_models_is_no_word_worth(host: Host, ollama: Ollama) -> None:
    ollama.models.clear()
    rc, text = host("gate", "heavy")
    assert rc == 0 and "Ollama" not in text and not ollama.asked


def test_an_ollama_that_is_gone_is_no_error(host: Host) -> None:
    (host.etc / "ollama.json").write_text('{"url": "http://127.0.0.1:9"}')
    rc, text = host("gate", "heavy")
    assert rc == 0 and "Ollama" not in text and "memory is there" in text


@pytest.mark.parametrize("settings", ["{", "[]", '{"url": 5}', '{"url": "file:///etc/passwd"}'])
def test_settings_of_ollama_that_cannot_be_read_are_a_warning(host: Host, settings: str) -> None:
    (host.etc / "ollama.json").write_text(settings)
    rc, text = host("gate", "heavy")
    assert rc == 0 and "ollama.json cannot be read, Ollama is left alone" in text


def test_something_else_on_its_port_is_no_error(host: Host, ollama: Ollama) -> None:
    ollama.broken = True
    rc, text = host("gate", "heavy")
    assert rc == 0 and "memory is there" in text
