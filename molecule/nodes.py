"""The nodes of a run of scenarios. Runs go side by side, each with another SPARKSIM_SET and SPARKSIM_SUBNET."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim"))

from simlib.config import SETS, Node

SET = SETS[os.environ.get("SPARKSIM_SET") or "test"]
SUBNET = SET.subnet_prefix
NODES = {node.hostname: node.container for node in (Node(SET.name, 1), Node(SET.name, 2))}
FLEET = {node.hostname: node.container for node in (Node(SET.name, index) for index in range(1, 5))}
"""Those of scenarios that boot four."""
THIRD = Node(SET.name, 3).container
"""A node that only some scenarios have, for a host that is no Spark."""
AT_NIGHT = not os.environ.get("SPARKSIM_EACH_CHANGE")
"""Whether a scenario has all of it: the inventory of its folder nightly, too, where it has one."""
MANAGEMENT_NETWORK = SET.network("mgmt")
