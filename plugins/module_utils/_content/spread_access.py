# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The access that nodes have to each other while something is spread: the files of an SSH server made for that time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RUN_DIR = "/run/dgxspark/spread"
"""In memory: after an interruption the next boot removes it, at the latest."""
SERVER_UNIT = "dgxspark-spread"
WORKER_UNIT = "dgxspark-spread-worker"
CIPHERS = "aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"


def serve_script(folder: str = RUN_DIR, python: str = "python3") -> str:
    """Return the command of a peer's key, for any request: rsync that reads the hub folder, the same over a fabric, or an image of the list.

    :param folder: where keys, programs, the settings of rsync, and the lists lie
    :param python: the interpreter of C(image_layers.py) and C(file_stream.py)
    :returns: the text of the script
    """
    return f"""\
# All that the nodes of a spreading may ask of each other.
case "$SSH_ORIGINAL_COMMAND" in
  "rsync --server --daemon "*)
    exec rsync --server --daemon --config={folder}/rsyncd.conf .
    ;;
  "files "*)
    while read -r allowed hub; do
      if [ "$SSH_ORIGINAL_COMMAND" = "files $allowed" ]; then
        exec {python} {folder}/file_stream.py "$hub" "$allowed"
      fi
    done < {folder}/clear
    ;;
  "image "* | "layers "*)
    set -f
    set -- $SSH_ORIGINAL_COMMAND
    what=$1 ref=${{2-}}
    [ $# -lt 2 ] || shift 2
    for layer in "$@"; do
      case "$layer" in *[!0-9a-f]*) ref= ;; esac
    done
    while read -r allowed; do
      if [ "$ref" = "$allowed" ]; then
        case "$what $#" in
          "layers 0") exec docker image inspect --format '{{{{json .RootFS.Layers}}}}' -- "$ref" ;;
          "image 0") exec docker save -- "$ref" ;;
          # What the receiver has already.
          "image "*) docker save -- "$ref" | {python} {folder}/image_layers.py "$ref" "$@"; exit ;;
        esac
      fi
    done < {folder}/images
    ;;
esac
echo "this key takes models and the images of this run, nothing else" >&2
exit 1
"""


def rsyncd_conf(hub: str) -> str:
    """Return the settings of rsync: one folder, read only, no other file of the host in sight."""
    return f"""\
use chroot = yes
read only = yes
list = no
uid = root
gid = root
log file = /dev/null
reverse lookup = no
[hub]
path = {hub}
"""


def sshd_config(addresses: Sequence[str], port: int, folder: str = RUN_DIR) -> str:
    """Return the settings of the server: those addresses, those keys, that one command.

    :param addresses: that it listens on
    :param port: TCP port
    :param folder: where keys and command lie
    :returns: the text of the file
    """
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
ForceCommand /bin/sh {folder}/serve
UsePAM yes
StrictModes yes
DisableForwarding yes
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
Ciphers {CIPHERS}
LoginGraceTime 20
MaxStartups 100
ClientAliveInterval 30
ClientAliveCountMax 4
"""


def authorized_keys(peers: Sequence[Mapping[str, Any]], folder: str = RUN_DIR) -> str:
    """Return a line for each peer: its key, from its addresses, for that one command."""
    return "".join(
        f'restrict,command="/bin/sh {folder}/serve",from="{",".join(peer["addresses"])}" {peer["client_key"]}\n'
        for peer in peers
    )


def known_hosts(peers: Sequence[Mapping[str, Any]]) -> str:
    """Return the host keys of the peers, by their names in the inventory."""
    return "".join(f"{peer['name']} {peer['host_key']}\n" for peer in peers)


def server_argv(lifetime: int, sshd: str, folder: str = RUN_DIR) -> list[str]:
    """Return the command that runs the server; its keys go with it, however it ends.

    :param lifetime: seconds, after which it ends
    :param sshd: path of the program
    :param folder: where keys and settings lie
    :returns: the command
    """
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={SERVER_UNIT}"),
        "--description=Nodes take images and models from here",
        f"--property=RuntimeMaxSec={lifetime}",
        "--property=LimitCORE=0",  # a core dump holds keys
        f"--property=ExecStopPost=/bin/rm -rf {folder}",
        *(sshd, "-D", "-e", "-f", f"{folder}/sshd_config"),
    ]


def worker_argv(python: str, folder: str, job: str, state: str, lifetime: int) -> list[str]:
    """Return the command that runs a job in the background, behind what the host serves.

    :param python: path of the interpreter
    :param folder: where the program lies
    :param job: file of the job
    :param state: file that it reports to
    :param lifetime: seconds, after which it ends
    :returns: the command
    """
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={WORKER_UNIT}"),
        "--description=Images and models come from another node",
        f"--property=RuntimeMaxSec={lifetime}",
        "--property=LimitCORE=0",  # a core dump holds keys
        *("--property=Nice=5", f"--setenv=SPREAD_RUN_DIR={RUN_DIR}"),
        *(python, f"{folder}/spread_worker.py", job, state),
    ]
