# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock and bundle as playbooks run them, over connections to this machine: real files, a real hub cache, Docker played by a program.

Real images go through save and load in the scenario `lock`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import ansible_playbook
from spread_fixture import contents

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle as engine

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
REF = "team-f2-tiny:1"
ID = "sha256:" + "1" * 64
RAY_ID = "sha256:" + "2" * 64
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "Org/Model"
DOCKER = """\
#!{python} -SE
import io, json, sys, tarfile
from pathlib import Path
store = Path({store!r})
words = [word for word in sys.argv[1:] if word != "--"]

def layers(archive):
    opened = tarfile.open(fileobj=io.BytesIO(archive))
    (entry,) = json.loads(opened.extractfile("manifest.json").read())
    sent = [name for name in entry["Layers"] if name in opened.getnames()]
    return entry["Config"][-64:], entry["Layers"], sent

def images():
    return [path.name.replace("_", ":") for path in sorted(store.glob("sha256_*"))]

if words[0] == "save":
    found = store / words[1].replace(":", "_")
    if not found.exists():
        sys.exit("Error response from daemon: No such image")
    sys.stdout.buffer.write(found.read_bytes())
elif words[0] == "load":
    data = sys.stdin.buffer.read()
    name, wanted, sent = layers(data)
    there = sum((layers((store / each.replace(":", "_")).read_bytes())[1] for each in images()), [])
    lost = [each for each in wanted if each not in sent and ((store / "demanding").exists() or each not in there)]
    with (store / "loads").open("a") as log:
        log.write(f"{{len(data)}} {{len(sent)}}\\n")
    if lost:
        sys.exit("open " + lost[0] + ": no such file or directory")
    (store / ("sha256_" + name)).write_bytes(data)
    print("Loaded image ID: sha256:" + name)
elif words[:2] == ["image", "ls"]:
    print("\\n".join(images()))
elif words[:3] == ["image", "inspect", "--format"] and "Layers" in words[3]:
    for each in words[4:]:
        print(json.dumps(["sha256:" + name[-64:] for name in layers((store / each.replace(":", "_")).read_bytes())[1]]))
elif words[:2] == ["image", "inspect"]:
    sys.exit(0 if (store / words[-1].replace(":", "_")).exists() else "No such image")
elif words[0] == "tag":
    (store / ("tag_" + words[2].replace("/", "_"))).write_text(words[1])
elif words[0] == "info" and "DriverStatus" in words[-1]:
    print((store / "driver").read_text() if (store / "driver").exists() else "[]")
elif words[0] == "info":
    print(store)
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def saved(image_id: str, size: int, layers: tuple[bytes, ...] = ()) -> bytes:
    """What docker save prints of an image; its settings take a size, and it has a small additional layer."""
    out = io.BytesIO()
    config = f"blobs/sha256/{image_id[7:]}"
    blobs = {f"blobs/sha256/{sha256(layer)}": layer for layer in (*layers, image_id.encode())}
    listed = [{"Config": config, "RepoTags": None, "Layers": list(blobs)}]
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in (
            *blobs.items(),
            (config, os.urandom(size)),
            ("manifest.json", json.dumps(listed).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


class Fleet:
    """Hosts that are folders of this machine, and plays on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "bundle"
        self.docker = folder / "bin" / "docker"
        self.piece_bytes = 2000

    def store(self, name: str) -> Path:
        """Let the program docker speak for this host from now on; returns its store."""
        store = self.folder / name / "docker"
        store.mkdir(parents=True, exist_ok=True)
        self.docker.parent.mkdir(exist_ok=True)
        self.docker.write_text(DOCKER.format(python=sys.executable, store=str(store)))
        self.docker.chmod(0o755)
        return store

    def home(self, name: str) -> Path:
        return self.folder / name / "hf"

    def image(self, name: str, image_id: str = ID, size: int = 5000, layers: tuple[bytes, ...] = ()) -> bytes:
        content = saved(image_id, size, layers)
        (self.store(name) / image_id.replace(":", "_")).write_bytes(content)
        return content

    def model(self, name: str) -> dict[str, bytes]:
        """Lay a model as huggingface_hub does: large files named by their sum, small ones by git's."""
        files = {"config.json": b"{}", "model.safetensors": os.urandom(300_000), "sub/README.md": b"hello"}
        repo = self.home(name) / "hub" / "models--Org--Model"
        for path, content in files.items():
            git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            blob = repo / "blobs" / (sha256(content) if len(content) > 1000 else git)
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link = repo / "snapshots" / COMMIT / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(COMMIT)
        return files

    def play(
        self, tasks: list[dict[str, Any]], *options: str, hosts: tuple[str, ...] = ("spark-1",), **variables: Any
    ) -> tuple[int, str]:
        book = self.folder / "play.yml"
        play = {"hosts": "sparks", "gather_facts": False, "tasks": tasks}
        book.write_text(yaml.safe_dump([play], sort_keys=False))
        inventory = self.folder / "hosts.yml"
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            **variables,
        }
        inventory.write_text(yaml.safe_dump({"sparks": {"hosts": dict.fromkeys(hosts, host)}}))
        ran = ansible_playbook(
            "-i", inventory, book, *options, cwd=self.folder, env={"PATH": f"{self.docker.parent}:{os.environ['PATH']}"}
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    def common(self, name: str) -> dict[str, Any]:
        return {
            "dir": str(self.bundle),
            "staging": str(self.folder / name / "staging"),
            "sums_dir": str(self.folder / name / "sums"),
            "piece_bytes": self.piece_bytes,
        }

    def pack(self, *options: str, size_gib: float = 0.0, ray: bool = False, image_id: str = ID) -> tuple[int, str]:
        """Pack the images and models of the host `source`, as bundle.yml does."""
        service = {
            "name": "chat",
            "image": {"ref": REF, "id": image_id},
            "ray_image": {"tag": "dgxspark/ray:x"} if ray else None,
        }
        models = [{"repo": REPO, "revision": "main"}]
        planned = {"spark-1": {"services": [service], "models": models, "images_locked": {}}}
        registered = {
            REF: {
                "present": True,
                "id": image_id,
                "size_gib": size_gib,
                "repo_digests": [f"team-f2-tiny@sha256:{'d' * 64}"],
            }
        }
        if ray:
            registered["dgxspark/ray:x"] = {"present": True, "id": RAY_ID, "size_gib": size_gib, "repo_digests": []}
        home = str(self.home("source"))
        self.store("source")
        tasks: list[dict[str, Any]] = [
            {
                "dgxspark.vllm.spark_info": {
                    "gather": ["model_files"], "models": models, "hf_home": home, "state_dir": str(self.folder / "s"),
                },
                "register": "models",
            },
            {
                "dgxspark.vllm.bundle": {
                    "action": "survey", "planned": planned, "images_from": "images", "models_from": "models", **self.common("source"),
                },
                "register": "survey",
            },
            {"dgxspark.vllm.bundle": {"action": "pack", "work": "{{ survey.work['spark-1'] }}", **self.common("source")}},
            {"dgxspark.vllm.bundle": {"action": "finish", **self.common("source")}},
        ]  # fmt: skip
        return self.play(tasks, *options, images={"images": registered})

    def bring(
        self, *options: str, models: Any = None, refs: Any = (REF,), locked: Any = None, optional: Any = ()
    ) -> tuple[int, str]:
        """Bring everything to the host `target`, as the roles do."""
        self.store("target")
        (self.home("target")).mkdir(parents=True, exist_ok=True)
        models = models or [{"repo": REPO, "revision": "main"}]
        tasks: list[dict[str, Any]] = []
        if refs or optional:
            more = {"locked": locked or {}, "optional": list(optional)}
            arguments = {"action": "images", "refs": list(refs), **more, **self.common("target")}
            tasks.append({"dgxspark.vllm.bundle": arguments})
        arguments = {
            "action": "weights",
            "models": models,
            "hf_home": str(self.home("target")),
            **self.common("target"),
        }
        tasks.append({"dgxspark.vllm.bundle": arguments})
        return self.play(tasks, *options)

    def snapshot(self, name: str) -> Path:
        return self.home(name) / "hub" / "models--Org--Model" / "snapshots" / COMMIT


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def packed(fleet: Fleet) -> tuple[Fleet, bytes, dict[str, bytes]]:
    image, files = fleet.image("source"), fleet.model("source")
    code, text = fleet.pack()
    assert code == 0, text
    return fleet, image, files


Packed = tuple[Fleet, bytes, dict[str, bytes]]
BELOW, ABOVE, NEWER = (os.urandom(size) for size in (400_000, 100_000, 150_000))


def loads(fleet: Fleet) -> list[tuple[int, int]]:
    """What docker load of the host `target` was given: bytes, and layers."""
    lines = (fleet.folder / "target" / "docker" / "loads").read_text().splitlines()
    return [(int(size), int(layers)) for size, layers in (line.split() for line in lines)]


def came(text: str) -> list[tuple[int, int]]:
    """How many bytes of how many travelled, as the run says of images of which not all did."""
    return [(int(some), int(every)) for some, every in re.findall(r"spark-1: (\d+) of (\d+) bytes of", text)]


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def own_staging(fleet: Fleet) -> dict[str, Any]:
    """Options of hosts that are one machine here, and have a folder each."""
    return {**fleet.common("source"), "staging": str(fleet.folder / "{{ inventory_hostname }}")}


def layer(content: bytes) -> str:
    """The folder of a layer in a bundle."""
    return f"layers/{sha256(content)}." + ("zst" if shutil.which("zstd") else "gz")


@pytest.fixture
def updated(fleet: Fleet) -> Fleet:
    """A bundle with an image that the host `target` has, and with a newer build of it, which has another layer on top."""
    fleet.piece_bytes = 60_000
    fleet.image("source", layers=(BELOW, ABOVE)), fleet.model("source")
    code, text = fleet.pack()
    assert code == 0, text
    code, text = fleet.bring()
    assert (code, came(text)) == (0, []), text
    before = written(fleet.bundle)
    fleet.image("source", RAY_ID, layers=(BELOW, NEWER))
    code, text = fleet.pack(image_id=RAY_ID)
    assert code == 0, text
    # The old image is unchanged, except that the tag stands for the newer one.
    after = written(fleet.bundle)
    changed = {path.name for path, date in before.items() if after[path] != date}
    assert changed == {"image.json", "manifest.json"} and len(after) > len(before)
    new = sum(path.stat().st_size for path in after if path not in before)
    assert len(NEWER) <= new < len(NEWER) + 20_000
    return fleet


def test_of_a_newer_build_the_new_layers_alone_are_packed_and_travel(updated: Fleet) -> None:
    code, text = updated.bring()
    assert code == 0, text
    ((some, every),) = came(text)
    assert len(NEWER) <= some < len(NEWER) + 20_000 < len(BELOW + NEWER) <= every
    assert [layers for _size, layers in loads(updated)] == [3, 2]
    assert loads(updated)[1][0] < len(NEWER) + 40_000
    store = updated.folder / "target" / "docker"
    assert (store / f"tag_{REF}").read_text() == RAY_ID
    # All that is in the bundle is an image again without any of this, as the page says: of old and new together.
    shutil.rmtree(updated.folder / "target")
    assert updated.bring()[0] == 0
    assert [layers for _size, layers in loads(updated)] == [3]


def test_a_docker_that_does_not_load_the_part_gets_the_other_layers_too(updated: Fleet) -> None:
    (updated.folder / "target" / "docker" / "demanding").touch()
    code, text = updated.bring()
    assert code == 0, text
    assert f"Docker did not load that part (open blobs/sha256/{sha256(BELOW)}: no such file" in text
    assert [layers for _size, layers in loads(updated)] == [3, 2, 3]
    assert (updated.folder / "target" / "docker" / f"tag_{REF}").read_text() == RAY_ID
    assert not list((updated.folder / "target" / "staging").iterdir())


def test_the_containerd_store_gets_all_of_it(updated: Fleet) -> None:
    (updated.folder / "target" / "docker" / "driver").write_text('[["driver-type","io.containerd.snapshotter.v1"]]')
    code, text = updated.bring()
    assert (code, came(text)) == (0, []), text
    assert [layers for _size, layers in loads(updated)] == [3, 3]


def test_images_have_a_layer_in_common(fleet: Fleet) -> None:
    fleet.piece_bytes = 60_000
    fleet.image("source", layers=(BELOW,)), fleet.image("source", RAY_ID, layers=(BELOW, ABOVE)), fleet.model("source")
    assert fleet.pack(ray=True)[0] == 0
    assert {str(path.relative_to(fleet.bundle)) for path in fleet.bundle.glob("layers/*.*")} - {"layers/.lock"} == {
        layer(BELOW),
        layer(ABOVE),
    }
    code, text = fleet.bring()
    assert code == 0, text
    # The one with Ray comes first, whole, and then nothing but names is new.
    assert [layers for _size, layers in loads(fleet)] == [3, 1]
    assert came(text)[0][0] < 20_000


def test_two_hosts_that_pack_the_same_layer_do_not_mix_their_pieces(fleet: Fleet) -> None:
    """Each has a different image, at the same time, and neither found the layer in the bundle when it began."""
    fleet.piece_bytes = 60_000
    (
        fleet.image("source", layers=(BELOW, ABOVE)),
        fleet.image("source", RAY_ID, layers=(BELOW, NEWER)),
        fleet.model("source"),
    )
    present_image = {"present": True, "size_gib": 0.0, "repo_digests": []}
    work = {
        f"spark-{number}": [engine.image_item(f"an/image:{number}", {**present_image, "id": image_id})]
        for number, image_id in ((1, ID), (2, RAY_ID))
    }
    common = {**own_staging(fleet), "action": "pack", "work": "{{ work[inventory_hostname] }}"}
    tasks: list[dict[str, Any]] = [
        {"dgxspark.vllm.bundle": common},
        {"dgxspark.vllm.bundle": {**fleet.common("source"), "action": "finish"}, "run_once": True},
    ]
    code, text = fleet.play(tasks, hosts=("spark-1", "spark-2"), work=work)
    assert code == 0, text
    manifest = json.loads((fleet.bundle / "manifest.json").read_text())
    assert [len(image["layers"]) for image in manifest["images"]] == [2, 2]
    for image in manifest["images"]:
        for part in engine.parts(image):
            assert sha256((fleet.bundle / part["path"]).read_bytes()) == part["sha256"]
    assert len(list(fleet.bundle.glob("layers/*.*/layer.json"))) == 3


def test_a_damaged_layer_is_named_and_nothing_is_loaded(updated: Fleet) -> None:
    file = updated.bundle / layer(NEWER) / "0001"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    code, text = updated.bring()
    assert code != 0
    assert f"{file} in the bundle is damaged" in text
    assert len(loads(updated)) == 1
    file.unlink()
    assert f"{file} of {REF} is missing or has another size" in updated.bring()[1]
    # Packed again, that layer alone is written, and it is whole.
    before = written(updated.bundle / layer(BELOW))
    assert updated.pack(image_id=RAY_ID)[0] == 0
    assert written(updated.bundle / layer(BELOW)) == before
    code, text = updated.bring()
    assert code == 0, text


def test_a_layer_goes_with_the_last_image_that_has_it(updated: Fleet) -> None:
    (folder,) = updated.bundle.glob("images/*-111111111111")
    shutil.rmtree(folder)
    code, text = updated.pack("--check", image_id=RAY_ID)
    assert (code, (updated.bundle / layer(ABOVE)).exists()) == (0, True), text
    code, text = updated.pack(image_id=RAY_ID)
    assert (code, "1 layers that no image has any more are removed" in text) == (0, True), text
    assert not (updated.bundle / layer(ABOVE)).exists()
    assert (updated.bundle / layer(BELOW)).exists() and (updated.bundle / layer(NEWER)).exists()


def check_weights(fleet: Fleet, files: dict[str, bytes]) -> None:
    """Check that the target has the files in the layout of the hub."""
    for name, content in files.items():
        source, target = (fleet.snapshot(host) / name for host in ("source", "target"))
        assert target.read_bytes() == content and target.is_symlink()
        # Blobs have the names of the hub library, which finds them instead of downloading.
        assert target.resolve().name == source.resolve().name
        assert target.stat().st_mode & 0o777 == 0o644


def test_there_and_back_every_byte_is_the_same(packed: Packed) -> None:
    fleet, image, files = packed
    manifest = json.loads((fleet.bundle / "manifest.json").read_text())
    pieces = manifest["images"][0]["pieces"]
    assert len(pieces) == 3
    assert [manifest["models"][0]["files"][name]["sha256"] for name in files] == [sha256(files[name]) for name in files]
    # The bundle has no links, so that any file system can carry it.
    assert not [path for path in fleet.bundle.rglob("*") if path.is_symlink()]
    assert not (fleet.folder / "source" / "staging" / Path(manifest["images"][0]["folder"]).name).exists()
    code, text = fleet.bring()
    assert code == 0, text
    assert "changed=2" in text
    store = fleet.folder / "target" / "docker"
    assert contents((store / ID.replace(":", "_")).read_bytes()) == contents(image)
    assert (store / f"tag_{REF}").read_text() == ID
    check_weights(fleet, files)
    assert (fleet.snapshot("target").parents[1] / "refs" / "main").read_text() == COMMIT
    assert not (fleet.home("target") / ".bundle").exists()
    assert list((fleet.folder / "target" / "staging").iterdir()) == []
    code, text = fleet.bring(refs=())
    assert (code, "changed=0" in text) == (0, True), text


@pytest.mark.nightly
def test_packing_again_changes_nothing(packed: Packed) -> None:
    fleet, _image, _files = packed
    before = {path: path.stat().st_mtime_ns for path in fleet.bundle.rglob("*")}
    code, text = fleet.pack()
    assert (code, "changed=0" in text) == (0, True), text
    assert {path: path.stat().st_mtime_ns for path in fleet.bundle.rglob("*")} == before


def test_a_run_that_was_cut_off_fetches_the_rest(packed: Packed) -> None:
    fleet, _image, files = packed
    (fleet.bundle / "manifest.json").unlink()
    model = fleet.bundle / "hub" / "models--Org--Model" / "snapshots" / COMMIT
    mtime = (model / "model.safetensors").stat().st_mtime_ns
    (model / "config.json").unlink()
    (fleet.bundle / ".draft-1").mkdir()
    (fleet.bundle / ".draft-1" / "draft").write_bytes(b"{")
    os.utime(fleet.bundle / ".draft-1", (0, 0))  # a younger one may belong to another run
    code, text = fleet.pack()
    assert code == 0, text
    assert (model / "config.json").read_bytes() == files["config.json"]
    assert (model / "model.safetensors").stat().st_mtime_ns == mtime
    assert not (fleet.bundle / ".draft-1").exists()


@pytest.mark.nightly
def test_a_check_run_packs_and_brings_nothing(fleet: Fleet) -> None:
    fleet.image("source"), fleet.model("source")
    code, text = fleet.pack("--check")
    assert (code, fleet.bundle.exists()) == (0, False), text
    assert fleet.pack()[0] == 0
    code, text = fleet.bring("--check")
    assert (code, "changed=2" in text) == (0, True), text
    assert list(fleet.home("target").iterdir()) == []
    assert list((fleet.folder / "target" / "docker").iterdir()) == []


def test_no_room_is_said_with_the_numbers(fleet: Fleet) -> None:
    fleet.image("source"), fleet.model("source")
    code, text = fleet.pack(size_gib=10_000_000)
    assert code != 0
    assert "10737418.24 GB of images to come" in text
    assert "GB are missing" in text
    assert not fleet.bundle.exists()


@pytest.mark.nightly
def test_an_image_with_ray_comes_with_its_base(fleet: Fleet) -> None:
    fleet.image("source"), fleet.image("source", RAY_ID), fleet.model("source")
    assert fleet.pack(ray=True)[0] == 0
    code, text = fleet.bring()
    assert code == 0, text
    names = {path.name for path in (fleet.folder / "target" / "docker").iterdir()}
    assert {ID.replace(":", "_"), RAY_ID.replace(":", "_"), "tag_dgxspark_ray:x"} <= names
    # Before its base, so that a cut between the two does not leave the base alone.
    assert text.index("loading dgxspark/ray:x") < text.index(f"loading {REF}")


@pytest.mark.nightly
def test_names_stand_for_what_was_packed_last(packed: Packed) -> None:
    fleet, image, _files = packed
    # Sorted by commit, the newer one comes first or last: both ways are tried, since it moves back again.
    repo, newer = fleet.snapshot("source").parents[1], "f" * 40
    (repo / "snapshots" / newer).mkdir()
    (repo / "snapshots" / newer / "model.safetensors").symlink_to(
        "../../blobs/" + next((repo / "blobs").iterdir()).name
    )
    for commit in (newer, COMMIT):
        (repo / "refs" / "main").write_text(commit)
        code, text = fleet.pack()
        assert (code, "changed=2" in text) == (0, True), text
        manifest = json.loads((fleet.bundle / "manifest.json").read_text())
        assert {model["commit"]: model["revisions"] for model in manifest["models"]} == {
            packed_commit: ["main"] if packed_commit == commit else [] for packed_commit in (COMMIT, newer)
        }
    pushed = fleet.image("source", RAY_ID)
    for image_id, content in ((RAY_ID, pushed), (ID, image)):
        code, text = fleet.pack(image_id=image_id)
        assert code == 0, text
        shutil.rmtree(fleet.folder / "target", ignore_errors=True)
        code, text = fleet.bring()
        assert code == 0, text
        assert (fleet.folder / "target" / "docker" / f"tag_{REF}").read_text() == image_id
        assert contents((fleet.folder / "target" / "docker" / image_id.replace(":", "_")).read_bytes()) == contents(
            content
        )


def test_a_damaged_source_is_named_and_not_packed(fleet: Fleet) -> None:
    fleet.image("source"), fleet.model("source")
    blob = (fleet.snapshot("source") / "model.safetensors").resolve()
    content = bytearray(blob.read_bytes())
    content[1000] ^= 1
    blob.write_bytes(content)
    code, text = fleet.pack()
    assert code != 0
    assert "model.safetensors came from spark-1 with the sha256" in text
    assert "The file on the host is damaged" in text
    assert not list(fleet.bundle.rglob("model.safetensors"))
    assert not (fleet.bundle / "manifest.json").exists()


@pytest.mark.parametrize("kind", ["weights", "piece"])
def test_a_flipped_byte_in_the_bundle_is_found_and_never_used(packed: Packed, kind: str) -> None:
    fleet, _image, _files = packed
    pattern = "model.safetensors" if kind == "weights" else "0001"
    file = next(fleet.bundle.rglob(pattern))
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    code, text = fleet.bring()
    assert code != 0
    assert f"{file} in the bundle is damaged" in text
    assert not (fleet.snapshot("target") / "model.safetensors").exists()
    assert ((fleet.folder / "target" / "docker" / ID.replace(":", "_")).exists()) is (kind == "weights")
    assert not (fleet.snapshot("target").parents[1] / "refs").exists()


def test_what_is_truncated_or_missing_in_the_bundle_is_named_first(packed: Packed) -> None:
    fleet, _image, _files = packed
    file = next(fleet.bundle.rglob("0000"))
    file.write_bytes(file.read_bytes()[:100])
    code, text = fleet.bring()
    assert code != 0
    assert f"{file} of {REF} is missing or has another size" in text


def test_a_manifest_that_is_not_whole_is_refused(packed: Packed) -> None:
    fleet, _image, _files = packed
    manifest = fleet.bundle / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"size": 2\n', '"size": 3\n'))
    code, text = fleet.bring()
    assert code != 0
    assert "its checksum differs" in text
    manifest.unlink()
    assert "has no manifest.json" in fleet.bring()[1]


def test_a_damaged_file_on_the_host_comes_again(packed: Packed) -> None:
    fleet, _image, files = packed
    assert fleet.bring()[0] == 0
    blob = (fleet.snapshot("target") / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:1000])
    code, text = fleet.bring(refs=())
    assert code == 0, text
    assert "model.safetensors has 1000 bytes instead of 300000; it comes again" in text
    assert blob.read_bytes() == files["model.safetensors"]


