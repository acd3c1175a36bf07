# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switches for the power of an idle Spark: hot-plug of the ConnectX-7, governors of the CPUs. Reads, sets and restores them.

The state before the first change is kept in a file, so that a later run restores it, also after a crash or a reboot.
Sources of the paths: NVIDIA's package dgx-spark-mlnx-hotplug 26.01-1, as graham33/nixos-dgx-spark#165 and ajclark/dgx-spark-idle-power describe it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import state_file

HOTPLUG = "sys/devices/platform/MTKP0001:00/pcie_hotplug"
"""Folder of the driver cx7-pcie-hotplug. C(debug_state) is 0 while it sees no cable, C(hotplug_enabled) arms it."""
MARKER = "etc/nvidia/cx7-hotplug-enabled"
"""NVIDIA's handler disarms the hot-plug at boot without this file."""
HANDLER = "opt/nvidia/dgx-spark-mlnx-hotplug/mtk-hotplug-handler.sh"
HANDLER_SECONDS = 60.0
"""The handler waits 3 s and enumerates two root ports again."""
GOVERNORS = "sys/devices/system/cpu/cpufreq"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _ports(root: Path) -> list[Path]:
    """Return the network interfaces of the ConnectX-7."""
    with contextlib.suppress(OSError):
        interfaces = sorted((root / "sys/class/net").iterdir())
        return [path for path in interfaces if (path / "device/driver").resolve().name == "mlx5_core"]
    return []


def _policies(root: Path) -> list[Path]:
    return sorted((root / GOVERNORS).glob("policy*"))


def facts(root: Path) -> dict[str, Any]:
    """Return whether a host has the hot-plug, whether a cable is plugged in (None if unknown), and the governors of its kernel."""
    offered = [_text(path / "scaling_available_governors") for path in _policies(root)]
    # The kernel refuses to read the carrier of an interface without link state.
    carriers = [_text(port / "carrier") for port in _ports(root)]
    is_out = _text(root / HOTPLUG / "debug_state") == "0" or (carriers and set(carriers) == {"0"})
    return {
        "cx7_hotplug": (root / HOTPLUG / "hotplug_enabled").exists() and (root / HANDLER).exists(),
        "cx7_cable": True if "1" in carriers else False if is_out else None,
        "governors": sorted({name for text in offered if text for name in text.split()}),
    }


class Switches:
    """The switches of one host.

    root: of its files. state: the file with the state before. call: runs a program with a limit in seconds and returns its exit code.
    say: takes a message.
    """

    def __init__(
        self, root: Path, state: Path, call: Callable[[Sequence[str], float], int], say: Callable[[str], None]
    ) -> None:
        self.root, self.state, self.call, self.say = root, state, call, say

    def apply(self, names: Sequence[str]) -> None:
        """Switch on; a switch that the host cannot have is left out with a message. Raises C(OSError)."""
        if "cx7_hotplug" in names:
            self._save_cx7()
        if "cpu_governor" in names:
            self._save_governors()

    def undo(self) -> None:
        """Restore the noted state; other settings stay. Raises C(OSError) when all that can be restored is."""
        before = state_file.read(self.state) or {}
        errors = []
        for name, restore in (("cx7", self._restore_cx7), ("governors", self._restore_governors)):
            try:
                restore(before.get(name) or {})
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        self.state.unlink(missing_ok=True)

    def _restore_governors(self, governors: Mapping[str, str]) -> None:
        for policy, governor in governors.items():
            self._write(self.root / GOVERNORS / policy / "scaling_governor", governor)

    def _restore_cx7(self, before: Mapping[str, Any]) -> None:
        if not before:
            return
        if not before["marker"]:
            (self.root / MARKER).unlink(missing_ok=True)
        if before["on_bus"] and not _ports(self.root):
            self._handle("plug-in")
        self._write(self.root / HOTPLUG / "hotplug_enabled", before["enabled"])

    def _save_cx7(self) -> None:
        power_facts = facts(self.root)
        if not power_facts["cx7_hotplug"]:
            self.say(
                "cx7_hotplug: this host has no driver cx7-pcie-hotplug or no handler of NVIDIA; nothing was changed"
            )
            return
        if power_facts["cx7_cable"] is not False:
            why = "" if power_facts["cx7_cable"] else "it is unknown whether "
            why += "a QSFP cable is plugged in"
            self.say(f"cx7_hotplug: {why}; the adapter stays on the bus")
            return
        marker, enabled = self.root / MARKER, self.root / HOTPLUG / "hotplug_enabled"
        ports = _ports(self.root)
        before = {"marker": marker.exists(), "enabled": _text(enabled) or "0", "on_bus": bool(ports)}
        self._note("cx7", before)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        self._write(enabled, "1")
        if ports:
            self._handle("removal")

    def _save_governors(self) -> None:
        policies = [
            path for path in _policies(self.root) if "schedutil" in (_text(path / "scaling_available_governors") or "")
        ]
        governors = {path: _text(path / "scaling_governor") for path in policies}
        self._note("governors", {path.name: governor for path, governor in governors.items() if governor})
        for path in policies:
            self._write(path / "scaling_governor", "schedutil")
        if not policies:
            self.say("cpu_governor: this kernel has no governor schedutil; nothing was changed")

    def _note(self, name: str, before: Mapping[str, Any]) -> None:
        """Keep the state before the first change; a later one keeps it."""
        noted = state_file.read(self.state) or {}
        if before and name not in noted:
            state_file.write(self.state, {**noted, name: before})

    def _handle(self, action: str) -> None:
        if self.call([str(self.root / HANDLER), action], HANDLER_SECONDS):
            self.say(f"cx7_hotplug: {HANDLER} {action} failed; a reboot completes it")

    def _write(self, path: Path, text: str) -> None:
        if _text(path) not in (None, text):
            path.write_text(text, encoding="ascii")
