# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules of the collection are imported with their bytecode, in a process that loads collections as Ansible does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

IMPORT = """
import json, sys
from ansible.plugins.loader import filter_loader, init_plugin_loader
init_plugin_loader([sys.argv[1]])
filter_loader.get("dgxspark.vllm.checked_hosts")
import ansible_collections.ansible.builtin
import ansible_collections.dgxspark.vllm.plugins.modules
modules = {name: module for name, module in sys.modules.items() if name.startswith("ansible_collections.")}
cached = {name: getattr(module, "__cached__", None) for name, module in modules.items()}
print(json.dumps([cached, {name: bool(module.__loader__) for name, module in modules.items()}]))
"""


def test_the_engine_has_bytecode_and_other_collections_stay_with_their_loader(tmp_path: Path) -> None:
    # Bytecode goes into a folder of the test, so that it says nothing about other runs.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, str(ROOT / "collections")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    cached, loaders = json.loads(done.stdout)
    engine = {name: path for name, path in cached.items() if "dgxspark.vllm.plugins.module_utils._" in name}
    assert engine
    assert all(Path(path).is_file() and Path(path).is_relative_to(tmp_path) for path in engine.values())
    assert not cached["ansible_collections.ansible.builtin"]
    # A folder without code: Ansible gives such a package a file and a loader, which plugins in it rely on.
    assert "ansible_collections.dgxspark.vllm.plugins.modules" in loaders
    assert all(loaders.values())
