# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that lies: each field of each module's answer is given each hostile value, through the form that reader.py reads it by."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import random
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_texts import HOSTILE as TEXTS
from hostile_texts import is_harmless

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import Untrusted
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers

COMMIT, SHA, ID = "a" * 40, "b" * 64, "sha256:" + "c" * 64
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKeyOfATest0"
FOLDER = "models--Org--Model"
SPREAD = {"median": 43.0, "low": 42.0, "high": 44.0}
BENCH_ROW: dict[str, Any] = {
    "prompt_tokens": 512, "prompt_tokens_measured": 515.0, "output_tokens": 256, "output_tokens_asked": 256, "repeats": 3,
    "ttft_seconds": SPREAD, "prefill_tokens_per_second": SPREAD, "decode_tokens_per_second": SPREAD,
    "inter_token_ms": {"median": 23.1, "p95": 25.0}, "tokens_per_arrival": 1.0, "short": 0, "disturbed": 0, "cached_share": 0.0,
    "draft_acceptance": None, "tokens_per_step": None,
}  # fmt: skip
BENCH_LOAD: dict[str, Any] = {
    "concurrency": 4, "client": "vllm", "requests": 8, "failed": 0, "seconds": 20.0, "prompt_tokens": 512, "output_tokens": 256,
    "output_tokens_per_second": 120.0, "ttft_ms": {"median": 1.0, "p95": 2.0}, "time_per_token_ms": None, "disturbed": False, "preemptions": None,
}  # fmt: skip
BENCH_RATE = {**{name: value for name, value in BENCH_LOAD.items() if name != "concurrency"}, "request_rate": 4.0}
BENCH_SAMPLE = {
    "driver": "580.1",
    "sm_clock_mhz": 2418.0,
    "power_watts": 12.5,
    "power_limit_watts": None,
    "temperature_c": 50.0,
}
GOOD: dict[str, tuple[Any, Any]] = {
    "images": (
        answers.IMAGES_SECTION,
        {"images": {"an/image:1": {"present": True, "id": ID, "repo_digests": [f"an/image@{ID}"], "os": "linux", "architecture": "arm64",
                                   "size_gib": 20.5, "vllm_version": "0.24.0"}, ID: {"present": False, "id": None}}},
    ),
    "image_plan": (answers.IMAGE_PLAN, {"source": "image", "image_id": ID, "reason": "", "answer": None}),
    "model_files": (
        answers.MODEL_FILES,
        {
            "model_files": [
                {
                    "repo": "Org/Model",
                    "revision": "refs/pr/1",
                    "commit": COMMIT,
                    "path": "/srv/x",
                    "problems": ["x is missing"],
                    "files": {"sub/a b.json": {"size": 5, "sha256": SHA, "blob": COMMIT}},
                }
            ]
        },
    ),
    "bundle save": (
        answers.BUNDLE["save"],
        {
            "path": "/var/x",
            "compression": "zstd",
            "pieces": [{"name": "0000", "size": 5, "sha256": SHA}],
            "layers": [{"name": SHA, "size": 9, "pieces": [{"name": "0000", "size": 5, "sha256": SHA}]}],
            "diff_ids": [f"sha256:{SHA}"],
        },
    ),
    "bundle stage": (answers.BUNDLE["stage"], {"path": "/var/x", "staged": {"0000": 5}, "known": [SHA]}),
    "bundle load": (answers.BUNDLE["load"], {"bad": ["0000"], "refused": "no such file"}),
    "bundle look": (
        answers.BUNDLE["look"],
        {"models": [{"wrong": [{"file": "a/b", "why": "is missing"}], "named": True, "staged": {SHA: 5}, "folder": "/var/x", "apart": False}]},
    ),
    "bundle place": (answers.BUNDLE["place"], {"bad": ["a/b"]}),
    "model_folder look": (answers.MODEL_FOLDER["look"], {"missing": ["a/b"], "digests": {"c": SHA}, "changed": False}),
    "model_folder stage": (answers.MODEL_FOLDER["stage"], {"staged": {SHA: 5}, "folder": "/var/x", "apart": True}),
    "model_folder place": (answers.MODEL_FOLDER["place"], {"bad": ["a/b"]}),
    "model_snapshot": (
        answers.MODEL_SNAPSHOT,
        {"running": True, "bytes": 5, "total_bytes": 9, "commit": COMMIT, "path": "/srv/x", "wrong": [{"file": "a", "why": "b"}]},
    ),
    "distribution": (
        answers.DISTRIBUTION,
        {"images": {"an/image:1": {"id": ID, "layers": 2, "content": SHA, "size": 5, "name": "an/image:1"}},
         "models": {"Org/Model@main": {"repo": "Org/Model", "revision": "main", "only": [], "folder": FOLDER, "commit": COMMIT,
                                       "complete": True, "staged": {f"{FOLDER}/blobs/x": 5},
                                       "files": [{"path": "a/b", "store": f"{FOLDER}/blobs/{SHA}", "link": f"../../../blobs/{SHA}",
                                                  "size": 5, "sha256": SHA, "known": "yes"}]}},
         "hf_home": "/srv/x", "address": "192.0.2.1", "fabric": "pair", "tools_missing": ["sshd"], "left_open": False,
         "interfaces": [{"interface": "enp1s0f0np0", "address": "10.0.0.1", "network": "10.0.0.0/24"}],
         "disks": {key: {"path": "/x", "device": "1", "free": 5} for key in ("images", "models", "saved")}},
    ),
    "spread_access": (answers.KEYS, {"client_key": KEY, "host_key": KEY}),
    "transfer": (
        answers.TRANSFER,
        {"running": False, "done": 1, "total": 2, "before": 0, "why": "",
         "got": {"Org/Model@main": {"ok": True, "why": "", "bytes": 5, "seconds": 1.5, "link": "lan", "damaged": ["a/b"]}}},
    ),
    "service_bench look": (
        answers.SERVICE_BENCH["look"],
        {"problem": "", "fix": "", "kind": "", "max_model_len": 4096, "busy": ["heavy (1 running, 0 waiting)"],
         "conditions": {"image_id": f"sha256:{SHA}", "fingerprint": "f0", "vllm_version": "0.24.0", "gpu": True, "driver": "580.1", "power_limit_watts": None},
         "receipt": {"benchmark": {"baseline": {"at": "2026-11-02T10:00:00+00:00", "conditions": {"gpu": True, "sm_clock_mhz": 2418, "driver": None},
                                                "workload": {"api": "chat", "forced": True}, "single": [BENCH_ROW],
                                                "contents": [{"content": "code", **BENCH_ROW}],
                                                "prefix_cache": {"prompt_tokens": 8192, "repeats": 3, "hit_rate": 0.97, "disturbed": 0},
                                                "request_rates": [BENCH_RATE], "concurrency": [BENCH_LOAD]}}}},
    ),
    "service_bench single": (answers.SERVICE_BENCH["single"], {"problem": "", "fix": "", "row": BENCH_ROW, "gpu": [BENCH_SAMPLE]}),
    "service_bench concurrency": (answers.SERVICE_BENCH["concurrency"], {"problem": "", "fix": "", "row": BENCH_LOAD, "gpu": []}),
    "support_bundle": (answers.SUPPORT, {"content": "", "files": 1, "redacted": 2, "left_out": ["x: left out"]}),
}  # fmt: skip
HOSTILE: list[Any] = [
    "../../x/.ssh/authorized_keys", "/etc/cron.d/x", "a/../../x", "..", ".", "", "a//b", "-oProxyCommand=x", "a\0b", "a\nb: c", "a\r", "\x1b]0;x\x07",
    "\x9b31m", "\u202egnp.exe", "\ud800", "x" * 10_000, "{{ lookup('pipe', 'id') }}\n", "$(id)", 10**400, -1, -(2**70), 1.5, float("inf"), float("nan"),
    True, None, [], {}, ["../x"], {"../x": 1}, [[[]]], b"x",
]  # fmt: skip
# Keys whose values may be any line of text: they are shown and compared, and never used as names.
WORDS = {
    "why", "reason", "refused", "problems", "left_out", "device", "fabric", "interface", "vllm_version", "only", "content",
    "at", "conditions", "workload", "api", "forced", "sm_clock_mhz",
    "problem", "fix", "kind", "busy", "fingerprint", "driver", "gpu", "power_watts", "power_limit_watts",
}  # fmt: skip
KINDS = (str, int, float, bool, list, dict, type(None))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in an answer; a name of a mapping is the path of what it names, with True behind it."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key, True) if path else (*path, key)
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def put(answer: Any, path: tuple[Any, ...], hostile: Any) -> Any:
    """Return an answer with a value, or a name of a mapping, exchanged."""
    if not path:
        return hostile
    made = copy.deepcopy(answer)
    name = path[-1] is True
    at = made
    for key in path[: -2 if name else -1]:
        at = at[key]
    key = path[-2] if name else path[-1]
    if name:
        at[hostile] = at.pop(key)
    else:
        at[key] = hostile
    return made


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.parametrize("module", GOOD)
def test_good_answers_are_taken_as_they_are(module: str) -> None:
    form, answer = GOOD[module]
    assert reader.read(form, foreign_text.received(answer), module) == answer


