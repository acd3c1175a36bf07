# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a host are exactly the planned ones: units as systemd reads them, with any text in the plan."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes_fixture import RECIPES
from systemd_fixture import needs_systemd, read_by_systemd, run_by_systemd, unquoted

from ansible_collections.dgxspark.vllm.plugins.lookup.unit_files import located
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import file_syntax
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files

ROOT = Path(__file__).parents[5]
SEED = 20261122
HOSTILE = [
    *("😀", "é", "日本", "\u2028", "\u2029", "\x85", "\ufeff", "\u202e", "e\u0301", "\U0010fffd"),
    *(
        '"',
        "'",
        "\\",
        "\\\\",
        "\\n",
        '\\"',
        "`id`",
        "$",
        "$$",
        "$HOME",
        "${HOME}",
        "$(id)",
        "%",
        "%%",
        "%n",
        "%h",
        "%i",
    ),
    *(
        ";",
        " ; ",
        "\\;",
        "&",
        "|",
        ">",
        "#",
        "# no comment",
        "=",
        ",",
        ":",
        "{}",
        "[x]",
        "*",
        "?",
        "!",
        "~",
        "^",
        "@",
        "+",
        "-",
    ),
    *(
        " ",
        "  ",
        "\t",
        "a b",
        " x",
        "x ",
        "--",
        "-",
        "{{ 7 * 7 }}",
        "{% if x %}",
        "{# x #}",
        "!unsafe",
        "&a *a",
        "- a: b",
        "|",
        ">-",
    ),
    *("null", "~", "yes", "0x10", "1e3", "---", "...", "%YAML 1.2", "]]>", "\\x41", "\\u0041", "\\101", "\\s", "\\"),
]
CONTROL = [
    "\n",
    "\r\n",
    "\r",
    "\x01",
    "\x1b[31m",
    "\x7f",
    "\x0b",
    "\nExecStart=/bin/sh",
    "\n[Service]\nUser=root",
    "\\\n",
]


def texts(seed: int, count: int, parts: list[str]) -> list[str]:
    """Texts out of hostile parts, the same ones for the same seed; each part alone first."""
    chance = random.Random(seed)
    made = ["".join(chance.choices(parts, k=chance.randint(1, 6))) for _number in range(count)]
    return [*parts, *made]


@needs_systemd
def test_systemd_reads_every_hostile_text_as_it_is() -> None:
    arguments = [*texts(SEED, 1500, HOSTILE), *texts(SEED + 1, 300, HOSTILE + CONTROL), ""]
    argv = [["/bin/true", *arguments[start : start + 40]] for start in range(0, len(arguments), 40)]
    units = {
        f"t{number}.service": f"[Service]\nType=oneshot\nExecStart={file_syntax.command_line(line)}\n"
        for number, line in enumerate(argv)
    }
    seen = read_by_systemd(units)
    for number, line in enumerate(argv):
        (shown,) = seen[f"t{number}.service"]["ExecStart"]
        assert run_by_systemd(unquoted(shown)) == line


@needs_systemd
def test_systemd_reads_paths_as_they_are() -> None:
    folders = [
        f"/srv/{text.replace('/', '')}/x" for text in texts(SEED, 400, HOSTILE) if not re.search(r"[\t/]|\.\.", text)
    ]
    seen = read_by_systemd(
        {"p.service": f"[Unit]\nRequiresMountsFor={file_syntax.paths(*folders)}\n[Service]\nExecStart=/bin/true\n"},
    )
    shown = {line.rsplit(" (", 1)[0] for line in seen["p.service"]["RequiresMountsFor"]}
    assert shown == set(folders)


