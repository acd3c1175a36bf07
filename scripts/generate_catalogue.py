#!/usr/bin/env python3
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write plugins/module_utils/_vllm/catalogue_data.py and the table of tests/catalogue/README.md from the vLLM packages themselves.

    make catalogue VERSION=0.34.0     read one version more, or one again
    make catalogue                    read every published version from 0.10.1.1 on that is not in the catalogue yet
    generate_catalogue.py --all       read every version anew

A package is found and fetched by pip, so its configuration (index, proxy, certificates) is what counts. Each version's parser is
then read by catalogue_probe.py. New, removed and changed names are printed. A version whose sources have an
unexpected layout, or whose tables are suspiciously small, is an error and nothing is written.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from common import CACHE, ROOT, Stopwatch, tool_env, with_tables

sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, catalogue_data

DATA = ROOT / "plugins" / "module_utils" / "_vllm" / "catalogue_data.py"
PAGE = ROOT / "tests" / "catalogue" / "README.md"
MARK = r"<!-- catalogue: scripts/generate_catalogue\.py -->"
PROBE = ROOT / "scripts" / "catalogue_probe.py"
WORK = CACHE / "catalogue"
OLDEST = "0.10.1.1"

# Packages that the probe needs; stand-ins replace all others.
PROBE_NEEDS = ("pydantic==2.14.3", "msgspec", "packaging", "PyYAML", "regex", "typing_extensions")

# Packages whose versions decide what can be loaded or run; the rules compare them with the packages of an image.
PINS = ("torch", "transformers", "ray", "flashinfer-python")

# The tables of a version: the smallest plausible number of names, and the title. 0 marks tables of later versions. Fewer names
# mean that the version was not understood.
TABLES = {
    "options": (165, "options of vllm serve"),
    "environment": (150, "environment variables"),
    "architectures": (180, "model architectures"),
    "without_adapters": (0, "model architectures that take no LoRA adapters"),
    "tool_parsers": (18, "tool parsers"),
    "reasoning_parsers": (8, "reasoning parsers"),
    "quantizations": (20, "quantisation methods"),
    "deprecated_quantizations": (0, "quantisation methods that need --allow-deprecated-quantization or warn"),
    "load_formats": (12, "load formats"),
    "kv_cache_dtypes": (5, "KV cache dtypes"),
    "spec_methods": (6, "speculative methods"),
    "executor_backends": (4, "executor backends"),
    "attention_backends": (15, "attention backends"),
    "moe_backends": (0, "MoE backends"),
    "linear_backends": (0, "linear backends"),
    "all2all_backends": (0, "all-to-all backends"),
    "json_keys": (50, "keys of JSON options"),
    "http_paths": (20, "paths of the HTTP server"),
    "guarded_prefixes": (1, "beginnings of paths that the API key is asked for"),
    "requirements": (4, "requirements"),
    "traits": (1, "traits of the parser"),
}
LOST = 0.7  # share of its predecessor's names below which a version was not understood

# One version: table -> name -> details as (sign, text) pairs: ":" the kind, ">" the default, and tokens that contain
# their sign.
Snapshot = dict[str, dict[str, frozenset[tuple[str, str]]]]


class Failed(Exception):
    """The catalogue cannot be written."""


# --- packages -----------------------------------------------------------------------------------------------------


def order(text: str) -> tuple[int, ...]:
    """Sort key of a released version."""
    return tuple(int(part) for part in text.split("."))


