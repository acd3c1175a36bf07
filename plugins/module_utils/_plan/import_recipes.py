# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes of others, each read into a C(Draft).

It reads the formats of eugr/spark-vllm-docker (recipes/README.md), sparkrun (RECIPES.md, version 2), vllm-project/recipes
(CONTRIBUTING.md and taxonomy.yaml) and NVIDIA/local-ai-inference-recipes (schema 3 and 4), as of autumn 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._common import shell, shell_script
from . import import_engine, import_scripts
from .import_draft import BUILT_THERE, OWN_IMAGE, PATCHED, Draft, Unreadable, text_of, word_set, words_of
from .import_engine import brief

# Names of this machine and its families in vllm-project/recipes; the first that a recipe has counts.
HARDWARE = ("dgx_spark_gb10", "blackwell", "nvidia")
SPARK_GB = 117
"""Memory of an engine on one Spark, in GB as in recipes."""
SPARKS = (1, 2, 4, 8)
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_DOUBLED = re.compile(r"\{\{|\{([A-Za-z_]\w*)\}|\}\}")


def _fill(template: str, values: Mapping[str, Any]) -> str:
    """Replace C({name}); braces around anything else are literal, and doubled ones where a template doubles them."""
    texts = {name: text_of(value) for name, value in values.items()}

    def value(name: str) -> str:
        return str(shell.count_expanded(name, texts[name]))

    for name in texts:  # a value may hold placeholders itself
        texts[name] = _PLACEHOLDER.sub(lambda m: value(m[1]) if m[1] in texts else m[0], texts[name])
    missing = sorted({m[1] for m in _DOUBLED.finditer(template) if m[1] and m[1] not in texts})
    if missing:
        raise Unreadable(f"the command waits for {', '.join(missing)}: set it with variables")
    if "{{" in template:
        return _DOUBLED.sub(lambda m: value(m[1]) if m[1] else m[0][0], template)
    return _PLACEHOLDER.sub(lambda m: value(m[1]), template)


