"""The module around the rules: its options and results, and that it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from module_calls import call_module
from returned_fixture import named

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import PARAMETERS
from ansible_collections.dgxspark.vllm.plugins.modules import image_compat


@pytest.fixture
def run(capsys: Any) -> Any:
    def run(**params: Any) -> dict[str, Any]:
        return call_module(image_compat, params, capsys)

    return run


@pytest.mark.parametrize("check_mode", [False, True])
def test_findings_do_not_fail_the_task(run: Any, check_mode: bool) -> None:
    result = run(
        image="nvcr.io/nvidia/vllm:26.04-py3",
        args={"swap-space": 4, "max-model-len": "8K"},
        model={"repo": "a/b"},
        _ansible_check_mode=check_mode,
    )
    assert "failed" not in result and result["changed"] is False
    assert result["compatible"] is False
    assert [finding["rule"] for finding in result["findings"]] == ["SPK101"]
    assert result["command"][:3] == ["vllm", "serve", "a/b"]
    assert (result["vllm_version"], result["version_source"], result["entrypoint"]) == (
        "0.19.0",
        "catalogue",
        "passthrough",
    )


def test_argv_and_ignore(run: Any) -> None:
    result = run(image="vllm/vllm-openai:v0.24.0", argv=["a/b", "-tp", "2"], ignore=["SPK801"])
    assert result["compatible"] is True
    assert result["command"] == ["a/b", "--tensor-parallel-size", "2"]


def test_own_catalogue(run: Any) -> None:
    result = run(
        image="example.org/x:1",
        model={"repo": "a/b"},
        catalogue=[{"image": "example.org/x:*", "vllm_version": "0.24.0", "entrypoint": "passthrough"}],
    )
    assert (result["vllm_version"], result["findings"]) == ("0.24.0", [])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"image": "a:1", "vllm_version": "nightly"}, "'vllm_version' is 'nightly'"),
        ({"image": " "}, "'image' must be an image reference"),
        ({"image": "a:1", "args": {"x": 1}, "argv": ["M"]}, "exclude each other"),
        ({"image": "a:1", "executor": "tmux"}, "executor"),
        ({}, "missing required arguments: image"),
    ],
)
def test_malformed_input_fails(run: Any, params: dict[str, Any], message: str) -> None:
    result = run(**params)
    assert result["failed"] is True and message in result["msg"]


def test_documentation_lists_what_the_engine_takes() -> None:
    assert sorted(yaml.safe_load(image_compat.DOCUMENTATION)["options"]) == sorted(PARAMETERS)


def test_what_is_not_known_may_be_null(run: Any) -> None:
    """A task that passes its variables on may pass null."""
    result = run(
        image="nvcr.io/nvidia/vllm:26.04-py3",
        vllm_version=None,
        model={"repo": "a/b", "config": {}, "quant_config": None},
        args={"max-model-len": "64k", "kv-cache-dtype": None},
        argv=None,
        env=None,
        driver_version=None,
        executor=None,
        entrypoint=None,
        nodes=1,
        ignore=[],
    )
    assert result["command"] == ["vllm", "serve", "a/b", "--max-model-len", "64000"] and result["findings"] == []


def test_returned_is_what_is_documented(run: Any) -> None:
    documented = yaml.safe_load(image_compat.RETURN)
    result = run(
        image="nvcr.io/nvidia/vllm:26.04-py3",
        argv=["a/b", "--enable-auto-tool-choice", "--swap-space", "4"],
        env={"VLLM_USE_V1": "1"},
    )
    assert set(result) - {"changed", "invocation"} == set(documented)
    (*_earlier_changes, change) = result["fixed"]["changes"]
    assert {*result["fixed"], *change} - named(image_compat.RETURN, "fixed") == set()
    # For an unknown image a finding names the rules that were not checked.
    findings = result["findings"] + run(image="of.ones/own:1", argv=["a/b"])["findings"]
    assert {key for finding in findings for key in finding} <= named(image_compat.RETURN, "findings")
