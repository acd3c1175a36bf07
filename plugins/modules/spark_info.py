#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_info
short_description: Report what a DGX Spark is and what runs on it
version_added: 0.1.0
description:
  - Reports the sections that O(gather) names about an NVIDIA DGX Spark (GB10) or one of its siblings. Each program of the host is
    called at most once for all of them.
  - Memory comes from C(/proc/meminfo), because C(nvidia-smi) answers C([N/A]) on GB10.
  - Missing hardware gives V(null) or an empty list. A Spark without a QSFP cable has no ConnectX-7 on its bus, for example.
  - A section that fails, or whose programs give no answer in time, is V(null); RV(unknown) has the reason. The other sections are
    reported all the same.
  - No serial numbers are read.
author:
  - dgxspark.vllm contributors (@dgxspark)
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
    choices:
      - containers
      - gpu
      - residency
      - memory
      - network
      - ports
      - units
      - host
      - disks
      - models
      - images
      - model_files
      - ray
      - adoption
      - services
      - starts
      - engines
      - health
      - distribution
      - upstream
      - cabling
    default:
      - containers
      - gpu
      - residency
      - memory
      - network
      - ports
      - units
      - host
      - disks
      - models
      - images
  fail_on_unknown:
    description:
      - Fail when a section that is a result of its own has no answer, with the reasons.
      - Not for V(images) where V(containers) reports a Docker engine that does not answer.
    type: bool
    default: false
  root:
    description:
      - Where C(/proc), C(/sys), C(/etc/dgx-release) and C(/etc/os-release) are read. Simulated Sparks show their own there.
    type: path
    default: /
  disk_paths:
    description:
      - Paths whose file systems are measured, by V(health) beside those of logs and of Docker. A path that does not exist yet is judged by its
        nearest parent.
    type: list
    elements: path
    default: []
  hf_home:
    description:
      - Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  images:
    description:
      - References of images, by tag, digest or id. Docker is asked once for all of them; nothing is pulled.
      - Of the environment only names of vLLM, CUDA, Triton and NVIDIA are returned, without anything that looks like a secret.
    type: list
    elements: str
    default: []
  probe_images:
    description:
      - Ask images of O(images) for their contents, once per image id. A short container without GPU and network runs the image's
        C(python3), which reads the metadata of its packages and the sources of vLLM without importing them. The answer is kept below
        O(state_dir), and reported from then on, with or without this option.
      - In check mode no container is started; RV(images.probe_from) says so.
    type: bool
    default: false
  probe_timeout:
    description:
      - Seconds after which a container of O(probe_images) is ended.
    type: int
    default: 120
  brought_images:
    description:
      - Images that this run has pulled, or that were missing when it began. Those that exist by now are noted as this collection's, which
        may remove them again when nothing uses them any more. Nothing is noted in check mode.
    type: list
    elements: str
    default: []
  models:
    description:
      - Models to report for V(model_files) and V(distribution). C(repo) is needed; C(revision) is V(main) when left out; C(only) limits it to files by
        patterns. C(locked) is a commit to look for where the revision leads to none.
    type: list
    elements: dict
    default: []
  verify:
    description:
      - Read all files of O(models). Otherwise the hub library's name of a large file, its sum, is believed, and a sum that was read
        before is used until the file changes.
    type: bool
    default: false
  state_dir:
    description:
      - Folder of the collection's state on the host. Below it, sums of files are kept in C(models), and answers of images in
        C(images), except in check mode. Receipts are read from C(receipts), and last starts from C(starts).
    type: path
    default: /var/lib/dgxspark
  ray:
    description:
      - The Ray that V(ray) asks.
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
    description:
      - The planned services of the host for V(adoption), as M(dgxspark.vllm.plan) returns them. Launches that serve the model of one of them,
        or use its port, are compared with it. Read on the controller.
    type: list
    elements: dict
    default: []
  services:
    description:
      - The services to ask, as M(dgxspark.vllm.plan) returns them; only the listed keys are read.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the service.
        type: str
        required: true
      unit:
        description: Its unit. V(spark-NAME.service) unless given.
        type: str
      container:
        description:
          - Its container. V(spark-NAME) unless given. Other containers of the service by their label, as Ray's, belong to it.
        type: str
      rank:
        description: Its rank on this host, for a service that spans hosts. Tokens, concurrency and drafts are counted by the first rank alone.
        type: int
        default: 0
      cluster:
        description: How it spans hosts. Only C(executor) is read. V(null) for a service of this host alone.
        type: dict
      memory:
        description: The plan of its memory, one of C(services) that M(dgxspark.vllm.memory_budget) returns.
        type: dict
        default: {}
      fast_path:
        description: Which kernels, graphs and drafts it is expected to run. Nothing is compared unless given.
        type: dict
        default: {}
      cache_dir:
        description: Its folder of compile caches.
        type: path
      probe:
        description:
          - Where it answers. C(url), C(model) and C(api_key_file), a file on the host, are read. A service without C(url), such as a rank
            behind the first one, is not asked.
        type: dict
        default: {}
  timeout:
    description:
      - Seconds that a service has for its answer, and for its metrics.
    type: float
    default: 10
  query_timeout:
    description:
      - Seconds that one program may take to answer. All together may be silent for twice as long.
    type: float
    default: 30
  settings_dir:
    description:
      - Folder on the host with the settings of deployed services and of the memory guard.
    type: path
    default: /etc/dgxspark
  run_dir:
    description:
      - Folder on the host where the helper of the units keeps its records of starts, and Ray its sessions.
    type: path
    default: /run/dgxspark
  os_reserve_gib:
    description:
      - What the plan leaves to everything but services, GiB. Not compared unless given.
    type: float
  log_lines:
    description:
      - Last lines that V(health) reads of each log of an engine.
    type: int
    default: 500
  ask_services:
    description:
      - Whether V(health) asks each of O(services) a question, with greedy sampling, to detect degenerate output.
    type: bool
    default: true
  answer_timeout:
    description:
      - Seconds that a service has for its answer to that question.
    type: float
    default: 30
  distribution:
    description:
      - How V(distribution) looks for O(images), and how other nodes reach this one.
    type: dict
    suboptions:
      locked:
        description: By reference of an image the entry of the lock file; its C(ids) are looked for too.
        type: dict
        default: {}
      address:
        description: Address of the host that the other nodes reach; the one that its default route starts from when empty.
        type: str
        default: ''
      fabric:
        description: Name of the fast network that the host shares with others of that name; empty without one.
        type: str
        default: ''
  cabling:
    description:
      - How V(cabling) announces the host, and for how long it listens.
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
    description:
      - The tags and branches that V(upstream) looks up, all at once and without an account. Nothing is downloaded.
    type: dict
    suboptions:
      images:
        description: References of images, by tag.
        type: list
        elements: str
        default: []
      models:
        description: Models on the hub; C(repo) and C(revision).
        type: list
        elements: dict
        default: []
      endpoint:
        description: Address of a mirror of the hub.
        type: str
        default: ''
      timeout:
        description: Seconds that each registry and the hub have for an answer.
        type: float
        default: 5
