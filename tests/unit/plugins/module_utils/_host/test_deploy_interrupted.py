# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random documents one after another, with runs that are killed at a random step: the next run ends equal to its document."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import os
import pwd
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deploy, deployed, deployment, made, staging
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState

OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
PARTS = ("a", "b", "c")
KILLED = 9


class Host:
    """Folders that play a host, and a systemd that keeps the state of units in a file."""

    def __init__(self, root: Path) -> None:
        self.root, self.system = root, root / "systemd/system"
        self.units_file = root / "units.json"
        self.system.mkdir(parents=True)
        self.units_file.write_text("{}")
        self.steps = -1  # until the run is killed; none below 0

    def step(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            os._exit(KILLED)

    def units(self) -> dict[str, dict[str, bool]]:
        state: dict[str, dict[str, bool]] = json.loads(self.units_file.read_text())
        return state

    def run(self, argv: list[str], *_seconds: Any) -> tuple[int, str, str]:
        verb, names = argv[1], argv[argv.index("--") + 1 :] if "--" in argv else []
        units = self.units()
        if verb == "show":
            if "--value" in argv:
                return 0, "", ""
            texts = []
            for name in names:
                unit = units.get(name, {})
                active = "active" if unit.get("active") else "inactive"
                enabled = "enabled" if unit.get("enabled") else "disabled"
                began = unit.get("began", 0)
                texts.append(
                    f"Id={name}\nLoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\n"
                    f"NeedDaemonReload=no\nInactiveExitTimestampMonotonic={began}\n"
                )
            return 0, "\n".join(texts), ""
        for name in names:
            self.step()
            change: dict[str, Any] = {
                "start": {"active": True, "began": time.monotonic_ns() // 1000},
                "restart": {"active": True, "began": time.monotonic_ns() // 1000},
                "stop": {"active": False},
                "enable": {"enabled": True},
                "disable": {"enabled": False},
            }[verb]
            units.setdefault(name, {}).update(change)
            self.units_file.write_text(json.dumps(units))
        return 0, "", ""

    def document(self, parts: dict[str, dict[str, Any]]) -> HostState:
        rows: dict[str, list[dict[str, Any]]] = {"folders": [], "files": [], "units": [], "created": []}
        for part, names in parts.items():
            for folder in names["folders"]:
                rows["folders"].append({"path": str(self.root / folder), **OWNER, "part": part})
            for path, content in names["files"].items():
                data = content.encode()
                row = {"path": str(self.root / path), "digest": hashlib.sha256(data).hexdigest()}
                row.update(data=base64.b64encode(data).decode(), secret="key" in path, part=part)
                rows["files"].append({**row, **OWNER})
            for unit in names["units"]:
                rows["units"].append({"name": unit, "enabled": True, "part": part})
            for path in names["created"]:
                rows["created"].append({"path": str(self.root / path), "part": part})
        return HostState.from_dict(rows)

    def deploy(self, state: HostState, parts: Iterable[str]) -> Deployment:
        tools = Tools(self.run, lambda *_args: False, lambda _text: None, False, "/tmp")
        job = Deployment(state, tools, sorted(parts), deployed.load())
        staging.sweep(self.root, job.file_folders())
        deploy.deploy(job)
        return job

    def deploy_and_kill(self, state: HostState, parts: Iterable[str], steps: int) -> bool:
        """Deploy in a process that ends without any clean-up after some steps; returns whether it got that far."""
        child = os.fork()
        if child == 0:
            try:
                self.steps = steps
                self.deploy(state, parts)
            except BaseException:  # nothing of the test may run on in the child
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED)
        return code == KILLED

    def tree(self) -> dict[str, str]:
        etc = [path for path in (self.root / "etc").rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_text() for path in [*etc, *self.system.iterdir()]}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path / "host")
    monkeypatch.setattr(deployment, "SYSTEM", host.root / "systemd")
    monkeypatch.setattr(made, "OWN", (*made.OWN, str(host.root / "etc/dgxspark")))
    for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "rmdir"), (Path, "mkdir"), (os, "fsync")):
        original = getattr(owner, name)

        def counted(*args: Any, _original: Any = original, **more: Any) -> Any:
            host.step()
            return _original(*args, **more)

        monkeypatch.setattr(owner, name, counted)
    return host


