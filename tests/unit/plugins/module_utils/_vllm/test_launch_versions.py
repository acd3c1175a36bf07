"""The command line over every version read, against argparse itself.

A parser of the standard library is built from the catalogue for each version; launch.parse has to accept the same launches
with the same values, and report all others as problems. Whether the catalogue matches vLLM is
proved in tests/catalogue, with vLLM.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, versions
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.catalogue import Option
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.launch import human_int, parse
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import Version

CASES = 100  # of each version
VERSIONS = [str(version) for version in catalogue.versions()]


class Refused(Exception):
    """The parser does not take it."""


class Parser(argparse.ArgumentParser):
    """Raises instead of leaving."""

    def error(self, message: str) -> Any:
        raise Refused(message)


def converter(option: Option) -> Any:
    """What vLLM's parser makes of one text."""

    def size(text: str) -> Any:
        return "auto" if option.kind == "size-auto" and text.lower() in ("auto", "-1") else human_int(text)

    def plain(text: str) -> str:
        return text.lower().replace("-", "_") if option.lowered else text

    def mapping(text: str) -> Any:
        if option.plain_text and not (text.startswith("{") and text.endswith("}")):
            return text
        result = json.loads(text)
        if not isinstance(result, (dict, list)) and not option.level:
            raise ValueError(text)
        return result

    converters: dict[str, Any] = {
        "int": int,
        "float": float,
        "size": size,
        "size-auto": size,
        "json": mapping,
        "text": plain,
    }
    convert = converters[option.kind]
    return (lambda text: None if text in ("", "None") else convert(text)) if option.optional else convert


def build(version: Version) -> Parser:
    """The parser of one version, as the catalogue describes it."""
    parser = Parser()
    parser.add_argument("model_tag", nargs="?")
    pairs = catalogue.trait("enable-disable-pairs", version)
    for option in catalogue.options(version).values():
        names = [name if name.startswith("-") else f"--{name}" for name in (option.name, *option.aliases)]
        parameters: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS}
        if option.kind == "flag":
            parser.add_argument(*names, action="store_true", **parameters)
        elif option.kind == "switch":
            parser.add_argument(*names, action="store_true", **parameters)
            long = [name[2:] for name in names if name.startswith("--")]
            off = [f"--no-{name}" for name in long]
            for name in long if pairs else ():
                verb, _dash, remainder = name.partition("-")
                off += (
                    [f"--{'disable' if verb == 'enable' else 'enable'}-{remainder}"]
                    if verb in ("enable", "disable")
                    else []
                )
            parser.add_argument(*off, action="store_false", **parameters)
        else:
            if option.values == "*":
                parameters["action"] = "append"
            elif option.values:
                parameters["nargs"] = option.values
            if option.values == "?":
                parameters["const"] = True
            convert = converter(option)
            if option.choices:
                parameters["choices"] = [convert(choice) for choice in option.choices] + (
                    [None] if option.optional else []
                )
            parser.add_argument(*names, type=convert, **parameters)
    return parser


def value_of(option: Option, draw: random.Random) -> str:
    """A text that the option takes."""
    if option.choices:
        return draw.choice(option.choices)
    return draw.choice(
        {
            "int": ["0", "7", "-1"],
            "float": ["0.5", "1", "1e-3"],
            "size": ["64k", "64K", "1.5k", "4096"],
            "size-auto": ["auto", "64k", "-1", "8192"],
            "json": ['{"zz":1}' if not option.read_into_class else "{}", "{}"],
            "text": ["a", "b c", "x=y", "A-b_C", "-a b"],
        }[option.kind]
    )


BAD = ["many", "1.5K", "", "{", "1,5", "None", "true", "0x10", "64k", "1.5"]


def spelled(name: str, names: list[str], draw: random.Random) -> str:
    """One of the ways to write an option: in full, with underscores, shortened."""
    way = draw.randrange(4)
    if not name.startswith("--"):
        return name
    if way == 1:
        return f"--{name[2:].replace('-', '_')}"
    if way == 2:
        return name[: draw.randrange(4, len(name) + 1)]
    return name


