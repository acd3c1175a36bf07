# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about several nodes (8xx)."""

from __future__ import annotations

import re

from .._vllm import nccl_data, versions
from .rulebook import FIRES, GUIDE, PACKAGES, Change, Hits, Launch, error, info, warning

# 8xx: several nodes


@error(
    "SPK801",
    "More GPUs than Sparks",
    "tensor-parallel-size x pipeline-parallel-size is {world}, but {nodes} Spark(s) with one GPU each serve it.",
    "Set tensor-parallel-size to {nodes}, or serve it from {world} Sparks.",
    "GB10 has one GPU; vLLM's own check",
    "World size ({world}) is larger than the number of available GPUs ({nodes}) in this node.",
)
def _too_many_gpus(launch: Launch) -> Hits:
    if launch.uses_ray and launch.sparks == 1:
        return  # how many Sparks a Ray cluster has is not in the launch
    if launch.world > launch.sparks:
        yield {"world": launch.world, "nodes": launch.sparks}


@error(
    "SPK802",
    "Ray executor in an image without Ray",
    "{image} does not contain Ray; the Ray executor cannot start.",
    "Install ray[default] on top of the image (pip of a service){or_mp}.",
    "reports on the images; vLLM's requirements, which dropped Ray in 0.18.0",
    "Failed to import Ray",
)
def _no_ray(launch: Launch) -> Hits:
    if launch.uses_ray and launch.entry.get("ray") is False and not launch.brings("ray"):
        or_mp = ", or use the executor mp (--nnodes, --node-rank, --master-addr)"
        yield {"or_mp": "" if launch.before("0.11.1") else or_mp}


@error(
    "SPK803",
    "--nnodes with the Ray executor",
    "--nnodes {nnodes} works only with the mp executor; vLLM refuses it with Ray.",
    "Remove nnodes, node-rank and master-addr, or set the executor to mp.",
    vllm_error="nnodes > 1 can only be set when distributed executor backend is mp",
)
def _nnodes_ray(launch: Launch) -> Hits:
    if launch.number("nnodes", 1) > 1 and launch.uses_ray:
        yield {"nnodes": launch.number("nnodes", 1)}


@warning(
    "SPK804",
    "Pinned GID index",
    "NCCL_IB_GID_INDEX={value} pins an index that changes on a Spark (3 became 4 within half an hour; "
    "empty means 0, link-local); NCCL then hangs or falls back to TCP.",
    "Remove NCCL_IB_GID_INDEX: NCCL finds the RoCE v2 index itself.",
    "reports from ConnectX-7 pairs",
)
def _gid_index(launch: Launch) -> Hits:
    if "NCCL_IB_GID_INDEX" in launch.env:
        yield {"value": launch.env["NCCL_IB_GID_INDEX"]}


@error(
    "SPK805",
    "Several nodes without an executor",
    "{nodes} Sparks should serve it, but neither Ray nor --nnodes is set; vLLM sees one GPU and stops.",
    "Set the executor: mp (vLLM 0.11.1 and newer) or ray.",
    vllm_error="World size ({world}) is larger than the number of available GPUs (1) in this node.",
)
def _no_executor(launch: Launch) -> Hits:
    if (
        launch.nodes > 1
        and launch.world > 1
        and launch.executor is None
        and not launch.uses_ray
        and launch.number("nnodes", 1) == 1
    ):
        yield {"nodes": launch.nodes, "world": launch.world}


info(
    "SPK806",
    "Expert parallelism with one GPU",
    "--enable-expert-parallel has no effect on one GPU.",
    "Remove it.",
    when=lambda launch: (
        launch.args.get("enable-expert-parallel") is True and launch.world == 1 and launch.replicas == 1
    ),
)

