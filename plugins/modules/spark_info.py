#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_info
short_description: Report what a DGX Spark is and what runs on it
description:
  - Reports the sections that O(gather) names about an NVIDIA DGX Spark (GB10) or one of its siblings. Each program of the host is
    called at most once for all of them. Memory comes from C(/proc/meminfo), because C(nvidia-smi) answers C([N/A]) on GB10.
  - Missing hardware gives V(null) or an empty list. A section that fails, or whose programs give no answer in time, is V(null); RV(unknown) has the reason.
    No serial numbers are read.
extends_documentation_fragment:
  - dgxspark.vllm.attributes
  - dgxspark.vllm.attributes.read_only
options:
  gather:
    description:
      - The sections to report. The first ten are parts of RV(spark); each of the others is a result of its own.
      - "V(containers): Docker and its containers. V(gpu): the GPU and its processes. V(residency): GPU memory by service. V(memory): the
        unified memory and its guard. V(network): QSFP ports and the address on the LAN. V(ports): listening TCP sockets."
      - "V(units): services and their units. V(host): machine, system and accounts. V(disks): file systems of O(disk_paths).
        V(models): models that are complete in O(hf_home)."
      - "V(images): the images of O(images) as Docker and the images themselves describe them."
      - "V(model_files): commit, files, sizes and checksums of O(models); nothing is downloaded."
      - "V(ray): the nodes of the Ray of an engine that spans hosts, by Ray's Python API, from inside one of its containers."
      - "V(adoption): running containers of vLLM, and programs without a container, that this collection did not start, read as
        M(dgxspark.vllm.import_recipe) reads them, and how a service of O(adopting) could replace each, beside it or instead of it."
      - "V(services): whether each of O(services) answers a short completion, with its metrics and the figures of its receipt; all are asked at the same time."
      - "V(starts): how far starts of O(services) are, why units failed, and which services requests start."
      - "V(history): what the units of O(services) did in the last 24 hours, and warnings of the agent, by the journal."
      - "V(engines): memory, kernels, graphs and drafts of the engines of O(services), compared with the plan. A term of the memory that is
        off by more than a tenth is a finding with the override that makes the next plan right; so is a kernel, graph or draft that is not
        the expected one. What cannot be read is V(null) or V(unknown), with a reason."
      - "V(health): known messages in the logs of the kernel and of engines, receipts, disks, clock, load of the GPU, pending reboots, unused
        images, registries and compile caches, and the answer of each of O(services) to a question."
      - "V(distribution): images and models of the host, file by file, and how other nodes reach it, as M(dgxspark.vllm.spread) needs it."
      - "V(cabling): which interfaces of which hosts the QSFP interfaces of the host are connected to. The host announces itself on each
        interface that is up and listens for others, by broadcast frames with EtherType 0x88B5, so no address is needed. Run it on all
        hosts of a group at once, with at least as many forks. It comes before V(network), and needs root."
      - "V(upstream): the digests and commits that registries and the hub name for O(upstream) at this moment. They describe no host; one host
        asks for all."
    type: list
    elements: str
    choices: [containers, gpu, residency, memory, network, ports, units, host, disks, models, images, model_files, ray, adoption, services, starts,
              history, engines, health, distribution, upstream, cabling]
    default: [containers, gpu, residency, memory, network, ports, units, host, disks, models, images]
  fail_on_unknown:
    description: Fail when a section that is a result of its own has no answer, with the reasons. Not for V(images) where V(containers) reports a Docker
      engine that does not answer.
    type: bool
    default: false
  root:
    description: Where C(/proc), C(/sys), C(/etc/dgx-release) and C(/etc/os-release) are read. Simulated Sparks show their own there.
    type: path
    default: /
  disk_paths:
    description: Paths whose file systems are measured, by V(health) beside those of logs and of Docker. A path that does not exist yet is judged by its
      nearest parent.
    type: list
    elements: path
    default: []
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  images:
    description: References of images, by tag, digest or id. Docker is asked once for all of them; nothing is pulled. Of the environment only names of vLLM,
      CUDA, Triton and NVIDIA are returned, without anything that looks like a secret.
    type: list
    elements: str
    default: []
  probe_images:
    description: Ask images of O(images) for their contents, once per image id. A short container without GPU and network runs the image's C(python3), which
      reads the metadata of its packages and the sources of vLLM without importing them. The answer is kept below O(state_dir), and reported from then on,
      with or without this option. In check mode no container is started; C(probe_from) of RV(images) says so.
    type: bool
    default: false
  probe_timeout:
    description: Seconds after which a container of O(probe_images) is ended.
    type: int
    default: 120
  brought_images:
    description: Images that this run has pulled, or that were missing when it began. Those that exist by now are noted as this collection's, which
      may remove them again when nothing uses them any more. Nothing is noted in check mode.
    type: list
    elements: str
    default: []
  models:
    description: Models to report for V(model_files) and V(distribution). C(repo) is needed; C(revision) is V(main) when left out; C(only) limits it to files by
      patterns. C(locked) is a commit to look for where the revision leads to none.
    type: list
    elements: dict
    default: []
  verify:
    description: Read all files of O(models). Otherwise the hub library's name of a large file, its sum, is believed, and a sum that was read
      before is used until the file changes.
    type: bool
    default: false
  state_dir:
    description: Folder of the collection's state on the host. Below it, sums of files are kept in C(models), and answers of images in
      C(images), except in check mode. Receipts are read from C(receipts), and last starts from C(starts).
    type: path
    default: /var/lib/dgxspark
  ray:
    description: The Ray that V(ray) asks.
    type: dict
    suboptions:
      container:
        description: Container on this host in which that Ray runs. The unit of a service keeps it as C(spark-NAME-ray).
        type: str
        required: true
      address:
        description: Where the head of that Ray is found, as C(host:port).
        type: str
        required: true
  adopting:
    description: The planned services of the host for V(adoption), as M(dgxspark.vllm.plan) returns them. Launches that serve the model of one of them,
      or use its port, are compared with it. Read on the controller.
    type: list
    elements: dict
    default: []
  services:
    description: The services to ask, as M(dgxspark.vllm.plan) returns them. C(name) is needed. Without C(unit) and C(container) they are
      C(spark-NAME.service) and C(spark-NAME); Ray's containers of a service belong to it. C(probe) has C(url), C(model) and C(api_key_file), a file on the
      host; a service without C(url) is not asked. C(memory) and C(fast_path) are what the engine is compared with, C(cache_dir) is its folder of
      compile caches.
    type: list
    elements: dict
    default: []
  timeout:
    description: Seconds that a service has for its answer, and for its metrics.
    type: float
    default: 10
  query_timeout:
    description: Seconds that one program may take to answer. All together may be silent for twice as long.
    type: float
    default: 30
  settings_dir:
    description: Folder on the host with the settings of deployed services and of the memory guard.
    type: path
    default: /etc/dgxspark
  run_dir:
    description: Folder on the host where the helper of the units keeps its records of starts, and Ray its sessions.
    type: path
    default: /run/dgxspark
  os_reserve_gib:
    description: What the plan leaves to everything but services, GiB. Not compared unless given.
    type: float
  log_lines:
    description: Last lines that V(health) reads of each log of an engine.
    type: int
    default: 500
  ask_services:
    description: Whether V(health) asks each of O(services) a question, with greedy sampling, to detect degenerate output.
    type: bool
    default: true
  answer_timeout:
    description: Seconds that a service has for its answer to that question.
    type: float
    default: 30
  distribution:
    description: How V(distribution) looks for O(images), and how other nodes reach this one. C(locked) has by reference the entry of the lock file,
      whose C(ids) are looked for too, C(address) the address that the other nodes reach (by default the one that the default route starts
      from), C(fabric) the name of the fast network that the host shares with others of that name.
    type: dict
  cabling:
    description: How V(cabling) announces the host, and for how long it listens.
    type: dict
    suboptions:
      name:
        description: The name of the host in its announcements, that of the inventory.
        type: str
        required: true
      seconds:
        description: How long to listen. Slow connections to the hosts of a group have to overlap.
        type: float
        default: 6
  upstream:
    description: The tags and branches that V(upstream) looks up, all at once and without an account; nothing is downloaded. C(images) are references by
      tag, C(models) have C(repo) and C(revision), C(endpoint) is a mirror of the hub, C(timeout) the seconds that each registry and the hub have (5).
    type: dict
