# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tuning of a service: its variants, their measurements, the best one, and its options in the inventory. Pure functions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common import schema, tables
from .._common.schema import NUMBER, Key
from .._common.validation import Problems, nearest
from .._proof.bench_compare import middle
from .recipes import normalise_args

BASE = "present"
"""The name of the service as it is."""
GOALS = {"stream": "one stream", "together": "all streams", "prompt": "prefill"}
KEYS: dict[str, Key] = {
    "minutes": Key(
        NUMBER,
        120,
        "how long a run may take; a variant that would not end in time is not begun",
        above=0,
        unit="minutes",
    ),
    "restarts": Key(int, 12, "restarts of the engine in a run, the last one excluded", least=1),
    "levers": Key(list, [], "levers that are tried, by name; all that apply when empty"),
    "variants": Key(dict, {}, "further variants: name to changed args; null removes an option"),
    "goal": Key(
        str,
        "balance",
        "what counts: one `stream`, all streams `together`, the `prompt` (prefill), or the mean of these",
        choices=("balance", *GOALS),
    ),
    "gain_percent": Key(NUMBER, 3, "least gain for which a variant is kept", least=0),
}
"""Keys of C(spark_tune)."""
_MOST_SIZES = 64


@dataclass
class Trial:
    """A variant. state: C(open), C(unfit) by its plan, C(failed) or C(proved). figures: tokens/s by C(GOALS). seconds: that it took."""

    args: Mapping[str, Any]
    state: str = "open"
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Session:
    """The trials of a service, kept from run to run.

    base: checksum of the unchanged launch. deployed: the variant on the host, empty for none. errors: of the plan of the unchanged
    service. began, trial_began: seconds of the clock. restarts: of this run.
    """

    base: str
    trials: dict[str, Trial]
    deployed: str = ""
    errors: Sequence[str] = ()
    began: float = 0.0
    trial_began: float = 0.0
    restarts: int = 0

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Session:
        """Return the session of C(asdict). Raises TypeError or AttributeError for another mapping."""
        return cls(**{**content, "trials": {name: Trial(**trial) for name, trial in content["trials"].items()}})


