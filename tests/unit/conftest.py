# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all unit tests share.

Findings have ids and severities of docs/findings.yml. Properties are tried with the same examples everywhere, however
slow the machine; HYPOTHESIS_PROFILE=default tries new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from registered_findings import REGISTER, is_registered

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding

settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.fixture(autouse=True, scope="session")
def registered_findings() -> Iterator[None]:
    """Refuse findings whose id or severity is missing in docs/findings.yml, and so on the pages.

    Only tests are so strict: a run of somebody's should not end for it.
    """
    made = Finding.__post_init__

    def checked(self: Finding) -> None:
        made(self)
        assert is_registered(self.rule), f"finding {self.rule!r} is not registered; add it to docs/findings.yml"
        assert self.severity in REGISTER.get(self.rule, (self.severity,)), (
            f"{self.rule} is {self.severity} here, and {', '.join(REGISTER[self.rule])} in docs/findings.yml"
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finding, "__post_init__", checked)
        yield
