#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the QSFP network from one host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_check
short_description: Test the QSFP network from one host
description:
  - Sends packets that fill the MTU and must not be fragmented to the other hosts of a group, on each rail, where they are lost small ones too. Says which
    routes and which settings of a relay are gone. Runs the sending side of probes of the bandwidth, 1 GiB each, and one rank of an all-reduce over all
    hosts of an engine, by the torch and the NCCL of its image, when it runs on all of them at once.
  - Findings are returned and never fail the task. A program that does not say what is set of a relay does.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  pings:
    description: C(pings) of this host in RV(dgxspark.vllm.fabric_plan#module:hosts).
    type: list
    elements: dict
    default: []
  relay:
    description: C(relay) of this host in RV(dgxspark.vllm.fabric_plan#module:hosts); what its unit has set is looked at.
    type: list
    elements: dict
    default: []
  routes:
    description: C(netplan) of this host in RV(dgxspark.vllm.fabric_plan#module:hosts); the routes in it are looked for in the kernel.
    type: dict
    default: {}
  bandwidth:
    description:
      - Entries of RV(dgxspark.vllm.fabric_plan#module:bandwidth_tests) whose other side listens already.
      - Left out means that nothing is measured; an empty list is reported as such.
    type: list
    elements: dict
  collective:
    description: C(cluster.collective) of the host's part of the plan; left out or empty means that no all-reduce is run.
    type: dict
  min_gbps:
    description: Gb/s that each program must reach on a rail, and C(all_reduce) over all hosts.
    type: dict
    default: {}
  attempts:
    description: How often a probe is tried, a second apart, while the other side is still getting ready.
    type: int
    default: 5
"""

EXAMPLES = r"""
- name: Send large packets on each rail
  dgxspark.vllm.fabric_check:
    pings: "{{ fabric.hosts[inventory_hostname].pings }}"
  register: checked
"""

RETURN = r"""
pings:
  description: What was sent, with C(large) and, where that failed, C(small), each C(sent), C(received) and C(error).
  returned: success
  type: list
  elements: dict
relay:
  description: What of O(relay) is not set.
  returned: success
  type: list
  sample: ["net.ipv4.ip_forward is not 1: 0"]
routes:
  description: Which routes of O(routes) are not there.
  returned: success
  type: list
  sample: ["there is no route to 192.168.102.0/24 via 192.168.100.11 on enp1s0f0np0"]
bandwidth:
  description: Each probe with its C(gbps), or V(null) and an C(error).
  returned: success
  type: list
  sample: [{"rail": "rail0", "topology": "ring", "tool": "ib_write_bw", "server": "spark-1", "client": "spark-2", "gbps": 97.28, "error": ""}]
collective:
  description: C(gbps) of the all-reduce as NCCL's own tests count it (busbw), with C(backend), C(nccl), C(ranks), C(bytes) and C(seconds), and
    C(cables), Gb/s by pair of ranks that one cable or switch joins; else C(error), C(lacks) or C(unknown).
  returned: when asked for
  type: dict
  sample: {"backend": "nccl", "nccl": "2.28.9", "ranks": 4, "bytes": 268435456, "seconds": 0.0373, "gbps": 86.4, "cables": {"0-1": 184.2}}
findings:
  description: What is wrong.
  returned: success
  type: list
  elements: dict
report:
  description: The findings as lines of text, errors first.
  returned: success
  type: list
  elements: str
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import (
    collective,
    fabric,
    fabric_bandwidth,
    pings,
    relay,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import runner

TEST_SECONDS = 180.0  # that a ping or a bandwidth test may take


def measure(run: Any, test: dict[str, Any], attempts: int) -> dict[str, Any]:
    """Send a probe; tries again while nobody listens yet."""
    probe = {key: test[key] for key in ("rail", "topology", "tool", "server", "client")}
    gbps, error = None, ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(1)
        rc, out, err = run([str(word) for word in test["send"]])
        gbps = fabric_bandwidth.parse_bandwidth(test["tool"], out)
        if gbps is not None:
            return {**probe, "gbps": gbps, "error": ""}
        error = (err.strip() or out.strip() or f"exit code {rc}").splitlines()[-1]
    return {**probe, "gbps": gbps, "error": error}


def add_up(test: dict[str, Any]) -> dict[str, Any]:
    """Run one rank of an all-reduce; its container is removed even after a failure."""
    argv = [str(word) for word in test["argv"]]
    remove = [argv[0], "rm", "--force", collective.CONTAINER]
    command.run(remove, TEST_SECONDS)
    try:
        answer = command.run([*argv, "-c", collective.program()], collective.SECONDS, tail=True)
    finally:
        command.run(remove, TEST_SECONDS)
    if answer.state != command.FINISHED:
        return {"unknown": answer.why}
    return collective.read(answer.rc, answer.out, answer.err)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "pings": {"type": "list", "elements": "dict", "default": []},
            "relay": {"type": "list", "elements": "dict", "default": []},
            "routes": {"type": "dict", "default": {}},
            "bandwidth": {"type": "list", "elements": "dict"},
            "collective": {"type": "dict"},
            "min_gbps": {"type": "dict", "default": {}},
            "attempts": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    run = runner(module, TEST_SECONDS)
    sent = [pings.send(run, ping) for ping in module.params["pings"]]
    findings = list(pings.judge_pings(sent))
    tests = module.params["bandwidth"]
    measured = [measure(run, test, module.params["attempts"]) for test in tests or []]
    if tests is not None:
        findings += fabric_bandwidth.judge_bandwidth(measured, module.params["min_gbps"])
    with command.failing(module):
        more: dict[str, Any] = {
            "relay": relay.not_passed_on(run, module.params["relay"]),
            "routes": relay.lost_routes(run, relay.routes_of(module.params["routes"])),
        }
    test = None if module.check_mode else module.params["collective"]
    if test:
        more["collective"] = add_up(test)
        findings += collective.judge(str(test["host"]), test, more["collective"], module.params["min_gbps"])
    rows = [finding.to_dict() for finding in findings]
    module.exit_json(changed=False, pings=sent, bandwidth=measured, findings=rows, report=fabric.lines(rows), **more)


if __name__ == "__main__":
    main()
