"""What the role models leaves behind."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SOURCE = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / ".cache" / "sim" / "models" / "scripted"


def test_every_byte_came_although_the_connection_broke_once(host):
    folder = "/srv/huggingface/hub/models--Org--Scripted"
    commit = host.file(f"{folder}/refs/main").content_string.strip()
    for source in SOURCE.iterdir():
        expected = hashlib.sha256(source.read_bytes()).hexdigest()
        for path in (f"{folder}/snapshots/{commit}/{source.name}", f"/srv/huggingface/local/copied/{source.name}"):
            assert host.check_output("sha256sum %s", path).split()[0] == expected


def test_a_file_of_the_snapshot_has_a_path_without_its_commit(host):
    link = host.file("/srv/huggingface/snapshots/Org--Scripted@main")
    assert link.is_symlink
    # Relative, so that it leads to the same place where a container sees the folder under another name.
    assert host.check_output("readlink %s", link.path).startswith("../hub/models--Org--Scripted/snapshots/")
    assert host.file(f"{link.path}/config.json").is_file


def test_the_token_is_gone_and_so_is_the_download(host):
    with host.sudo():
        files = host.check_output(
            "grep -rlF hf_molecule_token /run/dgxspark /etc /srv/huggingface /var/lib/docker/containers || true"
        )
        assert files == ""
        assert "dgxspark-fetch" not in host.check_output("docker ps --all --format '{{.Names}}'")
