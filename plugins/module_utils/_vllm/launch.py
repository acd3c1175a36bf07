# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of C(vllm serve), read as vLLM reads it and written back as plain argv.

C(parse) takes what a person wrote, a mapping or an argv list, and returns one mapping of long names to native values
together with everything that vLLM's parser would refuse. C(render) turns such a mapping into the exact argv.
The parser behaves like C(FlexibleArgumentParser) (vllm/utils/argparse_utils.py) on top of argparse; differences
between versions come from M(catalogue). Two spellings are refused here although vLLM accepts them, since they are always mistakes:
C(--option.key) of an option that takes a plain text, and a C(--) between words.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Optional

from .._common import plain_data, validation
from .._common.foreign_text import parse_json
from . import catalogue, versions
from .catalogue import Option
from .versions import Version

SECRET_VARIABLES = {"hf-token": "HF_TOKEN", "api-key": "VLLM_API_KEY"}
"""Options that hold secrets -> variables of the environment that replace them."""
SERVICE_KEYS = {
    "host": "host",
    "port": "port",
    "served-model-name": "served_model_name",
    "model": "model",
    "name": "name",
}
"""Options that a key of the service sets instead of its C(args), with that key."""

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Problem:
    """An error in a launch: an option that vLLM's parser refuses, or a key of the service.

    kind: unknown, ambiguous, no_value, value_to_switch, bad_value, bad_choice, bad_key, doubled, model_option, extra_word,
    service_key. option: the written spelling. detail: the error. fix: the correction.
    vllm_error: vLLM's own text. value: the written value, if the value is wrong.
    """

    kind: str
    option: str
    detail: str = ""
    fix: str = ""
    vllm_error: str = ""
    value: Any = None


@dataclass
class Parsed:
    """A launch as vLLM understands it.

    model: the positional argument, if one was given. args: long names without leading dashes, in native values
    (C(true) flag set, C(false) its C(--no-) form, numbers, text, lists, mappings for JSON). An option that is not
    known stays unchanged: a fork may have it, and no argument is silently dropped.
    problems: the errors.
    """

    model: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _Refused(Exception):
    """An option that vLLM refuses. native: a value that the parser does not offer, kept so that rules can judge it."""

    def __init__(self, *problem: Any, native: Any = None) -> None:
        super().__init__()
        self.problem, self.native = Problem(*problem), native


def long_name(name: str) -> str:
    """Return an option's long name without leading dashes: C(--gpu_memory_util) and C(gpu-memory-utilization) meet.

    Short forms (C(tp), C(-tp)), aliases and unique prefixes become the long name; other names only get
    dashes, so that later checks can report them.
    """
    dashed = _use_dashes(name)
    options = catalogue.options()
    if dashed in options:
        return dashed
    short = {alias: option.name for option in options.values() for alias in option.aliases}
    for spelled in (dashed, f"-{dashed}"):
        if spelled in short:
            return short[spelled]
    starting = [option for option in options if option.startswith(dashed)] if len(dashed) > 1 else []
    return starting[0] if len(starting) == 1 else dashed


def parse(launch: Mapping[str, Any] | Sequence[str], version: str | None = None) -> Parsed:
    """Read a launch.

    :param launch: a mapping of options (C(null) takes an option out) or the words that a person would type, with
        or without C(vllm serve) in front
    :param version: the vLLM that will read it; options that it does not have become problems
    :raises TypeError: for anything else
    :raises ValueError: for an invalid version
    """
    release = versions.version(version) if version else None
    if isinstance(launch, Mapping):
        return _parse_mapping(launch, release)
    if isinstance(launch, (str, bytes)) or not all(isinstance(word, (str, int, float)) for word in launch):
        raise TypeError("an argv is a list of texts")
    return _Argv(list(map(str, launch)), release).parse()


def render(args: Mapping[str, Any]) -> list[str]:
    """Return the argv of normalised C(args), in alphabetical order, the same for the same input.

    C(true) becomes C(--flag), C(false) C(--no-flag), C(null) nothing, a list its values one after another, a mapping
    compact JSON with sorted keys.
    """
    argv: list[str] = []
    options = catalogue.options()
    for name in sorted(args):
        value = args[name]
        option = options.get(name)
        if isinstance(value, bool):
            argv.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, (list, tuple)) and option is not None and option.values == "*":
            for item in value:
                argv += [f"--{name}", _to_text(item)]
        elif isinstance(value, (list, tuple)) and (option is None or option.kind != "json"):
            argv += [f"--{name}", *map(_to_text, value)]
        elif value is not None:
            argv += [f"--{name}", _to_text(value)]
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


