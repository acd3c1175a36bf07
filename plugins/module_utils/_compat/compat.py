# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check whether a vLLM launch starts on a DGX Spark and does what its author intended.

C(check_launch) answers for one launch, C(check_written) for the systemd unit or C(docker run) around it. Everything they
can say is a C(Rule): an id that never changes, a severity, a message, a fix and the source of the knowledge. The rules
stand in the C(rules_*) files, by family. A rule that lacks a fact keeps silent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._common import validation
from .._common.docker_run import DockerRun, read_options
from .._common.findings import SEVERITIES, Finding, has_errors
from .._common.plain_data import InputError, is_whole, unfit
from .._vllm import image_catalogue, versions
from .._vllm import launch as vllm_launch
from . import (  # noqa: F401  (each registers its rules)
    rules_decoding,
    rules_kernels,
    rules_launch,
    rules_memory,
    rules_model,
    rules_nodes,
    rules_platform,
    rules_reported,
    rules_unit,
)
from .rulebook import REGISTERED, Change, Launch, Rule

RULES: tuple[Rule, ...] = tuple(sorted(REGISTERED, key=lambda rule: rule.id))
"""Every rule, in the order of their ids."""
UNIT_RULES = tuple(rule for rule in RULES if rule.id[3] == "U")
LAUNCH_RULES = tuple(rule for rule in RULES if rule.id[3] != "U")
GIVEN, PROBED, CATALOGUE, UNKNOWN = "given", "probed", "catalogue", "unknown"


# --- the check ----------------------------------------------------------------------------------------------------

PARAMETERS = (
    "image",
    "vllm_version",
    "version_source",
    "model",
    "args",
    "argv",
    "env",
    "gpu",
    "driver_version",
    "nodes",
    "executor",
    "entrypoint",
    "docker_args",
    "packages",
    "ignore",
    "catalogue",
    "refuse_service_keys",
)
"""What C(check_launch) takes."""
MODEL_KEYS = ("repo", "config", "quant_config")
ENDLESS = ("config", "quant_config")
_IDS = tuple(rule.id for rule in RULES)


def check_launch(params: Mapping[str, Any]) -> dict[str, Any]:
    """Judge one vLLM launch.

    params:
      image (text, required), vllm_version (text; else the catalogue's), version_source (C(given) or C(probed), where
      vllm_version comes from), model (mapping of repo, config, quant_config), args (mapping of options) or argv (list
      as typed), env (mapping), gpu (C(gb10), the only one known), driver_version (text), nodes (Sparks that serve it
      together, 1), executor (C(ray), C(mp) or C(auto)), entrypoint (C(serve) or C(passthrough), beats the catalogue),
      docker_args (words between C(docker run) and the image), packages (list of pip requirements installed on top of the
      image), ignore (rule ids), catalogue (further image entries, see
      C(image_catalogue.lookup)), refuse_service_keys (boolean: complain about host, port, served-model-name, model and
      name among the args).
    Returns compatible, vllm_version, version_source, entrypoint, command (argv behind the image name), args
    (normalised), findings (plain dicts, errors first) and fixed: args, env and command with every repair that
    keeps the intended meaning, the changes (rule, where, key, before, after) and the remaining findings.
    Raises C(ValueError), naming everything that is malformed.
    """
    _complain(params)
    image = str(params["image"]).strip()
    entry = image_catalogue.lookup(image, params.get("catalogue") or ()) or {}
    vllm_version, source = None, UNKNOWN
    if params.get("vllm_version"):
        vllm_version, source = str(params["vllm_version"]), str(params.get("version_source") or GIVEN)
    elif entry.get("vllm_version"):
        vllm_version, source = str(entry["vllm_version"]), CATALOGUE
    parsed, refused = _parse_args(params, vllm_version)
    checked = _launch(params, entry, vllm_version, parsed, refused, source == PROBED)
    ignored = set(params.get("ignore") or ())
    rules = [rule for rule in LAUNCH_RULES if rule.id not in ignored]
    judged = _judge(checked, rules)
    plain = _plain(finding for finding, _changes in judged)
    name = parsed.model or checked.repo
    repaired, changes, remaining = _repair(checked, vllm_version, rules, judged)
    return {
        "compatible": not has_errors(plain),
        "vllm_version": vllm_version,
        "version_source": source,
        "entrypoint": checked.entrypoint,
        "command": command(checked.entrypoint, name, parsed.args),
        "args": parsed.args,
        "findings": plain,
        "fixed": {
            "args": repaired.args,
            "env": repaired.env,
            "command": command(checked.entrypoint, name, repaired.args),
            "changes": changes,
            "findings": remaining if changes else plain,
        },
    }


def _parse_args(
    params: Mapping[str, Any], vllm_version: str | None
) -> tuple[vllm_launch.Parsed, list[vllm_launch.Problem]]:
    """Return C(argv) or C(args) as parsed, and the problems of service keys that must not be among the args."""
    args = {str(key): value for key, value in (params.get("args") or {}).items()}
    refused: list[vllm_launch.Problem] = []
    if params.get("refuse_service_keys"):
        args = {vllm_launch.long_name(key): value for key, value in args.items()}
        refused = vllm_launch.service_keys(args)
        args = {key: value for key, value in args.items() if key not in vllm_launch.SERVICE_KEYS}
    return vllm_launch.parse(_texts_of(params, "argv") or args, vllm_version), refused


