"""What a scenario on simulated Sparks consists of: its steps as commands, and an ansible-playbook that is quick to start.

The files are molecule's, and C(molecule test -s NAME) does the same. It takes four seconds to start and starts Ansible once more for
each step to ask for its version, so `make test` types the commands itself; `make test-all` leaves them to molecule.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common import BIN, ROOT

sys.path.insert(0, str(ROOT / "tests" / "unit"))

from playbook_runs import SETTINGS, Server, is_setting

MOLECULE = ROOT / "molecule"
CHANGED = re.compile(r"changed=[1-9]")
# Steps that molecule takes every night alone: what they show of check mode, second runs and removal, others show on each change
# (docs/testing.md).
NIGHTLY_STEPS = {
    "document_002": ("check", "idempotence", "cleanup"),
    "lock": ("idempotence",),
    "on_demand": ("check",),
    "pair_mp": ("check", "idempotence"),
    "roles": ("check", "idempotence"),
}
# The folder of an inventory for nightly runs of a scenario, and the tag of nightly plays of its preparation.
NIGHTLY = "nightly"


@dataclass(frozen=True)
class Step:
    """One command of a scenario."""

    name: str
    argv: list[str]

    def holds(self, code: int, output: str) -> bool:
        """Whether the step went as it should: a second run changes nothing, too."""
        return code == 0 and not (self.name == "idempotence" and CHANGED.search(output))


def names() -> list[str]:
    """Scenarios other than `default`, which owns the nodes."""
    return sorted(path.parent.name for path in MOLECULE.glob("*/molecule.yml") if path.parent.name != "default")


def config(name: str) -> dict[str, Any]:
    """The settings of a scenario on top of those that all share, with variables filled in as molecule does."""
    merged: dict[str, Any] = {}
    for path in (ROOT / ".config" / "molecule" / "config.yml", MOLECULE / name / "molecule.yml"):
        text = path.read_text(encoding="utf-8").replace("${MOLECULE_PROJECT_DIRECTORY}", str(ROOT))
        merged = merge(merged, yaml.safe_load(text) or {})
    return merged


def merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged, anything else is replaced."""
    merged = dict(base)
    for key, value in more.items():
        held = merged.get(key)
        merged[key] = merge(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return merged


def environment(name: str) -> dict[str, str]:
    """Return the environment of a scenario's commands, in addition to its lane's."""
    settings: dict[str, str] = config(name)["ansible"]["env"]
    # Everything but the settings of a clone would depend on the folder that a command runs in.
    return {
        **settings,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "MOLECULE_PROJECT_DIRECTORY": str(ROOT),
        # For the tests, which run playbooks with the same inventories: molecule/nodes.py.
        "SPARKSIM_EACH_CHANGE": "1",
    }


def steps(name: str) -> list[Step]:
    """The commands of a scenario on each change, in order. They run in its folder."""
    settings, folder = config(name), MOLECULE / name
    words = settings["ansible"]["executor"]["args"]["ansible_playbook"]
    play = ["ansible-playbook", *(word for word in words if Path(word).parent.name != NIGHTLY)]
    # Only check mode prints differences line by line: each file costs one more question to the host.
    checked, play = play, [word for word in play if word != "--diff"]
    commands = {
        "check": [*checked, "--check", "converge.yml"],
        "converge": [*play, "converge.yml"],
        "idempotence": [*play, "converge.yml"],
        "verify": verify_command(settings, folder),
        **{step: [*play, f"{step}.yml"] for step in ("prepare", "cleanup") if (folder / f"{step}.yml").exists()},
    }
    if "prepare" in commands:
        plays = yaml.safe_load((folder / "prepare.yml").read_text(encoding="utf-8"))
        if any(NIGHTLY in play_of_prepare.get("tags", ()) for play_of_prepare in plays):
            commands["prepare"] = [*play, "--skip-tags", NIGHTLY, "prepare.yml"]
    step_names = [step for step in settings["scenario"]["test_sequence"] if step not in NIGHTLY_STEPS.get(name, ())]
    return [Step(step, commands[step]) for step in step_names if step in commands]


def verify_command(settings: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the command that runs the tests of a scenario."""
    verifier = settings["verifier"]["options"]
    options = [f"--{key}" if value is True else f"--{key}={value}" for key, value in verifier.items()]
    return ["pytest", *options, *sorted(str(path.relative_to(folder)) for path in folder.glob("tests/**/test_*.py"))]


# --- a quick ansible-playbook -----------------------------------------------------------------------------------------

# It asks the server to run the program, and ends with it. Commands with other settings start the program themselves, unless any do.
CLIENT = """#!{python} -IS
import _socket
import marshal
import os
import sys

settings = {{name: value for name, value in os.environ.items() if name.startswith({prefixes!r})}}
asked = _socket.socket(_socket.AF_UNIX)
if {own} and settings != {settings!r} or asked.connect_ex({path!r}):
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
mask = os.umask(0)
os.umask(mask)
data = marshal.dumps(([{program!r}, *sys.argv[1:]], dict(os.environ), os.getcwd(), mask))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
asked.sendmsg([len(data).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
asked.sendall(data)
code = asked.recv(1)
os._exit(code[0] if code else 137)
"""


@contextmanager
def quick_ansible(env: Mapping[str, str], folder: Path, own_settings: bool = True) -> Iterator[Path]:
    """Yield a folder for the front of PATH, whose ansible-playbook need not import Ansible first.

    own_settings: commands with other settings of Ansible or Python start the program themselves.
    """
    settings = {name: value for name, value in env.items() if is_setting(name)}
    server = Server("playbooks", {**settings, "PATH": env["PATH"], "HOME": env.get("HOME", str(Path.home()))})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        client = folder / "ansible-playbook"
        words = {"python": sys.executable, "path": server.path, "program": str(BIN / "ansible-playbook")}
        text = CLIENT.format(**words, own=own_settings, prefixes=SETTINGS, settings=settings)
        client.write_text(text, encoding="utf-8")
        client.chmod(0o755)
        yield folder
    finally:
        server.close()