notes:
  - Run it as root to see the processes behind listening ports and all containers.
"""

EXAMPLES = r"""
- name: Gather facts of the host
  dgxspark.vllm.spark_info:
    disk_paths:
      - /srv/huggingface
  become: true
  register: host

- name: Compare memory and kernels of an engine with the plan
  dgxspark.vllm.spark_info:
    gather: [engines]
    services:
      - name: heavy
        memory: "{{ budget.services.heavy }}"  # of dgxspark.vllm.memory_budget
        probe: {url: "http://127.0.0.1:8001"}
    os_reserve_gib: 5.2
  become: true
  register: compared

- name: Discover the cabling
  dgxspark.vllm.spark_info:
    gather: [cabling]
    cabling:
      name: "{{ inventory_hostname }}"
  become: true
  register: probe
"""

RETURN = r"""
unknown:
  description: Why sections are V(null), by section. Programs that gave no answer for RV(spark) are in C(spark.unknown).
  returned: success
  type: dict
  sample: {"images": "docker image inspect failed for vllm/vllm-openai:v0.23.0: Cannot connect to the Docker daemon"}
host_architecture:
  description: Architecture of the host in Docker's terms, to compare those of the images with.
  returned: with V(images) in O(gather)
  type: str
images:
  description:
    - One entry per reference of O(images), V(null) where Docker does not list its images. Without C(present), the rest is V(null), empty or V(unknown).
    - C(id), C(repo_digests), C(architecture), C(os), C(entrypoint), C(cmd), C(env), C(labels) (of this collection and of OCI) and C(size_gib)
      (unpacked) are Docker's. C(entrypoint_family) is V(serve) where vLLM's server takes the arguments, V(passthrough) where what is given
      runs, else V(unknown). C(vllm_version) is that of C(vllm_version_source).
    - C(probe) is what the image said of itself, with C(probe_from) V(image), V(cache) or V(none) (not asked). It has the C(error), or versions,
      compile C(caches) by environment variable, and the C(options) and C(names) that its vLLM knows.
  returned: with V(images) in O(gather)
  type: dict
  sample:
    "vllm/vllm-openai:v0.23.0": {present: true, architecture: arm64, entrypoint_family: serve, vllm_version: 0.23.0, probe_from: cache, probe: {error:
    null}}
