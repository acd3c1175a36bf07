# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan for people in a terminal: memory bars, tables, findings; and its common parts with the page.

Pure functions. Hosts that are planned alike are shown once, and so are the ranks of a cluster and a finding that many hosts have:
a fleet of a hundred is read by what differs in it.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._common.findings import SEVERITIES, has_errors
from .._common.tables import gib, table
from . import speed_text

VERDICTS = ("fails", "tight", "fits")
FATES = {"fails": ("fails", "fail"), "tight": ("is tight", "are tight"), "fits": ("fits", "fit")}
"""The verdicts as verbs, for one host and for several."""
KINDS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "host": "host memory",
    "overhead": "overhead",
    "plain": "reserved",
    "system": "system",
    "free": "free",
}
"""Kinds of a part of the memory map with the words for them."""
STAGES = {
    "arguments": "while it reads its arguments",
    "device": "when it checks the GPU",
    "load": "while it loads the weights",
    "profile": "in its profiling run",
    "kv_cache": "when it sizes the KV cache",
    "graphs": "while it captures CUDA graphs",
}
"""Stages of a start (see findings) with the words for them."""

# The kind shows by the glyph and the service by the colour, so that a bar without colour says the same.
GLYPHS = {"weights": "█", "kv_cache": "▒", "host": "▞", "overhead": "░", "plain": "▓", "system": "▚", "free": "·"}
OVER = "×"
# SGR parameters of the terminal's own palette, which its owner has chosen to be readable.
HUES = ("36", "33", "35", "34", "32")
STYLES = {"fails": "31", "tight": "33", "fits": "32", "error": "31", "warning": "33", "info": "36", "dim": "90"}
# As many different hosts are shown with their tables; of a larger fleet a line each, and no more lines than this. A finding
# with more different figures than this is shown once, as an example.
MOST_TABLES = 6
MOST_LINES = 50
MOST_FIGURES = 3
MOST_NOTES = 6
ALIKE_GIB = 1.0
"""Hosts of one cluster are shown as one if their free memory differs by less."""
_OF_HOST = re.compile(r"host (?P<host>[\w.-]+)(?P<separator>[:,] )")
SHORTEST_BAR, LONGEST_BAR = 24, 100


def paint(text: str, style: str, color: bool) -> str:
    """Return a text in a style. style: a name of C(STYLES), or SGR parameters."""
    return f"\033[{STYLES.get(style, style)}m{text}\033[0m" if color and style else text


def shares(sizes: Sequence[float], width: int) -> list[int]:
    """Divide a width in proportion to the sizes; every size above zero gets at least one column."""
    total = sum(sizes) or 1.0
    columns = [max(1, int(size / total * width)) if size > 0 else 0 for size in sizes]
    while sum(columns) != width and any(columns):
        # The largest part gives or takes what rounding left: there it shows least.
        columns[columns.index(max(columns))] += 1 if sum(columns) < width else -1
    return columns


def service_hues(memory_map: Sequence[Mapping[str, Any]], hues: int) -> dict[str, int]:
    """Give every service of a memory map one of so many hues, in their order."""
    names = dict.fromkeys(part["service"] for part in memory_map if part["service"])
    return {name: index % hues for index, name in enumerate(names)}


def standing(body: Mapping[str, Any]) -> str:
    """Return the verdict on a host's memory, C(fails) also when anything else of it is an error."""
    return "fails" if has_errors(body["findings"]) else str(body["verdict"])


def over_gib(body: Mapping[str, Any]) -> float:
    """Return by how much a host's parts are more than its memory, 0 when they are not; hundredths are rounding."""
    over = sum(part["gib"] for part in body["memory_map"]) - body["total_gib"]
    return round(over, 2) if over >= 0.1 else 0.0


def free_gib(body: Mapping[str, Any]) -> float:
    """Return what stays free of a host's memory."""
    return float(sum(part["gib"] for part in body["memory_map"] if part["kind"] == "free"))


