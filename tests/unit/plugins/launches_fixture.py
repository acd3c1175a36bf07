# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches of models that whole vLLM releases planned (tests/oracle/compare.py), and the results of the arithmetic for the same launches.

The fixture has the cases once and, for each version, an answer to each of them: a list of C(COLUMNS); a text, with which vLLM refuses the
launch; or C({unknown}), why vLLM did not answer: it has no class for the model, or its packages do not read the configuration.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import oracle_fixture

from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import check_launch
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import parse_version

FIXTURES = Path(__file__).parent / "fixtures"
PLACE = FIXTURES / "compared_launches.json"
COLUMNS = ("kv_groups", "bytes_per_block", "num_blocks", "gpu_kv_cache_size_tokens", "needed_bytes_one_request")
"""What is compared to the last digit, as the budget calls it; the sixth column is C(weights_bytes)."""
WEIGHTS_SHARE = 0.0015
"""How far weights may be off: scales of a whole tensor, and routers that GPTQ quantises, are not counted (docs/memory.md)."""
TOTAL_GIB = 119.67
RESULTS = ("equal", "refused alike", "refused", "different", "arithmetic does not know", "vLLM does not know")
"""Both plan the same; both refuse in the same words, or in words of their own; one refuses, or plans otherwise; one has no answer."""
REFUSALS = (
    "memory.plan",
    "memory.align_block",
    "memory.auto_fit",
    "memory.one_request",
    "memory.no_cache_memory",
)
"""Findings that say that vLLM refuses a launch when it plans its cache."""

Case = tuple[str, dict[str, Any], int]
"""Model, arguments, bytes of the cache."""
Answer = list[Any] | str | dict[str, str]


def load(place: Path = PLACE) -> dict[str, Any]:
    """Read the fixture; answers are given in full."""
    data: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    for version in data["versions"].values():
        version["answers"] = [data["answers"][number] for number in version["answers"]]
    return data


def save(data: dict[str, Any], place: Path = PLACE) -> None:
    """Write the fixture; an answer that several versions give stands in it once."""
    texts: dict[str, int] = {}
    versions = {
        version: {
            **recorded,
            "answers": [
                texts.setdefault(json.dumps(answer, separators=(",", ":")), len(texts))
                for answer in recorded["answers"]
            ],
        }
        for version, recorded in sorted(data["versions"].items(), key=lambda pair: order(pair[0]))
    }

    def lines(values: Any) -> str:
        return ",\n".join(json.dumps(value, separators=(",", ":")) for value in values)

    def members(values: dict[str, Any]) -> str:
        return ",\n".join(
            f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in values.items()
        )

    place.write_text(
        f'{{"about":{json.dumps(data["about"])},\n"configs":{{\n{members(data["configs"])}\n}},\n'
        f'"quant_configs":{{\n{members(data["quant_configs"])}\n}},\n"cases":[\n{lines(data["cases"])}\n],\n'
        f'"answers":[\n' + ",\n".join(texts) + f'\n],\n"versions":{{\n{members(versions)}\n}}}}\n',
        encoding="utf-8",
    )


def order(version: str) -> tuple[int, ...]:
    """Return the sort key of a version."""
    parsed = parse_version(version)
    assert parsed is not None, version
    return parsed.release


def planned(
    config: dict[str, Any], quant_config: dict[str, Any] | None, case: Case, version: str, weights: int = 0
) -> dict[str, Any]:
    """Plan a launch; return the service of the budget with C(messages), the texts of its findings, C(error), the reason for a missing plan, and
    C(refusals), the reasons why vLLM would refuse it, from the budget and from the rules about launches.

    weights: bytes of the weights, where the arithmetic does not know them.
    """
    _model, args, available = case
    service: dict[str, Any] = {
        **{"name": "x", "config": config, "vllm_version": version},
        **{"args": {"gpu-memory-utilization": 0.9, **args}, "available_kv_bytes": available},
    }
    if quant_config:
        service["quant_config"] = quant_config
    if weights:
        service["weights_gib"] = weights / (1 << 30)
    budget = memory_budget({"total_gib": TOTAL_GIB, "services": [service]})
    made: dict[str, Any] = budget["services"].get("x") or {}
    errors = [finding["message"] for finding in budget["findings"] if finding["severity"] == "error"]
    if made.get("num_blocks") is None:
        made = {**made, "error": "; ".join(errors) or "no plan"}
    model = {"repo": "a/model", "config": config, "quant_config": quant_config or {}}
    launch = {"image": "an/image:1", "entrypoint": "serve", "vllm_version": version, "model": model, "args": args}
    # Rules about options, models and drafts; those about kernels and hosts are no matter of a planner.
    rules = [
        finding
        for finding in check_launch(launch)["findings"]
        if finding["severity"] == "error" and finding["rule"][3] in "146"
    ]
    texts = [
        finding[key]
        for finding in (*budget["findings"], *rules)
        for key in ("message", "vllm_error")
        if finding.get(key)
    ]
    refusals = [
        finding for finding in budget["findings"] if finding["severity"] == "error" and finding["rule"] in REFUSALS
    ]
    return {**made, "messages": texts, "refusals": [finding["message"] for finding in (*refusals, *rules)]}


