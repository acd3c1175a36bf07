# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The register of findings: every id with its severities. What each means and its usual fix are in C(register_texts.py).

Pages are made of it, and no test passes in which a finding has another id or severity. Rules about launches have a register of
their own, in the package C(_compat); they are known by the form of their ids.
"""

from __future__ import annotations

import re

from .findings import SEVERITIES

_BY_SUBJECT: dict[str, dict[str, str]] = {
    "bench": {
        "warning": "concurrency conditions decode disturbed failed prefill published",
        "info": "cached coarse conditions decode noisy other prefill queued short",
    },
    "bundle": {"warning": "pip"},
    "clients": {
        "error": "context first_account gateway gateway_key gateway_loopback model open_door port tools",
        "warning": "agent_exposed speech_loopback unhashed",
        "info": "persistent_config",
    },
    "cluster": {"error": "address image interface unreached", "warning": "hosts_differ", "info": "executor unreported"},
    "container": {"error": "mount read_only", "warning": "network read_only weaker"},
    "doctor": {
        "error": """
            answer_repeats disk disk_fault driver_mismatch engine_log gpu_fault gpu_memory_refused gpu_silent guard_off
            hub_token memory_low no_answer oom_killed pcie_fault power_stuck unit_absent unit_failed initrd module_key
            unit_stopped unreachable
        """,
        "warning": """
            clock clock_free disk docker_disabled earlyoom engine_log fan gpu_process guard_acted guard_short
            heat hub_token image_moved memory_low no_receipt not_asked reboot receipt_broken receipt_image docker_proxy driver_mixed
            registry_login service_left shm_left swap unit_disabled unit_restarts went_off
        """,
        "info": "cache_stale drafts_under_load gpu_shared images_unused page_cache receipt_old",
    },
    "drift": {
        "error": "by_hand image model_files model_gone not_asked restoring running stopped unreachable",
        "warning": """
            boot file_added file_attributes file_changed file_missing image_moved image_planned launch model_moved
            not_deployed relay unplanned
        """,
        "info": "dgx_os driver kernel plan taken_back unrecorded",
    },
    "exporters": {"error": "no_checksum unreachable", "warning": "no_node_exporter"},
    "fabric": {
        "error": """
            bond collective defined_twice duplicate_address foreign_file given_differ line link_local miscabled mtu_differs no_address
            no_connectx no_gid no_link no_meeting no_subnet not_joined other_address overlap own_cable ping ping_mtu rdma_down
            ring_cabling ring_order same_subnet shared_file subnets_differ
        """,
        "warning": """
            cable_slow cabling_unknown collective_slow collective_unknown half mtu_small no_relay probe_failed several_addresses slow slow_link slow_pcie
            interface_down volatile
        """,
        "info": "assumed collective_unknown no_probe others second_cable unequal_cages",
    },
    "fast_path": {
        "error": "acceptance attention_backend linear_kernel moe_backend",
        "warning": """
            acceptance async_scheduling attention_backend cuda_graphs draft emulation fp4_weight_only gdn_prefill kv_cache_dtype
            linear_kernel max_num_batched_tokens moe_backend prefix_caching
        """,
        "info": "acceptance untuned_fp8 untuned_moe",
    },
    "file": {"error": "missing"},
    "firewall": {"error": "address ray", "warning": "everybody off shuts_out", "info": "address"},
    "fleet_monitor": {
        "error": "nothing",
        "warning": "notify page_open plain unknown unreachable",
        "info": "own_host",
    },
    "gateway": {
        "error": """
            alias_shadows backend_on_loopback fallback_loop no_master_key nothing_to_serve port_taken same_key
            unknown_alias unknown_endpoint unknown_model
        """,
        "warning": "backend_on_loopback lengths_differ several_models timeout_short",
        "info": "prefill_assumed",
    },
    "host": {
        "error": """
            container_foreign disk docker gpu kernel_handover nft not_known nvidia_runtime port_taken port_used unit_foreign weights_closed
        """,
        "warning": "driver driver_pair fragmented kernel kernel_handover machine not_known",
    },
    "image": {"error": "architecture", "warning": "ptxas_new ptxas_old too_old version", "info": "alternative built"},
    "lock": {
        "error": "image_other moving",
        "warning": "by_tag image model moved recipe unlisted",
        "info": "by_tag",
    },
    "memory": {
        "error": """
            align_block auto_fit free_at_restart free_at_start host_buffer kernel_block load no_cache_memory node one_request
            plan refused state_blocks stated utilization_sum
        """,
        "warning": """
            argument concurrency differs free_at_restart free_at_start host_buffer load no_cache_memory node one_request
            refused state_blocks stated table utilization_bound version
        """,
        "info": """
            approximate free_at_restart free_at_start image load no_cache_memory node one_request page_cache solved
            state_blocks version
        """,
    },
    "model": {"error": "missing", "info": "moving_revision"},
    "monitoring": {
        "error": "receivers_unused two_paths",
        "warning": "gateway_unreachable no_exporters nothing open unreachable",
        "info": "nobody_told",
    },
    "ollama": {
        "error": "name port port_taken",
        "warning": "keep_alive memory moving_tag open unreachable",
        "info": "download",
    },
    "on_demand": {"warning": "sets"},
    "pip": {"warning": "unhashed"},
    "placement": {"warning": "over_committed", "info": "no_replica"},
    "recipe": {"warning": "not_taken_over"},
    "ray": {"warning": "unhashed"},
    "receipt": {
        "warning": "decode_tokens_per_second kv_cache_tokens residency_gib start_seconds ttft_seconds warmup_seconds",
        "info": "drift",
    },
    "residency": {
        "warning": "inside kv_cache_tokens max_concurrency outside residency system weights",
        "info": "inside kv_cache_tokens max_concurrency outside system weights",
    },
    "secret": {"error": "missing unusable", "warning": "missing", "info": "missing"},
    "service": {"error": "open", "warning": "local paths", "info": "local paths"},
    "speech": {
        "error": "name port port_taken",
        "warning": "gpu moving_tag open unreachable",
        "info": "download",
    },
    "start": {"warning": "compiled_again load_slower", "info": "graphs load_format took waited"},
    "update": {
        "error": "driver_branch driver_closed driver_firmware driver_mixed initrd kernel kernel_option package removes",
        "warning": "driver_mixed driver_pair driver_unknown firmware_unknown kernel",
    },
    "guard": {"warning": "floor unknown_service"},
    "watchdog": {"warning": "unknown_service", "info": "max_restarts"},
}


def _read() -> dict[str, tuple[str, ...]]:
    """Turn the lists of names into C({id: severities}), the worst severity of each first."""
    found: dict[str, tuple[str, ...]] = {}
    for severity in SEVERITIES:
        for subject, names in _BY_SUBJECT.items():
            for name in names.get(severity, "").split():
                rule = f"{subject}.{name}"
                found[rule] = (*found.get(rule, ()), severity)
    return found


REGISTER = _read()
"""Every id but those of rules about launches: its severities, the worst first."""

RULE = re.compile(r"SPK[0-9A-Z]\d\d")
"""The ids of rules about launches, units and docker commands."""


def known(rule: str) -> bool:
    """Tell whether C(rule) may be the id of a finding."""
    return rule in REGISTER or RULE.fullmatch(rule) is not None
