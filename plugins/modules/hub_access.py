#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check access to models on the hub before they are downloaded."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hub_access
short_description: Check access to models on the hub before they are downloaded
description:
  - Requests one file of every model that is incomplete on the host, as the download would, and reports all refusals at once, such as a licence
    that was not accepted. Models that are complete are skipped, so that a host without access to the hub can be deployed again.
  - An unreachable hub is a warning; the download fails if it needs weights from there.
options:
  models:
    description: The models, as M(dgxspark.vllm.plan) returns them; entries without a C(repo) are passed over.
    type: list
    elements: dict
    required: true
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  token_file:
    description: File B(on the controller) that holds a token for gated models.
    type: str
    default: ''
  endpoint:
    description: Address of a mirror of the hub.
    type: str
    default: ''
  timeout:
    description: Seconds that the hub has for an answer.
    type: float
    default: 20
  token:
    description: Set by the action plugin from O(token_file).
    type: str
    default: ''
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
"""

EXAMPLES = r"""
- name: Check access to all models
  dgxspark.vllm.hub_access:
    models: "{{ spark_plan.models }}"
    token_file: "{{ inventory_dir }}/.secrets/hf_token"
"""

RETURN = r"""
asked:
  description: What was asked for and what the answer means, V(ok), V(licence), V(gated), V(token), V(missing), V(revision), V(other) or V(unreachable).
  returned: always
  type: list
  sample: [{"repo": "Qwen/Qwen3-8B", "revision": "main", "meaning": "ok", "status": 302}]
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import hub_access, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import http_client

AT_ONCE = 8


def ask(model: dict[str, Any], endpoint: str, token: str, timeout: float) -> dict[str, Any]:
    """Ask for one file of a model; a redirect is not followed, since that would be the download. timeout: seconds."""
    repo, revision = str(model["repo"]), str(model.get("revision") or "main")
    url = hub_access.url_of(endpoint, repo, revision, model.get("only") or [])
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer: dict[str, Any] = {"repo": repo, "revision": revision, "meaning": "unreachable", "status": 0}
    try:
        reply = http_client.fetch(url, "HEAD", headers, timeout=timeout, proxies=True)
        status, reply_headers = reply.status, reply.headers
    except (OSError, ValueError) as error:
        return {**answer, "error": f"{url}: {getattr(error, 'reason', error)}"}
    return {**answer, "meaning": hub_access.judge(status, reply_headers, bool(token)), "status": status}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "token_file": {"type": "str", "default": "", "no_log": False},
            "endpoint": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 20},
            "token": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    missing = [
        model
        for model in params["models"]
        if model.get("repo")
        and not snapshots.look(
            Path(params["hf_home"]), str(model["repo"]), str(model.get("revision") or "main"), model.get("only") or []
        )["complete"]
    ]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        results = list(
            pool.map(lambda model: ask(model, params["endpoint"], params["token"], params["timeout"]), missing)
        )
    lost = [answer for answer in results if answer["meaning"] == "unreachable"]
    if lost:
        module.warn(
            f"whether {', '.join(answer['repo'] for answer in lost)} may be fetched is not known, the hub cannot be "
            f"reached from this host: {lost[0]['error']}"
        )
    lines = hub_access.refusals(results, params["endpoint"], params["token_file"])
    if lines:
        module.fail_json(msg="nothing was fetched, the hub refuses:\n- " + "\n- ".join(lines), asked=results)
    module.exit_json(changed=False, asked=results)


if __name__ == "__main__":
    main()