def hostile_plan(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A host whose names, arguments, variables and folders are hostile, and add-on services."""
    chance = random.Random(seed)
    plain_parts = [part for part in HOSTILE if not re.search(r"[\x00-\x1f\x7f]", part)]

    def text() -> str:
        return "".join(chance.choices(plain_parts, k=chance.randint(1, 5)))

    folder = re.sub(r"[:,\"/.]", "", text()).strip() or "x"
    inputs = {
        "vars": {
            "spark_services": [
                {
                    "name": "heavy",
                    "recipe": "qwen3-4b-instruct-2507",
                    "port": 8001,
                    "served_model_name": text(),
                    "env": {"ONE": text(), "TWO": text(), "EMPTY": ""},
                    "args": {"chat-template": text(), "generation-config": text(), "hf-overrides": {text(): text()}},
                    "docker_args": ["--label", f"note={text()}"],
                    "api_key_file": f"/keys/{text()}",
                }
            ],
            "spark_hf_home": f"/srv/{folder}",
            "spark_cache_dir": f"/var/cache/{folder}",
            "spark_watchdog": {},
            "spark_guard": True,
            "spark_host_protection": True,
            "spark_speech": [{"name": "ears", "kind": "asr", "env": {"THREE": text()}, "args": [text()]}],
            "spark_ollama": {"models": ["qwen3:8b"], "env": {"FOUR": text()}},
            "spark_total_gib": 119.67,
        },
        "address": "192.0.2.1",
    }
    plan = engine.make_plan({"spark-1": inputs}, RECIPES, lambda _path: "0" * 64)
    return plan["hosts"]["spark-1"], plan["addons"]["spark-1"]


def rendered(planned: dict[str, Any], addons: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: located(component) for name, component in unit_files.render(planned, addons).items()}


@needs_systemd
def test_the_units_of_a_hostile_plan_start_what_is_planned() -> None:
    expected: dict[str, list[str]] = {}
    mounts: dict[str, list[str]] = {}
    units: dict[str, str] = {}
    for seed in range(25):
        planned, addons = hostile_plan(seed)
        assert planned["services"], [finding["message"] for finding in planned["findings"]]
        made = rendered(planned, addons)
        item, settings = planned["services"][0], planned["settings"]
        for component in made.values():
            for file in component["files"]:
                if Path(file["path"]).parent == Path(unit_files.SYSTEM):
                    units[f"s{seed}-{Path(file['path']).name}"] = file["content"]
        expected[f"s{seed}-spark-heavy.service"] = item["argv"]
        expected[f"s{seed}-spark-ears.service"] = addons["speech"]["services"][0]["argv"]
        expected[f"s{seed}-spark-ollama.service"] = addons["ollama"]["argv"]
        mounts[f"s{seed}-spark-heavy.service"] = [settings["hf_home"], item["cache_dir"]]
        files = {file["path"]: file for component in made.values() for file in component["files"]}
        lines = files[item["env_file"]]["content"].split("\n")
        assert [line for line in lines if not line.startswith("#") and line] == [
            f"{name}={value}" for name, value in sorted(item["env"].items())
        ]
        assert json.loads(files["/etc/dgxspark/services/heavy.json"]["content"]) == json.loads(
            json.dumps(item["settings"])
        )
        assert [file["source"] for file in files.values() if file.get("secret")] == [
            secret["source"] for secret in item["secrets"]
        ]
    seen = read_by_systemd(units)
    for name, argv in expected.items():
        (shown,) = seen[name]["ExecStart"]
        assert run_by_systemd(unquoted(shown)) == argv, name
    for name, folders in mounts.items():
        assert {line.rsplit(" (", 1)[0] for line in seen[name]["RequiresMountsFor"]} >= set(folders)


@pytest.mark.parametrize("text", ["a\0b", "\ud83d", "x\udc00y", "\uffff", "\ufdd0", "\U0001fffe"])
def test_what_systemd_takes_for_no_text_is_refused(text: str) -> None:
    for write in (
        file_syntax.quote,
        file_syntax.paths,
        file_syntax.specifiers,
        lambda value: file_syntax.environment_file({"A": value}),
    ):
        with pytest.raises(ValueError, match=r"U\+|control character"):
            write(text)


@pytest.mark.parametrize("value", ["a\nb=c", "a\rb", "\x1b[0m"])
def test_an_environment_file_has_a_line_a_variable(value: str) -> None:
    with pytest.raises(ValueError, match="A is set to"):
        file_syntax.environment_file({"A": value})


def test_no_file_is_named_twice_and_every_source_of_the_collection_is_there() -> None:
    planned, addons = hostile_plan(1)
    made = unit_files.render(planned, addons)
    assert set(made) == {"host", "services", "speech", "ollama", "watchdog", "guard", "live", "protection"}
    for component in made.values():
        named = [file["path"] for file in component["files"]]
        assert len(named) == len(set(named))
        assert not [file for file in component["files"] if "bundled" in file and not (ROOT / file["bundled"]).is_file()]
        units = {unit["name"] for unit in component["units"]}
        assert units == {Path(name).name for name in named if Path(name).parent == Path(unit_files.SYSTEM)}


def test_no_unit_leaves_a_core_dump_which_would_hold_keys() -> None:
    """Units without such memory that run once, such as the unit of the GPU's clocks."""
    planned, addons = hostile_plan(SEED)
    units = {
        file["path"]: file["content"]
        for part in rendered(planned, addons).values()
        for file in part["files"]
        if file["path"].endswith(".service")
    }
    units |= {str(path): path.read_text() for path in ROOT.glob("roles/*/templates/*.service.j2")}
    assert len(units) > 15
    without = {Path(path).name for path, text in units.items() if "\nLimitCORE=0\n" not in text}
    assert without <= {
        *("relay.service.j2", "spark-firewall.service.j2", "spark-gpu-clocks.service.j2"),
        *(
            "spark-power.service.j2",
            "spark-gpu-exporter.service.j2",
            "spark-node-exporter.service.j2",
            "spark-status-page.service.j2",
        ),
    }, without


def test_protection_has_the_drop_ins_that_are_planned() -> None:
    def drop_ins(**planned: int) -> dict[str, str]:
        return {file["path"]: file["content"] for file in located(unit_files.protection(planned))["files"]}

    files = drop_ins(ssh_mib=512, sessions_mib=256, journal_mib=128, hardware_watchdog_seconds=60)
    assert len(files) == 5
    assert "[Manager]\nRuntimeWatchdogSec=60s\n" in files["/etc/systemd/system.conf.d/50-dgxspark.conf"]
    # MemoryMin of the slice is the sum of its units: sshd, journal and guard.
    assert "[Slice]\nMemoryMin=704M\n" in files["/etc/systemd/system/system.slice.d/50-dgxspark.conf"]
    # A score here would be inherited by what people start in their sessions.
    assert "OOMScoreAdjust" not in files["/etc/systemd/system/ssh.service.d/50-dgxspark.conf"]
    assert len(drop_ins(journal_mib=128)) == 2 and drop_ins() == {}


@needs_systemd
def test_systemd_reads_the_limit_of_the_clocks(tmp_path: Path) -> None:
    made = located(unit_files.gpu_clocks({"max_mhz": 2200, "min_mhz": 300}))
    (file,) = made["files"]
    seen = read_by_systemd({"spark-gpu-clocks.service": file["content"]})["spark-gpu-clocks.service"]
    (start,) = seen["ExecStart"]
    assert run_by_systemd(unquoted(start)) == ["/usr/bin/nvidia-smi", "--lock-gpu-clocks=300,2200"]
    assert "ExecStop=/usr/bin/nvidia-smi --reset-gpu-clocks\n" in file["content"]


@needs_systemd
def test_systemd_gives_the_power_switches_as_words() -> None:
    made = located(unit_files.power({"switches": ["cx7_hotplug", "cpu_governor"]}))
    (file,) = [file for file in made["files"] if file["path"].endswith(".service")]
    (start,) = read_by_systemd({"spark-power.service": file["content"]})["spark-power.service"]["ExecStart"]
    program = "/usr/local/libexec/dgxspark/spark_power.py"
    assert run_by_systemd(unquoted(start)) == ["/usr/bin/python3", program, "apply", "cx7_hotplug", "cpu_governor"]
    assert f"ExecStopPost=/usr/bin/python3 {program} undo\n" in file["content"]
    (unit,) = made["units"]
    assert unit["enabled"] and program in [entry["path"] for entry in made["files"]]
    assert made["created"] == ["/var/lib/dgxspark/power.json"]


def test_what_roles_have_for_granted_is_what_is_rendered_without_them() -> None:
    roles_by_variable: dict[str, Any] = {}
    for role in ("host", "service", "speech", "ollama"):
        roles_by_variable |= yaml.safe_load(
            (ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8")
        )
    assert {name: roles_by_variable[name] for name in unit_files.DEFAULTS} == unit_files.DEFAULTS
