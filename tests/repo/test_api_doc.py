"""The page of the API names what there is, and what it says of findings is so."""

from __future__ import annotations

import importlib
import inspect
import re

import plan
import pytest
import tree

PAGE = tree.read("docs/api.md")
FUNCTIONS = re.findall(r"^### `([\w.]+)\.(\w+)\((.*)\)`$", PAGE, re.MULTILINE)
ENGINE = "ansible_collections.dgxspark.vllm.plugins.module_utils"


@pytest.mark.parametrize(("module", "name", "arguments"), FUNCTIONS, ids=[found[1] for found in FUNCTIONS])
def test_a_function_takes_what_the_page_says(module: str, name: str, arguments: str) -> None:
    function = getattr(importlib.import_module(f"{ENGINE}.{module}"), name)
    signature = inspect.signature(function)
    assert list(signature.parameters) == arguments.split(", ")
    assert signature.return_annotation != inspect.Signature.empty
    assert all(each.annotation != inspect.Parameter.empty for each in signature.parameters.values())


def test_exceptions_of_the_page_exist() -> None:
    named = re.findall(r"Raises `(_[\w.]+)\.(\w+)`", PAGE)
    assert len(named) == 2
    assert all(
        issubclass(getattr(importlib.import_module(f"{ENGINE}.{module}"), name), Exception) for module, name in named
    )


def test_exit_codes_are_those_of_the_script() -> None:
    codes = {int(code): text for code, text in re.findall(r"^\| (\d) \| (.*?) \|$", PAGE, re.MULTILINE)}
    assert set(codes) == {plan.FITS, plan.FAILS, plan.WRONG}
    assert "fits" in codes[plan.FITS] and "does not" in codes[plan.FAILS] and "cannot be planned" in codes[plan.WRONG]
