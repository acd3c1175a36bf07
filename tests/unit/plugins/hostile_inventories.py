# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories, recipes, lock files and launches as nobody should write them, made from a seed.

A case is a valid example with a few places changed: a value of another type at any level, a key that is documented with a
value that is not, an unknown key, a name that is reserved or used twice. C(make(seed, number)) always gives the same case.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cluster_fixture
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import (
    addons,
    clients,
    fleet_monitor,
    gateway,
    guard,
    monitoring,
    ollama,
    power,
    speech,
    watchdog,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._addons.descriptions import options
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import clustering
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader, schema
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import service_input
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import preflight, service_keys
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.service_keys import SERVICE
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.variables import VARIABLES
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import overheads

Path = tuple[Any, ...]

# --- values -------------------------------------------------------------------------------------------------------------

TEXTS = [
    "",
    " ",
    "\n",
    "two\nlines",
    "tab\there",
    "nul\x00",
    "\x1b[31mred",
    "del\x7f",
    "next\x85line",
    "line\u2028separator",
    "\u202eright to left",
    "\ufeffbom",
    "\ud800",
    "rocket 🚀",
    "🚀",
    "café",
    "x" * 70_000,
    "{{ 7 * 7 }}",
    "{{ lookup('pipe', 'id') }}",
    "{% for x in y %}",
    "{# comment #}",
    "!unsafe text",
    ".",
    "..",
    "../../etc/passwd",
    "/../etc",
    "a/b",
    "/",
    "//",
    "~",
    "~/keys/one",
    "~nobody-here/x",
    "$HOME",
    "${HOME}",
    "%n",
    "%",
    "100%",
    "'",
    '"',
    "\\",
    "\\x41",
    "a b",
    "a'b\"c",
    "-",
    "--",
    "--privileged",
    ":",
    ",",
    "a:b",
    "a,b=c",
    "=",
    "#",
    ";",
    "$(id)",
    "`id`",
    "|",
    "*",
    "[",
    "[::1]",
    "null",
    "true",
    "no",
    "None",
    "auto",
    "none",
    "all",
    "0",
    "-1",
    "8001",
    "1.5",
    "1e400",
    "nan",
    "inf",
    "0x10",
    "1_000",
    "1.",
    "²",
    "٣",
    "4²",
    "8g",
    "9" * 5000,
    "http://[",
    "http://[::1",
    "http://host:99999/",
    "http://host:²/",
    "https://user:password@host/",
    "latest",
    "heavy",
    "spark-1",
    "spark-1/heavy",
    "gateway",
    "watchdog",
    "2024-01-01",
    '{"a": 1}',
    '{"a": ',
    "[1, 2",
    "{model}",
    "{model}/../x",
    "sha256:" + "0" * 64,
]
NUMBERS = [
    0,
    1,
    2,
    -1,
    7,
    80,
    65535,
    65536,
    2**31,
    2**63,
    2**64,
    10**30,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    0.1,
    0.5,
    1.5,
    -2.5,
    1e-320,
    1e30,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
]


def _deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


OTHERS: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": None},
    {"ref": None},
    {"ref": ["a"]},
    {"ref": 7},
    {"vllm_version": "0.19.0"},
    {"name": {"a": 1}},
    {1: 2, None: 3, False: 4, 1.5: 5},
    {"🚀": "🚀"},
    {"a\nb": "c"},
    {"x" * 3000: 1},
    [1, "a", None, True, 1.5, [], {}],
    ["a", "a"],
    [[1], [2]],
    [{"a": 1}, {"a": 1}],
    ["spark-1/heavy", "spark-1/heavy"],
    {"a": {"b": {"c": {"d": []}}}},
    _deep(60),
    list(range(300)),
    {str(number): number for number in range(200)},
]


def value(chance: random.Random) -> Any:
    """A value that may be of any type."""
    kind = chance.random()
    if kind < 0.45:
        return chance.choice(TEXTS)
    if kind < 0.65:
        return chance.choice(NUMBERS)
    if kind < 0.9:
        return copy.deepcopy(chance.choice(OTHERS))
    # One of them within a list or a mapping.
    inner = value(chance)
    return [inner] if chance.random() < 0.5 else {chance.choice(["name", "a", "ref", "repo", "url", "low"]): inner}


# --- valid examples -----------------------------------------------------------------------------------------------------

KEYS = "/keys"


def _heavy() -> dict[str, Any]:
    return {
        "name": "heavy",
        "recipe": "qwen3-next-80b-a3b-instruct-fp8",
        "port": 8001,
        "served_model_name": "heavy-model",
        "args": {
            "gpu-memory-utilization": 0.80,
            "max-model-len": 65536,
            "max-num-seqs": 4,
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
            "chat-template": "/etc/dgxspark/chat.jinja",
        },
        "env": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": 4},
        "files": [{"source": "{model}/parser.py", "path": "/opt/parser.py"}],
        "checks": {"tools": True, "reasoning": False},
        "api_key_file": f"{KEYS}/api_key",
        "secrets": {"MY_SERVICE_TOKEN": f"{KEYS}/token"},
        "ignore": ["SPK101"],
        "start_timeout": 1800,
        "shm_size": "8g",
        "docker_args": ["--cpuset-cpus", "0-9"],
        "memory_share": 2,
        "state": "started",
        "overheads": {"outside_gib": {"low": 1.0, "typical": 2.0, "high": 3.0}},
    }


