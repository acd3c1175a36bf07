# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsers of the answers of modules on hosts, for action plugins that write files or run commands with them. No I/O.

Each parser is made of those in C(untrusted.py); unknown fields are dropped.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from .._common import untrusted
from .._common.untrusted import (
    Untrusted,
    absolute,
    commit,
    file_name,
    flag,
    image_id,
    listing,
    maybe,
    name_of_image,
    number,
    one_of,
    platform,
    record,
    refuse,
    relative,
    repo,
    revision,
    sha256,
    size,
    table,
    text,
)
from .._content import spread_files, spread_names
from .._memory import image_answer
from .._proof import benchmark
from .._runtime import start_stages

# An address or a name: spread_address of the inventory.
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def words(value: Any, where: str) -> str:
    """Parse a text for people into one line of bounded length."""
    if not isinstance(value, str):
        raise refuse(where, value, "a text")
    return " ".join(untrusted.printable(value[: untrusted.MOST_TEXT]).split())


def host(value: Any, where: str) -> str:
    """Parse an address, or a name of a host."""
    if not isinstance(value, str) or not HOST.fullmatch(value):
        raise refuse(where, value, "an address")
    return value


def digest(value: Any, where: str) -> str:
    """Parse a SHA-256 with the prefix of its algorithm."""
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise refuse(where, value, "sha256: and 64 hexadecimal digits")
    return value


def _measured(value: Any, where: str) -> Any:
    """Parse a number or a word; nvidia-smi prints both."""
    return (
        number(value, where) if isinstance(value, (int, float)) and not isinstance(value, bool) else text(value, where)
    )


# --- images and models ------------------------------------------------------------------------------------------------

IMAGE = record(
    {"present": flag},
    {
        "id": maybe(image_id),
        "repo_digests": maybe(listing(name_of_image, 1000)),
        "os": maybe(platform, ""),
        "architecture": maybe(platform, ""),
        "size_gib": maybe(number),
        "vllm_version": maybe(text),
    },
)
IMAGES = table(name_of_image, IMAGE)
FILE = record({"size": size, "sha256": sha256}, {"blob": maybe(file_name, "")})
MODEL = record(
    {
        "repo": repo,
        "revision": revision,
        "commit": maybe(commit),
        "path": maybe(absolute),
        "files": table(relative, FILE),
        "problems": listing(words),
    }
)
IMAGES_SECTION = record({"images": IMAGES})
IMAGE_PLAN = record(
    {
        "source": one_of("image", "cache", "none"),
        "image_id": image_id,
        "reason": words,
        "answer": maybe(image_answer.raw),
    },
    {"repo_digests": listing(name_of_image, 1000), "files": table(words, words, 1000)},
)
MODEL_FILES = record({"model_files": listing(MODEL)})
MODEL_SNAPSHOT = record(
    {"running": flag},
    {
        "bytes": maybe(size),
        "total_bytes": maybe(size),
        "commit": maybe(commit),
        "path": maybe(absolute),
        "complete": flag,
        "wrong": listing(record({"file": relative, "why": words})),
        "link": text,
        "changed": flag,
    },
    keep_unknown=True,
)

ENDPOINT_STARTS = record(
    {
        "waiting": flag,
        "restarts_before": maybe(size),
        "log_stage": maybe(one_of(*start_stages.STAGES)),
        "log_percent": maybe(size),
    }
)

# --- what travels between the controller and a host -------------------------------------------------------------------

PIECE = record({"name": file_name, "size": size, "sha256": sha256})
WRONG = record({"file": relative, "why": words})
BUNDLE: Mapping[str, untrusted.Parser] = {
    "save": record(
        {
            "path": absolute,
            "compression": one_of("zstd", "gzip"),
            "pieces": listing(PIECE),
            "layers": listing(record({"name": sha256, "size": size, "pieces": listing(PIECE)})),
            "diff_ids": listing(image_id),
        }
    ),
    "clean": record({}),
    "stage": record({"path": absolute, "staged": table(file_name, size), "known": listing(sha256)}),
    "load": record({"bad": listing(file_name), "refused": words}),
    "look": record(
        {
            "models": listing(
                record(
                    {
                        "wrong": listing(WRONG),
                        "named": flag,
                        "staged": table(file_name, size),
                        "folder": absolute,
                        "apart": flag,
                    }
                )
            )
        }
    ),
    "place": record({"bad": listing(relative)}),
}
MODEL_FOLDER: Mapping[str, untrusted.Parser] = {
    "look": record({"missing": listing(relative), "digests": table(relative, sha256), "changed": flag}),
    "stage": record({"staged": table(file_name, size), "folder": absolute, "apart": flag}),
    "place": record({"bad": listing(relative)}),
}