notes:
  - Run it as root to see the processes behind listening ports and all containers.
seealso:
  - module: dgxspark.vllm.image_compat
  - module: dgxspark.vllm.doctor
  - module: dgxspark.vllm.endpoint_ready
  - module: dgxspark.vllm.memory_budget
  - module: dgxspark.vllm.service_proof
  - module: dgxspark.vllm.spread
  - module: dgxspark.vllm.service_state
"""

EXAMPLES = r"""
- name: Gather facts of the host
  dgxspark.vllm.spark_info:
    disk_paths:
      - /srv/huggingface
  become: true
  register: host

- name: List the images of the services, and ask new ones for their contents
  dgxspark.vllm.spark_info:
    gather: [images]
    images:
      - nvcr.io/nvidia/vllm:26.04-py3
      - vllm/vllm-openai:v0.23.0
    probe_images: true
    fail_on_unknown: true
  become: true
  register: listed

- name: Name the images that are still to be pulled
  ansible.builtin.debug:
    msg: "{{ listed.images | dict2items | rejectattr('value.present') | map(attribute='key') }}"

- name: Show the memory that is free for models
  ansible.builtin.debug:
    msg: "{{ host.spark.memory.available_gib }} GiB of {{ host.spark.memory.total_gib }} GiB available"

- name: Refuse a host that is no Spark
  ansible.builtin.assert:
    that: host.spark.machine.is_spark

