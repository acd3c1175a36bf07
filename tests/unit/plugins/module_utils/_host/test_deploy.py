# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of changes on a host, without a play: C(test_deploy_playbook.py) runs the module itself."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import os
import pwd
import stat
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    deploy,
    deploy_accounts,
    deploy_files,
    deploy_removal,
    deploy_units,
    deployed,
    deployment,
    made,
    staging,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Refused, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file

OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
SHOWN = "Id=x\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"


def state_of(document: dict[str, Any]) -> HostState:
    for file in document.get("files") or []:
        if "content" in file:
            content = file.pop("content").encode()
            file.update(digest=hashlib.sha256(content).hexdigest(), data=base64.b64encode(content).decode())
        file.update(OWNER)
    return HostState.from_dict(document, "thing")


def job_of(
    run: Any, document: dict[str, Any], check: bool = False, parts: Sequence[str] = ("thing",), warn: Any = print
) -> Deployment:
    tools = Tools(lambda argv, *_seconds: run(argv), lambda *_args: False, warn, check, "/tmp")
    return Deployment(state_of(document), tools, parts, deployed.load())


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(deployment, "SYSTEM", tmp_path / "systemd")
    (tmp_path / "systemd/system").mkdir(parents=True)
    return tmp_path / "systemd/system"


def test_one_show_and_one_reload_for_all_units_of_a_document(system: Path, fake_run: Any) -> None:
    fake_run.on("systemctl show", f"{SHOWN}\n{SHOWN.replace('active', 'inactive', 1)}").on("systemctl")
    files = [{"path": str(system / f"{name}.service"), "content": name, "part": name} for name in ("a", "b")]
    units = [{"name": f"{name}.service", "part": name} for name in ("a", "b")]
    job = job_of(fake_run, {"files": files, "units": units})
    result = deploy.deploy(job)
    assert result["written"] == [file["path"] for file in files]
    verbs = [call[1] for call in fake_run.calls]
    # Before the first write, and to decide; then one reload.
    assert verbs[:3] == ["show", "show", "daemon-reload"] and verbs.count("show") == 2


def test_what_systemd_does_not_say_stops_before_the_first_write(system: Path, fake_run: Any) -> None:
    fake_run.on("systemctl show", rc=1, err="Failed to connect to bus")
    path = system / "a.service"
    job = job_of(fake_run, {"files": [{"path": str(path), "content": "a"}], "units": [{"name": "a.service"}]})
    with pytest.raises(Refused, match=r"^thing: systemd cannot be asked about a.service: Failed to connect to bus"):
        deploy.deploy(job)
    assert not path.exists() and not job.changed
    with pytest.raises(Refused, match=r"^thing: systemctl start"):
        raise deploy_units.failure(
            job_of(fake_run.on("systemctl show", SHOWN), {"units": [{"name": "a.service"}]}),
            "start",
            ["a.service"],
            "no",
        )


def test_a_check_writes_nothing_and_names_what_it_would(system: Path, fake_run: Any, tmp_path: Path) -> None:
    fake_run.on("systemctl show", SHOWN)
    old = tmp_path / "old"
    old.write_text("x")
    document = {"files": [{"path": str(system / "a.service"), "content": "a"}], "removed": [str(old)]}
    job = job_of(fake_run, document, check=True)
    assert deploy.deploy(job)["written"] == [str(system / "a.service")] and job.removed == [str(old)]
    assert job.changed and job.reload and old.exists() and list(system.iterdir()) == []
    assert [diff["after"] for diff in job.diffs] == ["a", "state: absent\n"]


