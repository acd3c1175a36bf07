# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of `vllm serve`: real flags, real spellings, refusals as of the real parser.

The option list comes from vLLM 0.33.0 (args.json, written by its own parser). SINCE and UNTIL say what this image's
version does not know yet, or knew once.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

DATA = Path(__file__).resolve().parent.parent / "args.json"

# Flags newer than 0.19: first version that has them.
SINCE: dict[str, tuple[int, int]] = {
    "--linear-backend": (0, 22),
    "--spec-method": (0, 22),
    "--spec-model": (0, 22),
    "--spec-tokens": (0, 22),
    "--quantization-config": (0, 22),
    "--device-ids": (0, 24),
    "--diffusion-config": (0, 24),
    "--logging-config": (0, 31),
    "--log-level": (0, 31),
    "--watchdog-config": (0, 33),
    "--sleep-mode-backend": (0, 33),
}
# Flags that 0.33 lacks: (last version, takes a value).
UNTIL: dict[str, tuple[tuple[int, int], bool]] = {
    "--disable-log-requests": ((0, 16), False),
    "--swap-space": ((0, 17), True),
    "--disable-frontend-multiprocessing": ((0, 18), False),
    "--max-partial-prefills": ((0, 26), True),
    "--max-long-partial-prefills": ((0, 26), True),
    "--calculate-kv-scales": ((0, 27), False),
    "--override-attention-dtype": ((0, 27), True),
}
JSON_FLAGS = {"--speculative-config", "--kv-transfer-config", "--hf-overrides"}
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
HUMAN = {"--kv-cache-memory-bytes", "--max-num-batched-tokens", "--max-model-len", "--safetensors-prefetch-block-size"}


def version_tuple(version: str) -> tuple[int, int]:
    numbers = re.findall(r"\d+", version)
    return (int(numbers[0]), int(numbers[1]))


