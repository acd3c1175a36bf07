from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._content.plan_probe_program import PLAN_MARK
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command
from ansible_collections.dgxspark.vllm.plugins.modules import image_plan

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "image_plans.json").read_text(encoding="utf-8"))
SAID = RECORDED["dense"]["answer"]
SIZE = SAID["sizes"][0]["available"]
CONFIG = '{"model_type": "qwen3"}'
ASK = "timeout --kill-after=5 300 docker run"


class Host:
    """A stand-in for Docker with prepared answers; records its standard input."""

    def __init__(self, programs: Any) -> None:
        self.programs, self.given = programs, []

    def __call__(self, argv: list[str], data: bytes | None = None, **options: Any) -> tuple[int, str, str]:
        if data is not None:
            self.given.append(json.loads(data))
        return self.programs(argv)

    @property
    def asked(self) -> int:
        return len(self.given)

    def says(self, answer: Any, rc: int = 0) -> None:
        self.programs.on(ASK, f"a line of vLLM\n{PLAN_MARK}{json.dumps(answer)}\n", rc)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, fake_run: Any) -> Host:
    fake_run.on("docker image inspect", json.dumps([{"Id": "sha256:aa", "Config": {}}]))
    host = Host(fake_run)
    host.says(SAID)
    play(monkeypatch, host)
    return host


@pytest.fixture
def call(host: Host, capsys: Any, tmp_path: Path) -> Any:
    def call(**options: Any) -> dict[str, Any]:
        arguments = {
            "image": "an/image:1",
            "files": {"config.json": CONFIG},
            "available": [SIZE],
            "cache_dir": str(tmp_path / "plans"),
        }
        return call_module(image_plan, {**arguments, **options}, capsys)

    return call


def test_an_image_is_asked_once_per_launch(call: Any, host: Host, tmp_path: Path) -> None:
    first = call(args=["--max-model-len", "16384", "--port", "8000", "--api-key=sk-1"])
    assert (first["source"], first["reason"], first["image_id"], first["changed"]) == ("image", "", "sha256:aa", False)
    assert first["answer"]["sizes"][0]["blocks"] == SAID["sizes"][0]["blocks"]
    (question,) = host.given
    assert question["args"] == ["--max-model-len", "16384"] and question["trust"] is False
    assert question["files"] == {"config.json": CONFIG} and question["available"] == [SIZE]
    (cache_file,) = (tmp_path / "plans").iterdir()
    assert cache_file.stat().st_mode & 0o777 == 0o644 and "sk-1" not in cache_file.read_text()
    second = call(args=["--served-model-name", "b", "c", "--max-model-len", "16384", "--port", "8001"])
    assert (second["source"], second["answer"]) == ("cache", first["answer"]) and host.asked == 1
    assert call(args=["--max-model-len", "8192"])["source"] == "image"
    assert call(files={"config.json": "{}"})["source"] == "image"
    assert host.asked == 3


def test_another_size_is_asked_together_with_those_that_were(call: Any, host: Host) -> None:
    call()
    more = copy.deepcopy(SAID)
    more["sizes"].append({**SAID["sizes"][0], "available": 5 * SIZE})
    host.says(more)
    assert call(available=[5 * SIZE])["source"] == "image"
    assert host.given[-1]["available"][0] == min(size["available"] for size in SAID["sizes"])
    assert host.given[-1]["available"][-1] == 5 * SIZE
    assert call()["source"] == call(available=[SIZE, 5 * SIZE])["source"] == "cache"


def test_a_refusal_of_vllm_is_an_answer_and_is_kept(call: Any, host: Host) -> None:
    host.says(RECORDED["refused"]["answer"])
    first = call()
    assert first["source"] == "image" and first["answer"]["failure"]["kind"] == "refused"
    assert call(available=[1])["source"] == "cache" and host.asked == 1


