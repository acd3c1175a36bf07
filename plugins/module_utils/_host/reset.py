# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes everything that the collection put on a host: all deployed rows, then its own folders, caches, records and, on request, weights.

Takes no folder from the inventory, so that a wrong value removes nothing. Files of others stay, and the result names them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from . import deploy_accounts, deploy_removal, deployed, host_lock, made
from .deployed import FABRIC, Deployed
from .deployment import Deployment, Tools, is_folder, is_present
from .host_state import Account, HostState

TREES = (
    "/etc/dgxspark",
    "/opt/dgxspark",
    "/usr/local/lib/dgxspark",
    "/usr/local/libexec/dgxspark",
    "/etc/grafana/provisioning/datasources/dgxspark.yml",
    "/etc/grafana/provisioning/dashboards/dgxspark.yml",
)
"""Folders and files of settings, keys and programs, also of a host without a record."""
_PARTS = (
    "adopted alertmanager bundle compile_caches firewall fleet_monitor generations grafana guard image_plans images incoming kv_files on_demand "
    "prometheus receipts speech spread starts textfile watchdog"
)
PARTS = _PARTS.split()
"""Names below the state folder, without chats and accounts of clients, which belong to people."""
CACHES = Path("/var/cache/dgxspark")
ACCOUNTS = ("dgxspark", "spark-gateway", "spark-hermes")
"""System accounts of units on a host without a record."""
NFT_TABLE = ["/usr/sbin/nft", "list", "table", "inet", "dgxspark"]


def everything(before: Deployed | None, tools: Tools, fabric: bool) -> Deployment:
    """Return the deployment of the empty document, which removes all rows.

    :param before: the record of the host; unit files of the collection that it does not list leave as well
    :param fabric: whether the relay of the QSFP network leaves, too
    """
    record = before or Deployed()
    state = deployed.union(record.state, deployed.find_units())
    parts = state.parts() | set(record.checksums)
    return Deployment(
        HostState(),
        tools,
        sorted(parts if fabric else parts - {FABRIC}),
        Deployed(state, record.checksums, record.retired),
    )


def remove_rest(job: Deployment, weights: bool, fabric: bool) -> dict[str, Any]:
    """Remove programs, folders and records after all rows; returns C(left) and C(freed_bytes). fabric: also copies of replaced network files."""
    reset = Reset(job, weights, fabric)
    reset.remove_programs()
    if weights:
        reset.remove_weights()
    reset.remove_folders()
    reset.remove_records()
    # Last: the lock of this run lies there.
    deploy_removal.remove(job, host_lock.run_dir(), "reset")
    return {"left": reset.left, "freed_bytes": reset.freed_bytes}


class Reset:
    """One reset of a host. left: paths that stay, each with C(path) and C(why). freed_bytes: of weights."""

    def __init__(self, job: Deployment, weights: bool, fabric: bool) -> None:
        self.job, self.check = job, job.check
        self.with_weights, self.with_fabric = weights, fabric
        self.left: list[dict[str, str]] = []
        self.freed_bytes = 0

    def note(self, path: str) -> None:
        """Record a path as removed."""
        self.job.changed = True
        if path not in self.job.removed:
            self.job.removed.append(path)

    def remove_programs(self) -> None:
        """Remove the folders of settings, keys and programs, the table of the firewall and the accounts of units."""
        for tree in TREES:
            deploy_removal.remove(self.job, Path(tree), "reset")
        if Path(NFT_TABLE[0]).exists() and self.job.run(NFT_TABLE)[0] == 0:
            self.note("table inet dgxspark")
            if not self.check:
                self.job.run([NFT_TABLE[0], "delete", *NFT_TABLE[2:]])
        for name in ACCOUNTS:
            deploy_accounts.remove_account(self.job, Account(name))

    def remove_weights(self) -> None:
        """Remove the files of models that the collection downloaded."""
        failures: dict[str, str] = {}
        for name in made.noted_models():
            homes = sorted(made.made_of(name))
            removed, remaining, size = made.remove_made(name, self.check)
            self.freed_bytes += size
            model = name.replace("--", "/", 1)
            for home in homes:
                if any(path.startswith(f"{home}/") for path in removed):
                    self.note(f"{model} below {home}")
            # Folders that models share are empty once the last of these models is removed.
            failures = {path: why for path, why in failures.items() if path not in removed}
            failures.update({entry["path"]: entry["why"] for entry in remaining})
        self.left += [{"path": path, "why": why} for path, why in sorted(failures.items()) if Path(path).exists()]

    def remove_folders(self) -> None:
        """Remove recorded folders, the deepest first: caches, and others if they are empty."""
        kinds = made.folders()
        homes = {home for name in made.noted_models() for home in made.made_of(name)}
        for path in sorted(kinds, key=lambda folder: (-folder.count("/"), folder)):
            if kinds[path] == "weights" and not self.with_weights:
                continue
            removed, why = made.remove_folder(path, self.check)
            # Weights that stay need their folders.
            is_home = not self.with_weights and any(home == path or home.startswith(f"{path}/") for home in homes)
            if removed:
                self.note(path)
            elif why and not is_home:
                self.left.append({"path": path, "why": why})
        self._remove_caches()

    def _remove_caches(self) -> None:
        """Remove the folder of all caches if it is empty."""
        if not CACHES.is_dir():
            return
        others = sorted(path.name for path in CACHES.iterdir() if str(path) not in self.job.removed)
        if others:
            self.left.append({"path": str(CACHES), "why": f"not empty: {', '.join(others[:5])}"})
            return
        self.note(str(CACHES))
        if not self.check:
            CACHES.rmdir()

    def remove_records(self) -> None:
        """Remove the records in the state folder, except those of weights and folders that stay."""
        state, models = made.state_dir(), made.state_dir() / "models"
        for name in [*PARTS, *([FABRIC] if self.with_fabric else [])]:
            self.remove_record(state / name)
        for path in sorted(models.iterdir()) if models.is_dir() else []:
            if not path.name.endswith(".made"):
                self.remove_record(path, shown=False)
        if not deployed.without_contents(self.job.after.state).parts():
            self.remove_record(deployed.record_path(), shown=False)
        if self.check:
            return
        made.forget_images(made.images())
        if not made.folders():
            (state / "made").unlink(missing_ok=True)
        for folder in (models, state):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
                self.note(str(folder))

    def remove_record(self, path: Path, shown: bool = True) -> None:
        """Remove a path in the state folder, which is root's. shown: whether the results name it."""
        if not is_present(path):
            return
        if shown:
            self.note(str(path))
        if self.check:
            return
        if is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()
