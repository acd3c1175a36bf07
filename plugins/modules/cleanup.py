#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what is unused on a host, and remove it on request."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cleanup
short_description: List what is unused on a host, and remove it on request
version_added: 0.1.0
description:
  - Lists, with their sizes, images, compile caches, leftovers of downloads, old revisions and models that are used by no service of the
    plan, no unit, receipt or generation of the host, no container and no running program.
  - Removes the kinds that are requested. Weights are removed only with O(weights) as well.
  - Ignores everything that does not belong to this collection, for example images of unknown repositories.
  - A companion action plugin reads from the plan what is in use.
options:
  planned:
    description: The host's part of the plan, as M(dgxspark.vllm.plan) returns it.
    type: dict
    default: {}
  addons:
    description: The host's part of the plan of add-on services, from the same.
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
    description: Set by the action plugin from O(planned) and O(addons).
    type: dict
    default: {}
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  diff_mode:
    support: none
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: List unused files and images
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
    ours:
      description: Whether this collection is known to have brought it; what it did not bring stays whatever is asked.
      type: bool
      sample: true
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
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils._content import snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import cleanup
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import docker, host_lock, made
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer, runner

REMOVE_SECONDS = 600.0  # Docker takes long over the layers of a large image

ETC = Path("/etc/dgxspark")
STATE = Path("/var/lib/dgxspark")
UNITS = Path("/etc/systemd/system")
PROC = Path("/proc")


class Host:
    """The host that the module runs on."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.run = runner(module, REMOVE_SECONDS)
        self.hf_home = Path(self.params["hf_home"])
        self.unjudged = ""
        self.containers = self.inspect("container")
        self.notes = "\n".join(
            [cleanup.read_notes(ETC, STATE, UNITS), json.dumps(self.containers, ensure_ascii=False), self.programs()]
        )

    def inspect(self, kind: str) -> list[dict[str, Any]]:
        """Return C(docker inspect) of all containers or images; fails the module without an answer. kind: C(container) or C(image)."""
        try:
            return docker.inspect_all(self.run, kind)
        except NoAnswer as nothing:
            self.module.fail_json(msg=f"what is in use cannot be told, so nothing is removed; {kind}s: {nothing}")
            raise

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
        noted = {*(f"sha256:{file.stem}" for file in (STATE / "images").glob("*.json")), *made.images()}
        images = self.inspect("image")
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
        folders = [self.hf_home / "local" / name for name in snapshots.entries(self.hf_home, "local")]
        local = {str(path): cleanup.size_of(path) for path in folders if path.is_dir() and not path.is_symlink()}
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

    def own_part(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Reduce an entry to what this collection has brought; C(ours) is false where that is nothing, and then it stays."""
        if entry["kind"] == "images":
            return {**entry, "ours": entry["built"] or entry["id"] in made.images()}
        if entry["kind"] == "caches":
            return {**entry, "ours": made.folders().get(os.path.realpath(entry["remove"][0])) == "cache"}
        own = [path for path in self.noted(entry) if self.meant(entry)(path)]
        sizes = [os.lstat(path).st_size for path in own if Path(path).is_symlink() or Path(path).is_file()]
        return {**entry, "ours": bool(sizes), "bytes": sum(sizes) if sizes else entry["bytes"]}

    def note_of(self, entry: dict[str, Any]) -> str:
        """Return the name of the note of the model that an entry is about."""
        below = Path(entry["remove"][0]).relative_to(self.hf_home).parts
        return made.local_name(below[1]) if below[0] == "local" else below[1][len("models--") :]

    def noted(self, entry: dict[str, Any]) -> list[str]:
        """Return the paths that were made of the model that an entry is about."""
        return [f"{self.hf_home}/{name}" for name in made.made_of(self.note_of(entry)).get(str(self.hf_home)) or []]

    def meant(self, entry: dict[str, Any]) -> Callable[[str], bool]:
        """Return what tells whether a path belongs to an entry; with a model all that was made for it goes."""
        if entry["kind"] == "models":
            return lambda _path: True
        return lambda path: any(path == each or path.startswith(f"{each}/") for each in entry["remove"])

    def remove(self, entry: dict[str, Any]) -> None:
        """Remove one thing; what cannot be removed fails the module with the reason."""
        try:
            if entry["kind"] == "images":
                for what in entry["remove"]:
                    # Without force: Docker itself refuses what is used after all.
                    why = docker.act(self.run, "image", "rm", "--", what, missing=True)
                    if why:
                        self.module.fail_json(msg=f"the image {what} cannot be removed: {why}")
                made.forget_images([entry["id"]])
            elif entry["kind"] == "caches":
                made.remove_folder(os.path.realpath(entry["remove"][0]))
            else:
                made.remove_made(self.note_of(entry), only=self.meant(entry))
        except OSError as error:
            self.module.fail_json(msg=f"{entry['what']} cannot be removed: {error}")

    def drop_links(self) -> None:
        """Remove links of ours to snapshots that are gone."""
        links = {self.hf_home / "snapshots" / name for name in snapshots.entries(self.hf_home, "snapshots")}
        gone = {str(link) for link in links if link.is_symlink() and not link.exists()}
        for name in made.noted_models() if gone else []:
            made.remove_made(name, only=lambda path: path in gone)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "planned": {"type": "dict", "default": {}},
            "addons": {"type": "dict", "default": {}},
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
    with host_lock.held(module):
        entries = [host.own_part(entry) for entry in host.find()]
        going = [entry for entry in entries if entry["kind"] in kinds and entry["ours"]]
        if not module.check_mode:
            for entry in going:
                host.remove(entry)
            if any(entry["kind"] in cleanup.WEIGHTS for entry in going):
                host.drop_links()
    module.exit_json(
        changed=bool(going),
        entries=[{key: entry[key] for key in ("kind", "what", "bytes", "why", "ours")} for entry in entries],
        freed_bytes=sum(entry["bytes"] for entry in going),
        unjudged=host.unjudged,
        lines=cleanup.lines_of(entries, kinds, not module.check_mode, host.unjudged),
    )


if __name__ == "__main__":
    main()
