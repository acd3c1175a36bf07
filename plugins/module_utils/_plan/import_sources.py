# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect the form of a launch, and have its parser read it into a C(Draft)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .._common import docker_run
from . import import_compose, import_kubernetes, import_recipes, import_scripts, import_units
from .import_draft import Draft, Unreadable

_HELM = re.compile(r"\{\{-?\s*(?:\.(?:Values|Release|Chart)\b|(?:include|if|with|range|toYaml|template|define)\s)")
_TEXT_READERS: dict[str, Callable[[Draft, str], None]] = {"docker": import_scripts.read, "systemd": import_units.read}
_YAML_READERS: dict[str, Callable[[Draft, Mapping[str, Any]], None]] = {
    "compose": import_compose.read,
    "kubernetes": import_kubernetes.read,
    "eugr": import_recipes.eugr,
    "sparkrun": import_recipes.sparkrun,
    "vllm_recipe": import_recipes.vllm_recipe,
    "nvidia": import_recipes.nvidia,
}
FOLDED = "; the line counts in the container's command: a folded text ('>') keeps line breaks around lines that are indented further"
"""About a command in YAML that no shell would accept."""
FORMS = ("docker", "compose", "kubernetes", "systemd", "eugr", "sparkrun", "vllm_recipe", "nvidia")


def detect(text: str, document: Any) -> str:
    """Return the form of a text."""
    if docker_run.is_unit(text):
        return "systemd"
    if isinstance(document, Mapping):
        return _yaml_form(document)
    if _HELM.search(text):
        raise Unreadable("a template of Helm: render it first (helm template), and give what comes out")
    return "docker"


def _yaml_form(document: Mapping[str, Any]) -> str:
    """Return the form of a YAML document. Raises Unreadable for an unknown one."""
    model = document.get("model")
    is_sparkrun = document.get("runtime") or str(document.get("recipe_version")) == "2"
    signs = (
        ("kubernetes", (document.get("kind") and document.get("apiVersion")) or _is_pod(document)),
        ("compose", isinstance(document.get("services"), Mapping)),
        ("vllm_recipe", isinstance(model, Mapping) and model.get("model_id")),
        ("nvidia", "schema_version" in document),
        ("sparkrun", is_sparkrun),
        ("eugr", document.get("container") and document.get("command")),
        ("sparkrun", document.get("container") and model),
    )
    form = next((form for form, sign in signs if sign), "")
    if form:
        return form
    if _is_chart_values(document):
        raise Unreadable(
            "values of a Helm chart: render it with them first (helm template NAME CHART -f VALUES), and give what comes out"
        )
    models = document.get("models")
    if isinstance(models, Mapping) and any(isinstance(model, Mapping) and "cmd" in model for model in models.values()):
        raise Unreadable("a configuration of llama-swap: give the command of one model (its cmd) by itself")
    raise Unreadable(
        "YAML, but neither a compose file, a manifest of Kubernetes nor a recipe of eugr, sparkrun, vLLM or NVIDIA"
    )


def _is_pod(document: Mapping[str, Any]) -> bool:
    """Return whether a document is the containers, the pod or the template of a workload, as guides print a part of it."""
    inner: Any = document
    for key in ("", "spec", "template", "spec"):
        inner = inner.get(key) if key and isinstance(inner.get(key), Mapping) else inner
        if isinstance(inner.get("containers"), list):
            return True
    return False


def _is_chart_values(value: Any) -> bool:
    """Return whether YAML names images as charts of Helm do, with separate keys for repository and tag."""
    if isinstance(value, Mapping):
        return {"repository", "tag"} <= value.keys() or any(map(_is_chart_values, value.values()))
    return isinstance(value, list) and any(map(_is_chart_values, value))


def read_source(draft: Draft, text: str, document: Any) -> None:
    """Read a launch. document: the text as YAML, if it is YAML. Raises Unreadable if it has no launch of vLLM."""
    form = draft.form = detect(text, document) if draft.form == "auto" else draft.form
    if form not in FORMS:
        raise Unreadable(f"form is {form!r}, expected auto or one of {', '.join(FORMS)}")
    try:
        if form in _TEXT_READERS:
            _TEXT_READERS[form](draft, text)
        elif isinstance(document, Mapping):
            _YAML_READERS[form](draft, document)
        else:
            raise Unreadable(f"a file of the form {form} is a YAML mapping, this is not")
    except Unreadable:
        raise
    except ValueError as error:
        is_folded = form in ("compose", "kubernetes") and str(error).startswith("line ")
        raise Unreadable(f"{error}{FOLDED if is_folded else ''}") from error
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except (AttributeError, KeyError, TypeError) as error:  # a list where a text belongs, and the like
        raise Unreadable(f"it is not written as the form {form} is: {error}") from error
