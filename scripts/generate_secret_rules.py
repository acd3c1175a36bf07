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

ROWS = "_RULES = (\n"
"""The line of the module that the rules follow."""
FOOTER = f'''\
)
_BEGIN, _END = r"{BEGIN}", r"{END}"
RULES = [(words.split(), form.replace("<begin>", _BEGIN).replace("<end>", _END)) for words, form in _RULES]
"""Rules: words of which one is in each text with such a token (in lower case), regular expression."""
'''
PIECE = 110
"""Characters of a piece of a long expression."""


def translate_regex(regex: str) -> str:
    """Return an expression of Go's RE2 as one of Python's re, which knows no flag in the middle of an expression.

    Raises ValueError for an expression that cannot be translated or does not compile.
    """
    for old, new in ((GITLEAKS_END, END), (r"\z", r"\Z"), ("[[:alnum:]]", "[A-Za-z0-9]"), (r"\x60", "`")):
        regex = regex.replace(old, new)
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


def main(source: Path) -> None:
    """Write the module from a gitleaks.toml."""
    rows = []
    for rule in tomllib.loads(source.read_text(encoding="utf-8"))["rules"]:
        regex = rule.get("regex", "")
        if not regex or rule["id"] in COVERED or BY_NAME in regex:
            continue
        keywords = " ".join(sorted(word.lower() for word in rule["keywords"]))
        rows.append(f"    ({keywords!r}, {literal(translate_regex(regex))}),\n")
    header, begin, _rows = TARGET.read_text(encoding="utf-8").partition(ROWS)
    TARGET.write_text(header + begin + "".join(rows) + FOOTER, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