def memory_bar(body: Mapping[str, Any], width: int, color: bool) -> str:
    """Draw a host's memory as a bar; the part above its memory is crossed out. width: columns that the bar has, exactly."""
    parts = body["memory_map"]
    hues = service_hues(parts, len(HUES))
    cells: list[tuple[str, str]] = []
    for part, columns in zip(parts, shares([part["gib"] for part in parts], width)):
        style = HUES[hues[part["service"]]] if part["service"] else "dim"
        cells += [(GLYPHS.get(part["kind"], GLYPHS["plain"]), style)] * columns
    over = over_gib(body)
    if over:
        position = min(width - 1, round(width * body["total_gib"] / (body["total_gib"] + over)))
        cells[position:] = [(OVER, "fails")] * (len(cells) - position)
    runs = itertools.groupby(cells, key=lambda cell: cell[1])
    return "".join(paint("".join(glyph for glyph, _style in run), style, color) for style, run in runs)


def bar_names(body: Mapping[str, Any], width: int, color: bool) -> str:
    """Return the line below a bar: each service's name where its part begins, as far as there is room."""
    parts = body["memory_map"]
    hues = service_hues(parts, len(HUES))
    line, at, start = "", 0, 0
    named: set[str] = set()
    for part, columns in zip(parts, shares([part["gib"] for part in parts], width)):
        name = part["service"] or (part["label"] if part["kind"] == "free" else "")
        if name and name not in named and start >= at and start + len(name) <= width:
            named.add(name)
            style = HUES[hues[name]] if part["service"] else "dim"
            line += " " * (start - at) + paint(name, style, color)
            at = start + len(name) + 1
            line += " "
        start += columns
    return line.rstrip()


def legend(color: bool) -> str:
    """Say what the glyphs of the bars are."""
    items = [f"{glyph} {KINDS[kind]}" for kind, glyph in GLYPHS.items()]
    return paint("  ".join([*items, f"{OVER} over capacity"]), "dim", color)


def size_text(size: float) -> str:
    """Write GiB with one decimal; halves are rounded up, as the tables have them from the exact bytes."""
    return f"{size + 1e-6:.1f}"


# Hosts and findings that are alike


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts spark-2 before spark-10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name, maxsplit=0)]


def names_text(names: Sequence[str], most: int = 6) -> str:
    """Write names, runs of numbered ones as C(spark-1..4); of more than so many runs the first and how many follow."""
    runs: list[list[str]] = []
    following: tuple[str, int] | None = None
    for name in sorted(set(names), key=natural):
        number = _number(name)
        numbered = (name[: len(name) - len(number)], int(number)) if number else None
        if numbered and numbered == following:
            runs[-1].append(name)
        else:
            runs.append([name])
        following = numbered and (numbered[0], numbered[1] + 1)
    shown = [run[0] if len(run) == 1 else f"{run[0]}..{_number(run[-1])}" for run in runs[:most]]
    hidden = sum(len(run) for run in runs[most:])
    return ", ".join(shown) + (f" and {hidden} more" if hidden else "")


def _number(name: str) -> str:
    return name[len(name.rstrip("0123456789")) :]


@dataclass
class HostGroup:
    """Hosts that are planned alike, with their plans in natural order; free memory of ranks may differ by C(ALIKE_GIB)."""

    body: Mapping[str, Any]
    """The plan of the host with the least free memory."""
    bodies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    low: float = math.inf
    high: float = -math.inf
    """The least and the most free memory in GiB; what is over the capacity counts below 0."""

    @property
    def hosts(self) -> list[str]:
        """The names."""
        return list(self.bodies)

    @property
    def title(self) -> str:
        """The hosts in few words."""
        alike = f" ({len(self.bodies)} alike)" if len(self.bodies) > 1 and not self._clusters() else ""
        return names_text(self.hosts, 3) + alike

    @property
    def verdict(self) -> str:
        """The verdict on the hosts, as a verb after their names."""
        word = standing(self.body)
        return FATES[word][1].removeprefix("are ") if len(self.bodies) > 1 and self._clusters() else word

    @property
    def room(self) -> str:
        """The free memory of each host, or the missing memory of the fullest."""
        is_one = over_gib(self.body) or f"{self.low:.1f}" == f"{self.high:.1f}"
        return room_text(self.body) if is_one else f"{self.low:.1f} to {self.high:.1f} GiB free"

    @property
    def span(self) -> str:
        """C(over 4 Sparks) if these are all hosts of a cluster, else empty."""
        sizes = self._clusters()
        if not sizes or sum(sizes.values()) != len(self.bodies):
            return ""
        text = f"over {next(iter(sizes.values()))} Sparks"
        return text if len(sizes) == 1 else f"{len(sizes)} clusters {text} each"

    def _clusters(self) -> dict[str, int]:
        """Return the sizes of the clusters of these hosts by name."""
        return {span.get("name", ""): span["size"] for service in self.services() if (span := service.get("cluster"))}

    def services(self, name: str = "") -> list[Mapping[str, Any]]:
        """Return the services of all these hosts, or the services of a name."""
        services = [service for body in self.bodies.values() for service in body["services"]]
        return [service for service in services if name in ("", service["name"])]

    def ranks(self, name: str) -> list[int]:
        """Return the ranks of a service on these hosts, empty for a service of one host."""
        return sorted({service["rank"] for service in self.services(name) if service.get("cluster")})

    def timed(self) -> dict[str, Mapping[str, Any]]:
        """Return the services by label, a cluster only with its first rank: its speed is the same for all."""
        services = {service["name"]: service for service in self.body["services"]}
        ranks = {name: self.ranks(name) for name in services}
        return {label(services[name], ranks[name]): services[name] for name in services if 0 in (ranks[name] or [0])}

    def add(self, host: str, body: Mapping[str, Any]) -> bool:
        """Add a host unless its free memory differs too much from that of another one; return whether it was added."""
        spare = free_gib(body) - over_gib(body)
        if max(self.high, spare) - min(self.low, spare) >= ALIKE_GIB and self.bodies:
            return False
        self.bodies[host] = body
        self.body = body if spare < self.low else self.body
        self.low, self.high = min(self.low, spare), max(self.high, spare)
        return True


