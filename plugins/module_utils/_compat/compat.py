# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Will this vLLM launch start on a DGX Spark, and will it do what its author meant?

C(check_launch) answers for one launch, C(check_written) for the systemd unit or C(docker run) around it. Everything they
can say is a C(Rule): an id that never changes, a severity, a message, a fix and the source of the knowledge. The rules
stand in the C(rules_*) files, by family. A rule that lacks a fact keeps silent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .._common import validation
from .._common.docker_run import read_options
from .._common.findings import SEVERITIES, Finding, has_errors
from .._common.plain_data import InputError, unfit
from .._vllm import image_catalogue, launch, versions
from . import (
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
RULE_FILES = (
    rules_launch,
    rules_platform,
    rules_model,
    rules_kernels,
    rules_decoding,
    rules_nodes,
    rules_memory,
    rules_reported,
    rules_unit,
)
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
      docker_args (words between C(docker run) and the image), packages (list of what is installed on top of the image,
      as pip takes it), ignore (rule ids), catalogue (further image entries, see
      C(image_catalogue.lookup)), refuse_service_keys (boolean: complain about host, port, served-model-name, model and
      name among the args).
    Returns compatible, vllm_version, version_source, entrypoint, command (argv behind the image name), args
    (normalised), findings (plain dicts, errors first) and fixed: args, env and command with every repair applied that
    cannot change what was meant, the changes (rule, where, key, before, after) and the findings that are left.
    Raises C(ValueError), naming everything that is malformed.
    """
    _complain(params)
    image = str(params["image"]).strip()
    entry = image_catalogue.lookup(image, params.get("catalogue") or ()) or {}
    known, source = _version(params, entry)
    parsed, refused = _parsed(params, known)
    of = _launch(params, entry, known, parsed, refused, source == PROBED)
    rules = _wanted(LAUNCH_RULES, params.get("ignore"))
    judged = _judge(of, rules)
    plain = _plain(finding for finding, _changes in judged)
    name = parsed.model or of.repo
    repaired, changes, left = _repair(of, known, rules, judged)
    return {
        "compatible": not has_errors(plain),
        "vllm_version": known,
        "version_source": source,
        "entrypoint": of.entrypoint,
        "command": command(of.entrypoint, name, parsed.args),
        "args": parsed.args,
        "findings": plain,
        "fixed": {
            "args": repaired.args,
            "env": repaired.env,
            "command": command(of.entrypoint, name, repaired.args),
            "changes": changes,
            "findings": left if changes else plain,
        },
    }


def _parsed(params: Mapping[str, Any], known: str | None) -> tuple[launch.Parsed, list[launch.Problem]]:
    """Read C(argv) or C(args); returns it with the keys of a service that were refused among the args."""
    argv = [str(word) for word in params.get("argv") or []]
    args = {str(key): value for key, value in (params.get("args") or {}).items()}
    refused: list[launch.Problem] = []
    if params.get("refuse_service_keys"):
        args = {launch.long_name(key): value for key, value in args.items()}
        refused = launch.service_keys(args)
        args = {key: value for key, value in args.items() if key not in launch.SERVICE_KEYS}
    return launch.parse(argv if argv else args, known), refused


def _launch(
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    known: str | None,
    parsed: launch.Parsed,
    refused: Sequence[launch.Problem],
    probed: bool,
) -> Launch:
    """Make what rules judge of the parameters of C(check_launch); entry: of the image catalogue, empty for none."""
    docker = read_options([str(word) for word in params.get("docker_args") or []])[0]
    replaced = "passthrough" if docker.values("--entrypoint") else None
    family = params.get("entrypoint") or replaced or entry.get("entrypoint")
    model = params.get("model") or {}
    return Launch(
        image=str(params["image"]).strip(),
        entry=entry,
        version=versions.parse_version(known) if known else None,
        entrypoint=family or "serve",
        entrypoint_known=family is not None,
        args=parsed.args,
        problems=[*refused, *parsed.problems],
        env={str(key): str(value) for key, value in (params.get("env") or {}).items() if value is not None},
        repo=str(model.get("repo") or parsed.model or ""),
        config=model.get("config") or {},
        quant_config=model.get("quant_config") or {},
        driver=str(params.get("driver_version") or "") or None,
        nodes=int(params.get("nodes") or 1),
        executor=params.get("executor") or None,
        argv=[str(word) for word in params.get("argv") or []],
        docker=docker,
        packages=[str(package) for package in params.get("packages") or []],
        probed=probed,
    )


def check_written(written: rules_unit.Written) -> list[dict[str, Any]]:
    """Judge a systemd unit that runs vLLM in docker, or a C(docker run) command, as it was read; returns findings, errors first.

    It looks at the unit and the container. What is behind the image name is for C(check_launch), which takes the words
    in front of it as C(docker_args).
    """
    return _plain(finding for rule in UNIT_RULES for finding, _changes in rule.judge(written))


# --- repairs ------------------------------------------------------------------------------------------------------

Judged = Sequence[tuple[Finding, tuple[Change, ...]]]


def _wanted(rules: Sequence[Rule], ignore: Any) -> list[Rule]:
    ignored = set(ignore or ())
    return [rule for rule in rules if rule.id not in ignored]


def _judge(of: Launch, rules: Sequence[Rule]) -> Judged:
    return [found for rule in rules for found in rule.judge(of)]


def _plain(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding.to_dict() for finding in sorted(findings, key=lambda found: SEVERITIES.index(found.severity))]


def _repair(
    of: Launch, known: str | None, rules: Sequence[Rule], judged: Judged
) -> tuple[Launch, list[dict[str, str]], list[dict[str, Any]]]:
    """Apply repairs one by one; one that brings up an error that was not there, or changes nothing, is left out."""
    shown: list[dict[str, str]] = []
    tried: set[tuple[str, str]] = set()
    # The normal form of a command line is a repair of its own: what argv got wrong is not in args any more.
    for finding, changes in judged:
        for change in changes:
            if change.where == "command":
                shown.append(_shown(finding.rule, change.where, change.key, change.key, str(change.value)))
    if shown:
        of = _relaunch(of, of.args, of.env, known)
        judged = _judge(of, rules)
    while True:
        step = next(
            ((f, c) for f, c in judged if c and c[0].where != "command" and (f.rule, f.message) not in tried), None
        )
        if step is None:
            return of, shown, _plain(finding for finding, _changes in judged)
        finding, changes = step
        tried.add((finding.rule, finding.message))
        args, env = dict(of.args), dict(of.env)
        for change in changes:
            place: dict[str, Any] = args if change.where == "args" else env
            if change.value is None:
                place.pop(change.key, None)
            else:
                place[change.key] = change.value
        keys = [(change.where, change.key) for change in changes]
        after = _relaunch(of, args, env, known, {f"--{key}" for where, key in keys if where == "args"})
        then = _judge(after, rules)
        new_errors = _errors(then) - _errors(judged)
        gone = (finding.rule, finding.message) not in {(f.rule, f.message) for f, _c in then}
        if gone and not new_errors:
            shown.append(_shown(finding.rule, keys[0][0], keys[0][1], _texts(of, keys), _texts(after, keys)))
            of, judged = after, then


def _errors(judged: Judged) -> set[str]:
    return {finding.rule for finding, _changes in judged if finding.severity == "error"}


# What reading the normal form brings up again by itself, and what it puts right.
_NOT_CARRIED = ("unknown", "bad_choice", "bad_key", "doubled", "model_option")


def _relaunch(
    of: Launch, args: Mapping[str, Any], env: Mapping[str, str], known: str | None, repaired: Iterable[str] = ()
) -> Launch:
    """Return the launch with other options and variables; what was wrong with the words of others stays wrong."""
    parsed = launch.parse(dict(args), known)
    carried = [p for p in of.problems if p.kind not in _NOT_CARRIED and p.option not in set(repaired)]
    return dataclasses.replace(
        of,
        args=parsed.args,
        env=dict(env),
        problems=[*carried, *parsed.problems],
        argv=[of.repo, *launch.render(parsed.args)] if of.argv else [],
    )


def _texts(of: Launch, keys: Sequence[tuple[str, str]]) -> str:
    """Write options and variables as a person would type them; those that are not there leave nothing."""
    words = []
    for where, key in keys:
        if where == "args":
            words += launch.render({key: of.args[key]}) if key in of.args else []
        elif key in of.env:
            words.append(f"{key}={of.env[key]}")
    return " ".join(words)


def _shown(rule: str, where: str, key: str, before: str, after: str) -> dict[str, str]:
    return {"rule": rule, "where": where, "key": key, "before": before, "after": after}


def entrypoint_argv(family: str) -> list[str]:
    """Return what must stand between the image name and the model: nothing, or C(vllm serve)."""
    if family not in image_catalogue.FAMILIES:
        raise ValueError(f"entrypoint is {family!r}, expected one of {', '.join(image_catalogue.FAMILIES)}")
    return ["vllm", "serve"] if family == "passthrough" else []


def command(family: str, model: str, args: Mapping[str, Any]) -> list[str]:
    """Return the exact argv behind the image name.

    :param family: a word of C(image_catalogue.FAMILIES)
    :param model: repository or path, empty for none
    :param args: normalised options
    :returns: words
    """
    return [*entrypoint_argv(family), *([model] if model else []), *launch.render(args)]


def _version(params: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[str | None, str]:
    if params.get("vllm_version"):
        return str(params["vllm_version"]), str(params.get("version_source") or GIVEN)
    if entry.get("vllm_version"):
        return str(entry["vllm_version"]), CATALOGUE
    return None, UNKNOWN


def _complain(params: Mapping[str, Any]) -> None:
    """Raise one C(ValueError) with everything that is malformed."""
    wrong: list[str] = [text for key, value in params.items() for text in unfit(value, str(key), ENDLESS)]
    for key in params:
        if key not in PARAMETERS:
            near = validation.nearest_word(str(key), PARAMETERS)
            wrong.append(f"unknown key '{key}'" + (f"; did you mean '{near}'?" if near else ""))
    if not isinstance(params.get("image"), str) or not params["image"].strip():
        wrong.append("'image' must be an image reference")
    given = params.get("vllm_version")
    if given and versions.parse_version(str(given)) is None:
        wrong.append(f"'vllm_version' is {given!r}, which is no version of vLLM; leave it out if it is not known")
    for key in ("model", "args", "env"):
        if params.get(key) is not None and not isinstance(params[key], Mapping):
            wrong.append(f"'{key}' must be a mapping")
    wrong.extend(_wrong_model(params.get("model")))
    wrong.extend(_wrong_lists(params))
    if params.get("argv") and params.get("args"):
        wrong.append("'args' and 'argv' exclude each other")
    for key, allowed in (
        ("entrypoint", image_catalogue.FAMILIES),
        ("version_source", (GIVEN, PROBED)),
        ("gpu", ("gb10",)),
        ("executor", ("ray", "mp", "auto")),
    ):
        if params.get(key) and params[key] not in allowed:
            wrong.append(f"'{key}' is {params[key]!r}, expected one of {', '.join(allowed)}")
    nodes = params.get("nodes", 1)
    if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
        wrong.append(f"'nodes' is {nodes!r}, expected a whole number from 1 up")
    wrong.extend(image_catalogue.wrong_entries(params.get("catalogue"), "catalogue"))
    if wrong:
        raise InputError(wrong)


def _wrong_lists(params: Mapping[str, Any]) -> list[str]:
    """Say which lists are none, or not of texts, and which ids of rules there are not."""
    wrong = []
    for key in ("argv", "docker_args", "packages", "ignore"):
        words = params.get(key)
        if words and not (_is_list(words) and all(isinstance(word, (str, int, float)) for word in words)):
            wrong.append(f"'{key}' must be a list of texts")
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
