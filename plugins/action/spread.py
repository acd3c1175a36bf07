# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say who sends what to whom; documented in plugins/modules/spread.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import spreading
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.modules.spread import DOCUMENTATION
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.arguments import documented
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.host_answers import checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
GOT = {reader.LINE: answers.GOT}
THING = ("kind", "bytes", "image", "ref", "alias", "commit", "revision", "folder", "files")


class ActionModule(ActionBase):
    """Join what the hosts of the play said, and give each its part."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what each host is to do next."""
        result = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        _spec, args = self.validate_argument_spec(documented(DOCUMENTATION))
        # Of a play in batches those of this batch: the others are not at this task, and what they said is from before.
        alive = [str(host) for host in self.variables.get("ansible_play_batch") or []]
        looks = {
            host: checked_answer(plain(said["distribution"]), answers.DISTRIBUTION, host, "dgxspark.vllm.spark_info")
            for host in alive
            if (said := self.said(host, args["looks_from"])).get("distribution")
        }
        step = self.survey if args["step"] == "survey" else self.round
        result.update(changed=False, _ansible_verbose_override=True, **step(args, looks))
        return result

    def said(self, host: str, name: str) -> dict[str, Any]:
        """Return a result that is registered on a host."""
        found = self.variables["hostvars"][host].get(name) if name else None
        return dict(found) if isinstance(found, dict) else {}

    def got(self, host: str, name: str) -> dict[str, Any]:
        """Return what became of the things that a host was to get or to read."""
        found = self.said(host, name).get("got") or {}
        return dict(checked_answer(plain(found), GOT, host, "dgxspark.vllm.transfer"))

    def survey(self, args: dict[str, Any], looks: dict[str, Any]) -> dict[str, Any]:
        """Say what is missing where, and what has to be done before it can move."""
        found = spreading.survey(looks, args["verify"])
        ready = not found["fetch"] and not found["verify"]
        unable = spreading.unable(found, looks)
        waiting = {host for thing in found["things"].values() for host in thing["lacking"]}
        refused = {
            **spreading.silence(found, unable),
            **spreading.room(found, looks, args["reserve_gb"] * spreading.GB),
            **{host: why for host, why in unable.items() if host in waiting},
        }
        # Who has all that it needs is no failure; it only sends nothing.
        found["notes"] += [why for host, why in unable.items() if host not in waiting]
        spreading.leave_out(found, refused)
        moving = spreading.taking_part(found["things"])
        hosts = {
            host: {
                "fetch_images": [key for key in found["fetch"].get(host, []) if key in look["images"]],
                "fetch_models": [
                    {name: look["models"][key][name] for name in ("repo", "revision", "only")}
                    for key in found["fetch"].get(host, [])
                    if key in look["models"]
                ],
                "verify": spreading.verify_tasks(found, looks, host),
                "refused": refused.get(host, ""),
                "moving": host in moving,
            }
            for host, look in looks.items()
        }
        lines = [*(found["notes"] if not args["again"] else []), *refused.values(), *spreading.plan_lines(found, looks)]
        for line in lines:
            display.display(f"  {line}")
        things = {
            key: {name: thing[name] for name in THING if name in thing}
            for key, thing in found["things"].items()
            if thing["lacking"]
        }
        return {
            "ready": ready,
            "moves": bool(moving) or not ready,
            "hosts": hosts,
            "things": things,
            "lines": lines,
            "state": spreading.begin(found["things"]),
        }

    def round(self, args: dict[str, Any], looks: dict[str, Any]) -> dict[str, Any]:
        """Take in what came of the last round, and plan the next."""
        before = args["state"]
        results = {host: self.got(host, args["got_from"]) for host in looks}
        reads = {host: self.got(host, args["read_from"]) for host in looks}
        after = spreading.next_round(spreading.fold(before, results, reads), looks, looks)
        new = {name: after[name][len(before[name]) :] for name in ("sent", "failed", "damaged")}
        for line in spreading.report_lines(new):
            display.display(f"  {line}")
        return {
            "state": after,
            "last": not after["planned"] and not any(doubt["host"] in looks for doubt in after["doubted"]),
            "hosts": {
                host: {
                    "take": spreading.get_tasks(after, looks, host),
                    "read": spreading.read_tasks(after, host),
                    "given_up": after["given_up"].get(host, ""),
                }
                for host in looks
            },
            "access": {host: self.access(host, looks, args["keys_from"]) for host in looks}
            if args["keys_from"]
            else {},
        }

    def access(self, host: str, looks: dict[str, Any], keys_from: str) -> dict[str, Any]:
        """Return who may come to a host, and on which addresses it listens."""
        peers = []
        for other in looks:
            keys = self.said(other, keys_from)
            if other != host and keys.get("client_key"):
                keys = checked_answer(plain(keys), answers.KEYS, other, "dgxspark.vllm.spread_access")
                peers.append(
                    {
                        "name": other,
                        "client_key": keys["client_key"],
                        "host_key": keys["host_key"],
                        "addresses": spreading.addresses(looks[other]),
                    }
                )
        images = [spreading.name_at(looks[host], ref) for ref in looks[host]["images"]]
        return {
            "peers": peers,
            "addresses": spreading.addresses(looks[host]),
            "fabric": spreading.fabric_addresses(looks[host]),
            "images": images,
        }
