#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack logs and facts of a host for support; secrets are taken out before anything leaves the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle
short_description: Pack logs and facts of a host for support
description:
  - Collects logs, facts, plan, receipts, metrics, units and the state of Docker and the system, redacts secrets on the host, and writes a
    C(HOST.tar.gz) into a folder of the controller. It writes nothing on the host.
  - Secrets are the contents of its secret files, values of variables with names like key or password in containers and environment files, and Docker's
    accounts, in every spelling, and all texts that look like a key, token or password.
  - With O(index_from) it writes an index of the bundles of all hosts of the play instead, and fails if a host has no bundle. An unreachable host is part of
    the result, as with M(dgxspark.vllm.ask).
options:
  dest:
    description: Folder on the controller. Only its owner can read it.
    type: path
    required: true
  services:
    description: The services, as M(dgxspark.vllm.plan) returns them; C(name), C(unit) and C(url), for the metrics, are read.
    type: list
    elements: dict
    default: []
  plan:
    description: The host's part of the plan, for C(plan.json) of the bundle.
    type: dict
    default: {}
  lines:
    description: Last lines of each log.
    type: int
    default: 2000
  max_mib:
    description: Most MiB of text in a bundle. Its manifest lists the omitted files.
    type: int
    default: 16
  secret_files:
    description: Further files and folders of the host whose values are secrets.
    type: list
    elements: path
    default: []
  root:
    description: Folder that contains C(/proc) and C(/sys); for simulated hosts.
    type: path
    default: /
  index_from:
    description: Name of the variable with the result of this module on each host.
    type: str
    default: ''
attributes:
  check_mode:
    details:
      - In check mode nothing is written to the controller.
  diff_mode:
    support: N/A
    details:
      - This module does not change a host.
  idempotent:
    support: N/A
    details:
      - Each run collects the current data.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
"""

EXAMPLES = r"""
- name: Collect
  dgxspark.vllm.support_bundle:
    dest: /tmp/support
    services:
      - {name: heavy, unit: spark-heavy.service, url: 'http://127.0.0.1:8001'}
  become: true
  register: collected

- name: Write the index
  dgxspark.vllm.support_bundle:
    dest: /tmp/support
    index_from: collected
  run_once: true
"""

RETURN = r"""
reached:
  description: Whether the host could be reached.
  returned: without index_from
  type: bool
why:
  description: Why there is no bundle; empty if there is one.
  returned: without index_from
  type: str
bundle:
  description: File name of the bundle in O(dest).
  returned: when there is one
  type: str
bytes:
  description: Its size.
  returned: when there is one
  type: int
sha256:
  description: Its SHA-256.
  returned: when there is one
  type: str
files:
  description: Number of files in it.
  returned: when there is one
  type: int
redacted:
  description: Number of redacted secrets.
  returned: when there is one
  type: int
left_out:
  description: Files that were left out or cut because of their size.
  returned: when there is one
  type: list
  elements: str
index:
  description: File of the index.
  returned: with index_from
  type: str
