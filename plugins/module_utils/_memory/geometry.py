# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Geometry of a model: what its C(config.json) says about the memory of a request.

One layer of a model remembers a request in one of these ways, and this file says which layer does what:

* full attention: keys and values of every token
* sliding or chunked-local attention: keys and values of the last tokens only
* multi-head latent attention (MLA): one compressed vector per token
* recurrent state (Gated DeltaNet, Mamba-2): a block of fixed size per request of any length

Nothing is guessed: a family, a layer kind or a field that this file does not know is a C(Refusal), which names the key
and the reason. No I/O, no Ansible. The field names come from the Hugging Face configuration classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .families import READERS, Read
from .layers import (
    MAX_LAYERS,
    Attention,
    Config,
    Layer,
    Recurrent,
    Refusal,
    gated_delta_net,
    number,
    plain_attention,
    text_config,
)
from .modules import FAMILIES


@dataclass(frozen=True)
class Geometry(Read):
    """The properties of a model that KV planning uses, with its layers as its family reads them.

    model_type: of the text part, as in C(config.json).
    max_position_embeddings: the longest context that the config allows, tokens.
    dtype: of the weights: C(bfloat16), C(float16) or C(float32).
    has_vision: there is a vision (or audio) tower.
    prefix_lm: images are attended to in both directions, so that one item must fit a batch (Gemma).
    """

    model_type: str = ""
    max_position_embeddings: int = 0
    dtype: str = "bfloat16"
    has_vision: bool = False
    prefix_lm: bool = False

    @property
    def mtp_layer(self) -> Layer | None:
        """The first cache of a multi-token-prediction layer, C(None) for a model without such layers."""
        return self.drafts[0][0] if self.drafts else None

    @property
    def mtp_layers(self) -> int:
        """The number of multi-token-prediction layers in the checkpoint."""
        return len(self.drafts)

    def draft_caches(self, tokens: int) -> tuple[Layer, ...]:
        """Return all caches of the layers that draft C(tokens) tokens."""
        used = self.drafts[:tokens] if self.drafts_each else self.drafts
        return tuple(cache for caches in used for cache in caches)

    def caches(self) -> tuple[tuple[int, Layer], ...]:
        """Return all caches of the model, each with the number of its layer."""
        caches: list[tuple[int, Layer]] = []
        for index, layer in enumerate(self.layers):
            caches += [(index, layer)] if layer is not None else []
            caches += [(index, cache) for cache in (self.further_caches[index] if self.further_caches else ())]
        return tuple(caches)

    @property
    def recurrent(self) -> tuple[Recurrent, ...]:
        """The recurrent states of all layers, including layers with other caches."""
        return tuple(cache for _index, cache in self.caches() if isinstance(cache, Recurrent))

    @property
    def attention(self) -> tuple[Attention, ...]:
        """The layers that keep keys and values."""
        return tuple(layer for layer in self.layers if isinstance(layer, Attention))


# A family that is neither here nor in FAMILIES is refused: its layers may be of any kind. Every layer of the others is plain attention,
# or says otherwise through layer_types.
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
_WINDOW_ON_DEMAND = ("mimo", "qwen2", "qwen3", "smollm3")

