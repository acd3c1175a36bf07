# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units as systemd itself reads them, in its test mode."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
NOBODY = "65534"  # systemd's test mode is refused to root


def unquoted(text: str) -> list[str]:
    """Read a command line as systemd prints it: in double quotes if needed, with C's escapes."""
    escapes = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
    words = []
    for match in re.finditer(r'"((?:[^"\\]|\\.)*)"|([^ ]+)', text):
        if match[1] is None:
            words.append(match[2])
            continue
        words.append(
            re.sub(
                r"\\([0-7]{3}|.)",
                lambda seen: chr(int(seen[1], 8)) if len(seen[1]) == 3 else escapes.get(seen[1], seen[1]),
                match[1],
            )
        )
    return words


def read_by_systemd(units: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """Have systemd load units, and return the lines that it shows of each unit, grouped by setting."""
    # Not below pytest's own folder, which is for its owner alone.
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), Path(name, "run")
        folder.chmod(0o755)
        run.mkdir()
        run.chmod(0o777)
        for unit, text in {**units, "all.target": "[Unit]\n" + "".join(f"Wants={unit}\n" for unit in units)}.items():
            (folder / unit).write_text(text, encoding="utf-8")
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*become, str(SYSTEMD), "--test", "--user", "--unit=all.target", "--no-pager"],
            env={"SYSTEMD_UNIT_PATH": f"{folder}:", "XDG_RUNTIME_DIR": str(run), "HOME": "/", "LANG": "C.UTF-8"},
            capture_output=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    sections: dict[str, dict[str, list[str]]] = {}
    for block in re.split(r"^\t-> Unit ", done.stdout.decode(), flags=re.MULTILINE)[1:]:
        name, _colon, body = block.partition(":\n")
        if name in units:
            kind = ""
            lines: dict[str, list[str]] = {}
            for line in body.split("\n"):
                key, _colon, value = line.strip("\t").partition(": ")
                kind = line.strip("\t")[3:-1] if line.strip("\t").startswith("-> Exec") else kind
                lines.setdefault(kind if key == "Command Line" else key, []).append(value)
            sections[name] = lines
    assert set(sections) == set(units), set(units) - set(sections)
    return sections


needs_systemd = pytest.mark.skipif(
    not SYSTEMD.exists() or not shutil.which("setpriv"), reason="no systemd on this machine to read units"
)


def run_by_systemd(words: list[str]) -> list[str]:
    """Return the arguments that a program gets from a command line: two dollar signs become one, see systemd.service(5)."""
    assert not [word for word in words if re.search(r"\$", word.replace("$$", ""))]
    return [word.replace("$$", "$") for word in words]