- name: Plan the memory
  dgxspark.vllm.memory_budget:
    services: "{{ services }}"
  delegate_to: localhost
  register: budget

- name: Compare memory and kernels of an engine with the plan
  dgxspark.vllm.spark_info:
    gather: [engines]
    services:
      - name: heavy
        memory: "{{ budget.services.heavy }}"
        probe:
          url: http://127.0.0.1:8001
        fast_path:
          moe_backend:
            any_of: [marlin]
            why: moe-backend asks for it
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

- name: Look up tags and branches upstream
  dgxspark.vllm.spark_info:
    gather: [upstream]
    upstream:
      images: ["vllm/vllm-openai:nightly"]
      models: [{repo: Qwen/Qwen3-8B, revision: main}]
  run_once: true
  register: upstream

- name: Show the measured overhead
  ansible.builtin.debug:
    var: compared.engines.services.heavy.override
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
  sample: arm64
images:
  description: One entry per reference of O(images), V(null) where Docker does not list its images.
  returned: with V(images) in O(gather)
  type: dict
  contains:
    present:
      description: Whether the host has the image. All the rest is V(null), empty or V(unknown) if not.
      type: bool
    id:
      description: Id of the image.
      type: str
    repo_digests:
      description: Digests under which registries know it.
      type: list
      elements: str
    architecture:
      description: Architecture in Docker's terms.
      type: str
      sample: arm64
    os:
      description: Operating system.
      type: str
    entrypoint:
      description: Entrypoint.
      type: list
      elements: str
    cmd:
      description: Default command.
      type: list
      elements: str
    env:
      description: Environment, only names of vLLM, CUDA, Triton and NVIDIA.
      type: dict
    labels:
      description: Labels of this collection (C(dgxspark.*)) and of OCI (C(org.opencontainers.*)).
      type: dict
    size_gib:
      description: Unpacked size.
      type: float
    entrypoint_family:
      description:
        - V(serve) when the entrypoint is vLLM's server and takes its arguments, V(passthrough) when it runs what it is
          given, V(unknown) otherwise.
      type: str
    vllm_version:
      description: Version of vLLM, as its installed package says, else where a label or the environment has it.
      type: str
    vllm_version_source:
      description: Where RV(images.vllm_version) is written.
      type: str
    probe_from:
      description:
        - V(image) when it was asked just now, V(cache) when it was asked before, V(none) when it was not asked.
      type: str
    probe:
      description: What the image said of itself, V(null) if it was not asked.
      type: dict
      contains:
        error:
          description: Why it could not say anything, else V(null).
          type: str
        python:
          description: Version of its Python.
          type: str
        vllm_version:
          description: Version of the installed vLLM.
          type: str
        ray:
          description: Version of the installed Ray, V(null) without it.
          type: str
        cuda:
          description: CUDA release that its torch was built for, else that of its toolkit.
          type: str
        ptxas:
          description: Releases of the PTX assemblers inside, by owner.
          type: dict
        nccl:
          description: The NCCL that torch loads, its C(library) (V(pip), V(replaced), V(named) or V(system)) and its C(version).
          type: dict
        caches:
          description: Compile caches that the image brings along, environment variable to folder.
          type: dict
        packages:
          description: Versions of the packages that matter to vLLM.
          type: dict
        options:
          description: Options that its C(vllm serve) takes. Empty where the sources could not be read.
          type: list
          elements: str
        names:
          description: Environment variables, architectures and parsers that its vLLM knows.
          type: list
          elements: str
  sample:
    "vllm/vllm-openai:v0.23.0":
      present: true
      architecture: arm64
      entrypoint: [vllm, serve]
      entrypoint_family: serve
      vllm_version: 0.23.0
      vllm_version_source: package
      probe_from: cache
      probe:
        error: null
        python: 3.12.3
        vllm_version: 0.23.0
        ray: null
        cuda: "13.0"
        ptxas: {toolkit: "13.0", triton: "12.8"}
        nccl: {library: pip, version: 2.28.9}
        caches: {}