def host_groups(plan: Mapping[str, Any]) -> list[HostGroup]:
    """Group the hosts of a plan that look the same to people, in natural order of their first hosts."""
    groups: dict[str, list[HostGroup]] = {}
    for host in sorted(plan["hosts"], key=natural):
        body = plan["hosts"][host]
        # Equal plans look the same, and so do equal ranks of a cluster.
        services = [{**service, "rank": 0} if service.get("cluster") else service for service in body["services"]]
        shown = [[*service_cells(service), *speed_text.cells(service)] for service in services]
        parts = [] if any(service.get("cluster") for service in services) else body["memory_map"]
        look = repr((standing(body), body["basis"], body["total_gib"], body["utilization_sum"], shown, parts))
        alike = groups.setdefault(look, [])
        if not any(group.add(host, body) for group in alike):
            alike.append(HostGroup(body))
            alike[-1].add(host, body)
    return sorted((group for alike in groups.values() for group in alike), key=lambda group: natural(group.hosts[0]))


def worst_first(groups: Sequence[HostGroup]) -> list[HostGroup]:
    """Sort hosts by their verdict, and those with one verdict by name."""
    return sorted(groups, key=lambda group: VERDICTS.index(standing(group.body)))


@dataclass
class SameFinding:
    """A finding with the hosts and services that have it; C(figures) when the others' figures differ from the first's."""

    first: Mapping[str, Any]
    hosts: list[str] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    figures: bool = False

    @property
    def where(self) -> str:
        """The hosts and services in few words."""
        services = ", ".join(dict.fromkeys(name for name in self.services if name))
        hosts = names_text(self.hosts)
        if len(set(self.hosts)) == 1:
            return f"{hosts}/{services}" if services else hosts
        return f"{services} on {hosts}" if services else hosts

    @property
    def example(self) -> str:
        """Whose figures the message has."""
        return "/".join(part for part in (self.first.get("host"), self.first.get("service")) if part)


def same_findings(findings: Sequence[Mapping[str, Any]]) -> list[SameFinding]:
    """Group equal findings, the worst first; those with one id stay together at the place of the first.

    Findings that differ only in figures and names of services are merged too, if there are more than C(MOST_FIGURES).
    """
    exact: dict[tuple[str, ...], SameFinding] = {}
    for finding in findings:
        text = tuple(str(finding.get(key) or "") for key in ("severity", "rule", "message", "vllm_error", "fix"))
        group = exact.setdefault(text, SameFinding(finding))
        group.hosts.append(str(finding.get("host") or ""))
        group.services.append(str(finding.get("service") or ""))
    alike: dict[tuple[str, ...], list[SameFinding]] = {}
    for text, group in exact.items():
        names = sorted({name for name in group.services if name}, key=len, reverse=True)
        key = (*text[:2], _without_figures(text[2], names), _without_figures(text[4], names))
        alike.setdefault(key, []).append(group)
    groups: list[SameFinding] = []
    for similar in alike.values():
        # Ranks of one launch differ in figures; the cause is one.
        causes: dict[str, SameFinding] = {}
        for place, group in enumerate(similar):
            cause = "" if len(similar) > MOST_FIGURES else str(group.first.get("cluster") or place)
            first = causes.setdefault(cause, group)
            if first is not group:
                first.hosts += group.hosts
                first.services += group.services
                first.figures = True
        groups += causes.values()
    return _sorted_findings(groups)


