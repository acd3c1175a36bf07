# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shows the pages of plan, fabric, status, timelines and the live page in a browser: desk and phone, dark and light, without a mouse or a request, by axe.

pages_test.py --axe axe.min.js [--screenshots FOLDER] [--site FOLDER] FILE.html|URL ...
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright
from webui_test import BROWSERS

SIZES = {"phone": (390, 844), "desk": (1280, 900)}
# WCAG 2.2, 1.4.3: contrast of a text to its background; large or bold text may have less.
CONTRAST = 4.5
CONTRASTS = """
() => {
  const channel = (value) => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (getComputedStyle(at).backgroundImage !== 'none') return null;
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    // Words within bars have a shadow of their own, and the bar's label says the same.
    if (!own || element.closest('.bar') || element.offsetParent === null) continue;
    const back = behind(element);
    if (!back) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(back)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found;
}
"""
# Words that are cut although they would fit on a line, and tables that have to be scrolled. Ids and digests may be cut.
CUT = """
() => {
  const cut = [];
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.checkVisibility() || node.parentElement.closest('.bar')) continue;
    for (const word of node.textContent.matchAll(/[\\p{L}\\p{N}]{2,24}/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) cut.push(word[0]);
    }
  }
  return cut;
}
"""
OUT = """
() => {
  const out = [];
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.textContent.trim() || !node.parentElement.checkVisibility() || node.parentElement.closest('.bar')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const edge = node.parentElement.closest('details, li, .open, main').getBoundingClientRect().right;
    if (range.getBoundingClientRect().right > edge + 1) out.push(node.textContent.trim().slice(0, 40));
  }
  return out;
}
"""
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES = {
    ("plan", "desk", "light"): "plan.png",
    ("plan", "phone", "dark"): "plan-phone.png",
    ("serving", "desk", "light"): "status.png",
    ("serving", "phone", "dark"): "status-phone.png",
    ("timeline", "desk", "light"): "timeline.png",
    ("day", "desk", "light"): "day.png",
    ("day", "phone", "dark"): "day-phone.png",
    ("live", "desk", "light"): "live.png",
    ("live", "phone", "dark"): "live-phone.png",
}
"""Pictures in docs/images by page, size and scheme. After a change of a page copy the new ones from --screenshots."""
# The mean difference of two pictures in small, from 0 to 1; 1 if their sizes differ by more than a twentieth.
DIFFERENCE = """
async (sources) => {
  const images = await Promise.all(sources.map(async (source) => {
    const image = new Image();
    image.src = `data:image/png;base64,${source}`;
    await image.decode();
    return image;
  }));
  const [first, other] = images;
  if (first.width !== other.width || Math.abs(first.height - other.height) > first.height / 20) return 1;
  const size = [Math.floor(first.width / 4), Math.floor(Math.min(first.height, other.height) / 4)];
  const [a, b] = images.map((image) => {
    const context = new OffscreenCanvas(...size).getContext('2d');
    context.drawImage(image, 0, 0, size[0] * 4, size[1] * 4, 0, 0, ...size);
    return context.getImageData(0, 0, ...size).data;
  });
  return a.reduce((sum, value, at) => sum + Math.abs(value - b[at]), 0) / a.length / 255;
}
"""
ALIKE = 0.05
"""Difference of two pictures of the same page with other fonts."""
SCROLLED = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth + 1).length"
BROKEN = (
    "<main style='width:6em;overflow-wrap:anywhere'><p>a narrow quantisation and a free figure</p>"
    "<p style='white-space:nowrap'>far too wide for this</p></main>"
)


def check(browser: Browser, url: str, size: str, scheme: Any, options: argparse.Namespace) -> list[str]:
    """Return the problems of a page at one size and in one scheme."""
    name = Path(url).stem if url.startswith("file:") else "live"
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(url)
    if name == "live":
        draw_whole(page, width)
    prefix = f"{options.site.resolve().as_uri()}/" if options.site else url
    wrong = [f"asks for {address}" for address in requests if address != url and not address.startswith(prefix)]
    wrong += [f"the browser says: {text}" for text in messages]
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > width:
        wrong.append(f"is {wide} px wide on a screen of {width}")
    wrong += [f"contrast {ratio:.1f} of {text!r}" for ratio, text in page.evaluate(CONTRASTS) if ratio < CONTRAST]
    if not options.site:
        wrong += [f"the word {word!r} is cut" for word in page.evaluate(CUT)]
        wrong += [f"{text!r} leaves its frame" for text in page.evaluate(OUT)]
        scrolled = page.evaluate(SCROLLED)
        wrong += [f"{scrolled} tables have to be scrolled"] if scrolled else []
    picture = page.screenshot(full_page=True)
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
        (options.screenshots / f"{name}-{size}-{scheme}.png").write_bytes(picture)
    if (name, size, scheme) in PICTURES:
        wrong += compare(browser, picture, IMAGES / PICTURES[name, size, scheme])
    wrong += reach(page)
    wrong += violations(page, options.axe)
    context.close()
    return [f"{name} ({size}, {scheme}): {text}" for text in wrong]


