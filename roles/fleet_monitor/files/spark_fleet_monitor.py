# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks every endpoint of a fleet, and tells people what has changed: one run of spark-fleet-monitor.service.

spark-fleet-monitor                check, remember, tell what has changed
spark-fleet-monitor --dry-run      check and show; nothing is remembered or sent
spark-fleet-monitor --test         send a test message to everybody who is told

What counts as a change and what is said is in fleet_state.py; here is what is asked and sent. Checks run at once and each
has its limit. Tokens come from files and are in no argument, message, log or error. Where a status page is wanted, each run
makes it last, of its checks, the figures of engines and exporters, and the plan as the last run of site.yml left it.

Exit codes: 0 all endpoints are up, 1 some are down, 2 the settings cannot be used, 3 somebody could not be told.
Python's standard library and the files beside it are all it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import queue
import smtplib
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # it runs as root from /usr/local/lib, which is to hold what was installed and no more

from dgxspark_vllm._common.foreign_text import decode_text, printable
from dgxspark_vllm._fleet import status_page, watched_status
from dgxspark_vllm._runtime import command, engine_client, fleet_state, http_client, metrics, state_file
from dgxspark_vllm._runtime.fleet_state import Result
from dgxspark_vllm._runtime.systemd import journal_line

AT_ONCE = 16
SEND_SECONDS = 20.0
LOCK_SECONDS = 120.0
COMMAND_SECONDS = 60.0
PAGE_SECONDS = 10.0  # that engines and exporters may take for the figures of the page
PAGE = "page/index.html"


class DeliveryError(Exception):
    """A message could not be sent; the text says why, without secrets."""


def say(text: str, level: int = 6) -> None:
    """Write a line to the journal with its priority (3 error, 4 warning, 6 information)."""
    print(journal_line(text, level), file=sys.stderr, flush=True)


def read_secret(path: str) -> str:
    """Return the one line of a file with a secret."""
    try:
        return engine_client.read_api_key(path)
    except engine_client.Problem as problem:
        raise DeliveryError(problem.message.replace("the API key file", "the file")) from None


