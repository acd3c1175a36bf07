# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts of C(platform_data) on kernels, drivers, packages and pairs of them. The plan and the doctor judge a running host with them, an
update its pending packages. Comparisons, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .driver_packages import version_key
from .platform_data import ROWS

GOOD, BAD, DOUBTFUL = "good", "bad", "doubtful"
KHO_OFF = "kho=off"
"""The option of the kernel's command line that DGX OS 7.6 sets, by the package below."""
KHO_PACKAGE = "nvidia-spark-grub-kho"
_KHO_SIGN_GIB = 1.0
"""CmaFree above CmaTotal by more than this: pages of the handover. 9.3 to 9.7 GiB were seen; CmaTotal 0 alone is no sign."""


@dataclass(frozen=True)
class Row:
    """One line of C(platform_data.ROWS), whose keys these are."""

    verdict: str
    source: str
    date: str
    kernel: str = ""
    driver: str = ""
    dgx_os: str = ""
    other_driver: str = ""
    option: bool | None = None
    package: str = ""
    version: str = ""
    clusters_only: bool = False
    why: str = ""
    fix: str = ""

    @property
    def subject(self) -> str:
        """The subject of the line: a C(package), the C(option) of a kernel, a C(kernel), a C(branch) of drivers, or a C(pair)."""
        if self.package:
            return "package"
        if self.other_driver:
            return "branch"
        if self.option is not None:
            return "option"
        return "pair" if self.driver else "kernel"

    def of(self, host: Mapping[str, Any]) -> str:
        """Return the versions of a host that this line is about, for a message. host: see C(holds)."""
        parts = (
            ("driver", "driver", self.driver or self.other_driver),
            ("kernel", "kernel", self.kernel),
            ("DGX OS", "dgx_os", self.dgx_os),
        )
        return " with ".join(f"{name} {host.get(key)}" for name, key, version in parts if version)

    def holds(self, host: Mapping[str, Any]) -> bool:
        """Whether the line applies to a host; unknown versions match no line.

        :param host: C(kernel), C(driver) and C(dgx_os), versions, and C(option), whether the kernel's command line has C(KHO_OFF)
        """
        driver = str(host.get("driver") or "")
        return (
            not self.package
            and all(
                begins(str(host.get(key) or ""), version)
                for key, version in (("kernel", self.kernel), ("driver", self.driver), ("dgx_os", self.dgx_os))
                if version
            )
            and (not self.other_driver or bool(driver and not begins(driver, self.other_driver)))
            and (self.option is None or host.get("option") is self.option)
        )

    def comes(self, old: str, new: str, dgx_os: str) -> bool:
        """Whether an update of the driver reaches the version of this line, or passes it.

        :returns: False if the present driver has already passed it
        """
        step = version_key(self.driver)
        return begins(dgx_os, self.dgx_os) and version_key(old) < step <= version_key(new)


TABLE = tuple(Row(**row) for row in ROWS)
KEEPS_HANDOVER = next(row for row in TABLE if row.option is False and row.verdict == BAD)
"""The line on kernels that keep memory for kexec handover (KHO) unless told not to."""


def begins(text: str, begin: str) -> bool:
    """Whether a version is C(begin), or continues it after the end of a number."""
    return text.startswith(begin) and not text[len(begin) : len(begin) + 1].isdigit()


def against(host: Mapping[str, Any]) -> list[Row]:
    """Return the lines that speak against a host, in the order of the table. host: see C(Row.holds)."""
    rows = [row for row in TABLE if row.holds(host)]
    # A good pair of kernel and driver outweighs a bad kernel alone.
    good = max(((len(row.kernel), bool(row.driver)) for row in rows if row.verdict == GOOD), default=(0, False))
    return [
        row for row in rows if row.verdict != GOOD and not (row.kernel and (len(row.kernel), bool(row.driver)) < good)
    ]


def against_package(name: str, version: str) -> list[Row]:
    """Return the lines that speak against a package of Debian. version: with or without its revision."""
    upstream = version.split("-", maxsplit=1)[0]
    return [row for row in TABLE if row.package == name and row.version == upstream and row.verdict != GOOD]


def keeps_handover(memory: Mapping[str, Any]) -> bool:
    """Whether a host with any kernel shows memory kept for kexec handover. memory: of M(dgxspark.vllm.spark_info)."""
    total, free = memory.get("cma_total_gib"), memory.get("cma_free_gib")
    return total is not None and free is not None and free - total > _KHO_SIGN_GIB


def of_running(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions of a running host for C(Row.holds), without C(option), for which C(keeps_handover) is the better evidence.

    facts: of M(dgxspark.vllm.spark_info).
    """
    return {
        "kernel": str(facts.get("kernel") or ""),
        "driver": str((facts.get("gpu") or {}).get("driver_version") or ""),
        "dgx_os": str((facts.get("dgx_os") or {}).get("version") or ""),
    }
