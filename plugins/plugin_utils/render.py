# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the templates of the roles on the controller; every value is escaped for the syntax of its file.

The end of a template's name tells the syntax: C(NAME.service.j2) is a unit, C(NAME.nft.j2) a table of nftables. A template therefore
holds bare values, without quotes and without filters that escape.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from ansible.plugins.filter.core import to_nice_json, to_nice_yaml
from jinja2 import meta

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import file_syntax
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import containers, host_state

COLLECTION = Path(__file__).resolve().parents[2]
ROLES = COLLECTION / "roles"
# The first line of a template whose file contains double braces, as for Ansible.
DELIMITERS = re.compile(r"#jinja2: *variable_start_string: *'([^']+)', *variable_end_string: *'([^']+)' *\n")
VALUES = "values_of_this_file"


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """Return the text of a file.

    name: ROLE/TEMPLATE.j2, below C(templates) of the role. values: plain data, each escaped for its place. Raises ValueError for a value that is
    missing, or that the file cannot hold at its place.
    """
    values_in_text: list[Any] = []
    try:
        path = _path(name)
        text = _environment(*_read(path)[1]).get_template(path).render(values, **{VALUES: values_in_text})
        return file_syntax.fill(text, values_in_text, file_syntax.syntax_of(name))
    except (OSError, ValueError, jinja2.TemplateError) as error:
        raise ValueError(f"{name}: {error}") from error


def names_in(name: str) -> set[str]:
    """Return the variables of a template. name: as of C(render_template). Raises ValueError for an unreadable one."""
    try:
        text, delimiters = _read(_path(name))
        return meta.find_undeclared_variables(_environment(*delimiters).parse(text))
    except (OSError, jinja2.TemplateError) as error:
        raise ValueError(f"{name}: {error}") from error


def _path(name: str) -> str:
    role, _slash, file = name.partition("/")
    return str(ROLES / role / "templates" / file)


def _read(path: str) -> tuple[str, tuple[str, str]]:
    """Return a template without the line of its delimiters, and these."""
    text = Path(path).read_text(encoding="utf-8")
    match = DELIMITERS.match(text)
    return (text[match.end() :], (match[1], match[2])) if match else (text, ("{{", "}}"))


def _load(path: str) -> tuple[str, str, Callable[[], bool]]:
    """Return a template as Jinja loads it: its text, its path, and a function that tells whether it is unchanged."""
    text = _read(path)[0]
    return text, path, lambda: _read(path)[0] == text


@functools.lru_cache(maxsize=4)
def _environment(start: str, end: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        variable_start_string=start,
        variable_end_string=end,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=_mark,
        autoescape=False,  # every value is a mark until C(fill) escapes it
        loader=jinja2.FunctionLoader(_load),
    )
    environment.tests["ipv6"] = lambda address: ":" in address
    environment.filters["to_nice_yaml"] = lambda value, **how: file_syntax.Verbatim(
        to_nice_yaml(_defined(value), **how)
    )
    environment.filters["to_nice_json"] = lambda value: to_nice_json(_defined(value))
    environment.filters["mark_of"] = host_state.mark_of
    environment.filters["restricted_container"] = containers.restricted_server
    return environment


@jinja2.pass_context
def _mark(context: jinja2.runtime.Context, value: Any) -> str:
    """Return a mark in the place of a value. With the context, so that Jinja calls this when it renders, for constants, too."""
    _defined(value)
    values: list[Any] = context[VALUES]
    values.append(value)
    return f"\0{len(values) - 1}\0"


def _defined(value: Any) -> Any:
    """Return a value. Raises jinja2.UndefinedError with the name of an undefined one."""
    if isinstance(value, jinja2.Undefined):
        str(value)  # StrictUndefined raises the error
    return value
