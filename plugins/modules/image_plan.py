#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_plan
short_description: Ask the vLLM of an image how it would plan the memory of a launch
description:
  - Runs the vLLM that is in an image, without a GPU, on the configuration of a model and the arguments of a launch, and returns what its own
    planner says - bytes of the parameters, KV cache groups, blocks and tokens for each amount of memory, longest context, backends, or vLLM's own error.
  - The container has no GPU, no network and no weights; its root is read-only, its memory and processors are bounded, and it is ended after
    O(timeout). Code of the model's repository is given to it only with C(--trust-remote-code) in O(args).
  - The answer is kept below O(cache_dir) by image id, configuration and the arguments that change memory. What cannot be asked stays unknown, with the
    reason. Kernels that repack weights, and the memory that a start needs besides weights and cache, are not in the answer.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - In check mode no container is started and nothing is written; what is not in O(cache_dir) yet stays unknown, and RV(source) says so.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing but its own cache.
options:
  image:
    description: Reference of an image that is on the host, by tag, digest or id. Nothing is pulled.
    type: str
    required: true
  files:
    description: Texts by name of the files of the model's folder that say what it is, C(config.json), and where the model has them C(hf_quant_config.json),
      C(params.json), C(preprocessor_config.json). Either this or O(snapshot) is required.
    type: dict
    default: {}
  snapshot:
    description: A snapshot on the host, in place of O(files), of which its C(.json) that say what the model is are read, and C(.py) with
      C(--trust-remote-code) in O(args). Links out of the model's folder are not followed.
    type: dict
    suboptions: &snapshot
      repo: {description: "Model on the hub, ORG/NAME.", type: str, required: true}
      commit: {description: The commit., type: str, required: true}
  draft_files:
    description: As O(files), of a drafter that is a model of its own, where C(--speculative-config) in O(args) names one.
    type: dict
    default: {}
  draft_snapshot:
    description: As O(snapshot), of a drafter, in place of O(draft_files).
    type: dict
    suboptions: *snapshot
  hf_home:
    description: Folder in the layout of C(HF_HOME) that has O(snapshot) and O(draft_snapshot).
    type: path
    default: /srv/huggingface
  args:
    description: Options of C(vllm serve), word by word - long names, each followed by its values.
    type: list
    elements: str
    default: []
  env:
    description: Environment of the engine. Of it, variables of vLLM that may change a plan are given to the image; never keys, addresses and paths.
    type: dict
    default: {}
  available:
    description: Bytes that the KV cache of each rank may have; the answer has a plan for each.
    type: list
    elements: int
    default: []
  total_memory:
    description: Memory of the host in bytes, as CUDA reports it. That of a GB10 by default.
    type: int
  timeout:
    description: Seconds after which the container is ended.
    type: int
    default: 300
  memory_gib:
    description: Most memory of the container, in GiB.
    type: int
    default: 4
  cache_dir:
    description: Folder on the host for the answers, a file per image and launch.
    type: path
    default: /var/lib/dgxspark/image_plans
"""

EXAMPLES = r"""
- name: Plan a model with the image's own vLLM
  dgxspark.vllm.image_plan:
    image: vllm/vllm-openai:v0.33.0
    files:
      config.json: "{{ lookup('ansible.builtin.file', 'qwen/config.json') }}"
    args: [--max-model-len, "65536", --kv-cache-dtype, fp8]
    available: [42949672960]
  become: true
  register: asked
"""

RETURN = r"""
source:
  description: V(image) when it was asked just now, V(cache) when it was asked before, V(none) when it was not asked or gave no answer.
  returned: success
  type: str
reason:
  description: Why there is no answer, else empty.
  returned: success
  type: str
image_id:
  description: Id of the image.
  returned: success
  type: str
repo_digests:
  description: Names by digest that the image has in registries; those of one manifest list are the same on all architectures.
  returned: success
  type: list
  elements: str
