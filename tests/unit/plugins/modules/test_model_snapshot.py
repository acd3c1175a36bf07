"""The download's life: not needed, started, under way, ended, failed. Docker is played by a function."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from module_calls import call_module
from programs_fixture import play

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_sums, snapshots
from ansible_collections.dgxspark.vllm.plugins.modules import model_snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def lay(hf_home: Path) -> None:
    """Put a complete model there."""
    folder = snapshots.repo_folder(hf_home, "Org/Model")
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "model.safetensors").write_text("weights")


class Docker:
    """Answers like docker and records the calls."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None
        self.log = ""
        self.calls: list[list[str]] = []
        self.refuse = False

    def __call__(self, argv: list[str], **options: Any) -> tuple[int, str, str]:
        assert argv[0] == "docker"
        argv = argv[1:]
        self.calls.append(argv)
        code, out, err = 0, "", ""
        if argv[:2] == ["container", "inspect"]:
            code, out, err = (0, json.dumps(self.state), "") if self.state else (1, "", "Error: No such container: x")
        elif argv[0] == "logs":
            out = self.log
        elif argv[0] == "run" and self.refuse:
            code, err = 125, "no such image"
        return code, out, err

    def asked(self, word: str) -> bool:
        return any(call[0] == word for call in self.calls)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    played = Docker()
    play(monkeypatch, played)
    monkeypatch.setattr(model_snapshot, "TOKENS", tmp_path / "tokens")
    return played


@pytest.fixture
def call(tmp_path: Path, capsys: Any) -> Any:
    def call(**args: Any) -> dict[str, Any]:
        settings = {"repo": "Org/Model", "image": "img", "hf_home": str(tmp_path), **args}
        return call_module(model_snapshot, settings, capsys)

    return call


def test_what_is_there_needs_neither_docker_nor_network(docker: Docker, call: Any, tmp_path: Path) -> None:
    lay(tmp_path)
    result = call()
    assert (result["changed"], result["complete"], result["commit"]) == (False, True, COMMIT)
    assert docker.calls == []


def test_a_check_run_predicts_and_starts_nothing(docker: Docker, call: Any) -> None:
    result = call(_ansible_check_mode=True)
    assert (result["changed"], result["running"]) == (True, False)
    assert docker.calls == []


def test_a_start_runs_the_image_in_the_background_with_the_token_in_a_file(
    docker: Docker, call: Any, tmp_path: Path
) -> None:
    result = call(token="hf_secret")
    assert (result["changed"], result["running"]) == (True, True)
    run = next(argv for argv in docker.calls if argv[0] == "run")
    assert "--detach" in run
    assert "hf_secret" not in " ".join(run)
    token = next((tmp_path / "tokens").iterdir())
    assert token.read_text() == "hf_secret"
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_download_of_an_earlier_run_is_joined(docker: Docker, call: Any) -> None:
    docker.state = {"Running": True}
    assert call()["running"] is True
    assert not docker.asked("run")


def test_progress_knows_the_total_once_the_hub_has_said_it(docker: Docker, call: Any) -> None:
    docker.state = {"Running": True}
    docker.log = f'warning\n{{"commit": "{COMMIT}", "files": 3, "bytes": 1000}}\n'
    result = call(step="look")
    assert (result["running"], result["total_bytes"], result["commit"]) == (True, 1000, COMMIT)


def test_the_end_is_a_whole_snapshot(docker: Docker, call: Any, tmp_path: Path) -> None:
    docker.state = {"Running": False, "ExitCode": 0}
    lay(tmp_path)
    result = call(step="look")
    assert (result["changed"], result["running"], result["complete"]) == (True, False, True)
    assert docker.asked("rm")


def test_an_end_that_left_gaps_is_a_failure(docker: Docker, call: Any) -> None:
    docker.state = {"Running": False, "ExitCode": 0}
    result = call(step="look")
    assert result["failed"] is True
    assert "not whole" in result["msg"]


@pytest.mark.parametrize(
    ("log", "fix"),
    [
        ("GatedRepoError: 403 Client Error", "Accept the licence"),
        ("RevisionNotFoundError: 404", "correct model.revision"),
        ("RepositoryNotFoundError: 404", "Correct model.repo"),
        ("OSError: No space left on device", "Make room below"),
        ("ConnectionError: Network is unreachable", "set spark_hf_endpoint"),
        ("something else", "Run the play again"),
    ],
)
def test_a_failure_says_why_and_what_to_do(docker: Docker, call: Any, log: str, fix: str) -> None:
    docker.state = {"Running": False, "ExitCode": 1}
    docker.log = log
    result = call(step="look")
    assert result["failed"] is True
    assert log.splitlines()[-1] in result["msg"]
    assert fix in result["msg"]


