# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write the file of a receipt, for modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._common.findings import Finding
from .._host import host_lock, staging
from . import receipts

MODE = 0o644
Make = Callable[["receipts.Receipt | None"], tuple[receipts.Receipt, list[Finding]]]


def keep(module: Any, path: str, make: Make) -> dict[str, Any]:
    """Write the receipt that follows the previous one, with its findings.

    :param make: makes receipt and findings from the previous receipt, None for the first
    :returns: C(changed), C(receipt) and C(previous) as mappings, C(findings), and C(diff) with C(--diff)
    """
    previous, old_text = read_previous(module, path)
    receipt, findings = make(previous)
    changed = previous is None or previous.subject != receipt.subject

    text = receipts.dump(receipt)
    if not module.check_mode and text != old_text:
        write(module, path, text)
    if Path(path).exists():
        changed = module.set_mode_if_different(path, MODE, changed)

    for finding in findings:
        if finding.severity == "warning":
            module.warn(f"{finding.message}; {finding.fix}")
    result = {
        "changed": changed,
        "receipt": receipt.to_dict(),
        "previous": previous.to_dict() if previous else None,
        "findings": [finding.to_dict() for finding in findings],
    }
    if module._diff:
        result["diff"] = {
            "before_header": path,
            "after_header": path,
            "before": receipts.text_of(previous.subject) if previous else "",
            "after": receipts.text_of(receipt.subject),
        }
    return result


def keep_benchmark(module: Any, path: str, benchmark: Mapping[str, Any]) -> dict[str, Any]:
    """Put the figures of a benchmark into the receipt of a service; fails the module for a missing receipt."""

    def make(previous: receipts.Receipt | None) -> tuple[receipts.Receipt, list[Finding]]:
        if previous is None:
            module.fail_json(msg=f"there is no receipt {path} to keep the figures in; site.yml --tags prove writes it")
            raise AssertionError("fail_json returned")
        return receipts.with_benchmark(previous, benchmark), []

    return keep(module, path, make)


def read_previous(module: Any, path: str) -> tuple[receipts.Receipt | None, str | None]:
    """Return the receipt on disk and its text; a damaged receipt is reported and counts as missing."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        return receipts.load(text), text
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        module.warn(f"the receipt {path} cannot be read and is made anew: {error}")
        return None, None


def write(module: Any, path: str, text: str) -> None:
    """Write to a temporary file and rename it, so that a reader never sees half a receipt; the module fails if that fails."""
    directory = Path(path).parent
    if not directory.is_dir():
        module.fail_json(msg=f"the directory {directory} of the receipt does not exist; the role host makes it")
    try:
        with host_lock.held(module) as locked:
            if locked:
                staging.sweep(more=[directory])
            staging.beside(Path(path), text.encode(), MODE).replace(path)
    except OSError as error:
        module.fail_json(msg=f"the receipt {path} cannot be written: {error}")