def test_what_the_bundle_lacks_is_said_with_what_it_has(packed: Packed) -> None:
    fleet, _image, _files = packed
    code, text = fleet.bring(refs=["other:1"])
    assert code != 0
    assert f"has no image other:1; it has {REF}" in text
    code, text = fleet.bring(refs=(), models=[{"repo": REPO, "revision": "v2"}])
    assert code != 0
    assert "has no Org/Model@v2; it has Org/Model@0123456789ab" in text


def test_what_stands_around_the_engines_comes_where_the_bundle_has_it(packed: Packed) -> None:
    fleet, image, _files = packed
    code, text = fleet.bring(refs=(), optional=["other:1"])
    assert code == 0, text
    assert list((fleet.folder / "target" / "docker").iterdir()) == []
    code, text = fleet.bring(refs=(), optional=[REF, "other:1"])
    assert code == 0, text
    assert contents((fleet.folder / "target" / "docker" / ID.replace(":", "_")).read_bytes()) == contents(image)


def test_the_lock_decides_what_may_come(packed: Packed) -> None:
    fleet, _image, files = packed
    code, text = fleet.bring(locked={REF: {"name": REF, "ids": ["sha256:" + "9" * 64]}})
    assert code != 0
    assert f"has {REF} as 111111111111, the lock file says 999999999999" in text
    locked_files = {name: {"size": len(content), "sha256": sha256(content)} for name, content in files.items()}
    locked_files["config.json"]["sha256"] = "e" * 64
    code, text = fleet.bring(refs=(), models=[{"repo": REPO, "revision": COMMIT, "files": locked_files}])
    assert code != 0
    assert "has not the files of Org/Model" in text
    assert "config.json" in text
    pinned = f"{REF}@sha256:{'d' * 64}"
    code, text = fleet.bring(refs=[pinned], locked={pinned: {"name": REF, "ids": [ID]}})
    assert code == 0, text
    assert "named by a digest" in fleet.bring(refs=[pinned])[1]
