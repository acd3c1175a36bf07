# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of a model: name and size of each matrix, and the number of ranks that share it.

The names come from the checkpoint, because quantisation configs name the modules that they spare. No I/O, no Ansible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .layers import Config, Refusal

GIVE = "give weights_gib (the sum of the tensor sizes in the safetensors headers)"


@dataclass(frozen=True)
class Module:
    """C(count) matrices of C(rows) x C(columns), or vectors where C(columns) is 1.

    split: whether tensor parallelism divides it. pieces: into how many at most (kv heads), 0 for any number.
    linear: whether quantisation may apply. size: bytes of an element that is never quantised, 0 for the model's dtype.
    experts: of how many experts these are, 0 for no experts; expert parallelism hands them out whole.
    part, multiple: the side that tensor parallelism divides, and the multiple that each rank's part is rounded up to; 0 for none.
    least: the least size of each rank's part of a divided side; 0 for none.
    """

    name: str
    rows: int
    columns: int = 1
    count: int = 1
    split: bool = False
    pieces: int = 0
    linear: bool = False
    size: int = 0
    experts: int = 0
    part: int = 0
    multiple: int = 0
    least: int = 0


def field(text: Config, key: str, maximum: int = 1 << 40) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise Refusal(f"config.{key}", f"expected a whole number of 1 to {maximum}, got {value!r}", GIVE)
    return value


def optional(text: Config, key: str) -> int:
    """Read a whole number that may be absent, null or 0."""
    return field(text, key) if text.get(key) else 0


def linear(name: str, rows: int, columns: int, count: int = 1, pieces: int = 0) -> Module:
    return Module(name, rows, columns, count, split=True, pieces=pieces, linear=True)


def latent_attention(text: Config, prefix: str) -> Iterator[Module]:
    hidden, heads = field(text, "hidden_size"), field(text, "num_attention_heads")
    nope, rope, value = field(text, "qk_nope_head_dim"), optional(text, "qk_rope_head_dim"), field(text, "v_head_dim")
    latent = field(text, "kv_lora_rank")
    if text.get("q_lora_rank"):
        rank = field(text, "q_lora_rank")
        yield replace(linear(f"{prefix}.q_a_proj", rank, hidden), split=False)
        yield Module(f"{prefix}.q_a_layernorm", rank)
        yield linear(f"{prefix}.q_b_proj", heads * (nope + rope), rank)
    else:
        yield linear(f"{prefix}.q_proj", heads * (nope + rope), hidden)
    yield replace(linear(f"{prefix}.kv_a_proj_with_mqa", latent + rope, hidden), split=False)
    yield Module(f"{prefix}.kv_a_layernorm", latent)
    yield linear(f"{prefix}.kv_b_proj", heads * (nope + value), latent)
    yield linear(f"{prefix}.o_proj", hidden, heads * value)


def gated_mlp(prefix: str, hidden: int, inner: int) -> Iterator[Module]:
    for name, rows, columns in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
        yield linear(f"{prefix}.{name}", rows, columns)


def experts(prefix: str, count: int, hidden: int, inner: int, matrices: int = 3) -> Iterator[Module]:
    yield replace(linear(f"{prefix}.experts", inner, hidden, count * (matrices - 1)), experts=count)
    yield replace(linear(f"{prefix}.experts", hidden, inner, count), experts=count)