model_files:
  description: One entry per model, in the order of O(models).
  returned: with V(model_files) in O(gather)
  type: list
  elements: dict
  contains:
    repo:
      description: As asked for.
      type: str
    revision:
      description: As asked for.
      type: str
    commit:
      description: The commit that the revision stands for on the host, V(null) if there is none.
      type: str
    path:
      description: Folder of the snapshot, V(null) if it is missing.
      type: str
    files:
      description: By name, C(size), C(sha256) and C(blob), the name of the file that the snapshot links to.
      type: dict
    problems:
      description: Files that are missing, truncated or damaged.
      type: list
      elements: str
  sample:
    - repo: Qwen/Qwen3-8B
      revision: main
      commit: 0123456789abcdef0123456789abcdef01234567
      files:
        config.json: {size: 728, sha256: "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c", blob: 4b5d1e}
      problems: []
ray:
  description: The nodes of O(ray). A Ray that does not answer has the reason in C(error).
  returned: with V(ray) in O(gather)
  type: dict
  contains:
    answered:
      description: Whether Ray gave an answer.
      type: bool
      sample: true
    ray:
      description: Version of Ray in the container, V(null) when unknown.
      type: str
      sample: 2.60.0
    gpus:
      description: GPUs of the nodes that are alive.
      type: int
      sample: 2
    nodes:
      description:
        - All nodes that the head knows, those that are alive first, each with its C(address), C(id), whether it is C(alive) (Ray drops a
          silent node after half a minute and more), its C(resources) by Ray's names, and those in use (C(used)).
      type: list
      elements: dict
      sample:
        - address: 192.168.100.10
          id: 262398d4079c836663598225ab06048ca3d9b7019fcdec700ca16c85
          alive: true
          resources: {CPU: 2.0, GPU: 1.0, object_store_memory: 1073741824.0}
          used: {GPU: 1.0}
    error:
      description: What is wrong, empty when nothing is.
      type: str
      sample: ''
adoption:
  description: Unmanaged launches of vLLM, and how services of O(adopting) could replace them.
  returned: with V(adoption) in O(gather)
  type: dict
  contains:
    adopted:
      description: The launches that a service can take the place of.
      type: list
      elements: dict
      contains:
        service:
          description: Name of the service.
          type: str
          sample: heavy
        name:
          description: Name of the container, of the unit where there is no container.
          type: str
          sample: vllm
        container:
          description: Name of the container, empty where the unit runs vLLM without one.
          type: str
          sample: vllm
        unit:
          description: The unit that runs it, empty where none does.
          type: str
          sample: vllm.service
        by:
          description: What is the same, V(model) or V(port).
          type: str
          sample: model
        way:
          description: How it is replaced, V(beside) or V(instead).
          type: str
          sample: instead
        why:
          description: Why so.
          type: str
          sample: both want port 8000
        differences:
          description: What clients will see another way.
          type: list
          elements: str
          sample: ["--max-model-len: 32768 -> 65536"]
        url:
          description: Where the launch answers on its host, empty where that is not known.
          type: str
          sample: http://127.0.0.1:8000
        service_like:
          description: The launch as a service.
          type: dict
        refused:
          description: Why it is left alone all the same, empty when it is not.
          type: str
          sample: ''
    launches:
      description: Containers and units of vLLM that were found, whether or not a service matches.
      type: list
      elements: dict
    taken:
      description: What a service has taken the place of before, as M(dgxspark.vllm.service_state) noted it.
      type: list
      elements: dict
      contains:
        name:
          description: Name of the container or unit.
          type: str
          sample: vllm
        container:
          description: Name of the container, empty where the unit runs vLLM without one.
          type: str
          sample: vllm
        unit:
          description: The unit that ran it, empty where none did.
          type: str
          sample: ''
        path:
          description: File of that unit.
          type: str
          sample: ''
        service:
          description: The service that took its place.
          type: str
          sample: heavy
        url:
          description: Where it answered.
          type: str
          sample: http://127.0.0.1:8000
        there:
          description: Whether it is still on the host, so that it could come back.
          type: bool
          sample: true
    available_gib:
      description: What is available now.
      type: float
      sample: 22.1
    lines:
      description: The same for people.
      type: list
      elements: str
