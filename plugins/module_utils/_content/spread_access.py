# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The access that nodes have to each other during a distribution: a separate SSH server with its keys and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .._common import foreign_text, plain_data, program_text, secret_names
from .._common import reader as data_reader
from .._host import beneath, docker, docker_commands, docker_facts, file_times
from .._runtime import command, state_file
from . import file_stream, file_sums, image_archive, spread_files, spread_names, spread_server, spread_worker

SERVER_UNIT = "dgxspark-spread"
WORKER_UNIT = "dgxspark-spread-worker"
PACKAGE = "dgxspark_vllm"
"""Name of the engine on hosts."""
MODULES: tuple[ModuleType, ...] = (
    foreign_text,
    plain_data,
    data_reader,
    secret_names,
    command,
    beneath,
    docker,
    docker_commands,
    docker_facts,
    file_times,
    state_file,
    file_stream,
    file_sums,
    image_archive,
    spread_files,
    spread_names,
    spread_server,
    spread_worker,
)
"""Files of the engine that the server and the worker import."""


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files of the access, for root alone. folder: of the run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        beneath.write(folder, name, text.encode(), 0o600)


def programs() -> dict[str, str]:
    """Return the texts of the programs that run on hosts, by path below the folder of the run."""
    return {
        f"{PACKAGE}/{'/'.join(module.__name__.split('.')[-2:])}.py": program_text.source(module) for module in MODULES
    }


def serve_command(folder: Path, python: str) -> str:
    """Return the command that every key is restricted to. folder: of the run. python: path of the interpreter."""
    return f"PYTHONPATH={folder} {python} -m {PACKAGE}._content.spread_server {folder}"


def sshd_config(addresses: Sequence[str], port: int, folder: Path, python: str) -> str:
    """Return the settings of the server: these addresses, the keys of the run and one command."""
    listen = "\n".join(f"ListenAddress {address}:{port}" for address in addresses)
    return f"""\
{listen}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin forced-commands-only
AllowUsers root
ForceCommand {serve_command(folder, python)}
UsePAM yes
StrictModes yes
DisableForwarding yes
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
Ciphers {spread_worker.CIPHERS}
LoginGraceTime 20
MaxStartups 100
ClientAliveInterval 30
ClientAliveCountMax 4
"""


def authorized_keys(peers: Sequence[Mapping[str, Any]], folder: Path, python: str) -> str:
    """Return a line for each peer: its key, valid from its addresses, for one command.

    :param peers: with C(client_key) and C(addresses)
    """
    command_text = serve_command(folder, python)
    return "".join(
        f'restrict,command="{command_text}",from="{",".join(peer["addresses"])}" {peer["client_key"]}\n'
        for peer in peers
    )


def known_hosts(peers: Sequence[Mapping[str, Any]]) -> str:
    """Return the host keys of the peers, by their names in the inventory."""
    return "".join(f"{peer['name']} {peer['host_key']}\n" for peer in peers)


def server_argv(lifetime: int, sshd: str, folder: Path) -> list[str]:
    """Return the command that runs the server; systemd removes its keys however it ends.

    :param lifetime: seconds after which it ends
    """
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={SERVER_UNIT}"),
        "--description=Other nodes take images and models from here",
        f"--property=RuntimeMaxSec={lifetime}",
        "--property=LimitCORE=0",  # a core dump holds keys
        f"--property=ExecStopPost=/bin/rm -rf {folder}",
        *(sshd, "-D", "-e", "-f", f"{folder}/sshd_config"),
    ]


def worker_argv(python: str, folder: Path, lifetime: int) -> list[str]:
    """Return the command that runs a job in the background, at a lower priority than what the host serves.

    :param lifetime: seconds after which it ends
    """
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={WORKER_UNIT}"),
        "--description=Images and models are taken from other nodes",
        f"--property=RuntimeMaxSec={lifetime}",
        "--property=LimitCORE=0",  # a core dump holds keys
        *("--property=Nice=5", f"--setenv=PYTHONPATH={folder}"),
        *(python, "-m", f"{PACKAGE}._content.spread_worker", str(folder)),
    ]
