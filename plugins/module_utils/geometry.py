# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Geometry of a model: what its C(config.json) says about the memory of a request.

One layer of a model remembers a request in one of these ways, and this file says which layer does what:

* full attention: keys and values of every token
* sliding or chunked-local attention: keys and values of the last tokens only
* multi-head latent attention (MLA): one compressed vector per token
* recurrent state (Gated DeltaNet, Mamba-2): a block of fixed size per request, whatever its length

Nothing is guessed: a family, a layer kind or a field that this file does not know is a C(Refusal), which names the key
and the reason. No I/O, no Ansible. The field names are those of the Hugging Face configuration classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

Config = dict[str, Any]

# No model has more layers; a config that says so is refused before anything is counted.
MAX_LAYERS = 1024


class Refusal(Exception):
    """A question that this engine does not answer, because any answer would be a guess.

    key: the field or argument it is about, for example C(config.layer_types[3]).
    reason: why there is no answer, one sentence without a full stop.
    fix: what the caller can do, may be empty.
    """

    def __init__(self, key: str, reason: str, fix: str = "") -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True)
class Attention:
    """One attention layer, sizes of the whole model (before tensor parallelism).

    kind: C(full), C(sliding), C(chunked) or C(mla).
    kv_heads: key/value heads; 1 for MLA.
    head_dim, head_dim_v: size of a key and of a value head; for MLA the latent vector and 0.
    window: tokens that a sliding or chunked layer looks back at, else 0.
    """

    kind: str
    kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int = 0


@dataclass(frozen=True)
class Recurrent:
    """One layer with a recurrent state, sizes of the whole model (before tensor parallelism).

    kind: C(gdn) (Gated DeltaNet) or C(mamba) (Mamba-2).
    conv_kernel: taps of the short convolution; its state holds one less.
    conv_key_dim: channels of the convolution that are grouped: q and k of a GDN layer, B and C of a Mamba-2 layer.
    conv_value_dim: the other channels of the convolution.
    groups: groups of a Mamba-2 layer, key heads of a GDN layer.
    heads, head_dim, state_dim: shape of the recurrent state.
    chunk_size: tokens of one chunk of the Mamba-2 scan, 0 for GDN.
    ssm_dtype: what the config asks for, C(float32), C(bfloat16), C(float16), or empty when it says nothing.
    """

    kind: str
    conv_kernel: int
    conv_key_dim: int
    conv_value_dim: int
    groups: int
    heads: int
    head_dim: int
    state_dim: int
    chunk_size: int = 0
    ssm_dtype: str = ""


Layer = Union[Attention, Recurrent]


@dataclass(frozen=True)
class Geometry:
    """What KV planning needs to know of a model.

    model_type: of the text part, as in C(config.json).
    layers: one entry per layer of the model; C(None) where a layer remembers nothing (MLP, MoE, shared KV).
    mtp_layer: the attention of one multi-token-prediction layer, C(None) where the model has none.
    mtp_layers: how many of them the checkpoint carries.
    max_position_embeddings: the longest context that the config allows, tokens.
    dtype: of the weights: C(bfloat16), C(float16) or C(float32).
    has_vision: there is a vision (or audio) tower.
    prefix_lm: images are attended to in both directions, so that one item must fit a batch (Gemma).
    mtp_attention: attention layers in one multi-token-prediction layer.
    mtp_modules: multi-token-prediction layers that draft one token each, as vLLM counts them (C(use_multi_module_mtp)).
    """

    model_type: str
    layers: tuple[Layer | None, ...]
    mtp_layer: Attention | None
    mtp_layers: int
    max_position_embeddings: int
    dtype: str
    has_vision: bool
    prefix_lm: bool
    mtp_attention: int = 1
    mtp_modules: int = 1

    @property
    def recurrent(self) -> tuple[Recurrent, ...]:
        """The layers with a recurrent state."""
        return tuple(layer for layer in self.layers if isinstance(layer, Recurrent))

    @property
    def attention(self) -> tuple[Attention, ...]:
        """The layers that keep keys and values."""
        return tuple(layer for layer in self.layers if isinstance(layer, Attention))