def _fast() -> dict[str, Any]:
    return {
        "name": "fast",
        "recipe": "qwen3-4b-instruct-2507",
        "port": 8002,
        "args": {"gpu-memory-utilization": 0.10, "max-model-len": 16384},
        "exclusive": "small",
    }


def _own_model() -> dict[str, Any]:
    """A model without a recipe: everything stands in the service."""
    return {
        "name": "own",
        "port": 8003,
        "host": "127.0.0.1",
        "model": {
            "repo": "Org/Own-8B",
            "revision": "main",
            "extra": [{"repo": "Org/Draft", "revision": "main", "only": ["*.json"]}],
        },
        "image": {
            "ref": "vllm/vllm-openai:v0.24.0-ubuntu2404",
            "vllm_version": "0.24.0",
            "entrypoint": "serve",
            "args": {"max-num-seqs": 4},
            "env": {"A": "b"},
            "files": [],
            "pip": [],
        },
        "config": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        "quant_config": {
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
        },
        "weights_gib": 7.5,
        "draft_config": {
            "model_type": "qwen3",
            "hidden_size": 2560,
            "num_hidden_layers": 1,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 151936,
        },
        "draft_weights_gib": 0.5,
        "pip": ["librosa==0.11.0"],
        "args": {
            "gpu-memory-utilization": 0.2,
            "max-model-len": "16k",
            "speculative-config": {"method": "eagle3", "model": "Org/Draft", "num_speculative_tokens": 3},
            "limit-mm-per-prompt": {"image": 1},
            "kv-cache-dtype": "fp8",
        },
    }


def _single() -> dict[str, Any]:
    """One Spark with three services and every variable of the host."""
    variables: dict[str, Any] = {name: copy.deepcopy(key.default) for name, key in VARIABLES.items()}
    variables.update(
        spark_services=[_heavy(), _fast()],
        spark_defaults={"env": {"TZ": "UTC"}, "args": {"enable-prefix-caching": True}, "ignore": ["SPK102"]},
        spark_sidecars=[{"name": "backup", "memory_gib": 1.5}],
        spark_image_catalogue=[
            {"image": "registry.local/vllm", "vllm_version": "0.19.0", "entrypoint": "serve", "arm64": True}
        ],
        spark_overheads={"inside_base_gib": 0.6, "kept_share": {"low": 0.0, "typical": 0.5, "high": 1.0}},
        spark_firewall_allowed=[4000, "51820/udp"],
        spark_total_gib=119.67,
        spark_site_mirrors=["images"],
        spark_ignore_rules=["SPK103"],
    )
    for name in ("spark_recipe_dirs", "spark_lock_file", "spark_cluster", "spark_plan_file"):
        variables.pop(name)
    return {"hosts": {"spark-1": {"vars": variables, "address": "192.168.1.11"}}, "groups": {"sparks": ["spark-1"]}}


def _small() -> dict[str, Any]:
    """One Spark with a model without a recipe."""
    return {
        "hosts": {"spark-1": {"vars": {"spark_services": [_own_model()]}, "address": "192.168.1.11"}},
        "groups": {"sparks": ["spark-1"]},
    }


def _pair() -> dict[str, Any]:
    """Two Sparks that serve one model, and a small model."""
    cluster = {
        "name": "pair_a",
        "head": "spark-1",
        "executor": "auto",
        "peer_timeout": 45,
        "ray_version": "2.60.0",
        "fabric": {
            "network": "10.77.0.0/16",
            "first_host": 1,
            "mtu": 9000,
            "topology": "auto",
            "migrate": False,
            "probe_seconds": 6,
            "revert_seconds": 90,
            "firewall": True,
            "bandwidth": True,
            "min_gbps": {"ib_write_bw": 80, "iperf3": 20},
        },
        "services": [
            {
                "name": "qwen235",
                "recipe": "qwen3-235b-a22b-gptq-int4",
                "port": 8000,
                "args": {"max-model-len": 32768, "gpu-memory-utilization": 0.8},
            }
        ],
    }
    return {
        "hosts": {
            "spark-1": {"vars": {"spark_cluster": cluster}, "address": "192.168.1.11"},
            "spark-2": {
                "vars": {
                    "spark_cluster": cluster,
                    "spark_services": [_fast()],
                    "spark_fabric_addresses": {"enp1s0f0np0": "10.77.0.2/24"},
                },
                "address": "192.168.1.12",
            },
        },
        "groups": {"sparks": ["spark-1", "spark-2"], "pair_a": ["spark-1", "spark-2"]},
    }


