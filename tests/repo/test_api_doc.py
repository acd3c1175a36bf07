"""The page of the API names existing functions, and describes their arguments, exceptions and findings correctly."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
import tree

PAGE = tree.read("docs/automation.md")
FUNCTIONS = dict(re.findall(r"^### `([\w.]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
CALL = re.compile(r"^`(\w+)\((.*?)\)`", re.MULTILINE)
ENGINE = "ansible_collections.dgxspark.vllm.plugins.module_utils"


def shown(parameter: inspect.Parameter) -> str:
    """An argument as a call on the page has it; a function as default is none."""
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={'none' if callable(default) else repr(default)}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_the_page_says(name: str) -> None:
    module, _dot, function = name.rpartition(".")
    signature = inspect.signature(getattr(importlib.import_module(f"{ENGINE}.{module}"), function))
    arguments = ", ".join(shown(parameter) for parameter in signature.parameters.values())
    assert CALL.findall(FUNCTIONS[name]) == [(function, arguments)]
    assert signature.return_annotation != inspect.Signature.empty
    assert "Returns " in FUNCTIONS[name]


def test_all_functions_are_found() -> None:
    assert len(FUNCTIONS) == 6


def test_exceptions_of_the_page_exist() -> None:
    named = re.findall(r"Raises\s+`(_[\w.]+)\.(\w+)`", PAGE)
    assert len(named) == 3
    assert all(
        issubclass(getattr(importlib.import_module(f"{ENGINE}.{module}"), name), Exception) for module, name in named
    )
