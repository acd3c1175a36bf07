#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download a model into HF_HOME at a pinned revision."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_snapshot
short_description: Download a model into HF_HOME at a pinned revision
description:
  - Looks whether the snapshot is whole on the host and, if it is not, fetches it with the hub library inside the image
    that will serve it. A download that was cut off goes on where it stopped. A companion action plugin prints bytes, rate and time left.
  - With O(files) it is also compared with what it is to be. A file that is truncated or has other bytes is named, taken away and
    fetched again; a file that is wrong even then fails the task and does not stay. Without them a safetensors file has to be as long as its own header
    says, and with O(verify=all) large files are compared with the sums that the hub library names them by.
  - When a damaged file is taken away, a file beside the sums is touched, so that units do not go on with what they have loaded from it.
  - What is fetched is noted, so that it can be removed by name, and given to the owner of O(hf_home).
options:
  repo:
    description: Model on the hub, ORG/NAME.
    type: str
    required: true
  revision:
    description: Commit, tag or branch.
    type: str
    default: main
  only:
    description: Patterns of the files to fetch; all of them when empty.
    type: list
    elements: str
    default: []
  image:
    description: Image on the host that has Python and huggingface_hub; every vLLM image does.
    type: str
    required: true
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  token_file:
    description: File B(on the controller) that holds a token for gated models. It is on the host, readable by root alone, only while the download runs.
    type: str
    default: ''
  endpoint:
    description: Address of a mirror of the hub.
    type: str
    default: ''
  timeout:
    description: Seconds that the download may take.
    type: int
    default: 14400
  poll:
    description: Seconds between two looks at the progress.
    type: int
    default: 15
  files:
    description: What the files of the snapshot are to be, by name; C(size) in bytes and C(sha256). The plan takes it from the lock file.
    type: dict
    default: {}
  verify:
    description: Which of O(files) are hashed. V(changed) reads those that are new or were touched since they were read last, V(all) everything, V(size)
      compares sizes alone. Without O(files) only V(all) reads.
    type: str
    choices: [changed, all, size]
    default: changed
  sums_dir:
    description: Folder on the host for the sums of files that were read, a file per model.
    type: path
    default: /var/lib/dgxspark/models
  offline:
    description: Fetch nothing. What is missing or damaged is named, and fails the task.
    type: bool
    default: false
  link:
    description: Name below O(hf_home) of a relative link to the snapshot, a path to its files that does not hold the commit.
    type: str
    default: ''
  token:
    description: Set by the action plugin from O(token_file).
    type: str
    default: ''
  step:
    description: Set by the action plugin, which starts the download and then looks at it until it has ended.
    type: str
    choices: [start, look]
    default: start
extends_documentation_fragment:
  - dgxspark.vllm.attributes
"""

EXAMPLES = r"""
- name: Fetch a model at a commit
  dgxspark.vllm.model_snapshot:
    repo: Qwen/Qwen3-8B
    revision: main
    image: vllm/vllm-openai:v0.24.0-ubuntu2404
"""

RETURN = r"""
commit:
  description: The commit that the revision stands for.
  returned: when known
  type: str
  sample: 0123456789abcdef0123456789abcdef01234567
path:
  description: Folder of the snapshot.
  returned: when it is there
  type: str
  sample: /srv/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123456789abcdef0123456789abcdef01234567
complete:
  description: Whether every file is there.
  returned: success
  type: bool
running:
  description: Whether a download is under way.
  returned: success
  type: bool
bytes:
  description: Bytes on the disk.
  returned: success
  type: int
link:
  description: The link of O(link), empty where none was asked for.
  returned: success
  type: str
  sample: snapshots/Org--Model@main
wrong:
  description: Files that are not what they are to be, each with C(file) and C(why).
  returned: success
  type: list
  sample: [{file: model-00001-of-00004.safetensors, why: has 1048576 bytes instead of 4967215128}]
total_bytes:
  description: Bytes of the whole snapshot, null before the hub has said so.
  returned: success
  type: int
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import file_sums, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import beneath, docker, host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import (
    NoAnswer,
    Run,
    failing,
    reader,
)

START_SECONDS = 120.0  # that Docker may take to make a container

TOKENS = Path("/run/dgxspark/tokens")