"""

import base64
import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import redaction
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import support
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_facts, machine, raw_texts
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import HostView
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.units import journal_command
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import explain
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import http_client
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Run, noted, reader

LOOK_SECONDS = 15.0  # that a program may take

DOCKER_CONFIG = "/root/.docker/config.json"
ENV_FOLDER = "/etc/dgxspark/env"
MOST_SECRET_BYTES = 64 * 1024


def main() -> None:
    """Run the module; the action plugin writes what comes back."""
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "services": {"type": "list", "elements": "dict", "default": []},
            "plan": {"type": "dict", "default": {}},
            "lines": {"type": "int", "default": 2000},
            "max_mib": {"type": "int", "default": 16},
            "secret_files": {"type": "list", "elements": "path", "default": [], "no_log": False},
            "root": {"type": "path", "default": "/"},
            "index_from": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params, run = module.params, reader(LOOK_SECONDS)
    view = HostView(run, params["root"])
    boxes = noted({}, [], view.containers)
    containers = [item["name"] for item in boxes if item["managed"]]
    inspected = json.dumps([box for box in noted({}, [], view.inspected_containers) if name_of(box) in containers])
    redactor = redaction.Redactor(secrets(inspected, params["secret_files"]))
    bundle = support.Bundle(redactor, params["max_mib"] * 2**20)
    facts = host_facts.collect(view) | {"disks": machine.read_disks(["/", "/var/log", "/srv/huggingface"])}
    bundle.add("facts.json", json.dumps(facts, indent=1, sort_keys=True))
    bundle.add("plan.json", json.dumps(params["plan"], indent=1, sort_keys=True))
    bundle.add("docker/inspect.json", redaction.clean_inspect(inspected))
    for folder, pattern in support.FILES:
        for path in sorted(Path(folder).glob(pattern)):
            if path.is_file():
                add_file(bundle, path)
    for name, argv in raw_texts.COMMANDS:
        bundle.add(name, raw_texts.read(run, argv))
    units = sorted({unit["name"] for unit in facts["units"]} | {service["unit"] for service in params["services"]})
    for unit in units:
        for name, argv in raw_texts.unit_commands(unit):
            bundle.add(name, raw_texts.read(run, argv))
    for service in params["services"]:
        if service.get("url"):
            bundle.add(f"metrics/{service['name']}.txt", metrics(service["url"]))
    add_logs(bundle, run, units, containers, params["lines"])
    content = bundle.pack()
    module.exit_json(
        changed=False,
        content=base64.b64encode(content).decode("ascii"),
        files=len(bundle.files),
        redacted=redactor.taken,
        left_out=bundle.left_out,
    )


def name_of(box: dict[str, Any]) -> str:
    """Return the name of a container that docker inspected."""
    return str(box.get("Name") or "").lstrip("/")


def add_logs(bundle: support.Bundle, run: Run, units: list[str], containers: list[str], lines: int) -> None:
    """Put the last lines of journals, containers and the kernel into the bundle. The last ones are left out when the bundle is full."""
    for unit in units:
        journal = raw_texts.read(run, journal_command(unit, lines, "short-iso"))
        bundle.add(f"journal/{unit}.log", journal)
        explanation = explain.explain(journal.splitlines(), bundle.redactor)
        if explanation.is_known:
            bundle.add(f"explained/{unit}.txt", "\n".join([*explanation.lines(), ""]))
    for container in containers:
        bundle.add(f"docker/{container}.log", raw_texts.read(run, raw_texts.container_log(container, lines)))
    for name, argv in raw_texts.logs(lines):
        bundle.add(name, raw_texts.read(run, argv))


def add_file(bundle: support.Bundle, path: Path) -> None:
    """Put a file into the bundle, under its own path; of a long one the end."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - support.MOST_OF_ONE * 2, 0))
            text = stream.read().decode("utf-8", "replace")
    except OSError as error:
        text = f"# cannot be read: {error}\n"
    if path.suffix == ".env":
        text = "\n".join(redaction.clean_environment(text.splitlines())) + "\n"
    bundle.add(f"files{path}", text)


def metrics(url: str) -> str:
    """Return the figures of an engine; they ask for no key."""
    try:
        return http_client.fetch(f"{url}/metrics", timeout=5).body.decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        return f"# no answer: {error}\n"


def secrets(inspected: str, further: list[str]) -> list[str]:
    """Return the secret values of this host from all their places."""
    values = []
    for place in [*support.SECRET_PLACES, *further]:
        path = Path(place)
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            for text in read_secret(file):
                # A file may hold names and values, such as all tokens of an account.
                values += [text, *redaction.secrets_of_environment(text.splitlines())]
    for file in sorted(Path(ENV_FOLDER).glob("*")):
        values += redaction.secrets_of_environment("".join(read_secret(file)).splitlines())
    return values + account_secrets() + container_secrets(inspected)


def account_secrets() -> list[str]:
    """Return the secrets of root's accounts at registries."""
    try:
        accounts = parse_json(Path(DOCKER_CONFIG).read_text(encoding="utf-8"), DOCKER_CONFIG).get("auths") or {}
        return [secret for account in accounts.values() for secret in redaction.secrets_of_account(account)]
    except (OSError, ValueError, AttributeError):
        return []


def container_secrets(inspected: str) -> list[str]:
    """Return the secrets in environments of containers. inspected: of docker."""
    try:
        containers = parse_json(inspected, "docker inspect")
    except ValueError:
        return []
    environments = [(container.get("Config") or {}).get("Env") or [] for container in containers]
    return [secret for environment in environments for secret in redaction.secrets_of_environment(environment)]


def read_secret(file: Path) -> list[str]:
    """Return the content of a file of the size of a key."""
    try:
        if file.is_file() and file.stat().st_size <= MOST_SECRET_BYTES:
            return [file.read_text(encoding="utf-8", errors="replace")]
    except OSError:
        return []
    return []


if __name__ == "__main__":
    main()
