# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live loop of the agent: settings, address, key, and the document for a fleet monitor."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import live_fixture
import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import services
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import live_agent, live_status
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_agent import LiveAgent


def agent(folder: Path, **changes: Any) -> LiveAgent:
    (folder / "agent").mkdir(exist_ok=True)
    settings = {"host": "s1", "listen": "127.0.0.1", "port": 0, "services": [live_fixture.service("heavy", url=None)]}
    (folder / "agent/live.json").write_text(json.dumps({**settings, **changes}))
    return LiveAgent(folder, folder, folder, str(folder), folder / "gateway", live_fixture.FILES)


def test_it_serves_the_document_with_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = agent(tmp_path)
    monkeypatch.setattr(made.host, "look", lambda _is_read: live_fixture.document("s1", live_fixture.service("heavy")))
    made.tick()
    assert made.server is not None
    url = f"http://127.0.0.1:{made.server.server_address[1]}/status.json"
    for query in ("", "?idle"):
        with urllib.request.urlopen(url + query, timeout=30) as answer:
            value = json.load(answer)
        assert live_status.parse(value, "s1")["host"] == "s1" and 0 <= value["age_seconds"] < 60
    monkeypatch.setattr(made.host, "look", lambda _is_read: {"schema": 1})
    made.live.looked_at = -3600.0
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert "the agent cannot measure this host" in json.load(answer)["error"]
    made.server.shutdown()
    made.server.server_close()


def test_a_taken_address_is_said_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(live_agent, "say", lambda text, _level=6: lines.append(text))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = agent(tmp_path, port=taken.getsockname()[1])
        made.tick()
        made.tick()
    assert len(lines) == 1 and "cannot be served on 127.0.0.1" in lines[0]
    made.tick()
    assert made.server is not None and "serves the page of this Spark" in lines[1]
    made.server.shutdown()
    made.server.server_close()


def test_actions_need_switch_and_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1")
    key = {"api_key_file": str(tmp_path / "key")}
    assert agent(tmp_path, actions=True, **key).live.act is not None
    assert agent(tmp_path, actions=True).live.act is agent(tmp_path, **key).live.act is None


@pytest.mark.parametrize("key", ["/nothing/here", "empty"])
def test_a_key_that_cannot_be_read_keeps_the_page_closed(tmp_path: Path, key: str) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(services.SettingsError, match=r"run site\.yml again"):
        agent(tmp_path, api_key_file=str(tmp_path / key))
