"""The plan as an HTML page: well-formed, by itself, and safe with any name."""

from __future__ import annotations

import copy
import html
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import registered_findings
from html_fixture import Reader

from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import page_parts, plan_page

HOSTILE = "<script>alert(1)</script>\"'&"


def make_plan(hosts: int = 2, name: str = "heavy", over: bool = False) -> dict[str, Any]:
    service = {
        "name": name,
        "image": {"ref": f"image-{name}"},
        "vllm_version": name,
        "port": 8001,
        "recipe": name,
        "model": {"repo": f"org/{name}", "source": None},
        "args": {"gpu-memory-utilization": 0.81, "max-model-len": 65536},
        "memory": {
            "solved": ["gpu-memory-utilization"],
            "weights_bytes": 75 * 2**30,
            "max_concurrency": 2.5,
            "residency_gib": {"low": 90.0, "typical": 95.2, "high": 99.0},
        },
        "speed": {
            "one_stream": {"low": 40.2, "high": 50.5},
            "all_streams": {"low": 75.9, "high": 138.0},
            "streams": 4,
            "first_token_8k": {"low": 2.09, "high": 3.27},
            "shared_by": 2,
        },
    }
    body = {
        "verdict": "fails" if over else "fits",
        "basis": "inventory",
        "total_gib": 60.0 if over else 120.0,
        "utilization_sum": 0.81,
        "memory_map": [
            {"label": "system", "gib": 5.2, "kind": "system", "service": None},
            {"label": f"{name} weights", "gib": 75.0, "kind": "weights", "service": name},
            {"label": f"{name} KV cache", "gib": 20.0, "kind": "kv_cache", "service": name},
            {"label": "free", "gib": 0.0 if over else 19.8, "kind": "free", "service": None},
        ],
        "services": [service],
        "findings": [],
    }
    # Hosts differ in their totals, so that each is shown.
    return {
        "hosts": {
            f"{name}-{number:03}": {**copy.deepcopy(body), "total_gib": body["total_gib"] + number}
            for number in range(hosts)
        }
    }


def make_findings(name: str = "heavy", **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "host": f"{name}-001",
            "service": name,
            "severity": "error",
            "rule": "memory.x",
            "message": f"{name} is too much.",
            "vllm_error": f"ValueError: {name}",
            "stage": "load",
            "seconds": {"low": 60, "typical": 240, "high": 600},
            "fix": f"Less {name}.",
            **more,
        }
    ]


def test_its_size_is_bounded() -> None:
    """A hundred hosts of which no two are alike, with errors that say as much as vLLM does."""
    plan = make_plan(100, over=True)
    for number, body in enumerate(plan["hosts"].values()):
        body["services"][0]["port"] = 9000 + number
    findings = [
        {**finding, "host": host, "rule": f"memory.x{number}"}
        for number, host in enumerate(plan["hosts"])
        for finding in make_findings(message="x" * 1000, vllm_error="y" * 2000)
    ]
    assert len(plan_page.page(plan, findings).encode()) < 900_000


@pytest.mark.parametrize("hosts", [0, 1, 4, 30])
@pytest.mark.parametrize("over", [False, True])
def test_the_page_is_well_formed_and_needs_nothing_but_itself(hosts: int, over: bool) -> None:
    text = plan_page.page(make_plan(hosts, over=over), make_findings())
    reader = Reader(text)
    used = {name for tag, name, _value in reader.attributes if tag != "a"}
    assert not used & {"src", "href", "srcset", "action", "data", "poster", "onclick", "onload"}
    assert set(reader.values("href")) == {f"{page_parts.DOCS}troubleshooting.md#:~:text=memory.x"}
    assert not re.search(r"url\(|@import|https?:|//", re.sub(r' href="[^"]+"', "", text))
    assert not {tag for tag, _name, _value in reader.attributes} & {"script", "link", "iframe", "img", "object"}
    assert "default-src 'none'; style-src 'unsafe-inline'" in reader.values("content")
    ids = reader.values("id")
    assert len(ids) == len(set(ids))


