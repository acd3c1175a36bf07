# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that is a folder, on which documents are deployed. systemd and Docker are played by a function that keeps their state."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import os
import pwd
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import deploy, deployed, deployment
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.deployment import Deployment, Tools
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState, merge

UNIT = """[Unit]
Description=heavy
[Service]
ExecStartPre=/usr/bin/python3 /usr/local/libexec/dgxspark/spark_unit.py gate heavy
ExecStart=/usr/bin/docker run --rm --name spark-heavy --env-file /etc/dgxspark/env/heavy.env IMAGE vllm serve
[Install]
WantedBy=multi-user.target
"""
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
COMMITS = {"old": "1" * 40, "new": "2" * 40}
OWNER = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
KEY = "/etc/dgxspark/secrets/heavy/VLLM_API_KEY"
ENV = "/etc/dgxspark/env/heavy.env"
TABLE = ("/usr/sbin/nft", "--stateless", "list", "table", "inet", "dgxspark")


class Spark:
    """A host with files below a folder, units and images."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.active: dict[str, str] = {}
        self.began: dict[str, float] = {}
        self.enabled: set[str] = set()
        self.images = {OLD: {"repo/engine:old", f"repo/engine@{OLD}"}, NEW: {"repo/engine:new", f"repo/engine@{NEW}"}}
        self.calls: list[list[str]] = []
        self.refuse: set[str] = set()
        self.table: str | None = None

    # --- files

    def at(self, path: str) -> str:
        return f"{self.root}{path}"

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(mode)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text(encoding="utf-8")

    def exists(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()

    def files(self) -> dict[str, tuple[str, int]]:
        """All files of the host except the generations and the record."""
        return {
            f"/{path.relative_to(self.root)}": (path.read_text(encoding="utf-8"), stat.S_IMODE(path.stat().st_mode))
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "generations" not in path.parts and path.name not in ("deployed.json", "made")
        }

    # --- documents

    def document(self, part: str, files: dict[str, Any], units: list[dict[str, Any]] | None = None) -> HostState:
        """Return a document. files: by path, a text, or fields of the row."""
        rows = []
        for path, body in files.items():
            row = {"content": body} if isinstance(body, str) else dict(body)
            content = str(row.pop("content", "")).encode()
            if not row.get("generate"):
                row.update(digest=hashlib.sha256(content).hexdigest(), data=base64.b64encode(content).decode())
            rows.append({"path": self.at(path), **OWNER, **row})
        folders = sorted({str(Path(row["path"]).parent) for row in rows})
        return HostState.from_dict(
            {
                "folders": [{"path": path, **OWNER} for path in folders],
                "files": rows,
                "units": units or [],
            },
            part,
        )

    def service(
        self,
        name: str = "heavy",
        image: str = f"repo/engine@{OLD}",
        secret: str = "key-1",
        env: str = "A=1\n",
        unit: str = UNIT,
        files: dict[str, Any] | None = None,
        **row: Any,
    ) -> HostState:
        """Return the document of a service."""
        properties = {
            f"/etc/systemd/system/spark-{name}.service": unit.replace("heavy", name).replace("IMAGE", image),
            f"/etc/dgxspark/services/{name}.json": json.dumps({"url": "http://127.0.0.1:1", "model": name}),
            f"/etc/dgxspark/env/{name}.env": {"content": env, "mode": "0600"},
            f"/etc/dgxspark/secrets/{name}/VLLM_API_KEY": {"content": secret, "mode": "0600", "secret": True},
            **(files or {}),
        }
        watched = [self.at(path) for path in properties if not path.endswith(f"services/{name}.json")]
        units = [{"name": f"spark-{name}.service", "enabled": True, "wait": False, "restart_on": watched, **row}]
        return self.document("service", properties, units)

    def host(self) -> HostState:
        """Return the document of the part that all hosts have."""
        return self.document("host", {"/usr/local/libexec/dgxspark/spark_unit.py": "pass\n"})

    def apply(self, *states: HostState, parts: set[str] | None = None) -> dict[str, Any]:
        """Deploy documents as the module deploy does."""
        state = merge(states)
        before = deployed.load() or deployed.Deployed()
        deployed_parts = state.parts() | before.state.parts() if parts is None else parts
        tools = Tools(self, chmod, print, False, str(self.root))
        return deploy.deploy(Deployment(state, tools, deployed_parts, before))

    def deploy(self, commit: str = "old", **service: Any) -> dict[str, Any]:
        """Deploy a host with one service, as a whole run does, and prove it."""
        result = self.apply(self.host(), self.service(**service))
        self.weights(commit)
        self.receipt()
        return result

    def receipt(self, **more: Any) -> None:
        body = {"service": "heavy", "deployed": {"model": {"repo": "Org/M", "revision": "main"}}, **more}
        self.write("/var/lib/dgxspark/receipts/heavy.json", json.dumps(body))

    def weights(self, commit: str) -> None:
        self.write("/srv/huggingface/hub/models--Org--M/refs/main", COMMITS[commit])
        self.write(f"/srv/huggingface/hub/models--Org--M/snapshots/{COMMITS[commit]}/config.json", "{}")

    # --- programs

    def start(self, names: list[str]) -> None:
        self.active.update(dict.fromkeys(names, "active"))
        self.began.update(dict.fromkeys(names, time.clock_gettime(time.CLOCK_MONOTONIC)))

    def shown(self, name: str) -> str:
        place = deployment.SYSTEM / "system" / name
        return (
            f"Id={name}\nLoadState={'loaded' if place.exists() else 'not-found'}\n"
            f"ActiveState={self.active.get(name, 'inactive')}\n"
            f"UnitFileState={'enabled' if name in self.enabled else 'disabled'}\n"
            f"InactiveExitTimestampMonotonic={int(self.began.get(name, 0) * 1e6)}"
        )

    def __call__(self, argv: list[str], *_seconds: Any, **_options: Any) -> tuple[int, str, str]:
        self.calls.append(argv)
        if argv[1] in self.refuse:
            return 1, "", f"{argv[1]} does not work"
        names = [word for word in argv[2:] if word.startswith("spark-")]
        out = ""
        if tuple(argv) == TABLE:
            return (1, "", "No such file or directory") if self.table is None else (0, self.table, "")
        if argv[:2] == ["systemctl", "show"]:
            out = "\n\n".join(self.shown(name) for name in names)
        elif argv[0] == "systemctl" and argv[1] in ("start", "restart"):
            self.start(names)
        elif argv[:2] == ["systemctl", "stop"]:
            self.active.update(dict.fromkeys(names, "inactive"))
        elif argv[:2] == ["systemctl", "enable"]:
            self.enabled.update(names)
        elif argv[:2] == ["systemctl", "disable"]:
            self.enabled.difference_update(names)
        elif argv[:3] == ["docker", "image", "inspect"]:
            images = [self.described(image) for image, tags in self.images.items() if {image, *tags} & set(argv[3:])]
            existing = {name for image in images for name in (image["Id"], *image["RepoTags"], *image["RepoDigests"])}
            lacking = [name for name in argv[3:] if name not in existing]
            return (
                int(bool(lacking)),
                json.dumps(images),
                "".join(f"Error: No such image: {name}\n" for name in lacking),
            )
        elif argv[:2] == ["docker", "tag"]:
            for tags in self.images.values():
                tags.discard(argv[3])
            next(tags for image, tags in self.images.items() if argv[2] in {image, *tags}).add(argv[3])
        elif argv[:3] == ["docker", "image", "ls"]:
            properties = [tag for tags in self.images.values() for tag in tags if tag.startswith(f"{engine.TAG}:")]
            out = "\n".join(tag.split(":")[1] for tag in properties)
        elif argv[:3] == ["docker", "image", "rm"]:
            for tags in self.images.values():
                tags.discard(argv[3])
            self.images = {image: tags for image, tags in self.images.items() if tags}
        return 0, out, ""

    def described(self, image: str) -> dict[str, Any]:
        tags = sorted(self.images[image])
        return {
            "Id": image,
            "RepoTags": [tag for tag in tags if "@" not in tag],
            "RepoDigests": [tag for tag in tags if "@" in tag],
        }

    def asked(self, verb: str) -> list[str]:
        return [
            word for call in self.calls if call[:2] == ["systemctl", verb] for word in call[2:] if word[:6] == "spark-"
        ]


def chmod(path: str, _owner: str, _group: str, mode: str, _difference: dict[str, Any]) -> bool:
    """Set the mode as Ansible does; tells whether it was another."""
    differs = stat.S_IMODE(Path(path).stat().st_mode) != int(mode, 8)
    Path(path).chmod(int(mode, 8))
    return differs


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Spark:
    """A host without anything deployed."""
    root = tmp_path / "root"
    for folder in ("etc/systemd/system", "var/lib/dgxspark"):
        (root / folder).mkdir(parents=True)
    monkeypatch.setattr(deployment, "SYSTEM", root / "etc/systemd")
    monkeypatch.setenv("DGXSPARK_STATE_DIR", str(root / "var/lib/dgxspark"))
    played = Spark(root)
    play(monkeypatch, played)
    return played


Call = Callable[..., "dict[str, Any]"]