services:
  description: One entry per service, in the order of O(services).
  returned: with V(services) in O(gather)
  type: list
  elements: dict
  contains:
    name:
      description: Name of the service.
      type: str
      sample: heavy
    ready:
      description: Whether it gave a completion, V(null) when it was not asked.
      type: bool
      sample: true
    stage:
      description: The last stage passed, or the one it is stuck in. V(unit) when it was not asked.
      type: str
      sample: completion
    error:
      description: What is wrong, empty when nothing is.
      type: str
      sample: ''
    kv_cache_usage:
      description: Share of the KV cache in use, 0 to 1, V(null) when unknown.
      type: float
      sample: 0.03
    requests_running:
      description: Requests being served, V(null) when unknown.
      type: int
      sample: 1
    requests_waiting:
      description: Requests in the queue, V(null) when unknown.
      type: int
      sample: 0
    decode_tokens_per_second:
      description: The last measurement of bench.yml of the deployed service, V(null) without one.
      type: float
      sample: 41.5
    decode_ratio:
      description: That by its baseline, V(null) when the two are not comparable.
      type: float
      sample: 0.97
    fast_path:
      description: The mark of its kernels in the receipt, V(ok), V(N off) or V(-). V(null) without a receipt that has one.
      type: str
      sample: ok
    speed:
      description: The verdict on its speed in the receipt, with the figure that decided. V(null) without a measured speed.
      type: str
      sample: 'slow: decode in one stream 18.2 tokens/s; 24.1 or more are predicted'
starts:
  description: What is under way with O(services), by the name of a service.
  returned: with V(starts) in O(gather)
  type: dict
  contains:
    starting:
      description:
        - Of each service whose unit starts, the C(stage) of the start, the C(percent) of it where the engine says it, the C(seconds) since
          the start began, and C(left_seconds) by its last starts; V(null) for unknown figures.
      type: dict
    causes:
      description: Of each service whose unit failed or restarts again and again, the cause and the fix by its journal, where known.
      type: dict
    on_demand:
      description:
        - Of each service that requests start, what the program says that starts it, its C(state), C(idle_seconds) (V(null) while it works
          or does not run), C(waiting) (requests), C(pin) (V(warm), V(cold) or empty), C(why) (it is kept so, or a start failed).
      type: dict
  sample: {"starting": {}, "causes": {}, "on_demand": {}}
engines:
  description: What the engines of O(services) took of memory and run, compared with their plan term by term.
  returned: with V(engines) in O(gather)
  type: dict
  contains:
    services:
      description: One entry a service, by name.
      type: dict
      contains:
        terms:
          description:
            - Every term with C(planned) (low, typical, high), C(measured), C(off_percent) (against typical), C(unit), C(verdict),
              C(reason) and C(override).
            - C(verdict) is V(as_planned) (within a tenth, or what the figures scatter by themselves), V(within_range) (between
              low and high), V(over), V(under), V(not_planned), V(not_comparable) or V(unknown); the last two have a C(reason).
            - C(inside) is the requested memory less weights and KV cache; C(outside) is the residency less the requested memory.
          type: dict
          sample:
            inside:
              planned: {low: 0.8, typical: 2.5, high: 4.0}
              measured: 4.5
              off_percent: 80.0
              unit: GiB
              verdict: over
              reason: ''
              override: {overheads: {inside_gib: 4.5}}
        override:
          description: The overrides of all its terms together, as keys of the service.
          type: dict
          sample: {overheads: {inside_gib: 4.5}}
        measured:
          description: The measured figures for a receipt.
          type: dict
          sample: {weights_gib: 74.85, kv_cache_gib: 18.4, kv_cache_tokens: 1657493, start_seconds: 412.0}
        start:
          description:
            - What its start took, term by term, with what tells its launch from others; plans to come go by it.
            - V(null) where the plan or the start-up lines do not say enough, and where it runs from another plan.
          type: dict
          sample: {weights_gib: 7.64, inside_gib: 0.97, kv_cache_gib: 30.98, max_num_batched_tokens: 2048, driver: 580.159.03}
        log:
          description:
            - What the start-up lines say of memory. C(tokens_count) is V(blocks) where C(kv_cache_tokens) counts the tokens of all blocks
              (vLLM up to 0.20.0) and V(requests) where it is the concurrency times the length.
          type: dict
        checks:
          description:
            - Every check of the fast path with C(expected), C(found), C(verdict) and C(reason).
            - C(verdict) is V(ok), V(off), V(not_asked) (nothing was expected) or V(unknown), which has a C(reason).
          type: dict
          sample:
            moe_backend: {expected: [marlin], found: [flashinfer_cutlass], verdict: "off", reason: ''}
        runs:
          description: What the start-up lines say of kernels, graphs and drafts.
          type: dict
        counted:
          description: What C(/metrics) counts since the start of the engine.
          type: dict
          sample: {drafts: 105, drafted: 630, accepted: 149, acceptance: 0.237, accepted_length: 2.42}
        fast_path:
          description: What a receipt keeps of the fast path. C(mark) is V(ok), V(N off), or V(-) where next to nothing is known.
          type: dict
        findings:
          description: The findings of this service, of memory and then of the fast path.
          type: list
          elements: dict
    system:
      description: The term of everything but services, in the shape of C(terms).
      type: dict
    findings:
      description:
        - All findings, those of the host included. Errors and warnings among them are shown as warnings of the task. A finding is an error
          only where the recipe requires what is missing.
      type: list
      elements: dict
      sample:
        - rule: residency.inside
          severity: warning
          service: heavy
          message: >-
            heavy uses 4.50 GiB of its share in addition to weights and KV cache; the plan has 2.50 (from 0.80 to 4.00) GiB
            (+80 %), and the KV cache is that much smaller.
          fix: "Plan again with this in the service heavy: overheads: {inside_gib: 4.5}"
          basis: measured
