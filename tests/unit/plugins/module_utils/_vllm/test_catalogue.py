"""Versions and spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, catalogue_data
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.catalogue import has, parse_span
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import parse_version, version

KINDS = ("flag", "switch", "int", "float", "size", "size-auto", "json", "text")


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
    ("first", "right", "result"),
    [
        ("0.9.0", "0.10.0", -1),
        ("0.19.0", "0.19.0+nv", 0),
        ("0.20.2rc1", "0.20.2", -1),
        ("0.20.2rc1", "0.20.1", 1),
        ("0.10.1.1", "0.10.1", 1),
    ],
)
def test_order(first: str, right: str, result: int) -> None:
    assert (version(first) > version(right)) - (version(first) < version(right)) == result


@pytest.mark.parametrize(
    ("span", "answers"),
    [
        ("", {"0.19.0": True, "0.40.0": True, "0.10.0": None}),
        ("0.17.0-", {"0.16.0": False, "0.17.0": True, "0.16.1.dev3": None, "0.10.0": False, "0.40.0": True}),
        ("-0.17.1", {"0.17.1": True, "0.18.0": False, "0.17.2rc1": None, "0.18.1.dev1": False, "0.40.0": False}),
        ("0.16.0-0.19.1", {"0.15.1": False, "0.16.0": True, "0.19.1": True, "0.20.0": False}),
        ("-0.16.0,0.33.0-", {"0.16.0": True, "0.17.0": False, "0.32.0": False, "0.33.0": True}),
        ("0.20.1", {"0.20.0": False, "0.20.1": True, "0.20.2": False}),
        ("0.18.0-", {"0.17.2": None, "0.18.2": True, "0.15.2": False}),  # never published: like its neighbours
    ],
)
def test_span(span: str, answers: dict[str, bool | None]) -> None:
    assert {text: parse_span(span).has(version(text)) for text in answers} == answers


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ("", "in every version known"),
        ("0.17.0-", "since 0.17.0"),
        ("-0.17.1", "removed in 0.18.0"),
        ("0.16.0-0.19.1", "since 0.16.0, removed in 0.20.0"),
        ("-0.16.0,0.33.0-", "up to 0.16.0 and since 0.33.0"),
        ("-0.16.0,0.20.0-0.20.2,0.25.0", "up to 0.16.0 and in 0.20.0 to 0.20.2 and in 0.25.0"),
    ],
)
def test_span_in_words(span: str, words: str) -> None:
    assert parse_span(span).text() == words


@pytest.mark.parametrize(
    ("table", "name", "release", "answer"),
    [
        ("tool_parsers", "hermes", "0.19.0", True),
        ("tool_parsers", "gemma4", "0.18.0", False),
        ("tool_parsers", "nemotron_v3", "0.33.0", False),
        ("tool_parsers", "nemotron_v3", "0.34.0", None),
        ("tool_parsers", "hermes", None, None),
        ("environment", "USE_V1", "0.19.0", False),
        ("environment", "NEW_IN_33", "0.33.0", False),
        ("environment", "USE_V1", "0.10.2", True),
        ("spec_keys", "moe_backend", "0.18.1", False),
        ("spec_keys", "moe_backend", "0.19.0", True),
        ("architectures", "Qwen3NextForCausalLM", "0.10.1", False),
        ("spec_methods", "gemma4_mtp", "0.20.2rc1.dev49", None),
        ("quantizations", "gguf", "0.24.0", False),
        ("load_formats", "fastsafetensors", "0.19.0", True),
        ("moe_backends", "marlin", "0.17.0", True),
    ],
)
def test_has(table: str, name: str, release: str | None, answer: bool | None) -> None:
    assert has(table, name, version(release) if release else None) is answer


NEWEST = catalogue.versions()[-1]


def test_versions_are_in_order() -> None:
    read_versions = catalogue.versions()
    assert list(read_versions) == sorted(set(read_versions)) and str(read_versions[0]) == "0.10.1.1"


def test_tables_agree_with_the_options_that_take_them() -> None:
    """The parser's own list of choices and the table were read in two ways."""
    for text in catalogue_data.VERSIONS.split():
        options = catalogue.options(version(text))
        for option, table in (("moe-backend", "moe_backends"), ("linear-backend", "linear_backends")):
            choices = set(options[option].choices) if option in options else set()
            assert choices == {name for name, span in catalogue.names(table).items() if span.has(version(text))}


@pytest.mark.parametrize("text", catalogue_data.VERSIONS.split())
def test_every_option_has_a_kind_of_its_version(text: str) -> None:
    for option in catalogue.options(version(text)).values():
        assert option.kind in KINDS and option.values in ("", "+", "*", "?")
        assert option.takes_value or not (option.choices or option.values)
        json.loads(option.default)


def test_choices_are_in_one_order_however_they_are_written() -> None:
    """Choices of one span are on one line; the message about a wrong choice does not depend on that."""
    for table in catalogue_data.TABLES:
        for item in catalogue.items(table).values():
            assert [token for token, _span in item.tokens] == sorted(token for token, _span in item.tokens)
    choices = catalogue.options(version("0.24.0"))["mamba-cache-dtype"].choices
    assert list(choices) == ["auto", "bfloat16", "float16", "float32"]


def test_every_span_can_be_said() -> None:
    for table in catalogue_data.TABLES:
        assert all(span.text() for span in catalogue.names(table).values())
    assert all(option.span.text() for option in catalogue.options().values())