def random_parts(chance: random.Random, version: int) -> dict[str, dict[str, Any]]:
    """Return the names and contents of some parts. Parts share the files below lib."""
    document: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        if chance.random() < 0.25:
            document[part] = {"folders": [], "files": {}, "units": [], "created": []}
            continue
        names = [f"etc/dgxspark/{part}/{name}" for name in ("one", "two", "key") if chance.random() < 0.6]
        names += [f"etc/dgxspark/lib/{name}" for name in ("x", "y") if chance.random() < 0.5]
        units = [f"{part}{number}.service" for number in (1, 2) if chance.random() < 0.5]
        names += [f"systemd/system/{unit}" for unit in units]
        document[part] = {
            "folders": ["etc/dgxspark/lib", f"etc/dgxspark/{part}"],
            # Some files do not change from one document to the next.
            "files": {
                name: name if chance.random() < 0.4 and "lib" not in name else f"{name} {version}" for name in names
            },
            "units": units,
            "created": [f"etc/dgxspark/{part}/run"] if units else [],
        }
    return document


def record_text() -> bytes | None:
    """Return the record on the disk of the host, None without one."""
    path = deployed.record_path()
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("seed", range(50))
def test_a_killed_run_is_completed_by_the_next_one(host: Host, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    foreign = host.root / "etc/dgxspark/a/mine.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    kept_key = "etc/dgxspark/b/key"
    folder = made.state_dir() / "generations"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.json").write_text(json.dumps({"schema": 1, "secrets": {str(host.root / kept_key): {}}}))
    current: dict[str, dict[str, Any]] = {}
    contents: dict[str, str] = {}
    for version in range(3):
        document = random_parts(chance, version)
        parts = PARTS if chance.random() < 0.6 else tuple(chance.sample(PARTS, 2))
        if parts == PARTS and chance.random() < 0.5:
            # A run of yet another document, which is never completed.
            other = random_parts(chance, 10 + version)
            other["b"]["files"].pop(kept_key, None)
            host.deploy_and_kill(host.document(other), parts, chance.randrange(10, 80))
        part_rows = {part: document[part] for part in parts}
        state = host.document(part_rows)
        if chance.random() < 0.8:
            host.deploy_and_kill(state, parts, chance.randrange(1, 60))
        host.deploy(state, parts)
        current.update(part_rows)
        contents.update({path: text for rows in part_rows.values() for path, text in rows["files"].items()})
        for path in {path for rows in current.values() for path in rows["created"]}:
            (host.root / path).write_text("run")

        listed = {path for rows in current.values() for path in rows["files"]}
        created = {path for rows in current.values() for path in rows["created"]}
        retired = {kept_key} if kept_key in contents and kept_key not in listed else set()
        expected = {path: contents[path] for path in listed | retired}
        expected |= dict.fromkeys(created, "run") | {"etc/dgxspark/a/mine.txt": "mine"}
        assert host.tree() == expected
        units = {unit for rows in current.values() for unit in rows["units"]}
        states = host.units()
        assert {name for name, unit in states.items() if unit.get("active")} == units
        assert {name for name, unit in states.items() if unit.get("enabled")} == units
        folders = {str(path.relative_to(host.root)) for path in (host.root / "etc/dgxspark").iterdir() if path.is_dir()}
        result = {folder for rows in current.values() for folder in rows["folders"]}
        assert result | {"etc/dgxspark/a"} <= folders <= result | {"etc/dgxspark/a", "etc/dgxspark/b"}
        # A document without rows leaves no record.
        record = deployed.load() or deployed.Deployed()
        assert {str(Path(file.path).relative_to(host.root)) for file in record.state.files} == listed
        assert {str(Path(path).relative_to(host.root)) for path in record.retired} == retired

        text = record_text()
        second = host.deploy(state, parts)
        assert not second.changed and second.removed == [] and host.tree() == expected
        assert record_text() == text
