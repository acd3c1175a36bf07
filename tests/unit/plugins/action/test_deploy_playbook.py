# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module with its action plugin, as a play runs them, on this machine; only systemctl is a stand-in."""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook

# Keeps the state of units in files below $UNITS, and writes down each call that changes something.
SYSTEMCTL = """#!/bin/sh
now() { "$INTERPRETER" -c 'import time; print(time.monotonic_ns() // 1000)'; }
verb=$1; shift
[ "$verb" = show ] || echo "$verb $*" >> "$UNITS/calls"
case $verb in
show)
  while [ "$1" != -- ]; do shift; done; shift
  for unit; do
    state=$(cat "$UNITS/$unit.state" 2>/dev/null || echo inactive)
    began=$(cat "$UNITS/$unit.began" 2>/dev/null || echo 0)
    changed=$(cat "$UNITS/$unit.changed" 2>/dev/null || echo "$began")
    enabled=$(cat "$UNITS/$unit.enabled" 2>/dev/null)
    printf 'Id=%s\\nLoadState=loaded\\nActiveState=%s\\nSubState=x\\nUnitFileState=%s\\n' "$unit" "$state" "$enabled"
    printf 'NeedDaemonReload=no\\nInactiveExitTimestampMonotonic=%s\\n' "$began"
    printf 'ActiveEnterTimestampMonotonic=%s\\nStateChangeTimestampMonotonic=%s\\n' "$began" "$changed"
    printf 'ReloadResult=%s\\n\\n' "$(cat "$UNITS/$unit.reloaded" 2>/dev/null || echo success)"
  done ;;
start|restart)
  for unit; do
    case $unit in
    -*) ;;
    *broken*) echo failed > "$UNITS/$unit.state"; echo "Job for $unit failed." >&2; exit 1 ;;
    *) rm -f "$UNITS/$unit.changed"; echo active > "$UNITS/$unit.state"; now > "$UNITS/$unit.began" ;;
    esac
  done ;;
reload) # by which no unit begins anew
  for unit; do [ "$unit" = -- ] || now > "$UNITS/$unit.changed"; done
  for unit; do [ ! -e "$UNITS/$unit.reloaded" ] || exit 1; done ;;
stop) for unit; do echo inactive > "$UNITS/$unit.state"; done ;;
enable) for unit; do echo enabled > "$UNITS/$unit.enabled"; done ;;
disable) for unit; do echo disabled > "$UNITS/$unit.enabled"; done ;;
esac
"""
JOURNALCTL = "#!/bin/sh\necho 'the port is taken'\n"
pytestmark = pytest.mark.slow

OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}