# Families whose every layer is plain attention (or says otherwise through layer_types): the file reads their fields
# in one way. A family that is not named anywhere in this file is refused: its layers may be of any kind.
_DECODERS = frozenset(
    (
        "arcee",
        "apertus",
        "cohere",
        "cohere2",
        "dots1",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "helium",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "internlm2",
        "internlm3",
        "laguna",
        "llama",
        "llama4",
        "llama4_text",
        "mimo",
        "minimax_m2",
        "ministral",
        "mistral",
        "mistral3",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "qwen2_moe",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "seed_oss",
        "smollm3",
        "solar",
        "stablelm",
        "starcoder2",
    )
)
_MLA = frozenset(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"))
_GDN = frozenset(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"))
_NEMOTRON_H = frozenset(("nemotron_h",))

# Families that alternate local and global attention by a fixed period when config.json has no layer_types
# (the default of the Hugging Face configuration class): every n-th layer is global.
_GLOBAL_EVERY = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4, "gpt_oss": 2, "olmo3": 4, "exaone4": 4}

# Families whose classes in vLLM read the kind of every layer (or their own pattern). In any other family layers of different
# kinds are an error of vLLM, or all of one kind there, by release.
_MIXES = frozenset(
    (
        *_GLOBAL_EVERY,
        "apertus",
        "arcee",
        "gemma4",
        "gemma4_text",
        "laguna",
        "llama",
        "llama4",
        "llama4_text",
        "ministral",
        "mistral",
        "mistral3",
        "olmo2",
    )
)
# Families whose Hugging Face class drops the window unless use_sliding_window asks for it.
_WINDOW_ON_DEMAND = ("qwen2", "qwen3", "smollm3")

_LAYER_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "gdn",
}


