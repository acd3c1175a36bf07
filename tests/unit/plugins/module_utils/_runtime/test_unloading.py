# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unloading the models of an Ollama server: with an answer, without a server, and with a damaged file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ollama_fixture import Server
from ports import free_port

from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import unloading


@pytest.fixture
def two() -> Iterator[Server]:
    server = Server({"a:1b": 2**30, "b:7b": 7 * 2**30})
    yield server
    server.close()


def test_all_models_go(two: Server) -> None:
    assert unloading.loaded_models(two.url) == {"a:1b": 1.0, "b:7b": 7.0}
    text, done = unloading.unload(two.url, 5, poll=0.05)
    assert done and text.startswith("Ollama unloaded a:1b (1.00 GiB), b:7b (7.00 GiB) in ")
    assert two.asked == ["a:1b", "b:7b"] and unloading.unload(two.url, 5) == ("", False)


def test_one_that_answers_keeps_its_model_for_a_while() -> None:
    server = Server({"a:1b": 2**30}, stays=True)
    try:
        assert unloading.unload(server.url, 0.3, poll=0.05) == ("Ollama still uses a:1b after 0 s", False)
        assert server.asked == ["a:1b"]  # asked once
    finally:
        server.close()


def test_one_that_is_not_there_holds_nothing() -> None:
    assert unloading.unload(f"http://127.0.0.1:{free_port()}", 1) == ("", False)


def test_where_it_is(tmp_path: Path) -> None:
    assert unloading.ollama_url(tmp_path) is None
    for content in ("{", "[]", '{"url": 3}', '{"url": "ftp://x"}'):
        (tmp_path / "ollama.json").write_text(content)
        with pytest.raises(ValueError, match=r"ollama\.json cannot be read, Ollama is left alone"):
            unloading.ollama_url(tmp_path)
    (tmp_path / "ollama.json").write_text('{"url": "http://127.0.0.1:11434"}')
    assert unloading.ollama_url(tmp_path) == "http://127.0.0.1:11434"