class Index:
    """The package index that pip is configured for. pip has no command that only downloads a source archive."""

    def __init__(self) -> None:
        try:
            from pip._internal.commands.index import IndexCommand
            from pip._internal.models.target_python import TargetPython

            command = IndexCommand("index", "")
            options, _arguments = command.parse_args(["versions", "vllm"])
            with command.main_context():
                self._session = command._build_session(options)
                finder = command._build_package_finder(
                    options=options, session=self._session, target_python=TargetPython(), ignore_requires_python=True
                )
                candidates = finder.find_all_candidates("vllm")
        except (ImportError, AttributeError, TypeError) as error:
            raise Failed(f"this pip cannot be used to list packages ({error})") from error
        # One link a version: its source archive, else the first wheel; no yanked and no pre-release.
        self._links: dict[str, Any] = {}
        for candidate in candidates:
            text, link = str(candidate.version), candidate.link
            if link.is_yanked or not re.fullmatch(r"\d+(\.\d+)+", text):
                continue
            if text not in self._links or link.filename.endswith(".tar.gz"):
                self._links[text] = link

    def versions(self) -> list[str]:
        """Return the published versions for the catalogue, oldest first."""
        return sorted((text for text in self._links if order(text) >= order(OLDEST)), key=order)

    def sources(self, text: str) -> Path:
        """Return the unpacked sources of one version, which are fetched once."""
        target = WORK / "sources" / text
        if target.is_dir():
            return target
        if text not in self._links:
            raise Failed(f"vLLM {text} is not published; published are {', '.join(self.versions())}")
        link = self._links[text]
        print(f"fetching {link.filename} ...", flush=True)
        answer = self._session.get(link.url)
        answer.raise_for_status()
        if link.hash and hashlib.new(link.hash_name, answer.content).hexdigest() != link.hash:
            raise Failed(f"{link.filename} is not what the index says it is")
        target.parent.mkdir(parents=True, exist_ok=True)
        unpack(link.filename, answer.content, target)
        return target


def unpack(name: str, content: bytes, target: Path) -> None:
    """Keep the Python sources and the metadata of an archive."""
    files: dict[str, bytes] = {}
    if name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                inside = member.name.partition("/")[2]
                if member.isfile() and (is_source(inside) or inside == "PKG-INFO"):
                    stream = archive.extractfile(member)
                    files[inside] = stream.read() if stream else b""
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            for inside in wheel.namelist():
                if is_source(inside):
                    files[inside] = wheel.read(inside)
                elif re.fullmatch(r"vllm-[^/]*\.dist-info/METADATA", inside):
                    files["METADATA"] = wheel.read(inside)
    if not files:
        raise Failed(f"{name} holds no sources of vLLM")
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for inside, data in files.items():
        path = part / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    part.rename(target)


def is_source(inside: str) -> bool:
    """Tell whether the probe may import a file of an archive; its path cannot leave the folder."""
    return inside.startswith("vllm/") and inside.endswith(".py") and ".." not in inside.split("/")


# --- one version --------------------------------------------------------------------------------------------------


def probe_python() -> Path:
    """Return a Python with the few packages that the probe needs."""
    home = WORK / "env"
    stamp = home / "needs"
    needs = "\n".join((sys.version, *PROBE_NEEDS))
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != needs:
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", *PROBE_NEEDS], check=True)
        stamp.write_text(needs, encoding="utf-8")
    return home / "bin" / "python"


