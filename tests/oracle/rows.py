# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare this collection's KV planning with vLLM's own, see README.md.

python tests/oracle/rows.py check  0.23.0 FOLDER               the rows of the unit test, recomputed
python tests/oracle/rows.py write  0.23.0 FOLDER               the same, written into the fixture
python tests/oracle/rows.py search 0.23.0 FOLDER COUNT [SEED]  made-up cases; prints the differing ones
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/unit/plugins"), str(Path(__file__).parent)]

from oracle_fixture import COLUMNS, ROWS, answer, load
from vllm_planner import Planner


def truth(planner: Planner, case: dict[str, Any]) -> list[Any] | str:
    """Let vLLM answer, in the form of the fixture."""
    result = planner.answer(case)
    return result["error"] if "error" in result else [result[column] for column in COLUMNS]


def _attention(rng: random.Random, kind: str, window: int = 0) -> dict[str, Any]:
    size = rng.choice((64, 80, 96, 128, 192, 256))
    heads = rng.choice((1, 2, 4, 8, 16))
    return {"kind": kind, "kv_heads": heads, "head_dim": size, "head_dim_v": size, "window": window}


def _model(rng: random.Random) -> dict[str, Any]:
    """Make up a model of one of the known families."""
    full, count, every = _attention(rng, "full"), rng.randint(2, 60), rng.choice((2, 3, 4, 5, 6))
    local = {**full, "kind": "sliding", "window": rng.choice((128, 512, 1024, 4096))}
    period = "".join("f" if (index + 1) % every == 0 else "s" for index in range(max(count, every)))
    family = rng.choice(
        (
            "dense",
            "sizes",
            "windows",
            "window sizes",
            "only windows",
            "chunked",
            "gdn",
            "mamba",
            "mla",
            "shared",
            "three",
        )
    )
    if family == "dense":
        return {"palette": {"f": full}, "pattern": "f" * count}
    if family == "sizes":
        palette = {"f": full, "g": _attention(rng, "full")}
        return {"palette": palette, "pattern": "fg" + "".join(rng.choice("fg") for _layer in range(count))}
    if family == "windows":
        return {"palette": {"f": full, "s": local}, "pattern": period}
    if family == "window sizes":
        other = {**_attention(rng, "full"), "head_dim": rng.choice((128, 256, 512))}
        return {"palette": {"f": {**other, "head_dim_v": other["head_dim"]}, "s": local}, "pattern": period}
    if family == "only windows":
        palette = {"s": local, "t": {**local, "window": rng.choice((local["window"], 256, 2048))}}
        return {"palette": palette, "pattern": "st" + "".join(rng.choice("st") for _layer in range(count))}
    if family == "chunked":
        return {"palette": {"f": full, "s": {**local, "kind": "chunked", "window": 8192}}, "pattern": period}
    if family == "gdn":
        groups = rng.choice((8, 16, 32))
        state = {"kind": "gdn", "conv_kernel": 4, "groups": groups, "heads": groups * rng.choice((1, 2, 3))}
        state |= {"head_dim": rng.choice((128, 64)), "state_dim": rng.choice((128, 128, 64)), "chunk_size": 0}
        state["ssm_dtype"] = rng.choice(("", "float32", "bfloat16"))
        return {"palette": {"f": full}, "pattern": period.replace("s", "R"), "recurrent": state}
    if family == "mamba":
        state = {"kind": "mamba", "conv_kernel": 4, "groups": rng.choice((1, 8)), "heads": rng.choice((64, 128))}
        state |= {"head_dim": rng.choice((64, 80)), "state_dim": rng.choice((64, 128))}
        state |= {"chunk_size": rng.choice((128, 256)), "ssm_dtype": rng.choice(("", "float32", "bfloat16"))}
        pattern = "".join(rng.choice("RRRRfff-----") for _layer in range(count)) + "Rf"
        return {"palette": {"f": full}, "pattern": pattern, "recurrent": state}
    if family == "mla":
        latent = {"kind": "mla", "kv_heads": 1, "head_dim": rng.choice((576, 320)), "head_dim_v": 0, "window": 0}
        return {"palette": {"m": latent}, "pattern": "m" * count}
    if family == "shared":
        return {"palette": {"f": full, "s": local}, "pattern": period + "-" * rng.randint(1, 20)}
    palette = {"f": full, "s": local, "t": {**local, "window": 2048, "kind": rng.choice(("sliding", "chunked"))}}
    return {"palette": palette, "pattern": "fst" + "".join(rng.choice("fsst") for _layer in range(count))}


