# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the trials of a tuned service on the controller; documented in plugins/modules/tune.py."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bytecode import keep_bytecode

keep_bytecode()  # before the engine is imported

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import plain_data
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import printable
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import tuning
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import controller_paths
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
BEGIN, END = "# spark_tuned begins: written by dgxspark.vllm.tune", "# spark_tuned ends"


class ActionModule(ControllerAction):
    """One step of a tuning run; the file of the session is written after each."""

    def act(self) -> dict[str, Any]:
        """Run a step; return the values for the next tasks."""
        self.args = plain(self.args)
        self.name = self.args["service"]
        folder = controller_paths.state_folder(self.variables, "tune")
        self.path = Path(folder or "", f"{quote(self.host, safe='')}.{self.name}.json")
        self.settings, problems = tuning.read(f"host {self.host}", self.args["settings"], self.args["levers"])
        if problems or folder is None:
            problems = problems or ["the inventory is no file or folder, in which the trials could be kept."]
            raise AnsibleActionFail("nothing was tuned:\n- " + "\n- ".join(problems))
        return {"changed": False, **getattr(self, f"_{self.args['step']}")()}

    # Steps ----------------------------------------------------------------------------------------------------------

    def _start(self) -> dict[str, Any]:
        services = self.args["planned"][self.host]["services"]
        service = next(service for service in services if service["name"] == self.name)
        if service["cluster"] or service["state"] != "started":
            why = "it spans several hosts" if service["cluster"] else f"its state is {service['state']}, not started"
            raise AnsibleActionFail(f"nothing was tuned: {self.name} cannot be tuned, {why}.")
        named = tuning.variants(service, self.args["levers"], self.settings)
        earlier = self._earlier()
        session = tuning.begin(earlier, service, named)
        session.errors, session.began = self._errors(), time.monotonic()
        if self._task.check_mode:
            lines = [f"  {self.host}/{self.name}: {name}: {json.dumps(args)}" for name, args in named.items()]
            display.display("\n".join([*lines, "Nothing is tried in check mode."]))
        else:
            self._write(session)
        trial = earlier.trials.get(session.deployed) if earlier else None
        variants = [{"name": name, "args": args} for name, args in named.items()]
        return {"variants": variants, "interrupted": bool(session.deployed), "args": trial.args if trial else {}}

    def _judge(self) -> dict[str, Any]:
        session, name = self._session(), self.args["variant"]
        why = tuning.why_not(session, name, self._errors(), time.monotonic(), self.settings)
        display.display(f"  {self.host}/{self.name}: {name}: {printable(why) or 'is tried'}")
        if not why:
            session.deployed, session.trial_began = name, time.monotonic()
            session.restarts += name != tuning.BASE
        self._write(session)
        return {"go": not why}

    def _keep(self) -> dict[str, Any]:
        session = self._session()
        trial, measured = session.trials[self.args["variant"]], self.args["measured"]
        results, refused = measured.get("results") or [], [entry["reason"] for entry in measured.get("refused") or []]
        trial.figures = tuning.figures_of(results[0]) if results else {}
        why = "" if trial.figures else "nothing was measured"
        trial.reason = printable(self.args["failure"] or "; ".join(refused) or why)
        trial.state, trial.seconds = "failed" if trial.reason else "proved", time.monotonic() - session.trial_began
        self._write(session)
        return {}

    def _choose(self) -> dict[str, Any]:
        session = self._session()
        if self.args["failure"]:
            trial = session.trials[self.args["variant"]]
            trial.state, trial.reason = "failed", printable(self.args["failure"])
        session.deployed = tuning.best(session, self.settings)
        self._write(session)
        return {"best": session.deployed, "args": session.trials[session.deployed].args}

    def _finish(self) -> dict[str, Any]:
        session = self._session()
        chosen = session.deployed
        session.deployed = "" if chosen == tuning.BASE else chosen
        self._write(session)
        display.display(tuning.report(session, self.settings, chosen))
        args, tuned = session.trials[chosen].args, plain(self.variables["hostvars"][self.host].get("spark_tuned")) or {}
        value = {**tuned, self.name: {**tuned.get(self.name, {}), **args}}
        text = f"{self.name} stays as the inventory has it."
        if args and self.args["write"]:
            text = f"{chosen} is kept in {self._write_inventory(value)}."
        elif args:
            text = (
                f"{chosen} is deployed, and site.yml would undo it. Run again with -e spark_tune_write=true to keep it, or set in the "
                f"variables of {self.host}: {json.dumps({'spark_tuned': value})}"
            )
        display.display(text)
        result = {"changed": bool(args), "kept": chosen, "tuned": value if args else tuned}
        return {**result, "_ansible_verbose_override": True}

    # Files ----------------------------------------------------------------------------------------------------------

    def _earlier(self) -> tuning.Session | None:
        """Return the session of the last run, None without a usable one."""
        try:
            return tuning.Session.from_dict(state_file.read(self.path) or {})
        except (TypeError, KeyError, AttributeError):
            return None

    def _session(self) -> tuning.Session:
        session = self._earlier()
        if session is None or self.args["variant"] not in ("", *session.trials):
            raise AnsibleActionFail(f"{self.path} was changed by another program while {self.name} was tuned.")
        return session

    def _write(self, session: tuning.Session) -> None:
        state_file.write(self.path, asdict(session), 0o600)

    def _write_inventory(self, tuned: Mapping[str, Any]) -> Path:
        """Write C(spark_tuned) of the host into its file of variables; return the path."""
        folder = Path(str(self.variables["hostvars"][self.host].get("inventory_dir")), "host_vars")
        paths = [folder / f"{self.host}{suffix}" for suffix in ("", ".yml", ".yaml", ".json")]
        path = next((path for path in paths if path.exists()), paths[1])
        path = path / "spark_tuned.yml" if path.is_dir() else path
        try:
            if not plain_data.is_line(self.host) or "/" in self.host or path.suffix == ".json":
                raise ValueError("its name is no name of a YAML file")
            text = with_block(path.read_text(encoding="utf-8") if path.exists() else "", tuned)
        except (ValueError, OSError, yaml.YAMLError) as error:
            raise AnsibleActionFail(
                f"{path} is not changed: {error}. Set spark_tuned of {self.host} yourself: {json.dumps(tuned)}"
            ) from error
        path.parent.mkdir(parents=True, exist_ok=True)
        state_file.write_text(path, text, mode=None)
        return path

    def _errors(self) -> list[str]:
        """Return the errors of the host's plan."""
        if self.host not in self.args["planned"]:
            return [printable(self.args["failure"])]
        findings = self.args["planned"][self.host]["findings"]
        return [f"{finding['rule']}: {finding['message']}" for finding in findings if finding["severity"] == "error"]


def with_block(text: str, tuned: Mapping[str, Any]) -> str:
    """Return a file of variables with C(spark_tuned) in a separate block at the end.

    Raises ValueError if the file would lose or change anything else.
    """
    bare = re.sub(rf"(?ms)^{re.escape(BEGIN)}$.*?^{re.escape(END)}$\n?", "", text)
    before = yaml.safe_load(bare) or {}
    if not isinstance(before, dict):
        raise ValueError("it is no mapping")
    if "spark_tuned" in before:
        raise ValueError("it has spark_tuned already, outside of a block of tune.yml")
    block = yaml.safe_dump({"spark_tuned": dict(tuned)}, sort_keys=True)
    result = f"{bare.rstrip()}\n" if bare.strip() else "---\n"
    result += f"{BEGIN}\n{block}{END}\n"
    if yaml.safe_load(result) != {**before, "spark_tuned": tuned}:
        raise ValueError("a block at its end would change other variables")
    return result