files:
  description: SHA-256 of the model's files that it was given, by name.
  returned: success
  type: dict
  sample: {config.json: 44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a}
answer:
  description:
    - What the image said, V(null) if it was not asked or gave no answer. C(failure) is V(null), or why there is no plan at all; its C(kind) is
      V(refused) where vLLM refuses the launch, with its own C(text), and V(unknown) where it could not be asked.
    - C(packages) are versions, C(resolved) is what vLLM made of the arguments. C(ranks) are, of each pipeline stage, bytes of the parameters by model
      and module, KV cache specs, attention backends, kernels. C(log) are lines of its log about its plan, C(assumed) is what was answered in the
      place of a GPU. C(seconds), C(cpu_seconds) and C(peak_bytes) are what asking took.
    - C(sizes) are, of each of O(available), C(blocks), C(bytes_per_block), C(block_size), C(tokens), C(concurrency), C(max_model_len), C(needed)
      (bytes of one request of that length) and C(groups); or C(refused), in the form of C(failure).
  returned: success
  type: dict
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import image_probe, plan_probe, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker, docker_facts
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import image_answer
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Unknown, runner

SNAPSHOT = {"repo": {"type": "str", "required": True}, "commit": {"type": "str", "required": True}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "files": {"type": "dict", "default": {}},
            "snapshot": {"type": "dict", "options": SNAPSHOT},
            "draft_files": {"type": "dict", "default": {}},
            "draft_snapshot": {"type": "dict", "options": SNAPSHOT},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "args": {"type": "list", "elements": "str", "default": []},
            "env": {"type": "dict", "default": {}},
            "available": {"type": "list", "elements": "int", "default": []},
            "total_memory": {"type": "int"},
            "timeout": {"type": "int", "default": plan_probe.TIMEOUT},
            "memory_gib": {"type": "int", "default": plan_probe.MEMORY_GIB},
            "cache_dir": {"type": "path", "default": plan_probe.CACHE_DIR},
        },
        supports_check_mode=True,
    )
    params = module.params
    files, draft_files = _model_files(module)
    run = runner(module)
    image_id, digests = identify(module, run)
    env = {str(name): str(value) for name, value in params["env"].items()}
    question = plan_probe.question(files, params["args"], params["available"], draft_files, params["total_memory"], env)
    source, answer, reason = find_answer(module, run, image_id, question)
    module.exit_json(
        changed=False,
        source=source,
        reason=reason,
        image_id=image_id,
        repo_digests=digests,
        files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())},
        answer=answer,
    )


