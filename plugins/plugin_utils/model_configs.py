# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Complete services that name a model and no recipe (C(model: Org/Name)): with a recipe, or with config.json, commit and image.

A recipe for that model is used if one exists. Otherwise config.json comes from the folder C(.spark/models) of the
fleet, a Hugging Face cache of the controller, or the hub, in this order. The kept file pins the commit; remove the file to
move on. No import of Ansible.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text, reader
from ansible_collections.dgxspark.vllm.plugins.module_utils._content.hub_access import HUB, judge
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import http_client
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue, image_catalogue
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm.versions import version
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.files import write

FOLDER = "models"
SCHEMA = 1
_HUB_ADDRESS = re.compile(r"https?://(?:huggingface\.co|hf\.co)/(?P<repo>[\w.-]+/[\w.-]+)")
REPOSITORY = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,120}))?")
RELEASE = re.compile(r"\d+(?:\.\d+){2,3}(?:\.post\d+)?")
"""A released vLLM: builds between releases are chosen by people who know why."""
COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT = 10.0
"""Seconds for each file of the hub; only the first plan with a model downloads its files."""
MOST_REDIRECTS = 3
MOST_CONFIG = 2 * 2**20
"""Bytes of a config.json; the largest known one, with a list of quantised layers, has 70 kB."""
CACHES = ("/srv/huggingface/hub",)
"""The cache of the collection, for a controller on a Spark."""
ANSWERS_FOR_ITSELF = ("recipe", "config", "memory", "memory_gib")
"""Keys that already tell the plan how large the model is."""


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model at a commit. quant_config: content of hf_quant_config.json, empty without that file."""

    repo: str
    commit: Annotated[str, reader.COMMIT]
    config: dict[str, Any]
    quant_config: dict[str, Any]
    source: str


class Unknown(Exception):
    """The configuration of a model cannot be read; the message says why and which file to give."""


class ModelConfigs:
    """Looks up configurations of models, each once a run."""

    def __init__(self, folder: Path | None, keep: bool) -> None:
        """Read nothing yet. keep: write what the hub answered."""
        self.folder = folder
        self.keep = keep
        self._seen: dict[tuple[str, str], ModelConfig | Unknown] = {}

    def find(self, repo: str, revision: str, endpoint: str, token: str) -> ModelConfig:
        """Return the configuration of a model. Raises Unknown if no source has it. revision: branch, tag or commit."""
        key = (repo, revision)
        if key not in self._seen:
            try:
                model_config = self._read_kept(repo, revision) or _cached(repo, revision)
                if model_config is None:
                    model_config = _downloaded(repo, revision, endpoint or HUB, token)
                    self._keep(model_config, revision)
                self._seen[key] = model_config
            except Unknown as error:
                self._seen[key] = error
        answer = self._seen[key]
        if isinstance(answer, Unknown):
            raise answer
        return answer

    def _path(self, repo: str, revision: str) -> Path | None:
        name = f"{repo}@{revision}".replace("/", "--")
        return self.folder / f"{name}.json" if self.folder else None

    def _read_kept(self, repo: str, revision: str) -> ModelConfig | None:
        path = self._path(repo, revision)
        if path is None or not path.is_file():
            return None
        try:
            content = foreign_text.parse_json(path.read_bytes(), str(path), finite=False)
            model_config: ModelConfig = reader.read(ModelConfig, content, path.name)
        except (OSError, ValueError) as error:
            raise Unknown(f"{path} cannot be read ({error}). Remove the file to ask the hub again.") from None
        if content.get("schema") != SCHEMA or model_config.repo != repo:
            raise Unknown(f"{path} was written by another release. Remove the file to ask the hub again.")
        return replace(model_config, source=str(path))

    def _keep(self, model_config: ModelConfig, revision: str) -> None:
        path = self._path(model_config.repo, revision)
        if path is None or not self.keep:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, json.dumps({"schema": SCHEMA, **asdict(model_config)}, indent=1, sort_keys=True) + "\n")


def complete_services(
    hosts: Mapping[str, dict[str, Any]],
    recipes: Mapping[str, Mapping[str, Any]],
    configs: ModelConfigs,
    messages: list[str],
) -> None:
    """Complete each service that names a model without a recipe.

    hosts: by name, with C(vars), in which services are replaced. messages: receives the problems.
    """
    for name, host in hosts.items():
        variables = host["vars"]
        for where, holder, key in _service_lists(variables):
            services = holder[key]
            completed = []
            for index, service in enumerate(services):
                try:
                    completed.append(_complete(service, variables, recipes, configs))
                except Unknown as error:
                    title = f" ({service['name']})" if isinstance(service.get("name"), str) else ""
                    messages.append(f"host {name}, {where}[{index}]{title}: {error}")
                    # A valid service in its place, so that messages about other services keep their index.
                    known = {key: service[key] for key in ("name", "port") if key in service}
                    single = (other for other, recipe in recipes.items() if int(recipe.get("nodes") or 1) == 1)
                    completed.append({**known, "recipe": min(single)})
            holder[key] = completed


def _service_lists(variables: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the lists of services in the variables of a host: name, and the mapping and key with the list."""
    if isinstance(variables.get("spark_services"), list):
        yield "spark_services", variables, "spark_services"
    cluster = variables.get("spark_cluster")
    if isinstance(cluster, Mapping) and isinstance(cluster.get("services"), list):
        variables["spark_cluster"] = dict(cluster)
        yield "spark_cluster.services", variables["spark_cluster"], "services"


