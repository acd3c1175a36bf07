# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rule for every path of the controller, and which of them Ansible would read as inventory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible import constants
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons, fleet_monitor
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons.descriptions import OPTIONS
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import SERVICE as SERVICE_KEYS
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.variables import VARIABLES
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_sources

SERVICE = {
    "api_key_file": "keys/a",
    "secrets": {"HF_TOKEN": "~/t"},
    "files": [{"source": "f/x.jinja"}, {"source": "{model}/y"}],
}


@pytest.mark.parametrize(
    ("path", "full"),
    [
        ("key", "/fleet/key"),
        (".secrets/key", "/fleet/.secrets/key"),
        ("../keys/key", "/keys/key"),
        ("./key", "/fleet/key"),
        ("/etc/key", "/etc/key"),
        ("/fleet/../key", "/fleet/../key"),
        ("~/key", "/home/ada/key"),
        ("", ""),
    ],
)
def test_a_path(monkeypatch: pytest.MonkeyPatch, path: str, full: str) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert controller_paths.resolve(path, "/fleet") == full


def test_paths_below_the_inventory_become_relative() -> None:
    variables = {"spark_services": [{"api_key_file": ".secrets/a", "model": {"path": "m"}}, {"api_key_file": "/etc/a"}]}
    resolved, _relative = controller_paths.resolve_variables(variables, "/fleet", "/fleet")
    assert resolved["spark_services"][0]["api_key_file"] == "/fleet/.secrets/a"
    assert controller_paths.relative_variables(resolved, "/fleet") == variables
    assert controller_paths.relative_variables(resolved, "/fl") == resolved


def test_every_variable_follows_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    variables: dict[str, Any] = {
        "spark_hf_token_file": "~/t",
        "spark_lock_file": "lock",
        "spark_status_file": "-",
        "spark_recipe_dirs": ["r", "/s"],
        "spark_services": [{**SERVICE, "model": {"path": "m"}}],
        "spark_cluster": {"services": [SERVICE]},
        "spark_gateway": {
            "master_key_file": "k",
            "clients": [{"key_file": "c"}],
            "aliases": {
                "a": {"url": "u", "api_key_file": "k1"},
                "b": ["s/x", {"url": "u", "api_key_file": "k2"}],
                "c": {"backends": [{"url": "u", "api_key_file": "k3"}]},
            },
        },
        "spark_clients": {"open_webui": {"admin": {"password_file": "p"}}},
        "spark_fleet_monitor": {"notify": [{"telegram": {"token_file": "t"}}], "extra": [{"api_key_file": "e"}]},
    }
    resolved, lost = controller_paths.resolve_variables(variables, "/two", "/one")
    assert not lost
    service = {
        "api_key_file": "/two/keys/a",
        "secrets": {"HF_TOKEN": "/home/ada/t"},
        "files": [{"source": "/two/f/x.jinja"}, {"source": "{model}/y"}],
    }
    assert resolved == {
        "spark_hf_token_file": "/home/ada/t",
        "spark_lock_file": "/one/lock",
        "spark_status_file": "-",
        "spark_recipe_dirs": ["/two/r", "/s"],
        "spark_services": [{**service, "model": {"path": "/two/m"}}],
        "spark_cluster": {"services": [service]},
        "spark_gateway": {
            "master_key_file": "/two/k",
            "clients": [{"key_file": "/two/c"}],
            "aliases": {
                "a": {"url": "u", "api_key_file": "/two/k1"},
                "b": ["s/x", {"url": "u", "api_key_file": "/two/k2"}],
                "c": {"backends": [{"url": "u", "api_key_file": "/two/k3"}]},
            },
        },
        "spark_clients": {"open_webui": {"admin": {"password_file": "/two/p"}}},
        "spark_fleet_monitor": {
            "notify": [{"telegram": {"token_file": "/two/t"}}],
            "extra": [{"api_key_file": "/two/e"}],
        },
    }
    single = {"spark_fleet_monitor": {"notify": {"telegram": {"token_file": "t"}}}}
    assert controller_paths.resolve_variables(single, "/two", "/one")[0] == {
        "spark_fleet_monitor": {"notify": {"telegram": {"token_file": "/two/t"}}}
    }


