#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the pages and tables of the documentation that follow from code, recipes and measurements.

    generate_docs.py [--check] [NAME...]     all of C(PAGES), or the named ones; --check only compares

Run with PYTHONPATH=collections. A table stands below a mark, a comment with the name of this script.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jinja2
import yaml
from common import ROOT, heading_anchor, markdown_table, recipes_by_name, with_tables, write_generated
from registered_findings import ENTRIES

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import monitoring
from ansible_collections.dgxspark.vllm.plugins.module_utils._agent import figures
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.sizes import GIB
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import RULES
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.rulebook import FAMILIES, Rule
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory.measurement_rows import planned
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_choice
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.host_log_signs import Sign
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof.log_signs import SIGNS
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.known_failures import ROWS, SEVERITY
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.overheads import LEVELS

sys.path.insert(0, str(ROOT / "tests" / "unit" / "plugins"))

from cluster_fixture import network
from launches_fixture import compared

DOCS = ROOT / "docs"


def with_table(text: str, mark: str, table: str) -> str:
    """Return a page with a new table below a mark; SystemExit without the mark."""
    return with_tables(text, re.escape(mark), lambda _match: table, count=1)


def with_part(text: str, name: str, part: str) -> str:
    """Return a page with a new part between two marks; SystemExit if one is missing."""
    begin, end = f"<!-- {name}: written by scripts/generate_docs.py -->", f"<!-- /{name} -->"
    before, _mark, remainder = text.partition(begin)
    if end not in remainder:
        raise SystemExit(f"the marks {begin} and {end} are missing")
    return before + begin + "\n\n" + part.strip("\n") + "\n\n" + end + remainder.partition(end)[2]


# --- docs/cluster.md: each recipe for three Sparks and more, planned in a ring and on a switch --------------------------

TOTAL_GIB = 119.67
LEAST = 3
SPLITS = {
    "data-parallel-size": "DP",
    "tensor-parallel-size": "TP",
    "pipeline-parallel-size": "PP",
    "decode-context-parallel-size": "DCP",
}


def planned_head(recipes: dict[str, Any], name: str, variant: str | None, count: int, topology: str) -> dict[str, Any]:
    """Return the plan of the head node of a cluster that serves only this recipe."""
    hosts = [f"spark-{number}" for number in range(1, count + 1)]
    service = {"name": "model", "recipe": name, "port": 8000, **({"variant": variant} if variant else {})}
    variables = {"spark_cluster": {"name": "all", "services": [service]}, "spark_total_gib": TOTAL_GIB}
    cabled = network(topology, hosts)
    inventory = {
        host: {"vars": variables, "address": f"192.0.2.{number}", "images": {}, "fabric": cabled}
        for number, host in enumerate(hosts, 1)
    }
    plan = engine.make_plan(inventory, recipes, lambda path: "0" * 64, groups={"all": hosts})
    head: dict[str, Any] = plan["hosts"][hosts[0]]
    return head


def verdict(host: dict[str, Any]) -> str:
    """Return whether a plan fits a network, with the rules of its errors."""
    rules = {finding["rule"]: finding["severity"] for finding in host["findings"]}
    wrong = sorted(rule for rule, severity in rules.items() if severity == "error" and rule != "lock.moving")
    if wrong:
        return f"no: `{'`, `'.join(wrong)}`"
    return "yes, not reported" if "cluster.unreported" in rules else "yes"


def cluster_table() -> str:
    """Return a table of every recipe and variant for three Sparks and more."""
    recipes = recipes_by_name()
    rows = []
    for name, recipe in sorted(recipes.items()):
        for variant, body in ((None, {}), *(recipe.get("variants") or {}).items()):
            count = int(body.get("nodes") or recipe.get("nodes") or 1)
            if count < LEAST:
                continue
            ring, switch = (planned_head(recipes, name, variant, count, topology) for topology in ("ring", "switch"))
            (service,) = ring["services"]
            args, memory = service["args"], service["memory"]
            split = [f"{short} {args[option]}" for option, short in SPLITS.items() if int(args.get(option) or 1) > 1]
            split += ["experts spread"] if args.get("enable-expert-parallel") else []
            cells = [
                f"[{name}](models.md#{heading_anchor(name)})" + (f", `{variant}`" if variant else ""),
                str(count),
                ", ".join(split),
                f"{memory['gpu_memory_utilization']:.2f}",
                f"{args['max-num-seqs']} x {args['max-model-len']}",
            ]
            rows.append([*cells, verdict(ring), verdict(switch)])
    heads = ("recipe", "Sparks", "split", "utilisation", "requests x context", "ring", "switch")
    return markdown_table(heads, rows)