health:
  description: What only a running host shows. Parts that could not be read are empty or V(null), with the program in C(unknown).
  returned: with V(health) in O(gather)
  type: dict
  sample:
    clock: {now: 1790000000.2, synchronized: true}
    disks: {/srv/huggingface: {total_gib: 3755.1, free_gib: 1210.4, exists: true}}
    docker_proxies: {/home/me/.docker/config.json: [HTTPS_PROXY]}
    driver_packages: {'595': [libnvidia-compute-595]}
    gpu_error: ''
    gpu_load: {utilization: 97.0, sm_mhz: 2411.0, power_w: 61.0}
    helpers: {docker.service: {active: true, enabled: true}}
    kernel_log: {}
    last_boot: {ended: 1789990000.0, shut_down: true}
    no_initrd: [6.17.0-1032-nvidia]
    nvidia_tools: {spark_updatectl: {pending_reboot: {pending: false, indicators: []}}}
    reboot_required: false
    reboot_packages: []
    receipts: {heavy: {path: /var/lib/dgxspark/receipts/heavy.json, age_days: 3.1, image: 'nvcr.io/nvidia/vllm:26.04-py3'}}
    registries: [nvcr.io]
    shm_gib: 0.0
    soc_c: 48.2
    starts: {heavy: [{at: '2026-11-23T08:00:00Z', launch: 5f1c, seconds: 214.0, stages: {gate: 4.0, load: 120.0}, said: {compile_seconds: 38.0}}]}
    unused_images: [{ref: 'vllm/vllm-openai:v0.19.0', gib: 21.3}]
    services:
      heavy:
        log: {id: none, stage: serving, error: '', cause: 'none: the engine serves, and the log has no error', fix: '', source: none}
        answer: {text: The sea is wide., error: ''}
        cache: {path: /var/cache/dgxspark/heavy, oldest: 1790000000.0}
        unit_changed: 1790000000.0
distribution:
  description: The images of O(images) and the snapshots of O(models) on the host, and how other nodes reach it.
  returned: with V(distribution) in O(gather)
  type: dict
  contains:
    images:
      description:
        - By reference what tells the image apart (C(id), C(content), C(layers), C(size)), and the C(name) by which it is on the host;
          V(null) for a missing one.
      type: dict
    models:
      description:
        - By C(repo@revision) whether the snapshot is C(complete), its C(commit), its C(files) with those that were verified and have not
          changed since, and in C(staged) the bytes of an interrupted transfer.
      type: dict
    address:
      description: Address on the LAN.
      type: str
    fabric:
      description: As asked for.
      type: str
    interfaces:
      description: C(interface), C(address) and C(network) of the host's other interfaces.
      type: list
      elements: dict
    disks:
      description: C(path), C(device) and C(free) bytes of the places for images and for models.
      type: dict
    tools_missing:
      description: Programs that are needed and missing.
      type: list
      elements: str
    left_open:
      description: Whether an interrupted run left the access of M(dgxspark.vllm.spread_access) open.
      type: bool
  sample:
    address: 192.0.2.11
    fabric: pair1
    interfaces: [{interface: enp1s0f0np0, address: 192.168.100.10, network: 192.168.100.0/24}]
    tools_missing: []
