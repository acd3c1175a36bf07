# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real LiteLLM keeps conversations with the backend that has their prefix: hit rate and first token against "fewest requests".

ENGINES names the URLs of two real engines that serve C(twin) without a key; without it the stand-ins play them, with a prefix cache.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_site import HERE, Site, needs_litellm, until
from prefix_load import measure

from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints

pytestmark = needs_litellm
LOAD = {"conversations": 6, "turns": 5, "clients": 3, "characters": 1500}


class Twins:
    """A gateway before two engines that serve the same model."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.urls = os.environ.get("ENGINES", "").split()
        if not self.urls:
            for name in ("heavy", "fast"):
                port = str(self.site.ports[name])
                self.site.start(
                    name, sys.executable, str(HERE / "standin.py"), port, "twin", "--pace", "0.01", "--prefill", "0.02"
                )
                self.urls.append(f"http://127.0.0.1:{port}")
        for url in self.urls:
            until(lambda url=url: self.site.get(f"{url}/metrics")[0] == 200, url)
        self.write(4)
        self.site.serve()

    def write(self, lead: int) -> None:
        fleet = [
            endpoints.make(
                f"spark-{number}", "127.0.0.1", "twin", "vllm", int(url.rpartition(":")[2]), "0.0.0.0", models=["twin"]
            )
            for number, url in enumerate(self.urls, 1)
        ]
        self.site.write_for(fleet, prefix_lead=lead)

    def prefix(self, outcome: str) -> float:
        """Return the number of requests with an outcome, since the last configuration."""
        lines = self.site.get(f"{self.site.url}/metrics/")[1].splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith(f'dgxspark_gateway_prefix_total{{outcome="{outcome}"}}')
        )


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    twins = Twins(tmp_path_factory.mktemp("site"))
    try:
        yield twins
    finally:
        twins.site.end()


def test_conversations_stay_with_their_prefix(twins: Twins) -> None:
    kept = measure(twins.site.url, twins.urls, "key of master", "twin", 1, **LOAD)
    turns = LOAD["conversations"] * (LOAD["turns"] - 1)
    assert twins.prefix("kept") >= turns and twins.prefix("moved") <= LOAD["conversations"]
    # Both engines work: the system prompt that all conversations share does not bring them to one.
    choices = [
        line.split()[-1]
        for line in twins.site.get(f"{twins.site.url}/metrics/")[1].splitlines()
        if line.startswith("dgxspark_gateway_choices_total{")
    ]
    assert len(choices) == 2 and min(map(float, choices)) >= turns / 6, choices
    twins.write(0)
    twins.site.reload()
    spread = measure(twins.site.url, twins.urls, "key of master", "twin", 2, **LOAD)
    twins.write(4)
    twins.site.reload()
    print(json.dumps({"prefix_lead: 4": kept, "prefix_lead: 0": spread}))
    assert kept["hit_rate"] > spread["hit_rate"] + 0.05, (kept, spread)


def test_a_drained_backend_gives_its_conversations_away(twins: Twins) -> None:
    measure(twins.site.url, twins.urls, "key of master", "twin", 3, **LOAD)
    twins.site.helper("drain", "spark-1/twin")
    before = twins.prefix("moved")
    measure(twins.site.url, twins.urls, "key of master", "twin", 3, **{**LOAD, "turns": 2})
    assert twins.prefix("moved") > before
    twins.site.helper("admit", "spark-1/twin")