def test_without_a_folder_a_relative_path_is_told() -> None:
    _resolved, lost = controller_paths.resolve_variables(
        {"spark_hf_token_file": "t", "spark_bundle_dir": "/b", "spark_services": [SERVICE]}, None, None
    )
    assert lost == [
        "spark_hf_token_file names 't'",
        "spark_services[0].api_key_file names 'keys/a'",
        "spark_services[0].files[0].source names 'f/x.jinja'",
    ]


@pytest.mark.parametrize("odd", [None, 5, "x", [], {}, [5], {"x": 5}, [None], [["x"]], {"files": "x", "secrets": [1]}])
def test_other_shapes_are_left_to_those_who_read_them(odd: Any) -> None:
    for name in ("spark_services", "spark_defaults", "spark_gateway", "spark_clients", "spark_speech"):
        assert controller_paths.resolve_variables({name: odd}, "/f", "/f")[0] == {name: odd}
    odd_key = {"spark_services": [{"api_key_file": ["x"]}]}
    assert controller_paths.resolve_variables(odd_key, "/f", "/f")[0] == odd_key


def tables() -> list[tuple[str, str]]:
    """Return each key of the settings' tables that is a path of the controller by its description, as a place ends."""
    rows = []
    notifiers = {f"notify.*.{key}": row for kind in fleet_monitor.NOTIFIERS.values() for key, row in kind.of.items()}
    for variable, table in (
        ("", VARIABLES),
        ("", addons.VARIABLES),
        ("spark_services.*.", SERVICE_KEYS),
        ("spark_gateway.", OPTIONS["spark_gateway"]),
        ("spark_clients.open_webui.", OPTIONS["spark_clients.open_webui"]),
        ("spark_clients.hermes.", OPTIONS["spark_clients.hermes"]),
        ("spark_exporters.", OPTIONS["spark_exporters"]),
        ("spark_monitoring.", OPTIONS["spark_monitoring"]),
        ("spark_monitoring.receivers.*.", OPTIONS["spark_monitoring.receivers"]),
        ("spark_speech.*.", OPTIONS["spark_speech"]),
        ("spark_fleet_monitor.", notifiers),
    ):
        for key, row in table.items():
            if re.search(r"\b(?:on|of) the controller", str(row[2])):
                rows.append((f"{variable}{key}", str(row[2])))
    return rows


@pytest.mark.parametrize(("place", "meaning"), tables())
def test_no_key_of_the_tables_is_forgotten(place: str, meaning: str) -> None:
    patterns = [re.sub(r"\.\*$", "", pattern) for pattern in controller_paths.PLACES]
    assert place in patterns or any(pattern.startswith(f"{place}.") for pattern in patterns), meaning


def test_every_key_named_file_is_known() -> None:
    """A new setting that ends in _file cannot be left out of the rule."""
    ends = {place.rsplit(".", 1)[-1] for place in controller_paths.PLACES}
    names = {name for keys in OPTIONS.values() for name in keys if name.endswith("_file")}
    text = Path(str(fleet_monitor.__file__)).read_text(encoding="utf-8")
    names |= set(re.findall(r'^    +"(\w+_file)": (?:Key)?\(', text, re.MULTILINE))
    assert len(names) > 8
    assert names <= ends


FILES = (
    "hosts.yml",
    "secrets/key",
    ".secrets/key",
    "deep/.hidden/key",
    "deep/er/key",
    "key.txt",
    "key.bak",
    "key",
    "vars_plugins/key",
)


