#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain logs of engines: stage, last words, cause and fix."""

from __future__ import annotations

DOCUMENTATION = r"""
module: explain
short_description: Explain the log of a vLLM engine
description:
  - Returns the stage that the newest start in a log reached, the last words of the engine, their cause and the fix. With O(src) or
    O(content) it needs no host; with O(services) it reads the journals of units on the host, or the logs of containers.
  - The causes are the rows and signs of C(docs/known_failures.md); any other cause is unknown.
  - Secrets and control characters are removed from the texts. Of a long file the first and the last MiB are read.
options:
  src:
    description: Log file on the controller, of docker, docker compose, kubectl, journalctl or a shell.
    type: path
  content:
    description: Text of a log.
    type: str
  services:
    description: Services of the host, as the filter P(dgxspark.vllm.service_view#filter) returns them, with C(name), C(unit), C(container), whose log is
      read if the unit has no journal, and C(probe), of which C(api_key_file) is used, to remove the key from texts.
    type: list
    elements: dict
  lines:
    description: Last lines of each journal.
    type: int
    default: 2000
  show:
    description: Print the explanations as labelled lines.
    type: bool
    default: true
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Explain a file
  dgxspark.vllm.explain:
    src: vllm.log
  delegate_to: localhost

- name: Explain the logs of the services
  dgxspark.vllm.explain:
    services: "{{ spark_plan.services | dgxspark.vllm.service_view('explain') }}"
  become: true
"""

RETURN = r"""
explanations:
  description: One entry for each log. C(name) is that of the service, or the path of the file; empty for O(content). C(id) is the row or sign of
    C(docs/known_failures.md), V(unknown), or V(none) if the log has no failure. C(stage) is what the start reached, V(container) before the
    engine prints anything. C(error) are the last words of the program. C(source) is where the cause is known from.
  returned: success
  type: list
  sample: [{name: heavy, id: one_request, stage: kv_cache, error: "ValueError: ...", cause: one request of max-model-len tokens does not fit, fix: lower it}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.redaction import Redactor
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain, readiness
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import engine_client
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import reader

LOG_SECONDS = 30.0  # that journalctl or docker may take


def main() -> None:
    """Explain the logs of services of this host; the action plugin explains files and prints."""
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path"},
            "content": {"type": "str"},
            "services": {"type": "list", "elements": "dict"},
            "lines": {"type": "int", "default": 2000},
            "show": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    run = reader(LOG_SECONDS)
    services = module.params["services"] or []
    module.exit_json(
        changed=False, explanations=[explain_service(run, service, module.params["lines"]) for service in services]
    )


def explain_service(run: Any, service: dict[str, Any], lines: int) -> dict[str, str]:
    """Explain the journal of a service's unit, or the log of its container."""
    try:
        key = engine_client.read_api_key((service.get("probe") or {}).get("api_key_file"))
    except engine_client.Problem:
        key = ""
    log = readiness.read_log(run, service["unit"], service["container"], lines)
    answer = explain.explain(log, Redactor([key] if key else []))
    return {"name": service["name"], **answer.to_dict()}


if __name__ == "__main__":
    main()
