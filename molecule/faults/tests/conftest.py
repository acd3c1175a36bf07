"""Says which points the tests of this run choose."""

from __future__ import annotations

import os
import random

# FAULTS_SEED=123456 repeats what failed.
os.environ.setdefault("FAULTS_SEED", str(random.SystemRandom().randrange(1_000_000)))


def pytest_report_header():
    return f"FAULTS_SEED={os.environ['FAULTS_SEED']}"
