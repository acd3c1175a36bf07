# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a lock from the reports of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._common import plain_data
from .._vllm import image_names
from .lock import SCHEMA, image_on, model_key, model_keys


def collect(
    plan: Mapping[str, Any],
    play: Sequence[str],
    images: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Sequence[Mapping[str, Any]]],
    previous: Mapping[str, Any] | None,
    answers: Callable[[str], str | None] = lambda _name: None,
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Make the lock from the reports of the play's hosts; entries of other hosts stay unchanged.

    :param plan: hosts to C({services, addon_images}), made without the lock; hosts that are no Sparks have
        add-on images alone
    :param images: host to C(images) of M(dgxspark.vllm.spark_info)
    :param models: host to C(model_files) of M(dgxspark.vllm.spark_info)
    :param answers: returns the text of an image's answer about a launch, by the name in C(image_answers) of the plan
    :returns: the lock, refusals and notes; with refusals the lock must not be written
    """
    before = previous or {"images": {}, "models": {}, "services": {}}
    collection = _Collection(plan, play)
    new_images = collection.images(images)
    new_models = collection.models(models)
    for ref, image in new_images.items():
        if image and before["images"].get(ref):
            _add_locked(image, before["images"][ref])
    services = collection.services(before["services"])
    # A name that another host still uses keeps its entry, unless the hosts of this run have a new one.
    used_images = {str(entry.get("image")) for entry in services.values()} | set(collection.addon_hosts)
    used_models = {key for entry in services.values() for key in entry.get("models") or []}
    lock: dict[str, Any] = {
        "schema": SCHEMA,
        "images": _newest(used_images, new_images, before["images"]),
        "models": _newest(used_models, new_models, before["models"]),
        "services": {key: services[key] for key in sorted(services)},
        "image_plans": collection.answers(services, before.get("image_plans") or {}, answers),
    }
    return lock, collection.refusals, collection.notes


def _add_locked(image: dict[str, Any], old: Mapping[str, Any]) -> None:
    """Add the still valid parts of an image's old entry: the digest of an unchanged build, and platforms of other hosts."""
    for platform, entry in image["platforms"].items():
        locked = old["platforms"].get(platform) or {}
        # An image from a bundle or another host has no digest there; its id identifies it.
        if entry["digest"] is None and locked.get("id") == entry["id"]:
            entry["digest"] = locked.get("digest")
    digests = {entry["digest"] for entry in image["platforms"].values()} - {None}
    # Platforms that no host of this run has stay if the image is still the same push.
    same_push = {name: entry for name, entry in old["platforms"].items() if entry.get("digest") in digests}
    image["platforms"] = dict(sorted({**same_push, **image["platforms"]}.items()))


