# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""host_report: the requested sections are reported, and a failing section does not affect the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._fleet import host_report
from ansible_collections.dgxspark.vllm.plugins.module_utils._host import host_facts
from ansible_collections.dgxspark.vllm.plugins.module_utils._host.host_view import (
    BadRequest,
    HostView,
    Request,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime.command import NoAnswer, Unknown

PARAMS = {"disk_paths": ["/"], "hf_home": "/nonexistent", "images": [], "fail_on_unknown": False}


def report(run: Any, place: Any, *sections: str) -> dict[str, Any]:
    view = HostView(run, str(place), settings=str(place), unit_dir=str(place))
    return host_report.report(view, Request(PARAMS), sections)


def test_only_what_is_asked_for_is_asked_of_the_host(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    fake_run.on("ip", "[]")
    result = report(fake_run, tree, "network", "disks")
    assert set(result) == {"spark", "unknown"}
    assert set(result["spark"]) == {"fabric", "management_address", "disks", "unknown"}
    assert result["spark"]["fabric"]["connectx"] and result["spark"]["disks"]["/"]["exists"]
    assert [call[0] for call in fake_run.calls] == ["ip", "ip"]
    assert report(fake_run, tree) == {"unknown": {}}


def test_each_program_is_asked_once_for_all_sections(tree: Any, fake_run: Any) -> None:
    tree.qsfp()
    fake_run.on("docker info", '{"ServerVersion": "29.2.1"}').on("docker ps", "0123456789abcdef\n")
    fake_run.on("docker container inspect", '[{"Id": "0123456789abcdef", "Name": "/x"}]').on("ip", "[]").on("ss", "")
    fake_run.on("nvidia-smi", "0, NVIDIA GB10, GPU-1, 580.159.03, 12.1, 44, 11.1, 2405, 0\n").on("systemctl", "")
    fake_run.on("nvidia-smi --query-compute-apps", "")
    report(fake_run, tree, *host_report.DEFAULT)
    assert {call: count for call, count in Counter(map(tuple, fake_run.calls)).items() if count > 1} == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoAnswer("docker", "docker did not answer in 30 s"), "docker did not answer in 30 s. Its answer is not known"),
        (Unknown("there is no docker"), "there is no docker"),
        (OSError(5, "Input/output error"), "images cannot be read: OSError: [Errno 5] Input/output error"),
        (KeyError("Id"), "images cannot be read: KeyError: 'Id'"),
    ],
)
def test_a_section_without_an_answer_is_null_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tree: Any, fake_run: Any, error: Exception, reason: str
) -> None:
    def fails(_view: HostView, _request: Request) -> Any:
        raise error

    monkeypatch.setitem(host_report.SECTIONS, "images", fails)
    result = report(fake_run, tree, "images", "memory")
    assert result["images"] is None and result["unknown"]["images"].startswith(reason)
    assert result["spark"]["memory"]["total_gib"] > 100


def test_a_fact_that_cannot_be_read_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tree: Any, fake_run: Any
) -> None:
    def fails(_view: HostView) -> dict[str, Any]:
        raise ValueError("odd")

    monkeypatch.setitem(host_facts.FACTS, "gpu", (fails, {"gpu": None}))
    spark = report(fake_run, tree, "gpu", "memory")["spark"]
    assert spark["gpu"] is None and spark["memory"]["total_gib"] > 100
    assert spark["unknown"] == {"gpu": "gpu cannot be read: ValueError: odd"}


def test_a_malformed_parameter_is_no_unknown_answer(monkeypatch: pytest.MonkeyPatch, tree: Any, fake_run: Any) -> None:
    def refuses(_view: HostView, _request: Request) -> Any:
        raise BadRequest("images: '' is no reference")

    monkeypatch.setitem(host_report.SECTIONS, "images", refuses)
    with pytest.raises(BadRequest, match="no reference"):
        report(fake_run, tree, "images")


def test_an_answer_that_is_none_is_kept_like_an_answer(tmp_path: Any, fake_run: Any) -> None:
    fake_run.silent("systemctl")
    view = HostView(fake_run, str(tmp_path))
    for _time in range(2):
        with pytest.raises(NoAnswer):
            view.units()
    assert len(fake_run.calls) == 1 and view.noted([], view.units) == [] and "systemctl" in view.unknown


def test_other_units_come_with_the_call_for_those_of_services(tmp_path: Any, fake_run: Any) -> None:
    fake_run.on("systemctl show", "Id=docker.service\nLoadState=loaded\n\nId=spark-a.service\nLoadState=loaded\n")
    view = HostView(fake_run, unit_dir=str(tmp_path), other_units=["docker.service", "gone.service"])
    assert [unit["name"] for unit in view.units()] == ["spark-a.service"]
    assert [unit["name"] for unit in view.others()] == ["docker.service"]
    assert len(fake_run.calls) == 1