def probe(text: str, tree: Path) -> dict[str, Any]:
    """Ask one version what it accepts."""
    env = {key: value for key, value in tool_env().items() if not key.startswith(("VLLM_", "PYTHON"))}
    done = subprocess.run(
        [str(probe_python()), str(PROBE), str(tree)], text=True, capture_output=True, check=False, env=env
    )
    if done.returncode:
        raise Failed(f"vLLM {text} could not be read:\n{done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def snapshot(answer: Mapping[str, Any]) -> Snapshot:
    """Return the answer of the probe as tables."""
    tables: Snapshot = {name: {} for name in TABLES}
    for option in answer["options"]:
        tables["options"][option["name"]] = details_of_option(option)
    for table, names in answer["tables"].items():
        for name in names:
            head, _equals, choices = name.partition("=")
            kind = ""
            if table in ("environment", "http_paths"):
                head, _colon, kind = head.rpartition(":") if table == "http_paths" else head.partition(":")
            details = {("", f"={word}") for word in choices.split(",") if word}
            tables[table][head] = frozenset(details | ({(":", kind)} if kind else set()))
    for name in answer["traits"]:
        tables["traits"][name] = frozenset()
    tables["requirements"].update(requirements_of(answer["requires"]))
    tables["requirements"]["python"] = frozenset({(">", answer["python"])})
    refer_to_tables(tables)
    return tables


def details_of_option(option: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return kind, default, spellings, choices and remarks of an option."""
    default = json.dumps(option["default"], sort_keys=True, separators=(",", ":"))
    texts = [
        *option["aliases"],
        *(f"={word}" for word in option["choices"]),
        *(f"~{word}" for word in option["suggested"]),
        *(["!deprecated"] if option["deprecated"] else []),
    ]
    return frozenset({(":", option["kind"]), (">", default), *(("", text) for text in texts)})


def requirements_of(lines: Iterable[str]) -> dict[str, frozenset[tuple[str, str]]]:
    """Return the bounds of the packages in C(PINS)."""
    requirements = {}
    for line in lines:
        match = re.fullmatch(r"([\w.-]+)(\[[\w,-]+\])?\s*([^;]*)(?:;.*)?", line)
        package = match.group(1).replace("_", "-").lower() if match else ""
        if match and package in PINS:
            bounds = ",".join(sorted(part.strip() for part in match.group(3).strip(" ()").split(",")))
            requirements[package] = frozenset({(">", (match.group(2) or "") + bounds or "any")})
    return requirements


def refer_to_tables(tables: Snapshot) -> None:
    """Write the choices that are just the names of a table as a reference to it."""
    lists = {
        frozenset(tables[name]): name
        for name in sorted(tables, reverse=True)
        if name.endswith(("_backends", "_methods", "_dtypes")) and len(tables[name]) > 4
    }
    for table in ("options", "json_keys"):
        for name, details in tables[table].items():
            for sign in "=~":
                words = frozenset(text[1:] for kind, text in details if not kind and text[0] == sign)
                if words in lists:
                    details = frozenset(detail for detail in details if detail[0] or detail[1][0] != sign) | {
                        ("", f"{sign}@{lists[words]}")
                    }
            tables[table][name] = details


def check(text: str, answer: Mapping[str, Any], tables: Snapshot, before: Snapshot | None) -> None:
    """Refuse a version that was not understood."""
    problems = []
    for table, (fewest, title) in TABLES.items():
        count, last = len(tables[table]), len((before or {}).get(table, {}))
        if count < fewest or (last > 10 and count < LOST * last):
            problems.append(f"{count} {title}, expected at least {max(fewest, int(LOST * last))}")
    for option in answer["options"]:
        expected = negatives(option, "enable-disable-pairs" in answer["traits"])
        if set(option["negatives"]) != expected:
            problems.append(f"--{option['name']} is negated by {option['negatives']}, expected {sorted(expected)}")
        if re.search(r"\d$|\*\*", option["kind"]):
            problems.append(f"--{option['name']} takes values as no option before: {option['kind']}")
    problems += unwritable_names(tables)
    if problems:
        raise Failed(f"vLLM {text} is not understood:\n  " + "\n  ".join(problems))


def unwritable_names(tables: Snapshot) -> Iterator[str]:
    """Yield the names whose details contain separators of the catalogue's lines."""
    for name, details in (item for names in tables.values() for item in names.items()):
        for sign, word in details:
            if "\n" in word or (not sign and ("|" in word or " " in word)) or re.search(r"[| ]", name):
                yield f"{name}: {word!r} cannot be written down"


def negatives(option: Mapping[str, Any], pairs: bool) -> set[str]:
    """Return the spellings that switch an option off, as launch.py makes them up."""
    if option["kind"] != "switch":
        return set()
    long = [f"--{option['name']}", *(alias for alias in option["aliases"] if alias.startswith("--"))]
    spellings = {f"--no-{spelling[2:]}" for spelling in long}
    for spelling in long if pairs else ():
        verb, _dash, noun = spelling[2:].partition("-")
        if verb in ("enable", "disable"):
            spellings.add(f"--{'disable' if verb == 'enable' else 'enable'}-{noun}")
    return spellings


# --- all versions -------------------------------------------------------------------------------------------------


def written(data: ModuleType = catalogue_data) -> dict[str, Snapshot]:
    """Return the present catalogue, version by version."""
    snapshots: dict[str, Snapshot] = {}
    for number, text in enumerate(data.VERSIONS.split()):
        bit = 1 << number
        snapshots[text] = {
            table: {
                name: frozenset(
                    {(":", value) for value, span in item.kinds if span.bits & bit}
                    | {(">", value) for value, span in item.defaults if span.bits & bit}
                    | {("", token) for token, span in item.tokens if span.bits & bit}
                )
                for name, item in catalogue.items(table).items()
                if item.span.bits & bit
            }
            for table in data.TABLES
        }
    return snapshots


WIDTH = 140
"""Characters of a line of versions or choices."""


def render(snapshots: Mapping[str, Snapshot]) -> str:
    """Return the text of catalogue_data.py, whose documentation stays."""
    texts = sorted(snapshots, key=order)
    header, begin, remainder = DATA.read_text(encoding="utf-8").partition('VERSIONS = """\\\n')
    comment = remainder.partition('"""\n')[2].partition("TABLES = {\n")[0]
    versions = "".join(f"{line}\n" for line in textwrap.wrap(" ".join(texts), WIDTH))
    parts = [header, begin, versions, '"""\n', comment, "TABLES = {\n"]
    for table, (_fewest, title) in TABLES.items():
        parts.append(f'    # {title}\n    "{table}": r"""\n')
        names = sorted({name for version_snapshot in snapshots.values() for name in version_snapshot[table]})
        alike: dict[str, list[str]] = {}
        detailed = []
        for name in names:
            head, *details = render_item([snapshots[text][table].get(name) for text in texts], texts)
            if details:
                detailed += [f"{name}{head}", *details]
            else:
                alike.setdefault(head, []).append(name)
        parts += [*side_by_side(alike, ""), *detailed]
        parts.append('""",\n')
    return "".join([*parts, "}\n"])


def side_by_side(alike: Mapping[str, list[str]], indent: str) -> list[str]:
    """Return lines of words with the same ending. alike: ending to words."""
    return [
        f"{indent}{line}{ending.rstrip()}\n"
        for ending, words in alike.items()
        for line in textwrap.wrap(" ".join(words), WIDTH - len(ending), break_long_words=False, break_on_hyphens=False)
    ]


def render_item(by_version: list[frozenset[tuple[str, str]] | None], texts: list[str]) -> Iterable[str]:
    """Yield the lines of one name, the first without the name."""
    having = [details is not None for details in by_version]
    span = render_span(having, texts)
    heads = {}
    lines = []
    for sign in ":>":
        per = versions_with(sign, by_version)
        if list(per.values()) == [having]:
            heads[sign] = next(iter(per))
        else:
            by_age = sorted(per, key=lambda value: per[value].index(True))
            lines += [f" {sign}|{render_span(per[value], texts)}|{value}\n" for value in by_age]
    alike: dict[str, list[str]] = {}
    for token, versions in versions_with("", by_version).items():
        alike.setdefault("" if versions == having else f"|{render_span(versions, texts)}", []).append(token)
    lines += side_by_side(alike, " ")
    yield f"|{span}|{heads.get(':', '')}|{heads.get('>', '')}".rstrip("|") + "\n"
    yield from lines


def versions_with(sign: str, by_version: list[frozenset[tuple[str, str]] | None]) -> dict[str, list[bool]]:
    """Return the details with a sign, sorted, and for each of them the versions that have it."""
    values = sorted({text for details in by_version for kind, text in details or () if kind == sign})
    return {value: [(sign, value) in (details or ()) for details in by_version] for value in values}


def render_span(having: list[bool], texts: list[str]) -> str:
    """Write which versions have something, as catalogue.parse_span reads it."""
    if all(having):
        return ""
    runs = []
    for number, has in enumerate(having):
        if has and (number == 0 or not having[number - 1]):
            runs.append([number, number])
        elif has:
            runs[-1][1] = number
    last = len(texts) - 1
    return ",".join(
        texts[first] if first == end < last else f"{texts[first] if first else ''}-{texts[end] if end < last else ''}"
        for first, end in runs
    )


# --- words --------------------------------------------------------------------------------------------------------


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the differences between two versions in words."""
    lines = []
    for table, (_fewest, title) in TABLES.items():
        old, new = spelled_out(before, table), spelled_out(after, table)
        prefix = "--" if table == "options" else ""
        for verb, names in (("added", new.keys() - old.keys()), ("removed", old.keys() - new.keys())):
            if names:
                lines.append(f"{title}, {verb}: {', '.join(prefix + name for name in sorted(names))}")
        for name in sorted(old.keys() & new.keys()):
            if changes := "; ".join(filter(None, (change(sign, old[name], new[name]) for sign in (":", ">", "")))):
                lines.append(f"{title}, changed: {prefix}{name}: {changes}")
    return lines


def spelled_out(tables: Snapshot, table: str) -> dict[str, frozenset[tuple[str, str]]]:
    """Return a table with the references to other tables written out."""
    return {
        name: frozenset(
            detail
            for sign, text in details
            for detail in (
                [("", f"{text[0]}{word}") for word in tables[text[2:]]]
                if not sign and text[1:2] == "@"
                else [(sign, text)]
            )
        )
        for name, details in tables.get(table, {}).items()
    }


def change(sign: str, old: frozenset[tuple[str, str]], new: frozenset[tuple[str, str]]) -> str:
    """Return the change of one name in words."""
    gone = sorted(text for kind, text in old - new if kind == sign)
    come = sorted(text for kind, text in new - old if kind == sign)
    if not gone and not come:
        return ""
    if sign:
        return f"{'kind' if sign == ':' else 'default'} {' '.join(gone) or 'none'} is now {' '.join(come) or 'none'}"
    words = {"-": "spelling ", "=": "choice ", "~": "suggestion ", "!": ""}
    parts = [("without", text) for text in gone] + [("with", text) for text in come]
    return ", ".join(f"{how} {words[text[0]]}{text if text[0] == '-' else text[1:]}" for how, text in parts)


def page(snapshots: Mapping[str, Snapshot]) -> str:
    """Return tests/catalogue/README.md with the table of versions; consecutive versions with the same cells share a row."""
    head = ["options", *(name.capitalize() if name == "python" else name for name in REQUIREMENTS)]
    lines = [f"| version | {' | '.join(head)} |", "| --- | ---: |" + " --- |" * len(REQUIREMENTS)]

    def cells(version: str) -> tuple[str, ...]:
        needs = snapshots[version]["requirements"]
        required = (next((value for _sign, value in needs.get(name, ())), "-") for name in REQUIREMENTS)
        return str(len(snapshots[version]["options"])), *required

    for row, versions in itertools.groupby(sorted(snapshots, key=order), cells):
        lines.append(f"| {', '.join(versions)} | {' | '.join(row)} |")
    return with_tables(PAGE.read_text(encoding="utf-8"), MARK, lambda _match: "\n".join(lines), count=1)


REQUIREMENTS = ("python", *PINS)


# --- the command --------------------------------------------------------------------------------------------------


def read(texts: list[str], snapshots: dict[str, Snapshot], index: Index) -> None:
    """Read versions into C(snapshots) and print the differences of each."""
    for text in texts:
        watch = Stopwatch()
        answer = probe(text, index.sources(text))
        tables = snapshot(answer)
        older = [other for other in sorted(snapshots, key=order) if order(other) < order(text)]
        before = snapshots[older[-1]] if older else None
        check(text, answer, tables, before)
        known, label = before, older[-1] if older else "nothing"
        if text in snapshots:
            known, label = snapshots[text], "what was known of it"
        lines = differences(known, tables) if known else []
        print(f"== vLLM {text} against {label} ({watch})")
        print("\n".join(f"   {line}" for line in lines) or "   no difference", flush=True)
        snapshots[text] = tables


def main() -> int:
    """Bring the catalogue up to date; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="append", default=[], metavar="X.Y.Z", help="read this version")
    parser.add_argument("--all", action="store_true", help="read every published version anew")
    options = parser.parse_args()
    try:
        snapshots = {} if options.all else written()
        index = Index()
        published = index.versions()
        texts = options.version or [text for text in published if options.all or text not in snapshots]
        if not texts:
            print(f"Nothing new: the newest version published is {published[-1]}.")
        read(sorted(texts, key=order), snapshots, index)
        text = render(snapshots)
        if DATA.read_text(encoding="utf-8") != text:
            DATA.write_text(text, encoding="utf-8")
            print(f"Wrote {DATA.relative_to(ROOT)}: {len(text) // 1000} kB, {len(snapshots)} versions.")
        PAGE.write_text(page(snapshots), encoding="utf-8")
    except Failed as error:
        print(f"generate_catalogue: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