def _duo() -> dict[str, Any]:
    """A Spark with everything around its engine, and a host that watches."""
    spark = {
        "spark_services": [
            {**_fast(), "args": {"gpu-memory-utilization": 0.2}, "api_key_file": f"{KEYS}/api_key", "exclusive": None}
        ],
        "spark_speech": [
            {"name": "asr", "kind": "asr", "port": 8765, "env": {"PARAKEET_WORKERS": "1"}, "volumes": ["/srv/a:/b:ro"]},
            {
                "name": "tts",
                "kind": "tts",
                "image": "registry.local/tts:1",
                "port": 8882,
                "listen": "127.0.0.1",
                "memory_gib": 2.0,
                "device": "gpu",
                "model": "tts-1",
                "command": ["/app/serve"],
                "args": ["--port", "5000"],
                "env": {},
                "container_port": 5000,
                "health": "/health",
                "start_timeout": 300,
                "api_key_file": f"{KEYS}/tts",
                "key_env": "TTS_KEY",
                "volumes": [],
                "docker_args": ["--init"],
                "voice": "alloy",
            },
        ],
        "spark_ollama": {
            name: default for name, default in schema.defaults(ollama.KEYS).items() if default is not None
        },
        "spark_exporters": schema.defaults(monitoring.EXPORTERS_KEYS),
        "spark_watchdog": {
            **schema.defaults(watchdog.KEYS),
            "services": {"fast": {"window_seconds": 600, "restart": False}},
            "leave_out": ["fast"],
        },
        "spark_load_guard": {"enabled": True, "floor_gib": 8.0, "interval_seconds": 1.0},
        "spark_guard": {**schema.defaults(guard.KEYS), "order": ["heavy", "fast"]},
        "spark_host_protection": schema.defaults(guard.PROTECTION_KEYS),
        "spark_gpu_clocks": {"max_mhz": 2200, "min_mhz": 200},
        "spark_power": {"spin_wait": "low", "idle": ["cx7_hotplug", "cpu_governor"]},
    }
    box = {
        "spark_gateway": {
            "port": 4000,
            "listen": "0.0.0.0",
            "image": gateway.IMAGE,
            "master_key_file": f"{KEYS}/gateway",
            "metrics_key_file": f"{KEYS}/metrics",
            "clients": [
                {"name": "hermes", "key_file": f"{KEYS}/hermes", "aliases": ["writer"]},
                {"name": "open-webui", "key_file": f"{KEYS}/webui"},
            ],
            "aliases": {
                "writer": {"backends": ["spark-1/fast"], "routing": "order", "fallback": ["cloud"]},
                "cloud": {
                    "backends": [{"url": "https://api.example.com", "model": "big", "api_key_file": f"{KEYS}/cloud"}]
                },
                "small": {"endpoint": "spark-1/ollama", "model": "qwen3:8b"},
                "plain": "spark-1/fast",
            },
            "serve": "all",
            **{name: key.default for name, key in gateway.KEYS.items() if int in key.listed and name != "port"},
            "log_level": "warning",
        },
        "spark_clients": {
            "open_webui": {
                "port": 3000,
                "key_file": f"{KEYS}/webui",
                "admin": {"email": "a@example.com", "name": "A", "password_file": f"{KEYS}/admin"},
                "env": {"WEBUI_NAME": "Models"},
                "data_dir": "/var/lib/dgxspark/open-webui",
                "command": ["bash", "start.sh"],
                "docker_args": [],
                "memory_gib": 4.0,
            },
            "hermes": {
                "model": "writer",
                "key_file": f"{KEYS}/hermes",
                "context_length": 100000,
                "toolsets": ["web"],
                "config": {"agent": {"max_turns": 10}},
                "memory_gib": 4.0,
            },
        },
        "spark_monitoring": {
            "listen": "127.0.0.1",
            "grafana_port": 3001,
            "grafana_password_file": f"{KEYS}/grafana",
            "retention": "30d",
            "thresholds": schema.defaults(monitoring.THRESHOLDS),
            "receivers": [
                {"name": "hook", "type": "webhook", "url": "https://example.com/hook", "severities": ["critical"]},
                {"name": "chat", "type": "telegram", "token_file": f"{KEYS}/telegram", "chat_id": 5},
                {"name": "post", "type": "email", "to": "a@b.c", "from": "d@e.f", "smarthost": "mail:587"},
                {"name": "push", "type": "ntfy", "topic": "sparks", "server": "https://ntfy.sh"},
            ],
            "targets": [
                {
                    "job": "router",
                    "address": "192.168.1.1",
                    "port": 9100,
                    "path": "/metrics",
                    "labels": {"place": "rack"},
                }
            ],
        },
        "spark_fleet_monitor": {
            "every_minutes": 15,
            "delay_seconds": 60,
            "completion_every": 4,
            "timeout_seconds": 10,
            "completion_seconds": 60,
            "failures": 2,
            "heartbeat": "08:30",
            "quiet": ["22:00-07:00"],
            "notify": [
                {"telegram": {"token_file": f"{KEYS}/telegram", "chat_id": "12345"}},
                {"name": "phone", "ntfy": {"url": "https://ntfy.sh/sparks", "token_file": f"{KEYS}/ntfy"}},
                {"webhook": {"url": "https://example.com/hook", "text_key": "content"}},
                {"mail": {"smtp": "mail.example.com:587", "from": "a@b.c", "to": ["d@e.f"], "tls": "starttls"}},
                {"command": {"argv": ["/usr/bin/logger", "-t", "spark"]}},
            ],
            "extra": [
                {
                    "name": "mac",
                    "url": "http://192.168.1.10:8009",
                    "kind": "openai",
                    "models": ["m"],
                    "completion": True,
                }
            ],
            "leave_out": ["spark-1/ollama"],
        },
    }
    return {
        "hosts": {"spark-1": {"vars": spark, "address": "192.168.1.11"}},
        "others": {"forge": {"vars": box, "address": "192.168.1.20"}},
        "groups": {"sparks": ["spark-1"], "tools": ["forge"]},
    }


