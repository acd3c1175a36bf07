# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the environment of the browser test in .cache and runs it.

    run.py [--screenshot docs/images/open-webui.png]               a real LiteLLM before two stand-in engines
    run.py --pages [FOLDER]                                        the pages of plan, fabric, status, timelines, the live page of 8 and
                                                                   of 100 Sparks, and some of the documentation's, with screenshots in a folder
    run.py --gateway URL --key-file FILE --model ALIAS ...         a gateway that is there

Further options are passed to webui_test.py.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from common import CACHE, environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SITE_PAGES = ("index.html", "docs/quickstart.html", "docs/models.html", "collections/plan_module.html")
"""Of the documentation site: the first, an ordinary one, the largest, and one that is generated."""
ALIASES = {"writer": "heavy", "reviewer": "fast"}
SPARKS = {
    "spark-1": [
        {"name": "heavy", "recipe": "qwen3-next-80b-a3b-instruct-fp8", "port": 8001},
        {"name": "fast", "recipe": "qwen3-4b-instruct-2507", "port": 8002, "args": {"max-num-seqs": 4}},
    ],
    "spark-2": [{"name": "qwen36", "recipe": "qwen3.6-35b-a3b-nvfp4", "port": 8001}],
}
"""Services by Spark, whose pages are the pictures in docs/images."""


def main(argv: list[str]) -> int:
    """Install the requirements, and run the test."""
    if not any(map(shutil.which, BROWSERS)) and not install_browser():
        return 2
    webui = environment("webui", HERE / "requirements.txt")
    test = [str(webui), str(HERE / "webui_test.py"), "--traces", str(CACHE / "webui-traces"), *argv]
    if argv[:1] == ["--pages"]:
        axe = install_axe()
        if axe is None:
            return 2
        with tempfile.TemporaryDirectory(prefix="pages-") as folder:
            pages = write_pages(Path(folder))
            shots = ["--screenshots", argv[1]] if len(argv) > 1 else []
            command = [str(webui), str(HERE / "pages_test.py"), "--axe", str(axe), *shots]
            with live_pages() as (url, large, log):
                looked = [*map(str, pages), url, "--live", url, "--large", large, "--acts", str(log)]
                exit_code = subprocess.run([*command, *looked], check=False).returncode
            site = Path(folder, "site")
            subprocess.run([sys.executable, str(ROOT / "scripts" / "docs_site.py"), str(site)], check=True)
            looked = [str(site / page) for page in SITE_PAGES]
            return exit_code or subprocess.run([*command, "--site", str(site), *looked], check=False).returncode
    if "--gateway" in argv:
        return subprocess.run(test, check=False).returncode
    litellm = environment("gateway", ROOT / "tests/sim/gateway/requirements.txt")
    with tempfile.TemporaryDirectory(prefix="webui-gateway-") as folder, gateway(litellm, Path(folder)) as (url, key):
        names = [f"--model={name}" for name in ALIASES]
        more = ["--gateway", url, "--key-file", str(key), "--answer", "Hello from the simulated engine", *names]
        return subprocess.run([*test, *more], check=False).returncode


