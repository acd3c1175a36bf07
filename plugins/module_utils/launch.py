# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of C(vllm serve), read as vLLM reads it and written back as plain argv.

C(parse) takes what a person wrote, a mapping or an argv list, and returns one mapping of long names to native values
together with everything that vLLM's parser would refuse. C(render) turns such a mapping into the exact argv.
The parser's behaviour is that of C(FlexibleArgumentParser) (vllm/utils/argparse_utils.py) on top of argparse.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils import catalogue, catalogue_data
from ansible_collections.dgxspark.vllm.plugins.module_utils.catalogue import Option, Version

SERVICE_KEYS = {
    "host": "host",
    "port": "port",
    "served-model-name": "served_model_name",
    "model": "model",
    "name": "name",
}
"""What belongs to a service itself rather than to its C(args), with the key of the service that sets it."""

# --enable-x also answers to --disable-x, and the other way round, from this version on.
_PAIRS_SINCE = catalogue.version("0.33.0")
_OPTIMIZATION_LEVEL_SINCE = catalogue.version("0.12.0")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Problem:
    """Something that vLLM's parser refuses or that does not belong here.

    kind: unknown, ambiguous, no_value, value_to_switch, bad_value, bad_choice, doubled, model_option, extra_word,
    service_key. option: as it was written. detail: what exactly is wrong. fix: what to write instead.
    vllm_error: vLLM's own text. value: what was written as the value, where that is what is wrong.
    """

    kind: str
    option: str
    detail: str = ""
    fix: str = ""
    vllm_error: str = ""
    value: Any = None


@dataclass
class Parsed:
    """A launch as vLLM would understand it.

    model: the positional argument, if one was given. args: long names without leading dashes, in native values
    (C(true) flag set, C(false) its C(--no-) form, numbers, text, lists, mappings for JSON). An option that is not
    known stays in as it was written: a fork may have it, and what was asked for is not silently dropped.
    problems: what is wrong.
    """

    model: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _Refused(Exception):
    """One option cannot be used as it stands."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def long_name(name: str) -> str:
    """Return an option's long name without leading dashes: C(--gpu_memory_util) and C(gpu-memory-utilization) meet.

    Short forms (C(tp), C(-tp)), aliases and unique prefixes become the long name; a name that is none of these comes
    back with dashes only, so that whoever checks it later can complain about it.
    """
    dashed = _dashes(name)
    known = catalogue.options()
    if dashed in known:
        return dashed
    short = _aliases()
    for spelled in (dashed, f"-{dashed}"):
        if spelled in short:
            return short[spelled]
    starting = [option for option in known if option.startswith(dashed)] if len(dashed) > 1 else []
    return starting[0] if len(starting) == 1 else dashed


def parse(launch: Mapping[str, Any] | Sequence[str], version: str | None = None) -> Parsed:
    """Read a launch.

    launch: a mapping of options (C(null) takes an option out) or what a person would type, with or without
    C(vllm serve) in front. version: the vLLM that will read it; options that it does not have become problems.
    Raises C(TypeError) for anything else, C(ValueError) for a version that is none.
    """
    wanted = catalogue.version(version) if version else None
    if isinstance(launch, Mapping):
        return _parse_mapping(launch, wanted)
    if isinstance(launch, (str, bytes)) or not all(isinstance(word, (str, int, float)) for word in launch):
        raise TypeError("an argv is a list of texts")
    return _parse_argv([_word(word) for word in launch], wanted)


def render(args: Mapping[str, Any]) -> list[str]:
    """Return the argv of normalised C(args), in alphabetical order, the same for the same input.

    C(true) becomes C(--flag), C(false) C(--no-flag), C(null) nothing, a list its values one after another, a mapping
    compact JSON with sorted keys.
    """
    argv: list[str] = []
    known = catalogue.options()
    for name in sorted(args):
        value = args[name]
        option = known.get(name)
        if value is None:
            continue
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            argv.append(f"--no-{name}")
        elif isinstance(value, (list, tuple)) and option is not None and option.values == "*":
            for item in value:
                argv.extend([f"--{name}", _text(item)])
        elif isinstance(value, (list, tuple)) and (option is None or option.kind != "json"):
            argv.extend([f"--{name}", *map(_text, value)])
        else:
            argv.append(f"--{name}")
            argv.append(_text(value))
    return argv


def service_keys(args: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for every option in C(args) that is a key of the service itself."""
    return [
        Problem(
            "service_key",
            name,
            f"belongs to the service, not to its args: the key is '{SERVICE_KEYS[name]}'",
            f"Move the value to the service's key '{SERVICE_KEYS[name]}'.",
        )
        for name in sorted(args)
        if name in SERVICE_KEYS
    ]