def read(where: str, value: Any, levers: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return C(spark_tune) with all defaults, and its problems. levers: of playbooks/vars/tune_levers.yml."""
    problems = Problems(f"{where}, spark_tune")
    settings = schema.filled(problems, problems.mapping(value, "spark_tune"), KEYS)
    names = [lever["name"] for lever in levers]
    for name in settings["levers"]:
        if name not in names:
            problems.add(f"unknown lever '{name}'{nearest(str(name), names)} Known: {', '.join(names)}.")
    for name, args in settings["variants"].items():
        if not isinstance(args, Mapping) or not args:
            problems.add(f"'variants.{name}' must be a mapping of options of vllm serve.")
    return settings, problems.messages


def launch_checksum(service: Mapping[str, Any]) -> str:
    """Return a checksum of the launch of a planned service: measurements of another one are not reused."""
    launch = [service[key] for key in ("args", "env", "vllm_version")]
    launch += [service["image"]["run"], service["model"]["argument"]]
    return hashlib.sha256(json.dumps(launch, sort_keys=True, default=str).encode()).hexdigest()


def variants(
    service: Mapping[str, Any], levers: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the changed options of each variant by its name, the unchanged service first. levers, settings: see C(read)."""
    changes: dict[str, dict[str, Any]] = {BASE: {}}
    for lever in levers:
        if (not settings["levers"] or lever["name"] in settings["levers"]) and _applies(lever, service):
            for word, value in _values(lever, service):
                changes[f"{lever['name']}-{word}"] = {lever["option"]: value}
    return changes | {str(name): normalise_args(args) for name, args in settings["variants"].items()}


def _applies(lever: Mapping[str, Any], service: Mapping[str, Any]) -> bool:
    """Tell whether a launch has the options, and the kernels, that a lever needs."""
    needed = lever.get("needs")
    return all(service["args"].get(option) for option in lever.get("only") or ()) and (
        not needed or bool(service["fast_path"].get(needed))
    )


def _values(lever: Mapping[str, Any], service: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a word and a value for each setting of a lever that the launch does not have."""
    args, option, key = service["args"], lever["option"], lever.get("key")
    present = args.get(option)
    body = present if isinstance(present, Mapping) else {}
    now = body.get(key) if key else service["memory"].get(option.replace("-", "_")) if present is None else present
    # Kernels that it has without the option.
    kernels = (service["fast_path"].get(lever.get("needs", "")) or {}).get("any_of", ())
    default_kernels = [str(name).lower() for name in kernels]
    for value in _candidates(lever, service, now):
        if (
            value in (now, [])
            or (len(default_kernels) == 1 and str(value).lower() in default_kernels)
            or (_is_number(value) and not lever.get("least", 1) <= value <= lever.get("most", value))
        ):
            continue
        word = "off" if value is None else "every" if isinstance(value, list) else str(value).lower().replace("_", "-")
        yield word, {**body, key: value} if key else value


def _candidates(lever: Mapping[str, Any], service: Mapping[str, Any], now: Any) -> list[Any]:
    """Return the settings that a lever names, and those that it computes from the present one, C(now)."""
    values = [_graph_sizes(service) if value == "every" else value for value in lever.get("values") or ()]
    if _is_number(now):
        values += [int(now * factor) for factor in lever.get("factors") or ()]
        values += [now + step for step in lever.get("steps") or ()]
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _graph_sizes(service: Mapping[str, Any]) -> list[int]:
    """Return the batch sizes of all numbers of streams; with drafts each stream has several tokens."""
    spec = service["args"].get("speculative-config")
    width = 1 + (spec.get("num_speculative_tokens") or 0 if isinstance(spec, Mapping) else 0)
    streams = service["memory"].get("max_num_seqs") or 0
    return [width * number for number in range(1, streams + 1)] if streams <= _MOST_SIZES else []


def begin(earlier: Session | None, service: Mapping[str, Any], named: Mapping[str, Mapping[str, Any]]) -> Session:
    """Return a session with the trials of an earlier run of the same launch."""
    session = Session(launch_checksum(service), {name: Trial(dict(args)) for name, args in named.items()})
    if earlier and earlier.base == session.base:
        session.deployed = earlier.deployed
        for name, trial in earlier.trials.items():
            if name in session.trials and session.trials[name].args == trial.args:
                session.trials[name] = trial
    return session


def why_not(session: Session, name: str, errors: Sequence[str], now: float, settings: Mapping[str, Any]) -> str:
    """Return why a variant is not tried now, empty if it is; it is marked if its plan refuses it. settings: C(spark_tune) with all defaults."""
    trial = session.trials[name]
    further = [error for error in errors if error not in session.errors]
    longest = max(trial.seconds for trial in session.trials.values())
    if trial.state != "open":
        return f"{trial.state} in an earlier run{f': {trial.reason}' if trial.reason else ''}"
    if further:
        trial.state, trial.reason = "unfit", further[0]
        return f"it does not fit: {further[0]}"
    if name != BASE and session.trials[BASE].state != "proved":
        return "the present service was not measured"
    if session.restarts >= settings["restarts"]:
        return f"the {settings['restarts']} restarts of this run are used up"
    if now - session.began + longest > settings["minutes"] * 60:
        return f"the {settings['minutes']:g} minutes of this run do not suffice"
    return ""


def figures_of(section: Mapping[str, Any]) -> dict[str, float]:
    """Return tokens/s by C(GOALS) of a result of M(dgxspark.vllm.service_bench)."""
    single = sorted(section.get("single") or [], key=lambda row: row["prompt_tokens"])
    rates = [row.get("output_tokens_per_second") or 0.0 for row in section.get("concurrency") or []]
    figures = {
        "stream": middle(single[0], "decode_tokens_per_second") if single else None,
        "together": max(rates, default=None),
        "prompt": middle(single[-1], "prefill_tokens_per_second") if single else None,
    }
    return {name: value for name, value in figures.items() if value}


def gain(session: Session, variant: str, goal: str) -> float | None:
    """Return the gain of a variant over the unchanged service, 0.1 for 10 %, None if one of the two was not measured.

    goal: of C(GOALS), or C(balance) for their mean.
    """
    base, figures = session.trials[BASE].figures, session.trials[variant].figures
    names = [name for name in (GOALS if goal == "balance" else (goal,)) if name in base and name in figures]
    if not names or session.trials[variant].state != "proved":
        return None
    return math.exp(sum(math.log(figures[name] / base[name]) for name in names) / len(names)) - 1


def best(session: Session, settings: Mapping[str, Any]) -> str:
    """Return the proved variant with the highest gain, C(BASE) if none gains enough."""
    gains = {name: gain(session, name, settings["goal"]) or 0.0 for name in sorted(session.trials)}
    enough = [name for name, value in gains.items() if value * 100 >= max(settings["gain_percent"], 1e-9)]
    return max(enough, key=lambda name: gains[name], default=BASE)


def report(session: Session, settings: Mapping[str, Any], chosen: str) -> str:
    """Return the trials as a table for a terminal. settings: C(spark_tune) with all defaults."""
    rows = []
    for name, trial in session.trials.items():
        change = gain(session, name, settings["goal"])
        cells = [f"{trial.figures[goal]:.1f}" if goal in trial.figures else "-" for goal in GOALS]
        gained = "-" if change is None else f"{change:+.1%}"
        rows.append([f"* {name}" if name == chosen else name, *cells, gained, trial.reason or trial.state])
    return tables.table(("variant", *GOALS.values(), "gain", "result"), rows)


def tuned_entry(entry: Any, tuned: Mapping[str, Any]) -> Any:
    """Return an entry of C(spark_services) with the options of C(spark_tuned)."""
    changed = tuned.get(str(entry.get("name"))) if isinstance(entry, Mapping) else None
    if not isinstance(changed, Mapping):
        return entry
    args = entry.get("args")
    return {**entry, "args": {**normalise_args(args if isinstance(args, Mapping) else {}), **normalise_args(changed)}}