@pytest.mark.parametrize("module", GOOD)
def test_no_hostile_answer_comes_through(module: str) -> None:
    """A hostile answer is refused with its place and value, or stripped of harmful text; it never causes a traceback."""
    form, answer = GOOD[module]
    refused = 0
    for path in places(answer):
        for hostile in HOSTILE:
            if path and path[-1] is True and not isinstance(hostile, (str, int)):
                continue  # JSON has no such names
            try:
                parsed = reader.read(form, foreign_text.received(put(answer, path, hostile)), module)
            except Untrusted as error:
                refused += 1
                assert (
                    foreign_text.printable(str(error)) == str(error)
                    and "\n" not in str(error)
                    and len(str(error)) < 800
                )
                continue
            # Names are looked up, and links are judged by their target.
            free = bool(WORDS & set(path)) or module == "model_snapshot" or "link" in path or path[:1] == ("got",)
            for leaf in leaves(parsed):
                assert isinstance(leaf, KINDS) or path == ("content",), (path, leaf)  # archive() judges that
                if isinstance(leaf, str):
                    assert foreign_text.printable(leaf) == leaf, (path, leaf)
                    assert free or (".." not in leaf.split("/") or leaf.startswith("../../../blobs/")), (path, leaf)
                    assert free or not leaf.startswith(("-", "/etc")) or set(path) & {"path", "folder", "hf_home"}, (
                        path,
                        leaf,
                    )
                elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
                    assert free or 0 <= leaf <= reader.MOST_BYTES, (path, leaf)
    assert refused > len(HOSTILE) or module in ("support_bundle",)