def text_config(config: Config) -> Config:
    """Return the part of C(config) that describes the language model (C(text_config), C(llm_config), or itself)."""
    for key in ("text_config", "llm_config", "language_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            return inner
    return config


def _number(text: Config, key: str, default: int | None = None, minimum: int = 1, maximum: int = 1 << 40) -> int:
    """Read a whole number; a field that is null or absent takes C(default), and is refused where there is none."""
    value = text.get(key)
    if value is None:
        if default is None:
            raise Refusal(f"config.{key}", "the field is missing", "give the whole config.json of the model")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise Refusal(f"config.{key}", f"expected a whole number of {minimum} to {maximum}, got {value!r}")
    return value


def model_dtype(config: Config) -> str:
    """Return the dtype of the weights: C(bfloat16), C(float16) or C(float32); bfloat16 when the config is silent."""
    text = text_config(config)
    for source in (text, config):
        for key in ("dtype", "torch_dtype"):
            value = source.get(key)
            if value is not None:
                name = str(value).replace("torch.", "")
                if name not in ("bfloat16", "float16", "float32"):
                    raise Refusal(f"config.{key}", f"dtype {value!r} is not known")
                return name
    return "bfloat16"


def quantization_of(config: Config, quant_config: Config | None) -> tuple[Config, str]:
    """Return how the checkpoint is quantised and the key that says so; an empty mapping when it is not.

    config: C(config.json); its C(quantization_config) wins.
    quant_config: C(hf_quant_config.json), as it is or only its C(quantization) part.
    """
    for source, where in ((config, "config"), (text_config(config), "config.text_config")):
        own = source.get("quantization_config")
        if own is not None:
            if not isinstance(own, dict):
                raise Refusal(f"{where}.quantization_config", f"expected a mapping, got {own!r}")
            return own, f"{where}.quantization_config"
    separate = (quant_config or {}).get("quantization", quant_config) or {}
    if not isinstance(separate, dict):
        raise Refusal("quant_config.quantization", f"expected a mapping, got {separate!r}")
    return separate, "quant_config"


def checkpoint_kv_dtype(config: Config, quant_config: Config | None = None) -> str:
    """Tell what C(--kv-cache-dtype auto) means for a checkpoint: C(fp8), or C(auto) for the dtype of the model.

    FP8 weights alone do not make the cache FP8; only a scheme for the cache itself does.
    """
    fix = "set kv-cache-dtype in args"
    sources = [quantization_of(config, quant_config)]
    if quant_config:
        sources.append(quantization_of({}, quant_config))
    for source, where in sources:
        algorithm = source.get("kv_cache_quant_algo")
        if algorithm is not None:
            if str(algorithm).upper() == "FP8":
                return "fp8"
            raise Refusal(f"{where}.kv_cache_quant_algo", f"KV cache quantisation {algorithm!r} is not known", fix)
        scheme = source.get("kv_cache_scheme")
        if scheme is not None:
            if isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
                return "fp8"
            raise Refusal(f"{where}.kv_cache_scheme", f"KV cache scheme {scheme!r} is not known", fix)
    return "auto"


def _named_kinds(text: Config, count: int) -> list[str] | None:
    """Read C(layer_types), C(None) where there is none."""
    named = text.get("layer_types")
    if named is None:
        return None
    if not isinstance(named, list) or len(named) != count:
        raise Refusal("config.layer_types", f"expected a list of {count} names, one per layer")
    for index, name in enumerate(named):
        if not isinstance(name, str) or name not in _LAYER_KINDS:
            raise Refusal(f"config.layer_types[{index}]", f"layer kind {name!r} is not known")
    return [_LAYER_KINDS[name] for name in named]


def _layer_kinds(text: Config, model_type: str, count: int) -> list[str]:
    """Name the kind of every layer of a decoder that is not Nemotron-H."""
    named = _named_kinds(text, count)
    # These two go by their own rule; names that nobody knows are refused all the same.
    if model_type == "gpt_oss":
        return ["full" if index % 2 else "sliding" for index in range(count)]
    if model_type.startswith("llama4"):
        if text.get("attention_chunk_size") is None:
            return ["full"] * count
        rope = text.get("no_rope_layers")
        if not isinstance(rope, list) or len(rope) != count:
            rope = [0 if (index + 1) % 4 == 0 else 1 for index in range(count)]
        return ["chunked" if flag else "full" for flag in rope]
    on_demand = model_type.startswith(_WINDOW_ON_DEMAND)
    # A window of 0 is none.
    window = bool(text.get("sliding_window")) and text.get("use_sliding_window", not on_demand) is not False
    if named is not None:
        # vLLM gives the window of the config to all layers unless the config names layers of different kinds.
        return ["sliding"] * count if set(named) == {"full"} and window else named
    if model_type in _GDN:
        every = _number(text, "full_attention_interval", 4)
        return ["full" if (index + 1) % every == 0 else "gdn" for index in range(count)]
    if not window:
        return ["full"] * count
    if on_demand and 0 < _number(text, "max_window_layers", count, minimum=0) < count:
        raise Refusal(
            "config.max_window_layers", "vLLM does not serve a model of this family with a window in some layers only"
        )
    every = _number(text, "sliding_window_pattern", _GLOBAL_EVERY.get(model_type, 0), minimum=0)
    if every:
        return ["full" if (index + 1) % every == 0 else "sliding" for index in range(count)]
    # Without a pattern vLLM gives the window to every layer (Mistral 7B v0.1).
    return ["sliding"] * count


def _plain_attention(text: Config, kind: str) -> Attention:
    heads = _number(text, "num_attention_heads")
    head_dim = _number(text, "head_dim", 0, minimum=0) or _number(text, "hidden_size") // heads
    if head_dim < 1:
        raise Refusal("config.num_attention_heads", f"{heads} heads do not fit into hidden_size {text['hidden_size']}")
    kv_heads = _number(text, "num_key_value_heads", heads)
    window = 0
    if kind == "sliding":
        window = _number(text, "sliding_window")
    elif kind == "chunked":
        window = _number(text, "attention_chunk_size")
    elif kind == "full" and text.get("global_head_dim") is not None:
        # Gemma 4: global layers have their own head size, and with attention_k_eq_v their own number of heads. Keys and
        # values are both kept, then too.
        head_dim = _number(text, "global_head_dim")
        if text.get("attention_k_eq_v") is not False:
            kv_heads = _number(text, "num_global_key_value_heads", kv_heads)
    return Attention(kind, kv_heads, head_dim, head_dim, window)


def _latent_attention(text: Config) -> Attention:
    if text.get("index_topk") is not None:
        raise Refusal("config.index_topk", "sparse attention keeps a second cache for its indexer, which is not known")
    return Attention("mla", 1, _number(text, "kv_lora_rank") + _number(text, "qk_rope_head_dim"), 0)


def _gated_delta_net(text: Config) -> Recurrent:
    key_heads = _number(text, "linear_num_key_heads")
    value_heads = _number(text, "linear_num_value_heads")
    key_dim = _number(text, "linear_key_head_dim")
    value_dim = _number(text, "linear_value_head_dim")
    return Recurrent(
        kind="gdn",
        conv_kernel=_number(text, "linear_conv_kernel_dim"),
        conv_key_dim=2 * key_heads * key_dim,
        conv_value_dim=value_heads * value_dim,
        groups=key_heads,
        heads=value_heads,
        head_dim=value_dim,
        state_dim=key_dim,
        ssm_dtype=str(text.get("mamba_ssm_dtype") or ""),
    )


def _mamba2(text: Config) -> Recurrent:
    heads = _number(text, "mamba_num_heads")
    head_dim = _number(text, "mamba_head_dim")
    groups = _number(text, "n_groups")
    state = _number(text, "ssm_state_size")
    return Recurrent(
        kind="mamba",
        conv_kernel=_number(text, "conv_kernel"),
        conv_key_dim=2 * groups * state,
        conv_value_dim=heads * head_dim,
        groups=groups,
        heads=heads,
        head_dim=head_dim,
        state_dim=state,
        chunk_size=_number(text, "chunk_size", 128),
        ssm_dtype=str(text.get("mamba_ssm_cache_dtype") or ""),
    )


def _nemotron_h(text: Config, count: int) -> list[Layer | None]:
    pattern = text.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != count:
        raise Refusal("config.hybrid_override_pattern", f"expected a text of {count} letters, one per layer")
    attention, state = _plain_attention(text, "full"), _mamba2(text)
    known: dict[str, Layer | None] = {"M": state, "*": attention, "-": None, "E": None}
    for index, letter in enumerate(pattern):
        if letter not in known:
            raise Refusal(f"config.hybrid_override_pattern[{index}]", f"layer kind {letter!r} is not known")
    return [known[letter] for letter in pattern]


def read_geometry(config: Config) -> Geometry:
    """Read the geometry of a model.

    config: the content of C(config.json), with or without a C(text_config).
    Raises C(Refusal) for a family, a layer kind or a field that is not known.
    """
    text = text_config(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    if not model_type:
        raise Refusal("config.model_type", "the field is missing", "give the whole config.json of the model")
    count = _number(text, "num_hidden_layers", maximum=MAX_LAYERS)
    layers: list[Layer | None]
    mtp_layer: Attention | None = None
    mtp_layers = 0
    if model_type in _NEMOTRON_H:
        layers = _nemotron_h(text, count)
    elif model_type in _MLA:
        layers = [_latent_attention(text)] * count
    elif model_type in _GDN or model_type in _DECODERS:
        if text.get("kv_lora_rank") is not None:
            raise Refusal("config.kv_lora_rank", f"latent attention is not known of the family {model_type!r}")
        made: dict[str, Layer] = {}
        layers = []
        kinds = _layer_kinds(text, model_type, count)
        if len(set(kinds)) > 1 and model_type not in _MIXES and "gdn" not in kinds:
            raise Refusal("config.layer_types", f"layers of different kinds are not known of the family {model_type!r}")
        for index, kind in enumerate(kinds):
            if kind == "gdn" and model_type not in _GDN:
                raise Refusal(
                    f"config.layer_types[{index}]",
                    f"the recurrent state of linear attention is not known of the family {model_type!r}",
                )
            if kind not in made:
                made[kind] = _gated_delta_net(text) if kind == "gdn" else _plain_attention(text, kind)
            layers.append(made[kind])
    else:
        raise Refusal(
            "config.model_type",
            f"the model family {model_type!r} is not known",
            "declare the service with memory_gib instead of config",
        )
    shared = _number(text, "num_kv_shared_layers", 0, minimum=0, maximum=count)
    if shared:
        # The last layers read the cache of earlier ones and keep none (Gemma 3n, Gemma 4 E2B and E4B).
        layers[count - shared :] = [None] * shared

    mtp_attention = mtp_modules = 1
    if model_type == "qwen3_next":
        mtp_layers = mtp_modules = _number(text, "num_nextn_predict_layers", 1, minimum=0, maximum=MAX_LAYERS)
        mtp_layer = _plain_attention(text, "full")
    elif model_type in _GDN:
        # vLLM counts the modules by the field that these families do not have.
        mtp_layers = _number(text, "mtp_num_hidden_layers", 1, minimum=0, maximum=MAX_LAYERS)
        mtp_layer = _plain_attention(text, "full")
    elif text.get("num_nextn_predict_layers"):
        mtp_layers = mtp_modules = _number(text, "num_nextn_predict_layers", maximum=MAX_LAYERS)
        mtp_layer = _latent_attention(text) if model_type in _MLA else _plain_attention(text, "full")
        if model_type in _NEMOTRON_H:
            mtp_attention = str(text.get("mtp_hybrid_override_pattern") or "").count("*")
            if not mtp_attention:
                raise Refusal("config.mtp_hybrid_override_pattern", "names no attention layer of the MTP layers")

    vision = any(isinstance(config.get(key), dict) for key in ("vision_config", "audio_config", "visual"))
    return Geometry(
        model_type=model_type,
        layers=tuple(layers),
        mtp_layer=mtp_layer if mtp_layers else None,
        mtp_layers=mtp_layers,
        max_position_embeddings=_number(text, "max_position_embeddings"),
        dtype=model_dtype(config),
        has_vision=vision,
        prefix_lm=vision and model_type.startswith("gemma4"),
        mtp_attention=mtp_attention,
        mtp_modules=mtp_modules,
    )