def _launch(
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    vllm_version: str | None,
    parsed: vllm_launch.Parsed,
    refused: Sequence[vllm_launch.Problem],
    probed: bool,
) -> Launch:
    """Return the launch that C(check_launch) has to judge; entry: of the image catalogue, empty for none."""
    docker = read_options(_texts_of(params, "docker_args"))[0]
    family = _read_entrypoint(params, entry, docker)
    model: Mapping[str, Any] = params.get("model") or {}
    env: Mapping[str, Any] = params.get("env") or {}
    return Launch(
        image=str(params["image"]).strip(),
        entry=entry,
        version=versions.parse_version(vllm_version) if vllm_version else None,
        entrypoint=family or "serve",
        entrypoint_known=family is not None,
        args=parsed.args,
        problems=[*refused, *parsed.problems],
        env={str(key): str(value) for key, value in env.items() if value is not None},
        repo=_text_of(model, "repo") or parsed.model or "",
        config=model.get("config") or {},
        quant_config=model.get("quant_config") or {},
        driver=_text_of(params, "driver_version") or None,
        nodes=int(params.get("nodes") or 1),
        executor=params.get("executor") or None,
        argv=_texts_of(params, "argv"),
        docker=docker,
        packages=_texts_of(params, "packages"),
        probed=probed,
    )


def _read_entrypoint(params: Mapping[str, Any], entry: Mapping[str, Any], docker: DockerRun) -> str | None:
    """Return the configured entrypoint, else docker's, else the catalogue's."""
    replaced = "passthrough" if docker.values("--entrypoint") else None
    return params.get("entrypoint") or replaced or entry.get("entrypoint")


def _text_of(params: Mapping[str, Any], key: str) -> str:
    return str(params.get(key) or "")


def _texts_of(params: Mapping[str, Any], key: str) -> list[str]:
    return [str(word) for word in params.get(key) or []]


def check_written(written: rules_unit.Written) -> list[dict[str, Any]]:
    """Return the findings about a systemd unit that runs vLLM in docker, or about a C(docker run) command, errors first.

    It judges the unit and the container. C(check_launch) judges the words behind the image name, and takes the words
    in front of the image name as C(docker_args).
    """
    return _plain(finding for rule in UNIT_RULES for finding, _changes in rule.judge(written))


# --- repairs ------------------------------------------------------------------------------------------------------

Judged = Sequence[tuple[Finding, tuple[Change, ...]]]


def _judge(checked: Launch, rules: Sequence[Rule]) -> Judged:
    return [judged for rule in rules for judged in rule.judge(checked)]


def _plain(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))]


def _repair(
    checked: Launch, vllm_version: str | None, rules: Sequence[Rule], judged: Judged
) -> tuple[Launch, list[dict[str, str]], list[dict[str, Any]]]:
    """Apply repairs one by one; skip a repair that causes a new error or does not remove its finding."""
    tried: set[tuple[str, str]] = set()
    # The normal form of a command line is a repair: mistakes in the words of argv are no longer in args.
    shown = [
        _shown(finding.rule, change.where, change.key, change.key, str(change.value))
        for finding, changes in judged
        for change in changes
        if change.where == "command"
    ]
    if shown:
        checked = _relaunch(checked, checked.args, checked.env, vllm_version)
        judged = _judge(checked, rules)
    while True:
        step = _next_repair(judged, tried)
        if step is None:
            return checked, shown, _plain(finding for finding, _changes in judged)
        finding, changes = step
        tried.add((finding.rule, finding.message))
        args, env = _apply(changes, checked)
        keys = [(change.where, change.key) for change in changes]
        after = _relaunch(checked, args, env, vllm_version, {f"--{key}" for where, key in keys if where == "args"})
        findings_after = _judge(after, rules)
        new_errors = _errors(findings_after) - _errors(judged)
        gone = (finding.rule, finding.message) not in {(f.rule, f.message) for f, _c in findings_after}
        if gone and not new_errors:
            shown.append(_shown(finding.rule, keys[0][0], keys[0][1], _texts(checked, keys), _texts(after, keys)))
            checked, judged = after, findings_after


def _next_repair(judged: Judged, tried: Collection[tuple[str, str]]) -> tuple[Finding, tuple[Change, ...]] | None:
    """Return the first finding with a repair that was not tried."""
    for finding, changes in judged:
        if changes and changes[0].where != "command" and (finding.rule, finding.message) not in tried:
            return finding, changes
    return None


