"""Versions, spans and images."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue, catalogue_data
from ansible_collections.dgxspark.vllm.plugins.module_utils.catalogue import (
    IMAGES,
    compare,
    has,
    lookup,
    parse_span,
    parse_version,
    split_image,
    version,
)


@pytest.mark.parametrize(
    ("text", "release", "final"),
    [
        ("0.19.0", (0, 19, 0), True),
        ("v0.24.0", (0, 24, 0), True),
        ("0.10.1.1", (0, 10, 1, 1), True),
        ("0.19.0+35a9f223.nv25.12.post1", (0, 19, 0), True),
        ("0.20.2rc1.dev49+g9b4e83934", (0, 20, 2), False),
        ("0.19.1.dev6", (0, 19, 1), False),
        ("0.27.1+93523f72.dev", (0, 27, 1), True),
        ("0.20", (0, 20, 0), True),
    ],
)
def test_parse_version(text: str, release: tuple[int, ...], final: bool) -> None:
    assert parse_version(text) == (release, final)


@pytest.mark.parametrize("text", ["", "nightly", "26.04-py3", "0.19.x", "0"])
def test_no_version(text: str) -> None:
    assert parse_version(text) is None
    with pytest.raises(ValueError, match="is not a version"):
        version(text)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("0.9.0", "0.10.0", -1),
        ("0.19.0", "0.19.0+nv", 0),
        ("0.20.2rc1", "0.20.2", -1),
        ("0.20.2rc1", "0.20.1", 1),
        ("0.10.1.1", "0.10.1", 1),
    ],
)
def test_compare(left: str, right: str, result: int) -> None:
    assert compare(left, right) == result
    assert compare(*reversed((left, right))) == -result


@pytest.mark.parametrize(
    ("span", "answers"),
    [
        ("", {"0.19.0": True, "0.40.0": True, "0.10.2": None}),
        ("0.17.0", {"0.16.0": False, "0.17.0": True, "0.16.1.dev3": None}),
        ("0.15.1<0.17.1", {"0.15.1": False, "0.16.0": None, "0.17.1": True}),
        (":>0.18.0", {"0.17.1": True, "0.18.0": False, "0.17.2rc1": None, "0.18.1.dev1": False}),
        (":0.27.1>0.29.0", {"0.27.1": True, "0.28.0": None, "0.29.0": False}),
        ("0.16.0:>0.20.0", {"0.15.1": False, "0.16.0": True, "0.20.0": False}),
    ],
)
def test_span(span: str, answers: dict[str, bool | None]) -> None:
    assert {text: parse_span(span).has(version(text)) for text in answers} == answers


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ("", "in every version known"),
        ("0.17.0", "since 0.17.0"),
        ("0.15.1<0.17.1", "in 0.17.1 and newer, not in 0.15.1"),
        (":>0.18.0", "removed in 0.18.0"),
        ("0.16.0:0.19.0>0.20.1", "since 0.16.0, gone in 0.20.1"),
    ],
)
def test_span_in_words(span: str, words: str) -> None:
    assert parse_span(span).text() == words


@pytest.mark.parametrize(
    ("table", "name", "of", "answer"),
    [
        ("tool_parsers", "hermes", "0.19.0", True),
        ("tool_parsers", "gemma4", "0.18.0", False),
        ("tool_parsers", "nemotron_v3", "0.33.0", False),
        ("tool_parsers", "nemotron_v3", "0.34.0", None),
        ("tool_parsers", "hermes", None, None),
        ("environment", "USE_V1", "0.19.0", False),
        ("environment", "NEW_IN_33", "0.33.0", None),
        ("architectures", "Qwen3NextForCausalLM", "0.10.1", False),
        ("spec_methods", "gemma4_mtp", "0.20.2rc1.dev49", None),
        ("quantizations", "gguf", "0.24.0", False),
        ("load_formats", "fastsafetensors", "0.19.0", True),
        ("moe_backends", "marlin", "0.17.0", True),
    ],
)
def test_has(table: str, name: str, of: str | None, answer: bool | None) -> None:
    assert has(table, name, version(of) if of else None) is answer


def test_tables_agree_with_the_options_that_take_them() -> None:
    """The newest parser's own list of choices and the table were read from the same version."""
    newest = version(catalogue_data.READ_FROM[-1])
    for option, table in (("moe-backend", "moe_backends"), ("spec-method", "spec_methods")):
        choices = {choice for choice in catalogue.options()[option].choices if choice != "None"}
        assert choices == {name for name, span in catalogue.names(table).items() if span.has(newest)}


