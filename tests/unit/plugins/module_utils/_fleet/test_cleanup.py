"""What counts as unused: everything that anything names stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import cleanup

OLD, NEW, OTHER = "1" * 40, "2" * 40, "3" * 40
IDS = {name: f"sha256:{number:064x}" for number, name in enumerate(("new", "old", "foreign", "dangling", "ours"))}


def image(name: str, *tags: str, size: int = 10, **more: Any) -> dict[str, Any]:
    return {"Id": IDS[name], "RepoTags": list(tags), "RepoDigests": [], "Size": size, **more}


NEW_IMAGE = image("new", "vllm/vllm-openai:v0.24.0")
OLD_IMAGE = image("old", "vllm/vllm-openai:v0.23.0", size=20)
FOREIGN = image("foreign", "postgres:17")
DANGLING = image("dangling")
OURS = image("ours", "dgxspark/ray:abc", size=30)
IMAGES = [NEW_IMAGE, OLD_IMAGE, FOREIGN, DANGLING, OURS]
PLANNED = ["vllm/vllm-openai:v0.24.0"]


def unused(**changes: Any) -> list[str]:
    arguments: dict[str, Any] = {
        "containers": [],
        "planned": PLANNED,
        "keep": [],
        "asked_ids": [],
        "notes": "",
        **changes,
    }
    return [entry["what"] for entry in cleanup.unused_images(IMAGES, **arguments)]


def test_old_images_of_known_kinds_are_found_and_others_not_looked_at() -> None:
    assert unused() == ["dgxspark/ray:abc", "vllm/vllm-openai:v0.23.0"]


def test_an_image_that_was_asked_what_is_in_it_is_ours_without_a_name() -> None:
    assert "sha256:000000000000 (no name)" in unused(asked_ids=[IDS["dangling"]])


@pytest.mark.parametrize(
    "changes",
    [
        {"containers": [IDS["old"]]},
        {"keep": ["vllm/vllm-openai:v0.23.0"]},
        {"notes": "ExecStart=docker run docker.io/vllm/vllm-openai:v0.23.0 serve"},
        {"notes": IDS["old"]},
        {"planned": [*PLANNED, IDS["old"]]},
        {"planned": [*PLANNED, "docker.io/vllm/vllm-openai:v0.23.0"]},
    ],
)
def test_what_anything_names_stays(changes: dict[str, Any]) -> None:
    assert "vllm/vllm-openai:v0.23.0" not in unused(**changes)


def test_a_step_that_another_image_stands_on_goes_with_that_one() -> None:
    step = image("dangling", Config={"Labels": {"dgxspark.simulated": "true"}})
    child = {**NEW_IMAGE, "Parent": step["Id"]}
    arguments: dict[str, Any] = {"containers": [], "planned": PLANNED, "keep": [], "asked_ids": [], "notes": ""}
    assert cleanup.unused_images([step, child], **arguments) == []
    assert [entry["what"] for entry in cleanup.unused_images([step, NEW_IMAGE], **arguments)] == [
        f"{step['Id'][:19]} (no name)"
    ]
    # An image with its own name is listed under that name.
    named = {**step, "RepoTags": ["dgxspark/ray:old"]}
    assert [entry["what"] for entry in cleanup.unused_images([named, child], **arguments)] == ["dgxspark/ray:old"]


def test_a_digest_in_the_plan_keeps_its_image() -> None:
    digest = f"vllm/vllm-openai@sha256:{'d' * 64}"
    pulled = {**OLD_IMAGE, "RepoTags": [], "RepoDigests": [digest]}
    assert cleanup.unused_images([pulled], [], [digest], [], [], "") == []
    (entry,) = cleanup.unused_images([pulled], [], PLANNED, [], [], "")
    assert entry["remove"] == [digest]


class Hub:
    """Models below a HF_HOME, with real files and links."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def add(self, repo: str, commit: str, ref: str = "", shared: str = "", weights: str = "x" * 100) -> Path:
        folder = self.home / "hub" / f"models--{repo.replace('/', '--')}"
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        files = {f"own-{commit}": ("model.safetensors", weights)}
        if shared:
            files["shared"] = ("config.json", shared)
        for blob, (name, text) in files.items():
            (folder / "blobs" / blob).write_text(text)
            (snapshot / name).symlink_to(f"../../blobs/{blob}")
        if ref:
            (folder / "refs").mkdir(exist_ok=True)
            (folder / "refs" / ref).write_text(commit)
        return folder

    def unused(
        self, planned_models: list[list[str]], notes: str = "", keep: Any = (), is_complete: bool = True
    ) -> list[dict[str, Any]]:
        unused_weights = cleanup.read_models(self.home)
        return cleanup.unused_weights(
            unused_weights, planned_models, list(keep), notes, lambda _repo, _revision: is_complete
        )


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


def kinds(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(entry["kind"], entry["what"]) for entry in entries]


def test_an_old_revision_goes_with_its_own_files_alone(hub: Hub) -> None:
    hub.add("Org/Model", OLD, shared="config")
    folder = hub.add("Org/Model", NEW, ref="main", shared="config")
    (entry,) = hub.unused([["Org/Model", "main"]])
    assert kinds([entry]) == [("revisions", f"Org/Model@{OLD[:12]}")]
    assert entry["bytes"] == 100
    assert entry["remove"] == [str(folder / "snapshots" / OLD), str(folder / "blobs" / f"own-{OLD}")]


def test_a_pinned_commit_is_the_one_in_use_and_the_ref_goes_with_the_other(hub: Hub) -> None:
    folder = hub.add("Org/Model", OLD)
    hub.add("Org/Model", NEW, ref="main")
    (entry,) = hub.unused([["Org/Model", OLD]])
    assert entry["what"] == f"Org/Model@{NEW[:12]}" and str(folder / "refs" / "main") in entry["remove"]


