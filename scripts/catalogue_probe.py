# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the sources of one vLLM version what it accepts: import its own parser and tables, print them as JSON.

Run by generate_catalogue.py, one process a version: ``catalogue_probe.py SOURCES [--real] [--cases FILE]``.

vLLM's own code runs unchanged, so the parser is the real one. What it imports from other packages (torch and hundreds
more) is not there: anything outside the standard library, vLLM and ``REAL`` is a stand-in that gives a new stand-in
for every attribute and call. With ``--real`` nothing is stood in for, which tests/oracle uses to prove that this makes
no difference. ``--cases`` parses argument lists with that parser instead and prints what it made of each.
"""

from __future__ import annotations

import abc
import argparse
import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import io
import json
import logging
import os
import re
import sys
import tempfile
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REAL = {"annotated_types", "msgspec", "packaging", "pydantic", "pydantic_core", "regex", "typing_extensions", "yaml"}
REAL |= {"typing_inspection", "_yaml"}
"""Packages outside the standard library that really have to be there; generate_catalogue.py installs them."""

# Parts of vLLM that are built, not written, and so are in no source tree.
BUILT = re.compile(
    r"vllm\.(_\w*C(_\w+)?|_version|_flashmla\w*|_qutlass\w*|cumem_allocator|vllm_flash_attn(\.\w+)*|grpc\.\w*pb2\w*)"
)

SIZES = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "int64": 64, "int32": 32, "int16": 16, "int8": 8}


class LayoutError(Exception):
    """The sources are not laid out as this program knows them."""


# --- stand-ins ----------------------------------------------------------------------------------------------------


class StandInType(abc.ABCMeta):
    """The type of stand-ins: a class, so that it can be derived from, subscripted and used in annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = stand_in(name)
        setattr(cls, name, found)
        return found

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("_stands_in"):
            return super().__call__(*args, **kwargs)  # a class of vLLM's own that derives from a stand-in
        return decorated(args, kwargs) or typing.cast(Any, object).__new__(cls)

    def __instancecheck__(cls, instance: Any) -> bool:
        # torch.int64 is an instance of torch.dtype; which stand-in is one of which is not known.
        return type(instance) is StandInType or super().__instancecheck__(instance)

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __setitem__(cls, _item: Any, _value: Any) -> None:
        pass

    def register(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Registries are often called so; that of abstract classes is not meant."""

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return typing.Union[cls, other]

    def __ror__(cls, other: Any) -> Any:
        return typing.Union[other, cls]

    def __lt__(cls, _other: Any) -> bool:
        return False

    __gt__ = __lt__

    def __le__(cls, _other: Any) -> bool:
        return True

    __ge__ = __le__

    def __bool__(cls) -> bool:
        return False

    def __mul__(cls, _other: Any) -> int:
        return 1

    __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __floordiv__ = __mul__


class StandIn:
    """What calling a stand-in gives: empty, false, equal to any other, and with every attribute."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return decorated(args, kwargs) or stand_in("call")()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn)

    def __hash__(self) -> int:
        return id(self)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_args: object) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, _item: Any) -> Any:
        return stand_in("item")

    def __setitem__(self, _item: Any, _value: Any) -> None:
        pass

    def __contains__(self, _item: Any) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __lt__(self, _other: Any) -> bool:
        return False

    __gt__ = __lt__

    def __le__(self, _other: Any) -> bool:
        return True

    __ge__ = __le__

    def __mul__(self, _other: Any) -> int:
        return 1

    __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __floordiv__ = __rtruediv__ = __mul__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        return importlib.import_module("pydantic_core").core_schema.any_schema()


def decorated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what was decorated when a stand-in is used as a decorator, else C(None)."""
    one = args[0] if len(args) == 1 and not kwargs else None
    return (
        one if isinstance(one, types.FunctionType) or (isinstance(one, type) and type(one) is not StandInType) else None
    )


def stand_in(name: str) -> Any:
    """Make a new stand-in."""
    return StandInType(name, (StandIn,), {"_stands_in": True, "__module__": "stand_in"})


class StandInModule(types.ModuleType):
    """A package that is not there."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return package_version(self.__name__)
        if name == "__file__":
            return f"/nonexistent/{self.__name__}/__init__.py"
        if name.startswith("__"):
            raise AttributeError(name)
        found = KNOWN.get(f"{self.__name__}.{name}") or stand_in(name)
        setattr(self, name, found)
        return found