# --- findings in docs/ from docs/findings.yml -------------------------------------------------------------------------

# A line C(<!-- findings: scripts/generate_docs.py -->) is followed by the table of the findings whose page is the heading above it.
# C(<!-- findings: scripts/generate_docs.py, also lock.* host.nft -->) adds findings of other pages by shell patterns.
HEADING = re.compile(r"^##+ +(.+?) *$", re.MULTILINE)
FINDINGS_MARK = r"<!-- findings: scripts/generate_docs\.py(?:, also (?P<also>[^>]+?))? -->"


def findings_page(name: str, text: str) -> tuple[str, set[str]]:
    """Return a page of docs/ with new tables, and the places (C(NAME#anchor)) of all its tables."""
    places = set()

    def table(match: re.Match[str]) -> str:
        place = f"{name}#{heading_anchor(HEADING.findall(text, 0, match.start())[-1])}"
        places.add(place)
        entries = [entry for entry in ENTRIES.values() if entry.page == place]
        for pattern in (match["also"] or "").split():
            entries += [entry for entry in ENTRIES.values() if fnmatchcase(entry.rule, pattern)]
        rows = [[f"`{entry.rule}` {', '.join(entry.severities)}", entry.meaning, entry.fix] for entry in entries]
        return markdown_table(("rule", "meaning", "fix"), rows)

    return with_tables(text, FINDINGS_MARK, table), places


def findings_pages() -> dict[Path, str]:
    """Return all pages with new tables; SystemExit if the place of a finding has no mark."""
    texts: dict[Path, str] = {}
    listed: set[str] = set()
    for path in sorted(DOCS.glob("*.md")):
        texts[path], places = findings_page(path.name, path.read_text(encoding="utf-8"))
        listed |= places
    for place in sorted({entry.page for entry in ENTRIES.values()} - listed):
        raise SystemExit(
            f"docs/{place}: findings.yml lists findings there, but no such heading has a mark for their table."
        )
    return texts


# --- docs/known_failures.md -------------------------------------------------------------------------------------------


def failures_page(text: str) -> str:
    """Return the page with a section for each row, and the table of signs."""
    lines = []
    for row in ROWS:
        first, before = row.get("first"), row.get("before")
        versions = f"; vLLM {first} to before {before}" if first and before else ""
        versions = versions or (f"; vLLM from {first}" if first else f"; vLLM before {before}" if before else "")
        plan = f"; plan: {row.get('severity', SEVERITY[row['verdict']])}" if "when" in row else ""
        lines += [
            f"### {row['id']}",
            "",
            f"**{row['title']}** ({row['verdict']}{versions}{plan}). {failure_text(row['message'])}",
            f"*Fix:* {failure_text(row['fix'])}",
            *([f"*Log:* `{row['symptom']}`"] if row.get("symptom") else []),
            f"*Source:* {row['source']}",
            "",
        ]
    return with_part(
        with_part(text, "failures", "\n".join(lines)), "signs", markdown_table(("sign", "cause"), map(sign_row, SIGNS))
    )


def failure_text(value: str) -> str:
    """Return a text of a row with its placeholder as the page shows it."""
    return value.replace("{version}", "`<version>`").replace("<function=", "`<function=`")


def sign_row(sign: Sign) -> list[str]:
    """Return the line of a sign in its table."""
    cause = re.sub(r"(?:\{\w+\})+", "NAME", sign.cause).replace("|", "\\|")
    rules = re.sub(r"\bSPK[0-9HU]\d\d\b", lambda rule: f"[{rule[0]}](rules.md#{rule[0].lower()})", sign.rule)
    rules = re.sub(r"\bSPKK\d\d\b", lambda row: f"[{row[0]}](#{row[0].lower()})", rules)
    rules = re.sub(
        r"\b[a-z_]+\.[a-z_]+\b(?![)#])", lambda name: name[0] if name[0] == "rules.md" else f"`{name[0]}`", rules
    )
    return [f"`{sign.id}`", f"{cause}{f' ({rules})' if rules else ''}"]


# --- tests/oracle/memory_tables.md: launches on a GPU with their plans, and the compared versions of vLLM ------------------

SHORT = {
    "enforce-eager": "eager",
    "kv-cache-dtype": "{} cache",
    "attention-backend": "{}",
    "language-model-only": "text",
    "runner": "{}",
}


def gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def launch_name(row: Mapping[str, Any]) -> str:
    """Name a launch by its model and what tells it from the others."""
    args = row["arguments"]
    parts = [SHORT[key].format(args[key]) for key in SHORT if args.get(key)]
    spec = args.get("speculative-config")
    if spec:
        parts.append(f"{spec['method']} {spec['num_speculative_tokens']}")
    if args.get("enable-lora"):
        parts.append(f"{args['max-loras']} adapters of rank {args['max-lora-rank']}")
    if row["launch"].endswith("warm-cache"):
        parts.append("graphs, compiled before")
    return f"{row['model']}, {args['max-num-batched-tokens']}/{args['max-num-seqs']}, {', '.join(parts) or 'graphs'}"


def measured_page(text: str) -> str:
    """Return the page with new tables: the KV cache of each launch, and the terms that it follows from, planned and measured."""
    fixture = ROOT / "tests" / "unit" / "plugins" / "fixtures" / "gpu_rows.json"
    launches = json.loads(fixture.read_text(encoding="utf-8"))
    rows = []
    for row in launches["rows"]:
        made = planned(launches, row)
        size, real = made["available_kv_bytes"], row["kv_cache"]
        inside = row["requested"] - row["weights"] - real
        cells = {
            "launch, batch/sequences": launch_name(row),
            "share": str(row["arguments"]["gpu-memory-utilization"]),
            "vLLM, GPU": f"{row['vllm']}, {row['gpu'].removeprefix('NVIDIA ').split()[0]}",
            "KV cache planned: low, typical, high": ", ".join(gib(size[level]) for level in LEVELS),
            "measured": gib(real),
            "off": f"{(size['typical'] - real) / GIB:+.2f}",
            "weights planned, measured": f"{gib(made['weights_bytes'] + made['draft_bytes'])}, {gib(row['weights'])}",
            "inside planned, measured": f"{made['overhead_gib']['typical']:.2f}, {gib(inside)}",
            # vLLM prints the size of its graphs; empty for an eager launch.
            "graphs": "-" if row.get("graphs_gib") is None else f"{row['graphs_gib']:.2f}",
        }
        rows.append(cells)
    table = markdown_table(list(rows[0]), [list(cells.values()) for cells in rows])
    return with_table(with_table(text, "<!-- measured: launches -->", table), "<!-- computed: compared -->", compared())


# --- alerts of docs/monitoring.md, and metrics of the role exporters --------------------------------------------------

ALERT_RULES = ROOT / "roles/monitoring/templates/rules.yml.j2"


