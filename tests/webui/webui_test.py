# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real Open WebUI against a gateway, in a real browser: first account, list of models, a chat with its answer.

    webui_test.py --gateway http://127.0.0.1:4000 --key-file FILE --model ALIAS [--model ALIAS ...]

Runs in the environment that run.py makes. Open WebUI is started with exactly the variables that plugins/module_utils/_addons/clients.py plans.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, expect, sync_playwright  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import clients

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PEOPLE = {"name": "Ada", "email": "ada@example.org", "password": "correct horse battery"}
QUESTION = "Say hello in one sentence."


class Report:
    """Counts checks, and prints a line for each."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.started = time.monotonic()

    def check(self, right: bool, condition: str, otherwise: str = "") -> None:
        """Note one check."""
        self.passed += right
        self.failed += not right
        seconds = time.monotonic() - self.started
        print(
            f"   {'ok    ' if right else 'FAILED'} {condition} ({seconds:.0f} s){'' if right else ': ' + otherwise}",
            flush=True,
        )


def main() -> int:
    """Run the test; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", required=True, help="URL of the gateway, without /v1")
    parser.add_argument("--key-file", type=Path, help="file with a key that the gateway takes")
    parser.add_argument(
        "--model", action="append", required=True, help="alias that has to be listed; the first one is asked"
    )
    parser.add_argument("--answer", help="regular expression that the answer must hold; any text when left out")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    parser.add_argument("--screenshot", type=Path, help="where a picture of the chat is written (PNG)")
    parser.add_argument("--traces", type=Path, help="folder for the log and a picture of what went wrong")
    options = parser.parse_args()
    if not options.browser:
        parser.error(f"none of {', '.join(BROWSERS)} is on PATH; on Debian: apt install chromium")
    report = Report()
    with tempfile.TemporaryDirectory(prefix="webui-") as folder:
        place = Path(folder)
        traces = options.traces or place
        traces.mkdir(parents=True, exist_ok=True)
        try:
            run(options, report, place, traces)
        except (
            Exception
        ) as error:  # any error of a browser, a server or a page is reported and counted, and ends the test
            report.check(False, "the test came to its end", f"{type(error).__name__}: {error}")
        if report.failed:
            for log in sorted(traces.glob("*.log")):
                print(
                    f"--- the end of {log.name}",
                    *log.read_text(errors="replace").splitlines()[-25:],
                    sep="\n",
                    flush=True,
                )
    print(f"{report.passed} passed, {report.failed} failed in {time.monotonic() - report.started:.1f}s", flush=True)
    return 1 if report.failed else 0


def run(options: argparse.Namespace, report: Report, place: Path, traces: Path) -> None:
    """Start Open WebUI three times: for people, with another gateway on the same data, and with an account from a file."""
    helper = ROOT / "roles/host/files/spark_unit.py"
    password = place / "password"
    password.write_text(PEOPLE["password"], encoding="utf-8")

    def listed(url: str, seconds: int = 20) -> subprocess.CompletedProcess[str]:
        """Ask as the role does when it has deployed."""
        expected = [f"--expect={name}" for name in options.model]
        account = ["--email", PEOPLE["email"], "--password-file", str(password)]
        argv = [sys.executable, str(helper), "client", "models", url, *account, *expected, "--seconds", str(seconds)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)

    with open_webui(options, place / "people", {}, traces / "people.log") as url:
        report.check(True, "Open WebUI starts with the planned variables")
        with browser(options.browser, traces) as page:
            chat(page, url, options, report)
        done = listed(url)
        report.check(done.returncode == 0, "the role's proof sees the aliases as that account", done.stderr)

    # Its database knows the gateway of the first start; the plan's variables have to win over it.
    with open_webui(options, place / "people", {}, traces / "moved.log", gateway="http://127.0.0.1:9") as url:
        done = listed(url, seconds=0)
        report.check(
            done.returncode != 0 and "lists no model" in done.stderr,
            "another gateway in the inventory is taken at the next start",
            f"it still lists: {done.stdout}{done.stderr}",
        )

    admin = {"email": PEOPLE["email"], "name": PEOPLE["name"], "password_file": str(password)}
    with open_webui(options, place / "admin", {"admin": admin}, traces / "admin.log") as url:
        done = listed(url)
        report.check(done.returncode == 0, "an administrator from a file can sign in and sees the aliases", done.stderr)
        with browser(options.browser, traces) as page:
            page.goto(f"{url}/auth")
            page.locator("#email").wait_for()
            report.check(
                page.locator("#name").count() == 0 and page.get_by_text("Sign up", exact=True).count() == 0,
                "nobody else can make an account then",
                "the page offers to sign up",
            )


