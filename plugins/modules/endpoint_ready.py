#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint_ready
short_description: Wait until a model server answers a real request
description:
  - Waits for an OpenAI-compatible server in stages - C(/health) answers, C(/v1/models) lists the model, a completion comes
    back with tokens, and where wanted a tool call and split reasoning.
  - The completion is a real one, which compiles the kernels. A second one is measured, and has to be no garbage - one sign or word over and over, or signs
    that nobody can read, are what an engine says whose kernels compute wrong.
  - Gives up early when the unit has failed or restarts again and again, and shows the last lines of its log, with what they mean where that is known.
  - An engine that spans hosts answers on its first rank only. The others have no O(url); their O(unit) of C(Type=notify) is waited for, also through
    restarts, which is active exactly when the whole model serves. It has failed when it gives up.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - Nothing is changed in any mode. In check mode a server whose O(unit) or O(container) is not running is not waited for,
        since a check run has not started it; RV(ready) is V(null) then.
  diff_mode:
    support: N/A
    details:
      - This module does not change anything.
options:
  url:
    description: URL of the server, without a path or with C(/v1). Without it O(unit) is waited for and nothing is requested. One of the two is needed.
    type: str
  model:
    description: Name of the model that has to be served. Without it, the first one that the server lists.
    type: str
  api_key_file:
    description: File on the managed host with the API key. The key is in no result, log or message.
    type: path
  timeout:
    description: Seconds until the module gives up.
    type: float
    default: 600
  interval:
    description: Seconds between two attempts.
    type: float
    default: 2
  request_timeout:
    description: Seconds for each small request (health, list of models).
    type: float
    default: 10
  completion_timeout:
    description: Seconds to wait for the next tokens of a completion before it is tried again. The first one may compile kernels for minutes.
    type: float
    default: 300
  unit:
    description: systemd unit behind the server. It is watched, and its log is shown when the server does not get ready.
    type: str
  on_demand:
    description: Requests start the server, so that O(unit) need not run before the first one.
    type: bool
    default: false
  container:
    description: Container behind the server, for the log where there is no O(unit) or no journal.
    type: str
  checks:
    description: Further stages.
    type: dict
    default: {}
    suboptions:
      adapters:
        description: Names of LoRA adapters that have to be listed beside the model, and to make a token each.
        type: list
        elements: str
        default: []
      tools:
        description: An offered tool is called, in the C(tool_calls) of the answer and not as text. A conversation of three turns with twelve tools
          follows. A call
          inside the content is an error; a model that stops calling, or a context below 6144 tokens, is none. At most four minutes and 2048 tokens a turn.
        type: bool
        default: false
      reasoning:
        description: The thinking comes in a field of its own (C(reasoning) or C(reasoning_content)).
        type: bool
        default: false
      max_tokens:
        description: Most tokens of an answer of these stages, less where the context is shorter; an answer that this cuts off is a failure. A model that
          thinks at length before it calls a tool needs thousands.
        type: int
        default: 4096
      temperature:
        description: Sampling temperature of these stages, for models that repeat themselves at V(0).
        type: float
        default: 0
  prompt:
    description: What is asked in the completion.
    type: str
    default: Say hello and name three colours.
  max_tokens:
    description: Most tokens of the completion.
    type: int
    default: 64
  log_lines:
    description: How many lines of the log are shown on failure.
    type: int
    default: 20
  look_seconds:
    description: Set by the action plugin. Come back after this many seconds with how far the start is, while the server does not listen; V(0) waits for it.
    type: float
    default: 0
  waited_seconds:
    description: Set by the action plugin; how much of O(timeout) has passed.
    type: float
    default: 0
  restarts_before:
    description: Set by the action plugin; restarts of O(unit) before it was waited for.
    type: int
"""

EXAMPLES = r"""
- name: Wait for the big model
  dgxspark.vllm.endpoint_ready:
    url: http://127.0.0.1:8001
    model: heavy
    api_key_file: /etc/dgxspark/secrets/heavy/VLLM_API_KEY
    unit: spark-heavy.service
    timeout: 2800
    checks:
      tools: true
  become: true
  register: heavy
"""

RETURN = r"""
ready:
  description: Whether all stages are passed. V(null) in check mode when the service is not running.
  returned: always
  type: bool
stage:
  description: The last stage passed, or the one it is stuck in. V(unit) without O(url).
  returned: always
  type: str
elapsed_seconds:
  description: How long it took.
  returned: when something was waited for
  type: float