error(
    "SPK807",
    "Several nodes without Ray before 0.11.1",
    "vLLM {version} cannot span nodes without Ray.",
    "Use vLLM 0.11.1 or newer, or executor ray.",
    needs_version=True,
    when=lambda launch: (
        launch.nodes > 1
        and launch.before("0.11.1")
        and (launch.executor or launch.word("distributed-executor-backend")) == "mp"
    ),
)

info(
    "SPK808",
    "Ray without need",
    "vLLM {version} can span Sparks without Ray (executor mp) and uses less memory on each.",
    "Set the executor to mp.",
    f"{PACKAGES}; vLLM's recipe for two Sparks",
    needs_version=True,
    when=lambda launch: launch.uses_ray and launch.world > 1 and not launch.before("0.11.1"),
)


@error(
    "SPK809",
    "API servers on a headless node",
    "--headless starts no API server, and --api-server-count asks for {count}.",
    "Remove --api-server-count on this node.",
    vllm_error="--api-server-count={count} cannot be used with --headless (no API servers are started in headless mode).",
)
def _headless_servers(launch: Launch) -> Hits:
    count = launch.number("api-server-count", 0)
    if launch.args.get("headless") is True and count > 0:
        yield {"count": count, "changes": (Change("args", "api-server-count"),)}


@error(
    "SPK810",
    "Parallel sizes that do not match the nodes",
    "{product} is {world}, but there are {nodes} nodes with one GPU each.",
    "Make the product {nodes}, or set nnodes to {world}.",
    f"{PACKAGES}; GB10 has one GPU",
)
def _spread(launch: Launch) -> Hits:
    nodes, world = launch.number("nnodes", 1), launch.world * launch.replicas
    if nodes > 1 and not launch.uses_ray and world < nodes:
        product = "tensor-parallel-size x pipeline-parallel-size" + (
            " x data-parallel-size" if launch.replicas > 1 else ""
        )
        yield {"product": product, "world": world, "nodes": nodes}


@error(
    "SPK811",
    "Follower that is not headless",
    "Node {rank} follows node 0, but starts its own API server.",
    "Add --headless on every node but node 0.",
    vllm_error="collective_rpc should not be called on follower node",
)
def _follower(launch: Launch) -> Hits:
    rank = launch.number("node-rank", 0)
    if launch.number("nnodes", 1) > 1 and rank > 0 and launch.args.get("headless") is not True:
        yield {"rank": rank}


error(
    "SPK812",
    "Leader that is headless",
    "Node 0 answers the requests; with --headless it starts no API server.",
    "Remove --headless on node 0, or set node-rank.",
    when=lambda launch: (
        launch.number("nnodes", 1) > 1
        and launch.number("node-rank", 0) == 0
        and launch.args.get("headless") is True
        and launch.replicas == 1
    ),
)


@error(
    "SPK813",
    "Several nodes without the leader's address",
    "--nnodes {nodes} without --master-addr: every node looks for the leader on itself (127.0.0.1) forever.",
    "Add master-addr with node 0's address on the ConnectX-7 link.",
)
def _no_leader(launch: Launch) -> Hits:
    nodes = launch.number("nnodes", 1)
    if (
        nodes > 1
        and not launch.uses_ray
        and str(launch.args.get("master-addr") or "127.0.0.1") in ("127.0.0.1", "localhost")
    ):
        yield {"nodes": nodes}


@error(
    "SPK814",
    "Rank beyond the last node",
    "--node-rank {rank} of {nodes} nodes: ranks count from 0 to {last}.",
    "Set node-rank to {last} or less.",
)
def _rank(launch: Launch) -> Hits:
    nodes, rank = launch.number("nnodes", 1), launch.number("node-rank", 0)
    if rank >= nodes:
        yield {"rank": rank, "nodes": nodes, "last": nodes - 1}


