# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The section distribution of spark_info, spread_access and transfer on a host whose programs are played by a function."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module
from programs_fixture import play
from spread_fixture import NAME, contents, oci

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    file_stream,
    spread_files,
    spread_names,
    spread_server,
    spreading,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access as access
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import machine
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info, spread_access, transfer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "registry.example/an/image@sha256:" + "ab" * 32
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKeyOfATest0"
PEER = {"name": "spark-2", "client_key": KEY, "host_key": KEY, "addresses": ["192.0.2.12", "10.0.0.12"]}
ITEM = spread_names.item_id(NAME)
LINKS = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
    {"ifname": "docker0", "addr_info": [{"local": "172.17.0.1", "prefixlen": 16}]},
    {"ifname": "enP7s7", "addr_info": [{"local": "192.0.2.11", "prefixlen": 24}]},
    {"ifname": "enp1s0f0np0", "addr_info": [{"local": "10.0.0.11", "prefixlen": 24}]},
]


def root_dir(folder: Any) -> str:
    """Return the output of docker info for an engine that keeps images below a folder."""
    return json.dumps({"ServerVersion": "29.2.1", "DockerRootDir": str(folder)})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, fake_run: Any, tmp_path: Path) -> Any:
    play(monkeypatch, fake_run)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda module, name, **options: f"/usr/bin/{name}")
    monkeypatch.setattr(machine, "has_program", lambda name: True)
    monkeypatch.setattr(spread_files, "SAVED", tmp_path / "saved")
    monkeypatch.setattr(spread_files, "SUMS", tmp_path / "sums")
    for module in (spread_access, transfer):
        monkeypatch.setattr(module, "RUN_DIR", tmp_path / "run")
    monkeypatch.setattr(spread_names, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(spread_access, "PRIVILEGE_SEPARATION", tmp_path / "sshd")
    monkeypatch.setattr(spread_access, "START_SECONDS", 0.3)
    return fake_run


@pytest.fixture
def call(capsys: Any) -> Any:
    def call(module: Any, **args: Any) -> dict[str, Any]:
        return call_module(module, args, capsys)

    return call


# --- spark_info


def survey(call: Any, **args: Any) -> dict[str, Any]:
    """Return the section distribution of spark_info, with its options."""
    distribution = {name: args.pop(name) for name in ("locked", "address", "fabric") if name in args}
    answer: dict[str, Any] = call(
        spark_info, gather=["distribution"], fail_on_unknown=True, distribution=distribution, **args
    )
    return answer


def test_what_a_host_has_and_how_it_is_reached(run: Any, call: Any, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--Org--Model/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_text("weights")
    staged = tmp_path / ".spread/models--Org--Model/blobs/ab"
    staged.parent.mkdir(parents=True)
    staged.write_text("part")
    image = {"Id": "sha256:1", "Size": 7, "RootFS": {"Layers": ["sha256:a"]}, "Config": {}}
    run.on("docker image inspect -- an/image:1", json.dumps([image]))
    run.on("docker image inspect --", "[]", 1, "Error response from daemon: No such image: x")
    run.on("docker info", root_dir(tmp_path)).on("ip -json", json.dumps(LINKS))
    result = survey(
        call,
        images=["an/image:1", "another:1"],
        models=[{"repo": "Org/Model", "revision": COMMIT, "only": []}],
        hf_home=str(tmp_path),
        address="192.0.2.11",
        fabric="pair",
    )
    look = result["distribution"]
    assert look["images"]["another:1"] is None and look["images"]["an/image:1"]["id"] == "sha256:1"
    model = look["models"][f"Org/Model@{COMMIT}"]
    assert model["complete"] and [entry["path"] for entry in model["files"]] == ["model.safetensors"]
    assert model["staged"] == {"models--Org--Model/blobs/ab": 4}
    assert look["interfaces"] == [{"interface": "enp1s0f0np0", "address": "10.0.0.11", "network": "10.0.0.0/24"}]
    assert spreading.addresses(look) == ["192.0.2.11", "10.0.0.11"]
    assert look["disks"]["images"]["device"] == look["disks"]["models"]["device"]
    assert (look["tools_missing"], look["left_open"], result["changed"]) == ([], False, False)
    (tmp_path / "run").mkdir()
    assert survey(call, hf_home=str(tmp_path), address="192.0.2.11")["distribution"]["left_open"] is True


@pytest.mark.parametrize(
    ("out", "rc", "err", "message"),
    [
        ("", 255, "Cannot open netlink socket: Too many open files", "failed: Cannot open netlink socket"),
        ("", 127, "ip: not found", "failed: ip: not found"),
        ("", 1, "", "failed: exit code 1"),
        ("2: enP7s7 inet 192.0.2.11/24", 0, "", "cannot be read"),
        ('{"ifname": "enP7s7"}', 0, "", "cannot be read"),
        ('[{"ifname": "enP7s7", "addr_info": [{"local": "10.0.0.11"}]}]', 0, "", "cannot be read"),
        ('[{"ifname": "enP7s7", "addr_info": [{"local": "ten", "prefixlen": 24}]}]', 0, "", "cannot be read"),
    ],
)
def test_interfaces_that_are_not_known_are_no_missing_ones(
    run: Any, call: Any, tmp_path: Path, out: str, rc: int, err: str, message: str
) -> None:
    run.on("ip -json", out, rc, err)
    result = survey(call, hf_home=str(tmp_path), address="192.0.2.11")
    assert (
        result["failed"] and "the interfaces of this host are not known" in result["msg"] and message in result["msg"]
    )
    assert "ip -json -4 address show up" in result["msg"]


def test_where_images_lie_is_not_guessed(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("docker image inspect --", "[]", 1, "Error: No such image: x").on("ip -json", "[]")
    run.on("docker info", "", 1, "Cannot connect to the Docker daemon")
    result = survey(call, images=["a:1"], hf_home=str(tmp_path), address="192.0.2.11")
    assert result["failed"] and "Cannot connect to the Docker daemon" in result["msg"]


def test_an_image_named_by_digest_is_known_by_its_tag(run: Any, call: Any, tmp_path: Path) -> None:
    run.on(f"docker image inspect -- {spread_names.local_alias(DIGEST)}", json.dumps([{"Id": "sha256:1"}]))
    run.on("docker image inspect --", "[]", 1, "Error: No such image: x").on("docker info", root_dir("/")).on(
        "ip -json", "[]"
    )
    look = survey(call, images=[DIGEST], hf_home=str(tmp_path), address="192.0.2.11")["distribution"]
    assert look["images"][DIGEST]["id"] == "sha256:1"
    assert look["images"][DIGEST]["name"] == spread_names.local_alias(DIGEST)


def test_an_image_of_the_lock_file_is_known_by_its_id(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("docker image inspect -- sha256:9", json.dumps([{"Id": "sha256:9"}]))
    run.on("docker image inspect --", "[]", 1, "Error: No such image: x").on("docker info", root_dir("/")).on(
        "ip -json", "[]"
    )
    locked = {DIGEST: {"name": "an/image:1", "ids": ["sha256:8", "sha256:9"]}}
    arguments: dict[str, Any] = {
        "images": [DIGEST],
        "locked": locked,
        "hf_home": str(tmp_path),
        "address": "192.0.2.11",
    }
    assert survey(call, **arguments)["distribution"]["images"][DIGEST]["name"] == "sha256:9"


def test_missing_programs_are_named(run: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_program", lambda name: name == "sshd")
    run.on("ip -json", "[]")
    section = survey(call, hf_home=str(tmp_path), address="192.0.2.11")["distribution"]
    assert section["tools_missing"] == ["ssh", "ssh-keygen", "systemd-run"]


def test_what_is_wrong_with_the_engine_is_told(run: Any, call: Any) -> None:
    assert "there is no docker" in survey(call, images=["a"])["msg"]
    run.on("docker image inspect", "", 1, "Cannot connect to the Docker daemon")
    assert "Cannot connect to the Docker daemon" in survey(call, images=["a"])["msg"]


def test_a_model_without_a_revision_is_refused(run: Any, call: Any) -> None:
    assert "needs 'repo' and 'revision'" in survey(call, models=[{"repo": "Org/Model"}])["msg"]


# --- spread_access


def keygen(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def played(argv: list[str], **options: Any) -> tuple[int, str, str]:
        if argv[0] == "ssh-keygen":
            path = Path(argv[-1])
            path.write_text("private")
            path.with_suffix(".pub").write_text(f"{KEY} comment\n")
            return 0, "", ""
        answer: tuple[int, str, str] = run(argv)
        return answer

    play(monkeypatch, played)


def test_keys_are_made_for_the_run_and_what_was_left_is_removed(
    run: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/authorized_keys").write_text("of a run that was cut off")
    keygen(run, monkeypatch)
    result = call(spread_access, state="prepared", name="spark-1")
    assert (result["client_key"], result["host_key"]) == (KEY, KEY)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "client_key",
        "client_key.pub",
        "host_key",
        "host_key.pub",
    ]
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    stopped = [argv[-1] for argv in run.calls if argv[:2] == ["systemctl", "stop"]]
    assert stopped == ["dgxspark-spread-worker.service", "dgxspark-spread.service"]


def speak(server: socket.socket) -> None:
    connection, _peer = server.accept()
    connection.sendall(b"SSH-2.0-OpenSSH\r\n")
    connection.close()


def opened(call: Any, tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "run").mkdir(exist_ok=True)
    args = {"state": "open", "name": "spark-1", "peers": [PEER], "addresses": ["127.0.0.1"], "images": {NAME: NAME}}
    result: dict[str, Any] = call(spread_access, **{**args, "hf_home": str(tmp_path), **more})
    return result


def test_the_server_takes_the_peers_and_nobody_else(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("/usr/bin/sshd -t").on("systemd-run")
    folder = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=speak, args=(server,), daemon=True).start()
        result = opened(
            call, tmp_path, port=server.getsockname()[1], clear=["127.0.0.1", "10.0.0.9"], ready=["an/image:1"]
        )
    assert result.get("failed") is None, result
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files.values())
    command = f"PYTHONPATH={folder} {sys.executable} -m dgxspark_vllm._content.spread_server {folder}"
    (line,) = files["authorized_keys"].read_text().splitlines()
    assert line.startswith(f'restrict,command="{command}",from="192.0.2.12,10.0.0.12" ') and line.endswith(KEY)
    assert f"ForceCommand {command}\n" in files["sshd_config"].read_text()
    assert files["known_hosts"].read_text() == f"spark-2 {KEY}\n"
    # Unencrypted files leave the host only over addresses of the fabric.
    settings = {
        "hub": f"{tmp_path}/hub",
        "saved": f"{tmp_path}/saved",
        "clear": ["127.0.0.1"],
        "images": {ITEM: NAME},
    }
    assert json.loads(files["served.json"].read_text()) == settings
    assert f"items/{spread_names.item_id('an/image:1')}.ready" in files
    (started,) = [argv for argv in run.calls if argv[0] == "systemd-run"]
    assert {"--property=RuntimeMaxSec=14400", "--property=LimitCORE=0"} <= set(started)
    assert f"--property=ExecStopPost=/bin/rm -rf {folder}" in started


def test_the_programs_of_a_host_have_all_that_they_import(tmp_path: Path) -> None:
    access.write(tmp_path, access.programs())
    for name in ("spread_server", "spread_worker"):
        argv = [sys.executable, "-B", "-c", f"from dgxspark_vllm._content import {name}"]
        done = subprocess.run(argv, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_port_that_is_taken_is_told_and_the_keys_go(run: Any, call: Any, tmp_path: Path, closed_port: int) -> None:
    run.on("/usr/bin/sshd -t").on("systemd-run").on("journalctl", "Bind to port failed: Address already in use.\n")
    result = opened(call, tmp_path, port=closed_port)
    assert result["failed"] and "Address already in use" in result["msg"] and "Set spread_port" in result["msg"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"peers": [{**PEER, "client_key": f'{KEY}\ncommand="x" {KEY}'}]},
        {"peers": [{**PEER, "client_key": "ssh-rsa AAAA"}]},
        {"peers": [{**PEER, "addresses": ['*",command="x']}]},
        {"peers": [{**PEER, "name": "a b"}]},
        {"images": {NAME: "an/image:1\nother:1"}},
        {"images": {NAME: "--output=/etc/passwd"}},
        {"images": {NAME: 1}},
    ],
)
def test_nothing_is_smuggled_into_the_servers_files(run: Any, call: Any, tmp_path: Path, wrong: dict[str, Any]) -> None:
    result = opened(call, tmp_path, **wrong)
    assert result["failed"] and not (tmp_path / "run/authorized_keys").exists()


def test_closing_is_a_change_where_there_was_something(run: Any, call: Any, tmp_path: Path) -> None:
    assert call(spread_access, state="closed")["changed"] is False
    (tmp_path / "run").mkdir()
    assert call(spread_access, state="closed")["changed"] is True
    assert not (tmp_path / "run").exists()


def test_saved_images_go_with_the_access_and_parts_of_others_stay(run: Any, call: Any, tmp_path: Path) -> None:
    whole, part, draft = (tmp_path / "saved" / name for name in ("whole", "part", "part.draft"))
    for folder in (whole, part, draft):
        folder.mkdir(parents=True)
    spread_files.describe_saved(whole, "sha256:1", {})
    run.on("ip -json", "[]")
    assert survey(call, hf_home=str(tmp_path), address="192.0.2.11")["distribution"]["left_open"] is True
    assert call(spread_access, state="closed")["changed"] is True
    assert (whole.exists(), part.exists(), draft.exists()) == (False, True, False)


def test_what_systemd_does_not_end_is_not_called_closed(run: Any, call: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run.on("systemctl stop", "", 1, "Failed to connect to bus: Connection refused")
    result = call(spread_access, state="closed")
    assert result["failed"] and "may still be open" in result["msg"] and "Failed to connect to bus" in result["msg"]
    assert (tmp_path / "run").exists()
    run.on("systemctl stop", "", 5, "Unit dgxspark-spread.service not loaded.")
    assert call(spread_access, state="closed")["changed"] is True


def bound(tmp_path: Path, request: str, docker: str = 'echo docker "$@"') -> dict[str, Any]:
    """Return the arguments of subprocess that run the command of a key for a request; docker: the script that stands in for it."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/docker").write_text(f"#!/bin/sh\n{docker}\n")
    (tmp_path / "bin/docker").chmod(0o755)
    folders = {"hub": f"{tmp_path}/h u b", "saved": f"{tmp_path}/saved"}
    settings = {**folders, "clear": ["127.0.0.1"], "images": {ITEM: NAME}}
    access.write(tmp_path / "run", {**access.programs(), spread_server.SETTINGS: json.dumps(settings)})
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": request}
    command = access.serve_command(tmp_path / "run", sys.executable)
    return {"args": ["/bin/sh", "-c", command], "env": environment, "text": True}


def serve(tmp_path: Path, request: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(**bound(tmp_path, request, **more), capture_output=True, check=False, input="")


DOCKER = """case "$1 $2" in
"image inspect") printf '[{"Id": "sha256:1", "Size": 5}]';;
*) cat archive;;
esac"""


def test_an_image_is_saved_when_a_peer_reserves_it_and_its_files_are_given(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(oci(b"layer"))
    access.write(tmp_path / "run", {f"items/{ITEM}.ready": ""})
    done = serve(tmp_path, f"hold {ITEM} lan", docker=DOCKER.replace("archive", str(tmp_path / "archive")))
    free, _space, description = done.stdout.partition(" ")
    image = json.loads(description)
    assert (free, done.stderr) == ("free", "")
    blobs = {name[len("blobs/sha256/") :] for name in contents(oci(b"layer")) if name.startswith("blobs/")}
    assert set(image["files"]) == blobs
    name = image["layers"][0]
    sent = subprocess.run(
        **{**bound(tmp_path, f"files {ITEM}"), "text": False},
        capture_output=True,
        check=False,
        input=f"0 5 {name}\n".encode(),
    )
    assert sent.stdout == b"5\nlayer"
    outside = subprocess.run(
        **{**bound(tmp_path, f"files {ITEM}"), "text": False},
        capture_output=True,
        check=False,
        input=b"0 5 ../../archive\n",
    )
    assert b"does not stay below its folder" in outside.stdout


def test_a_key_gives_files_of_the_hub_over_tcp_on_an_address_of_the_fabric(tmp_path: Path) -> None:
    (tmp_path / "h u b").mkdir()
    (tmp_path / "h u b/file").write_bytes(b"weights")
    target = io.BytesIO()
    with subprocess.Popen(**bound(tmp_path, "files hub 127.0.0.1"), stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        with file_stream.connect("127.0.0.1", "127.0.0.1", asking.stdout.readline()) as connection:
            stream = connection.makefile("rwb", buffering=0)
            file_stream.Receiver(stream, stream).take("file", 0, 7, target, hashlib.sha256())
            stream.close()
    assert (target.getvalue(), asking.returncode) == (b"weights", 0)


def test_an_item_is_reserved_only_if_the_host_has_it(tmp_path: Path) -> None:
    item = spread_names.item_id("Org/Model@main")
    assert serve(tmp_path, f"hold {item} lan").stdout == "coming\n"
    access.write(tmp_path / "run", {f"items/{item}.failed": ""})
    assert serve(tmp_path, f"hold {item} lan").stdout == "gone\n"
    access.write(tmp_path / "run", {f"items/{item}.ready": ""})
    assert serve(tmp_path, f"hold {item} lan").stdout == "free\n"


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "id",
        "files",
        "files ",
        "files 127.0.0.1",
        "files hub 127.0.0.2",
        "files hub 127.0.0.1 /",
        "files hub 127.0.0.1;id",
        "files *",
        "files ..",
        "files 0123456789abcdef",
        "image an/image:1",
        "hold ../../../etc/passwd lan",
        "hold 0123456789abcdef",
        "hold 0123456789abcdef ../x",
        "rsync --server --daemon .",
    ],
)
def test_a_key_gives_nothing_else(tmp_path: Path, request_text: str) -> None:
    done = serve(tmp_path, request_text)
    assert (done.returncode, done.stdout) == (1, "") and "nothing else" in done.stderr


# --- transfer


def test_a_job_is_started_and_followed_to_its_end(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("systemd-run").on("systemctl is-active")
    result = call(transfer, tasks=[{"kind": "verify", "key": "a"}])
    assert result["running"] is True
    assert json.loads((tmp_path / "run/job.json").read_text()) == {"tasks": [{"kind": "verify", "key": "a"}]}
    assert "def put_aside" in (tmp_path / "run/dgxspark_vllm/_content/spread_files.py").read_text()
    state = {"finished": False, "done": 5, "total": 10, "results": []}
    (tmp_path / "run/state.json").write_text(json.dumps(state))
    assert call(transfer, tasks=[], step="look")["done"] == 5
    state.update(finished=True, results=[{"key": "a", "ok": True, "why": "", "bytes": 10}])
    (tmp_path / "run/state.json").write_text(json.dumps(state))
    assert call(transfer, tasks=[], step="look")["got"] == {"a": {"key": "a", "ok": True, "why": "", "bytes": 10}}


def test_a_job_that_is_killed_says_so(run: Any, call: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run.on("systemctl is-active", rc=3).on("journalctl", "Killed process\n")
    result = call(transfer, tasks=[], step="look")
    assert (result["running"], result["got"]) == (False, {})
    assert result["why"] == "the job ended before its time: Killed process"


def test_a_job_of_which_systemd_does_not_say_is_under_way(run: Any, call: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run.on("systemctl is-active", "", 1, "Failed to connect to bus: Connection refused")
    assert call(transfer, tasks=[], step="look")["running"] is True


def test_a_job_that_cannot_be_started_says_why(run: Any, call: Any) -> None:
    run.on("systemd-run", "", 1, "Failed to connect to bus")
    assert "Failed to connect to bus" in call(transfer, tasks=[{}])["msg"]
