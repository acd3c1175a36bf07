# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking the vLLM of an image what it would plan for a launch: the question, the container, the answer's place in the cache.

C(_memory/image_answer.py) reads the answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from .._common import program_text
from .._common.sizes import GIB
from .._host import containers
from . import image_looks, image_probe, image_probe_program, plan_probe_program, plan_probe_standins

SCHEMA = 1
"""Of the cached answers; one of another schema is asked for again."""
CACHE_DIR = "/var/lib/dgxspark/image_plans"
TIMEOUT = 300
"""Seconds after which a container that was started to ask is ended; a probe takes 10 to 60 on an idle host."""
MEMORY_GIB = 4
"""Most memory of that container; a probe takes up to 3 GiB."""
CPUS = 2
MOST_FILE = 8 * 2**20
"""Bytes of one descriptive file of a model; the largest known is a tenth of it."""
MOST_FILES = 4 * MOST_FILE
"""Bytes of all of them."""
FILE = re.compile(r"[A-Za-z0-9_][\w.-]*\.(?:json|py|jinja|txt)", re.ASCII)
# Total memory that CUDA reports on a GB10, where the host's own is not known.
GB10: Mapping[str, Any] = {
    **{"name": "NVIDIA GB10", "capability": [12, 1], "memory": int(119.67 * GIB), "processors": 48, "count": 1},
}
# Options without effect on the plan: for the front end, for logs, for the place of this rank, and those
# that only work out how much memory there is, which the question says.
BESIDE = re.compile(
    r"(?:api-key|host|port|uds|served-model-name|root-path|headless|model|tokenizer|tokenizer-(?:mode|revision)|revision|code-revision"
    r"|chat-template.*|tool-.*|enable-auto-tool-choice|reasoning-parser.*|.*log-.*|.*-log|uvicorn-.*|ssl-.*|allowed-.*|allow-credentials"
    r"|middleware|return-tokens-as-token-ids|response-role|enable-prompt-tokens-details|enable-server-load-tracking|download-dir"
    r"|generation-config|override-generation-config|seed|load-format|model-loader-extra-config|gpu-memory-utilization"
    r"|kv-cache-memory-bytes|master-(?:addr|port)|node-rank|otlp-.*|collect-detailed-traces|disable-fastapi-docs"
    r"|lora-modules|enable-request-id-headers|trust-remote-code|use-tqdm-on-load|safetensors-load-strategy)\Z"
)
# Words of names of vLLM's variables that may change the plan (model runner, layout of the cache, kernels of attention, experts and
# quantised layers, tables, graphs, the longest context), and words of private ones, which stay on the host. Builds add variables.
DECIDES = re.compile(
    r"_(?:ATTENTION|ATTN|B12X|CONV|CUDAGRAPHS?|CUTLASS|EMBED|ENGRAM|FLA|FLASHINFER|(?:NV|MX)?FP[48]|GEMM|HEAD|HUMMING|INDEXER|INT4|KERNELS|KV|LAYOUT"
    r"|LEN|MAMBA|MARLIN|MHA|MLA|MOE|OFFLOAD|PARTITION|PLE|QUANT|QUANTIZATION|RETENTION|RUNNER|SHARD|SPARSE|SSM|TRITON|TRTLLM|W4A16)(?=_|\Z)",
    re.ASCII,
)
PRIVATE = re.compile(r"_(?:ADDR|API|DIR|FILE|FOLDER|HOST|IP|KEY|PASSWORD|PATH|PORT|SECRET|TOKEN|URL)(?=_|\Z)", re.ASCII)
VARIABLE = re.compile(r"VLLM_[A-Z0-9_]{1,100}", re.ASCII)
VALUE = re.compile(r"[A-Za-z0-9_.,:+-]{1,200}", re.ASCII)
# Files of a model's folder that say nothing of its shape, and may be large.
_OF_TOKENIZER = re.compile(
    r"(?:.*\.index|(?:special_)?tokens?_?.*|tokenizer.*|vocab.*|merges|added_tokens|chat_template)\.json", re.ASCII
)