def _sorted_findings(groups: Sequence[SameFinding]) -> list[SameFinding]:
    """Sort by severity; within one, findings of one rule are neighbours, and within a rule those with one fix."""
    firsts = [group.first for group in groups]
    keys = [(SEVERITIES.index(first["severity"]), first["rule"], first.get("fix") or "") for first in firsts]
    rules = [key[:2] for key in keys]
    order = sorted(
        range(len(groups)),
        key=lambda place: (keys[place][0], rules.index(rules[place]), keys.index(keys[place])),
    )
    return [groups[place] for place in order]


def count_causes(findings: Sequence[Mapping[str, Any]]) -> int:
    """Return how many causes findings have: one of a cluster that several of its hosts have counts once."""
    ranks = [finding for finding in findings if finding.get("cluster")]
    return len(findings) - len(ranks) + len(same_findings(ranks))


def count_severities(findings: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many errors and warnings findings have, without consequences of other ones."""
    causes = [finding for finding in findings if not finding.get("consequence_of")]
    return {
        key: count_causes([finding for finding in causes if finding["severity"] == key]) for key in ("error", "warning")
    }


def same_messages(messages: Sequence[str]) -> list[str]:
    """Return messages about hosts, C(host NAME...), in their order; equal messages of several hosts, as from a variable of their group, are merged."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for message in messages:
        match = _OF_HOST.match(message)
        key = (match["separator"], message[match.end() :]) if match else ("", message)
        hosts.setdefault(key, []).append(match["host"] if match else "")
    return [
        text if not separator else f"host{'s'[: len(set(names)) != 1]} {names_text(names)}{separator}{text}"
        for (separator, text), names in hosts.items()
    ]


def _without_figures(text: str, names: Sequence[str]) -> str:
    for name in names:
        text = text.replace(name, "\0")
    return re.sub(r"\d[\d.,]*", "0", text)


def when_text(finding: Mapping[str, Any]) -> str:
    """Say when in a start vLLM would print its error; empty when that is not known."""
    seconds, stage = finding.get("seconds") or {}, STAGES.get(str(finding.get("stage") or ""), "")
    if "typical" not in seconds:
        return stage
    durations = [float(seconds.get(key, seconds["typical"])) for key in ("low", "typical", "high")]
    low, typical, high = (f"{value:.0f} s" if value < 90 else f"{value / 60:.0f} min" for value in durations)
    span = f" ({low} to {high})" if low != high else ""
    return f"about {typical} into the start{span}" + (f", {stage}" if stage else "")


def findings_text(findings: Sequence[Mapping[str, Any]], color: bool = False, notes: bool = True) -> str:
    """Return findings as paragraphs: what, where, vLLM's own words and when it would say them, the fix.

    Neighbours with one id and one fix are one paragraph. notes: print those of severity C(info), and details, or leave them to C(notes_text).
    """
    paragraphs: list[str] = []
    last: tuple[str, ...] = ()
    for group in same_findings([finding for finding in findings if notes or not _is_note(finding)]):
        finding, fix = group.first, str(group.first.get("fix") or "")
        says = f"{group.where}: {finding['message']}"
        alike = (finding["severity"], finding["rule"], fix)
        if alike == last and not finding.get("vllm_error") and not group.figures:
            before, _fix, after = paragraphs[-1].rpartition("\n        Fix: ")
            paragraphs[-1] = f"{before or after}\n        {says}" + (f"\n        Fix: {fix}" if before else "")
            continue
        lines = [
            f"{paint(format(finding['severity'].upper(), '8'), finding['severity'], color)}{says} [{finding['rule']}]",
            *_finding_details(group, notes),
        ]
        last = alike if len(lines) == 1 else ()
        lines += [f"Fix: {fix}"] if fix else []
        paragraphs.append("\n        ".join(lines))
    return "\n".join(paragraphs)


def _finding_details(group: SameFinding, notes: bool) -> list[str]:
    """Return the lines of a finding between its message and its fix."""
    finding, lines = group.first, []
    if group.figures:
        lines.append(f"The figures are for {group.example}; the other hosts differ.")
    if finding.get("vllm_error"):
        when = when_text(finding)
        lines.append(f"vLLM would say{', ' + when if when else ''}: {finding['vllm_error']}")
    if finding.get("details") and notes:
        lines.append(str(finding["details"]))
    return lines


def shown_severity(finding: Mapping[str, Any]) -> str:
    """Return the severity below which the page shows a finding: a consequence of another error is a note."""
    return "info" if finding.get("consequence_of") else str(finding["severity"])


def _is_note(finding: Mapping[str, Any]) -> bool:
    """Tell whether a finding is shown by -v alone: information, and errors with the cause and the fix of another one."""
    return bool(finding.get("consequence_of")) or (finding["severity"] == "info" and finding["rule"] not in ALWAYS)


def notes_text(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return unprinted notes in a line for each id, with the begin of the first message; empty without any."""
    by_rule: dict[str, list[SameFinding]] = {}
    groups = [group for group in same_findings(findings) if _is_note(group.first)]
    for group in groups:
        by_rule.setdefault(group.first["rule"], []).append(group)
    if not groups:
        return ""
    lines = [f"{len(groups)} note{'s'[: len(groups) != 1]}, in full with -v or -e spark_plan_show=full:"]
    for rule, (first, *others) in list(by_rule.items())[:MOST_NOTES]:
        more = f" and {len(others)} more" if others else ""
        begin = textwrap.shorten(re.split(r"[.:;] ", first.first["message"].rstrip("."), maxsplit=1)[0], 100)
        lines.append(f"- {first.where}: {begin}{more} [{rule}]")
    lines += [f"- and {', '.join(list(by_rule)[MOST_NOTES:])}"] if len(by_rule) > MOST_NOTES else []
    return "\n".join(lines)


# The whole plan

ALWAYS = ("secret.missing", "memory.image")
"""Notes about something that has to be there, or is asked, before the services run: printed with errors and warnings."""

HEADER = ("service", "image", "vLLM", "port", "util", "weights", "KV cache", "requests x tokens")


def service_cells(service: Mapping[str, Any], ranks: Sequence[int] = ()) -> list[str]:
    """Return a service's row below C(HEADER); an asterisk marks calculated values. ranks: all that the row is about."""
    memory = service["memory"]
    solved = memory.get("solved") or []
    utilization = service["args"].get("gpu-memory-utilization")
    length = service["args"].get("max-model-len")
    concurrency = memory.get("max_concurrency")
    star = {key: "*" if key in solved else "" for key in ("gpu-memory-utilization", "max-model-len")}
    suffix = " each" if len(ranks) > 1 else ""
    return [
        label(service, ranks),
        service["image"]["ref"].rsplit("/", 1)[-1],
        str(service["vllm_version"] or "?"),
        str(service["port"]),
        f"{utilization:.2f}{star['gpu-memory-utilization']}" if utilization else "-",
        *(
            f"{figure} GiB{suffix}" if figure != "-" else figure
            for figure in map(gib, (loaded_bytes(memory), (memory.get("available_kv_bytes") or {}).get("typical")))
        ),
        f"{concurrency:.1f} x {length}{star['max-model-len']}" if concurrency is not None else "-",
    ]


def loaded_bytes(memory: Mapping[str, Any]) -> int | None:
    """Return the weights of one rank with its drafter, None if unknown. memory: of a service of the plan."""
    weights: int | None = memory.get("weights_bytes")
    return None if weights is None else weights + (memory.get("draft_bytes") or 0)


NOT_STARTED = {"stopped": "stopped", "on_demand": "on demand"}
"""States of services that nothing starts at boot, as labels have them."""


def replicas(service: Mapping[str, Any]) -> int:
    """Return how many replicas there are of the engine of a service. service: of the plan."""
    copies = service["args"].get("data-parallel-size")
    return copies if isinstance(copies, int) and copies > 1 else 1


def label(service: Mapping[str, Any], ranks: Sequence[int] = ()) -> str:
    """Return the label of a service: its ranks if it spans hosts, its exclusive set, and whether its owner has stopped it."""
    span, name = service.get("cluster"), str(service["name"])
    notes = [f"set {service['exclusive']}"] if service.get("exclusive") else []
    if span:
        of_rank, copies = list(ranks) or [service["rank"]], replicas(service)
        name += f", {_some_of('rank', of_rank, span['size'])}"
        numbers = sorted({rank * copies // span["size"] for rank in of_rank})
        notes += [_some_of("replica", numbers, copies)] if copies > 1 else []
    notes += [word for state, word in NOT_STARTED.items() if service.get("state") == state]
    return f"{name} [{', '.join(notes)}]" if notes else name


def _some_of(word: str, numbers: Sequence[int], size: int) -> str:
    """Write C(rank 2 of 4), C(ranks 1..3 of 4), or C(4 ranks) for all of them."""
    if len(numbers) == size > 1:
        return f"{size} {word}s"
    return f"{word}{'s'[: len(numbers) != 1]} {names_text([str(number) for number in numbers])} of {size}"


def label_notes(
    services: Iterable[Mapping[str, Any]], sets: Mapping[str, Sequence[Sequence[str]]] | None = None
) -> list[str]:
    """Say what the labels of services mean, and what the figures of their memory rest on. sets: combinations by set."""
    names = list(services)
    notes = source_notes(names)
    if any(service.get("cluster") and replicas(service) > 1 for service in names):
        notes.append("[replica] one of several of its engine; requests and KV cache are its own")
    if any(service.get("exclusive") and not service.get("on_demand") for service in names):
        notes.append(
            "[set NAME] one of the set runs at a time; memory is planned for the largest one, which the map shows"
        )
    if any(service.get("on_demand") for service in names):
        notes.append("[on demand] its first request starts it; the map shows the largest of a set")
    notes += _combinations(names, sets or {})
    if any(service.get("state") == "stopped" for service in names):
        notes.append("[stopped] deployed, but stopped; its memory stays reserved")
    return [*notes, *speed_text.notes(names)]


def _combinations(
    services: Iterable[Mapping[str, Any]], further_sets: Mapping[str, Sequence[Sequence[str]]]
) -> list[str]:
    """Return the combinations of each on-demand set. further_sets: combinations of sets without a listed service."""
    planned = [service["on_demand"] for service in services if service.get("on_demand")]
    sets = {**further_sets, **{entry["set"]: entry["combinations"] for entry in planned}}
    return [
        f"set {name}: at most these run together: {' or '.join(map(' + '.join, combinations))}"
        for name, combinations in sorted(sets.items(), key=lambda item: str(item[0]))
        if name and combinations
    ]


_SOURCES = {"image": "by the vLLM of the image", "given": "as the recipe or the inventory gives them"}
"""Words for sources of figures that say too little by themselves."""


def source_notes(services: Iterable[Mapping[str, Any]]) -> list[str]:
    """Say of the weights and the KV caches of services what they rest on, those together that rest on the same."""
    by_source: dict[str, list[str]] = {}
    for service in services:
        sources = service["memory"].get("sources") or {}
        for figure in ("weights", "kv_cache"):
            if figure in sources:
                alike = sources.get("weights") == sources.get("kv_cache")
                figures = "weights and KV cache" if alike else figure.replace("kv_cache", "KV cache")
                by_source.setdefault(f"{figures} {_SOURCES.get(sources[figure], sources[figure])}", []).append(
                    service["name"]
                )
        for part in service["memory"].get("host_memory") or ():
            if part["gib"]["typical"] >= 0.05:
                text = f"{size_text(part['gib']['typical'])} GiB of host memory for {part['name']}"
                text += "" if part["at_start"] else " once requests have filled it"
                by_source.setdefault(text, []).append(service["name"])
        if "overheads" in sources:
            by_source.setdefault(f"overheads {sources['overheads']}", []).append(service["name"])
    return speed_text.names_first(dict(sorted(by_source.items())))


def room_text(body: Mapping[str, Any]) -> str:
    """Say how much of a host's memory stays free, or how much is missing."""
    over = over_gib(body)
    return f"{over:.1f} GiB over" if over else f"{free_gib(body):.1f} GiB free"


def basis_text(body: Mapping[str, Any]) -> str:
    """Say what a host's plan rests on."""
    return f"planned from {'the host itself' if body['basis'] == 'measured' else 'the inventory'}"


def plan_text(
    plan: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    width: int = 79,
    color: bool = False,
    page: str = "",
    notes: bool = True,
) -> str:
    """Return the whole plan: the hosts' memory, then the findings, then how it stands. notes: print those of severity C(info), or count them."""
    groups = host_groups(plan)
    blocks = [legend(color)] if groups else []
    blocks += [_fleet_lines(groups, width, color)] if len(groups) > MOST_TABLES else _host_blocks(groups, width, color)
    advice = speed_text.advice(service for group in groups for service in group.body["services"]) if notes else []
    blocks += ["\n".join([f"{speed_text.ADVICE}:", *(f"- {line}" for line in advice)])] if advice else []
    blocks.append(findings_text(findings, color, notes))
    blocks += [] if notes else [notes_text(findings)]
    blocks.append(summary_text(plan, findings) + (f" More in {page}" if page else ""))
    return "\n\n".join(block for block in blocks if block)


def _host_blocks(groups: Sequence[HostGroup], width: int, color: bool) -> list[str]:
    """Return a block for each of a few hosts, then the meaning of signs and labels in them."""
    blocks = [_host_block(group, width, color) for group in groups]
    services = [service for group in groups for service in group.body["services"]]
    if any("*" in cell for service in services for cell in service_cells(service)):
        blocks.append(paint("* calculated; not set in the inventory", "dim", color))
    sets = {name: combinations for group in groups for name, combinations in (group.body.get("sets") or {}).items()}
    labels = label_notes(services, sets)
    return [*blocks, paint("\n".join(labels), "dim", color)] if labels else blocks


def _host_block(group: HostGroup, width: int, color: bool) -> str:
    body, span = group.body, group.span
    head = (
        f"{group.title}: {paint(group.verdict, standing(body), color)}, {group.room} of {body['total_gib']:.2f}, "
        f"utilisation {body['utilization_sum']:.2f}, {basis_text(body)}{f', {span}' if span else ''}"
    )
    rows = [service_cells(service, group.ranks(service["name"])) for service in body["services"]]
    inner = max(SHORTEST_BAR, min(LONGEST_BAR, width - 2) - 2)
    bar = f"[{memory_bar(body, inner, color)}]\n {bar_names(body, inner, color)}".rstrip()
    inside = [bar, table(HEADER, rows) if rows else "no services"]
    speeds = speed_text.speed_rows(group.timed())
    inside += ["", table(speeds[0], speeds[1:])] if speeds else []
    return f"{head}\n" + textwrap.indent("\n".join(inside), "  ")


def _fleet_lines(groups: Sequence[HostGroup], width: int, color: bool) -> str:
    """Return a line for each of many hosts, the worst first."""
    worst = worst_first(groups)
    shown, hidden = worst[:MOST_LINES], worst[MOST_LINES:]
    titles = [group.hosts[0] + (f" +{len(group.hosts) - 1}" if len(group.hosts) > 1 else "") for group in shown]
    column = max(len(title) for title in titles)
    # Besides the bar: the name, the verdict (5) and the free memory (14), two blanks between them and the brackets (8).
    inner = max(SHORTEST_BAR, min(LONGEST_BAR, width - column - 5 - 14 - 8))
    lines = []
    for title, group in zip(titles, shown):
        verdict = standing(group.body)
        lines.append(
            f"{title:{column}}  {paint(f'{verdict:5}', verdict, color)}  [{memory_bar(group.body, inner, color)}]  "
            f"{room_text(group.body):>14}"
        )
    if hidden:
        counts = Counter(standing(group.body) for group in hidden for _host in group.hosts)
        lines.append(f"and {sum(counts.values())} hosts more: " + _counts_text(counts))
    return "\n".join(lines)


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[key]} {FATES[key][counts[key] != 1]}" for key in reversed(VERDICTS) if counts.get(key))


def summary_text(plan: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> str:
    """Say in one line how the plan stands."""
    verdicts = Counter(standing(body) for body in plan["hosts"].values())
    severities = count_severities(findings)
    counts = [
        f"{severities[key]} {key}{'s'[: severities[key] != 1]}" for key in ("error", "warning") if severities[key]
    ]
    hosts = len(plan["hosts"])
    return (
        f"{hosts} host{'s'[: hosts != 1]}: {_counts_text(verdicts)}; {', '.join(counts) or 'no errors, no warnings'}."
    )