def test_contents_that_the_host_lacks_are_asked_for_before_anything_is_done(fake_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a"
    state = HostState.from_dict({"files": [{"path": str(path), "digest": "0" * 64, **OWNER}]})
    job = Deployment(state, Tools(fake_run, lambda *_args: False, print, False, "/tmp"))
    assert deploy.deploy(job) == {"wanted": [str(path)]} and fake_run.calls == []
    with pytest.raises(Refused, match="neither content nor source"):
        deploy.check(HostState.from_dict({"files": [{"path": "/a"}]}))


def test_a_file_for_a_device_that_is_missing_goes(fake_run: Any, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.touch()
    document: dict[str, Any] = {"files": [{"path": str(tmp_path / "a"), "content": "1", "device": str(device)}]}
    assert deploy.deploy(job_of(fake_run, deepcopy(document)))["written"] == [str(tmp_path / "a")]
    device.unlink()
    job = job_of(fake_run, deepcopy(document))
    assert deploy.deploy(job)["written"] == [] and job.removed == [str(tmp_path / "a")]
    job = job_of(fake_run, document)
    deploy.deploy(job)
    assert not job.changed


def test_the_content_on_the_disk_decides_and_a_folder_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "same").write_text("1")
    (tmp_path / "other").write_text("2")
    names = ("same", "other", "missing")
    state = state_of({"files": [{"path": str(tmp_path / name), "content": "1"} for name in names]})
    assert [Path(file.path).name for file in deploy_files.differing(state)] == ["other", "missing"]
    (tmp_path / "missing").mkdir()
    with pytest.raises(Refused, match="missing is a folder, a file belongs there"):
        deploy_files.differing(state)


def test_a_failed_unit_that_leaves_is_forgotten(system: Path, fake_run: Any) -> None:
    fake_run.on("systemctl show", SHOWN).on("systemctl")
    path = system / "a.service"
    unit = {"name": "a.service", "clean_up": ["/usr/bin/clean", "a"]}
    deploy.deploy(job_of(fake_run, {"files": [{"path": str(path), "content": "a"}], "units": [unit]}))
    fake_run.calls.clear()
    fake_run.on("systemctl show", SHOWN.replace("active", "failed", 1)).on("/usr/bin/clean", rc=1)
    job = job_of(fake_run, {})
    assert deploy.deploy(job)["stopped"] == [] and job.removed == [str(path)] and job.reload
    assert [call[1:] for call in fake_run.calls[1:]] == [
        ["disable", "--", "a.service"],
        ["reset-failed", "a.service"],
        ["a"],
        ["daemon-reload"],
    ]


def test_rows_that_leave_go_in_order_and_before_new_units_start(
    system: Path, fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc = tmp_path / "etc"
    monkeypatch.setattr(made, "OWN", (*made.OWN, str(etc)))
    fake_run.on("systemctl show", f"{SHOWN}\n{SHOWN}").on("systemctl")
    names = ["first.service", "second.service"]
    files = [{"path": str(system / name), "content": name} for name in names]
    folders = [
        {"path": str(etc), **OWNER},
        {"path": str(etc / "deep"), **OWNER},
        {"path": str(etc / "kept"), "remove": "never"},
    ]
    files.append({"path": str(etc / "deep/a"), "content": "1"})
    created = [str(etc / "receipt")]
    before = {"files": files, "folders": folders, "units": [{"name": name} for name in names], "created": created}
    deploy.deploy(job_of(fake_run, before))
    (etc / "receipt").write_text("{}")
    events: list[str] = []
    original = deploy_removal.remove

    def remove(job: Deployment, path: Path, *tail: Any, **more: Any) -> None:
        events.append(path.name)
        original(job, path, *tail, **more)

    monkeypatch.setattr(deploy_removal, "remove", remove)
    fake_run.on("systemctl show", f"{SHOWN}\n{SHOWN}").calls.clear()
    check = job_of(fake_run, {}, check=True)
    assert deploy.deploy(check)["stopped"] == names[::-1] and (etc / "deep/a").exists()
    assert [call[1] for call in fake_run.calls] == ["show"]
    events.clear()
    job = job_of(fake_run, {})
    assert deploy.deploy(job)["stopped"] == names[::-1]
    assert events == [*names, "a", "receipt", "deep"] and etc.is_dir() and (etc / "kept").is_dir()
    # A check lists the same, folders that become empty included.
    assert check.removed == job.removed and [diff["after"] for diff in job.diffs] == ["state: absent\n"] * 5
    verbs = [call[1:] for call in fake_run.calls if call[1] != "show"]
    assert verbs == [["stop", "--", *names[::-1]], ["disable", "--", *names], ["daemon-reload"]]


@pytest.mark.parametrize("is_of_the_document", [False, True])
def test_a_service_lets_go_of_the_port_of_a_socket_that_leaves(
    system: Path, fake_run: Any, is_of_the_document: bool
) -> None:
    shown = SHOWN.replace("Id=x", "Id=a.socket")
    fake_run.on("systemctl show", shown).on("systemctl")
    socket = {"path": str(system / "a.socket"), "content": "[Socket]"}
    deploy.deploy(job_of(fake_run, {"files": [socket], "units": [{"name": "a.socket", "state": "triggered"}]}))
    fake_run.on("systemctl show --no-pager --property=Triggers", "Triggers=holder.service\n").calls.clear()
    holder = [{"name": "holder.service"}] if is_of_the_document else []
    job = job_of(fake_run, {"units": holder})
    assert deploy.deploy(job)["stopped"] == ["a.socket"] and job.removed == [str(system / "a.socket")]
    calls = [call[1:] for call in fake_run.calls if call[1] != "show"]
    # The unit of the service names the socket and would start it again, so the file goes before the service starts.
    start = [] if is_of_the_document else [["start", "--", "holder.service"]]
    assert calls[:-1] == [
        ["stop", "--", "holder.service", "a.socket"],
        ["disable", "--", "a.socket"],
        ["daemon-reload"],
        *start,
    ]


def test_files_of_others_stay_when_their_folder_leaves(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.setattr(made, "OWN", (*made.OWN, str(ours)))
    folders = [{"path": str(ours), **OWNER}, {"path": str(theirs), "remove": "whole", **OWNER}]
    deploy.deploy(job_of(fake_run, {"folders": folders}))
    for folder in (ours, theirs):
        (folder / "mine.txt").write_text("x")
    job = job_of(fake_run, {})
    deploy.deploy(job)
    assert job.removed == [] and (ours / "mine.txt").exists() and (theirs / "mine.txt").exists()


def test_an_empty_list_of_parts_removes_nothing_and_the_record_keeps_its_rows(fake_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a"
    deploy.deploy(job_of(fake_run, {"files": [{"path": str(path), "content": "1"}]}))
    before = deployed.load()
    deploy.deploy(job_of(fake_run, {"files": [{"path": str(tmp_path / "b"), "content": "1"}]}, parts=()))
    after = deployed.load()
    assert path.exists() and before is not None and after is not None
    assert [file.path for file in after.state.files] == [str(path), str(tmp_path / "b")]
    assert (
        after.checksums
        == before.checksums
        == {"thing": deployed.checksum(state_of({"files": [{"path": str(path), "content": "1"}]}))}
    )


@pytest.mark.parametrize("text", ["{", '{"schema": 1, "state": {"files": [{"name": "x"}]}}'])
def test_without_a_readable_record_nothing_is_removed_and_a_new_one_is_written(
    fake_run: Any, tmp_path: Path, text: str
) -> None:
    document: dict[str, Any] = {"files": [{"path": str(tmp_path / "a"), "content": "1"}]}
    deploy.deploy(job_of(fake_run, deepcopy(document)))
    content = deployed.record_path().read_text()
    deployed.record_path().write_text(text)
    job = job_of(fake_run, deepcopy(document))
    deploy.deploy(job)
    assert not job.changed and deployed.record_path().read_text() == content


def test_owners_that_neither_host_nor_document_has_are_refused(fake_run: Any, tmp_path: Path) -> None:
    state = HostState.from_dict(
        {
            "folders": [{"path": str(tmp_path / "made"), "owner": "absent-1", "group": "absent-1", "part": "thing"}],
            "files": [
                {"path": str(tmp_path / "a"), "generate": 8, **OWNER, "owner": "absent-2", "part": "gateway"},
                {"path": str(tmp_path / "b"), "generate": 8, **OWNER, "group": "absent-3", "part": "guard"},
            ],
            "accounts": [{"name": "absent-1", "home": "/x", "shell": "/bin/false", "part": "thing"}],
        }
    )
    job = Deployment(state, Tools(fake_run, lambda *_args: False, print, False, "/tmp"))
    with pytest.raises(Refused) as refused:
        deploy.deploy(job)
    assert str(refused.value) == (
        f"gateway: owner absent-2 of {tmp_path}/a, group absent-3 of {tmp_path}/b: no such account on this host. "
        "Run site.yml without tags once, which makes it"
    )
    assert fake_run.calls == [] and not list(tmp_path.iterdir())


def test_nothing_is_changed_where_all_is_as_deployed(fake_run: Any, tmp_path: Path) -> None:
    document = {
        "folders": [{"path": str(tmp_path / "folder"), **OWNER}],
        "files": [{"path": str(tmp_path / "folder/a"), "content": "1"}],
    }

    def attributes(path: str, *_args: Any) -> bool:
        assert Path(path).exists(), f"{path} has no attributes yet"
        return False

    def run(check: bool) -> Deployment:
        tools = Tools(fake_run, attributes, print, check, "/tmp")
        job = Deployment(state_of(deepcopy(document)), tools, ["thing"], deployed.load())
        deploy.deploy(job)
        return job

    assert run(check=True).changed and not (tmp_path / "folder").exists()
    assert run(check=False).changed
    written = deployed.record_path().stat().st_mtime_ns
    for check in (True, False):
        job = run(check)
        assert (job.changed, job.diffs, job.removed) == (False, [], [])
    assert deployed.record_path().stat().st_mtime_ns == written


def test_a_secret_is_in_no_diff_and_nobody_else_may_read_it(fake_run: Any, tmp_path: Path) -> None:
    files = [
        {"path": str(tmp_path / "key"), "content": "very-secret", "secret": True, "mode": "0600"},
        {"path": str(tmp_path / "made"), "generate": 24, "mode": "0600"},
        {"path": str(tmp_path / "open"), "content": "1", "mode": "0640"},
    ]
    job = job_of(fake_run, {"files": files})
    deploy.deploy(job)
    assert [(Path(diff["after_header"]).name, diff["before"], diff["after"]) for diff in job.diffs] == [
        ("key", "", "a new secret\n"),
        ("made", "", "a new secret\n"),
        ("open", "", "1"),
    ]
    # Files get their modes before they are renamed; this run sets no attributes.
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("key", "made", "open")] == [0o600, 0o600, 0o640]


def test_a_unit_that_does_not_start_is_named_with_its_journal(fake_run: Any) -> None:
    failed = SHOWN.replace("active", "failed", 1)
    fake_run.on("systemctl show", f"{failed}\n{SHOWN.replace('active', 'inactive', 1)}").on("systemctl reset-failed")
    fake_run.on("systemctl start", rc=1, err="Job for a.service failed.\n").on("journalctl", "line 1\nline 2\n")
    units = [{"name": "a.service", "part": "gateway"}, {"name": "b.service", "part": "guard"}]
    with pytest.raises(Refused) as refused:
        deploy.deploy(job_of(fake_run, {"units": units}))
    # The journal of b, which did not fail, is left out.
    assert refused.value.log == ["a.service: line 1", "a.service: line 2"]
    text = "gateway: systemctl start a.service b.service failed: Job for a.service failed.\n"
    assert str(refused.value) == text + "a.service: line 1\na.service: line 2"
    # systemd may count earlier starts against this one.
    calls = [call[1:] for call in fake_run.calls if call[1] in ("reset-failed", "start")]
    assert calls == [["reset-failed", "a.service"], ["start", "--", "a.service", "b.service"]]


def test_units_stop_in_reverse_and_only_some_jobs_are_waited_for(fake_run: Any) -> None:
    inactive = SHOWN.replace("active", "inactive", 1)
    fake_run.on("systemctl show", "\n".join([SHOWN, SHOWN, SHOWN, inactive, inactive])).on("systemctl")
    units: list[dict[str, Any]] = [{"name": f"{letter}.service", "state": "stopped"} for letter in "abc"]
    units += [{"name": "d.service", "wait": False}, {"name": "e.service"}]
    result = deploy.deploy(job_of(fake_run, {"units": units}))
    assert (result["stopped"], result["started"]) == (
        ["a.service", "b.service", "c.service"],
        ["d.service", "e.service"],
    )
    assert [call[1:] for call in fake_run.calls if call[1] != "show"] == [
        ["stop", "--", "c.service", "b.service", "a.service"],
        ["start", "--no-block", "--", "d.service"],
        ["start", "--", "e.service"],
    ]


def test_programs_check_new_contents_where_nobody_else_can_read_them(tmp_path: Path) -> None:
    checked = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "/bin/accept":
            path = Path(argv[1])
            modes = [stat.S_IMODE(place.stat().st_mode) for place in (path.parent, path)]
            checked.append((path.name, path.read_text(), modes))
            return 0, "", ""
        return (1, "", f"{argv[1]}: line 2 is wrong\n") if argv[0] == "/bin/refuse" else (127, "", "")

    right, wrong, unchecked = ({"path": str(tmp_path / name), "content": name} for name in ("a.conf", "b", "c"))
    deploy.deploy(job_of(run, {"files": [{**right, "validate": "/bin/accept %s"}]}))
    assert checked == [("a.conf", "a.conf", [0o700, 0o600])] and (tmp_path / "a.conf").exists()
    files = [
        {**wrong, "validate": "/bin/refuse %s", "part": "gateway"},
        {**unchecked, "validate": "/bin/absent -t %s", "part": "guard"},
    ]
    with pytest.raises(Refused) as refused:
        deploy.deploy(job_of(run, {"files": files}))
    assert str(refused.value) == (
        f"gateway: {wrong['path']} is not valid: /bin/refuse says: {wrong['path']}: line 2 is wrong; "
        f"{unchecked['path']} cannot be checked: /bin/absent is not installed. Nothing was changed"
    )
    assert not (tmp_path / "b").exists() and not (tmp_path / "c").exists()


def test_the_record_of_an_interrupted_run_has_no_checksum_of_its_parts(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checksum says that the host has the document of a part."""
    old = {"path": str(tmp_path / "old"), "content": "1"}
    other = {"path": str(tmp_path / "other"), "content": "1", "part": "other"}
    deploy.deploy(job_of(fake_run, {"files": [old, other]}, parts=["thing", "other"]))
    before = deployed.load()
    assert before is not None and set(before.checksums) == {"thing", "other"}

    def interrupt(*_args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deploy_files, "put_in_place", interrupt)
    with pytest.raises(KeyboardInterrupt):
        deploy.deploy(job_of(fake_run, {"files": [{"path": str(tmp_path / "new"), "content": "1"}]}))
    record = deployed.load()
    assert record is not None and record.checksums == {"other": before.checksums["other"]}
    assert sorted(Path(file.path).name for file in record.state.files) == ["new", "old", "other"]


@pytest.mark.parametrize(
    ("last_output", "restarts"),
    [("table 1\n", False), ("table 2\n", True), (None, True)],
    ids=["the same", "another", "no output kept"],
)
def test_a_unit_is_restarted_when_its_command_prints_something_else(
    system: Path, fake_run: Any, tmp_path: Path, last_output: str | None, restarts: bool
) -> None:
    fake_run.on("systemctl show", SHOWN).on("systemctl").on("/usr/sbin/nft list", "table 1\n")
    printed = tmp_path / "printed"
    if last_output is not None:
        printed.write_text(last_output)
    unit = {"name": "a.service", "prints": ["/usr/sbin/nft", "list"], "printed": str(printed)}
    result = deploy.deploy(job_of(fake_run, {"units": [unit]}))
    assert result["restarted"] == (["a.service"] if restarts else [])
    assert fake_run.calls.count(["/usr/sbin/nft", "list"]) == (2 if restarts else 1)
    assert printed.read_text() == "table 1\n"
    if restarts:
        assert stat.S_IMODE(printed.stat().st_mode) == 0o644


def test_a_unit_whose_command_fails_is_restarted_and_a_failure_after_that_is_an_error(
    system: Path, fake_run: Any, tmp_path: Path
) -> None:
    """nft cannot list a table that somebody has removed."""
    fake_run.on("systemctl show", SHOWN).on("systemctl").on("/usr/sbin/nft list", rc=1, err="No such file or directory")
    printed = tmp_path / "printed"
    printed.write_text("")
    unit = {"name": "a.service", "prints": ["/usr/sbin/nft", "list"], "printed": str(printed)}
    failed = "^thing: /usr/sbin/nft list failed after the start of a.service: No such file or directory$"
    with pytest.raises(Refused, match=failed):
        deploy.deploy(job_of(fake_run, {"units": [unit]}))
    assert printed.read_text() == ""
    assert ["systemctl", "restart", "--", "a.service"] in fake_run.calls


def test_a_key_is_kept_while_a_generation_names_it(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "keys"
    monkeypatch.setattr(made, "OWN", (*made.OWN, str(folder)))
    keys = [folder / "needed", folder / "unneeded"]
    folders = [{"path": str(folder), "remove": "whole", **OWNER}]
    generation = made.state_dir() / "generations/4.json"
    generation.parent.mkdir(parents=True)
    generation.write_text(json.dumps({"secrets": {str(keys[0]): {}}}))
    files = [{"path": str(key), "content": "k", "secret": True} for key in keys]
    deploy.deploy(job_of(fake_run, {"files": files, "folders": folders}))
    job = job_of(fake_run, {})
    deploy.deploy(job)
    record = deployed.load()
    assert job.removed == [str(keys[1])] and record is not None and record.retired == (str(keys[0]),)
    # It comes back with its row, and goes with the generation.
    deploy.deploy(job_of(fake_run, {"files": [{"path": str(keys[0]), "content": "k", "secret": True}]}))
    record = deployed.load()
    assert record is not None and record.retired == ()
    deploy.deploy(job_of(fake_run, {}))
    generation.unlink()
    job = job_of(fake_run, {}, parts=["other"])
    deploy.deploy(job)
    assert job.removed == [str(keys[0]), str(folder)] and not folder.exists()


def test_a_full_disk_leaves_all_files_and_units(
    fake_run: Any, system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_run.on("systemctl show", SHOWN).on("systemctl")
    old, new = tmp_path / "old", {"path": str(tmp_path / "new"), "content": "1"}
    deploy.deploy(job_of(fake_run, {"files": [{"path": str(old), "content": "1"}], "units": [{"name": "old.service"}]}))

    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(28, "No space left on device")

    for place, error in ((state_file, "write"), (staging, "beside")):
        with monkeypatch.context() as patch:
            patch.setattr(place, error, full)
            fake_run.calls.clear()
            with pytest.raises((Refused, OSError), match="No space left on device"):
                deploy.deploy(job_of(fake_run, {"files": [deepcopy(new)]}))
        assert old.exists() and not Path(new["path"]).exists()
        assert not [call for call in fake_run.calls if call[1] == "stop"]
    job = job_of(fake_run, {"files": [new]})
    deploy.deploy(job)
    assert job.removed == [str(old)] and Path(new["path"]).exists()


def test_an_account_goes_once_nothing_belongs_to_it(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_run.on("/usr/sbin")
    user = OWNER["owner"]
    account = {"name": user, "groups": [], "remove": True}
    other = {"files": [{"path": str(tmp_path / "a"), "content": "1", "part": "other"}]}
    deploy.deploy(job_of(fake_run, {"accounts": [account], **other}, parts=["thing", "other"]))
    monkeypatch.setattr(deploy_accounts, "FIRST_PERSON", 2**32)
    deploy.deploy(job_of(fake_run, {}))
    assert fake_run.calls == []
    monkeypatch.setattr(deploy_accounts, "FIRST_PERSON", 0)
    deploy.deploy(job_of(fake_run, {}, parts=["thing", "other"]))
    assert fake_run.calls == []  # a person's
    monkeypatch.setattr(deploy_accounts, "FIRST_PERSON", 2**32)
    deploy.deploy(job_of(fake_run, {"accounts": [account]}))
    job = job_of(fake_run, {})
    deploy.deploy(job)
    assert fake_run.calls == [["/usr/sbin/userdel", "--", user]] and job.removed == [f"account {user}"]
