# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks rollout.yml and rollback.yml, their order and their handling of failures, on hosts that are folders.

The playbooks, the plan and the decisions are the real ones. Roles are played by one task each, and so are the modules that reach a
host; the modules have tests in tests/unit/plugins/modules.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rollout_fixture import BROKEN, HOSTS, NEW, OLD, PAIR, Fleet, played

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("collections"))


@pytest.fixture
def fleet(tmp_path: Path, collections: Path) -> Fleet:
    return Fleet(tmp_path, collections)


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.nightly
def test_a_change_goes_through_in_its_order_and_a_second_run_looks_and_leaves(fleet: Fleet) -> None:
    code, text = fleet.play("rollout", image=OLD, spark_rollout_batch=3)
    assert code == 0, text
    assert "1. spark-1 (canary)\n2. spark-3, spark-5\n3. spark-2, spark-4" in text or re.search(
        r"1\. spark-1 \(canary\)\n2\. ", text
    ), text
    assert set(fleet.runs().values()) == {"0.32.0"} and len(fleet.runs()) == 5
    for name in HOSTS:
        fleet.log(name)
    code, text = fleet.play("rollout", image=OLD)
    assert code == 0 and "already there: " in text, text
    assert all(fleet.log(name) == ["look"] for name in HOSTS)
    assert text.count("dgxspark/vllm-cpu:0.32.0 ") >= 5


def test_check_mode_touches_nobody_and_a_canary_that_fails_goes_back_alone(fleet: Fleet) -> None:
    fleet.begin(OLD)
    code, text = fleet.play("rollout", "--check", image=NEW)
    assert code == 0 and set(fleet.runs().values()) == {"0.32.0"}, text
    for name in HOSTS:
        fleet.log(name)
    code, text = fleet.play("rollout", image=BROKEN, spark_rollout_canary="pair")
    assert code != 0
    assert set(fleet.runs().values()) == {"0.32.0"}
    # The failed state has its own number, and the host went back to the previous one.
    assert all("restored 1" in fleet.log(name) for name in PAIR)
    assert all(fleet.log(name) == ["look"] for name in HOSTS if name not in PAIR)
    assert "it does not answer" in flat(text) and "failed, back at 1" in flat(text)
    assert "The rollout stops; hosts of later batches were not changed" in flat(text)
    state = json.loads((fleet.folder / "spark-2" / "state.json").read_text())
    assert [(generation["number"], generation["proven"]) for generation in state["made"]] == [(1, True), (2, False)]


@pytest.mark.nightly
def test_the_whole_batch_goes_back_when_more_fail_than_allowed(fleet: Fleet) -> None:
    fleet.begin(OLD)
    options = {"image": BROKEN, "spark_rollout_canary": "none", "spark_rollout_batch": "100%"}
    code, text = fleet.play("rollout", **options, breaks=["spark-3"])
    assert code != 0 and set(fleet.runs().values()) == {"0.32.0"}, text
    assert "spark-3: Prove: it does not answer" in flat(text)


@pytest.mark.nightly
def test_failures_that_are_allowed_go_back_alone_and_the_rest_goes_on(fleet: Fleet) -> None:
    fleet.begin(OLD)
    options = {"image": BROKEN, "spark_rollout_canary": "none", "spark_rollout_batch": "100%"}
    code, text = fleet.play("rollout", **options, breaks=["spark-4"], spark_rollout_max_fail_percentage=20)
    assert code != 0, text
    assert {name for name, tag in fleet.runs().items() if tag == "0.32.0"} == set(PAIR)
    assert "failed, back at 1" in flat(text)


@pytest.mark.nightly
def test_a_host_that_does_not_come_back_is_said_to_be_so(fleet: Fleet) -> None:
    fleet.begin(OLD)
    (fleet.folder / "spark-1" / "stuck").touch()
    code, text = fleet.play("rollout", image=BROKEN)
    assert code != 0 and "failed, NOT back: the disk is full" in flat(text), text


@pytest.mark.nightly
def test_a_first_rollout_that_fails_has_nothing_to_go_back_to(fleet: Fleet) -> None:
    code, text = fleet.play("rollout", image=BROKEN)
    assert code != 0 and "never had a proven generation" in flat(text), text
    assert list(fleet.runs()) == ["spark-1"]


@pytest.mark.nightly
def test_two_controllers_at_once_refuse_each_other_and_the_next_run_ends_right(fleet: Fleet) -> None:
    fleet.begin(OLD)
    at_once = {"spark_rollout_canary": "none", "spark_rollout_batch": "100%", "spark_rollout_bench": False}
    ended = fleet.together("rollout", *({"image": image, **at_once} for image in (NEW, f"{NEW}-2")))
    assert all(code and "changed this host too" in text for code, text in ended), ended
    code, text = fleet.play("rollout", image=NEW, **at_once)
    assert code == 0 and set(fleet.runs().values()) == {NEW.rpartition(":")[2]}, text


@pytest.mark.nightly
def test_the_fleet_goes_back_and_part_of_a_cluster_does_not(fleet: Fleet) -> None:
    fleet.begin(OLD)
    assert fleet.play("rollout", image=NEW, spark_rollout_canary="none", spark_rollout_batch="100%")[0] == 0
    assert set(fleet.runs().values()) == {"0.32.0-new"}
    code, text = fleet.play("rollback", "--limit", "spark-1,spark-2")
    assert code != 0 and "spark-4 cannot be reached or is not part of this run" in flat(text), text
    assert set(fleet.runs().values()) == {"0.32.0-new"}
    assert fleet.play("rollback", "--check")[0] == 0 and set(fleet.runs().values()) == {"0.32.0-new"}
    code, text = fleet.play("rollback", spark_rollback_batch=2)
    assert code == 0 and set(fleet.runs().values()) == {"0.32.0"}, text


@pytest.mark.nightly
def test_what_is_missing_anywhere_stops_the_rollback_before_the_first_host(fleet: Fleet) -> None:
    fleet.begin(OLD)
    assert fleet.play("rollout", image=NEW, spark_rollout_canary="none", spark_rollout_batch="100%")[0] == 0
    (fleet.folder / "spark-5" / "state.json").unlink()
    code, text = fleet.play("rollback")
    assert code != 0 and "no host was touched" in text and "spark-5: there is nothing to go back to" in flat(text)
    assert set(fleet.runs().values()) == {"0.32.0-new"}


def test_what_is_misspelt_is_said_before_any_host_is_touched(fleet: Fleet) -> None:
    fleet.begin(OLD)
    code, text = fleet.play("rollout", image=NEW, spark_rollout_bench={"warmup": 0})
    assert code != 0 and "no host was touched" in text and "'warmup' is 0" in flat(text), text
    code, text = fleet.play("rollout", image=NEW, spark_rollout_canary="spark-9")
    assert code != 0 and "'spark-9', which is no host or cluster of this run" in flat(text), text
    assert set(fleet.runs().values()) == {"0.32.0"}