cabling:
  description: What was heard on the QSFP interfaces.
  returned: with V(cabling) in O(gather)
  type: dict
  contains:
    heard:
      description: Which interface heard which interface of which host, each once.
      type: list
      elements: dict
      sample: [{"netdev": "enp1s0f0np0", "host": "spark-2", "peer": "enp1s0f0np0"}]
    tools:
      description: The programs of the host that measure bandwidth.
      type: list
      elements: str
      sample: [iperf3]
upstream:
  description: The tags and branches of O(upstream).
  returned: with V(upstream) in O(gather)
  type: dict
  contains:
    images:
      description: The digest of each tag that a registry named.
      type: dict
      sample: {"vllm/vllm-openai:nightly": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
    models:
      description: The commit of each model that the hub named, by ORG/NAME@REVISION.
      type: dict
      sample: {"Qwen/Qwen3-8B@main": 0123456789abcdef0123456789abcdef01234567}
    unknown:
      description: Registries and models without an answer, such as a registry that wants an account or a gated model, and why.
      type: list
      elements: str
      sample: ["example.org/own:main: example.org answered 401"]
msg:
  description: The reasons of RV(unknown), in one line.
  returned: when there are any
  type: str
  sample: "docker image inspect failed for vllm/vllm-openai:v0.23.0: Cannot connect to the Docker daemon"
spark:
  description: The facts of the host. Each key is reported with the section it belongs to.
  returned: with one of its sections in O(gather)
  type: dict
  contains:
    unknown:
      description: What gave no answer, a program or a section, and why. What it is asked for is empty then and means nothing.
      returned: always
      type: dict
      sample: {"docker": docker did not answer in 30 s}
    machine:
      description:
        - Whether this is a GB10 machine (C(is_spark)), the short name of its maker (C(vendor)) and the texts of DMI.
      returned: with V(host)
      type: dict
      sample: {"is_spark": true, "vendor": "lenovo", "sys_vendor": "LENOVO", "product_name": "30KL0004FC"}
    dgx_os:
      description: Contents of C(/etc/dgx-release) without serial number; C(version) is that of the last update.
      returned: with V(host)
      type: dict
      sample: {"name": "DGX Spark", "platform": "GX10", "version": "7.5.0", "image_version": "7.2.3", "ota_version": "7.5.0"}
    os:
      description: Distribution.
      returned: with V(host)
      type: dict
      sample: {"id": "ubuntu", "version_id": "24.04", "codename": "noble", "pretty_name": "Ubuntu 24.04.4 LTS"}
    kernel:
      description: Release of the kernel.
      returned: with V(host)
      type: str
      sample: 6.17.0-1014-nvidia
    architecture:
      description: Architecture as the kernel names it.
      returned: with V(host)
      type: str
      sample: aarch64
    gpu:
      description:
        - The GPU with C(processes) and the container each belongs to. V(null) when C(nvidia-smi) is missing or finds none.
      returned: with V(gpu)
      type: dict
      sample:
        name: NVIDIA GB10
        driver_version: 580.159.03
        cuda_version: "13.0"
        compute_capability: "12.1"
        processes: [{"pid": 624869, "name": "VLLM::EngineCore", "used_mib": 31958, "container": "spark-heavy"}]
    memory:
      description: The unified pool in GiB.
      returned: with V(memory)
      type: dict
      sample: {"total_gib": 121.628, "available_gib": 22.064, "free_gib": 4.302, "cached_gib": 19.501}
    fabric:
      description:
        - C(connectx) is V(false) without a ConnectX-7 on the bus; C(pci_functions) are its PCI addresses; C(ports) has one
          entry per QSFP cage with the two network interfaces of each; C(networks) are the addresses of all other interfaces, C(mtus) their MTUs;
          C(relay) is V(true) where the unit of a relay is installed (role fabric).
        - A netdev has its C(speed_mbps), C(mtu), C(addresses), C(master) (a bond), PCIe link, RoCE device with state and
          GIDs, C(neighbours) that have answered on it, and C(stored), the files that its network is written down in with
          C(persistent), which is V(false) for what NetworkManager keeps in C(/run).
      returned: with V(network)
      type: dict
      sample: {"connectx": false, "pci_functions": [], "ports": [], "networks": {}, "mtus": {}, "relay": false}
    docker:
      description: The Docker engine. V(null) when there is no C(docker); C(version) is V(null) when no engine answers.
      returned: with V(containers)
      type: dict
      sample: {"version": "29.2.1", "reachable": true, "cgroup_version": "2", "runtimes": ["nvidia", "runc"]}
    containers:
      description: All containers, running or not. C(managed) ones were started by this collection.
      returned: with V(containers)
      type: list
      elements: dict
    services:
      description: Names of the services that this collection has put on the host.
      returned: with V(units)
      type: list
      elements: str
    units:
      description:
        - Units whose name is C(spark-*.service), with their states and number of restarts. C(managed) ones belong to RV(spark.services).
        - C(status_text) is what a unit says of itself, as those of ranks do while they wait for another one.
      returned: with V(units)
      type: list
      elements: dict
    listening:
      description: Listening TCP sockets with process, unit and container where they are known.
      returned: with V(ports)
      type: list
      elements: dict
    disks:
      description: C(total_gib), C(free_gib) and C(exists) by path of O(disk_paths).
      returned: with V(disks)
      type: dict
    management_address:
      description: Address that the default route starts from.
      returned: with V(network)
      type: str
      sample: 192.168.1.11
    models:
      description: Models that are whole on the host, ORG/NAME.
      returned: with V(models)
      type: list
      elements: str
      sample: [Qwen/Qwen3-8B]
    snapshots:
      description:
        - The same models, each with the C(commits) that are whole, and C(refs), which commit a branch or tag stands for here.
        - Those of which only the files of a tokenizer are there have the commits as C(selected).
      returned: with V(models)
      type: dict
      sample:
        Qwen/Qwen3-8B:
          commits: [0123456789abcdef0123456789abcdef01234567]
          refs: {main: 0123456789abcdef0123456789abcdef01234567}
    hf_home:
      description:
        - Whether O(hf_home) is there, its owner and mode, and what of it engines cannot read (C(closed)), by model, and by an empty name
          for what holds all models.
      returned: with V(models)
      type: dict
      sample: {"exists": true, "owner": "me", "mode": "0700", "closed": {"": ["/home/me/.cache/huggingface"]}}
    docker_users:
      description: Accounts of the group C(docker), with C(home) and C(shell).
      returned: with V(host)
      type: dict
      sample: {"dgxspark": {"home": /nonexistent, "shell": /usr/sbin/nologin}}
    nft:
      description: Whether the program C(nft) is there, which the role firewall closes ports with.
      returned: with V(host)
      type: bool
      sample: true
    firewall:
      description: Whether the role firewall has been here.
      returned: with V(host)
      type: bool
    power:
      description: What C(spark_power.idle) can switch. Whether the ConnectX-7 has NVIDIA's hot-plug, whether a QSFP cable is plugged in, V(null)
        if unknown, and the governors of the kernel.
      type: dict
      sample: {cx7_hotplug: true, cx7_cable: false, governors: [ondemand, performance, schedutil]}
      sample: false
    hostname:
      description: What the host calls itself.
      returned: with V(host)
      type: str
      sample: spark-1
    resident:
      description: GPU memory that the running containers of services hold, by service.
      returned: with V(residency)
      type: list
      elements: dict
      sample: [{"name": "heavy", "gib": 95.412}]
    guard:
      description:
        - What the guard of the memory is set to and what it did last. V(null) where none is deployed; single values are V(null) where
          they are not known.
      returned: with V(memory)
      type: dict
      sample:
        act: true
        floor_gib: 3.0
        start_floor_gib: 5.0
        free_floor_gib: 3.0
        contiguous_floor_gib: 0.375
        last_gib: 1.0
        level: calm
        available_gib: 22.064
        lowest_gib: 2.731
        at: 1790000000.2
        last: {at: 1789990000.1, what: restart, whom: heavy, why: 4.1 GiB above its plan}
        stopped: {}
        refused: []
        who: ''
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
