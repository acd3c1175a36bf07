# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about the image and the platform (3xx), the host and its container (Hxx)."""

from __future__ import annotations

import posixpath
import re

from .._common.sizes import GIB
from .._vllm import catalogue, image_catalogue, image_names, seccomp, shared_memory, versions
from .rulebook import FIRES, REGISTERED, Hits, Launch, error, info, meets, numbers, version, warning

# 3xx: image and platform


@error(
    "SPK301",
    "Image built for CUDA 12",
    "{image} is built for CUDA {cuda}: its FP8 and FP4 kernels are for sm_120a only, which GB10 (sm_121) cannot load.",
    "Use a CUDA 13 build: {instead}.",
    "kernels inside the published aarch64 packages; reports to vllm-project/vllm",
)
def _cuda12(launch: Launch) -> Hits:
    cuda = str(launch.entry.get("cuda") or "")
    if cuda == "12" or cuda.startswith("12."):
        tag = str(launch.entry.get("tag") or "")
        modern = launch.version is not None and launch.version >= version("0.20.0")
        if re.search(r"-cu12\d", tag):
            instead = re.sub(r"-cu12\d", "" if modern and tag.startswith("v") else "-cu130", tag)
        elif re.fullmatch(r"gemma4|v\d+\.\d+\.\d+", tag):
            instead = f"{tag}-cu130 if it exists, or v0.20.0 and newer"
        else:
            instead = "v0.20.0 and newer"
        yield {"cuda": cuda, "instead": instead}


@warning(
    "SPK302",
    "Mutable tag",
    "{image} is a mutable tag; two hosts, or the same host next month, may get different builds.",
    "Pin it: {repository}@sha256:..., or a release tag.",
    "tags of the publishers",
)
def _moving_tag(launch: Launch) -> Hits:
    if launch.entry.get("digest") or "@" in launch.image:
        return
    repository, tag, _digest = image_names.split_image(launch.image)
    if launch.entry.get("moving") or (not launch.entry and image_catalogue.tag_moves(tag)):
        yield {"repository": repository}


error(
    "SPK303",
    "Image without an arm64 build",
    "{image} has no arm64 build; a DGX Spark is arm64.",
    "Use a tag with an arm64 build.",
    "manifests of the image",
    when=lambda launch: launch.entry.get("arm64") is False,
)


def _defects(launch: Launch, concerned: bool) -> Hits:
    """Yield the known defects of the image that this launch does run into, or does not."""
    for defect in launch.entry.get("defects") or []:
        hits = {
            None: True,
            "tools": launch.args.get("enable-auto-tool-choice") is True,
            "hybrid_prefixes": launch.hybrid and launch.prefix_caching,
            "gemma4_nvfp4_moe": launch.gemma4
            and launch.expert_format == "nvfp4"
            and "gemma4.py" not in _patched_files(launch),
        }
        if hits.get(defect.get("when"), True) is concerned:
            yield {"text": defect["text"], "fix": defect.get("fix", "Use another image."), "when": defect.get("when")}


error(
    "SPK304",
    "Image that is broken as shipped",
    "{image}: {text}.",
    "{fix}",
    "reports to the publisher of the image",
    when=lambda launch: _defects(launch, True),
)

warning(
    "SPK305",
    "Image with a defect that affects other launches",
    "{image}: {text}. This launch does not use it.",
    "{fix}",
    "reports to the publisher of the image",
    when=lambda launch: (hit for hit in _defects(launch, False) if hit["when"] == "tools"),
)

warning(
    "SPK306",
    "Unknown entrypoint",
    "The entrypoint of {image} is not known; it is assumed to run vllm serve itself.",
    "Set image.entrypoint of the service to serve or passthrough.",
    "catalogue of images",
    when=lambda launch: not launch.entrypoint_known,
)


@warning(
    "SPK307",
    "Unknown vLLM version",
    "The vLLM version in {image} is not known, so {count} rules were not checked.",
    "Set image.vllm_version of the service, or let site.yml inspect the image once it is on a host.",
    "catalogue of images",
)
def _version_unknown(launch: Launch) -> Hits:
    if launch.version is None:
        skipped = sorted(entry.id for entry in REGISTERED if entry.needs_version)
        yield {"count": len(skipped), "details": f"Not checked: {', '.join(skipped)}."}