def word_lists(version: Version, draw: random.Random) -> list[str]:
    """One argument list: a few options, most of them right."""
    options = list(catalogue.options(version).values())
    words = ["M"]
    for option in draw.sample(options, draw.randrange(1, 4)):
        if option.name in ("model", "config", "served-model-name"):
            continue  # read before the parser, by other rules
        names = [name if name.startswith("-") else f"--{name}" for name in (option.name, *option.aliases)]
        if option.kind == "switch":
            names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
            if option.name.startswith("enable-"):
                names.append(f"--disable-{option.name[7:]}")
        word = spelled(draw.choice(names), names, draw)
        if draw.random() < 0.08:
            spot = draw.randrange(3, len(word) + 1) if len(word) > 3 else len(word)
            word = f"{word[:spot]}x{word[spot:]}"
        if not option.takes_value:
            words.append(f"{word}=true" if draw.random() < 0.05 else word)
            continue
        value = draw.choice(BAD) if draw.random() < 0.15 else value_of(option, draw)
        if draw.random() < 0.03:
            words.append(word)
        elif draw.random() < 0.3:
            words.append(f"{word}={value}")
        else:
            words += [word, value]
    return words


def dashes(word: str) -> str:
    """What vLLM makes of an option's name before its parser sees it."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def expected(parser: Parser, version: Version, words: list[str]) -> Any:
    """What argparse makes of it: values by long name, or its complaint."""
    try:
        result = vars(parser.parse_args([dashes(word) for word in words]))
    except Refused as refused:
        return str(refused)
    result.pop("model_tag")
    options = catalogue.options(version)
    for name, value in list(result.items()):
        if value is None:
            if options[name].default == "null":
                del result[name]
            else:
                result[name] = "None"
    return result


def same(ours: Any, theirs: Any) -> bool:
    """Numbers are compared as numbers, texts without the blanks around them."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours.strip() == theirs.strip()
    return bool(ours == theirs)


@pytest.mark.parametrize("text", VERSIONS)
def test_every_version_reads_as_argparse_does(text: str) -> None:
    version, draw = versions.version(text), random.Random(text)
    parser = build(version)
    accepted = 0
    for _case in range(CASES):
        words = word_lists(version, draw)
        expected_args, parsed = expected(parser, version, words), parse(words, text)
        if isinstance(expected_args, str):
            assert parsed.problems, (words, expected_args)
            continue
        if "model" in expected_args or "config" in expected_args:
            continue  # reached by an abbreviation
        accepted += 1
        assert parsed.problems == [], (words, expected_args)
        assert parsed.args.keys() == expected_args.keys(), words
        assert all(same(parsed.args[name], expected_args[name]) for name in expected_args), (
            words,
            parsed.args,
            expected_args,
        )
    assert CASES // 3 < accepted < CASES  # both sides were tried


@pytest.mark.parametrize("text", VERSIONS)
def test_every_spelling_of_every_option_is_taken(text: str) -> None:
    version = versions.version(text)
    for option in catalogue.options(version).values():
        if option.name in ("model", "config"):
            continue
        for name in (option.name, *option.aliases):
            word = name if name.startswith("-") else f"--{name}"
            value = [value_of(option, random.Random(0))] if option.takes_value else []
            parsed = parse(["M", word, *value], text)
            assert parsed.problems == [] and (option.name in parsed.args or value == ["None"]), (word, parsed)
            if option.kind == "switch" and not name.startswith("-"):
                assert parse(["M", f"--no-{name}"], text).args == {option.name: False}


@pytest.mark.parametrize("text", VERSIONS)
def test_options_of_other_versions_are_refused_with_the_versions_that_have_them(text: str) -> None:
    version = versions.version(text)
    options = catalogue.options(version)
    for name, option in catalogue.options().items():
        if name in options or any(name in entry.aliases for entry in options.values()):
            continue
        value = [value_of(option, random.Random(0))] if option.takes_value else []
        problems = parse(["M", f"--{name}", *value], text).problems
        if problems and problems[0].kind == "unknown":
            assert option.span.text() in problems[0].detail
        else:  # an abbreviation of another option, or its other half
            assert any(entry.startswith(name) for entry in options) or name.startswith(("disable-", "enable-")), (
                name,
                problems,
            )