def test_check_mode_starts_nothing_and_writes_nothing(call: Any, host: Host, tmp_path: Path) -> None:
    result = call(_ansible_check_mode=True)
    assert (result["source"], result["answer"]) == ("none", None) and host.asked == 0
    assert not (tmp_path / "plans").exists()
    call()
    assert call(_ansible_check_mode=True)["source"] == "cache" and host.asked == 1


def test_an_image_that_hangs_is_ended_and_asked_again(call: Any, host: Host, tmp_path: Path) -> None:
    host.programs.on(ASK, rc=124)
    result = call()
    assert (result["source"], result["reason"]) == ("none", "no answer within 300 seconds and 4 GiB of memory")
    started = next(argv for argv in host.programs.calls if argv[0] == "timeout")
    assert host.programs.calls[-1] == ["docker", "rm", "--force", started[started.index("--name") + 1]]
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [{**SAID["sizes"][0], "blocks": 10**9}]},
        {"sizes": [{**SAID["sizes"][0], "blocks": 0}]},
        {"sizes": [{"available": 5}]},
        {"ranks": []},
        {"ranks": SAID["ranks"] * 2},
        {"peak_bytes": -1},
        {"log": "x"},
        {"packages": {"vllm": 5}},
    ],
)
def test_what_cannot_be_right_is_no_answer(call: Any, host: Host, tmp_path: Path, change: dict[str, Any]) -> None:
    host.says({**SAID, **change})
    result = call()
    assert (result["source"], result["answer"]) == ("none", None) and result["reason"].startswith(
        "its answer cannot be right: "
    )
    assert not (tmp_path / "plans").exists()


def test_a_kept_answer_that_is_broken_is_asked_for_again(call: Any, host: Host, tmp_path: Path) -> None:
    call()
    (cache_file,) = (tmp_path / "plans").iterdir()
    content = json.loads(cache_file.read_text())
    for text in ("{broken", "[]", json.dumps({**content, "schema": 0}), json.dumps({**content, "answer": {}})):
        cache_file.write_text(text)
        assert call()["source"] == "image"
    assert host.asked == 5


def test_a_cache_that_cannot_be_written_is_only_warned_about(
    call: Any, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text: warnings.append(text))
    (tmp_path / "plans").write_text("a file")
    assert call()["source"] == "image"
    assert [text for text in warnings if "could not be kept" in text]


def test_remote_code_is_given_to_an_image_only_with_trust(call: Any, host: Host) -> None:
    files = {"config.json": CONFIG, "configuration_x.py": "import os"}
    assert "only with trust-remote-code" in call(files=files)["msg"] and host.asked == 0
    call(files=files, args=["--trust-remote-code"])
    assert host.given[0]["trust"] is True and "configuration_x.py" in host.given[0]["files"]


REPO, COMMIT = "org/new", "c" * 40


def snapshot(home: Path, **files: str) -> Path:
    """Lay a snapshot down as the hub library does: links to blobs."""
    model = home / "hub" / "models--org--new"
    folder = model / "snapshots" / COMMIT
    folder.mkdir(parents=True, exist_ok=True)
    (model / "blobs").mkdir(exist_ok=True)
    for name, text in files.items():
        (model / "blobs" / name).write_text(text)
        (folder / name).symlink_to(f"../../blobs/{name}")
    return folder


def test_a_snapshot_is_read_with_its_code_only_where_that_is_trusted(call: Any, host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"stolen": 1}')
    model_files = {
        "config.json": CONFIG,
        "generation_config.json": "{}",
        "modeling_x.py": "import os",
        "tokenizer.json": "{}",
    }
    folder = snapshot(tmp_path, **model_files, **{"model.safetensors.index.json": "{}", "README.md": "x"})
    (folder / "stolen.json").symlink_to(outside)
    (folder / "sub").mkdir()
    (folder / "sub" / "config.json").write_text("{}")
    (folder / "big.json").write_text(" " * (8 * 2**20 + 1))
    (folder / "broken.json").write_bytes(b"\xff\xfe")
    where = {"files": {}, "snapshot": {"repo": REPO, "commit": COMMIT}, "hf_home": str(tmp_path)}
    result = call(**where)
    assert host.given[0]["files"] == {"config.json": CONFIG, "generation_config.json": "{}"}
    assert result["files"]["config.json"] == hashlib.sha256(CONFIG.encode()).hexdigest() and result["source"] == "image"
    assert call(**where)["source"] == "cache"
    call(**where, args=["--trust-remote-code"])
    assert set(host.given[1]["files"]) == {"config.json", "generation_config.json", "modeling_x.py"}
    # The cache key contains the files, not the name of the commit.
    (folder / "config.json").write_text("{}")
    assert call(**where)["source"] == "image" and host.asked == 3


