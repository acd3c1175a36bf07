# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that are made by a Dockerfile: what may stand in it, and how a service runs from the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import read_docker_run
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import built_image, bundle
from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import cleanup
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import plan as engine
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.inventory import InventoryError

ROOT = Path(__file__).resolve().parents[5]
RECIPE = yaml.safe_load((ROOT / "playbooks/recipes/qwen3-4b-instruct-2507.yml").read_text(encoding="utf-8"))
REF = "vllm/vllm-openai@sha256:" + "a" * 64
STEPS = """\
# The parser of its author.
USER root
RUN sed -i 's/a/b/' /usr/lib/x.py \\
    && python3 -c 'import x'
COPY <<'END' /opt/patch.py
FROM in a here-document is text
END
ENV PATCHED=1
"""


def planned(steps: str = STEPS, ref: str = REF, **more: Any) -> dict[str, Any]:
    """The part of its host in the plan of one service on such an image."""
    image = {"ref": ref, "vllm_version": "0.32.0", "entrypoint": "serve", "dockerfile": steps}
    service = {"name": "m", "recipe": RECIPE["name"], "port": 8001, "image": image}
    variables = {"spark_services": [service], **more}
    hosts = {"h": {"vars": variables, "address": "192.168.1.11"}}
    host: dict[str, Any] = engine.make_plan(hosts, {RECIPE["name"]: RECIPE})["hosts"]["h"]
    return host


def test_instructions_behind_from_are_taken() -> None:
    assert built_image.problems(REF, STEPS) == []


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("FROM x", "line 1: FROM may not stand here: the base is 'ref'"),
        ("RUN true\nADD https://x.example/y /y", "line 2: ADD may not stand here"),
        ("CMD serve", "the plan writes the command"),
        ("ENTRYPOINT []", "the plan goes by the base's"),
        ("HEALTHCHECK NONE", "it may have ARG, COPY, ENV"),
        ("COPY patch.py /opt/", "COPY needs a here-document"),
        ("RUN <<END\necho x\n", "its here-document is not closed"),
        ("RUN --security=insecure true", "RUN may have no option"),
        ("COPY --from=x a b", "COPY may have no option"),
        ("# syntax=docker/dockerfile:1\nRUN true", "a directive of the parser"),
        ("ENV HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345", "it contains a secret"),
        ("RUN pip install --index-url https://me:s3cretw0rd@x.example/simple y", "it contains a secret"),
        ("RUN true\x07", "without control characters"),
        ("  ", "must be the instructions"),
        (["RUN true"], "must be the instructions"),
    ],
)
def test_what_may_not_stand_there_is_named(steps: Any, message: str) -> None:
    assert any(message in text for text in built_image.problems(REF, steps))


@pytest.mark.parametrize("ref", ["vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:latest", "vllm/vllm-openai"])
def test_a_base_that_can_move_is_refused(ref: str) -> None:
    with pytest.raises(InventoryError, match=r"needs an image that is pinned by its digest"):
        planned(ref=ref)


def test_a_service_runs_from_what_is_built_and_the_plan_shows_the_dockerfile() -> None:
    host = planned()
    (service,), (built,) = host["services"], host["built_images"]
    run = read_docker_run(service["argv"])
    assert run and run.image == built["tag"] == service["image"]["run"]
    assert built["tag"].startswith("dgxspark/built:") and built["base"] == REF
    lines = built["dockerfile"].splitlines()
    assert lines[0] == f"FROM {built['base_tag']}" and lines[1:-1] == STEPS.strip().splitlines()
    (finding_of_build,) = [finding for finding in host["findings"] if finding["rule"] == "image.built"]
    assert "RUN sed -i" in finding_of_build["message"] and REF in finding_of_build["message"]
    assert host["images"] == [REF]  # the base is pulled


def test_the_name_of_a_result_tells_base_and_instructions() -> None:
    first = built_image.planned(REF, REF, "RUN true")
    assert first == built_image.planned(REF, REF, "\nRUN true\n\n")
    differing = [built_image.planned(REF, REF, "RUN false"), built_image.planned(REF[:-1] + "b", REF, "RUN true")]
    assert first["tag"] not in [other["tag"] for other in differing]


def test_an_image_without_a_dockerfile_is_run_as_it_is() -> None:
    hosts = {"h": {"vars": {"spark_services": [{"name": "m", "recipe": RECIPE["name"], "port": 8001}]}}}
    host = engine.make_plan(hosts, {RECIPE["name"]: RECIPE})["hosts"]["h"]
    assert host["built_images"] == [] and host["services"][0]["built_image"] is None


def test_ray_is_put_on_top_of_it() -> None:
    image = {"ref": REF, "vllm_version": "0.32.0", "entrypoint": "serve", "dockerfile": STEPS}
    service = {"name": "m", "recipe": RECIPE["name"], "port": 8001, "image": image}
    cluster = {"name": "c", "executor": "ray", "services": [{**service, "args": {"tensor-parallel-size": 2}}]}
    hosts = {name: {"vars": {"spark_cluster": cluster}, "address": f"192.168.1.{name[1]}"} for name in ("s1", "s2")}
    made = engine.make_plan(hosts, {RECIPE["name"]: RECIPE}, groups={"c": list(hosts)})
    for host in made["hosts"].values():
        (built,), (with_ray,) = host["built_images"], host["ray_images"]
        assert with_ray["base"] == built["tag"]
        assert host["services"][0]["image"]["run"] == with_ray["tag"]
        assert host["services"][0]["settings"]["rank"]["image"] == built["tag"]


def test_cleaning_up_and_bundles_know_it() -> None:
    host = planned()
    (built,) = host["built_images"]
    assert {built["tag"], built["base_tag"]} <= set(cleanup.in_use(host, {})["images"])
    assert built["tag"] in bundle.needs_of({"h": host}, ["h"])[0]