def human_int(text: str) -> int:
    """Read C(64k) (64000), C(64K) (65536), C(25.6k) or a plain number, as vLLM does; raises C(ValueError)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if not match:
        return int(text)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    return int(number) * _BINARY[suffix]


# --- names --------------------------------------------------------------------------------------------------------


def _dashes(name: str) -> str:
    head, dot, tail = name.strip().lstrip("-").partition(".")
    return head.replace("_", "-") + dot + tail


@cache
def _aliases() -> dict[str, str]:
    return {alias: option.name for option in catalogue.options().values() for alias in option.aliases}


@cache
def _spellings(version: Version | None) -> dict[str, tuple[Option, bool]]:
    """Return every long spelling that C(version) may know, with its option and what it sets a switch to."""
    here = [
        option for option in catalogue.options().values() if version is None or option.span.has(version) is not False
    ]
    found: dict[str, tuple[Option, bool]] = {}
    for option in here:
        for alias in option.aliases:
            if not alias.startswith("-"):
                found[alias] = (option, True)
        if option.kind != "switch":
            continue
        found[f"no-{option.name}"] = (option, False)
        verb, _dash, rest = option.name.partition("-")
        other = {"enable": f"disable-{rest}", "disable": f"enable-{rest}"}.get(verb)
        if other and (version is None or version >= _PAIRS_SINCE):
            found[other] = (option, False)
    return {**found, **{option.name: (option, True) for option in here}}


def _find(written: str, version: Version | None) -> tuple[Option, bool]:
    """Find the option that a long spelling without dashes means in C(version); raises C(_Refused)."""
    known = _spellings(version)
    if written in known:
        return known[written]
    starting = sorted(spelling for spelling in known if spelling.startswith(written)) if len(written) > 1 else []
    if len({known[spelling] for spelling in starting}) == 1:
        return known[starting[0]]
    if starting:
        could = ", ".join(f"--{spelling}" for spelling in starting)
        raise _Refused(
            Problem(
                "ambiguous",
                f"--{written}",
                f"could be {could}",
                "Write the option in full.",
                f"ambiguous option: --{written} could match {could}",
            )
        )
    raise _Refused(_unknown(written, version))


def _unknown(written: str, version: Version | None) -> Problem:
    error = f"unrecognized arguments: --{written}"
    other = long_name(written[3:] if written.startswith("no-") else written)
    option = catalogue.options().get(other)
    if option is not None and version is not None:
        return Problem(
            "unknown",
            f"--{other}",
            f"is not in vLLM {version}: {option.span.text()}",
            _REPLACED.get(other, "Take it out, or use an image whose vLLM has it."),
            error,
        )
    off = f"no-enable-{written[8:]}" if written.startswith("disable-") else ""
    near = off if off in _spellings(version) else catalogue.nearest(written, _spellings(version))
    where = f"vLLM {version}" if version else "any vLLM known"
    return Problem(
        "unknown",
        f"--{written}",
        f"is no option of {where}",
        _REPLACED.get(written) or (f"Did you mean --{near}?" if near else "Take it out."),
        error,
    )


# What to write instead of options that are gone or never were.
_REPLACED = {
    "swap-space": "Take it out: vLLM's V1 engine never swaps the KV cache.",
    "disable-log-requests": "Take it out: requests are only logged with --enable-log-requests.",
    "disable-frontend-multiprocessing": "Take it out.",
    "task": "Use --runner (generate, pooling) and --convert.",
    "cuda-graph-sizes": "Use --cudagraph-capture-sizes.",
    "max-seq-len-to-capture": "Use --max-cudagraph-capture-size, which counts tokens of a batch.",
    "rope-scaling": "Use --hf-overrides with rope_scaling (rope_parameters for transformers 5) in it.",
    "rope-theta": "Use --hf-overrides with rope_theta (rope_parameters for transformers 5) in it.",
    "disable-mm-preprocessor-cache": "Use --mm-processor-cache-gb 0.",
    "guided-decoding-backend": "Use --structured-outputs-config.backend.",
    "speculative-disable-by-batch-size": "Take it out; see rule SPK109.",
}


# --- values -------------------------------------------------------------------------------------------------------


def _word(word: Any) -> str:
    return word if isinstance(word, str) else str(word)


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _bad(option: Option, value: Any, kind: str) -> _Refused:
    return _Refused(
        Problem(
            "bad_value",
            f"--{option.name}",
            f"is {value!r}, which is no {kind}",
            f"Give --{option.name} a {kind}.",
            f"argument --{option.name}: invalid value: {_text(value)!r}",
        )
    )


def _scalar(option: Option, value: Any, version: Version | None) -> Any:
    """Turn one value into its native form; raises C(_Refused)."""
    if option.kind == "json":
        return _json(option, value)
    if isinstance(value, (dict, list)):
        raise _bad(option, value, {"text": "text"}.get(option.kind, "number"))
    text = _text(value).strip()
    try:
        if option.kind == "size-auto" and text.lower() in ("auto", "-1"):
            return "auto"
        if option.kind in ("size", "size-auto"):
            return human_int(text)
        if option.kind == "int":
            return int(text)
        if option.kind == "float":
            number = float(text)
            return int(number) if re.fullmatch(r"-?\d+", text) else number
    except ValueError:
        raise _bad(option, value, "whole number" if option.kind != "float" else "number") from None
    # Choices are enforced only for the version that they were read from; others are judged by the rules.
    if option.choices and version == catalogue.version(catalogue_data.READ_FROM[-1]):
        plain = text.lower().replace("-", "_") if option.name.endswith("-backend") else text
        if plain not in option.choices and text not in option.choices:
            near = catalogue.nearest(plain, option.choices)
            raise _Refused(
                Problem(
                    "bad_choice",
                    f"--{option.name}",
                    f"is {text!r}, which is none of {', '.join(option.choices)}",
                    f"Did you mean {near}?" if near else "Use one of these.",
                    f"argument --{option.name}: invalid choice: {text!r} (choose from {', '.join(option.choices)})",
                    text,
                )
            )
    return text


def _json(option: Option, value: Any) -> Any:
    if not isinstance(value, str):
        return copy.deepcopy(value)
    try:
        return json.loads(value)
    except ValueError:
        if value[:1] in "{[":
            raise _Refused(
                Problem(
                    "bad_value",
                    f"--{option.name}",
                    f"is {value!r}, which is no JSON",
                    "Quote it as one JSON text.",
                    f"argument --{option.name}: Value {value} cannot be converted to JSON",
                )
            ) from None
        return value  # some take a plain word as well, for example --hf-overrides module:function


def _values(option: Option, value: Any, version: Version | None) -> Any:
    if option.values in ("+", "*"):
        given = value if isinstance(value, (list, tuple)) else [value]
        return [_scalar(option, item, version) for item in given]
    return _scalar(option, value, version)


# --- mappings -----------------------------------------------------------------------------------------------------


def _parse_mapping(given: Mapping[str, Any], version: Version | None) -> Parsed:
    parsed = Parsed()
    for name, value in given.items():
        written = _dashes(str(name))
        head, _dot, path = written.partition(".")
        try:
            option, sets = _find_named(head, version)
            if value is None:
                parsed.args.pop(option.name, None)
            elif path:
                _merge_path(parsed.args, option, path.split("."), value)
            else:
                native = _mapping_value(option, sets, value, version)
                parsed.args.pop(option.name, None)
                if native is not None:
                    parsed.args[option.name] = native
        except _Refused as refused:
            if value is not None:
                parsed.problems.append(refused.problem)
                if refused.problem.kind == "unknown":
                    parsed.args[written] = value
    return _finish(parsed)


def _find_named(written: str, version: Version | None) -> tuple[Option, bool]:
    """Like C(_find), and the short forms, which a mapping may spell without the dash."""
    alias = _aliases().get(f"-{written}")
    return _find(alias or written, version)


def _mapping_value(option: Option, sets: bool, value: Any, version: Version | None) -> Any:
    if option.takes_value:
        if value is True and option.values == "?":
            return True
        if isinstance(value, bool):
            raise _Refused(_needs_value(option))
        return _values(option, value, version)
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no"):
        value = value.strip().lower() in ("true", "yes")  # what a Jinja expression leaves of a boolean
    if not isinstance(value, bool):
        raise _Refused(_switch_value(option, value))
    wanted = value if sets else not value
    return None if option.kind == "flag" and not wanted else wanted  # a plain flag is off unless it is there


def _needs_value(option: Option) -> Problem:
    return Problem(
        "no_value",
        f"--{option.name}",
        "needs a value",
        f"Give --{option.name} a value.",
        f"argument --{option.name}: expected {'at least ' if option.values == '+' else ''}one argument",
    )


def _switch_value(option: Option, value: Any) -> Problem:
    off = str(value).strip().lower() in ("false", "0", "no", "off")
    instead = f"--no-{option.name}" if off else f"--{option.name}"
    return Problem(
        "value_to_switch",
        f"--{option.name}",
        f"takes no value, but was given {_text(value)!r}",
        f"Write {instead} alone ({option.name}: {'false' if off else 'true'}).",
        f"unrecognized arguments: {_text(value)}",
        value,
    )


def _merge_path(args: dict[str, Any], option: Option, path: list[str], value: Any) -> None:
    """Put C(--option.a.b value) into the JSON of C(option)."""
    if option.kind != "json":
        raise _Refused(
            Problem(
                "unknown",
                f"--{option.name}.{'.'.join(path)}",
                f"is no option: --{option.name} takes no JSON",
                "Take it out.",
                f"unrecognized arguments: --{option.name}.{'.'.join(path)}",
            )
        )
    if path[-1].endswith("+"):
        path = [*path[:-1], path[-1][:-1]]
        value = value if isinstance(value, list) else str(value).split(",")
    elif isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            with contextlib.suppress(ValueError):  # a plain word stays one
                value = human_int(value)
    where = args.setdefault(option.name, {})
    for key in path[:-1]:
        where = where.setdefault(key, {}) if isinstance(where, dict) else where
    if not isinstance(where, dict):
        raise _bad(option, where, "JSON object that a key could be added to")
    known = where.get(path[-1])
    where[path[-1]] = known + value if isinstance(known, list) and isinstance(value, list) else value


# --- argv ---------------------------------------------------------------------------------------------------------


def _parse_argv(argv: list[str], version: Version | None) -> Parsed:
    parsed = Parsed()
    words = argv
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    elif words[:3] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]:
        words = words[3:]
    if words[:2] == ["vllm", "serve"]:
        parsed.problems.append(
            Problem(
                "doubled",
                "vllm serve",
                "stands there twice",
                "Write vllm serve once.",
                f"unrecognized arguments: serve {' '.join(words[2:3])}".rstrip(),
            )
        )
        words = words[2:]
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            continue
        if not _is_option(word):
            if parsed.model is None:
                parsed.model = word
            else:
                parsed.problems.append(
                    Problem(
                        "extra_word",
                        word,
                        "stands there without an option",
                        "Take it out.",
                        f"unrecognized arguments: {word}",
                    )
                )
            continue
        position = _take_option(parsed, words, word, position, version)
    return _finish(parsed)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+(\.\d+)?|-\.\d+", word)


def _take_option(parsed: Parsed, words: list[str], word: str, position: int, version: Version | None) -> int:
    """Read the option C(word) and its values; returns where to go on."""
    spelled, equals, inline = word.partition("=")
    given = [inline] if equals else []

    def following(limit: int | None) -> list[str]:
        end = position
        while end < len(words) and not _is_option(words[end]) and (limit is None or end - position < limit):
            end += 1
        return words[position:end]

    try:
        if not word.startswith("--"):
            spelled, given, position = _short_form(word, given, words, position, version)
        head, _dot, path = _dashes(spelled).partition(".")
        option, sets = _find(head, version)
        if not option.takes_value:
            if path or given:
                raise _Refused(_switch_value(option, given[0] if given else path))
            parsed.args[option.name] = sets
            stray = following(1)
            # What follows a switch is the model if none was given yet, unless it can only have been meant as a value.
            if stray and (parsed.model is not None or stray[0].lower() in ("true", "false")):
                parsed.problems.append(_switch_value(option, stray[0]))
                position += 1
            return position
        if not given:
            given = following(None if option.values == "+" else 1)
            position += len(given)
        if not given:
            if option.values == "?":
                parsed.args[option.name] = True
                return position
            raise _Refused(_needs_value(option))
        if path:
            _merge_path(parsed.args, option, path.split("."), given[0])
        elif option.values == "*":
            parsed.args.setdefault(option.name, []).append(_scalar(option, given[0], version))
        elif option.values == "+":
            parsed.args[option.name] = [_scalar(option, item, version) for item in given]
        else:
            parsed.args[option.name] = _scalar(option, given[0], version)
    except _Refused as refused:
        parsed.problems.append(refused.problem)
        if refused.problem.kind in ("unknown", "ambiguous"):
            if not equals:
                given = following(None if parsed.model is not None else 1)
                position += len(given)
            if refused.problem.kind == "unknown" and spelled.startswith("--"):
                parsed.args[_dashes(spelled)] = given[0] if len(given) == 1 else given or True
    return position


def _short_form(
    word: str, given: list[str], words: list[str], position: int, version: Version | None
) -> tuple[str, list[str], int]:
    """Resolve C(-tp), C(-O3) and C(-cc.mode); returns the long spelling, the values found so far and the position."""
    levels = version is None or version >= _OPTIMIZATION_LEVEL_SINCE
    if word.startswith("-O") and "." not in word:
        target = "optimization-level" if levels else "compilation-config"
        level = word[2:].lstrip("=")
        if not level and position < len(words):
            level, position = words[position], position + 1
        return target, [level] if level else [], position
    spelled = word.partition("=")[0]
    head, dot, path = spelled.partition(".")
    if head == "-O":
        return f"compilation-config{dot}{path}", given, position
    name = _aliases().get(head)
    if name is None:
        near = catalogue.nearest(head, _aliases())
        raise _Refused(
            Problem(
                "unknown",
                head,
                "is no option of vllm serve",
                f"Did you mean {near}?" if near else "Take it out.",
                f"unrecognized arguments: {head}",
            )
        )
    return f"{name}{dot}{path}", given, position


def _finish(parsed: Parsed) -> Parsed:
    """C(--model) still names the model, with a warning from vLLM."""
    if "model" in parsed.args:
        model = parsed.args.pop("model")
        parsed.problems.append(
            Problem("model_option", "--model", "names the model as an option", f"Put {model} right behind vllm serve.")
        )
        parsed.model = str(model)
    return parsed
