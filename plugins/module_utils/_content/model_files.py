# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report commit, files, sizes and checksums of models on a host: the section C(model_files) of M(dgxspark.vllm.spark_info)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._host.host_view import BadRequest, HostView, Request
from . import file_sums, snapshots

SUMS = "models"
"""Folder of sums, below the folder of the collection's state."""


def section(_view: HostView, request: Request) -> list[dict[str, Any]]:
    """Return an entry per model, in the order of the request.

    Sums of files that were read are kept on the host until the file changes; in check mode they are not.

    :raises BadRequest: for a model without a repository
    """
    params = request.params
    nameless = [entry for entry in params["models"] if not entry.get("repo")]
    if nameless:
        raise BadRequest(f"models: every entry needs 'repo', ORG/NAME; {nameless[0]!r} has none")
    models = []
    for model in params["models"]:
        sums = file_sums.Sums(Path(params["state_dir"], SUMS), str(model["repo"]))
        models.append(describe(Path(params["hf_home"]), model, sums, params["verify"]))
        if not request.check_mode:
            try:
                sums.save()
            except OSError as error:
                request.warnings.append(
                    f"sums of {model['repo']} could not be kept in {params['state_dir']}/{SUMS}: {error}"
                )
    return models


def describe(hf_home: Path, model: Mapping[str, Any], sums: file_sums.Sums, verify: bool) -> dict[str, Any]:
    """Describe one model as the host has it.

    :param model: its C(repo), C(revision), file patterns (C(only)), and the commit of a lock file (C(locked)), which is
        looked for where the revision leads to none
    :returns: C({repo, revision, commit, path, files, problems}); commit and path are None if the snapshot is missing
    """
    repo, revision = str(model["repo"]), str(model.get("revision") or "main")
    only = [str(pattern) for pattern in model.get("only") or []]
    entry: dict[str, Any] = {
        "repo": repo,
        "revision": revision,
        "commit": None,
        "path": None,
        "files": {},
        "problems": [],
    }
    for name in (revision, str(model.get("locked") or revision)):
        snapshot = snapshots.look(hf_home, repo, name, only)
        if snapshot["path"]:
            files, problems = snapshots.describe_files(Path(snapshot["path"]), sums, only, verify)
            entry.update(commit=snapshot["commit"], path=snapshot["path"], files=files, problems=problems)
            break
    return entry