def _use_dashes(name: str) -> str:
    head, dot, tail = name.strip().lstrip("-").partition(".")
    return head.replace("_", "-") + dot + tail


# The meaning of a spelling: the option, and the value that it sets a switch to. C(None) is --help.
_Meaning = Optional[tuple[Option, bool]]


@cache
def _spellings(version: Version | None) -> dict[str, _Meaning]:
    """Return every spelling with its dashes that C(version) may know."""
    pairs = catalogue.trait("enable-disable-pairs", version)
    negative: dict[str, _Meaning] = {}
    positive: dict[str, _Meaning] = {"-h": None, "--help": None}
    for option in catalogue.options(version).values():
        for name in (option.name, *option.aliases):
            positive[name if name.startswith("-") else f"--{name}"] = (option, True)
            if option.kind != "switch" or name.startswith("-"):
                continue
            negative[f"--no-{name}"] = (option, False)
            verb, _dash, noun = name.partition("-")
            if pairs and verb in ("enable", "disable"):
                negative[f"--{'disable' if verb == 'enable' else 'enable'}-{noun}"] = (option, False)
    return {**negative, **positive}


def _candidates(word: str, version: Version | None) -> list[tuple[str, _Meaning, str | None]]:
    """Return the possible meanings of an option word, as in C(argparse): spelling, meaning and the value inside the word."""
    spellings = _spellings(version)
    if word in spellings:
        return [(word, spellings[word], None)]
    head, equals, inline = word.partition("=")
    value = inline if equals else None
    if equals and head in spellings:
        return [(head, spellings[head], value)]
    if head.startswith("--"):
        return [(spelling, spellings[spelling], value) for spelling in spellings if spelling.startswith(head)]
    candidates: list[tuple[str, _Meaning, str | None]] = []
    for spelling in spellings:
        if spelling == word[:2]:
            candidates.append((spelling, spellings[spelling], word[2:]))  # -n2
        elif spelling.startswith(word):
            candidates.append((spelling, spellings[spelling], None))
    return candidates


def _resolve(word: str, version: Version | None) -> tuple[Option, bool, str | None]:
    """Return the option, the value that it sets a switch to, and the value inside the word; raises C(_Refused)."""
    candidates = _candidates(word, version)
    head = word.partition("=")[0]
    if len(candidates) > 1:
        could = ", ".join(sorted(spelling for spelling, _meaning, _value in candidates))
        raise _Refused(
            "ambiguous",
            head,
            f"could be {could}",
            "Write the option in full.",
            f"ambiguous option: {head} could match {could}",
        )
    if not candidates:
        raise _Refused(*_describe_unknown(head, version))
    _spelling, meaning, value = candidates[0]
    if meaning is None:
        raise _Refused("unknown", head, "only prints vLLM's help and starts nothing", "Remove it.")
    return (*meaning, value)


def _describe_unknown(word: str, version: Version | None) -> tuple[str, str, str, str, str]:
    """Return the problem of an unknown spelling, with the nearest known one or the versions that have it."""
    error = f"unrecognized arguments: {word}"
    written = word.lstrip("-")
    other = long_name(written[3:] if written.startswith("no-") else written)
    option = catalogue.options().get(other)
    if option is not None and version is not None and option.span.has(version) is False:
        fix = _REPLACED.get(other, "Take it out, or use an image whose vLLM has it.")
        return "unknown", f"--{other}", f"is not in vLLM {version}: {option.span.text()}", fix, error
    where = f"vLLM {version}" if version else "any vLLM known"
    spellings = _spellings(version)
    if option is not None:
        # The option exists, but not in this spelling.
        off = f"--no-{other}"
        spelled = off if off in spellings and written.startswith(("no-", "disable-")) else f"--{other}"
        return "unknown", word, f"is no option of {where}", f"Write {spelled}.", error
    off = f"--no-enable-{written[8:]}" if written.startswith("disable-") else ""
    near = off if off in spellings else validation.nearest_word(word, spellings)
    fix = _REPLACED.get(written) or (f"Did you mean {near}?" if near else "Remove it.")
    return "unknown", word, f"is no option of {where}", fix, error