@error(
    "SPK815",
    "Executor that vLLM does not have",
    "{option} is {value}; vLLM has {known}.",
    "Set it to mp.",
)
def _executor_unknown(launch: Launch) -> Hits:
    for option, executors in (
        ("distributed-executor-backend", ("mp", "ray", "uni", "external_launcher")),
        ("data-parallel-backend", ("mp", "ray")),
    ):
        value = launch.args.get(option)
        if isinstance(value, str) and value not in executors and "." not in value:  # a class is named with its module
            yield {"option": f"--{option}", "value": value, "known": ", ".join(executors)}


def _spans(launch: Launch) -> bool:
    return launch.sparks > 1 or (launch.uses_ray and launch.world > 1) or launch.args.get("headless") is True


_NETDEV = re.compile(r"^=?\^?en[pP]")
_HCA = re.compile(r"^=?\^?(roce|mlx5_)")


@error(
    "SPK816",
    "Network devices instead of RDMA devices",
    "NCCL_IB_HCA={value} names network devices; NCCL needs RDMA devices and finds none.",
    "Set NCCL_IB_HCA to {instead}.",
    "reports from ConnectX-7 pairs",
    "NET/IB : No device found",
)
def _netdev_as_hca(launch: Launch) -> Hits:
    value = launch.env.get("NCCL_IB_HCA", "")
    if any(_NETDEV.match(name.strip()) for name in value.split(",")):
        names = [
            re.sub(r"^=?\^?en(P2)?p1s0f([01])(np[01])?$", r"roce\1p1s0f\2", name.strip()) for name in value.split(",")
        ]
        instead = ",".join(names) if all(name.startswith("roce") for name in names) else "names of `rdma link`"
        yield {"value": value, "instead": instead}


@warning(
    "SPK817",
    "Half of the ConnectX-7 link",
    "NCCL_IB_HCA={value} names one of the two RDMA devices of a port; each carries half of its 200 Gb/s.",
    "Set NCCL_IB_HCA to {devices}.",
    "reports from ConnectX-7 pairs; NVIDIA's guide to two Sparks",
)
def _one_rail(launch: Launch) -> Hits:
    names = [name.strip() for name in launch.env.get("NCCL_IB_HCA", "").split(",") if name.strip()]
    match = re.fullmatch(r"=?roce(?:P2)?p1s0f([01])", names[0]) if len(names) == 1 else None
    if match and _spans(launch):
        port = match.group(1)
        yield {"value": names[0], "devices": f"rocep1s0f{port},roceP2p1s0f{port}"}


@error(
    "SPK818",
    "RDMA device instead of a network device",
    "{name}={value} names an RDMA device; it needs the network device.",
    "Set it to the network device, for example enp1s0f0np0 (see ibdev2netdev).",
    "reports from ConnectX-7 pairs",
)
def _hca_as_netdev(launch: Launch) -> Hits:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        value = launch.env.get(name, "")
        if any(_HCA.match(part.strip()) for part in value.split(",")):
            yield {"name": name, "value": value}


warning(
    "SPK819",
    "RDMA switched off",
    "NCCL_IB_DISABLE=1 sends every tensor over TCP, at least ten times slower.",
    "Remove it, or set it to 0.",
    f"{GUIDE}; reports from ConnectX-7 pairs",
    when=lambda launch: _rdma_is_off(launch),
)

warning(
    "SPK820",
    "Several Sparks without the address of this one",
    "VLLM_HOST_IP is not set: vLLM may announce an address that the others cannot reach, and wait forever.",
    "Set VLLM_HOST_IP to this node's address on the ConnectX-7 link.",
    "vLLM's recipe for two Sparks; eugr/spark-vllm-docker#227",
    when=lambda launch: _spans(launch) and launch.argv and "VLLM_HOST_IP" not in launch.env,
)


@warning(
    "SPK821",
    "Ray's memory monitor on unified memory",
    "RAY_memory_monitor_refresh_ms is {value}: Ray counts the engine's memory as host "
    "memory and kills workers at 95 %.",
    "Set RAY_memory_monitor_refresh_ms to 0 on every node.",
    "NVIDIA's guide to two Sparks; reports from pairs",
    "ray.exceptions.OutOfMemoryError",
)
def _ray_monitor(launch: Launch) -> Hits:
    value = launch.env.get("RAY_memory_monitor_refresh_ms", "not set" if launch.argv else "0")
    if launch.uses_ray and value.strip() != "0" and "RAY_memory_usage_threshold" not in launch.env:
        yield {"value": value}


