# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide about hosts that change one after another; documented in plugins/modules/rollout.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import rollout
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import ROLL_OUT
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import desired_checksum
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Channel
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
# Variables with a host's answer about its generation, the newest first.
STATES = ("generation_restored", "generation_recorded", "generation_looked")


def _refuse(errors: list[str]) -> None:
    """Fail before any host is touched, if there are errors."""
    if errors:
        raise AnsibleActionFail("no host was touched:\n- " + "\n- ".join(errors))


class ActionModule(ControllerAction):
    """Decide the steps of a rollout by variables of the hosts; no host is contacted."""

    def act(self) -> dict[str, Any]:
        """Carry out one step."""
        return {"changed": False, **getattr(self, f"step_{self.args['step']}")()}

    def variable(self, host: str, name: str) -> Any:
        """Return a variable of a host, None without it."""
        hostvars = self.variables["hostvars"]
        return plain(hostvars[host].get(name)) if host in hostvars else None

    def hosts(self) -> list[str]:
        """Return all hosts of the run, in order."""
        return [str(host) for host in self.variables.get("ansible_play_hosts_all") or []]

    def present(self) -> list[str]:
        """Return the hosts that answer and have not failed."""
        return [str(host) for host in self.variables.get("ansible_play_hosts") or []]

    def looks(self) -> dict[str, dict[str, Any]]:
        """Return the answers of M(dgxspark.vllm.generation), by host."""
        answers = {host: self.variable(host, "generation_looked") for host in self.hosts()}
        return {host: look for host, look in answers.items() if isinstance(look, dict) and "generations" in look}

    def step_order(self) -> dict[str, Any]:
        """Print and return the order of the hosts."""
        # Checked now rather than after the canary.
        _settings, errors = benchmark.read("spark_rollout_bench", plain(self.args["bench"]))
        _refuse(errors)
        looks = self.looks()
        silent = [host for host in self.hosts() if host not in self.present() or host not in looks]
        looks = {host: look for host, look in looks.items() if host not in silent}
        if self.args["clusters"] is None:  # a rollback
            errors = rollout.mixtures(looks, list(looks))
            errors += [f"{host}: {text}" for host, look in looks.items() for text in look.get("problems") or []]
            _refuse(errors)
            clusters, done = rollout.clusters_of(looks), []
        else:
            clusters = {name: body["hosts"] for name, body in plain(self.args["clusters"]).items()}
            done = [] if self.args["all_hosts"] else self._up_to_date(looks)
        try:
            order = rollout.order(self.hosts(), clusters, self.args["canary"], self.args["batch"], done, silent)
        except ValueError as error:
            raise AnsibleActionFail(f"no host was touched: {error}") from error
        display.display(rollout.order_text(order))
        self._report_progress(order["batches"], 0)
        return {**order, "clusters": clusters}

    def _up_to_date(self, looks: dict[str, dict[str, Any]]) -> list[str]:
        """Return the hosts that run their plan."""
        planned, addons = plain(self.args["planned"]), plain(self.args["addons"])
        hosts = []
        for host, look in looks.items():
            if host in planned:
                role_variables = own_variables(self.variables["hostvars"][host])
                wanted = desired_checksum(planned[host], addons.get(host), role_variables)
                hosts += [host] if rollout.is_up_to_date(look, wanted) else []
        return hosts

    @staticmethod
    def _report_progress(batches: list[list[str]], done: int) -> None:
        """Send the progress to the callback. done: finished batches."""
        hosts, count = [len(batch) for batch in batches], len(batches)
        if count:
            Channel.send(
                "", ROLL_OUT, f"batch {min(done + 1, count)} of {count}", sum(hosts[:done]), sum(hosts), "hosts"
            )

    def step_gate(self) -> dict[str, Any]:
        """Fail for a host whose services became slower."""
        host = str(self.variables["inventory_hostname"])
        before = (self.variable(host, "generation_looked") or {}).get("receipts") or {}
        planned = (plain(self.args["planned"]).get(host) or {}).get("services") or []
        models = {service["name"]: service.get("model") or {} for service in planned}
        failures, notes = rollout.slower(plain(self.args["results"]), before, models, self.args["percent"])
        for note in notes:
            display.display(f"  {note}")
        if failures:
            raise AnsibleActionFail("slower than before the change:\n- " + "\n- ".join(failures))
        return {"notes": notes}

    def step_judge(self) -> dict[str, Any]:
        """Return the verdict on the current batch."""
        present = [str(host) for host in self.variables.get("ansible_play_batch") or []]
        batches = plain(self.args["batches"])
        batch = next((hosts for hosts in batches if not set(hosts).isdisjoint(present)), present)
        if batch in batches:
            self._report_progress(batches, batches.index(batch) + 1)
        return rollout.judge(
            batch,
            plain(self.args["clusters"] or {}),
            [host for host in batch if self.variable(host, "rollout_done")],
            {host: str(self.variable(host, "rollout_why") or "") for host in batch},
            present,
            self.args["percent"],
        )

    def step_summary(self) -> dict[str, Any]:
        """Print the services of all hosts, by the last answer of each host."""
        hosts = [str(host) for host in self.variables["groups"].get(self.args["group"]) or []]
        states = {host: self.last(host) for host in hosts}
        # A limit may exclude hosts from the run.
        hosts = [host for host in hosts if states[host] or host in (self.variables.get("ansible_play_hosts_all") or [])]
        listed = rollout.rows(hosts, states, {host: str(note) for host, note in plain(self.args["notes"]).items()})
        display.display(rollout.summary_text(listed))
        return {"rows": listed}

    def last(self, host: str) -> Mapping[str, Any] | None:
        """Return the last answer of a host about its generation."""
        answers = [self.variable(host, name) for name in STATES]
        return next((answer for answer in answers if isinstance(answer, dict) and "generations" in answer), None)
