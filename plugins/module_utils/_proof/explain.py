# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain the log of an engine: stage of its start, last words, cause and fix. Pure functions.

The last words are classified by the table of reported failures (C(known_failures.ROWS)) and by kinds (C(log_signs.SIGNS)). A log may
come from docker, docker compose, kubectl, journalctl or a shell, with their prefixes; it is data of a stranger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from .._common.redaction import Redactor
from .._runtime import start_stages
from .._vllm import known_failures, versions
from .host_log_signs import CONTAINER, Sign
from .log_signs import SIGNS

NONE, UNKNOWN = "none", "unknown"
"""Ids of the answer where a log has no failure, and where it has one that nothing here knows."""
LONGEST_LINE = 4000  # characters; errors of pydantic quote whole configurations
LONGEST_WORDS = 8000  # characters of an error that are searched
LONGEST_ERROR = 1500  # characters of an error that are shown
MOST_LINES, FIRST_LINES = 10_000, 1_000
"""Lines that are read of a longer log: these many at its begin, the others at its end. A start prints some hundreds."""
MOST_WORDS = 200
"""Last words that are looked at; a log that repeats itself has thousands."""
LAST_LINES = 5
"""Lines at the end of a log that tell what it waits for."""

# ESC [ ... m and other sequences of terminals; then all control characters but the tab.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
# What other programs put before a line: journalctl, docker logs --timestamps, docker compose, kubectl.
_OUTER = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S* (?:\S+ [^\s:\[]+\[\d+\]: )?"
    r"|\[pod/[^\]\s]+\] "
    r"|[\w.-]{1,64} +\| ?)+"
)
# Who prints (API server, engine, worker; Ray), the level and the time of vLLM's own lines, and their place in its source.
_WHO = re.compile(r"^(?:\((?:[\w ]+?)(?:_[A-Z]+\d+)* ?(?:pid=\d+)?(?:, ip=[\d.]+)?\) ?)+")
_LEVEL = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?P<place>[^\]]+)\] ?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Refusal)(?:: .*|$)")
# Exceptions of packages whose class is not called an error, as Triton's OutOfResources; only as the end of a traceback.
_NAMED_EXCEPTION = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z]\w*: ")
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line \d+, in (?P<function>\S+)')
_PACKAGE = re.compile(r".*?(?:site|dist)-packages/(?P<inside>vllm/.+)|.*/(?P<source>vllm/[\w/]+\.py)")
# These only say that another process has failed, and that its reason stands above.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Engine process failed to start|EngineDeadError|"
    r"EngineCore encountered an issue|See root cause above|See stack trace|Connection (?:closed|reset) by peer|died unexpectedly|"
    r"Worker failed with error"
)
# Last words without a traceback: argparse, Docker, the container runtime, shells, the kernel by systemd, answers to requests.
_LAST_WORDS = re.compile(
    r"^(?:[\w./-]+(?: [\w-]+)?: )?error: |^docker: |Error response from daemon|ermission denied while trying to connect|"
    r"^Cannot connect to the Docker daemon|exec format error|executable file not found|command not found$|^\S*sh: .*not found$|"
    r"nvidia-container-cli: |NVIDIA-SMI has failed|^Failed to initialize NVML|^modprobe: ERROR|compatibility mode is UNAVAILABLE|"
    r"Main process exited, code=(?:killed|exited, status=137)|killed by the OOM killer|Out of memory: Killed process|^Killed$|exited with code 137|"
    r"Segmentation fault|^Fatal Python error|^terminate called|[Bb]us error|^ray\.exceptions\.|^Error: |Failed to connect to GCS|"
    r"Watchdog caught collective|^curl: \(\d+\)|^\{\"(?:error|object)\": ?[{\"]|^\[?(?:rank\d+)?.*ProcessGroupNCCL.*(?:exception|timeout)|"
    r"^ptxas fatal|^nvcc fatal|^This kernel only supports|^unknown (?:shorthand )?flag: |FailedScheduling|Failed to create pod sandbox|"
    r"^\s*Reason: +OOMKilled|error while attempting to bind on address"
)
# Lines that a start may print and go on; they name a cause only where the start failed.
_WARNINGS = re.compile(r"NCCL WARN |\[c10d\].*(?:failed|timed out)|System has unsupported display driver")
# What follows an exception and belongs to something else.
_NEXT = ("Traceback", "Process ", "During handling", "The above exception", "[", "INFO:", "WARNING:", "ERROR:")
_VERSION = re.compile(
    r"V1 LLM engine \(v(?P<engine>[^)\s]+)\)|API server version (?P<server>\S+)|[▀▄█] +version (?P<banner>\S+)"
)
_STARTED = re.compile(
    r"non-default args|API server version|LLM engine|\(EngineCore|\(APIServer|\(Worker|\(RayWorker|Application startup"
)