def deciding(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an engine's environment that may change its plan; never a key, an address or a path."""
    return {
        name: value
        for name, value in sorted(env.items())
        if VARIABLE.fullmatch(name) and DECIDES.search(name) and not PRIVATE.search(name) and VALUE.fullmatch(value)
    }


def describes(name: str, trust: bool) -> bool:
    """Return whether a file of a model's folder may describe the model; its code only if the service trusts it."""
    if not FILE.fullmatch(name):
        return False
    return trust if name.endswith(".py") else name.endswith(".json") and not _OF_TOKENIZER.fullmatch(name)


def relevant(argv: Iterable[str]) -> list[str]:
    """Return the words of a command line that may change its memory, except options of C(BESIDE) and their values.

    argv: options by their long names, each value a separate word or behind C(=), as C(_vllm/launch.py) renders them.
    """
    words, keep = [], True
    for word in argv:
        if word.startswith("--"):
            keep = not BESIDE.match(word[2:].partition("=")[0].removeprefix("no-"))
        if keep:
            words.append(word)
    return words


def trusts(argv: Sequence[str]) -> bool:
    """Tell whether a command line trusts code of the model's repository."""
    return "--trust-remote-code" in argv


def problems(files: Mapping[str, str], trust: bool, where: str = "files") -> list[str]:
    """Return messages about files of a model that an image must not get. files: their texts, by name."""
    messages = []
    if "config.json" not in files and "params.json" not in files:
        messages.append(f"{where} has neither config.json nor params.json: there is nothing to plan from")
    for name, content in files.items():
        if not FILE.fullmatch(name):
            messages.append(f"{where}: {name!r} is no plain name of a .json, .py, .jinja or .txt file")
        elif name.endswith(".py") and not trust:
            messages.append(f"{where}: {name} is code of the model's repository; it is run only with trust-remote-code")
        elif len(content.encode()) > MOST_FILE:
            messages.append(f"{where}: {name} has more than {MOST_FILE} bytes")
    return messages


def question(
    files: Mapping[str, str],
    argv: Sequence[str],
    available: Iterable[int],
    draft: Mapping[str, str] | None = None,
    memory: int | None = None,
    env: Mapping[str, str] | None = None,
    snapshots: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the question for the program in the image.

    :param files: texts of the model's config.json, hf_quant_config.json and the like, by name
    :param available: bytes that the KV cache of each rank may have
    :param memory: total memory of the host, bytes
    :param snapshots: in place of files that are not here, REPO@COMMIT of C(model) and C(draft): a name for the question, which can then
        be asked by a host alone that has them
    """
    device = {**GB10, **({"memory": memory} if memory else {})}
    return {
        "files": dict(files),
        "draft": dict(draft) if draft else None,
        **({"snapshots": dict(snapshots)} if snapshots else {}),
        "args": relevant(argv),
        "env": deciding(env or {}),
        "trust": trusts(argv),
        "available": sorted(set(available)),
        "device": device,
    }


def digest(question: Mapping[str, Any]) -> str:
    """Return a name for a question, independent of its sizes; it includes the program, since another one may answer otherwise."""
    content = {**question, "available": None, "program": program()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cache_name(image_id: str, question: Mapping[str, Any]) -> str:
    """Return the file name of the cached answer of an image to a question."""
    return f"{image_looks.cache_name(image_id)[: -len('.json')]}-{digest(question)[:32]}.json"


@cache
def program() -> str:
    """Return the text that runs inside the image: the program with the modules that it imports."""
    return program_text.program(plan_probe_program, image_probe_program, plan_probe_standins)


def command(image_id: str, container: str, timeout: int = TIMEOUT, memory_gib: int = MEMORY_GIB) -> list[str]:
    """Return the command that asks an image; the question is its standard input.

    No GPU, no network, nothing written except below /tmp, limited memory and processors.

    :param timeout: seconds after which it is ended
    """
    memory = f"{memory_gib}g"
    options = ["--interactive", "--tmpfs", "/tmp:rw,nosuid,nodev,size=512m,mode=1777", "--memory", memory]
    options += ["--memory-swap", memory, "--cpus", str(CPUS), "--cpu-shares", "128"]
    return containers.image_question(image_id, container, program(), timeout, options)


def parse(
    rc: int, out: str, err: str, timeout: int = TIMEOUT, memory_gib: int = MEMORY_GIB
) -> tuple[dict[str, Any] | None, str]:
    """Return the answer of the image unchanged, or None and the reason.

    Nothing in it is checked yet: C(_memory/image_answer.py) does that.
    """
    answer = image_probe.printed(out, plan_probe_program.PLAN_MARK)
    if answer is not None:
        return answer, ""
    if any(line.startswith(plan_probe_program.PLAN_MARK) for line in out.splitlines()):
        return None, "its answer cannot be read"
    if rc in image_probe.TIMED_OUT:
        return None, f"no answer within {timeout} seconds and {memory_gib} GiB of memory"
    if rc == 127 and "python3" in err:
        return None, "the image has no python3"
    return None, err.strip().splitlines()[-1][:400] if err.strip() else f"exit code {rc}"
