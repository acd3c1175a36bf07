#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what nobody uses any more on a host, and remove it on request."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cleanup
short_description: List what nobody uses any more on a host, and remove it on request
version_added: 0.1.0
description:
  - Finds images, compile caches, leftovers of downloads, old revisions and models that no service of the plan, no unit, receipt
    or generation of the host, no container and no program under way names. Lists them with their sizes.
  - Removes the kinds that are asked for. Weights are removed only when O(weights) says so, too.
  - What is not of this collection is not looked at; images of repositories that it does not know, for example.
  - A companion action plugin takes from the plan what is in use.
options:
  planned:
    description: The host's part of the plan, as M(dgxspark.vllm.plan) returns it.
    type: dict
    default: {}
  around:
    description: The host's part of what stands around the engines, from the same.
    type: dict
    default: {}
  remove:
    description: Kinds to remove, V(images), V(caches), V(downloads), V(revisions) and V(models), as a list or a text with commas.
    type: raw
    default: ''
  weights:
    description: Lets V(revisions) and V(models) be removed.
    type: bool
    default: false
  keep:
    description: Images and models that stay, whatever else holds; models as ORG/NAME or ORG/NAME@COMMIT.
    type: list
    elements: str
    default: []
  hf_home:
    description: Folder in the layout of C(HF_HOME).
    type: path
    default: /srv/huggingface
  cache_dir:
    description: Folder of the compile caches.
    type: path
    default: /var/cache/dgxspark
  wanted:
    description: Set by the action plugin from O(planned) and O(around).
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: List what could go
  dgxspark.vllm.cleanup:
    planned: "{{ spark_plan }}"
  become: true
  register: found

- name: Remove images and caches that nothing uses
  dgxspark.vllm.cleanup:
    planned: "{{ spark_plan }}"
    remove: [images, caches]
  become: true
"""

RETURN = r"""
entries:
  description: What nothing uses, by kind, the largest first.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description: What it is.
      type: str
      sample: images
    what:
      description: Its name.
      type: str
      sample: vllm/vllm-openai:v0.23.0
    bytes:
      description: Bytes that it takes; of an image those of all its layers, which others may share.
      type: int
      sample: 21474836480
    why:
      description: Why it counts as unused.
      type: str
      sample: no container, unit, receipt or plan names it
freed_bytes:
  description: Bytes that were removed, or would be in check mode.
  returned: success
  type: int
  sample: 21474836480
unjudged:
  description: Why weights were not looked at; empty when they were.
  returned: success
  type: str
  sample: ''
lines:
  description: The same for people.
  returned: success
  type: list
  elements: str