model_files:
  description: One entry per model, in the order of O(models), with C(repo) and C(revision) as asked for. C(commit) and the C(path) of the snapshot are
    V(null) if there is none. C(files) have C(size), C(sha256) and C(blob) (the file that the snapshot links to); C(problems) names files that
    are missing, truncated or damaged.
  returned: with V(model_files) in O(gather)
  type: list
  sample: [{repo: Qwen/Qwen3-8B, revision: main, files: {config.json: {size: 728, blob: 4b5d1e}}, problems: []}]
ray:
  description: The nodes of O(ray), those that are alive first; Ray drops a silent node after half a minute and more. A Ray that does not answer has the
    reason in C(error).
  returned: with V(ray) in O(gather)
  type: dict
  sample: {answered: true, ray: 2.60.0, gpus: 2, nodes: [{address: 192.168.100.10, alive: true, resources: {GPU: 1.0}, used: {GPU: 1.0}}], error: ''}
adoption:
  description:
    - Unmanaged launches of vLLM (C(launches)), and how services of O(adopting) could replace them.
    - C(adopted) are launches that a service can take the place of, because C(by) (V(model) or V(port)) is the same; C(way) is V(beside) or
      V(instead), with C(why), C(differences) are what clients will see another way, C(refused) is why it is left alone all the same.
    - C(taken) are launches that a service has taken the place of before; C(there) tells whether one is still on the host.
      C(available_gib) is the memory that is available now. C(lines) are the same for people.
  returned: with V(adoption) in O(gather)
  type: dict
  sample:
    adopted: [{service: heavy, name: vllm, container: vllm, by: model, way: instead, why: both want port 8000, refused: ''}]
services:
  description: One entry per service, in the order of O(services); V(null) stands for what is unknown. C(ready) tells whether it gave a completion, C(stage)
    is the last stage passed, or the one it is stuck in (V(unit) when it was not asked). C(kv_cache_usage) is a share from 0 to 1.
    C(decode_tokens_per_second) is the last measurement of bench.yml of the deployed service, C(decode_ratio) that by its baseline. C(fast_path) and
    C(speed) are verdicts of the receipt on its kernels and its speed.
  returned: with V(services) in O(gather)
  type: list
  sample: [{name: heavy, ready: true, stage: completion, error: '', kv_cache_usage: 0.03, requests_running: 1, requests_waiting: 0, fast_path: ok}]