@dataclass(frozen=True)
class Explanation:
    """The meaning of a log.

    id: of the row or the sign, C(NONE) or C(UNKNOWN). stage: one of C(start_stages.STAGES), or C(container). error: the last words of the
    program, cleaned of secrets; empty without any. cause, fix, source: texts; fix is empty where none is known.
    """

    id: str
    stage: str
    error: str
    cause: str
    fix: str
    source: str

    def to_dict(self) -> dict[str, str]:
        """Return the fields by name."""
        return asdict(self)

    @property
    def is_known(self) -> bool:
        """Whether the log has a failure, and its cause is known."""
        return self.id not in (NONE, UNKNOWN)

    def lines(self) -> list[str]:
        """Return the explanation as labelled lines; further lines of the error are indented."""
        first, *further = (self.error or "none found").splitlines()
        return [
            f"Stage: {self.stage}",
            f"Error: {first}",
            *(f"       {line}" for line in further),
            f"Cause: {self.cause}",
            f"Fix: {self.fix or 'none known'}",
            f"Source: {self.source}",
        ]


@dataclass(frozen=True)
class _Words:
    """Last words of a process: its text, whether it only points to another process, whether it is only a warning, and the last frames."""

    text: str
    is_second_hand: bool = False
    is_warning: bool = False
    frame: str = ""
    """File and function inside vLLM where it was raised, empty outside of vLLM."""
    traceback: str = ""


def clean_lines(text: str) -> list[str]:
    """Return the lines of a log without escape sequences, control characters and the prefixes of other programs; long lines are cut."""
    lines = re.split(r"\r\n|\n|\r", text)
    if len(lines) > MOST_LINES:
        lines = [*lines[:FIRST_LINES], *lines[FIRST_LINES - MOST_LINES :]]
    plain = (_CONTROLS.sub("", _ESCAPES.sub("", line[: 2 * LONGEST_LINE]))[:LONGEST_LINE] for line in lines)
    return [_OUTER.sub("", line, count=1) for line in plain]


def explain(lines: Iterable[str], redactor: Redactor | None = None) -> Explanation:
    """Explain the newest start in a log. redactor: knows secret values of the host; known forms of keys are taken out without it, too."""
    cleaned = clean_lines("\n".join(lines))
    log = start_stages.newest_start(cleaned)
    version = _version_of(cleaned)  # printed above the line that newest_start begins with
    stage = start_stages.stage_of(log)
    last_words = list(_last_words(log))
    answer = _answer(last_words, log, version, stage)
    has_engine = any(_STARTED.search(line) for line in log)
    if answer is not None:
        kind, words, texts = answer
        name = str(kind.id if isinstance(kind, Sign) else kind["id"])
        of_docker = words is not None and "Error response from daemon" in words.text
        if not has_engine and (of_docker or getattr(kind, "stage", "") == CONTAINER):
            stage = CONTAINER
    else:
        words = next((word for word in last_words if not word.is_warning), None)
        name = UNKNOWN if words or stage != "serving" else NONE
        texts = _no_answer(words, stage, has_engine)
    redactor = redactor or Redactor(())
    # Redacted as a whole, before it is cut: a part of a secret is no secret by its form.
    error = redactor.clean(words.text)[:LONGEST_ERROR] if words else ""
    cause, fix, source = (redactor.clean(text) for text in texts)
    return Explanation(name, stage, error, cause, fix, source)


def _version_of(log: Sequence[str]) -> versions.Version | None:
    """Return the version of vLLM that a log names last; None for builds of forks (0.1.dev...)."""
    named = (next(filter(None, match.groups())) for line in reversed(log) if (match := _VERSION.search(line)))
    return next((known for known in map(versions.parse_version, named) if known and known.release >= (0, 2, 0)), None)


