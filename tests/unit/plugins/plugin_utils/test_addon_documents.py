# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents of add-on services: made before a host is contacted, equal for equal plans, without keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hostile_inventories as hostile
import pytest
import yaml
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostFile, HostState, mark_of
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import host_programs, unit_files
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import addon_documents, host_documents, role_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.addon_documents import ROLES, addon_document
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

ROOT = Path(__file__).parents[4]
KEY = "a-key-of-the-controller"
SYSTEM = "/etc/systemd/system"
RECEIVER = {
    **dict.fromkeys(["url", "url_file", "token_file", "password_file", "username", "topic"], ""),
    "server": "https://ntfy.sh/",
    "severities": ["critical", "info"],
}
TEXTS = [text for text in hostile.TEXTS if text and len(text) < 1000]


@pytest.fixture(scope="module")
def planned() -> dict[str, dict[str, Any]]:
    """The plan of a host that is no Spark, and the exporters of a Spark."""
    base = plain(hostile.BASES["duo"]())
    plan = engine.make_plan(base["hosts"], RECIPES, lambda _path: None, base["groups"], base["others"], None)
    return {role: next(addons[role] for addons in plan["addons"].values() if addons.get(role)) for role in ROLES}


def read(_path: str) -> str:
    """The text of any file of the controller."""
    return f"{KEY}\n"


def paths(document: HostState) -> set[str]:
    return {file.path for file in document.files}


def file_of(document: HostState, path: str) -> HostFile:
    """The one file of a document at a path."""
    (file,) = (file for file in document.files if file.path == path)
    return file


@pytest.mark.parametrize("role", ROLES)
def test_equal_input_gives_equal_documents_and_each_row_names_its_part(role: str, planned: dict[str, Any]) -> None:
    document = addon_document(role, planned[role], {}, read)
    assert document.dump() == addon_document(role, json.loads(json.dumps(planned[role])), {}, read).dump()
    assert document.files and document.units
    assert {row.part for rows in vars(document).values() for row in rows} == {role}
    assert not document.removed
    assert HostState.from_dict(document.to_dict()) == document
    document.distinct()


@pytest.mark.parametrize("role", ROLES)
def test_units_are_restarted_and_reloaded_for_files_of_their_document(role: str, planned: dict[str, Any]) -> None:
    document = addon_document(role, planned[role], {}, read)
    for unit in document.units:
        # Other parts add loops to the agent, for whose files it is restarted too.
        others = (f"{unit_files.AGENT_ETC}/", f"{SYSTEM}/{unit_files.AGENT_UNIT}.d/", unit_files.LIVE_KEY)
        files = {path for path in (*(unit.restart_on or ()), *unit.reload_on) if not path.startswith(others)}
        assert files and files <= paths(document), unit
        assert not set(unit.restart_on) & set(unit.reload_on), unit
        assert f"{SYSTEM}/{unit.name}" in unit.restart_on


@pytest.mark.parametrize("role", ROLES)
def test_the_folder_of_each_file_is_listed_or_the_systems(role: str, planned: dict[str, Any]) -> None:
    document = addon_document(role, planned[role], {}, read)
    folders = {folder.path for folder in document.folders}
    usual = {SYSTEM, "/usr/local/libexec/dgxspark"}
    assert {str(Path(path).parent) for path in paths(document)} <= folders | usual


def test_a_document_with_digests_holds_no_key(planned: dict[str, Any]) -> None:
    document = host_documents.with_digests(
        host_documents.host_document({}, planned, {"exporters_listen": "127.0.0.1"}, read)
    )
    assert {"gateway", "clients", "monitoring", "fleet_monitor"} <= {file.part for file in document.files}
    assert KEY not in document.dump()


def test_a_host_that_is_no_spark_has_all_its_parts(planned: dict[str, Any]) -> None:
    document = host_documents.host_document({}, planned, {}, read)
    assert {unit.part for unit in document.units} == set(ROLES)
    assert document == host_documents.host_document({}, planned, {}, read)
    assert not host_documents.host_document({}, dict.fromkeys(ROLES), {}, read).files


def test_variables_come_from_the_plan_then_from_the_host_then_from_the_role() -> None:
    variables = addon_documents.variables_of(
        "gateway", {"port": 1}, {"gateway_port": 2, "gateway_start_timeout": 3, "clients_prove": False}
    )
    usual = role_variables.defaults("gateway")
    assert variables == {**usual, "gateway_port": 1, "gateway_start_timeout": 3}


@pytest.mark.parametrize("role", ROLES)
def test_the_playbook_gives_a_role_what_the_document_is_made_from(role: str, planned: dict[str, Any]) -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/tasks/for_all.yml").read_text(encoding="utf-8"))
    (task,) = (task for task in tasks if task.get("ansible.builtin.include_role", {}).get("name", "").endswith(role))
    expected = {f"{role}_{key}": f"{{{{ spark_addons.{role}.{key} }}}}" for key in planned[role]}
    assert task["vars"] == expected
    assert set(expected) <= set(role_variables.arguments(role))