# Driver branch that runs a CUDA release natively, where start-up banners showed it.
_NATIVE_DRIVERS = {"13.0": "580", "13.1": "590.44", "13.4": "615"}


def _driver_gap(launch: Launch) -> dict[str, str] | None:
    cuda = str(launch.entry.get("cuda") or "")
    native = str(launch.entry.get("native_driver") or _NATIVE_DRIVERS.get(cuda) or "")
    if not native or not launch.driver or not re.fullmatch(r"[\d.]+", launch.driver):
        return None
    if numbers(launch.driver)[: len(numbers(native))] >= numbers(native):
        return None
    return {"cuda": cuda, "native": native, "driver": launch.driver}


def _forward_compatible(launch: Launch) -> bool:
    ngc = launch.entry.get("repository") == "nvcr.io/nvidia/vllm" and launch.entrypoint == "passthrough"
    return ngc and launch.driver is not None and numbers(launch.driver)[:1] >= [580]


@warning(
    "SPK308",
    "Driver older than the image's CUDA",
    "{image} has CUDA {cuda}, which needs driver {native}; this host has {driver}. Kernels compiled at "
    "run time may fail with cudaErrorUnsupportedPtxVersion, even at the first token.",
    "Use an image with CUDA 13.0, or update driver and firmware together.",
    "NVIDIA's release notes; start-up banners of the images",
)
def _old_driver(launch: Launch) -> Hits:
    gap = _driver_gap(launch)
    if gap and not _forward_compatible(launch):
        yield gap


@info(
    "SPK309",
    "Driver with forward compatibility",
    "{image} has CUDA {cuda}, which needs driver {native}; on this host's {driver} it runs through "
    "forward compatibility, by NVIDIA's entrypoint.",
    "Keep the image's entrypoint.",
    "start-up banners of the images on 580 drivers",
)
def _forward_compatibility(launch: Launch) -> Hits:
    gap = _driver_gap(launch)
    if gap and _forward_compatible(launch):
        yield gap


@warning(
    "SPK310",
    "NVIDIA's entrypoint replaced",
    "{image} is started without NVIDIA's entrypoint, which enables CUDA forward compatibility on 580 "
    "drivers; without it, cudaErrorUnsupportedPtxVersion was reported.",
    "Remove the entrypoint option and pass vllm serve after the image name.",
    "reports on NGC images",
)
def _ngc_entrypoint(launch: Launch) -> Hits:
    replaced = launch.entrypoint == "serve" or bool(launch.docker.values("--entrypoint"))
    if launch.entry.get("repository") == "nvcr.io/nvidia/vllm" and replaced:
        yield FIRES


warning(
    "SPK311",
    "Free memory calculated wrongly",
    "vLLM {version} counts page cache as used memory on GB10: starts fail or the KV cache is too small.",
    "Use vLLM 0.11.1 or newer, or drop the page cache before each start.",
    needs_version=True,
    when=lambda launch: launch.before("0.11.1"),
)


# Backends whose kernels come out of FlashInfer.
_FLASHINFER_OPTIONS = ("attention-backend", "moe-backend", "linear-backend")


@info(
    "SPK312",
    "FlashInfer without its kernels",
    "vLLM {version} no longer includes flashinfer-cubin; without it or nvcc {option} {value} is not "
    "usable, and the default falls back to Triton, Marlin and vLLM's CUTLASS.",
    "Make sure that {image} has flashinfer-cubin or nvcc.",
    needs_version=True,
)
def _flashinfer_kernels(launch: Launch) -> Hits:
    if launch.before("0.26.0") or launch.entry.get("repository") in ("nvcr.io/nvidia/vllm", "vllm/vllm-openai"):
        return
    for option in _FLASHINFER_OPTIONS:
        if launch.word(option).startswith("flashinfer"):
            yield {
                "option": f"--{option}",
                "value": launch.args[option],
            }
            return


@info(
    "SPK313",
    "Fork of vLLM",
    "{image} is a fork: its options, variables and kernels may differ from every release.",
    "Rules about options can be wrong for it; `ignore` silences them.",
    "publishers of the images",
)
def _fork(launch: Launch) -> Hits:
    repository = image_names.split_image(launch.image)[0]
    if repository.startswith(("eugr/spark-vllm", "ghcr.io/aeon-7/", "ghcr.io/z-lab/", "scitrera/")):
        yield FIRES