def test_every_option_has_a_kind_and_a_readable_span() -> None:
    options = catalogue.options()
    assert {option.kind for option in options.values()} == {
        "flag",
        "switch",
        "int",
        "float",
        "size",
        "size-auto",
        "json",
        "text",
    }
    newest = version(catalogue_data.READ_FROM[-1])
    assert (
        sum(option.span.has(newest) is True for option in options.values()) == 320
    )  # options of 0.33.0, without --help
    for table in catalogue_data.NAMES:
        assert all(span.text() for span in catalogue.names(table).values())


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("vllm/vllm-openai:v0.24.0", ("vllm/vllm-openai", "v0.24.0", None)),
        ("docker.io/vllm/vllm-openai", ("vllm/vllm-openai", None, None)),
        ("localhost:5000/a/b", ("localhost:5000/a/b", None, None)),
        ("nvcr.io/nvidia/vllm:26.04-py3@sha256:ab", ("nvcr.io/nvidia/vllm", "26.04-py3", "sha256:ab")),
        ("a/b@sha256:ab", ("a/b", None, "sha256:ab")),
    ],
)
def test_split_image(image: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_image(image) == parts


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (
            "nvcr.io/nvidia/vllm:26.04-py3",
            {
                "vllm_version": "0.19.0",
                "entrypoint": "passthrough",
                "ray": False,
                "cuda": "13.2",
                "arm64": True,
                "moving": False,
            },
        ),
        ("nvcr.io/nvidia/vllm:25.12.post1-py3", {"vllm_version": "0.12.0", "native_driver": "590.44", "ray": None}),
        ("nvcr.io/nvidia/vllm:27.01-py3", {"vllm_version": None, "entrypoint": "passthrough"}),
        (
            "vllm/vllm-openai:v0.24.0-ubuntu2404",
            {"vllm_version": "0.24.0", "entrypoint": "serve", "cuda": "13.0", "ray": False},
        ),
        ("vllm/vllm-openai:v0.19.0-aarch64-cu130-ubuntu2404", {"vllm_version": "0.19.0", "cuda": "13.0"}),
        ("vllm/vllm-openai:v0.17.0", {"vllm_version": "0.17.0", "cuda": "12", "ray": True}),
        ("vllm/vllm-openai:v0.20.0-cu129", {"vllm_version": "0.20.0", "cuda": "12.9"}),
        ("vllm/vllm-openai:v0.20.0-x86_64", {"arm64": False}),
        ("vllm/vllm-openai:gemma4-0505-arm64-cu130", {"vllm_version": "0.20.2rc1.dev49", "features": ["gemma4_mtp"]}),
        ("vllm/vllm-openai:glm51-cu130", {"vllm_version": None, "cuda": "13.0", "entrypoint": "serve"}),
        ("vllm/vllm-openai", {"moving": True, "tag": "latest"}),
        ("vllm/vllm-openai:nightly", {"moving": True}),
        ("vllm/vllm-openai:nightly-0123456789", {"moving": False, "vllm_version": None}),
        ("vllm/vllm-openai:latest@sha256:ab", {"moving": False, "digest": "sha256:ab"}),
        ("vllm/vllm-openai@sha256:ab", {"vllm_version": None, "entrypoint": "serve", "moving": False}),
        ("docker.io/vllm/vllm-openai:v0.31.0", {"vllm_version": "0.31.0"}),
    ],
)
def test_lookup(image: str, facts: dict[str, Any]) -> None:
    found = lookup(image)
    assert found is not None
    assert {key: found[key] for key in facts} == facts


def test_lookup_of_a_stranger() -> None:
    assert lookup("example.org/x:1") is None


def test_own_entries_go_first_and_keep_what_the_publisher_says() -> None:
    mine = {"image": "nvcr.io/nvidia/vllm:26.11-py3", "vllm_version": "0.32.0", "entrypoint": None}
    found = lookup("nvcr.io/nvidia/vllm:26.11-py3", [mine])
    assert found is not None
    assert (found["vllm_version"], found["entrypoint"]) == ("0.32.0", "passthrough")
    whole = lookup("example.org/x:anything", [{"image": "example.org/x", "entrypoint": "serve"}])
    assert whole is not None and whole["entrypoint"] == "serve"


def test_a_lookup_may_be_changed_without_changing_the_catalogue() -> None:
    first = lookup("vllm/vllm-openai:gemma4-0505-arm64-cu130")
    assert first is not None
    first["features"].append("x")
    second = lookup("vllm/vllm-openai:gemma4-0505-arm64-cu130")
    assert second is not None
    assert second["features"] == ["gemma4_mtp"]


def test_catalogue_is_well_formed() -> None:
    for entry in IMAGES:
        assert set(entry) <= set(catalogue.EXTRA_KEYS)
        assert not entry.get("vllm_version") or parse_version(entry["vllm_version"])
        assert lookup(entry["image"].replace("*", "x")) is not None
        for defect in entry.get("defects", ()):
            assert set(defect) <= {"text", "fix", "when"} and defect.get("when") in (None, "tools", "gemma4_nvfp4_moe")