def chat(page: Page, url: str, options: argparse.Namespace, report: Report) -> None:
    """Make the first account, look at the list of models, ask the first of them, and read its answer."""
    page.goto(url)
    page.get_by_role("button", name="Get started").click()
    for field, value in PEOPLE.items():
        page.locator(f"#{field}").fill(value)
    page.locator("button[type=submit]").click()
    page.locator("#chat-input").wait_for()
    report.check(True, "the first account is made in the browser")
    page.get_by_role("button", name="Okay, Let's Go!").click()  # the news of this version

    page.locator("#model-selector-model-button").click()
    first = page.locator(f'[role=option][data-value="{options.model[0]}"]')
    first.wait_for()
    names = {str(option.get_attribute("data-value")) for option in page.locator("[role=option]").all()}
    missing = sorted(set(options.model) - names)
    report.check(
        not missing, f"the list of models has {', '.join(options.model)}", f"it has {', '.join(sorted(names))}"
    )
    first.click()

    page.locator("#chat-input").click()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    answer = page.locator(".chat-assistant").last
    pattern = re.compile(options.answer or r"\w")
    expect(answer).to_have_text(pattern, timeout=120_000)
    text = settled(page, answer)
    report.check(bool(pattern.search(text)), f"{options.model[0]} answers in the browser: {text!r}", text)
    if options.screenshot:
        page.locator("#model-selector-model-button").click()
        first.wait_for()
        page.wait_for_timeout(4000)  # messages of the page go away by themselves
        options.screenshot.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(options.screenshot))


def settled(page: Page, answer: Locator) -> str:
    """Return a text that is streamed, once it has not grown for two seconds."""
    text, since = "", time.monotonic()
    while time.monotonic() - since < 2:
        now = answer.inner_text().strip()
        if now != text:
            text, since = now, time.monotonic()
        page.wait_for_timeout(200)
    return text


@contextmanager
def browser(program: str, traces: Path) -> Iterator[Page]:
    """Open a page in a headless browser of the system; keep a picture of it when something goes wrong."""
    with sync_playwright() as driver:
        sandbox = [] if os.getuid() else ["--no-sandbox"]
        opened = driver.chromium.launch(executable_path=program, headless=True, args=sandbox)
        page = opened.new_page(viewport={"width": 1100, "height": 560}, locale="en-US")
        page.set_default_timeout(60_000)
        try:
            yield page
        except Exception:
            page.screenshot(path=str(traces / "failed.png"))
            raise
        finally:
            opened.close()


@contextmanager
def open_webui(
    options: argparse.Namespace, data: Path, more: Mapping[str, Any], log: Path, gateway: str = ""
) -> Iterator[str]:
    """Run Open WebUI as its container would be run, until it is ready; end it afterwards."""
    data.mkdir(exist_ok=True)
    planned = plan(gateway or options.gateway, options, more)
    env = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    env |= planned["env"]
    for secret in planned["secrets"]:
        parts = [part.get("text") or Path(part["controller"]).read_text(encoding="utf-8").strip()
                 for part in secret["parts"] if "generated" not in part]  # fmt: skip
        env[secret["name"]] = ";".join(parts) or secrets.token_hex(24)
    # The image sets these: its data folder, and the slim variant.
    env |= {"DATA_DIR": str(data), "HOME": str(data), "USE_SLIM_DOCKER": "true"}
    argv = [str(Path(sys.executable).with_name("open-webui")), "serve", "--host", env["HOST"], "--port", env["PORT"]]
    with log.open("w", encoding="utf-8") as stream:
        server = subprocess.Popen(argv, env=env, cwd=data, stdout=stream, stderr=subprocess.STDOUT)
    try:
        wait(f"{planned['url']}/ready", server)
        yield planned["url"]
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def plan(gateway: str, options: argparse.Namespace, more: Mapping[str, Any]) -> dict[str, Any]:
    """Plan Open WebUI for this machine with the engine of the collection."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parts = urlsplit(gateway)
    gateway_values: clients.Gateway = {
        "host": "gateway",
        "address": str(parts.hostname),
        "port": parts.port or 80,
        "listen": "0.0.0.0",
        "keyed": bool(options.key_file),
        "models": dict.fromkeys(options.model),
        "waits": {},
        "clients": {},
    }
    key = {"key_file": str(options.key_file)} if options.key_file else {}
    written = {"open_webui": {"port": port, "listen": "127.0.0.1", **key, **more}}
    settings, messages = clients.read("here", written)
    outcome, findings = clients.plan("here", settings, [], {"gateway": gateway_values})
    wrong = messages + [finding.message for finding in findings if finding.severity == "error"]
    if wrong:
        raise ValueError("; ".join(wrong))
    planned: dict[str, Any] = outcome["open_webui"]
    return planned


def wait(url: str, server: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Wait until a URL answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"Open WebUI has ended with {server.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"{url} has not answered within {seconds:g} s")


if __name__ == "__main__":
    sys.exit(main())
