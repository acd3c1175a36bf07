#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: receipt
short_description: Write a receipt of what was deployed and measured for a service
version_added: 0.1.0
description:
  - Writes a receipt of a service to the host and compares it with the one before.
  - A receipt says what was deployed (O(deployed), deterministic) and how it measured (O(measured)). The measurements of the
    first proof of a deployment are kept as its baseline.
  - Drift and figures that got worse are returned as findings.
  - Only O(deployed), with O(cluster) and O(rank), counts as a change and is part of the diff; new measurements are written
    without one.
  - Of a service that spans hosts every rank has a receipt on its own host. Ranks behind the first one answer no requests, so
    theirs have no figures of any.
author:
  - dgxspark.vllm contributors (@dgxspark)
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: full
options:
  path:
    description:
      - File of the receipt. Its directory has to exist, except in check mode.
    type: path
    required: true
  service:
    description:
      - Name of the service. The name of the file without C(.json) unless given.
    type: str
  cluster:
    description:
      - What the service spans, for example name, executor and hosts. Left out or null for a service of one host.
    type: dict
  rank:
    description:
      - Which rank of O(cluster) this host has.
    type: int
    default: 0
  deployed:
    description:
      - What is deployed, for example image id, argv, names of environment variables and revision of the model. No secrets.
      - Required unless O(benchmark) is given.
    type: dict
  measured:
    description:
      - Figures. C(decode_tokens_per_second), C(ttft_seconds), C(warmup_seconds), C(start_seconds), C(residency_gib) and
        C(kv_cache_tokens) are compared with the baseline.
    type: dict
    default: {}
  fast_path:
    description: Which kernels ran, C(fast_path) of RV(dgxspark.vllm.spark_info#module:engines.services). Kept for people and the status; never a change.
    type: dict
  benchmark:
    description:
      - What M(dgxspark.vllm.service_bench) measured. It is put into the receipt that is there, and nothing else of it changes;
        a receipt that is not there is not made.
      - A later proof keeps it. When what is deployed has changed by then, its C(ratio) is null until it is measured again.
    type: dict
seealso:
  - module: dgxspark.vllm.endpoint_ready
  - module: dgxspark.vllm.spark_info
"""

EXAMPLES = r"""
- name: Write the receipt
  dgxspark.vllm.receipt:
    path: /var/lib/dgxspark/receipts/heavy.json
    deployed:
      image: "sha256:0f3a"
      argv: [vllm, serve, Qwen/Qwen3-4B-Instruct-2507]
    measured:
      decode_tokens_per_second: 41.5
      ttft_seconds: 0.21
  become: true
  register: receipt
"""

RETURN = r"""
receipt:
  description: The receipt as it is now (in check mode, as it would be).
  returned: success
  type: dict
previous:
  description: The receipt before. V(null) when there was none that could be read.
  returned: success
  type: dict
findings:
  description:
    - Warnings among them are shown as warnings of the task.
    - Drift (C(receipt.drift)) and figures that got worse (C(receipt.FIGURE)).
  returned: success
  type: list
  elements: dict
  sample:
    - rule: receipt.decode_tokens_per_second
      severity: warning
      service: heavy
      message: >-
        decode_tokens_per_second of heavy is 21 tokens/s; it was 42 tokens/s when this deployment was first proved (50% lower)
      fix: check the GPU clock and power, swap in use, and what else runs on the host
      basis: measured
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import Finding
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipt_file, receipts


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "service": {"type": "str"},
            "cluster": {"type": "dict"},
            "rank": {"type": "int", "default": 0},
            "deployed": {"type": "dict"},
            "measured": {"type": "dict", "default": {}},
            "benchmark": {"type": "dict"},
            "fast_path": {"type": "dict"},
        },
        mutually_exclusive=[("deployed", "benchmark")],
        required_one_of=[("deployed", "benchmark")],
        supports_check_mode=True,
    )
    params = module.params
    path = params["path"]

    def make(previous: receipts.Receipt | None) -> tuple[receipts.Receipt, list[Finding]]:
        if params["benchmark"] is not None:
            if previous is None:
                return module.fail_json(
                    msg=f"there is no receipt {path} to keep the figures in; site.yml --tags prove writes it"
                )
            return receipts.with_benchmark(previous, params["benchmark"]), []
        receipt = receipts.build(
            params["service"] or Path(path).stem,
            params["deployed"],
            params["measured"],
            previous,
            params["cluster"] or None,
            params["rank"],
            params["fast_path"],
        )
        return receipt, receipts.compare(previous, receipt)

    module.exit_json(**receipt_file.keep(module, path, make))


if __name__ == "__main__":
    main()