def _apply(changes: Iterable[Change], checked: Launch) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options and variables of a launch after some changes."""
    args, env = dict(checked.args), dict(checked.env)
    for change in changes:
        place: dict[str, Any] = args if change.where == "args" else env
        if change.value is None:
            place.pop(change.key, None)
        else:
            place[change.key] = change.value
    return args, env


def _errors(judged: Judged) -> set[str]:
    return {finding.rule for finding, _changes in judged if finding.severity == "error"}


# Parsing the normal form reports these problems again, or has solved them.
_NOT_CARRIED = ("unknown", "bad_choice", "bad_key", "doubled", "model_option")


def _relaunch(
    checked: Launch,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    vllm_version: str | None,
    repaired: Iterable[str] = (),
) -> Launch:
    """Return the launch with new options and variables; problems of options that were not repaired stay."""
    parsed = vllm_launch.parse(dict(args), vllm_version)
    carried = [p for p in checked.problems if p.kind not in _NOT_CARRIED and p.option not in set(repaired)]
    return dataclasses.replace(
        checked,
        args=parsed.args,
        env=dict(env),
        problems=[*carried, *parsed.problems],
        argv=[checked.repo, *vllm_launch.render(parsed.args)] if checked.argv else [],
    )


def _texts(checked: Launch, keys: Sequence[tuple[str, str]]) -> str:
    """Return options and variables as a person would type them; unset ones are skipped."""
    words = []
    for where, key in keys:
        if where == "args":
            words += vllm_launch.render({key: checked.args[key]}) if key in checked.args else []
        elif key in checked.env:
            words.append(f"{key}={checked.env[key]}")
    return " ".join(words)


def _shown(rule: str, where: str, key: str, before: str, after: str) -> dict[str, str]:
    return {"rule": rule, "where": where, "key": key, "before": before, "after": after}


def command(family: str, model: str, args: Mapping[str, Any]) -> list[str]:
    """Return the exact argv behind the image name. model: repository or path, empty for none."""
    words = ["vllm", "serve"] if family == "passthrough" else []
    return [*words, *([model] if model else []), *vllm_launch.render(args)]


def _complain(params: Mapping[str, Any]) -> None:
    """Raise one C(ValueError) with everything that is malformed."""
    wrong: list[str] = [text for key, value in params.items() for text in unfit(value, str(key), ENDLESS)]
    wrong.extend(_unknown_keys(params))
    if not isinstance(params.get("image"), str) or not params["image"].strip():
        wrong.append("'image' must be an image reference")
    vllm_version = params.get("vllm_version")
    if vllm_version and versions.parse_version(str(vllm_version)) is None:
        wrong.append(
            f"'vllm_version' is {vllm_version!r}, which is no version of vLLM; leave it out if it is not known"
        )
    for key in ("model", "args", "env"):
        if not isinstance(params.get(key), (Mapping, type(None))):
            wrong.append(f"'{key}' must be a mapping")
    wrong.extend(_wrong_model(params.get("model")))
    wrong.extend(_wrong_lists(params))
    if params.get("argv") and params.get("args"):
        wrong.append("'args' and 'argv' exclude each other")
    for key, allowed in _CHOICES.items():
        if params.get(key) and params[key] not in allowed:
            wrong.append(f"'{key}' is {params[key]!r}, expected one of {', '.join(allowed)}")
    wrong.extend(image_catalogue.wrong_entries(params.get("catalogue"), "catalogue"))
    if wrong:
        raise InputError(wrong)


_CHOICES: dict[str, tuple[str, ...]] = {
    "entrypoint": image_catalogue.FAMILIES,
    "version_source": (GIVEN, PROBED),
    "gpu": ("gb10",),
    "executor": ("ray", "mp", "auto"),
}


def _unknown_keys(params: Mapping[str, Any]) -> Iterator[str]:
    for key in params:
        if key not in PARAMETERS:
            near = validation.nearest_word(str(key), PARAMETERS)
            yield f"unknown key '{key}'" + (f"; did you mean '{near}'?" if near else "")


def _wrong_lists(params: Mapping[str, Any]) -> list[str]:
    """Return the problems of parameters that must be lists of texts, and unknown rule ids in C(ignore)."""
    wrong = []
    for key in ("argv", "docker_args", "packages", "ignore"):
        words = params.get(key)
        if words and not (_is_list(words) and all(isinstance(word, (str, int, float)) for word in words)):
            wrong.append(f"'{key}' must be a list of texts")
    nodes = params.get("nodes")
    if nodes is not None and not is_whole(nodes, 1):
        wrong.append(f"'nodes' is {nodes!r}, expected a whole number from 1 up")
    for rule in params["ignore"] if _is_list(params.get("ignore")) else ():
        if str(rule).startswith("SPK") and rule not in _IDS:
            near = validation.nearest_word(str(rule), _IDS)
            wrong.append(f"'ignore' names {rule}, which is no rule" + (f"; did you mean {near}?" if near else ""))
    return wrong


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _wrong_model(model: Any) -> Iterator[str]:
    if not isinstance(model, Mapping):
        return
    for key, value in model.items():
        if key not in MODEL_KEYS:
            yield f"'model' has the unknown key '{key}'; known: {', '.join(MODEL_KEYS)}"
        elif value and not isinstance(value, str if key == "repo" else Mapping):
            yield f"'model.{key}' must be a {'text' if key == 'repo' else 'mapping'}"