@warning(
    "SPK822",
    "NCCL plugin of the NGC images",
    "NGC images ship a network plugin that NCCL prefers; between Sparks it was reported to fall back to TCP silently.",
    "Set NCCL_NET_PLUGIN=none.",
    "reports from ConnectX-7 pairs",
)
def _nccl_plugin(launch: Launch) -> Hits:
    ngc = launch.entry.get("repository") == "nvcr.io/nvidia/vllm"
    if ngc and launch.argv and _spans(launch) and "NCCL_NET_PLUGIN" not in launch.env:
        yield FIRES


info(
    "SPK823",
    "--device-ids with Ray",
    "--device-ids has no effect with the Ray executor.",
    "Remove it.",
    when=lambda launch: launch.uses_ray and launch.args.get("device-ids") is not None,
)


@warning(
    "SPK824",
    "Rank without a number of nodes",
    "{option} has no effect without --nnodes: this node starts alone, with all GPUs it can see.",
    "Add nnodes, the same on every node.",
)
def _no_nnodes(launch: Launch) -> Hits:
    if launch.args.get("nnodes") is None and not launch.uses_ray and launch.replicas == 1:
        for option in ("master-addr", "headless"):
            if launch.args.get(option) not in (None, False):
                yield {"option": f"--{option}"}
                return


@error(
    "SPK825",
    "More data-parallel replicas than Sparks",
    "data-parallel-size {size} needs {size} GPUs; {nodes} Spark(s) with one GPU each serve it.",
    "Set data-parallel-size-local 1 and start one engine on each of {size} Sparks.",
    "GB10 has one GPU",
)
def _data_parallel(launch: Launch) -> Hits:
    size, local = launch.replicas, launch.number("data-parallel-size-local", 0)
    if size > launch.sparks and local != 1 and launch.args.get("headless") is not True:
        yield {"size": size, "nodes": launch.sparks}


info(
    "SPK826",
    "RDMA devices left to NCCL: the sources disagree",
    "NCCL_IB_HCA is not set. NVIDIA's guide leaves it out; others report that NCCL then uses one of a "
    "port's two devices, half of its 200 Gb/s.",
    "Set NCCL_IB_HCA to both devices of the port (rocep1s0f0,roceP2p1s0f0) if NCCL's log names one.",
    "NVIDIA's guide to two Sparks; NVIDIA/dgx-spark-playbooks#102; vLLM's recipe for two Sparks",
    when=lambda launch: (
        launch.argv
        and _spans(launch)
        and launch.joined > 1
        and "NCCL_IB_HCA" not in launch.env
        and not _rdma_is_off(launch)
    ),
)


def _rdma_is_off(launch: Launch) -> bool:
    return launch.env.get("NCCL_IB_DISABLE", "").strip() == "1"


# Variables that replace the library that torch finds.
_NCCL_VARIABLES = ("VLLM_NCCL_SO_PATH", "LD_PRELOAD")


