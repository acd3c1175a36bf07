"""A running site that is looked at, changed, hurt and rebooted. The tests run in order on the shared nodes."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

sys.path[:0] = [str(Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / name) for name in ("molecule", "collections")]

from nodes import NODES, SUBNET, container, copy, node, write

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import sockets

ROOT = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"])
BASE = ROOT / "molecule" / "inventory.yml"
SITE = ROOT / "molecule" / "site" / "inventory.yml"
KEY = "molecule-secret-key"
URLS = {
    "heavy": f"http://{SUBNET}.0.11:8001",
    "fast": f"http://{SUBNET}.0.11:8002",
    "tiny": f"http://{SUBNET}.0.12:8003",
}


@pytest.fixture(scope="session")
def play(tmp_path_factory):
    """Run a playbook of the collection as a person would; returns its exit code and all that it printed."""

    def run(playbook, *options, services=None, inventory=SITE):
        inventories = ["-i", str(BASE), "-i", str(inventory)]
        if services is not None:
            extra = tmp_path_factory.mktemp("inventory") / "zz.yml"
            hosts = {name: {"spark_services": entries} for name, entries in services.items()}
            extra.write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}), encoding="utf-8")
            inventories += ["-i", str(extra)]
        ran = subprocess.run(
            ["ansible-playbook", *inventories, f"dgxspark.vllm.{playbook}", *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        )
        return ran.returncode, ran.stdout + ran.stderr

    return run


def services():
    inventory = yaml.safe_load(SITE.read_text(encoding="utf-8"))
    return {name: host["spark_services"] for name, host in inventory["sparks"]["hosts"].items()}


def recap(text, host):
    match = re.search(rf"^{host}\s*: (.*)$", text.split("PLAY RECAP")[1], re.MULTILINE)
    return dict(part.split("=") for part in match.group(1).split())


def unit(name, *properties, host="spark-1"):
    # A node that is booting has no systemd to ask yet.
    shown = node(host, "systemctl", "show", f"spark-{name}.service", "--property=" + ",".join(properties), check=False)
    return {**dict.fromkeys(properties, ""), **dict(line.split("=", 1) for line in shown.splitlines())}


def chat(name):
    body = json.dumps({"model": name, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    request = urllib.request.Request(
        URLS[name] + "/v1/chat/completions",
        data=body,
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        message = json.loads(reply.read())["choices"][0]["message"]
    # The scripted model closes no thinking, so its reasoning parser takes all that it says.
    return message["content"] or message["reasoning"]


def wait(condition, seconds, description):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(1)
    pytest.fail(f"not within {seconds} s: {description}")


def active(name, host="spark-1"):
    return unit(name, "ActiveState", host=host)["ActiveState"] == "active"


def test_every_model_answers():
    for name in URLS:
        assert chat(name)


@pytest.mark.nightly
def test_a_flushed_firewall_is_found_by_a_run_that_has_nothing_else_to_do(play):
    node("spark-1", "nft", "delete", "table", "inet", "dgxspark")
    code, text = play("site", "--limit", "spark-1")
    assert code == 0, text
    assert "8001" in node("spark-1", "nft", "list", "table", "inet", "dgxspark")


@pytest.mark.nightly
def test_who_is_not_named_gets_no_answer():
    """The other node is a stranger: only the controller is named."""
    ask = ["curl", "--silent", "--output", "/dev/null", "--max-time", "2", "--write-out", "%{http_code}"]
    for name, path in itertools.product(URLS, ("/v1/models", "/health", "/invocations")):
        stranger = "spark-2" if name != "tiny" else "spark-1"
        assert node(stranger, *ask, URLS[name] + path, check=False) == "000", (name, path)


def test_what_the_real_engine_answers_without_its_key_is_what_the_catalogue_says():
    """vLLM itself lists its paths; those that its key does not guard answer anything but 401."""
    plan = json.loads((ROOT / ".cache" / "molecule" / SUBNET / "plan.json").read_text(encoding="utf-8"))
    (tiny,) = plan["hosts"]["spark-2"]["services"]
    open_paths = sockets.open_paths(tiny["vllm_version"], tiny["env"], tiny["args"])
    with urllib.request.urlopen(URLS["tiny"] + "/openapi.json", timeout=30) as answer:
        paths = json.loads(answer.read())["paths"]
    free = set()
    for path, methods in paths.items():
        method = "POST" if "post" in methods else next(iter(methods)).upper()
        filled = re.sub("{[a-z_]+}", "none", path)
        request = urllib.request.Request(URLS["tiny"] + filled, data=b"[]" if method == "POST" else None, method=method)
        try:
            urllib.request.urlopen(request, timeout=30).close()
            code = 200
        except urllib.error.HTTPError as refused:
            code = refused.code
        if code != 401:
            free.add(path)
    assert {"/invocations", "/tokenize"} <= free
    assert sorted(free - set(open_paths)) == [], "open, and not in the catalogue"
    assert [path for path in open_paths if path in paths and path not in free] == [], "in the catalogue, and not open"


@pytest.mark.nightly
def test_applying_everything_once_more_changes_nothing(play):
    code, text = play("site", "-e", "spark_apply_all=true")
    assert code == 0, text
    for host in NODES:
        counted = recap(text, host)
        assert counted["changed"] == "0"
        # Nine reach the host, and ten more for the firewall.
        assert 11 < int(counted["ok"]) <= 36


def test_what_was_changed_by_hand_is_found_and_put_back(play):
    """Each of them is enough for a host to be looked at by all roles."""
    content = node("spark-1", "cat", "/etc/dgxspark/env/fast.env")
    node(
        "spark-1", "sh", "-c", "echo '# by hand' >> /etc/dgxspark/services/heavy.json; chmod 0777 /etc/dgxspark/secrets"
    )
    node("spark-2", "systemctl", "disable", "spark-tiny.service")
    code, text = play("site", "--diff")
    assert code == 0, text
    assert "# by hand" in text and KEY not in text
    assert "by hand" not in node("spark-1", "cat", "/etc/dgxspark/services/heavy.json")
    assert node("spark-1", "stat", "-c", "%a", "/etc/dgxspark/secrets").strip() == "700"
    assert node("spark-1", "cat", "/etc/dgxspark/env/fast.env") == content
    assert unit("tiny", "UnitFileState", host="spark-2") == {"UnitFileState": "enabled"}


def test_a_second_run_changes_nothing_in_few_tasks(play):
    """Not even behind a run that has put something back."""
    code, text = play("site")
    assert code == 0, text
    for host in NODES:
        counted = recap(text, host)
        assert counted["changed"] == "0"
        # Five reach the host; the others check arguments and keep facts on the controller.
        assert int(counted["ok"]) <= 11


def test_status_says_ready(play):
    code, text = play("status")
    assert code == 0, text
    assert len(re.findall(r"active\s+yes", text)) == 3, text


def test_doctor_finds_what_is_broken_and_nothing_of_it_before(play, tmp_path):
    dest = tmp_path / "doctor.json"

    def findings():
        code, text = play("doctor", "-e", f"spark_doctor_file={dest}", "-e", "spark_doctor_fail_on=never")
        assert code == 0, text
        entries = json.loads(dest.read_text(encoding="utf-8"))["findings"]
        return {(finding["host"], finding["service"], finding["rule"]) for finding in entries}

    rules = {rule for _host, _service, rule in findings()}
    assert {
        rule for rule in rules if re.match(r"doctor\.(unit|no_|not_|answer|receipt|unreach|image_moved)", rule)
    } == set()
    node("spark-1", "systemctl", "stop", "spark-fast.service")
    stopped = time.monotonic()
    try:
        code, text = play("doctor", "-e", f"spark_doctor_file={dest}")
        assert code == 2 and "doctor.unit_stopped" in text, text
        report = json.loads(dest.read_text(encoding="utf-8"))["findings"]
        assert [(row["host"], row["service"]) for row in report if row["rule"] == "doctor.unit_stopped"] == [
            ("spark-1", "fast")
        ]
        code, text = play("status", "-e", f"spark_status_file={dest}")
        assert code == 2 and "1 of 3 services are not ready: spark-1/fast" in text, text
        assert json.loads(dest.read_text(encoding="utf-8"))["services"][0]["state"] == "down"
        # Services stopped on purpose stay stopped: nothing of the unit's starts them again.
        time.sleep(max(0.0, stopped + 12 - time.monotonic()))
        assert unit("fast", "ActiveState")["ActiveState"] == "inactive"
    finally:
        node("spark-1", "systemctl", "start", "spark-fast.service")
    wait(lambda: active("fast"), 120, "fast is active again")


@pytest.mark.nightly
def test_a_silent_node_is_a_row_and_has_no_bundle(play, tmp_path):
    """Paused as a whole, as a host is that has frozen: it takes connections and answers nothing."""
    # The connection that an earlier run has kept open would be waited for without an end.
    new = ["--timeout", "5", "-e", "ansible_control_path=none"]
    container("spark-2").pause()
    try:
        code, text = play("status", "-e", "spark_status_show=groups", *new)
        assert code == 2 and "UNREACHABLE  spark-2: " in text, text
        assert "1 of 2 hosts did not answer: spark-2" in text
        code, text = play("support_bundle", "-e", f"spark_support_dir={tmp_path}", *new)
        assert code == 2 and "1 of 2 hosts have no bundle: spark-2 (" in text, text
        assert (tmp_path / "spark-1.tar.gz").exists() and not (tmp_path / "spark-2.tar.gz").exists()
    finally:
        container("spark-2").unpause()


def test_a_support_bundle_has_no_secrets(play, tmp_path):
    planted = "/var/lib/dgxspark/receipts/planted.json"
    token = "hf_" + "PlantedToken" * 3
    text = json.dumps({"key": KEY, "line": f"Authorization: Bearer {KEY}", "other": token})
    write("spark-1", planted, text)
    try:
        code, text = play("support_bundle", "-e", f"spark_support_dir={tmp_path}")
    finally:
        node("spark-1", "rm", planted)
    assert code == 0, text
    for host in NODES:
        with tarfile.open(tmp_path / f"{host}.tar.gz") as archive:
            files = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
        everything = "\n".join(files.values())
        assert KEY not in everything and token not in everything and "PlantedToken" not in everything
        assert {"facts.json", "plan.json", "docker/inspect.json", "MANIFEST.json"} <= set(files)
        assert any(name.startswith("journal/spark-") for name in files) and any(
            name.startswith("metrics/") for name in files
        )
        if host == "spark-1":
            assert files["files" + planted].count("<redacted>") == 3


@pytest.mark.nightly
@pytest.mark.parametrize("tag", ["host", "images", "models", "service", "prove"])
def test_each_tag_works_alone(play, tag):
    code, text = play("site", "--tags", tag)
    assert code == 0, text
    assert recap(text, "spark-1")["changed"] == "0"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"recipe": "qwen3-8"}, "unknown recipe 'qwen3-8'; did you mean 'qwen3-8b'?"),
        ({"prot": 1}, "unknown key 'prot'; did you mean 'port'?"),
        ({"port": 8001}, "port 8001 is used twice"),
        ({"weights_gib": -5}, "'weights_gib' is -5"),
        ({"model": {"repo": "Org/$(touch /tmp/pwned);%n"}}, "'model.repo' is 'Org/$(touch /tmp/pwned);%n'"),
    ],
)
def test_bad_input_stops_before_any_host(play, change, needle):
    changed = services()
    changed["spark-1"][1].update(change)
    code, text = play("site", services=changed)
    assert code != 0
    assert needle in text
    assert "no host was touched" in text
    assert "Compare the host with the plan" not in text
    assert not Path("/tmp/pwned").exists()


@pytest.mark.nightly
def test_the_first_failure_of_the_document_is_refused_in_vllms_words(play):
    changed = services()
    changed["spark-1"][0]["args"] = {"gpu-memory-utilization": 0.85}
    changed["spark-1"][1]["args"] = {"gpu-memory-utilization": 0.12}
    code, text = play("site", services=changed)
    flat = " ".join(text.split())
    assert code != 0
    assert "is less than desired GPU memory utilization (0.85, 101.72 GiB)" in flat
    assert active("heavy") and active("fast")


@pytest.mark.nightly
def test_tuning_the_real_engine_keeps_what_is_faster_and_site_brings_the_inventory_back(play):
    """More requests in a batch are faster together on a CPU too; what the planner refuses is not tried."""
    changed = services()
    changed["spark-2"][0]["args"]["max-num-seqs"] = 1
    code, text = play("site", "--limit", "spark-2", services=changed)
    assert code == 0, text
    settings = {
        "spark_bench": {
            "prompt_tokens": [64],
            "output_tokens": 64,
            "repeats": 1,
            "concurrency": [8],
            "prefix_tokens": 0,
            "ceiling": False,
        },
        "spark_tune": {
            "levers": ["no-drafts"],
            "goal": "together",
            "variants": {"wide": {"max-num-seqs": 8}, "none": {"max-num-seqs": -1}},
        },
    }
    (ROOT / "molecule" / ".spark" / "tune" / "spark-2.tiny.json").unlink(missing_ok=True)  # of an earlier run
    options = ("-e", json.dumps({"service": "tiny", **settings}), "--limit", "spark-2")
    code, text = play("tune", "--check", *options, services=changed)
    assert code == 0 and "Nothing is tried in check mode" in text, text
    code, text = play("tune", *options, services=changed)
    assert code == 0, text
    assert re.search(r"\* wide .* \+\d", text) and "none: it does not fit" in text, text
    engines = node("spark-2", "docker", "ps", "--format", "{{.Names}} {{.Command}}", "--no-trunc").splitlines()
    assert len([line for line in engines if line.startswith("spark-tiny ")]) == 1
    assert "--max-num-seqs 8" in node("spark-2", "cat", "/etc/systemd/system/spark-tiny.service")
    code, text = play("site", "--limit", "spark-2")
    assert code == 0, text
    assert "--max-num-seqs 8" not in node("spark-2", "cat", "/etc/systemd/system/spark-tiny.service")


def test_a_changed_service_restarts_alone(play):
    before = unit("heavy", "ExecMainStartTimestampMonotonic"), unit("fast", "ExecMainStartTimestampMonotonic")
    changed = services()
    changed["spark-1"][1]["args"]["max-num-seqs"] = 4
    code, text = play("site", "--limit", "spark-1", services=changed)
    assert code == 0, text
    assert "spark-2 " not in text.split("PLAY RECAP")[1]
    after = unit("heavy", "ExecMainStartTimestampMonotonic"), unit("fast", "ExecMainStartTimestampMonotonic")
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.nightly
def test_a_run_that_was_cut_off_before_its_restart_is_finished_by_the_next(play):
    path = "/etc/systemd/system/spark-fast.service"
    node("spark-1", "sed", "--in-place", "s/dgxspark.fingerprint=/dgxspark.fingerprint=old/", path)
    node("spark-1", "systemctl", "daemon-reload")
    node("spark-1", "systemctl", "restart", "spark-fast.service")
    node("spark-1", "sed", "--in-place", "s/dgxspark.fingerprint=old/dgxspark.fingerprint=/", path)
    node("spark-1", "systemctl", "daemon-reload")
    before = unit("heavy", "ExecMainStartTimestampMonotonic"), unit("fast", "ExecMainStartTimestampMonotonic")
    changed = services()
    changed["spark-1"][1]["args"]["max-num-seqs"] = 4  # as the test before left it
    code, text = play("site", "--limit", "spark-1", "--tags", "service", services=changed)
    assert code == 0, text
    assert unit("heavy", "ExecMainStartTimestampMonotonic") == before[0]
    assert unit("fast", "ExecMainStartTimestampMonotonic") != before[1]


@pytest.mark.nightly
def test_an_engine_that_dies_is_brought_back_once(play):
    restarts = int(unit("fast", "NRestarts")["NRestarts"])
    pid = node("spark-1", "docker", "inspect", "--format", "{{.State.Pid}}", "spark-fast").strip()
    children = node("spark-1", "pgrep", "-P", pid).split()
    assert children, "the engine has a process of its own"
    node("spark-1", "kill", "-9", children[0])
    wait(lambda: int(unit("fast", "NRestarts")["NRestarts"]) == restarts + 1, 60, "one restart")
    wait(lambda: active("fast"), 120, "fast is active again")
    assert chat("fast")
    assert int(unit("fast", "NRestarts")["NRestarts"]) == restarts + 1


def test_a_reboot_brings_services_back_in_order_without_ansible():
    container("spark-1").restart(timeout=60)
    wait(lambda: active("heavy"), 120, "heavy is active after the reboot")
    wait(lambda: active("fast"), 120, "fast is active after the reboot")
    heavy = int(unit("heavy", "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])
    fast = int(unit("fast", "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"])
    assert fast >= heavy
    assert chat("heavy") and chat("fast")


def test_what_is_not_ours_is_reported_and_left_alone(play):
    image = node("spark-2", "docker", "inspect", "--format", "{{.Image}}", "spark-tiny").strip()
    node("spark-2", "docker", "run", "--detach", "--name", "spark-mine", "--entrypoint", "sleep", image, "600")
    node("spark-2", "systemd-run", "--unit", "theirs", "python3", "-m", "http.server", "8123")
    changed = services()
    changed["spark-2"].append(
        {"name": "mine", "recipe": "qwen3-8b", "port": 8123, "args": {"gpu-memory-utilization": 0.3}}
    )
    code, text = play("site", services=changed)
    flat = " ".join(text.split())
    assert code != 0
    assert "a container spark-mine exists that this collection did not create" in flat
    assert "port 8123 is taken" in flat
    assert node("spark-2", "docker", "inspect", "--format", "{{.State.Running}}", "spark-mine").strip() == "true"
    node("spark-2", "docker", "rm", "--force", "spark-mine")
    node("spark-2", "systemctl", "stop", "theirs")


@pytest.mark.nightly
def test_an_engine_that_never_gets_ready_fails_with_its_stage_and_log(play):
    before = unit("tiny", "ExecMainStartTimestampMonotonic", host="spark-2")
    changed = services()
    changed["spark-1"][1].update(env={"SPARK_SIM_FAULT": "fail"})
    code, text = play("site", services=changed)
    assert code != 0
    assert "stage: health" in text
    assert "Last lines of its log" in text
    assert recap(text, "spark-2")["failed"] == "0"
    assert unit("tiny", "ExecMainStartTimestampMonotonic", host="spark-2") == before
    assert active("heavy")
    wait(lambda: unit("fast", "ActiveState")["ActiveState"] == "failed", 180, "the restarts are bounded")


@pytest.mark.nightly
def test_an_engine_that_is_healthy_but_gives_no_token_is_not_ready(play):
    changed = services()
    changed["spark-1"][1].update(env={"SPARK_SIM_FAULT": "wedge"}, start_timeout=60)
    code, text = play("site", "--limit", "spark-1", services=changed)
    assert code != 0
    assert "stage: completion" in text
    assert "Last lines of its log" in text
    assert not active("fast")
    assert active("heavy")


@pytest.mark.nightly
def test_the_repaired_site_comes_back(play):
    code, text = play("site")
    assert code == 0, text
    assert chat("fast")


def test_a_service_that_leaves_the_inventory_is_removed(play):
    changed = services()
    del changed["spark-1"][1]
    code, text = play("site", "--limit", "spark-1", services=changed)
    assert code == 0, text
    assert (
        node("spark-1", "systemctl", "show", "--property=LoadState", "spark-fast.service").strip()
        == "LoadState=not-found"
    )
    assert "spark-fast" not in node("spark-1", "docker", "ps", "--all", "--format", "{{.Names}}")
    assert active("heavy")


@pytest.mark.nightly
def test_it_runs_on_the_spark_itself(tmp_path):
    """ansible-core and the collection are put on a node, which then plans, applies and proves its own services."""
    tools = tmp_path / "tools"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(tools),
            "--python-version",
            "3.11",
            "--only-binary",
            ":all:",
            "ansible-core==2.19.*",
        ],
        check=True,
    )
    node("spark-2", "mkdir", "-p", "/opt/here/ansible_collections/dgxspark/vllm")
    copy(tools, "spark-2", "/opt/here/tools")
    copy(ROOT / ".cache" / "sim" / "models", "spark-2", "/opt/here/models")
    for room in ("plugins", "roles", "playbooks", "meta", "galaxy.yml"):
        copy(ROOT / room, "spark-2", f"/opt/here/ansible_collections/dgxspark/vllm/{room}")
    base = yaml.safe_load(BASE.read_text(encoding="utf-8"))["sparks"]["vars"]
    spark = {key: value for key, value in base.items() if key.startswith("spark_")}
    spark.update(
        spark_services=services()["spark-2"],
        spark_model_dir="/opt/here/models",
        spark_plan_file="/opt/here/plan.json",
        spark_defaults={"api_key_file": "/opt/here/key", "start_timeout": 300},
        spark_management_address=f"{SUBNET}.0.12",
        spark_allow_from=[f"{SUBNET}.0.1"],
        ansible_connection="local",
        ansible_python_interpreter="/usr/bin/python3",
    )
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"sparks": {"hosts": {"spark-2": spark}}}), encoding="utf-8")
    key = tmp_path / "key"
    key.write_text(KEY + "\n", encoding="utf-8")
    for path, name in ((inventory, "hosts.yml"), (key, "key")):
        copy(path, "spark-2", f"/opt/here/{name}")
    ran = subprocess.run(
        [
            "docker",
            "exec",
            "--env",
            "PYTHONPATH=/opt/here/tools",
            "--env",
            "ANSIBLE_COLLECTIONS_PATH=/opt/here",
            "--env",
            "LC_ALL=C.UTF-8",
            "--workdir",
            "/opt/here",
            NODES["spark-2"],
            "python3",
            "-m",
            "ansible",
            "playbook",
            "-i",
            "hosts.yml",
            "dgxspark.vllm.site",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    node("spark-2", "rm", "-r", "/opt/here")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert chat("tiny")


def test_reset_asks_first(play):
    code, text = play("reset")
    assert code != 0
    assert "spark_reset_confirm=true" in text
    assert active("heavy")


OURS = ("/etc/dgxspark", "/var/lib/dgxspark", "/usr/local/libexec/dgxspark", "/var/cache/dgxspark")


def left_behind(host):
    """The collection's folders, units, containers and account on a node."""
    leftovers = node(host, "ls", "--directory", *OURS, check=False).split()
    leftovers += node(
        host, "find", "/etc/systemd/system", "-name", "spark-*.service", "-not", "-name", "spark-sim*"
    ).split()
    leftovers += node(host, "docker", "ps", "--all", "--format", "{{.Names}}").split()
    return leftovers + node(host, "getent", "passwd", "dgxspark", check=False).split()


