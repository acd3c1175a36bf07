# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of modules on hosts, for action plugins that write files, run commands or pass data to other hosts: forms for C(reader.read).

Keys that a form does not name are left out. No I/O.
"""

from __future__ import annotations

import base64
import binascii
import io
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from .._common.foreign_text import Untrusted, printable
from .._common.reader import (
    ABSOLUTE,
    ADDRESS,
    COMMIT,
    EMPTY,
    FILE_NAME,
    IMAGE_ID,
    IMAGE_NAME,
    LINE,
    NETWORK,
    NUMBER,
    PLATFORM,
    RELATIVE,
    REPO,
    SHA256,
    SIZE,
    SSH_KEY,
    WORDS,
    Either,
    Maybe,
    Most,
    Then,
    matching,
    one_of,
    optional,
    read,
    refused,
)
from .._content import spread_files, spread_names
from .._memory import image_answer
from .._proof import benchmark
from .._runtime import start_stages
from . import unit_history

# spread_address of the inventory may be the name of a host.
HOST_NAME = matching(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}", "an address")

# --- images and models ------------------------------------------------------------------------------------------------

IMAGES = {
    IMAGE_NAME: {
        "present": bool,
        "id?": Maybe(IMAGE_ID),
        "repo_digests?": Maybe(Most([IMAGE_NAME], 1000)),
        "os?": Maybe(Either(PLATFORM, EMPTY)),
        "architecture?": Maybe(Either(PLATFORM, EMPTY)),
        "size_gib?": Maybe(NUMBER),
        "vllm_version?": Maybe(LINE),
    }
}
IMAGES_SECTION = {"images": IMAGES}
IMAGE_PLAN = {
    "source": one_of("image", "cache", "none"),
    "image_id": IMAGE_ID,
    "reason": WORDS,
    "answer": Maybe(image_answer.ANSWER),
    "repo_digests?": Most([IMAGE_NAME], 1000),
    "files?": Most({WORDS: WORDS}, 1000),
}
FILE = {"size": SIZE, "sha256": SHA256, "blob?": Maybe(Either(FILE_NAME, EMPTY))}
MODEL_FILES = {
    "model_files": [
        {
            "repo": REPO,
            "revision": RELATIVE,
            "commit": Maybe(COMMIT),
            "path": Maybe(ABSOLUTE),
            "files": {RELATIVE: FILE},
            "problems": [WORDS],
        }
    ]
}
WRONG = {"file": RELATIVE, "why": WORDS}
MODEL_SNAPSHOT = {
    "running": bool,
    "bytes?": Maybe(SIZE),
    "total_bytes?": Maybe(SIZE),
    "commit?": Maybe(COMMIT),
    "path?": Maybe(ABSOLUTE),
    "complete?": bool,
    "wrong?": [WRONG],
    "link?": LINE,
    "changed?": bool,
    Any: Any,
}
ENDPOINT_STARTS = {
    "waiting": bool,
    "restarts_before": Maybe(SIZE),
    "log_stage": Maybe(one_of(*start_stages.STAGES)),
    "log_percent": Maybe(SIZE),
}

_TIMES = {"state": one_of(*unit_history.STATES), "begin": NUMBER, "end": NUMBER}
HISTORY = {
    "units": Most({LINE: {"spans": Most([_TIMES], unit_history.MOST_SPANS), "restarts": SIZE}}, 1000),
    "alarms": Most([{"at": NUMBER, "text": WORDS}], unit_history.MOST_ALARMS),
}
"""The section C(history) of M(dgxspark.vllm.spark_info)."""

# --- files between the controller and a host --------------------------------------------------------------------------

PIECE = {"name": FILE_NAME, "size": SIZE, "sha256": SHA256}
STAGED = {"staged": {FILE_NAME: SIZE}, "folder": ABSOLUTE, "apart": bool}
PLACED = {"bad": [RELATIVE]}
BUNDLE: Mapping[str, Any] = {
    "save": {
        "path": ABSOLUTE,
        "compression": one_of("zstd", "gzip"),
        "pieces": [PIECE],
        "layers": [{"name": SHA256, "size": SIZE, "diff_id?": SHA256, "pieces": [PIECE]}],
        "diff_ids": [IMAGE_ID],
    },
    "clean": {},
    "stage": {"path": ABSOLUTE, "staged": {FILE_NAME: SIZE}, "known": [SHA256]},
    "load": {"bad": [FILE_NAME], "refused": WORDS},
    "look": {"models": [{"wrong": [WRONG], "named": bool, **STAGED}]},
    "place": PLACED,
}
"""Results of M(dgxspark.vllm.bundle) by step."""
MODEL_FOLDER: Mapping[str, Any] = {
    "look": {"missing": [RELATIVE], "digests": {RELATIVE: SHA256}, "changed": bool},
    "stage": STAGED,
    "place": PLACED,
}
"""Results of M(dgxspark.vllm.model_folder) by step."""


def among(names: Iterable[str], asked: Collection[str], where: str) -> None:
    """Raise C(Untrusted) if a host names a file that it was not asked for."""
    strange = [name for name in names if name not in asked]
    if strange:
        raise Untrusted(f"{where} names {strange[0]!r}, which was not asked for")


SUPPORT = {"content": Any, "files": SIZE, "redacted": SIZE, "left_out": [WORDS]}
"""A host's part of a support bundle; C(archive) reads the content."""


