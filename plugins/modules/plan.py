#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan what every DGX Spark of the inventory will run
description:
  - Reads the C(spark_*) variables of every host in a group, merges them with the recipes, and works out for each
    service the image, the command line, the environment, the start order and the memory it takes.
  - Runs on the controller only. No host is contacted, and a C(--limit) does not change what is planned.
  - Fails, with everything that is wrong at once, when the inventory is malformed or when a finding is an error.
options:
  group:
    description: Inventory group that holds the DGX Sparks.
    type: str
    default: sparks
  measured_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) on the hosts; hosts without it are planned from the inventory alone.
    type: str
    default: ''
  images_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(images) on the hosts.
    type: str
    default: ''
  kept_facts:
    description: Facts of hosts, of which the last run keeps a file for each host in C(.spark/facts) of the inventory folder of the first Spark. With
      V(use), hosts of this play that have such a file are planned with it; errors of this plan do not fail, unless the inventory alone gives errors, too.
      With V(keep), the facts of O(measured_from) and O(images_from) are kept for the next run. Not in check mode.
    type: str
    choices: [none, use, keep]
    default: none
  made_from:
    description: Name of a variable with a result of this module, with O(kept_facts=use) and O(answer=texts). Its plan is shown, written and returned
      again if all hosts of the play are up to date by O(measured_from), a result of M(dgxspark.vllm.compare), with facts that would give
      the same plan. Otherwise hosts are planned anew.
    type: str
    default: ''
  models_from:
    description: Name of a variable that holds, on the hosts, the results of M(dgxspark.vllm.model_snapshot) in a loop, of models that came since then.
    type: str
    default: ''
  upstream_from:
    description: Name of a variable that holds a result of M(dgxspark.vllm.spark_info) with V(upstream) on one of the hosts.
    type: str
    default: ''
  image_plans_from:
    description: Name of a variable that holds, on the hosts, the results of M(dgxspark.vllm.image_plan) in a loop over C(image_questions) of RV(hosts). An
      answer about another image is not used. What was said is kept in C(.spark/image_plans) of the inventory folder of the first Spark, and used from
      there, or from the lock file, without asking.
    type: str
    default: ''
  ask:
    description:
      - Whether images will be asked what this plan leaves open. With V(now) and V(both), a plan whose questions a host is to be asked right
        now does not fail, is not shown and not written, and RV(asking) says so; the next one is.
      - With V(later) and V(both), a service that cannot be planned and whose image or model is not on its host yet is a warning, as the image is
        asked once they are there.
    type: str
    choices: [never, now, later, both]
    default: never
  brings:
    description: What of it this run brings, with V(later) and V(both) of O(ask); a refusal that waits for the other stays an error.
    type: list
    elements: str
    choices: [images, models]
    default: [images, models]
  dest:
    description: File on the controller for the plan as JSON; none if empty. The same as an HTML page is written beside it, C(plan.html) for C(plan.json),
      or C(plan_failed.html) for a plan with errors, which leaves the page of the last plan without. They are no change, and not written in check mode. A
      relative path is relative to the inventory folder of the first Spark.
    type: str
    default: ''
  missing_keys:
    description: Severity of a missing key that C(dgxspark.vllm.keys) would make. A secret that somebody else gives out is an error in any case.
    type: str
    choices: [error, info]
    default: error
  show:
    description: V(short) draws the memory of each host and prints its services, errors and warnings, and counts the notes (severity C(info)); one line for
      a plan that O(made_from) confirms. V(full) prints the notes too, as V(short) does with C(-v); with O(models) every variant and why it fails. V(json)
      prints plan and findings as one line. A plan with errors is shown in any case, unless O(fail_on_error=false).
    type: str
    choices: [none, short, full, json]
    default: short
  answer:
    description: How much is returned; Ansible walks through a registered result several times. V(looks) returns of RV(hosts) only what hosts are asked
      next, C(image_candidates) and C(image_questions), and no RV(addons). V(none) returns RV(asking) alone, unless images are to be asked, which is as
      V(looks). V(texts) returns RV(hosts) and RV(addons) with the body of each host as a text in JSON. RV(findings), RV(placement) and RV(keys_of_fleet)
      come with V(whole) alone.
    type: str
    choices: [none, looks, texts, whole]
    default: whole
  models:
    description: Instead of planning, show what every recipe, with its variants and images, can do on one to eight Sparks. Needs no host.
    type: bool
    default: false
  tuned:
    description: Options of vllm serve by host and service, which are planned in addition to C(spark_tuned).
    type: dict
    default: {}
  wishes:
    description: Instead of planning, propose an inventory that serves these jobs, beside the services of the inventory. Their keys are those of
      C(spark_wishes) in docs/speed.md.
    type: raw
    default: []
  wishes_dest:
    description: File on the controller for the proposed inventory, with O(wishes); none if empty. Check mode does not write it.
    type: str
    default: ''
  pick:
    description: With O(models), requirements of a model, the keys of C(spark_pick) in C(docs/models.md). The recipes that satisfy them are listed, the
      fastest first, and the others counted by their reasons.
    type: dict
    default: {}
  measurements:
    description: Instead of showing and writing the plan, write what proofs measured of its services to this file on the controller, as JSON without names
      of hosts, services, paths and keys. Not in check mode. A relative path is as that of O(dest).
    type: str
    default: ''
  fail_on_error:
    description: Fail when a finding is an error. With O(kept_facts), errors of Sparks that are not in the play are only shown.
    type: bool
    default: true
  whole_clusters:
    description: Refuse a play that has some hosts of a cluster and not all of them.
    type: bool
    default: false
  locked:
    description: Plan what the lock file has by digest and commit, and say what differs from it. The file is C(spark_lock_file), else
      C(.spark/spark.lock.yml) in the inventory folder; where there is none, nothing is locked.
    type: bool
    default: true
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
seealso:
  - module: dgxspark.vllm.memory_budget
  - module: dgxspark.vllm.image_compat
