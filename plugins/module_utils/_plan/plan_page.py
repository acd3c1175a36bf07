# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as one HTML page: memory bars, findings, the values that were worked out. Pure functions.

The page needs nothing but itself: no script, no font, no address. Its policy forbids a browser to load anything. The same plan
gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .._common.tables import gib
from . import fabric_picture, picture

# Colours of the services of a host, told apart also by people who see fewer of them (Okabe and Ito, "Color Universal
# Design", 2008; without its yellow, which is hard to see on white).
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
# A part narrower than this share of the bar has no text in it.
NARROWEST_TEXT = 0.11
# So many different hosts are shown unfolded, and so many findings of one severity.
MOST_OPEN = picture.MOST_TABLES

STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5b6675;--line:#d9dee6;--free:#eef1f5;
--system:#9aa4b2;--fails:#b3261e;--tight:#8a5a00;--fits:#1a7340;--info:#34618e;--bar:1.7rem}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1b212a;--ink:#e6eaf0;--soft:#9ba7b6;--line:#323b48;--free:#252d38;
--system:#5d6878;--fails:#ff8a80;--tight:#f2c14e;--fits:#6fd39a;--info:#8fbcf0}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:1.5rem 1.25rem 3rem}
h1{font-size:1.45rem;margin:0 0 1rem}h2{font-size:1.1rem;margin:2rem 0 .6rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:.5rem;margin:0;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.4rem .8rem;min-width:5rem}
.tiles b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.2rem 0 .8rem;padding:0;list-style:none;color:var(--soft);font-size:.87rem}
.legend i{display:inline-block;width:1.5rem;height:.8rem;border-radius:.15rem;margin-right:.4rem;vertical-align:-.05rem}
details,.open{background:var(--card);border:1px solid var(--line);border-radius:.5rem;margin:.5rem 0}
summary{padding:.5rem .9rem;cursor:pointer}
.inside{padding:0 .9rem .8rem}
.host>summary{display:grid;grid-template-columns:minmax(6rem,12rem) 2.8rem 1fr 7.5rem;gap:.8rem;align-items:center;list-style:none}
.host>summary::-webkit-details-marker{display:none}
.host>summary .name{font-weight:600;overflow-wrap:anywhere}
.host>summary .name::before{content:"\\25B8";color:var(--soft);margin-right:.45rem;display:inline-block}
.host[open]>summary .name::before{transform:rotate(90deg)}
.room{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.word{font-weight:600}.fails .word,.word.fails,.room.over{color:var(--fails)}.tight .word,.word.tight{color:var(--tight)}
.fits .word,.word.fits{color:var(--fits)}.host.fails{border-left:.3rem solid var(--fails)}.host.tight{border-left:.3rem solid var(--tight)}
.host.fits{border-left:.3rem solid var(--line)}
.bar{position:relative;display:flex;height:var(--bar);border-radius:.3rem;overflow:hidden;background:var(--free)}
.bar span{flex:none;overflow:hidden;white-space:nowrap;font-size:.76rem;line-height:var(--bar);text-align:center;color:#fff;text-shadow:0 0 2px #000a;
border-right:1px solid var(--card)}
.bar span:last-of-type{border-right:0}
HUES
.weights{background:var(--c)}
.bar .kv_cache,.bar .free{color:var(--ink);text-shadow:none}
.kv_cache{background:color-mix(in srgb,var(--c) 62%,var(--card))}
.overhead{background:repeating-linear-gradient(135deg,var(--c) 0 2px,color-mix(in srgb,var(--c) 30%,var(--card)) 2px 6px)}
.plain{background:color-mix(in srgb,var(--c) 80%,var(--ink))}
.system{background:var(--system)}
.free{background:var(--free)}
.over-mark{position:absolute;top:0;bottom:0;right:0;border-left:3px solid var(--fails);
background:repeating-linear-gradient(45deg,#b3261ed9 0 5px,#b3261e80 5px 10px)}
.over-key{background:repeating-linear-gradient(45deg,#b3261ed9 0 5px,#b3261e80 5px 10px)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:.7rem 0 .3rem;font-size:.87rem}
th{font-weight:600;color:var(--soft);text-align:left;border-bottom:1px solid var(--line)}
th,td{padding:.25rem .7rem .25rem 0;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td:not(.n){overflow-wrap:anywhere}td:first-child,.v{min-width:4.5rem}
td small{display:block;color:var(--soft)}
.dot{display:inline-block;width:.7rem;height:.7rem;border-radius:.15rem;background:var(--c);margin-right:.45rem}
.solved{color:var(--info);font-weight:600}
.finding{border:0;border-left:.3rem solid var(--line);border-radius:0;padding:.1rem 0 .1rem .8rem;margin:.8rem 0;overflow-wrap:anywhere}
.finding>summary{padding:0}
.finding.error{border-color:var(--fails)}.finding.warning{border-color:var(--tight)}.finding.info{border-color:var(--info)}
.error .word{color:var(--fails)}.warning .word{color:var(--tight)}.info .word{color:var(--info)}
.finding pre{margin:.3rem 0;padding:.5rem .7rem;background:var(--bg);border:1px solid var(--line);border-radius:.3rem;
white-space:pre-wrap;overflow-wrap:anywhere;font:.83rem/1.4 ui-monospace,"DejaVu Sans Mono",monospace}
.pick{margin:.2rem 0 .8rem;display:flex;flex-wrap:wrap;gap:.4rem}
.pick label{border:1px solid var(--line);background:var(--card);border-radius:1rem;padding:.1rem .8rem;cursor:pointer}
.pick input{margin:0 .35rem 0 0;accent-color:var(--info)}
section:has(#only-fails:checked) .host:not(.fails),section:has(#only-tight:checked) .host:not(.tight),
section:has(#only-fits:checked) .host:not(.fits){display:none}
@media(max-width:760px){.host>summary{grid-template-columns:1fr auto}.host>summary .bar{grid-column:1/-1;grid-row:2}
.host>summary .word{text-align:right}.host>summary .room{grid-column:1/-1;text-align:left}
table,tbody,tr,td{display:block}thead{display:none}tr{border-bottom:1px solid var(--line);padding:.4rem 0}
td,td.n{display:flex;justify-content:space-between;gap:1rem;padding:.1rem 0;text-align:right}
td::before{content:attr(data-of);color:var(--soft);text-align:left}td small{display:inline}}
@media print{.pick{display:none}.bar span,.legend i,.dot,.over-mark{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""".strip().replace("HUES", "".join(f".s{index}{{--c:{hue}}}" for index, hue in enumerate(HUES)))

HEADS = (
    "service",
    "model",
    "vLLM",
    "port",
    "utilisation",
    "context",
    "requests",
    "weights",
    "KV cache",
    "holds",
    "headroom",
)
"""Columns of the table of services."""
FIGURES = HEADS[3:]
"""Those that hold figures."""
SEVERITIES = {"error": "errors", "warning": "warnings", "info": "notes"}


def page(plan: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], folders: Sequence[str] = ()) -> str:
    """Return the page of a plan with its findings.

    folders: of the controller; a path below one of them is told as it is below it, since the page may be given to others.
    """
    findings = [_below(finding, folders) for finding in findings]
    hosts = len(plan["hosts"])
    title = f"Plan of {hosts} DGX Spark{'s'[: hosts != 1]}"
    groups = picture.worst_first(picture.host_groups(plan))
    sections = [_hosts(groups), _findings(findings)]
    if len(groups) > MOST_OPEN:  # the list of hosts is long: what is wrong comes before it
        sections.reverse()
    cabled = fabric_picture.networks(plan)
    sections += [cabled] if cabled else []
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>\n{STYLE}\n{fabric_picture.STYLE}\n</style>" if cabled else f"<style>\n{STYLE}\n</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>{title}</h1>",
            _tiles(plan, findings),
            *sections,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _below(finding: Mapping[str, Any], folders: Sequence[str]) -> dict[str, Any]:
    """A finding whose paths are told as they are below the folders, the longest first."""
    told = dict(finding)
    for folder in sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True):
        for key in ("message", "fix"):
            told[key] = (told.get(key) or "").replace(folder.rstrip("/") + "/", "")
    return told


def _tiles(plan: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """The plan in a few figures."""
    bodies = list(plan["hosts"].values())
    verdicts = Counter(picture.standing(body) for body in bodies)
    severities = Counter(finding["severity"] for finding in findings)
    sizes: Counter[str] = Counter()
    for body in bodies:
        for part in body["memory_map"]:
            sizes[part["kind"]] += part["gib"]
    tiles = [
        (str(verdicts[key]), "host" + "s"[: verdicts[key] != 1] + f" {_FATE[key][verdicts[key] != 1]}", key)
        for key in picture.VERDICTS
        if verdicts[key]
    ]
    services = sum(len(body["services"]) for body in bodies)
    tiles.append((str(services), _of(services, "services"), ""))
    tiles += [
        (str(severities[key]), _of(severities[key], SEVERITIES[key]), style)
        for key, style in (("error", "fails"), ("warning", "tight"))
        if severities[key]
    ]
    tiles.append((f"{sum(body['total_gib'] for body in bodies):,.0f} GiB", "memory", ""))
    tiles += [(f"{sizes[key]:,.0f} GiB", picture.KINDS[key], "") for key in ("weights", "kv_cache", "free")]
    items = (f'<li><b class="word {style}">{figure}</b> {words}</li>' for figure, words, style in tiles)
    return f'<ul class="tiles">{"".join(items)}</ul>'


def _of(count: int, words: str) -> str:
    """The plural, or the singular for one."""
    return words[:-1] if count == 1 else words


_FATE = {"fails": ("fails", "fail"), "tight": ("is tight", "are tight"), "fits": ("fits", "fit")}


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    """All findings; errors and warnings unfolded, notes folded."""
    groups = picture.same_findings(findings)
    if not groups:
        return ""
    lines = ["<section>", "<h2>Findings</h2>"]
    for severity, words in SEVERITIES.items():
        of_it = [group for group in groups if group.first["severity"] == severity]
        if of_it:
            count = sum(len(group.hosts) for group in of_it)
            different = f", {len(of_it)} different" if len(of_it) not in (1, count) else ""
            unfolded = " open" if severity != "info" else ""
            lines.append(
                f'<details class="{severity}"{unfolded}><summary><span class="word">{count} '
                f'{_of(count, words)}</span>{different}</summary><div class="inside">'
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
    if group.figures:
        lines.append(
            f'<p class="soft">The figures are those of {escape(group.example)}; the others have their own.</p>'
        )
    return "\n".join([*lines, "</details>"])


def _hosts(groups: Sequence[picture.HostGroup]) -> str:
    """The hosts, those that are planned alike as one, the worst first."""
    verdicts = Counter(picture.standing(group.body) for group in groups)
    lines = ["<section>", "<h2>Memory of each host</h2>", _legend()]
    if len(groups) > MOST_OPEN and len(verdicts) > 1:
        lines.append('<div class="pick" role="radiogroup" aria-label="Which hosts">')
        lines.append('<label><input type="radio" name="only" id="only-all" checked>all</label>')
        lines += [
            f'<label><input type="radio" name="only" id="only-{key}">{key}</label>'
            for key in picture.VERDICTS
            if verdicts[key]
        ]
        lines.append("</div>")
    lines += [_host(group, unfolded=len(groups) <= MOST_OPEN) for group in groups]
    return "\n".join([*lines, "</section>"])


def _legend() -> str:
    items = [f'<li><i class="s0 {kind}"></i>{words}</li>' for kind, words in picture.KINDS.items()]
    items.append('<li><i class="over-key"></i>over capacity</li>')
    items.append("<li>one colour for each service of a host; sizes in GiB, as planned with the usual overheads</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _host(group: picture.HostGroup, unfolded: bool) -> str:
    body, standing, over = group.body, picture.standing(group.body), picture.over_gib(group.body)
    names = (
        f'<p class="soft">{len(group.hosts)} hosts alike: {escape(", ".join(group.hosts))}</p>'
        if len(group.hosts) > 1
        else ""
    )
    return "\n".join(
        [
            f'<details class="host {standing}"{" open" if unfolded else ""}><summary>',
            f'<span class="name">{escape(group.title)}</span><span class="word">{standing}</span>',
            _bar(body),
            f'<span class="room{" over" if over else ""}">{picture.room_text(body)}</span>',
            '</summary><div class="inside">',
            f"<p>{body['total_gib']:.2f} GiB; vLLM is to ask for {body['utilization_sum']:.2f} of it; {picture.basis_text(body)}.</p>",
            names,
            _services(body),
            "</div></details>",
        ]
    )


def _bar(body: Mapping[str, Any]) -> str:
    """The stacked bar of a host; its text for screen readers lists what the colours show."""
    parts = [part for part in body["memory_map"] if part["gib"] > 0]
    hues = picture.service_hues(parts, len(HUES))
    scale = max(body["total_gib"], sum(part["gib"] for part in parts)) or 1.0
    spans = []
    for part in parts:
        share = part["gib"] / scale
        text = f"{part['label']} {picture.size_text(part['gib'])}"
        kind = part["kind"] if part["kind"] in picture.KINDS else "plain"
        hue = f"s{hues[part['service']]} " if part["service"] else ""
        # About 7 px a letter in a bar of 600 px: a text that would be cut is left to the tooltip.
        shown = text if share >= max(NARROWEST_TEXT, 0.012 * len(text)) else ""
        spans.append(
            f'<span class="{hue}{kind}" style="width:{100 * share:.3f}%" title="{escape(text)} GiB">{escape(shown)}</span>'
        )
    over = picture.over_gib(body)
    if over:
        spans.append(
            f'<div class="over-mark" style="width:{100 * over / scale:.3f}%" title="{over:.1f} GiB over capacity"></div>'
        )
    told = ", ".join(f"{part['label']} {picture.size_text(part['gib'])} GiB" for part in parts)
    told += f"; {picture.room_text(body)} of {body['total_gib']:.1f} GiB"
    return f'<div class="bar" role="img" aria-label="{escape(told)}">{"".join(spans)}</div>'


def _services(body: Mapping[str, Any]) -> str:
    """The table of a host's services, in start order; values that were worked out are marked."""
    if not body["services"]:
        return "<p>No services.</p>"
    hues = picture.service_hues(body["memory_map"], len(HUES))
    lines = ['<div class="scroll"><table><thead><tr>']
    lines += [f'<th scope="col"{" class=n" if head in FIGURES else ""}>{head}</th>' for head in HEADS]
    lines.append("</tr></thead><tbody>")
    lines += [
        _row(service, f"s{hues[service['name']]}" if service["name"] in hues else "system")
        for service in body["services"]
    ]
    lines.append("</tbody></table></div>")
    if any(service["memory"].get("solved") for service in body["services"]):
        lines.append(
            '<p class="soft"><span class="solved">Marked</span> values were worked out, because the inventory leaves them open.</p>'
        )
    lines += [f'<p class="soft">{escape(note)}.</p>' for note in picture.label_notes(body["services"])]
    return "".join(lines)


def _row(service: Mapping[str, Any], hue: str) -> str:
    """The row of a service. hue: the class of its colour."""
    memory = service["memory"]
    solved = memory.get("solved") or []
    args, holds = service["args"], memory.get("residency_gib") or {}
    utilization, concurrency = args.get("gpu-memory-utilization"), memory.get("max_concurrency")
    cells = [
        _cell("utilisation", f"{utilization:.2f}" if utilization else "-", "gpu-memory-utilization" in solved),
        _cell(
            "context",
            str(args.get("max-model-len") or memory.get("max_model_len") or "-"),
            "max-model-len" in solved,
        ),
        _cell("requests", f"{concurrency:.1f}" if concurrency is not None else "-"),
        _cell("weights", gib(memory.get("weights_bytes"))),
        _cell("KV cache", gib((memory.get("available_kv_bytes") or {}).get("typical"))),
        _cell(
            "holds",
            gib(holds.get("typical"), already_gib=True),
            note=f"{gib(holds['low'], True)} to {gib(holds['high'], True)}" if {"low", "high"} <= set(holds) else "",
        ),
        _cell("headroom", gib((memory.get("headroom_gib") or {}).get("typical"), already_gib=True)),
    ]
    # A folder of the controller is told by its name: the page may be given to others.
    folder = str(service["model"]["source"] or "").rstrip("/").rpartition("/")[2]
    model = service["model"]["repo"] or folder or service["recipe"] or ""
    return (
        f'<tr><td data-of="service"><span><span class="dot {hue}"></span>{escape(picture.label(service))}</span></td>'
        f'<td data-of="model"><span>{escape(str(model))} <small>{escape(service["image"]["ref"])}</small></span></td>'
        f'<td class="v" data-of="vLLM">{escape(str(service["vllm_version"] or "?"))}</td>'
        f"{_cell('port', str(service['port']))}{''.join(cells)}</tr>"
    )


def _cell(head: str, text: str, solved: bool = False, note: str = "") -> str:
    """A figure below a heading; C(text) and C(note) are escaped here."""
    marked = f'<span class="solved" title="worked out">{escape(text)}</span>' if solved else escape(text)
    noted = f" <small>{escape(note)}</small>" if note else ""
    return f'<td class="n" data-of="{head}"><span>{marked}{noted}</span></td>'