class Host:
    """A folder that plays a host, and a way to run the module against it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.units = folder, folder / "units"
        (folder / "bin").mkdir()
        self.units.mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def path(self, name: str) -> str:
        return str(self.folder / "etc" / name)

    def file(self, name: str, content: str, **more: Any) -> dict[str, Any]:
        return {"path": self.path(name), "content": content, **OWNER, **more}

    def run(self, *options: str, code: int = 0, **arguments: Any) -> dict[str, Any]:
        play = self.folder / "play.yml"
        arguments.setdefault("folders", [{"path": str(self.folder / "etc"), **OWNER}])
        task = {"name": "Put it in place", "dgxspark.vllm.deploy": {"part": "thing", **arguments}}
        play.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
        ran = ansible_playbook(
            "-i",
            "localhost,",
            "-c",
            "local",
            play,
            *options,
            cwd=self.folder,
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "UNITS": str(self.units),
                "INTERPRETER": sys.executable,
            },
        )
        self.printed = ran.stdout + ran.stderr
        assert ran.returncode == code, self.printed
        start = ran.stdout.index("=> {") + 3
        result: dict[str, Any] = json.JSONDecoder().raw_decode(ran.stdout[start:])[0]
        return result

    def calls(self) -> list[str]:
        path = self.units / "calls"
        calls = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return calls


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# The result is printed from -v on.
V = "-v"


def test_once_and_again(host: Host) -> None:
    source = host.folder / "helper.py"
    source.write_bytes(b"print('\xc3\xa4')\n")
    files = [
        host.file("a.conf", "one\n", mode="0640"),
        {"path": host.path("helper.py"), "source": str(source), **OWNER},
        host.file("key", "hush-hush\n", mode="0600", secret=True),
    ]
    units = [{"name": "thing.service", "enabled": True}]
    first = host.run(V, "--check", "--diff", files=files, units=units)
    assert first["changed"] and len(first["written"]) == 3 and first["started"] == ["thing.service"]
    assert not Path(host.path("")).exists() and host.calls() == []
    assert "+one" in host.printed and "hush" not in host.printed and "a new secret" in host.printed

    done = host.run("-vvv", "--diff", files=files, units=units)
    assert done["changed"] and done["written"] == first["written"] and done["started"] == first["started"]
    assert "hush" not in host.printed and "aHVzaC1odXNo" not in host.printed
    assert Path(host.path("helper.py")).read_bytes() == source.read_bytes()
    assert [oct(Path(host.path(name)).stat().st_mode)[-3:] for name in ("a.conf", "key")] == ["640", "600"]
    assert host.calls() == ["enable -- thing.service", "start -- thing.service"]

    second = host.run(V, files=files, units=units)
    assert not second["changed"] and second["written"] == [] and host.calls() == []


def test_a_changed_file_restarts_its_unit_alone(host: Host) -> None:
    units = [
        {"name": "a.service", "restart_on": [host.path("a")]},
        {"name": "b.service", "restart_on": [host.path("b")]},
        {"name": "c.service", "restart_on": [host.path("b")], "defer": True},
    ]
    host.run(V, files=[host.file("a", "1"), host.file("b", "1")], units=units)
    host.calls()
    result = host.run(V, files=[host.file("a", "1"), host.file("b", "2")], units=units)
    assert result["restarted"] == ["b.service"] and result["restart_due"] == ["c.service"]
    assert host.calls() == ["reset-failed b.service", "restart -- b.service"]


def test_several_parts_are_deployed_by_one_task(host: Host) -> None:
    shared = host.file("shared.py", "1")
    documents: list[dict[str, Any]] = [
        {"part": "a", "files": [shared, host.file("a", "1")], "units": [{"name": "a.service"}]},
        {"part": "b", "files": [shared, host.file("b", "1")], "units": [{"name": "b.service"}]},
        {"part": "c", "files": [host.file("c", "1")], "units": [{"name": "c.service", "enabled": True}]},
    ]
    first = host.run(V, documents=documents)
    assert first["written"] == [host.path(name) for name in ("shared.py", "a", "b", "c")]
    assert host.calls() == ["enable -- c.service", "start -- a.service b.service c.service"]
    assert not host.run(V, documents=documents)["changed"]
    documents[1]["files"] = [host.file("shared.py", "2"), host.file("b", "1")]
    assert "shared.py is listed twice" in host.run(code=2, documents=documents)["msg"]
    shared["content"] = "2"
    assert host.run(V, documents=documents)["restarted"] == ["a.service", "b.service"]
    # A part goes while others stay, with the file that they share.
    documents[0] = {"part": "a"}
    gone = host.run(V, documents=documents)
    assert Path(host.path("shared.py")).exists()
    assert gone["removed"] == [host.path("a")] and gone["stopped"] == ["a.service"] and gone["restarted"] == []
    broken = [*documents, {"part": "d", "units": [{"name": "broken.service"}]}]
    assert host.run(code=2, documents=broken)["msg"].startswith("d: systemctl start broken.service failed")


def test_a_unit_is_reloaded_for_its_files_and_for_what_its_program_prints(host: Host) -> None:
    table = host.folder / "table"
    table.write_text("as loaded\n")
    ports = "-".join(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    arguments: dict[str, Any] = {
        "files": [host.file("a", "close @host:port_range@\n", fill=["port_range"], validate="/bin/grep -q close %s")],
        "units": [
            {"name": "a.service", "reload": True, "prints": ["/bin/cat", str(table)], "printed": host.path("printed")}
        ],
    }
    assert host.run(V, **arguments)["started"] == ["a.service"] and host.calls() == ["start -- a.service"]
    assert Path(host.path("a")).read_text() == f"close {ports}\n"
    assert Path(host.path("printed")).read_text() == "as loaded\n"
    assert not host.run(V, **arguments)["changed"] and host.calls() == []
    table.write_text("as somebody has changed it\n")
    assert host.run(V, "--check", **arguments)["reloaded"] == ["a.service"] and host.calls() == []
    assert host.run(V, **arguments)["reloaded"] == ["a.service"] and host.calls() == ["reload -- a.service"]
    assert not host.run(V, **arguments)["changed"]
    arguments["files"][0]["content"] = "close all of @host:port_range@\n"
    second = host.run(V, "--diff", **arguments)
    assert (
        second["reloaded"] == ["a.service"] and second["restarted"] == [] and f"+close all of {ports}" in host.printed
    )
    assert not host.run(V, **arguments)["changed"]
    arguments["files"][0].update(content="close\n", validate="/none/nft -c %s")
    assert "cannot be checked: /none/nft is not installed" in host.run(code=2, **arguments)["msg"]


def test_a_unit_is_reloaded_for_some_files_until_that_succeeds(host: Host) -> None:
    arguments: dict[str, Any] = {
        "files": [host.file("unit", "1"), host.file("settings", "1")],
        "units": [{"name": "a.service", "restart_on": [host.path("unit")], "reload_on": [host.path("settings")]}],
    }
    assert host.run(V, **arguments)["started"] == ["a.service"] and host.calls() == ["start -- a.service"]
    assert not host.run(V, **arguments)["changed"]
    arguments["files"][1]["content"] = "2"
    assert host.run(V, "--check", **arguments)["reloaded"] == ["a.service"] and host.calls() == []
    (host.units / "a.service.reloaded").write_text("exit-code\n")
    assert "systemctl reload a.service failed" in host.run(code=2, **arguments)["msg"]
    (host.units / "a.service.reloaded").unlink()
    # A run that was cut off, or a reload that failed, leaves the date of the last start.
    (host.units / "a.service.changed").unlink()
    host.calls()
    assert host.run(V, **arguments)["reloaded"] == ["a.service"] and host.calls() == ["reload -- a.service"]
    assert not host.run(V, **arguments)["changed"]
    for file in arguments["files"]:
        file["content"] = "3"
    result = host.run(V, **arguments)
    assert (result["restarted"], result["reloaded"]) == (["a.service"], [])


def test_a_run_that_was_cut_off_is_finished(host: Host) -> None:
    arguments: dict[str, Any] = {"files": [host.file("a", "1")], "units": [{"name": "a.service"}]}
    host.run(V, **arguments)
    host.calls()
    # Written by a run that ended before it came to the unit.
    time.sleep(0.01)
    Path(host.path("a")).touch()
    assert host.run(V, **arguments)["restarted"] == ["a.service"]
    assert not host.run(V, **arguments)["changed"]


def test_what_is_refused_changes_nothing(host: Host) -> None:
    files = [
        host.file("good", "1"),
        host.file("bad", "2", validate="/bin/grep -q 1 %s"),
        host.file("worse", "3", validate="/bin/grep -q 1 %s"),
    ]
    result = host.run(code=2, files=files)
    assert f"{host.path('bad')} is not valid" in result["msg"] and f"{host.path('worse')} is not valid" in result["msg"]
    assert not Path(host.path("")).exists()


def test_a_file_that_cannot_be_written_leaves_all_as_they_were(host: Host) -> None:
    units = [{"name": "a.service"}]
    host.run(V, files=[host.file("a", "1"), host.file("b", "1")], units=units)
    host.calls()
    changed = [host.file("a", "2"), host.file("b", "2")]
    assert "does not exist" in host.run(code=2, files=[*changed, host.file("none/c", "2")], units=units)["msg"]
    # A folder that takes no files, from root neither.
    message = host.run(code=2, files=[*changed, {"path": "/proc/c", "content": "2", **OWNER}], units=units)["msg"]
    assert "/proc/c cannot be written" in message or "permission denied" in message
    assert sorted(path.name for path in Path(host.path("")).iterdir()) == ["a", "b"]
    assert [Path(host.path(name)).read_text() for name in ("a", "b")] == ["1", "1"] and host.calls() == []
    assert host.run(V, files=changed, units=units)["restarted"] == ["a.service"]


def test_what_was_starting_already_is_named(host: Host) -> None:
    arguments: dict[str, Any] = {"files": [host.file("a", "1")], "units": [{"name": "a.service", "defer": True}]}
    host.run(V, **arguments)
    host.calls()
    (host.units / "a.service.state").write_text("activating\n")
    result = host.run(V, **arguments)
    assert result["starting"] == ["a.service"] and not result["changed"] and host.calls() == []


def test_an_account_that_is_missing_changes_nothing(host: Host) -> None:
    files = [host.file("a", "1"), {**host.file("b", "1"), "owner": "nobody-by-this-name"}]
    result = host.run(code=2, files=files)
    assert f"owner nobody-by-this-name of {host.path('b')}" in result["msg"] and not Path(host.path("")).exists()
    assert host.run(V, "--check", files=files)["changed"]


def test_a_unit_that_does_not_start_is_explained(host: Host) -> None:
    result = host.run(code=2, units=[{"name": "broken.service"}])
    assert "Job for broken.service failed" in result["msg"] and "broken.service: the port is taken" in result["msg"]
    # The next run has systemd forget the failure first.
    host.calls()
    host.run(code=2, units=[{"name": "broken.service"}])
    assert host.calls() == ["reset-failed broken.service", "start -- broken.service"]


def test_what_the_document_has_no_more_is_removed(host: Host) -> None:
    files = [host.file(name, "1") for name in ("a", "b", "old.service")]
    units = [{"name": name, "enabled": True} for name in ("a.service", "old.service")]
    host.run(V, files=files, units=units, created=[host.path("receipt")])
    host.calls()
    Path(host.path("receipt")).write_text("{}")
    theirs = Path(host.path("theirs"))
    theirs.write_text("mine")
    less: dict[str, Any] = {"files": files[:1], "units": units[:1]}
    check = host.run(V, "--check", "--diff", **less)
    removed = [host.path(name) for name in ("b", "old.service", "receipt")]
    assert check["removed"] == removed and check["stopped"] == ["old.service"] and host.calls() == []
    assert "-state: present" in host.printed and "+state: absent" in host.printed
    result = host.run(V, **less)
    assert result["removed"] == removed and result["stopped"] == ["old.service"] and result["restarted"] == []
    assert host.calls() == ["stop -- old.service", "disable -- old.service"]
    assert not host.run(V, **less)["changed"] and theirs.exists()
    # Another part knows nothing of this one.
    assert not host.run(V, part="other", folders=[])["changed"] and Path(host.path("a")).exists()
    assert host.run(V, parts=["thing"], part="", folders=[])["removed"] == [host.path("a")] and theirs.exists()


def test_removed_paths_go_and_folders_of_others_stay(host: Host) -> None:
    Path(host.path("theirs")).mkdir(parents=True)
    host.run(V, part="state", folders=[{"path": host.path("state"), "holds": "cache", **OWNER}])
    Path(host.path("state"), "compiled").write_text("1")
    gone: dict[str, Any] = {"removed": [host.path("state"), host.path("theirs")], "folders": []}
    result = host.run(V, **gone)
    assert "theirs stays, because it has files that this collection did not create" in host.printed.replace("\n", " ")
    assert Path(host.path("theirs")).is_dir() and result["removed"] == [host.path("state")]
    assert not host.run(V, **gone)["changed"]


def test_wrong_input_is_named(host: Host) -> None:
    assert "neither content nor source" in host.run(code=2, files=[{"path": host.path("a")}])["msg"]
    assert (
        "cannot be read on the controller"
        in host.run(code=2, files=[{"path": host.path("a"), "source": "/none"}])["msg"]
    )
    assert "twice" in host.run(code=2, files=[host.file("a", "1"), host.file("a", "2")])["msg"]
    Path(host.path("d")).mkdir(parents=True)
    assert "is a folder" in host.run(code=2, files=[host.file("d", "1")])["msg"]
