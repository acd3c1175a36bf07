# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the sources of one vLLM version what it accepts: import its own parser and tables, print them as JSON.

Run by generate_catalogue.py, one process a version: ``catalogue_probe.py SOURCES [--real] [--cases FILE]``.

vLLM's own code runs unchanged, so the parser is the real one. Other packages (torch and hundreds more) are stand-ins
(catalogue_stand_ins.py). With ``--real`` the real packages are imported; tests/oracle proves with it that the stand-ins make no
difference. ``--cases`` parses argument lists with that parser instead and prints each result. catalogue_sources.py reads the parts
that cannot be imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import logging
import os
import re
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

from catalogue_sources import LayoutError, environment, http_paths, without_adapters
from catalogue_stand_ins import stand_in_for_packages

CONFIG_FILES = "vllm/config/*.py"


# --- vLLM ---------------------------------------------------------------------------------------------------------


class Sources:
    """The unpacked sources of one version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "vllm" / "engine" / "arg_utils.py").is_file():
            raise LayoutError(f"{root} holds no vllm/engine/arg_utils.py")

    def module_of(self, pattern: str, files: str = "vllm/**/*.py") -> str:
        """Return the module whose source has a line that C(pattern) matches; the shortest path wins. files: to search."""
        paths = [
            path.relative_to(self.root)
            for path in self.root.glob(files)
            if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
        ]
        if not paths:
            raise LayoutError(f"no module of vllm has {pattern!r}")
        path = min(paths, key=lambda candidate: (len(candidate.parts), str(candidate)))
        return ".".join(path.with_suffix("").parts).removesuffix(".__init__")

    def value(self, name: str, files: str = "vllm/**/*.py") -> Any:
        """Return a module-level value by its name. files: to search for its definition."""
        module = self.module_of(rf"^(class )?{name}\b(: [^=]+)?( = |\(|:)", files)
        return getattr(importlib.import_module(module), name)

    def metadata(self) -> tuple[list[str], str]:
        """Return the requirements and the range of Pythons."""
        for name in ("PKG-INFO", "METADATA"):
            path = self.root / name
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                python = re.search(r"^Requires-Python: (.*)$", text, re.MULTILINE)
                return re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE), python.group(1) if python else ""
        raise LayoutError(f"{self.root} holds neither PKG-INFO nor METADATA")


def gb10_platform() -> None:
    """Make vLLM detect a GB10, so that everything that depends on the platform is as on a Spark."""
    platforms = importlib.import_module("vllm.platforms")
    cuda = importlib.import_module("vllm.platforms.cuda")
    interface = importlib.import_module("vllm.platforms.interface")
    capability = interface.DeviceCapability(12, 1)
    platform = cuda.CudaPlatformBase
    gb10 = type("Gb10", (platform,), {"get_device_capability": classmethod(lambda _cls, device_id=0: capability)})
    platforms._current_platform = gb10()  # type: ignore[attr-defined]


def build_parser(sources: Sources) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parsers of C(vllm) and its subcommand C(serve), put together as vllm/entrypoints/cli/main.py does."""
    serve = sources.root / "vllm" / "entrypoints" / "cli" / "serve.py"
    made_in = [
        str(node.module)
        for node in ast.walk(ast.parse(serve.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and any(name.name == "make_arg_parser" for name in node.names)
    ]
    if not made_in:
        raise LayoutError(f"{serve} imports no make_arg_parser")
    module = importlib.import_module(made_in[0])
    flexible = vars(module)["FlexibleArgumentParser"]
    parser = flexible(prog="vllm")
    parser.add_argument("-v", "--version", action="version", version="")
    subparsers = parser.add_subparsers(required=False, dest="subparser")
    serve_parser = subparsers.add_parser("serve")
    module.make_arg_parser(serve_parser)
    return parser, serve_parser


# --- options ------------------------------------------------------------------------------------------------------


def accepted(kind: Any, text: str) -> tuple[bool, Any]:
    """Convert a text with an argument's type; says whether it was taken, and as what."""
    try:
        return True, kind(text)
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return False, None


def value_kind(action: argparse.Action) -> str:
    """Return how an argument reads its value, tested with sample values: C(text/lower/none) and the like."""
    kind = action.type or str
    if not callable(kind):
        raise LayoutError(f"{action.option_strings}: a type that cannot be called: {kind!r}")
    reads_json, mapping = accepted(kind, '{"zz": 1}')
    is_class = json_class(kind) is not None
    if is_class:
        name = "json"
    elif number := number_kind(kind, reads_json):
        name = number
    elif kind is bool:
        name = "text"  # any text is accepted, and every text but the empty one is true
    elif reads_json and mapping == {"zz": 1}:
        name = "json-text" if accepted(kind, "zz")[0] else "json"
    else:
        name = text_kind(action, kind)
    if name == "json":
        name += "/class" if is_class else ""
        name += "/int" if accepted(kind, "3")[0] else ""  # a bare number is taken as well, as a level
    takes_none = accepted(kind, "None") == (True, None) and (not action.choices or None in action.choices)
    return name + ("/none" if takes_none else "")


def number_kind(kind: Any, reads_json: bool) -> str:
    """Return the kind of an argument that reads numbers, else an empty text."""
    if accepted(kind, "auto") == (True, -1):
        return "size-auto"
    if accepted(kind, "64k") == (True, 64000):
        return "size"
    if accepted(kind, "7") == (True, 7) and not accepted(kind, "1.5")[0]:
        return "int"
    return "float" if accepted(kind, "1.5") == (True, 1.5) and not reads_json else ""


TEXT_FORMS = {
    "A_b-C": "",
    "a_b_c": "/lower_",
    "a_b-c": "/lower",
    "A_B-C": "/upper",
    "A_B_C": "/upper_",
    "a-b-c": "/lower-",
}
"""Results of reading the text A_b-C -> how the kind of an option ends."""


def text_kind(action: argparse.Action, kind: Any) -> str:
    """Return how an argument reads a text."""
    is_text, read = accepted(kind, "A_b-C")
    if is_text:
        text = read[0] if isinstance(read, list) and len(read) == 1 else str(read)  # a list written with commas
        if text not in TEXT_FORMS:
            raise LayoutError(f"{action.option_strings} turns 'A_b-C' into {text!r}")
        return f"text{TEXT_FORMS[text]}"
    # Some arguments take only certain texts and say so by their type alone.
    words = list(action.choices or ())
    is_enumerated = words and all(accepted(kind, str(word))[0] for word in words)
    if is_enumerated or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return "text"
    raise LayoutError(f"{action.option_strings}: how {kind!r} reads a value is not understood")


def json_class(kind: Any) -> type | None:
    """Return the configuration class that a JSON argument is read into, if there is one."""
    for cell in getattr(kind, "__closure__", None) or ():
        inner = cell.cell_contents
        if inner is not kind and callable(inner):
            inner_class = inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else json_class(inner)
            if inner_class is not None:
                return inner_class
    for default in getattr(kind, "__defaults__", None) or ():
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            return default
    return None


def arity(action: argparse.Action) -> str:
    """Return how many values an argument takes: nothing for one, else C(+), C(*), C(?) or a number; C(append)."""
    if isinstance(action, argparse._AppendAction):
        if action.nargs is not None:
            raise LayoutError(f"{action.option_strings}: repeated with nargs {action.nargs!r}")
        return "*"
    if action.nargs == "*":
        return "**"
    return "" if action.nargs is None else str(action.nargs)


def describe_option(parser: argparse.ArgumentParser, action: argparse.Action, spellings: list[str]) -> dict[str, Any]:
    """Describe one option of the parser."""
    if not any(spelling.startswith("--") for spelling in action.option_strings):
        raise LayoutError(f"{action.option_strings} has no long spelling")
    negative = set(getattr(action, "negative_option_strings", ()))
    if isinstance(action, argparse.BooleanOptionalAction):
        negative |= {f"--no-{spelling[2:]}" for spelling in spellings} & {*spellings}
    positive = [spelling for spelling in spellings if spelling not in negative]
    main = next((spelling for spelling in positive if spelling[2:].replace("-", "_") == action.dest), positive[0])
    entry: dict[str, Any] = {
        "name": main[2:],
        "aliases": sorted(spelling for spelling in positive if spelling != main),
        "negatives": sorted(negative),
        "default": plain(action.default),
        "choices": [],
        "suggested": [],
        "deprecated": bool(getattr(action, "deprecated", False)) or action in getattr(parser, "_deprecated", ()),
    }
    if isinstance(action, argparse.BooleanOptionalAction):
        entry["kind"] = "switch"
    elif action.nargs == 0:
        # A plain flag cannot be negated; a flag that stores false belongs to a pair.
        if not isinstance(action, argparse._StoreTrueAction):
            raise LayoutError(f"{spellings}: an option without a value of the unknown kind {type(action).__name__}")
        entry["kind"] = "flag"
    else:
        entry.update(describe_value(action))
    return entry


def describe_value(action: argparse.Action) -> dict[str, Any]:
    """Return kind, choices and suggestions of an option with a value."""
    kind = action.type or str
    choices = [choice for choice in action.choices or () if choice is not None]
    suggested = action.metavar if isinstance(action.metavar, (list, tuple)) else ()
    return {
        "kind": value_kind(action) + arity(action),
        "choices": sorted(str(word) for word in choices if accepted(kind, str(word)) == (True, word)),
        "suggested": sorted(str(word) for word in suggested if word is not None),
    }


def plain(value: Any) -> Any:
    """Return a default as JSON data; C("...") for other objects."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(item) for key, item in value.items()}
    return "..."


def options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Describe every option that a person can type."""
    by_action: dict[int, list[str]] = {}
    actions = {}
    for spelling, action in parser._option_string_actions.items():
        if "_" in spelling.partition(".")[0].lstrip("-") and spelling.startswith("--"):
            spelling = spelling.replace("_", "-")  # the parser itself accepts underscores for dashes
        by_action.setdefault(id(action), []).append(spelling)
        actions[id(action)] = action
    entries = [
        describe_option(parser, actions[key], spellings)
        for key, spellings in by_action.items()
        if not isinstance(actions[key], (argparse._HelpAction, argparse._VersionAction))
    ]
    return sorted(entries, key=lambda entry: str(entry["name"]))


# --- tables -------------------------------------------------------------------------------------------------------


def words(hint: Any) -> list[str]:
    """Return the texts of a (nested) Literal."""
    return sorted({member for member in flat(hint) if isinstance(member, str)})


def tables(sources: Sources, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the names of every kind that this version knows."""
    registry = sources.value("_VLLM_MODELS")
    names = {
        "architectures": sorted(registry),
        "without_adapters": without_adapters(sources.root / "vllm", registry),
        "tool_parsers": parsers(sources, "ToolParserManager"),
        "reasoning_parsers": parsers(sources, "ReasoningParserManager"),
        "quantizations": words(sources.value("QuantizationMethods")),
        "load_formats": words(sources.value("LoadFormats")),
        "kv_cache_dtypes": words(sources.value("CacheDType", CONFIG_FILES)),
        "spec_methods": words(sources.value("SpeculativeMethod", CONFIG_FILES)),
        "executor_backends": words(sources.value("DistributedExecutorBackend", CONFIG_FILES)),
    }
    # These came with later versions.
    for table, name in (
        ("moe_backends", "MoEBackend"),
        ("linear_backends", "LinearBackend"),
        ("all2all_backends", "All2AllBackend"),
    ):
        with contextlib.suppress(LayoutError):
            names[table] = words(sources.value(name, CONFIG_FILES))
    with contextlib.suppress(LayoutError):
        names["deprecated_quantizations"] = sorted(sources.value("DEPRECATED_QUANTIZATION_METHODS"))
    try:
        backends = sources.value("AttentionBackendEnum")
    except LayoutError:  # in older versions
        backends = sources.value("_Backend")
    names["attention_backends"] = sorted(backends.__members__)
    names["json_keys"] = json_keys(sources, parser)
    names["http_paths"], names["guarded_prefixes"] = http_paths(sources.root / "vllm" / "entrypoints")
    return names


def parsers(sources: Sources, manager: str) -> list[str]:
    """Return the names that a parser manager has registered."""
    module = sources.module_of(rf"^class {manager}\b")
    importlib.import_module(module.rpartition(".")[0])  # importing the package registers its parsers
    manager_class = getattr(importlib.import_module(module), manager)
    names: set[str] = set()
    for attribute in ("tool_parsers", "reasoning_parsers", "lazy_parsers"):
        names |= set(getattr(manager_class, attribute, ()))
    return sorted(names)


def json_keys(sources: Sources, parser: argparse.ArgumentParser) -> list[str]:
    """Return C(option.key) for each key of each option that takes JSON for one of vLLM's configuration classes.

    The class is the type of the argument, or the class with the name of the option (C(--speculative-config) and
    C(SpeculativeConfig)). The values of a key follow it if they are a closed list.
    """
    config = importlib.import_module("vllm.config")
    keys = []
    for action in {id(action): action for action in parser._option_string_actions.values()}.values():
        name = max(action.option_strings, key=len).lstrip("-").replace("_", "-")
        read = json_class(action.type)
        named = getattr(config, name.title().replace("-", ""), None)
        by_lower = {key.lower(): value for key, value in vars(config).items() if key.endswith("Config")}
        named = named or by_lower.get(name.replace("-", ""))
        target = read or named
        if action.nargs == 0 or not (isinstance(target, type) and dataclasses.is_dataclass(target)):
            continue
        if takes_any_key(action, target, read is not None):
            keys.append(f"{name}.*")
        for field in dataclasses.fields(target):
            if not field.init or field.name.startswith("_"):
                continue
            values = literal_words(field.type)
            keys.append(f"{name}.{field.name}" + (f"={','.join(values)}" if values else ""))
    return sorted(keys)


def takes_any_key(action: argparse.Action, target: type, when_parsed: bool) -> bool:
    """Tell whether unknown keys of a class are accepted. when_parsed: the argument itself makes an object of the class."""
    if when_parsed:
        return accepted(action.type, '{"no_such_key": 1}')[0]
    is_model = hasattr(target, "__pydantic_fields__")
    return is_model and getattr(target, "__pydantic_config__", {}).get("extra") != "forbid"


def literal_words(hint: Any) -> list[str]:
    """Return the closed list of texts that a field takes, empty when it takes others as well."""
    if typing.get_origin(hint) is typing.Literal:
        return words(hint) if all(isinstance(member, str) or member is None for member in flat(hint)) else []
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        types_left = [part for part in parts if part is not type(None)]
        return literal_words(types_left[0]) if len(types_left) == 1 else []
    return []


def flat(hint: Any) -> list[Any]:
    """Return the members of a nested type."""
    parts = typing.get_args(hint)
    return [member for part in parts for member in (flat(part) if typing.get_args(part) else [part])]


# --- parsing ------------------------------------------------------------------------------------------------------


def outcome(parser: argparse.ArgumentParser, argv: list[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """Parse an argument list with the real parser: what differs from the defaults, or the error."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            parsed = vars(parser.parse_args(list(argv)))
    except SystemExit:
        return {"error": errors.getvalue().partition("error: ")[2].strip()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"args": {key: shown(value) for key, value in parsed.items() if shown(value) != defaults.get(key, "...")}}


def shown(value: Any) -> Any:
    """Make a parsed value comparable: configuration objects become their class."""
    if dataclasses.is_dataclass(value):
        return f"<{type(value).__name__}>"
    printable = plain(value)
    return str(value) if printable == "..." else printable


def traits(parser: argparse.ArgumentParser, described: list[dict[str, Any]]) -> list[str]:
    """Return the behaviour of this version's parser beyond single options, as C(name) or C(name=value)."""
    defaults = outcome(parser, ["serve", "M"], {})["args"]
    paired = [spelling for option in described for spelling in option["negatives"] if not spelling.startswith("--no-")]
    names = ["enable-disable-pairs"] if paired else []
    CONFIG.write_text(CONFIG_TEXT, encoding="utf-8")
    for name, argv in TRAITS.items():
        got = outcome(parser, ["serve", *argv], defaults)
        changed = got.get("args", {})
        holds = {
            "dotted-size": changed.get("hf_overrides") == {"a": 64000},
            "config-false": changed.get("enable_prefix_caching") is False,
        }
        if name == "short-level" and "args" in got:
            target = "optimization-level" if "optimization_level" in changed else "compilation-config"
            names.append(f"short-level={target}")
        elif holds.get(name, name in PLAIN_TRAITS and "args" in got):
            names.append(name)
        elif name == "dotted" and changed.get("hf_overrides") != {"a": {"b": 1}, "c": ["x", "y"]}:
            raise LayoutError(f"--option.key value is read as {got}")
        elif name == "spelling" and changed.get("gpu_memory_utilization") != 0.5:
            raise LayoutError(f"--gpu_memory_util 0.5 is read as {got}")
    CONFIG.unlink()
    return sorted(names)


CONFIG = Path(tempfile.gettempdir()) / f"catalogue_probe_{os.getpid()}.yaml"
CONFIG_TEXT = "enable-prefix-caching: false\n"
TRAITS = {
    "short-level": ["M", "-O3"],
    "short-dotted": ["M", "-O.mode", "3"],
    "dotted-size": ["M", "--hf-overrides.a", "64k"],
    "json-size": ["M", "--kv-transfer-config", '{"kv_connector_extra_config": {"size": 64k}}'],
    "model-option": ["--model", "N"],
    "model-equals": ["--model=N"],
    "served-name-anywhere": ["-tp", "2", "--served-model-name", "N"],
    "config-false": ["M", "--config", str(CONFIG)],
    "dotted": ["M", "--hf-overrides.a.b", "1", "--hf-overrides.c+", "x,y"],
    "spelling": ["M", "--gpu_memory_util", "0.5"],
}
"""Argument lists whose outcome tells versions apart, or that every version has to read as this collection does."""

PLAIN_TRAITS = ("short-dotted", "json-size", "model-option", "model-equals", "served-name-anywhere")


# --- the whole ----------------------------------------------------------------------------------------------------


def probe(sources: Sources, parser: argparse.ArgumentParser, serve: argparse.ArgumentParser) -> dict[str, Any]:
    """Return all options, tables, traits and requirements of this version."""
    requires, python = sources.metadata()
    return {
        "options": (described := options(serve)),
        "tables": {**tables(sources, serve), "environment": environment(sources.root)},
        "traits": traits(parser, described),
        "requires": sorted(line for line in requires if "extra ==" not in line),
        "python": python,
    }


def main() -> int:
    """Print what one version accepts."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("sources", type=Path)
    arguments.add_argument("--real", action="store_true", help="import the real packages instead of stand-ins")
    arguments.add_argument("--cases", type=Path, help="JSON list of argument lists to parse")
    parsed = arguments.parse_args()
    sources = Sources(parsed.sources.resolve())
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, str(sources.root))
    os.environ.update(VLLM_PLUGINS="", VLLM_CONFIGURE_LOGGING="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    del sys.argv[1:]  # vLLM looks there for --help
    with contextlib.redirect_stdout(sys.stderr):
        if parsed.real:  # without a GPU, which C(vllm bench) says in the same way
            platforms = importlib.import_module("vllm.platforms")
            cpu = importlib.import_module("vllm.platforms.cpu")
            platforms.current_platform = cpu.CpuPlatform()  # type: ignore[attr-defined]
        else:
            stand_in_for_packages(sources.metadata()[0])
            gb10_platform()
        parser, serve = build_parser(sources)
        if parsed.cases:
            defaults = outcome(parser, ["serve"], {})["args"]
            cases = json.loads(parsed.cases.read_text(encoding="utf-8"))
            result: Any = [outcome(parser, argv, defaults) for argv in cases]
        else:
            result = probe(sources, parser, serve)
    print(json.dumps(result, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