def test_reset_leaves_the_weights_and_nothing_else(play):
    node("spark-1", "sh", "-c", "echo mine > /var/cache/dgxspark/theirs; echo mine > /srv/huggingface/theirs")
    code, text = play("reset", "-e", "spark_reset_confirm=true")
    assert code == 0, text
    # Foreign files stay, and so do the weights with the notes that their removal needs.
    assert "/var/cache/dgxspark: not empty: theirs" in text
    assert node("spark-1", "cat", "/srv/huggingface/theirs", "/var/cache/dgxspark/theirs").split() == ["mine", "mine"]
    node("spark-1", "rm", "-r", "/srv/huggingface/theirs", "/var/cache/dgxspark")
    # A model of the controller came to spark-2; spark-1's were there before, unless another scenario has brought some.
    assert left_behind("spark-2") == ["/var/lib/dgxspark"]
    assert set(left_behind("spark-1")) <= {"/var/lib/dgxspark"}
    assert "models" in node("spark-2", "ls", "/var/lib/dgxspark").split()
    assert set(node("spark-2", "ls", "/var/lib/dgxspark").split()) <= {"made", "models"}
    assert "scripted" in node("spark-2", "ls", "/srv/huggingface/local")
    assert "models--Qwen--Qwen3-4B-Instruct-2507" in node("spark-1", "ls", "/srv/huggingface/hub")


@pytest.mark.nightly
def test_a_check_run_on_a_fresh_node_succeeds_and_changes_nothing(play):
    before = left_behind("spark-1"), left_behind("spark-2")
    code, text = play("site", "--check", "--diff")
    assert code == 0, text
    assert int(recap(text, "spark-1")["changed"]) > 0
    assert "+ExecStart=/usr/bin/docker run" in text
    assert KEY not in text
    assert (left_behind("spark-1"), left_behind("spark-2")) == before


@pytest.mark.nightly
def test_reset_removes_the_weights_when_it_is_told_to(play):
    code, text = play("reset", "-e", "spark_reset_confirm=true", "-e", "spark_reset_weights=true")
    assert code == 0, text
    assert left_behind("spark-1") == left_behind("spark-2") == []
    # Only the brought ones; earlier files are nobody's to remove.
    assert "scripted" not in node("spark-2", "ls", "/srv/huggingface/local", check=False)
    assert "models--Qwen--Qwen3-4B-Instruct-2507" in node("spark-1", "ls", "/srv/huggingface/hub")
