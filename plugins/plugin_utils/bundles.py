# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles as they lie on the controller: the manifest, and which of its models a host is to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object that a file holds, None when it is not there or holds none. path: of the file."""
    return state_file.read(path)


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a bundle. folder: the bundle. Raises AnsibleActionFail where there is none, or none that can be used."""
    path = folder / engine.MANIFEST
    if not path.is_file():
        raise AnsibleActionFail(
            f"spark_bundle_dir names {folder}, which holds no {engine.MANIFEST}. Make a bundle with dgxspark.vllm.bundle, or "
            "correct the folder."
        )
    manifest, messages = engine.read_manifest(read_json(path), str(path))
    if messages:
        raise AnsibleActionFail("\n- ".join(["the bundle cannot be used:", *messages]))
    return manifest


def wanted_models(
    manifest: Mapping[str, Any], asked: Iterable[Mapping[str, Any]], folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what a host is to have of its models, and why some cannot come from the bundle.

    manifest: of the bundle. asked: C(models) of the host's plan that have a C(repo). folder: the bundle, for messages.
    Each model is as the manifest has it, with the one revision that is asked for, and with the files of the lock file alone where it has some.
    """
    models, messages = [], []
    for each in asked:
        model, why = engine.find_model(manifest, each["repo"], each["revision"], str(folder))
        if model is None:
            messages.append(why)
            continue
        wanted = each.get("files") or model["files"]
        names = [name for name in wanted if name in model["files"]]
        unlike = [
            name for name, file in wanted.items() if (model["files"].get(name) or {}).get("sha256") != file["sha256"]
        ]
        if unlike:
            messages.append(
                f"the bundle {folder} has not the files of {each['repo']}@{each['revision']} that the lock file has: "
                f"{', '.join(unlike[:5])}. Make the bundle again from a host that was deployed with this lock file."
            )
        # Only the name that is asked for: another one may stand for another commit on this host.
        files = {name: model["files"][name] for name in names}
        models.append({**model, "revisions": [each["revision"]], "files": files})
    return models, messages