def draw_whole(page: Page, width: int) -> None:
    """Make the window as high as the live page, so that all of its charts are drawn, and wait for them. width: of the window."""
    for _attempt in range(3):  # tiles get their height when they are drawn
        page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
        page.wait_for_timeout(500)
    page.locator(".charts").last.locator("canvas").last.wait_for()
    page.locator("#keep-up").uncheck()


def compare(browser: Browser, picture: bytes, file: Path) -> list[str]:
    """Return whether a picture in the documentation differs from that of the page."""
    sources = [base64.b64encode(content).decode() for content in (picture, file.read_bytes())]
    page = browser.new_page()
    difference = page.evaluate(DIFFERENCE, sources)
    page.close()
    return [f"docs/images/{file.name} shows another page (difference {difference:.2f})"] if difference > ALIKE else []


def violations(page: Page, axe: Path) -> list[str]:
    """Return the violations of all rules of axe-core, with all folded parts opened."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    # By the debugger: the policy of the page lets nothing run in it.
    page.evaluate(axe.read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"axe {violation['id']}: {violation['help']} ({len(violation['nodes'])} times): {' '.join(map(str, violation['nodes'][0]['target']))}: "
        f"{violation['nodes'][0]['html'][:160]}"
        for violation in result["violations"]
    ]


def reach(page: Page) -> list[str]:
    """Go through the page with the tab key; return elements that the key does not reach or open."""
    count = page.locator("summary, .scroll[tabindex]").filter(visible=True).count()
    reached = set()
    for _step in range(count + 20):
        page.keyboard.press("Tab")
        place = page.evaluate(
            "[...document.querySelectorAll('summary, .scroll[tabindex]')].indexOf(document.activeElement)"
        )
        reached |= {place} - {-1}
    wrong = [] if len(reached) == count else [f"the tab key reaches {len(reached)} of {count} places"]
    first = page.locator("details").first
    if first.count():
        before = first.get_attribute("open")
        first.locator("summary").first.focus()
        page.keyboard.press("Enter")
        if first.get_attribute("open") == before:
            wrong.append("a host cannot be folded with the Enter key")
    return wrong


GOAL_MS = 100
"""Printed beside the times of 100 Sparks; a busy machine may take longer."""
DRAW = """
async () => {
  for (const box of visible) { box.textContent = ''; box.plots = null; draw(box); }
  await null; // uPlot draws in a microtask
  document.body.getBoundingClientRect();
  return [...visible].filter((box) => box.querySelector('canvas')).length;
}
"""
# A message in which the power of each Spark differs; returns the number of parts, of figures that differ, and of texts and other nodes that it changed.
RECEIVE = """
() => {
  const parts = {};
  let figures = 0;
  for (const tile of document.querySelectorAll('[id^=host-]')) {
    parts[tile.id] = tile.outerHTML.replace(/(\\d+) W</, (_match, watts) => { figures += 1; return `${Number(watts) + 1} W<`; });
  }
  for (const row of document.querySelectorAll('[id^=service-]')) parts[row.id] = row.outerHTML;
  const observer = new MutationObserver(() => {});
  observer.observe(main, {subtree: true, childList: true, attributes: true, characterData: true});
  receive({data: JSON.stringify({at: Date.now() / 1000, parts, ages: {}, points: {}, shape: main.dataset.shape}), lastEventId: '0'});
  document.body.getBoundingClientRect();
  const changes = observer.takeRecords().filter(({target}) => target !== main && !target.matches?.('time'));
  const texts = changes.filter(({type}) => type === 'characterData').length;
  return [Object.keys(parts).length, figures, texts, changes.length - texts];
}
"""
POWER = "(host) => [...document.querySelectorAll('.spark')].find((each) => each.textContent.includes(host)).querySelector('.figures').textContent"


def follow(browser: Browser, options: argparse.Namespace) -> list[str]:
    """Return problems of the live page: without a script, while it changes, with its actions, with many Sparks, without its server."""
    wrong = []
    static = browser.new_context(java_script_enabled=False).new_page()
    static.goto(options.live)
    text = static.locator("main").inner_text()
    wrong += [
        f"live, without a script: {word!r} is missing"
        for word in ("its power supply limits it", "SparkGpuCapped warning spark-5", "45 %", "96.4")
        if word not in text
    ]
    page = browser.new_page(viewport={"width": 1280, "height": 2200})
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(options.live)
    page.locator(".chart canvas").first.wait_for()
    stop = page.locator("button[data-verb=drain]").first
    stop.focus()
    before = page.evaluate(POWER, "spark-1")
    page.wait_for_function(f"(before) => ({POWER})('spark-1') !== before", arg=before)
    if page.evaluate("document.activeElement.dataset.verb") != "drain":
        wrong.append("live: the focus is lost when figures change")
    if not page.locator(".spark time.age").first.inner_text().endswith("s ago"):
        wrong.append("live: figures have no age")
    page.on("dialog", lambda dialog: dialog.accept())
    page.keyboard.press("Enter")
    page.get_by_text("it stops").wait_for()
    if options.acts.read_text(encoding="utf-8").splitlines() != ["drain fast on spark-1"]:
        wrong.append(f"live: the actions were {options.acts.read_text(encoding='utf-8')!r}")
    page.locator("#keep-up").uncheck()
    before = page.evaluate(POWER, "spark-1")
    page.wait_for_timeout(3500)
    if page.evaluate(POWER, "spark-1") != before:
        wrong.append("live: it changes though nobody wants that")
    foreign = [url for url in requests if not url.startswith(options.live)]
    wrong += [f"live: asks for {url}" for url in foreign]
    page.route("**/events*", lambda route: route.abort())
    page.locator("#keep-up").check()
    page.get_by_text("what is shown is old").wait_for()
    page.close()
    return wrong + draw_many(browser, options.large)


def task_seconds(session: CDPSession) -> float:
    """Return the seconds that the thread of a page has worked."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def draw_many(browser: Browser, url: str) -> list[str]:
    """Return whether a message to a page of 100 Sparks changes more than what differs; prints how long drawing takes."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(url)
    page.locator("h2", has_text="Services").scroll_into_view_if_needed()
    page.locator(".spark").nth(30).scroll_into_view_if_needed()
    page.wait_for_function("() => visible.size > 3 && [...visible].every((box) => box.plots)")
    page.evaluate("document.getElementById('keep-up').click()")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # time on a processor, however busy the machine

    def spent(script: str) -> tuple[float, Any]:
        """Return the milliseconds of the page's thread for a script, with styles and layout, and what it returns."""
        page.wait_for_timeout(300)
        before = task_seconds(session)
        value = page.evaluate(script)
        return 1000 * (task_seconds(session) - before), value

    # Attempts count while tiles are on the screen.
    charts, shown = min(took for took in (spent(DRAW) for _attempt in range(5)) if took[1] > 3)
    received, (count, figures, texts, further) = min(spent(RECEIVE) for _attempt in range(5))
    print(
        f"100 Sparks: {charts:.0f} ms of a processor for the charts of {shown} tiles, {received:.0f} ms for a message with {count} parts "
        f"(goal: {GOAL_MS} ms)"
    )
    page.close()
    if (texts, further) == (figures, 0) and figures > 80:
        return []
    return [f"live: a message with {figures} new figures changes {texts} texts and {further} other nodes"]


