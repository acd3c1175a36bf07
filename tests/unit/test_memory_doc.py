# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/memory.md and tests/oracle/memory_tables.md: every figure that the engine can compute is computed here again and compared with the text.

A block of the pages is introduced by C(<!-- computed: NAME -->), and must be what the function NAME of C(BLOCKS) writes; one
that is introduced by C(<!-- stated: ... -->) has figures that others measured or fixed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from launches_fixture import compared, requested_cases

from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import families as family_readers
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import geometry as model_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import modules
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.budget import memory_budget
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.geometry import read_geometry
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_cache import plan_kv_cache
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.kv_plan import KVSettings
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.releases import COMPARED_MINORS, parse_release
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import OVERHEADS

ROOT = Path(__file__).parents[2]
PAGE = "\n".join(
    (ROOT / name).read_text(encoding="utf-8") for name in ("docs/memory.md", "tests/oracle/memory_tables.md")
)
FIXTURES = Path(__file__).parent / "plugins" / "fixtures"
GIB = 1 << 30
TOTAL = 119.67

# The recipe of the guide: Qwen3.6-35B-A3B in NVFP4, fp8 cache, MTP 3, prefix caching, batches of 8192 tokens.
GUIDE: dict[str, Any] = {
    "kv-cache-dtype": "fp8",
    "max-model-len": 65536,
    "max-num-seqs": 4,
    "max-num-batched-tokens": 8192,
    "enable-prefix-caching": True,
    "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
}