def test_what_is_read_is_what_ansible_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(FILES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"host-{number}\n" if number else "sparks: {hosts: {host-0: {}}}\n")
    manager = InventoryManager(DataLoader(), [str(tmp_path)])
    read = {name for number, name in enumerate(FILES) if f"host-{number}" in manager.hosts}
    sources = inventory_sources([str(tmp_path)])
    assert {name for name in FILES if sources.reads(str(tmp_path / name))} == read
    assert {str(Path(path).relative_to(tmp_path)) for path in sources.files()} == read
    assert read == {"hosts.yml", "secrets/key", "deep/er/key", "key"}
    # With a file as the source, Ansible reads no other file in its folder.
    of_file = inventory_sources([str(tmp_path / "hosts.yml"), "a,b", str(tmp_path / "nowhere")])
    assert [name for name in FILES if of_file.reads(str(tmp_path / name))] == []
    monkeypatch.chdir(tmp_path.parent)
    assert inventory_sources([tmp_path.name]).reads(str(tmp_path / "key"))
    assert sources.reads(str(tmp_path.parent / "key")) is None


@pytest.mark.parametrize("source", ["", "hosts.yml"])
def test_files_among_variables(tmp_path: Path, source: str) -> None:
    (tmp_path / "hosts.yml").write_text("sparks: {hosts: {a: {}}}\n")
    sources = inventory_sources([str(tmp_path / source)])
    assert ".yml" in constants.YAML_FILENAME_EXTENSIONS
    for name in ("group_vars/sparks/api_key", "host_vars/a/key.yml"):
        assert sources.reads(str(tmp_path / name))
    for name in ("group_vars/sparks/.secrets/key", "group_vars/sparks/key.pem"):
        assert not sources.reads(str(tmp_path / name))


def test_links_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    (folder / "secrets").mkdir(parents=True)
    (folder / ".secrets").symlink_to("secrets")
    (tmp_path / "other").symlink_to(folder)
    assert inventory_sources([str(folder)]).reads(str(folder / ".secrets/key"))
    assert inventory_sources([str(tmp_path / "other")]).reads(str(folder / "secrets/key"))


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"spark_hf_token_file": "secrets/hf"}, ".secrets/hf"),
        ({"spark_hf_token_file": "hf"}, ".secrets/hf"),
        ({"spark_hf_token_file": "group_vars/sparks/hf"}, ".secrets/hf"),
        ({"spark_gateway": {"master_key_file": "keys/deep/master"}}, ".keys/deep/master"),
        ({"spark_plan_file": "plan.json"}, ".spark/plan.json"),
        ({"spark_lock_file": "state/spark.lock.yml"}, ".spark/spark.lock.yml"),
        ({"spark_recipe_dirs": ["recipes"]}, ".recipes"),
        ({"spark_bundle_dir": "bundle"}, ".bundle"),
        ({"spark_services": [{"model": {"path": "models/x"}}]}, ".models/x"),
        ({"spark_services": [{"files": [{"source": "files/x.jinja"}]}]}, ".files/x.jinja"),
    ],
)
def test_a_better_place_is_named_and_is_one(tmp_path: Path, variables: dict[str, Any], place: str) -> None:
    resolved, _lost = controller_paths.resolve_variables(variables, str(tmp_path), str(tmp_path))
    sources = inventory_sources([str(tmp_path)])
    (message,) = controller_paths.misplaced({"a": resolved, "b": resolved, "c": resolved}, sources)
    assert message.startswith(f"host a and 2 more: {next(iter(variables))}")
    assert f"Move it to '{tmp_path / place}'" in message
    assert sources.reads(str(tmp_path / place)) is None


class Counted(dict[str, dict[str, str]]):
    """Variables of hosts, and how many of them were read."""

    read = 0

    def __getitem__(self, name: str) -> dict[str, str]:
        self.read += 1
        return super().__getitem__(name)


def test_the_folder_of_a_fleet_is_known_without_the_variables_of_all_hosts() -> None:
    names = [f"spark-{number}" for number in range(1000)]
    hostvars = Counted({name: {"inventory_dir": "/fleet"} for name in names} | {"spark-0": {}})
    task_vars = {"hostvars": hostvars, "groups": {"sparks": ["gone", *names]}}
    assert controller_paths.fleet_folder(task_vars) == "/fleet"
    assert controller_paths.of_fleet("plan.json", task_vars) == "/fleet/plan.json"
    assert hostvars.read == 4
    assert controller_paths.fleet_folders(task_vars) == ["/fleet"]
    assert controller_paths.fleet_folder({}) == ""
