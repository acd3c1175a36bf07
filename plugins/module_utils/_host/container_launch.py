# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a container of C(docker inspect) as the C(docker run) that makes it, without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._common.redaction import could_be_secret, secrets_of_environment, without_secrets
from .._common.secret_names import is_secret_variable


def launch_of(container: Mapping[str, Any], image: Mapping[str, Any]) -> list[str]:
    """Return the command line of a container, without what it inherits. container, image: of C(docker inspect)."""
    config, defaults = container.get("Config") or {}, image.get("Config") or {}
    environment = [str(entry) for entry in config.get("Env") or []]
    entrypoint, command = list(config.get("Entrypoint") or []), list(config.get("Cmd") or [])
    options: list[str] = []
    if entrypoint and entrypoint != list(defaults.get("Entrypoint") or []):
        options = ["--entrypoint", entrypoint[0]]
        command = [*entrypoint[1:], *command]
    argv = [
        *("docker", "run", "--name", str(container.get("Name") or "").lstrip("/")),
        *_host_options(container.get("HostConfig") or {}),
        *_variables(environment, defaults.get("Env") or []),
        *options,
        str(config.get("Image") or container.get("Image") or ""),
        *command,
    ]
    # A command like bash -c may repeat a secret of the environment.
    return without_secrets(argv, secrets_of_environment(environment))


def _host_options(settings: Mapping[str, Any]) -> list[str]:
    """Return the options for network, ports and mounts. settings: C(HostConfig)."""
    options = ["--network", "host"] if settings.get("NetworkMode") == "host" else []
    options += ["--ipc", "host"] if settings.get("IpcMode") == "host" else []
    for port, bindings in sorted((settings.get("PortBindings") or {}).items()):
        for binding in bindings or []:
            options += ["-p", f"{binding.get('HostPort') or ''}:{port.partition('/')[0]}"]
    for mount in settings.get("Binds") or []:
        options += ["-v", str(mount)]
    return options


def _variables(environment: Sequence[str], inherited: Sequence[str]) -> list[str]:
    options = []
    for entry in environment:
        name, _equals, value = entry.partition("=")
        if entry not in inherited and not (is_secret_variable(name) and could_be_secret(value, name)):
            options += ["-e", entry]
    return options