_Kind = Any  # a Sign, a row, or _VLLM_CHECK
_VLLM_CHECK = {"id": "vllm_check"}
_Answer = tuple[_Kind, "_Words | None", tuple[str, str, str]]
_CHECKS = re.compile(
    r"^(?:\S+\.)?(?:AssertionError|ValueError|NotImplementedError|TypeError|ValidationError)\b(?!.*Failed core proc)"
)


def _answer(
    last_words: Sequence[_Words], log: Sequence[str], version: versions.Version | None, stage: str
) -> _Answer | None:
    """Find the kind of a failure.

    The first words with a row or sign decide. Warnings, and errors that only point to another process, come last.
    :returns: the row or sign, the words, and cause, fix and source; None if nothing is known
    """
    first_hand = [words for words in last_words if not words.is_second_hand and not words.is_warning]
    second_hand = [] if first_hand else [words for words in last_words if words.is_second_hand]
    warnings = [words for words in last_words if words.is_warning] if first_hand or stage != "serving" else []
    specific = (_specific_answer(words, version) for words in (*first_hand, *warnings, *second_hand))
    answer = next(filter(None, chain(specific, map(_generic_answer, first_hand))), None)
    if answer or first_hand or second_hand:
        return answer
    return _by_line(log, version)


def _specific_answer(words: _Words, version: versions.Version | None) -> _Answer | None:
    """Return the row, or else the first specific sign, that last words match."""
    for row in known_failures.ROWS:
        symptom = row.get("symptom")
        if symptom and not row.get("last") and re.search(symptom, words.text) and _row_fits(row, version):
            return row, words, _row_texts(row, version)
    for sign in SIGNS:
        match = None if sign.generic or sign.waits else sign.pattern.search(words.text)
        if match is None and sign.id == "compile_cache":
            match = sign.pattern.search(words.traceback)
        if match is not None:
            return sign, words, _sign_texts(sign, match)
    return None


def _generic_answer(words: _Words) -> _Answer | None:
    """Return the generic sign, or else the check of vLLM, that last words match."""
    for sign in SIGNS:
        match = sign.pattern.search(words.text) if sign.generic else None
        if match is not None:
            return sign, words, _sign_texts(sign, match)
    if words.frame and _CHECKS.match(words.text):
        where = words.frame
        cause = f"a check of vLLM refuses these options or this model ({where}); no table has this text"
        fix = "change the options or the model that the error names; plan.yml may name the rule"
        return _VLLM_CHECK, words, (cause, fix, f"the check in {where}")
    return None


def _by_line(log: Sequence[str], version: versions.Version | None) -> _Answer | None:
    """Search a log without last words line by line: for slow kernels, and at its end for ranks that wait."""
    written = [line for line in log if line.strip()]
    for row in known_failures.ROWS:
        lines = written[-LAST_LINES:] if row.get("last") else written
        symptom = row.get("symptom")
        has_symptom = symptom and any(re.search(symptom, line) for line in lines)
        if has_symptom and row["verdict"] != "does not start" and _row_fits(row, version):
            return row, None, _row_texts(row, version)
    for sign in SIGNS:
        for line in written[-LAST_LINES:] if sign.waits else ():
            match = sign.pattern.search(line)
            if match is not None:
                return sign, None, _sign_texts(sign, match)
    return None


def _row_fits(row: Mapping[str, Any], version: versions.Version | None) -> bool:
    """Tell whether a row may speak of this version.

    A symptom that is not unique to its versions (C(by_version)) needs a version of the range; any other is refuted only by a known one
    outside of the range. Development builds count as their release.
    """
    if version is None:
        return not row.get("by_version")
    release = version.release
    first, before = (versions.version(row[key]).release if key in row else None for key in ("first", "before"))
    return (first is None or release >= first) and (before is None or release < before)


def _row_texts(row: Mapping[str, Any], version: versions.Version | None) -> tuple[str, str, str]:
    text = {"version": version or "of these versions"}
    source = f"row {row['id']} of known_failures.md: {row['source']} (read {row['date']})"
    return row["message"].format(**text).rstrip("."), row["fix"].format(**text).rstrip("."), source