@pytest.mark.parametrize("text", VERSIONS)
def test_a_slip_of_the_pen_is_answered_with_the_option_that_was_meant(text: str) -> None:
    version, draw = versions.version(text), random.Random(text)
    names = [name for name in catalogue.options(version) if len(name) > 12]
    for name in draw.sample(names, 10):
        spot = draw.randrange(5, len(name) - 2)
        slip = name[:spot] + name[spot + 1] + name[spot] + name[spot + 2 :]
        if slip == name or slip in catalogue.options():
            continue
        (problem,) = [option for option in parse(["M", f"--{slip}"], text).problems if option.kind == "unknown"]
        assert problem.fix == f"Did you mean --{name}?" or problem.fix.startswith("Did you mean --"), (slip, problem)
        assert f"vLLM {text}" in problem.detail


def test_what_differs_between_versions_in_reading() -> None:
    level = {version: parse(["M", "-O3"], version).args for version in ("0.11.2", "0.12.0")}
    assert level == {"0.11.2": {"compilation-config": {"level": 3}}, "0.12.0": {"optimization-level": "3"}}
    sizes = {version: parse(["M", "--hf-overrides.a", "64k"], version).args for version in ("0.19.1", "0.20.0")}
    assert sizes == {"0.19.1": {"hf-overrides": {"a": "64k"}}, "0.20.0": {"hf-overrides": {"a": 64000}}}
    text = '{"kv_connector_extra_config": {"size": 64k}}'
    assert parse(["M", "--kv-transfer-config", text], "0.19.1").problems
    assert parse(["M", "--kv-transfer-config", text], "0.20.0").args == {
        "kv-transfer-config": {"kv_connector_extra_config": {"size": 64000}}
    }
    (problem,) = parse(["--model", "M"], "0.11.0").problems
    assert problem.kind == "model_option" and "positional argument" in problem.vllm_error
    (problem,) = parse(["--model", "M"], "0.11.1").problems
    assert problem.kind == "model_option" and problem.vllm_error == ""
    (problem,) = parse(["--model=M"], "0.11.0").problems
    assert problem.kind == "model_option" and problem.vllm_error == ""
    assert [problem.kind for problem in parse(["M", "--model", "N"], "0.33.0").problems] == [
        "extra_word",
        "model_option",
    ]
    assert [problem.kind for problem in parse(["M", "-Ofast"], "0.11.0").problems] == ["bad_value"]
    assert parse(["-tp", "2", "--served-model-name", "a"], "0.16.0").problems == []
    assert [problem.kind for problem in parse(["-tp", "2", "--served-model-name", "a"], "0.17.0").problems] == [
        "bad_value"
    ]


def test_keys_replace_what_was_given_as_json() -> None:
    (problem,) = parse(["M", "--hf-overrides", '{"a":1}', "--hf-overrides.b", "2"], "0.33.0").problems
    assert problem.kind == "bad_value" and "more than once" in problem.detail
    assert parse(["M", "--hf-overrides.b", "2", "--hf_overrides.c.d", "x"], "0.33.0").args == {
        "hf-overrides": {"b": 2, "c": {"d": "x"}}
    }


def test_keys_of_configuration_classes_are_checked() -> None:
    (problem,) = parse({"compilation-config": {"cudagraph_moed": "FULL"}}, "0.33.0").problems
    assert problem.fix == "Did you mean cudagraph_mode?"
    assert parse({"compilation-config": {"cudagraph_mode": "FULL"}}, "0.33.0").problems == []
    assert (
        parse({"compilation-config": {"cudagraph_moed": "FULL"}}, "0.12.0").problems == []
    )  # passed over without a word


def test_choices_name_the_versions_that_have_them_and_stay() -> None:
    parsed = parse({"moe-backend": "b12x"}, "0.28.0")
    (problem,) = parsed.problems
    assert problem.kind == "bad_choice" and "since 0.29.0" in problem.fix and parsed.args == {"moe-backend": "b12x"}


def test_config_file_is_kept() -> None:
    words = ["M", "--config", "x.yaml", "--seed", "5"]
    assert parse(words, "0.33.0").args == {"config": "x.yaml", "seed": 5}
