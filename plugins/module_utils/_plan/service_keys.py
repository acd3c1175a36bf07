# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of services, recipes and variants, and the form of what may stand there."""

from __future__ import annotations

import re
from typing import Any

from .._common import plain_data
from .._common.schema import NUMBER, Key
from .._common.validation import IMAGE_REF, LONGEST_START, SERVICE_NAME
from .._vllm import versions

RECIPE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""ORG/NAME as Hugging Face takes it."""
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:==[\w.+!-]+)?", re.ASCII)
HASHED = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?==[\w.+!-]+(?: --hash=sha256:[0-9a-f]{64})+", re.ASCII)
DOCKER_SIZE = re.compile(r"[1-9][0-9]{0,14}[bkmgBKMG]?")
CONTAINER_PATH = re.compile(r"/[\w.+@/-]+")
MODEL_FOLDER = "{model}"
"""Stands for the folder of the model's snapshot, on the host and in the container."""
JOBS = ("chat", "code", "agents", "vision", "long", "users", "embed", "rerank")
"""What C(jobs) of a recipe may name: who picks a model looks for one of them."""
ENDLESS = ("config", "quant_config", "draft_config")
"""Files of a model, which may hold numbers without end (time_step_limit of Mamba)."""


def _is_source(text: str) -> bool:
    """Tell whether a text names a file of the controller, or one of the checkpoint."""
    inner = text.removeprefix(MODEL_FOLDER)
    if not text or plain_data.CONTROL.search(text) or ".." in text.split("/"):
        return False
    return inner == text or CONTAINER_PATH.fullmatch(inner) is not None


def _gib(description: str) -> Key:
    """Return the key of an optional size."""
    return Key(NUMBER, None, description, above=0, unit="GiB")