def _iinfo(of: Any) -> Any:
    bits = SIZES.get(getattr(of, "__name__", ""), 64)
    return types.SimpleNamespace(min=-(2 ** (bits - 1)), max=2 ** (bits - 1) - 1, bits=bits)


def _finfo(of: Any) -> Any:
    return types.SimpleNamespace(
        min=-448.0, max=448.0, bits=SIZES.get(getattr(of, "__name__", ""), 8), eps=0.125, tiny=0.01
    )


def _schema(function: Any, **_kwargs: Any) -> str:
    signature = inspect.signature(function)
    given = ", ".join(signature.parameters)
    return f"({given}) -> ({', '.join(['Tensor'] * str(signature.return_annotation).count('Tensor'))})"


# What is computed with when modules are loaded: limits of number types, and the text of an operator's signature.
KNOWN: dict[str, Any] = {"torch.iinfo": _iinfo, "torch.finfo": _finfo, "torch.library.infer_schema": _schema}


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every package that is not there."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Take what is neither of the standard library, nor vLLM's, nor real."""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in REAL or (top == "vllm" and not BUILT.fullmatch(name)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make the stand-in."""
        return StandInModule(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """There is nothing to run."""


VERSIONS: dict[str, str] = {}
"""Versions of packages as vLLM's own requirements give them: code asks for them when it is loaded."""


def package_version(name: str) -> str:
    """Return the version of a package that is not there."""
    return VERSIONS.get(name.replace("_", "-").lower(), "99.0.0")


def stand_in_for_packages(requires: list[str]) -> None:
    """From here on packages that are not there can be imported."""
    for line in requires:
        match = re.match(r"([\w.-]+)(?:\[[\w,-]*\])?\s*\(?.*?(?:==|>=|~=)\s*([\d.]+)", line)
        if match:
            VERSIONS.setdefault(match.group(1).replace("_", "-").lower(), match.group(2))
    real = importlib.metadata.version

    def version(distribution_name: str) -> str:
        there = distribution_name.replace("-", "_") in REAL
        return real(distribution_name) if there else package_version(distribution_name)

    importlib.metadata.version = version
    sys.meta_path.insert(0, Importer())


# --- vLLM ---------------------------------------------------------------------------------------------------------


class Sources:
    """The unpacked sources of one version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / "vllm" / "engine" / "arg_utils.py").is_file():
            raise LayoutError(f"{root} holds no vllm/engine/arg_utils.py")

    def module_of(self, pattern: str, *likely: str) -> str:
        """Return the module whose source has a line that C(pattern) matches; the shortest path wins."""
        found = []
        for path in [self.root / place for place in likely] or sorted(self.root.glob("vllm/**/*.py")):
            if path.is_file() and re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE):
                found.append(path.relative_to(self.root))
        if not found:
            raise LayoutError(f"no module of vllm has {pattern!r}")
        path = min(found, key=lambda one: (len(one.parts), str(one)))
        return ".".join(path.with_suffix("").parts).removesuffix(".__init__")

    def value(self, name: str) -> Any:
        """Return a module-level value by its name, wherever in vLLM it is defined."""
        module = self.module_of(rf"^(class )?{name}\b(: [^=]+)?( = |\()", *self._config_files())
        return getattr(importlib.import_module(module), name)

    def value_anywhere(self, name: str) -> Any:
        """Like C(value), looked for in all of vLLM."""
        module = self.module_of(rf"^(class )?{name}\b(: [^=]+)?( = |\(|:)")
        return getattr(importlib.import_module(module), name)

    def _config_files(self) -> list[str]:
        return [str(path.relative_to(self.root)) for path in sorted(self.root.glob("vllm/config/*.py"))]

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
    """Make vLLM believe that it runs on a GB10, so that what depends on the platform is what a Spark would see."""
    platforms = importlib.import_module("vllm.platforms")
    cuda = importlib.import_module("vllm.platforms.cuda")
    interface = importlib.import_module("vllm.platforms.interface")
    capability = interface.DeviceCapability(12, 1)
    platform = cuda.CudaPlatformBase
    here = type("Gb10", (platform,), {"get_device_capability": classmethod(lambda _cls, device_id=0: capability)})
    platforms._current_platform = here()  # type: ignore[attr-defined]


def cpu_platform() -> None:
    """With real packages there is no GPU: say so, as C(vllm bench) does."""
    platforms = importlib.import_module("vllm.platforms")
    platforms.current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()  # type: ignore[attr-defined]


def build_parser(sources: Sources) -> argparse.ArgumentParser:
    """Return C(vllm) with its subcommand C(serve), put together as vllm/entrypoints/cli/main.py does."""
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
    module.make_arg_parser(subparsers.add_parser("serve"))
    return typing.cast(argparse.ArgumentParser, parser)


def serve_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser of the subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return typing.cast(argparse.ArgumentParser, action.choices["serve"])
    raise LayoutError("the parser has no subcommands")


# --- options ------------------------------------------------------------------------------------------------------


def accepted(kind: Any, text: str) -> tuple[bool, Any]:
    """Convert a text with an argument's type; says whether it was taken, and as what."""
    try:
        return True, kind(text)
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return False, None


def value_kind(action: argparse.Action) -> str:
    """Say how an argument reads its value, found out by giving it some: C(text/lower/none) and the like."""
    kind = action.type or str
    if not callable(kind):
        raise LayoutError(f"{action.option_strings}: a type that cannot be called: {kind!r}")
    takes_none = accepted(kind, "None") == (True, None) and (not action.choices or None in action.choices)
    reads_json, mapping = accepted(kind, '{"zz": 1}')
    if json_class(kind) is not None:
        name = "json"
    elif accepted(kind, "auto") == (True, -1):
        name = "size-auto"
    elif accepted(kind, "64k") == (True, 64000):
        name = "size"
    elif kind is bool:
        name = "text"  # any text will do, and every text but the empty one is true
    elif accepted(kind, "7") == (True, 7) and not accepted(kind, "1.5")[0]:
        name = "int"
    elif accepted(kind, "1.5") == (True, 1.5) and not reads_json:
        name = "float"
    elif reads_json and mapping == {"zz": 1}:
        name = "json-text" if accepted(kind, "zz")[0] else "json"
    elif accepted(kind, "A_b-C")[0]:
        read = accepted(kind, "A_b-C")[1]
        given = read[0] if isinstance(read, list) and len(read) == 1 else str(read)  # a list written with commas
        norms = {
            "A_b-C": "",
            "a_b_c": "/lower_",
            "a_b-c": "/lower",
            "A_B-C": "/upper",
            "A_B_C": "/upper_",
            "a-b-c": "/lower-",
        }
        if given not in norms:
            raise LayoutError(f"{action.option_strings} turns 'A_b-C' into {given!r}")
        name = f"text{norms[given]}"
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        name = "text"
    else:
        name = enumerated(action, kind)
    if name == "json":
        name += "/class" if json_class(kind) is not None else ""
        name += "/int" if accepted(kind, "3")[0] else ""  # a bare number is taken as well, as a level
    return name + ("/none" if takes_none else "")


def enumerated(action: argparse.Action, kind: Any) -> str:
    """Some arguments take only certain texts and say so by their type alone."""
    words = list(action.choices or ())
    if words and all(accepted(kind, str(word))[0] for word in words):
        return "text"
    raise LayoutError(f"{action.option_strings}: how {kind!r} reads a value is not understood")


def json_class(kind: Any) -> type | None:
    """Return the configuration class that a JSON argument is read into, if there is one."""
    for cell in getattr(kind, "__closure__", None) or ():
        inner = cell.cell_contents
        if inner is not kind and callable(inner):
            found = inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else json_class(inner)
            if found is not None:
                return found
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
    long = [one for one in action.option_strings if one.startswith("--")]
    if not long:
        raise LayoutError(f"{action.option_strings} has no long spelling")
    negative = set(getattr(action, "negative_option_strings", ()))
    if isinstance(action, argparse.BooleanOptionalAction):
        negative |= {one for one in spellings if one.startswith("--no-") and f"--{one[5:]}" in spellings}
    positive = [one for one in spellings if one not in negative]
    main = next((one for one in positive if one[2:].replace("-", "_") == action.dest), positive[0])
    entry: dict[str, Any] = {
        "name": main[2:],
        "aliases": sorted(one for one in positive if one != main),
        "negatives": sorted(negative),
        "default": plain(action.default),
        "choices": [],
        "suggested": [],
        "deprecated": bool(getattr(action, "deprecated", False)) or action in getattr(parser, "_deprecated", ()),
    }
    if isinstance(action, argparse.BooleanOptionalAction):
        entry["kind"] = "switch"
    elif action.nargs == 0:
        # A plain flag cannot be taken back; one that stores false is the other half of a pair.
        if not isinstance(action, argparse._StoreTrueAction):
            raise LayoutError(f"{spellings}: an option without a value of the unknown kind {type(action).__name__}")
        entry["kind"] = "flag"
    else:
        entry["kind"] = value_kind(action) + arity(action)
        kind = action.type or str
        reached = [
            choice
            for choice in action.choices or ()
            if choice is not None and accepted(kind, str(choice)) == (True, choice)
        ]
        entry["choices"] = sorted(str(choice) for choice in reached)
        if isinstance(action.metavar, (list, tuple)):
            entry["suggested"] = sorted(str(choice) for choice in action.metavar if choice is not None)
    return entry


def plain(value: Any) -> Any:
    """Make a default printable as JSON; what cannot be is C("...")."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(one) for key, one in value.items()}
    return "..."


def options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Describe every option that a person can type."""
    by_action: dict[int, list[str]] = {}
    actions = {}
    for spelling, action in parser._option_string_actions.items():
        if "_" in spelling.partition(".")[0].lstrip("-") and spelling.startswith("--"):
            spelling = spelling.replace("_", "-")  # the parser itself turns what is typed into dashes
        by_action.setdefault(id(action), []).append(spelling)
        actions[id(action)] = action
    found = [
        describe_option(parser, actions[key], spellings) for key, spellings in by_action.items() if wanted(actions[key])
    ]
    return sorted(found, key=lambda entry: str(entry["name"]))


def wanted(action: argparse.Action) -> bool:
    """Leave out --help and the like: they start nothing."""
    return not isinstance(action, (argparse._HelpAction, argparse._VersionAction))


# --- tables -------------------------------------------------------------------------------------------------------


def words(hint: Any) -> list[str]:
    """Return the texts of a (nested) Literal."""
    found: list[str] = []
    for part in typing.get_args(hint):
        found += [part] if isinstance(part, str) else words(part)
    return sorted(set(found))


def tables(sources: Sources, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the names of every kind that this version knows."""
    registry = sources.value_anywhere("_VLLM_MODELS")
    found = {
        "architectures": sorted(registry),
        "without_adapters": without_adapters(sources.root / "vllm", registry),
        "removed_architectures": sorted(sources.value_anywhere("_PREVIOUSLY_SUPPORTED_MODELS")),
        "tool_parsers": parsers(sources, "ToolParserManager"),
        "reasoning_parsers": parsers(sources, "ReasoningParserManager"),
        "quantizations": words(sources.value_anywhere("QuantizationMethods")),
        "load_formats": words(sources.value_anywhere("LoadFormats")),
        "kv_cache_dtypes": words(sources.value("CacheDType")),
        "spec_methods": words(sources.value("SpeculativeMethod")),
        "executor_backends": words(sources.value("DistributedExecutorBackend")),
        "attention_backends": attention_backends(sources),
    }
    # These came with later versions.
    for table, name in (
        ("moe_backends", "MoEBackend"),
        ("linear_backends", "LinearBackend"),
        ("data_parallel_backends", "DataParallelBackend"),
        ("all2all_backends", "All2AllBackend"),
    ):
        with contextlib.suppress(LayoutError):
            found[table] = words(sources.value(name))
    with contextlib.suppress(LayoutError):
        found["deprecated_quantizations"] = sorted(sources.value_anywhere("DEPRECATED_QUANTIZATION_METHODS"))
    found["json_keys"] = json_keys(sources, parser)
    found["http_paths"], found["guarded_prefixes"] = http_paths(sources.root / "vllm" / "entrypoints")
    return found


ADAPTERS = "SupportsLoRA"
"""The class that vLLM asks a model for before it takes LoRA adapters (vllm/v1/worker/lora_model_runner_mixin.py)."""
OTHER_DEVICES = ("amd", "cpu", "hw_agnostic", "rocm", "tpu", "xpu")
"""Folders of models that a GB10 has no use for; their classes have the same names as those for it (nvidia)."""


def without_adapters(root: Path, registry: dict[str, tuple[str, str]]) -> list[str]:
    """Return the architectures whose class takes no LoRA adapters.

    Read from the sources, as a model's imports need its real packages. root: of vllm. registry: architecture to module and class.
    """
    modules = {
        module_name(root, path): ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("model_executor/models", "models", "transformers_utils")
        for path in sorted((root / folder).rglob("*.py"))
    }
    known = {name: (classes_of(tree), imports_of(tree, name, root)) for name, tree in modules.items()}
    found = []
    for architecture, (module, name) in registry.items():
        place = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
        if place not in known:
            raise LayoutError(f"the module {place} of {architecture} was not found")
        if not takes_adapters(known, place, name, set()):
            found.append(architecture)
    return sorted(found)


def module_name(root: Path, path: Path) -> str:
    """Return the name of a module from the place of its file."""
    parts = ("vllm", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def classes_of(tree: ast.Module) -> dict[str, tuple[list[str], bool | None]]:
    """Return the classes of a module: their bases, and what they set C(supports_lora) to, None where they do not."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            said = None
            for line in node.body:
                target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                value = getattr(line, "value", None)
                if isinstance(target, ast.Name) and target.id == "supports_lora" and isinstance(value, ast.Constant):
                    said = bool(value.value)
            bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
            found[node.name] = (bases, said)
    return found


def imports_of(tree: ast.Module, module: str, root: Path) -> dict[str, list[tuple[str, str]]]:
    """Return what a module imports by name: the modules that it is from, those for other devices last, and its name there."""
    inside = root.parent.joinpath(*module.split("."))
    package = module if inside.is_dir() else module.rpartition(".")[0]
    found: dict[str, list[tuple[str, str]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                found.setdefault(name.asname or name.name, []).append((source, name.name))
    return {
        name: sorted(
            places,
            key=lambda place: ("nvidia" not in place[0], any(part in OTHER_DEVICES for part in place[0].split("."))),
        )
        for name, places in found.items()
    }


def takes_adapters(
    known: dict[str, tuple[dict[str, tuple[list[str], bool | None]], dict[str, list[tuple[str, str]]]]],
    module: str,
    name: str,
    seen: set[tuple[str, str]],
) -> bool:
    """Tell whether a class is, or has among its bases, the one that takes adapters. known: modules with their classes and imports."""
    if name == ADAPTERS:
        return True
    if (module, name) in seen or module not in known:
        return False
    seen.add((module, name))
    classes, imports = known[module]
    if name in classes:
        bases, said = classes[name]
        return any(takes_adapters(known, module, base, seen) for base in bases) if said is None else said
    places = [place for place in imports.get(name, ()) if place[0] in known or place[1] == ADAPTERS]
    return bool(places) and takes_adapters(known, *places[0], seen)


HTTP_METHODS = ("get", "post", "put", "delete", "patch", "head", "route", "api_route", "websocket")
OTHER_SERVERS = ("api_server.py", "cli", "grpc_server.py", "llm.py")
"""Of C(vllm/entrypoints): what is no part of C(vllm serve)."""
KINDS_OF_PATHS = ("always", "option", "dev")
"""A path that is behind several conditions is of the last kind that one of them makes it."""


def http_paths(folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths that the server answers, C(PATH:KIND), and the beginnings of those that its key is asked for.

    KIND is C(always), C(dev) for what VLLM_SERVER_DEV_MODE adds, or C(option) for what some option adds. Read from the
    sources: the routers of a version need its real packages.
    """
    trees = {
        file.relative_to(folder): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.py"))
    }
    behind = imported_kinds(trees)
    paths: dict[str, str] = {}
    guarded: set[str] = set()
    for inside, tree in trees.items():
        if inside.parts[0] in OTHER_SERVERS:
            continue
        if any(isinstance(node, ast.ClassDef) and node.name == "AuthenticationMiddleware" for node in tree.body):
            guarded |= guarded_prefixes(tree)
        usual = "dev" if "dev" in inside.parts else behind.get(inside, "always")
        for path, kind in routes(tree, usual, included_kinds(tree)):
            paths[path] = min(kind, paths.get(path, "dev"), key=KINDS_OF_PATHS.index)
    if not guarded or "/health" not in paths:
        raise LayoutError("the paths of the server, or those that its key is asked for, were not found")
    return sorted(f"{path}:{kind}" for path, kind in paths.items()), sorted(guarded)


def worse(*kinds: str) -> str:
    """Return the kind of a path that is behind several conditions."""
    return max(kinds, key=KINDS_OF_PATHS.index)


def kind_of(test: ast.expr) -> str:
    """Return what a condition makes of the paths below it; what a model can do is no condition."""
    text = ast.unparse(test)
    if "VLLM_SERVER_DEV_MODE" in text:
        return "dev"
    return "always" if "task" in text or "TYPE_CHECKING" in text else "option"


def guarded_prefixes(tree: ast.Module) -> set[str]:
    """Return what paths begin with that AuthenticationMiddleware asks a key for."""
    named = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.Constant))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    middleware = next(node for node in tree.body if getattr(node, "name", "") == "AuthenticationMiddleware")
    found: set[str] = set()
    for node in ast.walk(middleware):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
            (given,) = node.args
            value = named.get(given.id) if isinstance(given, ast.Name) else ast.literal_eval(given)
            found |= {value} if isinstance(value, str) else set(value or ())
    return found


def imported_kinds(trees: Mapping[Path, ast.Module]) -> dict[Path, str]:
    """Return the kind of modules that are imported below a condition alone, by themselves or by a module that is."""
    edges: dict[Path, list[tuple[Path, str]]] = {}

    def walk(node: ast.AST, inside: Path, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom) and child.level <= len(inside.parents):
                above = inside.parents[child.level - 1] if child.level else Path()
                name = (child.module or "").removeprefix("vllm.entrypoints").strip(".")
                if child.level or (child.module or "").startswith("vllm.entrypoints"):
                    module = above.joinpath(*filter(None, name.split(".")))
                    for target in (module.with_suffix(".py"), module / "__init__.py"):
                        if target in trees and target != inside:
                            edges.setdefault(target, []).append((inside, kind))
            inner = kind
            if isinstance(child, ast.If):
                inner = worse(kind, kind_of(child.test))
            walk(child, inside, inner)

    for inside, tree in trees.items():
        walk(tree, inside, "always")
    found: dict[Path, str] = {}
    for _round in trees:
        new = {
            target: min((worse(kind, found.get(by, "always")) for by, kind in ways), key=KINDS_OF_PATHS.index)
            for target, ways in edges.items()
        }
        if new == found:
            break
        found = new
    return found


def included_kinds(tree: ast.Module) -> dict[str, str]:
    """Return the kinds of a module's routers, as the functions that attach them say."""
    found: dict[str, str] = {}

    def walk(body: list[ast.stmt], kind: str) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                inner = worse(kind, kind_of(statement.test))
                walk(statement.body, inner)
                walk(statement.orelse, inner)
                if any(isinstance(each, ast.Return) for each in statement.body):
                    kind = inner
                continue
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "include_router" and call.args:
                    name = ast.unparse(call.args[0])
                    found[name] = min(kind, found.get(name, "dev"), key=KINDS_OF_PATHS.index)

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            walk(node.body, "always")
    return found


def routes(node: ast.AST, kind: str, included: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the paths below a node of a module, each with its kind."""
    found = []
    for child in ast.iter_child_nodes(node):
        inner = worse(kind, kind_of(child.test)) if isinstance(child, ast.If) else kind
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for call in child.decorator_list:
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in HTTP_METHODS and call.args:
                    owner = ast.unparse(call.func).rpartition(".")[0]
                    first = call.args[0]
                    if owner.endswith(("router", "app")) and isinstance(first, ast.Constant):
                        found.append((str(first.value), worse(inner, included.get(owner, "always"))))
        if isinstance(child, ast.Call) and getattr(child.func, "id", "") == "Mount" and child.args:
            first = child.args[0]
            if isinstance(first, ast.Constant):
                found.append((str(first.value), inner))
        found += routes(child, inner, included)
    return found


def parsers(sources: Sources, manager: str) -> list[str]:
    """Return the names that a parser manager has registered."""
    module = sources.module_of(rf"^class {manager}\b")
    importlib.import_module(module.rpartition(".")[0])  # the package registers what it has
    found = getattr(importlib.import_module(module), manager)
    names: set[str] = set()
    for attribute in ("tool_parsers", "reasoning_parsers", "lazy_parsers"):
        names |= set(getattr(found, attribute, ()))
    return sorted(names)


def attention_backends(sources: Sources) -> list[str]:
    """Return the names of the attention backends, C(_Backend) in older versions."""
    try:
        return sorted(sources.value_anywhere("AttentionBackendEnum").__members__)
    except LayoutError:
        return sorted(sources.value_anywhere("_Backend").__members__)


def json_keys(sources: Sources, parser: argparse.ArgumentParser) -> list[str]:
    """Return C(option.key) for each key of each option that takes JSON for one of vLLM's configuration classes.

    The class is the one that the parser reads into, or the one that is named as the option is
    (C(--speculative-config) and C(SpeculativeConfig)). A key whose values are a closed list is followed by them.
    """
    config = importlib.import_module("vllm.config")
    found = []
    for action in {id(one): one for one in parser._option_string_actions.values()}.values():
        name = max(action.option_strings, key=len).lstrip("-").replace("_", "-")
        read = json_class(action.type)
        named = getattr(config, name.title().replace("-", ""), None)
        by_lower = {key.lower(): value for key, value in vars(config).items() if key.endswith("Config")}
        named = named or by_lower.get(name.replace("-", ""))
        target = read or named
        if action.nargs == 0 or not (isinstance(target, type) and dataclasses.is_dataclass(target)):
            continue
        if takes_any_key(action, target, read is not None):
            found.append(f"{name}.*")
        for field in dataclasses.fields(target):
            if not field.init or field.name.startswith("_"):
                continue
            values = literal_words(field.type)
            found.append(f"{name}.{field.name}" + (f"={','.join(values)}" if values else ""))
    return sorted(found)


def takes_any_key(action: argparse.Action, target: Any, when_parsed: bool) -> bool:
    """Tell whether keys that the class does not have are passed over without a word."""
    if when_parsed:
        return accepted(action.type, '{"no_such_key": 1}')[0]
    return hasattr(target, "__pydantic_fields__") and dict(target.__pydantic_config__).get("extra") != "forbid"


def literal_words(hint: Any) -> list[str]:
    """Return the closed list of texts that a field takes, empty when it takes others as well."""
    if typing.get_origin(hint) is typing.Literal:
        return words(hint) if all(isinstance(one, str) or one is None for one in flat(hint)) else []
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [part for part in parts if part is not type(None)]
        return literal_words(rest[0]) if len(rest) == 1 else []
    return []


def flat(hint: Any) -> list[Any]:
    """Return the members of a nested Literal."""
    found: list[Any] = []
    for part in typing.get_args(hint):
        found += flat(part) if typing.get_origin(part) is typing.Literal else [part]
    return found


def environment(sources: Sources) -> list[str]:
    """Return C(NAME kind=choices) for every variable of vllm/envs.py, read from its text.

    The kind is that of the annotation; choices are those of C(env_with_choices) and its like.
    """
    tree = ast.parse((sources.root / "vllm" / "envs.py").read_text(encoding="utf-8"))
    kinds: dict[str, str] = {}
    variables: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id != "environment_variables"
        ):
            kinds.setdefault(node.target.id, ast.unparse(node.annotation))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values):
                if isinstance(key, ast.Constant):
                    variables[str(key.value)] = env_choices(value)
    if not variables:
        raise LayoutError("vllm/envs.py has no environment_variables")
    found = []
    for name, choices in sorted(variables.items()):
        kind = next((one for one in ("bool", "int", "float") if re.search(rf"\b{one}\b", kinds.get(name, ""))), "text")
        found.append(f"{name}:{kind}" + (f"={','.join(choices)}" if choices else ""))
    direct: set[str] = set()
    for path in sorted(sources.root.glob("vllm/**/*.py")):
        direct.update(one for pair in READS.findall(path.read_text(encoding="utf-8")) for one in pair if one)
    return sorted([*found, *(f"{name}:direct" for name in direct - variables.keys())])


# Variables that are read without envs.py knowing them; vLLM itself calls them unknown.
READS = re.compile(
    r"""(?:environ\.get|getenv)\(\s*["'](VLLM_\w+)["']|environ\[\s*["'](VLLM_\w+)["']\s*\](?!\s*=[^=])""", re.ASCII
)


def env_choices(value: ast.expr) -> list[str]:
    """Return the choices in a call of env_with_choices, env_list_with_choices or env_set_with_choices."""
    if isinstance(value, ast.Call) and "with_choices" in ast.unparse(value.func):
        for argument in value.args[2:]:
            if isinstance(argument, (ast.List, ast.Tuple)):
                return [str(one.value) for one in argument.elts if isinstance(one, ast.Constant)]
    return []


# --- parsing ------------------------------------------------------------------------------------------------------


def outcome(parser: argparse.ArgumentParser, argv: list[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """Parse an argument list with the real parser: what differs from the defaults, or the error."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            found = vars(parser.parse_args(list(argv)))
    except SystemExit:
        return {"error": errors.getvalue().partition("error: ")[2].strip()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"args": {key: shown(value) for key, value in found.items() if shown(value) != defaults.get(key, "...")}}


def shown(value: Any) -> Any:
    """Make a parsed value comparable: configuration objects become their class."""
    if dataclasses.is_dataclass(value):
        return f"<{type(value).__name__}>"
    found = plain(value)
    return str(value) if found == "..." else found


def traits(parser: argparse.ArgumentParser, described: list[dict[str, Any]]) -> list[str]:
    """Return how this version's parser treats what is not a matter of one option, as C(name) or C(name=what)."""
    defaults = outcome(parser, ["serve", "M"], {})["args"]
    paired = [one for option in described for one in option["negatives"] if not one.startswith("--no-")]
    found = ["enable-disable-pairs"] if paired else []
    CONFIG.write_text(CONFIG_TEXT, encoding="utf-8")
    for name, argv in TRAITS.items():
        got = outcome(parser, ["serve", *argv], defaults)
        changed = got.get("args", {})
        taken = {
            "dotted-size": changed.get("hf_overrides") == {"a": 64000},
            "config-false": changed.get("enable_prefix_caching") is False,
        }
        if name == "short-level" and "args" in got:
            target = "optimization-level" if "optimization_level" in changed else "compilation-config"
            found.append(f"short-level={target}")
        elif taken.get(name, name in PLAIN_TRAITS and "args" in got):
            found.append(name)
        elif name == "dotted" and changed.get("hf_overrides") != {"a": {"b": 1}, "c": ["x", "y"]}:
            raise LayoutError(f"--option.key value is read as {got}")
        elif name == "spelling" and changed.get("gpu_memory_utilization") != 0.5:
            raise LayoutError(f"--gpu_memory_util 0.5 is read as {got}")
    CONFIG.unlink()
    return sorted(found)


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


def probe(sources: Sources, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return everything that is to be known of this version."""
    serve = serve_parser(parser)
    requires, python = sources.metadata()
    return {
        "options": (described := options(serve)),
        "tables": {**tables(sources, serve), "environment": environment(sources)},
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
    given = arguments.parse_args()
    sources = Sources(given.sources.resolve())
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, str(sources.root))
    os.environ.update(VLLM_PLUGINS="", VLLM_CONFIGURE_LOGGING="0", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    del sys.argv[1:]  # vLLM looks there for --help
    with contextlib.redirect_stdout(sys.stderr):
        if given.real:
            cpu_platform()
        else:
            stand_in_for_packages(sources.metadata()[0])
            gb10_platform()
        parser = build_parser(sources)
        if given.cases:
            defaults = outcome(parser, ["serve"], {})["args"]
            cases = json.loads(given.cases.read_text(encoding="utf-8"))
            result: Any = [outcome(parser, argv, defaults) for argv in cases]
        else:
            result = probe(sources, parser)
    print(json.dumps(result, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