def make_case(rng: random.Random) -> dict[str, Any]:
    """Make up a model and the flags it is served with."""
    case = _model(rng)
    palette, pattern = case["palette"], case["pattern"]
    latent, state = "m" in palette, "recurrent" in case
    settings: dict[str, Any] = {"max_num_batched_tokens": rng.choice((2048, 2048, 8192, 512, 16384))}

    def sometimes(share: float, key: str, *values: Any) -> None:
        if rng.random() < share:
            settings[key] = rng.choice(values)

    dtypes = ["fp8", "fp8", "bfloat16", "fp8_e5m2"]
    if not latent:
        dtypes.append("fp8_per_token_head")
        if all(shape["head_dim"] % 16 == 0 for shape in palette.values()):
            dtypes.append("nvfp4")
    sometimes(0.55, "kv_cache_dtype", *dtypes)
    sometimes(0.4, "prefix_caching", False)
    sometimes(0.5, "tensor_parallel", 2, 2, 4)
    sometimes(0.3, "pipeline_parallel", *(stages for stages in (2, 3, 4) if stages <= len(pattern)))
    sometimes(0.15, "decode_context", 2, 4)
    sometimes(0.15, "block_size", 16, 32, 64, 128, 256)
    sometimes(0.1, "hybrid_manager", False)
    sometimes(0.15, "async_scheduling", False)
    if state:
        sometimes(0.2, "mamba_cache_mode", "align", "all", "none")
        sometimes(0.15, "mamba_ssm_cache_dtype", "float32", "float16", "bfloat16")
        sometimes(0.1, "mamba_cache_dtype", "float32", "float16")
    if "kv_cache_dtype" in settings and not latent:
        sometimes(0.25, "skip_layers", ["sliding_window"], ["0"], ["0", "1", str(len(pattern) - 1)])
    if rng.random() < 0.4:
        settings["num_speculative_tokens"] = rng.choice((1, 2, 3, 5))
        settings["method"] = method = rng.choice(("mtp", "mtp", "eagle3", "dflash", "ngram", "suffix", "draft_model"))
        if method == "mtp":
            case["draft"] = next(letter for letter in "mfs" if letter in palette) * rng.choice((1, 1, 1, 2, 3))
        elif method in ("eagle3", "dflash", "draft_model"):
            kind = rng.choice(("full", "sliding")) if method == "dflash" and not latent else "full"
            palette["d"] = _attention(rng, kind, 2048 if kind == "sliding" else 0)
            case["draft"] = "d" * (1 if method == "eagle3" else rng.randint(2, 8))
    case["settings"] = settings
    case["max_model_len"] = rng.choice((512, 4096, 32768, 65536, 131072, 262144, 1000003))
    case["available"] = int(rng.choice((0, 0.5, 3.5, 8, 20, 40, 76.49, 100, 100)) * (1 << 30)) + rng.randrange(1 << 20)
    if "decode_context" in settings and set(pattern) - set("fgm"):
        # vLLM checks windows, chunks and states after the memory.
        case["available"] = 2000 << 30
    if rng.random() < 0.15:
        case["auto"] = True
    if rng.random() < 0.1:
        case["override"] = rng.choice((100, 1000, 20000))
    return case


def same(computed: list[Any] | str | None, right: list[Any] | str) -> bool:
    """Tell whether two answers agree, or this collection refuses to give one."""
    return computed is None or computed == right


def main(arguments: list[str]) -> int:
    """Run one of the verbs; 0 when nothing differs."""
    if len(arguments) < 3 or arguments[0] not in ("check", "write", "search"):
        print(__doc__)
        return 2
    verb, version, planner = arguments[0], arguments[1], Planner(arguments[2])
    data = load() if ROWS.exists() else {"cases": [], "answers": {}}
    if verb == "search":
        rng = random.Random(int(arguments[4]) if len(arguments) > 4 else 0)
        cases = [make_case(rng) for _case in range(int(arguments[3]))]
    else:
        cases = data["cases"]
    answers = [truth(planner, case) for case in cases]
    ours = [answer(case, version) for case in cases]
    if verb == "write":
        data["answers"][version] = [None if mine is None else right for mine, right in zip(ours, answers)]
        text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in data["cases"])
        versions = ",\n".join(
            f'"{name}":[\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]"
            for name, rows in sorted(data["answers"].items())
        )
        ROWS.write_text(f'{{"cases":[\n{text}\n],\n"answers":{{\n{versions}\n}}}}\n', encoding="utf-8")
    differing = [(case, mine, right) for case, mine, right in zip(cases, ours, answers) if not same(mine, right)]
    for case, mine, right in differing:
        print(json.dumps({"case": case, "this collection": mine, "vLLM": right}))
    refused = sum(mine is None for mine in ours)
    print(f"{version}: {len(cases)} cases, {len(differing)} differ, {refused} refused", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