@pytest.mark.parametrize("role", ROLES)
def test_the_document_has_all_files_that_its_programs_import(role: str, planned: dict[str, Any]) -> None:
    program = {"clients": "unit_helper", "exporters": "agent"}.get(role, role)
    library = host_programs.library_files(program) if program in host_programs.PROGRAMS else ()
    assert {f"/usr/local/libexec/dgxspark/dgxspark_vllm/{name}.py" for name in library} <= paths(
        addon_document(role, planned[role], {}, read)
    )


def test_a_variable_without_a_value_is_an_error_that_names_it() -> None:
    for role, name in (("gateway", "gateway_config"), ("exporters", "exporters_listen")):
        with pytest.raises(ValueError, match=f"'{name}' is undefined"):
            addon_document(role, {}, {})


# --- gateway ------------------------------------------------------------------------------------------------------------


def test_the_host_writes_the_numbers_of_the_gateways_account_into_its_unit(planned: dict[str, Any]) -> None:
    document = addon_document("gateway", planned["gateway"], {})
    unit = file_of(document, f"{SYSTEM}/spark-gateway.service")
    assert unit.fill == ("uid:spark-gateway", "gid:spark-gateway")
    marks = [mark_of(value) for value in unit.fill]
    assert f"--user {':'.join(marks)} " in str(unit.content).replace("\\\n   ", "")
    assert f"prepare --owner {marks[0]}\n" in str(unit.content)
    assert str(unit.content).count("@host:") == 3
    (account,) = document.accounts
    assert (account.name, account.groups, account.remove) == ("spark-gateway", (), True)


def test_the_gateway_takes_over_settings_and_keys_by_a_reload(planned: dict[str, Any]) -> None:
    document = addon_document("gateway", planned["gateway"], {})
    (unit,) = document.units
    keys = {file.path for file in document.files if file.secret}
    assert keys and keys <= set(unit.reload_on)
    assert {"/etc/dgxspark/gateway/litellm.yaml", "/etc/dgxspark/gateway/gateway.json"} <= set(unit.reload_on)


# --- clients ------------------------------------------------------------------------------------------------------------


def test_clients_generate_and_share_a_key_on_the_host(planned: dict[str, Any]) -> None:
    document = addon_document("clients", planned["clients"], {}, read)
    secrets = "/etc/dgxspark/secrets"
    assert file_of(document, f"{secrets}/hermes/API_SERVER_KEY").generate == 48
    joined = file_of(document, f"{secrets}/open-webui/OPENAI_API_KEYS")
    assert joined.secret and joined.fill == (f"file:{secrets}/hermes/API_SERVER_KEY",)
    assert joined.content == f"{KEY};{mark_of(joined.fill[0])}"
    for client in planned["clients"].values():
        (unit,) = (unit for unit in document.units if unit.name == client["unit"])
        assert {secret["path"] for secret in client["secrets"]} <= set(unit.restart_on or ())
        (data,) = {folder.remove for folder in document.folders if folder.path == client["data_dir"]}
        assert data == "never"


def test_a_host_without_planned_clients_has_none_of_their_files(planned: dict[str, Any]) -> None:
    assert addon_document("clients", {}, {}) == HostState()
    alone = addon_document("clients", {**planned["clients"], "open_webui": {}}, {}, read)
    assert [unit.name for unit in alone.units] == ["spark-hermes.service"]
    assert not [path for path in paths(alone) if "open-webui" in path]
    (account,) = alone.accounts
    assert account.name == "spark-hermes" and account.remove


def test_another_list_of_packages_is_another_environment(planned: dict[str, Any], tmp_path: Path) -> None:
    agent = planned["clients"]["hermes"]
    usual = addon_documents.hermes_packages(agent, addon_documents.read_file)
    assert Path(usual["source"]).name == f"hermes-{agent['version']}.txt"
    (tmp_path / "list.txt").write_text("hermes-agent==1\n")
    with_list = {**agent, "requirements_file": str(tmp_path / "list.txt")}
    other = addon_documents.hermes_packages(with_list, addon_documents.read_file)
    assert other["source"] == with_list["requirements_file"] and other["path"] != usual["path"]
    assert Path(other["path"]).parents[1] == Path(agent["install_dir"])
    document = addon_document("clients", {"hermes": with_list, "open_webui": {}}, {})
    unit = file_of(document, f"{SYSTEM}/spark-hermes.service")
    assert f"{Path(other['path']).parent}/bin/hermes gateway run" in str(unit.content)


# --- exporters, monitoring, fleet monitor -------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["managed", "existing", "none"])
@pytest.mark.parametrize("gpu", [True, False])
def test_exporters_that_are_not_planned_have_no_rows(node: str, gpu: bool, planned: dict[str, Any]) -> None:
    document = addon_document("exporters", {**planned["exporters"], "node_exporter": node, "gpu_exporter": gpu}, {})
    names = {"spark-agent.service"}
    names |= {"spark-node-exporter.service"} if node == "managed" else set()
    names |= {"spark-gpu-exporter.service"} if gpu else set()
    assert {unit.name for unit in document.units} == names
    assert {Path(path).name for path in paths(document) if path.startswith(SYSTEM)} == {*names, "exporters.conf"}
    folders = {folder.path for folder in document.folders}
    assert (planned["exporters"]["textfile_dir"] in folders) == (node != "existing")