def archive(content: Any, most: int) -> bytes:
    """Return the bytes of a host's part of a support bundle.

    :param content: in base64, a tar.gz of ordinary files with relative names
    :param most: unpacked bytes
    :raises Untrusted: for other content
    """
    try:
        packed = base64.b64decode(content, validate=True)
        unpacking = zlib.decompressobj(wbits=31)
        raw = unpacking.decompress(packed, most + 1)
    except (TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise Untrusted("content is no packed archive") from error
    if len(raw) > most or unpacking.unconsumed_tail:
        raise Untrusted(f"content has more than {most} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise Untrusted("content is no whole archive")
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as packed_files:
            for member in packed_files:
                read(RELATIVE, member.name, "a name in content")
                if not member.isreg():
                    raise Untrusted(f"content has {member.name!r}, which is no file")
    except Untrusted:
        raise
    except (tarfile.TarError, ValueError, OSError, RecursionError) as error:
        raise Untrusted("content is no archive") from error
    return packed


# --- measurements -----------------------------------------------------------------------------------------------------

FIGURE = Maybe(NUMBER)
_SPREAD = Maybe({"median": NUMBER, "low": NUMBER, "high": NUMBER})
_LATE = Maybe({"median": NUMBER, "p95": NUMBER})
_ENGINE = dict.fromkeys(("cached_share", "draft_acceptance", "tokens_per_step"), FIGURE)
_ROW = optional(
    {
        **dict.fromkeys(("prompt_tokens_measured", "output_tokens", "output_tokens_asked"), FIGURE),
        **dict.fromkeys(("ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second"), _SPREAD),
        **dict.fromkeys(("repeats", "short", "disturbed"), SIZE),
        **_ENGINE,
        "tokens_per_arrival": FIGURE,
        "inter_token_ms": _LATE,
    }
)
_SINGLE = {"prompt_tokens": SIZE, **_ROW}
_CONTENT = {"content": one_of(*benchmark.CONTENTS), **_SINGLE}
_PREFIX = {
    "prompt_tokens": SIZE,
    "repeats": SIZE,
    "hit_rate?": FIGURE,
    "first_ttft_seconds?": FIGURE,
    "ttft_seconds?": _SPREAD,
    "disturbed?": SIZE,
}
_SAMPLE = {
    **dict.fromkeys(("sm_clock_mhz", "power_watts", "temperature_c"), FIGURE),
    "driver?": Maybe(LINE),
    "power_limit_watts?": FIGURE,
}


def _check_load(row: dict[str, Any], where: str) -> dict[str, Any]:
    if ("concurrency" in row) == ("request_rate" in row):
        raise Untrusted(f"{where} must have either 'concurrency' or 'request_rate'")
    return row


LOAD_ROW = Then(
    {
        "client": one_of("own", "vllm"),
        "requests": SIZE,
        "failed": SIZE,
        "output_tokens_per_second": FIGURE,
        "concurrency?": SIZE,
        "request_rate?": NUMBER,
        **optional(dict.fromkeys(("seconds", "prompt_tokens", "output_tokens", "preemptions"), FIGURE)),
        **optional(dict.fromkeys(("ttft_ms", "time_per_token_ms"), _LATE)),
        "disturbed?": bool,
    },
    _check_load,
)
"""Several requests: a number at once, or a number per second."""
_TERMS = Maybe(Most({LINE: Maybe(Either(LINE, Either(NUMBER, bool)))}, 100))
_BASELINE = optional(
    {
        "at": Maybe(LINE),
        "conditions": _TERMS,
        "workload": _TERMS,
        "single": Maybe(Most([_SINGLE], 1000)),
        "contents": Maybe(Most([_CONTENT], 100)),
        "prefix_cache": Maybe(_PREFIX),
        "concurrency": Maybe(Most([LOAD_ROW], 1000)),
        "request_rates": Maybe(Most([LOAD_ROW], 1000)),
    }
)
"""Earlier figures in a receipt, which is a file of the host."""
_LOOK = {
    "max_model_len": Maybe(SIZE),
    "conditions": {
        "gpu": bool,
        "image_id?": Maybe(IMAGE_ID),
        "power_limit_watts?": FIGURE,
        **optional(dict.fromkeys(("fingerprint", "vllm_version", "driver"), Maybe(LINE))),
    },
    "busy": Most([WORDS], 1000),
    "receipt": Maybe({"benchmark?": {"baseline?": _BASELINE}}),
}
_OFFLINE = {
    "row": {
        **dict.fromkeys(("requests", "prompt_tokens", "output_tokens"), SIZE),
        **dict.fromkeys(("seconds", "requests_per_second", "tokens_per_second", "output_tokens_per_second"), NUMBER),
    }
}


def _step(record: dict[str, Any]) -> Callable[[Any, str], Any]:
    """Return the form of a step's result; with a problem, the other keys need not exist."""
    reason = {"fix?": WORDS, "kind?": WORDS}

    def parse(value: Any, where: str) -> Any:
        if isinstance(value, Mapping) and value.get("problem"):
            return read({"problem": WORDS, **reason}, value, where)
        return read({"problem?": WORDS, **reason, **record}, value, where)

    return parse


_ROWS = {
    "single": _SINGLE,
    "contents": _CONTENT,
    "prefix_cache": _PREFIX,
    "concurrency": LOAD_ROW,
    "request_rates": LOAD_ROW,
}
SERVICE_BENCH: Mapping[str, Any] = {
    "look": _step(_LOOK),
    **{part: _step({"row": row, "gpu": Most([_SAMPLE], 100_000)}) for part, row in _ROWS.items()},
    "offline": _step(_OFFLINE),
}
"""Results of M(dgxspark.vllm.service_bench) by step."""

# --- measured starts --------------------------------------------------------------------------------------------------

_SUM = matching(r"[0-9a-f]{32}", "a sum of 32 hexadecimal digits")


def _sorted(span: list[float], where: str) -> list[float]:
    """Return the least and the most of a term in this order."""
    if len(span) != 2:
        raise Untrusted(refused(where, span, "the least and the most"))
    return sorted(span)


_START = {
    "image_id": Maybe(Either(IMAGE_ID, EMPTY)),
    "image_ref": IMAGE_NAME,
    **dict.fromkeys(("model", "options"), _SUM),
    **dict.fromkeys(("max_model_len", "max_num_batched_tokens", "max_num_seqs"), SIZE),
    **dict.fromkeys(("vllm_version", "driver", "gpu"), Maybe(LINE)),
    **dict.fromkeys(("gpu_memory_utilization", "requested_gib", "weights_gib", "kv_cache_gib"), NUMBER),
    **dict.fromkeys(("peak_gib", "non_torch_gib", "graphs_estimate_gib", "graphs_gib"), FIGURE),
}
START = {**_START, "inside_gib": float, "outside_gib": Maybe(float)}
"""The measured memory of one start; see C(residency.start)."""
_SPAN = Then([float], _sorted)
KEPT_START = {**_START, "inside_gib": _SPAN, "outside_gib": Maybe(_SPAN)}
"""The measured memory of several starts, in a file of the controller."""
SERVICE_PROOF = {"receipts": Most({LINE: {"receipt": {"start?": Maybe(START)}}}, 1000)}

# --- distribution between hosts ---------------------------------------------------------------------------------------

_DISK = {"path": ABSOLUTE, "device": LINE, "free": SIZE}
_SPREAD_FILE = {
    "path": RELATIVE,
    "store": RELATIVE,
    "link": Maybe(LINE),
    "size": Maybe(SIZE),
    "sha256": Maybe(SHA256),
    "known": one_of("yes", "changed", "no"),
}
_SPREAD_MODEL = {
    "repo": REPO,
    "revision": RELATIVE,
    "only": Most([LINE], 1000),
    "folder": FILE_NAME,
    "commit": Maybe(COMMIT),
    "complete": bool,
    "files": [_SPREAD_FILE],
    "staged": {RELATIVE: SIZE},
}
_SPREAD_IMAGE = {"id": IMAGE_ID, "layers": SIZE, "content": SHA256, "size": SIZE, "name": IMAGE_NAME}
_DISTRIBUTION = {
    "images": {IMAGE_NAME: Maybe(_SPREAD_IMAGE)},
    "models": {LINE: _SPREAD_MODEL},
    "address": Maybe(Either(HOST_NAME, EMPTY)),
    "fabric": Maybe(LINE),
    "interfaces": Most([{"interface": LINE, "address": ADDRESS, "network": NETWORK}], 1000),
    "disks": {"images": _DISK, "models": _DISK, "saved": _DISK},
    "tools_missing": Most([one_of(*spread_names.TOOLS)], 100),
    "hf_home?": ABSOLUTE,
    "left_open?": bool,
}
KEYS = {"client_key": SSH_KEY, "host_key": SSH_KEY}
GOT = {
    "ok": bool,
    "why": WORDS,
    "bytes?": Maybe(SIZE),
    "seconds?": Maybe(NUMBER),
    "link?": Maybe(one_of("fabric", "lan", "")),
    "encrypted?": bool,
    "damaged?": [RELATIVE],
    "files?": SIZE,
    "source?": Maybe(LINE),
    "failed?": Most([{"source": LINE, "why": WORDS, "wrong": bool}], 1000),
}
TRANSFER = {"running": bool, "done?": SIZE, "total?": SIZE, "before?": SIZE, "got?": {LINE: GOT}, "why?": WORDS}


def _check_distribution(look: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a distribution in which each entry matches its name."""
    for key, model in look["models"].items():
        if spread_names.model_key(model) != key or model["folder"] != "models--" + model["repo"].replace("/", "--"):
            raise Untrusted(f"{where}.models says {model['repo']}@{model['revision']} of {key}")
        for entry in model["files"]:
            if not entry["store"].startswith((f"{model['folder']}/blobs/", f"{model['folder']}/snapshots/")):
                place = f"{entry['path']} at {entry['store']}"
                raise Untrusted(f"{where}.models.{key} has {place}, outside of the model's folder")
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


DISTRIBUTION = Then(_DISTRIBUTION, _check_distribution)
"""The section C(distribution) of M(dgxspark.vllm.spark_info)."""

MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors that a malformed answer causes in the code that reads it."""


def judged(judge: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function of one host's answers; raises C(Untrusted) for malformed ones.

    One host must not prevent a report about the others.
    """
    try:
        return judge(*args)
    except Untrusted:
        raise
    except MALFORMED as error:
        raise Untrusted(f"its answer cannot be read ({type(error).__name__}: {printable(str(error))[:120]})") from error