LOCK: dict[str, Any] = {
    "schema": 1,
    "images": {
        "vllm/vllm-openai:v0.24.0-ubuntu2404": {
            "platforms": {"linux/arm64": {"id": "sha256:" + "1" * 64, "digest": "sha256:" + "2" * 64}},
            "vllm_version": "0.24.0",
        }
    },
    "models": {
        "Org/Own-8B@main": {
            "commit": "a" * 40,
            "files": {
                "config.json": {"size": 700, "sha256": "b" * 64},
                "model.safetensors": {"size": 9, "sha256": "c" * 64},
            },
        }
    },
    "services": {
        "spark-1/own": {
            "image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
            "models": ["Org/Own-8B@main"],
            "recipe": {"name": None, "sha256": ""},
        }
    },
}

RECIPE: dict[str, Any] = {
    "name": "my-coder",
    "summary": "what it is, in one line",
    "model": {"repo": "Org/Name", "revision": "0123abc", "extra": [{"repo": "Org/Draft"}]},
    "images": [
        {
            "ref": "vllm/vllm-openai:v0.24.0-ubuntu2404",
            "vllm_version": "0.24.0",
            "entrypoint": "serve",
            "args": {"max-num-seqs": 2},
            "env": {"A": "b"},
            "files": [{"source": "fixed.py", "path": "/opt/fixed.py"}],
            "pip": ["x==1"],
        }
    ],
    "args": {"max-model-len": 65536, "max-num-seqs": 4, "tool-call-parser": "hermes", "enable-auto-tool-choice": True},
    "env": {"TZ": "UTC"},
    "checks": {"tools": True, "reasoning": False},
    "variants": {
        "ngram": {
            "summary": "for output that repeats its input",
            "args": {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}},
            "model": {"repo": "Org/Other"},
            "config": {"torch_dtype": "bfloat16"},
            "images": [{"ref": "vllm/vllm-openai:v0.25.0"}],
        }
    },
    "config": _own_model()["config"],
    "quant_config": {"quantization": {"quant_algo": "FP8"}},
    "weights_gib": 7.5,
    "draft_weights_gib": 0.5,
    "draft_config": _own_model()["draft_config"],
    "files": [{"source": "chat.jinja", "path": "/opt/chat.jinja"}],
    "pip": ["librosa==0.11.0"],
    "ignore": ["SPK101"],
    "nodes": 1,
    "expect": [
        {
            "what": "decoding",
            "tokens_per_second": 40,
            "source": "a page",
            "sparks": 1,
            "streams": 1,
            "attention_backend": "FLASHINFER",
            "required": False,
        }
    ],
    "source": ["where flags and sizes come from"],
    "served_model_name": "coder",
    "start_timeout": 1800,
    "shm_size": "8g",
}

FACTS: dict[str, Any] = {
    "machine": {"is_spark": True},
    "kernel": "6.17.0-1018-nvidia",
    "architecture": "aarch64",
    "gpu": {"name": "NVIDIA GB10", "driver_version": "580.159.03"},
    "memory": {"total_gib": 119.67, "available_gib": 114.0},
    "docker": {"version": "29.2.1", "runtimes": ["nvidia", "runc"]},
    "containers": [{"name": "spark-own", "service": "own", "state": "running", "fingerprint": "0123"}],
    "units": [{"name": "ollama", "active_state": "active"}],
    "services": [],
    "listening": [{"port": 8003, "address": "0.0.0.0", "process": "nginx"}],
    "resident": [{"name": "own", "gib": 12.5}],
    "models": ["Org/Own-8B"],
    "snapshots": {"Org/Own-8B": {"commits": ["a" * 40], "refs": {"main": "a" * 40}}},
    "disks": {"/srv/huggingface": {"free_gib": 900.0, "total_gib": 3700.0}},
    "management_address": "192.168.1.11",
}

ANSWERS: dict[str, Any] = {
    "measured": {
        **FACTS,
        "machine": {"is_spark": True, "bios_version": "5.36", "product_name": "NVIDIA_DGX_Spark"},
        "dgx_os": {"version": "7.2.3"},
        "gpu": {**FACTS["gpu"], "cuda_version": "13.0", "processes": [{"name": "python3", "used_mib": 800}]},
        "memory": {
            **FACTS["memory"],
            "free_gib": 20.0,
            "cma_total_gib": 1.0,
            "cma_free_gib": 0.5,
            "large_blocks": 12,
        },
        "containers": [
            {"name": "spark-own", "service": "own", "state": "running", "fingerprint": "0123", "managed": True},
            {"name": "spark-fast", "service": "", "state": "exited", "fingerprint": "", "managed": False},
        ],
        "units": [
            {"name": name, "active_state": "active"}
            for name in ("ollama.service", "spark-own.service", "spark-fast.service", "spark-ollama.service")
        ],
        "services": ["own", "gone"],
        "listening": [
            {"port": 8003, "address": "0.0.0.0", "process": "nginx", "unit": "nginx.service", "container": "web"},
            {"port": 8000, "address": "::", "process": "vllm"},
        ],
        "snapshots": {
            "Org/Own-8B": {"commits": ["a" * 40], "refs": {"main": "a" * 40}, "selected": ["b" * 40]},
            "Org/Draft": {"commits": [], "refs": {}},
        },
        "hf_home": {"owner": "root", "closed": {"": ["hub"], "Org/Own-8B": ["config.json"]}},
        "unknown": {"ufw": "ufw did not answer in 30 s"},
        "firewall": True,
        "nft": False,
        "fabric": cluster_fixture.fabric_facts(1),
    },
    "images": {
        "vllm/vllm-openai:v0.24.0-ubuntu2404": {
            "present": True,
            "id": "sha256:" + "1" * 64,
            "other_id": "sha256:" + "3" * 64,
            "repo_digests": ["vllm/vllm-openai@sha256:" + "2" * 64],
            "vllm_version": "0.24.0",
            "architecture": "arm64",
            "os": "linux",
            "size_gib": 20.0,
            "entrypoint_family": "serve",
            "entrypoint": ["vllm", "serve"],
            "env": {"CUDA_VERSION": "13.0"},
            "probe": {
                "vllm_version": "0.24.0",
                "cuda": "13.0",
                "packages": {"torch": "2.9.0+cu130"},
                "ray": "2.60.0",
                "names": ["Qwen3ForCausalLM"],
                "options": ["max-model-len"],
                "ptxas": {"toolkit": "13.0"},
                "nccl": {"library": "libnccl.so.2", "version": "2.28.3"},
                "caches": {"VLLM_CACHE_ROOT": "/root/.cache/vllm"},
            },
        }
    },
}
"""What a host may say of itself, with every key that the plan reads. C(fabric) is no answer: it is what the controller has planned."""