def fail(message: str) -> NoReturn:
    sys.stderr.write(f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {message}\n")
    sys.exit(2)


class Parser:
    """One version's flags."""

    def __init__(self, version: str) -> None:
        data = json.loads(DATA.read_text())
        self.version = version_tuple(version)
        self.reasoning_parsers: list[str] = data["reasoning_parsers"]
        self.tool_parsers: list[str] = data["tool_parsers"]
        self.options: dict[str, dict[str, Any]] = {}
        self.negative: dict[str, dict[str, Any]] = {}
        for option in data["options"]:
            if SINCE.get(option["flags"][0], (0, 0)) > self.version:
                continue
            switch = option["action"] in ("EnableDisableAction", "BooleanOptionalAction")
            for flag in option["flags"]:
                if not switch:
                    self.options[flag] = option
                elif flag.startswith("--no-") or (flag.startswith("--disable-") and flag != option["flags"][0]):
                    if flag.startswith("--no-") or self.version >= (0, 33):
                        self.negative[flag] = option
                else:
                    self.options[flag] = option
            if switch:
                self.negative["--no-" + option["flags"][0][2:]] = option
        for flag, (last, takes_value) in UNTIL.items():
            if self.version <= last:
                self.options[flag] = {
                    "flags": [flag], "dest": flag[2:].replace("-", "_"), "nargs": None if takes_value else 0,
                    "action": "_StoreAction" if takes_value else "_StoreTrueAction", "choices": None, "type": None,
                }  # fmt: skip

    def lookup(self, flag: str) -> tuple[str, dict[str, Any], bool] | None:
        """(flag as declared, option, positive?) for an exact flag or an unambiguous beginning of one."""
        if flag in self.options:
            return flag, self.options[flag], True
        if flag in self.negative:
            return flag, self.negative[flag], False
        if not flag.startswith("--"):
            return None
        matches = {name: (self.options, True) for name in self.options if name.startswith(flag)}
        matches.update({name: (self.negative, False) for name in self.negative if name.startswith(flag)})
        if len(matches) > 1:
            fail(f"ambiguous option: {flag} could match {', '.join(sorted(matches))}")
        for name, (table, positive) in matches.items():
            return name, table[name], positive
        return None

    @staticmethod
    def take(option: dict[str, Any], inline: list[str] | None, words: list[str]) -> list[str]:
        """The values of an option: the text behind its C(=), else the following words, which are removed from C(words)."""
        values = inline or []
        if inline is None:
            many = option["nargs"] in ("+", "*")
            while (
                words
                and (many or not values)
                and not (words[0].startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", words[0]))
            ):
                values.append(words.pop(0))
        if not values and option["nargs"] not in ("?", "*"):
            fail(
                f"argument {'/'.join(option['flags'])}: expected {'at least one' if option['nargs'] == '+' else 'one'} argument"
            )
        return values

    def parse(self, argv: list[str]) -> tuple[list[str], dict[str, Any]]:
        """Positional arguments and values by destination name; exits with 2 as the real parser does."""
        positional: list[str] = []
        values: dict[str, Any] = {}
        dotted: dict[str, dict[str, Any]] = {}
        unknown: list[str] = []
        words = list(argv)
        while words:
            word = words.pop(0)
            if not word.startswith("-") or re.fullmatch(r"-\d+(\.\d+)?", word):
                positional.append(word)
                continue
            flag, sep, inline = word.partition("=")
            if re.fullmatch(r"-O\d?", flag) and self.version >= (0, 12):
                values["optimization_level"] = flag[2:] or (
                    words.pop(0) if words else fail("argument -O: expected one argument")
                )
                continue
            path = ""
            if flag.startswith("--"):
                head, dot, path = flag.partition(".")
                flag = "--" + head[2:].replace("_", "-")
                path = path if dot else ""
            match = self.lookup(flag)
            if match is None:
                unknown.append(word)
                if not sep and words and not words[0].startswith("-"):
                    unknown.append(words.pop(0))
                continue
            flag, option, positive = match
            if option["action"] == "_HelpAction":
                print("usage: vllm serve [model_tag] [options]   (simulated)\n\noptions:")
                for name in sorted(self.options):
                    print(f"  {name}")
                sys.exit(0)
            if option["nargs"] == 0 or option["action"] in (
                "_StoreTrueAction",
                "EnableDisableAction",
                "BooleanOptionalAction",
            ):
                if sep:
                    fail(f"argument {'/'.join(option['flags'])}: ignored explicit argument {inline!r}")
                values[option["dest"]] = positive
                continue
            values_taken = self.take(option, [inline] if sep else None, words)
            if path:
                dotted.setdefault(option["dest"], {})[path] = values_taken[0]
                continue
            converted = [self.convert(flag, option, text) for text in values_taken]
            values[option["dest"]] = (
                converted if option["nargs"] in ("+", "*") else (converted[0] if converted else None)
            )
        if len(positional) > 1:
            unknown = positional[1:] + unknown
        if unknown:
            fail(f"unrecognized arguments: {' '.join(unknown)}")
        for dest, pairs in dotted.items():
            base = values.get(dest)
            values[dest] = {**(base if isinstance(base, dict) else {}), **pairs}
        return positional, values

    def convert(self, flag: str, option: dict[str, Any], text: str) -> Any:
        kind = option["type"]
        name = "/".join(option["flags"])
        if flag in HUMAN or kind in ("human_readable_int", "human_readable_int_or_auto"):
            if flag == "--max-model-len" and text in ("auto", "-1"):
                return -1
            match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text)
            if not match or ("." in match[1] and match[2] not in ("k", "m", "g", "t")):
                fail(f"argument {name}: invalid human_readable_int value: {text!r}")
            return int(float(match[1]) * SUFFIXES.get(match[2], 1))
        if kind in ("int", "float"):
            try:
                return int(text) if kind == "int" else float(text)
            except ValueError:
                fail(f"argument {name}: invalid {kind} value: {text!r}")
        if flag in JSON_FLAGS or kind in ("loads", "parse_dataclass", "union_dict_and_str"):
            if text.lstrip().startswith(("{", "[")) or kind == "loads" or flag == "--speculative-config":
                try:
                    return json.loads(text)
                except ValueError:
                    fail(f"argument {name}: invalid loads value: {text!r}")
            return text
        choices = option["choices"]
        if choices and self.enforced(flag):
            normal = text.lower().replace("-", "_") if flag == "--moe-backend" else text
            if normal not in [str(choice) for choice in choices]:
                fail(f"argument {name}: invalid choice: {text!r} (choose from {', '.join(str(c) for c in choices)})")
            return normal
        if flag in NUMBERS:
            try:
                return NUMBERS[flag](text)
            except ValueError:
                fail(f"argument {name}: invalid {NUMBERS[flag].__name__} value: {text!r}")
        return text

    @staticmethod
    def enforced(flag: str) -> bool:
        return flag not in (
            "--quantization",
            "--load-format",
            "--distributed-executor-backend",
            "--data-parallel-backend",
        )


# Options whose type is hidden behind a helper in the list.
NUMBERS: dict[str, Any] = {"--max-num-seqs": int, "--gpu-memory-utilization": float, "--seed": int, "--block-size": int}
