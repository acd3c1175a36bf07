# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to a host in which order, without a play: C(test_deploy_playbook.py) has the module as it is run."""

from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import (
    deploy,
    deploy_files,
    deploy_removal,
    deploy_units,
    deployment,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Refused, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState

OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
SHOWN = "Id=x\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"


def job_of(run: Any, document: dict[str, Any], check: bool = False) -> Deployment:
    for file in document.get("files") or []:
        content = file.pop("content").encode()
        file.update(OWNER, digest=hashlib.sha256(content).hexdigest(), data=base64.b64encode(content).decode())
    tools = Tools(lambda argv, *_seconds: run(argv), lambda *_args: False, print, check, "/tmp")
    return Deployment(HostState.from_dict(document, "thing").distinct(), tools)


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


def test_a_file_for_a_device_that_is_missing_goes(tmp_path: Path) -> None:
    files = [{"path": "/a", "device": str(tmp_path)}, {"path": "/b", "device": str(tmp_path / "none")}]
    state = deploy_files.without_missing_devices(HostState.from_dict({"files": files}, "guard"))
    assert [file.path for file in state.files] == ["/a"]
    assert [(row.path, row.part) for row in state.removed] == [("/b", "guard")]


def test_a_failed_unit_that_goes_is_forgotten(system: Path, fake_run: Any) -> None:
    fake_run.on("systemctl show", SHOWN.replace("active", "failed", 1)).on("systemctl")
    (system / "a.service").write_text("[Service]\n")
    job = job_of(fake_run, {"units": [{"name": "a.service", "state": "absent"}]})
    assert deploy_removal.remove_units(job, ["a.service"]) == []
    assert [call[1:] for call in fake_run.calls[1:]] == [["disable", "--", "a.service"], ["reset-failed", "a.service"]]
    assert job.removed == [str(system / "a.service")] and job.reload