MEMORY: dict[str, Any] = {
    "total_gib": 119.67,
    "os_reserve_gib": 5.2,
    "safety_margin_gib": 2.0,
    "overheads": {"outside_gib": {"low": 1.0, "typical": 2.0, "high": 3.0}},
    "measured": {"mem_available_gib": 110.0, "mem_free_gib": 90.0, "resident": [{"name": "own", "gib": 3.0}]},
    "services": [
        {
            "name": "own",
            "config": _own_model()["config"],
            "quant_config": _own_model()["quant_config"],
            "weights_gib": 7.5,
            "draft_config": _own_model()["draft_config"],
            "draft_weights_gib": 0.5,
            "vllm_version": "0.24.0",
            "args": {
                "gpu-memory-utilization": 0.3,
                "max-model-len": "32k",
                "max-num-seqs": 4,
                "kv-cache-dtype": "fp8",
                "speculative-config": {"method": "eagle3", "model": "Org/Draft", "num_speculative_tokens": 3},
                "limit-mm-per-prompt": {"image": 1},
            },
            "available_kv_bytes": 10**9,
            "overheads": {},
            "share": 1.0,
            "last": 0,
            "exclusive": "",
            "tensors": [{"name": "a", "dtype": "BF16", "shape": [2, 3]}],
        },
        {"name": "sidecar", "memory_gib": 2.0},
    ],
}

LAUNCH: dict[str, Any] = {
    "image": "vllm/vllm-openai:v0.24.0-ubuntu2404",
    "vllm_version": "0.24.0",
    "version_source": "given",
    "model": {"repo": "Org/Own-8B", "config": _own_model()["config"], "quant_config": _own_model()["quant_config"]},
    "args": {"max-model-len": "16k", "speculative-config": '{"method": "mtp"}', "compilation-config": {"level": 3}},
    "env": {"VLLM_USE_V1": "1", "NCCL_DEBUG": "INFO"},
    "gpu": "gb10",
    "driver_version": "580.159.03",
    "nodes": 1,
    "executor": "mp",
    "entrypoint": "serve",
    "docker_args": ["--ipc", "host", "--shm-size", "8g"],
    "packages": ["ray"],
    "ignore": ["SPK101"],
    "catalogue": [
        {"image": "vllm/vllm-openai", "vllm_version": "0.24.0", "defects": [], "features": [], "options": []}
    ],
    "refuse_service_keys": False,
}

IMPORTS: list[tuple[str, str]] = [
    (
        "docker",
        "docker run -d --gpus all --ipc=host -p 8000:8000 -v ~/.cache/huggingface:/root/.cache/huggingface "
        "-e HF_TOKEN=hf_x --name vllm vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3-8B --max-model-len 32k "
        '--speculative-config \'{"method": "ngram"}\' --api-key sk-1\n',
    ),
    (
        "systemd",
        "[Unit]\nDescription=vLLM\n\n[Service]\nEnvironment=HF_HOME=/data\nEnvironmentFile=/etc/vllm.env\n"
        "ExecStartPre=/usr/bin/docker pull vllm/vllm-openai:v0.24.0\n"
        "ExecStart=/usr/bin/docker run --rm --gpus all vllm/vllm-openai:v0.24.0 \\\n  --model Qwen/Qwen3-8B --port 8001\n",
    ),
    (
        "compose",
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.24.0\n    command: [--model, Qwen/Qwen3-8B, --max-num-seqs, '4']\n"
        "    ports: ['8000:8000']\n    environment: {HF_TOKEN: hf_x}\n    volumes: ['/data:/root/.cache/huggingface']\n"
        "    shm_size: 8gb\n    env_file: .env\n    deploy: {resources: {limits: {memory: 64G}}}\n",
    ),
    (
        "eugr",
        "name: x\nmodel: Qwen/Qwen3-8B\ncontainer: vllm-node\ndefaults: {port: 8000, max_model_len: 32768}\n"
        "env: {A: b}\ncommand: |\n  vllm serve {model} --port {port} --max-model-len {max_model_len}\n",
    ),
    (
        "sparkrun",
        "sparkrun_version: 2\nmodel: Qwen/Qwen3-8B\nruntime: vllm\ncontainer: x/y:1\ndefaults: {port: 8000}\n"
        "command: vllm serve {model} --port {port}\n",
    ),
    (
        "vllm_recipe",
        "model: {model_id: Qwen/Qwen3-8B, min_vllm_version: 0.20.0, base_args: [--max-model-len, '32768'], base_env: {A: b}}\n"
        "variants: {default: {precision: bf16, extra_args: []}}\nfeatures: {tools: {args: [--enable-auto-tool-choice]}}\n",
    ),
    ("docker", "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --port 8000\n"),
]

