# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as one HTML page: memory bars, findings, the values that were worked out. Pure functions.

The same plan gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .._common.findings import list_causes
from .._common.tables import gib
from . import fabric_tables, page_parts, picture, speed_text
from .page_parts import HUES

# So many different hosts are shown unfolded, and so many findings of one severity.
MOST_OPEN = picture.MOST_TABLES

HEADS = ("service", "model", "address", "utilisation", "context", "weights", "KV cache", "memory")
FIGURES = HEADS[3:]
SEVERITIES = {"error": "errors", "warning": "warnings", "info": "notes"}


def page(
    plan: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    folders: Sequence[str] = (),
    figures: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    about: str = "",
) -> str:
    """Return the page of a plan with its findings.

    :param folders: of the controller; paths below them are shown relative to them, since the page may be given to others
    :param figures: by cluster the last measurements of its network, of C(fabric_figures.of_clusters)
    """
    findings = [_below(finding, folders) for finding in findings]
    hosts = len(plan["hosts"])
    is_refused = bool(list_causes(findings))
    title = f"{'Refused plan' if is_refused else 'Plan'} of {hosts} DGX Spark{'s'[: hosts != 1]}"
    refusal = '<p class="error"><span class="word">Refused:</span> the plan has errors, so it changes no host.</p>'
    head = [refusal] if is_refused else []
    head += [f'<p class="soft">{escape(about)}</p>'] if about else []
    groups = picture.worst_first(picture.host_groups(plan))
    sections = [_hosts(groups), _findings(findings)]
    if len(groups) > MOST_OPEN:  # the list of hosts is long: problems come before it
        sections.reverse()
    networks = fabric_tables.render_networks(plan, figures or {})
    sections += [networks] if networks else []
    return page_parts.document(title, [*head, _tiles(plan, findings), *sections])


def _below(finding: Mapping[str, Any], folders: Sequence[str]) -> dict[str, Any]:
    """Return a finding with paths relative to the folders, the longest first."""
    shown = dict(finding)
    for folder in sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True):
        for key in ("message", "fix"):
            shown[key] = (shown.get(key) or "").replace(folder.rstrip("/") + "/", "")
    return shown