def test_names_cannot_become_markup() -> None:
    text = plan_page.page(make_plan(3, HOSTILE), make_findings(HOSTILE, rule=HOSTILE))
    reader = Reader(text)
    assert "<script" not in text.replace("&lt;script", "")
    assert f"ValueError: {HOSTILE}" in reader.text
    assert f"org/{HOSTILE}" in reader.text
    assert any(HOSTILE in value for value in reader.values("aria-label"))
    assert any(HOSTILE in value for value in reader.values("title"))
    assert {tag for tag, _name, _value in reader.attributes}.isdisjoint({"script"})


def test_the_same_plan_gives_the_same_bytes_in_any_order() -> None:
    plan = make_plan(5)
    other = {"hosts": dict(reversed(list(make_plan(5)["hosts"].items())))}
    assert plan_page.page(plan, make_findings()) == plan_page.page(other, make_findings())


def widths(text: str) -> list[list[float]]:
    """The widths of the spans of every bar, in percent."""
    bars = re.findall(r'<div class="bar".*?</div>(?=\s*<span class="room)', text, re.DOTALL)
    return [[float(width) for width in re.findall(r"<span [^>]*width:([0-9.]+)%", bar)] for bar in bars]


@pytest.mark.parametrize("over", [False, True])
def test_bars_are_full_and_no_fuller(over: bool) -> None:
    bar_widths = widths(plan_page.page(make_plan(1, over=over), []))
    assert len(bar_widths) == 1
    assert sum(bar_widths[0]) == pytest.approx(100.0, abs=0.01)


def test_a_host_over_its_memory_says_so_in_the_bar_and_in_words() -> None:
    text = plan_page.page(make_plan(1, over=True), [])
    assert 'class="over-mark" style="width:40.120%"' in text
    assert "40.2 GiB over" in Reader(text).text
    assert 'class="over-mark"' not in plan_page.page(make_plan(1), [])


def test_screen_readers_hear_what_the_bar_shows() -> None:
    labels = Reader(plan_page.page(make_plan(1), [])).values("aria-label")
    assert (
        "system 5.2 GiB, heavy weights 75.0 GiB, heavy KV cache 20.0 GiB, free 19.8 GiB; 19.8 GiB free of 120.0 GiB"
        in labels
    )


def test_findings_have_vllms_words_with_their_time_and_the_fix() -> None:
    text = Reader(plan_page.page(make_plan(2), make_findings())).text
    assert "heavy-001/heavy memory.x heavy is too much." in text
    assert (
        "vLLM would say, about 4 min into the start (60 s to 10 min), while it loads the weights: ValueError: heavy"
        in text
    )
    assert "Fix: Less heavy." in text


def test_a_few_hosts_are_unfolded_and_a_fleet_is_not() -> None:
    few, fleet = (plan_page.page(make_plan(hosts), make_findings()) for hosts in (3, 20))
    assert few.count('<details class="host fits" open>') == 3
    assert fleet.count('<details class="host fits">') == 20
    # On the page of a fleet, problems come before the long list.
    assert few.index("<h2>Memory") < few.index("<h2>Findings")
    assert fleet.index("<h2>Findings") < fleet.index("<h2>Memory")


def test_a_few_findings_are_unfolded_and_many_are_not() -> None:
    few, many = (
        plan_page.page(
            make_plan(), [*make_findings(), *(finding for name in names for finding in make_findings(rule=name))]
        )
        for names in ("", "abcdefgh")
    )
    assert few.count('<details class="finding error" open>') == 1
    assert many.count('<details class="finding error">') == 9


@pytest.mark.parametrize(
    ("messages", "summary"),
    [
        (["one"] * 3, "3 errors"),
        (["one", "two", "three"], "3 errors"),
        (["one", "one", "two"], "3 errors, 2 different"),
    ],
)
def test_findings_of_several_hosts_are_counted_with_those_that_differ(messages: list[str], summary: str) -> None:
    findings = [
        {**make_findings()[0], "host": f"spark-{number}", "message": f"{message} is missing", "rule": f"host.{message}"}
        for number, message in enumerate(messages)
    ]
    text = plan_page.page(make_plan(), findings)
    assert summary in re.findall(r"<summary>(.*?)</summary>", re.sub(r"</?span[^>]*>", "", text))