def _model_files(module: AnsibleModule) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of the model and of its drafter; fail the module for wrong arguments."""
    params = module.params
    trust = plan_probe.trusts(params["args"])
    wrong: list[str] = []
    files, draft_files = (of_model(params, prefix, trust, wrong) for prefix in ("", "draft_"))
    if not params["snapshot"]:
        wrong += plan_probe.problems(files, trust)
    if draft_files:
        wrong += plan_probe.problems(draft_files, trust, "draft_files")
    wrong += [
        f"{name} is {params[name]}; it must be 1 or more" for name in ("timeout", "memory_gib") if params[name] < 1
    ]
    wrong += [f"available has {size}; it must be above 0" for size in params["available"] if size < 1]
    if wrong:
        module.fail_json(msg="; ".join(wrong))
    return files, draft_files


def find_answer(
    module: AnsibleModule, run: Any, image_id: str, question: dict[str, Any]
) -> tuple[str, dict[str, Any] | None, str]:
    """Return the source of an answer, the answer, and the reason for a missing one. question: of C(plan_probe.question); receives earlier sizes."""
    path = Path(module.params["cache_dir"], plan_probe.cache_name(image_id, question))
    kept = read_kept(path)
    sizes = {entry["available"] for entry in (kept or {}).get("sizes", [])}
    # It has a plan for each size, or a failure for all sizes.
    if kept is not None and (kept["failure"] or set(question["available"]) <= sizes):
        return "cache", kept, ""
    if module.check_mode:
        return "none", None, "in check mode no image is asked"
    # With the sizes of earlier questions, so that the file has all sizes of a launch.
    question["available"] = sorted({*question["available"], *sizes})
    answer, reason = ask(module, run, image_id, question)
    if not answer:
        return "none", None, reason
    try:
        state_file.write(path, {"schema": plan_probe.SCHEMA, "id": image_id, "answer": answer})
    except OSError as error:
        module.warn(f"what image {image_id} said could not be kept in {path.parent}: {error}")
    return "image", answer, reason


def of_model(params: dict[str, Any], prefix: str, trust: bool, wrong: list[str]) -> dict[str, str]:
    """Return the files that describe a model, by name. prefix: C(draft_) for the drafter. wrong: receives the messages."""
    files, snapshot = texts(params[f"{prefix}files"]), params[f"{prefix}snapshot"]
    if not snapshot:
        return files
    name = f"{snapshot['repo']}@{snapshot['commit']}"
    if files:
        wrong.append(f"{prefix}files stands beside {prefix}snapshot; leave one of them out")
    if not snapshots.COMMIT.fullmatch(snapshot["commit"]) or snapshot["repo"].count("/") != 1:
        wrong.append(f"{prefix}snapshot is {name}; it must be ORG/NAME and a commit")
        return files
    folder = snapshots.repo_folder(Path(params["hf_home"]), snapshot["repo"]) / "snapshots" / snapshot["commit"]
    files, unreadable = snapshots.texts(
        folder, lambda file: plan_probe.describes(file, trust), plan_probe.MOST_FILE, plan_probe.MOST_FILES
    )
    if "config.json" not in files and "params.json" not in files:
        wrong.append(
            "; ".join([f"the snapshot {name} is not on this host, or says not what the model is", *unreadable])
        )
    return files


def texts(files: dict[str, Any]) -> dict[str, str]:
    """Return files as texts, since Ansible parses a text of JSON."""
    return {
        str(name): content if isinstance(content, str) else json.dumps(content, sort_keys=True)
        for name, content in files.items()
    }


def identify(module: AnsibleModule, run: Any) -> tuple[str, list[str]]:
    """Return the id of the image and its digests in registries; fail the module for a missing image."""
    ref = module.params["image"]
    try:
        image = docker.images(run, [ref])[ref]
    except Unknown as why:
        module.fail_json(msg=f"image {ref} cannot be asked: {why}")
        raise
    if not image:
        module.fail_json(msg=f"image {ref} cannot be asked: it is not on this host; pull it first")
        return "", []
    facts = docker_facts.describe_image(image)
    return str(facts["id"]), list(facts["repo_digests"] or [])


def ask(module: AnsibleModule, run: Any, image_id: str, question: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the answer of an image, or None and the reason."""
    timeout, memory = module.params["timeout"], module.params["memory_gib"]
    container = f"dgxspark-image-plan-{os.getpid()}"
    data = f"{json.dumps(question)}\n".encode()
    rc, out, err = run(plan_probe.command(image_id, container, timeout, memory), timeout + 60, data=data)
    if rc in image_probe.TIMED_OUT:
        docker.remove_container(run, container)
    printed, why = plan_probe.parse(rc, out, err, timeout, memory)
    if printed is None:
        return None, why
    try:
        image_answer.read(printed)
    except Untrusted as error:
        return None, f"its answer cannot be right: {error}"
    return image_answer.raw(printed, "the answer"), ""


def read_kept(path: Path) -> dict[str, Any] | None:
    """Return a kept answer, None without a readable one."""
    try:
        content = state_file.read(path)
        if content is None or content.get("schema") != plan_probe.SCHEMA:
            return None
        image_answer.read(content.get("answer"))
        return image_answer.raw(content["answer"], "the kept answer")
    except (OSError, ValueError):  # Untrusted is a ValueError
        return None


if __name__ == "__main__":
    main()