def among(names: Iterable[str], requested: Collection[str], where: str) -> None:
    """Raise C(Untrusted) if a host names a file that was not requested."""
    unknown = [name for name in names if name not in requested]
    if unknown:
        raise Untrusted(f"{where} names {unknown[0]!r}, which was not asked for")


SUPPORT = record({"content": lambda value, where: value, "files": size, "redacted": size, "left_out": listing(words)})
"""Of a host's support bundle; C(archive) reads the content."""


def archive(content: Any, most: int) -> bytes:
    """Return a support bundle of a host, a tar.gz of plain files of at most C(most) bytes below one folder, as bytes."""
    where = "content"
    try:
        packed = base64.b64decode(content, validate=True)
        unpacking = zlib.decompressobj(wbits=31)
        raw = unpacking.decompress(packed, most + 1)
    except (TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise Untrusted(f"{where} is no packed archive") from error
    if len(raw) > most or unpacking.unconsumed_tail:
        raise Untrusted(f"{where} has more than {most} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise Untrusted(f"{where} is no whole archive")
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as bundle:
            for member in bundle:
                relative(member.name, f"a name in {where}")
                if not member.isreg():
                    raise Untrusted(f"{where} has {member.name!r}, which is no file")
    except (tarfile.TarError, ValueError, OSError, RecursionError) as error:
        raise error if isinstance(error, Untrusted) else Untrusted(f"{where} is no archive") from error
    return packed


# --- measurements -----------------------------------------------------------------------------------------------------

FIGURE = maybe(number)
CONDITIONS = record(
    {"gpu": flag},
    {
        "image_id": maybe(image_id),
        "fingerprint": maybe(text),
        "vllm_version": maybe(text),
        "driver": maybe(text),
        "power_limit_watts": FIGURE,
    },
)
_PROBLEM: Mapping[str, untrusted.Parser] = {"problem": words, "fix": words, "kind": words}
_SPREAD = maybe(record({"median": number, "low": number, "high": number}))
_LATE = maybe(record({"median": number, "p95": number}))
_ROW = {
    **dict.fromkeys(("prompt_tokens_measured", "output_tokens", "output_tokens_asked", "reasoning_tokens"), FIGURE),
    **dict.fromkeys(("ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second"), _SPREAD),
    **dict.fromkeys(("tokens_per_arrival", "cached_share", "draft_acceptance", "tokens_per_step"), FIGURE),
    **dict.fromkeys(("repeats", "short", "disturbed"), size),
    "counted_by": maybe(text),
    "inter_token_ms": _LATE,
}
SINGLE = record({"prompt_tokens": size}, _ROW)
"""A row of single requests, as a receipt keeps it."""
CONTENT = record({"content": one_of(*benchmark.CONTENTS), "prompt_tokens": size}, _ROW)
"""A row of single requests whose answers have a certain content."""
PREFIX = record(
    {"prompt_tokens": size, "repeats": size},
    {"hit_rate": FIGURE, "first_ttft_seconds": FIGURE, "ttft_seconds": _SPREAD, "disturbed": size},
)
"""Requests that share a system prompt."""
_LOAD = record(
    {
        "client": one_of("own", "vllm"),
        "requests": size,
        "failed": size,
        "output_tokens_per_second": FIGURE,
    },
    {
        "concurrency": size,
        "request_rate": number,
        **dict.fromkeys(("seconds", "prompt_tokens", "output_tokens", "preemptions"), FIGURE),
        **dict.fromkeys(("ttft_ms", "time_per_token_ms"), _LATE),
        "disturbed": flag,
    },
)


def load_row(value: Any, where: str) -> dict[str, Any]:
    """Parse a row of several requests, with either their concurrency or their rate."""
    row: dict[str, Any] = _LOAD(value, where)
    if ("concurrency" in row) == ("request_rate" in row):
        raise Untrusted(f"{where} says neither how many requests came at once nor how many a second, or both")
    return row


FIGURES = record(
    {
        **dict.fromkeys(("asked_tokens", "arrivals", "characters"), size),
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens"), maybe(size)),
        **dict.fromkeys(("ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "seconds"), FIGURE),
        "counted_by": one_of("events", "usage", "pieces"),
        "gaps_ms": listing(number, 1_000_000),
        "seen": record(
            {"disturbed": flag},
            dict.fromkeys(
                ("foreign_tokens", "cached_share", "draft_acceptance", "tokens_per_step", "preemptions"), FIGURE
            ),
        ),
    }
)
"""Figures of one answer."""
SAMPLE = record(
    dict.fromkeys(("sm_clock_mhz", "power_watts", "temperature_c"), FIGURE),
    {"driver": maybe(text), "power_limit_watts": FIGURE},
)


def _plain(value: Any, where: str) -> Any:
    """Parse a number, a word or a boolean."""
    return value if isinstance(value, bool) else _measured(value, where)


_TERMS = maybe(table(text, maybe(_plain), 100))
BASELINE = record(
    {},
    {
        "at": maybe(text),
        "conditions": _TERMS,
        "workload": _TERMS,
        "single": maybe(listing(SINGLE, 1000)),
        "contents": maybe(listing(CONTENT, 100)),
        "prefix_cache": maybe(PREFIX),
        "concurrency": maybe(listing(load_row, 1000)),
        "request_rates": maybe(listing(load_row, 1000)),
    },
)
"""The baseline of measurements, from a file of the host."""
RECEIPT = record({}, {"benchmark": record({}, {"baseline": BASELINE})})


def _measurement(needed: Mapping[str, untrusted.Parser]) -> untrusted.Parser:
    """Return the parser of a step's answer. A step with a problem needs no other field."""
    stopped, done = record({"problem": words}, _PROBLEM), record(needed, _PROBLEM)

    def parse(value: Any, where: str) -> dict[str, Any]:
        has_stopped = isinstance(value, Mapping) and value.get("problem")
        answer: dict[str, Any] = (stopped if has_stopped else done)(value, where)
        return answer

    return parse


SERVICE_BENCH: Mapping[str, untrusted.Parser] = {
    "look": _measurement(
        {
            "max_model_len": maybe(size),
            "conditions": CONDITIONS,
            "busy": listing(words, 1000),
            "receipt": maybe(RECEIPT),
        }
    ),
    "stream": _measurement(
        {
            "figures": FIGURES,
            "gpu": listing(SAMPLE, 100_000),
            "api": one_of("chat", "completions"),
            "extras": one_of(*range(len(benchmark.EXTRAS))),
        }
    ),
    "load": _measurement({"row": load_row, "reason": words}),
    "offline": _measurement(
        {
            "row": record(
                {
                    **dict.fromkeys(("requests", "prompt_tokens", "output_tokens"), size),
                    **dict.fromkeys(
                        ("seconds", "requests_per_second", "tokens_per_second", "output_tokens_per_second"), number
                    ),
                }
            )
        }
    ),
}

# --- what starts took ------------------------------------------------------------------------------------------------

SUM = re.compile(r"[0-9a-f]{32}")


def _sum(value: Any, where: str) -> str:
    if not isinstance(value, str) or not SUM.fullmatch(value):
        raise refuse(where, value, "a sum of 32 hexadecimal digits")
    return value


def _difference(value: Any, where: str) -> float:
    """Parse a difference of two sizes, which may be negative."""
    return -number(-value, where) if isinstance(value, (int, float)) and value < 0 else number(value, where)


_START: Mapping[str, untrusted.Parser] = {
    "image_id": maybe(image_id, ""),
    "image_ref": name_of_image,
    **dict.fromkeys(("model", "options"), _sum),
    **dict.fromkeys(("max_model_len", "max_num_batched_tokens", "max_num_seqs"), size),
    **dict.fromkeys(("vllm_version", "driver", "gpu"), maybe(text)),
    **dict.fromkeys(("gpu_memory_utilization", "requested_gib", "weights_gib", "kv_cache_gib"), number),
    **dict.fromkeys(("peak_gib", "non_torch_gib", "graphs_estimate_gib", "graphs_gib"), FIGURE),
}


def _span(value: Any, where: str) -> list[float]:
    """Parse the lowest and the highest value of a term."""
    if not isinstance(value, list) or len(value) != 2:
        raise refuse(where, value, "the least and the most")
    return sorted(_difference(limit, where) for limit in value)


START = record({**_START, "inside_gib": _difference, "outside_gib": maybe(_difference)})
"""The memory of one start, of C(residency.start)."""
KEPT_START = record({**_START, "inside_gib": _span, "outside_gib": maybe(_span)})
"""The same of several starts, in the controller's file."""
SERVICE_PROOF = record(
    {"receipts": table(text, record({"receipt": record({}, {"start": maybe(START)})}), 1000)},
)

# --- from node to node ------------------------------------------------------------------------------------------------


def _store(value: Any, where: str) -> str:
    return relative(value, where)


SPREAD_FILE = record(
    {
        "path": relative,
        "store": _store,
        "link": maybe(text, ""),
        "size": maybe(size),
        "sha256": maybe(digest),
        "known": one_of("yes", "changed", "no"),
    }
)
SPREAD_MODEL = record(
    {
        "repo": repo,
        "revision": revision,
        "only": listing(text, 1000),
        "folder": file_name,
        "commit": maybe(commit),
        "complete": flag,
        "files": listing(SPREAD_FILE),
        "staged": table(relative, size),
    }
)
SPREAD_IMAGE = record({"id": image_id, "layers": size, "content": sha256, "size": size, "name": name_of_image})
DISK = record({"path": absolute, "device": text, "free": size})
DISTRIBUTION = record(
    {
        "images": table(name_of_image, maybe(SPREAD_IMAGE)),
        "models": table(text, SPREAD_MODEL),
        "address": maybe(host, ""),
        "fabric": maybe(text, ""),
        "interfaces": listing(
            record({"interface": text, "address": untrusted.address, "network": untrusted.network}), 1000
        ),
        "disks": record({"images": DISK, "models": DISK}),
        "tools_missing": listing(one_of(*spread_names.TOOLS), 100),
    },
    {"hf_home": absolute, "left_open": flag},
)
KEYS = record({"client_key": untrusted.ssh_key, "host_key": untrusted.ssh_key})
GOT = record(
    {"ok": flag, "why": words},
    {
        "bytes": maybe(size),
        "seconds": maybe(number),
        "link": maybe(one_of("fabric", "lan"), ""),
        "encrypted": flag,
        "damaged": listing(relative),
        "files": size,
        "wrong": flag,
    },
)
TRANSFER = record(
    {"running": flag},
    {"done": size, "total": size, "before": size, "got": table(text, GOT), "why": words},
)


def spread_look(value: Any, where: str) -> dict[str, Any]:
    """C(distribution) of M(dgxspark.vllm.spark_info), in which each entry fits its name."""
    look: dict[str, Any] = DISTRIBUTION(value, where)
    for key, model in look["models"].items():
        if spread_names.model_key(model) != key or model["folder"] != "models--" + model["repo"].replace("/", "--"):
            raise Untrusted(f"{where}.models says {model['repo']}@{model['revision']} of {key}")
        for entry in model["files"]:
            if not entry["store"].startswith((f"{model['folder']}/blobs/", f"{model['folder']}/snapshots/")):
                raise Untrusted(
                    f"{where}.models.{key} has {entry['path']} at {entry['store']}, outside of the model's folder"
                )
            if entry["link"]:
                try:
                    spread_files.safe_link(f"snapshots/{model['commit']}/{entry['path']}", entry["link"])
                except spread_files.Failed as error:
                    raise Untrusted(f"{where}.models.{key}: {error}") from error
        if model["files"] and not model["commit"]:
            raise Untrusted(f"{where}.models.{key} has files and no commit")
    for ref, image in look["images"].items():
        if image and image["name"] not in spread_names.names_of(ref) and not image["name"].startswith("sha256:"):
            raise Untrusted(f"{where}.images says {image['name']} of {ref}")
    return look


# What stands in an answer that one host's part of a report could not be made of.
ODD = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, ZeroDivisionError)


def judged(judge: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function about one host's answers; raises C(Untrusted) if malformed answers make it fail.

    A malformed answer of one host must not prevent the report about the others.
    """
    try:
        return judge(*args)
    except Untrusted:
        raise
    except ODD as error:
        raise Untrusted(
            f"its answer cannot be read ({type(error).__name__}: {untrusted.printable(str(error))[:120]})"
        ) from error
