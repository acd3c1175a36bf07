# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn an existing launch of vLLM into an entry of C(spark_services).

There are two steps. C(import_sources) reads each form (a docker command, a compose file, a systemd unit, recipes of
others) into one C(Draft): docker's options, the words behind the image, variables. C(import_service) makes the service
from it, with a reason for everything that is not carried over. Secrets are never part of the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from .._cluster import clustering
from .._common import redaction, shell
from .._common.docker_run import read_options
from .._compat.compat import check_launch, check_written
from .._compat.rules_unit import Written
from .._vllm import image_catalogue, seccomp
from . import recipes
from .import_config import add_config
from .import_draft import Draft, Unreadable
from .import_service import ServiceMaker
from .import_sources import FORMS, read_source
from .import_tables import CLUSTER_DOCKER_ARGS, OWN_DOCKER_ARGS

__all__ = ["FORMS", "Unreadable", "import_launch"]

HIDDEN = "(hidden)"
MOST_BYTES = 256 * 1024
"""Characters of a launch; the largest of 44 published ones has 21 KiB."""
MOST_WORDS = 500
"""Words of its command; the largest has 187. Each unknown one is compared with all options of vLLM."""


def import_launch(
    text: str,
    document: Any = None,
    *,
    form: str = "auto",
    name: str | None = None,
    port: int | None = None,
    image: str | None = None,
    variables: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
    select: str | None = None,
    variant: str | None = None,
    features: Sequence[str] | None = None,
    known_recipes: Mapping[str, Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    catalogue: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Turn a launch into a service.

    :param text: the launch
    :param document: the text as YAML, if it is YAML
    :param form: one of C(FORMS), or C(auto)
    :param name: of the service, instead of the launch's
    :param port: of the service, instead of the launch's
    :param image: of the service, instead of the launch's
    :param variables: values of C($NAME) and C({placeholder})
    :param files: content of env files by the path that names them
    :param scripts: content of the scripts next to the launch by their relative path
    :param select: one of several containers, by the name of the container, its workload or its service
    :param variant: of a vLLM recipe; a fitting one by default
    :param features: of a vLLM recipe
    :returns: C({form, service, nodes, spark_cluster, host_vars, left_out, missing, findings, changes, compatible, before}).
        nodes: number of Sparks. spark_cluster: their cluster, C(None) for one Spark. before: verdicts of the rules on the
        unit or the docker command as written
    :raises Unreadable: if the text has no launch of vLLM
    """
    draft = Draft(form, dict(variables or {}), files or {}, scripts or {}, select, variant, features)
    with shell.bounded():
        try:
            if len(text) > MOST_BYTES:
                raise Unreadable(f"it has more than {MOST_BYTES // 1024} KiB, which no launch has")
            read_source(draft, text, document)
            if (words := len(draft.run.command) + 2 * len(draft.run.options)) > MOST_WORDS:
                raise Unreadable(f"its command has {words} words; one of a launch has {MOST_WORDS} at most")
        except Unreadable as error:  # without secrets
            raise Unreadable(str(_hide(str(error), set()))) from None
        maker = ServiceMaker(draft, catalogue)
        service = maker.make(name, port, image)
        add_config(service, maker.nodes, config, known_recipes or {}, draft.leave)
        result = {
            "form": draft.form,
            "service": service,
            "host_vars": maker.host_vars,
            "left_out": draft.left_out,
            "nodes": maker.nodes,
            "spark_cluster": maker.spark_cluster(service),
            "before": [],
            "missing": recipes.resolve_service(service, "service", {}, {})[1],
            **_judge_service(service, maker.nodes, catalogue),
        }
        if draft.form in ("docker", "systemd"):
            run = draft.run
            if draft.unit is not None:  # with its variables unexpanded
                with contextlib.suppress(ValueError):
                    run = draft.unit.run or run
            result["before"] = check_written(Written(draft.unit, run if run.image else None, text))
        return dict(_hide(result, maker.secrets))


def _judge_service(service: Mapping[str, Any], nodes: int, catalogue: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the verdict of the rules on a service: C({findings, compatible, changes})."""
    if not service.get("image"):
        return {"findings": [], "compatible": False, "changes": []}
    image = service["image"] if isinstance(service["image"], Mapping) else {"ref": service["image"]}
    model, args, docker_args = service["model"], dict(service["args"]), list(OWN_DOCKER_ARGS)
    if nodes > 1:  # as the head of its spark_cluster runs it
        version = (image_catalogue.lookup(image["ref"], catalogue) or {}).get("vllm_version")
        cluster = clustering.Cluster(str(service["name"]), ["head"], "auto", [])
        executor = clustering.choose_executor(cluster, version, {}, None)[0]
        args = clustering.spanning_args(args, executor, 0, nodes, "head")
        docker_args += CLUSTER_DOCKER_ARGS
    service_docker_args = service.get("docker_args", [])
    if not seccomp.chosen(read_options(service_docker_args)[0]) and seccomp.needed_for(args, service.get("env") or {}):
        docker_args += ["--security-opt", "seccomp=io_uring.json"]  # as the plan gives it
    for file in service.get("files", []):
        service_docker_args = [*service_docker_args, "--volume", f"{file['source']}:{file['path']}:ro"]
    verdict = check_launch(
        {
            "image": image["ref"],
            "entrypoint": image.get("entrypoint"),
            "model": {
                "repo": model.get("repo") or model.get("path"),
                "config": service.get("config"),
                "quant_config": service.get("quant_config"),
            },
            "args": args,
            "env": service.get("env"),
            "docker_args": [*docker_args, *service_docker_args],
            "packages": service.get("pip"),
            "catalogue": list(catalogue),
            "nodes": nodes,
        }
    )
    changes = (verdict.get("fixed") or {}).get("changes") or []
    return {"findings": verdict["findings"], "compatible": verdict["compatible"], "changes": changes}


def _hide(value: Any, secrets: set[str]) -> Any:
    """Return a value with all secrets hidden, in any place."""
    if isinstance(value, Mapping):
        return {_hide(key, secrets): _hide(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return redaction.clean_forms(value, HIDDEN)
