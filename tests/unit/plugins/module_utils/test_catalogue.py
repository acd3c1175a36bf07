"""Versions and spans."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue, catalogue_data
from ansible_collections.dgxspark.vllm.plugins.module_utils.catalogue import (
    compare,
    has,
    parse_span,
    parse_version,
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