@pytest.mark.parametrize(
    "change",
    [
        {"link": "../../../../../etc/passwd"},
        {"link": "/etc/passwd"},
        {"store": "models--Org--Other/blobs/x"},
        {"store": f"{FOLDER}/refs/main"},
        {"sha256": f"sha256:{SHA}"},
        {"known": "perhaps"},
    ],
)
def test_files_of_a_model_stay_in_its_folder(change: dict[str, str]) -> None:
    _form, answer = GOOD["distribution"]
    changed = copy.deepcopy(answer)
    changed["models"]["Org/Model@main"]["files"][0].update(change)
    with pytest.raises(Untrusted):
        reader.read(answers.DISTRIBUTION, changed, "x")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("models", {"Org/Model@main": {"revision": "other"}}),
        ("models", {"Org/Model@main": {"folder": "models--Org--Other"}}),
        ("models", {"Org/Model@main": {"commit": None}}),
        ("images", {"an/image:1": {"name": "vllm/vllm-openai:v0.24.0-ubuntu2404"}}),
        ("images", {"an/image:1": {"name": "an/image:1 -o x"}}),
    ],
)
def test_what_is_said_of_a_thing_fits_its_name(key: str, change: dict[str, dict[str, Any]]) -> None:
    _form, answer = GOOD["distribution"]
    changed = copy.deepcopy(answer)
    for name, values in change.items():
        changed[key][name].update(values)
    with pytest.raises(Untrusted):
        reader.read(answers.DISTRIBUTION, changed, "x")


def test_files_that_nobody_asked_about_are_refused() -> None:
    answers.among(["a"], {"a": 1}, "x")
    with pytest.raises(Untrusted, match="was not asked for"):
        answers.among(["a", "../b"], {"a": 1}, "x")


def packed(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, link: str = "") -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = (len(content) if kind == tarfile.REGTYPE else 0), kind, link
            archive.addfile(entry, io.BytesIO(content))
    return base64.b64encode(out.getvalue()).decode()


def test_a_support_bundle_is_an_archive_of_plain_files() -> None:
    good = packed(("MANIFEST.json", b"{}"), ("files/etc/x.json", b"{}"))
    assert answers.archive(good, 100_000) == base64.b64decode(good)


@pytest.mark.parametrize(
    "content",
    [
        packed(("../x", b"")),
        packed(("/etc/x", b"")),
        packed(("x", b""), kind=tarfile.SYMTYPE, link="/etc"),
        packed(("x", b""), kind=tarfile.LNKTYPE, link="../x"),
        packed(("x", b""), kind=tarfile.CHRTYPE),
        packed(("x\x1b[2J", b"")),
        packed(("x", bytes(5_000_000))),
        packed(("x", b"x"))[:40],
        packed(("x", b"x")) + packed(("y", b"y")),
        base64.b64encode(b"no archive").decode(),
        "no base64!",
        "",
        None,
        5,
        ["x"],
    ],
    ids=lambda content: type(content).__name__,  # archives hold the time at which they were made
)
def test_any_other_support_bundle_is_refused(content: Any) -> None:
    with pytest.raises(Untrusted):
        answers.archive(content, 100_000)


def test_what_is_shown_cannot_steer_a_terminal() -> None:
    received = foreign_text.received({"a\x1b[2J": ["b\x1b]0;x\x07", {"c": "\x9bd\r\u202ee\ud800"}, 5, None, True]})
    assert received == {"a\\x1b[2J": ["b\\x1b]0;x\\x07", {"c": "\\x9bd\\r\\u202ee\ufffd"}, 5, None, True]}
    assert foreign_text.received("zwei\nZeilen\tTab, äöü, 模型") == "zwei\nZeilen\tTab, äöü, 模型"