def test_a_fleet_can_be_narrowed_to_what_fails() -> None:
    plan = make_plan(20)
    plan["hosts"]["heavy-003"]["verdict"] = "fails"
    assert Reader(plan_page.page(plan, [])).values("id") == ["only-all", "only-fails", "only-fits"]
    assert Reader(plan_page.page(make_plan(20), [])).values("id") == []


def test_a_cluster_is_one_host_of_the_page() -> None:
    plan = make_plan(2)
    for rank, body in enumerate(plan["hosts"].values()):
        body["total_gib"] = 120.0
        body["services"][0].update(
            rank=rank, cluster={"name": "pair", "size": 2}, url=None if rank else "http://192.0.2.1:8001"
        )
        body["memory_map"][-1]["gib"] = 19.8 - 0.4 * rank
    text = Reader(plan_page.page(plan, [])).text
    assert (
        "heavy-000..001 fit heavy weights 75.0 free 19.4 19.4 to 19.8 GiB free 120.00 GiB" in text
        and "Over 2 Sparks: heavy-000, heavy-001" in text
    )
    assert (
        text.count("heavy, 2 ranks") == 2
        and "192.0.2.1:8001" in text
        and "75.0 GiB each" in text
        and "1 service 240 GiB memory" in text
    )


def test_the_head_has_time_and_inventory_and_a_refused_plan_says_so() -> None:
    about = page_parts.as_of("2026-11-29T01:36:10+00:00", HOSTILE)
    fits, refused = (
        Reader(plan_page.page(make_plan(1), list(found), about=about)).text for found in ((), make_findings())
    )
    assert f"Plan of 1 DGX Spark As of 2026-11-29 01:36 UTC, inventory {HOSTILE}." in fits and "Refused" not in fits
    assert "Refused plan of 1 DGX Spark Refused: the plan has errors, so it changes no host. As of 2026" in refused


def test_ids_lead_to_their_pages_in_docs() -> None:
    for entry in registered_findings.ENTRIES.values():
        page, anchor = re.findall(
            r'href="' + re.escape(page_parts.DOCS) + '([^"#]+)#([^"]+)"', page_parts.rule_link(entry.rule)
        )[0]
        assert anchor == f":~:text={entry.rule}"
        assert f"`{entry.rule}`" in (registered_findings.ROOT / "docs" / page).read_text(encoding="utf-8"), entry.rule
    assert 'docs/rules.md#spk810"' in page_parts.rule_link("SPK810")
    assert page_parts.rule_link(HOSTILE) == html.escape(HOSTILE)


def test_what_was_worked_out_is_marked() -> None:
    text = plan_page.page(make_plan(1), [])
    assert '<span class="solved" title="calculated">0.81</span>' in text
    assert 'title="calculated">65536' not in text


def test_a_set_and_what_is_stopped_are_told_and_explained() -> None:
    plan = make_plan(1)
    assert "[stopped]" not in plan_page.page(plan, []) and "[set" not in plan_page.page(plan, [])
    body = plan["hosts"]["heavy-000"]
    body["services"][0].update(exclusive="large", state="started")
    body["services"].append({**copy.deepcopy(body["services"][0]), "name": "coder", "state": "stopped"})
    text = Reader(plan_page.page(plan, [])).text
    assert "heavy [set large]" in text and "coder [set large, stopped]" in text
    assert "one of the set runs at a time" in text and "[stopped] deployed, but stopped" in text