def judge(
    config: dict[str, Any], quant_config: dict[str, Any] | None, case: Case, version: str, answer: Answer
) -> tuple[str, list[str]]:
    """Return how a case ended, one of C(RESULTS), and why."""
    mine = planned(config, quant_config, case, version)
    if isinstance(answer, dict):
        return "vLLM does not know", [answer["unknown"]]
    if isinstance(answer, str):
        # If the budget refuses the launch, one of its findings contains vLLM's sentence.
        if any(answer[:60] in text for text in mine["messages"]):
            return "refused alike", []
        refusals = "; ".join(mine["refusals"]) or mine.get("error", "")
        return ("refused" if refusals else "different"), [f"arithmetic: {refusals or 'planned'}", f"vLLM: {answer}"]
    if mine["refusals"]:
        return "different", [f"arithmetic refuses: {'; '.join(mine['refusals'])}", "vLLM: planned"]
    differences: list[str] = []
    if "error" in mine and "the weights of" in mine["error"]:
        # The cache can be compared without them.
        mine = planned(config, quant_config, case, version, answer[-1])
    elif "error" not in mine and abs(mine["weights_bytes"] - answer[-1]) > WEIGHTS_SHARE * answer[-1]:
        differences.append(f"weights_bytes: arithmetic {mine['weights_bytes']}, vLLM {answer[-1]}")
    if "error" in mine:
        return "arithmetic does not know", [mine["error"]]
    mine["kv_groups"] = sorted([group["layers"], group["block_size"]] for group in mine["kv_groups"])
    differences += [
        f"{name}: arithmetic {mine[name]}, vLLM {right}"
        for name, right in zip(COLUMNS, answer[:-1], strict=True)
        if mine[name] != right
    ]
    return ("different" if differences else "equal"), differences


@cache
def results() -> dict[str, list[tuple[str, list[str]]]]:
    """Compare the whole fixture anew; returns by version how each case ended."""
    data = load()
    return {
        version: [
            judge(data["configs"].get(case[0]) or {}, data["quant_configs"].get(case[0]), case, version, answer)
            for case, answer in zip(data["cases"], recorded["answers"], strict=True)
        ]
        for version, recorded in data["versions"].items()
    }


def counted(version: str) -> Counter[str]:
    """Return how often each of C(RESULTS) came up."""
    return Counter(result for result, _why in results().get(version, []))


def requested_cases() -> dict[str, tuple[int, list[str]]]:
    """Return by version how many made-up rows vLLM's planner answered, and the models of the launches that a whole vLLM planned.

    The cases are the rows of the older fixtures, which separate tests compare one by one, and the launches of this fixture.
    """
    rows = json.loads((FIXTURES / "oracle_rows.json").read_text(encoding="utf-8"))["answers"]
    launches: dict[str, list[str]] = {version: [] for version in rows}
    for name in ("memory_rows", "memory_rows_2026_11"):
        data = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
        version, model = data["columns"].index("version"), data["columns"].index("model")
        for row in data["rows"]:
            launches.setdefault(row[version], []).append(row[model])
    cases = load()["cases"]
    for version, outcomes in results().items():
        planned_of = [
            case[0] for case, (result, _why) in zip(cases, outcomes, strict=True) if result in ("equal", "different")
        ]
        launches.setdefault(version, []).extend(planned_of)
    return {
        version: (sum(row is not None for row in rows.get(version, [])), launches[version])
        for version in sorted(launches, key=order)
    }


def refused_rows(version: str) -> int:
    """Return how many made-up rows and recorded launches a release of vLLM refuses, each of which the arithmetic refuses in its words."""
    rows = oracle_fixture.load()["answers"].get(version, [])
    count = sum(isinstance(row, str) for row in rows)
    for name in ("memory_rows", "memory_rows_2026_11"):
        data = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
        place, error = data["columns"].index("version"), data["columns"].index("error")
        count += sum(bool(row[error]) for row in data["rows"] if row[place] == version)
    return count


def compared() -> str:
    """Return the table of compared launches in tests/oracle/memory_tables.md; the differences are counted anew, equal releases share a row."""
    data = oracle_fixture.load()
    differing = {
        version: sum(
            truth is not None and oracle_fixture.answer(case, version) != truth
            for case, truth in zip(data["cases"], rows, strict=True)
        )
        for version, rows in data["answers"].items()
    }
    head = (
        "vLLM",
        "rows",
        "differ",
        "launches",
        "models",
        "differ",
        "refusals",
        "other text",
        "vLLM cannot",
        "not known",
        "`exact`",
    )

    def cells(version: str) -> tuple[object, ...]:
        rows, models = cases[version]
        ended = counted(version)
        refusals = refused_rows(version) + ended["refused alike"] + ended["refused"]
        unknown = ended["vLLM does not know"], ended["arithmetic does not know"]
        exact = str(parse_release(version).exact).lower()
        different = differing.get(version, 0), len(models), len(set(models)), ended["different"]
        return rows, *different, refusals, ended["refused"], *unknown, exact

    cases = requested_cases()
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row, versions in itertools.groupby(cases, cells):
        lines.append(f"| {', '.join(versions)} | {' | '.join(map(str, row))} |")
    return "\n".join(lines)
