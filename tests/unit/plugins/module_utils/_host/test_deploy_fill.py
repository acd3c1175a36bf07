# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deploy, deploy_fill, deployed
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Refused, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState

ME, GROUP = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name


def row(path: Path, content: str, sent: bool = True, **more: Any) -> dict[str, Any]:
    data = content.encode()
    sums = {"digest": hashlib.sha256(data).hexdigest(), "data": base64.b64encode(data).decode() if sent else None}
    return {"path": str(path), "owner": ME, "group": GROUP, **sums, **more}


def deployment(run: Any, check: bool = False, **rows: Any) -> Deployment:
    tools = Tools(run, lambda *_args: False, print, check, "/tmp")
    return Deployment(HostState.from_dict(rows, "thing"), tools, ["thing"], deployed.load())


def test_the_host_fills_in_its_ports_and_the_numbers_of_accounts(fake_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a"
    fill = ["port_range", f"uid:{ME}", f"gid:{GROUP}"]
    file = row(path, f"@host:port_range@ @host:uid:{ME}@ @host:gid:{GROUP}@ @host:uid:else@", fill=fill)
    deploy.deploy(deployment(fake_run, files=[file]))
    ports = "-".join(deploy_fill.PORT_RANGE.read_text().split())
    assert path.read_text() == f"{ports} {os.getuid()} {os.getgid()} @host:uid:else@"
    record = deployed.load()
    assert record is not None and record.state.files[0].digest == hashlib.sha256(path.read_bytes()).hexdigest()
    # The controller computes the same checksum of the document.
    assert record.checksums["thing"] == deployed.checksum(HostState.from_dict({"files": [file]}, "thing"))
    second = deployment(fake_run, files=[file])
    assert deploy.deploy(second)["written"] == [] and not second.changed


def test_the_number_of_an_account_that_this_run_makes_is_filled_in(
    fake_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users: dict[str, Any] = {}
    getpwnam = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: users[name] if name == "new" else getpwnam(name))

    def run(argv: list[str], *_arguments: Any) -> tuple[int, str, str]:
        if argv[0] == "/usr/sbin/useradd":
            users["new"] = SimpleNamespace(pw_uid=815, pw_dir="/nonexistent", pw_shell="/bin/false", pw_gid=815)
        return (1, "", "refused") if argv[0] == "/bin/refuse" else (0, "", "")

    path = tmp_path / "a"
    files = [row(path, "User=@host:uid:new@\n", fill=["uid:new"], validate="/bin/accept %s")]
    accounts = [{"name": "new", "home": "/nonexistent", "shell": "/bin/false", "groups": []}]
    check = deployment(run, check=True, files=files, accounts=accounts)
    assert deploy.deploy(check)["written"] == [str(path)] and check.changed and not users
    with pytest.raises(Refused, match=r"the host has no uid:new for .*Nothing was changed"):
        deploy.deploy(deployment(run, files=files))
    refused = [{**files[0], "validate": "/bin/refuse %s"}]
    with pytest.raises(Refused, match="is not valid"):
        deploy.deploy(deployment(run, files=refused, accounts=accounts))
    users.clear()
    deploy.deploy(deployment(run, files=files, accounts=accounts))
    assert path.read_text() == "User=815\n"
    second = deployment(run, files=files, accounts=accounts)
    deploy.deploy(second)
    assert not second.changed


def test_a_secret_takes_over_a_file_with_the_number_of_an_account_that_this_run_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users: dict[str, Any] = {}
    getpwnam = pwd.getpwnam
    monkeypatch.setattr(pwd, "getpwnam", lambda name: users[name] if name == "new" else getpwnam(name))

    def useradd(_argv: list[str], *_arguments: Any) -> tuple[int, str, str]:
        users["new"] = SimpleNamespace(pw_uid=815, pw_dir="/nonexistent", pw_shell="/bin/false", pw_gid=815)
        return 0, "", ""

    source, target = tmp_path / "source", tmp_path / "target"
    files = [
        row(target, f"<@host:file:{source}@>", fill=[f"file:{source}"], secret=True),
        row(source, "User=@host:uid:new@\n", fill=["uid:new"]),
    ]
    accounts = [{"name": "new", "home": "/nonexistent", "shell": "/bin/false", "groups": []}]
    deploy.deploy(deployment(useradd, files=files, accounts=accounts))
    assert (source.read_text(), target.read_text()) == ("User=815\n", "<User=815>")


def test_a_generated_secret_stays_and_other_secrets_take_it_over(fake_run: Any, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    on_host = tmp_path / "host"
    on_host.write_text(" theirs \n")
    made = {"path": str(key), "generate": 24, "secret": True, "owner": ME, "group": GROUP}
    fill = [f"file:{key}", f"file:{on_host}"]
    content = f"@host:file:{key}@;@host:file:{on_host}@"
    # The row that takes it over may come first.
    files = [row(other, content, fill=fill, secret=True), made]
    check = deployment(fake_run, check=True, files=files)
    assert deploy.deploy(check)["written"] == [str(other), str(key)] and not key.exists()
    deploy.deploy(deployment(fake_run, files=files))
    text = key.read_text()
    assert len(text) == 24 and text.isalnum() and other.read_text() == f"{text};theirs"
    second = deployment(fake_run, files=files)
    deploy.deploy(second)
    assert not second.changed and key.read_text() == text
    assert text not in deployed.record_path().read_text()
    key.write_text("changed by hand\n")
    assert deploy.deploy(deployment(fake_run, files=files))["written"] == [str(other)]
    assert other.read_text() == "changed by hand;theirs"


def test_the_content_of_a_file_that_is_a_value_is_asked_for_only_where_it_differs(
    fake_run: Any, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    taker = row(target, f"@host:file:{source}@", fill=[f"file:{source}"], secret=True)
    unsent = row(source, "new\n", sent=False)
    assert deploy.deploy(deployment(fake_run, files=[taker, unsent])) == {"wanted": [str(source)]}
    deploy.deploy(deployment(fake_run, files=[taker, row(source, "new\n")]))
    assert target.read_text() == "new"
    second = deployment(fake_run, files=[taker, unsent])
    assert deploy.deploy(second)["written"] == [] and not second.changed


@pytest.mark.parametrize(
    ("fill", "more", "text"),
    [
        ("file:/etc/hostname", {}, "is a value for secret files alone"),
        ("hostname", {}, "hostname is no value"),
        ("uid:nobody-by-this-name", {}, "the host has no uid:nobody-by-this-name for"),
        ("file:/none", {"secret": True}, "the host has no file:/none for"),
    ],
)
def test_a_value_that_is_none_is_refused(
    fake_run: Any, tmp_path: Path, fill: str, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(Refused, match=text):
        deploy.deploy(deployment(fake_run, files=[row(tmp_path / "a", f"@host:{fill}@", fill=[fill], **more)]))
    assert not (tmp_path / "a").exists()


def test_files_that_are_values_of_each_other_are_refused(fake_run: Any, tmp_path: Path) -> None:
    first, two = tmp_path / "one", tmp_path / "two"
    files = [row(a, f"@host:file:{b}@", fill=[f"file:{b}"], secret=True) for a, b in ((first, two), (two, first))]
    with pytest.raises(Refused, match="has its own content as a value"):
        deploy.deploy(deployment(fake_run, files=files))
