# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of launches for machines without this collection."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import export
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import receipts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

DOCUMENTATION = r"""
name: exported_files
short_description: Write planned services as launches for machines without this collection
description:
  - Returns the files of C(docker run), compose, systemd, and recipes of eugr and sparkrun for planned services. M(dgxspark.vllm.import_recipe) reads
    all of them.
  - Secrets are named and never part of a file.
options:
  _input:
    description: The services of a host, as M(dgxspark.vllm.plan) returns them.
    type: list
    elements: dict
    required: true
  names:
    description: Names of the services to export.
    type: list
    elements: str
    required: true
  forms:
    description: Forms to write, all without it.
    type: list
    elements: str
    choices: [docker, compose, systemd, eugr, sparkrun]
    default: []
  receipts:
    description:
      - Results of M(dgxspark.vllm.ask) in a loop over the names, each with C(answers.receipt) of M(ansible.builtin.slurp) for the receipt.
      - A receipt that is missing or damaged counts as none.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Export a service
  ansible.builtin.copy:
    content: "{{ item.content }}"
    dest: "exported/{{ item.path }}"
    mode: "0644"
  loop: "{{ spark_planned.hosts['spark-1'].services | dgxspark.vllm.exported_files(['heavy'], ['compose']) }}"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: Files, each with its C(path) and its C(content), or with C(src), a file of the controller.
  type: list
  elements: dict
  sample: [{"path": "heavy/heavy.docker.sh", "content": "#!/bin/bash\n..."}]
"""


def exported_files(
    services: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    forms: str | Sequence[str] = (),
    results: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, str]]:
    """Return the files. DOCUMENTATION has the arguments and the result."""
    chosen = [forms] if isinstance(forms, str) else list(forms)
    if unknown := [form for form in chosen if form not in export.FORMS]:
        raise AnsibleFilterError(
            f"exported_files: there is no form {unknown[0]!r}; take some of {', '.join(export.FORMS)}"
        )
    receipt_of = {str(result.get("item")): _receipt(result) for result in results}
    files = []
    for service in plain(services):
        name = service["name"]
        if name not in names:
            continue
        contents = export.export(service, receipt_of.get(name), chosen or export.FORMS)
        files += [{"path": f"{name}/{path}", "content": _text(content)} for path, content in contents.items()]
        files += [{"path": f"{name}/{path}", "src": source} for path, source in export.sources(service).items()]
    return files


def _receipt(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the receipt that a host gave, None without a usable one."""
    try:
        return receipts.load(
            base64.b64decode(result["answers"]["receipt"]["content"], validate=True).decode()
        ).to_dict()
    except (KeyError, TypeError, ValueError):
        return None


def _text(content: Mapping[str, Any]) -> str:
    """Return the text of a file, with its header as comments."""
    body, header = content["body"], [f"# {' '.join(printable(line).split())}\n" for line in content["header"]]
    if not isinstance(body, str):
        body = yaml.dump(body, Dumper=Dumper, sort_keys=False, width=120)
    first, newline, rest = body.partition("\n") if body.startswith("#!") else ("", "", body)
    return "".join([first, newline, *header, rest])


class Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Dumper.add_representer(str, _represent_text)


class FilterModule:
    """Filters for exported launches."""

    def filters(self) -> dict[str, Any]:
        """Name the filters."""
        return {"exported_files": exported_files}
