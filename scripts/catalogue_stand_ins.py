# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for the packages that vLLM imports: every attribute and call of a stand-in returns a new stand-in.

C(stand_in_for_packages) makes them importable for everything outside the standard library, vLLM and C(REAL).
"""

from __future__ import annotations

import abc
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import re
import sys
import types
import typing
from typing import Any

REAL = {"annotated_types", "msgspec", "packaging", "pydantic", "pydantic_core", "regex", "typing_extensions", "yaml"}
REAL |= {"typing_inspection", "_yaml"}
"""Packages outside the standard library that are needed; generate_catalogue.py installs them."""

# Compiled parts of vLLM, which are in no source tree.
BUILT = re.compile(
    r"vllm\.(_\w*C(_\w+)?|_version|_flashmla\w*|_qutlass\w*|cumem_allocator|vllm_flash_attn(\.\w+)*|grpc\.\w*pb2\w*)"
)

SIZES = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "int64": 64, "int32": 32, "int16": 16, "int8": 8}


class Operators:
    """Operators of stand-ins: empty, false, and not larger than anything else."""

    def __setitem__(self, _item: Any, _value: Any) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __lt__(self, _other: Any) -> bool:
        return False

    __gt__ = __lt__

    def __le__(self, _other: Any) -> bool:
        return True

    __ge__ = __le__

    def __mul__(self, _other: Any) -> int:
        return 1

    __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __floordiv__ = __rtruediv__ = __mul__


class StandInType(Operators, abc.ABCMeta):
    """The type of stand-ins: a class, so that it can be derived from, subscripted and used in annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = stand_in(name)
        setattr(cls, name, attribute)
        return attribute

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("_stands_in"):
            return super().__call__(*args, **kwargs)  # a class of vLLM's own that derives from a stand-in
        return decorated(args, kwargs) or typing.cast(Any, object).__new__(cls)

    def __instancecheck__(cls, instance: Any) -> bool:
        # torch.int64 is an instance of torch.dtype; which stand-in is one of which is not known.
        return type(instance) is StandInType or super().__instancecheck__(instance)

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def register(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Do nothing: many registries of vLLM have a method of this name, which abstract classes would override."""

    def __or__(cls, other: Any) -> Any:
        return typing.Union[cls, other]

    def __ror__(cls, other: Any) -> Any:
        return typing.Union[other, cls]


class StandIn(Operators):
    """What calling a stand-in gives: equal to any other, and with every attribute."""

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

    def __getitem__(self, _item: Any) -> Any:
        return stand_in("item")

    def __contains__(self, _item: Any) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        return importlib.import_module("pydantic_core").core_schema.any_schema()


def decorated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the decorated object if a stand-in is used as a decorator, else C(None)."""
    decorated_object = args[0] if len(args) == 1 and not kwargs else None
    is_class = isinstance(decorated_object, type) and type(decorated_object) is not StandInType
    return decorated_object if is_class or isinstance(decorated_object, types.FunctionType) else None


def stand_in(name: str) -> Any:
    """Make a new stand-in."""
    return StandInType(name, (StandIn,), {"_stands_in": True, "__module__": "stand_in"})


class StandInModule(types.ModuleType):
    """A missing package."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return package_version(self.__name__)
        if name == "__file__":
            return f"/nonexistent/{self.__name__}/__init__.py"
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = KNOWN.get(f"{self.__name__}.{name}") or stand_in(name)
        setattr(self, name, attribute)
        return attribute


def _iinfo(number_type: Any) -> Any:
    bits = SIZES.get(getattr(number_type, "__name__", ""), 64)
    return types.SimpleNamespace(min=-(2 ** (bits - 1)), max=2 ** (bits - 1) - 1, bits=bits)


def _finfo(number_type: Any) -> Any:
    return types.SimpleNamespace(
        min=-448.0, max=448.0, bits=SIZES.get(getattr(number_type, "__name__", ""), 8), eps=0.125, tiny=0.01
    )


def _schema(function: Any, **_kwargs: Any) -> str:
    signature = inspect.signature(function)
    parameters = ", ".join(signature.parameters)
    return f"({parameters}) -> ({', '.join(['Tensor'] * str(signature.return_annotation).count('Tensor'))})"


# Functions that modules call while they are loaded: limits of number types, and the text of an operator's signature.
KNOWN: dict[str, Any] = {"torch.iinfo": _iinfo, "torch.finfo": _finfo, "torch.library.infer_schema": _schema}


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every missing package."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return a stand-in for modules outside the standard library, vLLM and C(REAL)."""
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
"""Versions of packages by vLLM's own requirements; modules ask for them while they are loaded."""


def package_version(name: str) -> str:
    """Return the version of a missing package."""
    return VERSIONS.get(name.replace("_", "-").lower(), "99.0.0")


def stand_in_for_packages(requires: list[str]) -> None:
    """Make missing packages importable."""
    for line in requires:
        match = re.match(r"([\w.-]+)(?:\[[\w,-]*\])?\s*\(?.*?(?:==|>=|~=)\s*([\d.]+)", line)
        if match:
            VERSIONS.setdefault(match.group(1).replace("_", "-").lower(), match.group(2))
    real = importlib.metadata.version

    def version(distribution_name: str) -> str:
        is_real = distribution_name.replace("-", "_") in REAL
        return real(distribution_name) if is_real else package_version(distribution_name)

    importlib.metadata.version = version
    sys.meta_path.insert(0, Importer())
