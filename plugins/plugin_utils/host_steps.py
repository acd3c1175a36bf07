# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of actions whose module carries out one step per call on the host, and that exchange files with the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.dgxspark.vllm.plugins.module_utils._common import foreign_text
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import answers
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.actions import HostAction, checked_answer
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.progress import Progress


class OutgoingFile(NamedTuple):
    """A file of the controller on its way to a host. size: bytes."""

    local: Path
    remote: str
    size: int


class HostSteps(HostAction):
    """Runs steps of a module on the host."""

    TRANSFERS_FILES = True
    ANSWERS: Mapping[str, Any] = {}
    """Parsers of the answers, by step."""
    OPTIONS: tuple[str, ...] = ()
    """Options of the task that each step gets."""

    def run_step(self, step: str, **arguments: Any) -> dict[str, Any]:
        """Run a step on the host; fail with its message if it fails."""
        options = {name: self.args[name] for name in self.OPTIONS if name in self.args}
        answer = self.execute({**options, "step": step, **arguments})
        if answer.get("failed"):
            reason = str(answer.get("msg") or answer.get("module_stderr") or f"step {step} failed")
            raise AnsibleActionFail(foreign_text.printable(reason))
        return dict(checked_answer(answer, self.ANSWERS[step], self.host, f"step {step} of {self.MODULE}"))

    def check_names(self, names: Iterable[str], expected: Collection[str], step: str) -> None:
        """Fail if the host names files that it was not asked about."""
        checked_answer(
            None,
            lambda _value, where: answers.among(names, expected, where),
            self.host,
            f"step {step} of {self.MODULE}",
        )

    def send(
        self, title: str, files: Sequence[OutgoingFile], sent: Callable[[OutgoingFile], object] | None = None
    ) -> int:
        """Send files to the host, with progress. Returns their bytes. sent: called after each file."""
        progress = Progress(self.host, title, sum(file.size for file in files))
        for file in files:
            self._connection.put_file(str(file.local), file.remote)
            progress.add(file.size)
            if sent:
                sent(file)
        return progress.done


def read_secret(loader: Any, path: str, setting: str, noun: str) -> str:
    """Return the content of a file of the controller that holds one secret; ansible-vault may have encrypted it.

    setting, noun: what names the file, and what is in it, for messages.
    """
    try:
        real = loader.get_real_file(path)
        secret = Path(real).read_text(encoding="utf-8").strip()
    except (AnsibleError, OSError) as error:
        raise AnsibleActionFail(
            f"{setting} {path} cannot be read on the controller: {error}. Name a file with the {noun} alone in it."
        ) from error
    loader.cleanup_tmp_file(real)
    if not secret:
        raise AnsibleActionFail(f"{setting} {path} is empty. Put the {noun} in it, and nothing else.")
    return secret