BASES: dict[str, Callable[[], dict[str, Any]]] = {"single": _single, "small": _small, "pair": _pair, "duo": _duo}

# --- where which key is documented --------------------------------------------------------------------------------------

_ARGS = sorted(
    {option for table in (service_input._MEMORY_ARGS,) for option in table} | {"revision", "port", "model", "api-key"}
)


def documented(path: Path) -> list[str]:
    """Names of the keys that may stand in the mapping at a path below a host's variables."""
    table: list[tuple[tuple[str, ...], Any]] = [
        ((), [*VARIABLES, *addons.VARIABLES]),
        (("spark_services", "*"), SERVICE),
        (("spark_cluster",), clustering.CLUSTER_KEYS),
        (("spark_cluster", "fabric"), clustering.FABRIC_KEYS),
        (("spark_cluster", "services", "*"), SERVICE),
        (("spark_defaults",), service_keys.DEFAULTS),
        (("spark_speech", "*"), speech.KEYS),
        (("spark_ollama",), ollama.KEYS),
        (("spark_gateway",), gateway.KEYS),
        (("spark_gateway", "clients", "*"), gateway.CLIENT_KEYS),
        (("spark_gateway", "aliases", "*"), (*gateway.ALIAS_KEYS, *gateway.BACKEND_KEYS)),
        (("spark_gateway", "aliases", "*", "backends", "*"), gateway.BACKEND_KEYS),
        (("spark_clients",), clients.KEYS),
        (("spark_clients", "open_webui"), clients.OPEN_WEBUI_KEYS),
        (("spark_clients", "open_webui", "admin"), options("spark_clients.open_webui.admin")),
        (("spark_clients", "hermes"), clients.HERMES_KEYS),
        (("spark_exporters",), monitoring.EXPORTERS_KEYS),
        (("spark_monitoring",), monitoring.MONITORING_KEYS),
        (("spark_monitoring", "receivers", "*"), monitoring.RECEIVER_KEYS),
        (("spark_monitoring", "targets", "*"), monitoring.TARGET_KEYS),
        (("spark_monitoring", "thresholds"), monitoring.THRESHOLDS),
        (("spark_fleet_monitor",), fleet_monitor.KEYS),
        (("spark_fleet_monitor", "extra", "*"), options("spark_fleet_monitor.extra")),
        (("spark_fleet_monitor", "notify", "*"), fleet_monitor.NOTIFY),
        *((("spark_fleet_monitor", "notify", "*", kind), key.of) for kind, key in fleet_monitor.NOTIFIERS.items()),
        (("spark_watchdog",), watchdog.KEYS),
        (("spark_watchdog", "services", "*"), watchdog.OF_SERVICE),
        (("spark_load_guard",), guard.LOAD_KEYS),
        (("spark_guard",), guard.KEYS),
        (("spark_host_protection",), guard.PROTECTION_KEYS),
        (("spark_gpu_clocks",), guard.CLOCK_KEYS),
        (("spark_power",), power.KEYS),
        (("spark_sidecars", "*"), service_keys.SIDECAR),
        (("spark_overheads",), overheads.OVERHEADS),
        (
            ("spark_image_catalogue", "*"),
            ("image", "vllm_version", "entrypoint", "defects", "features", "options", "arm64"),
        ),
    ]
    for where, keys in table:
        if len(where) == len(path) and all(
            part in ("*", step) if isinstance(step, str) else part == "*" for part, step in zip(where, path)
        ):
            return list(keys)
    last = path[-1] if path else ""
    inner: dict[Any, Any] = {
        "args": _ARGS,
        "model": service_keys.MODEL,
        "image": service_keys.IMAGE,
        "checks": service_keys.CHECKS,
        "overheads": overheads.OVERHEADS,
        "config": CONFIG_FIELDS,
        "draft_config": CONFIG_FIELDS,
        "speculative-config": ("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size"),
    }
    return list(inner.get(last, ()))


CONFIG_FIELDS = (
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "layer_types",
    "sliding_window",
    "full_attention_interval",
    "text_config",
    "vision_config",
    "quantization_config",
    "kv_lora_rank",
    "torch_dtype",
    "dtype",
    "tie_word_embeddings",
    "max_position_embeddings",
    "rope_scaling",
    "rope_parameters",
    "linear_num_key_heads",
    "hybrid_override_pattern",
    "mamba_num_heads",
    "ssm_state_size",
    "num_nextn_predict_layers",
)

# --- changing -----------------------------------------------------------------------------------------------------------


def places(value_: Any, path: Path = ()) -> Iterator[Path]:
    """Every path below a value, the value itself first."""
    yield path
    if isinstance(value_, Mapping):
        for key, item in value_.items():
            yield from places(item, (*path, key))
    elif isinstance(value_, list):
        for index, item in enumerate(value_):
            yield from places(item, (*path, index))


def at(value_: Any, path: Path) -> Any:
    """What stands at a path."""
    for step in path:
        value_ = value_[step]
    return value_


def put(value_: Any, path: Path, new: Any) -> Any:
    """Put something at a path; returns the whole."""
    if not path:
        return new
    at(value_, path[:-1])[path[-1]] = new
    return value_


