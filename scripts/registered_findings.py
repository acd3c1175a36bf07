# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of docs/findings.yml, for the documentation and the tests."""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml
from common import ROOT

LAUNCH_RULE = re.compile(r"SPK[0-9A-Z]\d\d")
"""The ids of rules about launches, units and docker commands, which are declared in plugins/module_utils/_compat."""


@dataclass(frozen=True)
class Entry:
    """One finding in general terms.

    rule: its id. severities: those that it may have, the worst first. meaning, fix: a line of Markdown each.
    page: the page of docs/ that lists it, with the anchor of the heading, for example C(distribution.md#findings-of-the-lock-file).
    """

    rule: str
    severities: tuple[str, ...]
    meaning: str
    fix: str
    page: str


ENTRIES: dict[str, Entry] = {}
"""Every finding by its id, in the order in which the pages list them."""
for _page, _findings in yaml.safe_load((ROOT / "docs" / "findings.yml").read_text(encoding="utf-8")).items():
    for _rule, _texts in _findings.items():
        if _rule in ENTRIES:
            raise ValueError(f"docs/findings.yml lists {_rule} below {ENTRIES[_rule].page} and below {_page}")
        ENTRIES[_rule] = Entry(_rule, tuple(_texts["severities"]), _texts["meaning"], _texts["fix"], _page)
REGISTER = {rule: entry.severities for rule, entry in ENTRIES.items()}
"""The severities of every finding except rules about launches, the worst first."""


def is_registered(rule: str) -> bool:
    """Tell whether C(rule) may be the id of a finding."""
    return rule in REGISTER or LAUNCH_RULE.fullmatch(rule) is not None