# Boundaries that were found by importing vLLM's parsers one after the other, apart from the generator.
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("attention-backend", "0.13.0", None),
        ("moe-backend", "0.17.0", None),
        ("linear-backend", "0.22.0", None),
        ("swap-space", None, "0.17.1"),
        ("task", None, "0.12.0"),
        ("max-seq-len-to-capture", None, "0.10.2"),
        ("kv-cache-memory-bytes", "0.10.2", None),
        ("rope-scaling", None, "0.11.0"),
        ("nnodes", "0.11.1", None),
        ("calculate-kv-scales", None, "0.27.1"),
        ("max-num-partial-prefills", None, "0.26.0"),
        ("device-ids", "0.24.0", None),
        ("watchdog-config", "0.33.0", None),
    ],
)
def test_boundaries(name: str, first: str | None, last: str | None) -> None:
    having = [str(read_version) for read_version in catalogue.versions() if name in catalogue.options(read_version)]
    assert having[0] == (first or "0.10.1.1") and having[-1] == (last or str(NEWEST))


def test_what_changes_about_an_option() -> None:
    defaults = {
        text: catalogue.options(version(text))["gpu-memory-utilization"].default for text in ("0.19.1", "0.20.0")
    }
    assert defaults == {"0.19.1": "0.9", "0.20.0": "0.92"}
    dtype = {text: catalogue.options(version(text))["kv-cache-dtype"] for text in ("0.19.1", "0.20.0", "0.33.0")}
    assert "nvfp4" not in dtype["0.19.1"].choices and "nvfp4" in dtype["0.20.0"].choices
    assert dtype["0.33.0"].choices == ()
    between = catalogue.options(version("0.20.0rc1"))["gpu-memory-utilization"]
    assert between.default == "0.92" and between.name in catalogue.options()


def test_requirements() -> None:
    needs = {text: catalogue.requirement("ray", version(text)) for text in ("0.17.1", "0.18.0")}
    assert needs == {"0.17.1": "[cgraph]>=2.48.0", "0.18.0": None}
    assert catalogue.requirement("torch", version("0.20.0")) == "==2.11.0"
    assert catalogue.requirement("python", version("0.33.0")) == "<3.15,>=3.11"
    with pytest.raises(KeyError):
        catalogue.requirement("numpy", NEWEST)


def test_choices_and_keys_know_their_versions() -> None:
    span = catalogue.choice_span("moe-backend", "b12x")
    assert span is not None and span.text() == "since 0.29.0"
    assert catalogue.choice_span("moe-backend", "merlin") is None
    assert "cudagraph_mode" in catalogue.json_keys("compilation-config", NEWEST)
    assert catalogue.json_keys("additional-config", NEWEST) == {}


def test_the_file_stays_small() -> None:
    assert len(Path(catalogue_data.__file__).read_bytes()) < 350_000


@pytest.mark.parametrize(
    ("architectures", "args", "minors"),
    [
        (["Qwen3_5MoeForConditionalGeneration"], {}, range(17, 34)),
        # A key of the speculative configuration that came with 0.19, and a kernel that came with 0.29.
        (
            ["Qwen3_5MoeForConditionalGeneration"],
            {"speculative-config": {"method": "mtp", "moe_backend": "triton"}},
            range(19, 34),
        ),
        (["Qwen3_5MoeForConditionalGeneration"], {"moe-backend": "b12x"}, range(29, 34)),
        # Options that no release knows belong to a fork.
        (
            ["Qwen3_5MoeForConditionalGeneration"],
            {"gdn-decode-kernel": "b12x", "moe-backend": "of_a_fork"},
            range(17, 34),
        ),
        # Options of releases before the model: the architecture alone decides.
        (["Qwen4ExpForConditionalGeneration"], {"calculate-kv-scales": True}, range(29, 34)),
        # vLLM takes the first architecture that it knows.
        (["NotYetForCausalLM", "Qwen3_5MoeForConditionalGeneration"], {}, range(17, 34)),
        # A number of tokens that old parsers did not offer is no reason against new ones.
        (["Qwen3_5MoeForConditionalGeneration"], {"block-size": 1600}, range(17, 34)),
    ],
)
def test_the_minor_releases_that_know_a_launch(architectures: list[str], args: dict[str, Any], minors: range) -> None:
    assert catalogue.minors_with_launch(architectures, args) == frozenset(minors)


def test_a_family_that_no_release_knows_may_be_in_any() -> None:
    assert catalogue.minors_with_launch(["OfNextYearForCausalLM"], {}) >= frozenset(range(15, 34))


def test_values_of_options_are_those_of_all_releases() -> None:
    assert {"FLASHINFER", "B12X", "TRITON_ATTN"} <= set(catalogue.option_values("attention-backend"))
    assert catalogue.option_values("tokenizer-mode")["slow"].text() == "removed in 0.31.0"
    assert catalogue.option_values("served-model-name") == {} and catalogue.option_values("of-a-fork") == {}
    # Its choices are gone: any number will do.
    assert catalogue.option_values("block-size") == {}
    assert catalogue.spelled_value("attention-backend", "flash_attn") == "FLASH_ATTN"
    assert catalogue.spelled_value("moe-backend", "FlashInfer-Cutlass") == "flashinfer_cutlass"
    assert catalogue.spelled_value("quantization", "compressed-tensors") == "compressed-tensors"
