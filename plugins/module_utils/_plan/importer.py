# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn an existing launch of vLLM into an entry of C(spark_services).

There are two steps. C(import_sources) reads each form (a docker command, a compose file, a systemd unit, recipes of
others) into one C(Draft): docker's options, the words behind the image, variables. C(import_launch) makes the service
from it, with a reason for everything that is not carried over. Secrets are never part of the result.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from .._cluster import clustering
from .._common import plain_secrets, redaction, secret_names, shell
from .._common.docker_run import read_options
from .._compat.compat import check_launch, check_written
from .._compat.rules_unit import Written
from .._content.snapshots import TOKENIZER_FILES
from .._vllm import image_catalogue, launch, seccomp
from . import import_engine, import_inline, recipes, service_keys
from .import_config import add_config, checks_of
from .import_downloads import Download, holds, hub_snapshot
from .import_draft import OWN_IMAGE, Draft, Unreadable, texts_of
from .import_engine import Engine, brief, pip_packages, quiet
from .import_sources import FORMS, read_source
from .import_tables import (
    CACHES,
    CLUSTER_DOCKER_ARGS,
    CLUSTER_ENV,
    CLUSTER_OPTIONS,
    DROPPED,
    FILE,
    FILE_OPTIONS,
    HF_TOKENS,
    KEPT,
    MACHINE_ENV,
    OWN_DOCKER_ARGS,
    OWN_ENV,
    OWN_ULIMITS,
    READ_OPTIONS,
)
from .service_files import CONTAINER_HF_HOME

__all__ = ["FORMS", "Unreadable", "import_launch"]

HIDDEN = "(hidden)"
KEYS = ".secrets"  # relative to the inventory folder, and not read by Ansible
# The order in which a person writes a service.
ORDER = (
    "name",
    "model",
    "image",
    "port",
    "served_model_name",
    "api_key_file",
    "secrets",
    "args",
    "env",
    "checks",
    "pip",
    "files",
    "shm_size",
    "docker_args",
)

# The largest number that a switch is known to have joined.
MOST_SPARKS = 8

MOST_BYTES = 256 * 1024
"""Characters of a launch; the largest of 44 published ones has 21 KiB."""
MOST_WORDS = 500
"""Words of its command; the largest has 187. Each unknown one is compared with all options of vLLM."""


