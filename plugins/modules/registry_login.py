#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log Docker in to registries."""

from __future__ import annotations

DOCUMENTATION = r"""
module: registry_login
short_description: Log Docker in to registries
description:
  - Logs root's Docker in to registries with accounts whose passwords are in files on the controller. The password goes to
    C(docker login) by its standard input. It is in no argument, log, diff or result.
  - An account that Docker already has is not used again. A file of Docker's settings that others can read becomes root's alone.
  - With O(state=absent), logs out of those registries that this module logged in to, unless somebody has logged in with another account since.
options:
  registries:
    description: Accounts; the entries of C(spark_registries), each with C(registry), C(user) and C(password_file).
    type: list
    elements: dict
    default: []
  state:
    description: Whether the host is to have the accounts.
    type: str
    choices: [present, absent]
    default: present
  config_dir:
    description: Folder of Docker's settings.
    type: path
    default: /root/.docker
  passwords:
    description: Set by the action plugin; by registry.
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
"""

EXAMPLES = r"""
- name: Log in to NVIDIA's registry
  dgxspark.vllm.registry_login:
    registries:
      - {registry: nvcr.io, user: $oauthtoken, password_file: .secrets/ngc}
  become: true
"""

RETURN = r"""
registries:
  description: Registries that Docker was logged in to, or out of.
  returned: success
  type: list
  sample: [nvcr.io]
"""

import secrets
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.foreign_text import parse_json
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker, host_lock, made, registries
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command, state_file

LOGIN_SECONDS = 60.0


class Accounts:
    """Docker's accounts on this host, and the note of those that are ours."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.folder = Path(module.params["config_dir"])
        self.note_path = made.state_dir() / "registries.json"
        self.notes = state_file.read(self.note_path) or {}

    @property
    def config(self) -> dict[str, Any]:
        """Settings of Docker, empty for a missing file. Fails for a file that Docker cannot read either."""
        path = self.folder / "config.json"
        try:
            content = parse_json(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self.module.fail_json(
                msg=f"{path} cannot be read: {error}. Correct it or move it away; docker login writes it anew."
            )
        return content if isinstance(content, dict) else {}

    def call(self, words: list[str], data: bytes | None = None) -> command.Answer:
        """Run docker with these settings."""
        return docker.with_config(str(self.folder), words, LOGIN_SECONDS, data)

    def closed(self) -> bool:
        """Give the settings to root alone; return whether others could read them."""
        path = self.folder / "config.json"
        try:
            open_to_others = bool(path.stat().st_mode & 0o077)
        except OSError:
            return False
        if open_to_others and not self.module.check_mode:
            path.chmod(0o600)
        return open_to_others

    def log_in(self, entry: dict[str, Any], password: str) -> bool:
        """Log in where Docker has another account, or none; return whether it had."""
        registry, user = entry["registry"], entry["user"]
        note = self.notes.get(registry) or {}
        same = note.get("user") == user and registries.mark(user, password, str(note.get("salt"))) == note.get("mark")
        if same and registries.is_noted(self.config, note, registry):
            return False
        if registries.stored_account(self.config, registry) == (user, password):
            return False  # somebody's own, and the same: it is not ours to remove
        if self.module.check_mode:
            return True
        words = ["login", "--username", user, "--password-stdin", registries.stored_as(registry)]
        answer = self.call(words, f"{password}\n".encode())
        if answer.state != command.FINISHED or answer.rc != 0:
            reason = (answer.why or answer.err.strip() or f"exit code {answer.rc}").replace(password, "(hidden)")
            self.module.fail_json(
                msg=f"Docker could not log in to {registry} as {user}: {reason}. Correct 'user' or the file of this registry in "
                "spark_registries; a host without a way to the registry gets images from a bundle (spark_bundle_dir)."
            )
        salt = secrets.token_hex(16)
        self.notes[registry] = {"user": user, "salt": salt, "mark": registries.mark(user, password, salt)}
        state_file.write(self.note_path, self.notes, 0o600)
        return True

    def log_out(self) -> list[str]:
        """Log out of registries of the note; return which."""
        gone = [name for name in sorted(self.notes) if registries.is_noted(self.config, self.notes[name], name)]
        if self.module.check_mode:
            return gone
        for name in gone:
            answer = self.call(["logout", registries.stored_as(name)])
            if answer.state != command.FINISHED or answer.rc != 0:
                self.module.fail_json(msg=f"Docker could not log out of {name}: {answer.why or answer.err.strip()}")
        self.note_path.unlink(missing_ok=True)
        return gone


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "registries": {"type": "list", "elements": "dict", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "config_dir": {"type": "path", "default": "/root/.docker"},
            "passwords": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    accounts, messages = registries.read("this host", module.params["registries"])
    if messages:
        module.fail_json(msg="\n".join(messages))
    with host_lock.held(module):
        docker_accounts = Accounts(module)
        if module.params["state"] == "absent":
            done = docker_accounts.log_out()
        else:
            done = [
                entry["registry"]
                for entry in accounts
                if docker_accounts.log_in(entry, module.params["passwords"][entry["registry"]])
            ]
        closed = bool(accounts) and docker_accounts.closed()
    module.exit_json(changed=bool(done) or closed, registries=done)


if __name__ == "__main__":
    main()
