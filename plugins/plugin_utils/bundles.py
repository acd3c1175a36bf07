# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles on the controller: their manifest, and the models that a host gets from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import bundle as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import state_file


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a bundle. folder: the bundle. Raises AnsibleActionFail for a missing or damaged manifest."""
    path = folder / engine.MANIFEST
    if not path.is_file():
        raise AnsibleActionFail(
            f"spark_bundle_dir names {folder}, which has no {engine.MANIFEST}. Make a bundle with dgxspark.vllm.bundle, or correct the folder."
        )
    manifest, messages = engine.read_manifest(state_file.read(path), str(path))
    if messages:
        raise AnsibleActionFail("\n- ".join(["the bundle cannot be used:", *messages]))
    return manifest


def select_models(
    manifest: Mapping[str, Any], planned: Iterable[Mapping[str, Any]], folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the models that a host gets from a bundle, and messages about models that the bundle lacks.

    Each has the planned revision alone (another one may stand for another commit on this host) and, for a locked model, the locked files alone.
    planned: C(models) of the host's plan that have a C(repo).
    """
    models, messages = [], []
    for model in planned:
        entry, reason = engine.find_model(manifest, model["repo"], model["revision"], str(folder))
        if entry is None:
            messages.append(reason)
            continue
        expected, present = model.get("files") or entry["files"], entry["files"]
        differing = [
            name for name, file in expected.items() if (present.get(name) or {}).get("sha256") != file["sha256"]
        ]
        if differing:
            messages.append(
                f"the bundle {folder} has not the files of {model['repo']}@{model['revision']} that the lock file has: "
                f"{', '.join(differing[:5])}. Make the bundle again from a host that was deployed with this lock file."
            )
        files = {name: present[name] for name in expected if name in present}
        models.append({**entry, "revisions": [model["revision"]], "files": files})
    return models, messages
