# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Memory of vLLM on a DGX Spark that does not follow from a config: fitted figures, each with its source."""

from __future__ import annotations

LEVELS = ("low", "typical", "high")

# What cannot be derived from a config: (low, typical, high). Fitted on published DGX Spark figures:
#   A  Qwen3-4B at 0.10: 11.97 requested, 7.49 weights, 3.5 left for the cache, 13.8 GiB held (vLLM 0.19, batch 2048)
#   B  Qwen3.6-35B NVFP4 with MTP at 0.85: 101.72 requested, 21.94 loaded, 76.49 left for the cache (batch 8192, vision)
#   C  Qwen3-Next-80B FP8 at 0.80 and 0.85: 95.74 and 101.72 requested, 93.5 and 101.5 GiB held
#   D  eugr/spark-vllm-docker#388: 5.4 GiB between weights plus cache and the requested memory
#   E  113.69 GiB free for vLLM of 116.43 available on the host; 29.83 of 32.40 (llamastash#81)
#   H  16 launches of vLLM 0.26.0 on an H100, five models (tests/unit/plugins/fixtures/gpu_rows.json, tests/oracle/memory_tables.md)
OVERHEADS: dict[str, tuple[float, float, float]] = {
    "inside_base_gib": (0.15, 0.25, 1.3),  # A and H: CUDA libraries, NCCL, what the allocator rounds up; high: D
    "inside_peak_share": (
        0.8,
        1.0,
        1.3,
    ),  # H: of what profile_run.py works out for activations, sampling and compilation
    "inside_weights_share": (0.0, 0.0, 0.025),  # repacking and workspaces may grow with the weights; high: D
    "inside_vision_gib": (0.4, 1.62, 2.4),  # B: the encoder's peak at profiling
    "inside_drafter_gib": (0.0, 0.05, 0.6),  # H: the drafter's own activations
    "graphs_share": (0.5, 1.0, 2.0),  # H: of what profile_run.py works out for CUDA graphs
    "load_gib": (0.0, 1.35, 2.5),  # H: repacking while quantised weights load, 0.9 to 2.4 GiB over what stays
    # H: of all experts of one layer, whose reordered copies exist together with the loaded ones: 2.4 FP8, 2.1 MXFP4 (Marlin)
    "load_share": (0.0, 2.1, 2.4),
    "kept_share": (0.0, 0.5, 1.0),  # A against C: the part of all this that stays allocated after the start
    "outside_gib": (1.2, 1.7, 2.4),  # A: CUDA context and host memory outside the requested memory
    # I: vLLM 0.32.0 for CPUs with two API servers: 0.40 GiB private, 0.44 to 0.45 with its share of shared pages, 0.60 resident for the parent
    # and for each API server; Ray on two nodes: 0.26 to 0.76 GiB, and its object store of 1 GiB
    "process_gib": (0.4, 0.6, 1.0),
    "ray_gib": (0.26, 0.46, 1.76),
    "snapshot_gib": (0.0, 2.65, 2.7),  # E: gone between the host's MemAvailable and vLLM's first look at it
    # Seconds from a start to each check. Anchors:
    #   F  vLLM 0.32 in a container, little load: a wrong tool parser is refused after 13 s, a model of a few MB serves after 17 s
    #   G  published Spark starts: Gemma-4-31B NVFP4 (30.6 GiB) loaded in 84 s and up after 90; models of 120B (73 GiB) 10 to 15
    #      minutes; 57.9 GiB a node of Qwen3-235B about 15 minutes; a 27B with a drafter (20 GiB and more) up after 5 to 7
    "arguments_seconds": (5.0, 15.0, 30.0),  # F: from the container's start to the first look at the arguments
    "device_seconds": (3.0, 15.0, 30.0),  # F: from there until the engine has its device
    "load_gib_per_second": (0.064, 0.1, 0.36),  # G: 57.9 GiB in 15 min, 73 GiB in 12, 30.6 GiB in 84 s
    "profile_seconds": (5.0, 120.0, 240.0),  # G: torch.compile, autotuning, profiling run; low: compile cache is warm
    "graphs_seconds": (1.0, 5.0, 20.0),  # G: from the planned cache to the capture of graphs
}