"""

EXAMPLES = r"""
- name: Plan from the inventory alone
  dgxspark.vllm.plan:
    dest: .spark/plan.json
  run_once: true
  register: planned

- name: Gather facts of the hosts
  dgxspark.vllm.spark_info:
  register: spark_measured

- name: Plan with the facts of the hosts
  dgxspark.vllm.plan:
    measured_from: spark_measured
  run_once: true
  register: planned
"""

RETURN = r"""
proposal:
  description: For each wish the service that is proposed or the reason why not; groups of the proposed inventory, and errors of its plan.
  returned: with O(wishes)
  type: dict
  sample: {wishes: [{name: coder, state: proposed}], inventory: {sparks: {}}, free_gib: {spark-1: 28.1}, complete: true, errors: [], notes: []}
references:
  description: A row for each recipe of C(spark_recipe_sources), as in RV(models), with what a service has to add before it can be planned (C(remark)).
  returned: when O(models) is set
  type: list
models:
  description: A row for each recipe, variant and image that was judged apart.
  returned: when O(models) is set
  type: list
  sample: [{recipe: gpt-oss-120b, variant: null, nodes: 1, fits: {"1": fits, "2": fits}, weights_gib: 65.9, longest: 131072, features: [tools]}]
asking:
  description: Whether hosts are to be asked first, those whose C(image_questions) have the C(state) V(ask).
  returned: when O(models) is not set
  type: bool
unchanged:
  description: Whether the plan of O(made_from) stands, and no host has anything to apply or to prove.
  returned: when O(models) is not set
  type: bool
facts:
  description: Checksums of the kept facts that hosts were planned with, by host; what varies by itself does not change them.
  returned: with O(kept_facts=use)
  type: dict
made:
  description: What O(made_from) needs beside RV(hosts), RV(clusters) and RV(addons), as a text in JSON.
  returned: with O(kept_facts=use)
  type: str
hosts:
  description:
    - The plan of each host, by host name.
    - C(services.speed) predicts the speed of each service, alone on its Sparks, as ranges of C(low), C(typical) and C(high); null where it
      is unknown, and C(unknown) has the reason. C(one_stream) and C(all_streams) are tokens per second of one stream and of C(streams)
      streams together, C(by_streams) of 2 to 64, at a context of about 1000 tokens. C(first_token_8k) and C(first_token_full) are seconds to the first
      token of a prompt of 8192 tokens and of the longest one. C(steps) are decode steps per second with a drafter of C(drafted) tokens.
    - C(ceiling) and C(ceiling_all) are the rates of one stream and of all that take the whole bandwidth of the memory at one token a step.
      C(bytes_per_token) is what a step of one stream reads, C(bound_by) its largest part, C(shared_by) the number of services that may answer at the same
      time on its busiest Spark. C(proof) is what proofs compare with, C(levers) names changes that made launches of others faster (docs/speed.md).
  returned: success
  type: dict
  sample:
    spark-1: {verdict: fits, start_order: [heavy, fast], services: [{name: fast, speed: {streams: 2, one_stream: {low: 23.6, typical: 26.5, high: 29.7}}}]}
clusters:
  description: Clusters by name, with their hosts (the head first), their services with the executor and why it was chosen, and the plan
    of their network as soon as the hosts have been asked.
  returned: success
  type: dict
  sample: {pair_a: {hosts: [spark-1, spark-2], head: spark-1, services: [{name: qwen235, executor: mp}], fabric: null}}
addons:
  description: Add-on services, by host and role, as the roles take it; null for what a host is not to have. Hosts that are no
    Sparks are here too. C(sockets) lists what listens there, and which other hosts have to reach it.
  returned: success
  type: dict
  sample: {spark-1: {sockets: [{service: heavy, kind: engine, address: 192.168.1.11, port: 8001, callers: [forge]}], gateway: null}}
lacking:
  description: Hosts that do not have all of their images, or models.
  returned: success
  type: dict
  sample: {images: [spark-1], models: []}
for_all:
  description: Hosts with add-on services that are about other hosts too (gateway, clients, exporters, monitoring, fleet monitor).
  returned: success
  type: list
  sample: [forge]
on_demand:
  description: Hosts with services that are started by a request.
  returned: success
  type: list
  sample: [spark-2]
locked_names:
  description: Locked tags and branches that services use and that can move, as O(dgxspark.vllm.spark_info#module:upstream) takes them.
  returned: success
  type: dict
keys_of_fleet:
  description: Files of the controller with keys that the fleet itself checks, such as those of engines and of the gateway's clients. Any value
    will do for them; C(dgxspark.vllm.keys) makes those that are missing.
  returned: success
  type: list
  sample: [/home/me/fleet/.secrets/api_key]
findings:
  description: What the plan says about all hosts, errors first. Where C(cluster) is set, hosts of that cluster may have the same finding with other
    figures.
  returned: success
  type: list
  sample: [{host: spark-1, service: heavy, rule: memory.free_at_start, severity: error, message: vLLM would refuse to start., fix: Set ... to 0.80.}]
placement:
  description: Services without a replica (another host that serves the same model or by the same name), and hosts whose services are more than
    their memory, with a service that could move and where to.
  returned: success
  type: dict
  sample: {hosts: 3, services: 4, without_replica: [], over_committed: {spark-2: {over_gib: 4.2, move: fast, to: spark-3}}}
errors:
  description: Number of errors; one that several hosts of a cluster have counts once.
  returned: success
  type: int
"""
