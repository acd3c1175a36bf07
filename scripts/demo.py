"""`make demo` and `make demo-down`: two simulated Sparks on this machine, served by site.yml as on real ones."""

from __future__ import annotations

import argparse
import json
import secrets
import shlex
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

from common import BIN, CACHE, ROOT, SPARKSIM, Stopwatch, heading, run

INVENTORY = "inventories/demo"
PLAN = CACHE / "demo" / "plan.json"
API_KEY = CACHE / "demo" / "api_key"
QUESTION = "Hello! Who are you?"
SSH = "ssh -i .cache/sim/id_ed25519 -o UserKnownHostsFile=.cache/sim/known_hosts"
REAL = """\
Real:      systemd, Docker, SSH and sudo on each node; the roles, units, plan, checks and receipts
Simulated: the hardware (GB10, nvidia-smi, the QSFP link) and its memory, which is only book-keeping
Engines:   a real vLLM on the CPU with a scripted 2 MB model if its image could be built here, and stand-ins
No time or rate seen here says anything about a Spark."""


def up() -> int:
    """Boot, deploy, show; stops at the first step that fails."""
    watch = Stopwatch()
    make_api_key()
    playbook: list[str | Path] = [BIN / "ansible-playbook", "-i", INVENTORY]
    steps: list[tuple[str, list[str | Path]]] = [
        ("1/3 boot two simulated Sparks", [SPARKSIM, "up", "--set", "demo", "--no-gateway"]),
        (f"2/3 ansible-playbook -i {INVENTORY} site.yml", [*playbook, "site.yml"]),
        (f"3/3 ansible-playbook -i {INVENTORY} playbooks/status.yml", [*playbook, "playbooks/status.yml"]),
    ]
    for title, argv in steps:
        heading(title)
        code = run(*argv)
        if code:
            print(f"\nThe demo stopped at: {shlex.join(map(str, argv))} (exit code {code}).")
            print("Run `make demo` again after fixing the cause above, or `make demo-down` to remove everything.")
            return code
    service = json.loads(PLAN.read_text(encoding="utf-8"))["hosts"]["spark-1"]["services"][0]
    sections = {
        "A chat completion": f"you> {QUESTION}\n{service['name']}> {chat(service['url'], service['served_model_name'])}",
        "What is real here": REAL,
        "Look around": look_around(service),
        "Stop": "make demo-down     (images stay; the next `make demo` is quick)",
    }
    for title, text in sections.items():
        print(f"\n{title}\n{textwrap.indent(text, '  ')}")
    print(f"\nReady after {watch}.")
    return 0


def make_api_key() -> None:
    """The demo's own key; made once, readable by its owner alone."""
    API_KEY.parent.mkdir(parents=True, exist_ok=True)
    if not API_KEY.exists():
        API_KEY.touch(mode=0o600)
        API_KEY.write_text(f"demo-{secrets.token_urlsafe(24)}\n", encoding="utf-8")


def chat(url: str, model: str) -> str:
    """Return the answer of a model to the question; site.yml has made sure that it gives one."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY.read_text().strip()}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        message = json.load(response)["choices"][0]["message"]
    return str(message.get("content") or message.get("reasoning") or "(empty)").strip()[:200]


def look_around(service: dict[str, Any]) -> str:
    """Commands worth typing next. service: of the plan of the first host."""
    login = f"{SSH} spark@{service['url'].partition('//')[2].rpartition(':')[0]}"
    return f"""\
{login}
{login} systemctl status {service["unit"]}
{login} sudo journalctl -u {service["unit"]}
{PLAN.with_suffix(".html").relative_to(ROOT)}       # the plan as a page: open it in a browser
.venv/bin/ansible-playbook -i {INVENTORY} site.yml       # again: changes nothing"""


def down() -> int:
    """Remove the demo's nodes; images stay for the next time."""
    for report in (PLAN, PLAN.with_suffix(".html")):
        report.unlink(missing_ok=True)
    return run(SPARKSIM, "down", "--set", "demo")


def main() -> int:
    """Run the demo, or stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["up", "down"])
    try:
        return {"up": up, "down": down}[parser.parse_args().what]()
    except KeyboardInterrupt:
        print("\nInterrupted. `make demo-down` removes what was started.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
