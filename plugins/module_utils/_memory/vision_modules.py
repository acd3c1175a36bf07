# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of vision towers, and of what joins them to the language model.

The shapes come from vLLM's classes (0.32.0 and 0.33.0). An unknown tower is a C(Refusal).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from math import log, prod

from .layers import MAX_LAYERS, Config, Refusal, text_config
from .modules import GIVE, Module, field, gated_mlp, linear, optional

# Layers of a tower of Inkling: more than there are primes in any patch.
MAX_INKLING_LAYERS = 32


def _vision_merger(prefix: str, norm: int, merged: int, out: int) -> Iterator[Module]:
    yield Module(f"{prefix}.norm", norm)
    yield linear(f"{prefix}.linear_fc1", merged, merged)
    yield linear(f"{prefix}.linear_fc2", out, merged)
    yield Module(f"{prefix}.split_biases", merged, split=True)
    yield Module(f"{prefix}.biases", out)


def _qwen3_vision(config: Config, vision: Config, out: int) -> Iterator[Module]:
    hidden, inner = field(vision, "hidden_size"), field(vision, "intermediate_size")
    patch = prod(field(vision, key) for key in ("in_channels", "temporal_patch_size", "patch_size", "patch_size"))
    yield Module("visual.patch_embed", hidden, patch + 1)
    yield Module("visual.pos_embed", field(vision, "num_position_embeddings"), hidden)
    for index in range(field(vision, "depth", MAX_LAYERS)):
        block = f"visual.blocks.{index}"
        yield Module(f"{block}.norms", 4 * hidden)
        yield linear(f"{block}.attn.qkv", 3 * hidden, hidden)
        yield linear(f"{block}.attn.proj", hidden, hidden)
        yield linear(f"{block}.mlp.linear_fc1", inner, hidden)
        yield linear(f"{block}.mlp.linear_fc2", hidden, inner)
        yield Module(f"{block}.split_biases", 3 * hidden + inner, split=True)
        yield Module(f"{block}.biases", 2 * hidden)
    merged, out = hidden * field(vision, "spatial_merge_size") ** 2, field(vision, "out_hidden_size")
    yield from _vision_merger("visual.merger", 2 * hidden, merged, out)
    for index in range(len(vision.get("deepstack_visual_indexes") or [])):
        yield from _vision_merger(f"visual.deepstack_merger_list.{index}", 2 * merged, merged, out)