def change(
    chance: random.Random, body: Any, keys_at: Callable[[Path], list[str]] = lambda _path: []
) -> tuple[Any, str]:
    """Return a value with one changed place, and a description of the change."""
    every = list(places(body))
    # Inner places are many; as many changes are made near the top.
    path = chance.choice(every) if chance.random() < 0.6 else chance.choice([p for p in every if len(p) <= 2])
    present_value = at(body, path)
    done = chance.random()
    if isinstance(present_value, dict) and done < 0.55:
        keys = keys_at(path)
        if keys and chance.random() < 0.8:
            key: Any = chance.choice(keys)
        else:
            key = chance.choice(["unknown", "naem", "🚀", "", "a b", 7, None, True, "x" * 500, "model", "name", "a\nb"])
        new = value(chance)
        present_value[key] = new
        return body, f"{path} + {key!r}: {short(new)}"
    if isinstance(present_value, (dict, list)) and present_value and done < 0.65:
        key = (
            chance.choice(list(present_value))
            if isinstance(present_value, dict)
            else chance.randrange(len(present_value))
        )
        del present_value[key]
        return body, f"{path} - {key!r}"
    if isinstance(present_value, list) and present_value and done < 0.8:
        present_value.append(copy.deepcopy(chance.choice(present_value)))
        return body, f"{path} with an entry twice"
    if isinstance(present_value, list) and done < 0.9:
        new = value(chance)
        present_value.insert(chance.randrange(len(present_value) + 1), new)
        return body, f"{path} + entry {short(new)}"
    new = value(chance)
    if path:
        return put(body, path, new), f"{path}: {short(new)}"
    key = chance.choice(list(body)) if isinstance(body, dict) and body else None
    return (put(body, (key,), new), f"({key!r},): {short(new)}") if key is not None else (body, "nothing")


def short(new: Any) -> str:
    """A value on one line."""
    text = ascii(new) if not _is_huge(new) else "a huge number"
    return text if len(text) < 120 else f"{text[:100]}... ({len(text)} characters)"


def _is_huge(new: Any) -> bool:
    if isinstance(new, int):
        return abs(new) > 10**40
    if isinstance(new, Mapping):
        return any(_is_huge(item) for item in new.values())
    return isinstance(new, list) and any(_is_huge(item) for item in new)


# --- cases --------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One input. C(subject): the part of the engine. C(changes): the differences from the valid example."""

    seed: int
    number: int
    subject: str
    content: Any
    changes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = "\n  ".join(self.changes)
        return f"seed {self.seed}, case {self.number}, {self.subject}:\n  {done}"


# Of twenty cases, so many are of each subject.
SUBJECTS = (
    *["inventory:single"] * 3,
    *["inventory:small"] * 4,
    *["inventory:pair"] * 2,
    *["inventory:duo"] * 4,
    "recipe",
    "recipe",
    "lock",
    "facts",
    "memory",
    "launch",
    "import",
)


def make(seed: int, number: int) -> Case:
    """The case of that number; the same at every call."""
    chance = random.Random(f"{seed}:{number}")
    subject = SUBJECTS[number % len(SUBJECTS)]
    case = Case(seed, number, subject, None)
    times = chance.choice([1, 1, 1, 2, 3])
    if subject.startswith("inventory:"):
        case.content = BASES[subject.partition(":")[2]]()
        for _time in range(times):
            part, host = chance.choice([(p, h) for p in ("hosts", "others") for h in case.content.get(p, {})])
            # A variable of a cluster stands in its group: it changes on all hosts alike.
            case.content[part][host]["vars"], done = change(chance, case.content[part][host]["vars"], documented)
            case.changes.append(f"{host} {done}")
        return case
    if subject == "import":
        form, text = chance.choice(IMPORTS)
        for _time in range(times):
            text, done = change_text(chance, text)
            case.changes.append(done)
        case.content = {"form": chance.choice([form, "auto"]), "text": text}
        return case
    body = copy.deepcopy({"recipe": RECIPE, "lock": LOCK, "facts": FACTS, "memory": MEMORY, "launch": LAUNCH}[subject])
    for _time in range(times):
        body, done = change(chance, body, RECIPE_KEYS.get(subject, lambda _path: []))
        case.changes.append(done)
    case.content = body
    return case


def make_answers(seed: int, number: int) -> Case:
    """The case of that number with answers of hosts: some keys left out or null, a few places changed."""
    chance = random.Random(f"answers:{seed}:{number}")
    case = Case(seed, number, "answers", BASES[chance.choice(["single", "small", "pair", "duo"])]())
    for name, host in case.content["hosts"].items():
        share = chance.choice([0.0, 0.05, 0.3])
        body: Any = {
            key: thinned(chance, copy.deepcopy(answer), preflight.ANSWERS[key], share)
            for key, answer in ANSWERS.items()
        }
        for _time in range(chance.choice([0, 0, 1, 2])):
            body, done = change(chance, body)
            case.changes.append(f"{name} {done}")
        if not isinstance(body, dict):
            body = {"measured": body}
        host.update({key: body.get(key) for key in ANSWERS}, fabric=None)
        case.changes.append(f"{name} says {short(body)}" if len(ascii(body)) < 120 else f"{name} said something")
    return case


