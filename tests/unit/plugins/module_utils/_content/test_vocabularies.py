# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vocabulary of gpt-oss: vocabularies, in the plan and as the role models brings it."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playbook_runs import ansible_playbook

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import vocabularies
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes

KNOWN = load_recipes([RECIPES])[0]
PATH = f"/srv/hf/downloads/{vocabularies.O200K_BASE.sha256[:12]}-o200k_base.tiktoken"


def planned(*services: dict[str, Any]) -> dict[str, Any]:
    listed = [{"name": f"s{number}", "port": 8000 + number, **service} for number, service in enumerate(services)]
    hosts = {"h": {"vars": {"spark_services": listed, "spark_hf_home": "/srv/hf"}, "address": "192.0.2.11"}}
    host_plan: dict[str, Any] = engine.make_plan(hosts, KNOWN)["hosts"]["h"]
    return host_plan


@pytest.mark.parametrize("recipe", sorted(name for name in KNOWN if name.startswith("gpt-oss")))
def test_the_own_recipes_of_gpt_oss_plan_their_vocabulary(recipe: str) -> None:
    host = planned({"recipe": recipe})
    (service,) = host["services"]
    assert service["env"]["TIKTOKEN_ENCODINGS_BASE"] == "/usr/share/dgxspark/vocabularies"
    mount = f"type=bind,src={PATH},dst=/usr/share/dgxspark/vocabularies/o200k_base.tiktoken,readonly"
    assert mount in service["argv"]
    (row,) = [model for model in host["models"] if "url" in model]
    assert row == {
        "url": "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
        "sha256": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        "bytes": 3613922,
        "path": PATH,
    }


def test_two_services_need_it_once() -> None:
    args = {"max-model-len": 8192, "max-num-seqs": 1}
    host = planned({"recipe": "gpt-oss-20b", "args": args}, {"recipe": "gpt-oss-20b", "args": args})
    assert len([model for model in host["models"] if "url" in model]) == 1


@pytest.mark.parametrize(
    "service", [{"recipe": "qwen3-8b"}, {"recipe": "gpt-oss-20b", "env": {"TIKTOKEN_ENCODINGS_BASE": "/own"}}]
)
def test_other_models_and_vocabularies_of_the_owner_are_left_alone(service: dict[str, Any]) -> None:
    host = planned(service)
    assert not any("url" in model for model in host["models"])
    assert "downloads" not in json.dumps(host["services"])


# --- the role -----------------------------------------------------------------------------------------------------

CONTENT = b"IQ== 0\nIg== 1\n"
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[str]:
    """A server that has the file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/o200k_base.tiktoken"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Length", str(len(CONTENT)) if is_known else "0")
            self.end_headers()
            self.wfile.write(CONTENT if is_known else b"")

        def log_message(self, *_args: Any) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def run(folder: Path, row: dict[str, Any], bundle: str = "", *options: str) -> tuple[int, str]:
    """Run the role models on this machine."""
    variables = {"models_wanted": [row], "models_hf_home": str(folder / "hf"), "models_bundle": bundle}
    play = [
        {
            "name": "Bring a vocabulary",
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "tasks": [
                {
                    "name": "Bring it",
                    "ansible.builtin.include_role": {"name": "dgxspark.vllm.models", "tasks_from": "vocabularies"},
                    "vars": {**variables, "__models_vocabularies": [row]},
                }
            ],
        }
    ]
    (folder / "play.yml").write_text(json.dumps(play), encoding="utf-8")
    ran = ansible_playbook("play.yml", "-i", "localhost,", *options, cwd=folder)
    return ran.returncode, ran.stdout + ran.stderr


def row_of(folder: Path, url: str, sha256: str = SUM) -> dict[str, Any]:
    return {
        "url": url,
        "sha256": sha256,
        "path": str(folder / "hf" / "downloads" / f"{sha256[:12]}-o200k_base.tiktoken"),
    }


@pytest.mark.slow
def test_the_role_downloads_it_once_and_checks_it(tmp_path: Path, server: str) -> None:
    (tmp_path / "hf").mkdir()
    row = row_of(tmp_path, f"{server}/o200k_base.tiktoken")
    code, text = run(tmp_path, row)
    assert code == 0, text
    assert Path(row["path"]).read_bytes() == CONTENT
    code, text = run(tmp_path, row)
    assert code == 0 and "changed=0" in text, text


@pytest.mark.slow
def test_a_file_with_another_content_is_never_used(tmp_path: Path, server: str) -> None:
    (tmp_path / "hf").mkdir()
    row = row_of(tmp_path, f"{server}/o200k_base.tiktoken", "0" * 64)
    code, text = run(tmp_path, row)
    assert code != 0 and "put it on the host as" in text.replace("\n", " ")
    assert not Path(row["path"]).exists()


@pytest.mark.slow
def test_a_bundle_brings_it_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    row = row_of(tmp_path, "http://127.0.0.1:9/o200k_base.tiktoken")
    packed = tmp_path / "bundle" / "downloads" / Path(row["path"]).name
    packed.parent.mkdir(parents=True)
    packed.write_bytes(CONTENT)
    code, text = run(tmp_path, row, str(tmp_path / "bundle"))
    assert code == 0, text
    assert Path(row["path"]).read_bytes() == CONTENT
    packed.write_bytes(b"damaged")
    code, text = run(tmp_path, row, str(tmp_path / "bundle"))
    assert code != 0 and "is damaged" in text
