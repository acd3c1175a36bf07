# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings of the memory budget that are no checks: versions, sources of figures, solved settings and refused services."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .._common.findings import to_sentence
from .answered import ImageRefusal
from .engine import IMAGE
from .fixes import FixCandidate, Report
from .host_memory import unknown_connectors
from .kv_plan import PlanFailure
from .layers import Refusal
from .node_memory import Node, Service
from .releases import COMPARED_MINORS
from .service_input import DEFAULT_SEQS, ServiceInput
from .vllm_errors import gib_text


def note_arguments(report: Report, item: ServiceInput) -> None:
    """Report connectors of unknown size and misspelt arguments."""
    for connector in unknown_connectors(item.args):
        message = f"What {connector} of {item.name} keeps in host memory is unknown and was not counted."
        report.add("approximate", "info", item.name, message)
    for written, near in item.misspelt:
        message = f"{written} of {item.name} is not an option of any known vLLM version and was not counted."
        report.add("argument", "warning", item.name, message, advice=f"Write {near}, if you meant that.")


def describe_minors(minors: Sequence[int]) -> str:
    return f"the releases that know its architecture and options ({_minor_spans(minors)})"


def _minor_spans(minors: Sequence[int]) -> str:
    """Write minor releases as spans: C(0.17, 0.19 to 0.33)."""
    runs: list[list[int]] = []
    for minor in sorted(minors):
        if runs and runs[-1][-1] == minor - 1:
            runs[-1].append(minor)
        else:
            runs.append([minor])
    return ", ".join(f"0.{run[0]}" + (f" to 0.{run[-1]}" if len(run) > 1 else "") for run in runs)


def note_unknown_version(report: Report, name: str, judged: str, refusing: Sequence[tuple[int, str]] = ()) -> None:
    """Report the releases that a service of unknown version was judged by.

    :param judged: how, the second half of a sentence
    :param refusing: minor releases that would refuse the launch, with their texts
    """
    message = f"The vLLM version of {name} is not known; {judged}"
    if refusing:
        message += f" It would not start with vLLM {_minor_spans([minor for minor, _text in refusing])}: {refusing[-1][1].strip()}"
    report.add("version", "warning", name, message, advice="Set vllm_version; in an inventory it is a key of image.")


def note_version(report: Report, service: Service) -> None:
    """Report a version that is unknown, newer than all known ones or not compared, and the notes of the plan."""
    engine, name = service.engine, service.name
    if engine.release is None or engine.plan is None or engine.cache_from == IMAGE:
        return
    text, minor = engine.release.text, engine.release.minor
    if not text:
        judged = f"it is planned as vLLM 0.{minor}, which needs most of {describe_minors(engine.minors)}."
        note_unknown_version(report, name, judged, engine.refusing)
    elif engine.release.is_newer:
        message = f"vLLM {text} is newer than the known versions; {name} is planned as vLLM 0.{minor}."
        advice = "Compare what it reports at its start (spark_info with gather=engines)."
        report.add("version", "warning", name, message, advice=advice)
    elif not engine.release.exact:
        message = (
            f"The KV planning of vLLM {text} was not compared with whole models; it follows the releases with the "
            "first changes. Compared versions: "
            f"{', '.join(f'0.{compared}' for compared in COMPARED_MINORS)}."
        )
        report.add("version", "info", name, message)
    for note in engine.plan.notes:
        report.add("approximate", "info", name, f"{note}.")


