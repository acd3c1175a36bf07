# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write plugins/module_utils/_common/secret_rules.py from a gitleaks.toml: generate_secret_rules.py gitleaks.toml

Takes the rules that recognise a token by its form alone. Rules that need the name of a vendor before any random word
are left out: redaction.py judges names itself, and these rules backtrack on long lines.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import tomllib

TARGET = Path(__file__).resolve().parent.parent / "plugins/module_utils/_common/secret_rules.py"
BY_NAME = r"[\w.-]{0,50}?"
"""How gitleaks begins the rules that look for a name before the token."""
BEGIN, END = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))", "(?![A-Za-z0-9])"
"""Of a token: no letter or digit around it, except an escaped end of a line before it, as in JSON."""
GITLEAKS_END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
COVERED = {
    "curl-auth-header",
    "curl-auth-user",
    "jwt",
    "jwt-base64",
    "kubernetes-secret-yaml",
    "private-key",
    "nuget-config-password",
}
"""Forms that redaction.py recognises itself, with more spellings and in linear time."""

HEADER = '''\
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forms of tokens, by vendor: the rules of gitleaks that need no name before the token. Generated, do not edit.

Made by scripts/generate_secret_rules.py from gitleaks' config/gitleaks.toml, https://github.com/gitleaks/gitleaks.

The rules are Copyright (c) 2019 Zachary Rice, under the MIT License:
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

from __future__ import annotations

_RULES: tuple[tuple[str, tuple[str, ...], str], ...] = (
'''
FOOTER = f'''\
)
_BEGIN, _END = r"{BEGIN}", r"{END}"
RULES = [(name, words, form.replace("<begin>", _BEGIN).replace("<end>", _END)) for name, words, form in _RULES]
"""Rules: id, words of which one is in each text with such a token (in lower case), regular expression."""
'''
PIECE = 110
"""Characters of a piece of a long expression."""


def translate_regex(regex: str) -> str:
    """Return an expression of Go's RE2 as one of Python's re, which knows no flag in the middle of an expression.

    Raises ValueError for an expression that cannot be translated or does not compile.
    """
    regex = (
        regex.replace(GITLEAKS_END, END)
        .replace(r"\z", r"\Z")
        .replace("[[:alnum:]]", "[A-Za-z0-9]")
        .replace(r"\x60", "`")
    )
    while (at := regex.find("(?i)", 1)) > 0:
        end = end_of_group(regex, at + 4)
        tail = regex[at + 4 : end]
        if "|" in re.sub(r"\([^()]*\)|\[[^\]]*\]", "", tail):
            raise ValueError(f"a flag before alternatives: {regex}")
        regex = f"{regex[:at]}(?i:{tail}){regex[end:]}"
    regex = re.sub(r"^(\(\?i\))?\\b", lambda match: (match[1] or "") + BEGIN, regex)
    re.compile(regex)
    return regex


def end_of_group(regex: str, at: int) -> int:
    """Return where the group ends that encloses a place of an expression."""
    depth, in_class = 0, False
    while at < len(regex):
        char = regex[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "(":
            depth += 1
        elif char == ")":
            if depth == 0:
                return at
            depth -= 1
        at += 1
    return at


def literal(text: str) -> str:
    """Return an expression as Python literal, in pieces that fit into a line."""
    text = text.replace(BEGIN, "<begin>").replace(END, "<end>")
    pieces = re.findall(rf".{{1,{PIECE}}}(?<!\\)|.+", text)
    return " ".join(repr(piece) if '"' in piece else f'r"{piece}"' for piece in pieces)


def render_rules(config: dict[str, Any]) -> str:
    """Return the generated module for a parsed gitleaks.toml."""
    rows = []
    for rule in config["rules"]:
        regex = rule.get("regex", "")
        if not regex or rule["id"] in COVERED or BY_NAME in regex:
            continue
        keywords = tuple(sorted(word.lower() for word in rule["keywords"]))
        rows.append(f"    ({rule['id']!r}, {keywords!r}, {literal(translate_regex(regex))}),\n")
    return HEADER + "".join(rows) + FOOTER


def main(files: list[str]) -> int:
    if len(files) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    TARGET.write_text(render_rules(tomllib.loads(Path(files[0]).read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
