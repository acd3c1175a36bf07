# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make an entry of C(spark_services) from a draft, with a reason for everything that is not carried over."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from .._cluster import clustering
from .._common import plain_secrets, redaction, secret_names, shell
from .._content.snapshots import TOKENIZER_FILES
from .._vllm import image_catalogue, launch
from . import import_tables as tables
from . import service_keys
from .import_command import read_command
from .import_config import checks_of
from .import_downloads import Download, hub_snapshot, path_below
from .import_draft import Draft, Unreadable, program_name, texts_of, waits_for
from .import_engine import Engine, brief
from .service_files import CONTAINER_HF_HOME

KEYS = ".secrets"  # relative to the inventory folder, and not read by Ansible
# The largest number that a switch is known to have joined.
MOST_SPARKS = 8


class ServiceMaker:
    """Makes one service; records omissions in the draft, and secrets to hide."""

    def __init__(self, draft: Draft, catalogue: Sequence[Mapping[str, Any]]) -> None:
        self.draft = draft
        self.catalogue = catalogue
        self.leave = draft.leave
        self.host_vars: dict[str, str] = {}
        self.secrets: set[str] = set()
        self.moved_paths: dict[str, str] = {}  # path in the old container -> path in the new one
        self.files: list[dict[str, str]] = []
        self.nodes = 1
        for name, value in draft.variables.items():
            if _is_secret(name, value):
                self.conceal(value)

    def conceal(self, *values: Any) -> None:
        """Hide secrets, or all texts of a value, in the result; hiding shorter texts would only garble others."""
        for text in (text for value in values for text in texts_of(value)):
            if len(text) >= 6 and not text.startswith("${"):
                self.secrets.add(text)

    # --- the service ----------------------------------------------------------------------------------------------

    def make(self, name: str | None, port: int | None, image: str | None) -> dict[str, Any]:
        """Return the entry of C(spark_services). name, port, image: of the service, instead of the launch's."""
        image = image or self._image_name()
        entry = (image_catalogue.lookup(image, self.catalogue) if image else None) or {}
        command = read_command(self.draft, self._environment(), entry.get("entrypoint"))
        if not self.draft.run.command and not self.draft.run.image:
            raise Unreadable("there is neither an image nor a vllm serve command in it")
        parsed = launch.parse(command.words, entry.get("vllm_version"))
        model = self._model_name(parsed, command.words, bool(entry))
        self._leave_problems(parsed)
        args = self._known_args(self._without_ranks(parsed.args))
        launch_port, reachable = self._port(args.pop("port", None))
        unit = _service_name(name or self.draft.name or self._path_on_host(model))
        served_name = self._served_name(args, model)
        if args.pop("download-dir", None):
            self.leave("--download-dir", "weights are kept in spark_hf_home and downloaded before the start")
        keys = self._secret_files(command.env, args, unit)
        self._leave_address(args.pop("host", None), reachable and not keys["api_key_file"])
        if self._download_of(model):
            self.moved_paths[model] = service_keys.MODEL_FOLDER
        docker_args, shm_size = self._docker_options()
        docker_args += self._mounts(command.env, model)
        docker_args += _start_options(command, docker_args)
        self._name_drafter(model, args)
        service_model = self._model(model, args)
        self._files_of_model(args, service_model)
        # In the order in which a person writes a service.
        service = {
            "name": unit,
            "model": service_model,
            "image": self._image(image, entry.get("entrypoint"), command.bare),
            "port": port or launch_port,
            "served_model_name": served_name,
            **keys,
            "args": self._moved_args(args),
            "env": self._service_env(command.env),
            "checks": checks_of(args),
            "pip": command.packages,
            "files": self.files,
            "shm_size": shm_size,
            "docker_args": docker_args,
        }
        return {key: value for key, value in service.items() if value or key == "args"}

    def spark_cluster(self, service: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the cluster of a launch that spans several Sparks."""
        return {"name": service["name"].replace("-", "_"), "services": [service]} if self.nodes > 1 else None

    def _served_name(self, args: dict[str, Any], model: str) -> str:
        """Take the served names out of the options; return the first."""
        served = args.pop("served-model-name", None)
        names = served if isinstance(served, list) else [served or model]
        for other in names[1:]:
            self.leave(f"--served-model-name {other}", "a service has one name; a gateway can give it more")
        return str(names[0])

    def _moved_args(self, args: Mapping[str, Any]) -> dict[str, Any]:
        moved = {key: self._moved(value) for key, value in sorted(args.items())}
        self._leave_missing_files(args)
        for key, value in moved.items():
            if value != args[key] and service_keys.MODEL_FOLDER not in str(value):
                self.leave(
                    f"--{key}", "names a file of the container; it is expected at its new place below spark_hf_home"
                )
        return moved

    def _model_name(self, parsed: launch.Parsed, words: Sequence[str], catalogued: bool) -> str:
        """Return the model of a command; raises C(Unreadable) without one."""
        if parsed.model is None:
            image = self.draft.run.image
            if self.draft.by_docker and not catalogued and "vllm" not in image:
                raise Unreadable(
                    f"the container runs {image or 'an image without a name'}, which does not look like vLLM"
                )
            why = "" if words else ": its image starts vllm serve, and nothing is given to it"
            if parsed.args.get("config"):
                why = (
                    f": its options are in {parsed.args['config']} (--config), which is not read; write them as options"
                )
            elif self.draft.run.command and not words:
                why = "; the script gets it as an argument ($@): pass the command with its arguments"
            raise Unreadable(f"no model is named on the command line of vllm serve{why}")
        if unknown := shell.unknown_names(parsed.model):
            raise Unreadable(f"the model {waits_for(unknown)}")
        return parsed.model

    def _leave_problems(self, parsed: launch.Parsed) -> None:
        """Record the options that vLLM would not accept; the rules judge values and unknown names."""
        for problem in parsed.problems:
            owned = problem.option.lstrip("-") in clustering.OWNED_ARGS
            if unknown := shell.unknown_names(problem.option):
                self.leave(problem.option, waits_for(unknown))
            elif problem.kind not in ("unknown", "bad_choice", "model_option") and not owned:
                self.leave(problem.option, f"{problem.detail}. {problem.fix}".strip())

    def _known_args(self, parsed_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options without those that wait for an unknown value; a key may be unknown."""
        args = {}
        for name, value in parsed_args.items():
            unknown = sorted({unknown for text in texts_of(value) for unknown in shell.unknown_names(text)})
            if unknown and name not in ("api-key", "hf-token"):
                self.leave(f"--{name}", waits_for(unknown))
            else:
                args[name] = value
        return args

    # --- several Sparks -------------------------------------------------------------------------------------------

    def _without_ranks(self, parsed_args: Mapping[str, Any]) -> dict[str, Any]:
        """Set the number of Sparks of a launch; return its options without those that a cluster sets itself."""
        args = {key: value for key, value in parsed_args.items() if key not in clustering.OWNED_ARGS}
        options = [args.get(f"{axis}-parallel-size") for axis in ("tensor", "pipeline")]
        sizes = [size for size in options if isinstance(size, int)]
        gpus = math.prod(size for size in sizes if size > 0)
        copies = self._replicas(parsed_args, gpus)
        nnodes = parsed_args.get("nnodes")
        if copies > 1:
            self.nodes = copies * gpus
        elif isinstance(nnodes, int) and nnodes > 1:
            self.nodes = nnodes
        else:
            self.nodes = gpus if sizes else self.draft.nodes or 1
        self._leave_replicas(parsed_args, args, copies)
        self._leave_nodes(gpus)
        return args

    def _leave_nodes(self, gpus: int) -> None:
        """Record how a launch for several Sparks is carried over. gpus: of one replica."""
        if self.nodes > 1:
            self.leave(
                "several Sparks",
                f"the launch spans {self.nodes}: it becomes a spark_cluster of {self.nodes} hosts, which gives each its rank, "
                "address, port and network interfaces",
            )
        elif self.draft.nodes > 1 and gpus == 1:
            self.leave("several Sparks", f"the launch is for {self.draft.nodes}, its options are for one")

    def _leave_replicas(self, parsed_args: Mapping[str, Any], args: dict[str, Any], copies: int) -> None:
        """Remove the options of replicas and ranks that are not carried over. copies: number of replicas."""
        for key in [key for key in parsed_args if key.startswith("data-parallel")]:
            if copies == 1:
                self.leave(f"--{key}", "replicas are separate services: define one service on each Spark")
            elif key != clustering.REPLICAS and key not in clustering.OWNED_ARGS:
                self.leave(f"--{key}", "the head gives each replica its requests, and nothing else balances them")
            else:
                continue
            args.pop(key, None)
        for key in clustering.OWNED_ARGS:
            if key in parsed_args and self.nodes == 1 and not key.startswith("data-parallel"):
                self.leave(f"--{key}", "one Spark has one GPU: an engine on it has no ranks")

    def _replicas(self, parsed_args: Mapping[str, Any], gpus: int) -> int:
        """Return the number of replicas that a launch spreads over Sparks as one engine, 1 if separate services suit better.

        One engine suits launches that distribute experts, or whose options place replicas on several hosts. gpus: of each.
        """
        copies = clustering.replicas_of(parsed_args)
        backends = (parsed_args.get("distributed-executor-backend"), parsed_args.get("data-parallel-backend"))
        placed = parsed_args.get("data-parallel-size-local") == 1 or any(
            parsed_args.get(key) is not None
            for key in ("data-parallel-address", "data-parallel-rpc-port", "data-parallel-start-rank", "nnodes")
        )
        over_hosts = placed or self.draft.nodes > 1 or bool(parsed_args.get("enable-expert-parallel"))
        return copies if over_hosts and "ray" not in backends and copies * gpus <= MOST_SPARKS else 1

    # --- image and options of docker ------------------------------------------------------------------------------

    def _image_name(self) -> str:
        """Return the image of the launch, empty if it waits for a value."""
        image = self.draft.run.image
        unknown = shell.unknown_names(image)
        if image and not unknown and not re.fullmatch(r"[A-Za-z0-9]\S*", image):
            raise Unreadable(f"{brief([image])!r} stands where the image belongs")
        if unknown:
            self.leave("image", f"{waits_for(unknown)}, or name an image")
        return "" if unknown else image

    def _image(self, ref: str, catalogued: str | None, bare: bool) -> Any:
        """Return the image; its entrypoint follows from the command if the catalogue lacks it. catalogued: its entrypoint."""
        run = self.draft.run
        if bare and ref:
            return {"ref": ref, "entrypoint": "passthrough"}
        if not ref or catalogued or run.values("--entrypoint") or not run.command or not self.draft.by_docker:
            return ref
        passed = program_name(run.command[0]) in ("vllm", "bash", "sh", "python3")
        return {"ref": ref, "entrypoint": "passthrough" if passed else "serve"}

    def _docker_options(self) -> tuple[list[str], str]:
        """Return the options of docker that are carried over, and the size of the shared memory."""
        docker_args: list[str] = []
        shm_size = ""
        for option, value in self.draft.run.options:
            if option in tables.READ_OPTIONS or (option, value) == ("--network", "host"):
                continue
            if option == "--shm-size" and value:
                shm_size = re.sub(r"(?i)(\d)\s*([bkmg])i?b?$", r"\1\2", value).lower()
                continue
            reason = self._why_dropped(option, value)
            if reason:
                self.leave(f"{option} {value}" if value is not None else option, reason)
            else:
                docker_args += [option] if value is None else [option, value]
        return docker_args, shm_size

    def _why_dropped(self, option: str, value: str | None) -> str:
        """Return why an option of docker run is not carried over, empty if it is."""
        if option == "--ulimit":
            return "every engine has it" if value in tables.OWN_ULIMITS else ""
        if option == "--network":
            return "engines use the host's network here; others on that one reach it by the host's address"
        if option == "--device" and "nvidia.com/gpu" in str(value):
            return tables.GPU
        if self.nodes > 1 and (option, str(value).partition(":")[0]) in tables.CLUSTER_OPTIONS:
            return "a spark_cluster gives its ranks the devices and rights that RDMA needs"
        if option.startswith("--health"):
            return "the unit is active when the model has answered"
        if option in tables.KEPT:
            return ""
        return tables.DROPPED.get(
            option, "nothing here is known of this option; put it into docker_args if it is needed"
        )

    # --- environment and secrets ----------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str | None]:
        """Return the variables of the container: env files first, then single variables, as docker does."""
        env: dict[str, str | None] = {}
        for path in self.draft.run.values("--env-file"):
            content = self.draft.files.get(path)
            if content is None:
                self.leave(f"--env-file {path}", "cannot be read here; add what it sets to env and secrets")
                continue
            for line in content.splitlines():
                name, equals, text = line.strip().partition("=")
                if not equals or name.startswith("#"):
                    continue
                if self.draft.form == "compose":  # compose expands it as a shell would; docker does not
                    name, text = name.removeprefix("export "), shell.expand(text.strip("\"'"), {})
                env[name.strip()] = text
        for name, assigned in self.draft.run.env.items():
            value = self.draft.variables.get(name) if assigned is None else assigned
            if value is not None or _is_secret(name, ""):
                env[name] = value
            else:
                self.leave(f"--env {name}", "is taken from the caller's environment, which is not known here")
        return env

    def _secret_files(self, env: dict[str, str | None], args: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the files on the controller that replace secrets; remove the secrets from C(env) and C(args)."""
        self._conceal_options(env, args)
        keys: dict[str, Any] = {"api_key_file": "", "secrets": {}}
        api_key = env.get("VLLM_API_KEY")
        for variable in sorted(name for name, value in env.items() if _is_secret(name, value or "")):
            value = env.pop(variable)
            if value == "":
                self.leave(variable, "is empty in the launch: there is no secret to keep")
                continue
            self.conceal(value)
            if variable in tables.HF_TOKENS:
                self.host_vars["spark_hf_token_file"] = f"{KEYS}/hf_token"
                reason = "engines run offline here; put it into a file and name that as spark_hf_token_file"
            elif variable == "VLLM_API_KEY":
                keys["api_key_file"] = f"{KEYS}/{name}_api_key"
                reason = "a secret: put it into the file that api_key_file names"
            elif api_key and value == api_key:
                reason = "contained the API key, which now comes from api_key_file"
            else:
                keys["secrets"][variable] = f"{KEYS}/{name}_{variable.lower()}"
                reason = "a secret: put it into the file that 'secrets' names"
            self.leave(variable, reason)
        return keys

    def _conceal_options(self, env: dict[str, str | None], args: dict[str, Any]) -> None:
        """Move keys and tokens of options to C(env); hide all other secrets of options."""
        for option, variable in launch.SECRET_VARIABLES.items():
            for text in texts_of(args.pop(option, None)):
                self.conceal(text)
                env.setdefault(variable, text)
        for option in [name for name in args if secret_names.is_secret_option(name)]:
            self.conceal(args.pop(option))
            self.leave(f"--{option}", "a secret: nothing here keeps one for an option")
        for place, text in list(plain_secrets.in_settings(args)):
            self.conceal(text)
            option = re.split(r"[.[]", place)[0]
            self.leave(f"--{option}", "contains a secret, which is hidden here; do not put secrets into args")

    def _service_env(self, env: Mapping[str, str | None]) -> dict[str, str]:
        service_env = {}
        for name, value in env.items():
            if reason := self._why_no_variable(name, value or ""):
                self.leave(name, reason)
            elif value is not None:
                service_env[name] = self._moved(value)
        return dict(sorted(service_env.items()))

    def _why_no_variable(self, name: str, value: str) -> str:
        """Return why a variable is not carried over, empty if it is."""
        if not self.draft.run.image and name in tables.MACHINE_ENV:
            return "is of the machine that it was typed on; the image has its own"
        if self.nodes > 1 and name in tables.CLUSTER_ENV:
            return "a spark_cluster finds the addresses and interfaces of each host itself"
        if name in tables.OWN_ENV:
            return "weights, caches, the GPU and offline use are the same for every engine here"
        for path in self.draft.dropped:
            if path_below(path, value) is not None:
                return f"points into {path}, whose volume is not carried over"
        unknown = shell.unknown_names(value) or re.findall(r"<[^<>]+>", value)
        return waits_for(unknown) if unknown else ""

    # --- addresses ------------------------------------------------------------------------------------------------

    def _port(self, typed: Any) -> tuple[int, bool]:
        """Return the port that clients used, and whether it was open to the network."""
        inside = typed if isinstance(typed, int) else 8000
        run = self.draft.run
        if "host" in run.values("--network") or not run.image:
            return inside, True
        answer: tuple[int, bool] | None = None
        for spec in run.values("--publish"):
            match = re.fullmatch(r"(?:(\[[^]]*\]|\d+(?:\.\d+){3}|localhost):)?(?:(\d+):)?(\d+)(?:/\w+)?", spec)
            if match and int(match.group(3)) == inside and answer is None:
                outside = not (match.group(1) or "").startswith(("127.", "localhost", "[::1]"))
                answer = int(match.group(2) or match.group(3)), outside
            else:
                self.leave(f"--publish {spec}", "engines use the host's network here; this is no port of the engine")
        return answer or (inside, False)

    def _leave_address(self, host: Any, is_open: bool) -> None:
        """Record the address that the engine listened on. is_open: whether its port was published without a key."""
        if is_open and host in (None, "0.0.0.0", "::"):
            self.leave(
                "open port",
                "it was reachable from the network without a key; engines listen on loopback here: set api_key_file, and name "
                "who may come by spark_allow_from",
            )
        if host is not None:
            self.leave(f"--host {host}", "where an engine listens follows from its key, see 'host' and spark_listen")

    # --- files ----------------------------------------------------------------------------------------------------

    def _mounts(self, env: Mapping[str, str | None], model: str) -> list[str]:
        """Sort the mounts: weights and caches belong to the roles, a model's folder is the service's model."""
        home = env.get("HF_HOME") or CONTAINER_HF_HOME
        docker_args: list[str] = []
        run = self.draft.run
        written = [(option, value) for option in ("--volume", "--mount") for value in run.values(option)]
        for (source, target), (option, value) in zip(run.mounts, written):
            spec = f"{option} {value}"
            if target in (home, f"{home}/hub"):
                self.moved_paths[home] = CONTAINER_HF_HOME
                self.leave(spec, "weights are kept in spark_hf_home; set it to that folder to keep its contents")
                if source.startswith("/") and target == home:
                    self.host_vars["spark_hf_home"] = source
            elif tables.CACHES.fullmatch(target):
                self.leave(spec, "compile caches are kept in spark_cache_dir")
            elif not self._is_model_mount(spec, source, target, model) and self._is_kept_mount(spec, source, target):
                docker_args += [option, value]
        return docker_args

    def _is_model_mount(self, spec: str, source: str, target: str, model: str) -> bool:
        """Return whether a mount holds the model, or a file inside its folder."""
        folder = self._path_on_host(model)
        if model in self.moved_paths and path_below(target, model) is not None:
            self.leave(spec, "contained the model, which the role models downloads")
        elif model == target:
            self.moved_paths[target] = f"{CONTAINER_HF_HOME}/local/{PurePosixPath(source).name}"
        elif folder != model and source.startswith(f"{folder}/"):
            self.files.append({"source": f"{service_keys.MODEL_FOLDER}{source[len(folder) :]}", "path": target})
        else:
            return False
        return True

    def _is_kept_mount(self, spec: str, source: str, target: str) -> bool:
        """Return whether a mount is carried over; record the reason if not."""
        if source.startswith(("/proc/", "/sys/")):
            self.leave(spec, "engines change nothing on their host here; its role and the unit's gate prepare memory")
            return False
        if not source:
            reason = "an anonymous volume is lost with its container"
        elif source.startswith(("~", ".")) or shell.unknown_names(source):
            reason = "a unit knows no home and no current folder: add it with an absolute path"
        elif not target.startswith("/"):  # C:\folder:/target
            reason = "is no folder of a Spark: add it with an absolute path"
        else:
            return True
        self.leave(spec, reason)
        self.draft.dropped.append(target)
        return False

    def _name_drafter(self, model: str, args: dict[str, Any]) -> None:
        """Name the drafter by its fetched repository; a checkpoint that is its own drafter needs no name."""
        spec, drafter = _drafter(args)
        if drafter is None:
            return
        repo, _revision = self._hub_source(drafter)
        if drafter == model:
            args["speculative-config"] = {key: value for key, value in spec.items() if key != "model"}
            self.leave(f"drafter {drafter}", "is the model itself, which vLLM takes by itself")
        elif repo:
            args["speculative-config"] = {**spec, "model": repo}

    def _model(self, typed: str, args: dict[str, Any]) -> dict[str, Any]:
        """Return the model, with further repositories to fetch for an engine that runs offline."""
        repo, snapshot = self._hub_source(typed)
        if repo:
            kind = "the folder of a download" if self._download_of(typed) else "a snapshot of the hub's cache"
            self.leave(typed, f"is {kind}: its repository and revision are named instead")
            typed = repo
            if snapshot:
                args.setdefault("revision", snapshot)
        revision = args.pop("revision", None)
        extra = self._extra_repositories(typed, args)
        if not typed.startswith(("/", "~", ".")):
            return {"repo": typed, **({"revision": str(revision)} if revision else {}), **extra}
        self.leave(
            typed, "model.path is a folder on the controller, copied from there: name it as the controller sees it"
        )
        path = self._path_on_host(typed)
        if unknown := shell.unknown_names(path):
            raise Unreadable(f"the model's folder {waits_for(unknown)}")
        return {"path": path, **extra}

    def _extra_repositories(self, model: str, args: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Return C({extra}), the repositories of drafter and tokenizer; of a tokenizer's only its files are fetched."""
        drafter = _drafter(args)[1]
        extra: dict[str, dict[str, Any]] = {}
        for repo, limits in ((drafter, {}), (args.get("tokenizer"), {"only": list(TOKENIZER_FILES)})):
            if isinstance(repo, str) and service_keys.REPO_NAME.fullmatch(repo) and repo != model:
                extra.setdefault(repo, {"repo": repo, **limits})
        if drafter is not None and drafter.startswith(("/", "~")):
            self.leave(
                f"drafter {drafter}",
                "is a folder of the old container: name its repository in speculative-config and below model.extra",
            )
        return {"extra": list(extra.values())} if extra else {}

    def _hub_source(self, path: str) -> tuple[str, str]:
        """Return repository and commit of a folder in the hub's cache, or of a download of the launch; empty texts for others."""
        download = self._download_of(path)
        return (download.repo, download.revision) if download else hub_snapshot(path)

    def _download_of(self, path: str, file: bool = False) -> Download | None:
        """Return the download that made a folder, or a file, of the container, or None."""
        for download in self.draft.downloads:
            places = (path, self._path_on_host(path))
            if bool(download.file) == file and any(path_below(download.folder, place) == "" for place in places):
                return download
        return None

    def _files_of_model(self, args: dict[str, Any], model: Mapping[str, Any]) -> None:
        """Replace files that the launch fetched from the model's repository by their path in the model's folder."""
        for name, value in args.items():
            download = self._download_of(value, True) if isinstance(value, str) and value.startswith("/") else None
            if download and download.repo == model.get("repo"):
                args[name] = f"{service_keys.MODEL_FOLDER}/{download.file}"
                self.leave(f"--{name} {value}", "is a file of the model's repository, which is fetched whole")

    def _leave_missing_files(self, args: Mapping[str, Any]) -> None:
        """Record the files that options name and no mount brings: they were made in the old container."""
        for option in tables.FILE_OPTIONS:
            value = args.get(option)
            if not isinstance(value, str) or not tables.FILE.fullmatch(value):
                continue
            if not any(value == target or value.startswith(f"{target}/") for _source, target in self.draft.run.mounts):
                self.leave(
                    f"--{option} {value}",
                    "is a file of the old container: put it on the controller, and name it under 'files' with an absolute path, "
                    "which the option then has",
                )

    def _path_on_host(self, path: str) -> str:
        for source, target in self.draft.run.mounts:
            if path == target or path.startswith(f"{target}/"):
                return source + path[len(target) :]
        return path

    def _moved(self, value: Any) -> Any:
        """Return a value with the paths of the old container replaced by those in the new one."""
        if isinstance(value, Mapping):
            return {key: self._moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._moved(item) for item in value]
        if isinstance(value, str):
            for old, new in self.moved_paths.items():
                if value == old or value.startswith(f"{old}/"):
                    return new + value[len(old) :]
        return value


def _drafter(args: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """Return the settings of speculative decoding, and the drafter that they name."""
    spec = args.get("speculative-config")
    drafter = spec.get("model") if isinstance(spec, Mapping) else None
    return (spec if isinstance(spec, Mapping) else {}), (drafter if isinstance(drafter, str) else None)


def _is_secret(name: str, value: str) -> bool:
    """Return whether a variable of a launch is a secret, also if its value is unknown or waits for another variable."""
    unknown = not value or "$" in value
    named = secret_names.is_secret_variable(name) and (unknown or redaction.could_be_secret(value, name))
    return named or redaction.holds_secret(value)


def _start_options(command: Engine, docker_args: Sequence[str]) -> list[str]:
    """Return the options of docker that follow from the command. docker_args: the options of the launch."""
    cpus = command.cpus if "--cpuset-cpus" not in docker_args else ""
    return [*(["--entrypoint", ""] if command.bare else []), *(["--cpuset-cpus", cpus] if cpus else [])]


def _service_name(text: str) -> str:
    """Return a name that a unit and a container can have."""
    return re.sub(r"[^a-z0-9]+", "-", program_name(text).lower()).strip("-")[:40].strip("-") or "imported"
