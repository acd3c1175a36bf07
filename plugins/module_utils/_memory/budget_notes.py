# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings of the memory budget that are no checks: versions, sources of figures, solved settings and refused services.

No I/O, no Ansible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .._common.findings import Finding
from .answered import ImageRefusal
from .engine import IMAGE
from .fixes import Draft, FixCandidate, Report, to_sentence
from .geometry import Refusal
from .host_memory import unknown_connectors
from .kv_plan import PlanFailure
from .node_memory import Node, Service
from .releases import COMPARED_MINORS
from .service_input import DEFAULT_SEQS, ServiceInput
from .vllm_errors import gib_text


def note_arguments(report: Report, item: ServiceInput) -> None:
    for connector in unknown_connectors(item.args):
        message = f"What {connector} of {item.name} keeps in host memory is not known, and was not counted."
        finding = Finding(rule="memory.approximate", severity="info", service=item.name, message=message)
        report.drafts.append(Draft(finding))
    for written, near in item.misspelt:
        finding = Finding(
            rule="memory.argument",
            severity="warning",
            service=item.name,
            message=f"{written} of {item.name} is no option of any vLLM that is known and was not counted.",
        )
        report.drafts.append(Draft(finding, advice=f"Write {near}, if that is what was meant."))


def judged_by(minors: Sequence[int]) -> str:
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
    """Say what a service of unknown version was judged by.

    :param report: gets the finding
    :param name: of the service
    :param judged: how, the second half of a sentence
    :param refusing: minor releases that would refuse the launch, with their texts
    """
    message = f"The vLLM version of {name} is not known; {judged}"
    if refusing:
        message += f" It would not start with vLLM {_minor_spans([minor for minor, _text in refusing])}: {refusing[-1][1].strip()}"
    finding = Finding(rule="memory.version", severity="warning", service=name, message=message)
    report.drafts.append(Draft(finding, advice="Give vllm_version; in an inventory it stands below image."))


def note_version(report: Report, service: Service) -> None:
    engine = service.engine
    if engine.release is None or engine.plan is None or engine.cache_from == IMAGE:
        return
    text = engine.release.text
    if not text:
        note_unknown_version(
            report,
            service.name,
            f"it is planned as vLLM 0.{engine.release.minor}, which needs most of {judged_by(engine.minors)}.",
            engine.refusing,
        )
    elif engine.release.is_newer:
        finding = Finding(
            rule="memory.version",
            severity="warning",
            service=service.name,
            message=f"vLLM {text} is newer than what is known here; {service.name} is planned as vLLM 0.{engine.release.minor}.",
        )
        report.drafts.append(
            Draft(finding, advice="Compare what it reports at its start (spark_info with gather=engines).")
        )
    elif not engine.release.exact:
        finding = Finding(
            rule="memory.version",
            severity="info",
            service=service.name,
            message=f"The KV planning of vLLM {text} was not compared with whole models; it follows the releases in which changes "
            f"were first seen. Compared are {', '.join(f'0.{minor}' for minor in COMPARED_MINORS)}.",
        )
        report.drafts.append(Draft(finding))
    for note in engine.plan.notes:
        finding = Finding(rule="memory.approximate", severity="info", service=service.name, message=f"{note}.")
        report.drafts.append(Draft(finding))