def main() -> int:
    """Check each page at each size and in each scheme."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js of axe-core")
    parser.add_argument("--live", help="address of the live page of a fleet in which each state occurs")
    parser.add_argument("--large", help="address of the live page of 100 Sparks")
    parser.add_argument("--acts", type=Path, help="file with the actions that the live page was asked for")
    parser.add_argument("--site", type=Path, help="folder of a site, from which its pages may ask for more")
    parser.add_argument("pages", nargs="+", help="files, and addresses that begin with http:")
    options = parser.parse_args()
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, BROWSERS))), args=["--no-sandbox"]
        )
        probe = browser.new_page()
        probe.set_content(BROKEN)
        assert probe.evaluate(CUT) == ["quantisation"], "cut words are not found"
        assert probe.evaluate(OUT) == ["far too wide for this"], "texts outside of their frames are not found"
        probe.close()
        for page_argument in options.pages:
            url = page_argument if page_argument.startswith("http:") else Path(page_argument).resolve().as_uri()
            for size in SIZES:
                for scheme in ("light", "dark"):
                    wrong += check(browser, url, size, scheme, options)
        if options.live:
            wrong += follow(browser, options)
        browser.close()
    print("\n".join(wrong) or f"{len(options.pages)} pages at {len(SIZES)} sizes, dark and light: no problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