def service(name: str, recipe: str, version: str, args: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return a service of a shipped recipe; arguments of C(None) are left out."""
    recipe_body = yaml.safe_load((ROOT / "playbooks" / "recipes" / f"{recipe}.yml").read_text(encoding="utf-8"))
    merged = {key: value for key, value in {**recipe_body["args"], **args}.items() if value is not None}
    made = {key: recipe_body.get(key) for key in ("config", "quant_config", "weights_gib", "draft_weights_gib")}
    return {"name": name, **made, "vllm_version": version, "args": merged, **keys}


def plan(*services: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return memory_budget({"total_gib": TOTAL, "services": list(services), **keys})


def guide(version: str = "0.23.0", pool: float | None = None, **args: Any) -> dict[str, Any]:
    """Plan the guide's recipe alone; C(pool) gives the KV cache in GiB as a log reports it."""
    arguments = {
        **GUIDE,
        "gpu-memory-utilization": 0.85,
        **{key.replace("_", "-"): value for key, value in args.items()},
    }
    keys = {} if pool is None else {"available_kv_bytes": int(pool * GIB)}
    made: dict[str, Any] = plan(service("q", "qwen3.6-35b-a3b-nvfp4", version, arguments, **keys))["services"]["q"]
    return made


def pair(heavy: float | None, fast: float | None, *more: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Plan the two models of the residency report."""
    return plan(
        service(
            "heavy",
            "qwen3-next-80b-a3b-instruct-fp8",
            "0.19.0",
            {"max-model-len": 65536, "max-num-seqs": 4, "gpu-memory-utilization": heavy},
        ),
        service(
            "fast",
            "qwen3-4b-instruct-2507",
            "0.19.0",
            {"max-model-len": 16384, "max-num-seqs": 8, "gpu-memory-utilization": fast},
        ),
        *more,
        **keys,
    )


def table(head: str, *rows: list[Any]) -> str:
    """Write a Markdown table."""
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def levels(term: dict[str, float]) -> str:
    return " / ".join(f"{term[level]:.2f}" for level in ("low", "typical", "high"))


def overheads() -> str:
    kinds = [key for key in OVERHEADS if not key.endswith(("_seconds", "_per_second"))]
    return table("term | low | typical | high", *([f"`{key}`", *OVERHEADS[key]] for key in kinds))


def weights() -> str:
    rows: list[list[Any]] = []
    for recipe, ranks, args in (
        ("qwen3-4b-instruct-2507", 1, {}),
        ("qwen3-8b", 1, {}),
        ("qwen3-next-80b-a3b-instruct-fp8", 1, {}),
        ("qwen3-next-80b-a3b-instruct-fp8", 2, {}),
        ("qwen3-next-80b-a3b-instruct-fp8", 2, {"enable-expert-parallel": True}),
        ("gemma-4-26b-a4b", 1, {}),
    ):
        base = {"max-model-len": 8192, "tensor-parallel-size": ranks, "speculative-config": None, "quantization": None}
        made = plan({**service("a", recipe, "0.23.0", {**base, **args}), "weights_gib": None})["services"]["a"]
        over = "1" if ranks == 1 else f"{ranks}, experts whole" if args else str(ranks)
        rows.append([f"`{recipe}`", over, gib(made["weights_bytes"]), gib(made["vision_bytes"])])
    return table("recipe | ranks | GiB a rank | of it vision", *rows)


def blocks() -> str:
    rows = []
    for drafts in range(4):
        spec = {"method": "mtp", "num_speculative_tokens": drafts} if drafts else None
        cells = [
            {guide(f"0.{minor}.0", speculative_config=spec, kv_cache_dtype=kind)["block_size"] for minor in minors}
            for minors in ((17, 18, 23, 32), (33,))
            for kind in ("fp8", "auto")
        ]
        rows.append([drafts, *(" or ".join(map(str, sorted(sizes))) for sizes in cells)])
    head = "MTP tokens | 0.17 to 0.32: fp8 cache | 0.17 to 0.32: 16-bit cache | 0.33: fp8 cache | 0.33: 16-bit cache"
    return table(head, *rows)


def pages() -> str:
    made = guide(pool=76.49)
    kinds = [f"{group['layers']} {group['kind']}" for group in made["kv_groups"]]
    return "\n".join(
        [
            "```text",
            f"groups           {' + '.join(kinds)}",
            f"block            {made['block_size']} tokens, page {made['page_size_bytes']:,} bytes a layer",
            f"block, all       {made['bytes_per_block']:,} bytes = page x {made['kv_groups'][-1]['layers']} layers",
            f"blocks           76.49 GiB / {made['bytes_per_block']:,} = {made['num_blocks']:,}",
            f"one request      {round(made['needed_bytes_one_request'] / made['bytes_per_block'])} blocks at 65,536 tokens",
            f"concurrency      {made['num_blocks']:,} / {round(made['needed_bytes_one_request'] / made['bytes_per_block'])}"
            f" = {made['max_concurrency']:.2f}",
            f"tokens           {made['max_concurrency']:.3f} x 65,536 = {made['gpu_kv_cache_size_tokens']:,}",
            "```",
        ]
    )


def per_token() -> str:
    rows = []
    for length in (8192, 65536, 262144):
        made = guide(pool=76.49, max_model_len=length)
        tokens = made["gpu_kv_cache_size_tokens"]
        rows.append(
            [
                f"{length:,}",
                f"{tokens:,}",
                f"{76.49 * GIB / tokens:,.0f}",
                f"{made['marginal_bytes_per_token']:,.0f}",
                f"{gib(made['needed_bytes_one_request'])}",
            ]
        )
    return table(
        "max-model-len | `GPU KV cache size` | pool / tokens, bytes | one more token, bytes | one request, GiB", *rows
    )


def versions() -> str:
    rows = []
    for version in ("0.19.0", "0.20.0", "0.23.0", "0.26.0", "0.33.0"):
        made = guide(version, pool=40, speculative_config=None)
        rows.append(
            [
                version,
                made["block_size"],
                f"{made['gpu_kv_cache_size_tokens']:,}",
                f"{made['max_concurrency']:.2f}",
                gib(made["needed_bytes_one_request"]),
            ]
        )
    return table("vLLM | block | `GPU KV cache size` | concurrency | one request, GiB", *rows)


def families() -> str:
    """Models of several caches per layer, from the configs that are stored with the compared rows."""
    models = json.loads((FIXTURES / "memory_rows_2026_11.json").read_text(encoding="utf-8"))["configs"]
    rows = []
    for model in (
        "Qwen3.8-Flash-Next",
        "DeepSeek-V4-Flash",
        "DeepSeek-V4.1-Flash",
        "GLM-5.3-Flash",
        "GLM-5.2",
        "MiniMax-M3-noquant",
        "Kimi-K3",
        "MiMo-V2.6-Flash",
        "Step-3.7-Flash",
        "Inkling-Small",
    ):
        geometry = read_geometry(models[model])
        made = plan_kv_cache(geometry, KVSettings(parse_release("0.33.0"), 2048))
        sizes = sorted({group.block_size for group in made.groups if group.kind in ("full", "mla")})
        rows.append(
            [
                model.removesuffix("-noquant"),
                f"`{geometry.model_type}`",
                f"0.{geometry.rules.oldest}" if geometry.rules.oldest else "-",
                len(geometry.caches()),
                f"{made.bytes_per_block:,}",
                ", ".join(map(str, sizes)),
                made.blocks_per_request(32768),
                gib(made.needed_bytes(32768)),
            ]
        )
    return table(
        "model | family | vLLM from | caches | block, bytes | tokens of a full block | blocks of a request of 32,768 | GiB",
        *rows,
    )


def walk() -> str:
    rows = []
    for length, share in ((65536, 0.85), (262144, 0.85), (262144, 0.4)):
        made = guide(gpu_memory_utilization=share, max_model_len=length)
        rows.append(
            [
                f"{length:,}",
                share,
                gib(made["available_kv_bytes"]["typical"]),
                gib(made["needed_bytes_one_request"]),
                f"{made['max_concurrency']:.2f}",
            ]
        )
    return table("max-model-len | utilization | KV cache, GiB | one request, GiB | requests at once", *rows)


def residency() -> str:
    rows = []
    for heavy, fast in ((0.75, 0.12), (0.85, 0.12), (0.8, 0.1), (None, None)):
        made = pair(heavy, fast)
        parts = made["services"]
        rows.append(
            [
                "calculated" if heavy is None else f"{heavy} + {fast}",
                f"{parts['heavy']['gpu_memory_utilization']} + {parts['fast']['gpu_memory_utilization']}",
                levels(parts["heavy"]["residency_gib"]),
                levels(parts["fast"]["residency_gib"]),
                f"{made['memory_map'][-1]['gib']:.2f}",
                made["verdict"],
            ]
        )
    return table("given | utilization | 80B uses, GiB | 4B uses, GiB | free | verdict", *rows)


def refusal() -> str:
    findings = [item for item in pair(0.85, 0.12)["findings"] if item["rule"] == "memory.free_at_start"]
    return "\n".join(["```text", *(item["vllm_error"] for item in findings), "```"])


def stacked() -> str:
    made = pair(None, None, {"name": "speech", "memory_gib": 3})
    parts = [f"{part['label']:<17}{part['gib']:>7.2f}" for part in made["memory_map"]]
    return "\n".join(["```text", *parts, f"{'verdict':<17}{made['verdict']:>7}", "```"])


def machines() -> str:
    rows = []
    for total in (59.8, TOTAL):
        for recipe in ("qwen3-4b-instruct-2507", "qwen3.6-35b-a3b-nvfp4", "qwen3-next-80b-a3b-instruct-fp8"):
            made = memory_budget(
                {"total_gib": total, "services": [service("a", recipe, "0.23.0", {"gpu-memory-utilization": None})]}
            )
            part = made["services"]["a"]
            share = part.get("gpu_memory_utilization")
            fits = made["verdict"] != "fails"
            rows.append(
                [
                    total,
                    f"`{recipe}`",
                    made["verdict"],
                    share if fits else "-",
                    gib(part["available_kv_bytes"]["typical"]) if fits else "-",
                    f"{part['max_concurrency']:.1f}" if fits else "-",
                ]
            )
    return table("total, GiB | recipe | verdict | utilization | KV cache, GiB | full requests at once", *rows)


BLOCKS: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        overheads,
        weights,
        blocks,
        pages,
        per_token,
        versions,
        compared,
        families,
        walk,
        residency,
        refusal,
        stacked,
        machines,
    )
}
MARKED = re.compile(r"^<!-- computed: (\w+) -->\n\n((?:[|][^\n]*\n)+|```text\n.*?\n```\n)", re.MULTILINE | re.DOTALL)


def phrases() -> list[str]:
    """What the text between the blocks says of figures that can be computed."""
    log, long = guide(pool=76.49), guide(max_model_len=262144, gpu_memory_utilization=0.4)
    crashed, both = pair(0.75, 0.12)["services"]["heavy"], pair(0.8, 0.1)
    requested = both["services"]["heavy"]["requested_bytes"]
    runtime = {"max-model-len": 8192, "speculative-config": None, "quantization": "fp8"}
    loaded = plan(service("a", "gemma-4-26b-a4b", "0.23.0", runtime))["services"]["a"]
    peak = loaded["load_peak_bytes"] - loaded["draft_bytes"]
    remaining = crashed["requested_bytes"] - crashed["weights_bytes"]
    return [
        f"gives {76.49 * GIB / log['gpu_kv_cache_size_tokens']:,.0f} bytes",
        f"it is {gib(long['needed_bytes_one_request'])} GiB",
        f"there are {long['max_concurrency']:.0f}.",
        f"needs {gib(crashed['needed_bytes_one_request'])} GiB, and about {crashed['available_kv_bytes']['typical'] / GIB:.0f}",
        f"{remaining / GIB:.1f} - 16 is below zero",
        f"it asked for {gib(requested)}, so it was {requested / GIB - 93.5:.1f}",
        f"The {0.85 * TOTAL - 93.5:.1f} are the distance to the {0.85 * TOTAL:.2f} of 0.85",
        f"`utilization_bound`, which is {both['utilization_bound']} for two engines",
        f"the bound of two engines is {both['utilization_bound']}",
        f"takes {peak / GIB:.1f} GiB before it is halved",
    ]


def test_the_text_says_what_the_engine_computes() -> None:
    text = " ".join(PAGE.split())
    assert [phrase for phrase in phrases() if phrase not in text] == []


def test_exact_are_the_versions_that_were_asked_enough() -> None:
    """Made-up rows speak for the planner, launches for model classes and defaults (including the launches of test_launches.py)."""
    counted: dict[int, list[int]] = {}
    for version, (rows, models) in requested_cases().items():
        counts = counted.setdefault(parse_release(version).minor, [0, 0])
        counts[0], counts[1] = counts[0] + rows, counts[1] + len(models)
    assert {minor for minor, (rows, launches) in counted.items() if rows >= 90 and launches >= 8} == set(
        COMPARED_MINORS
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_says_what_the_engine_computes(name: str) -> None:
    tables = dict(MARKED.findall(PAGE))
    assert tables.get(name, "").rstrip("\n") == BLOCKS[name]()


def test_families_whose_weights_are_refused_are_named() -> None:
    families = {*family_readers.READERS}
    families.update(model_geometry._MLA, model_geometry._GDN, model_geometry._NEMOTRON_H)
    # These two are names of whole models, whose text part has another.
    refused = families - set(modules.FAMILIES) - {"qwen3_5", "qwen3_5_moe"}
    assert refused == set()
    table = PAGE[PAGE.index("<!-- stated: families and towers") :].split("\n\n")[1]
    assert all(f"`{family}`" in table for family in refused)


def test_every_table_says_where_its_figures_come_from() -> None:
    starts = re.findall(r"^(.*)\n\n(?=\|)", PAGE, re.MULTILINE)
    assert starts
    assert [
        line
        for line in starts
        if not re.fullmatch(r"<!-- (?:computed: \w+|measured: launches|stated: .+|keys of .+) -->", line)
    ] == []
    assert {name for name, _text in MARKED.findall(PAGE)} == set(BLOCKS)


def test_the_refusal_of_the_readme_is_what_the_plan_says() -> None:
    """C(fast) of inventories/coresident with a share and a context of its own; the fix is planned for the size at high overheads."""
    hosts = yaml.safe_load((ROOT / "inventories" / "coresident" / "hosts.yml").read_text(encoding="utf-8"))
    services = hosts["sparks"]["hosts"]["spark-1"]["spark_services"]
    changes = {"fast": {"max-model-len": 32768, "gpu-memory-utilization": 0.1}}
    made = plan(
        *(
            service(item["name"], item["recipe"], "0.19.0", {**item["args"], **changes.get(item["name"], {})})
            for item in services
        )
    )
    (finding,) = [item for item in made["findings"] if item["rule"] == "memory.one_request"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"ERROR spark-1/fast: {finding['message']} [memory.one_request] Fix: {finding['fix']}" in readme
    fast = made["services"]["fast"]
    tokens = int(finding["fix"].rstrip(".").rsplit(" ", 1)[1])
    assert tokens == fast["available_kv_bytes"]["low"] // fast["bytes_per_block"] * fast["block_size"]
    assert f"{gib(fast['available_kv_bytes']['low'])} at high ones" in finding["message"]