def import_launch(
    text: str,
    document: Any = None,
    *,
    form: str = "auto",
    name: str | None = None,
    port: int | None = None,
    image: str | None = None,
    variables: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
    select: str | None = None,
    variant: str | None = None,
    features: Sequence[str] | None = None,
    known_recipes: Mapping[str, Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    catalogue: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Turn a launch into a service.

    :param text: the launch
    :param document: the text as YAML, if it is YAML
    :param form: one of C(FORMS), or C(auto)
    :param name: of the service, instead of the launch's
    :param port: of the service, instead of the launch's
    :param image: of the service, instead of the launch's
    :param variables: values of C($NAME) and C({placeholder})
    :param files: content of env files by the path that names them
    :param scripts: content of the scripts next to the launch by their relative path
    :param select: one of several containers, by the name of the container, its workload or its service
    :param variant: of a vLLM recipe; a fitting one by default
    :param features: of a vLLM recipe
    :param known_recipes: recipes of this collection, for a model's missing config
    :param config: of the model, as its config.json has it
    :param catalogue: further image entries
    :returns: C({form, service, nodes, spark_cluster, host_vars, left_out, missing, findings, changes, compatible, before}).
        nodes: number of Sparks. spark_cluster: their cluster, C(None) for one Spark. before: verdicts of the rules on the
        unit or the docker command as written
    :raises Unreadable: if the text has no launch of vLLM
    """
    options = {"select": select, "variant": variant, "features": features}
    with shell.bounded():
        try:
            if len(text) > MOST_BYTES:
                raise Unreadable(f"it has more than {MOST_BYTES // 1024} KiB, which no launch has")
            draft = read_source(
                text,
                document,
                form,
                variables=dict(variables or {}),
                files=dict(files or {}),
                scripts=dict(scripts or {}),
                **options,
            )
            if (words := len(draft.run.command) + 2 * len(draft.run.options)) > MOST_WORDS:
                raise Unreadable(f"its command has {words} words; one of a launch has {MOST_WORDS} at most")
        except Unreadable as error:
            raise Unreadable(str(_hide(str(error), set()))) from None
        made = _Import(draft, catalogue)
        service = made.service(name, port, image)
        add_config(service, made.nodes, config, known_recipes or {}, made.leave)
        result = {**_result(draft, made, service), **_lint(service, made.nodes, catalogue)}
        return dict(_hide(result, made.secrets))


def _result(draft: Draft, made: _Import, service: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "form": draft.form,
        "service": service,
        "host_vars": made.host_vars,
        "left_out": made.left_out,
        "nodes": made.nodes,
        "spark_cluster": made.spark_cluster(service),
        "before": _judge_before(draft),
        "missing": recipes.resolve_service(service, "service", {}, {})[1],
    }


def _judge_before(draft: Draft) -> list[dict[str, Any]]:
    """Return findings about the unit or the docker command as written."""
    if draft.form not in ("docker", "systemd"):
        return []
    run = draft.run
    if draft.unit is not None:  # with its variables unexpanded
        with contextlib.suppress(ValueError):
            run = draft.unit.run or run
    return check_written(Written(draft.unit, run if run.image else None, draft.text))


def _lint(service: Mapping[str, Any], nodes: int, catalogue: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not service.get("image"):
        return {"findings": [], "compatible": False, "changes": []}
    image = service["image"] if isinstance(service["image"], Mapping) else {"ref": service["image"]}
    model, args, docker_args = service["model"], dict(service["args"]), list(OWN_DOCKER_ARGS)
    if nodes > 1:  # as the head of its spark_cluster runs it
        version = (image_catalogue.lookup(image["ref"], catalogue) or {}).get("vllm_version")
        cluster = clustering.Cluster(str(service["name"]), ["head"], "auto", [])
        executor = clustering.choose_executor(cluster, version, {}, None)[0]
        args = clustering.spanning_args(args, executor, 0, nodes, "head")
        docker_args += CLUSTER_DOCKER_ARGS
    service_docker_args = service.get("docker_args", [])
    if not seccomp.chosen(read_options(service_docker_args)[0]) and seccomp.needed_for(args, service.get("env") or {}):
        docker_args += ["--security-opt", "seccomp=io_uring.json"]  # as the plan gives it
    judged = check_launch(
        {
            "image": image["ref"],
            "entrypoint": image.get("entrypoint"),
            "model": {
                "repo": model.get("repo") or model.get("path"),
                "config": service.get("config"),
                "quant_config": service.get("quant_config"),
            },
            "args": args,
            "env": service.get("env"),
            "docker_args": [*docker_args, *service_docker_args, *_file_mounts(service)],
            "packages": service.get("pip"),
            "catalogue": list(catalogue),
            "nodes": nodes,
        }
    )
    changes = (judged.get("fixed") or {}).get("changes") or []
    return {"findings": judged["findings"], "compatible": judged["compatible"], "changes": changes}


def _file_mounts(service: Mapping[str, Any]) -> list[str]:
    return [word for file in service.get("files", []) for word in ("--volume", f"{file['source']}:{file['path']}:ro")]


def _hide(value: Any, secrets: set[str]) -> Any:
    """Return a value with all secrets hidden, in any place."""
    if isinstance(value, Mapping):
        return {_hide(key, secrets): _hide(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return redaction.clean_forms(value, HIDDEN)


class _Import:
    """Makes one service; records omissions and secrets on the way."""

    def __init__(self, draft: Draft, catalogue: Sequence[Mapping[str, Any]]) -> None:
        self.draft = draft
        self.catalogue = catalogue
        self.left_out: list[dict[str, str]] = list(draft.left_out)
        self.host_vars: dict[str, str] = {}
        self.secrets: set[str] = set()
        self.rewritten: dict[str, str] = {}  # path in the old container -> path in the new one
        self.packages: list[str] = []
        self.files: list[dict[str, str]] = []
        self.outer: dict[str, str | None] = {}
        self.nodes = 1
        self.cpus = ""
        self.bare = False  # the image's entrypoint is vllm, without serve
        # Recipes have their own start programs, which clear the entrypoint.
        self.by_docker = bool(draft.run.image) and draft.form in ("docker", "compose", "kubernetes", "systemd")
        for name, value in draft.variables.items():
            if _is_secret(name, value):
                self.conceal(value)

    def leave(self, item: str, reason: str) -> None:
        """Record once that something is not carried over."""
        entry = {"item": item, "reason": reason}
        if entry not in self.left_out:
            self.left_out.append(entry)

    def conceal(self, value: str | None) -> None:
        """Hide a secret in the result; hiding shorter texts would only garble others."""
        if value and len(value) >= 6 and not value.startswith("${"):
            self.secrets.add(value)

    def conceal_all(self, value: Any) -> None:
        """Hide every text of a value in the result."""
        for text in texts_of(value):
            self.conceal(text)

    # --- the service ----------------------------------------------------------------------------------------------

    def service(self, name: str | None, port: int | None, image: str | None) -> dict[str, Any]:
        """Return the service."""
        chosen = image or self._settled_image()
        entry = image_catalogue.lookup(chosen, self.catalogue) if chosen else None
        self.outer = self._environment()
        words, inner = self._engine_words(entry)
        env = {**self.outer, **inner}
        if not self.draft.run.command and not self.draft.run.image:
            raise Unreadable("there is neither an image nor a vllm serve command in it")
        parsed = launch.parse(words, (entry or {}).get("vllm_version"))
        model = self._check_parsed(parsed, words, entry)
        args = self._settled(self._spanned(parsed.args, words))
        own_port, reachable = self._port(args.pop("port", None))
        unit = _service_name(name or self.draft.name or model)
        result: dict[str, Any] = {"name": unit, "port": port or own_port}
        result["served_model_name"] = self._served_name(args, model)
        self._leave_download_dir(args)
        keys = self._secrets(env, args, unit)
        self._listening(args.pop("host", None), reachable, keys)
        if self._downloaded(model):
            self.rewritten[model] = service_keys.MODEL_FOLDER
        docker_args = self._docker_args(result, env, model)
        self._drafter(model, args)
        result["model"] = self._model(model, args)
        self._files_of_model(args, result["model"])
        result["image"] = self._image(chosen, entry) if chosen else None
        result["checks"] = checks_of(args)
        result["args"] = self._moved_args(args)
        result["env"] = {key: self._moved(value) for key, value in sorted(self._plain(env).items())}
        result.update(keys)
        result.update(docker_args=docker_args, pip=self.packages, files=self.files)
        return {key: result[key] for key in ORDER if result.get(key) or key == "args"}

    def _docker_args(self, result: dict[str, Any], env: Mapping[str, str | None], model: str) -> list[str]:
        docker_args = [*self._docker_options(result), *self._mounts(env, model)]
        if self.bare:
            docker_args += ["--entrypoint", ""]
        if self.cpus and "--cpuset-cpus" not in docker_args:
            docker_args += ["--cpuset-cpus", self.cpus]
        return docker_args

    def _served_name(self, args: dict[str, Any], model: str) -> str:
        served = args.pop("served-model-name", None)
        names = served if isinstance(served, list) else [served or model]
        for other in names[1:]:
            self.leave(f"--served-model-name {other}", "a service has one name; a gateway can give it more")
        return str(names[0])

    def _leave_download_dir(self, args: dict[str, Any]) -> None:
        if args.pop("download-dir", None):
            self.leave("--download-dir", "weights are kept in spark_hf_home, where they are fetched before the start")

    def _moved_args(self, args: Mapping[str, Any]) -> dict[str, Any]:
        moved = {key: self._moved(value) for key, value in sorted(args.items())}
        self._missing_files(args)
        for key, value in moved.items():
            if value != args[key] and service_keys.MODEL_FOLDER not in str(value):
                self.leave(
                    f"--{key}", "names a file of the container; it is expected at its new place below spark_hf_home"
                )
        return moved

    def _check_parsed(self, parsed: launch.Parsed, words: Sequence[str], entry: Mapping[str, Any] | None) -> str:
        """Return the model of a command; names options that cannot be carried over.

        :param parsed: the command
        :param words: the words of the command
        :param entry: the image's entry in the catalogue
        :raises Unreadable: without a model
        """
        image = self.draft.run.image
        if parsed.model is None:
            if self.by_docker and entry is None and "vllm" not in image:
                raise Unreadable(
                    f"the container runs {image or 'an image without a name'}, which does not look like vLLM"
                )
            why = "" if words else ": its image starts vllm serve, and nothing is given to it"
            if self.draft.run.command and not words:
                why = "; the script is given it by whoever calls it ($@): write the command as it is called"
            if parsed.args.get("config"):
                why = (
                    f": its options are in {parsed.args['config']} (--config), which is not read; write them as options"
                )
            raise Unreadable(f"no model is named on the command line of vllm serve{why}")
        waits = shell.unknown_names(parsed.model)
        if waits:
            raise Unreadable(f"the model waits for {', '.join(waits)}: say what that is (variables)")
        for problem in parsed.problems:
            owned = problem.option.lstrip("-") in clustering.OWNED_ARGS
            waits = shell.unknown_names(problem.option)
            if waits:
                self.leave(problem.option, f"waits for {', '.join(waits)}: say what that is (variables)")
                continue
            if problem.kind not in ("unknown", "bad_choice", "model_option") and not owned:
                self.leave(problem.option, f"{problem.detail}. {problem.fix}".strip())
        return parsed.model

    def spark_cluster(self, service: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the cluster of a launch that spans several Sparks."""
        return {"name": service["name"].replace("-", "_"), "services": [service]} if self.nodes > 1 else None

    def _spanned(self, parsed_args: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
        """Set the number of Sparks of a launch; return its options without those that a cluster sets itself."""
        args = {key: value for key, value in parsed_args.items() if key not in clustering.OWNED_ARGS}
        sizes = [args.get(f"{axis}-parallel-size") for axis in ("tensor", "pipeline")]
        world = math.prod(size for size in sizes if isinstance(size, int) and size > 0)
        copies = self._replicas(parsed_args, world)
        if copies > 1:
            self.nodes = copies * world
        elif isinstance(parsed_args.get("nnodes"), int) and parsed_args["nnodes"] > 1:
            self.nodes = parsed_args["nnodes"]
        else:
            self.nodes = world if any(isinstance(size, int) for size in sizes) else self.draft.nodes or 1
        self._leave_replicas(parsed_args, args, copies)
        self._leave_nodes(world)
        return args

    def _leave_nodes(self, world: int) -> None:
        if self.nodes > 1:
            self.leave(
                "several Sparks",
                f"the launch spans {self.nodes}: it becomes a spark_cluster of {self.nodes} hosts, which gives each its rank, "
                "address, port and network interfaces",
            )
        elif self.draft.nodes > 1 and world == 1:
            self.leave("several Sparks", f"the launch is for {self.draft.nodes}, its options are for one")

    def _leave_replicas(self, parsed_args: Mapping[str, Any], args: dict[str, Any], copies: int) -> None:
        """Remove the options of replicas and ranks that are not carried over. copies: number of replicas."""
        for key in [key for key in parsed_args if key.startswith("data-parallel")]:
            if copies == 1:
                self.leave(f"--{key}", "replicas are services of their own: serve the model on each Spark by itself")
            elif key != clustering.REPLICAS and key not in clustering.OWNED_ARGS:
                self.leave(f"--{key}", "the head gives each replica its requests, and nothing else balances them")
            else:
                continue
            args.pop(key, None)
        for key in clustering.OWNED_ARGS:
            if key in parsed_args and self.nodes == 1 and not key.startswith("data-parallel"):
                self.leave(f"--{key}", "one Spark has one GPU: an engine on it has no ranks")

    def _replicas(self, parsed_args: Mapping[str, Any], world: int) -> int:
        """Return the number of replicas that a launch spreads over Sparks as one engine, 1 if separate services suit better.

        One engine suits launches that distribute experts, or whose options place replicas on several hosts. world: GPUs of each.
        """
        copies = clustering.replicas_of(parsed_args)
        backends = (parsed_args.get("distributed-executor-backend"), parsed_args.get("data-parallel-backend"))
        apart = parsed_args.get("data-parallel-size-local") == 1 or any(
            parsed_args.get(key) is not None
            for key in ("data-parallel-address", "data-parallel-rpc-port", "data-parallel-start-rank", "nnodes")
        )
        over_hosts = apart or self.draft.nodes > 1 or bool(parsed_args.get("enable-expert-parallel"))
        return copies if over_hosts and "ray" not in backends and copies * world <= MOST_SPARKS else 1

    def _settled_image(self) -> str:
        """Return the image of the launch, empty if it waits for a value."""
        """Return the image of the launch, empty if it waits for a value."""
        image = self.draft.run.image
        waits = shell.unknown_names(image)
        if image and not waits and not re.fullmatch(r"[A-Za-z0-9]\S*", image):
            raise Unreadable(f"{brief([image])!r} stands where the image belongs")
        if waits:
            self.leave("image", f"waits for {', '.join(waits)}: say what that is (variables), or name an image")
        return "" if waits else image

    def _image(self, ref: str, entry: Mapping[str, Any] | None) -> Any:
        """Return the image; its entrypoint follows from the command if the catalogue lacks it."""
        run = self.draft.run
        if self.bare:
            return {"ref": ref, "entrypoint": "passthrough"}
        if (entry or {}).get("entrypoint") or run.values("--entrypoint") or not run.command or not self.by_docker:
            return ref
        typed = run.command[0].rpartition("/")[2]
        if typed in ("vllm", "bash", "sh", "python3"):
            return {"ref": ref, "entrypoint": "passthrough"}
        return {"ref": ref, "entrypoint": "serve"}

    def _docker_options(self, result: dict[str, Any]) -> list[str]:
        docker_args: list[str] = []
        for option, value in self.draft.run.options:
            if option in READ_OPTIONS or (option, value) == ("--network", "host"):
                continue
            if option == "--shm-size" and value:
                result["shm_size"] = re.sub(r"(?i)(\d)\s*([bkmg])i?b?$", r"\1\2", value).lower()
                continue
            reason = self._why_dropped(option, value)
            if reason:
                self.leave(f"{option} {value}" if value is not None else option, reason)
            else:
                docker_args += [option] if value is None else [option, value]
        return docker_args

    def _why_dropped(self, option: str, value: str | None) -> str:
        """Return why an option of docker run is not carried over, empty if it is."""
        if option == "--ulimit" and value in OWN_ULIMITS:
            return "every engine has it"
        if option == "--network":
            return "engines use the host's network here; others on that one reach it by the host's address"
        if option == "--device" and "nvidia.com/gpu" in str(value):
            return DROPPED["--gpus"]
        if self.nodes > 1 and (option, str(value).partition(":")[0]) in CLUSTER_OPTIONS:
            return "a spark_cluster gives its ranks the devices and rights that RDMA needs"
        if option in DROPPED:
            return DROPPED[option]
        if option.startswith("--health"):
            return "the unit is active when the model has answered"
        if option in KEPT or option == "--ulimit":
            return ""
        return "nothing here is known of this option; put it into docker_args if it is needed"

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

    def _secrets(self, env: dict[str, str | None], args: dict[str, Any], name: str) -> dict[str, Any]:
        """Turn every secret into a file on the controller and remove it from C(env) and C(args)."""
        self._option_secrets(env, args)
        folder = KEYS
        keys: dict[str, Any] = {}
        api_key = env.get("VLLM_API_KEY")
        for variable in sorted(name for name, value in env.items() if _is_secret(name, value or "")):
            value = env.pop(variable)
            if value == "":
                self.leave(variable, "is empty in the launch: there is no secret to keep")
                continue
            self.conceal(value)
            if variable in HF_TOKENS:
                self.host_vars["spark_hf_token_file"] = f"{folder}/hf_token"
                self.leave(
                    variable, "engines run offline here; put it into a file and name that as spark_hf_token_file"
                )
            elif variable == "VLLM_API_KEY":
                keys["api_key_file"] = f"{folder}/{name}_api_key"
                self.leave(variable, "a secret: put it into the file that api_key_file names")
            elif api_key and value == api_key:
                self.leave(variable, "held the API key, which comes from api_key_file now")
            else:
                keys.setdefault("secrets", {})[variable] = f"{folder}/{name}_{variable.lower()}"
                self.leave(variable, "a secret: put it into the file that 'secrets' names")
        return keys

    def _option_secrets(self, env: dict[str, str | None], args: dict[str, Any]) -> None:
        """Move keys and tokens of options to C(env); hide all other secrets of options."""
        for option, variable in (("api-key", "VLLM_API_KEY"), ("hf-token", "HF_TOKEN")):
            value = args.pop(option, None)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    self.conceal(text)
                    env.setdefault(variable, text)
        for option in [name for name in args if secret_names.is_secret_option(name)]:
            self.conceal_all(args.pop(option))
            self.leave(f"--{option}", "a secret: nothing here keeps one for an option")
        for place, text in list(plain_secrets.in_settings(args)):
            self.conceal(text)
            self.leave(
                f"--{re.split(r'[.[]', place)[0]}", "holds a secret, which is hidden here; args are no place for it"
            )

    def _plain(self, env: Mapping[str, str | None]) -> dict[str, str]:
        """Return the variables that belong to the service."""
        plain = {}
        for name, value in env.items():
            reason = self._why_no_variable(name, value or "")
            if reason:
                self.leave(name, reason)
            elif value is not None:
                plain[name] = value
        return plain

    def _why_no_variable(self, name: str, value: str) -> str:
        """Return why a variable is not carried over, empty if it is."""
        if not self.draft.run.image and name in MACHINE_ENV:
            return "is of the machine that it was typed on; the image has its own"
        if self.nodes > 1 and name in CLUSTER_ENV:
            return "a spark_cluster finds the addresses and interfaces of each host itself"
        if name in OWN_ENV:
            return "weights, caches, the GPU and offline use are the same for every engine here"
        inside = next((path for path in self.draft.dropped if holds(path, value) is not None), None)
        if inside is not None:
            return f"points into {inside}, whose volume is not carried over"
        waits = shell.unknown_names(value) or re.findall(r"<[^<>]+>", value)
        return f"waits for {', '.join(waits)}: say what that is (variables)" if waits else ""

    # --- the command ----------------------------------------------------------------------------------------------

    def _engine_words(self, entry: Mapping[str, Any] | None) -> tuple[list[str], dict[str, str | None]]:
        """Return the words of vllm serve, and the variables set in front of it. entry: the image's entry in the catalogue."""
        entrypoint = next(iter(reversed(self.draft.run.values("--entrypoint"))), None)
        words = [*(entrypoint or "").split(), *self.draft.run.command]
        catalogued = (entry or {}).get("entrypoint")
        typed = self.draft.typed
        engine = import_engine.find(words, _known_values(self.outer))
        complete = engine is not None and self.by_docker and (typed or entrypoint is not None)
        if complete and not catalogued:
            self.bare = True  # the command starts vllm itself, with any entrypoint of the image
        elif entrypoint is not None:
            self.leave(f"--entrypoint {entrypoint or repr('')}", "the image's own entrypoint is used")
        engine = engine or self._started_by_image(words, catalogued)
        if engine is None:
            self._check_serves(words, entrypoint, catalogued == "serve")
            engine = Engine(words=words)
        elif catalogued == "serve" and entrypoint is None and not typed:
            self._leave_second_serve(words)
        serve_words = engine.words
        while serve_words[:2] == ["vllm", "serve"]:
            self.leave("vllm serve", "stands there twice")
            serve_words = serve_words[2:]
        return serve_words, self._around(engine)

    def _leave_second_serve(self, words: Sequence[str]) -> None:
        """Record a command C(vllm serve) that repeats the image's entrypoint."""
        if self.by_docker and words and words[0].rpartition("/")[2] == "vllm":
            self.leave(
                "vllm serve", "is the entrypoint of this image; typed again, its second word is taken for the model"
            )

    def _started_by_image(self, words: Sequence[str], catalogued: str | None) -> Engine | None:
        """Return the engine of a container without vllm in its command, if variables or C(serve) make the image start one."""
        started = None if words else import_engine.by_variables(self.draft.run.image, self.outer)
        if started:
            engine, read_variables = started
            self.bare = True
            self.outer = {name: value for name, value in self.outer.items() if name not in read_variables}
            self.leave(
                "the image's own start script",
                "its variables are read as options of vllm serve, which is typed whole here; what else the script does is not known",
            )
            return engine
        if words[:1] == ["serve"] and not catalogued and self.by_docker:
            self.bare = True
            self.leave("serve", "the image runs vllm itself; 'vllm serve' is typed whole here, without its entrypoint")
            return Engine(words=list(words[1:]))
        return None

    def _check_serves(self, words: Sequence[str], entrypoint: str | None, serves: bool) -> None:
        """Refuse a container whose command is no C(vllm serve) and cannot be options of one.

        :param words: the command, entrypoint first
        :param entrypoint: of the launch
        :param serves: whether the image's entrypoint is vllm serve
        :raises Unreadable: with the program that it runs
        """
        if not self.by_docker and not words:
            return
        mounted = any(words[:1] == [target] for _source, target in self.draft.run.mounts)
        alone = len(words) == 1 and words[0].startswith("/") and not mounted
        program = self._other_program(words, entrypoint, alone, serves)
        path = import_inline.script_path(words)
        if program and (path or alone):
            shown = program if path in program or not path else f"{program} {path}"
            raise Unreadable(
                f"the container runs {shown}, not vllm serve; what that starts is not in this text: give the script itself, or the "
                "command that it ends with (docker top shows it)"
            )
        if program:
            raise Unreadable(f"the container runs {program}, not vllm serve")
        if not words and not serves:
            raise Unreadable(self._unknown_start())

    def _other_program(self, words: Sequence[str], entrypoint: str | None, alone: bool, serves: bool) -> str:
        """Return the program that a container runs instead of vLLM, empty if its words can be options. alone: only a path."""
        program = import_engine.program(words) or (brief(words[:1]) if entrypoint else "")
        bare = bool(words) and "/" not in words[0] and not words[0].startswith(("-", "$", "{", "<"))
        return brief(words[:1]) if not program and not serves and self.by_docker and (alone or bare) else program

    def _unknown_start(self) -> str:
        """Return why a container without a command cannot be imported."""
        image = self.draft.run.image or "the image"
        ours = {*OWN_ENV, *MACHINE_ENV, *CLUSTER_ENV, *HF_TOKENS}
        names = [name for name in self.outer if name not in ours and not name.startswith(("NCCL_", "NVIDIA_"))]
        if "vllm" not in image and not any("VLLM" in name or "MODEL" in name for name in names):
            return f"the container runs {image}, which does not look like vLLM"
        shown = f" ({', '.join(names[:8])})" if names else ""
        return (
            f"{image} is started by variables of its own{shown}: the vllm serve command that its start script makes of them is "
            "not known here; give that command (docker top shows it)"
        )

    def _around(self, engine: Engine) -> dict[str, str | None]:
        """Record the commands around the engine; return the variables that were set there."""
        self.cpus = engine.cpus
        for item, reason in engine.left_out:
            self.leave(item, reason)
        for words in engine.beside:
            packages = pip_packages(words)
            if self.draft.note_download(words):
                continue
            if packages:
                self.packages += packages
            elif not quiet(words):
                self.leave(
                    brief(words),
                    f"ran before the engine by {engine.program}; put what it does into {OWN_IMAGE}",
                )
        for name in engine.unset:
            self.outer.pop(name, None)
        inner: dict[str, str | None] = {}
        for name, value in engine.env.items():
            if name in MACHINE_ENV:
                self.leave(f"{name}={value}", "the image's own is kept")
            else:
                inner[name] = value
        return inner

    def _settled(self, parsed_args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options without those that wait for an unknown value."""
        args = {}
        for name, value in parsed_args.items():
            waits = sorted({unknown for text in texts_of(value) for unknown in shell.unknown_names(text)})
            if waits and name in ("api-key", "hf-token"):
                args[name] = value
            elif waits:
                self.leave(f"--{name}", f"waits for {', '.join(waits)}: say what that is (variables)")
            else:
                args[name] = value
        return args

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

    def _listening(self, host: Any, reachable: bool, keys: Mapping[str, Any]) -> None:
        if host not in (None, "0.0.0.0", "::"):
            reachable = False
        if reachable and "api_key_file" not in keys:
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
                self.rewritten[home] = CONTAINER_HF_HOME
                self.leave(
                    spec,
                    "weights are kept in spark_hf_home; name that folder there to keep what it holds",
                )
                if source.startswith("/") and target == home:
                    self.host_vars["spark_hf_home"] = source
            elif CACHES.fullmatch(target):
                self.leave(spec, "compile caches are kept in spark_cache_dir")
            elif not self._is_model_mount(spec, source, target, model) and self._is_kept_mount(spec, source, target):
                docker_args += [option, value]
        return docker_args

    def _is_model_mount(self, spec: str, source: str, target: str, model: str) -> bool:
        """Return whether a mount holds the model, or a file inside its folder."""
        folder = self._outside(model)
        if model in self.rewritten and holds(target, model) is not None:
            self.leave(spec, "held the model, which the role models fetches")
        elif model == target:
            self.rewritten[target] = f"{CONTAINER_HF_HOME}/local/{PurePosixPath(source).name}"
        elif folder != model and source.startswith(f"{folder}/"):
            self.files.append({"source": f"{service_keys.MODEL_FOLDER}{source[len(folder) :]}", "path": target})
        else:
            return False
        return True

    def _is_kept_mount(self, spec: str, source: str, target: str) -> bool:
        """Return whether a mount is carried over; record the reason if not."""
        if source.startswith(("/proc/", "/sys/")):
            self.leave(spec, "engines change nothing on their host here; its role and the unit's gate prepare memory")
        elif source.startswith(("~", ".")) or shell.unknown_names(source):
            self.leave(spec, "a unit knows no home and no current folder: add it with an absolute path")
            self.draft.dropped.append(target)
        elif not source:
            self.leave(spec, "an anonymous volume is lost with its container")
            self.draft.dropped.append(target)
        else:
            return True
        return False

    def _drafter(self, model: str, args: dict[str, Any]) -> None:
        """Name the drafter by its fetched repository; a checkpoint that is its own drafter needs no name."""
        spec = args.get("speculative-config")
        drafter = spec.get("model") if isinstance(spec, Mapping) else None
        if not isinstance(spec, Mapping) or not isinstance(drafter, str):
            return
        repo, _revision = self._of_hub(drafter)
        if drafter == model:
            args["speculative-config"] = {key: value for key, value in spec.items() if key != "model"}
            self.leave(f"drafter {drafter}", "is the model itself, which vLLM takes by itself")
        elif repo:
            args["speculative-config"] = {**spec, "model": repo}

    def _model(self, typed: str, args: dict[str, Any]) -> dict[str, Any]:
        """Return the model, with further repositories to fetch for an engine that runs offline."""
        repo, snapshot = self._of_hub(typed)
        if repo:
            kind = "the folder of a download" if self._downloaded(typed) else "a snapshot of the hub's cache"
            self.leave(typed, f"is {kind}: its repository and revision are named instead")
            typed = repo
            if snapshot:
                args.setdefault("revision", snapshot)
        revision = args.pop("revision", None)
        spec = args.get("speculative-config")
        drafter, tokenizer = spec.get("model") if isinstance(spec, Mapping) else None, args.get("tokenizer")
        extra: dict[str, dict[str, Any]] = {}
        # Only the tokenizer files of a tokenizer's repository are fetched.
        for other, more in ((drafter, {}), (tokenizer, {"only": list(TOKENIZER_FILES)})):
            if isinstance(other, str) and service_keys.REPO_NAME.fullmatch(other) and other != typed:
                extra.setdefault(other, {"repo": other, **more})
        fetched_too = {"extra": list(extra.values())} if extra else {}
        if isinstance(drafter, str) and drafter.startswith(("/", "~")):
            self.leave(
                f"drafter {drafter}",
                "is a folder of the old container: name its repository in speculative-config and below model.extra",
            )
        if typed.startswith(("/", "~", ".")):
            self.leave(
                typed, "model.path is a folder on the controller, copied from there: name it as the controller sees it"
            )
            path = self._outside(typed)
            waits = shell.unknown_names(path)
            if waits:
                raise Unreadable(f"the model's folder waits for {', '.join(waits)}: say what that is (variables)")
            return {"path": path, **fetched_too}
        return {"repo": typed, **({"revision": str(revision)} if revision else {}), **fetched_too}

    def _of_hub(self, path: str) -> tuple[str, str]:
        """Return repository and commit of a folder in the hub's cache, or of a download of the launch; empty texts for others."""
        download = self._downloaded(path)
        return (download.repo, download.revision) if download else hub_snapshot(path)

    def _downloaded(self, path: str, file: bool = False) -> Download | None:
        """Return the download that made a folder, or a file, of the container, or None."""
        for download in self.draft.downloads:
            places = (path, self._outside(path))
            if bool(download.file) == file and any(holds(download.folder, place) == "" for place in places):
                return download
        return None

    def _files_of_model(self, args: dict[str, Any], model: Mapping[str, Any]) -> None:
        """Replace files that the launch fetched from the model's repository by their path in the model's folder."""
        for name, value in args.items():
            download = self._downloaded(value, True) if isinstance(value, str) and value.startswith("/") else None
            if download and download.repo == model.get("repo"):
                args[name] = f"{service_keys.MODEL_FOLDER}/{download.file}"
                self.leave(f"--{name} {value}", "is a file of the model's repository, which is fetched whole")

    def _missing_files(self, args: Mapping[str, Any]) -> None:
        """Record the files that options name and no mount brings: they were made in the old container."""
        brought = [target for _source, target in self.draft.run.mounts]
        for option in FILE_OPTIONS:
            value = args.get(option)
            if (
                isinstance(value, str)
                and FILE.fullmatch(value)
                and not any(value == target or value.startswith(f"{target}/") for target in brought)
            ):
                self.leave(
                    f"--{option} {value}",
                    "is a file of the old container: put it on the controller, and name it under 'files' with an absolute path, which the option then has",
                )

    def _outside(self, path: str) -> str:
        """Return the host's path of a path in the container."""
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
            for old, new in self.rewritten.items():
                if value == old or value.startswith(f"{old}/"):
                    return new + value[len(old) :]
        return value


def _known_values(env: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in env.items() if value is not None}


def _is_secret(name: str, value: str) -> bool:
    """Return whether a variable of a launch is a secret, also if its value is unknown or waits for another variable."""
    unknown = not value or "$" in value
    named = secret_names.is_secret_variable(name) and (unknown or redaction.could_be_secret(value, name))
    return named or redaction.holds_secret(value)


def _service_name(text: str) -> str:
    """Return a name that a unit and a container can have."""
    leaf = text.rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", leaf).strip("-")[:40].strip("-") or "imported"