"""

import json
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils import cleanup, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils.command import runner

ETC = Path("/etc/dgxspark")
STATE = Path("/var/lib/dgxspark")
UNITS = Path("/etc/systemd/system")
PROC = Path("/proc")


class Host:
    """The host that the module runs on."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.run = runner(module)
        self.hf_home = Path(self.params["hf_home"])
        self.unjudged = ""
        self.containers = self.inspect("container", ["docker", "ps", "--all", "--quiet", "--no-trunc"])
        self.notes = "\n".join(
            [cleanup.read_notes(ETC, STATE, UNITS), json.dumps(self.containers, ensure_ascii=False), self.programs()]
        )

    def inspect(self, what: str, listing: list[str]) -> list[dict[str, Any]]:
        """Return C(docker inspect) of all that a list names; fail when Docker does not answer: nothing could be told then."""
        rc, out, err = self.run(listing)
        if rc != 0:
            self.module.fail_json(
                msg=f"what is in use cannot be told, so nothing is removed: {' '.join(listing)}: {err.strip()}"
            )
        ids = sorted(set(out.split()))
        if not ids:
            return []
        # One that is gone between the two calls makes inspect fail, but it still prints the others.
        _rc, text, _err = self.run(["docker", what, "inspect", "--", *ids])
        try:
            found = json.loads(text)
        except ValueError:
            self.module.fail_json(
                msg=f"what is in use cannot be told, so nothing is removed: docker {what} inspect printed no JSON"
            )
            return []
        return [entry for entry in found if isinstance(entry, dict)]

    @staticmethod
    def programs() -> str:
        """Command lines of all programs: weights may be served by one that is in no container."""
        lines = []
        for file in PROC.glob("[0-9]*/cmdline"):
            try:
                lines.append(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
        return "\n".join(lines)

    def fetching(self) -> bool:
        """Whether a download is under way."""
        return any(
            ((box.get("Config") or {}).get("Labels") or {}).get("dgxspark.fetch")
            and (box.get("State") or {}).get("Running")
            for box in self.containers
        )

    def silent(self, models: list[dict[str, Any]]) -> str:
        """Name a running container of somebody else's that has the weights before it and does not say which it uses."""
        home = str(self.hf_home)
        for box in self.containers:
            labels = (box.get("Config") or {}).get("Labels") or {}
            ours = labels.get("dgxspark.managed") or labels.get("dgxspark.fetch")
            if ours or not (box.get("State") or {}).get("Running"):
                continue
            sources = [str(mount.get("Source") or "").rstrip("/") or "/" for mount in box.get("Mounts") or []]
            sees = any(home == s or home.startswith(s.rstrip("/") + "/") or s.startswith(home + "/") for s in sources)
            text = json.dumps(box)
            if sees and not any(model["repo"] in text for model in models):
                return str(box.get("Name") or "").lstrip("/")
        return ""

    def find(self) -> list[dict[str, Any]]:
        """Return all that nothing uses."""
        wanted, keep = self.params["wanted"], self.params["keep"]
        noted = [f"sha256:{file.stem}" for file in (STATE / "images").glob("*.json")]
        images = self.inspect("image", ["docker", "image", "ls", "--all", "--quiet", "--no-trunc"])
        used = [str(box.get("Image") or "") for box in self.containers]
        found = cleanup.unused_images(images, used, wanted.get("images") or [], keep, noted, self.notes)
        caches = cleanup.read_caches(Path(self.params["cache_dir"]))
        services = [f"{self.params['cache_dir']}/{name}" for name in wanted.get("services") or []]
        deployed = [f"{self.params['cache_dir']}/{file.stem}" for file in (ETC / "services").glob("*.json")]
        why = "no service by this name is planned or on the host"
        found += cleanup.unused_folders(caches, [*services, *deployed], "caches", self.notes, why)
        if self.fetching():
            self.unjudged = "a download is under way, and what it will need cannot be told from what it will not"
            return found
        models = cleanup.read_models(self.hf_home)
        local = {str(path): cleanup.size_of(path) for path in sorted(self.hf_home.glob("local/*")) if path.is_dir()}
        silent = self.silent(models)
        if silent:
            self.unjudged = (
                f"the container {silent} has {self.hf_home} before it and does not say which model it serves. Stop it, or name "
                "what it serves in its command"
            )
            return found
        found += cleanup.unused_weights(
            models,
            wanted.get("models") or [],
            keep,
            self.notes,
            lambda repo, revision: bool(snapshots.look(self.hf_home, repo, revision, ["*"])["complete"]),
        )
        paths = wanted.get("paths") or []
        # In a container it goes by the path below HF_HOME.
        inside = [path for path in local if f"/local/{Path(path).name}" in self.notes]
        return found + cleanup.unused_folders(local, [*paths, *inside], "models", self.notes, "no service names it")

    def remove(self, entry: dict[str, Any]) -> None:
        """Remove one thing; what cannot be removed fails the module with the reason."""
        for what in entry["remove"]:
            if entry["kind"] == "images":
                # Without force: Docker itself refuses what is used after all.
                rc, _out, err = self.run(["docker", "image", "rm", "--", what])
                if rc != 0 and "No such image" not in err:
                    self.module.fail_json(msg=f"the image {what} cannot be removed: {err.strip()}")
                continue
            path = Path(what)
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                self.module.fail_json(msg=f"{what} cannot be removed: {error}")

    def drop_links(self) -> None:
        """Remove links to snapshots that are gone."""
        for link in self.hf_home.glob("snapshots/*"):
            if link.is_symlink() and not link.exists():
                link.unlink(missing_ok=True)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "planned": {"type": "dict", "default": {}},
            "around": {"type": "dict", "default": {}},
            "remove": {"type": "raw", "default": ""},
            "weights": {"type": "bool", "default": False},
            "keep": {"type": "list", "elements": "str", "default": []},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "cache_dir": {"type": "path", "default": "/var/cache/dgxspark"},
            "wanted": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    kinds, messages = cleanup.check_request(module.params["remove"], module.params["weights"])
    if messages:
        module.fail_json(msg="nothing was removed:\n- " + "\n- ".join(messages))
    host = Host(module)
    entries = host.find()
    going = [entry for entry in entries if entry["kind"] in kinds]
    if not module.check_mode:
        for entry in going:
            host.remove(entry)
        if any(entry["kind"] in cleanup.WEIGHTS for entry in going):
            host.drop_links()
    module.exit_json(
        changed=bool(going),
        entries=[{key: entry[key] for key in ("kind", "what", "bytes", "why")} for entry in entries],
        freed_bytes=sum(entry["bytes"] for entry in going),
        unjudged=host.unjudged,
        lines=cleanup.lines_of(entries, kinds, not module.check_mode, host.unjudged),
    )


if __name__ == "__main__":
    main()
