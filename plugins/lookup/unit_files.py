# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand a role its folders, files and units ready-made."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unit_files
short_description: What a part of a host is made of, as the module deploy takes it
description: Returns the folders, files and units of a part for the plan of a host, with its templates rendered. Texts of the plan reach
  the files unchanged, escaped for the syntax of each file.
options:
  _terms:
    description: The part, V(host), V(services), V(speech), V(ollama), V(watchdog), V(guard), V(live), V(protection), V(gpu_clocks),
      V(power), V(firewall), V(relay), V(hermes_packages), the list of packages of the planned Hermes agent, in the folder of its environment, or
      V(library), what programs of a part import.
    type: list
    elements: str
    required: true
  planned:
    description: What is planned of it. The services of RV(dgxspark.vllm.plan#module:hosts) in start order; of add-on services, the
      part of RV(dgxspark.vllm.plan#module:addons) by that name; for V(host) the variables of its role; for V(library) the name of a part.
    type: raw
  user:
    description: Account that runs the units of V(services), V(speech) and V(ollama).
    type: str
    default: dgxspark
  hf_home:
    description: Folder of weights that must be mounted before a unit of V(services) starts.
    type: str
    default: /srv/huggingface
  speech:
    description: The planned speech servers of the host; the ports of those on demand are among V(services).
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Show the settings of the watchdog
  ansible.builtin.debug:
    msg: "{{ lookup('dgxspark.vllm.unit_files', 'watchdog', planned={}).files[-1].content }}"
"""

RETURN = r"""
_raw:
  description: One dictionary a part, with C(folders), C(files), C(units) and what else M(dgxspark.vllm.deploy) is given.
  type: list
  elements: dict
"""

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import unit_files
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import addon_documents, role_documents
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.render import render_template
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

COLLECTION = Path(__file__).resolve().parents[2]


class LookupModule(LookupBase):
    """Ask the engine."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Return one dictionary for each term."""
        self.set_options(var_options=variables, direct=kwargs)
        planned = plain(self.get_option("planned"))
        user, hf_home = str(self.get_option("user")), str(self.get_option("hf_home"))
        makers = {
            "host": lambda: unit_files.host(planned),
            "services": lambda: unit_files.services(planned, user, hf_home, plain(self.get_option("speech"))),
            "speech": lambda: unit_files.speech(planned, user),
            "ollama": lambda: unit_files.ollama(planned, user),
            "library": lambda: unit_files.library(str(planned)),
            "hermes_packages": lambda: {
                "files": [addon_documents.hermes_packages(planned, self._loader.get_text_file_contents)]
            },
            "watchdog": lambda: unit_files.watchdog(planned),
            "guard": lambda: unit_files.guard(planned),
            "live": lambda: unit_files.live(planned),
            "protection": lambda: unit_files.protection(planned),
            "gpu_clocks": lambda: unit_files.gpu_clocks(planned),
            "power": lambda: unit_files.power(planned),
            "firewall": lambda: role_documents.firewall(planned),
            "relay": lambda: role_documents.relay_unit(planned),
        }
        unknown = [term for term in terms if term not in makers]
        if unknown:
            raise AnsibleLookupError(f"unit_files: {', '.join(unknown)}: known are {', '.join(makers)}")
        try:
            return [located(makers[term]()) for term in terms]
        except ValueError as error:
            raise AnsibleLookupError(f"unit_files: {error}") from error


def located(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with the contents of its files rendered, and the files of this collection named by their paths on the controller.

    Raises ValueError for a value that a file cannot hold.
    """
    files = []
    for file in part["files"]:
        row = {key: value for key, value in file.items() if key not in ("bundled", "template", "values")}
        if "bundled" in file:
            row["source"] = str(COLLECTION / file["bundled"])
        if "template" in file:
            row["content"] = render_template(file["template"], file["values"])
        files.append(row)
    return {**part, "files": files}