def test_an_answer_without_end_is_refused() -> None:
    deep: Any = []
    for _number in range(1000):
        deep = [deep]
    with pytest.raises(Untrusted, match="deep"):
        foreign_text.received(deep)


def test_a_judgement_that_fails_is_a_fault_of_the_host() -> None:
    with pytest.raises(Untrusted, match="its answer cannot be read"):
        answers.judged(lambda received: received["a"]["b"], {"a": "\x1b"})
    assert answers.judged(lambda received: received, 5) == 5


@pytest.mark.parametrize("step", ["single", "concurrency", "look"])
def test_what_a_measurement_lacks_is_named_unless_it_says_what_went_wrong(step: str) -> None:
    form, answer = GOOD[f"service_bench {step}"]
    for name in answer.keys() - {"problem", "fix", "kind"}:
        with pytest.raises(foreign_text.Untrusted, match=f"x lacks '{name}'"):
            reader.read(form, {key: value for key, value in answer.items() if key != name}, "x")
    assert reader.read(form, {"problem": "{{ 7 }}\nnobody answers", "fix": "f"}, "x") == {
        "problem": "{{ 7 }} nobody answers",
        "fix": "f",
    }


@pytest.mark.parametrize(
    ("step", "path", "value"),
    [
        ("single", ("row", "decode_tokens_per_second"), "{{ lookup('pipe', 'id') }}"),
        ("single", ("gpu", 0, "sm_clock_mhz"), "fast"),
        ("concurrency", ("row", "client"), "{{ 7 * 7 }}"),
        ("concurrency", ("row", "output_tokens_per_second"), "many"),
        ("concurrency", ("row", "ttft_ms"), {"median": 1.0}),
        ("look", ("receipt",), ["x"]),
        ("look", ("receipt", "benchmark"), "x"),
        ("look", ("receipt", "benchmark", "baseline", "single", 0), {}),
        ("look", ("receipt", "benchmark", "baseline", "single", 0, "decode_tokens_per_second"), 43),
        ("look", ("receipt", "benchmark", "baseline", "concurrency", 0, "concurrency"), [4]),
        ("look", ("receipt", "benchmark", "baseline", "concurrency", 0), {**BENCH_LOAD, "request_rate": 4.0}),
        (
            "look",
            ("receipt", "benchmark", "baseline", "request_rates", 0),
            {k: v for k, v in BENCH_RATE.items() if k != "request_rate"},
        ),
        ("look", ("receipt", "benchmark", "baseline", "contents", 0, "content"), "{{ 7 }}"),
        ("look", ("receipt", "benchmark", "baseline", "prefix_cache", "hit_rate"), "all"),
        ("look", ("conditions", "gpu"), "yes"),
    ],
)
def test_figures_rows_and_receipts_of_a_measurement_are_what_they_are_calculated_with(
    step: str, path: tuple[Any, ...], value: Any
) -> None:
    form, answer = GOOD[f"service_bench {step}"]
    reader.read(form, answer, "x")
    with pytest.raises(foreign_text.Untrusted, match="x"):
        reader.read(form, put(answer, path, value), "x")


def strange(chance: random.Random, depth: int = 0) -> Any:
    """A value of any form."""
    kind = chance.randrange(7 if depth < 45 else 5)
    if kind < 2:
        return chance.choice([*TEXTS, 2**53, 2**70, -1, 10**400, 1e308, float("inf"), float("nan"), True, None])
    if kind < 5:
        return chance.choice(HOSTILE)
    size = chance.randrange(4)
    if kind == 5:
        return [strange(chance, depth + 1) for _item in range(size)]
    names = ["name", "size", "sha256", "path", "files", *TEXTS]
    return {chance.choice(names): strange(chance, depth + 1) for _item in range(size)}


def check_spoilt_answers(seed: int, count: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        module = chance.choice(sorted(GOOD))
        form, answer = GOOD[module]
        for _place in range(chance.randrange(1, 4)):
            with contextlib.suppress(
                TypeError, LookupError
            ):  # the first one may have taken the place of the second away
                answer = put(answer, chance.choice(list(places(answer))), strange(chance))
        try:
            reader.read(form, foreign_text.received(answer), module)
        except Untrusted as error:
            assert is_harmless(str(error)), (seed, number, module)


@pytest.mark.parametrize("seed", range(10))
def test_answers_spoilt_in_several_places_are_refused_or_harmless(seed: int) -> None:
    check_spoilt_answers(seed, 60)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_answers_spoilt_in_several_places_are_refused_or_harmless(seed: int) -> None:
    check_spoilt_answers(seed, 2400)
