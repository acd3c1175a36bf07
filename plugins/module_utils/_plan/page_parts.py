# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the HTML pages share: their frame, style, memory bars, tiles, tables and links. Pure functions.

A page needs nothing but itself: no script, no font, no picture. Its policy forbids a browser to load anything; links lead to the documentation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from . import picture

# Colours of the services of a host, told apart also by people who see fewer of them (Okabe and Ito, "Color Universal
# Design", 2008; without its yellow, which is hard to see on white).
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
# Text colours: white or near black, with a contrast of 4.5 (WCAG 2.2, 1.4.3).
ON_HUES = ("#fff", "#10141a", "#10141a", "#10141a", "#10141a", "#10141a")
# A part narrower than this share of the bar has no text in it.
NARROWEST_TEXT = 0.11
STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5b6675;--line:#d9dee6;--free:#eef1f5;
--system:#9aa4b2;--on-system:#10141a;--fails:#b3261e;--tight:#8a5a00;--fits:#1a7340;--info:#34618e;--bar:1.7rem}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1b212a;--ink:#e6eaf0;--soft:#9ba7b6;--line:#323b48;--free:#252d38;
--system:#5d6878;--on-system:#fff;--fails:#ff8a80;--tight:#f2c14e;--fits:#6fd39a;--info:#8fbcf0}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:1.5rem 1.25rem 3rem}
h1{font-size:1.45rem;margin:0 0 1rem}h2{font-size:1.1rem;margin:2rem 0 .6rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:.5rem;margin:.6rem 0 0;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.4rem .8rem;min-width:5rem}
.tiles b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.2rem 0 .8rem;padding:0;list-style:none;color:var(--soft);font-size:.87rem}
.legend i{display:inline-block;width:1.5rem;height:.8rem;border-radius:.15rem;margin-right:.4rem;vertical-align:-.05rem}
details,.open{background:var(--card);border:1px solid var(--line);border-radius:.5rem;margin:.5rem 0}
summary{padding:.5rem .9rem;cursor:pointer}
.inside{padding:0 .9rem .8rem}
.host>summary{display:grid;grid-template-columns:minmax(6rem,12rem) 2.8rem 1fr 10.5rem;gap:.8rem;align-items:center;list-style:none}
.host>summary::-webkit-details-marker{display:none}
.host>summary .name{font-weight:600;overflow-wrap:anywhere}
.host>summary .name::before{content:"\\25B8";color:var(--soft);margin-right:.45rem;display:inline-block}
.host[open]>summary .name::before{transform:rotate(90deg)}
.room{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.word{font-weight:600;white-space:nowrap}.fails .word,.word.fails,.room.over{color:var(--fails)}.tight .word,.word.tight{color:var(--tight)}
.fits .word,.word.fits{color:var(--fits)}.host.fails{border-left:.3rem solid var(--fails)}.host.tight{border-left:.3rem solid var(--tight)}
.host.fits{border-left:.3rem solid var(--line)}
.bar{position:relative;display:flex;height:var(--bar);border-radius:.3rem;overflow:hidden;background:var(--free)}
.bar span{flex:none;overflow:hidden;white-space:nowrap;font-size:.76rem;line-height:var(--bar);text-align:center;color:var(--ink);
border-right:1px solid var(--card)}
.bar span:last-of-type{border-right:0}
HUES
.weights{background:var(--c)}.bar .weights{color:var(--t)}
.kv_cache{background:color-mix(in srgb,var(--c) 45%,var(--card))}
i.host,.bar .host{background:repeating-linear-gradient(45deg,var(--c) 0 3px,color-mix(in srgb,var(--c) 45%,var(--card)) 3px 6px)}
.bar .overhead{text-shadow:0 0 2px var(--card),0 0 2px var(--card),0 0 2px var(--card)}
.overhead{background:repeating-linear-gradient(135deg,var(--c) 0 2px,color-mix(in srgb,var(--c) 30%,var(--card)) 2px 6px)}
.plain{background:color-mix(in srgb,var(--c) 60%,var(--ink))}.bar .plain{color:var(--card)}
.system{background:var(--system)}.bar .system{color:var(--on-system)}
.free{background:var(--free)}
.over-mark{position:absolute;top:0;bottom:0;right:0;border-left:3px solid var(--fails);
background:repeating-linear-gradient(45deg,#b3261ed9 0 5px,#b3261e80 5px 10px)}
.over-key{background:repeating-linear-gradient(45deg,#b3261ed9 0 5px,#b3261e80 5px 10px)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:.7rem 0 .3rem;font-size:.87rem}
th{font-weight:600;color:var(--soft);text-align:left;border-bottom:1px solid var(--line)}
th,td{padding:.25rem .7rem .25rem 0;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td{overflow-wrap:break-word}td:first-child{min-width:6.5rem}.m{min-width:11rem}.v{white-space:nowrap}
td small{display:block;color:var(--soft)}.m small{overflow-wrap:anywhere}a{color:var(--info)}
.dot{display:inline-block;width:.7rem;height:.7rem;border-radius:.15rem;background:var(--c);margin-right:.45rem}
.solved{color:var(--info);font-weight:600}
.unknown{background:repeating-linear-gradient(45deg,var(--line) 0 2px,var(--card) 2px 8px)}
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
.cards,.cards tbody,.cards tr,.cards td{display:block}.cards thead{display:none}.cards tr{border-bottom:1px solid var(--line);padding:.4rem 0}
.cards td,.cards td.n{display:flex;justify-content:space-between;gap:1rem;padding:.1rem 0;text-align:right}
.cards td::before{content:attr(data-of);color:var(--soft);text-align:left;flex:none}.cards td>span{min-width:0;overflow-wrap:anywhere}
.cards td.n{white-space:normal}.cards td.e{display:none}.bar span:not(.w){font-size:0}}
@media print{.pick{display:none}.bar span,.legend i,.dot,.over-mark{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""".strip().replace(
    "HUES", "".join(f".s{index}{{--c:{hue};--t:{on}}}" for index, (hue, on) in enumerate(zip(HUES, ON_HUES)))
)


MARK = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
"""A line of every page, which tells a later run that it may replace the page."""


DOCS = "https://github.com/dgxspark/ansible-vllm/blob/main/docs/"
PAGES = {
    "agent": ("guard", "power", "watchdog"),
    "benchmarks": ("bench",),
    "distribution": ("lock",),
    "fleet": ("placement", "update"),
    "health": ("doctor", "drift"),
    "monitoring": ("exporters", "fleet_monitor", "monitoring"),
    "on_demand": ("on_demand", "start"),
    "security": ("firewall", "service", "monitoring.open", "speech.open"),
    "speech": ("ollama", "speech"),
    "speed": ("fast_path", "speed"),
    **{page: (page,) for page in ("clients", "cluster", "fabric", "gateway")},
}
"""Pages of docs/ with the findings, or families of them, that they list; those of other families are on the page troubleshooting."""


def rule_link(rule: str) -> str:
    """Return a link from the id of a finding to its page in the documentation; the plain id if it has not the form of one."""
    if re.fullmatch(r"SPK[0-9A-Z]\d\d", rule):
        place = f"rules.md#{rule.lower()}"
    elif re.fullmatch(r"[a-z_]+\.\w+", rule):
        names = (rule, rule.partition(".")[0])
        pages = (page for name in names for page, listed in PAGES.items() if name in listed)
        place = f"{next(pages, 'troubleshooting')}.md#:~:text={rule}"
    else:
        return escape(rule)
    return f'<a href="{DOCS}{place}" rel="noreferrer">{rule}</a>'


def as_of(at: str, inventory: str = "") -> str:
    """Return the line with the time of a page and the inventory. at: ISO 8601 in UTC."""
    return f"As of {at[:16].replace('T', ' ')} UTC{f', inventory {inventory}' if inventory else ''}."


def document(title: str, sections: Iterable[str], style: str = "") -> str:
    """Return a whole page."""
    rules = f"{STYLE}\n{style}" if style else STYLE
    body = "\n".join([f"<h1>{escape(title)}</h1>", *sections])
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{MARK}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{rules}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def tiles(items: Iterable[tuple[str, str, str]]) -> str:
    """Return figures with their words. items: of figure, words, and a class for the colour, empty for none."""
    lines = (f'<li><b class="word {style}">{escape(figure)}</b> {escape(words)}</li>' for figure, words, style in items)
    return f'<ul class="tiles">{"".join(lines)}</ul>'


def legend(note: str) -> str:
    """Return what the colours of bars mean. note: plain text below."""
    items = [f'<li><i class="s0 {kind}"></i>{words}</li>' for kind, words in picture.KINDS.items()]
    items += ['<li><i class="over-key"></i>over capacity</li>', f"<li>{escape(note)}</li>"]
    return f'<ul class="legend">{"".join(items)}</ul>'


def memory_bar(body: Mapping[str, Any]) -> str:
    """The stacked bar of a host; its text for screen readers lists what the colours show."""
    parts = [part for part in body["memory_map"] if part["gib"] > 0]
    hues = picture.service_hues(parts, len(HUES))
    scale = max(body["total_gib"], sum(part["gib"] for part in parts)) or 1.0
    spans = []
    for part in parts:
        share = part["gib"] / scale
        text = f"{part['label']} {picture.size_text(part['gib'])}"
        kind = part["kind"] if part["kind"] in picture.KINDS else "plain"
        kind += " w" * (share >= 0.024 * len(text))  # on a phone there is half the room
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
    description = ", ".join(f"{part['label']} {picture.size_text(part['gib'])} GiB" for part in parts)
    description += f"; {picture.room_text(body)} of {body['total_gib']:.1f} GiB"
    return f'<div class="bar" role="img" aria-label="{escape(description)}">{"".join(spans)}</div>'


def table(
    heads: Sequence[str], rows: Iterable[str], figures: Sequence[str] = (), label: str = "", styles: Sequence[str] = ()
) -> str:
    """Return a table, whose rows are cards on a phone: HTML of C(cell) and C(text_cell) in the order of the heads.

    figures: heads of columns that are flush right. label: plain text for screen readers; the keyboard can then scroll a table that is wider
    than the page. styles: classes of each row.
    """
    region = f' tabindex="0" role="region" aria-label="{escape(label)}"' if label else ""
    columns = (f'<th scope="col"{" class=n" if head in figures else ""}>{escape(head)}</th>' for head in heads)
    pairs = itertools.zip_longest(rows, styles, fillvalue="")
    body = "\n".join(f'<tr class="{style}">{row}</tr>' if style else f"<tr>{row}</tr>" for row, style in pairs)
    return f'<div class="scroll"{region}><table class="cards"><thead><tr>{"".join(columns)}</tr></thead><tbody>{body}</tbody></table></div>'


def text_cell(head: str, html: str, note: str = "", style: str = "") -> str:
    """Return a text below a heading, with a note below it."""
    noted = f" <small>{escape(note)}</small>" if note else ""
    style += " e" * (html == "-")  # left out on a phone
    return f'<td class="{style.strip()}" data-of="{head}"><span>{html}{noted}</span></td>'


def cell(head: str, text: str, solved: bool = False, note: str = "") -> str:
    """Return a figure, text, below a heading, next to it on a phone; both texts are escaped here. solved: whether the plan calculated it."""
    marked = f'<span class="solved" title="calculated">{escape(text)}</span>' if solved else escape(text)
    return text_cell(head, marked, note, "n")