# Replacements of options that were removed or never existed.
_REPLACED = {
    "swap-space": "Take it out: vLLM's V1 engine never swaps the KV cache.",
    "disable-log-requests": "Take it out: requests are only logged with --enable-log-requests.",
    "disable-frontend-multiprocessing": "Remove it.",
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


def _to_text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        with contextlib.suppress(TypeError):  # keys of several types, as YAML allows, have no order
            return json.dumps(value, sort_keys=True, separators=(",", ":"))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _refuse_value(option: Option, value: Any, kind: str) -> _Refused:
    point = ", with a point instead of the comma" if re.fullmatch(r"\d+,\d+", str(value)) else ""
    return _Refused(
        "bad_value",
        f"--{option.name}",
        f"is {value!r}, which is no {kind}",
        f"Give --{option.name} a {kind}{point}.",
        f"argument --{option.name}: invalid value: {_to_text(value)!r}",
        value,
    )


def _read_scalar(option: Option, value: Any, version: Version | None) -> Any:
    """Return one value in its native form, C(None) for an empty optional value; raises C(_Refused)."""
    if option.optional and isinstance(value, str) and value in ("", "None"):
        return None
    if option.kind == "json":
        return _read_json(option, value, version)
    if isinstance(value, (dict, list)):
        raise _refuse_value(option, value, {"text": "text"}.get(option.kind, "number"))
    text, native = _to_text(value).strip(), _to_native(option, value)
    if option.choices and version in catalogue.versions() and _to_text(native) not in option.choices:
        choices = ", ".join(option.choices)
        span = catalogue.choice_span(option.name, _to_text(native))
        near = validation.nearest_word(text.lower(), option.choices)
        elsewhere = f"Use an image whose vLLM has it ({span.text()}), or another value." if span else ""
        raise _Refused(
            "bad_choice",
            f"--{option.name}",
            f"is {text!r}, which in vLLM {version} is not one of {choices}",
            elsewhere or (f"Did you mean {near}?" if near else "Use one of these."),
            f"argument --{option.name}: invalid choice: {text!r} (choose from {choices})",
            text,
            native=native,
        )
    return native


def _to_native(option: Option, value: Any) -> Any:
    """Return a value that is no collection as a number, or as text in vLLM's spelling."""
    text = _to_text(value).strip()
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
    except (OverflowError, ValueError):  # digits without end are an infinite number
        raise _refuse_value(option, value, "whole number" if option.kind != "float" else "number") from None
    return text.lower().replace("-", "_") if option.lowered else text


def _read_json(option: Option, value: Any, version: Version | None) -> Any:
    """Read a JSON option; some take a plain word as well, for example C(--hf-overrides module:function)."""
    if isinstance(value, str):
        if option.plain_text and not re.fullmatch(r"(?s)\s*\{.*\}\s*", value):
            return value
        sizes = option.read_into_class and catalogue.trait("json-size", version)
        try:
            native = parse_json(_sizes_in_json(value) if sizes else value, "the value", finite=False, exact=True)
        except ValueError as error:
            raise _Refused(
                "bad_value",
                f"--{option.name}",
                f"is {plain_data.shown(value)}, which is not JSON: {error.__cause__ or error}",
                "Quote it as one JSON text.",
                f"argument --{option.name}: Value {value} cannot be converted to JSON",
                value,
            ) from None
    else:
        native = copy.deepcopy(value)
    if not isinstance(native, (dict, list)) and not option.level and not option.plain_text:
        raise _refuse_value(option, value, "JSON object")
    return native


def _sizes_in_json(text: str) -> str:
    """Write C(64k) outside of texts as the number that it stands for."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for number in range(0, len(parts), 2):
        parts[number] = re.sub(
            r"\b\d+(?:\.\d+)?[kmgtKMGT]\b", lambda match: str(human_int(match.group())), parts[number]
        )
    return "".join(parts)


def _set_option(args: dict[str, Any], option: Option, value: Any) -> None:
    """Set an option; a null value removes it, unless its default is another value."""
    args.pop(option.name, None)
    if value is not None:
        args[option.name] = value
    elif option.default != "null":
        args[option.name] = "None"


# --- mappings -----------------------------------------------------------------------------------------------------


def _parse_mapping(launch: Mapping[str, Any], version: Version | None) -> Parsed:
    parsed = Parsed()
    for name, value in launch.items():
        written = _use_dashes(str(name))
        if written == "O" and isinstance(value, (int, str)):  # -O 3 means what it means on a command line
            old = catalogue.trait("short-level=compilation-config", version)
            written = "compilation-config.level" if old else "optimization-level"
        head, _dot, path = written.partition(".")
        try:
            # A long spelling, or a short form with or without its dash.
            is_short = f"--{head}" not in _spellings(version) and f"-{head}" in _spellings(version)
            option, sets, _value = _resolve(f"-{head}" if is_short else f"--{head}", version)
            if value is None:
                parsed.args.pop(option.name, None)
            elif path:
                _merge_path(parsed.args, option, path.split("."), value, version)
            else:
                native = _mapping_value(option, sets, value, version)
                if option.takes_value:
                    _set_option(parsed.args, option, native)
                else:
                    parsed.args.pop(option.name, None)
                    parsed.args.update({} if native is None else {option.name: native})
        except _Refused as refused:
            if value is not None:
                _keep_problem(parsed, refused, written, value)
    return _finish_parsing(parsed, version)


def _keep_problem(parsed: Parsed, refused: _Refused, written: str, value: Any) -> None:
    """Store a problem, and the argument if rules can still judge it."""
    parsed.problems.append(refused.problem)
    if refused.native is not None:
        parsed.args[refused.problem.option.lstrip("-")] = refused.native
    elif refused.problem.kind == "unknown":
        parsed.args[written] = value


def _mapping_value(option: Option, sets: bool, value: Any, version: Version | None) -> Any:
    if option.takes_value:
        if value is True and option.values == "?":
            return True
        if isinstance(value, bool):
            raise _needs_value(option)
        if option.values in ("+", "*"):
            items = value if isinstance(value, (list, tuple)) else [value]
            return [_read_scalar(option, item, version) for item in items]
        return _read_scalar(option, value, version)
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no"):
        value = value.strip().lower() in ("true", "yes")  # what a Jinja expression leaves of a boolean
    if not isinstance(value, bool):
        raise _switch_value(option, value)
    state = value if sets else not value
    return None if option.kind == "flag" and not state else state  # an absent flag is off


def _needs_value(option: Option) -> _Refused:
    return _Refused(
        "no_value",
        f"--{option.name}",
        "needs a value",
        f"Give --{option.name} a value.",
        f"argument --{option.name}: expected {'at least ' if option.values == '+' else ''}one argument",
    )


def _switch_value(option: Option, value: Any, inline: bool = False) -> _Refused:
    off = str(value).strip().lower() in ("false", "0", "no", "off")
    instead = f"--no-{option.name}" if off and option.kind == "switch" else f"--{option.name}"
    return _Refused(
        "value_to_switch",
        f"--{option.name}",
        f"takes no value, but was given {_to_text(value)!r}",
        f"Write {instead} alone ({option.name}: {'false' if off else 'true'}).",
        f"argument --{option.name}: ignored explicit argument {_to_text(value)!r}"
        if inline
        else f"unrecognized arguments: {_to_text(value)}",
        value,
    )


def _merge_path(args: dict[str, Any], option: Option, path: list[str], value: Any, version: Version | None) -> None:
    """Put C(--option.a.b value) into the JSON of C(option)."""
    if option.kind != "json":
        written = f"--{option.name}.{'.'.join(path)}"
        detail = f"is no option: --{option.name} takes no JSON"
        raise _Refused("unknown", written, detail, "Remove it.", f"unrecognized arguments: {written}")
    if path[-1].endswith("+"):
        path = [*path[:-1], path[-1][:-1]]
        value = value if isinstance(value, list) else str(value).split(",")
    elif isinstance(value, str):
        try:
            value = parse_json(value, "the value", finite=False, exact=True)
        except ValueError:
            if catalogue.trait("dotted-size", version):
                with contextlib.suppress(ValueError):  # a plain word stays one
                    value = human_int(value)
    where = args.setdefault(option.name, {})
    for key in path[:-1]:
        where = where.setdefault(key, {}) if isinstance(where, dict) else where
    if not isinstance(where, dict):
        raise _refuse_value(option, where, "JSON object that a key could be added to")
    present = where.get(path[-1])
    where[path[-1]] = present + value if isinstance(present, list) and isinstance(value, list) else value


# --- argv ---------------------------------------------------------------------------------------------------------


class _Argv:
    """The words of a command line while they are read; position: index of the next word."""

    def __init__(self, words: list[str], version: Version | None) -> None:
        self.words, self.version = words, version
        self.parsed = Parsed()
        self.position = 0
        self.dotted: dict[str, dict[str, Any]] = {}  # spelling of an option with keys -> option and its JSON

    def parse(self) -> Parsed:
        parsed, version = self.parsed, self.version
        self.words = words = self._arguments()
        _check_served_name(parsed, words, version)
        while self.position < len(words):
            word = _normalise(words[self.position])
            self.position += 1
            head, dot, path = word.partition("=")[0].partition(".")
            level = self._optimization_level()
            if level and catalogue.trait("short-level=compilation-config", version):
                if not level.isdecimal():
                    parsed.problems.append(
                        _refuse_value(catalogue.options()["compilation-config"], level, "level").problem
                    )
                self._add_key("-O", "level", level)
            elif level:
                parsed.args["optimization-level"] = level
            elif word.startswith("-") and dot:
                # vLLM merges all keys of one option at the end.
                self._add_key(head, path, word.partition("=")[2] if "=" in word else next(iter(self._take(1)), None))
            elif _is_option(word, version):
                self._take_option(word)
            elif parsed.model is None and word != "--":
                parsed.model = words[self.position - 1]
            else:
                parsed.problems.append(_extra_word(words[self.position - 1]))
        self._set_dotted()
        return _finish_parsing(parsed, version, words)

    def _arguments(self) -> list[str]:
        """Return the words behind C(vllm serve)."""
        words = self.words
        if words[:2] == ["vllm", "serve"]:
            words = words[2:]
        elif words[:1] in (["python"], ["python3"]) and words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
            words = words[3:]
        if words[:2] == ["vllm", "serve"]:
            self.parsed.problems.append(
                Problem(
                    "doubled",
                    "vllm serve",
                    "stands there twice",
                    "Write vllm serve once.",
                    f"unrecognized arguments: serve {' '.join(words[2:3])}".rstrip(),
                )
            )
            words = words[2:]
        return words

    def _take(self, count: int) -> list[str]:
        taken = self.words[self.position : self.position + count]
        self.position += len(taken)
        return taken

    def _following_values(self, limit: int | None) -> list[str]:
        words = self.words[self.position :][:limit]
        return list(itertools.takewhile(lambda word: not _is_option(_normalise(word), self.version), words))

    def _take_option(self, word: str) -> None:
        try:
            option, sets, inline = _resolve(word, self.version)
            if option.takes_value:
                values = [inline] if inline is not None else self._take_values(None if option.values == "+" else 1)
                self._store_values(option, values)
            else:
                self._take_switch(option, sets, inline)
        except _Refused as refused:
            spelled, equals, value = word.partition("=")
            values = [value]
            if refused.problem.kind in ("unknown", "ambiguous") and not equals:
                values = self._take_values(None if self.parsed.model is not None else 1)
            named = _use_dashes(spelled) if spelled.startswith("--") else spelled
            _keep_problem(self.parsed, refused, named, values[0] if len(values) == 1 else values or True)

    def _take_values(self, limit: int | None) -> list[str]:
        return self._take(len(self._following_values(limit)))

    def _store_values(self, option: Option, values: list[str]) -> None:
        """Set an option to its values; raises C(_Refused)."""
        args = self.parsed.args
        natives = [_read_scalar(option, value, self.version) for value in values]
        if not values:
            if option.values != "?":
                raise _needs_value(option)
            args[option.name] = True
        elif option.values == "*":
            args.setdefault(option.name, []).append(natives[0])
        elif option.values == "+":
            args[option.name] = natives
        else:
            _set_option(args, option, natives[0])

    def _take_switch(self, option: Option, sets: bool, inline: str | None) -> None:
        if inline is not None:
            raise _switch_value(option, inline, inline=True)
        self.parsed.args[option.name] = sets
        stray = self._following_values(1)
        # The word after a switch is the model if there is no model yet, unless it can only be a value.
        if stray and (self.parsed.model is not None or stray[0].lower() in ("true", "false")):
            self.parsed.problems.append(_switch_value(option, stray[0]).problem)
            self.position += 1

    def _optimization_level(self) -> str | None:
        """Return the level in C(-O3), C(-O=3) and C(-O 3), C(None) for other words."""
        word = self.words[self.position - 1]
        if not word.startswith("-O") or word.startswith("-O."):
            return None
        if word != "-O":
            return word[3:] if word[2] == "=" else word[2:]
        following = self.words[self.position : self.position + 1]
        return self._take(1)[0] if following in (["0"], ["1"], ["2"], ["3"]) else None

    def _add_key(self, head: str, path: str, value: str | None) -> None:
        """Store the value of C(--option.key)."""
        # C(-O.key) is the compilation configuration in releases that know it.
        short = head == "-O" and catalogue.trait("short-dotted", self.version)
        try:
            option, _sets, _inline = _resolve("--compilation-config" if short else head, self.version)
            if value is None:
                raise _needs_value(option)
            _merge_path(self.dotted.setdefault(head, {}), option, path.split("."), value, self.version)
        except _Refused as refused:
            self.parsed.problems.append(refused.problem)
            if refused.problem.kind == "unknown" and head.startswith("--"):
                self.parsed.args[_use_dashes(f"{head}.{path}")] = value

    def _set_dotted(self) -> None:
        """Set the options with dotted keys; vLLM ignores their other spellings."""
        for name, value in itertools.chain.from_iterable(options.items() for options in self.dotted.values()):
            if name in self.parsed.args:
                self.parsed.problems.append(
                    Problem(
                        "bad_value",
                        f"--{name}",
                        "is given more than once, as keys and in another way; vLLM keeps only the keys of the last spelling",
                        f"Give --{name} as one JSON text.",
                        value=value,
                    )
                )
            self.parsed.args[name] = value


def _normalise(word: str) -> str:
    """Write an option's name with dashes, as the parser does before it looks at anything else."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, path = name.partition(".")
    return head.replace("_", "-") + dot + path + equals + value


def _is_option(word: str, version: Version | None) -> bool:
    """Tell an option from a value, as C(argparse) does."""
    if not word.startswith("-") or word in ("-", "--"):
        return False
    if re.fullmatch(r"-\d+|-\d*\.\d+", word) or " " in word:
        return bool(_candidates(word, version))
    return True


def _extra_word(word: str) -> Problem:
    return Problem(
        "extra_word", word, "stands there without an option", "Remove it.", f"unrecognized arguments: {word}"
    )


def _check_served_name(parsed: Parsed, words: list[str], version: Version | None) -> None:
    """Report --served-model-name in a launch that does not start with the model: the option takes every word after it."""
    plain = [_normalise(word).partition("=")[0] for word in words]
    if not plain or not plain[0].startswith("-") or "--config" in words or "--model" in plain:
        return
    if "--served-model-name" in plain and not catalogue.trait("served-name-anywhere", version):
        parsed.problems.append(
            Problem(
                "bad_value",
                "--served-model-name",
                "stands in a launch that does not begin with the model",
                "Put the model right behind vllm serve.",
                "`model` should be provided as the first positional argument when using `vllm serve`.",
            )
        )


# --- the end ------------------------------------------------------------------------------------------------------


def _finish_parsing(parsed: Parsed, version: Version | None, words: Sequence[str] = ()) -> Parsed:
    """Move the model out of the options, and check the keys of options that vLLM parses into a class."""
    if "model" in parsed.args:
        model = parsed.args.pop("model")
        accepted = catalogue.trait("model-option", version) or "--model" not in words
        refused = "" if accepted else "With `vllm serve`, you should provide the model as a positional argument"
        if parsed.model is not None and words:
            parsed.problems.append(_extra_word(parsed.model))
        parsed.problems.append(
            Problem(
                "model_option",
                "--model",
                "names the model as an option",
                f"Put {model} right behind vllm serve.",
                refused,
            )
        )
        parsed.model = str(model)
    if version in catalogue.versions():
        options = catalogue.options(version)
        for name, value in parsed.args.items():
            option = options.get(name)
            if option is not None and option.read_into_class and isinstance(value, dict):
                parsed.problems.extend(_bad_keys(option, value, version))
    return parsed


def _bad_keys(option: Option, value: Mapping[str, Any], version: Version | None) -> list[Problem]:
    allowed = catalogue.json_keys(option.name, version)
    problems = []
    for key in value:
        if key in allowed or "*" in allowed or not allowed:
            continue
        near = validation.nearest_word(key, allowed)
        problems.append(
            Problem(
                "bad_key",
                f"--{option.name}",
                f"has the key {key!r}, which vLLM {version} does not know",
                f"Did you mean {near}?" if near else f"Use one of {', '.join(sorted(allowed))}.",
                f"argument --{option.name}: Unexpected keyword argument {key!r}",
                key,
            )
        )
    return problems