def note_source(report: Report, node: Node, service: Service) -> None:
    """Report figures that do not come from arithmetic, and differences between arithmetic and image."""
    engine, name = service.engine, service.name
    if engine.stated is not None:
        stated, requested = gib_text(engine.stated), node.requested(service)
        if requested < engine.stated:
            message = (
                f"{name} has a given memory of {stated} GiB, but with gpu-memory-utilization {service.utilization} it asks for "
                f"{gib_text(requested)} GiB."
            )
            advice = f"Set gpu-memory-utilization of {name} to {node.share(engine.stated)}, or remove it; or correct the given memory."
            report.add("stated", "error", name, message, advice=advice)
        else:
            message = (
                f"{name} is planned with the {stated} GiB that the inventory gives; its memory was not calculated."
            )
            advice = "Check the figures after the start: the proof compares them with the engine's memory."
            report.add("stated", "warning", name, message, advice=advice)
    if engine.disk:
        message = (
            f"The tables of n-grams of {name}, {gib_text(engine.disk)} GiB on this rank, count as on disk "
            f"({engine.table}), not as memory."
        )
        advice = "Check that the image's build has that option, which no release of vLLM has: the proof compares the planned and the loaded weights."
        report.add("table", "warning", name, message, advice=advice)
    if engine.cache_from == IMAGE and engine.release is not None:
        message = (
            f"vLLM {engine.release.text or 'of its image'} itself planned the memory of {name}, without a GPU "
            f"({engine.unknown})."
        )
        report.add("image", "info", name, message, basis="probed")
    if engine.differences:
        used = "image" if engine.cache_from == IMAGE else "calculation"
        message = f"The calculation and the image plan {name} differently: {'; '.join(engine.differences)}. Planned with the figures of the {used}."
        advice = f"Compare what {name} reports at its start (spark_info with gather=engines), and report it to the maintainers of this collection."
        report.add("differs", "warning", name, message, advice=advice, basis="probed")


def note_solved(report: Report, node: Node, service: Service) -> None:
    if not service.solved or not service.is_engine:
        return
    blocks = service.engine.num_blocks(max(0, service.engine.available(node.requested(service), "typical")))
    holds = service.plan.max_concurrency(blocks, service.length) if service.length else 0.0
    values = {
        "gpu-memory-utilization": service.utilization,
        "max-model-len": service.length,
        "max-num-seqs": service.sequences,
    }
    text = ", ".join(f"{key} {values[key]}" for key in service.solved)
    message = f"{text} was calculated for {service.name}; its KV cache then fits {holds:.2f} requests of {service.length} tokens."
    if "max-num-seqs" in service.solved and not service.engine.sequences_auto:
        message += (
            f" vLLM's own max-num-seqs of {DEFAULT_SEQS} needs more blocks for recurrent state than the cache has."
        )
    report.add("solved", "info", service.name, message)


def report_refusal(report: Report, item: ServiceInput, error: Refusal | PlanFailure) -> None:
    """Report a service that cannot be planned: by its image, by this engine or by vLLM."""
    start = f"The memory of {item.name} cannot be planned: "
    if isinstance(error, ImageRefusal):
        message, advice = (
            f"{error.reason}, by its image without a GPU.",
            "Change the setting that vLLM names, or use another image.",
        )
        draft = report.add("refused", "error", item.name, start + message, advice=advice, basis="probed")
        draft.finding = replace(draft.finding, vllm_error=error.text, stage="arguments")
    elif isinstance(error, Refusal):
        fix = error.fix or (
            "correct the field; or set memory_gib of the service, its memory in GiB, or memory with weights_gib and "
            "kv_gib"
        )
        report.add("refused", "error", item.name, f"{start}{error.key}: {error.reason}.", advice=to_sentence(fix))
    else:
        message = f"vLLM would refuse {item.name}: {error.reason or 'its layers cannot have pages of one size'}."
        advice = to_sentence(error.fix or "use vLLM 0.26 or later, or another block-size or kv-cache-dtype")
        draft = report.add("plan", "error", item.name, message, lambda: _drop_options(item), advice, 1)
        draft.finding = replace(draft.finding, vllm_error=str(error), stage=error.stage, seconds=error.seconds)


def _drop_options(item: ServiceInput) -> Iterator[FixCandidate]:
    """Change what vLLM cannot plan: fewer draft tokens, or one option left out."""
    spec = item.args.get("speculative-config") or {}
    for count in range((spec.get("num_speculative_tokens") or 1) - 1, 0, -1):
        yield [{"service": item.name, "args": {"speculative-config": {**spec, "num_speculative_tokens": count}}}]
    for key in ("kv-cache-dtype-skip-layers", "kv-cache-dtype", "block-size", "speculative-config"):
        if key in item.args:
            yield [{"service": item.name, "args": {key: None}}]
