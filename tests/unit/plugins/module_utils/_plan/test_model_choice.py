# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes that satisfy a wish, in the terminal and as a page with filters."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from html_fixture import Reader

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import model_choice, model_table, models_page
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan.model_choice import ANY, Wish


def row(recipe: str = "a", one_stream: float | None = 40.0, **changes: Any) -> dict[str, Any]:
    """A row of the table of models."""
    predicted = one_stream and {"low": one_stream * 0.9, "typical": one_stream, "high": one_stream * 1.1}
    speed = {"one_stream": predicted, "all_streams": None, "streams": 4, "first_token_8k": None}
    limits = {"ceiling": 60.0, "ceiling_all": 200.0, "drafted": 0}
    return {
        "recipe": recipe,
        "variant": None,
        "summary": f"What {recipe} is",
        "nodes": 1,
        "fits": {1: "fits"},
        "longest": 131072,
        "weights_gib": 20.0,
        "features": ["tools"],
        "jobs": ["chat"],
        "published": [],
        "speed": {**speed, **limits},
        **changes,
    }


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def rate(tokens: float, **more: Any) -> dict[str, Any]:
    return {"what": "decode", "source": "a blog", "tokens_per_second": tokens, **more}


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ([], model_table.Rate(40.0, "predicted")),
        ([rate(50), rate(45)], model_table.Rate(45, "published")),
        ([rate(90)], model_table.Rate(60.0, "published")),  # at most what the bus allows
        (
            [rate(90, streams=4), rate(70, sparks=2), rate(99, other_launch="a drafter")],
            model_table.Rate(40.0, "predicted"),
        ),
    ],
)
def test_a_recipe_is_ranked_by_its_own_published_rate_or_the_prediction(
    published: list[dict[str, Any]], expected: model_table.Rate
) -> None:
    assert model_table.rate(row(published=published)) == expected
    assert model_table.rate(row(one_stream=None)) is None


@pytest.mark.parametrize(
    ("wish", "changes", "reasons"),
    [
        (Wish(speed=40), {}, []),
        (Wish(speed=41), {}, ["slower"]),
        (Wish(speed=1), {"one_stream": None}, ["of unknown speed"]),
        (Wish(context=131073), {}, ["with a shorter context"]),
        (Wish(features=("tools", "vision")), {}, ["without vision"]),
        (Wish(jobs=("code",)), {}, ["not for code"]),
        (Wish(sparks=1), {"nodes": 2, "fits": {2: "fits"}}, ["on more Sparks"]),
        (Wish(gib=19), {}, ["larger"]),
        (ANY, {"fits": {1: "fails"}}, ["that do not fit"]),
    ],
)
def test_a_miss_has_its_reason(wish: Wish, changes: dict[str, Any], reasons: list[str]) -> None:
    assert model_choice.misses(row(**changes), wish) == reasons


def test_the_short_table_has_the_fastest_first_and_counts_the_others() -> None:
    rows = [row("slow", 10.0), row("fast", 50.0), row("fast", 60.0, variant="x"), row("plain", 45.0, features=[])]
    text = model_choice.choice_text(rows, Wish(speed=30, features=("tools",), sparks=2))
    assert "Recipes for 30 tokens/s, tools, at most 2 Sparks, the fastest first:" in text
    assert [line.split()[0] for line in text.splitlines()[4:6]] == ["fast", "fast"]
    assert "Left out: 1 slower, 1 without tools." in text
    # Without a wish variants for the same number of Sparks are left to the full table.
    assert model_choice.choice_text(rows, ANY).count("fast ") == 1
    assert "\nnone\n" in model_choice.choice_text(rows, Wish(speed=1000))


def test_a_wish_from_the_command_line() -> None:
    assert model_choice.read_wish({"speed": "30", "context": "100000", "features": ["tools"]}) == Wish(
        30, 100000, ("tools",)
    )
    assert model_choice.read_wish(None) == model_choice.read_wish({}) == ANY
    with pytest.raises(ValueError, match=r"spped(.|\n)*context(.|\n)*flying"):
        model_choice.read_wish({"spped": 3, "context": -1, "features": ["flying"]})


def visible(text: str, *choices: str) -> list[str]:
    """The recipes that a browser shows with some choices, by the rules of the page."""
    rules = re.findall(r"\.models:has\(#([\w-]+):checked\) tbody tr:not\(\.([\w-]+)\)", text)
    required = {name for key, name in rules if key in choices}
    assert required == set(choices)
    rows = re.findall(r'<tr class="([^"]*)"><td[^>]* data-of="recipe"><span>([^\s<]+)', text)
    return [recipe for classes, recipe in rows if required <= set(classes.split())]


ROWS = [
    row("fast", 50.0, features=["tools", "vision"]),
    row("pair", 55.0, nodes=2, fits={2: "fits"}, longest=262144, weights_gib=70.0, jobs=["code"]),
    row("slow", 8.0, summary="<script>"),
    row("broken", 99.0, fits={1: "fails"}),
]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser here")
@pytest.mark.parametrize(
    ("choices", "shown"),
    [
        ([], "pair,fast,slow"),
        (["speed-30"], "pair,fast"),
        (["sparks-1", "speed-30"], "fast"),
        (["job-code", "gib-40"], ""),
    ],
)
def test_a_browser_shows_the_chosen_recipes(choices: list[str], shown: str, tmp_path: Path) -> None:
    script = "document.title = [...document.querySelectorAll('tbody tr')].filter((e) => e.offsetParent).map((e) => e.innerText.match(/\\w+/)[0])"
    text = models_page.page(ROWS).replace("default-src 'none';", "script-src 'unsafe-inline';")
    for choice in choices:
        text = text.replace(f'id="{choice}"', f'id="{choice}" checked')
    page = tmp_path / "models.html"
    page.write_text(text.replace("</body>", f"<script>{script}.join()</script></body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--dump-dom"]
    argv = [str(BROWSER), *options, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    dom = subprocess.run(argv, text=True, capture_output=True, check=True).stdout
    assert f"<title>{shown}</title>" in dom


def test_the_page_filters_without_a_script() -> None:
    text = models_page.page(ROWS)
    reader = Reader(text)
    assert not {tag for tag, _name, _value in reader.attributes} & {"script", "link", "iframe", "img"}
    assert "default-src 'none'; style-src 'unsafe-inline'" in reader.values("content")
    assert visible(text) == ["pair", "fast", "slow"]
    assert visible(text, "speed-30") == ["pair", "fast"]
    assert visible(text, "sparks-1", "speed-30") == ["fast"]
    assert visible(text, "context-262144") == visible(text, "job-code") == ["pair"]
    assert visible(text, "gib-40", "feature-vision") == ["fast"]
    names = [value for tag, name, value in reader.attributes if tag == "input" and name == "id"]
    assert len(names) == len(set(names))
    assert models_page.page(ROWS) == text
