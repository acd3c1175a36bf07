# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model without a recipe is one line: config.json comes from a file of the fleet, a cache or the hub, and an image is chosen."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from recipes_fixture import RECIPES

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import model_configs
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.model_configs import ModelConfigs, complete_services

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64}
QUANT = {"quantization": {"quant_algo": "NVFP4"}}


class Hub(BaseHTTPRequestHandler):
    """A hub with one model; content is what each path gets: status, headers, body."""

    content: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    requests: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.requests.append((self.path, self.headers.get("Authorization") or ""))
        status, headers, body = self.content.get(self.path, (404, {"X-Error-Code": "RepoNotFound"}, b""))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Print nothing."""


@pytest.fixture(name="hub")
def serve_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setattr(model_configs, "CACHES", ())
    Hub.requests = []
    Hub.content = {
        "/Org/Name/resolve/main/config.json": (307, {"X-Repo-Commit": COMMIT, "Location": "/cached/config.json"}, b""),
        "/cached/config.json": (200, {}, json.dumps(CONFIG).encode()),
        f"/Org/Name/resolve/{COMMIT}/hf_quant_config.json": (200, {}, json.dumps(QUANT).encode()),
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def complete(service: Any, folder: Path | None = None, keep: bool = True, **variables: Any) -> tuple[Any, list[str]]:
    hosts = {"spark-1": {"vars": {"spark_services": [service], **variables}}}
    messages: list[str] = []
    complete_services(hosts, RECIPES, ModelConfigs(folder, keep), messages)
    return hosts["spark-1"]["vars"]["spark_services"][0], messages


def test_config_quantisation_commit_and_image_come_from_the_hub_and_are_kept(hub: str, tmp_path: Path) -> None:
    service, messages = complete({"name": "mine", "model": "Org/Name", "port": 1}, tmp_path, spark_hf_endpoint=hub)
    assert messages == []
    assert service["model"] == {"repo": "Org/Name", "revision": COMMIT}
    assert (service["config"], service["quant_config"]) == (CONFIG, QUANT)
    assert service["image"]["ref"].startswith("vllm/vllm-openai:v0.")
    count = len(Hub.requests)
    second, _messages = complete({"name": "mine", "model": "Org/Name", "port": 1}, tmp_path, spark_hf_endpoint=hub)
    assert second == service and len(Hub.requests) == count


def test_check_mode_writes_nothing(hub: str, tmp_path: Path) -> None:
    complete({"name": "mine", "model": "Org/Name", "port": 1}, tmp_path / "store", keep=False, spark_hf_endpoint=hub)
    assert not (tmp_path / "store").exists()


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(hub: str, tmp_path: Path) -> None:
    other = hub.replace("127.0.0.1", "localhost")
    Hub.content["/Org/Name/resolve/main/config.json"] = (
        307,
        {"X-Repo-Commit": COMMIT, "Location": f"{other}/cached/config.json"},
        b"",
    )
    (tmp_path / "token").write_text("hf_secret\n")
    _service, messages = complete(
        {"name": "m", "model": "Org/Name"}, spark_hf_endpoint=hub, spark_hf_token_file=str(tmp_path / "token")
    )
    assert messages == []
    tokens = dict(Hub.requests)
    assert tokens["/Org/Name/resolve/main/config.json"] == "Bearer hf_secret" and tokens["/cached/config.json"] == ""


def test_a_cache_is_enough_without_a_network(hub: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models--Org--Name"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(CONFIG))
    service, messages = complete({"name": "m", "model": "Org/Name"}, spark_hf_endpoint="http://127.0.0.1:1")
    assert messages == [] and service["model"]["revision"] == COMMIT and service["config"] == CONFIG
    assert Hub.requests == []


def test_a_recipe_for_the_model_is_used(hub: str) -> None:
    service, messages = complete({"name": "m", "model": "qwen/qwen3-4b-instruct-2507", "port": 1})
    assert messages == [] and service == {"name": "m", "port": 1, "recipe": "qwen3-4b-instruct-2507"}


def test_a_pinned_revision_is_asked_for(hub: str) -> None:
    Hub.content[f"/Org/Name/resolve/{COMMIT}/config.json"] = (200, {}, json.dumps(CONFIG).encode())
    service, messages = complete({"name": "m", "model": f"Org/Name@{COMMIT}"}, spark_hf_endpoint=hub)
    assert messages == [] and service["model"] == {"repo": "Org/Name", "revision": COMMIT}


@pytest.mark.parametrize(
    "service",
    [
        {"name": "m", "recipe": "qwen3-4b-instruct-2507"},
        {"name": "m", "model": {"repo": "Org/Name"}, "image": {"ref": "an/image:1"}},
        {"name": "m", "model": {"path": "/srv/m"}, "image": {"ref": "an/image:1"}, "config": CONFIG},
        {"name": "m", "model": {"repo": "Org/Name"}, "memory_gib": 20},
        {"name": "m", "model": 7},
        "text",
        None,
    ],
)
def test_other_services_stay_as_they_are(hub: str, service: Any) -> None:
    assert complete(service) == (service, [])
    assert Hub.requests == []


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("llama3:70b", "Names such as llama3:70b are Ollama's"),
        ("/srv/models/mine", "Write model: {path: /srv/models/mine}"),
        ("gpt-oss", "not ORG/NAME"),
        ("Org/Gone", "there is no Org/Gone"),
        ("Org/Gated", "is gated: accept its licence"),
        ("Org/Broken", "is not valid JSON"),
        ("Org/Deep", "nested"),
        ("Org/List", "is not a mapping"),
        ("Org/Empty", "has no config.json at revision main"),
        ("Org/Strange", "no image is known whose vLLM serves NoSuchForCausalLM"),
        ("Org/Moves", "does not name the commit"),
    ],
)
def test_what_cannot_be_had_is_one_message_with_the_fix(hub: str, model: str, part: str) -> None:
    named = {"X-Repo-Commit": COMMIT}
    Hub.content |= {
        "/Org/Gated/resolve/main/config.json": (401, {"X-Error-Code": "GatedRepo"}, b""),
        "/Org/Broken/resolve/main/config.json": (200, named, b"{"),
        "/Org/Deep/resolve/main/config.json": (200, named, b"[" * 100_000),
        "/Org/List/resolve/main/config.json": (200, named, b"[]"),
        "/Org/Empty/resolve/main/config.json": (404, {"X-Error-Code": "EntryNotFound"}, b""),
        "/Org/Strange/resolve/main/config.json": (200, named, b'{"architectures": ["NoSuchForCausalLM"]}'),
        "/Org/Moves/resolve/main/config.json": (200, {}, json.dumps(CONFIG).encode()),
    }
    absent = (404, {"X-Error-Code": "EntryNotFound"}, b"")
    for name in ("Broken", "Deep", "List", "Strange"):
        Hub.content[f"/Org/{name}/resolve/{COMMIT}/hf_quant_config.json"] = absent
    _service, messages = complete({"name": "mine", "model": model, "port": 1}, spark_hf_endpoint=hub)
    assert len(messages) == 1 and part in messages[0], messages
    assert messages[0].startswith("host spark-1, spark_services[0] (mine): ")


def test_without_network_the_message_names_the_file_to_give(hub: str) -> None:
    _service, messages = complete({"name": "mine", "model": "Org/Name"}, spark_hf_endpoint="http://127.0.0.1:1")
    assert len(messages) == 1 and "download config.json of Org/Name" in messages[0] and "under 'config'" in messages[0]
