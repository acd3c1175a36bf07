#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of findings in docs/ from docs/findings.yml; --check only compares.

A line C(<!-- findings: scripts/generate_findings_doc.py -->) is followed by the table of the findings whose page is the heading
above it. C(<!-- findings: scripts/generate_findings_doc.py, also lock.* host.nft -->) adds findings of other pages by shell patterns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from common import ROOT, write_generated
from registered_findings import ENTRIES, Entry

DOCS = ROOT / "docs"
# A single # may also be a comment in a block of shell or YAML; no table stands right below a page's title.
HEADING = re.compile(r"^##+ +(.+?) *$", re.MULTILINE)
MARKER = r"<!-- findings: scripts/generate_findings_doc\.py(?:, also (?P<also>[^>]+?))? -->"
BLOCK = re.compile(rf"^(?P<marker>{MARKER})\n\n?(?:\|.*\n)*", re.MULTILINE)
HEAD = ["| rule | meaning | fix |", "|---|---|---|"]


def main() -> int:
    """Write the pages, or compare them; returns the exit code."""
    texts: dict[Path, str] = {}
    listed: set[str] = set()
    for path in sorted(DOCS.glob("*.md")):
        texts[path], places = page(path.name, path.read_text(encoding="utf-8"))
        listed |= places
    for place in sorted({entry.page for entry in ENTRIES.values()} - listed):
        print(f"docs/{place}: findings.yml lists findings there, but no such heading has a mark for their table.")
        return 1
    return write_generated(texts)


def page(name: str, text: str) -> tuple[str, set[str]]:
    """Return a page of docs/ with new tables, and the places (C(NAME#anchor)) of all its tables."""
    places = set()

    def written(match: re.Match[str]) -> str:
        """Return a mark with its table."""
        place = f"{name}#{anchor_of(HEADING.findall(text, 0, match.start())[-1])}"
        places.add(place)
        rows = "\n".join(table(place, (match["also"] or "").split()))
        below = text[match.end() :]
        return f"{match['marker']}\n\n{rows}\n" + ("\n" if below and not below.startswith("\n") else "")

    return BLOCK.sub(written, text), places


def table(place: str, also: Iterable[str]) -> list[str]:
    """Return the table of one place, with the findings of other pages that match C(also)."""
    entries = [entry for entry in ENTRIES.values() if entry.page == place]
    further = [entry for pattern in also for entry in ENTRIES.values() if fnmatchcase(entry.rule, pattern)]
    return [*HEAD, *map(row, [*entries, *further])]


def row(entry: Entry) -> str:
    """Return the row of one finding."""
    return f"| `{entry.rule}` {', '.join(entry.severities)} | {entry.meaning} | {entry.fix} |"


def anchor_of(heading: str) -> str:
    """Return the part of an address that leads to a heading, as the usual Markdown renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