def _qwen2_vision(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of Qwen2-VL, or of Qwen2.5-VL, whose norms have no biases and whose MLP is gated."""
    newer = config.get("model_type") == "qwen2_5_vl"
    hidden = field(vision, "hidden_size" if newer else "embed_dim")
    channels = optional(vision, "in_channels") or optional(vision, "in_chans") or 3
    inner = field(vision, "intermediate_size") if newer else hidden * field(vision, "mlp_ratio")
    patch = channels * prod(field(vision, key) for key in ("temporal_patch_size", "patch_size", "patch_size"))
    yield Module("visual.patch_embed", hidden, patch)
    for index in range(field(vision, "depth", MAX_LAYERS)):
        block = f"visual.blocks.{index}"
        yield Module(f"{block}.norms", (2 if newer else 4) * hidden)
        yield linear(f"{block}.attn.qkv", 3 * hidden, hidden)
        yield linear(f"{block}.attn.proj", hidden, hidden)
        if newer:
            yield from gated_mlp(f"{block}.mlp", hidden, inner)
        else:
            yield linear(f"{block}.mlp.fc1", inner, hidden)
            yield linear(f"{block}.mlp.fc2", hidden, inner)
        yield Module(f"{block}.split_biases", 3 * hidden + (2 if newer else 1) * inner, split=True)
        yield Module(f"{block}.biases", 2 * hidden)
    merged = hidden * field(vision, "spatial_merge_size") ** 2
    out = field(vision, "out_hidden_size" if newer else "hidden_size")
    yield from _vision_merger("visual.merger", (1 if newer else 2) * hidden, merged, out)


def _gemma4_vision(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of Gemma 4, which is a model of Transformers: every rank has all of it (gemma4_mm.py)."""
    hidden = field(vision, "hidden_size")
    yield Module("vision_tower.patch_embedder.input_proj", hidden, 3 * field(vision, "patch_size") ** 2)
    yield Module("vision_tower.patch_embedder.positions", 2 * field(vision, "position_embedding_size"), hidden)
    for index in range(field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.encoder.layers.{index}"
        undivided = (
            linear(f"{block}.self_attn", 4 * hidden, hidden),
            *gated_mlp(f"{block}.mlp", hidden, field(vision, "intermediate_size")),
        )
        yield from (replace(module, split=False) for module in undivided)
        yield Module(f"{block}.norms", 4 * hidden + 2 * field(vision, "head_dim"))
    yield Module("embed_vision.embedding_projection", out, hidden)


def _glm5_vision(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of GLM-5.3 and its merger (glm5next/common/multimodal.py)."""
    hidden, inner, patch = (field(vision, key) for key in ("hidden_size", "intermediate_size", "patch_size"))
    merge, wide = field(vision, "spatial_merge_size"), field(vision, "projection_intermediate_size")
    pixels = field(vision, "in_channels") * field(vision, "temporal_patch_size") * patch**2
    yield Module("visual.patch_embed", hidden, pixels + 1)
    for index in range(field(vision, "depth", MAX_LAYERS)):
        block = f"visual.blocks.{index}"
        yield _unquantised(f"{block}.attn", 4 * hidden, hidden)
        yield _unquantised(f"{block}.mlp", 3 * inner, hidden)
        yield Module(f"{block}.split_biases", 3 * hidden + 2 * inner, split=True)
        yield Module(f"{block}.norms_and_biases", 4 * hidden + 2 * (hidden // field(vision, "num_heads")))
    yield Module("visual.post_layernorm", hidden)
    yield Module("visual.downsample", out, hidden * merge**2 + 1)
    yield _unquantised("visual.merger.proj", out, out)
    yield _unquantised("visual.merger.mlp", 3 * wide, out)
    yield Module("visual.merger.post_projection_norm", 2 * out)


def _unquantised(name: str, rows: int, columns: int) -> Module:
    return replace(linear(name, rows, columns), linear=False)


def _siglip(vision: Config, out: int) -> Iterator[Module]:
    """Yield SigLIP and the projection of Gemma 3."""
    hidden, inner, patch = (field(vision, key) for key in ("hidden_size", "intermediate_size", "patch_size"))
    yield Module("vision_tower.embeddings.patch_embedding", hidden, 3 * patch**2 + 1)
    yield Module("vision_tower.embeddings.position_embedding", (field(vision, "image_size") // patch) ** 2, hidden)
    for index in range(field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.encoder.layers.{index}"
        yield linear(f"{block}.self_attn", 4 * hidden, hidden)
        yield linear(f"{block}.mlp.fc1", inner, hidden)
        yield linear(f"{block}.mlp.fc2", hidden, inner)
        yield Module(f"{block}.split_biases", 3 * hidden + inner, split=True)
        yield Module(f"{block}.norms_and_biases", 6 * hidden)
    yield Module("vision_tower.post_layernorm", 2 * hidden)
    yield Module("multi_modal_projector.mm_input_projection_weight", hidden, out)
    yield Module("multi_modal_projector.mm_soft_emb_norm", hidden)


def _pixtral(vision: Config, out: int, merge: int) -> Iterator[Module]:
    """Yield Pixtral and the projector of Mistral 3."""
    hidden, patch = field(vision, "hidden_size"), field(vision, "patch_size")
    yield Module("vision_tower.patch_conv", hidden, 3 * patch**2)
    yield Module("vision_tower.ln_pre", hidden)
    for index in range(field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.transformer.layers.{index}"
        yield linear(f"{block}.attention", 4 * hidden, hidden)
        yield from gated_mlp(f"{block}.feed_forward", hidden, field(vision, "intermediate_size"))
        yield Module(f"{block}.norms", 2 * hidden)
    yield Module("multi_modal_projector.norm", hidden)
    yield Module("multi_modal_projector.patch_merger", hidden, hidden * merge**2)
    yield linear("multi_modal_projector.linear_1", out, hidden)
    yield linear("multi_modal_projector.linear_2", out, out)


def _with_biases(name: str, rows: int, columns: int, split: bool = True, quantised: bool = True) -> Iterator[Module]:
    """Yield a matrix whose outputs are divided over the ranks, with its biases."""
    yield replace(linear(name, rows, columns), split=split, linear=quantised)
    yield Module(f"{name}.bias", rows, split=split)


def _two_layers(name: str, inputs: int, inner: int, out: int, quantised: bool = True) -> Iterator[Module]:
    """Yield an MLP of two matrices with biases: the outputs of the first are divided over the ranks, and the inputs of the second."""
    yield from _with_biases(f"{name}.fc1", inner, inputs, quantised=quantised)
    yield replace(linear(f"{name}.fc2", out, inner), linear=quantised)
    yield Module(f"{name}.fc2.bias", out)


def _encoder_block(block: str, hidden: int, inner: int, quantised: bool = True) -> Iterator[Module]:
    """Yield a layer of a plain encoder: attention, an MLP of two matrices and two norms, all with biases."""
    yield from _with_biases(f"{block}.attn.qkv", 3 * hidden, hidden, quantised=quantised)
    yield replace(linear(f"{block}.attn.proj", hidden, hidden), linear=quantised)
    yield Module(f"{block}.attn.proj.bias", hidden)
    yield from _two_layers(f"{block}.mlp", hidden, inner, hidden, quantised)
    yield Module(f"{block}.norms", 4 * hidden)


def _exaone4_5(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of EXAONE 4.5, a tower of Qwen2.5-VL with fewer key and value heads (exaone4_5.py)."""
    hidden, inner, heads = (field(vision, key) for key in ("hidden_size", "intermediate_size", "num_heads"))
    pieces = optional(vision, "num_key_value_heads") or heads
    key = hidden // heads * pieces
    pixels = prod(field(vision, name) for name in ("in_channels", "temporal_patch_size", "patch_size", "patch_size"))
    yield Module("visual.patch_embed", hidden, pixels)
    for index in range(field(vision, "depth", MAX_LAYERS)):
        block = f"visual.blocks.{index}"
        yield from _with_biases(f"{block}.attn.q", hidden, hidden)
        yield linear(f"{block}.attn.kv", 2 * key, hidden, pieces=pieces)
        yield Module(f"{block}.attn.kv.bias", 2 * key, split=True, pieces=pieces)
        yield linear(f"{block}.attn.proj", hidden, hidden)
        yield from gated_mlp(f"{block}.mlp", hidden, inner)
        yield Module(f"{block}.mlp.bias", 2 * inner, split=True)
        yield Module(f"{block}.norms_and_biases", 4 * hidden)
    merged = hidden * field(vision, "spatial_merge_size") ** 2
    yield Module("visual.merger.ln_q", hidden)
    yield from _two_layers("visual.merger.mlp", merged, merged, out)


def _kimi(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of Kimi K2.5 and K3 and its projector, which every rank has as a whole (kimi_k25_vit.py); never quantised."""
    hidden, inner, patch = (field(vision, key) for key in ("vt_hidden_size", "vt_intermediate_size", "patch_size"))
    wide = optional(vision, "qkv_hidden_size") or hidden
    plain = vision.get("norm_type") == "rmsnorm"  # K3: without biases
    biases = 0 if plain else 1
    yield Module("vision_tower.patch_embed.proj", hidden, 3 * patch**2 + biases)
    grid = field(vision, "init_pos_emb_height") * field(vision, "init_pos_emb_width")
    yield Module("vision_tower.patch_embed.pos_emb", grid, hidden)
    for index in range(field(vision, "vt_num_hidden_layers", MAX_LAYERS)):
        block = f"vision_tower.encoder.blocks.{index}"
        yield _unquantised(f"{block}.wqkv", 3 * wide, hidden)
        yield _unquantised(f"{block}.wo", hidden, wide)
        yield _unquantised(f"{block}.mlp", 2 * inner, hidden)
        yield Module(f"{block}.split_biases", biases * (3 * wide + inner), split=True)
        yield Module(f"{block}.norms_and_biases", (2 + 4 * biases) * hidden)
    yield Module("vision_tower.encoder.final_layernorm", (1 + biases) * hidden)
    merged = hidden * prod(int(size) for size in vision.get("merge_kernel_size") or (2, 2))
    yield Module("mm_projector.linear_1", merged, merged + biases)
    yield Module("mm_projector.linear_2", out, merged + biases)
    yield Module("mm_projector.norm", out if plain else 2 * hidden)


def _minimax_m3(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of MiniMax-M3, its projector and the merger of neighbouring patches (minimax_m3/common/vision_tower.py)."""
    hidden, inner = field(vision, "hidden_size"), field(vision, "intermediate_size")
    joined = vision.get("img_token_compression_config") or config.get("img_token_compression_config") or {}
    pixels = field(vision, "num_channels") * field(joined, "temporal_patch_size") * field(vision, "patch_size") ** 2
    yield Module("vision_tower.embeddings.patch_embedding", hidden, pixels)
    yield Module("vision_tower.pre_layrnorm", 2 * hidden)
    for index in range(field(vision, "num_hidden_layers", MAX_LAYERS)):
        yield from _encoder_block(f"vision_tower.encoder.layers.{index}", hidden, inner)
    middle = optional(config, "projector_hidden_size") or out
    yield from _two_layers("vision_tower.multi_modal_projector", hidden, middle, out)
    yield from _two_layers("vision_tower.patch_merge_mlp", out * field(joined, "spatial_merge_size") ** 2, middle, out)


def _step3p7(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the perception encoder of Step-3.7 (step_vl.py)."""
    width, patch = field(vision, "width"), field(vision, "patch_size")
    ratio = vision.get("mlp_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)):
        raise Refusal("config.vision_config.mlp_ratio", f"expected a number, got {ratio!r}", GIVE)
    tokens = (field(vision, "image_size") // patch) ** 2 + (1 if vision.get("use_cls_token") else 0)
    norms = sum(2 for key in ("use_ln_pre", "use_ln_post") if vision.get(key))
    yield Module("vision_model.conv1", width, 3 * patch**2)
    yield Module("vision_model.norms", norms * width)
    if vision.get("use_abs_posemb"):
        yield Module("vision_model.positional_embedding", tokens, width)
    if vision.get("use_cls_token"):
        yield Module("vision_model.class_embedding", width)
    scales = 2 if vision.get("ls_init_value") is not None else 0
    for index in range(field(vision, "layers", MAX_LAYERS)):
        block = f"vision_model.transformer.resblocks.{index}"
        yield from _encoder_block(block, width, int(width * ratio))
        yield Module(f"{block}.ls", scales * width)
    for inputs in (width, 2 * width):
        yield Module(f"vision_model.vit_downsampler.{inputs}", 2 * inputs, 9 * inputs + 1)
    yield linear("vit_large_projector", out, 4 * width)
    if config.get("projector_bias"):
        yield Module("vit_large_projector.bias", out, split=True)


# Defaults of Transformers for fields that a config of Llama 4 leaves out (Llama4VisionConfig).
_LLAMA4_VISION: Config = {
    **{"hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34, "num_channels": 3, "patch_size": 14},
    **{"image_size": 448, "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 7680},
}


def _llama4(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of Llama 4, its adapter and its projector (mllama4.py)."""
    vision = {**_LLAMA4_VISION, **{key: value for key, value in vision.items() if value is not None}}
    hidden, inner, patch = (field(vision, key) for key in ("hidden_size", "intermediate_size", "patch_size"))
    yield linear("vision_model.patch_embedding.linear", hidden, field(vision, "num_channels") * patch**2)
    yield Module("vision_model.positions", (field(vision, "image_size") // patch) ** 2 + 2, hidden)
    yield Module("vision_model.norms", 4 * hidden)
    for index in range(field(vision, "num_hidden_layers", MAX_LAYERS)):
        yield from _encoder_block(f"vision_model.model.layers.{index}", hidden, inner)
    middle = field(vision, "projector_input_dim")
    yield linear("vision_model.vision_adapter.mlp.fc1", middle, inner)
    yield linear("vision_model.vision_adapter.mlp.fc2", field(vision, "projector_output_dim"), middle)
    yield linear("multi_modal_projector.linear_1", out, field(vision, "vision_output_dim"))


def _deepseek_v41(config: Config, vision: Config, out: int) -> Iterator[Module]:
    """Yield the tower of DeepSeek-V4.1, its aligner, the ends of an image, and the router of its tokens (deepseek_v41/nvidia/vl_model.py)."""
    hidden, inner, patch = (field(vision, key) for key in ("hidden_size", "intermediate_size", "patch_size"))
    yield Module("vision.patch_embed.proj", hidden, 3 * patch**2 + 1)
    for index in range(field(vision, "num_hidden_layers", MAX_LAYERS)):
        block = f"vision.blocks.{index}"
        yield from _with_biases(f"{block}.attn.wqkv", 3 * hidden, hidden, quantised=False)
        yield _unquantised(f"{block}.attn.wo", hidden, hidden)
        yield _unquantised(f"{block}.mlp", 3 * inner, hidden)
        yield Module(f"{block}.norms_and_biases", 3 * hidden)
    yield Module("vision.norm", hidden)
    yield from _two_layers("aligner", hidden * field(vision, "downsample_ratio") ** 2, out, out, quantised=False)
    yield Module("image_ends", 3 * out, size=4)
    text = text_config(config)
    yield Module("gates.bias_vl", field(text, "num_hidden_layers"), field(text, "n_routed_experts"), size=4)


def _prime_factors(value: int) -> list[int]:
    """Return the prime factors, the largest first."""
    factors, prime = [], 2
    while value > 1:
        while value % prime == 0:
            factors.append(prime)
            value //= prime
        prime += 1
    return factors[::-1]


def _inkling_scales(times: int, patch: int, layers: int, channels: int) -> list[tuple[int, int]]:
    """Return the joined patches of Inkling for each layer: pixels of a patch, and channels after it.

    Of all ways to join by one prime after the other, those sizes are taken that grow most evenly (inkling/common/towers.py,
    plan_out_scales).
    """
    side = time = 1
    scales = [(1, channels)]
    for factor in _prime_factors(patch):
        side *= factor
        scales.append((side**2, -(-(side**2) * channels // 64) * 64))
    for factor in _prime_factors(times):
        time *= factor
        scales.append((side**2 * time, -(-(side**2) * time * channels // 64) * 64))
    total = log(patch * patch * times * channels)
    costs = [[abs(total / layers * step - log(size)) for size, _out in scales] for step in range(layers + 1)]
    if layers >= len(scales):
        places = [row.index(min(row)) for row in costs]
    else:
        places = list(
            min(
                combinations(range(len(scales)), layers + 1),
                key=lambda chosen: sum(row[place] for row, place in zip(costs, chosen, strict=True)),
            )
        )
    return [scales[place] for place in (0, *places[1:-1], len(scales) - 1)]


def _inkling_towers(config: Config) -> Iterator[Module]:
    """Yield the towers of Inkling, which every rank has as a whole; one without a width is switched off (inkling/common/towers.py)."""
    vision, audio = config.get("vision_config") or {}, config.get("audio_config") or {}
    if vision.get("decoder_dmodel") is not None:
        if vision.get("vision_encoder_type") != "hmlp":
            kind = vision.get("vision_encoder_type")
            raise Refusal("config.vision_config.vision_encoder_type", f"vLLM has no tower of type {kind!r}", GIVE)
        out, layers = field(vision, "decoder_dmodel"), field(vision, "n_layers", MAX_INKLING_LAYERS)
        patch, times = field(vision, "patch_size", 256), field(vision, "temporal_patch_size", 256)
        if patch == 1:
            raise Refusal("config.vision_config.patch_size", "expected more than 1, got 1", GIVE)
        scales = _inkling_scales(times, patch, layers, field(vision, "n_channels"))
        for index, ((pixels, channels), (joined, wide)) in enumerate(zip(scales[:-1], scales[1:], strict=True)):
            rows = out if index == layers - 1 else wide
            yield Module(f"visual.layers.linear_{index}", rows, channels * (joined // pixels))
            yield Module(f"visual.layers.norm_{index}", 0 if index == layers - 1 else wide)
        yield Module("visual.final_norm", out if vision.get("use_vision_norm") else 0)
    if audio.get("decoder_dmodel") is not None:
        if audio.get("audio_mode") != "dmel":
            raise Refusal(
                "config.audio_config.audio_mode", f"vLLM has no tower of mode {audio.get('audio_mode')!r}", GIVE
            )
        out = field(audio, "decoder_dmodel")
        yield Module("audio.encoder", field(audio, "n_mel_bins") * field(audio, "mel_vocab_size"), out)
        yield Module("audio.final_norm", out if audio.get("use_audio_norm") else 0)


_TOWERS: dict[str, Callable[[Config, Config, int], Iterator[Module]]] = {
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen4_exp", "qwen3_vl", "qwen3_vl_moe"), _qwen3_vision),
    "deepseek_v41": _deepseek_v41,
    "exaone4_5": _exaone4_5,
    "gemma4": _gemma4_vision,
    "glm5_next": _glm5_vision,
    "kimi_k25": _kimi,
    "kimi_k3": _kimi,
    "llama4": _llama4,
    "minimax_m3_vl": _minimax_m3,
    "qwen2_5_vl": _qwen2_vision,
    "qwen2_vl": _qwen2_vision,
    "step3p7": _step3p7,
}


def vision_tower(config: Config) -> Iterator[Module]:
    """List the modules of a model's vision tower, if it has one. Raises C(Refusal) for unknown towers and for audio towers."""
    vision, kind = config.get("vision_config"), str(config.get("model_type"))
    if text_config(config).get("model_type") == "inkling_model":
        yield from _inkling_towers(config)
        return
    if config.get("audio_config"):
        raise Refusal("config.audio_config", "the weights of the audio tower are not known", GIVE)
    # Llama 4 has a tower also where its config does not say so (geometry.py).
    if not isinstance(vision, dict) and kind != "llama4":
        return
    vision, out = vision if isinstance(vision, dict) else {}, field(text_config(config), "hidden_size")
    if kind in _TOWERS:
        yield from _TOWERS[kind](config, vision, out)
    elif kind == "gemma3" and vision.get("model_type") == "siglip_vision_model":
        yield from _siglip(vision, out)
    elif kind == "mistral3" and vision.get("model_type") == "pixtral" and not config.get("multimodal_projector_bias"):
        yield from _pixtral(vision, out, field(config, "spatial_merge_size"))
    else:
        raise Refusal(
            "config.vision_config",
            f"the weights of the vision tower of {kind!r} are not known",
            f"{GIVE}, or set language-model-only",
        )