def _tiles(plan: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    bodies = list(plan["hosts"].values())
    verdicts = Counter(picture.standing(body) for body in bodies)
    severities = picture.count_severities(findings)
    sizes: Counter[str] = Counter()
    for body in bodies:
        for part in body["memory_map"]:
            sizes[part["kind"]] += part["gib"]
    tiles = [
        (str(verdicts[key]), "host" + "s"[: verdicts[key] != 1] + f" {picture.FATES[key][verdicts[key] != 1]}", key)
        for key in picture.VERDICTS
        if verdicts[key]
    ]
    services = {
        ((service.get("cluster") or {}).get("name") or host, service["name"])
        for host, body in plan["hosts"].items()
        for service in body["services"]
    }
    tiles.append((str(len(services)), _counted(len(services), "services"), ""))
    tiles += [
        (str(severities[key]), _counted(severities[key], SEVERITIES[key]), style)
        for key, style in (("error", "fails"), ("warning", "tight"))
        if severities[key]
    ]
    tiles.append((f"{sum(body['total_gib'] for body in bodies):,.0f} GiB", "memory", ""))
    tiles += [(f"{sizes[key]:,.0f} GiB", picture.KINDS[key], "") for key in ("weights", "kv_cache", "free")]
    return page_parts.tiles(tiles)


def _counted(count: int, words: str) -> str:
    """The plural, or the singular for one."""
    return words[:-1] if count == 1 else words


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    """All findings; errors and warnings unfolded, notes folded."""
    groups = picture.same_findings(findings)
    if not groups:
        return ""
    lines = ["<section>", "<h2>Findings</h2>"]
    for severity, words in SEVERITIES.items():
        of_it = [group for group in groups if picture.shown_severity(group.first) == severity]
        if of_it:
            count = sum(len(group.hosts) for group in of_it)
            different = f", {len(of_it)} different" if len(of_it) not in (1, count) else ""
            unfolded = " open" if severity != "info" else ""
            lines.append(
                f'<details class="{severity}"{unfolded}><summary><span class="word">{count} '
                f'{_counted(count, words)}</span>{different}</summary><div class="inside">'
            )
            lines += [_finding(group, unfolded=len(of_it) <= MOST_OPEN) for group in of_it]
            lines.append("</div></details>")
    return "\n".join([*lines, "</section>"])


def _finding(group: picture.SameFinding, unfolded: bool) -> str:
    """One finding: where and what, and unfolded vLLM's own words and the fix."""
    finding = group.first
    head = f'<b>{escape(group.where)}</b> <span class="soft">{escape(finding["rule"])}</span><br>{escape(finding["message"])}'
    lines = [
        f'<details class="finding {escape(finding["severity"])}"{" open" if unfolded else ""}><summary>{head}</summary>'
    ]
    if finding.get("vllm_error"):
        when = picture.when_text(finding)
        lines.append(
            f"<p>vLLM would say{escape(', ' + when if when else '')}:</p><pre>{escape(finding['vllm_error'])}</pre>"
        )
    if finding.get("fix"):
        lines.append(f"<p><b>Fix:</b> {escape(finding['fix'])}</p>")
    if finding.get("details"):
        lines.append(
            f'<details><summary>More</summary><p class="inside soft">{escape(finding["details"])}</p></details>'
        )
    if (link := page_parts.rule_link(finding["rule"])).startswith("<a"):
        lines.append(f'<p class="soft">In the documentation: {link}</p>')
    if group.figures:
        lines.append(f'<p class="soft">The figures are for {escape(group.example)}; the other hosts differ.</p>')
    return "\n".join([*lines, "</details>"])


def _hosts(groups: Sequence[picture.HostGroup]) -> str:
    """The hosts, those that are planned alike as one, the worst first."""
    verdicts = Counter(picture.standing(group.body) for group in groups)
    lines = [
        "<section>",
        "<h2>Memory of each host</h2>",
        page_parts.legend("one colour for each service of a host; sizes in GiB, as planned with the usual overheads"),
    ]
    if len(groups) > MOST_OPEN and len(verdicts) > 1:
        choices = {"all": " checked", **{key: "" for key in picture.VERDICTS if verdicts[key]}}
        labels = [f'<input type="radio" name="only" id="only-{key}"{checked}>{key}' for key, checked in choices.items()]
        lines.append('<div class="pick" role="radiogroup" aria-label="Which hosts">')
        lines += [*(f"<label>{label}</label>" for label in labels), "</div>"]
    lines += [_host(group, unfolded=len(groups) <= MOST_OPEN) for group in groups]
    return "\n".join([*lines, "</section>"])


def _host(group: picture.HostGroup, unfolded: bool) -> str:
    body, standing, over = group.body, picture.standing(group.body), picture.over_gib(group.body)
    several = f"{group.span[:1].upper()}{group.span[1:]}" or f"{len(group.hosts)} hosts alike"
    names = f'<p class="soft">{several}: {escape(", ".join(group.hosts))}</p>' if len(group.hosts) > 1 else ""
    return "\n".join(
        [
            f'<details class="host {standing}"{" open" if unfolded else ""}><summary>',
            f'<span class="name">{escape(group.title)}</span><span class="word">{group.verdict}</span>',
            page_parts.memory_bar(body),
            f'<span class="room{" over" if over else ""}">{group.room}</span>',
            '</summary><div class="inside">',
            f"<p>{body['total_gib']:.2f} GiB; vLLM will request {body['utilization_sum']:.2f} of it; "
            f"{picture.basis_text(body)}.</p>",
            names,
            _services(group),
            "</div></details>",
        ]
    )


def _services(group: picture.HostGroup) -> str:
    """The tables of a host's services, in start order, with their memory and speed; values that were worked out are marked."""
    body = group.body
    if not body["services"]:
        return "<p>No services.</p>"
    hues = picture.service_hues(body["memory_map"], len(HUES))
    rows = [
        _row(service, group, f"s{hues[service['name']]}" if service["name"] in hues else "system")
        for service in body["services"]
    ]
    lines = [page_parts.table(HEADS, rows, FIGURES)]
    if speeds := speed_text.speed_rows(group.timed()):
        heads, *figures = speeds
        rows = [
            page_parts.text_cell(heads[0], escape(row[0])) + "".join(map(page_parts.cell, heads[1:], row[1:]))
            for row in figures
        ]
        lines.append(page_parts.table(heads, rows, heads[1:]))
    if any(service["memory"].get("solved") for service in body["services"]):
        lines.append(
            '<p class="soft"><span class="solved">Marked</span> values were calculated, because the inventory does not set them.</p>'
        )
    lines += [
        f'<p class="soft">{escape(note)}.</p>' for note in picture.label_notes(body["services"], body.get("sets"))
    ]
    advice = speed_text.advice(body["services"])
    if advice:
        items = "".join(f"<li>{escape(line)}</li>" for line in advice)
        lines.append(
            f'<details><summary>{escape(speed_text.ADVICE)}</summary><ul class="inside">{items}</ul></details>'
        )
    return "".join(lines)


def _model(service: Mapping[str, Any]) -> str:
    # A folder of the controller is told by its name: the page may be given to others.
    folder = str(service["model"]["source"] or "").rstrip("/").rpartition("/")[2]
    return str(service["model"]["repo"] or folder or service["recipe"] or "")


def _row(service: Mapping[str, Any], group: picture.HostGroup, hue: str) -> str:
    """The row of a service. group: of its hosts. hue: the class of its colour."""
    ranks = group.ranks(service["name"])
    memory, args = service["memory"], service["args"]
    solved, total = memory.get("solved") or [], memory.get("residency_gib") or {}
    utilization, concurrency = args.get("gpu-memory-utilization"), memory.get("max_concurrency")
    context = args.get("max-model-len") or memory.get("max_model_len")
    spread = f"{gib(total['low'], True)} to {gib(total['high'], True)} GiB" if {"low", "high"} <= set(total) else ""
    image, mark, digest = service["image"]["ref"].partition("@")
    digest = mark + digest[:19]  # sha256 and twelve digits
    # Only the first rank of a cluster answers requests.
    urls = [other["url"] for other in group.services(service["name"]) if other.get("url")]
    address = str(urls[0] if urls else "-" if ranks else service["port"])
    name = f'<span class="dot {hue}"></span>{escape(picture.label(service, ranks))}'

    def size(head: str, text: str, note: str = "") -> str:
        return page_parts.cell(
            head, f"{text} GiB{' each' if len(ranks) > 1 else ''}" if text != "-" else text, note=note
        )

    cells = [
        page_parts.text_cell("service", name),
        page_parts.text_cell(
            "model", escape(_model(service)), f"vLLM {service['vllm_version'] or '?'} in {image}{digest}", "m"
        ),
        page_parts.text_cell("address", escape(address.rpartition("//")[2])),
        page_parts.cell(
            "utilisation", f"{utilization:.2f}" if utilization else "-", "gpu-memory-utilization" in solved
        ),
        page_parts.cell(
            "context",
            f"{context} tokens" if context else "-",
            "max-model-len" in solved,
            "" if concurrency is None else f"{concurrency:.1f} requests at once",
        ),
        size("weights", gib(picture.loaded_bytes(memory))),
        size("KV cache", gib((memory.get("available_kv_bytes") or {}).get("typical"))),
        size("memory", gib(total.get("typical"), already_gib=True), spread),
    ]
    return "".join(cells)