def _sign_texts(sign: Sign, match: re.Match[str]) -> tuple[str, str, str]:
    groups = {name: (value or "").strip() for name, value in match.groupdict().items()}
    source = f"sign {sign.id} of known_failures.md" + (f"; in the plan: {sign.rule}" if sign.rule else "")
    return sign.cause.format(**groups), sign.fix.format(**groups), source


def _no_answer(words: _Words | None, stage: str, has_engine: bool) -> tuple[str, str, str]:
    """Return cause, fix and source for a log that no table explains."""
    if words is not None and words.is_second_hand:
        cause = "unknown: this error only says that another process failed, and the log does not have that process's own error"
        return cause, "read the log from its beginning, and the logs of the other ranks", UNKNOWN
    if words is not None:
        where = f" It was raised in {words.frame}." if words.frame else ""
        return f"unknown: no row and no sign of known_failures.md matches this error.{where}", "", UNKNOWN
    if stage == "serving":
        return "none: the engine serves, and the log has no error", "", NONE
    if not has_engine:
        return "unknown: this is no log of vLLM, or nothing of it was kept", "", UNKNOWN
    return f"unknown: the log ends in the stage {stage} without an error; the engine may still be at work", "", UNKNOWN


def _last_words(log: Sequence[str]) -> Iterator[_Words]:
    """Yield the last words of each process in a log, in their order.

    Exceptions at the end of tracebacks and of error lines, and errors of programs without a traceback. Tracebacks below DEBUG, INFO and
    WARNING are mentioned and no failure.
    """
    inside = is_mentioned = False
    frame, count = "", 0
    traceback: list[str] = []
    for index, line in enumerate(log):
        text, source = _bare(line)
        is_mention = source.startswith(("DEBUG", "INFO", "WARNING"))
        if text.startswith("Traceback (most recent call last)"):
            inside, is_mentioned, frame, traceback = True, is_mention, "", []
            continue
        kind = _kind_of_line(text, is_mention, inside)
        if inside and kind != "exception":
            traceback = [*traceback[-60:], text]
            match = _FRAME.match(text)
            package = _PACKAGE.match(match["path"]) if match else None
            if match and package:
                frame = f"{package['inside'] or package['source']}, {match['function']}"
        if not kind:
            continue
        if kind != "exception" or not is_mentioned:
            further = _further_lines(log[index + 1 : index + 20], line) if kind != "warning" else ()
            words = "\n".join([text, *further])[:LONGEST_WORDS]
            yield _Words(words, bool(_SECOND_HAND.search(words)), kind == "warning", frame, "\n".join(traceback))
            count += 1
            if count == MOST_WORDS:
                return
        if kind == "exception":
            inside = is_mentioned = False
            frame, traceback = "", []


def _kind_of_line(text: str, is_mention: bool, inside: bool) -> str:
    """Return C(exception), C(words) or C(warning) for a line that may be last words, else an empty text.

    :param text: the line without its process and level
    :param is_mention: whether its level is below ERROR
    :param inside: whether it is part of a traceback
    """
    if (_EXCEPTION.match(text) and (inside or not is_mention)) or (inside and _NAMED_EXCEPTION.match(text)):
        return "exception"
    if not is_mention and _LAST_WORDS.search(text):
        return "words"
    return "warning" if _WARNINGS.search(text) else ""


def _further_lines(lines: Sequence[str], first: str) -> Iterator[str]:
    """Yield the further lines of an error from the same process and the same place in vLLM's source."""
    who, source = _WHO.match(first), _bare(first)[1]
    for line in lines:
        text, its_source = _bare(line)
        same = its_source == source and (_WHO.match(line) is None) == (who is None)
        if not same or not text.strip() or text.startswith(_NEXT) or _EXCEPTION.match(text):
            return
        yield text


def _bare(line: str) -> tuple[str, str]:
    """Return a line without its process, and its level and place in vLLM's source, empty if not printed."""
    text = _WHO.sub("", line, count=1)
    head = _LEVEL.match(text)
    return (text[head.end() :], f"{head['level']} {head['place']}") if head else (text, "")