def test_an_image_that_is_not_there(docker: Docker, call: Any) -> None:
    docker.refuse = True
    result = call()
    assert result["failed"] is True
    assert "Is the image img on the host?" in result["msg"]


WEIGHTS = {"size": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}


def locked(tmp_path: Path, **expected: Any) -> dict[str, Any]:
    files = {"model.safetensors": {**WEIGHTS, **expected}}
    return {"revision": COMMIT, "files": files, "sums_dir": str(tmp_path / "sums")}


def weights(tmp_path: Path) -> Path:
    return snapshots.repo_folder(tmp_path, "Org/Model") / "snapshots" / COMMIT / "model.safetensors"


def test_what_is_as_locked_is_left_alone(docker: Docker, call: Any, tmp_path: Path) -> None:
    lay(tmp_path)
    result = call(**locked(tmp_path))
    assert (result["changed"], result["complete"], result["wrong"]) == (False, True, [])
    assert docker.calls == []
    assert list((tmp_path / "sums").iterdir())


@pytest.mark.parametrize(("content", "why"), [("weight", "has 6 bytes instead of 7"), ("weightz", "has the sha256")])
def test_a_truncated_or_flipped_file_is_named_taken_away_and_fetched(
    docker: Docker, call: Any, tmp_path: Path, content: str, why: str
) -> None:
    lay(tmp_path)
    weights(tmp_path).write_text(content)
    checked = call(**locked(tmp_path), _ansible_check_mode=True)
    assert (checked["changed"], weights(tmp_path).exists(), docker.calls) == (True, True, [])
    mark = file_sums.repair_stamp(tmp_path / "sums", "Org/Model")
    assert not mark.exists()
    result = call(**locked(tmp_path))
    # This mark restarts the engine that has loaded the file.
    assert mark.exists()
    assert (result["changed"], result["running"], result["complete"]) == (True, True, False)
    assert result["wrong"][0]["file"] == "model.safetensors"
    assert result["wrong"][0]["why"].startswith(why)
    assert not weights(tmp_path).exists()
    assert docker.asked("run")


def test_a_lacking_file_is_fetched(docker: Docker, call: Any, tmp_path: Path) -> None:
    lay(tmp_path)
    arguments = locked(tmp_path)
    arguments["files"]["config.json"] = {"size": 2, "sha256": "a" * 64}
    result = call(**arguments)
    assert (result["running"], result["wrong"]) == (True, [{"file": "config.json", "why": "is missing"}])
    assert weights(tmp_path).exists()
    # No engine had loaded it, so nothing has to be restarted.
    assert not file_sums.repair_stamp(tmp_path / "sums", "Org/Model").exists()


def test_without_a_lock_a_truncated_file_is_found_by_its_header(docker: Docker, call: Any, tmp_path: Path) -> None:
    lay(tmp_path)
    header = json.dumps({"w": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}}).encode()
    weights(tmp_path).write_bytes(len(header).to_bytes(8, "little") + header + b"x" * 100)
    assert call(sums_dir=str(tmp_path / "sums"))["changed"] is False
    weights(tmp_path).write_bytes(weights(tmp_path).read_bytes()[:-50])
    result = call(sums_dir=str(tmp_path / "sums"))
    assert (result["running"], weights(tmp_path).exists()) == (True, False)
    assert "in its header" in result["wrong"][0]["why"]


def test_with_a_bundle_no_network_is_tried(docker: Docker, call: Any, tmp_path: Path) -> None:
    assert call(offline=True, _ansible_check_mode=True)["changed"] is False
    result = call(offline=True)
    assert result["failed"] is True
    assert "Org/Model@main is not whole on this host, missing: all of it; and nothing is fetched" in result["msg"]
    assert "Make the bundle again" in result["msg"]
    lay(tmp_path)
    weights(tmp_path).write_text("weight")
    result = call(**locked(tmp_path), offline=True)
    assert "model.safetensors has 6 bytes instead of 7" in result["msg"]
    assert not weights(tmp_path).exists()
    assert docker.calls == []


def test_what_was_fetched_is_read_before_it_is_served(docker: Docker, call: Any, tmp_path: Path) -> None:
    docker.state = {"Running": False, "ExitCode": 0}
    lay(tmp_path)
    assert call(**locked(tmp_path), step="look")["complete"] is True
    weights(tmp_path).write_text("weightz")
    result = call(**locked(tmp_path), step="look")
    assert result["failed"] is True
    assert "model.safetensors has the sha256" in result["msg"]
    assert "taken away again" in result["msg"]
    assert not weights(tmp_path).exists()
