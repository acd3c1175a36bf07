# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of add-on services: locked by the images of hosts, and deployed by the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import clients, gateway, monitoring, speech
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import drift
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import lock, lock_findings, lock_making
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.plugin_utils.lock_file import render

RECIPE = yaml.safe_load(
    (Path(__file__).parents[5] / "playbooks/recipes/qwen3-4b-instruct-2507.yml").read_text(encoding="utf-8")
)
ASR, FRONT = speech.KINDS["asr"]["image"], gateway.IMAGE
OLLAMA = "ollama/ollama:0.33.3"
PAGE = clients.OPEN_WEBUI_KEYS["image"][1]
NAMES = {"asr": ASR, "ollama": OLLAMA, "gateway": FRONT, "open-webui": PAGE}
HOSTS = {
    "h": {
        "vars": {
            "spark_services": [{"name": "m", "recipe": RECIPE["name"], "port": 8001}],
            "spark_speech": [{"name": "asr", "kind": "asr"}],
            "spark_ollama": {"models": ["qwen3:8b"]},
            "spark_gateway": {"aliases": {"m": {"backends": ["h/m"]}}},
            "spark_clients": {"open_webui": {"listen": "127.0.0.1"}},
        },
        "address": "192.168.1.11",
    }
}
OTHERS = {"forge": {"vars": {"spark_monitoring": {"grafana_password_file": "/k"}}, "address": "192.168.1.20"}}
GRAFANA = monitoring.GRAFANA_IMAGE


def sha(sign: str) -> str:
    return f"sha256:{sign * 64}"


def image_report(ref: str, sign: str, digest: bool = True) -> dict[str, Any]:
    """The report of a host about an image: one repeated digit as the id, the next one as the digest."""
    digests = [f"{ref.rpartition(':')[0]}@{sha(chr(ord(sign) + 1))}"] if digest else []
    return {"present": True, "id": sha(sign), "repo_digests": digests, "os": "linux", "architecture": "arm64"}


ON_HOST = {
    ASR: image_report(ASR, "1"),
    OLLAMA: image_report(OLLAMA, "3"),
    FRONT: image_report(FRONT, "5"),
    PAGE: image_report(PAGE, "7"),
}


def make(locked: dict[str, Any] | None = None, pin: bool = True, **more: Any) -> dict[str, Any]:
    hosts = {"h": {**HOSTS["h"], **more}}
    made: dict[str, Any] = engine.make_plan(hosts, {RECIPE["name"]: RECIPE}, other_hosts=OTHERS, lock=locked, pin=pin)
    return made


def collect(said_by: dict[str, Any], old: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[str], list[str]]:
    made = make(pin=False)
    everything = {
        host: {"services": [], "addon_images": body["images"]["named"]} for host, body in made["addons"].items()
    }
    return lock_making.collect(everything, list(said_by), said_by, {}, old)


@pytest.fixture
def locked() -> dict[str, Any]:
    made, refusals, notes = collect({"h": ON_HOST, "forge": {GRAFANA: image_report(GRAFANA, "a")}})
    assert (refusals, notes) == ([], [])
    reread, messages = lock.read(yaml.safe_load(render(made)), "x")
    assert reread is not None and messages == []
    return reread


def used(made: dict[str, Any]) -> dict[str, str]:
    """The image of each server as its role is given it."""
    addons_of_host = made["addons"]["h"]
    digests = {"asr": addons_of_host["speech"]["services"][0]["image"], "ollama": addons_of_host["ollama"]["image"]}
    return {
        **digests,
        "gateway": addons_of_host["gateway"]["image"],
        "open-webui": addons_of_host["clients"]["open_webui"]["image"],
    }


def about(made: dict[str, Any], rule: str, host: str = "h") -> list[dict[str, Any]]:
    return [finding for finding in engine.plan_findings(made) if (finding["rule"], finding["host"]) == (rule, host)]


def test_the_lock_has_the_images_around_of_sparks_and_of_other_hosts(locked: dict[str, Any]) -> None:
    assert set(locked["images"]) == {*NAMES.values(), GRAFANA}
    assert locked["images"][FRONT]["platforms"]["linux/arm64"] == {"digest": sha("6"), "id": sha("5")}


