"""`make demo` and `make demo-down`: two simulated Sparks on this machine, served by site.yml as on real ones."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import demo_summary
from common import BIN, CACHE, ROOT, SPARKSIM, Stopwatch, heading, run, tool_env

INVENTORY = "inventories/demo"
PLAN = CACHE / "demo" / "plan.json"
API_KEY = CACHE / "demo" / "api_key"
QUESTION = "Hello! Who are you?"


def up() -> int:
    """Boot, deploy, summarise; stops at the first step that fails."""
    watch = Stopwatch()
    make_api_key()
    playbook: list[str | Path] = [BIN / "ansible-playbook", "-i", INVENTORY, "site.yml"]
    steps: list[tuple[str, list[str | Path]]] = [
        ("1/3 boot two simulated Sparks", [SPARKSIM, "up", "--set", "demo", "--no-gateway"]),
        (f"2/3 ansible-playbook -i {INVENTORY} site.yml", playbook),
    ]
    for title, argv in steps:
        heading(title)
        code = run(*argv)
        if code:
            print(f"\nThe demo stopped at: {shlex.join(map(str, argv))} (exit code {code}).")
            print("Run `make demo` again after fixing the cause above, or `make demo-down` to remove everything.")
            return code
    heading("3/3 what you have now")
    return summarise(json.loads(PLAN.read_text(encoding="utf-8")), watch)


def make_api_key() -> None:
    """The demo's own key; made once, readable by its owner alone."""
    API_KEY.parent.mkdir(parents=True, exist_ok=True)
    if not API_KEY.exists():
        API_KEY.touch(mode=0o600)
        API_KEY.write_text(f"demo-{secrets.token_urlsafe(24)}\n", encoding="utf-8")


def summarise(plan: dict[str, Any], watch: Stopwatch) -> int:
    """Print everything a newcomer wants to see; fails when a model does not answer."""
    nodes = host_addresses()
    real = {service["image"]["ref"] for host, service in demo_summary.services(plan) if is_real(nodes[host], service)}
    key = API_KEY.read_text(encoding="utf-8").strip()
    answers = {
        f"{host}/{service['name']}": demo_summary.ask(service["url"], service["served_model_name"], key, QUESTION)
        for host, service in demo_summary.services(plan)
    }
    host, service = next(demo_summary.services(plan))
    sections = {
        "Served": demo_summary.served(plan, real),
        "Memory": demo_summary.memory_maps(plan, min(100, shutil.get_terminal_size((80, 24)).columns - 4), colored()),
        "A chat completion with each": demo_summary.conversation(QUESTION, list_real_first(answers, plan, real)),
        "What is real here": what_is_real(bool(real)),
        "Look around": look_around(ssh_command(nodes[host]), service),
        "Stop": "make demo-down     (images stay; the next `make demo` is quick)",
    }
    for title, text in sections.items():
        print(f"\n{title}\n{textwrap.indent(text, '  ')}")
    silent = [name for name, answer in answers.items() if not answer.ok]
    print(f"\n{'Ready' if not silent else 'No answer from ' + ', '.join(silent)} after {watch}.")
    return 1 if silent else 0


def colored() -> bool:
    """Whether bars are drawn in colour: on a terminal whose owner does not forbid it."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def list_real_first(
    answers: dict[str, demo_summary.Answer], plan: dict[str, Any], real: set[str]
) -> dict[str, demo_summary.Answer]:
    """Return the answers with real engines first."""
    order = {f"{host}/{s['name']}": s["image"]["ref"] not in real for host, s in demo_summary.services(plan)}
    return dict(sorted(answers.items(), key=lambda item: order[item[0]]))


def host_addresses() -> dict[str, str]:
    """Address of each node by its inventory name."""
    listing = subprocess.run(
        [BIN / "ansible-inventory", "-i", INVENTORY, "--list"],
        cwd=ROOT,
        env=tool_env(),
        capture_output=True,
        check=True,
    )
    return {name: values["ansible_host"] for name, values in json.loads(listing.stdout)["_meta"]["hostvars"].items()}


def ssh_command(address: str) -> list[str]:
    """How a person reaches a node from the top of the repository."""
    return ["ssh", "-i", ".cache/sim/id_ed25519", "-o", "UserKnownHostsFile=.cache/sim/known_hosts", f"spark@{address}"]


def is_real(address: str, service: dict[str, Any]) -> bool:
    """Tell whether the image of a service is a real engine; stand-ins have a label."""
    inspect = f"sudo docker image inspect --format '{{{{json .Config.Labels}}}}' {shlex.quote(service['image']['ref'])}"
    done = subprocess.run([*ssh_command(address), inspect], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0 and (json.loads(done.stdout) or {}).get("dgxspark.simulated") == "false"


def what_is_real(real_engine: bool) -> str:
    """Print which parts are simulated."""
    engine = (
        "a real vLLM on the CPU with a scripted 2 MB model, and stand-ins for the rest"
        if real_engine
        else "stand-ins only, because a CPU build of vLLM could not be had here"
    )
    return "\n".join(
        [
            "Real:      systemd, Docker, SSH and sudo on each node; the roles, units, plan, checks and receipts",
            "Simulated: the hardware (GB10, nvidia-smi, the QSFP link) and its memory, which is only book-keeping",
            f"Engines:   {engine}",
            "No time or rate seen here says anything about a Spark.",
        ]
    )


def look_around(ssh: list[str], service: dict[str, Any]) -> str:
    """Commands worth typing next."""
    login, unit = shlex.join(ssh), service["unit"]
    chat = {"model": service["served_model_name"], "messages": [{"role": "user", "content": "Hi"}]}
    return "\n".join(
        [
            f"{login}",
            f"{login} systemctl status {unit}",
            f"{login} sudo journalctl -u {unit}",
            f"{PLAN.with_suffix('.html').relative_to(ROOT)}       # the plan as a page: open it in a browser",
            f".venv/bin/ansible-playbook -i {INVENTORY} playbooks/status.yml",
            f".venv/bin/ansible-playbook -i {INVENTORY} site.yml       # again: changes nothing",
            f'curl -H "Authorization: Bearer $(cat {API_KEY.relative_to(ROOT)})" -H "Content-Type: application/json" \\',
            f"  {service['url']}/v1/chat/completions -d {shlex.quote(json.dumps(chat))}",
        ]
    )


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