@pytest.mark.parametrize(
    "changes", [{"notes": f"receipt of {OLD}"}, {"keep": [f"Org/Model@{OLD}"]}, {"keep": ["Org/Model"]}]
)
def test_a_revision_that_something_names_stays(hub: Hub, changes: dict[str, Any]) -> None:
    hub.add("Org/Model", OLD)
    hub.add("Org/Model", NEW, ref="main")
    assert hub.unused([["Org/Model", "main"]], **changes) == []


def test_a_model_whose_wanted_revision_is_not_there_keeps_all_that_is(hub: Hub) -> None:
    hub.add("Org/Model", OLD)
    assert hub.unused([["Org/Model", OTHER]], is_complete=False) == []


def test_models_that_nothing_names(hub: Hub) -> None:
    hub.add("Org/Old", OLD, ref="main")
    hub.add("Org/Run", OLD, ref="main")
    unused_weights = hub.unused([], notes="vllm serve Org/Run --port 1")
    assert kinds(unused_weights) == [("models", "Org/Old")]
    assert unused_weights[0]["bytes"] >= 100


def test_leftovers_of_a_download_stay_while_it_can_go_on(hub: Hub) -> None:
    folder = hub.add("Org/Model", NEW, ref="main")
    (folder / "blobs" / "abc.incomplete").write_text("y" * 30)
    (folder / "blobs" / "lost").write_text("z" * 7)
    planned_models = [["Org/Model", "main"]]
    assert hub.unused(planned_models, is_complete=False) == []
    unused_weights = hub.unused(planned_models)
    assert [(entry["kind"], entry["bytes"]) for entry in unused_weights] == [("downloads", 30), ("revisions", 7)]


def test_caches_of_services_that_are_gone(tmp_path: Path) -> None:
    for name in ("heavy", "gone", "No_Service"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel").write_text("k" * 5)
    unused_weights = cleanup.read_caches(tmp_path)
    assert unused_weights == {str(tmp_path / "gone"): 5, str(tmp_path / "heavy"): 5}
    (entry,) = cleanup.unused_folders(unused_weights, [str(tmp_path / "heavy")], "caches", "", "why")
    assert entry["what"] == str(tmp_path / "gone")
    assert (
        cleanup.unused_folders(unused_weights, [], "caches", f"{tmp_path}/gone:/root {tmp_path}/heavy:/root", "why")
        == []
    )


def test_notes_are_units_settings_and_receipts_but_no_secrets_and_no_lists_of_the_disk(tmp_path: Path) -> None:
    etc, state, units = tmp_path / "etc", tmp_path / "state", tmp_path / "units"
    for path, text in {
        units / "spark-a.service": "unit",
        etc / "services" / "a.json": "settings",
        etc / "secrets" / "a" / "key.json": "secret",
        state / "receipts" / "a.json": "receipt",
        state / "generations" / "4" / "a.json": "generation",
        state / "images" / "x.json": "image-note",
        state / "models" / "x.json": "model-note",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    notes = cleanup.read_notes(etc, state, units).splitlines()
    assert sorted(notes) == ["generation", "receipt", "settings", "unit"]


@pytest.mark.parametrize(
    ("remove", "weights", "expected"),
    [
        ("images,caches", False, []),
        ("image", False, ["did you mean 'images'?"]),
        ("models,revisions", False, ["spark_clean_weights=true"]),
        ("models", True, []),
        ("", True, []),
    ],
)
def test_weights_are_asked_for_twice(remove: str, weights: bool, expected: list[str]) -> None:
    _kinds, messages = cleanup.check_request(remove, weights)
    assert len(messages) == len(expected) and all(word in message for word, message in zip(expected, messages))


def test_what_a_plan_uses() -> None:
    planned = {
        "images": ["a:1"],
        "image_candidates": ["a:1", "a:2"],
        "models": [{"repo": "O/M", "revision": "main"}, {"path": "/srv/huggingface/local/x", "source": "x"}],
        "services": [
            {
                "name": "heavy",
                "image": {"ref": "a:1", "id": "sha256:1", "digest": None, "run": "sha256:1"},
                "ray_image": None,
            },
            {"name": "big", "image": {"ref": "a:1", "run": "t"}, "ray_image": {"base": "b", "tag": "dgxspark/ray:t"}},
        ],
    }
    addons = {
        "gateway": {"image": "litellm:1"},
        "monitoring": {"grafana_image": "grafana:1"},
        "speech": {"services": [{"image": "asr:1"}]},
    }
    assert cleanup.in_use(planned, addons) == {
        "images": ["a:1", "a:2", "asr:1", "b", "dgxspark/ray:t", "grafana:1", "litellm:1", "sha256:1", "t"],
        "models": [["O/M", "main"]],
        "paths": ["/srv/huggingface/local/x"],
        "services": ["big", "heavy"],
    }


def test_lines_say_what_happens_to_each_kind() -> None:
    entries = [
        {"kind": "images", "what": "a:1", "bytes": 2**30, "why": "w"},
        {"kind": "models", "what": "O/M", "bytes": 2**31, "why": "w"},
    ]
    text = "\n".join(cleanup.lines_of(entries, ["images"], False))
    assert "images: 1.00 GiB, would be removed" in text
    assert "models: 2.00 GiB, stays; -e spark_clean_remove=models -e spark_clean_weights=true" in text
    assert cleanup.lines_of([], [], True) == ["nothing lies here that is not used"]