def _read_template(draft: Draft, document: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Read the command of a recipe: a script with C(vllm serve) in it."""
    text = _fill(str(document["command"]), values)
    commands = shell_script.read_script(text, draft.variables, [])
    for command in commands:
        if not draft.run.command and import_engine.find(command.words) is not None:
            draft.run.command = command.words
            draft.env(command.variables)
        elif not import_engine.quiet(command.words):
            draft.leave(brief(command.words), f"ran next to the engine; move its commands to {OWN_IMAGE}")
    if not draft.run.command:
        program = f": it runs {brief(commands[0].words)}, which is not read" if commands else ""
        raise Unreadable(f"the command of the recipe has no vllm serve in it{program}")


_BUILT = "images are pulled, not built, on the hosts: push what it builds to a registry"
_RECIPE_REASONS = {
    **dict.fromkeys(("build_args", "builder", "builder_config"), _BUILT),
    "mods": PATCHED,
    "pre_exec": f"ran in the container before the engine; move its commands to {OWN_IMAGE}",
    "post_exec": "ran in the container after the start; the role prove asks the engine here",
    "post_commands": "ran after the start; the role prove asks the engine here",
    "executor_config": "options of docker: add those that are needed as docker_args",
    "distribution_config": "the role models brings weights to each host",
    "containers": "one image per host is written in the inventory, as image of the service",
    "runtime_config": "of sparkrun's runtime",
    "benchmark": "nothing here measures throughput",
}
_READ_KEYS = word_set(
    "name description model model_revision container command defaults env metadata recipe_version runtime runtime_version solo_only "
    "pull_image min_nodes max_nodes mode cluster_only"
)


def _read_common(draft: Draft, document: Mapping[str, Any]) -> dict[str, Any]:
    """Read the keys that recipes of eugr and sparkrun share; return the values of placeholders."""
    values = {**(document.get("defaults") or {}), **draft.variables}
    if document.get("model"):
        values.setdefault("model", document["model"])
    draft.run.image = str(document.get("container") or "")
    draft.run.options.append(("--network", "host"))
    draft.env(document.get("env"))
    draft.name = str(document.get("name") or "")
    for key, value in document.items():
        if key not in _READ_KEYS and value:
            detail = f" {', '.join(map(str, value))}" if isinstance(value, list) else ""
            draft.leave(f"{key}{detail}", _RECIPE_REASONS.get(key, "this key of the recipe has no counterpart"))
    draft.nodes = _least_nodes(document)
    if draft.run.image and "/" not in draft.run.image:
        draft.leave(f"container {draft.run.image}", BUILT_THERE)
    return values


def _least_nodes(document: Mapping[str, Any]) -> int:
    """Return the least number of Sparks of a recipe, 0 without one."""
    if document.get("solo_only") or document.get("mode") == "solo":
        return 1
    least = document.get("min_nodes")
    nodes = least if isinstance(least, int) and not isinstance(least, bool) else 0
    return max(nodes, 2) if document.get("cluster_only") or document.get("mode") == "cluster" else nodes


_ESCAPED = re.compile(r'\\([\\"$`])')


def eugr(draft: Draft, document: Mapping[str, Any]) -> None:
    """Read a recipe of eugr/spark-vllm-docker."""
    if not document.get("command"):
        raise Unreadable("the recipe has no command")
    env = document.get("env")
    if isinstance(env, Mapping):  # its launcher writes them between double quotes into a script of bash
        values = {name: _ESCAPED.sub(r"\1", value) if isinstance(value, str) else value for name, value in env.items()}
        document = {**document, "env": values}
    _read_template(draft, document, _read_common(draft, document))


def sparkrun(draft: Draft, document: Mapping[str, Any]) -> None:
    """Read a recipe of sparkrun, with or without a command."""
    runtime = str(document.get("runtime") or "vllm")
    if "vllm" not in runtime:
        raise Unreadable(f"the recipe is for the runtime {runtime}, not for vLLM")
    values = _read_common(draft, document)
    if document.get("command"):
        _read_template(draft, document, values)
    else:
        # As sparkrun makes the command from the defaults.
        defaults = document.get("defaults") or {}
        if not document.get("model") or not (defaults or document.get("container")):
            raise Unreadable("the recipe has neither a command nor a model with defaults to make one from")
        draft.run.command = ["vllm", "serve", str(document["model"])]
        for key, value in {**defaults, **draft.variables}.items():
            name = f"{key}_size" if key in ("tensor_parallel", "pipeline_parallel", "data_parallel") else key
            option = f"--{name.replace('_', '-')}"
            if value is True:
                draft.run.command.append(option)
            elif value is not False and value is not None:
                draft.run.command += [option, text_of(value)]
    if document.get("model_revision"):
        draft.run.command += ["--revision", str(document["model_revision"])]


# --- vLLM's own collection ------------------------------------------------------------------------------------------


def vllm_recipe(draft: Draft, document: Mapping[str, Any]) -> None:
    """Read a recipe of vllm-project/recipes."""
    model = document["model"]
    variant = _variant(draft, document.get("variants") or {"default": {}})
    on_spark = _hardware(variant.get("hardware_overrides"))
    words = ["vllm", "serve", str(variant.get("model_id") or model["model_id"])]
    words += words_of(model.get("base_args"))
    draft.env(model.get("base_env"))
    for part in (variant, _hardware(document.get("hardware_overrides")), on_spark):
        words += words_of(part.get("extra_args"))
        draft.env(part.get("extra_env"))
    for name, body in _features(draft, document, variant).items():
        mode = _mode(body, (variant.get("default_modes") or {}).get(name))
        override = _hardware(mode.get("hardware_overrides")) or _hardware(body.get("hardware_overrides"))
        draft.env(mode.get("env"))
        words += words_of(override.get("args") or mode.get("args"))
    draft.run.command = words
    draft.run.image = _recipe_image(draft, model, variant, on_spark)
    draft.run.options.append(("--network", "host"))
    draft.name = str((document.get("meta") or {}).get("slug") or "")
    draft.nodes = _sparks(variant) or SPARKS[-1]
    if draft.nodes > 1 and "tensor-parallel" not in " ".join(words):
        draft.run.command += ["--tensor-parallel-size", str(draft.nodes)]
    for other in document.get("dependencies") or []:
        draft.leave(f"dependency: {other.get('note', '')}", f"put what it installs into {OWN_IMAGE}")


def _variant(draft: Draft, variants: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the selected variant, else a fitting one; record the others with their memory."""
    selected = draft.variant
    if selected and selected not in variants:
        raise Unreadable(f"the recipe has no variant {selected!r}; it has {', '.join(variants)}")
    bodies = {str(name): body or {} for name, body in variants.items()}
    chosen = selected or _fitting(bodies)
    for name, body in bodies.items():
        if len(bodies) == 1 and not body.get("supported_hardware"):
            break
        sparks, memory = _sparks(body), body.get("vram_minimum_gb")
        size = f"needs {memory} GB" if memory else "says nothing of its memory"
        fits = {0: "is too large for eight Sparks", 1: "fits one Spark"}.get(sparks, f"needs {sparks} Sparks")
        text = f"{body.get('precision') or 'no precision given'}, {size}: {fits}"
        if HARDWARE[0] not in (body.get("supported_hardware") or HARDWARE):
            text += f"; the recipe does not name {HARDWARE[0]} for it"
        draft.leave(f"variant {name}", f"taken: {text}" if name == chosen else f"{text}; 'variant' takes it")
    return bodies[chosen]


def _fitting(bodies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the variant to take: for this machine first, on the fewest Sparks, the default before the largest."""

    def order(name: str) -> tuple[int, int, bool, float]:
        body = bodies[name]
        supported = body.get("supported_hardware")
        foreign = 1 if not supported else 0 if HARDWARE[0] in supported else 2
        return foreign, _sparks(body) or 99, name != "default", -float(body.get("vram_minimum_gb") or 0)

    return min(bodies, key=order)


def _sparks(variant: Mapping[str, Any]) -> int:
    """Return the number of Sparks for a variant, 0 if eight are too few; one if the recipe states no memory."""
    memory = variant.get("vram_minimum_gb")
    if not isinstance(memory, (int, float)):
        return 1
    return next((sparks for sparks in SPARKS if memory <= SPARK_GB * sparks), 0)


def _hardware(overrides: Any) -> Mapping[str, Any]:
    override = next((overrides[key] for key in HARDWARE if overrides.get(key)), None) if overrides else None
    return override if isinstance(override, Mapping) else {}


def _features(draft: Draft, document: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the selected features, else those that the recipe enables by default."""
    features: Mapping[str, Any] = document.get("features") or {}
    selected = draft.features
    if selected is None:
        optional = set(document.get("opt_in_features") or []) - set(variant.get("default_modes") or {})
        selected = [name for name in features if name not in optional]
    for name in selected:
        if name not in features:
            raise Unreadable(f"the recipe has no feature {name!r}; it has {', '.join(features) or 'none'}")
    for name in features:
        if name not in selected:
            draft.leave(f"feature {name}", "is off; name it in 'features' to have it")
    return {name: features[name] for name in selected}


def _mode(feature: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    """Return the named mode of a feature, else its default; a feature without modes is its only one."""
    modes = feature.get("modes")
    if not isinstance(modes, Mapping) or not modes:
        return feature
    mode = modes.get(name or feature.get("default_mode") or next(iter(modes)))
    return mode if isinstance(mode, Mapping) else {}


def _recipe_image(
    draft: Draft, model: Mapping[str, Any], variant: Mapping[str, Any], on_spark: Mapping[str, Any]
) -> str:
    for part in (on_spark, variant, model):
        image = part.get("docker_image")
        image = image.get("nvidia") if isinstance(image, Mapping) else image
        if image:
            return str(image)
    version = str(variant.get("min_vllm_version") or model.get("min_vllm_version") or "")
    if not version:
        return ""
    draft.leave("image", f"the recipe names none; vllm/vllm-openai:v{version} is the oldest that it accepts")
    return f"vllm/vllm-openai:v{version}"


# --- NVIDIA's catalogue -------------------------------------------------------------------------------------------


def nvidia(draft: Draft, document: Mapping[str, Any]) -> None:
    """Read a recipe of NVIDIA/local-ai-inference-recipes: a prepared container, and the command of the engine inside."""
    serve = _serve_section(document)
    runtime = document.get("runtime") or {}
    import_scripts.read(draft, f"{runtime.get('setup_command') or ''}\n{serve['command']}")
    draft.run.image = draft.run.image or str(runtime.get("image") or "")
    if not draft.run.values("--network"):
        draft.run.options.append(("--network", "host"))
    draft.name = draft.name or str(document.get("model") or "").rpartition("/")[2]
    _pin_checkpoint(draft, str((document.get("checkpoint") or {}).get("target") or ""))
    _read_topology(draft, document)
    for other in serve.get("additional_commands") or []:
        _leave_command(draft, other)
    for limit in document.get("limitations") or []:
        draft.leave("limitation", str(limit))
    if document.get("min_vidmem_gb"):
        draft.leave(
            "min_vidmem_gb", f"the recipe is for {document['min_vidmem_gb']} GB and more; the plan works memory out"
        )


def _serve_section(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part C(serve) of a recipe, which has a command."""
    backend, serve = str(document.get("backend") or ""), document.get("serve")
    if backend and backend != "vllm":
        raise Unreadable(f"the recipe is for the backend {backend}, not for vLLM")
    command = serve.get("command") if isinstance(serve, Mapping) else None
    if not isinstance(serve, Mapping) or not isinstance(command, str) or not command.strip():
        raise Unreadable(
            "a page of NVIDIA's catalogue without serve.command, which launches nothing: give a recipe.yaml"
        )
    return serve


def _pin_checkpoint(draft: Draft, address: str) -> None:
    """Pin the revision that the checkpoint's address names."""
    pinned = re.search(r"huggingface\.co/[^/]+/[^/]+/(?:tree|commit|resolve)/([^/?#]+)", address)
    if pinned and pinned.group(1) != "main" and "--revision" not in draft.run.command:
        draft.run.command = [*draft.run.command, "--revision", pinned.group(1)]


def _read_topology(draft: Draft, document: Mapping[str, Any]) -> None:
    """Set the number of Sparks; record hardware other than DGX Sparks."""
    hardware, topology = str(document.get("hardware") or ""), document.get("topology") or {}
    count = topology.get("node_count") or topology.get("gpu_count")
    typed = re.search(r"dgx-spark-(\d+)", hardware)
    draft.nodes = count if isinstance(count, int) else int(typed.group(1)) if typed else 1
    if hardware and not hardware.startswith("dgx-spark"):
        draft.leave(f"hardware {hardware}", "the recipe is not for a DGX Spark: its options may not fit")


def _leave_command(draft: Draft, other: Mapping[str, Any]) -> None:
    """Record a further command: a rank that equals the head belongs to the cluster, any other is named."""
    label = f"command {other.get('label') or other.get('id')}"
    commands = shell_script.read_script(str(other.get("command") or ""), {}, [])
    words = _first_engine([command.words for command in commands])
    if not import_engine.is_rank([word.replace("${NODE_RANK}", "1") for word in words]):
        draft.leave(label, "is not part of the engine; run it yourself if you need it")
        return
    head_words = import_scripts.without_owned(_first_engine([draft.run.command]))
    different = [word for word in import_scripts.without_owned(words) if word not in head_words]
    if different:
        draft.leave(label, f"differs from the head's in {brief(different)}; ranks of a spark_cluster are alike")


def _first_engine(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the arguments of the first C(vllm serve) among commands, none without one."""
    return next((engine.words for words in commands if (engine := import_engine.find(words))), [])