def note_source(report: Report, node: Node, service: Service) -> None:
    """Report figures that do not come from arithmetic, and differences between arithmetic and image."""
    engine, name = service.engine, service.name
    if engine.stated is not None:
        requested, stated = node.requested(service), engine.stated
        finding = Finding(
            rule="memory.stated",
            severity="warning",
            service=name,
            message=f"{name} is planned with the {gib_text(stated)} GiB that the inventory states; nothing of it was worked out.",
        )
        advice = "Check the figures after the start: the proof compares them with what the engine takes."
        if requested < stated:
            finding = replace(
                finding,
                severity="error",
                message=f"{name} is stated to take {gib_text(stated)} GiB, but with gpu-memory-utilization {service.utilization} it asks "
                f"for {gib_text(requested)} GiB.",
            )
            advice = f"Set gpu-memory-utilization of {name} to {node.share(stated)}, or leave it out; or correct the stated memory."
        report.drafts.append(Draft(finding, advice=advice))
    if engine.disk:
        finding = Finding(
            rule="memory.table",
            severity="warning",
            service=name,
            message=f"The tables of n-grams of {name}, {gib_text(engine.disk)} GiB on this rank, are taken to stay on disk ({engine.table}); none "
            "of it counts as memory.",
        )
        advice = "See that the image's build has that option, which no release of vLLM has: the proof compares the weights with what was loaded."
        report.drafts.append(Draft(finding, advice=advice))
    if engine.cache_from == IMAGE and engine.release is not None:
        finding = Finding(
            rule="memory.image",
            severity="info",
            service=name,
            basis="probed",
            message=f"The memory of {name} is what vLLM {engine.release.text or 'of its image'} itself plans, without a GPU, as the image was "
            f"asked ({engine.unknown}).",
        )
        report.drafts.append(Draft(finding))
    if engine.differences:
        used = "image" if engine.cache_from == IMAGE else "arithmetic"
        finding = Finding(
            rule="memory.differs",
            severity="warning",
            service=name,
            basis="probed",
            message=f"Arithmetic and image plan {name} differently: {'; '.join(engine.differences)}. Planned with those of the {used}.",
        )
        advice = f"Compare what {name} reports at its start (spark_info with gather=engines), and tell this collection's maintainers."
        report.drafts.append(Draft(finding, advice=advice))


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
    message = f"{text} was worked out for {service.name}; its KV cache then holds {holds:.2f} requests of {service.length} tokens."
    if "max-num-seqs" in service.solved and not service.engine.sequences_auto:
        message += f" vLLM's own max-num-seqs of {DEFAULT_SEQS} needs more blocks for the state of requests than the cache has."
    finding = Finding(rule="memory.solved", severity="info", service=service.name, message=message)
    report.drafts.append(Draft(finding))


def report_refusal(item: ServiceInput, error: Refusal | PlanFailure) -> Draft:
    if isinstance(error, ImageRefusal):
        finding = Finding(
            rule="memory.refused",
            severity="error",
            service=item.name,
            basis="probed",
            message=f"The memory of {item.name} cannot be planned: {error.reason}, as its image says without a GPU.",
            vllm_error=error.text,
            stage="arguments",
        )
        return Draft(finding, advice="Change what vLLM names, or take another image.")
    if isinstance(error, Refusal):
        finding = Finding(
            rule="memory.refused",
            severity="error",
            service=item.name,
            message=f"The memory of {item.name} cannot be planned: {error.key}: {error.reason}.",
        )
        fix = error.fix or (
            "correct the field; or give the service memory_gib, what it may ask for in GiB, or memory with weights_gib and kv_gib: it is "
            "planned with that"
        )
        return Draft(finding, advice=to_sentence(fix))
    finding = Finding(
        rule="memory.plan",
        severity="error",
        service=item.name,
        message=f"vLLM would refuse {item.name}: {error.reason or 'its layers cannot have pages of one size'}.",
        vllm_error=str(error),
        stage=error.stage,
        seconds=error.seconds,
    )
    advice = to_sentence(error.fix or "use vLLM 0.26 or later, or another block-size or kv-cache-dtype")
    return Draft(finding, lambda: _drop_options(item), advice, most=1)


def _drop_options(item: ServiceInput) -> Iterator[FixCandidate]:
    """Change what vLLM cannot plan: fewer draft tokens, or one option left out."""
    spec = item.args.get("speculative-config") or {}
    for count in range((spec.get("num_speculative_tokens") or 1) - 1, 0, -1):
        yield [{"service": item.name, "args": {"speculative-config": {**spec, "num_speculative_tokens": count}}}]
    for key in ("kv-cache-dtype-skip-layers", "kv-cache-dtype", "block-size", "speculative-config"):
        if key in item.args:
            yield [{"service": item.name, "args": {key: None}}]