def read_state(path: Path) -> dict[str, Any]:
    """Return what the last run left; what cannot be read is set aside, and everything begins anew."""
    found = state_file.read(path)
    if found is None and path.exists():
        say(f"warning: {path} cannot be read; what was remembered is set aside as {path.name}.broken", 4)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{path.name}.broken"))
    return fleet_state.fresh(found)


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep a run of a person and one of the timer apart."""
    with (folder / "lock").open("w") as stream:
        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= give_up:
                    raise DeliveryError("another run does not end; see systemctl status spark-fleet-monitor") from None
                time.sleep(0.5)
        yield


# --- checks ---------------------------------------------------------------------------------------------------------


def check(given: Mapping[str, Any], seconds: float, completion_seconds: float, model: str | None) -> dict[str, Any]:
    """Ask one endpoint; returns C({ok, error, hint, completion, seconds, note})."""
    began = time.monotonic()
    asked: str | None = None
    note = ""
    try:
        key_file = given.get("api_key_file")
        client = engine_client.Client(str(given["url"]), engine_client.read_api_key(key_file), key_file or "")
        served = ask(client, str(given["health"]), list(given["models"]), seconds)
        if model is not None and given["complete"]:
            asked = model or (served[0] if served else "")
            if not asked:
                raise engine_client.Problem(
                    "it lists no model that could be asked for a token", "see the log of the server"
                )
            note = complete(client, asked, completion_seconds, bool(given.get("vllm")))
    except engine_client.Problem as problem:
        hint = "; ".join(text for text in (problem.fix, str(given.get("look") or "")) if text)
        what = f"no token of {asked}: " if asked else ""
        return {
            "ok": False,
            "error": what + problem.message,
            "hint": hint,
            "completion": asked,
            "note": "",
            **took(began),
        }
    return {"ok": True, "error": "", "hint": "", "completion": asked, "note": note, **took(began)}


def took(began: float) -> dict[str, float]:
    return {"seconds": round(time.monotonic() - began, 3)}


def ask(client: engine_client.Client, health: str, models: list[str], seconds: float) -> list[str]:
    """Make the small request; returns the names that are served, where the answer lists them."""
    if health == "/v1/models":
        listed = client.request_json("GET", health, timeout=seconds).get("data")
        served = (
            [str(each["id"]) for each in listed if isinstance(each, dict) and "id" in each]
            if isinstance(listed, list)
            else []
        )
    elif health == "/api/tags":
        listed = client.request_json("GET", health, timeout=seconds).get("models")
        served = (
            [str(each["name"]) for each in listed if isinstance(each, dict) and "name" in each]
            if isinstance(listed, list)
            else []
        )
        served += [name.removesuffix(":latest") for name in served if name.endswith(":latest")]
    else:
        status, raw = client.call("GET", health, timeout=seconds)
        if not 200 <= status < 300:
            raise client.status_problem(status, raw, health)
        return []
    missing = [name for name in models if name not in served]
    if missing:
        raise engine_client.Problem(
            f"{health} lists {', '.join(served[:8]) or 'no model'}, not {', '.join(missing)}",
            "another server may hold the port, or the model was removed",
        )
    return served


def complete(client: engine_client.Client, model: str, seconds: float, is_vllm: bool) -> str:
    """Ask for a token; an engine that makes tokens for others meanwhile is busy and not down."""
    before = figures(client) if is_vllm else None
    try:
        found = engine_client.one_token(client, model, seconds)
    except engine_client.Problem as problem:
        after = figures(client) if before is not None and problem.kind == "timeout" else None
        moved = before is not None and after is not None and any(after[key] != before[key] for key in metrics.COUNTERS)
        if not moved:
            raise
        return f"busy: no token of its own within {seconds:.0f} s, but it makes tokens for others"
    return f"a token in {found['seconds']:.1f} s"


def figures(client: engine_client.Client) -> dict[str, float | None] | None:
    with contextlib.suppress(engine_client.Problem):
        status, text = client.metrics(10.0)
        return metrics.progress(text) if status == 200 else None
    return None


def check_all(settings: Mapping[str, Any], wanted: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Ask all endpoints at once, a bounded number at a time, and give up on what does not end."""
    quick, slow = float(settings["timeout_seconds"]), float(settings["completion_seconds"])

    seconds = 2 * quick + (2 * slow + 20 if any(w is not None for w in wanted.values()) else 0)
    jobs = {
        given["key"]: functools.partial(check, given, quick, slow, wanted.get(given["key"]))
        for given in settings["endpoints"]
    }
    done = at_once(jobs, seconds, lambda why: failed(f"the check itself failed: {why}"))
    late = failed("the check did not end in time", "the name may not resolve, or the server sends byte by byte")
    return {given["key"]: done.get(given["key"], late) for given in settings["endpoints"]}


