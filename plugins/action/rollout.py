# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide about hosts that change one after another; documented in plugins/modules/rollout.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import rollout
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.progress import ROLL_OUT
from ansible_collections.dgxspark.vllm.plugins.module_utils._proof import benchmark
from ansible_collections.dgxspark.vllm.plugins.modules.rollout import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_documents import desired_checksum
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Channel
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.role_variables import own_variables
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
# Where a host's answer about its generation is, the newest first.
STATES = ("generation_restored", "generation_recorded", "generation_looked")


class ActionModule(ActionBase):
    """Read what the hosts said from their variables; no host is contacted."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Carry out one step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        _spec, self.args = self.validate_argument_spec(documented(DOCUMENTATION))
        result["changed"] = False
        result.update(getattr(self, f"step_{self.args['step']}")())
        return result

    def of(self, host: str, name: str) -> Any:
        """Return a variable of a host, None when it has none."""
        known = self.variables["hostvars"]
        return plain(known[host].get(name)) if host in known else None

    def hosts(self) -> list[str]:
        """Return the hosts of the run in their order, whether they answer or not."""
        return [str(host) for host in self.variables.get("ansible_play_hosts_all") or []]

    def present(self) -> list[str]:
        """Return those that answer and have not failed."""
        return [str(host) for host in self.variables.get("ansible_play_hosts") or []]

    def own(self, host: str) -> dict[str, Any]:
        """Return the variables of roles that are set for a host."""
        return own_variables(self.variables["hostvars"][host])

    def looks(self) -> dict[str, dict[str, Any]]:
        """Return what the hosts said of their generations."""
        found = {host: self.of(host, "generation_looked") for host in self.hosts()}
        return {host: look for host, look in found.items() if isinstance(look, dict) and "generations" in look}

    def step_order(self) -> dict[str, Any]:
        """Say who comes when, and who has nothing to do."""
        looks, planned, addons = self.looks(), plain(self.args["planned"]), plain(self.args["addons"])
        # Said now, not by the canary.
        _settings, messages = benchmark.read("spark_rollout_bench", plain(self.args["bench"]))
        if messages:
            raise AnsibleActionFail("no host was touched:\n- " + "\n- ".join(messages))
        silent = [host for host in self.hosts() if host not in self.present() or host not in looks]
        going_back = self.args["clusters"] is None
        if going_back:
            reachable = [host for host in self.hosts() if host not in silent]
            targets = {host: look for host, look in looks.items() if host in reachable}
            messages = rollout.mixtures(targets, reachable)
            messages += [f"{host}: {text}" for host, look in targets.items() for text in look.get("problems") or []]
            if messages:
                raise AnsibleActionFail("no host was touched:\n- " + "\n- ".join(messages))
            clusters = rollout.clusters_of(targets)
            done: list[str] = []
        else:
            clusters = {name: body["hosts"] for name, body in plain(self.args["clusters"]).items()}
            done = [
                host
                for host, look in looks.items()
                if host in planned
                and not self.args["all_hosts"]
                and rollout.runs_it(look, desired_checksum(planned[host], addons.get(host), self.own(host)))
            ]
        try:
            found = rollout.order(self.hosts(), clusters, self.args["canary"], self.args["batch"], done, silent)
        except ValueError as error:
            raise AnsibleActionFail(f"no host was touched: {error}") from error
        display.display(rollout.order_text(found))
        self._tell(found["batches"], 0)
        return {**found, "clusters": clusters}

    @staticmethod
    def _tell(batches: list[list[str]], done: int) -> None:
        """Tell the callback how far the rollout is. done: batches that are through."""
        hosts, count = [len(batch) for batch in batches], len(batches)
        if count:
            Channel.send(
                "", ROLL_OUT, f"batch {min(done + 1, count)} of {count}", sum(hosts[:done]), sum(hosts), "hosts"
            )

    def step_gate(self) -> dict[str, Any]:
        """Refuse a host whose services became slower."""
        host = str(self.variables["inventory_hostname"])
        before = (self.of(host, "generation_looked") or {}).get("receipts") or {}
        planned = (plain(self.args["planned"]).get(host) or {}).get("services") or []
        models = {service["name"]: service.get("model") or {} for service in planned}
        failed, notes = rollout.slower(plain(self.args["results"]), before, models, self.args["percent"])
        for note in notes:
            display.display(f"  {note}")
        if failed:
            raise AnsibleActionFail("slower than before the change:\n- " + "\n- ".join(failed))
        return {"notes": notes}

    def step_judge(self) -> dict[str, Any]:
        """Say what becomes of the batch at hand."""
        present = [str(host) for host in self.variables.get("ansible_play_batch") or []]
        batches = plain(self.args["batches"])
        batch = next((each for each in batches if set(each) & set(present)), present)
        if batch in batches:
            self._tell(batches, batches.index(batch) + 1)
        return rollout.judge(
            batch,
            plain(self.args["clusters"] or {}),
            [host for host in batch if self.of(host, "rollout_done")],
            {host: str(self.of(host, "rollout_why") or "") for host in batch},
            present,
            self.args["percent"],
        )

    def step_summary(self) -> dict[str, Any]:
        """Show who runs what, by what each host said last."""
        hosts = [str(host) for host in self.variables["groups"].get(self.args["group"]) or []]
        states = {host: self.last(host) for host in hosts}
        # Hosts that a limit leaves out are not part of the run.
        hosts = [host for host in hosts if states[host] or host in (self.variables.get("ansible_play_hosts_all") or [])]
        listed = rollout.rows(hosts, states, {host: str(note) for host, note in plain(self.args["notes"]).items()})
        display.display(rollout.summary_text(listed))
        return {"rows": listed}

    def last(self, host: str) -> Mapping[str, Any] | None:
        """Return what a host said last of its generation."""
        answers = [self.of(host, name) for name in STATES]
        return next((answer for answer in answers if isinstance(answer, dict) and "generations" in answer), None)