def test_no_path_of_the_controller_is_told() -> None:
    plan = make_plan(1)
    (host,) = plan["hosts"].values()
    host["services"][0]["model"] = {"repo": None, "source": "/home/me/fleet/models/tuned/"}
    finding = {
        **make_findings()[0],
        "message": "there is no '/home/me/fleet/.secrets/key' yet",
        "fix": "Look at /home/me/x.",
    }
    text = plan_page.page(plan, [finding], ["/home/me", "/home/me/fleet"])
    assert "/home" not in text
    assert ">tuned <" in text and "'.secrets/key'" in Reader(text).text and "Look at x." in Reader(text).text


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEASURE = """<script>addEventListener("load", () => {
const wide = [...document.querySelectorAll(".scroll, body")].filter((e) => e.scrollWidth > e.clientWidth + 1).length;
const shown = [...document.querySelectorAll("td")].filter((e) => getComputedStyle(e).display !== "none");
const cells = shown.map((e) => e.getBoundingClientRect());
const seen = cells.filter((c) => c.width > 0 && c.left >= 0 && c.right <= innerWidth).length;
document.title = `wide=${wide} cells=${cells.length} seen=${seen} of ${innerWidth}`; });</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser here")
@pytest.mark.parametrize("width", [1280, 500])
def test_every_column_is_seen(width: int, tmp_path: Path) -> None:
    """With a long path of a model and of an image, and at the least width that a browser's window has."""
    plan = make_plan(1)
    (host,) = plan["hosts"].values()
    (service,) = host["services"]
    service["model"]["repo"] = "an-organisation-with-a-name/" + "A-Model-Of-Many-Words-" * 4 + "NVFP4"
    around = {"low": 120.0, "typical": 145.0, "high": 175.0}
    figures = dict.fromkeys(("one_stream", "all_streams", "first_token_8k", "first_token_full"), around)
    service["speed"] = {**figures, "streams": 256, "shared_by": 3}
    service["image"]["ref"] = "registry.example.org/team/project/" + "image" * 8 + "@sha256:" + "0" * 64
    text = plan_page.page(plan, make_findings())
    assert text.count("default-src 'none';") == 1
    # The page forbids scripts; this copy lets the one in that measures.
    allowed = text.replace("default-src 'none';", "script-src 'unsafe-inline';").replace("</body>", f"{MEASURE}</body>")
    page = tmp_path / "plan.html"
    page.write_text(allowed, encoding="utf-8")
    argv = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    argv += [f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    shown = subprocess.run(argv, text=True, capture_output=True, check=True).stdout
    texts = re.search(r"<title>wide=(\d+) cells=(\d+) seen=(\d+) of (\d+)</title>", shown)
    assert texts, shown[:500]
    wide, cells, seen, inner = map(int, texts.groups())
    assert inner <= width and (wide, seen) == (0, cells) and cells >= 12, texts.group()


def test_what_pages_share_escapes_what_it_is_given() -> None:
    parts = [
        page_parts.tiles([(HOSTILE, HOSTILE, "fails")]),
        page_parts.legend(HOSTILE),
        f"<table><tr>{page_parts.cell('x', HOSTILE, True, HOSTILE)}</tr></table>",
    ]
    reader = Reader(page_parts.document(HOSTILE, parts))
    assert reader.text.count("alert(1)") == 7  # title, heading, figure, words, note, cell and what stands below it
    assert {tag for tag, _name, _value in reader.attributes}.isdisjoint({"script"})


def test_details_are_folded() -> None:
    texts = {
        "rule": "SPK307",
        "severity": "warning",
        "service": "",
        "host": "spark-1",
        "message": "One was not checked.",
        "fix": "",
    }
    reader = Reader(plan_page.page(make_plan(1), [{**texts, "details": "Not checked: SPK101."}]))
    assert "More Not checked: SPK101." in reader.text
    assert ("details", {}) in reader.tags


def light(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_is_written_on_a_colour_can_be_read() -> None:
    assert len(page_parts.HUES) == len(page_parts.ON_HUES)
    pairs = list(zip(page_parts.HUES, page_parts.ON_HUES))
    pairs += re.findall(r"--system:(#[0-9a-f]+);--on-system:(#[0-9a-f]+)", page_parts.STYLE)
    assert len(pairs) == len(page_parts.HUES) + 2
    for back, front in pairs:
        dark, bright = sorted((light(back), light(front)))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, (back, front)
