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
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module
from programs_fixture import play
from spread_fixture import HASH, saved

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, program_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import (
    file_stream,
    image_layers,
    image_stream,
    spread_files,
    spread_names,
    spreading,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spread_access as access
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, machine
from ansible_collections.dgxspark.vllm.plugins.modules import spark_info, spread_access, transfer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "registry.example/an/image@sha256:" + "ab" * 32
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKeyOfATest0"
PEER = {"name": "spark-2", "client_key": KEY, "host_key": KEY, "addresses": ["192.0.2.12", "10.0.0.12"]}
LINKS = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
    {"ifname": "docker0", "addr_info": [{"local": "172.17.0.1", "prefixlen": 16}]},
    {"ifname": "enP7s7", "addr_info": [{"local": "192.0.2.11", "prefixlen": 24}]},
    {"ifname": "enp1s0f0np0", "addr_info": [{"local": "10.0.0.11", "prefixlen": 24}]},
]


def root_dir(folder: Any) -> str:
    """What docker info prints of an engine that keeps images below a folder."""
    return json.dumps({"ServerVersion": "29.2.1", "DockerRootDir": str(folder)})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, fake_run: Any, tmp_path: Path) -> Any:
    play(monkeypatch, fake_run)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda module, name, **options: f"/usr/bin/{name}")
    monkeypatch.setattr(machine, "has_program", lambda name: True)
    monkeypatch.setattr(spread_files, "RECORDS", tmp_path / "records")
    for module in (spread_access, transfer):
        monkeypatch.setattr(module, "RUN_DIR", tmp_path / "run")
    monkeypatch.setattr(access, "RUN_DIR", str(tmp_path / "run"))
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
    """Ask for the section, which has options of its own."""
    distribution = {name: args.pop(name) for name in ("locked", "address", "fabric") if name in args}
    found: dict[str, Any] = call(
        spark_info, gather=["distribution"], fail_on_unknown=True, distribution=distribution, **args
    )
    return found


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
    ("out", "rc", "err", "said"),
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
    run: Any, call: Any, tmp_path: Path, out: str, rc: int, err: str, said: str
) -> None:
    run.on("ip -json", out, rc, err)
    result = survey(call, hf_home=str(tmp_path), address="192.0.2.11")
    assert result["failed"] and "the interfaces of this host are not known" in result["msg"] and said in result["msg"]
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
    asked: dict[str, Any] = {"images": [DIGEST], "locked": locked, "hf_home": str(tmp_path), "address": "192.0.2.11"}
    assert survey(call, **asked)["distribution"]["images"][DIGEST]["name"] == "sha256:9"


def test_images_do_without_rsync(run: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_program", lambda name: False)
    run.on("docker image inspect --", "[]", 1, "Error: No such image: x").on("docker info", root_dir("/")).on(
        "ip -json", "[]"
    )
    asked: dict[str, Any] = {"hf_home": str(tmp_path), "address": "192.0.2.11"}
    lacks = survey(call, images=["a:1"], **asked)["distribution"]["tools_missing"]
    assert lacks == ["ssh", "ssh-keygen", "sshd", "systemd-run"]
    model = {"repo": "Org/Model", "revision": "main", "only": []}
    assert survey(call, models=[model], **asked)["distribution"]["tools_missing"] == ["rsync", *lacks]


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
    args = {"state": "open", "name": "spark-1", "peers": [PEER], "addresses": ["127.0.0.1"], "images": ["an/image:1"]}
    result: dict[str, Any] = call(spread_access, **{**args, "hf_home": str(tmp_path), **more})
    return result


def test_the_server_takes_the_peers_and_nobody_else(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("/usr/bin/sshd -t").on("systemd-run")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=speak, args=(server,), daemon=True).start()
        result = opened(call, tmp_path, port=server.getsockname()[1])
    assert result.get("failed") is None, result
    written = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (tmp_path / "run").iterdir())
    (line,) = written["authorized_keys"].splitlines()
    assert line.startswith('restrict,command="/bin/sh /run/dgxspark/spread/serve",from="192.0.2.12,10.0.0.12" ')
    assert line.endswith(KEY) and written["known_hosts"] == f"spark-2 {KEY}\n" and written["images"] == "an/image:1\n"
    assert written["clear"] == ""  # what is not said to be a fabric is encrypted
    assert f"path = {tmp_path}/hub" in written["rsyncd.conf"] and "read only = yes" in written["rsyncd.conf"]
    # A node that asks nobody for names need not wait for an answer.
    assert "reverse lookup = no" in written["rsyncd.conf"]
    (started,) = [argv for argv in run.calls if argv[0] == "systemd-run"]
    assert {"--property=RuntimeMaxSec=14400", "--property=LimitCORE=0"} <= set(started)
    assert "--property=ExecStopPost=/bin/rm -rf /run/dgxspark/spread" in started