def _recipe_for(repo: str, recipes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the recipe of a model for the fewest Sparks, then the first by name."""
    names = [name for name, recipe in recipes.items() if _repo_of(recipe) == repo.lower() and ":" not in name]
    return min(names, key=lambda name: (int(recipes[name].get("nodes") or 1), name), default=None)


def _complete(
    service: Any, variables: Mapping[str, Any], recipes: Mapping[str, Mapping[str, Any]], configs: ModelConfigs
) -> Any:
    """Return a service with the recipe or the configuration of its model; any other entry unchanged.

    A service with C(model: {repo: ...}) and an image stays unchanged: the image is asked with the config.json of its host.
    """
    if not isinstance(service, Mapping) or not service.get("model"):
        return service
    model, image = service["model"], service.get("image")
    if isinstance(model, str):
        model = _read_name(model)
        service = {**service, "model": model}
    elif image:
        return service
    has_repo = isinstance(model, Mapping) and bool(model.get("repo"))
    if not has_repo or any(service.get(key) for key in ANSWERS_FOR_ITSELF):
        return service
    repo, revision = str(model["repo"]), str(model.get("revision") or "main")
    recipe = None if model.get("revision") else _recipe_for(repo, recipes)
    if recipe:
        completed = {**service, "recipe": recipe}
        del completed["model"]
        return completed
    model_config = configs.find(repo, revision, str(variables.get("spark_hf_endpoint") or ""), _read_token(variables))
    image = image or {"ref": choose_image(model_config, recipes)}
    return {**service, "model": {**model, "revision": model_config.commit}, **_configs(model_config), "image": image}


def _configs(model_config: ModelConfig) -> dict[str, Any]:
    """Return the configurations of a model as keys of a service."""
    quant_config = {"quant_config": model_config.quant_config} if model_config.quant_config else {}
    return {"config": model_config.config, **quant_config}


def _read_name(text: str) -> dict[str, Any]:
    """Return the model that a text names, C(ORG/NAME) or C(ORG/NAME@REVISION). Raises Unknown if the text names no model."""
    match = REPOSITORY.fullmatch(text)
    if match:
        return {key: value for key, value in match.groupdict().items() if value}
    if text.startswith(("/", "./", "~")):
        fix = f"Write model: {{path: {text}}} for a folder of weights on the controller."
        raise Unknown(f"'model' is the path {text!r}. {fix}")
    hint, address = "", _HUB_ADDRESS.match(text)
    if address:
        hint = f" Write model: {address['repo']}."
    elif "gguf" in text.lower():
        hint = " Names with a GGUF file are llama.cpp's and Ollama's: list them in spark_ollama, or name a model with safetensors."
    elif ":" in text:
        hint = " Names such as llama3:70b are Ollama's: list them in spark_ollama, or name the model on Hugging Face."
    raise Unknown(f"'model' is {text!r}, which is not ORG/NAME of a model on Hugging Face.{hint}")


def _repo_of(recipe: Mapping[str, Any]) -> str:
    model = recipe.get("model")
    return str(model.get("repo") or "").lower() if isinstance(model, Mapping) else ""


def choose_image(model_config: ModelConfig, recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the newest image whose vLLM serves a model: from the recipes, else from the catalogue.

    Raises Unknown if no known image serves the architecture.
    """
    architecture = str(next(iter(model_config.config.get("architectures") or ()), ""))
    used = (str(image.get("ref")) for recipe in recipes.values() for image in recipe.get("images") or ())
    listed = (str(entry["image"]) for entry in image_catalogue.IMAGES)
    for references in (used, listed):
        versions = ((reference, _sound_release(reference)) for reference in references)
        candidates = {
            reference: version(text)
            for reference, text in versions
            if text and catalogue.has("architectures", architecture, version(text))
        }
        if candidates:
            return max(candidates, key=lambda reference: (candidates[reference], reference))
    raise Unknown(
        f"no image is known whose vLLM serves {architecture or 'a model without architectures in config.json'} ({model_config.repo}). "
        "Name one: image: {ref: REPOSITORY:TAG}."
    )


def _sound_release(reference: str) -> str:
    """Return the released vLLM of a pinned image for Sparks without known defects, empty for another image."""
    entry = image_catalogue.lookup(reference) or {}
    text = str(entry.get("vllm_version") or "")
    is_sound = RELEASE.fullmatch(text) and "*" not in reference and entry["arm64"] is not False
    return text if is_sound and not entry["moving"] and not entry["defects"] else ""


# --- sources of config.json -------------------------------------------------------------------------------------


def _cached(repo: str, revision: str) -> ModelConfig | None:
    """Return the configuration of a model in a Hugging Face cache of the controller, None if no cache has it."""
    # The environment variables of the hub client.
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    for cache in filter(None, (os.environ.get("HF_HUB_CACHE"), f"{Path(home).expanduser()}/hub", *CACHES)):
        folder = Path(cache, f"models--{repo.replace('/', '--')}")
        try:
            commit = revision
            if not COMMIT.fullmatch(revision):
                commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
            snapshot = folder / "snapshots" / commit
            if not COMMIT.fullmatch(commit) or not (snapshot / "config.json").is_file():
                continue
            config = _parse((snapshot / "config.json").read_bytes(), f"{snapshot}/config.json")
            extra = snapshot / "hf_quant_config.json"
            quant_config = _parse(extra.read_bytes(), str(extra)) if extra.is_file() else {}
        except OSError:
            continue
        return ModelConfig(repo, commit, config, quant_config, str(snapshot))
    return None


def _downloaded(repo: str, revision: str, endpoint: str, token: str) -> ModelConfig:
    """Download the configuration of a model. Raises Unknown if the hub does not answer with a configuration."""
    commit, body = _get(f"{endpoint.rstrip('/')}/{repo}/resolve/{revision}/config.json", token, repo)
    if body is None:
        why = f"{repo} has no config.json at revision {revision}"
        raise Unknown(f"{why}; vLLM cannot serve it without one. Check the name.")
    commit = revision if COMMIT.fullmatch(revision) else commit
    if not COMMIT.fullmatch(commit):
        fix = f"Write model: {{repo: {repo}, revision: COMMIT}}."
        raise Unknown(f"{endpoint} does not name the commit of {repo}@{revision}. {fix}")
    _commit, extra = _get(f"{endpoint.rstrip('/')}/{repo}/resolve/{commit}/hf_quant_config.json", token, repo)
    quant_config = _parse(extra, f"hf_quant_config.json of {repo}") if extra else {}
    return ModelConfig(repo, commit, _parse(body, f"config.json of {repo}"), quant_config, endpoint)


def _get(url: str, token: str, repo: str) -> tuple[str, bytes | None]:
    """Return commit and content of a file of the hub, None for a missing file. Raises Unknown for any other answer."""
    name = url.rpartition("/")[2]
    give = (
        f"Give the file: download {name} of {repo} and put its content under 'config' of the service, "
        "or run the plan once where the hub can be reached"
    )
    commit, host = "", urlsplit(url).netloc
    try:
        for _redirect in range(MOST_REDIRECTS):
            headers = {"Authorization": f"Bearer {token}"} if token and urlsplit(url).netloc == host else {}
            reply = http_client.fetch(url, headers=headers, timeout=TIMEOUT, proxies=True)
            commit = commit or reply.headers.get("x-repo-commit", "")
            if reply.status not in (301, 302, 303, 307, 308):
                break
            url = urljoin(url, reply.headers.get("location", ""))
    except (OSError, ValueError) as error:
        why = f"config.json of {repo} is in no cache here, and {host} does not answer"
        raise Unknown(f"{why} ({getattr(error, 'reason', error)}). {give}.") from None
    if reply.status == 200:
        return commit, reply.body
    if reply.status == 404 and reply.headers.get("x-error-code") == "EntryNotFound":
        return commit, None
    meaning = judge(reply.status, reply.headers, bool(token))
    why = {
        "missing": f"there is no {repo} on {host}, or it is private. Check the name; for a private one set spark_hf_token_file.",
        "gated": f"{repo} is gated: accept its licence on {host} and set spark_hf_token_file.",
        "licence": f"{repo} is gated: accept its licence on {host} with the account of spark_hf_token_file.",
        "token": f"{host} refuses the token of spark_hf_token_file. Make a new one.",
        "revision": f"{repo} has no such revision. Check model.revision.",
    }.get(meaning, f"{host} answers {reply.status} to {name} of {repo}. {give}.")
    raise Unknown(why)


def _parse(content: bytes, where: str) -> dict[str, Any]:
    """Return the mapping of a JSON configuration. Raises Unknown for other content."""
    try:
        value = foreign_text.parse_json(content, where, MOST_CONFIG, finite=False)
    except foreign_text.Untrusted as error:
        raise Unknown(str(error)) from None
    if not isinstance(value, dict):
        raise Unknown(f"{where} is not a mapping, so it does not configure a model.")
    return value


def _read_token(variables: Mapping[str, Any]) -> str:
    """Return the hub token of a host, empty if its file is unreadable; the plan has a finding for that."""
    path = variables.get("spark_hf_token_file")
    try:
        return Path(str(path)).expanduser().read_text(encoding="utf-8").strip() if path else ""
    except (OSError, UnicodeDecodeError):
        return ""