def at_once(jobs: Mapping[str, Callable[[], Any]], seconds: float, failure: Callable[[str], Any]) -> dict[str, Any]:
    """Do jobs, a bounded number at a time.

    :param jobs: by name
    :param seconds: that one may take
    :param failure: makes the result of one that raised something, of the reason
    :returns: results by name; what did not end in time is missing
    """
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in jobs:
        todo.put(name)
    done: dict[str, Any] = {}

    def work() -> None:
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done[name] = jobs[name]()
            except Exception as error:  # one that answers nonsense does not hide the others
                done[name] = failure(printable(repr(error)))

    threads = [threading.Thread(target=work, daemon=True) for _number in range(min(AT_ONCE, len(jobs)))]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + -(-len(jobs) // AT_ONCE) * seconds + 5
    for thread in threads:
        thread.join(max(give_up - time.monotonic(), 0.01))
    return dict(done)  # a copy: a job that ends later adds to the other


def failed(error: str, hint: str = "") -> dict[str, Any]:
    return {"ok": False, "error": error, "hint": hint, "completion": None, "note": "", "seconds": None}


# --- notifiers ------------------------------------------------------------------------------------------------------


def http_post(url: str, data: bytes, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
    """Post something; certificates are verified, proxies are those of the environment."""

    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "********") if secret else text
        return " ".join(printable(text).split())[:200]

    try:
        answer = http_client.fetch(url, "POST", headers, data, SEND_SECONDS, proxies=True)
    except OSError as error:
        raise DeliveryError(clean(str(error))) from None
    except ValueError as error:  # its text may have the address, which may be a secret
        raise DeliveryError(f"its address, a header or the answer is no HTTP ({type(error).__name__})") from None
    if not 200 <= answer.status < 300:
        said = decode_text(answer.body[:4096])
        raise DeliveryError(f"HTTP {answer.status}: {clean(said or 'without a word')}")


def send_telegram(given: Mapping[str, Any], title: str, text: str, _changes: Sequence[Mapping[str, Any]]) -> None:
    token = read_secret(given["token_file"])
    base = str(given.get("url") or "https://api.telegram.org").rstrip("/")
    body = {"chat_id": given["chat_id"], "text": f"{title}\n{text}", "disable_web_page_preview": True}
    http_post(
        f"{base}/bot{token}/sendMessage", json.dumps(body).encode(), {"Content-Type": "application/json"}, [token]
    )


def send_ntfy(given: Mapping[str, Any], title: str, text: str, changes: Sequence[Mapping[str, Any]]) -> None:
    token = read_secret(given["token_file"]) if given.get("token_file") else ""
    bad = any(change["what"] in (fleet_state.DOWN, fleet_state.UNSTEADY) for change in changes)
    headers = {"Title": title.encode("ascii", "replace").decode(), "Priority": "high" if bad else "default"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    http_post(str(given["url"]), text.encode(), headers, [token])


def send_webhook(given: Mapping[str, Any], title: str, text: str, changes: Sequence[Mapping[str, Any]]) -> None:
    url = read_secret(given["url_file"]) if given.get("url_file") else str(given["url"])
    headers, secrets = {"Content-Type": "application/json"}, [url] if given.get("url_file") else []
    if given.get("headers_file"):
        try:
            lines = Path(given["headers_file"]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise DeliveryError(f"{given['headers_file']} cannot be read") from None
        for line in lines:
            name, colon, value = line.partition(":")
            if line.strip() and not (colon and name.strip()):
                raise DeliveryError(f"{given['headers_file']} has a line that is no `Name: value`")
            if colon:
                headers[name.strip()] = value.strip()
                secrets.append(value.strip())
    key = str(given.get("text_key") or "text")
    body: dict[str, Any] = {key: f"{title}\n{text}"}
    if key == "text":
        body |= {"title": title, "changes": list(changes)}
    http_post(url, json.dumps(body).encode(), headers, secrets)


def send_mail(given: Mapping[str, Any], title: str, text: str, _changes: Sequence[Mapping[str, Any]]) -> None:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = title, given["from"], ", ".join(given["to"])
    message["Date"], message["Message-ID"] = formatdate(localtime=True), make_msgid(domain="dgxspark.invalid")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text + "\n")
    password = read_secret(given["password_file"]) if given.get("password_file") else ""
    try:
        context = ssl.create_default_context()
        where = (str(given["server"]), int(given["port"]))
        if given["tls"] == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(*where, timeout=SEND_SECONDS, context=context)
        else:
            server = smtplib.SMTP(*where, timeout=SEND_SECONDS)
        with server:
            if given["tls"] == "starttls":
                server.starttls(context=context)
            if password:
                server.login(str(given.get("user") or given["from"]), password)
            server.send_message(message)
    except smtplib.SMTPResponseException as error:
        said = decode_text(error.smtp_error) if isinstance(error.smtp_error, bytes) else str(error.smtp_error)
        said = said.replace(password, "********") if password else said
        raise DeliveryError(f"{where[0]}:{where[1]} answered {error.smtp_code}: {said[:200]}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise DeliveryError(f"{where[0]}:{where[1]}: {type(error).__name__}: {str(error)[:200]}") from None


def send_command(given: Mapping[str, Any], title: str, text: str, _changes: Sequence[Mapping[str, Any]]) -> None:
    argv = [str(word) for word in given["argv"]]
    done = command.run(argv, COMMAND_SECONDS, data=f"{title}\n{text}\n".encode())
    if done.state != command.FINISHED:
        raise DeliveryError(done.why)
    if done.rc:
        raise DeliveryError(f"{argv[0]} ended with {done.rc}: {done.err.strip()[:200]}")


SENDERS = {
    "telegram": send_telegram,
    "ntfy": send_ntfy,
    "webhook": send_webhook,
    "mail": send_mail,
    "command": send_command,
}


def tell(settings: Mapping[str, Any], state: dict[str, Any], path: Path, now: float) -> dict[str, str]:
    """Send what is in the outboxes; returns who could not be told, and why. The state is written after each of them."""
    zone = datetime.now().astimezone().tzinfo or timezone.utc
    errors: dict[str, str] = {}
    for given in settings["notify"]:
        name, waiting = given["name"], state["outbox"].get(given["name"]) or []
        if not waiting:
            continue
        title, text, count = fleet_state.compose(settings["host"], waiting, zone, now, len(settings["endpoints"]))
        try:
            SENDERS[given["kind"]](given, title, text, waiting[:count])
        except DeliveryError as error:
            errors[name] = str(error)
            fleet_state.not_delivered(state, name, str(error), now)
            say(f"{name} could not be told ({len(waiting)} changes wait for the next run): {error}", 3)
        else:
            fleet_state.delivered(state, name, count)
            say(f"{name} was told {count} change{'s' * (count != 1)}")
        state_file.write(path, state)
    return errors


def test_message(settings: Mapping[str, Any]) -> int:
    """Send a message to everybody, whatever the state is."""
    if not settings["notify"]:
        say("no notifications are sent: spark_fleet_monitor.notify is empty", 4)
        return 2
    text = f"This is a test. {settings['host']} watches {len(settings['endpoints'])} endpoints and tells here what changes."
    code = 0
    for given in settings["notify"]:
        try:
            SENDERS[given["kind"]](given, f"Fleet monitor on {settings['host']}: test", text, [])
            print(f"{given['name']}: sent")
        except DeliveryError as error:
            print(f"{given['name']}: {error}")
            code = 3
    return code


# --- the status page --------------------------------------------------------------------------------------------------


def make_page(
    settings: Mapping[str, Any], state: dict[str, Any], found: Mapping[str, Mapping[str, Any]], folder: Path
) -> None:
    """Make the page anew, of what this run found; notes in the state how many tokens engines have made."""
    text: dict[str, tuple[str | None, str]] = {}
    engines = [given for given in settings["endpoints"] if given.get("vllm") and found[given["key"]]["ok"]]
    jobs = {f"engine {given['key']}": functools.partial(read_figures, given["url"]) for given in engines}
    wanted = settings["page"]["exporters"]
    jobs |= {f"exporter {spark}": functools.partial(read_figures, url) for spark, url in wanted.items()}
    text = at_once(jobs, PAGE_SECONDS, lambda why: (None, f"its figures cannot be read: {why}"))
    now, late = time.time(), (None, "its exporter does not answer in time")
    before = (state.get("page") or {}).get("tokens") if isinstance(state.get("page"), dict) else None
    before = before if isinstance(before, dict) else {}
    tokens: dict[str, list[float]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for given in engines:
        key, said = given["key"], text.get(f"engine {given['key']}", late)[0] or ""
        count = metrics.progress(said)["generation_tokens"]
        figures[key] = {
            **metrics.parse(said),
            "tokens_per_second": watched_status.rate(before.get(key), now, count),
        }
        if count is not None:
            tokens[key] = [now, count]
    state["page"] = {"tokens": tokens}
    exporters = {spark: text.get(f"exporter {spark}", late) for spark in wanted}
    kept = state_file.read(folder / "plan.json") or {}
    plans = kept.get("hosts") or {}
    checks = {given["key"]: {"url": given["url"], **found[given["key"]]} for given in settings["endpoints"]}
    status, others = watched_status.report(plans, checks, figures, exporters, now)
    made = f"By the fleet monitor of {settings['host']}; reload the page for its newest run."
    planned = f" Plan and its findings as of {kept['at']}." if kept.get("at") else ""
    state_file.write_text(folder / PAGE, status_page.page(status, plans, others, made + planned))


def read_figures(url: str) -> tuple[str | None, str]:
    """Return what a server has at /metrics, which asks for no key; None where it has nothing, and why."""
    try:
        answer = http_client.fetch(f"{url}/metrics", timeout=PAGE_SECONDS)
    except (OSError, ValueError) as error:
        return None, f"its exporter does not answer: {' '.join(printable(str(error)).split())[:200]}"
    if answer.status != 200:
        return None, f"its exporter answers HTTP {answer.status}"
    return answer.body.decode("utf-8", "replace"), ""


# --- one run --------------------------------------------------------------------------------------------------------


def report(
    found: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any], as_json: bool, more: Mapping[str, Any]
) -> None:
    """Show a run to a person, or to a program."""
    if as_json:
        listed = [{"key": given["key"], "url": given["url"], **found[given["key"]]} for given in settings["endpoints"]]
        print(json.dumps({"host": settings["host"], "endpoints": listed, **more}, indent=1))
        return
    for given in settings["endpoints"]:
        result = found[given["key"]]
        note = f" ({result['note']})" if result["note"] else ""
        print(
            f"{'up  ' if result['ok'] else 'DOWN'} {given['key']} {given['url']}{note}{': ' if result['error'] else ''}{result['error']}"
        )
        if result["hint"]:
            print(f"     {result['hint']}")


def run(settings: Mapping[str, Any], args: argparse.Namespace) -> int:
    path = args.state / "state.json"
    if args.dry_run:
        state = fleet_state.fresh(state_file.read(path))
        found, changes, now = look(settings, state, args.completion)
        fleet_state.post(state, [given["name"] for given in settings["notify"]], changes, now)
        report(found, settings, args.json, {"changes": changes, "waiting": state["outbox"]})
        return 0 if all(result["ok"] for result in found.values()) else 1
    args.state.mkdir(mode=0o755, parents=True, exist_ok=True)
    with one_at_a_time(args.state):
        state = read_state(path)
        found, changes, now = look(settings, state, args.completion)
        local = datetime.now().astimezone()
        beat = fleet_state.heartbeat(state, settings["heartbeat"], local)
        changes += [beat] if beat else []
        for change in changes:
            say(
                fleet_state.line(change, local.tzinfo or timezone.utc, now),
                4 if change["what"] == fleet_state.DOWN else 6,
            )
        fleet_state.post(state, [given["name"] for given in settings["notify"]], changes, now)
        state_file.write(path, state)  # before anything is sent: what was seen is not lost
        quiet = fleet_state.is_quiet(settings["quiet"], local)
        errors = {} if quiet else tell(settings, state, path, now)
        if settings.get("page"):
            try:
                make_page(settings, state, found, args.state)
                state_file.write(path, state)
            except Exception as error:  # whatever somebody's figures do to it: people are told all the same
                say(f"the status page could not be made, the old one stays: {error!r}", 4)
    report(found, settings, args.json, {"changes": changes, "undelivered": errors, "quiet": quiet})
    down = sorted(key for key, result in found.items() if not result["ok"])
    say(f"{len(found) - len(down)} of {len(found)} endpoints are up" + (f"; down: {', '.join(down)}" if down else ""))
    return 3 if errors else 1 if down else 0


def look(
    settings: Mapping[str, Any], state: dict[str, Any], all_completions: bool
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]], float]:
    """Check everything and judge it."""
    every = 1 if all_completions else int(settings["completion_every"])
    wanted = {
        given["key"]: fleet_state.wants_completion(state, given["key"], given["models"], every)
        if given["complete"]
        else None
        for given in settings["endpoints"]
    }
    found = check_all(settings, wanted)
    now = time.time()
    results = [
        Result(given["key"], given["url"], one["ok"], one["error"], one["hint"], one["completion"])
        for given in settings["endpoints"]
        for one in [found[given["key"]]]
    ]
    return found, fleet_state.judge(state, results, now, int(settings["failures"])), now


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark-fleet-monitor", description="Asks every endpoint of a fleet and tells what has changed."
    )
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument(
        "--state", type=Path, default=Path("/var/lib/dgxspark/fleet_monitor"), help="state (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="one run, as the timer makes them; the default")
    parser.add_argument("--dry-run", action="store_true", help="check and show; remember and send nothing")
    parser.add_argument(
        "--completion", action="store_true", help="ask each model server for a token, whatever the turn"
    )
    parser.add_argument("--json", action="store_true", help="show the run as JSON")
    parser.add_argument("--test", action="store_true", help="send a test message to every notifier")
    args = parser.parse_args()
    path = args.etc / "fleet_monitor" / "settings.json"
    settings = state_file.read(path)
    if settings is None or not isinstance(settings.get("endpoints"), list):
        say(f"{path} cannot be read; run site.yml again", 3)
        return 2
    try:
        return test_message(settings) if args.test else run(settings, args)
    except DeliveryError as error:
        say(str(error), 3)
        return 2
    except OSError as error:
        say(f"{args.state} cannot be used: {error}", 3)
        return 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # checks that do not end are of no use any more