@pytest.mark.parametrize(
    ("grafana", "unit"), [("image", "spark-grafana.service"), ("package", "grafana-server.service"), ("none", None)]
)
def test_grafana_runs_as_it_is_installed(grafana: str, unit: str | None, planned: dict[str, Any]) -> None:
    document = addon_document("monitoring", {**planned["monitoring"], "grafana": grafana}, {})
    assert [row.name for row in document.units[2:]] == ([unit] if unit else [])
    assert (f"{SYSTEM}/grafana-server.service.d/dgxspark.conf" in paths(document)) == (grafana == "package")
    assert any(file.path.endswith("/grafana-admin") for file in document.files) == (grafana != "none")


def check_alertmanager(content: str, text: str) -> None:
    """Assert that the receivers of Alertmanager have a text unchanged."""
    config = yaml.safe_load(content)
    assert config["route"]["routes"][0]["matchers"] == ['severity=~"critical|info"']
    by_name = {entry["name"]: entry for entry in config["receivers"]}
    assert by_name["hook"]["webhook_configs"] == [{"url": f"http://x/{text}", "send_resolved": True}]
    (mail,) = by_name["mail"]["email_configs"]
    assert (mail["to"], mail["auth_username"]) == (text, text)
    assert mail["auth_password_file"] == "/run/spark-alertmanager/mail.password_file"
    assert by_name["push"]["webhook_configs"][0]["url"] == "https://ntfy.sh/sparks?template=alertmanager"
    assert by_name["phone"]["telegram_configs"][0]["bot_token_file"] == "/run/spark-alertmanager/phone.token_file"


@pytest.mark.parametrize("text", TEXTS)
def test_prometheus_and_alertmanager_read_every_text_as_it_is(text: str) -> None:
    receivers = [
        {**RECEIVER, "name": "hook", "type": "webhook", "url": f"http://x/{text}"},
        {**RECEIVER, "name": "mail", "type": "email", "to": text, "from": text, "smarthost": text, "username": text}
        | {"password_file": "/keys/mail"},
        {**RECEIVER, "name": "phone", "type": "telegram", "chat_id": 7, "token_file": "/keys/bot"},
        {**RECEIVER, "name": "push", "type": "ntfy", "topic": "sparks", "token_file": "/keys/ntfy"},
    ]
    job = {"name": "node", "targets": [{"labels": {"host": text}}], "path": f"/{text}", "token_file": "/keys/node"}
    document = addon_document("monitoring", {"jobs": [job], "receivers": receivers, "grafana": "none"}, {})
    files = {file.path: str(file.content) for file in document.files}
    assert all(content.isascii() for path, content in files.items() if not path.endswith((".service", "rules.yml")))
    settings = yaml.safe_load(files["/etc/dgxspark/monitoring/prometheus.yml"])
    (scrape,) = settings["scrape_configs"]
    assert scrape["metrics_path"] == f"/{text}"
    # A target without a cluster is given one while its own metrics are read, so that a label of theirs is renamed.
    for label in ("host", "cluster"):
        relabeling = {"source_labels": [label], "regex": "", "target_label": label, "replacement": "-"}
        assert relabeling in scrape["relabel_configs"]
        assert {**relabeling, "regex": "-", "replacement": ""} in scrape["metric_relabel_configs"]
    assert scrape["authorization"] == {"credentials_file": "/run/spark-prometheus/node.job"}
    assert json.loads(files["/etc/dgxspark/monitoring/targets/node.json"]) == job["targets"]
    check_alertmanager(files["/etc/dgxspark/monitoring/alertmanager.yml"], text)
    secrets = "/etc/dgxspark/secrets/monitoring"
    prometheus, alertmanager = document.units
    assert prometheus.restart_on == (f"{SYSTEM}/spark-prometheus.service", f"{secrets}/node.job")
    assert len(alertmanager.restart_on or ()) == 4


def test_a_fleet_monitor_that_is_absent_or_has_no_page_has_no_rows_for_it(planned: dict[str, Any]) -> None:
    assert addon_document("fleet_monitor", {**planned["fleet_monitor"], "state": "absent"}, {}) == HostState()
    page = {"page": {"listen": "0.0.0.0", "port": 8088}}
    shown, hidden = (
        addon_document("fleet_monitor", {**planned["fleet_monitor"], **more}, {}) for more in (page, {"page": {}})
    )
    assert {unit.name for unit in shown.units} - {unit.name for unit in hidden.units} == {"spark-status-page.service"}
    assert [Path(row.path).name for row in shown.created] == ["checks.json"] and not hidden.created
    assert len(paths(shown) - paths(hidden)) == 3 + len(unit_files.LIVE_NAMES)