def alert_rules(thresholds: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the alert_rules of Prometheus as the role renders them."""
    defaults = {name: key.default for name, key in monitoring.THRESHOLDS.items()}
    environment = jinja2.Environment(
        variable_start_string="[[", variable_end_string="]]", undefined=jinja2.StrictUndefined
    )
    text = environment.from_string(ALERT_RULES.read_text(encoding="utf-8")).render(
        monitoring_thresholds={**defaults, **(thresholds or {})}
    )
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def annotation(text: str) -> str:
    """Return the Markdown of an annotation, with the names of its labels as code."""
    return re.sub(r"\{\{\s*\$(?:labels\.)?(\w+)[^}]*\}\}", r"`\1`", " ".join(text.split()))


def alert_lines() -> list[str]:
    """Return the lines about each alert, below its heading, which the message links to."""
    lines = []
    for rule in (rule for group in alert_rules()["groups"] for rule in group["rules"] if "alert" in rule):
        notes, wait = rule["annotations"], f" after {rule['for']}" if "for" in rule else ""
        description = f"**{rule['labels']['severity']}{wait}**: {annotation(notes['description'])}"
        lines += [f"### {rule['alert']}", "", description, "", f"**Fix**: {annotation(notes['fix'])}", ""]
    return lines


METRICS = markdown_table(
    ("metric", "type", "labels", "meaning"),
    ([f"`{name}`", kind, ", ".join(labels), text] for name, (kind, text, labels) in figures.METRICS.items()),
)


# --- README.md: the choice of quickstart.yml ---------------------------------------------------------------------------

SINGLE_SPARKS = 3
"""Recommended recipes for one Spark: as for so many Sparks that each serve another model."""


def recommended_table() -> str:
    """Return the recipes that quickstart.yml chooses for single Sparks, and the best for two Sparks."""
    recipes = recipes_by_name()
    hosts = [f"{number}" for number in range(SINGLE_SPARKS)]
    single = model_choice.recommend(model_choice.picks(recipes, 1), hosts).values()
    rows = []
    for pick in (*single, *model_choice.picks(recipes, 2)[:1]):
        link = f"[{pick.recipe}](docs/models.md#{heading_anchor(pick.recipe)})"
        rows.append([str(pick.nodes), link, f"{pick.weights_gib:.1f}", f"{pick.rate}", ", ".join(pick.jobs)])
    return markdown_table(("Sparks", "recipe", "weights, GiB per Spark", "speed, one stream", "for"), rows)


# --- docs/rules.md ------------------------------------------------------------------------------------------------------

PLACEHOLDER = re.compile(r"\{(\w+)\}")
BRACKETS = r"<\1>"
REPORTED = "K"
"""The family of reported failures, which C(failures_page) has."""
SAID_BY_TITLE = re.findall(
    r"\w+",
    "303 401 402 403 404 406 417 502 505 507 508 509 519 601 604 610 611 612 613 701 702 703 710 801 "
    "802 803 806 809 810 814 815 818 823 825 831 901 908 909 912 H03 U12 U16 U19 U20",
)
"""Ids without C(SPK) of the rules whose message is their title with the values of the launch."""


def rules_page(text: str) -> str:
    """Return the page with the number of rules, a table of their families, and a section for each rule."""
    families = {letter: title for letter, title in FAMILIES.items() if letter != REPORTED}
    rules = [rule for rule in RULES if rule.id[3] != REPORTED]
    links = [[f"[{letter}xx](#{heading_anchor(f'{letter}xx {title}')})", title] for letter, title in families.items()]
    part = markdown_table(("ids", "about"), links) + "\n"
    for letter, title in families.items():
        part += f"\n## {letter}xx: {title}\n" + "".join(rule_section(rule) for rule in rules if rule.id[3] == letter)
    text = re.sub(r"(?m)^There are \d+ rules", f"There are {len(rules)} rules", text)
    return with_part(text, "rules", part)


def rule_section(rule: Rule) -> str:
    """Return one rule's part of the page."""
    marks = f"{rule.severity}, version" if rule.needs_version else rule.severity
    parts = [
        f"**{rule.title}** ({marks}). {'' if rule.id[3:] in SAID_BY_TITLE else filled(rule.about or rule.message)}".rstrip()
    ]
    if rule.fix != "{fix}":
        parts.append(f"*Fix:* {filled(rule.fix)}")
    sources = [name for name in rule.source.split("; ") if "/" in name]
    if sources:
        parts.append(f"*Source:* {'; '.join(sources)}")
    return f"\n### {rule.id}\n\n" + "\n".join(parts) + "\n"


def filled(text: str) -> str:
    """Return a text with its placeholders in angle brackets, and without the version that the finding names."""
    text = re.sub(r"(^|\. )vLLM \{version\}(?:\{span\})?", r"\1This vLLM", text.replace(" ({span})", ""))
    return PLACEHOLDER.sub(f"`{BRACKETS}`", re.sub(r"vLLM \{version\}(?:\{span\})?", "this vLLM", text))


PAGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "alerts": ("docs/monitoring.md", lambda text: with_part(text, "alerts", "\n".join(alert_lines()))),
    "cluster": (
        "docs/cluster.md",
        lambda text: with_table(text, "<!-- plans: scripts/generate_docs.py -->", cluster_table()),
    ),
    "failures": ("docs/known_failures.md", failures_page),
    "measured": ("tests/oracle/memory_tables.md", measured_page),
    "metrics": ("roles/exporters/README.md", lambda text: with_part(text, "metrics", METRICS)),
    "recommended": (
        "README.md",
        lambda text: with_table(text, "<!-- recommended: scripts/generate_docs.py -->", recommended_table()),
    ),
    "rules": ("docs/rules.md", rules_page),
}
"""Pages by name, and their new text by the present one; C(findings) stands on many."""


def main() -> int:
    """Write the pages, or compare them; returns the exit code."""
    names = [name for name in sys.argv[1:] if name != "--check"] or ["findings", *PAGES]
    texts: dict[Path, str] = {}
    for name in names:
        if name == "findings":
            texts |= findings_pages()
        else:
            path, render = PAGES[name]
            page = ROOT / path
            texts[page] = render(texts.get(page) or page.read_text(encoding="utf-8"))
    return write_generated(texts)


if __name__ == "__main__":
    sys.exit(main())
