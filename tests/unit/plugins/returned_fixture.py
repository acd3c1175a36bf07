"""The keys of a result that the section RETURN of a module names: in its descriptions, as C(key), and in its samples."""

from __future__ import annotations

import re
from typing import Any

import yaml


def named(returned: str, result: str) -> set[str]:
    """Return the keys that the documentation of one result names."""
    entry = yaml.safe_load(returned)[result]
    keys = set(re.findall(r"C\((\w+)\)", str(entry["description"])))
    samples = [entry.get("sample")]
    while samples:
        sample: Any = samples.pop()
        if isinstance(sample, dict):
            keys |= set(map(str, sample))
            samples += sample.values()
        elif isinstance(sample, list):
            samples += sample
    return keys
