"""The logic of the runners in scripts/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import common
import demo
import newcomer
import pytest
import scenarios
import suite
import suite_checks
import suite_molecule
import tutorial
import yaml
from common import ROOT, tool_env


class Chat(BaseHTTPRequestHandler):
    """Answers one model with the key it was sent; refuses others."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_served = body["model"] == "heavy"
        question = body["messages"][0]["content"]
        text = "" if question == "nothing" else f"{self.headers['Authorization']} says {question}"
        message = {"content": None, "reasoning": text} if "thoughts" in text else {"content": text}
        answer = {"choices": [{"message": message}]} if is_served else {"error": {"message": "no such model"}}
        self.send_response(200 if is_served else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[str]:
    """URL of a chat server."""
    http = HTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_the_demo_chats_with_its_own_key(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "API_KEY", tmp_path / "demo" / "api_key")
    demo.make_api_key()
    key = demo.API_KEY.read_text()
    assert demo.API_KEY.stat().st_mode & 0o777 == 0o600 and key.startswith("demo-")
    demo.make_api_key()
    assert demo.API_KEY.read_text() == key
    assert demo.chat(server, "heavy") == f"Bearer {key.strip()} says {demo.QUESTION}"
    service = {"url": "http://10.87.0.11:8001", "unit": "spark-heavy.service"}
    assert "spark@10.87.0.11 systemctl status spark-heavy.service" in demo.look_around(service)


@pytest.mark.parametrize(
    ("output", "ok", "passed", "failed"),
    [
        ("......\n6 passed in 1.2s\n", True, 6, 0),
        ("= 2 failed, 5 passed, 1 skipped in 3.00s =\n", False, 5, 2),
        ("1 passed in 0.1s\nmore\n3 passed, 1 warning in 0.2s\n", True, 4, 0),
        ("lint is clean\n", True, 1, 0),
        ("lint is not clean\n", False, 0, 1),
        ("4 passed in 0.1s\n", False, 4, 1),
    ],
)
def test_counting(output: str, ok: bool, passed: int, failed: int) -> None:
    result = suite_checks.Result("x", ok, 0.0, output)
    suite_checks.count_tests(result)
    assert (result.passed, result.failed) == (passed, failed)


def test_failures_name_the_tests_or_the_last_failed_task() -> None:
    pytest_log = "...F\nE   assert 1 == 2\nFAILED tests/a.py::test_a - assert 1 == 2\n1 failed in 0.1s\n"
    fatal = [f"fatal: [spark-{number}]: FAILED! => {{}}" for number in (1, 2, 3)]
    results = [
        suite_checks.Result("fine", True, 0.0, "FAILED is what a passing check may print\n"),
        suite_checks.Result("unit", False, 0.0, pytest_log),
        suite_checks.Result("scenario lock", False, 0.0, "\n".join(["TASK [Start it]", *fatal, "PLAY RECAP"])),
        suite_checks.Result("mypy", False, 0.0, "1\n2\n3\n" + "4" * 1000),
        suite_checks.Result("scenario site", True, 0.0, "1 passed in 0.1s\n", first_output=pytest_log),
    ]
    assert suite_checks.failures(results) == [
        "   FAILED unit",
        "   | FAILED tests/a.py::test_a - assert 1 == 2",
        "   FAILED scenario lock",
        *(f"   | {line}" for line in fatal[-2:]),
        "   FAILED mypy",
        "   | 2",
        "   | 3",
        "   | " + "4" * suite_checks.FAILURE_WIDTH,
        "   FAILED ONCE, then passed: scenario site",
        "   | FAILED tests/a.py::test_a - assert 1 == 2",
    ]


@pytest.mark.parametrize(
    ("failed", "broken", "passed", "ok"), [(0, 0, 9, True), (2, 0, 9, True), (2, 1, 8, False), (6, 0, 3, False)]
)
def test_the_few_unit_tests_that_fail_are_tried_once_more_alone(
    failed: int, broken: int, passed: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def execute(check: suite_checks.Check) -> suite_checks.Result:
        (argv,) = check.commands
        ran.append(argv)
        alone = "--last-failed" in argv
        bad = broken if alone else failed
        good = failed - broken if alone else 9 - failed
        return suite_checks.Result(check.label, bad == 0, 0.0, f"FAILED {bad}\n", passed=good, failed=bad)

    monkeypatch.setattr(suite, "execute", execute)
    (result,) = suite.unit(False, "-m", "not slow")
    assert (result.ok, result.passed, result.failed) == (ok, passed, failed if failed > suite_checks.FEW else broken)
    assert bool(result.first_output) == (len(ran) == 2) == (0 < failed <= suite_checks.FEW)
    assert all(argv[-5:] == ["-m", "not slow", "tests/unit", "tests/repo", "tests/monitoring"] for argv in ran)


@pytest.mark.parametrize(("codes", "ok", "first"), [([0], True, False), ([1, 0], True, True), ([1, 1], False, True)])
def test_a_scenario_that_fails_is_tried_once_more_on_new_nodes(
    codes: list[int], ok: bool, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[tuple[str, ...]] = []
    remaining = list(codes)

    def attempt(name: str, lane: str) -> suite_checks.Result:
        code = remaining.pop(0)
        return suite_checks.Result(
            f"scenario {name}", code == 0, 0.0, f"FAILED attempt {len(remaining)}\n" if code else ""
        )

    def sparksim(*argv: str) -> int:
        nodes.append(argv[1:])
        return 0

    monkeypatch.setattr(suite_molecule, "run", sparksim)
    (result,) = suite_molecule.scenario_runs("test", ["lock"], attempt)
    assert (result.ok, bool(result.first_output), remaining) == (ok, first, [])
    assert nodes == [(verb, "--set", "test") for verb in ("down", "up")] * len(codes)


@pytest.mark.parametrize(("codes", "ok"), [([0], True), ([1, 0], True), ([1, 1], False)])
def test_the_ring_that_fails_once_runs_again_on_new_nodes(
    codes: list[int], ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining, booted = list(codes), []

    def molecule(name: str, lane: str, seconds: float | None = None) -> suite_checks.Result:
        assert (name, lane) == (suite_molecule.RING, "ring") and seconds
        return suite_checks.Result(f"scenario {name}", remaining.pop(0) == 0, 0.0, f"attempt {len(remaining)}\n")

    def sparksim(*argv: Any, **_options: Any) -> int:
        booted.append(argv[1])
        return 0

    monkeypatch.setattr(suite_molecule, "molecule_run", molecule)
    monkeypatch.setattr(suite_molecule, "run", sparksim)
    result = suite_molecule.ring_run()
    assert (result.ok, remaining, bool(result.first_output)) == (ok, [], len(codes) > 1)
    assert booted == ["down", "up", "down"] * len(codes)


def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo begun; sleep 600 & wait"]
    code, output = suite_molecule.shown(argv, "x", tmp_path, tool_env(), seconds=0.5)
    assert code != 0 and output == "begun\nit was ended after 0.5 s\n"
    assert suite_molecule.shown(["sh", "-c", "echo done"], "x", tmp_path, tool_env(), seconds=600) == (0, "done\n")


def test_a_scenario_without_nodes_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_molecule, "run", lambda *argv: int(argv[1] == "up"))
    (result,) = suite_molecule.scenario_runs("test", ["lock"], lambda name, lane: pytest.fail("it was tried"))
    assert not result.ok and "not up" in result.output


def test_some_scenarios_run_at_night_alone() -> None:
    each_change, night = set(suite_molecule.scenarios_of(False)), set(suite_molecule.scenarios_of(True))
    assert night - each_change == set(suite_molecule.NIGHTLY) and night == set(scenarios.names()) - {
        suite_molecule.RING
    }


def test_a_scenario_is_what_molecule_makes_of_its_files() -> None:
    steps = {step.name: step for step in scenarios.steps("spread")}
    assert list(steps) == ["prepare", "check", "converge", "idempotence", "verify"]
    inventories = [f"--inventory={ROOT}/molecule/{name}inventory.yml" for name in ("", "spread/")]
    assert steps["check"].argv == ["ansible-playbook", *inventories, "--diff", "--check", "converge.yml"]
    assert steps["converge"].argv == ["ansible-playbook", *inventories, "converge.yml"], (
        "no question more for each file"
    )
    assert steps["verify"].argv == [
        "pytest",
        "--hosts=ssh://spark-1,ssh://spark-2",
        f"--ssh-config={ROOT}/molecule/ssh_config",
        "--sudo",
        "tests/test_spread.py",
    ]
    # A scenario without separate settings, and the optional parts of scenarios.
    sequence = scenarios.config("roles")["scenario"]["test_sequence"]
    assert sequence == ["prepare", "check", "converge", "idempotence", "verify", "cleanup"]
    roles = scenarios.steps("roles")
    assert [step.name for step in roles] == ["prepare", "converge", "verify", "cleanup"]
    # The nightly part of its preparation, and a nightly inventory.
    assert (
        roles[0].argv[-3:] == ["--skip-tags", "nightly", "prepare.yml"] and "--skip-tags" not in steps["prepare"].argv
    )
    words = scenarios.config("rollout")["ansible"]["executor"]["args"]["ansible_playbook"]
    further = [word for word in words if word not in scenarios.steps("rollout")[1].argv]
    assert further == [f"--inventory={ROOT}/molecule/rollout/nightly/inventory.yml"]
    for name, left_out in scenarios.NIGHTLY_STEPS.items():
        assert set(left_out) <= set(scenarios.config(name)["scenario"]["test_sequence"])
    assert set(suite_molecule.SLOWEST) <= set(suite_molecule.scenarios_of(False))


@pytest.mark.parametrize(("changed", "holds"), [("changed=0 ", True), ("changed=3 ", False), ("changed=10 ", False)])
def test_a_second_run_that_changes_something_fails(changed: str, holds: bool) -> None:
    recap = f"spark-1 : ok=4 {changed} unreachable=0\n"
    assert scenarios.Step("idempotence", []).holds(0, recap) is holds
    assert scenarios.Step("converge", []).holds(0, recap) and not scenarios.Step("converge", []).holds(2, recap)


QUICK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "asked by {{ lookup('env', 'WHO') }}"
    - ansible.builtin.pause: {seconds: "{{ seconds }}"}
    - ansible.builtin.fail: {msg: the end}
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_quick_ansible_is_the_program_and_ends_with_who_asked(tmp_path: Path) -> None:
    """Its exit code, its output, its environment; started anew where the settings are others; killed with its client."""
    book = tmp_path / "book.yml"
    book.write_text(QUICK, encoding="utf-8")
    env = {**tool_env(), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "WHO": "a test"}

    def argv(seconds: int) -> list[str]:
        return [
            str(quick / "ansible-playbook"),
            "-i",
            "localhost,",
            "-c",
            "local",
            "-e",
            f"seconds={seconds}",
            str(book),
        ]

    with scenarios.quick_ansible(env, tmp_path / "quick") as quick:
        ran = subprocess.run(argv(0), env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 2 and "asked by a test" in ran.stdout and "the end" in ran.stdout + ran.stderr
        other = {**env, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal"}
        cold = subprocess.run(argv(0), env=other, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert cold.returncode == 2 and "PLAY RECAP" in ran.stdout and "PLAY RECAP" not in cold.stdout
        mark = str(tmp_path)
        with subprocess.Popen(argv(60), env={**env, "WHO": mark}, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            while mark not in (line := client.stdout.readline()):
                assert line, "it ended before its time"
            client.kill()
            began = time.monotonic()
            # The pipe is closed when the last process that writes to it has ended.
            client.stdout.read()
            assert time.monotonic() - began < 30


def test_artifact_check_finds_what_is_too_much_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "README.md",
        "plugins/modules/a.py",
        "tests/unit/x.py",
        "roles/host/molecule/x.yml",
        "plugins/modules/a.pyc",
    ]
    manifest = {"files": [{"name": name, "ftype": "file"} for name in names]}
    (tmp_path / "FILES.json").write_text(json.dumps(manifest), encoding="utf-8")
    monkeypatch.setattr(suite, "tracked_files", lambda *_: ["plugins/modules/a.py", "plugins/modules/b.py"])
    assert suite.shipped_files(tmp_path).output.splitlines() == [
        "should not be shipped: plugins/modules/a.pyc",
        "should not be shipped: roles/host/molecule/x.yml",
        "should not be shipped: tests/unit/x.py",
        "not shipped: plugins/modules/b.py",
    ]


def test_what_a_newcomer_types_is_what_the_pages_say_and_no_host_is_contacted() -> None:
    first, quick = tutorial.commands(*newcomer.README), tutorial.commands(newcomer.QUICK_START)
    assert newcomer.installing() == quick[:2] and {command.plain for command in first} <= {line.plain for line in quick}
    (inventory,) = [command.text for command in quick if "<<" in command.text]
    assert inventory.endswith("\nEOT") and "spark_services" in inventory
    typed = [command.text for command in newcomer.script() if command.text.startswith("ansible-playbook ")]
    assert len(typed) >= 4
    for line in typed:
        assert line.endswith("--syntax-check") or "dgxspark.vllm.plan " in f"{line} ", line


def test_a_newcomer_plans_each_inventory_of_the_tutorials_with_the_exit_code_of_the_page() -> None:
    page = tutorial.commands(newcomer.TUTORIALS)
    planned = [command for command in page if "dgxspark.vllm.plan" in command.text]
    assert {command.text.split()[2] for command in planned} == {"~/my-tutorial", "~/my-rack", "~/my-ring"}
    assert {command.code for command in planned} == {0, 2}
    typed = newcomer.script()
    assert [command for command in typed if command in planned] == planned
    assert [command for command in typed if command in page] == [
        command for command in page if not newcomer.contacts_hosts(command)
    ]
    assert not [command.text for command in typed if command.text.startswith("ssh ")]


PAGE = """# A page

```console
$ make it   # now
made 3 things
...
$ cat > hosts.yml <<'EOT'
# sparks:
EOT
$ cd /tmp
$ false
no
$ echo $?
1
```

## Below

```console
$ make that
```

```sh
no console
```
"""


def test_commands_of_a_page_are_read_with_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tutorial, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    first, heredoc, change, failing, below = tutorial.commands("page.md")
    assert (first.text, first.plain, first.shown) == ("make it   # now", "make it", ("made 3 things", "..."))
    assert heredoc.text == "cat > hosts.yml <<'EOT'\n# sparks:\nEOT" and not heredoc.shown
    assert (failing.text, failing.shown, failing.code) == ("false", ("no",), 1)
    assert tutorial.commands("page.md", "A page") == [first, heredoc, change, failing]
    assert tutorial.commands("page.md", "Below") == [below]
    assert first.missing("x\n  made 14.5 things\n") == []
    assert first.missing("made three things") == ["made 3 things"]
    assert failing.problem(1, "no") == ""
    assert "exit code 0, where the page has 1" in failing.problem(0, "no")
    assert "['no']" in failing.problem(1, "yes")
    assert tutorial.Typed("pwd", ("~/sub",)).problem(0, "/home/me/sub", "/home/me") == ""


def test_ssh_of_a_terminal_knows_simulated_sparks_by_the_names_of_a_page(tmp_path: Path) -> None:
    tutorial.named(tmp_path, {"spark-1": "10.88.0.11", "spark-2": "10.88.0.12"})
    argv = [str(tmp_path / "ssh"), "-G", "spark-2"]
    settings = subprocess.run(
        argv, capture_output=True, text=True, check=True, env={"PATH": "/nowhere"}
    ).stdout.splitlines()
    assert {"hostname 10.88.0.12", "user spark", "identitiesonly yes"} <= set(settings)


def test_a_terminal_remembers_folder_and_variables_and_keeps_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    typed = tutorial.Terminal(tmp_path, {"PATH": os.environ["PATH"]}, tmp_path / "state", log, (f"{tmp_path}",))
    assert typed.type("mkdir sub && cd sub && export A='b\nc'") == (0, "")
    assert typed.type('printf "%s" "$A"; pwd; exit 3') == (3, f"b\nc{tmp_path}/sub\n")
    assert typed.type("false | true")[0] == 1
    assert "$ false | true" in log.read_text() and "/sub\n" in log.read_text() and str(tmp_path) not in log.read_text()


def test_what_a_simulated_spark_has_instead(tmp_path: Path) -> None:
    variables = yaml.safe_load(tutorial.simulated("10.88", {"spark-1": "11"}, spark_extra=1))
    assert (
        variables["spark_gpu_args"] == []
        and variables["spark_extra"] == 1
        and "10.88.0.11" in variables["ansible_host"]
    )
    assert "ansible_host" not in yaml.safe_load(tutorial.simulated("10.88", {}))


def test_git_of_our_trees_obeys_no_other_repository_and_runs_no_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook such as pre-commit tells git by variables which repository and index it is about."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, value in {"GIT_DIR": "elsewhere", "GIT_INDEX_FILE": "elsewhere", "GIT_WORK_TREE": "elsewhere"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    common.git("init", "--quiet", root=tree)
    for name, value in {"core.fsmonitor": str(program), "core.hooksPath": str(tmp_path)}.items():
        common.git("config", name, value, root=tree)
    shutil.copy2(program, tmp_path / "post-index-change")
    (tree / "a.py").touch()
    common.git("add", "--all", root=tree)
    assert common.tracked_files(root=tree) == ["a.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["post-index-change", "program", "tree"]


# --- environments of tests -----------------------------------------------------------------------------------------------------


def test_a_partial_environment_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks that run at the same time share one creation; a program or package that is gone means a new one."""
    listed = tmp_path / "requirements.txt"
    listed.write_text(
        "Open.WebUI[all]==0.12.4 \\\n    --hash=sha256:00\nplain==1.0\nwindows==1.0 ; sys_platform == 'win32' \\\n"
    )
    created: list[Path] = []

    def create(place: Path, _listed: Path) -> None:
        created.append(place)
        for name in ("open_webui-0.12.4", "Plain-1.0"):
            (place / f"lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
        entries = place / "lib/python3.11/site-packages/open_webui-0.12.4.dist-info/entry_points.txt"
        entries.write_text("[console_scripts]\nopen-webui = open_webui:app\n")
        (place / "bin").mkdir()
        for name in ("bin/open-webui", "complete"):
            (place / name).touch()

    monkeypatch.setattr(common, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(common, "create_environment", create)
    with ThreadPoolExecutor(4) as pool:
        pythons = set(pool.map(lambda _number: common.environment("webui", listed), range(4)))
    assert pythons == {created[0] / "bin/python"} and len(created) == 1
    (created[0] / "bin/open-webui").unlink()
    assert common.missing_packages(created[0], listed) == ["Open.WebUI"]
    common.environment("webui", listed)
    assert len(created) == 2 and common.missing_packages(created[0], listed) == []
    shutil.rmtree(created[0] / "lib/python3.11/site-packages/Plain-1.0.dist-info")
    assert common.missing_packages(created[0], listed) == ["plain"]
