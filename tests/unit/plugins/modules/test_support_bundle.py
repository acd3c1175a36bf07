# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A support bundle of a host with secrets in many places: the bundle contains none of them."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from module_calls import call_module

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import support
from ansible_collections.dgxspark.vllm.plugins.modules import support_bundle

FILE_KEY = "Zk9/plain+file key"
"""Of a secret file of the host: no form and no name gives it away."""
ENV_KEY = "envvalue77q"
ACCOUNT = base64.b64encode(b"$oauthtoken:ngcvalue88w").decode()
CONTAINER_KEY = "containervalue99e"
HUB = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"
CLIENT = "sk-clientvalue-44r55t"
PASSWORD = "passvalue66y"
PLANTED = [
    FILE_KEY, json.dumps(FILE_KEY)[1:-1], quote(FILE_KEY, safe=""), base64.b64encode(FILE_KEY.encode()).decode(),
    ENV_KEY, ACCOUNT, "ngcvalue88w", CONTAINER_KEY, HUB, CLIENT, "clientvalue-44r55t", PASSWORD,
]  # fmt: skip

DOCKER = f"""#!/bin/sh
case "$1 $2" in
"info "*) echo '{{"ServerVersion": "29.2.1", "DockerRootDir": "/"}}' ;;
"ps --all") echo abcdefabcdef ;;
"container inspect") cat "$SPARK_TEST_INSPECT" ;;
"logs "*) echo 'Authorization: Bearer {FILE_KEY}'; echo 'env has {CONTAINER_KEY}'; echo '{{"api_key": "{PASSWORD}"}}'; echo 'useful line of the engine' >&2 ;;
esac
"""
INSPECT = [
    {
        "Name": "/spark-heavy",
        "Id": "abcdefabcdef",
        "Image": "sha256:x",
        "Config": {
            "Labels": {"dgxspark.managed": "true"},
            "Env": [f"VLLM_API_KEY={CONTAINER_KEY}", "PATH=/bin"],
            "Cmd": ["--api-key", CLIENT],
        },
        "State": {"Status": "running", "Pid": 1},
    }
]
JOURNAL = f"""#!/bin/sh
echo 'login {FILE_KEY} and {HUB} and {quote(FILE_KEY, safe="")}'
echo 'https://someone:{PASSWORD}@proxy:3128/ useful line of the journal'
"""
SYSTEMCTL = f"""#!/bin/sh
case "$1" in
cat) printf '[Service]\\nEnvironment=HF_TOKEN={HUB}\\nExecStart=/usr/bin/docker run --token {PASSWORD} useful-image\\n' ;;
*) printf 'Id=spark-heavy.service\\nLoadState=loaded\\nActiveState=active\\n' ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: Any) -> Path:
    """A host whose folders are below tmp_path and whose programs print secrets."""
    for name, text in {
        "bin/docker": DOCKER,
        "bin/journalctl": JOURNAL,
        "bin/systemctl": SYSTEMCTL,
        "bin/ps": f"#!/bin/sh\necho '1 root vllm serve --api-key {CLIENT} useful-process'\n",
        "secrets/heavy/VLLM_API_KEY": FILE_KEY + "\n",
        "env/heavy.env": f"VLLM_API_KEY={ENV_KEY}\nVLLM_LOGGING_LEVEL=INFO\n",
        "config.json": json.dumps({"auths": {"nvcr.io": {"auth": ACCOUNT, "password": "ngcvalue88w"}}}),
        "receipts/heavy.json": json.dumps(
            {"service": "heavy", "note": f"with {ENV_KEY} and {FILE_KEY}", "useful": "receipt"}
        ),
        "services/heavy.json": json.dumps({"api_key_file": "/etc/dgxspark/secrets/heavy/VLLM_API_KEY", "x": ACCOUNT}),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.startswith("bin/"):
            path.chmod(0o755)
    (tmp_path / "inspect.json").write_text(json.dumps(INSPECT))
    monkeypatch.setenv("SPARK_TEST_INSPECT", str(tmp_path / "inspect.json"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(support, "SECRET_PLACES", (str(tmp_path / "secrets"),))
    monkeypatch.setattr(
        support,
        "FILES",
        (
            (str(tmp_path / "receipts"), "*.json"),
            (str(tmp_path / "services"), "*.json"),
            (str(tmp_path / "env"), "*.env"),
        ),
    )
    monkeypatch.setattr(support_bundle, "DOCKER_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setattr(support_bundle, "ENV_FOLDER", str(tmp_path / "env"))
    return tmp_path  # fmt: skip


def collect(capsys: Any, tree: Any, **args: Any) -> tuple[dict[str, Any], dict[str, str]]:
    result = call_module(support_bundle, {"dest": "/unused", "root": str(tree), **args}, capsys)
    content = base64.b64decode(result["content"])
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        return result, {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]


def test_not_one_planted_secret_is_in_it(host: Path, tree: Any, capsys: Any) -> None:
    plan = {
        "services": [{"env": {"HF_TOKEN": HUB}, "argv": ["--api-key", CLIENT], "note": FILE_KEY, "name": "useful-plan"}]
    }
    services = [{"name": "heavy", "unit": "spark-heavy.service", "url": None}]
    result, files = collect(capsys, tree, plan=plan, services=services)
    everything = "\n".join([*files, *files.values()])
    assert [secret for secret in PLANTED if secret in everything] == []
    assert redaction.MARK in everything and result["redacted"] > 10
    for useful in ("line of the engine", "line of the journal", "-image", "-process", "-plan", "receipt"):
        assert "useful" in everything and useful in everything
    assert "VLLM_LOGGING_LEVEL=INFO" in everything and "PATH=/bin" in everything
    assert "/etc/dgxspark/secrets/heavy/VLLM_API_KEY" in everything  # where a key lies is no secret


def test_the_secrets_are_there_without_the_nets(host: Path, tree: Any, capsys: Any, monkeypatch: Any) -> None:
    """The test above can fail: without redaction the bundle of the same host contains all of them."""
    monkeypatch.setattr(redaction.Redactor, "clean", lambda self, text: text)
    _result, files = collect(capsys, tree, plan={"note": [FILE_KEY, HUB]})
    everything = "\n".join(files.values())
    assert {FILE_KEY, HUB, PASSWORD, CLIENT, CONTAINER_KEY, ENV_KEY, ACCOUNT} <= {
        secret for secret in PLANTED if secret in everything
    }


def test_what_is_in_it(host: Path, tree: Any, engine: Any, capsys: Any) -> None:
    services = [
        {"name": "heavy", "unit": "spark-heavy.service", "url": engine.url},
        {"name": "off", "unit": "spark-off.service", "url": None},
    ]
    result, files = collect(capsys, tree, services=services, plan={"a": 1})
    assert {
        "MANIFEST.json", "facts.json", "plan.json", "docker/inspect.json", "docker/spark-heavy.log", "units/spark-heavy.service.txt",
        "journal/spark-heavy.service.log", "journal/spark-off.service.log", "journal/kernel.log", "metrics/heavy.txt",
        "system/meminfo.txt", f"files{host}/receipts/heavy.json"
    } <= set(files) | {f"files{host}/receipts/heavy.json" if f"files{host}/receipts/heavy.json".lstrip("/") in files else ""}  # fmt: skip
    manifest = json.loads(files["MANIFEST.json"])
    assert set(manifest["files"]) == set(files) - {"MANIFEST.json"} and manifest["left_out"] == []
    assert result["files"] == len(manifest["files"])


def test_a_journal_with_a_failure_is_explained(host: Path, tree: Any, capsys: Any) -> None:
    (host / "bin" / "journalctl").write_text(
        "#!/bin/sh\necho '2026-11-20T09:25:02+00:00 spark-1 docker[4711]: No space left on device'\n"
    )
    _result, files = collect(capsys, tree, services=[{"name": "heavy", "unit": "spark-heavy.service"}])
    assert not any(name.startswith("explained/") for name in files)  # a line without an error needs no explanation
    line = "2026-11-20T09:25:02+00:00 spark-1 docker[4711]: OSError: [Errno 28] No space left on device"
    (host / "bin" / "journalctl").write_text(f"#!/bin/sh\necho '{line}'\n")
    _result, files = collect(capsys, tree, services=[{"name": "heavy", "unit": "spark-heavy.service"}])
    assert "Cause: the disk is full" in files["explained/spark-heavy.service.txt"]


def test_the_size_is_bounded_and_what_is_missing_is_named(host: Path, tree: Any, capsys: Any) -> None:
    (host / "bin" / "journalctl").write_text("#!/bin/sh\nyes 'a line of the journal' | head -n 60000\n")
    result, files = collect(capsys, tree, max_mib=1, services=[{"name": "heavy", "unit": "spark-heavy.service"}])
    assert sum(len(text) for name, text in files.items() if name != "MANIFEST.json") <= 2**20
    assert "facts.json" in files and "plan.json" in files
    assert any("journal/spark-heavy.service.log: the last " in entry for entry in result["left_out"])
    assert any("journal/kernel.log: left out" in entry for entry in result["left_out"])


def test_a_cut_never_goes_through_a_secret() -> None:
    bundle = support.Bundle(redaction.Redactor(["longsecretvalue"]), 2**20, most_of_one=40)
    bundle.add("log", "x longsecretvalue\n" * 3)
    assert "secret" not in bundle.files["log"].decode() and "value" not in bundle.files["log"].decode()


def test_a_host_without_any_of_it_gives_a_bundle_too(tree: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(support, "FILES", ())
    monkeypatch.setattr(support, "SECRET_PLACES", ())
    _result, files = collect(capsys, tree)
    assert "facts.json" in files and "exit code 127" in files["system/nvidia-smi.txt"]


def test_hosts_without_a_bundle_are_named() -> None:
    entries = {"a": {"bundle": "a.tar.gz", "bytes": 1, "why": ""}, "b": {"why": "port 22: No route to host"}, "c": {}}
    assert support.missing(entries) == ["b (port 22: No route to host)", "c (not asked)"]
    assert support.index("now", entries)["hosts"]["a"] == {"bundle": "a.tar.gz", "bytes": 1, "why": ""}