starts:
  description:
    - What is under way with O(services), by the name of a service; V(null) for unknown figures.
    - C(starting) has the C(stage), C(percent) and C(seconds) of each start, and C(left_seconds) by the last starts. C(causes) has cause and fix of
      each service whose unit failed or restarts again and again, by its journal, where known.
    - C(on_demand) has of each service that requests start its C(state), C(idle_seconds), C(waiting) (requests), C(pin) (V(warm), V(cold) or empty)
      and C(why) (it is kept so, or a start failed).
  returned: with V(starts) in O(gather)
  type: dict
  sample: {"starting": {}, "causes": {}, "on_demand": {}}
history:
  description: The last 24 hours in seconds from their begin, by the journal. C(units) has by service, and for the agent, C(spans) with C(state) V(running),
    V(starting), V(stopped) or V(failed), and the number of C(restarts). Time without a span is unknown, as while the host was off. C(alarms) are
    the newest warnings of the agent.
  returned: with V(history) in O(gather)
  type: dict
  sample:
    units: {heavy: {spans: [{state: stopped, begin: 0.0, end: 3600.0}, {state: starting, begin: 3600.0, end: 4012.5}], restarts: 0}}
    alarms: [{at: 5012.3, text: 'guard: memory is short: 2.1 GiB available'}]
engines:
  description:
    - What the engines of O(services) took of memory and run, compared with their plan. C(system) is the term of everything but services.
    - C(services) has of each service its memory by C(terms), each with C(planned) (low, typical, high), C(measured), C(off_percent) (against
      typical), C(unit), C(verdict), C(reason) and C(override). C(verdict) is V(as_planned) (within a tenth, or what the figures scatter by
      themselves), V(within_range) (between low and high), V(over), V(under), V(not_planned), V(not_comparable) or V(unknown).
    - C(override) are the overrides of all its terms, as keys of the service. C(measured) are the figures for a receipt, C(start) is what later
      plans go by (V(null) where the plan or the start-up lines do not say enough), C(log) what the start-up lines say of memory.
    - C(checks) are those of the fast path, with C(expected), C(found), C(reason) and C(verdict), V(ok), V(off), V(not_asked) (nothing was
      expected) or V(unknown). C(runs) is what the start-up lines say of kernels, graphs and drafts, C(counted) what C(/metrics) counts since the
      start of the engine, C(fast_path) what a receipt keeps of it.
    - C(findings) are those of a service, and below all services those of all and of the host. A finding is an error only where the recipe
      requires what is missing; errors and warnings are shown as warnings of the task.
  returned: with V(engines) in O(gather)
  type: dict
  sample:
    services:
      heavy:
        terms:
          inside: {planned: {low: 0.8, typical: 2.5, high: 4.0}, measured: 4.5, off_percent: 80.0, unit: GiB, verdict: over, reason: '', override: {}}
        checks: {moe_backend: {expected: [marlin], found: [flashinfer_cutlass], verdict: "off", reason: ''}}
health:
  description: What only a running host shows. Parts that could not be read are empty or V(null), with the program in C(unknown).
  returned: with V(health) in O(gather)
  type: dict
  sample:
    disks: {/srv/huggingface: {total_gib: 3755.1, free_gib: 1210.4, exists: true}}
    gpu_load: {utilization: 97.0, sm_mhz: 2411.0, power_w: 61.0}
    last_boot: {ended: 1789990000.0, shut_down: true}
    receipts: {heavy: {path: /var/lib/dgxspark/receipts/heavy.json, age_days: 3.1, image: 'nvcr.io/nvidia/vllm:26.04-py3'}}
    services: {heavy: {log: {id: none, stage: serving, error: ''}, answer: {text: The sea is wide., error: ''}}}
distribution:
  description:
    - The C(images) of O(images) (C(id), C(content), C(layers), C(size), C(name); V(null) for a missing one) and the snapshots of O(models) as
      C(models), by C(repo@revision) (whether C(complete), C(commit), C(files) with those that were verified and have not changed since, and in
      C(staged) the bytes of an interrupted transfer).
    - How other nodes reach the host, its C(address) on the LAN, C(fabric) as asked for and its other C(interfaces); C(disks) with C(path), C(device)
      and C(free) bytes; C(tools_missing), programs that are needed; C(left_open), whether an interrupted run left the access of
      M(dgxspark.vllm.spread_access) open.
  returned: with V(distribution) in O(gather)
  type: dict
