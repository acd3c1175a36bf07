"""The longest context that vLLM derives from a config, by release."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.context_length import context_limit

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "overrides", "minor", "tokens"),
    [
        ({"max_position_embeddings": 40960}, None, 33, 40960),
        # The smallest of the keys counts.
        ({"max_position_embeddings": 40960, "max_seq_len": 8192}, None, 33, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, None, 33, 131072),
        ({"text_config": {"max_position_embeddings": 262144}, "max_position_embeddings": 1}, None, 33, 262144),
        # YaRN is multiplied up to 0.29, and taken as contained from 0.30 on; of an unknown version the longer counts.
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, None, 29, 131072),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, None, 30, 40960),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, None, None, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "llama3", "factor": 8.0}}, None, 33, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, None, 33, 8192),
        ({"model_type": "gemma3_text", "max_position_embeddings": 131072, "rope_scaling": {"type": "linear", "factor": 8.0}}, None, 33, 131072),
        # Settings for each kind of layer.
        ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}}}, None, 33, 16384),
        ({"max_position_embeddings": 40960}, {"rope_parameters": YARN}, 29, 131072),
        ({"text_config": {"max_position_embeddings": 40960}}, {"text_config": {"rope_parameters": YARN}}, 29, 131072),
        ({"max_position_embeddings": 40960}, {"max_position_embeddings": 131072, "rope_parameters": YARN}, 30, 131072),
        # Without a config, what YaRN extends.
        ({}, {"rope_parameters": YARN}, 29, 131072),
    ],
)  # fmt: skip
def test_the_context_that_a_release_derives(
    config: dict[str, Any], overrides: dict[str, Any] | None, minor: int | None, tokens: int
) -> None:
    limit = context_limit(config, overrides, minor)
    assert limit is not None and limit.tokens == tokens
    assert limit.refusal(tokens) == ""
    assert f"({tokens + 1}) is greater than the derived max_model_len ({limit.key}={tokens}" in limit.refusal(
        tokens + 1
    )


def test_a_config_without_a_length_has_no_limit() -> None:
    assert context_limit({"model_type": "x"}, None, 33) is None