@info(
    "SPK315",
    "Unused compile caches of the image",
    "{image} contains compiled kernels ({variables}), but the service uses another cache folder, so its "
    "first start compiles them again.",
    "Set {settings} in env to use them; later kernels are then lost with each container.",
    "NVIDIA/dgx-spark-playbooks, which mounts nothing over them",
)
def _prebuilt_caches(launch: Launch) -> Hits:
    unused = {name: path for name, path in (launch.entry.get("caches") or {}).items() if launch.env.get(name) != path}
    if unused and not launch.argv:  # a typed command keeps the entrypoint of the image
        settings = ", ".join(f"{name}: {path}" for name, path in sorted(unused.items()))
        yield {"variables": ", ".join(sorted(unused)), "settings": settings}


# Hxx: host and container


def _patched_files(launch: Launch) -> dict[str, str]:
    """Return files of vLLM's package that mounts put something else in place of: leaf name to source."""
    return {
        posixpath.basename(target): source
        for source, target in launch.docker.mounts
        if re.search(r"(site|dist)-packages/vllm/", target)
    }


# Packages that decide whether vLLM starts, and whose range differs between its versions.
_DECISIVE = ("flashinfer-python", "ray", "torch", "transformers")


@warning(
    "SPK314",
    "Package that this vLLM was not released with",
    "{name} {found} is installed on top of the image, but vLLM {version} {wants}: it may not start, or "
    "another vLLM may be installed.",
    "Remove {name}, or install a version that fits.",
    needs_version=True,
)
def _foreign_package(launch: Launch) -> Hits:
    if launch.version is None:
        return
    for name, installed in sorted(launch.pinned().items()):
        other = versions.parse_version(installed) if name == "vllm" else None
        if other is not None and other.release != launch.version.release:
            yield {"name": name, "found": installed, "wants": "is what the image has"}
        own_build = launch.entry.get("repository") == "nvcr.io/nvidia/vllm" and name in ("flashinfer-python", "torch")
        requirement = catalogue.requirement(name, launch.version) if name in _DECISIVE and not own_build else None
        if requirement and not meets(installed, requirement):
            yield {"name": name, "found": installed, "wants": f"asks for {requirement}"}


@error(
    "SPKH01",
    "Patched loader over a fixed vLLM",
    "{source} is mounted over vLLM's gemma4.py, which vLLM {version} has fixed; "
    "an older file inside a newer package breaks its imports.",
    "Remove the mount.",
    needs_version=True,
)
def _old_patch(launch: Launch) -> Hits:
    source = _patched_files(launch).get("gemma4.py")
    if source is not None and _loader_is_fixed(launch):
        yield {"source": source}


def _loader_is_fixed(launch: Launch) -> bool:
    return launch.version is not None and launch.version >= version("0.20.0")


@warning(
    "SPKH02",
    "File of vLLM replaced by a mount",
    "{source} is mounted over vLLM's {target}; it fits one build and breaks with the next image.",
    "Pin the image by digest for as long as the mount is needed.",
)
def _mounted_file(launch: Launch) -> Hits:
    if not launch.entry.get("digest") and "@" not in launch.image:
        for target, source in _patched_files(launch).items():
            if target != "gemma4.py" or not _loader_is_fixed(launch):
                yield {"source": source, "target": target}


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@error(
    "SPKH03",
    "Published port of an engine on loopback",
    "--host {host} makes vLLM listen only inside the container; the published port leads nowhere.",
    "Set host to 0.0.0.0 and publish on an address (-p 127.0.0.1:8000:8000), or use --network host.",
    "how docker publishes ports",
)
def _loopback(launch: Launch) -> Hits:
    host = str(launch.args.get("host") or "")
    if host in _LOOPBACK and launch.docker.values("--publish") and "host" not in launch.docker.values("--network"):
        yield {"host": host}


@error(
    "SPKH04",
    "Several Sparks behind a container network",
    "Engines on several Sparks connect to each other on random ports; behind {network} they cannot.",
    "Add --network host.",
    "vLLM's recipe for two Sparks",
)
def _bridge(launch: Launch) -> Hits:
    has_options = bool(launch.docker.options)
    networks = launch.docker.values("--network")
    if has_options and (launch.sparks > 1 or launch.uses_ray) and launch.world > 1 and "host" not in networks:
        yield {"network": networks[-1] if networks else "docker's bridge"}


