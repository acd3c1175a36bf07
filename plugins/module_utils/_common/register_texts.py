# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each finding means, its usual fix, and the page that lists it; scripts/generate_findings_doc.py writes these pages.

What a finding itself says, with names and figures, is worked out where it is made. Nothing of hosts imports this file.
"""

from __future__ import annotations

from dataclasses import dataclass

from .register import REGISTER


@dataclass(frozen=True)
class Entry:
    """One finding of the register, in general terms.

    rule: its id. severities: those that it may have, the worst first. meaning, fix: a line of Markdown each.
    page: the page of docs/ that lists it, with the anchor of the heading, for example C(lock.md#what-the-plan-says).
    """

    rule: str
    severities: tuple[str, ...]
    meaning: str
    fix: str
    page: str


# Meaning and fix by id, below the page that lists them; the page has them in this order.
_BY_PAGE: dict[str, dict[str, tuple[str, str]]] = {
    "troubleshooting.md#the-memory-plan": {
        "memory.free_at_start": (
            "when it starts, less memory is free than total x `gpu-memory-utilization`; vLLM takes the share of the **total**, not of what is free",
            "the value in the fix; or start the larger service first",
        ),
        "memory.free_at_restart": (
            "it can start now, but not restart while the other services hold their memory",
            "the value in the fix",
        ),
        "memory.load": (
            "the weights do not fit into the memory that is left, or not while vLLM quantises them at load time",
            "a quantised checkpoint, another host, or more ranks",
        ),
        "memory.align_block": (
            "with prefix caching, a block of a hybrid model is larger than a batch; vLLM 0.17 to 0.26 refuses to start",
            "the value in the fix",
        ),
        "memory.kernel_block": (
            "MiniMax-M3 in vLLM 0.24 to 0.30: its sparse layers need blocks of 128 tokens, and vLLM picks 16",
            "the value in the fix, `block-size: 128`; or use vLLM 0.31 or newer",
        ),
        "memory.plan": (
            "vLLM refuses to plan the KV cache; the message says why",
            "the value in the fix",
        ),
        "memory.no_cache_memory": (
            "weights and overheads leave nothing for the KV cache, at typical overheads or already at low ones",
            "the value in the fix",
        ),
        "memory.auto_fit": (
            "weights and overheads leave less than one token of KV cache, so no `max-model-len` fits",
            "the value in the fix",
        ),
        "memory.one_request": (
            "the KV cache cannot hold one request of `max-model-len`; vLLM fails only after loading",
            "the value in the fix",
        ),
        "memory.state_blocks": (
            "fewer blocks than `max-num-seqs`; a model with recurrent state needs one for every request (vLLM 0.20 and later)",
            "the value in the fix, or remove `max-num-seqs`",
        ),
        "memory.utilization_sum": (
            "the sum of `gpu-memory-utilization` over all services is above 0.95",
            "lower one; the fix names which",
        ),
        "memory.utilization_bound": (
            "the sum is below 0.95, but above what the host's reserve leaves",
            "lower one, or measure and set `spark_overheads`",
        ),
        "memory.node": (
            "with all services running, less than `spark_safety_margin_gib` stays free",
            "lower a `gpu-memory-utilization` or `max-model-len`, or use an fp8 KV cache",
        ),
        "memory.host_buffer": (
            "a buffer for offloaded blocks of the KV cache takes the memory that the KV cache could have; an error where it does not fit",
            "leave `kv-offloading-size` or the connector out, as the fix says",
        ),
        "memory.concurrency": (
            "fewer full-length requests fit than `max-num-seqs`",
            "nothing if long requests are rare",
        ),
        "memory.solved": (
            "a setting that was left open, and the value that was chosen",
            "nothing; pin it to keep it, see [memory](memory.md)",
        ),
        "memory.page_cache": (
            "the memory is available, but held by the page cache",
            "nothing, the units drop it before a start",
        ),
        "memory.refused": (
            "a layer, KV dtype or quantisation that the plan does not know, or vLLM's own refusal",
            "[ask the image](image_plan.md), or give the sizes that the fix names",
        ),
        "memory.image": (
            "the service was planned by the vLLM of the image, because the arithmetic does not cover it",
            "nothing; see [Ask the image](image_plan.md)",
        ),
        "memory.differs": (
            "the arithmetic and the vLLM of the image plan a service differently",
            "compare what the engine reports at its start; see [Ask the image](image_plan.md)",
        ),
        "memory.stated": (
            "the memory of a service is stated in the inventory; an error where `gpu-memory-utilization` is lower",
            "prove the service, and correct `memory` by the measured figures",
        ),
        "memory.table": (
            "an option or variable leaves the n-gram tables of the model on disk, so they are not counted as memory",
            "use a build that has it; the proof compares the weights with what was loaded",
        ),
        "memory.argument": (
            "an unknown argument, similar to one that affects memory, was ignored",
            "spell it as the fix does, or keep it if a fork of vLLM has it",
        ),
        "memory.version": (
            "the vLLM version is not known, or not one of those compared row by row",
            "set `image.vllm_version`; or use a version that was compared: [memory](memory.md) lists them",
        ),
        "memory.approximate": (
            "layers or options whose KV cache was not compared with vLLM's; the message says which",
            "nothing; compare what the engine reports at its start",
        ),
    },
    "troubleshooting.md#what-an-engine-really-took": {
        "residency.weights": (
            "weights: `Model loading took`, drafter included",
            "set `weights_gib` of the service, or `memory` where that is stated",
        ),
        "residency.inside": (
            "what vLLM requests (total x `gpu-memory-utilization`) minus weights and KV cache: activations, graphs, NCCL",
            "set `overheads: {inside_gib: ...}` of the service",
        ),
        "residency.outside": (
            "memory missing on the host minus what vLLM requested: host memory, CUDA context",
            "set `overheads: {outside_gib: ...}` of the service",
        ),
        "residency.system": (
            "memory in use before the first engine started",
            "set `spark_os_reserve_gib` of the host",
        ),
        "residency.kv_cache_tokens": (
            "the KV cache holds a different number of tokens than planned for its size",
            "check the arguments that the fix names; or another vLLM version runs than planned",
        ),
        "residency.max_concurrency": (
            "the KV cache holds a different number of full-length requests than planned for its size",
            "check the arguments that the fix names; or another vLLM version runs than planned",
        ),
        "residency.residency": (
            "its GPU processes alone hold more than planned, and its start was not recorded",
            "restart it, prove again",
        ),
    },
    "troubleshooting.md#the-host": {
        "host.not_known": (
            "a program on the host (docker, nvidia-smi, systemctl, ip) did not answer in time, or printed something else; its facts count as not measured",
            "find out what keeps it from answering (`uptime`, `journalctl --boot`), then run again",
        ),
        "host.docker": (
            "no Docker engine answers on the host",
            "`systemctl enable --now docker`; DGX OS ships it",
        ),
        "host.nvidia_runtime": (
            "Docker has no runtime `nvidia`; `--gpus` fails",
            "`nvidia-ctk runtime configure --runtime=docker`, then restart Docker",
        ),
        "host.gpu": (
            "`nvidia-smi` finds no GPU",
            "driver and firmware must be of the same DGX OS release; reboot",
        ),
        "host.driver": (
            "the driver is not of the branch that DGX OS ships",
            "install the driver of DGX OS, unless you changed it on purpose",
        ),
        "host.kernel": (
            "the kernel is known to be bad; the message says what was reported",
            "boot another kernel of DGX OS",
        ),
        "host.driver_pair": (
            "driver and firmware, or driver and kernel, are a combination with known failures",
            "change one of them to the version of DGX OS, as the finding says",
        ),
        "host.kernel_handover": (
            "memory is reserved for kexec handover (KHO, on by default in kernels 7.0), and RDMA cannot register it; an error on hosts of a cluster",
            "boot with `kho=off`: `apt install nvidia-spark-grub-kho`, `update-grub`, reboot",
        ),
        "host.fragmented": (
            "more than 32 GiB of memory are free, but fragmented into pieces smaller than 16 MiB: loading is slow or fails, as reported after days of serving",
            "reboot before the next start of an engine",
        ),
        "host.machine": (
            "the host does not look like a DGX Spark (GB10), for which the plan is made",
            "remove it from the group `sparks`",
        ),
        "host.nft": (
            "the program `nft` is missing, which the firewall needs",
            "`apt install nftables`, or `spark_firewall: false` for that host",
        ),
        "host.weights_closed": (
            "engines have no permission to read an existing folder of weights",
            "run the command of the finding",
        ),
        "host.disk": (
            "too little disk space below `spark_hf_home` for the weights to download",
            "free disk space, or move the folder",
        ),
        "host.port_taken": (
            "another program has the port of the service; it is never stopped for you",
            "stop it, or give the service another port",
        ),
        "host.port_used": (
            "the port of a service or add-on service is that of SSH (22), of the DGX Dashboard (11000) or of another server of the plan",
            "give it another port",
        ),
        "host.unit_foreign": (
            "an unmanaged unit has the name of the service's unit; it is never removed for you",
            "remove or rename it, or rename the service",
        ),
        "host.container_foreign": (
            "an unmanaged container has the name of the service's container; it is never removed for you",
            "remove or rename it, or rename the service",
        ),
    },
    "troubleshooting.md#images-and-models": {
        "image.architecture": (
            "the image is not built for this host's architecture",
            "use an image that is",
        ),
        "image.version": (
            "`vllm_version` in the inventory differs from the version in the image",
            "remove it; the version is read from the image",
        ),
        "image.ptxas_old": (
            "the `ptxas` bundled with Triton does not support GB10",
            "set `TRITON_PTXAS_PATH` as the fix says",
        ),
        "image.ptxas_new": (
            "the image compiles kernels for a newer driver than the host has",
            "use an image with the driver's CUDA",
        ),
        "image.alternative": (
            "the host has an image of the recipe's list that is not the first one, and uses it",
            "nothing; or name the first one in `image` to have it pulled",
        ),
        "image.built": (
            "the image is made on the host of a pinned one by the instructions of `dockerfile`, which the finding shows",
            "nothing; or build and push it yourself and name it by digest",
        ),
        "image.too_old": (
            "the image's vLLM is older than the oldest that the recipe is for",
            "leave `image` out, or name one with a newer vLLM",
        ),
        "recipe.not_taken_over": (
            "a recipe by reference patches its container, sets options of docker or needs a secret, which is not done here",
            "build an image with the patches and name it as `image`; grant options and keys in the service",
        ),
        "container.weaker": (
            "your own options give a container more privileges on the host than the default",
            "remove them, or ignore the finding by its id: [inventory.md](inventory.md)",
        ),
        "container.network": (
            "your own options of docker take a server out of the network of its host, or publish its port",
            "remove them: `port`, `host`, `spark_listen` and `spark_allow_from` say where it listens and for whom",
        ),
        "container.read_only": (
            "an option or a variable makes vLLM write below `HF_HOME`, which is read-only in the container",
            "leave it out",
        ),
        "container.mount": (
            "a mount points below `HF_HOME`, which is read-only in the container",
            "name another path in it",
        ),
        "secret.missing": (
            "the file of a key is not on the controller; for `plan.yml` this is no error if `keys.yml` can generate it",
            "`keys.yml` generates keys that only the fleet itself checks; copy the others there",
        ),
        "secret.unusable": (
            "the file of a key is a folder or a FIFO, cannot be read, is empty, or holds no valid key: whitespace, several "
            "lines, control characters, non-ASCII characters, fewer than 8 characters",
            "remove it and run `keys.yml`",
        ),
        "file.missing": (
            "a file of `files` is not on the controller",
            "an absolute path, a path relative to the inventory folder or to the recipe, or `{model}/NAME`",
        ),
        "model.missing": (
            "the folder `model.path` is not on the controller, or contains no `config.json`",
            "correct `model.path`; a relative one is looked up below `spark_model_dir`",
        ),
        "model.moving_revision": (
            "the model, or one below its `extra`, is used at the branch `main`, which can change",
            "pin `model.revision` to a commit, and `revision` of each model below `extra`",
        ),
        "bundle.pip": (
            "with a bundle: packages of `pip` are downloaded at every start",
            "build an image that contains them",
        ),
        "pip.unhashed": (
            "packages of `pip` are not pinned: the index decides at each start",
            "pin versions and checksums as described in the fix: [inventory.md](inventory.md)",
        ),
        "clients.unhashed": (
            "packages of the Hermes agent are not pinned: the index decides at installation",
            "create a requirements file with checksums as described in the fix: [clients.md](clients.md)",
        ),
        "ray.unhashed": (
            "a version of Ray without known checksums is not pinned: the index decides at installation",
            "remove `ray_version`, or use an image that contains that Ray",
        ),
    },
    "lock.md#what-the-plan-says": {
        "lock.unlisted": (
            "a service has no entry in the lock file; images and models that are locked by name are deployed as locked",
            "run `lock.yml --limit` for it once it serves",
        ),
        "lock.image": (
            "the image of a service differs from the locked one",
            "run `lock.yml --limit` for it once it serves",
        ),
        "lock.model": (
            "the model or revision of a service differs from the locked one",
            "run `lock.yml --limit` for it once it serves",
        ),
        "lock.by_tag": (
            "images of add-on services are not in the lock file and are deployed by tag; a warning with a lock file",
            "run `lock.yml` when they are deployed: it records their digests",
        ),
        "lock.moved": (
            "a locked tag or branch now points to something else, on the host, at its registry or at the hub; the locked content is deployed",
            "`lock.yml --limit` takes the newer one",
        ),
        "lock.recipe": (
            "its recipe has changed since it was locked; the new options are deployed, image and weights as locked",
            "run `lock.yml --limit` for it once it serves",
        ),
        "lock.image_other": (
            "the host has another image under a locked name that no registry knows",
            "bring it from a bundle, or lock what is there",
        ),
        "lock.moving": (
            "a mutable tag (`latest`, `nightly`, `stable`, ...) or revision (`main`) without a lock entry, on more than "
            "`spark_moving_hosts` Sparks",
            "deploy one host with `-e spark_allow_moving=true`, run `lock.yml` for it, then deploy the rest",
        ),
    },
    "fabric.md#card-cages-links": {
        "fabric.no_connectx": (
            "no ConnectX-7 on the PCIe bus: no cable, or the other end is off",
            "plug it in at both ends; else reboot with the cable in, then take the power off for a minute",
        ),
        "fabric.no_link": (
            "the card is present, but no cage has a link",
            "cable, other end, `ip link set dev NAME up`",
        ),
        "fabric.interface_down": (
            "one interface of a cage is down: half the speed",
            "bring it up; else reboot with the cable in",
        ),
        "fabric.slow_link": (
            "less than 200 Gb/s, 100 behind a switch that negotiates wrongly",
            "auto-negotiation off, 200G-baseCR4",
        ),
        "fabric.slow_pcie": (
            "less than Gen5 x4 behind an interface: firmware before 2026-04 gave x2",
            "`fwupdmgr update`, power off for a minute",
        ),
        "fabric.rdma_down": (
            "the interface is up and its RoCE device is missing or not active",
            "`modprobe mlx5_ib`, `rdma link`",
        ),
        "fabric.no_gid": (
            "the address is not among the RoCE v2 GIDs of its device",
            "interface down and up; never a stored index",
        ),
    },
    "fabric.md#cabling": {
        "fabric.not_joined": (
            "two hosts of the group have no link to each other",
            "cables; is the host in the right group",
        ),
        "fabric.miscabled": (
            "the cables make no ring; each plug that is in a wrong port is named, and the port that it belongs into",
            "move these plugs",
        ),
        "fabric.line": (
            "a ring without its last cable; engines cannot span it",
            "the cable that is named, or the host that the ends lead on to into the group",
        ),
        "fabric.ring_cabling": (
            "a cable of a ring joins cages of one side",
            "the plugs that the message names",
        ),
        "fabric.ring_order": (
            "the group lists the hosts of a ring in another order than the cables have",
            "list them as the message says",
        ),
        "fabric.own_cable": (
            "a cable joins the two ports of one Spark",
            "move one end",
        ),
        "fabric.others": (
            "a port leads to, or shares a switch with, a host outside of the group, which is left alone",
            "nothing; clusters on one switch need a `fabric_network` each",
        ),
        "fabric.unequal_cages": (
            "the ends are in different cages, so names differ by host",
            "nothing; with Ray see `per_host`",
        ),
        "fabric.second_cable": (
            "two cables join a pair",
            "nothing; one is enough",
        ),
        "fabric.assumed": (
            "links were not probed; cages whose addresses share a subnet, else those that are up, are assumed to be connected",
            "run `spark_info` with `gather: [cabling]` on all hosts at once",
        ),
        "fabric.cabling_unknown": (
            "links were not probed, and addresses do not say what a port leads to; nothing is assumed",
            "run the role, which listens first",
        ),
    },
    "fabric.md#addresses": {
        "fabric.same_subnet": (
            "both interfaces of a host are in one subnet, as in NVIDIA's set-up script, its example for three Sparks and its link-local example",
            "`fabric_migrate: true`",
        ),
        "fabric.link_local": (
            "an interface has only a link-local address",
            "`fabric_migrate: true`",
        ),
        "fabric.bond": (
            "the interfaces are bonded; RDMA does not use bonds",
            "remove the bond by hand",
        ),
        "fabric.subnets_differ": (
            "the ends of a rail are in different subnets",
            "`fabric_migrate: true`",
        ),
        "fabric.duplicate_address": (
            "two ends have one address",
            "`fabric_migrate: true`",
        ),
        "fabric.overlap": (
            "the subnet of a rail overlaps another network of the host",
            "another `fabric_network`",
        ),
        "fabric.other_address": (
            "an address is not what the inventory gives",
            "change one of the two, or `fabric_migrate: true`",
        ),
        "fabric.given_differ": (
            "`fabric_addresses` puts the ends of a rail in different subnets",
            "one subnet",
        ),
        "fabric.no_subnet": (
            "no subnet of `fabric_network` is free",
            "a larger or another `fabric_network`",
        ),
        "fabric.no_address": (
            "no address of a subnet of `fabric_network` is free",
            "a larger or another `fabric_network`",
        ),
        "fabric.mtu_differs": (
            "the ends differ in MTU (a firmware update resets it to 1500): large packets are lost",
            "`fabric_migrate: true`",
        ),
        "fabric.mtu_small": (
            "1500 on both ends",
            "`fabric_migrate: true`, or `fabric_mtu: 1500` where a switch carries no more",
        ),
        "fabric.half": (
            "an interface without an address: half the speed",
            "`fabric_migrate: true`",
        ),
        "fabric.several_addresses": (
            "an interface has several addresses; the one in the subnet of the other ends is used",
            "remove the others",
        ),
        "fabric.no_meeting": (
            "a ring without a network beside it, over which engines find each other",
            "join the hosts by the RJ45 port too, or `fabric_relay: true` from four hosts on",
        ),
        "fabric.no_relay": (
            "`fabric_relay` is set, but a host has a network of somebody else, which is left as it is",
            "routes by hand, or without `fabric_relay`",
        ),
        "fabric.volatile": (
            "an address that is not persistent (`nmcli` on DGX OS writes to `/run`): gone after a reboot",
            "`fabric_migrate: true`; the address stays",
        ),
        "fabric.defined_twice": (
            "another file configures the same interface; netplan adds up addresses",
            "remove it from the other file",
        ),
        "fabric.foreign_file": (
            "a file configures QSFP interfaces, but they have no address",
            "`netplan apply`, or `fabric_migrate: true`",
        ),
        "fabric.shared_file": (
            "the file to replace configures other interfaces too",
            "remove the QSFP interfaces from it by hand",
        ),
    },
    "fabric.md#tests-on-the-cables": {
        "fabric.ping_mtu": (
            "large packets are lost, small ones pass; the message has ping's own words",
            "the same MTU on both ends and the switch",
        ),
        "fabric.ping": (
            "no reply from the other end",
            "address of the other end, firewall, cable",
        ),
        "fabric.slow": (
            "less than `fabric_min_gbps`; about 13 Gb/s at a 200 Gb/s link is a card that came up degraded, healthy rails gave 92 "
            "to 112 by `ib_write_bw`",
            "reboot with the cable in, power off for a minute; on a switch first bridge, RSTP and shaper",
        ),
        "fabric.probe_failed": (
            "the program printed no result",
            "run it by hand; port 18515",
        ),
        "fabric.collective": (
            "torch and NCCL of the engine's image, on all hosts at once, could not add up a number; nothing was started",
            "what it says; `NCCL_DEBUG: INFO` in `env` of the service shows the device of each way",
        ),
        "fabric.cable_slow": (
            "the two ranks at the ends of a cable, or of a switch, add up slower than `all_reduce` of `fabric_min_gbps`; measured on three "
            "hosts and more, with or without `ib_write_bw`",
            "as for `fabric.slow`",
        ),
        "fabric.collective_slow": (
            "they could, and slower than `all_reduce` of `fabric_min_gbps` (bus bandwidth as nccl-tests count it); a ring of four has 80 and "
            "more, a pair 185",
            "the slowest cable, see `fabric.slow`; 12 Gb/s is TCP, not RDMA",
        ),
        "fabric.collective_unknown": (
            "the test gave no answer, or the image has no torch; the engine is started",
            "read what the engine says when it starts",
        ),
        "fabric.no_probe": (
            "no measuring tool is installed on all hosts",
            "install `perftest` or `iperf3` on all",
        ),
    },
    "pair.md#what-the-plan-does": {
        "cluster.executor": (
            "which executor was chosen and why, and what was worked out for all ranks",
            "nothing",
        ),
        "cluster.image": (
            "the hosts have different images by one name; neither digest nor id agree",
            "remove the old one, or name the image by its digest",
        ),
        "cluster.hosts_differ": (
            "the hosts of the cluster run different kernels or drivers",
            "bring all to one DGX OS release (`update_host.yml`)",
        ),
        "cluster.address": (
            "two clusters behind one switch would use the same address on the fabric",
            "`fabric: {network: ...}` for one of them",
        ),
        "cluster.interface": (
            "`env` names an interface or RoCE device that the host does not have",
            "remove it; it is set for each host",
        ),
        "cluster.unreached": (
            "in a ring of four or more, ranks send to hosts that no cable joins them with: pipeline stages of several ranks, or "
            "tensor-parallel groups of a part of the ring",
            "`tensor-parallel-size` over the whole ring, or a switch",
        ),
        "cluster.unreported": (
            "the split over a ring of four or more can run, and nobody is known to have run it: more than four hosts, pipeline stages, "
            "replicas, experts or a decode context over the ranks",
            "nothing",
        ),
    },
    "security.md#findings": {
        "service.open": (
            "an engine listens beyond loopback without an API key",
            "`api_key_file`, or remove `host` and `spark_listen`; `ignore: [service.open]` if intended",
        ),
        "service.paths": (
            "the paths that the engine serves without its key; a warning without the firewall",
            "admit few hosts; let clients use the gateway",
        ),
        "service.local": (
            "an engine with a key listens on loopback, because no other host needs it; a warning if `spark_allow_from` names hosts and the engine "
            "has no key",
            "`spark_allow_from`; an `api_key_file`",
        ),
        "firewall.address": (
            "the address of a host to admit is not known; only information if it can still be resolved before anything is changed",
            "`ansible_host` or `spark_management_address` as an IP address",
        ),
        "firewall.everybody": (
            "`spark_allow_from` allows every address",
            "name hosts or networks",
        ),
        "firewall.off": (
            "`spark_firewall: false`, and a service listens beyond loopback",
            "remove `spark_firewall: false`",
        ),
        "firewall.ray": (
            "executor `ray` with `spark_firewall: false`: Ray runs code for anyone who can reach it",
            "remove `spark_firewall: false`, or use `executor: mp`",
        ),
        "firewall.shuts_out": (
            "the firewall blocks another program of the host, whose port is in the ranges of Ray and torch",
            "open the port with `spark_firewall_allowed`",
        ),
        "monitoring.open": (
            "Prometheus and Alertmanager listen beyond loopback without a firewall",
            "`listen: 127.0.0.1`, with access through SSH",
        ),
        "speech.open": (
            "a speech server without a key can be reached from hosts other than the gateway's",
            "set a key, or enable the firewall",
        ),
        "ollama.open": (
            "Ollama, which has no keys, can be reached from hosts other than the gateway's",
            "enable the firewall",
        ),
    },
    "fast_path.md#what-it-says": {
        "fast_path.attention_backend": (
            "attention runs on another backend than requested",
            "check that the option is in the running command (`docker inspect`); run site.yml if it is not. vLLM overrides some on purpose, such as "
            "Gemma 4's attention from 0.19 to 0.23: then remove the option",
        ),
        "fast_path.moe_backend": (
            "the experts (MoE) run on other kernels than requested by an option or stated by the recipe",
            "check that the option is in the running command; run site.yml if it is not. If the recipe states the kernels, either the image is not the "
            "recipe's, or the recipe is wrong for it",
        ),
        "fast_path.linear_kernel": (
            "the linear layers run on other kernels than requested by an option, stated by the recipe, or chosen by vLLM for a GB10",
            "FlashInfer is missing or unusable in the image: from 0.26.0 on it needs `flashinfer-cubin` or `nvcc`. Use an image that includes it, or set the "
            "kernels explicitly",
        ),
        "fast_path.cuda_graphs": (
            "CUDA graphs are off although no option disables them, which slows down every token",
            "find `cudagraph_mode=NONE` and its reason in the start-up log; remove `attention-backend`, or set a "
            "`cudagraph_mode` in `compilation-config` that the backend supports",
        ),
        "fast_path.draft": (
            "speculative decoding is off although `speculative-config` is set; or the MTP drafter runs as an ordinary draft model, because this vLLM "
            "does not support it",
            "run site.yml: the running command is outdated; for Gemma 4 use vLLM 0.21.0 or newer",
        ),
        "fast_path.acceptance": (
            "fewer drafted tokens are accepted than the recipe says (an error where it requires them), or so few that drafting costs more than it gains",
            "the drafter must match the model; lower `num_speculative_tokens`; text that is hard to predict has a lower rate. Otherwise remove "
            "`speculative-config`. For `ngram` and `suffix` this is only information: they help only where the output repeats the input",
        ),
        "fast_path.prefix_caching": (
            "prefix caching is not as requested",
            "see the start-up log for why vLLM changed it",
        ),
        "fast_path.async_scheduling": (
            "async scheduling is not as requested",
            "vLLM's log line in brackets names the conflicting option",
        ),
        "fast_path.max_num_batched_tokens": (
            "the batch is smaller than requested",
            "run site.yml: the unit runs from outdated files. A larger batch is set by vLLM itself and fine",
        ),
        "fast_path.kv_cache_dtype": (
            "the KV cache has another dtype than requested",
            "run site.yml: the unit runs from outdated files. The planned token count does not apply",
        ),
        "fast_path.emulation": (
            "emulated kernels are in use: correct, but far slower than native ones",
            "use an image with kernels for sm_121 (CUDA 13)",
        ),
        "fast_path.fp4_weight_only": (
            "FP4 weights are dequantised and computed in 16 bits (weight-only: Marlin, Humming or a W4A16 kernel): prefill is slower than with FP4 kernels",
            "nothing, if Marlin is intended: set `moe-backend` or `linear-backend` to `marlin`. Otherwise vLLM 0.20.0 or newer with CUDA 13",
        ),
        "fast_path.gdn_prefill": (
            "the prefill kernel of Gated DeltaNet layers failed when vLLM tested it at start-up; the first request may crash the engine",
            "FlashInfer may be missing or unusable in the image; set `gdn-prefill-backend: triton`, or use an image that has it",
        ),
        "fast_path.untuned_moe": (
            "vLLM has no tuned configuration of the Triton experts for GB10 and uses its default",
            "nothing; it works. `benchmark_moe.py --tune` creates one, `VLLM_TUNED_CONFIG_FOLDER` names its folder",
        ),
        "fast_path.untuned_fp8": (
            "vLLM has no tuned configuration of the Triton kernels for FP8 blocks for GB10 and uses its default",
            "nothing; it works. `benchmark_w8a8_block_fp8.py` of vLLM creates one",
        ),
    },
    "benchmarks.md#findings": {
        "bench.disturbed": (
            "other requests ran during the measurement; the figures are not compared",
            "measure again when the service is idle",
        ),
        "bench.failed": (
            "not all concurrent requests were answered",
            "see the unit's log",
        ),
        "bench.decode": (
            "the decode rate is below its baseline by more than `regression_percent`; only information while the repeats of both overlap",
            "temperature and power of the GPU, swap in use, what else runs on the host; or more repeats",
        ),
        "bench.prefill": (
            "the prefill rate is below its baseline by more than `regression_percent`; only information while the repeats of both overlap",
            "temperature and power of the GPU, swap in use, what else runs on the host; or more repeats",
        ),
        "bench.concurrency": (
            "the throughput of concurrent requests is below its baseline by more than `regression_percent`",
            "temperature and power of the GPU, swap in use, what else runs on the host; or more repeats",
        ),
        "bench.conditions": (
            "driver, power limit or clock differ from those of the baseline, so the figures are not comparable; a warning where they are lower",
            "restore the conditions of the host, or set a new baseline with `spark_bench: {rebaseline: true}`",
        ),
        "bench.other": (
            "the deployment or workload differs from that of the last baseline",
            "nothing, if intended: this measurement is the new baseline",
        ),
        "bench.published": (
            "below 70 % of every published single-stream figure",
            "check clock and power of the GPU first: one limited by its power supply shows a few watts at full clock; then the image",
        ),
        "bench.short": (
            "answers ended before the requested length, which the server does not enforce",
            "compare only with figures of equally short answers",
        ),
        "bench.cached": (
            "more than a tenth of a prompt came from the prefix cache, so the prefill rate is too high",
            "nothing for short prompts, which consist mostly of the chat template; otherwise look for a proxy that rewrites prompts",
        ),
        "bench.queued": (
            "more clients than `max-num-seqs` asked at once, so some requests waited",
            "compare up to that many, or raise `max-num-seqs` if the KV cache holds more",
        ),
        "bench.coarse": (
            "answers came in chunks of many tokens, so rates are imprecise",
            "a reasoning parser may buffer text; measure with `thinking: false`, or with longer answers",
        ),
        "bench.noisy": (
            "the figures of the repeats vary",
            "check what else runs on the host; with a drafter they depend on the text, and more repeats help",
        ),
    },
    "troubleshooting.md#against-the-last-proof": {
        "receipt.decode_tokens_per_second": (
            "fewer tokens per second than at the first proof of this deployment, or than before it was changed",
            "check clock and power of the GPU, swap in use, and what else runs on the host",
        ),
        "receipt.ttft_seconds": (
            "the time to first token is longer than at the first proof",
            "check what else runs on the host, and whether prefix caching is still on",
        ),
        "receipt.warmup_seconds": (
            "the first answer after a start takes longer than at the first proof",
            "check whether the compile cache is kept between starts",
        ),
        "receipt.start_seconds": (
            "the start takes longer than at the first proof",
            "check the disk that holds the weights, and whether compile caches are kept between starts",
        ),
        "receipt.residency_gib": (
            "the engine holds more memory than at the first proof",
            "see [which term grew](troubleshooting.md#what-an-engine-really-took), and plan again with the measured value",
        ),
        "receipt.kv_cache_tokens": (
            "the KV cache holds fewer tokens than at the first proof",
            "check what else uses memory on the host since the first start",
        ),
        "receipt.drift": (
            "the deployment differs from the last receipt; the message names the differences",
            "nothing, if the change was intended; else compare the inventory with the receipt",
        ),
    },
    "on_demand.md#several-that-do-not-fit-together": {
        "on_demand.sets": (
            "services of a set fit beside each other, but not beside what another set may run at the same time",
            "put both sets into one, or lower `gpu-memory-utilization`",
        ),
    },
    "on_demand.md#what-a-start-takes": {
        "start.took": (
            "what each stage of the last start took",
            "nothing; of a first start, look again after the second one",
        ),
        "start.waited": (
            "the last start waited for its turn or for memory before the engine was started",
            "`journalctl -u spark-NAME -g spark-unit` says for what",
        ),
        "start.load_slower": (
            "the weights took three times as long to load as at another start of the same launch, or longer",
            "check `/proc/buddyinfo`, and reboot where it has no large blocks; else check the disk",
        ),
        "start.load_format": (
            "much of the start is the loading of the weights, in vLLM's usual way",
            "try the `load-format` that the message names, and compare",
        ),
        "start.compiled_again": (
            "the launch compiled anew although it had compiled before",
            "check that the folder of the service below `spark_cache_dir` is kept and has room",
        ),
        "start.graphs": (
            "a service on demand compiles and captures CUDA graphs while its requests wait",
            "`enforce-eager: true` where it is asked rarely",
        ),
    },
    "doctor.md#findings-of-its-own": {
        "doctor.unreachable": (
            "Ansible cannot connect to the host; its part of the report is based on the inventory",
            "check SSH; power-cycle a frozen host",
        ),
        "doctor.not_asked": (
            "a check could not be made, and why",
            "correct that and run `doctor.yml` again",
        ),
        "doctor.unit_absent": (
            "the unit of a planned service is missing",
            "run `site.yml`",
        ),
        "doctor.unit_failed": (
            "the unit of a planned service has failed",
            "see why in its journal; then `systemctl reset-failed` and `systemctl start`, or `site.yml`",
        ),
        "doctor.unit_stopped": (
            "the unit of a planned service is stopped, but should run",
            "`systemctl start`, or `site.yml`",
        ),
        "doctor.unit_restarts": (
            "the unit was restarted automatically",
            "see why in its journal",
        ),
        "doctor.unit_disabled": (
            "the unit is not enabled at boot",
            "`systemctl enable`, or `site.yml`",
        ),
        "doctor.guard_off": (
            "the guard of the memory is deployed, but does not run",
            "`systemctl start spark-guard`, or `site.yml`",
        ),
        "doctor.guard_short": (
            "the guard finds memory short or critical, and says who holds it",
            "end what took the memory, or stop a service",
        ),
        "doctor.guard_acted": (
            "the guard restarted a service within a day, or said who else took the memory",
            "`journalctl -u spark-guard -p warning`; plan with a larger `spark_safety_margin_gib` where it was an engine",
        ),
        "doctor.service_left": (
            "a deployed service is not in the inventory any more",
            "run `site.yml`, which removes it",
        ),
        "doctor.no_answer": (
            "the unit is active, but the server does not answer",
            "check its journal; restart a wedged engine with `systemctl restart`",
        ),
        "doctor.answer_repeats": (
            "degenerate output: the answer repeats one character or phrase to its end, as faulty kernels, KV caches and drafters cause it",
            "try one at a time: `moe-backend: marlin` for FP4 experts, `kv-cache-dtype: auto`, no `speculative-config`",
        ),
        "doctor.drafts_under_load": (
            "eight or more concurrent requests run with speculative decoding",
            "`bench.yml` with and without `speculative-config` at this concurrency",
        ),
        "doctor.gpu_shared": (
            "several engines are busy at the same time",
            "measure the cost with `bench.yml`, with and without the other engine",
        ),
        "doctor.gpu_memory_refused": (
            "kernel log since boot: the driver could not allocate memory",
            "lower `gpu-memory-utilization` of the largest service, or spread the services; reboot if the GPU does not answer",
        ),
        "doctor.gpu_fault": (
            "kernel log: the GPU reported a fault (Xid)",
            "look up the number in NVIDIA's list; restart the service, and reboot if it happens again",
        ),
        "doctor.driver_mismatch": (
            "kernel log: kernel module and libraries of the driver have different versions",
            "reboot: the driver was updated while it was in use",
        ),
        "doctor.module_key": (
            "log since boot: Secure Boot refused a kernel module whose key is not enrolled (`Key was rejected by service`), so no GPU is found",
            "install the signed modules of DGX OS, or enroll the key of modules built on the host (`mokutil --import`), or switch Secure Boot off",
        ),
        "doctor.driver_mixed": (
            "packages of another driver branch than the loaded one are installed: after a boot, kernel module and libraries differ",
            "remove them, or install the whole driver of one branch, before the next reboot",
        ),
        "doctor.initrd": (
            "a kernel in `/boot` has no `initrd.img`: a boot into it does not find the root file system",
            "`update-initramfs -c -k KERNEL; update-grub`, with room in `/boot`",
        ),
        "doctor.docker_proxy": (
            "the account that runs the units has `proxies` in `~/.docker/config.json`, and `docker run` sets them in every container",
            "remove them there; pulls use the proxies of the Docker daemon, and a service that needs a proxy has it in `env`",
        ),
        "doctor.pcie_fault": (
            "kernel log: the bus of the ConnectX-7 had a fatal error",
            "reboot; if it happens again, update the firmware and power off for a minute",
        ),
        "doctor.oom_killed": (
            "kernel log: the OOM killer killed a process",
            "plan with a larger `spark_reserve_gib`, or remove a service from the host",
        ),
        "doctor.disk_fault": (
            "kernel log: a disk reported errors",
            "check it (`nvme smart-log`), and back up data that is only there",
        ),
        "doctor.heat": (
            "kernel log: the host overheated",
            "improve its cooling, or limit its clock with [`spark_gpu_clocks`](guard.md#clocks-of-the-gpu)",
        ),
        "doctor.engine_log": (
            "last lines of an engine, or of its unit if no container runs: they have a failure whose cause is known; an error if the engine "
            "does not serve",
            "what the finding says; [known_failures.md](known_failures.md) lists all causes",
        ),
        "doctor.memory_low": (
            "less than 2 GiB of memory are available, or less than 4 (a warning)",
            "lower `gpu-memory-utilization` of a service, or raise `spark_reserve_gib` and plan again",
        ),
        "doctor.swap": (
            "more than 1 GiB of swap is in use",
            "free memory first, then `swapoff -a && swapon -a`; `vm.swappiness` 10 or less",
        ),
        "doctor.page_cache": (
            "the page cache holds more than 8 GiB while a service is not up",
            "the gate of the unit drops it at its next start",
        ),
        "doctor.shm_left": (
            "more than 1 GiB of files in the host's `/dev/shm`",
            "remove files that no process has open (`fuser`)",
        ),
        "doctor.gpu_process": (
            "a process outside of containers holds 1 GiB of GPU memory or more",
            "end it if it is a leftover, or reserve memory for it with `spark_reserve_gib`",
        ),
        "doctor.disk": (
            "less than 1 GiB is free where models, caches, logs or images are, or less than 10 (a warning)",
            "remove unused images and old weights; `journalctl --vacuum-size=500M` for logs",
        ),
        "doctor.fan": (
            "55 degrees or more while the GPU is idle, on a host whose ConnectX-7 is off the bus because no cable is plugged in: its fan may have stopped",
            "check whether the fan turns; plug in a QSFP cable or a display",
        ),
        "doctor.gpu_silent": (
            "`nvidia-smi` finds no GPU, and says why",
            "reboot after an update of the driver; otherwise the firmware of the same DGX OS release may be missing",
        ),
        "doctor.power_stuck": (
            "the GPU is busy at a fraction of its clock and power",
            "unplug the power supply for a minute",
        ),
        "doctor.went_off": (
            "the host went off or froze within the last 14 days, without a shutdown",
            "where nobody pulled the plug: [limit its clock](guard.md#clocks-of-the-gpu), improve its cooling, check what [the guard](guard.md) logged",
        ),
        "doctor.reboot": (
            "an update waits for a reboot",
            "reboot when its services may be down",
        ),
        "doctor.docker_disabled": (
            "Docker does not start at boot",
            "`systemctl enable docker`",
        ),
        "doctor.earlyoom": (
            "earlyoom runs on a host of a cluster",
            "`systemctl disable --now earlyoom`",
        ),
        "doctor.clock": (
            "the clock is more than 30 s off the controller's",
            "`timedatectl set-ntp true`",
        ),
        "doctor.clock_free": (
            "no service synchronises the clock",
            "`timedatectl set-ntp true`, and allow outgoing port 123/udp",
        ),
        "doctor.no_receipt": (
            "a running service was never proved",
            "run `site.yml --tags prove`",
        ),
        "doctor.receipt_broken": (
            "the receipt of a service cannot be read",
            "remove it, then `site.yml --tags prove`",
        ),
        "doctor.receipt_image": (
            "the receipt of a service is of another image",
            "run `site.yml`, which deploys and proves it",
        ),
        "doctor.receipt_old": (
            "the last proof is more than 90 days old",
            "run `site.yml --tags prove`",
        ),
        "doctor.image_moved": (
            "the tag points to another image on the host than the running one",
            "nothing: the next `site.yml` deploys it; name the image by digest to prevent that",
        ),
        "doctor.registry_login": (
            "an image of nvcr.io has to be pulled, and Docker has no login there",
            "`docker login nvcr.io` on the host as root",
        ),
        "doctor.images_unused": (
            "images that no container uses take more than 20 GiB",
            "`docker image rm`, except those that a rollback needs",
        ),
        "doctor.cache_stale": (
            "a service does not start, and its compile cache is older than its unit",
            "stop it, empty that folder, start it; this start compiles for minutes",
        ),
        "doctor.hub_token": (
            "the file `spark_hf_token_file` is missing, empty, or holds no token; an error while a model still has to be downloaded",
            "put a token that can read the models into the file, or remove the variable",
        ),
    },
    "drift.md#what-is-compared": {
        "drift.unreachable": (
            "the host did not answer, and why; the others are compared nevertheless",
            "check SSH",
        ),
        "drift.not_asked": (
            "some facts of the host could not be read, and why",
            "correct that and run `drift.yml` again",
        ),
        "drift.stopped": (
            "a service that should run does not, or a unit of an add-on service that ran when it was recorded",
            "`start.yml`, or `site.yml` where its unit is missing; `state: stopped` if intended",
        ),
        "drift.running": (
            "a service with `state: stopped`, or a second one of an exclusive set, runs",
            "`stop.yml`, or `site.yml`",
        ),
        "drift.by_hand": (
            "a container of a service was not started by its unit",
            "`docker rm --force`, then `systemctl start` its unit, or `site.yml`",
        ),
        "drift.image": (
            "a container runs another image than was deployed",
            "`site.yml` where its unit was changed, too; else `systemctl restart`",
        ),
        "drift.model_gone": (
            "a planned revision or vocabulary is not on the host",
            "`site.yml --tags models`",
        ),
        "drift.model_files": (
            "a planned revision lacks files, or the checksum of a vocabulary is another; with a lock file sizes are compared, too",
            "`site.yml --tags models` fetches these again; `-e spark_verify=all` reads every byte",
        ),
        "drift.restoring": (
            "a rollback was interrupted",
            "`rollback.yml` again, which finishes it",
        ),
        "drift.file_changed": (
            "a managed unit, drop-in, environment, key, setting or program was changed",
            "`site.yml` writes it anew and restarts what reads it",
        ),
        "drift.file_missing": (
            "a managed file is missing",
            "`site.yml` writes it again",
        ),
        "drift.file_added": (
            "an unmanaged drop-in or other file",
            "remove it, since `site.yml` leaves it as it is",
        ),
        "drift.file_attributes": (
            "owner or mode of a managed file was changed",
            "`site.yml` sets them",
        ),
        "drift.relay": (
            "the host still passes on what is for other hosts of a ring, as `relay` once asked for",
            "`site.yml --tags fabric`",
        ),
        "drift.boot": (
            "a unit is not enabled at boot, or is enabled although the service is stopped",
            "`site.yml`; `systemctl unmask` before it where the unit is masked",
        ),
        "drift.not_deployed": (
            "a planned service was never deployed",
            "`site.yml`",
        ),
        "drift.unplanned": (
            "a deployed service is not planned any more",
            "`site.yml`, which removes it",
        ),
        "drift.image_planned": (
            "the host runs what was deployed, but plan or lock file now name another image, also for add-on services",
            "`site.yml`",
        ),
        "drift.image_moved": (
            "the host runs what was deployed, but the tag now points to another image on it",
            "`site.yml`, which restarts it with that one; a lock file (`lock.yml`) keeps what runs",
        ),
        "drift.launch": (
            "the planned launch of an engine differs from the running one; the message names options and variables",
            "`site.yml`, which restarts it",
        ),
        "drift.model_moved": (
            "a branch now points to another commit on the host",
            "`site.yml` to prove that, or `rollback.yml`; a lock file (`lock.yml`) keeps one",
        ),
        "drift.kernel": (
            "the kernel has changed since the last proof",
            "`site.yml`, which proves the host with it",
        ),
        "drift.driver": (
            "the driver has changed since the last proof",
            "`site.yml`, which proves the host with it",
        ),
        "drift.dgx_os": (
            "DGX OS has changed since the last proof",
            "`site.yml`, which proves the host with it",
        ),
        "drift.plan": (
            "none of the above, but `site.yml` would change something: a template of this collection, a key, a setting",
            "`site.yml`; with `--check --diff` it says what would change",
        ),
        "drift.taken_back": (
            "the host was rolled back",
            "`site.yml` once the cause is fixed",
        ),
        "drift.unrecorded": (
            "the host has no generation, so changes by hand cannot be detected",
            "`site.yml`, which records one",
        ),
    },
    "fleet.md#placement": {
        "placement.no_replica": (
            "no other host serves the same model or name, so it is unavailable while its host is down. The ranks of one service count as one",
            "nothing, if that is accepted; else deploy it on a second host, with both behind one alias of [the gateway](gateway.md)",
        ),
        "placement.over_committed": (
            "the host is over capacity; the message names the smallest service to move, and a host with room for it, if there is one",
            "lower `gpu-memory-utilization` of its services, or remove one",
        ),
    },
    "update_host.md#what-is-refused": {
        "update.kernel": (
            "kernels 6.17.0-1008 and -1021: panics; a ConnectX-7 that drops off the bus. -1029 by one report alone: a warning, none beside "
            "driver 580.173.02",
            '`spark_update_hold: ["linux-*"]` until a newer one is released',
        ),
        "update.kernel_option": (
            "a kernel 7.0 without `nvidia-spark-grub-kho`, which boots it with `kho=off`: RDMA cannot register memory",
            'install that package, or `spark_update_hold: ["linux-*"]`',
        ),
        "update.driver_branch": (
            "drivers of another branch than 580: memory is not released when an engine ends; hosts hang",
            "hold it back, and check which archive it comes from (`apt-cache policy`)",
        ),
        "update.driver_closed": (
            "a driver with the proprietary kernel modules instead of the open ones: a GB10 needs those of `-open`; with the "
            "others it does not start",
            "install the `-open` package of the same version; hold this one back",
        ),
        "update.driver_firmware": (
            "a driver while firmware is pending and `spark_update_firmware` is false; 580.173 or later on the firmware of DGX OS "
            "7.5.0, with no newer one offered: no GPU until the firmware follows",
            '`spark_update_firmware: true`; or the DGX Dashboard, which updates both; or `spark_update_hold: ["nvidia-*", "libnvidia-*"]`',
        ),
        "update.driver_mixed": (
            "packages of another driver branch than the loaded one, without that branch's driver: libraries and kernel module differ after a "
            "boot. A warning if they are installed already",
            'hold them back: `spark_update_hold: ["*nvidia-*-595*"]`, or remove them',
        ),
        "update.initrd": (
            "a kernel in `/boot` without `initrd.img`: a boot into it does not find the root file system. Checked again after the packages "
            "are updated, before the reboot",
            "`update-initramfs -c -k KERNEL; update-grub`, with room in `/boot`",
        ),
        "update.driver_pair": (
            "driver 595.84 with kernel 6.17.0-1032, whichever of the two is updated: the hosts of one owner froze. A warning, since they "
            "also froze with 580.173.02",
            "hold one of them back",
        ),
        "update.driver_unknown": (
            "the running driver is not known, because nvidia-smi fails and the kernel does not report it; pending updates are checked "
            "against the installed one",
            "check `nvidia-smi` and `journalctl --dmesg` on the host; reboot after a driver update",
        ),
        "update.firmware_unknown": (
            "a driver update while fwupd does not answer, so pending firmware is not known: the same may happen",
            "install fwupd, or check in the DGX Dashboard that the firmware is up to date",
        ),
        "update.package": (
            "nvidia-container-toolkit 1.19.1: containers freeze",
            "hold it back",
        ),
        "update.removes": (
            "an update that would remove Docker, the driver, DGX OS's own packages, OpenSSH or netplan",
            "an archive is missing, or a package comes from another one: see `apt-get --simulate dist-upgrade`",
        ),
    },
    "gateway.md#findings-of-the-plan": {
        "gateway.backend_on_loopback": (
            "the backend listens on 127.0.0.1 of another host; a warning with `serve: all`, which leaves it out",
            "give it an `api_key_file`, or run the gateway there",
        ),
        "gateway.unknown_endpoint": (
            "an alias or `serve` names an unknown endpoint; the message suggests the nearest one",
            "name an endpoint of the fleet",
        ),
        "gateway.unknown_model": (
            "the endpoint does not serve that model",
            "name one that it serves",
        ),
        "gateway.several_models": (
            "Ollama has several models and the alias names none",
            "name one in the alias",
        ),
        "gateway.unknown_alias": (
            "a client or a fallback names an alias that the gateway does not serve",
            "correct the name",
        ),
        "gateway.alias_shadows": (
            "the alias has the served model name of another backend",
            "rename it, or add that backend",
        ),
        "gateway.fallback_loop": (
            "aliases fall back on each other",
            "remove one of the fallbacks",
        ),
        "gateway.lengths_differ": (
            "the backends of one alias differ in `max-model-len`",
            "set the same `max-model-len`",
        ),
        "gateway.timeout_short": (
            "a timeout that is set is shorter than the first token of a prompt of full length may take",
            "remove `timeout` and `stream_timeout`, or lower `max-model-len`",
        ),
        "gateway.prefill_assumed": (
            "timeouts follow from an assumed prefill rate, and a stream may be silent for more than 600 s",
            "measure it with `bench.yml` at long prompts, and set `prefill_rates`",
        ),
        "gateway.no_master_key": (
            "the gateway listens beyond loopback, or has clients, without a master key",
            "set `master_key_file`",
        ),
        "gateway.same_key": (
            "two clients have the same key file",
            "use a file for each",
        ),
        "gateway.port_taken": (
            "a service of the same host has the port",
            "set another `port`",
        ),
        "gateway.nothing_to_serve": (
            "the gateway has nothing to serve",
            "add aliases",
        ),
    },
    "clients.md#findings-of-the-plan": {
        "clients.gateway": (
            "there is no gateway, there are several and none is named, or the named host has none",
            "set `gateway` to a host that has one",
        ),
        "clients.gateway_loopback": (
            "the gateway listens on loopback of another host",
            "set `spark_gateway.listen` to its address with a key, or run the client there",
        ),
        "clients.gateway_key": (
            "the gateway asks for a key, and the client has none",
            "add the client to `spark_gateway.clients`, or set `key_file`",
        ),
        "clients.model": (
            "the agent's model is not an alias that its key may use, or none is named",
            "set `model` to an alias",
        ),
        "clients.context": (
            "the context of the agent's model is shorter than 64000 tokens",
            "raise `max-model-len` of the engine, or name another alias",
        ),
        "clients.tools": (
            "a client sends tools, and an engine behind its gateway runs without the options to call them: every request is answered with HTTP 400",
            "set `enable-auto-tool-choice: true` and the `tool-call-parser` of the model; for Open WebUI also `tools: false`",
        ),
        "clients.port": (
            "another server of the host has the port",
            "set another `port`",
        ),
        "clients.agent_exposed": (
            "the agent's API server can be reached from other hosts",
            "`listen: 127.0.0.1`",
        ),
        "clients.open_door": (
            "Open WebUI needs no account and can be reached from other hosts",
            "remove `auth: false`, or set `listen: 127.0.0.1`",
        ),
        "clients.first_account": (
            "Open WebUI can be reached from other hosts and has no administrator: the first visitor becomes one",
            "set `admin`, or `listen: 127.0.0.1`",
        ),
        "clients.speech_loopback": (
            "a speech server listens on loopback of another host, and is left out",
            "serve it through the gateway, set its `listen`, or set `speech: false`",
        ),
        "clients.persistent_config": (
            "Open WebUI reads its settings from its database, not from the inventory",
            "remove `persistent_config`, or change connections in the admin panel as well",
        ),
    },
    "speech.md#findings-of-the-plan": {
        "speech.port": (
            "another service of the host has the port",
            "another `port`",
        ),
        "speech.port_taken": (
            "another program has the port",
            "stop it, or set another `port`",
        ),
        "speech.name": (
            "another service of the host has the name; both would use one unit",
            "rename one of them",
        ),
        "speech.unreachable": (
            "it listens on loopback, and the gateway is on another host",
            "leave `listen` out, or set it to the host's management address",
        ),
        "speech.moving_tag": (
            "the image has no version, so two hosts may run different servers",
            "name a version, or a digest",
        ),
        "speech.gpu": (
            "it runs on the GPU beside engines, without a limit for its memory",
            "remove `device` if the CPU build is fast enough",
        ),
        "speech.download": (
            "its first start downloads a model from the internet before it answers",
            "on a host without internet, copy the model into its folder",
        ),
        "ollama.port": (
            "another service of the host has the port of Ollama",
            "another `port`",
        ),
        "ollama.port_taken": (
            "another program has the port of Ollama",
            "stop it; for a system service of Ollama: `systemctl disable --now ollama`",
        ),
        "ollama.name": (
            "a service of the host has the name of Ollama's unit",
            "rename the service",
        ),
        "ollama.unreachable": (
            "it listens on loopback, and the gateway is on another host",
            "leave `listen` out, or set it to the host's management address",
        ),
        "ollama.moving_tag": (
            "the image of Ollama has no version",
            "name a version, or a digest",
        ),
        "ollama.memory": (
            "its models may need more memory than is reserved",
            "raise `memory_gib`, lower `max_loaded_models`, or use smaller models",
        ),
        "ollama.keep_alive": (
            "it never unloads a model",
            "set `keep_alive: 5m`",
        ),
        "ollama.download": (
            "models are pulled over the internet",
            "on a host without internet, copy the folder from one that has them",
        ),
    },
    "monitoring.md#findings-of-the-plan": {
        "exporters.no_checksum": (
            "the checksum of that version of nvidia_gpu_exporter is not known",
            "set `spark_exporters.gpu_sha256`, or `gpu_exporter: false`",
        ),
        "exporters.no_node_exporter": (
            "`node_exporter: none`, so the metrics of the collector are not exported",
            "use `managed`, or `existing` with the `textfile_dir` of the host's own node_exporter",
        ),
        "exporters.unreachable": (
            "the exporters listen on loopback, and Prometheus is on another host",
            "remove `spark_exporters.listen`, or set it to the management address",
        ),
        "monitoring.unreachable": (
            "an engine listens on loopback, and Prometheus is on another host: alerts on its metrics never fire",
            "set an `api_key_file` for the service, or run `spark_monitoring` on the same host",
        ),
        "monitoring.gateway_unreachable": (
            "the gateway listens on loopback, and Prometheus is on another host",
            "let it listen on the management address, or run both on one host",
        ),
        "monitoring.nothing": (
            "no exporters and no service that can be reached: there is nothing to monitor",
            "set `spark_exporters: {}` in the variables of the Sparks",
        ),
        "monitoring.no_exporters": (
            "hosts without exporters: their memory, power and rails are not monitored",
            "set `spark_exporters: {}` for all Sparks",
        ),
        "monitoring.two_paths": (
            "a job of `targets` has two paths",
            "give the second path its own job",
        ),
        "monitoring.nobody_told": (
            "alerts are shown, but not sent to anyone",
            "set a receiver: webhook, ntfy, telegram or email",
        ),
        "monitoring.receivers_unused": (
            "receivers are set, but `alertmanager: false`",
            "set `alertmanager: true`, or remove the receivers",
        ),
    },
    "guard.md#findings-of-the-plan": {
        "guard.floor": (
            "`floor_gib` is more than the plan leaves free, so memory would be short all the time",
            "remove it, or raise `spark_safety_margin_gib`",
        ),
        "guard.unknown_service": ("`order` names an unknown service", "remove or correct it"),
    },
    "watchdog.md#findings-of-the-plan": {
        "watchdog.unknown_service": (
            "`leave_out` or `services` names an unknown model server",
            "remove or correct it",
        ),
        "watchdog.max_restarts": (
            "`max_restarts` is 0: wedged model servers are reported and never restarted",
            "nothing, if intended",
        ),
    },
    "fleet_monitor.md#findings-of-the-plan": {
        "fleet_monitor.unreachable": (
            "an endpoint listens on the loopback of another host and is left out",
            "give it an `api_key_file`, or name it in `leave_out`",
        ),
        "fleet_monitor.nothing": (
            "there is nothing to monitor",
            "add endpoints to `extra`, or remove names from `leave_out`",
        ),
        "fleet_monitor.notify": (
            "no notifier is set",
            "set `notify`",
        ),
        "fleet_monitor.plain": (
            "a token is sent to another host over plain HTTP",
            "use `https://`",
        ),
        "fleet_monitor.unknown": (
            "`leave_out` names an unknown endpoint",
            "remove or correct it",
        ),
        "fleet_monitor.page_open": (
            "the status page, which asks for no password, listens beyond loopback without a firewall",
            "remove `page_listen`, with access through SSH",
        ),
        "fleet_monitor.own_host": (
            "the monitor watches the host that it runs on",
            "run it on a host that serves no model, or add a second monitor that watches this one",
        ),
    },
}

ENTRIES = {
    rule: Entry(rule, REGISTER[rule], meaning, fix, page)
    for page, texts in _BY_PAGE.items()
    for rule, (meaning, fix) in texts.items()
}
"""Every finding by its id, in the order in which the pages list them."""