_LAYER_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "gdn",
}


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
    quant_config: C(hf_quant_config.json), the whole file or its C(quantization) part.
    """
    for source, where in ((config, "config"), (text_config(config), "config.text_config")):
        quantization = source.get("quantization_config")
        if quantization is not None:
            if not isinstance(quantization, dict):
                raise Refusal(f"{where}.quantization_config", f"expected a mapping, got {quantization!r}")
            return quantization, f"{where}.quantization_config"
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
    """Read C(layer_types), C(None) if absent."""
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
    """Return the kind of every layer of a decoder other than Nemotron-H."""
    kinds = _named_kinds(text, count)
    # These two have their own rule; unknown names in layer_types are refused anyway.
    if model_type == "gpt_oss":
        return ["full" if index % 2 else "sliding" for index in range(count)]
    if model_type.startswith("llama4"):
        return _llama4_kinds(text, count)
    on_demand = model_type.startswith(_WINDOW_ON_DEMAND)
    switched = text.get("use_sliding_window", not on_demand) is not False
    window = bool(text.get("sliding_window")) and switched  # 0 tokens means no window
    if kinds is not None:
        # vLLM gives the window of the config to all layers unless the config names layers of different kinds.
        return ["sliding"] * count if set(kinds) == {"full"} and window else kinds
    if model_type in _GDN:
        return _periodic_kinds("gdn", number(text, "full_attention_interval", 4), count)
    if not window:
        return ["full"] * count
    partial = number(text, "max_window_layers", count, minimum=0) if on_demand else 0
    if 0 < partial < count:
        raise Refusal(
            "config.max_window_layers", "vLLM does not serve a model of this family with a window in some layers only"
        )
    every = number(text, "sliding_window_pattern", _GLOBAL_EVERY.get(model_type, 0), minimum=0)
    # Without a pattern vLLM gives the window to every layer (Mistral 7B v0.1).
    return _periodic_kinds("sliding", every, count) if every else ["sliding"] * count


def _periodic_kinds(kind: str, every: int, count: int) -> list[str]:
    """Return full attention in every C(every)-th layer and C(kind) in the others."""
    return ["full" if (index + 1) % every == 0 else kind for index in range(count)]


def _llama4_kinds(text: Config, count: int) -> list[str]:
    """Return chunked attention for the layers with rotary positions, if the config has a chunk size."""
    if text.get("attention_chunk_size") is None:
        return ["full"] * count
    rope = text.get("no_rope_layers")
    if not isinstance(rope, list) or len(rope) != count:
        return _periodic_kinds("chunked", 4, count)
    return ["chunked" if flag else "full" for flag in rope]


def _mamba2(text: Config) -> Recurrent:
    heads = number(text, "mamba_num_heads")
    head_dim = number(text, "mamba_head_dim")
    groups = number(text, "n_groups")
    state = number(text, "ssm_state_size")
    return Recurrent(
        kind="mamba",
        conv_kernel=number(text, "conv_kernel"),
        conv_key_dim=2 * groups * state,
        conv_value_dim=heads * head_dim,
        groups=groups,
        heads=heads,
        head_dim=head_dim,
        state_dim=state,
        chunk_size=number(text, "chunk_size", 128),
        ssm_dtype=str(text.get("mamba_ssm_cache_dtype") or ""),
        checkpoints_since=32,
    )


# The kinds of Nemotron-H's layers, as letters of its pattern and as words of its list.
_NEMOTRON_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def nemotron_pattern(text: Config, prefix: str = "") -> str:
    """Return one letter for every layer of Nemotron-H, from its pattern or from its list of words.

    prefix: C(mtp_) for the layers of multi-token prediction. Empty when the config names none.
    """
    key = f"{prefix}layers_block_type"
    words = text.get(key)
    if words is None:
        return str(text.get(f"{prefix}hybrid_override_pattern") or "")
    if not isinstance(words, list):
        raise Refusal(f"config.{key}", f"expected a list of layer kinds, got {words!r}")
    for index, word in enumerate(words):
        if word not in _NEMOTRON_LETTERS:
            raise Refusal(f"config.{key}[{index}]", f"layer kind {word!r} is not known")
    return "".join(_NEMOTRON_LETTERS[word] for word in words)


def _nemotron_h(text: Config, count: int) -> Read:
    pattern = nemotron_pattern(text)
    if len(pattern) != count:
        raise Refusal("config.hybrid_override_pattern", f"expected a text of {count} letters, one per layer")
    attention, state = plain_attention(text, "full"), _mamba2(text)
    layer_by_letter: dict[str, Layer | None] = {"M": state, "*": attention, "-": None, "E": None}
    for index, letter in enumerate(pattern):
        if letter not in layer_by_letter:
            raise Refusal(f"config.hybrid_override_pattern[{index}]", f"layer kind {letter!r} is not known")
    drafts = number(text, "num_nextn_predict_layers", 0, minimum=0, maximum=MAX_LAYERS)
    drafting = nemotron_pattern(text, "mtp_").count("*")
    if drafts and not drafting:
        raise Refusal("config.mtp_hybrid_override_pattern", "names no attention layer of the MTP layers")
    return Read(
        [layer_by_letter[letter] for letter in pattern],
        drafts=((attention,) * drafting,) * drafts,
        mtp_modules=drafts,
    )


def _decoder(text: Config, model_type: str, count: int) -> list[Layer | None]:
    """Read the layers of a family with attention, and with Gated DeltaNet in some families."""
    if text.get("kv_lora_rank") is not None:
        raise Refusal("config.kv_lora_rank", f"latent attention is not known of the family {model_type!r}")
    made: dict[str, Layer] = {}
    layers: list[Layer | None] = []
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
            made[kind] = gated_delta_net(text) if kind == "gdn" else plain_attention(text, kind)
        layers.append(made[kind])
    shared = number(text, "num_kv_shared_layers", 0, minimum=0, maximum=count)
    if shared:
        # The last layers read the cache of earlier ones and keep none (Gemma 3n, Gemma 4 E2B and E4B).
        layers[count - shared :] = [None] * shared
    return layers


def _read_layers(config: Config, text: Config, model_type: str, count: int) -> Read:
    if model_type in READERS:
        return READERS[model_type]({**config, **text}, count)
    if model_type in _NEMOTRON_H:
        return _nemotron_h(text, count)
    if model_type in _GDN and model_type != "qwen3_next":
        # vLLM counts the modules by the field that these families do not have.
        drafts, modules = number(text, "mtp_num_hidden_layers", 1, minimum=0, maximum=MAX_LAYERS), 1
    else:
        default = 1 if model_type == "qwen3_next" else 0
        drafts = number(text, "num_nextn_predict_layers", default, minimum=0, maximum=MAX_LAYERS)
        modules = max(1, drafts)
    if model_type in _MLA:
        if text.get("index_topk") is not None:
            raise Refusal("config.index_topk", "sparse attention is not known of this family")
        latent = Attention("mla", 1, number(text, "kv_lora_rank") + number(text, "qk_rope_head_dim"), 0)
        return Read([latent] * count, drafts=((latent,),) * drafts, mtp_modules=modules)
    if model_type in _GDN or model_type in FAMILIES:
        layers = _decoder(text, model_type, count)
        return Read(layers, drafts=((plain_attention(text, "full"),),) * drafts if drafts else (), mtp_modules=modules)
    raise Refusal(
        "config.model_type",
        f"the model family {model_type!r} is not known",
        "set memory_gib of the service instead of config",
    )


def read_geometry(config: Config) -> Geometry:
    """Read the geometry of a model.

    config: the content of C(config.json), with or without a C(text_config).
    Raises C(Refusal) for a family, a layer kind or a field that is not known.
    """
    text = text_config(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    if not model_type:
        raise Refusal("config.model_type", "the field is missing", "give the whole config.json of the model")
    # Nemotron-H may name its layers without their number.
    listed = len(nemotron_pattern(text)) if model_type in _NEMOTRON_H else 0
    count = number(text, "num_hidden_layers", listed or None, maximum=MAX_LAYERS)
    read = _read_layers(config, text, model_type, count)
    vision = any(isinstance(config.get(key), dict) for key in ("vision_config", "audio_config", "visual"))
    vision = vision or config.get("model_type") == "llama4"  # Transformers has defaults for its tower
    longest = "model_max_length" if model_type == "inkling_model" else "max_position_embeddings"
    return Geometry(
        **{**vars(read), "layers": tuple(read.layers), "mtp_modules": max(1, read.mtp_modules)},
        model_type=model_type,
        max_position_embeddings=number(text, longest),
        dtype=model_dtype(config),
        has_vision=vision,
        prefix_lm=vision and model_type.startswith("gemma4"),
    )
