# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan which host takes what from which hosts; documented in plugins/modules/spread.py."""

from __future__ import annotations

from typing import Any

from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spreading
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
RESULTS = {reader.LINE: answers.GOT}
THING = ("kind", "holders", "lacking", "bytes", "image", "ref", "alias", "commit", "revision", "folder", "files")


class ActionModule(ControllerAction):
    """Combine the answers of the hosts of the play into a plan for each host."""

    def act(self) -> dict[str, Any]:
        """Return the next work of each host."""
        # In a play in batches only the hosts of this batch are at this task; the answers of others are old.
        batch = [str(host) for host in self.variables.get("ansible_play_batch") or []]
        self.looks = {
            host: checked_answer(plain(answer["distribution"]), answers.DISTRIBUTION, host, "dgxspark.vllm.spark_info")
            for host in batch
            if (answer := self.answer_of(host, "looks_from")).get("distribution")
        }
        steps = {"survey": self.survey, "pull": self.pull, "review": self.review}
        return {"changed": False, "_ansible_verbose_override": True, **steps[self.args["step"]]()}

    def answer_of(self, host: str, argument: str) -> dict[str, Any]:
        """Return a result that is registered on a host, in the variable that an argument names."""
        answer = self.variables["hostvars"][host].get(self.args[argument]) if self.args[argument] else None
        return dict(answer) if isinstance(answer, dict) else {}

    def survey(self) -> dict[str, Any]:
        """Return the missing things of each host, and the work to do before they can move."""
        looks = self.looks
        surveyed = spreading.survey(looks, self.args["verify"], self.args["doubted"])
        is_ready = not surveyed["fetch"] and not surveyed["verify"]
        refused = self.remove_hosts(surveyed)
        moving = spreading.participants(surveyed["things"])
        for line in (lines := [*surveyed["notes"], *refused.values(), *spreading.plan_lines(surveyed, looks)]):
            display.display(f"  {line}")
        things = {
            key: {name: thing[name] for name in THING if name in thing}
            for key, thing in surveyed["things"].items()
            if thing["lacking"]
        }
        return {
            "ready": is_ready,
            "moves": bool(moving) or not is_ready,
            "hosts": {host: self.host_work(surveyed, host, refused.get(host, ""), host in moving) for host in looks},
            "things": things,
            "lines": lines,
        }

    def remove_hosts(self, surveyed: dict[str, Any]) -> dict[str, str]:
        """Remove hosts that cannot send or receive from a survey; return the messages of those that lack something."""
        unable = spreading.unable(surveyed, self.looks)
        waiting = {host for thing in surveyed["things"].values() for host in thing["lacking"]}
        refused = {
            **spreading.remove_sources(surveyed, unable),
            **spreading.without_room(surveyed, self.looks, self.args["reserve_gb"] * spreading.GB),
            **{host: reason for host, reason in unable.items() if host in waiting},
        }
        if self.args["again"]:
            surveyed["notes"] = []
        # A host that lacks nothing does not fail; it only sends nothing.
        surveyed["notes"] += [reason for host, reason in unable.items() if host not in waiting]
        spreading.remove_receivers(surveyed, refused)
        return refused

    def host_work(self, surveyed: dict[str, Any], host: str, refused: str, is_moving: bool) -> dict[str, Any]:
        """Return the work of a host before anything moves. refused: why it cannot take part, or an empty text."""
        look, keys = self.looks[host], surveyed["fetch"].get(host, [])
        return {
            "fetch_images": [key for key in keys if key in look["images"]],
            "fetch_models": [
                {name: look["models"][key][name] for name in ("repo", "revision", "only")}
                for key in keys
                if key in look["models"]
            ],
            "verify": spreading.verify_tasks(surveyed, self.looks, host),
            "refused": refused,
            "moving": is_moving,
        }

    def pull(self) -> dict[str, Any]:
        """Return the things that each host takes, with their sources, and the access to each host."""
        tasks = spreading.pull_tasks(self.args["things"], self.looks)
        return {"hosts": {host: {"take": tasks[host], **self.access(host)} for host in self.looks}}

    def review(self) -> dict[str, Any]:
        """Return the sources from which models arrived with wrong digests."""
        results = {
            host: checked_answer(
                plain(self.answer_of(host, "got_from").get("got") or {}), RESULTS, host, "dgxspark.vllm.transfer"
            )
            for host in self.looks
        }
        return {"doubted": spreading.doubted_sources(results)}

    def access(self, host: str) -> dict[str, Any]:
        """Return the peers of a host, the addresses that it listens on, and what it may send."""
        peers = []
        for other in self.looks:
            keys = self.answer_of(other, "keys_from")
            if other != host and keys.get("client_key"):
                keys = checked_answer(plain(keys), answers.KEYS, other, "dgxspark.vllm.spread_access")
                peers.append(
                    {
                        "name": other,
                        "client_key": keys["client_key"],
                        "host_key": keys["host_key"],
                        "addresses": spreading.addresses(self.looks[other]),
                    }
                )
        look = self.looks[host]
        return {
            "peers": peers,
            "addresses": spreading.addresses(look),
            "fabric": spreading.fabric_addresses(look),
            "images": {ref: spreading.name_at(look, ref) for ref in look["images"]},
            "ready": [key for key, thing in self.args["things"].items() if host in thing["holders"]],
        }