def _newest(keys: Iterable[str], new: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new or else the previous entry of each key, sorted."""
    return {key: entry for key in sorted(keys) if (entry := new.get(key) or before.get(key))}


class _Collection:
    """Compares the reports of hosts about the images and models that their services use; records refusals and notes."""

    def __init__(self, plan: Mapping[str, Any], play: Sequence[str]) -> None:
        """Find the hosts of each image and model. plan: of all hosts. play: hosts of the run."""
        self.plan, self.play = plan, play
        self.refusals: list[str] = []
        self.notes: list[str] = []
        self.requested: dict[str, Mapping[str, Any]] = {}  # key of a service of the run -> its description
        self.image_hosts: dict[str, list[str]] = {}
        self.model_hosts: dict[str, list[str]] = {}  # by REPO@REVISION
        self.addon_hosts: dict[str, list[str]] = {}
        for host in sorted(set(play) & set(plan)):
            for service in plan[host].get("services") or []:
                answer = (plan[host].get("image_answers") or {}).get(service["name"])
                described = {**service["lock"], "image_plan": answer}
                self.requested[described["key"]] = described
                self.image_hosts.setdefault(str(described["image"]), []).append(host)
                for key in model_keys(described):
                    if host not in self.model_hosts.setdefault(key, []):
                        self.model_hosts[key].append(host)
        for host, body in sorted(plan.items()):
            for ref in (body.get("addon_images") or {}).values():
                self.addon_hosts.setdefault(ref, []).append(host)

    def images(self, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the lock's entry of each image. reports: host to its images."""
        entries: dict[str, Any] = {}
        for ref, hosts in sorted(self.image_hosts.items()):
            entries[ref] = self._image(ref, {host: (reports.get(host) or {}).get(ref) or {} for host in hosts})
        for ref, hosts in sorted(self.addon_hosts.items()):
            on_hosts = {host: (reports.get(host) or {}).get(ref) or {} for host in hosts if host in self.play}
            if any(image.get("present") for image in on_hosts.values()):
                entries[ref] = entries.get(ref) or self._image(ref, on_hosts)
            elif on_hosts and ref not in self.image_hosts:
                self.notes.append(
                    f"image {ref}: {', '.join(on_hosts)} has not got it yet; lock again when it is deployed there."
                )
        return entries

    def models(self, reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
        """Return the lock's entry of each model. reports: host to its models."""
        entries: dict[str, Any] = {}
        for key, hosts in sorted(self.model_hosts.items()):
            rows = [(host, entry) for host in hosts for entry in reports.get(host) or []]
            on_hosts = {host: row for host, row in rows if model_key(row["repo"], row["revision"]) == key}
            entries[key] = self._model(key, hosts, on_hosts)
        return entries

    def services(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the lock's entry of each service: new for this run's services, unchanged for other planned ones."""
        planned = {service["lock"]["key"] for body in self.plan.values() for service in body.get("services") or []}
        services = {key: dict(value) for key, value in before.items() if key in planned}
        for key, described in self.requested.items():
            recipe = {"name": described["recipe"], "sha256": described["recipe_sha256"]}
            services[key] = {
                "image": described["image"],
                "models": model_keys(described),
                "recipe": recipe if described["recipe"] else None,
                **({"image_plan": described["image_plan"]} if described["image_plan"] else {}),
            }
        return services

    def answers(
        self, services: Mapping[str, dict[str, Any]], before: Mapping[str, str], answers: Callable[[str], str | None]
    ) -> dict[str, str]:
        """Return the answers that services were planned with; remove the name of an answer without a text from its service."""
        texts: dict[str, str] = {}
        for service, entry in sorted(services.items()):
            name = str(entry.get("image_plan") or "")
            text = (answers(name) or before.get(name)) if name else None
            if text and len(text.encode()) <= plain_data.LONGEST_TEXT:
                texts[name] = text
                continue
            entry.pop("image_plan", None)
            if text:
                self.notes.append(
                    f"service {service}: the answer of its image is too long to be locked, {len(text)} characters."
                )
        return dict(sorted(texts.items()))

    def _image(self, ref: str, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Merge the reports of hosts about one image; the ids of one platform, or a digest that all have, must agree."""
        present = {host: image for host, image in reports.items() if image.get("present")}
        if not present:
            self._refuse_missing(f"image {ref}", reports)
            return None
        repository = image_names.split_image(ref)[0]
        by_platform: dict[str, dict[str, tuple[str, set[str]]]] = {}
        for host, image in present.items():
            platform = f"{image.get('os') or 'linux'}/{image.get('architecture') or 'arm64'}"
            by_platform.setdefault(platform, {})[host] = (str(image["id"]), _digests_of(image, repository))
        platforms = {platform: self._platform(ref, builds) for platform, builds in sorted(by_platform.items())}
        platforms = {platform: entry for platform, entry in platforms.items() if entry}
        if not platforms:
            return None
        versions = sorted({str(image["vllm_version"]) for image in present.values() if image.get("vllm_version")})
        return {"vllm_version": versions[0] if len(versions) == 1 else None, "platforms": platforms}

    def _platform(self, ref: str, builds: Mapping[str, tuple[str, set[str]]]) -> dict[str, Any] | None:
        """Return digest and id of an image on one platform. builds: host to id and digests."""
        digests = [digests for _id, digests in builds.values() if digests]
        shared = set.intersection(*digests) if digests else set()
        image_ids = {image_id for image_id, _digests in builds.values()}
        if len(image_ids) > 1 and not (shared and len(digests) == len(builds)):
            by_host = _who({host: image_id[7:19] for host, (image_id, _digests) in builds.items()})
            self.refusals.append(
                f"image {ref}: hosts have different builds of it: {by_host}. Remove the unwanted one there (docker rmi {ref}), "
                "run site.yml, then lock again."
            )
            return None
        ref_digest = image_names.split_image(ref)[2]
        digest = ref_digest if ref_digest in shared else next(iter(sorted(shared)), None)
        return {"digest": digest, "id": builds[min(builds)][0]}

    def _refuse_missing(self, name: str, hosts: Iterable[str]) -> None:
        self.refusals.append(
            f"{name}: none of {', '.join(hosts)} has it. Deploy one of them first, on a fleet with "
            "-e spark_allow_moving=true --limit HOST."
        )

    def _model(self, key: str, hosts: Sequence[str], reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Merge the reports of hosts about one model: one commit, and the same bytes under the same names."""
        present = {host: entry for host, entry in reports.items() if entry.get("commit") and entry.get("files")}
        if not present:
            self._refuse_missing(f"model {key}", hosts)
            return None
        count = len(self.refusals)
        commits = {host: str(entry["commit"]) for host, entry in present.items()}
        if len(set(commits.values())) > 1:
            self.refusals.append(
                f"model {key}: hosts have different commits of it: {_who({h: c[:12] for h, c in commits.items()})}. Set model.revision to "
                "one of them, run site.yml, then lock again."
            )
            return None
        for host, entry in present.items():
            self.refusals += [
                f"model {key} on {host}: {problem}. Remove the file there and run site.yml, which fetches it again; then lock."
                for problem in entry.get("problems") or []
            ]
        files = self._files(key, {host: entry["files"] for host, entry in present.items()})
        return {"commit": next(iter(commits.values())), "files": files} if len(self.refusals) == count else None

    def _files(self, key: str, files: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return size and checksum of each file of a model. files: host to its files by name."""
        merged: dict[str, dict[str, Any]] = {}
        for name in sorted({name for names in files.values() for name in names}):
            rows = {host: names[name] for host, names in files.items() if name in names}
            sums = {host: (int(row["size"]), str(row["sha256"])) for host, row in rows.items()}
            if len(set(sums.values())) > 1:
                by_host = _who({host: f"{size} bytes, {checksum[:12]}" for host, (size, checksum) in sums.items()})
                self.refusals.append(
                    f"model {key}: {name} is not the same on all hosts: {by_host}. Remove the damaged one and run site.yml; then lock."
                )
                continue
            without = sorted(set(files) - set(sums))
            if without:
                self.notes.append(f"model {key}: {', '.join(without)} has no {name}; site.yml will bring it there.")
            size, checksum = next(iter(sums.values()))
            merged[name] = {"size": size, "sha256": checksum}
        return merged


def _digests_of(image: Mapping[str, Any], repository: str) -> set[str]:
    """Return the digests that an image has in a repository."""
    names = image.get("repo_digests") or []
    return {name.partition("@")[2] for name in names if image_names.split_image(name)[0] == repository}


def _who(values: Mapping[str, str]) -> str:
    """Return the hosts with each value: C(a, b: x; c: y)."""
    groups: dict[str, list[str]] = {}
    for host in sorted(values):
        groups.setdefault(values[host], []).append(host)
    return "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in groups.items())


def changes(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    """Return the changes of a lock in a few lines."""
    before = old or {"images": {}, "models": {}, "services": {}}
    lines = []
    for part, noun in (("images", "image"), ("models", "model"), ("services", "service")):
        for key in sorted({*before[part], *new[part]}):
            was, now = before[part].get(key), new[part].get(key)
            if was is None:
                lines.append(f"{noun} {key}: added{_short(part, now)}")
            elif now is None:
                lines.append(f"{noun} {key}: removed")
            elif was != now:
                lines.append(f"{noun} {key}: changed{_short(part, was)} ->{_short(part, now)}")
    return lines


def _short(part: str, entry: Mapping[str, Any]) -> str:
    if part == "images":
        image = image_on(entry, None)
        return f" {str(image.get('digest') or image['id'])[7:19]}"
    if part == "models":
        size = sum(file["size"] for file in entry["files"].values())
        return f" {entry['commit'][:12]} ({len(entry['files'])} files, {size / 1e9:.2f} GB)"
    return ""