cabling:
  description: C(heard) is which interface heard which interface of which host, each once; C(tools) are the programs of the host that measure bandwidth.
  returned: with V(cabling) in O(gather)
  type: dict
  sample: {"heard": [{"netdev": "enp1s0f0np0", "host": "spark-2", "peer": "enp1s0f0np0"}], "tools": [iperf3]}
upstream:
  description: C(images) are the digests of the tags of O(upstream), C(models) the commits by ORG/NAME@REVISION. C(unknown) are registries and models
    without an answer, such as a registry that wants an account or a gated model, and why.
  returned: with V(upstream) in O(gather)
  type: dict
  sample: {models: {"Qwen/Qwen3-8B@main": 0123456789abcdef0123456789abcdef01234567}, unknown: ["example.org/own:main: example.org answered 401"]}
msg:
  description: The reasons of RV(unknown), in one line.
  returned: when there are any
  type: str
  sample: "docker image inspect failed for vllm/vllm-openai:v0.23.0: Cannot connect to the Docker daemon"
spark:
  description:
    - The facts of the host. Each key is reported with the section that it belongs to. C(unknown) is always there, programs or sections that gave
      no answer, and why; what they are asked for is empty then and means nothing.
    - V(host), C(machine) (DMI texts, the short name of its C(vendor)), C(dgx_os) (C(/etc/dgx-release) without serial number; C(version) is that of
      the last update), C(os), C(kernel), C(architecture), C(hostname), C(docker_users) (accounts of the group C(docker)), C(nft) (the program is
      there), C(firewall) (the role firewall has been here), C(power) (what C(spark_power.idle) can switch).
    - V(gpu), C(gpu) with its C(processes); V(null) when C(nvidia-smi) is missing or finds none. V(residency), C(resident), GPU memory that the
      containers of services hold.
    - V(memory), C(memory), C(guard), the settings and the last step of the memory guard, V(null) where none is deployed, and C(quality), services
      whose answers to quality questions are doubtful or degenerate.
    - V(network), C(management_address) and C(fabric). C(connectx) is V(false) without a ConnectX-7 on the bus; C(ports) has one entry per QSFP cage
      with its two interfaces; C(networks) and C(mtus) are those of all other interfaces; C(relay) is V(true) where the unit of a relay is installed.
    - V(containers), C(docker), the engine, V(null) without C(docker), and C(containers), running or not; C(managed) ones are of this collection.
      V(units), C(services), those that this collection has put on the host, and C(units), C(spark-*.service) with their states.
    - V(ports), C(listening), TCP sockets with process, unit and container where they are known. V(disks), C(disks), file systems by path.
    - V(models), C(models) that are whole on the host; C(snapshots), their C(commits) and C(refs) (C(selected) are commits of which only the files of
      a tokenizer are there); C(hf_home), whether it is there, its owner and mode, and in C(closed) what engines cannot read, by model.
  returned: with one of its sections in O(gather)
  type: dict
  sample:
    unknown: {"docker": docker did not answer in 30 s}
    machine: {"is_spark": true, "vendor": "lenovo", "sys_vendor": "LENOVO", "product_name": "30KL0004FC"}
    dgx_os: {"name": "DGX Spark", "platform": "GX10", "version": "7.5.0", "image_version": "7.2.3", "ota_version": "7.5.0"}
    kernel: 6.17.0-1014-nvidia
    gpu: {name: NVIDIA GB10, driver_version: 580.159.03, cuda_version: "13.0", processes: [{"pid": 624869, "used_mib": 31958, "container": "spark-heavy"}]}
    memory: {"total_gib": 121.628, "available_gib": 22.064, "free_gib": 4.302, "cached_gib": 19.501}
    docker: {"version": "29.2.1", "reachable": true, "cgroup_version": "2", "runtimes": ["nvidia", "runc"]}
    resident: [{"name": "heavy", "gib": 95.412}]
    guard: {act: true, floor_gib: 3.0, level: calm, lowest_gib: 2.731, last: {what: restart, whom: heavy, why: 4.1 GiB above its plan}}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import host_report, host_sections
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import BadRequest
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import Unknown


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=host_sections.ARGUMENTS, supports_check_mode=True)
    try:
        report = host_report.report_host(module, module.params, host_sections.SECTIONS)
    except (BadRequest, Unknown) as error:
        module.fail_json(msg=str(error))
    message = {"msg": "; ".join(report["unknown"].values())} if report["unknown"] else {}
    module.exit_json(changed=False, **report, **message)


if __name__ == "__main__":
    main()