_VERSION: Any = {"form": versions.parse_version, "like": 'a version of vLLM in quotes, like "0.28.0"'}
_LINE: Any = {"form": plain_data.is_line, "like": "one line of text"}
_REPO: Any = {"form": REPO_NAME.fullmatch, "like": "ORG/NAME, without an address"}
_REVISION = Key(
    str, None, "commit, tag or branch; default: `main`", form=REVISION.fullmatch, like="a commit, tag or branch"
)
TEXT = Key(
    (str, *NUMBER),
    None,
    "one line of text",
    form=lambda text: not plain_data.CONTROL.search(text),
    like="one line of text",
)
"""An entry of a list of texts; a number is taken for its digits."""
PACKAGE = Key(
    str,
    None,
    "a package for pip",
    # It becomes an argument of pip, so nothing else may pass.
    form=lambda text: REQUIREMENT.fullmatch(text) or HASHED.fullmatch(text),
    like="NAME==VERSION --hash=sha256:SUM, with a sum for each file of it that may be installed, or NAME, NAME[EXTRA] or NAME==VERSION",
)
EXTRA_MODEL: dict[str, Key] = {
    "repo": Key(str, None, "repository on Hugging Face, ORG/NAME", required=True, **_REPO),
    "revision": _REVISION,
    "only": Key(
        list,
        None,
        "patterns of the files to fetch, `*.json`; default: all",
        of=Key(str, None, "a pattern", **_LINE),
    ),
}
"""Keys of an entry of C(model.extra)."""
MODEL: dict[str, Key] = {
    "repo": Key(str, None, "repository on Hugging Face, ORG/NAME", **_REPO),
    "revision": _REVISION,
    "path": Key(
        str, None, "folder on the controller with the model, instead of `repo`; relative to `spark_model_dir`", **_LINE
    ),
    "extra": Key(
        list,
        [],
        "further repositories, such as a drafter: a list of `repo`, `revision` and `only`",
        of=EXTRA_MODEL,
    ),
}
"""Keys of C(model)."""
FILE: dict[str, Key] = {
    "source": Key(
        str,
        None,
        "file on the controller, or `{model}/NAME` for a file of the checkpoint",
        required=True,
        form=_is_source,
        like=f"a file on the controller, or {MODEL_FOLDER}/NAME for a file of the checkpoint",
    ),
    "path": Key(
        str,
        None,
        "path in the container",
        required=True,
        form=lambda text: CONTAINER_PATH.fullmatch(text) and ".." not in text.split("/"),
        like="an absolute path in the container",
    ),
}
"""Keys of an entry of C(files)."""
IMAGE: dict[str, Key] = {
    "ref": Key(
        str,
        None,
        "reference of the image",
        required=True,
        form=IMAGE_REF.fullmatch,
        like="a reference like nvcr.io/nvidia/vllm:26.04-py3",
    ),
    "vllm_version": Key(str, None, "vLLM version, if neither its name nor the image itself has it", **_VERSION),
    "entrypoint": Key(
        str,
        None,
        "`serve` if the entrypoint is `vllm serve`, `passthrough` if it runs its arguments",
        choices=("serve", "passthrough"),
    ),
    "args": Key(dict, {}, "options of vllm serve with this image"),
    "env": Key(dict, {}, "environment with this image"),
    "files": Key(list, [], "files with this image, see [Files](#recipes-of-your-own)", of=FILE),
    "pip": Key(list, [], "Python packages missing in the image", of=PACKAGE),
    "dockerfile": Key(str, None, "Dockerfile instructions after `FROM`; `ref` must have a digest"),
}
"""Keys of C(image), and of an entry of C(images)."""
CHECKS: dict[str, Key] = {
    "tools": Key(bool, False, "the model must call a tool"),
    "reasoning": Key(bool, False, "the reasoning must be separate from the answer"),
    "max_tokens": Key(int, None, "longest answer to these requests, tokens", least=1, most=131072),
    "temperature": Key(NUMBER, None, "sampling temperature of these requests", least=0, most=2),
}
"""Keys of C(checks)."""
SERVICE: dict[str, Key] = {
    "name": Key(
        str,
        None,
        "name of the service, its unit spark-<name>.service and container spark-<name>",
        required=True,
        form=SERVICE_NAME.fullmatch,
        like="lower-case letters, digits and inner dashes, at most 40 characters, because it names the unit and the container",
    ),
    "recipe": Key(
        str,
        None,
        "recipe, or SOURCE:NAME of spark_recipe_sources",
        page="importing.md#recipes-by-reference",
    ),
    "variant": Key((str, list), [], "variants of the recipe"),
    "port": Key(int, None, "TCP port", least=1, most=65535, required=True),
    "host": Key(str, None, "address of the engine", form=plain_data.is_address, like="an address or a host name"),
    "served_model_name": Key(str, None, "model name for clients; default: the name", **_LINE),
    "model": Key(
        dict,
        {},
        "ORG/NAME, ORG/NAME@REVISION, or a mapping that is merged into the recipe's",
        of=MODEL,
    ),
    "image": Key(
        (str, dict),
        None,
        "image reference, or a mapping",
        form=IMAGE_REF.fullmatch,
        like=IMAGE["ref"].like,
        of=IMAGE,
    ),
    "args": Key(dict, {}, "options of vllm serve, long names with dashes"),
    "env": Key(dict, {}, "environment; no secrets"),
    "api_key_file": Key(str, None, "file on the controller with the API key"),
    "secrets": Key(dict, {}, "further secrets: environment variable to file"),
    "checks": Key(
        dict,
        {},
        "checks of the proof",
        of=CHECKS,
    ),
    "files": Key(
        list,
        [],
        "files for the engine: source and path",
        of=FILE,
    ),
    "pip": Key(
        list,
        [],
        "Python packages missing in the image, NAME==VERSION --hash=sha256:...",
        of=PACKAGE,
    ),
    "config": Key(
        dict,
        {},
        "config.json of the model; optional with a recipe or an image that can be asked",
        page="memory.md#ask-the-image",
    ),
    "quant_config": Key(dict, {}, "hf_quant_config.json of the model"),
    "weights_gib": _gib("weights of the model without drafter, GiB: the sum of its safetensors headers"),
    "draft_weights_gib": _gib("weights of the drafter or MTP layers without shared embedding and head, GiB"),
    "memory": Key(
        dict,
        {},
        "memory of an unknown model, GiB per Spark: weights_gib, kv_gib, other_gib",
        page="memory.md#a-model-that-the-plan-does-not-know",
    ),
    "memory_gib": _gib("the sum of memory, if its parts are unknown"),
    "draft_config": Key(dict, {}, "config.json of a drafter with layers (DFlash, EAGLE)"),
    "overheads": Key(dict, {}, "overheads, see the module memory_budget"),
    "memory_share": Key(
        NUMBER,
        1,
        "weight for sharing memory among services with a calculated utilisation",
        least=0,
    ),
    "lora": Key(
        dict,
        {},
        "LoRA adapters",
        page="inventory.md#lora-adapters",
    ),
    "kv_tiers": Key(
        dict,
        None,
        "KV cache in files, which outlives evictions and restarts",
        page="memory.md#kv-cache-on-disk",
    ),
    "state": Key(
        str,
        "started",
        "started, or stopped (deployed, not running)",
        choices=("started", "stopped"),
    ),
    "hosts": Key(
        list,
        [],
        "hosts of the cluster that the engine spans, the head first; default: all",
        page="cluster.md#part-of-a-cluster",
        of=TEXT,
    ),
    "on_demand": Key(
        dict,
        None,
        "start with the first request, stop when idle; {} for the defaults",
        page="on_demand.md",
    ),
    "exclusive": Key(
        str,
        "",
        "set of services of which one runs at a time",
        page="verbs.md",
        form=SERVICE_NAME.fullmatch,
        like="the name of a set: lower-case letters, digits and inner dashes",
    ),
    "start_timeout": Key(int, 3000, "seconds that a start may take", least=60, most=LONGEST_START, unit="seconds"),
    "shm_size": Key(
        (str, int),
        None,
        "size of the container's private /dev/shm",
        least=1,
        form=DOCKER_SIZE.fullmatch,
        like="a size as docker takes it, for example 8g",
    ),
    "docker_args": Key(list, [], "further options of docker run", of=TEXT),
    "ignore": Key(list, [], "ids of rules to ignore", of=TEXT),
}
"""Keys of one entry of C(spark_services)."""
SIDECAR: dict[str, Key] = {
    "name": Key(str, None, "name of the program", required=True, **_LINE),
    "memory_gib": _gib("memory that it takes, GiB")._replace(required=True),
}
"""Keys of an entry of C(spark_sidecars)."""
DEFAULTS = (
    "args",
    "env",
    "image",
    "host",
    "api_key_file",
    "secrets",
    "checks",
    "start_timeout",
    "shm_size",
    "docker_args",
    "ignore",
)
"""Keys of C(spark_defaults): keys of a service that can hold for all services of a host."""
EXPECT: dict[str, Key] = {
    "what": Key(str, None, "measured quantity and its conditions", required=True),
    "source": Key(str, None, "where the figure was published", required=True),
    "tokens_per_second": Key(NUMBER, None, "the figure, tokens per second", least=0),
    "gib": Key(NUMBER, None, "the figure, GiB", least=0),
    "sparks": Key(int, 1, "Sparks of the measurement", least=1),
    "streams": Key(int, 1, "concurrent requests", least=1),
    "other_launch": Key(
        str,
        None,
        "build, checkpoint or drafter of the figure, if it is another one; ranks and comparisons leave it out",
    ),
    "attention_backend": Key((str, list), None, "required attention backend"),
    "moe_backend": Key((str, list), None, "required backend of the experts"),
    "linear_kernel": Key((str, list), None, "required kernel of linear layers"),
    "draft": Key(str, None, "method of `speculative-config` for `min_acceptance`"),
    "min_acceptance": Key(NUMBER, None, "least share of accepted drafted tokens", above=0, most=1),
    "required": Key(bool, False, "another kernel is an error, not a warning"),
}
"""Keys of an entry of C(expect): figures for people, kernels and acceptance for C(fast_path.compare)."""
_COMMON: dict[str, Key] = {
    "summary": Key(str, None, "description in one line"),
    "images": Key(list, [], "images that can serve it, the default first; keys as in `image`", of=IMAGE),
    "least_vllm": Key(
        str, None, "oldest vLLM that serves it; an older image gets the finding `image.too_old`", **_VERSION
    ),
    "jobs": Key(
        list,
        [],
        f"uses: {', '.join(f'`{job}`' for job in JOBS)}; [models.md](models.md) is sorted by use",
        choices=JOBS,
    ),
    "nodes": Key(int, 1, "number of Sparks; more than one is for services of `spark_cluster`", least=1),
    "expect": Key(list, [], "published figures and required kernels, see below", of=EXPECT),
    "source": Key(list, [], "sources of flags and sizes", of=TEXT),
}
AS_IN_A_SERVICE = (
    "model",
    "args",
    "env",
    "checks",
    "config",
    "quant_config",
    "draft_config",
    "weights_gib",
    "draft_weights_gib",
    "memory",
    "memory_gib",
    "files",
    "pip",
    "ignore",
)
"""Keys of a service that recipes and variants have too."""
OF_A_RECIPE = ("served_model_name", "start_timeout", "shm_size")
"""Keys of a service that recipes have too, and variants do not."""
VARIANT: dict[str, Key] = {**_COMMON, **{name: SERVICE[name] for name in AS_IN_A_SERVICE}}
"""Keys of a variant: C(config) and C(model) replace the recipe's fields one by one, lists are replaced whole."""
_NEEDED = ("name", "summary", "model", "images", "args", "config", "source")
RECIPE: dict[str, Key] = {
    name: key._replace(required=name in _NEEDED)
    for name, key in {
        "name": Key(
            str,
            None,
            "name for `recipe` of a service",
            form=RECIPE_NAME.fullmatch,
            like="letters, digits, dots and dashes",
        ),
        **VARIANT,
        **{name: SERVICE[name] for name in OF_A_RECIPE},
        "variants": Key(
            dict,
            {},
            "name to any of these keys but `name`, `variants`, `served_model_name`, `start_timeout` and `shm_size`",
        ),
    }.items()
}
OWN: dict[str, Key] = {name: RECIPE[name] for name in ("name", *_COMMON, "variants")}
"""Keys that a recipe has and a service has not."""
REFERENCE: dict[str, Key] = {
    **{name: key._replace(required=name == "model") for name, key in RECIPE.items()},
    "name": Key(str, None, "SOURCE:NAME"),
    "left_out": Key(list, [], "omitted parts of it"),
    "no_image": Key(str, None, "why it has no image"),
}
"""Keys of a recipe of others, C(SOURCE:NAME), which may leave some to the service."""
