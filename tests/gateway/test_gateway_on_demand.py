# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real LiteLLM before engines on demand: the real program that starts them, a played service manager, small engines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from gateway_site import PATIENCE, Site, needs_litellm
from on_demand_fixture import Host, until

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

pytestmark = needs_litellm
MODES = {"held": "wait", "told": "comments", "sent": "reject", "fails": "wait", "late": "wait", "there": "wait"}


class Fleet:
    """A service for each way in which a request may meet a cold engine; their names say which."""

    def __init__(self, site: Site, host: Host) -> None:
        self.site, self.host = site, host

    def asks(self, name: str) -> int:
        """Requests that the program received for a service, with any result."""
        return self.host.said.count(f"{name}: is started")

    def cold(self, name: str) -> None:
        if self.host.state(name) != "cold":
            self.host.systemctl("stop", name)
            until(lambda: self.host.state(name) == "cold")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    host = Host(tmp_path_factory.mktemp("host"), tuple(MODES), poll=0.2, retry_seconds=600)  # type: ignore[arg-type]
    for name, mode in MODES.items():
        host.services[name]["while_loading"] = mode
        host.options(name, load=2.0)
    host.options("fails", load=0.2, fail="exit")
    host.options("late", load=6.0, fail="exit")
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        host.start()
        served = [
            endpoints.make(
                *("spark-1", "127.0.0.1", name, "vllm", host.sockets[name].getsockname()[1], "0.0.0.0"),
                models=[f"org/{name}"], on_demand=True, hold_seconds=0 if mode == "reject" else 900,
            )
            for name, mode in MODES.items()
        ]  # fmt: skip
        # The gateway sends comments while a stream is silent; a stream that fails after the first comment already has its status.
        site.write_for(served, aliases={"either": ["spark-1/fails", "spark-1/there"]}, keepalive_seconds=2)
        site.serve()
        yield Fleet(site, host)
    finally:
        site.end()
        host.close()


def test_models_that_are_cold_are_listed_and_stay_cold(fleet: Fleet) -> None:
    models = json.loads(fleet.site.get(f"{fleet.site.url}/v1/models", "key of master")[1])["data"]
    assert {row["id"] for row in models} == {"either", *(f"org/{name}" for name in MODES)}
    until(
        lambda: not any(row["wrong"] for row in fleet.site.helper("status")["backends"].values())
    )  # checks came and went
    assert fleet.host.calls("start") == []


def test_a_plain_request_waits_while_its_engine_loads(fleet: Fleet) -> None:
    status, text = fleet.site.ask("org/held")
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "spark-held.service"
    assert fleet.asks("held") == 1


@pytest.mark.parametrize("name", ["held", pytest.param("told", marks=pytest.mark.nightly)])
def test_a_stream_hears_something_while_its_engine_loads(fleet: Fleet, name: str) -> None:
    fleet.host.options(name, load=7.0)
    fleet.cold(name)
    lines = fleet.site.stream(f"org/{name}", "Hello")
    first = next(at for at, line in lines if line.startswith("data: "))
    assert [line for at, line in lines if line.startswith(":") and at < first], lines
    assert lines[-1][1] == "data: [DONE]" and '" 0"' in str(lines)


def test_one_that_is_told_to_come_again_hears_when_and_is_not_tried_in_vain(fleet: Fleet) -> None:
    status, message, delay = fleet.site.refused("org/sent")
    assert (status, message) == (503, "sent is being loaded; try again") and delay is not None and int(delay) > 0
    until(lambda: fleet.host.state("sent") == "ready")
    assert fleet.site.ask("org/sent")[0] == 200 and fleet.asks("sent") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", pytest.param("completions", marks=pytest.mark.nightly)])
def test_a_start_that_failed_is_told_in_its_own_words_and_not_tried_again(
    fleet: Fleet, path: str, stream: bool
) -> None:
    status, message, delay = fleet.site.refused("org/fails", path, stream=stream)
    assert status == 503 and message.startswith("fails could not be started: ") and "no room for KV" in message
    assert delay is not None and 0 < int(delay) <= 600
    # LiteLLM would retry after the Retry-After, which is longer than the pause after a failed start.
    assert fleet.asks("fails") == 1 and "litellm" not in message.lower()


@pytest.mark.nightly
def test_a_stream_that_began_with_comments_hears_the_reason_too(fleet: Fleet) -> None:
    lines = fleet.site.stream("org/late", "Hello")
    events = [json.loads(line.removeprefix("data: ")) for _at, line in lines if line.startswith("data: {")]
    assert any(line.startswith(":") for _at, line in lines), lines
    assert [row["error"]["code"] for row in events] == ["503"] and "no room for KV" in events[0]["error"]["message"]


def test_another_backend_of_the_name_is_asked_instead(fleet: Fleet) -> None:
    status, text = fleet.site.ask("either")
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "spark-there.service"


def test_nobody_waits_longer_than_litellm_does(fleet: Fleet) -> None:
    config = json.loads((fleet.site.config / "litellm.yaml").read_text(encoding="utf-8"))
    waits = {**config["router_settings"], **config["litellm_settings"]}
    assert waits["stream_timeout"] == 1500 and waits["timeout"] == waits["request_timeout"] == 2700
    assert PATIENCE < 600  # the tests above were no proof of that