def test_what_is_no_snapshot_is_named(call: Any, host: Host, tmp_path: Path) -> None:
    where = {"files": {}, "hf_home": str(tmp_path)}
    message = call(**where, snapshot={"repo": REPO, "commit": COMMIT})["msg"]
    assert f"the snapshot {REPO}@{COMMIT} is not on this host" in message
    snapshot(tmp_path, **{"README.md": "x"}).joinpath("config.json").symlink_to("../../blobs/gone")
    assert "config.json is missing" in call(**where, snapshot={"repo": REPO, "commit": COMMIT})["msg"]
    for repo, commit in (("new", COMMIT), (REPO, "main"), (REPO, "../../x")):
        assert "must be ORG/NAME and a commit" in call(**where, snapshot={"repo": repo, "commit": commit})["msg"]
    both = {"files": {"config.json": CONFIG}, "snapshot": {"repo": REPO, "commit": COMMIT}}
    assert "leave one of them out" in call(**{**where, **both})["msg"]
    assert host.asked == 0


def test_variables_that_may_change_a_plan_are_a_part_of_the_question_and_nothing_else_is(call: Any, host: Host) -> None:
    env = {"VLLM_API_KEY": "sk-1", "HF_TOKEN": "hf-1", "VLLM_CACHE_ROOT": "/x", "VLLM_HOST_IP": "10.0.0.1"}
    env.update({"VLLM_MOE_CONFIG_PATH": "x", "VLLM_MOE_BACKEND": "/root/x", "VLLM_ATTENTION_BACKEND": "FLASHINFER"})
    env.update({"VLLM_USE_V2_MODEL_RUNNER": 1, "LD_PRELOAD": "x", "vllm_moe_x": "1"})
    call(env=env)
    assert host.given[0]["env"] == {"VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert call(env={**env, "VLLM_API_KEY": "sk-2"})["source"] == "cache"
    assert call(env={**env, "VLLM_USE_V2_MODEL_RUNNER": 0})["source"] == "image" and host.asked == 2


def test_a_config_that_ansible_has_parsed_is_a_text_again(call: Any, host: Host) -> None:
    call(files={"config.json": {"b": 1, "a": [2]}})
    assert json.loads(host.given[0]["files"]["config.json"]) == {"a": [2], "b": 1}


def test_all_that_is_wrong_is_said_at_once(call: Any, host: Host) -> None:
    message = call(files={}, timeout=0, memory_gib=0, available=[0])["msg"]
    for part in ("neither config.json", "timeout is 0", "memory_gib is 0", "available has 0"):
        assert part in message


def test_an_image_that_is_not_there_and_no_docker(call: Any, host: Host) -> None:
    host.programs.on("docker image inspect", "[]", rc=1, err="Error: No such image: an/image:1\n")
    assert "it is not on this host; pull it first" in call()["msg"]
    host.programs.on("docker image inspect", "", rc=1, err="Cannot connect to the Docker daemon\n")
    assert "Cannot connect" in call()["msg"]
    host.programs.answers.clear()
    assert "no docker on this host" in call()["msg"]


def test_docker_that_does_not_answer_fails_in_plain_words(call: Any, host: Host) -> None:
    host.programs.silent("docker image inspect")
    assert call()["failed"] is True and command.ADVICE in call()["msg"]
