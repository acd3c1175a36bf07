# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that are made of a pinned one by instructions of a Dockerfile, C(dockerfile) of an image: patches that others put into a
container at each start. Which instructions may stand there, the whole Dockerfile, and the name of the result.

The build has no context: its input is the base, by digest, and the text, which the plan shows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from .._common import plain_secrets, redaction

INSTRUCTIONS = ("ARG", "COPY", "ENV", "LABEL", "RUN", "SHELL", "USER", "WORKDIR")
MOST_CHARACTERS = 65536
NAMES = "dgxspark/built"
"""Repository of the results; a tag is a hash of base and instructions, so the name identifies the content."""
BASES = "dgxspark/built-base"
"""Repository of the names that bases get, since a Dockerfile takes no image id and a result must not lose what it stands on."""
_OTHERS = {
    "FROM": "the base is 'ref' of the image",
    "ADD": "the build has no files; fetch by RUN, and check a sum there",
    "ENTRYPOINT": "the plan goes by the base's",
    "CMD": "the plan writes the command",
}
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_UNFIT = re.compile(r"[^\S\t\n ]|[\x00-\x08\x0b-\x1f\x7f]")


def problems(ref: str, steps: Any) -> list[str]:
    """Check an image's C(dockerfile)."""
    if not isinstance(steps, str) or not steps.strip():
        return ["'dockerfile' of an image must be the instructions of a Dockerfile behind its FROM, a text."]
    if len(steps) > MOST_CHARACTERS or _UNFIT.search(steps):
        return [
            f"'dockerfile' of an image must be a text of at most {MOST_CHARACTERS} characters, without control characters."
        ]
    messages = []
    if not re.search(r"@sha256:[0-9a-f]{64}$", ref):
        messages.append(
            f"'dockerfile' needs an image that is pinned by its digest, NAME@sha256:...; '{ref}' can become another one. "
            "docker buildx imagetools inspect prints it."
        )
    if re.match(r"\s*#\s*(?:syntax|escape|check)\s*=", steps):
        messages.append(
            "'dockerfile' begins with a directive of the parser (# syntax=, # escape=), which is not read here."
        )
    for number, line in _instructions(steps):
        messages += [f"'dockerfile', line {number}: {text}" for text in _wrong(line)]
    return messages


def _instructions(steps: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each instruction; of one with a here-document its first line."""
    lines = steps.split("\n")
    index = 0
    while index < len(lines):
        start, text = index, lines[index].strip()
        index += 1
        if not text or text.startswith("#"):
            continue
        while text.endswith("\\") and index < len(lines):
            if not lines[index].lstrip().startswith("#"):
                text = f"{text[:-1]} {lines[index].strip()}"
            index += 1
        for end in [match[2] for match in _HEREDOC.finditer(text)]:
            while index < len(lines) and lines[index].strip() != end:
                index += 1
            index += 1
        if index > len(lines):
            text += " <<"  # never closed
        yield start + 1, text


def _wrong(line: str) -> list[str]:
    """Return messages about one instruction."""
    word, _space, arguments = line.partition(" ")
    name = word.upper()
    if name not in INSTRUCTIONS:
        why = _OTHERS.get(name, f"it may have {', '.join(INSTRUCTIONS)}")
        return [f"{word} may not stand here: {why}."]
    messages = []
    if line.endswith(" <<"):
        messages.append("its here-document is not closed.")
    if name == "COPY" and not _HEREDOC.search(arguments):
        messages.append("COPY needs a here-document (COPY <<EOF PATH): nothing but this text goes into the build.")
    if name in ("RUN", "COPY") and re.match(r"--(?!chmod=|chown=)", arguments.strip()):
        messages.append(f"{name} may have no option but --chmod and --chown.")
    assigned = (
        dict(part.partition("=")[::2] for part in arguments.split() if "=" in part) if name in ("ARG", "ENV") else {}
    )
    if plain_secrets.in_environment(assigned) or redaction.holds_secret(line):
        messages.append(
            "it contains a secret, which docker history shows to everybody who may run it; name its file under 'secrets'."
        )
    return messages


def planned(ref: str, base: str, steps: str) -> dict[str, str]:
    """Return the built image of a service.

    :param ref: reference of the base, pinned by its digest
    :returns: C(base), C(base_tag), the name that the base gets, C(tag), the name of the result, and C(dockerfile), the whole text
    """
    steps = steps.strip() + "\n"
    mark = hashlib.sha256(f"{ref}\n{steps}".encode()).hexdigest()[:12]
    name = f"{BASES}:{mark}"
    text = f'FROM {name}\n{steps}LABEL dgxspark.base="{ref}"\n'
    return {"base": base, "base_tag": name, "tag": f"{NAMES}:{mark}", "dockerfile": text}
