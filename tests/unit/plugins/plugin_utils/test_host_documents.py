# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The document of a host, as playbooks deploy it and as its checksum is made."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleLookupError
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.lookup.planned_state import PARTS, LookupModule
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import firewall
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_state import HostState
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import host_documents

CLOSED = {**firewall.ABSENT, "state": "present", "allowed": [8000], "closed": ["8001"]}


def planned(**variables: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan of one host, and its add-on services."""
    service = {"name": "heavy", "recipe": "qwen3-4b-instruct-2507", "port": 8001}
    variables_of_host = {"spark_services": [service], "spark_watchdog": {}, "spark_total_gib": 119.67, **variables}
    plan = engine.make_plan(
        {"spark-1": {"vars": variables_of_host, "address": "192.0.2.1"}}, RECIPES, lambda _path: "0" * 64
    )
    return {**plan["hosts"]["spark-1"], "firewall": CLOSED}, plan["addons"]["spark-1"]


def look(*terms: str, variables: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """What the lookup returns."""
    plugin = LookupModule(loader=None, templar=SimpleNamespace(template=lambda value: value))
    plugin.set_options = lambda **_more: None
    plugin.get_option = lambda name: options.get(name) or {}
    (document,) = plugin.run(list(terms), variables or {})
    result: dict[str, Any] = document
    return result


def test_the_lookup_returns_the_rows_of_parts_and_those_alone() -> None:
    plan, addons = planned()
    state = HostState.from_dict(look("watchdog", "guard", plan=plan, addons=addons))
    assert {row.part for kind in vars(state).values() for row in kind} == {"watchdog", "guard"}
    full_state = HostState.from_dict(look(*PARTS, plan=plan, addons=addons))
    assert full_state == host_documents.host_document(plan, addons, {})
    assert full_state.of_parts({"watchdog", "guard"}) == state
    with pytest.raises(AnsibleLookupError, match="planned_state: fabric: known are host, service"):
        look("fabric", plan=plan)


def test_a_host_that_is_no_spark_has_a_document_too() -> None:
    addons = planned()[1]
    state = HostState.from_dict(look("watchdog", addons={"watchdog": addons["watchdog"]}))
    assert [unit.name for unit in state.units] == ["spark-agent.service"]


def test_variables_of_roles_and_the_port_of_ansible_count() -> None:
    plan, addons = planned()
    state = HostState.from_dict(
        look("host", "firewall", variables={"host_user": "serving", "ansible_port": "2222"}, plan=plan, addons=addons)
    )
    assert [account.name for account in state.accounts] == ["serving"]
    (table,) = [file for file in state.files if file.path == "/etc/dgxspark/firewall.nft"]
    assert table.part == "firewall" and table.content is not None and "elements = { 2222, 8000 }" in table.content
    with pytest.raises(AnsibleLookupError, match="x of firewall_closed is no port"):
        look("firewall", plan={**plan, "firewall": {**CLOSED, "closed": ["x"]}})


def test_digests_are_those_of_the_contents_and_not_of_names(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-one")
    rows = [{"path": "/a", "content": "text"}, {"path": "/b", "source": str(key)}, {"path": "/c", "source": "/none"}]
    rows.append({"path": "/d", "bundled": "galaxy.yml"})
    state = host_documents.with_digests(HostState.from_dict({"files": rows}))
    digests = [hashlib.sha256(text).hexdigest() for text in (b"text", b"sk-one")]
    assert [file.digest for file in state.files[:3]] == [*digests, ""]
    assert state.files[3].digest == host_documents.digest(host_documents.COLLECTION / "galaxy.yml")
    assert all(file.content is file.source is file.bundled is None for file in state.files)
