"""The summary at the end of `make demo`, from plan.json: tables, memory bars and what the models answered."""

from __future__ import annotations

import json
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import picture

Plan = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a model said to one chat message, or why it did not."""

    text: str
    seconds: float
    ok: bool


def services(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every (host, service) of the plan."""
    for host, body in plan["hosts"].items():
        for service in body["services"]:
            yield host, service


def table(rows: list[list[str]]) -> str:
    """Rows as left-aligned columns; the first row is the heading."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def served(plan: Plan, real_images: set[str]) -> str:
    """Return the served models with their hosts and kinds of engine."""
    rows = [["node", "service", "URL", "model", "engine"]]
    for host, service in services(plan):
        engine = "real vLLM on the CPU" if service["image"]["ref"] in real_images else "stand-in"
        rows.append([host, service["name"], service["url"], service["served_model_name"], engine])
    return table(rows)


def memory_maps(plan: Plan, width: int, color: bool) -> str:
    """The memory bars of all nodes, as plan.yml draws them, with the size of each part."""
    blocks = [picture.legend(color)]
    for host, body in plan["hosts"].items():
        sizes = [f"{part['label']} {picture.size_text(part['gib'])}" for part in body["memory_map"] if part["gib"] > 0]
        lines = [
            f"{host}, {body['total_gib']:.2f} GiB of unified memory as planned",
            picture.host_picture(body, width, color),
        ]
        blocks.append("\n".join([*lines, textwrap.fill(", ".join(sizes), width)]))
    return "\n\n".join(blocks)


def ask(url: str, model: str, key: str, question: str, timeout: float = 60.0) -> Answer:
    """One chat completion over HTTP."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 64}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    start = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            message = json.load(response)["choices"][0]["message"]
        # A reasoning parser may take a reply without an end of thinking for a thought.
        text = (message.get("content") or message.get("reasoning") or "").strip()
        return Answer(text or "(empty)", time.monotonic() - start, bool(text))
    except urllib.error.HTTPError as error:
        return Answer(f"HTTP {error.code}: {error.read(300).decode(errors='replace')}", time.monotonic() - start, False)
    except (OSError, ValueError, LookupError) as error:
        return Answer(f"{type(error).__name__}: {error}", time.monotonic() - start, False)


def conversation(question: str, answers: dict[str, Answer]) -> str:
    """The question and what each service answered."""
    lines = [f"you> {question}"]
    for name, answer in answers.items():
        lines.append(f"{name}> {answer.text[:200]}   ({answer.seconds:.2f} s{'' if answer.ok else ', FAILED'})")
    return "\n".join(lines)
