# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import grp
import pwd
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deploy_accounts
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Refused, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState

UNITS = {"name": "dgxspark", "home": "/nonexistent", "shell": "/usr/sbin/nologin"}


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Users with home and shell, and the members of the group docker."""
    host_accounts: dict[str, Any] = {"users": {}, "docker": [], "uid": 1000}

    def user(name: str) -> Any:
        home, shell = host_accounts["users"][name]
        return SimpleNamespace(pw_dir=home, pw_shell=shell, pw_gid=1000, pw_uid=host_accounts["uid"])

    def group(name: str) -> Any:
        if name != "docker":
            return {entry: SimpleNamespace(gr_gid=1000, gr_mem=[]) for entry in host_accounts["users"]}[name]
        return SimpleNamespace(gr_gid=999, gr_mem=host_accounts["docker"])

    monkeypatch.setattr(pwd, "getpwnam", user)
    monkeypatch.setattr(grp, "getgrnam", group)
    return host_accounts


def deployment(run: Any, rows: list[dict[str, Any]], check: bool = False) -> Deployment:
    tools = Tools(run, lambda *_args: False, print, check, "/tmp")
    return Deployment(HostState.from_dict({"accounts": rows}, "host"), tools)


def test_missing_accounts_are_created_and_people_are_named(accounts: Any, fake_run: Any) -> None:
    fake_run.on("/usr/sbin/useradd").on("/usr/sbin/usermod")
    accounts["users"]["grace"] = ("/home/grace", "/bin/bash")
    job = deployment(fake_run, [UNITS, {"name": "ada"}, {"name": "grace"}])
    assert deploy_accounts.make_accounts(job) == ["ada", "grace"] and job.changed
    system = [
        "/usr/sbin/useradd",
        "--system",
        "--no-create-home",
        "--home-dir",
        "/nonexistent",
        "--shell",
        "/usr/sbin/nologin",
    ]
    assert fake_run.calls == [
        [*system, "--groups", "docker", "--", "dgxspark"],
        ["/usr/sbin/useradd", "--create-home", "--groups", "docker", "--", "ada"],
        ["/usr/sbin/usermod", "--append", "--groups", "docker", "--", "grace"],
    ]


def test_accounts_that_are_right_stay_and_others_are_mended(accounts: Any, fake_run: Any) -> None:
    fake_run.on("/usr/sbin/usermod")
    accounts.update(users={"dgxspark": ("/nonexistent", "/usr/sbin/nologin")}, docker=["dgxspark"])
    job = deployment(fake_run, [UNITS])
    assert deploy_accounts.make_accounts(job) == [] and not job.changed and fake_run.calls == []
    accounts["users"]["dgxspark"] = ("/home/x", "/usr/sbin/nologin")
    job = deployment(fake_run, [UNITS], check=True)
    assert deploy_accounts.make_accounts(job) == [] and job.changed and fake_run.calls == []
    deploy_accounts.make_accounts(deployment(fake_run, [UNITS]))
    assert fake_run.calls == [["/usr/sbin/usermod", "--home", "/nonexistent", "--", "dgxspark"]]


@pytest.mark.parametrize(("uid", "is_removed"), [(999, True), (1000, False)])
def test_an_account_of_a_person_is_never_removed(accounts: Any, fake_run: Any, uid: int, is_removed: bool) -> None:
    fake_run.on("/usr/sbin/userdel")
    accounts.update(users={"dgxspark": ("/nonexistent", "/usr/sbin/nologin")}, uid=uid)
    job = deployment(fake_run, [UNITS])
    deploy_accounts.remove_account(job, job.state.accounts[0])
    assert fake_run.calls == ([["/usr/sbin/userdel", "--", "dgxspark"]] if is_removed else [])
    assert job.changed is is_removed
    accounts["users"].clear()
    job = deployment(fake_run, [UNITS])
    deploy_accounts.remove_account(job, job.state.accounts[0])
    assert not job.changed


def test_a_host_without_the_group_docker_is_named(accounts: Any, fake_run: Any) -> None:
    fake_run.on("/usr/sbin/useradd", rc=6, err="useradd: group 'docker' does not exist")
    with pytest.raises(Refused, match=r"^host: /usr/sbin/useradd .* failed: useradd: group 'docker' does not exist"):
        deploy_accounts.make_accounts(deployment(fake_run, [UNITS]))
