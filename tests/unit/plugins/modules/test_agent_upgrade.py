# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent takes the place of three older programs: deploy removes their units, part by part, and keeps the agent while a part has a loop."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deployment
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.modules import deploy

OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
OLD = {"guard": "spark-guard.service", "watchdog": "spark-watchdog.service", "exporters": "spark-collector.service"}


class Host:
    """A host with files below a folder and a systemd that only records its calls."""

    def __init__(self, folder: Path, capsys: Any) -> None:
        self.folder, self.capsys = folder, capsys
        self.calls: list[list[str]] = []
        self.running: dict[str, int] = {}  # microseconds of the monotonic clock at the start

    def systemctl(self, argv: list[str], *_arguments: Any, **_options: Any) -> tuple[int, str, str]:
        verb, names = argv[1], [word for word in argv[2:] if not word.startswith("-")]
        if verb != "show":
            self.calls.append([verb, *names])
        if verb in ("start", "restart"):
            self.running |= dict.fromkeys(names, int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6))
        for name in names if verb == "stop" else ():
            self.running.pop(name, None)
        blocks = []
        for name in names if verb == "show" else ():
            state = "active" if name in self.running else "inactive"
            file = "enabled" if name in self.running else "disabled"
            began = f"InactiveExitTimestampMonotonic={self.running.get(name, 0)}"
            blocks.append(f"Id={name}\nLoadState=loaded\nActiveState={state}\nUnitFileState={file}\n{began}\n")
        return 0, "\n".join(blocks), ""

    def deploy(self, parts: list[str], rows: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
        """Deploy parts; returns the calls of systemctl."""
        self.calls = []
        with patch_module_args({"parts": parts, **rows}), pytest.raises(SystemExit):
            deploy.main()
        result = json.loads(self.capsys.readouterr().out)
        assert not result.get("failed"), result
        return self.calls

    def rows(self, part: str, unit: str, settings: str) -> dict[str, list[dict[str, Any]]]:
        paths = [self.folder / "system" / unit, self.folder / settings]
        return {
            "files": [self.file(path, part) for path in paths],
            "units": [{"name": unit, "enabled": True, "restart_on": [str(path) for path in paths], "part": part}],
        }

    def file(self, path: Path, part: str) -> dict[str, Any]:
        data = b"[Service]\n"
        checksum, content = hashlib.sha256(data).hexdigest(), base64.b64encode(data).decode()
        return {"path": str(path), "digest": checksum, "data": content, "mode": "0600", "part": part, **OWNER}

    def old(self, part: str) -> dict[str, list[dict[str, Any]]]:
        return self.rows(part, OLD[part], f"{part}/settings.json")

    def agent(self, *parts: str) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of some loops; each loop has the same rows for the unit, as unit_files writes them."""
        documents = [self.rows(part, unit_files.AGENT_UNIT, f"agent/{part}.json") for part in parts]
        for document in documents:
            for unit in document["units"]:
                unit["restart_on"] = [str(self.folder / f"agent/{part}.json") for part in unit_files.AGENT_LOOPS]
        return {key: [row for document in documents for row in document[key]] for key in ("files", "units")}


@pytest.fixture
def host(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path, capsys)
    for folder in ("system", *OLD, "agent"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(AnsibleModule, "run_command", lambda _module, _argv, **_options: (0, "", ""))
    monkeypatch.setattr(deployment, "SYSTEM", tmp_path)
    monkeypatch.setattr(deploy.command, "runner", lambda _module: made.systemctl)
    return made


def units(host: Host) -> set[str]:
    return {path.name for path in (host.folder / "system").iterdir()}


def test_the_units_of_the_older_programs_go_with_the_parts_that_are_deployed(host: Host) -> None:
    for part in OLD:
        host.deploy([part], host.old(part))
    assert units(host) == set(OLD.values()) == set(host.running)
    # site.yml deploys watchdog and guard with one task; the exporters have a separate play.
    calls = host.deploy(["watchdog", "guard"], host.agent("watchdog", "guard"))
    assert set(host.running) == {unit_files.AGENT_UNIT, OLD["exporters"]} == units(host)
    assert {name for verb, *names in calls if verb == "stop" for name in names} == {OLD["guard"], OLD["watchdog"]}
    assert {name for verb, *names in calls if verb == "disable" for name in names} == {OLD["guard"], OLD["watchdog"]}
    assert not (host.folder / "guard/settings.json").exists() and not (host.folder / "watchdog/settings.json").exists()
    calls = host.deploy(["exporters"], host.agent("exporters"))
    assert set(host.running) == {unit_files.AGENT_UNIT} == units(host)
    assert ["stop", OLD["exporters"]] in calls and ["restart", unit_files.AGENT_UNIT] in calls
    assert host.deploy(["guard", "watchdog", "exporters"], host.agent(*OLD)) == []


def test_the_agent_goes_with_its_last_loop(host: Host) -> None:
    host.deploy(["guard", "watchdog"], host.agent("guard", "watchdog"))
    host.deploy(["watchdog"], {"files": [], "units": []})
    assert set(host.running) == {unit_files.AGENT_UNIT} and not (host.folder / "agent/watchdog.json").exists()
    assert (host.folder / "agent/guard.json").exists()
    host.deploy(["guard"], {"files": [], "units": []})
    assert host.running == {} and units(host) == set()


def test_all_parts_have_the_same_rows_of_the_agent() -> None:
    """Otherwise deploy would refuse two contents of one file, or restart the unit for two reasons."""
    documents = {part: unit_files.agent(part, {}, "/writes") for part in unit_files.AGENT_LOOPS}
    part_paths = {
        part: {f"/etc/dgxspark/agent/{part}.json", f"/etc/systemd/system/spark-agent.service.d/{part}.conf"}
        for part in documents
    }
    shared = [
        [file for file in rows["files"] if file["path"] not in part_paths[part]] for part, rows in documents.items()
    ]
    assert all(files == shared[0] for files in shared) and len(shared[0]) > 10
    units = [rows["units"] for rows in documents.values()]
    assert all(rows == units[0] for rows in units)
    assert {path for paths in part_paths.values() for path in paths} <= set(units[0][0]["restart_on"])