def write_pages(folder: Path) -> list[Path]:
    """Write the pages that the unit tests look at, with ordinary and with hostile names."""
    sys.path[:0] = [
        str(ROOT / "collections"),
        *(str(ROOT / f"tests/unit/plugins/module_utils/{part}") for part in ("_fleet", "_plan")),
    ]
    sys.path.insert(0, str(ROOT / "tests/unit/plugins"))
    status, plan = importlib.import_module("test_status_page"), importlib.import_module("test_plan_page")
    engine, recipes = (
        importlib.import_module("test_speed_text").plan,
        importlib.import_module("recipes_fixture").RECIPES,
    )
    planned = engine.make_plan(
        {name: {"vars": {"spark_services": services}, "address": name} for name, services in SPARKS.items()}, recipes
    )
    fabric = importlib.import_module("test_fabric_tables")
    runs, days = importlib.import_module("test_timeline"), importlib.import_module("test_day_page")
    pages = {
        "status": status.made(status.MIXED, status.SAID),
        "status-healthy": status.made({"s1": status.MIXED["s1"]}, status.SAID),
        "plan": plan.plan_page.page(
            planned, engine.plan_findings(planned), about=plan.page_parts.as_of(status.AT, "my-sparks")
        ),
        "serving": status.serving(planned["hosts"]),
        "plan-failed": plan.plan_page.page(plan.make_plan(3), plan.make_findings()),
        "plan-fleet": plan.plan_page.page(
            plan.make_plan(20, plan.HOSTILE, over=True), plan.make_findings(plan.HOSTILE)
        ),
        "fabric": fabric.whole_page(),
        "timeline": runs.timeline.page(runs.timeline.of_events(runs.starting()), "my-sparks"),
        "day": days.made(),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return [folder / f"{name}.html" for name in pages]


def install_browser() -> bool:
    """Install Debian's Chromium if possible; print instructions otherwise."""
    if os.getuid() == 0 and shutil.which("apt-get"):
        for argv in (
            ["apt-get", "-qq", "update"],
            ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", "chromium"],
        ):
            subprocess.run(argv, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if any(map(shutil.which, BROWSERS)):
        return True
    print(f"a browser is missing (one of {', '.join(BROWSERS)}): apt install chromium, as root", file=sys.stderr)
    return False


def install_axe() -> Path | None:
    """Install the axe-core of the lock file into the cache if possible; print instructions otherwise."""
    lock = HERE / "package-lock.json"
    place = CACHE / f"axe-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    script = place / "node_modules/axe-core/axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            print("npm is missing, which gets axe-core: apt install npm, as root", file=sys.stderr)
            return None
        place.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, place / name)
        # A package is files here: none of its programs is run.
        argv = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        done = subprocess.run(argv, cwd=place, check=False, capture_output=True, text=True)
        if done.returncode or not script.exists():
            print(f"npm could not get axe-core:\n{done.stdout}{done.stderr}", file=sys.stderr)
            return None
    return script


@contextmanager
def live_pages() -> Iterator[tuple[str, str, Path]]:
    """Serve the live pages of 8 and of 100 played Sparks; yields their addresses, and the file with the actions that were asked for."""
    fixture = importlib.import_module("live_fixture")
    server_file = importlib.import_module("ansible_collections.dgxspark.vllm.plugins.module_utils._fleet.live_server")
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        log = Path(folder, "actions")
        log.write_text("", encoding="utf-8")

        def act(request: dict[str, str]) -> str:
            with log.open("a", encoding="utf-8") as stream:
                stream.write(f"{request['verb']} {request['service']} on {request['host']}\n")
            return "it stops"

        servers = []
        for count in (8, 100):
            live = fixture.live(count, act)
            servers.append(server_file.Server(("127.0.0.1", 0), live, fixture.FILES))
            servers[-1].serve()
            threading.Thread(target=follow, args=(live,), daemon=True).start()
        first, second = (f"http://127.0.0.1:{server.server_address[1]}/" for server in servers)
        yield first, second, log
        for server in servers:
            server.shutdown()


def follow(live: object) -> None:
    """Look again and again, as the agent does."""
    while True:
        live.tick()  # type: ignore[attr-defined]
        time.sleep(0.3)


@contextmanager
def gateway(python: Path, place: Path) -> Iterator[tuple[str, Path]]:
    """Run two stand-in engines and a real LiteLLM before them, with a key."""
    sys.path.insert(0, str(ROOT / "tests/sim/engine"))
    importlib.import_module("vllm_sim").__path__.append(
        str(ROOT / "tests/sim/common")
    )  # the image has both folders in one
    api = importlib.import_module("vllm_sim.api")
    models = []
    servers = []
    for alias, served in ALIASES.items():
        state = api.State([served], served, "0.24.0", [], 131072, 200000, True, False, False, {})
        server = api.Server(("127.0.0.1", 0), state)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        backend = {
            "model": f"openai/{served}",
            "api_base": f"http://127.0.0.1:{server.server_address[1]}/v1",
            "api_key": "none",
        }
        models.append({"model_name": alias, "litellm_params": backend})
    key = place / "key"
    key.write_text(f"sk-{secrets.token_hex(24)}", encoding="utf-8")
    config = place / "config.yaml"  # JSON is YAML
    settings = {"model_list": models, "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"}}
    config.write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(python.with_name("litellm")), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "LITELLM_MASTER_KEY": key.read_text(encoding="utf-8")}
    log = place / "litellm.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(argv, env=env, cwd=place, stdout=stream, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health/liveliness", timeout=5):
                    break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"LiteLLM did not start:\n{log.read_text(errors='replace')[-2000:]}") from error
                time.sleep(0.5)
        yield url, key
    finally:
        process.terminate()
        process.wait(30)
        for server in servers:
            server.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
