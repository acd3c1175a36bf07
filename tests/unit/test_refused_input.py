"""Input that Ansible skips with a warning and exit code 0: every playbook refuses it with one sentence and a non-zero exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from playbook_runs import LOST_SSH, ROOT, ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.filter import checked_hosts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import inventory_check, playbook_tags
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_sources

FIXTURES = ROOT / "tests/unit/plugins/fixtures"
PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml"))
WITHOUT_INVENTORY = {"discover", "explain", "import", "quickstart"}
NEEDING_SPARKS = [name for name in PLAYBOOKS if name not in WITHOUT_INVENTORY]
EACH_CHANGE = {"plan", "restart", "site", "status", "stop"}
"""Playbooks that meet every mistake on each change; the others meet one then, and every mistake at night."""
SPARK = "spark-1: {ansible_host: 192.0.2.1, spark_services: [{name: a, recipe: qwen3-4b-instruct-2507, port: 8001}]}"
GOOD = f"sparks: {{hosts: {{{SPARK}}}}}\n"

# Per mistake: the inventory (None: no -i), further arguments, a part of the sentence.
MISTAKES: dict[str, tuple[str | None, list[str], str]] = {
    "none": (None, [], "no inventory was given; name one with -i, such as -i ~/my-sparks"),
    "missing": ("", [], "hosts.yml' does not exist; correct the path after -i"),
    "empty": ("# nothing yet\n", [], "hosts.yml' is empty; list the DGX Sparks in the group 'sparks'"),
    "unreadable": ("\udcff\n", [], "hosts.yml' is not UTF-8 text"),
    "mis-indented": ("sparks:\n  hosts:\n    spark-1:\n   spark-2:\n", [], "hosts.yml', line 4: not valid YAML"),
    "wrong group": (GOOD.replace("sparks", "dgx"), [], "has no group 'sparks' but 'dgx'; rename the group 'dgx'"),
    "wrong tags": (GOOD, ["--tags", "no_such_tag"], "--tags: unknown 'no_such_tag';"),
}
CASES = [
    pytest.param(
        name,
        mistake,
        marks=[] if name in EACH_CHANGE or mistake == "missing" else [pytest.mark.nightly],
        id=f"{name}-{mistake}",
    )
    for name in NEEDING_SPARKS
    for mistake in MISTAKES
]


def run(folder: Path, playbook: str, *words: str | Path) -> tuple[int, str]:
    """Run a playbook where no host can be reached; return its exit code and its output on one line."""
    ssh = folder / "ssh"
    ssh.write_text(LOST_SSH)
    ssh.chmod(0o755)
    ran = ansible_playbook(f"dgxspark.vllm.{playbook}", *words, "-e", f"ansible_ssh_executable={ssh}", cwd=folder)
    return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


@pytest.mark.slow
@pytest.mark.parametrize(("playbook", "mistake"), CASES)
def test_every_playbook_refuses_wrong_input(tmp_path: Path, playbook: str, mistake: str) -> None:
    text, words, sentence = MISTAKES[mistake]
    inventory = tmp_path / "hosts.yml"
    if text:
        inventory.write_bytes(text.encode(errors="surrogateescape"))
    code, output = run(tmp_path, playbook, *([] if text is None else ["-i", inventory]), *words)
    assert code == 1, output
    assert output.count("[ERROR]") == 1 and output.count("no host was contacted: ") == 1
    message = output.partition("no host was contacted: ")[2]
    assert sentence in message and "PLAY [" not in output and "Origin:" not in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("playbook", "words", "sentence"),
    [
        ("stop", [], "stop needs the services by name: -e services=NAME,NAME, or -e services=all for every service"),
        ("stop", ["-e", "services="], "stop needs the services by name"),
        ("import", [], "import needs the launch to convert: -e import_src=FILE"),
        ("import", ["--tags", "x"], "--tags: unknown 'x'; import has no tags; leave --tags out."),
        ("site", ["--tags", "modles,host"], "--tags: unknown 'modles'; did you mean 'models'? site has "),
    ],
)
def test_what_is_missing_is_asked_for(tmp_path: Path, playbook: str, words: list[str], sentence: str) -> None:
    (tmp_path / "hosts.yml").write_text(GOOD)
    code, output = run(tmp_path, playbook, "-i", tmp_path / "hosts.yml", *words)
    assert code == 1 and output.count("[ERROR]") == 1 and sentence in output and "PLAY [" not in output, output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("playbook", "words"),
    [
        ("plan", ["--tags", "plan"]),
        ("stop", ["-e", "services=all"]),
        ("restart", []),
        ("site", ["--tags", "service,prove"]),
        ("site", ["--list-tags"]),
        ("status", ["--syntax-check"]),
    ],
)
def test_right_input_goes_through_without_a_word(tmp_path: Path, playbook: str, words: list[str]) -> None:
    (tmp_path / "hosts.yml").write_text(GOOD)
    _code, output = run(tmp_path, playbook, "-i", tmp_path / "hosts.yml", *words)
    assert "no host was contacted" not in output and ("PLAY [" in output or "playbook: " in output), output


@pytest.mark.slow
@pytest.mark.nightly
def test_models_need_no_inventory(tmp_path: Path) -> None:
    code, output = run(tmp_path, "plan", "--tags", "models")
    assert code == 0 and "no host was contacted" not in output, output


def test_a_playbook_needs_sparks_or_is_an_exception_by_name() -> None:
    """The exceptions begin with a play of localhost, which needs no inventory; plan.yml says by itself when it does."""
    for name in PLAYBOOKS:
        first = yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text())[0]
        hosts = first.get("hosts", "'all'")
        assert ("'localhost'" in hosts) == (name in WITHOUT_INVENTORY | {"plan"}), name
    assert "needs_sparks='models' not in ansible_run_tags" in (ROOT / "playbooks/plan.yml").read_text()


# --- tags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_all_tags_of_a_playbook_are_known(name: str) -> None:
    """Tags of roles are tags of the tasks that include the roles, or a run could not select them."""
    tags = playbook_tags.playbook_tags(ROOT / f"playbooks/{name}.yml")
    assert playbook_tags.find_problems(sorted(tags), [f"dgxspark.vllm.{name}"]) == []
    assert all(isinstance(tag, str) and "{" not in tag for tag in tags)


def test_tags_of_roles_are_tags_of_site() -> None:
    site_tags = playbook_tags.playbook_tags(ROOT / "playbooks/site.yml")
    for path in (ROOT / "roles").glob("*/tasks/*.yml"):
        for task in playbook_tags.plays_and_tasks(yaml.safe_load(path.read_text())):
            tags = task.get("tags") or []
            assert set([tags] if isinstance(tags, str) else tags) <= site_tags | {"always"}, path


def test_tags_of_playbooks_of_others_are_not_judged(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yml"
    mine.write_text("- ansible.builtin.import_playbook: dgxspark.vllm.site\n")
    assert playbook_tags.find_problems(["backup"], [str(mine)]) == []
    assert playbook_tags.find_problems(["backup"], [str(mine), "dgxspark.vllm.plan"]) == []
    assert playbook_tags.find_problems(["backup"], ["dgxspark.vllm.plan"]) != []
    for path in (ROOT / "site.yml", ROOT / "playbooks/site.yml"):
        assert playbook_tags.find_problems(["backup"], [str(path)]) != []
    assert playbook_tags.find_problems(["models"], ["dgxspark.vllm.site", "dgxspark.vllm.plan"]) == []


# --- ansible-core -----------------------------------------------------------------------------------------------------


def test_an_old_ansible_core_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"]
    assert oldest == f">={'.'.join(map(str, checked_hosts.OLDEST_CORE))}.0"
    monkeypatch.setattr(checked_hosts, "__version__", "2.18.19")
    (message,) = checked_hosts.find_problems({"sparks": ["a"]}, None, "", True)
    assert message.startswith("ansible-core 2.18.19 is too old, this collection needs 2.19 or newer")
    for version in ("2.19.0", "2.22.0rc1", "3.0.0"):
        monkeypatch.setattr(checked_hosts, "__version__", version)
        assert checked_hosts.find_problems({"sparks": ["a"]}, None, "", True) == []


# --- quickstart -------------------------------------------------------------------------------------------------------


def test_quickstart_in_check_mode_has_no_inventory_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for check, refused in ((True, False), (False, True)):
        monkeypatch.setattr(
            context, "CLIARGS", ImmutableDict(check=check, args=("dgxspark.vllm.quickstart",), extra_vars=())
        )
        assert bool(checked_hosts.find_problems({}, [str(tmp_path / "new")], "", True)) is refused


# --- mistakes in inventories ------------------------------------------------------------------------------------------

TABLE: list[dict[str, Any]] = yaml.safe_load((FIXTURES / "wrong_inventories.yml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", TABLE, ids=[case["name"] for case in TABLE])
def test_mistakes_that_owners_make(tmp_path: Path, case: dict[str, Any]) -> None:
    for name, text in case["files"].items():
        path = tmp_path / "fleet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = tmp_path / "fleet" / case.get("source", "")
    code, output = run(tmp_path, case.get("playbook", "plan"), "-i", source)
    assert code == case["code"], output
    assert " ".join(case["sentence"].split()) in output.replace(f"{tmp_path}/", ""), output
    assert "Traceback" not in output
    if code == 1:
        assert output.count("[ERROR]") == 1 and "PLAY [" not in output


def test_the_examples_have_no_mistakes() -> None:
    for folder in sorted((ROOT / "inventories").iterdir()):
        assert inventory_check.find_problems({"sparks": ["x"]}, inventory_sources([str(folder)])) == []


def test_what_only_ansible_reads_is_left_to_it(tmp_path: Path) -> None:
    files = {
        "hosts.ini": "[sparks]\nspark-1\n[sparks:vars]\nspark_pin=true\n",
        "cloud.yml": "plugin: amazon.aws.aws_ec2\nregions: [eu-west-1]\n",
        "vaulted.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        "anchors.yml": "other: {hosts: {a: &v {x: 1}, b: *v, c: {<<: *v, <<: *v}}, vars: {k: !vault abc}}\n",
        "ranges.yml": "sparks:\n  hosts: spark-[1:4]\n  children: rack\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert inventory_check.find_problems({"sparks": ["spark-1"]}, inventory_sources([str(tmp_path), "a,b"])) == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop.yml").symlink_to(tmp_path / "loop.yml")
    (message,) = inventory_check.find_problems({}, inventory_sources([str(tmp_path)]))
    assert message.startswith(f"the inventory '{tmp_path}/loop.yml' cannot be read: Too many levels of symbolic links")


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text('"spa\\x1b[31mrks": [1]\nsparks: {hosts: {a: 7}}\n')
    message = inventory_check.find_problems({}, inventory_sources([str(tmp_path)]))
    assert len(message) == 2 and "\x1b" not in json.dumps(message) and "\\x1b[31m" in message[0]


def test_a_large_inventory_is_checked_quickly(tmp_path: Path) -> None:
    """400 Sparks: well below the time that Ansible itself takes to read them."""
    hosts = {
        f"spark-{number}": {"spark_services": [{"name": f"s{n}", "port": 8000 + n, "args": {"a": n}} for n in range(4)]}
        for number in range(400)
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"sparks": {"hosts": hosts}}))
    sources = inventory_sources([str(tmp_path)])

    def seconds(work: Any) -> float:
        began = os.times()
        work()
        ended = os.times()
        return ended.user + ended.system - began.user - began.system

    check_seconds = seconds(lambda: inventory_check.find_problems({"sparks": ["x"]}, sources))
    ansible = seconds(lambda: InventoryManager(DataLoader(), [str(tmp_path)]))
    assert check_seconds < ansible


# --- hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *(["site"], ["stop", "-e", "services=all"], ["status"], ["clean"], ["reset", "-e", "spark_reset_confirm=true"]),
        *(["bench"], ["rollback"]),
    ],
    ids=lambda words: str(words[0]),
)
def test_a_missing_sudo_password_is_named_with_its_cure(tmp_path: Path, words: list[str]) -> None:
    """The test's ssh runs commands on this machine, and its sudo asks for a password."""
    programs = {
        "ssh": 'for word; do last=$word; done\nexec sh -c "$last"\n',
        "sudo": "echo 'sudo: a password is required' >&2\nexit 1\n",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "hosts.yml").write_text(GOOD)
    variables = {
        "ansible_ssh_executable": str(tmp_path / "ssh"),
        "ansible_remote_tmp": str(tmp_path / "remote"),
        "ansible_user": "me",
    }
    ran = ansible_playbook(
        f"dgxspark.vllm.{words[0]}", *words[1:], "-i", tmp_path / "hosts.yml", "-e", json.dumps(variables),
        cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    output = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == 2 and "Missing sudo password; add -K, which asks for the sudo password once" in output, (
        output
    )
