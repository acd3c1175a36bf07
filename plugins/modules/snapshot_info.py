#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report the files of models on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot_info
short_description: Report commit, files, sizes and checksums of models on a host
version_added: 0.1.0
description:
  - Looks into C(HF_HOME) and reports for each model at a revision the commit that it stands for there, and size and SHA-256 of its
    files. Nothing is fetched.
  - The hub library names large files by their sum, which is believed unless O(verify) is set. Small files are read. Sums that were
    read are kept in O(sums_dir) on the host, and used until the file is touched.
options:
  models:
    description:
      - Models to look for. C(repo) is needed; C(revision) is V(main) when left out; C(only) limits it to files by patterns.
      - C(locked) is a commit to look for where the revision leads to none.
    type: list
    elements: dict
    required: true
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  verify:
    description: Read all files, also those that are named by their sum.
    type: bool
    default: false
  sums_dir:
    description: Folder on the host for the sums of files that were read, a file per model.
    type: path
    default: /var/lib/dgxspark/models
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    details:
      - In check mode sums that were read are not kept.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing but its own cache.
seealso:
  - module: dgxspark.vllm.lock
  - module: dgxspark.vllm.model_snapshot
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Check a snapshot
  dgxspark.vllm.snapshot_info:
    models:
      - {repo: Qwen/Qwen3-8B, revision: main}
  become: true
  register: found
"""

RETURN = r"""
models:
  description: One entry per model, in the order asked for.
  returned: success
  type: list
  elements: dict
  contains:
    repo:
      description: As asked for.
      type: str
    revision:
      description: As asked for.
      type: str
    commit:
      description: The commit that the revision stands for on the host, V(null) if there is none.
      type: str
    path:
      description: Folder of the snapshot, V(null) if it is not there.
      type: str
    files:
      description: By name, C(size), C(sha256) and C(blob), the name of the file that the snapshot links to.
      type: dict
    problems:
      description: Files that are missing, truncated or damaged.
      type: list
      elements: str
  sample:
    - repo: Qwen/Qwen3-8B
      revision: main
      commit: 0123456789abcdef0123456789abcdef01234567
      files:
        config.json: {size: 728, sha256: "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c", blob: 4b5d1e}
      problems: []
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots


def report(hf_home: Path, asked: dict[str, Any], sums: snapshots.Sums, verify: bool) -> dict[str, Any]:
    """Describe one model as the host has it.

    :param hf_home: folder of weights
    :param asked: its repository, revision and files
    :param sums: of files that were read before
    :param verify: whether every file is hashed
    :returns: its entry of the result
    """
    repo, revision = str(asked["repo"]), str(asked.get("revision") or "main")
    only = [str(pattern) for pattern in asked.get("only") or []]
    said: dict[str, Any] = {
        "repo": repo,
        "revision": revision,
        "commit": None,
        "path": None,
        "files": {},
        "problems": [],
    }
    for wanted in (revision, str(asked.get("locked") or revision)):
        found = snapshots.look(hf_home, repo, wanted, only)
        if found["path"]:
            files, problems = snapshots.describe_files(Path(found["path"]), sums, only, verify)
            said.update(commit=found["commit"], path=found["path"], files=files, problems=problems)
            break
    return said


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "verify": {"type": "bool", "default": False},
            "sums_dir": {"type": "path", "default": snapshots.SUMS_DIR},
        },
        supports_check_mode=True,
    )
    params = module.params
    nameless = [entry for entry in params["models"] if not entry.get("repo")]
    if nameless:
        module.fail_json(msg=f"models: every entry needs 'repo', ORG/NAME; {nameless[0]!r} has none")
    models = []
    for asked in params["models"]:
        sums = snapshots.Sums(Path(params["sums_dir"]), str(asked["repo"]))
        models.append(report(Path(params["hf_home"]), asked, sums, params["verify"]))
        if not module.check_mode:
            try:
                sums.save()
            except OSError as error:
                module.warn(f"sums of {asked['repo']} could not be kept in {params['sums_dir']}: {error}")
    module.exit_json(changed=False, models=models)


if __name__ == "__main__":
    main()