class Download:
    """The container that downloads one model at one revision; a second run finds the download of the first."""

    def __init__(self, params: dict[str, Any], run: Run) -> None:
        self.params = params
        self.run = run
        identity = json.dumps([params["repo"], params["revision"], params["only"]])
        self.name = "dgxspark-fetch-" + hashlib.sha256(identity.encode()).hexdigest()[:12]
        self.token = TOKENS / self.name

    def state(self) -> dict[str, Any] | None:
        """Return docker's State of the container, None for a missing one. Raises NoAnswer."""
        try:
            return docker.container_state(self.run, self.name)
        except NoAnswer as error:
            raise NoAnswer("docker", f"docker does not say how the download is: {error}") from error

    def log(self) -> str:
        """Return the output of the download."""
        out, err = docker.log(self.run, self.name, tail=True) or ("", "")
        return err + out

    def start(self) -> str:
        """Start the download unless it runs; returns the reason of a failure, or an empty text."""
        if (self.state() or {}).get("Running"):
            return ""
        self.clean_up()
        request = {key: self.params[key] for key in ("repo", "revision", "only", "endpoint")}
        request["keep"] = sorted(self.params["files"] or {})
        token = self.write_token()
        argv = snapshots.fetch_argv(self.name, self.params["image"], self.params["hf_home"], request, token)
        rc, _out, err = self.run(argv)
        if rc != 0:
            self.clean_up()
        return err.strip() or f"docker ended with {rc}" if rc != 0 else ""

    def write_token(self) -> str | None:
        """Write the token to a file that only root and the download can read."""
        if not self.params["token"]:
            return None
        TOKENS.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(self.params["token"])
        return str(self.token)

    def clean_up(self) -> None:
        """Remove the container and the token."""
        docker.remove_container(self.run, self.name)
        self.token.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the tokens of downloads that ended after their run was killed."""
        old_tokens = [path for path in TOKENS.glob("*") if path != self.token] if TOKENS.is_dir() else []
        if not old_tokens:
            return
        try:
            running = docker.running_names(self.run, "dgxspark.fetch")
        except NoAnswer:  # which downloads run is not known
            return
        for path in old_tokens:
            if path.name not in running:
                path.unlink(missing_ok=True)


def look(module: AnsibleModule, download: Download, snapshot: dict[str, Any], result: dict[str, Any]) -> None:
    """End the module with the progress of the download, or with its result. snapshot: of C(snapshots.look)."""
    params = module.params
    try:
        state = download.state()
    except NoAnswer as error:  # the download goes on; the next look may get an answer
        module.warn(str(error))
        module.exit_json(**{**result, "changed": True, "running": True, "complete": False})
    if state and state.get("Running"):
        totals = snapshots.announced(download.log())
        result.update(
            changed=True,
            running=True,
            complete=False,
            commit=totals.get("commit"),
            total_bytes=totals.get("bytes"),
            bytes=snapshots.fetched_bytes(Path(params["hf_home"]), params["repo"]),
        )
        module.exit_json(**result)
    log = download.log() if state else ""
    download.clean_up()
    if not module.check_mode:
        made.end_fetch(Path(params["hf_home"]), params["repo"])
    title = f"{params['repo']}@{params['revision']}"
    if state and state.get("ExitCode") != 0:
        module.fail_json(
            msg=snapshots.explain(title, params["hf_home"], log, bool(params["token"])), **{**result, "complete": False}
        )
    wrong = verified(module, snapshot)
    if wrong and not module.check_mode:
        take_away(params, snapshot, wrong)
    if wrong:
        module.fail_json(
            msg=f"{title} was fetched, and is not what {'the lock file says' if params['files'] else 'it is to be'}: {defects_text(wrong)}. It was "
            "taken away again. The hub has changed these files, or something between it and this host does; look at spark_hf_endpoint, or "
            "lock again.",
            **{**result, "complete": False, "wrong": wrong},
        )
    refuse_strays(module, snapshot, result)
    if not snapshot["complete"]:
        missing = ", ".join(snapshot["missing"][:5]) or "weight files"
        module.fail_json(msg=f"{title} was fetched but is not whole; missing: {missing}. Run the play again.", **result)
    module.exit_json(**{**result, "changed": True, "link": lead(module, snapshot)[0]})


def lead(module: AnsibleModule, snapshot: dict[str, Any]) -> tuple[str, bool]:
    """Make the link to the snapshot, relative for containers; returns its name, and whether it was missing or had another target."""
    params = module.params
    if not params["link"] or not snapshot["path"]:
        return "", False
    hf_home, name = Path(params["hf_home"]), str(params["link"])
    target = "../" * name.count("/") + Path(snapshot["path"]).relative_to(hf_home).as_posix()
    try:
        info = beneath.info(hf_home, name)
        if info and stat.S_ISLNK(info.st_mode) and str((hf_home / name).readlink()) == target:
            return name, False
        if info and stat.S_ISDIR(info.st_mode):
            raise beneath.Refused(f"{hf_home / name} is a folder, and a link belongs there; move it away")
        if not module.check_mode:
            noted = made.note(hf_home, made.repo_name(params["repo"]), [name])
            beneath.link(hf_home, name, target)
            made.hand_over(hf_home, noted)
    except beneath.Refused as error:
        module.fail_json(msg=str(error))
    return name, True


def verified(module: AnsibleModule, snapshot: dict[str, Any]) -> list[dict[str, str]]:
    """Return the damaged files of a snapshot."""
    params = module.params
    if not snapshot["path"]:
        return []
    sums = file_sums.Sums(Path(params["sums_dir"]), params["repo"])
    wrong = snapshots.faults(snapshot, params, sums, params["verify"])
    if not module.check_mode:
        try:
            sums.save()
        except OSError as error:
            module.warn(f"sums of {params['repo']} could not be kept in {params['sums_dir']}: {error}")
    return wrong


def refuse_strays(module: AnsibleModule, snapshot: dict[str, Any], result: dict[str, Any]) -> None:
    """Fail for files that the lock file does not list, and for links in the place of folders."""
    params = module.params
    title = f"{params['repo']}@{params['revision']}"
    if snapshot["missing"] and not snapshot["path"]:
        module.fail_json(msg=f"{title} is not looked at and not fetched: {snapshot['missing'][0]}.", **result)
    strays = snapshots.unlisted(Path(snapshot["path"]), params["files"], params["only"]) if snapshot["path"] else []
    if strays and params["files"]:
        wrong = [{"file": name, "why": "is not in the lock file"} for name in strays]
        module.fail_json(
            msg=f"{title} has files on this host that the lock file does not list, and that an engine would read: "
            f"{', '.join(strays[:5])}{f' and {len(strays) - 5} more' if len(strays) > 5 else ''}. Find out who put them into "
            f"{snapshot['path']}; remove them, or, if they belong there, lock again.",
            **{**result, "complete": False, "wrong": wrong},
        )


def take_away(params: dict[str, Any], snapshot: dict[str, Any], wrong: list[dict[str, str]]) -> None:
    """Remove damaged files, so that they are downloaded again."""
    if any(entry["why"] != "is missing" for entry in wrong):
        file_sums.note_repair(Path(params["sums_dir"]), params["repo"])
    for entry in wrong:
        snapshots.drop(Path(params["hf_home"]), params["repo"], Path(snapshot["path"]), entry["file"])


def defects_text(wrong: list[dict[str, str]]) -> str:
    """Return a text about the first damaged files."""
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    return ", ".join(f"{entry['file']} {entry['why']}" for entry in wrong[:5]) + more


def attend(module: AnsibleModule, download: Download) -> None:
    """Start a download, or look at its progress."""
    params = module.params
    snapshot = snapshots.look(Path(params["hf_home"]), params["repo"], params["revision"], params["only"])
    result: dict[str, Any] = {
        "changed": False,
        "running": False,
        "commit": snapshot["commit"],
        "path": snapshot["path"],
        "complete": snapshot["complete"],
        "bytes": snapshot["bytes"],
        "total_bytes": None,
        "wrong": [],
        "link": "",
    }
    if params["step"] == "look":
        look(module, download, snapshot, result)
    wrong = verified(module, snapshot)
    refuse_strays(module, snapshot, result)
    result.update(wrong=wrong, complete=snapshot["complete"] and not wrong)
    if not result["complete"]:
        # With a bundle, the bundle brings the model and reports the change.
        result["changed"] = not params["offline"]
        if not module.check_mode:
            take_away(params, snapshot, wrong)
            if params["offline"]:
                defects = defects_text(wrong) or f"missing: {', '.join(snapshot['missing'][:5]) or 'all of it'}"
                module.fail_json(
                    msg=f"{params['repo']}@{params['revision']} is not whole on this host, {defects}; and nothing is fetched, since it is "
                    "to come from a bundle. Make the bundle again on a host that has it whole, or leave spark_bundle_dir out.",
                    **result,
                )
            made.begin_fetch(Path(params["hf_home"]), params["repo"])
            refused = download.start()
            if refused:
                module.fail_json(
                    msg=f"the download of {params['repo']} could not be started: {refused}. "
                    f"Is the image {params['image']} on the host?"
                )
            result["running"] = True
    elif not module.check_mode:
        made.end_fetch(Path(params["hf_home"]), params["repo"])
    if result["complete"]:
        result["link"], led = lead(module, snapshot)
        result["changed"] = result["changed"] or led
    module.exit_json(**result)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "main"},
            "only": {"type": "list", "elements": "str", "default": []},
            "image": {"type": "str", "required": True},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "token_file": {"type": "str", "default": "", "no_log": False},
            "link": {"type": "str", "default": ""},
            "endpoint": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 14400},
            "poll": {"type": "int", "default": 15},
            "files": {"type": "dict", "default": {}},
            "verify": {"type": "str", "choices": ["changed", "all", "size"], "default": "changed"},
            "sums_dir": {"type": "path", "default": file_sums.SUMS_DIR},
            "offline": {"type": "bool", "default": False},
            "token": {"type": "str", "default": "", "no_log": True},
            "step": {"type": "str", "choices": ["start", "look"], "default": "start"},
        },
        supports_check_mode=True,
    )
    with host_lock.held(module), failing(module):
        download = Download(module.params, reader(START_SECONDS))
        if not module.check_mode:
            download.sweep()
        attend(module, download)


if __name__ == "__main__":
    main()
