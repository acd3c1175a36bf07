#!/usr/bin/python
# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: generation
short_description: Keep the states of a host as numbered generations, and bring one back
version_added: 0.1.0
description:
  - A generation is what a host was at the end of a run, with its settings, secrets, programs, units, receipts, the ids of its
    images and the commits of its models. The files lie beside it by their sums, readable by root alone.
  - Nothing is fetched from anywhere. Images of generations get a name of this collection's own, so that
    C(docker image prune) leaves them alone.
options:
  action:
    description:
      - V(record) makes a new generation when the host is not what the current one says, and nothing else when it is.
      - V(confirm) notes O(facts) in the current generation, with which it was proved again, where it is proven and the host still is what
        it says. No generation is made, and none becomes proven.
      - V(look) says what there is, whether the host still is what its generation says, and what going back would do.
      - V(compare) says in what the host differs from its current generation, file by file, and which files of O(models) are not
        as they should be. M(dgxspark.vllm.drift) judges it. Nothing is written, and no content of a file is returned.
      - V(settled) says whether site.yml would find nothing to do - the host was proved as what O(plan) and O(around) want, and still is
        that, file by file, with its units active, its images and folders there, and its weights whole. Files of weights that were
        touched are hashed, as M(dgxspark.vllm.model_snapshot) does.
      - V(restore) brings a generation back, once it is known that its images and weights are there.
      - V(forget) removes all generations and the names that they gave to images.
    type: str
    choices: [record, confirm, look, compare, settled, restore, forget]
    required: true
  proven:
    description:
      - With O(action=record), whether the services were proved in this run. Left out, they were not tried; a generation that is
        proven already stays so as long as the host is the same.
    type: bool
  reason:
    description:
      - With O(action=record), why it was not proven.
    type: str
    default: ''
  plan:
    description:
      - With O(action=record) and O(action=settled), the host's part of RV(dgxspark.vllm.plan#module:hosts). A restored generation is proved by its services.
        Left out, they are what the receipts say.
    type: dict
  around:
    description:
      - With O(action=record) and O(action=settled), the host's part of RV(dgxspark.vllm.plan#module:around).
    type: dict
  facts:
    description:
      - With O(action=record), O(action=confirm) and O(action=settled), RV(dgxspark.vllm.spark_info#module:spark), of which the action plugin
        sends kernel, driver and DGX OS.
    type: dict
    default: {}
  models:
    description:
      - With O(action=compare), the models of the host's part of RV(dgxspark.vllm.plan#module:hosts). Sizes of files are compared, none is
        read. With O(action=settled) the action plugin sets it.
    type: list
    elements: dict
    default: []
  services:
    description:
      - Set by the action plugin; of the planned services what is kept.
    type: list
    elements: dict
  settings:
    description:
      - Set by the action plugin; the settings of the host's plan.
    type: dict
    default: {}
  wanted:
    description:
      - Set by the action plugin; a mark of all that the host was to be, by which M(dgxspark.vllm.rollout) sees whom it can leave out.
    type: str
    default: ''
  folders:
    description:
      - Set by the action plugin; with O(action=settled), folders that have to be there.
    type: list
    elements: dict
    default: []
  overridden:
    description:
      - Set by the action plugin; with O(action=settled), variables of roles that are set beside the plan. What they change cannot be seen.
    type: list
    elements: str
    default: []
  baseline:
    description:
      - With O(action=look), record what runs when the host has services but no generation yet. It counts as proven when every
        service has a receipt and its unit is active.
    type: bool
    default: false
  keep:
    description:
      - How many generations are kept. The current one and the proven one before it are kept in any case. Images that this collection
        brought and that only removed generations name go with them; weights never do.
    type: int
    default: 5
  generation:
    description:
      - The generation that is meant; the last proven one before the present state when 0.
    type: int
    default: 0
  hf_home:
    description:
      - Folder of weights.
    type: path
    default: /srv/huggingface
  root:
    description:
      - Where the host's files are; for tests.
    type: path
    default: /
extends_documentation_fragment:
  - dgxspark.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details:
      - RV(steps) names what would change; contents are never shown, secrets are among them.
  idempotent:
    support: full
notes:
  - Needs root.
seealso:
  - module: dgxspark.vllm.rollout
  - module: dgxspark.vllm.drift
author:
  - dgxspark.vllm contributors (@dgxspark)
"""

EXAMPLES = r"""
- name: Record what the host is now
  dgxspark.vllm.generation:
    action: record
    proven: true
    plan: "{{ spark_plan }}"
  become: true

- name: Note that it was proved with the kernel and driver of today
  dgxspark.vllm.generation:
    action: confirm
    facts: "{{ spark_measured.spark }}"
  become: true

- name: See what going back would do
  dgxspark.vllm.generation:
    action: look
  become: true
  register: before

- name: Go back
  dgxspark.vllm.generation:
    action: restore
    generation: "{{ before.target }}"
  become: true
"""

RETURN = r"""
current:
  description: The generation that the host is, or was last; null without one. With what runs of each service.
  returned: success
  type: dict
  sample: {"number": 3, "parent": 2, "proven": true, "services": {"heavy": {"image": "vllm/vllm-openai:v0.24.0", "commit": "0123abc"}}}
same:
  description: Whether the host still is what the current generation says.
  returned: success
  type: bool
  sample: true
running:
  description: Whether all units of the current generation that start at boot are active.
  returned: when O(action=look)
  type: bool
  sample: true
settled:
  description: Whether there is nothing to apply.
  returned: when O(action=settled)
  type: bool
  sample: true
why:
  description: Why it is not.
  returned: when O(action=settled)
  type: list
  elements: str
  sample: ["generation 3 is not proven"]
generations:
  description: All generations that are kept, by number.
  returned: success
  type: list
  elements: dict
safe:
  description: The nearest proven generation, the current one first; what a run that fails goes back to. Null without one.
  returned: when O(action=look)
  type: int
  sample: 3
target:
  description: The generation that O(generation) means; null without one.
  returned: when O(action=look) or O(action=restore)
  type: int
  sample: 2
problems:
  description: Why it cannot be restored. Images and weights that are missing are named.
  returned: when O(action=look)
  type: list
  elements: str
  sample: []
steps:
  description: What restoring it changes, or changed.
  returned: when O(action=look) or O(action=restore)
  type: list
  elements: str
  sample: ["writes /etc/dgxspark/env/heavy.env", "restarts spark-heavy.service"]
touched:
  description: Units that restoring it starts, restarts or stops.
  returned: when O(action=look) or O(action=restore)
  type: list
  elements: str
  sample: [spark-heavy.service]
gateways:
  description: The gateways' names of the services that restoring it touches, each with C(name), C(host) and C(backend).
  returned: when O(action=look)
  type: list
  elements: dict
clusters:
  description: The hosts of each cluster that the present and the target generation have a part of.
  returned: when O(action=look)
  type: dict
plan:
  description: What the services of the target are proved by, C(services) and C(settings).
  returned: when O(action=look) or O(action=restore)
  type: dict
receipts:
  description: Model and measurement of each service, by the receipts on the host; with O(action=compare) what is deployed.
  returned: when O(action=look) or O(action=compare)
  type: dict
recorded:
  description:
    - With O(action=record), whether a new generation was made.
    - With O(action=compare), what the current generation says beside its files, null without one.
  returned: when O(action=record) or O(action=compare)
  type: raw
  sample: false
files:
  description: The files that are not what the current generation has, by what is different. Names alone, secrets are among them.
  returned: when O(action=compare)
  type: dict
  sample: {"changed": ["/etc/dgxspark/env/heavy.env"], "missing": [], "added": [], "attributes": []}
units:
  description: Whether each unit starts at boot, and its state.
  returned: when O(action=compare)
  type: dict
  sample: {"spark-heavy.service": {"enabled": true, "active": "active"}}
moved:
  description: Models whose revision stands for another commit by now, with C(repo), C(revision), C(was) and C(is), by service.
  returned: when O(action=compare)
  type: dict
  sample: {}
models:
  description: What is wrong with O(models), with C(repo), C(revision), C(commit), C(there) and C(wrong).
  returned: when O(action=compare)
  type: list
  elements: dict
  sample: [{"repo": "Qwen/Qwen3-8B", "revision": "main", "commit": "0123abc", "there": true, "wrong": ["config.json is missing"]}]
removed:
  description: Numbers of generations that were removed, and names of images.
  returned: when O(action=record)
  type: list
  elements: str
  sample: []
"""

import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.dgxspark.vllm.plugins.module_utils import command, component, snapshots
from ansible_collections.dgxspark.vllm.plugins.module_utils import generations as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils.cleanup import names_of_image

LOG_LINES = 15
IMAGE_NOTES = "/var/lib/dgxspark/images"
AT_BOOT = ("enabled", "enabled-runtime")


class Host:
    """The host that the module runs on: its present state, its generations, and the way between."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module, self.params, self.check = module, module.params, module.check_mode
        self.run = command.runner(module)
        self.root = Path(self.params["root"])
        self.folder = self.at(engine.FOLDER)
        self.manifests = self.read_manifests()
        self.current = self.read_current()
        self.texts: dict[str, str] = {}
        self.began: dict[str, float | None] = {}
        self.receipts: dict[str, dict[str, Any]] = {}
        self.silent = ""  # why Docker did not answer
        self.state = self.read_state()

    def at(self, path: str) -> Path:
        """Where a path of the host is."""
        return self.root / path.lstrip("/")

    # --- the present state

    def read_state(self) -> dict[str, Any]:
        """Return what the host is now."""
        files: dict[str, Any] = {}
        folders: dict[str, Any] = {}
        for tree in engine.TREES:
            self.read_tree(tree, files, folders)
        for path in sorted(self.at(engine.SYSTEM).glob(engine.UNIT_PATTERN)):
            where = f"{engine.SYSTEM}/{path.name}"
            if path.is_dir() and not path.is_symlink():
                self.read_tree(where, files, folders)
            else:
                files[where] = self.entry(path)
        self.read_tree(engine.RECEIPTS, self.receipts, {})
        self.texts = {
            name: self.at(f"{engine.SYSTEM}/{name}").read_text(encoding="utf-8", errors="replace")
            for name in (path.rpartition("/")[2] for path in files if path.rpartition("/")[0] == engine.SYSTEM)
            if name.endswith((".service", ".timer", ".socket", ".path")) and "@." not in name
        }
        state: dict[str, Any] = {"files": files, "folders": folders, "units": self.read_units()}
        state["images"] = self.read_images(engine.service_names(files))
        return state

    def read_tree(self, tree: str, files: dict[str, Any], folders: dict[str, Any]) -> None:
        """Note all that lies below a folder."""
        top = self.at(tree)
        if not top.is_dir():
            return
        folders[tree] = self.owner(top)
        for base, names, plain in os.walk(top):
            names[:] = sorted(name for name in names if name != "__pycache__")
            inside = f"{tree}{base[len(str(top)) :]}"
            for name in [*names, *plain]:
                path = Path(base, name)
                if path.is_dir() and not path.is_symlink():
                    folders[f"{inside}/{name}"] = self.owner(path)
                # What a run that was cut off left half written.
                elif not name.startswith(".dgxspark-"):
                    files[f"{inside}/{name}"] = self.entry(path)

    @staticmethod
    def owner(path: Path) -> dict[str, str]:
        """Return owner, group and mode."""
        seen = path.lstat()
        return {
            "owner": owner_name(seen.st_uid),
            "group": group_name(seen.st_gid),
            "mode": f"{seen.st_mode & 0o7777:04o}",
        }

    def entry(self, path: Path) -> dict[str, str]:
        """Return what a file is."""
        if path.is_symlink():
            return {"link": str(path.readlink())}
        return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **self.owner(path)}

    def read_units(self) -> dict[str, Any]:
        """Ask systemd for the units, and keep since when they run."""
        names = sorted(self.texts)
        if not names:
            return {}
        rc, out, err = self.run(component.show_command(names))
        if rc:
            self.module.fail_json(msg=f"systemd cannot be asked about {', '.join(names)}: {(err or out).strip()}")
        seen = component.read_units(names, out, time.clock_gettime(time.CLOCK_MONOTONIC), time.time())
        self.began = {name: unit.began for name, unit in seen.items()}
        files = dict(zip(names, out.strip().split("\n\n")))
        at_boot = {
            name: any(f"UnitFileState={word}\n" in files.get(name, "") + "\n" for word in AT_BOOT) for name in names
        }
        return {name: {"enabled": at_boot[name], "active": seen[name].active} for name in names}

    def read_images(self, services: set[str]) -> dict[str, Any]:
        """Return which image each unit runs: by the name in its unit, and by the id that the name leads to now."""
        refs = {name: engine.image_of(text) for name, text in self.texts.items()}
        for service in services:
            try:
                settings = json.loads(self.at(f"/etc/dgxspark/services/{service}.json").read_text(encoding="utf-8"))
                ranks = engine.images_of_rank(settings)
            except (OSError, ValueError, AttributeError):
                continue
            # Ray and engine of a rank are containers of one image.
            refs[f"spark-{service}.service"] = ranks[-1] if ranks else refs.get(f"spark-{service}.service")
        found = self.inspect(sorted({ref for ref in refs.values() if ref}))
        return {name: {"ref": ref, "id": found.get(ref)} for name, ref in sorted(refs.items()) if ref}

    def inspect(self, refs: list[str]) -> dict[str, str]:
        """Return the ids of those images that are there."""
        return {ref: image["Id"] for ref, image in self.images(refs).items()}

    def images(self, refs: list[str]) -> dict[str, dict[str, Any]]:
        """Return what Docker says of those images that are there, by the name asked for."""
        if not refs:
            return {}
        rc, out, err = self.run(["docker", "image", "inspect", *refs])
        if rc and err.strip() and not re.search("no such (image|object)", err, re.IGNORECASE):
            self.silent = err.strip()
        try:
            listed = json.loads(out or "[]")
        except ValueError:
            return {}
        found = {}
        for image in listed:
            names = names_of_image(image)
            for ref in refs:
                if ref in names or names & names_of_image(
                    {"RepoTags": [ref]} if "@" not in ref else {"RepoDigests": [ref]}
                ):
                    found[ref] = image
        return found

    def models(self, services: list[dict[str, Any]]) -> dict[str, Any]:
        """Return which commit of which model each service runs."""
        found: dict[str, Any] = {}
        for service in services:
            model = service.get("model") or {}
            if model.get("repo"):
                found[service["name"]] = self.model(model["repo"], model.get("revision") or "main", model.get("link"))
            elif model.get("path"):
                found[service["name"]] = {"path": model["path"]}
            for more in (service.get("lock") or {}).get("models") or []:
                if more.get("repo") and more["repo"] != model.get("repo"):
                    found[f"{service['name']}/{more['repo']}"] = self.model(
                        more["repo"], more.get("revision") or "main", None
                    )
        return found

    def model(self, repo: str, revision: str, link: str | None) -> dict[str, Any]:
        """Return the commit that a revision is now."""
        ref = self.model_folder(repo) / "refs" / revision
        entry: dict[str, Any] = {"repo": repo, "revision": revision, "commit": revision}
        if ref.is_file():
            entry["commit"] = ref.read_text(encoding="utf-8", errors="replace").strip()
        place = self.at(f"{self.params['hf_home']}/{link}") if link else None
        if place is not None and place.is_symlink():
            entry.update(link=f"{self.params['hf_home']}/{link}", leads=str(place.readlink()))
        return entry

    def model_folder(self, repo: str) -> Path:
        """Where a model lies in the cache of Hugging Face."""
        return self.at(f"{self.params['hf_home']}/hub/models--{repo.replace('/', '--')}")

    def services_of_receipts(self) -> list[dict[str, Any]]:
        """Return the services that have a receipt and settings, as far as a plan would say of them."""
        found = []
        for name in sorted(engine.service_names(self.state["files"])):
            receipt = self.read_json(f"{engine.RECEIPTS}/{name}.json")
            settings = self.read_json(f"/etc/dgxspark/services/{name}.json")
            deployed = receipt.get("deployed") or {}
            found.append(
                {
                    "name": name,
                    "unit": f"spark-{name}.service",
                    "container": settings.get("container") or f"spark-{name}",
                    "url": settings.get("url"),
                    "served_model_name": settings.get("model"),
                    "settings": settings,
                    "start_timeout": settings.get("start_deadline_seconds") or 3000,
                    "model": deployed.get("model") or {},
                    "image": deployed.get("image") or {},
                    "state": "started",
                }
            )
        return found

    def read_json(self, path: str) -> dict[str, Any]:
        """Return a file of the host that holds an object, an empty one when it does not."""
        try:
            found = json.loads(self.at(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    # --- generations

    def read_manifests(self) -> dict[int, dict[str, Any]]:
        """Return the generations that are kept, by number."""
        found = {}
        for path in sorted(self.folder.glob("[0-9]*.json")):
            try:
                manifest = engine.load(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                self.module.warn(f"{path} is no generation that can be read ({error}); it is left out")
                continue
            found[manifest["number"]] = manifest
        return found

    def read_current(self) -> dict[str, Any]:
        """Return which generation the host is."""
        try:
            found = json.loads((self.folder / "current.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"number": max(self.manifests, default=None), "from": None, "restoring": None}
        return {"number": None, "from": None, "restoring": None, **found}

    def now(self) -> dict[str, Any] | None:
        """Return the current generation."""
        return self.manifests.get(self.current["number"] or 0)

    def same(self) -> bool:
        """Whether the host is what its generation says."""
        current = self.now()
        if current is None:
            return False
        # The same services at the same place, which may have another commit by now.
        models = {
            name: self.model(entry["repo"], entry["revision"], None) if entry.get("repo") else entry
            for name, entry in (current["state"].get("models") or {}).items()
        }
        return engine.identity({**self.state, "models": models}) == engine.identity(current["state"])

    def beside(self, path: Path, content: bytes, mode: int, owner: str = "root", group: str = "root") -> Path:
        """Write a file whole beside its place; returns where."""
        name = None
        try:
            handle, name = tempfile.mkstemp(prefix=".dgxspark-", dir=path.parent)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            # The mode last: a change of the owner takes special bits away.
            self.chown(Path(name), owner, group)
            Path(name).chmod(mode)
        except OSError as error:
            if name:
                Path(name).unlink(missing_ok=True)
            error.filename = str(path)  # a disk that is full names none
            raise
        return Path(name)

    def put(self, path: Path, content: bytes) -> None:
        """Write a file of ours: there is the old one or the new one, never a part."""
        self.beside(path, content, 0o600).replace(path)

    @staticmethod
    def chown(path: Path, owner: str, group: str) -> None:
        """Give a file to its owner."""
        if os.geteuid() == 0:
            shutil.chown(path, int(owner) if owner.isdigit() else owner, int(group) if group.isdigit() else group)

    def set_current(self, **values: Any) -> None:
        """Keep which generation the host is."""
        self.current = {**self.current, **values}
        self.put(self.folder / "current.json", (json.dumps(self.current, indent=1) + "\n").encode())

    def store(self, manifest: dict[str, Any]) -> None:
        """Keep a generation: its files first, so that there is none without them."""
        for folder in (self.folder, self.folder / "store"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        for path, entry in [*manifest["state"]["files"].items(), *manifest["receipts"].items()]:
            if not entry.get("sha256") or (self.folder / "store" / entry["sha256"]).exists():
                continue
            content = self.at(path).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                self.module.fail_json(
                    msg=f"{path} changed while it was recorded; run again when nothing else writes it"
                )
            self.put(self.folder / "store" / entry["sha256"], content)
        self.put(self.folder / f"{manifest['number']}.json", engine.dump(manifest).encode())
        self.manifests[manifest["number"]] = manifest

    def record(self, proven: bool | None) -> dict[str, Any]:
        """Make a new generation where the host is another than the current one says."""
        params = self.params
        if self.silent:
            # A state whose images are not known would be another one than that same state tomorrow.
            self.module.fail_json(
                msg=f"nothing was recorded, since Docker does not say which images run: {self.silent}. "
                "See systemctl status docker, and run again"
            )
        services = params["services"]
        services = self.services_of_receipts() if services is None else services
        self.state["models"] = self.models(services)
        plan = {"services": engine.slim(services), "settings": params["settings"]}
        facts = params["facts"]
        current = self.now()
        same = current is not None and engine.identity(self.state) == engine.identity(current["state"])
        changed = False
        if same and current is not None:
            # Another kernel or driver makes no other state; it is noted once the state was proved with it.
            moved = bool(facts) and facts != current.get("facts")
            if proven and (not current["proven"] or params["wanted"] != current["wanted"] or moved):
                changed = not current["proven"]
                current.update(proven=True, reason="", plan=plan, wanted=params["wanted"], receipts=self.receipts)
                current.update({"facts": facts} if facts else {})
                if not self.check:
                    self.store(current)
            if not self.check:
                if self.current["restoring"] is not None:
                    self.set_current(restoring=None)
                # The run that recorded it may have been cut off before, or Docker with it.
                self.name_images(engine.used(self.manifests.values())[1], set())
            return {"recorded": False, "removed": [], "changed": changed}
        manifest = engine.build(
            max(self.manifests, default=0) + 1,
            self.current["number"] if current is not None else None,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            self.state,
            self.receipts,
            bool(proven),
            plan,
            params["wanted"],
            "" if proven else params["reason"],
            facts,
        )
        if self.check:
            return {"recorded": True, "removed": [], "changed": True}
        self.store(manifest)
        self.set_current(number=manifest["number"], **{"from": None, "restoring": None})
        return {"recorded": True, "removed": self.prune(), "changed": True}

    def confirm(self) -> bool:
        """Note that a proven generation was proved again, with the facts of today; returns whether they are new.

        Never makes one proven: services that were stopped, or failed when it was recorded, may not have been tried.
        """
        current, facts = self.now(), self.params["facts"]
        if current is None or not current["proven"] or not facts or facts == current.get("facts") or not self.same():
            return False
        current["facts"] = facts
        if not self.check:
            self.store(current)
        return True

    def prune(self) -> list[str]:
        """Remove what is not kept, and give the images of what is kept a name; returns what was removed."""
        keep = engine.kept(self.manifests, self.current["number"], self.params["keep"])
        gone = [self.manifests.pop(number) for number in sorted(set(self.manifests) - keep)]
        for manifest in gone:
            (self.folder / f"{manifest['number']}.json").unlink(missing_ok=True)
        sums, images = engine.used(self.manifests.values())
        for path in (self.folder / "store").iterdir():
            if path.name not in sums:
                path.unlink()
        removed = [f"generation {manifest['number']}" for manifest in gone]
        return removed + self.name_images(images, engine.used(gone)[1] - images)

    def tags(self) -> set[str]:
        """Return our own names of images."""
        _rc, out, _err = self.run(["docker", "image", "ls", "--format", "{{.Tag}}", engine.TAG])
        return {f"{engine.TAG}:{tag}" for tag in out.split() if tag != "<none>"}

    def name_images(self, wanted: set[str], gone: set[str]) -> list[str]:
        """Have each image that a generation names carry our name, and remove what only removed ones named."""
        there, meant = self.tags(), {engine.tag_of(image): image for image in wanted}
        for tag in sorted(set(meant) - there):
            self.run(["docker", "tag", meant[tag], tag])
        removed = []
        for image in sorted(gone):
            # Only what this collection has brought or asked; and never by force: what a container uses stays.
            noted = self.at(f"{IMAGE_NOTES}/{image.rpartition(':')[2]}.json").exists()
            names = self.images([image]).get(image) or {}
            for name in [*(names.get("RepoTags") or []), *(names.get("RepoDigests") or [])] if noted else []:
                if not name.startswith(f"{engine.TAG}:") and self.run(["docker", "image", "rm", name])[0] == 0:
                    removed.append(name)
        for tag in sorted(there - set(meant)):
            self.run(["docker", "image", "rm", tag])
        return removed

    def forget(self) -> bool:
        """Remove everything that generations left behind; images stay."""
        tags = self.tags()
        found = bool(tags) or self.folder.exists()
        if found and not self.check:
            for tag in sorted(tags):
                image = self.images([tag]).get(tag) or {}
                # With its last name an image would go too.
                if len([*(image.get("RepoTags") or []), *(image.get("RepoDigests") or [])]) > 1:
                    self.run(["docker", "image", "rm", tag])
            shutil.rmtree(self.folder, ignore_errors=True)
        return found

    # --- looking

    def look(self) -> dict[str, Any]:
        """Say what there is, and what going back would do."""
        if (
            self.params["baseline"]
            and not self.manifests
            and engine.service_names(self.state["files"])
            and not self.check
        ):
            names = engine.service_names(self.state["files"])
            active = all(
                (self.state["units"].get(f"spark-{name}.service") or {}).get("active") == "active" for name in names
            )
            self.record(active and all(f"{engine.RECEIPTS}/{name}.json" in self.receipts for name in names))
        same, current = self.same(), self.now()
        number, why = engine.target(self.manifests, self.current, same, self.params["generation"])
        manifest = self.manifests.get(number or 0)
        todo = self.steps_to(manifest) if manifest else engine.Steps()
        units = (current or {"state": {}})["state"].get("units") or {}
        receipts = {}
        for path in self.receipts:
            receipt = self.read_json(path)
            receipts[str(receipt.get("service"))] = {
                "model": (receipt.get("deployed") or {}).get("model"),
                "benchmark": receipt.get("benchmark"),
            }
        return {
            "same": same,
            "restoring": self.current["restoring"],
            "running": all(
                (self.state["units"].get(name) or {}).get("active") == "active"
                for name, unit in units.items()
                if unit["enabled"]
            ),
            "safe": engine.restorable(self.manifests, self.current["number"]),
            "target": number,
            "problems": [why] if manifest is None else self.missing(manifest),
            "steps": engine.lines_of(todo),
            "touched": sorted({*todo.start, *todo.restart, *todo.stop}),
            "gateways": engine.gateways([current, manifest]),
            "clusters": engine.clusters([current, manifest]),
            "plan": (manifest or {}).get("plan") or {},
            "receipts": receipts,
        }

    def compare(self) -> dict[str, Any]:
        """Say in what the host differs from its current generation; names and states, no contents."""
        current = self.now()
        state = (current or {}).get("state") or {}
        there, then = self.state["files"], state.get("files") or {}
        written, attributes, added = engine.differences(there, then) if current else ([], [], [])
        recorded = None
        if current is not None:
            recorded = {
                **{key: current.get(key) for key in ("number", "at", "proven", "wanted", "facts")},
                **{key: self.current[key] for key in ("from", "restoring")},
                **{key: state.get(key) or {} for key in ("units", "images")},
            }
        moved = {}
        for name, entry in (state.get("models") or {}).items():
            now = self.model(entry["repo"], entry["revision"], None)["commit"] if entry.get("repo") else None
            if now != entry.get("commit"):
                moved[name] = {**{key: entry[key] for key in ("repo", "revision")}, "was": entry["commit"], "is": now}
        return {
            "recorded": recorded,
            "same": self.same(),
            "files": {
                "changed": [path for path in written if path in there],
                "missing": [path for path in written if path not in there],
                "added": added,
                "attributes": attributes,
            },
            "units": self.state["units"],
            "moved": moved,
            "models": [self.whole(entry) for entry in self.params["models"]],
            "receipts": {
                name: self.read_json(f"{engine.RECEIPTS}/{name}.json").get("deployed") or {}
                for name in sorted(engine.service_names(there))
            },
        }

    def settled(self) -> list[str]:
        """Return why a run that applies the plan could find something to do; empty when it could not."""
        params, current = self.params, self.now()
        why = [f"{name} is set, which the plan does not know of" for name in params["overridden"]]
        if self.silent:
            return [*why, f"Docker does not say which images run: {self.silent}"]
        if current is None:
            return [*why, "nothing was recorded yet"]
        number = current["number"]
        state = current["state"]
        if not current["proven"] or self.current["restoring"] is not None:
            why.append(f"generation {number} is not proven")
        if current["wanted"] != params["wanted"]:
            why.append(f"something else is wanted than generation {number}")
        if params["facts"] != current.get("facts"):
            why.append("kernel, driver or DGX OS are others than at the last proof")
        if not self.same():
            why.append(f"files, units, images or models are not those of generation {number}")
        if self.state["folders"] != state.get("folders"):
            why.append(f"folders are not those of generation {number}")
        why += engine.lines_of(self.steps_to(current))
        why += [
            f"{name} is {seen['active']}"
            for name, seen in sorted(self.state["units"].items())
            if seen["enabled"] and seen["active"] != "active"
        ]
        why += [f"{entry['path']} is not as it has to be" for entry in params["folders"] if not self.folder_is(entry)]
        why += [text for entry in params["models"] if entry.get("repo") for text in self.faults(entry)]
        for service in params["services"] or []:
            began = self.began.get(service["unit"])
            model = service.get("model") or {}
            for repo in filter(None, [model.get("repo"), *(more.get("repo") for more in model.get("extra") or [])]):
                mark = snapshots.repair_mark(self.at(snapshots.SUMS_DIR), repo)
                if began is not None and mark.exists() and mark.stat().st_mtime > began:
                    why.append(f"{service['unit']} runs with a file of {repo} that was damaged")
        lacking = {engine.tag_of(image) for image in engine.used(self.manifests.values())[1]} - self.tags()
        why += [f"the image {tag} of a generation has no name" for tag in sorted(lacking)]
        return why

    def folder_is(self, entry: dict[str, Any]) -> bool:
        """Whether a folder is there, with its owner and mode."""
        path = self.at(entry["path"])
        if not path.is_dir():
            return False
        seen = self.owner(path)
        wanted = {"owner": "root", "group": "root", "mode": "0755", **entry}
        return all(seen[key] == str(wanted[key]) for key in seen)

    def faults(self, asked: dict[str, Any]) -> list[str]:
        """Say what the role models would mend of a model."""
        hf_home, what = self.at(self.params["hf_home"]), f"{asked['repo']}@{asked['revision']}"
        found = snapshots.look(hf_home, asked["repo"], asked["revision"], list(asked.get("only") or []))
        sums = snapshots.Sums(self.at(snapshots.SUMS_DIR), asked["repo"])
        wrong = snapshots.faults(found, asked, sums, str(self.params["settings"].get("verify") or "changed"))
        if not self.check:
            try:
                sums.save()
            except OSError as error:  # they are read again the next time
                self.module.warn(f"sums of {asked['repo']} could not be kept: {error}")
        why = [f"{what}: {each['file']} {each['why']}" for each in wrong]
        if not found["complete"]:
            why.append(f"{what} is not whole")
        elif asked.get("link"):
            link = hf_home / asked["link"]
            if not link.is_symlink() or link.resolve() != Path(found["path"]).resolve():
                why.append(f"{link} does not lead to {what}")
        return why

    def whole(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Say whether a planned model is there as it should be, by the names and sizes of its files."""
        if not asked.get("repo"):
            place = self.at(asked["path"])
            there = place.is_file() or (place.is_dir() and any(place.iterdir()))
            return {"repo": None, "path": asked["path"], "revision": None, "commit": None, "there": there, "wrong": []}
        hf_home, only = self.at(self.params["hf_home"]), list(asked.get("only") or [])
        found: dict[str, Any] = {"path": None, "missing": [], "commit": None}
        # As the role models finds it: a bundle brings the locked commit without a name for it.
        for revision in (asked.get("revision") or "main", asked.get("locked")):
            if revision and not found["path"]:
                found = snapshots.look(hf_home, asked["repo"], revision, only)
        wrong = [f"{name} is missing" for name in found["missing"]]
        if found["path"] and asked.get("files"):
            sums = snapshots.Sums(self.at(snapshots.SUMS_DIR), asked["repo"])
            listed = snapshots.check(Path(found["path"]), asked["files"], sums, "size")
            wrong = list(dict.fromkeys([*wrong, *(f"{each['file']} {each['why']}" for each in listed)]))
        return {
            "repo": asked["repo"],
            "path": None,
            "revision": asked.get("revision") or "main",
            "commit": found["commit"],
            "there": bool(found["path"]),
            "wrong": wrong,
        }

    def missing(self, manifest: dict[str, Any]) -> list[str]:
        """Say what a generation needs that is not there: images, weights, kept files, accounts."""
        problems = []
        state = manifest["state"]
        refs = {entry["ref"] for entry in state["images"].values()} | {
            entry["id"] for entry in state["images"].values() if entry.get("id")
        }
        there = self.inspect(sorted(refs))
        for unit, entry in sorted(state["images"].items()):
            by_tag = "@" not in entry["ref"] and not entry["ref"].startswith("sha256:")
            if entry["ref"] in there and (there[entry["ref"]] == entry.get("id") or not by_tag):
                continue
            if entry.get("id") in there and by_tag:
                continue  # the name leads elsewhere by now; it is set back
            problems.append(
                f"{unit}: its image {entry['ref']} ({str(entry.get('id'))[:19]}) is not on this host any more; "
                f"bring it (docker pull {entry['ref']}, or docker load) and run again"
            )
        for name, entry in sorted((state.get("models") or {}).items()):
            lost = self.lost_weights(entry)
            if lost:
                problems.append(
                    f"{name}: {lost}; fetch it again (site.yml --tags models with that revision) and run again"
                )
        for path, entry in [*state["files"].items(), *manifest["receipts"].items()]:
            if entry.get("sha256") and self.kept(entry) is None:
                problems.append(
                    f"{path}: what generation {manifest['number']} kept of it is gone or damaged "
                    f"({self.folder}/store/{entry['sha256']}); name another generation"
                )
        if os.geteuid() == 0:
            for path, entry in [*state["files"].items(), *state["folders"].items()]:
                if "owner" in entry and not (
                    account(pwd.getpwnam, entry["owner"]) and account(grp.getgrnam, entry["group"])
                ):
                    problems.append(
                        f"{path}: no account {entry['owner']}:{entry['group']} on this host; run site.yml --tags host"
                    )
        return sorted(set(problems))

    def kept(self, entry: dict[str, Any]) -> bytes | None:
        """Return what was kept of a file, None when it is gone or damaged."""
        place = self.folder / "store" / entry["sha256"]
        content = place.read_bytes() if place.is_file() else b""
        return content if hashlib.sha256(content).hexdigest() == entry["sha256"] else None

    def lost_weights(self, entry: dict[str, Any]) -> str:
        """Say what is missing of a model, empty when it is whole."""
        if entry.get("path"):
            path = self.at(entry["path"])
            there = path.is_file() or (path.is_dir() and any(path.iterdir()))
            return "" if there else f"its weights {entry['path']} are gone"
        snapshot = self.model_folder(entry["repo"]) / "snapshots" / str(entry["commit"])
        of = f"its weights {entry['repo']}@{str(entry['commit'])[:12]}"
        if not snapshot.is_dir():
            return f"{of} are gone"
        broken = [path.name for path in snapshot.rglob("*") if path.is_symlink() and not path.exists()]
        if broken or not any(snapshot.iterdir()):
            return f"{of} are not whole ({', '.join(sorted(broken)[:3]) or 'empty'})"
        return ""

    def steps_to(self, manifest: dict[str, Any]) -> engine.Steps:
        """Return what brings the host to a generation."""
        then = manifest["state"]
        texts = {}
        for name in then["units"]:
            entry = then["files"].get(f"{engine.SYSTEM}/{name}") or {}
            place = self.folder / "store" / str(entry.get("sha256"))
            texts[name] = place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""
        times = {path: self.at(path).lstat().st_mtime for path in self.state["files"]}
        outdated = [
            name
            for name, began in self.began.items()
            if began is not None
            and any(when > began and engine.concerns(name, texts.get(name, ""), path) for path, when in times.items())
        ]
        retagged = [
            name
            for name, entry in then["images"].items()
            if (self.state["images"].get(name) or {}).get("id") != entry.get("id")
        ]
        return engine.steps(self.state, then, texts, outdated, retagged)

    # --- going back

    def restore(self) -> dict[str, Any]:
        """Bring a generation back; nothing is touched when something that it needs is missing."""
        number, why = engine.target(self.manifests, self.current, self.same(), self.params["generation"])
        manifest = self.manifests.get(number or 0)
        problems = [why] if manifest is None else self.missing(manifest)
        if manifest is None or problems:
            self.module.fail_json(msg="nothing was touched:\n- " + "\n- ".join(problems))
            return {}
        todo = self.steps_to(manifest)
        models = self.models_to_set(manifest)
        result = {
            "target": number,
            "steps": engine.lines_of(todo) + [f"sets {entry['repo']}@{entry['revision']} back" for entry in models],
            "touched": sorted({*todo.start, *todo.restart, *todo.stop}),
            "plan": manifest["plan"],
            "changed": todo.any() or bool(models) or self.current["number"] != number,
        }
        if self.check or not result["changed"]:
            if self.current["restoring"] is not None and not self.check:
                self.set_current(restoring=None)
            return result
        came = self.current["from"] if self.current["number"] == number else self.current["number"]
        staged: dict[str, Path] = {}
        try:
            self.stage(manifest, todo, staged)
            # Noted first, so that a run that is cut off is finished by the next one.
            self.set_current(restoring=number)
            self.systemctl("stop", todo.stop)
            self.systemctl(
                "disable", [name for name in todo.stop if name not in manifest["state"]["units"]], allowed=True
            )
            self.write_back(manifest, todo, staged)
        finally:
            for beside in staged.values():
                beside.unlink(missing_ok=True)
        for entry in models:
            self.set_model(entry)
        self.retag(manifest["state"]["images"])
        self.must(["systemctl", "daemon-reload"])
        self.systemctl("disable", todo.disable)
        self.systemctl("enable", todo.enable)
        self.start(manifest, todo)
        self.set_current(number=number, **{"from": came if came is not None else number, "restoring": None})
        return result

    def stage(self, manifest: dict[str, Any], todo: engine.Steps, staged: dict[str, Path]) -> None:
        """Write what comes back beside its place, so that a disk that is full leaves all files as they are."""
        for path, entry in sorted(manifest["state"]["folders"].items()):
            place = self.at(path)
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                place.unlink()
            place.mkdir(parents=True, exist_ok=True)
            self.chown(place, entry["owner"], entry["group"])
            place.chmod(int(entry["mode"], 8))
        wanted = {**manifest["receipts"], **manifest["state"]["files"]}
        for path in [*engine.differences(self.receipts, manifest["receipts"])[0], *todo.write]:
            entry, place = wanted[path], self.at(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            if "link" in entry:
                continue
            content = self.kept(entry)
            if content is None:
                self.module.fail_json(msg=f"{path}: what was kept of it is gone since a moment ago; run again")
                return
            staged[path] = self.beside(place, content, int(entry["mode"], 8), entry["owner"], entry["group"])

    def write_back(self, manifest: dict[str, Any], todo: engine.Steps, staged: dict[str, Path]) -> None:
        """Put in place, remove and hand over files and folders."""
        state = manifest["state"]
        for path in todo.remove:
            self.at(path).unlink(missing_ok=True)
        for path in sorted(set(self.state["folders"]) - set(state["folders"]), reverse=True):
            if self.at(path).is_dir() and not any(self.at(path).iterdir()):
                self.at(path).rmdir()
        receipts = engine.differences(self.receipts, manifest["receipts"])
        for path in receipts[2]:
            self.at(path).unlink(missing_ok=True)
        wanted = {**manifest["receipts"], **state["files"]}
        for path in [*receipts[0], *todo.write]:
            entry, place = wanted[path], self.at(path)
            if "link" in entry:
                place.unlink(missing_ok=True)
                place.symlink_to(entry["link"])
                continue
            # Dated by when it counts: a unit that began since it was written beside its place ran from the old one.
            os.utime(staged[path])
            staged.pop(path).replace(place)
        for path in todo.attributes:
            if "link" not in wanted[path]:
                self.chown(self.at(path), wanted[path]["owner"], wanted[path]["group"])
                self.at(path).chmod(int(wanted[path]["mode"], 8))

    def models_to_set(self, manifest: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the models whose revision is another commit by now, or whose link leads elsewhere."""
        found = []
        for entry in (manifest["state"].get("models") or {}).values():
            if not entry.get("repo") or entry["commit"] == entry["revision"]:
                continue
            now = self.model(entry["repo"], entry["revision"], None)
            link = self.at(entry["link"]) if entry.get("link") else None
            leads = str(link.readlink()) if link is not None and link.is_symlink() else None
            if now["commit"] != entry["commit"] or leads != entry.get("leads"):
                found.append(entry)
        return found

    def set_model(self, entry: dict[str, Any]) -> None:
        """Have a revision mean the commit that it meant then."""
        ref = self.model_folder(entry["repo"]) / "refs" / entry["revision"]
        ref.parent.mkdir(parents=True, exist_ok=True)
        owner = self.owner(ref.parent)
        self.beside(ref, entry["commit"].encode(), 0o644, owner["owner"], owner["group"]).replace(ref)
        if entry.get("link"):
            link = self.at(entry["link"])
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(entry["leads"])

    def retag(self, images: dict[str, Any]) -> None:
        """Have names of images lead where they led then."""
        there = self.inspect(sorted({entry["ref"] for entry in images.values()}))
        for entry in images.values():
            by_tag = "@" not in entry["ref"] and not entry["ref"].startswith("sha256:")
            if by_tag and entry.get("id") and there.get(entry["ref"]) != entry["id"]:
                self.must(["docker", "tag", entry["id"], entry["ref"]])

    def start(self, manifest: dict[str, Any], todo: engine.Steps) -> None:
        """Bring units along. systemd holds engines back until those before them answer; the caller waits for that."""
        services = {f"spark-{name}.service" for name in engine.service_names(manifest["state"]["files"])}
        again = [*todo.start, *todo.restart]
        if again:
            # Earlier failures count against a start; 1: there is nothing to forget.
            self.run(["systemctl", "reset-failed", *again])
        taken_over = [
            name
            for name in todo.restart
            if name not in services
            and f"{engine.SYSTEM}/{name}" not in todo.write
            and "\nExecReload=" in self.texts.get(name, "")
            and (self.state["images"].get(name) or {}).get("id")
            == (manifest["state"]["images"].get(name) or {}).get("id")
        ]
        self.systemctl("restart", [name for name in todo.restart if name in services], "--no-block")
        self.systemctl("start", [name for name in todo.start if name in services], "--no-block")
        self.systemctl("restart", [name for name in todo.restart if name not in services and name not in taken_over])
        self.systemctl("start", [name for name in todo.start if name not in services])
        self.systemctl("reload", taken_over)

    def systemctl(self, verb: str, names: list[str], *options: str, allowed: bool = False) -> None:
        """Run systemctl; fail with its own words and the end of the log."""
        if not names:
            return
        rc, out, err = self.run(["systemctl", verb, *options, "--", *names])
        if rc and not allowed:
            log = self.run(
                [
                    "journalctl",
                    "--no-pager",
                    "--quiet",
                    "--output=cat",
                    f"--lines={LOG_LINES}",
                    *[f"--unit={name}" for name in names],
                ]
            )[1]
            self.module.fail_json(msg=f"systemctl {verb} {' '.join(names)} failed: {(err or out).strip()}\n{log}")

    def must(self, argv: list[str]) -> None:
        """Run a program that may not fail."""
        rc, out, err = self.run(argv)
        if rc:
            self.module.fail_json(msg=f"{' '.join(argv)} failed: {(err or out).strip()}")

    def answer(self, **more: Any) -> dict[str, Any]:
        """Return what every action says."""
        current = self.now()
        return {
            "current": engine.summary(current) if current else None,
            "same": self.same(),
            "generations": [engine.summary(self.manifests[number]) for number in sorted(self.manifests)],
            **more,
        }


def account(find: Any, name: str) -> bool:
    """Tell whether there is such an account; a number stands for itself."""
    if name.isdigit():
        return True
    try:
        find(name)
    except KeyError:
        return False
    return True


def owner_name(uid: int) -> str:
    """Return the name of an account, its number without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return the name of a group, its number without one."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {
                "type": "str",
                "choices": ["record", "confirm", "look", "compare", "settled", "restore", "forget"],
                "required": True,
            },
            "proven": {"type": "bool"},
            "reason": {"type": "str", "default": ""},
            "plan": {"type": "dict"},
            "around": {"type": "dict"},
            "facts": {"type": "dict", "default": {}},
            "models": {"type": "list", "elements": "dict", "default": []},
            "services": {"type": "list", "elements": "dict"},
            "settings": {"type": "dict", "default": {}},
            "wanted": {"type": "str", "default": ""},
            "folders": {"type": "list", "elements": "dict", "default": []},
            "overridden": {"type": "list", "elements": "str", "default": []},
            "baseline": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": engine.KEEP},
            "generation": {"type": "int", "default": 0},
            "hf_home": {"type": "path", "default": "/srv/huggingface"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        host = Host(module)
        action = module.params["action"]
        if action == "record":
            result = host.record(module.params["proven"])
            result = host.answer(**result)
        elif action == "confirm":
            changed = host.confirm()
            result = host.answer(changed=changed)
        elif action == "look":
            found = host.look()
            result = host.answer(changed=False, **found)
        elif action == "compare":
            result = {"changed": False, **host.compare()}
        elif action == "settled":
            why = host.settled()
            result = {"changed": False, "settled": not why, "why": why}
        elif action == "restore":
            found = host.restore()
            host.state = host.read_state() if not module.check_mode else host.state
            result = host.answer(**found)
        else:
            result = {"changed": host.forget()}
    except PermissionError as error:
        module.fail_json(msg=f"{error.filename}: permission denied; this needs root (become: true)")
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename}: {error.strerror}. Run again once that is mended; what is done already is not done twice"
        )
    else:
        module.exit_json(**result)


if __name__ == "__main__":
    main()