def thinned(chance: random.Random, body: Any, form: Any, share: float) -> Any:
    """A value less some of the keys that its form can do without, half of them null instead."""
    form = form.form if isinstance(form, reader.Maybe) else form
    if isinstance(body, list):
        return [thinned(chance, item, form[0], share) for item in body]
    if not isinstance(body, dict) or not form:
        return body
    if str in form:
        return {key: thinned(chance, item, form[str], share) for key, item in body.items()}
    kept_keys = {}
    for key, item in body.items():
        inner = form.get(key, form.get(f"{key}?"))
        if key in form or chance.random() >= share:
            kept_keys[key] = thinned(chance, item, inner, share) if inner is not None else item
        elif chance.random() < 0.5:
            kept_keys[key] = None
    return kept_keys


def make_files(seed: int, number: int) -> Case:
    """The case of that number as files of an inventory, with the text of one of them changed."""
    chance = random.Random(f"files:{seed}:{number}")
    inputs = BASES[chance.choice(list(BASES))]()
    hosts = {**inputs["hosts"], **inputs.get("others", {})}
    groups = {
        name: {"hosts": dict.fromkeys(members)}
        for name, members in (inputs["groups"] or {"sparks": list(hosts)}).items()
    }
    files = {"hosts.yml": yaml.safe_dump({"all": {"hosts": dict.fromkeys(hosts)}, **groups}, sort_keys=False)}
    for name, host in hosts.items():
        files[f"host_vars/{name}.yml"] = yaml.safe_dump(host["vars"], sort_keys=False, allow_unicode=True)
    files["group_vars/all.yml"] = "spark_hf_home: /srv/huggingface\n"
    case = Case(seed, number, "files", files)
    for _time in range(chance.choice([1, 1, 2, 4])):
        name = chance.choice(list(files))
        if chance.random() < 0.3:  # a value of YAML itself
            files[name], done = change_yaml(chance, files[name])
        else:
            files[name], done = change_text(chance, files[name])
        case.changes.append(f"{name}: {done}")
    return case


YAML_WORDS = [
    "7: x",
    "1.5: y",
    "true: z",
    "2026-01-01: d",
    "~: n",
    "? [a]\n: b",
    "spark_services: 7",
    "spark_services: !unsafe '{{ x }}'",
    "spark_hf_home: !vault x",
    "<<: {spark_hf_home: /x}",
    "<<: *nowhere",
    "spark_x: &a [*a]",
    "spark_x: !!binary aGVsbG8=",
    "spark_x: !!set {a, b}",
    "spark_x: !!python/object:os.system id",
    "spark_hf_home: /a\nspark_hf_home: /b",
    "%YAML 1.1",
    "---\na: b\n--- c",
    "spark_services: [{name: a, port: 0o17}]",
    "spark_total_gib: .nan",
    "spark_total_gib: .inf",
    "spark_services: [" + "[" * 60 + "]" * 60 + "]",
    "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(8)) + "spark_services: *a8",
    "\ufeffspark_x: y",
    "spark_x: |\n  a\n b",
    "hosts: {/: , '../x': , '': , 7: , 'a[1:3]': , 'a:22': , '{{ x }}': }",
    "children: {x: 7}",
    "children: {sparks: {children: {sparks: }}}",
    "vars: [a]",
    "plugin: nothing",
]


def change_yaml(chance: random.Random, text: str) -> tuple[str, str]:
    """Put a line of YAML into a text, at the depth of the line after it."""
    lines = text.split("\n")
    place = chance.randrange(len(lines))
    depth = len(lines[place]) - len(lines[place].lstrip(" -"))
    new = chance.choice(YAML_WORDS)
    lines[place:place] = [" " * depth + line for line in new.split("\n")]
    return "\n".join(lines), f"{short(new)} put in before line {place + 1}"


def _of_recipe(path: Path) -> list[str]:
    if not path:
        return list(service_keys.RECIPE)
    if path[0] == "variants" and len(path) == 2:
        return list(service_keys.VARIANT)
    if path[0] == "expect" and len(path) == 2:
        return list(service_keys.EXPECT)
    if path[0] == "images" and len(path) == 2:
        return list(service_keys.IMAGE)
    return documented(path)


def _of_memory(path: Path) -> list[str]:
    if path and path[0] == "services" and len(path) == 2:
        return list(service_input._SERVICE_KEYS)
    return documented(path) if path else list(service_input._TOP_KEYS)


RECIPE_KEYS: dict[str, Callable[[Path], list[str]]] = {"recipe": _of_recipe, "memory": _of_memory, "launch": documented}


def change_text(chance: random.Random, text: str) -> tuple[str, str]:
    """Change a text at one place."""
    place = chance.randrange(len(text) + 1)
    kind = chance.random()
    if kind < 0.3:
        end = min(len(text), place + chance.choice([1, 3, 10, 60]))
        return text[:place] + text[end:], f"characters {place} to {end} left out"
    if kind < 0.8:
        new = chance.choice(
            [*TEXTS, "'", '"', "\\\n", "$", "${X:-", "$(", "{", "}", "[", "&", "*a", "&a ", "- ", ": ", "\r\n"]
        )[:200]
        return text[:place] + new + text[place:], f"{new!a} put in at {place}"
    words = text.split(" ")
    index = chance.randrange(len(words))
    new = chance.choice(TEXTS)[:200]
    words[index] = new
    return " ".join(words), f"word {index} is {new!a}"


def as_ansible_gives(value: Any) -> Any:
    """A value as the controller hands it to the engine: what JSON can carry; raises what that raises."""
    return json.loads(json.dumps(value))