@warning(
    "SPK827",
    "NCCL that hangs between Sparks",
    "{image} loads NCCL {version} of {library}: {why}.",
    "{fix}",
    "release notes of NCCL 2.29.3; vllm-project/vllm#41725, #42354; sgl-project/sglang#33289; marin-community/marin#8038",
    "No available shared memory broadcast block found in 60 seconds",
)
def _old_nccl(launch: Launch) -> Hits:
    nccl = launch.entry.get("nccl") or {}
    if launch.joined < 2 or any("nccl" in launch.env.get(name, "") for name in _NCCL_VARIABLES):
        return
    installed = next(
        (launch.pinned()[name] for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") if name in launch.pinned()), ""
    )
    library = "pip" if installed else str(nccl.get("library") or "")
    release = installed or str(nccl.get("version") or "")
    for row in nccl_data.against(library, release):
        yield {"version": release, "library": library, "why": row["why"], "fix": row["fix"]}


@error(
    "SPK828",
    "Stored FlashInfer autotuning with several Sparks",
    "vLLM {version} stores FlashInfer's autotuning in the mounted folder {folder}. With several GPUs the "
    "second start waits forever.",
    "Set enable-flashinfer-autotune to false, or in env VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR to a folder "
    "inside the container (/tmp/flashinfer_autotune).",
    "vllm-project/vllm#57635, #57579; two owners, one of them of Sparks",
    needs_version=True,
)
def _kept_autotune(launch: Launch) -> Hits:
    if (
        not launch.within(*versions.AUTOTUNE_CACHE_HANGS)
        or launch.joined < 2
        or launch.args.get("enable-flashinfer-autotune") is False
    ):
        return
    folder = launch.env.get(versions.AUTOTUNE_CACHE) or launch.env.get("VLLM_CACHE_ROOT") or "/root/.cache/vllm"
    targets = [target.rstrip("/") for _source, target in launch.docker.mounts]
    if any(f"{folder.rstrip('/')}/".startswith(f"{target}/") for target in targets):
        change = Change("env", versions.AUTOTUNE_CACHE, versions.AUTOTUNE_FOLDER)
        yield {"folder": folder, "changes": (change,)}


_SPIN = "VLLM_SHM_BROADCAST_BUSY_LOOP_S"


info(
    "SPK829",
    "Busy-waiting ranks",
    "Each waiting rank spins for a second before it sleeps: owners measured 300 to 400 % of a CPU and 11 "
    "to 20 degrees more, without gain. This fork has a variable against it.",
    "Set spin_wait: low of spark_power, or env VLLM_SHM_BROADCAST_BUSY_LOOP_S to 0.002.",
    "vllm-project/vllm#52814, #52916; five owners of pairs",
    when=lambda launch: launch.world > 1 and _SPIN[5:] in launch.entry.get("features", ()) and _SPIN not in launch.env,
)


@error(
    "SPK830",
    "Replicas of a dense model over several nodes each",
    "data-parallel-size {size} x {world} GPUs of a model without experts: such replicas do not "
    "coordinate, and their first ranks wait on the same port.",
    "Serve each replica as a service on {world} Sparks behind one gateway, or set tensor-parallel-size "
    "and pipeline-parallel-size to 1.",
)
def _dense_replicas(launch: Launch) -> Hits:
    if launch.dense and launch.replicas > 1 and launch.world > 1 and launch.number("nnodes", 1) > 1:
        yield {"size": launch.replicas, "world": launch.world}


error(
    "SPK831",
    "Expert parallelism without experts",
    "--enable-expert-parallel: the model has no experts.",
    "Remove it.",
    vllm_error="Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
    when=lambda launch: launch.args.get("enable-expert-parallel") is True and launch.dense,
)


@error(
    "SPK832",
    "Experts that replicas cannot split",
    "Without enable-expert-parallel each expert is split over the {ranks} GPUs of {size} replicas, but "
    "its width {width} is not divisible by that.",
    "Set enable-expert-parallel: each GPU then gets whole experts.",
    vllm_error="assert intermediate_size % tp_size == 0",
)
def _split_experts(launch: Launch) -> Hits:
    width = launch.text.get("moe_intermediate_size") or launch.text.get("intermediate_size")
    ranks = launch.replicas * launch.number("tensor-parallel-size", 1)
    spread = launch.args.get("enable-expert-parallel") is True
    if launch.moe and launch.replicas > 1 and not spread and isinstance(width, int) and width % ranks:
        yield {"ranks": ranks, "size": launch.replicas, "width": width}
