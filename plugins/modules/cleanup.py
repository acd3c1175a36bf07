#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List unused files of a host, and remove them on request."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cleanup
short_description: List unused files of a host, and remove them on request
description:
  - Lists, with their sizes, images, compile caches, leftovers of downloads, old revisions and models that are used by no service of the
    plan, no unit, receipt or generation of the host, no container and no running program. Ignores everything that does not belong to this collection.
  - Removes the kinds that are requested. Weights are removed only with O(weights) as well.
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
  description: What nothing uses, by kind, the largest first. C(bytes) of an image are those of all its layers, which others may share. C(ours) tells
    whether this collection is known to have brought it; what it did not bring stays whatever is asked.
  returned: success
  type: list
  sample: [{kind: images, what: "vllm/vllm-openai:v0.23.0", bytes: 21474836480, ours: true, why: "no container, unit, receipt or plan names it"}]
freed_bytes:
  description: Bytes that were removed, or would be in check mode.
  returned: success
  type: int
unjudged:
  description: Why weights were not looked at; empty when they were.
  returned: success
  type: str
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
        except NoAnswer as silence:
            self.module.fail_json(msg=f"what is in use cannot be told, so nothing is removed; {kind}s: {silence}")
            raise

    @staticmethod
    def programs() -> str:
        """Return the command lines of all processes: one outside of containers may serve weights."""
        lines = []
        for file in PROC.glob("[0-9]*/cmdline"):
            try:
                lines.append(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
        return "\n".join(lines)

    @staticmethod
    def label(container: dict[str, Any], name: str) -> str | None:
        """Return a label of the collection on a container."""
        labels: dict[str, str] = (container.get("Config") or {}).get("Labels") or {}
        return labels.get(f"dgxspark.{name}")

    def unclear_container(self, models: list[dict[str, Any]]) -> str:
        """Return a running container of somebody else that mounts the weights and names no model, empty without one."""
        for container in self.containers:
            is_ours = self.label(container, "managed") or self.label(container, "fetch")
            is_running = (container.get("State") or {}).get("Running")
            if is_running and not is_ours and self.mounts_weights(container):
                text = json.dumps(container)
                if not any(model["repo"] in text for model in models):
                    return str(container.get("Name") or "").lstrip("/")
        return ""

    def mounts_weights(self, container: dict[str, Any]) -> bool:
        """Tell whether a container mounts the folder of weights, a part of it, or a folder above it."""
        sources = [Path(str(mount.get("Source") or "/")) for mount in container.get("Mounts") or []]
        home = self.hf_home
        return any(source in (home, *home.parents) or home in source.parents for source in sources)

    def find(self) -> list[dict[str, Any]]:
        """Return all images, caches and weights that nothing uses."""
        return self.unused_images() + self.unused_caches() + self.unused_weights()

    def unused_images(self) -> list[dict[str, Any]]:
        """Return the images that nothing uses."""
        asked_ids = {*(f"sha256:{file.stem}" for file in (STATE / "images").glob("*.json")), *made.images()}
        used_ids = [str(box.get("Image") or "") for box in self.containers]
        planned, keep = self.params["wanted"].get("images") or [], self.params["keep"]
        return cleanup.unused_images(self.inspect("image"), used_ids, planned, keep, asked_ids, self.notes)

    def unused_caches(self) -> list[dict[str, Any]]:
        """Return the caches of services that are neither planned nor deployed."""
        cache_dir = self.params["cache_dir"]
        deployed = [file.stem for file in (ETC / "services").glob("*.json")]
        used = [f"{cache_dir}/{name}" for name in (*(self.params["wanted"].get("services") or []), *deployed)]
        why = "no service by this name is planned or on the host"
        return cleanup.unused_folders(cleanup.read_caches(Path(cache_dir)), used, "caches", self.notes, why)

    def unused_weights(self) -> list[dict[str, Any]]:
        """Return the weights that nothing uses; none if that cannot be judged, see C(unjudged)."""
        wanted = self.params["wanted"]
        if any(self.label(box, "fetch") and (box.get("State") or {}).get("Running") for box in self.containers):
            self.unjudged = "a download is under way, and what it will need cannot be told from what it will not"
            return []
        models = cleanup.read_models(self.hf_home)
        folders = [self.hf_home / "local" / name for name in snapshots.entries(self.hf_home, "local")]
        local = {str(path): cleanup.size_of(path) for path in folders if path.is_dir() and not path.is_symlink()}
        container = self.unclear_container(models)
        if container:
            self.unjudged = (
                f"the container {container} has {self.hf_home} before it and does not say which model it serves. Stop it, or name "
                "what it serves in its command"
            )
            return []
        entries = cleanup.unused_weights(
            models,
            wanted.get("models") or [],
            self.params["keep"],
            self.notes,
            lambda repo, revision: bool(snapshots.look(self.hf_home, repo, revision, ["*"])["complete"]),
        )
        paths = wanted.get("paths") or []
        # Containers have another path above "local".
        mounted = [path for path in local if f"/local/{Path(path).name}" in self.notes]
        return entries + cleanup.unused_folders(local, [*paths, *mounted], "models", self.notes, "no service names it")

    def own_part(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Reduce an entry to the files that the collection brought; C(ours) is false without any, and the entry stays."""
        if entry["kind"] == "images":
            return {**entry, "ours": entry["built"] or entry["id"] in made.images()}
        if entry["kind"] == "caches":
            return {**entry, "ours": made.folders().get(os.path.realpath(entry["remove"][0])) == "cache"}
        belongs = self.belongs_to(entry)
        paths = [path for path in self.noted_paths(entry) if belongs(path)]
        sizes = [os.lstat(path).st_size for path in paths if Path(path).is_symlink() or Path(path).is_file()]
        return {**entry, "ours": bool(sizes), "bytes": sum(sizes) if sizes else entry["bytes"]}

    def note_of(self, entry: dict[str, Any]) -> str:
        """Return the name of the note about the model of an entry."""
        below = Path(entry["remove"][0]).relative_to(self.hf_home).parts
        return made.local_name(below[1]) if below[0] == "local" else below[1][len("models--") :]

    def noted_paths(self, entry: dict[str, Any]) -> list[str]:
        """Return the paths that the collection made for the model of an entry."""
        return [f"{self.hf_home}/{name}" for name in made.made_of(self.note_of(entry)).get(str(self.hf_home)) or []]

    def belongs_to(self, entry: dict[str, Any]) -> Callable[[str], bool]:
        """Return a test whether a path belongs to an entry; an unused model goes with all its paths."""
        if entry["kind"] == "models":
            return lambda _path: True
        return lambda path: any(path == root or path.startswith(f"{root}/") for root in entry["remove"])

    def remove(self, entry: dict[str, Any]) -> None:
        """Remove one entry; fails the module with the reason if it cannot be removed."""
        try:
            if entry["kind"] == "images":
                for name in entry["remove"]:
                    # Without force: Docker refuses to remove a used image.
                    why = docker.act(self.run, "image", "rm", "--", name, missing=True)
                    if why:
                        self.module.fail_json(msg=f"the image {name} cannot be removed: {why}")
                made.forget_images([entry["id"]])
            elif entry["kind"] == "caches":
                made.remove_folder(os.path.realpath(entry["remove"][0]))
            else:
                made.remove_made(self.note_of(entry), only=self.belongs_to(entry))
        except OSError as error:
            self.module.fail_json(msg=f"{entry['what']} cannot be removed: {error}")

    def drop_links(self) -> None:
        """Remove the collection's links to removed snapshots."""
        links = {self.hf_home / "snapshots" / name for name in snapshots.entries(self.hf_home, "snapshots")}
        broken = {str(link) for link in links if link.is_symlink() and not link.exists()}
        for name in made.noted_models() if broken else []:
            made.remove_made(name, only=lambda path: path in broken)


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
        removed = [entry for entry in entries if entry["kind"] in kinds and entry["ours"]]
        if not module.check_mode:
            for entry in removed:
                host.remove(entry)
            if any(entry["kind"] in cleanup.WEIGHTS for entry in removed):
                host.drop_links()
    module.exit_json(
        changed=bool(removed),
        entries=[{key: entry[key] for key in ("kind", "what", "bytes", "why", "ours")} for entry in entries],
        freed_bytes=sum(entry["bytes"] for entry in removed),
        unjudged=host.unjudged,
        lines=cleanup.lines_of(entries, kinds, not module.check_mode, host.unjudged),
    )


if __name__ == "__main__":
    main()