def test_what_is_locked_is_deployed_by_its_digest(locked: dict[str, Any]) -> None:
    made = make(locked)
    signs = {"asr": "2", "ollama": "4", "gateway": "6", "open-webui": "8"}
    assert used(made) == {name: f"{NAMES[name]}@{sha(sign)}" for name, sign in signs.items()}
    addons_of_host = made["addons"]["h"]
    for argv in (
        addons_of_host["speech"]["services"][0]["argv"],
        addons_of_host["ollama"]["argv"],
        addons_of_host["clients"]["open_webui"]["argv"],
    ):
        assert sum(f"@{sha('')[:7]}" in word for word in argv) == 1
    assert made["addons"]["forge"]["monitoring"]["grafana_image"] == f"{GRAFANA}@{sha('b')}"
    assert not about(made, "lock.by_tag") + about(made, "lock.by_tag", "forge")
    # Bundles are asked for the same.
    assert made["hosts"]["h"]["images_beside"] == sorted(used(made).values())
    # The tag, the digest and the id are asked for, so that it is found however it came.
    assert {FRONT, used(made)["gateway"], sha("5")} <= set(made["hosts"]["h"]["image_candidates"])


def test_one_that_came_without_a_digest_runs_by_its_id(locked: dict[str, Any]) -> None:
    images = {sha("5"): image_report(FRONT, "5", digest=False), FRONT: {"present": False}}
    assert used(make(locked, images=images))["gateway"] == sha("5")
    images = {f"{FRONT}@{sha('6')}": image_report(FRONT, "5")}
    assert used(make(locked, images=images))["gateway"] == f"{FRONT}@{sha('6')}"


def test_a_tag_that_moved_is_said_and_counts_for_nothing(locked: dict[str, Any]) -> None:
    made = make(locked, images={FRONT: image_report(FRONT, "d")})
    assert [finding["service"] for finding in about(made, "lock.moved")] == ["gateway"]
    assert used(made)["gateway"] == f"{FRONT}@{sha('6')}"


def test_one_that_no_registry_knows_is_refused_where_the_host_has_another(locked: dict[str, Any]) -> None:
    locked["images"][FRONT]["platforms"]["linux/arm64"]["digest"] = None
    made = make(locked, images={FRONT: image_report(FRONT, "d")})
    assert [finding["severity"] for finding in about(made, "lock.image_other")] == ["error"]
    assert used(make(locked, images={FRONT: image_report(FRONT, "5", digest=False)}))["gateway"] == sha("5")


def test_without_a_lock_a_note_says_that_they_are_by_tag() -> None:
    made = make()
    assert used(made) == NAMES
    by_tag = about(made, "lock.by_tag")
    assert [finding["severity"] for finding in by_tag] == ["info"]
    assert all(ref in by_tag[0]["message"] for ref in NAMES.values())
    assert [finding["severity"] for finding in about(made, "lock.by_tag", "forge")] == ["info"]


def test_one_that_a_lock_does_not_have_is_a_warning(locked: dict[str, Any]) -> None:
    del locked["images"][OLLAMA]
    by_tag = about(make(locked), "lock.by_tag")
    assert [finding["severity"] for finding in by_tag] == ["warning"]
    assert OLLAMA in by_tag[0]["message"] and FRONT not in by_tag[0]["message"]


def test_hosts_that_were_not_asked_keep_their_entries(locked: dict[str, Any]) -> None:
    made, refusals, _notes = collect({"h": ON_HOST}, locked)
    assert refusals == [] and made["images"] == locked["images"]


def test_one_that_no_host_has_yet_keeps_nobody_from_locking() -> None:
    made, refusals, notes = collect({"h": {**ON_HOST, PAGE: {"present": False}}})
    assert refusals == [] and PAGE not in made["images"]
    assert any(PAGE in note and "lock again" in note for note in notes)


def test_drift_tells_one_that_runs_another_image(locked: dict[str, Any]) -> None:
    body = make(locked)["hosts"]["h"]

    def host(image_id: str) -> drift.Host:
        containers = [{"name": "spark-gateway", "state": "running", "image_id": image_id}]
        return drift.Host(body, {}, True, {"containers": containers})

    assert list(drift.check_addon_images(host(sha("5")))) == []
    findings = list(drift.check_addon_images(host(sha("e"))))
    assert [(finding.rule, finding.service) for finding in findings] == [("drift.image_planned", "gateway")]
    assert FRONT in findings[0].message


def test_registries_are_asked_for_them_too(locked: dict[str, Any]) -> None:
    named = [{"image": ref, "models": []} for ref in NAMES.values()]
    assert lock_findings.questions(locked, named)["images"] == sorted(NAMES.values())
    upstream = {"images": {FRONT: sha("9")}}
    made = engine.make_plan(
        {"h": {**HOSTS["h"]}}, {RECIPE["name"]: RECIPE}, other_hosts=OTHERS, lock=locked, upstream=upstream
    )
    assert [finding["service"] for finding in about(made, "lock.moved")] == ["gateway"]
