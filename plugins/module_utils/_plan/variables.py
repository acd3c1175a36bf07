# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and check the variables of a Spark by the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._addons import addons
from .._cluster import firewall, sockets
from .._common import plain_data, plain_secrets, reader, schema, validation
from .._common import variables as schema_variables
from .._host import host_paths, registries
from .._vllm import image_catalogue
from . import recipes, service_keys

LISTS_OF_MAPPINGS = (
    "spark_services",
    "spark_sidecars",
    "spark_image_catalogue",
    "spark_recipe_sources",
    "spark_registries",
)
RDMA_CAPABILITY = "IPC_LOCK"
"""The capability of a rank to register memory with network interfaces under a limit of memlock."""
VARIABLES = {name: key for name, key in schema_variables.VARIABLES.items() if name not in addons.VARIABLES}
"""Variables of a Spark; C(addons.read) reads the variables of add-on services."""


def read(host: str, variables: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return all variables of a host with their defaults, and the problems.

    host: its name, for messages. variables: of the inventory; values of a wrong type are replaced by defaults.
    """
    problems = validation.Problems(f"host {host}")
    for name in variables:
        if name.startswith("spark_") and name not in VARIABLES and name not in addons.VARIABLES:
            hint = validation.nearest(name, [*VARIABLES, *addons.VARIABLES])
            if hint != ".":
                problems.add(f"unknown variable '{name}'{hint}")
    settings = schema.defaults(VARIABLES)
    settings.update(
        {name: _value(problems, name, variables[name], settings[name]) for name in VARIABLES if name in variables}
    )
    _check_addresses(problems, settings)
    _check_secrets(problems, settings, variables)
    if wrong := image_catalogue.wrong_entries(settings["spark_image_catalogue"], "spark_image_catalogue"):
        problems.messages += [f"{problems.where}: {message}." for message in wrong]
        settings["spark_image_catalogue"] = []
    _check_fabric(problems, settings)
    problems.messages += registries.read(problems.where, settings["spark_registries"])[1]
    _check_firewall(problems, settings)
    _check_paths(problems, settings)
    written = recipes.underscored(settings["spark_defaults"])
    settings["spark_defaults"] = schema.read(
        problems, written, service_keys.SERVICE, "spark_defaults.", service_keys.DEFAULTS, nulls=True
    )
    return settings, problems.messages


def _value(problems: validation.Problems, name: str, value: Any, default: Any) -> Any:
    """Return one variable, or its default for an unusable value."""
    value = schema.from_command_line(VARIABLES[name], value)
    if value is None:
        return default
    if why := schema.wrong(VARIABLES[name], value):
        problems.add(f"'{name}' {why}")
        return default
    if isinstance(value, str) and plain_data.CONTROL.search(value):
        problems.add(f"'{name}' is {plain_data.shown(value)}; it must be one line of text.")
        return default
    if isinstance(value, list) and name not in LISTS_OF_MAPPINGS:
        return [str(entry) for entry in schema.entries(problems, value, service_keys.TEXT, name)]
    return value


def _check_addresses(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    for name in ("spark_listen", "spark_management_address"):
        if settings[name] and not plain_data.is_address(settings[name]):
            problems.add(f"'{name}' is {settings[name]!r}; it must be an address or a host name.")
    mirror = settings["spark_hf_endpoint"]
    parts = plain_data.web_address(mirror)
    # A value with a login or a parameter may hold a secret, so it is not repeated.
    if mirror and (parts is None or parts.username or parts.password or parts.query or parts.fragment):
        problems.add(
            "'spark_hf_endpoint' must be the address of a mirror with http:// or https://, without login and parameters; "
            "spark_hf_token_file names the token."
        )
    if settings["spark_shm_size"] and not service_keys.DOCKER_SIZE.fullmatch(settings["spark_shm_size"]):
        problems.add(
            f"'spark_shm_size' is {settings['spark_shm_size']!r}; write it as docker takes it, for example 8g."
        )


def _check_secrets(problems: validation.Problems, settings: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    for name in ("spark_docker_args", "spark_gpu_args"):
        for text in plain_secrets.sentences(name, plain_secrets.in_words(settings[name]), recipes.SECRETS_FIX):
            problems.add(text)
    # Variables of pip are not part of the plan.
    searched = {name: value for name, value in settings.items() if name in variables and not name.endswith("_pip_env")}
    for place, _secret in plain_secrets.in_settings({**searched, "spark_docker_args": [], "spark_gpu_args": []}):
        if place == "spark_hf_endpoint" and problems.named(place):
            continue
        if not place.startswith(("spark_services", "spark_defaults", "spark_cluster")):  # reported for each service
            for text in plain_secrets.sentences(
                place,
                ["a password or a token"],
                "Remove it, or use a variable that names a file, if there is one.",
            ):
                problems.add(text)


def _check_fabric(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    for name in ("spark_fabric_addresses", "spark_ray_pip_env"):
        wrong = [
            *reader.problems({str: str}, settings[name], name),
            *plain_data.several_lines(settings[name], name),
        ]
        problems.messages += [f"{problems.where}: {message}" for message in wrong]
    for port, address in settings["spark_fabric_addresses"].items():
        if not plain_data.is_interface(address):
            problems.add(
                f"spark_fabric_addresses.{port} is {plain_data.shown(address)}; write ADDRESS/BITS, as 10.77.0.1/24."
            )


def _check_firewall(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    for entry in settings["spark_firewall_allowed"]:
        try:
            firewall.port_of(entry)
        except ValueError as error:
            problems.add(f"'spark_firewall_allowed': {error}.")
    for entry in settings["spark_allow_from"]:
        try:
            sockets.as_network(str(entry))
        except ValueError as error:
            problems.add(f"'spark_allow_from': {error}; write 192.168.1.20, 192.168.1.0/24 or a host of the inventory.")


def _check_paths(problems: validation.Problems, settings: Mapping[str, Any]) -> None:
    for name in ("spark_hf_home", "spark_cache_dir", "spark_sysroot"):
        if not str(settings[name]).startswith("/") or plain_data.CONTROL.search(str(settings[name])):
            problems.add(f"'{name}' is '{settings[name]}'; it must be an absolute path.")
    for name in ("spark_hf_home", "spark_cache_dir"):
        validation.check_mount(problems, name, settings[name])
        why = host_paths.problem(str(settings[name])) if str(settings[name]).startswith("/") else ""
        if why:
            problems.add(f"'{name}' is '{settings[name]}': {why}.")
    if str(settings["spark_cache_dir"]).rstrip("/") == str(settings["spark_hf_home"]).rstrip("/"):
        problems.add(
            f"'spark_cache_dir' and 'spark_hf_home' are both '{settings['spark_hf_home']}'; a service's caches would lie among the weights. "
            "Name two folders."
        )