def test_only_an_address_of_a_fabric_gives_files_in_clear(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("/usr/bin/sshd -t").on("systemd-run")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=speak, args=(server,), daemon=True).start()
        opened(call, tmp_path, port=server.getsockname()[1], clear=["127.0.0.1", "10.0.0.9"])
    assert (tmp_path / "run/clear").read_text() == f"127.0.0.1 {tmp_path}/hub\n"
    compile((tmp_path / "run/file_stream.py").read_text(), "file_stream.py", "exec")


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
        {"images": ["an/image:1\nother:1"]},
        {"images": ["--output=/etc/passwd"]},
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


def test_what_systemd_does_not_end_is_not_called_closed(run: Any, call: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run.on("systemctl stop", "", 1, "Failed to connect to bus: Connection refused")
    result = call(spread_access, state="closed")
    assert result["failed"] and "may still be open" in result["msg"] and "Failed to connect to bus" in result["msg"]
    assert (tmp_path / "run").exists()
    run.on("systemctl stop", "", 5, "Unit dgxspark-spread.service not loaded.")
    assert call(spread_access, state="closed")["changed"] is True


def bound(tmp_path: Path, wanted: str, docker: str = 'echo docker "$@"') -> dict[str, Any]:
    """The command that every key is bound to, for subprocess, with programs that say what they were called with."""
    for name, does in (("rsync", 'echo rsync "$@"'), ("docker", docker)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "serve").write_text(access.serve_script(str(tmp_path)))
    (tmp_path / "images").write_text("an/image:1\n")
    (tmp_path / "clear").write_text(f"127.0.0.1 {tmp_path}/h u b\n")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": wanted}
    return {"args": ["/bin/sh", str(tmp_path / "serve")], "env": environment, "text": True}


def serve(tmp_path: Path, wanted: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(**bound(tmp_path, wanted, **more), capture_output=True, check=False)


def test_a_key_gives_rsync_with_our_settings_and_the_images_of_the_run(tmp_path: Path) -> None:
    daemon = serve(tmp_path, "rsync --server --daemon --config=/home/evil .")
    assert daemon.stdout == f"rsync --server --daemon --config={tmp_path}/rsyncd.conf .\n"
    assert serve(tmp_path, "image an/image:1").stdout == "docker save -- an/image:1\n"
    layers = "docker image inspect --format {{json .RootFS.Layers}} -- an/image:1\n"
    assert serve(tmp_path, "layers an/image:1").stdout == layers


def test_an_image_is_sent_without_the_layers_that_the_receiver_names(tmp_path: Path) -> None:
    (tmp_path / "image_layers.py").write_text(program_text.program(image_layers, foreign_text, image_stream))
    wanted = f"image an/image:1 {HASH}"
    assert "what came is no archive of docker save" in serve(tmp_path, wanted).stderr  # the docker of these tests
    (tmp_path / "archive").write_bytes(saved("an/image:1"))
    done = serve(tmp_path, wanted, docker=f"cat {tmp_path}/archive")
    assert (done.returncode, done.stderr) == (0, "")
    with tarfile.open(fileobj=io.BytesIO(done.stdout.encode())) as sent, tarfile.open(tmp_path / "archive") as whole:
        assert set(whole.getnames()) - set(sent.getnames()) == {f"blobs/sha256/{HASH}"}


def test_on_an_address_of_the_fabric_a_key_gives_files_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "file_stream.py").write_text(program_text.program(file_stream, foreign_text, beneath))
    (tmp_path / "h u b").mkdir()
    (tmp_path / "h u b/file").write_bytes(b"weights")
    target = io.BytesIO()
    with subprocess.Popen(**bound(tmp_path, "files 127.0.0.1"), stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        with file_stream.Receiver("127.0.0.1", "127.0.0.1", asking.stdout.readline()) as receiver:
            receiver.take("file", 0, 7, target, hashlib.sha256())
    assert (target.getvalue(), asking.returncode) == (b"weights", 0)


@pytest.mark.parametrize(
    "wanted",
    [
        "",
        "id",
        "files",
        "files ",
        "files 127.0.0.2",
        "files 127.0.0.1 /",
        "files 127.0.0.1;id",
        "files *",
        "image other:1",
        "image an/image:",
        "image an.image:1",
        "image an/image:1\nid",
        "image an/image:1 abc;id",
        "image an/image:1 *",
        "image ",
        "image",
        "layers other:1",
        "layers an/image:1 abc",
        "layers",
        "rsync --server --sender . /",
    ],
)
def test_a_key_gives_nothing_else(tmp_path: Path, wanted: str) -> None:
    done = serve(tmp_path, wanted)
    assert (done.returncode, done.stdout) == (1, "") and "nothing else" in done.stderr


# --- transfer


def test_a_job_is_started_and_followed_to_its_end(run: Any, call: Any, tmp_path: Path) -> None:
    run.on("systemd-run").on("systemctl is-active")
    result = call(transfer, tasks=[{"kind": "verify", "key": "a"}], program="print()\n")
    assert result["running"] is True
    assert json.loads((tmp_path / "run/job.json").read_text()) == {"tasks": [{"kind": "verify", "key": "a"}]}
    assert "def snapshot_files" in (tmp_path / "run/dgxspark_vllm/_content/spread_files.py").read_text()
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
    assert "Failed to connect to bus" in call(transfer, tasks=[{}], program="x")["msg"]