@warning(
    "SPKH05",
    "No access to the RDMA devices",
    "Without --privileged, or /dev/infiniband and an unlimited memlock, NCCL finds no RDMA device and "
    "falls back to TCP, at least ten times slower.",
    "Add --device /dev/infiniband --ulimit memlock=-1, or --privileged.",
    "vLLM's recipe for two Sparks; reports from ConnectX-7 pairs",
)
def _no_rdma(launch: Launch) -> Hits:
    if (
        not launch.docker.options
        or launch.docker.has("--privileged")
        or not (launch.sparks > 1 or launch.uses_ray)
        or launch.world < 2
    ):
        return
    devices = any("/dev/infiniband" in value for value in launch.docker.values("--device"))
    memlock = any(value.startswith("memlock=-1") for value in launch.docker.values("--ulimit"))
    if not devices or not memlock:
        yield {}


@error(
    "SPKH06",
    "Shared memory too small for several ranks",
    "{world} ranks exchange tensors through /dev/shm, of which docker gives a container 64 MiB.",
    "Add --ipc host, or --shm-size 8g.",
    "vLLM's documents on docker",
)
def _small_shm(launch: Launch) -> Hits:
    if (
        launch.docker.options
        and launch.world // launch.sparks > 1
        and not launch.docker.values("--shm-size")
        and "host" not in launch.docker.values("--ipc")
    ):
        yield {"world": launch.world}


@warning(
    "SPKH07",
    "Very large /dev/shm",
    "--shm-size {size} lets /dev/shm fill that much besides the engine's share; 64 GB is suspected of hard power-offs.",
    "Set --shm-size to 32g or less.",
    "tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark#31",
)
def _large_shm(launch: Launch) -> Hits:
    for size in launch.docker.values("--shm-size"):
        match = re.fullmatch(r"(\d+)\s*([gGtT])[iI]?[bB]?", size.strip())
        if match and int(match.group(1)) * (1024 if match.group(2) in "tT" else 1) >= 64:
            yield {"size": size}


@warning(
    "SPKH08",
    "io_uring under Docker's seccomp profile",
    "{what} reads with io_uring, which Docker's default seccomp profile denies.",
    "Services of this collection get a matching profile. Elsewhere set --security-opt seccomp=PROFILE: "
    "Docker's profile plus io_uring_setup, io_uring_enter and io_uring_register; seccomp=unconfined "
    "allows more.",
    "NVIDIA/local-ai-inference-recipes; FujitsuPolycom/sparkring",
)
def _uring(launch: Launch) -> Hits:
    feature = seccomp.needed_for(launch.args, launch.env)
    if feature and launch.docker.options and not seccomp.chosen(launch.docker):
        yield {"what": feature}


@error(
    "SPKH09",
    "Buffer larger than /dev/shm",
    "vLLM places {size} GiB ({option}) in /dev/shm, but this container has {shm}: the start "
    "ends with 'Insufficient space in /dev/shm' or a bus error.",
    "Set shm_size (--shm-size) to {needed}, or make the buffer smaller.",
    "vLLM 0.27.0 to 0.33.0, shared_offload_region.py and multimodal/cache; vllm-project/vllm#50094, #52496",
)
def _buffer_in_shm(launch: Launch) -> Hits:
    if not launch.docker.options or any(value != "private" for value in launch.docker.values("--ipc")):
        return
    kv_buffer = (
        0
        if launch.version is None or launch.before(shared_memory.KV_BUFFER_SINCE)
        else shared_memory.kv_buffer_bytes(launch.args, launch.env)
    )
    media_cache = shared_memory.media_cache_bytes(launch.args)
    sizes = launch.docker.values("--shm-size")
    shm = sizes[-1] if sizes else None
    if kv_buffer + media_cache > shared_memory.docker_bytes(shm):
        option = "mm-processor-cache-gb"
        if kv_buffer:
            option = "kv-offloading-size" if launch.args.get("kv-offloading-size") else "kv-transfer-config"
        yield {
            "size": f"{(kv_buffer + media_cache) / GIB:.4g}",
            "option": option,
            "shm": shm or "64 MiB",
            "needed": shared_memory.enough(kv_buffer + media_cache),
        }
