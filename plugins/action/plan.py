# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan all hosts of the inventory in one process on the controller; documented in plugins/modules/plan.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.utils import color
from ansible.utils.display import Display

from ansible_collections.dgxspark.vllm.plugins.plugin_utils.bytecode import keep_bytecode

keep_bytecode()  # before the engine is imported

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.findings import SEVERITIES, list_causes
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json, received
from ansible_collections.dgxspark.vllm.plugins.module_utils._common.plain_data import InputError
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.module_utils._memory import measurement_rows
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import (
    fabric_figures,
    image_questions,
    lock_findings,
    model_choice,
    model_table,
    page_parts,
    picture,
    placement,
    plan_page,
    proposal,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError
from ansible_collections.dgxspark.vllm.plugins.plugin_utils import (
    addon_documents,
    controller_paths,
    model_configs,
    recipe_sources,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import ControllerAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.controller_paths import inventory_names, inventory_sources
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.events import EventLog, plan_fields
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import check_replaceable, read_kept, write
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.image_plans import ImagePlans
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.kept_facts import KeptFacts, checksum_of
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import dest_path, lock_path, read_lock
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.measured_starts import MeasuredStarts
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.plan_input import (
    address_of,
    check_files,
    digest,
    listed_twice,
    own_keys,
    read_others,
    read_variables,
    recipe_dirs,
    resolve,
)
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.recipe_files import RECIPES, load_recipes
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.values import plain

display = Display()
PLAN_KEYS = ("schema", "hosts", "clusters", "addons", "findings")
"""Of plan.json."""
PROPOSED = "# Proposed by dgxspark.vllm.plan for spark_wishes; a later proposal replaces this file."


class ActionModule(ControllerAction):
    """Plan the hosts of the group; show and write the plan."""

    def act(self) -> dict[str, Any]:
        """Return C(hosts) and C(findings); fail on malformed input, and on errors if C(fail_on_error) is set."""
        args, task_vars = self.args, self.variables
        args["inventory"] = inventory_names(task_vars)
        if standing_plan := self._standing_plan():
            return standing_plan
        hosts, messages = self._read_hosts()
        other_hosts = read_others(set(hosts), messages, task_vars)
        for name in ("dest", "measurements"):
            args[name] = dest_path(args[name], task_vars, messages)
        messages += check_dest(args["dest"], args["measurements"])
        recipe_messages: list[str] = []
        recipes, problems = load_recipes(recipe_dirs(hosts, recipe_messages))
        sources = recipe_sources.of_hosts(hosts, task_vars, not self._task.check_mode, recipe_messages)
        recipe_messages += problems
        if args["models"]:  # without an inventory too
            return self._models({**recipes, **sources.every(recipes)}, recipe_messages)
        messages += recipe_messages
        recipes.update(recipe_sources.named(sources, hosts, recipes))
        store = controller_paths.state_folder(task_vars, model_configs.FOLDER)
        configs = model_configs.ModelConfigs(store, not self._task.check_mode)
        written = {name: {**host, "vars": dict(host["vars"])} for name, host in hosts.items()}
        model_configs.complete_services(hosts, recipes, configs, messages)
        locked, problems = read_lock(lock_path(hosts, task_vars, messages))
        messages += problems
        messages += self._misplaced({**hosts, **other_hosts})
        for name, host in hosts.items():
            # model.path of a recipe is relative to the inventory folder by default.
            if not host["vars"].get("spark_model_dir"):
                host["vars"]["spark_model_dir"] = str(task_vars["hostvars"][name].get("inventory_dir") or "")

        if args["wishes"]:
            return self._propose(hosts, written, other_hosts, recipes, messages)

        def judged(facts: Mapping[str, Mapping[str, Any]]) -> JudgedPlan:
            with_facts = {name: {**host, **facts.get(name, {})} for name, host in hosts.items()}
            plan = self._make_plan(with_facts, other_hosts, recipes, locked, list(messages))
            return JudgedPlan(plan, [], False) if args["measurements"] else self._judge(plan)

        plan = judged_with(self._kept_facts(hosts, task_vars) if args["kept_facts"] == "use" else {}, judged)
        if args["measurements"]:
            return self._export(plan.plan, recipes)
        if args["kept_facts"] == "keep" and not self._task.check_mode:
            self._keep_facts(hosts)
        return self._conclude(plan, locked)

    def _judge(self, plan: dict[str, Any]) -> JudgedPlan:
        """Return a plan with its findings. Raises AnsibleActionFail for a play without some hosts of a cluster, unless it is allowed.

        Refusals that an image may answer later in the run do not stop it.
        """
        ask = self.args["ask"]
        if self.args["whole_clusters"]:
            messages = cut_clusters(plan["clusters"], self.variables.get("ansible_play_hosts_all") or [])
            if messages:
                raise AnsibleActionFail("no host was touched:\n- " + "\n- ".join(messages))
        states = {question["state"] for host in plan["hosts"].values() for question in host["image_questions"]}
        if ask in ("later", "both"):
            image_questions.postpone(plan["hosts"], self.args["brings"])
        check_files(plan, self.args["missing_keys"])
        return JudgedPlan(plan, engine.plan_findings(plan), ask in ("now", "both") and image_questions.ASK in states)

    def _conclude(self, plan: JudgedPlan, locked: Mapping[str, Any] | None) -> dict[str, Any]:
        """Show and write a plan; return the result of the task. Raises AnsibleActionFail for a plan with errors."""
        args = self.args
        others: set[str] = set()
        if args["kept_facts"] != "none":
            # Errors of hosts that this run does not change are shown and stop nothing.
            others = set(plan.plan["hosts"]) - set(self.variables.get("ansible_play_hosts_all") or [])
        errors = [error for error in list_causes(plan.findings) if error.get("host") not in others]
        # Kept facts may be outdated; the next plan with new facts refuses.
        fails = bool(errors) and args["fail_on_error"] and not plan.asking and not plan.facts
        if not plan.asking:
            self._present(plan.plan, plan.findings, args["show"], fails)
        if fails:
            count, rules = (
                picture.count_causes(errors),
                ", ".join(dict.fromkeys(str(error["rule"]) for error in errors)),
            )
            raise AnsibleActionFail(
                f"the plan has {count} error{'s'[: count != 1]}; no host was changed. The plan above has the fixes ({rules})."
            )
        how = "looks" if args["answer"] == "none" and plan.asking else args["answer"]
        result = answer(plan.plan, plan.findings, locked, how) if how != "none" else {}
        result.update(asking=plan.asking, unchanged=False)
        if args["kept_facts"] == "use":
            result["facts"] = dict(plan.facts)
            result["made"] = json.dumps({"schema": plan.plan["schema"], "findings": plan.findings})
        return result

    def _present(self, plan: Mapping[str, Any], findings: list[dict[str, Any]], how: str, fails: bool = False) -> str:
        """Write and show a plan; return where its page is. how: see C(show). fails: whether the run stops because of it."""
        page = ""
        counts = {severity: sum(finding["severity"] == severity for finding in findings) for severity in SEVERITIES}
        EventLog.write("plan", **plan_fields(plan, counts))
        for finding in findings:
            EventLog.write("finding", **finding)
        if self.args["dest"] and not self._task.check_mode:
            page = write_plan(Path(self.args["dest"]), plan, findings, self.args["inventory"])
        if how != "none" or fails:
            show(plan, findings, page, how)
        return page

    @staticmethod
    def _kept_facts(hosts: Mapping[str, Mapping[str, Any]], task_vars: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the kept facts of the hosts of this play, without hosts that must not be asked."""
        store, play = KeptFacts(task_vars), set(task_vars.get("ansible_play_hosts_all") or [])
        names = [name for name in hosts if name in play and hosts[name]["vars"].get("spark_plan_facts") != "never"]
        return {name: facts for name in names if (facts := store.of_host(name))}

    def _keep_facts(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the facts of hosts for the next run; warn if they cannot be written."""
        store = KeptFacts(self.variables)
        try:
            for name, host in hosts.items():
                store.keep(name, host["measured"], host["images"])
        except OSError as error:
            display.warning(f"facts of hosts are not kept for the next run, {store.folder} cannot be written: {error}")

    def _standing_plan(self) -> dict[str, Any]:
        """Return the plan of C(made_from) as result, after writing and showing it; empty if the answers of hosts need another plan."""
        args, task_vars = self.args, self.variables
        made = task_vars.get(args["made_from"]) or {}
        if "made" not in made or made["asking"] or made["errors"]:
            return {}
        play = set(task_vars.get("ansible_play_hosts_all") or []) & set(task_vars["groups"].get(args["group"]) or [])
        comparisons = {name: task_vars["hostvars"][name].get(args["measured_from"]) or {} for name in sorted(play)}
        if not are_unchanged(comparisons, made["facts"]) or self._upstream(play):
            return {}
        messages: list[str] = []
        args["dest"] = dest_path(args["dest"], task_vars, messages)
        messages += check_dest(args["dest"])
        if messages:
            return {}  # the next plan reports them
        plan, findings = _parse_made(made)
        self._present_standing(plan, findings)
        # Without a proof, as in check mode, nothing has to be proved.
        is_proved = not any(comparison.get("unproved") for comparison in comparisons.values())
        result = {key: value for key, value in made.items() if key not in ("changed", "failed", "made")}
        return {**result, "changed": False, "unchanged": is_proved, "_ansible_verbose_override": True}

    def _present_standing(self, plan: Mapping[str, Any], findings: list[dict[str, Any]]) -> None:
        """Write and show a plan that needs no changes, with C(show=short) in one line."""
        brief = self.args["show"] == "short" and not display.verbosity
        page = self._present(plan, findings, "none" if brief else self.args["show"])
        if brief:
            where = f" More in {page}" if page else " -v shows the plan."
            display.display(f"Up to date, nothing to change. {picture.summary_text(plan, findings)}{where}")

    def _make_plan(
        self,
        hosts: dict[str, dict[str, Any]],
        other_hosts: dict[str, dict[str, Any]],
        recipes: Mapping[str, Mapping[str, Any]],
        locked: Mapping[str, Any] | None,
        messages: list[str],
    ) -> dict[str, Any]:
        """Return the plan of the engine. messages: earlier problems. Raises AnsibleActionFail with all problems."""
        args, task_vars = self.args, self.variables
        image_plans = ImagePlans(task_vars, not self._task.check_mode, locked)
        for host in hosts if args["image_plans_from"] else ():
            image_plans.hear(host, plain(task_vars["hostvars"][host].get(args["image_plans_from"])))
        plan: dict[str, Any] = {}
        try:
            plan = engine.make_plan(
                hosts,
                recipes,
                digest,
                plain(task_vars.get("groups") or {}),
                other_hosts,
                locked,
                args["locked"],
                self._upstream(hosts),
                lambda name: resolve(self._known_as(name, task_vars)),
                image_plans,
                task_vars.get("ansible_play_batch"),
                MeasuredStarts(task_vars).of_hosts(hosts),
                bool(args["measurements"]),
            )
        except InventoryError as error:
            messages += error.messages
        if messages:
            messages = picture.same_messages(messages)
            raise AnsibleActionFail(
                f"the inventory cannot be planned, {len(messages)} problem{'s'[: len(messages) != 1]}; no host was "
                "touched:\n- " + "\n- ".join(messages)
            )
        return plan

    def _propose(
        self,
        hosts: dict[str, dict[str, Any]],
        written: dict[str, dict[str, Any]],
        other_hosts: dict[str, dict[str, Any]],
        recipes: Mapping[str, Mapping[str, Any]],
        messages: list[str],
    ) -> dict[str, Any]:
        """Show an inventory that serves wishes, and write it; return the proposal. written: the hosts as the inventory has them."""
        dest = dest_path(self.args["wishes_dest"], self.variables, messages)
        if dest and not read_kept(Path(dest)).startswith(PROPOSED) and Path(dest).exists():
            messages.append(
                f"spark_wishes_file: {dest} is no proposal, so it is not replaced; move it, or name another file."
            )

        def make(some: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
            every = some.keys() == hosts.keys()
            return engine.make_plan(some, recipes, digest, groups, other_hosts if every else {})

        def with_relative_paths(name: str, host: dict[str, Any]) -> dict[str, Any]:
            folder = str(self.variables["hostvars"][name].get("inventory_dir") or "")
            return {**host, "vars": controller_paths.relative_variables(host["vars"], folder)}

        for host in (*hosts.values(), *written.values()):
            host.update(measured=None, images={}, fabric=None)
            for name in ("spark_wishes", "spark_wishes_file"):
                host["vars"].pop(name, None)
        proposed: dict[str, Any] = {}
        written, outside = (
            {name: with_relative_paths(name, host) for name, host in some.items()} for some in (written, other_hosts)
        )
        try:
            if not messages:
                groups = plain(self.variables.get("groups") or {})
                proposed = proposal.propose(plain(self.args["wishes"]), hosts, outside, groups, recipes, make, written)
        except (InventoryError, InputError) as error:
            messages += error.messages
        if messages:
            raise AnsibleActionFail("nothing is proposed:\n- " + "\n- ".join(messages))
        if dest and not self._task.check_mode:
            inventory = yaml.safe_dump(plain(proposed["inventory"]), sort_keys=False, width=120)
            write(Path(dest), f"{PROPOSED}\n---\n{inventory}")
        display.display(proposal.text(proposed, "" if self._task.check_mode else dest))
        return {"changed": False, "proposal": proposed, "asking": False, "_ansible_verbose_override": True}

    def _export(self, plan: Mapping[str, Any], recipes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Write the measured starts without names of the owner; return the number of rows.

        plan: with measurements. recipes: by name; the models of shipped recipes are public.
        """
        shipped, _wrong = load_recipes([RECIPES])
        public = [recipe["model"].get("repo") for name, recipe in shipped.items() if name in recipes]
        launches = [launch for host in plan["hosts"].values() for launch in host["measurements"]]
        content, left_out = measurement_rows.export(launches, filter(None, public))
        rows, dest = len(content["rows"]), self.args["measurements"]
        display.display(f"{rows} measured launches of {len(launches)} services, {len(left_out)} left out.")
        for why in sorted(set(left_out)):
            display.display(f"  left out: {why}")
        if rows and not self._task.check_mode:
            write(Path(dest), json.dumps(content, indent=1, sort_keys=True) + "\n")
            display.display(f"Written to {dest}. Look at it before you send it: docs/memory.md says where to.")
        elif not rows:
            display.display("Nothing was written: proofs of site.yml measure the memory of services, on a GPU.")
        return {"changed": False, "rows": rows, "left_out": left_out, "_ansible_verbose_override": True}

    def _misplaced(self, hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return messages about files of variables or C(dest) that Ansible would read as inventory. hosts: Sparks and others."""
        dest, sources = self.args["dest"], inventory_sources(self.variables.get("ansible_inventory_sources"))
        messages = controller_paths.misplaced({name: host["vars"] for name, host in hosts.items()}, sources)
        if dest and dest not in {host["vars"].get("spark_plan_file") for host in hosts.values()}:
            source = sources.reads(dest)
            messages += [controller_paths.refuse("spark_plan_file", dest, source)] if source else []
        return messages

    def _read_hosts(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return the templated variables of every host in the group, and the problems."""
        args, task_vars = self.args, self.variables
        names = task_vars.get("groups", {}).get(args["group"]) or []
        messages: list[str] = []
        if not names:
            messages.append(f"inventory: the group '{args['group']}' is missing or empty; put the DGX Sparks into it.")
        messages += listed_twice(names, task_vars.get("hostvars") or {})
        hosts: dict[str, dict[str, Any]] = {}
        fleet = controller_paths.fleet_folder(task_vars, args["group"])
        for name in names:
            hostvars = task_vars["hostvars"][name]
            variables = read_variables(name, hostvars, messages, fleet)
            for service, changed in (plain(args["tuned"]).get(name) or {}).items():
                tuned = variables.get("spark_tuned") or {}
                variables["spark_tuned"] = {**tuned, service: {**(tuned.get(service) or {}), **changed}}
            measured, images = (
                (hostvars.get(args[key]) if args[key] else None) or {} for key in ("measured_from", "images_from")
            )
            hosts[str(name)] = {
                "vars": variables,
                "address": address_of(name, hostvars),
                "measured": self._with_models(plain(measured.get("spark")), str(name), hostvars),
                "images": plain(images.get("images")) or {},
                "fabric": plain(hostvars.get("fabric_planned")),
            }
        return hosts, messages

    def _with_models(self, measured: Any, host: str, hostvars: Any) -> Any:
        """Return the facts of a host with the models that this run has fetched. measured: C(spark) of spark_info, None if unknown."""
        fetched_from = self.args["models_from"]
        results = plain((hostvars.get(fetched_from) or {}).get("results")) if fetched_from and measured else None
        for result in results or []:
            if result.get("skipped") or result.get("failed") or not result.get("complete"):
                continue
            commit = checked_answer(result, answers.MODEL_SNAPSHOT, host, "model_snapshot")["commit"]
            repo, revision = str(result["item"]["repo"]), str(result["item"]["revision"])
            snapshots = measured.get("snapshots") or {}
            model = dict(snapshots.get(repo) or {})
            model["commits"] = [*(model.get("commits") or []), commit]
            model["refs"] = {**(model.get("refs") or {}), **({} if revision == commit else {revision: commit})}
            measured = {**measured, "snapshots": {**snapshots, repo: model}}
        return measured

    def _upstream(self, hosts: Iterable[str]) -> dict[str, Any] | None:
        """Return C(upstream) of M(dgxspark.vllm.spark_info) of one host; it is the same on all."""
        name, hostvars = self.args["upstream_from"], self.variables["hostvars"]
        results = (received(plain(hostvars[host].get(name))) for host in (hosts if name else ()))
        return next((result["upstream"] for result in results if result and result.get("upstream")), None)

    @staticmethod
    def _known_as(name: str, task_vars: dict[str, Any]) -> str:
        """Return the address of a host of the inventory, or the name itself."""
        names = task_vars.get("groups", {}).get("all") or []
        return address_of(name, task_vars["hostvars"][name]) if name in names else name

    def _models(self, recipes: Mapping[str, Mapping[str, Any]], problems: Sequence[str]) -> dict[str, Any]:
        """Show the recipes that satisfy a wish, or all with their limits on one to eight Sparks.

        Raises AnsibleActionFail for unreadable recipes and a wish that cannot be read.
        """
        if problems:
            raise AnsibleActionFail("\n- ".join(["recipes that cannot be read:", *problems]))
        try:
            wish = model_choice.read_wish(self.args["pick"])
        except ValueError as error:
            raise AnsibleActionFail(f"nothing was picked:\n- {error}") from error
        rows, references = model_table.model_rows(recipes), model_table.reference_rows(recipes)
        is_full = self.args["show"] == "full"
        display.display(model_table.models_text(rows) if is_full else model_choice.choice_text(rows, wish))
        if references:
            display.display(model_table.references_text(references))
        return {"changed": False, "models": rows, "references": references, "_ansible_verbose_override": True}


@dataclass(frozen=True)
class JudgedPlan:
    """A plan with its findings. asking: images are asked next. facts: checksums of the used kept facts by host."""

    plan: dict[str, Any]
    findings: list[dict[str, Any]]
    asking: bool
    facts: Mapping[str, str] = field(default_factory=dict)


def judged_with(
    kept_facts: Mapping[str, Mapping[str, Any]], judged: Callable[[Mapping[str, Mapping[str, Any]]], JudgedPlan]
) -> JudgedPlan:
    """Return the plan from kept facts; a plan from the inventory alone if kept facts do not allow one.

    An error that the inventory alone explains stops the run before any host is contacted: its plan is returned then.

    kept_facts: C({measured, images}) by host.
    """
    if not kept_facts:
        return judged({})
    try:
        plan = replace(judged(kept_facts), facts={name: checksum_of(facts) for name, facts in kept_facts.items()})
    except AnsibleActionFail:
        return judged({})
    if not plan.asking and list_causes(plan.findings):
        bare = judged({})
        if not bare.asking and list_causes(bare.findings):
            return bare
    return plan


def are_unchanged(comparisons: Mapping[str, Mapping[str, Any]], checksums: Mapping[str, str]) -> bool:
    """Tell whether all hosts of a play are up to date, with the facts of the plan.

    comparisons: answers of M(dgxspark.vllm.compare). checksums: of the facts of the plan.
    """
    return comparisons.keys() == checksums.keys() and all(
        answer.get("up_to_date")
        and checksum_of(plain({"measured": answer.get("spark"), "images": answer.get("images")})) == checksums[name]
        for name, answer in comparisons.items()
    )


# Keys of a planned host with questions that precede the final plan.
LOOKED = ("image_candidates", "image_questions")


def check_dest(dest: str, measurements: str = "") -> list[str]:
    """Return the problems of the paths for the plan or the measurements."""
    if dest.endswith(".html"):
        return [f"dest: '{dest}' must be a .json file; the .html page is written next to it."]
    try:
        if dest and not measurements:
            check_replaceable(Path(dest), PLAN_KEYS)
            for refused in (False, True):
                check_replaceable(page_of(Path(dest), refused))
        if measurements:
            check_replaceable(Path(measurements), measurement_rows.KEYS)
    except OSError as error:
        return [f"{'spark_measurements_file' if measurements else 'spark_plan_file'}: {error}."]
    return []


def page_of(dest: Path, refused: bool = False) -> Path:
    """Return the path of the page of a plan, next to its JSON; a refused plan has its own."""
    return dest.with_name(f"{dest.stem}{'_failed' if refused else ''}.html")


def write_plan(dest: Path, plan: Mapping[str, Any], findings: list[dict[str, Any]], inventory: str) -> str:
    """Write a plan as JSON and as a page; return where the page is. A plan with errors leaves the page of the last one without."""
    is_refused = bool(list_causes(findings))
    page = page_of(dest, is_refused)
    folders = [str(dest.parent.parent), str(dest.parent), str(Path.home())]
    write(dest, json.dumps({**plan, "findings": findings}, indent=2, sort_keys=True) + "\n")
    figures = fabric_figures.of_clusters(fabric_figures.read(read_kept(dest.with_name(fabric_figures.FILE))))
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write(page, plan_page.page(plan, findings, folders, figures, page_parts.as_of(at, inventory)))
    if not is_refused:
        page_of(dest, refused=True).unlink(missing_ok=True)
    older = page_of(dest)
    kept = f"; {older.name} still shows the last plan without errors" if is_refused and older.exists() else ""
    return f"{page.resolve()}{kept}"


def show(plan: Mapping[str, Any], findings: list[dict[str, Any]], page: str, how: str) -> None:
    """Show a plan on the screen. page: where its page is, if written. how: the option C(show)."""
    if how == "json":
        display.display(json.dumps({**plan, "findings": findings}, sort_keys=True))
        return
    notes = how == "full" or display.verbosity > 0
    shown = (plan, findings, display.columns)
    display.display(picture.plan_text(*shown, color.ANSIBLE_COLOR, page, notes), screen_only=True)
    if placed := placement.text(plan):
        display.display(placed)
    if constants.DEFAULT_LOG_PATH:  # without colours
        display.display(picture.plan_text(*shown, False, page, notes), log_only=True)


def _parse_made(made: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the plan and the findings of an earlier result of the action."""
    about = parse_json(made["made"], "the plan of this run", exact=True)
    plan = {"schema": about["schema"], "clusters": plain(made["clusters"])}
    for part in ("hosts", "addons"):
        plan[part] = {host: parse_json(text, host, exact=True) for host, text in made[part].items()}
    return plan, about["findings"]


def _host_lists(hosts: Mapping[str, Any], add_ons: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hosts with missing images or models, with services on demand, and with add-on services."""
    return {
        "lacking": {
            kind: [host for host, body in hosts.items() if body["missing"][kind]] for kind in ("images", "models")
        },
        "on_demand": [
            host for host, body in hosts.items() if "on_demand" in {service["state"] for service in body["services"]}
        ],
        "for_all": [host for host, body in add_ons.items() if any(body.get(role) for role in addon_documents.ROLES)],
    }


def answer(
    plan: Mapping[str, Any], findings: list[dict[str, Any]], locked: Mapping[str, Any] | None, how: str = "whole"
) -> dict[str, Any]:
    """Return the result of the action. locked: the lock file. how: the option C(answer)."""
    hosts, add_ons = plan["hosts"], plan["addons"]
    names = [service["lock"] for body in hosts.values() for service in body["services"]]
    images = [ref for body in add_ons.values() for ref in body["images"]["named"].values()]
    result = {
        "changed": False,
        "hosts": hosts,
        "clusters": plan["clusters"],
        "addons": add_ons,
        **_host_lists(hosts, add_ons),
        "locked_names": lock_findings.questions(locked, [*names, *({"image": ref, "models": []} for ref in images)]),
        "errors": picture.count_causes(list_causes(findings)),
        # The screen shows the plan already, so -v must not repeat it.
        "_ansible_verbose_override": True,
    }
    if how == "whole":
        return {
            **result,
            "keys_of_fleet": sorted(own_keys(plan)),
            "findings": findings,
            "placement": placement.check(plan),
        }
    if how == "looks":
        return {
            **result,
            "hosts": {host: {key: body[key] for key in LOOKED} for host, body in hosts.items()},
            "addons": {},
        }
    # Ansible walks through every value of a registered result several times, and a text is one value.
    texts = {part: {host: json.dumps(body) for host, body in plan[part].items()} for part in ("hosts", "addons")}
    return {**result, **texts}


def cut_clusters(clusters: dict[str, Any], play: list[str]) -> list[str]:
    """Return a message for each cluster of which this play has some hosts, but not all."""
    return [
        f"cluster {name}: the play has {', '.join(host for host in cluster['hosts'] if host in play)}, not "
        f"{', '.join(host for host in cluster['hosts'] if host not in play)}. Ranks of one engine change together: "
        f"--limit {','.join(dict.fromkeys([*play, *cluster['hosts']]))}"
        for name, cluster in sorted(clusters.items())
        if any(host in play for host in cluster["hosts"]) and not all(host in play for host in cluster["hosts"])
    ]
