# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who reads the wall clock, and the date of a file: hosts have theirs set at times, by an hour or by years.

Waiting, deadlines and the order of things go by C(time.monotonic), by counters, or by C(file_times).
"""

from __future__ import annotations

import re

import tree

READS = re.compile(r"\btime\.time\b|datetime\.now\(|\butcnow\(|\bgetmtime\(|\bst_[mc]time(_ns)?\b")
TEXT = "a date that people read"
SAME = "a date tells one content of a file from another, and is no age"
WHY = {
    "plugins/action/ask.py": "bounds the error of a host's clock, which is what is asked",
    "plugins/action/doctor.py": TEXT,
    "plugins/action/drift.py": TEXT,
    "plugins/action/fabric_plan.py": TEXT,
    "plugins/action/plan.py": TEXT,
    "plugins/action/service_bench.py": TEXT,
    "plugins/action/status.py": TEXT,
    "plugins/action/support_bundle.py": TEXT,
    "plugins/plugin_utils/events.py": TEXT,
    "plugins/module_utils/_content/spread_server.py": "an age of files: a clock that is set ends or prolongs a wait by minutes",
    "plugins/module_utils/_runtime/kv_files.py": "an order of files by their last use; a clock that is set removes others of them",
    "plugins/module_utils/_fleet/generation_host.py": "with the monotonic clock of the same moment, for file_times",
    "plugins/module_utils/_fleet/generation_records.py": TEXT,
    "plugins/module_utils/_host/deploy_units.py": "with the monotonic clock of the same moment, for file_times",
    "plugins/module_utils/_host/file_times.py": "dates by the monotonic clock, and doubts a date of the future",
    "plugins/module_utils/_host/staging.py": "an age in either direction: a draft takes a moment",
    "plugins/module_utils/_fleet/unit_history.py": "with the monotonic clock of the same moment, by which entries are dated",
    "plugins/module_utils/_fleet/live_agent.py": TEXT,
    "plugins/module_utils/_fleet/live_fleet.py": "ages for people; a clock that is set makes figures look older or newer",
    "plugins/module_utils/_fleet/live_host.py": "the date of a proof, and of a state file that is rewritten each 15 s",
    "plugins/module_utils/_fleet/live_server.py": "ages and the axis of charts for people; looks go by the monotonic clock",
    "plugins/module_utils/_fleet/host_health.py": "the clock is what is asked; ages of days; the cache of an engine against its unit, as a hint",
    "plugins/module_utils/_proof/service_status.py": "the date of a state file that is rewritten each 15 s, in either direction",
    "plugins/action/bundle.py": "an age: the draft of a transfer that was cut off is removed after a while",
    "plugins/plugin_utils/image_plans.py": "an age of a day; a date of the future is asked again",
    "plugins/module_utils/_agent/accounts.py": "the age of a state file that is rewritten each 15 s",
    "plugins/module_utils/_agent/figures.py": "dates as metrics, which alerts compare with the host's own clock",
    "plugins/module_utils/_agent/memory.py": "with the monotonic clock of the same moment, for bounds over a day; dates for people",
    "plugins/module_utils/_agent/watch.py": "with the monotonic clock of the same moment, for the tracker",
    "plugins/module_utils/_agent/questions.py": TEXT,
    "roles/fleet_monitor/files/spark_fleet_monitor.py": "what people are told, and their quiet hours",
    "roles/service/files/spark_on_demand.py": "dates for people; the decision goes by the monotonic clock",
    "roles/service/files/spark_on_demand_slot.py": "dates for people; the decision goes by the monotonic clock",
}
WHY |= {
    "plugins/module_utils/_host/beneath.py": SAME,
    "plugins/module_utils/_fleet/compare_contents.py": SAME,
    "plugins/modules/model_folder.py": SAME,
    "plugins/plugin_utils/files.py": SAME,
    "plugins/plugin_utils/role_variables.py": SAME,
    "roles/gateway/files/container/hooks.py": SAME,
}


def test_who_reads_a_clock_that_people_set_has_a_reason() -> None:
    names = [*tree.below("plugins/", suffix=".py"), *tree.below("roles/", suffix=".py")]
    assert {name for name in names if READS.search(tree.read(name))} == set(WHY)
