# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switches for the power of an idle Spark, on a tree of files that stands for the host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import power_switches


class Spark:
    """A host with NVIDIA's hot-plug; the handler takes the ports off the bus and brings them back."""

    def __init__(
        self, folder: Path, marker: bool = False, enabled: str = "0", carriers: Sequence[str] = ("0", "0")
    ) -> None:
        self.root, self.calls, self.said = folder / "root", [], []
        self.calls: list[str]
        self.said: list[str]
        self.state = folder / "state/power.json"
        self.rc = 0
        self.carriers = carriers
        self.write(f"{power_switches.HOTPLUG}/hotplug_enabled", enabled)
        self.write(f"{power_switches.HOTPLUG}/debug_state", "1")
        self.write(power_switches.HANDLER, "#!/bin/bash\n")
        if marker:
            self.write(power_switches.MARKER, "")
        self.plug_in()
        for number in (0, 10):
            self.write(
                f"{power_switches.GOVERNORS}/policy{number}/scaling_available_governors", "performance schedutil"
            )
            self.write(f"{power_switches.GOVERNORS}/policy{number}/scaling_governor", "performance")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="ascii")

    def plug_in(self) -> None:
        for number, carrier in enumerate(self.carriers):
            port = f"sys/class/net/enp1s0f{number}np{number}"
            (self.root / "sys/bus/pci/drivers/mlx5_core").mkdir(parents=True, exist_ok=True)
            self.write(f"{port}/carrier", carrier)
            (self.root / port / "device").mkdir(parents=True, exist_ok=True)
            (self.root / port / "device/driver").symlink_to(self.root / "sys/bus/pci/drivers/mlx5_core")

    def call(self, argv: Sequence[str], _seconds: float) -> int:
        self.calls.append(argv[1])
        if not self.rc:
            shutil.rmtree(self.root / "sys/class/net", ignore_errors=True)
            if argv[1] == "plug-in":
                self.plug_in()
        return self.rc

    @property
    def switches(self) -> power_switches.Switches:
        return power_switches.Switches(self.root, self.state, self.call, self.said.append)

    def contents(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "drivers" not in path.parts
        }


@pytest.mark.parametrize("marker", [False, True])
@pytest.mark.parametrize("enabled", ["0", "1"])
def test_undo_restores_everything_also_after_repeated_runs(tmp_path: Path, marker: bool, enabled: str) -> None:
    spark = Spark(tmp_path, marker, enabled)
    before = spark.contents()
    for _run in range(2):  # the second run is that of the next boot
        spark.switches.apply(["cx7_hotplug", "cpu_governor"])
    assert spark.calls == ["removal"]
    assert (spark.root / power_switches.MARKER).exists()
    assert (spark.root / power_switches.HOTPLUG / "hotplug_enabled").read_text() == "1"
    governors = [path.read_text() for path in (spark.root / power_switches.GOVERNORS).glob("policy*/scaling_governor")]
    assert governors == ["schedutil", "schedutil"]
    spark.switches.undo()
    assert spark.calls == ["removal", "plug-in"] and spark.contents() == before and not spark.state.exists()
    spark.switches.undo()
    assert spark.contents() == before and len(spark.calls) == 2


@pytest.mark.parametrize(
    ("carriers", "words"),
    [(("1", "0"), "a QSFP cable is plugged in"), (("0", ""), "it is unknown"), ((), "it is unknown")],
)
def test_a_cable_or_silence_leaves_the_adapter_alone(tmp_path: Path, carriers: Sequence[str], words: str) -> None:
    spark = Spark(tmp_path, carriers=carriers)
    before = spark.contents()
    spark.switches.apply(["cx7_hotplug"])
    assert spark.contents() == before and not spark.calls and not spark.state.exists()
    assert len(spark.said) == 1 and words in spark.said[0]


def test_the_driver_s_own_word_counts_where_the_adapter_is_off_the_bus(tmp_path: Path) -> None:
    spark = Spark(tmp_path, carriers=())
    spark.write(f"{power_switches.HOTPLUG}/debug_state", "0\n")
    assert power_switches.facts(spark.root) == {
        "cx7_hotplug": True,
        "cx7_cable": False,
        "governors": ["performance", "schedutil"],
    }
    spark.switches.apply(["cx7_hotplug"])
    assert (spark.root / power_switches.MARKER).exists() and not spark.calls


def test_a_host_without_the_hardware_says_so_and_stays_as_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    switches = power_switches.Switches(tmp_path, tmp_path / "state.json", lambda *_: 1, said.append)
    switches.apply(["cx7_hotplug", "cpu_governor"])
    switches.undo()
    assert len(said) == 2 and list(tmp_path.iterdir()) == []
    assert power_switches.facts(tmp_path) == {"cx7_hotplug": False, "cx7_cable": None, "governors": []}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cx7": {}}'])
def test_a_damaged_state_restores_nothing(tmp_path: Path, content: str) -> None:
    spark = Spark(tmp_path)
    before = spark.contents()
    spark.state.parent.mkdir()
    spark.state.write_text(content)
    spark.switches.undo()
    assert spark.contents() == before and not spark.calls


def test_a_failing_handler_is_reported_and_undone(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    before = spark.contents()
    spark.rc = 1
    spark.switches.apply(["cx7_hotplug"])
    assert "removal failed" in spark.said[0]
    spark.switches.undo()
    assert spark.contents() == before


def test_the_state_before_is_kept_before_the_first_change(tmp_path: Path) -> None:
    spark = Spark(tmp_path, enabled="0")
    kept: dict[str, Any] = {}

    def call(argv: Sequence[str], _seconds: float) -> int:
        kept.update(json.loads(spark.state.read_text()))
        raise OSError("the host goes down")

    with pytest.raises(OSError, match="goes down"):
        power_switches.Switches(spark.root, spark.state, call, spark.said.append).apply(["cx7_hotplug"])
    assert kept["cx7"] == {"marker": False, "enabled": "0", "on_bus": True}
    spark.switches.undo()
    assert not (spark.root / power_switches.MARKER).exists()


def test_a_part_that_cannot_be_restored_does_not_keep_the_others_changed(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    before = spark.contents()
    spark.switches.apply(["cx7_hotplug", "cpu_governor"])
    governor = spark.root / power_switches.GOVERNORS / "policy0/scaling_governor"

    class Refusing(power_switches.Switches):
        def _write(self, path: Path, text: str) -> None:
            if path == governor:
                raise OSError("Invalid argument")
            super()._write(path, text)

    with pytest.raises(OSError, match="Invalid argument"):
        Refusing(spark.root, spark.state, spark.call, spark.said.append).undo()
    assert spark.calls == ["removal", "plug-in"] and spark.state.exists()
    spark.switches.undo()
    assert spark.contents() == before and not spark.state.exists()


def test_a_governor_that_cannot_be_read_is_not_restored(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    (spark.root / power_switches.GOVERNORS / "policy0/scaling_governor").unlink()
    spark.switches.apply(["cpu_governor"])
    assert json.loads(spark.state.read_text()) == {"governors": {"policy10": "performance"}}
    spark.switches.undo()
    assert not spark.state.exists()