warmup_seconds:
  description: Duration of the first completion.
  returned: when the server was contacted
  type: float
ttft_seconds:
  description: Time to the first token of the measured completion.
  returned: when the server was contacted
  type: float
decode_tokens_per_second:
  description: Rate of the tokens after the first. V(null) when the answer was too short to tell.
  returned: when the server was contacted
  type: float
completion_tokens:
  description: Number of tokens of the measured completion.
  returned: when the server was contacted
  type: int
tool_turns:
  description: Turns of the conversation with many tools that ended in a call; V(null) without the check C(tools), or where the context is too short.
  returned: when the server was contacted
  type: int
reply:
  description: Text of the measured completion, shortened.
  returned: when the server was contacted
  type: str
api:
  description: V(chat), or V(completions) for a model without a chat template. V(embeddings) or V(rerank) for a model that makes vectors or scores; texts of
    the same meaning have to be nearer than others, and the document that answers a question first.
  returned: when the server was contacted
  type: str
model:
  description: Name of the model that was asked.
  returned: when the server was contacted
  type: str
max_model_len:
  description: Context length that the server reports.
  returned: when the server was contacted
  type: int
server_version:
  description: Version that the server reports.
  returned: when the server was contacted
  type: str
checks:
  description: V(true), V(false) or V(null) (not reached, not wanted) per stage.
  returned: when the server was contacted
  type: dict
  sample: {"health": true, "models": true, "completion": true, "tools": null, "reasoning": null}
error:
  description: What is wrong.
  returned: when something was waited for
  type: str
fix:
  description: What to change.
  returned: when something was waited for
  type: str
unit_state:
  description: State of O(unit) at the end.
  returned: when O(unit) is given
  type: dict
  sample: {"active_state": "failed", "sub_state": "failed", "result": "exit-code", "n_restarts": 3, "active_since": null, "status_text": ""}
waiting:
  description: V(true) when O(look_seconds) have passed and the server does not listen yet.
  returned: with O(look_seconds)
  type: bool
log_percent:
  description: How far RV(log_stage) is, V(null) where the log does not say.
  returned: with O(look_seconds)
  type: int
log_stage:
  description: How far the engine's last start had come by its log, V(arguments), V(device), V(load), V(profile), V(kv_cache), V(graphs), V(warm-up) or
    V(serving); V(null) without a log.
  returned: failure, and with O(look_seconds)
  type: str
log_error:
  description: The exception that ended the engine's last start, in its own words. Empty where its log has none.
  returned: failure
  type: str
log:
  description: Last lines of the log of O(unit) or O(container).
  returned: failure
  type: list
  elements: str
"""

import math

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain, readiness
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command, endpoint


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str"},
            "model": {"type": "str"},
            "api_key_file": {"type": "path", "no_log": False},
            "timeout": {"type": "float", "default": 600},
            "interval": {"type": "float", "default": 2},
            "request_timeout": {"type": "float", "default": 10},
            "completion_timeout": {"type": "float", "default": 300},
            "unit": {"type": "str"},
            "container": {"type": "str"},
            "on_demand": {"type": "bool", "default": False},
            "checks": {
                "type": "dict",
                "default": {},
                "options": {
                    "tools": {"type": "bool", "default": False},
                    "reasoning": {"type": "bool", "default": False},
                    "max_tokens": {"type": "int", "default": endpoint.CHECK_TOKENS, "no_log": False},
                    "temperature": {"type": "float", "default": 0.0},
                    "adapters": {"type": "list", "elements": "str", "default": []},
                },
            },
            "prompt": {"type": "str", "default": endpoint.DEFAULT_PROMPT},
            "max_tokens": {"type": "int", "default": 64, "no_log": False},
            "log_lines": {"type": "int", "default": 20},
            "look_seconds": {"type": "float", "default": 0},
            "waited_seconds": {"type": "float", "default": 0},
            "restarts_before": {"type": "int"},
        },
        required_one_of=[["url", "unit"]],
        supports_check_mode=True,
    )
    params = module.params
    if not params["url"] and not params["unit"]:  # given, and empty
        module.fail_json(msg="one of the following is required: url, unit")
    reader, question = command.reader(together=math.inf), readiness.Question.read(params)
    answer, why = readiness.wait(reader, question, module.check_mode, explain.explain)
    if why:
        module.fail_json(msg=why, **answer.to_dict())
    module.exit_json(changed=False, **answer.to_dict())


if __name__ == "__main__":
    main()
