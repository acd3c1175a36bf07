# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks every endpoint of a fleet, and sends the changes: one run of spark-fleet-monitor.service.

spark-fleet-monitor                check, remember, send changes
spark-fleet-monitor --dry-run      check and print; nothing is remembered or sent
spark-fleet-monitor --test         send a test message to all notifiers

C(fleet_state.py) decides on changes and words messages. Checks run in parallel, each with a timeout. Tokens come from files and are in no
argument, message, log or error. The live page shows the results of the last run.

Exit codes: 0 all endpoints are up, 1 some are down, 2 the settings cannot be used, 3 a notifier failed.
It needs Python's standard library and the package dgxspark_vllm alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import os
import smtplib
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # root runs it from /usr/local/lib, which holds installed files only

from dgxspark_vllm._common.foreign_text import decode_text, printable
from dgxspark_vllm._runtime import command, engine_client, fleet_state, http_client, metrics, state_file
from dgxspark_vllm._runtime.fleet_state import Result
from dgxspark_vllm._runtime.parallel import run_jobs
from dgxspark_vllm._runtime.systemd import journal_line

AT_ONCE = 16
SEND_SECONDS = 20.0
LOCK_SECONDS = 120.0
COMMAND_SECONDS = 60.0
CHECKS = "checks.json"


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
    """Return the state of the last run; a file that cannot be read is set aside."""
    state = state_file.read(path)
    if state is None and path.exists():
        say(f"warning: {path} cannot be read; what was remembered is set aside as {path.name}.broken", 4)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{path.name}.broken"))
    return fleet_state.fresh(state)


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep a run of the timer and one by hand apart."""
    with (folder / "lock").open("w") as stream:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise DeliveryError("another run does not end; see systemctl status spark-fleet-monitor") from None
                time.sleep(0.5)
        yield


# --- checks ---------------------------------------------------------------------------------------------------------


def check(endpoint: Mapping[str, Any], seconds: float, completion_seconds: float, model: str | None) -> dict[str, Any]:
    """Check one endpoint; returns C({ok, error, hint, completion, seconds, note}). model: for a completion; None for none, empty for any."""
    began = time.monotonic()
    completion: str | None = None
    note = error = hint = ""
    try:
        key_file = endpoint.get("api_key_file")
        client = engine_client.Client(str(endpoint["url"]), engine_client.read_api_key(key_file), key_file or "")
        served = ask(client, str(endpoint["health"]), list(endpoint["models"]), seconds)
        if model is not None and endpoint["complete"]:
            completion = model or next(iter(served), "")
            note = complete(client, completion, completion_seconds, bool(endpoint.get("vllm")))
    except engine_client.Problem as problem:
        hint = "; ".join(text for text in (problem.fix, str(endpoint.get("look") or "")) if text)
        error = (f"no token of {completion}: " if completion else "") + problem.message
    return {
        "ok": not error,
        "error": error,
        "hint": hint,
        "completion": completion,
        "note": note,
        "seconds": round(time.monotonic() - began, 3),
    }


LISTS = {"/v1/models": ("data", "id"), "/api/tags": ("models", "name")}
"""Paths that list models: the key of the list, and of a name in it."""


def ask(client: engine_client.Client, health: str, models: list[str], seconds: float) -> list[str]:
    """Send the small request; returns the models that the answer lists. Raises Problem, also if some of C(models) are missing."""
    if health not in LISTS:
        status, raw = client.call("GET", health, timeout=seconds)
        if not 200 <= status < 300:
            raise client.status_problem(status, raw, health)
        return []
    list_key, name_key = LISTS[health]
    entries = client.request_json("GET", health, timeout=seconds).get(list_key)
    entries = entries if isinstance(entries, list) else []
    served = [str(entry[name_key]) for entry in entries if isinstance(entry, dict) and name_key in entry]
    if health == "/api/tags":
        served += [name.removesuffix(":latest") for name in served if name.endswith(":latest")]
    missing = [name for name in models if name not in served]
    if missing:
        raise engine_client.Problem(
            f"{health} lists {', '.join(served[:8]) or 'no model'}, not {', '.join(missing)}",
            "another server may hold the port, or the model was removed",
        )
    return served


def complete(client: engine_client.Client, model: str, seconds: float, is_vllm: bool) -> str:
    """Ask for a token; returns a note. An engine that generates tokens for other requests meanwhile is busy, not down."""
    if not model:
        raise engine_client.Problem("it lists no model that could be asked for a token", "see the log of the server")
    before = figures(client) if is_vllm else None
    try:
        answer = engine_client.one_token(client, model, seconds)
    except engine_client.Problem as problem:
        after = figures(client) if before is not None and problem.kind == "timeout" else None
        if before is None or after is None or all(after[key] == before[key] for key in metrics.COUNTERS):
            raise
        return f"busy: no token of its own within {seconds:.0f} s, but it makes tokens for others"
    return f"a token in {answer['seconds']:.1f} s"


def figures(client: engine_client.Client) -> dict[str, float | None] | None:
    with contextlib.suppress(engine_client.Problem):
        status, text = client.metrics(10.0)
        return metrics.progress(text) if status == 200 else None
    return None


def check_all(settings: Mapping[str, Any], completions: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Check all endpoints in parallel. completions: the model for a completion by endpoint, as C(check) takes it."""
    quick, slow = float(settings["timeout_seconds"]), float(settings["completion_seconds"])
    seconds = 2 * quick + (2 * slow + 20 if any(model is not None for model in completions.values()) else 0)
    rounds = -(-len(settings["endpoints"]) // AT_ONCE)
    jobs = {
        endpoint["key"]: functools.partial(check, endpoint, quick, slow, completions.get(endpoint["key"]))
        for endpoint in settings["endpoints"]
    }
    results = run_jobs(
        jobs, rounds * seconds + 5, lambda why: failed(f"the check itself failed: {why}"), at_once=AT_ONCE
    )
    late = failed("the check did not end in time", "the name may not resolve, or the server sends byte by byte")
    return {key: results.get(key, late) for key in jobs}


def failed(error: str, hint: str = "") -> dict[str, Any]:
    return {"ok": False, "error": error, "hint": hint, "completion": None, "note": "", "seconds": None}


# --- notifiers ------------------------------------------------------------------------------------------------------


def http_post(url: str, data: bytes, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
    """Send a POST; certificates are verified, proxies come from the environment. Raises DeliveryError."""

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
        words = decode_text(answer.body[:4096])
        raise DeliveryError(f"HTTP {answer.status}: {clean(words or 'without a word')}")


def send_telegram(notifier: Mapping[str, Any], title: str, text: str, _changes: Sequence[Mapping[str, Any]]) -> None:
    token = read_secret(notifier["token_file"])
    base = str(notifier.get("url") or "https://api.telegram.org").rstrip("/")
    body = {"chat_id": notifier["chat_id"], "text": f"{title}\n{text}", "disable_web_page_preview": True}
    http_post(
        f"{base}/bot{token}/sendMessage", json.dumps(body).encode(), {"Content-Type": "application/json"}, [token]
    )


def send_ntfy(notifier: Mapping[str, Any], title: str, text: str, changes: Sequence[Mapping[str, Any]]) -> None:
    token = read_secret(notifier["token_file"]) if notifier.get("token_file") else ""
    bad = any(change["what"] in (fleet_state.DOWN, fleet_state.UNSTEADY) for change in changes)
    headers = {"Title": title.encode("ascii", "replace").decode(), "Priority": "high" if bad else "default"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    http_post(str(notifier["url"]), text.encode(), headers, [token])


def send_webhook(notifier: Mapping[str, Any], title: str, text: str, changes: Sequence[Mapping[str, Any]]) -> None:
    url = read_secret(notifier["url_file"]) if notifier.get("url_file") else str(notifier["url"])
    headers, secrets = {"Content-Type": "application/json"}, [url] if notifier.get("url_file") else []
    if notifier.get("headers_file"):
        try:
            lines = Path(notifier["headers_file"]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise DeliveryError(f"{notifier['headers_file']} cannot be read") from None
        for line in lines:
            name, colon, value = line.partition(":")
            if line.strip() and not (colon and name.strip()):
                raise DeliveryError(f"{notifier['headers_file']} has a line that is no `Name: value`")
            if colon:
                headers[name.strip()] = value.strip()
                secrets.append(value.strip())
    key = str(notifier.get("text_key") or "text")
    body: dict[str, Any] = {key: f"{title}\n{text}"}
    if key == "text":
        body |= {"title": title, "changes": list(changes)}
    http_post(url, json.dumps(body).encode(), headers, secrets)


def send_mail(notifier: Mapping[str, Any], title: str, text: str, _changes: Sequence[Mapping[str, Any]]) -> None:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = title, notifier["from"], ", ".join(notifier["to"])
    message["Date"], message["Message-ID"] = formatdate(localtime=True), make_msgid(domain="dgxspark.invalid")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text + "\n")
    password = read_secret(notifier["password_file"]) if notifier.get("password_file") else ""
    try:
        context = ssl.create_default_context()
        where = (str(notifier["server"]), int(notifier["port"]))
        if notifier["tls"] == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(*where, timeout=SEND_SECONDS, context=context)
        else:
            server = smtplib.SMTP(*where, timeout=SEND_SECONDS)
        with server:
            if notifier["tls"] == "starttls":
                server.starttls(context=context)
            if password:
                server.login(str(notifier.get("user") or notifier["from"]), password)
            server.send_message(message)
    except smtplib.SMTPResponseException as error:
        words = decode_text(error.smtp_error) if isinstance(error.smtp_error, bytes) else str(error.smtp_error)
        words = words.replace(password, "********") if password else words
        raise DeliveryError(f"{where[0]}:{where[1]} answered {error.smtp_code}: {words[:200]}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise DeliveryError(f"{where[0]}:{where[1]}: {type(error).__name__}: {str(error)[:200]}") from None


def send_command(notifier: Mapping[str, Any], title: str, text: str, _changes: Sequence[Mapping[str, Any]]) -> None:
    argv = [str(word) for word in notifier["argv"]]
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
    """Send the outboxes; returns the errors by notifier. The state is written after each of them."""
    zone = datetime.now().astimezone().tzinfo or timezone.utc
    errors: dict[str, str] = {}
    for notifier in settings["notify"]:
        name, waiting = notifier["name"], state["outbox"].get(notifier["name"]) or []
        if not waiting:
            continue
        title, text, count = fleet_state.compose(settings["host"], waiting, zone, now, len(settings["endpoints"]))
        try:
            SENDERS[notifier["kind"]](notifier, title, text, waiting[:count])
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
    """Send a test message to all notifiers; returns the exit code."""
    if not settings["notify"]:
        say("no notifications are sent: spark_fleet_monitor.notify is empty", 4)
        return 2
    text = f"This is a test. {settings['host']} watches {len(settings['endpoints'])} endpoints and tells here what changes."
    code = 0
    for notifier in settings["notify"]:
        try:
            SENDERS[notifier["kind"]](notifier, f"Fleet monitor on {settings['host']}: test", text, [])
            print(f"{notifier['name']}: sent")
        except DeliveryError as error:
            print(f"{notifier['name']}: {error}")
            code = 3
    return code


# --- one run --------------------------------------------------------------------------------------------------------


def report(
    results: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any], as_json: bool, more: Mapping[str, Any]
) -> None:
    """Print a run, for a person or as JSON."""
    if as_json:
        listed = [
            {"key": endpoint["key"], "url": endpoint["url"], **results[endpoint["key"]]}
            for endpoint in settings["endpoints"]
        ]
        print(json.dumps({"host": settings["host"], "endpoints": listed, **more}, indent=1))
        return
    for endpoint in settings["endpoints"]:
        result = results[endpoint["key"]]
        note = f" ({result['note']})" if result["note"] else ""
        error = f": {result['error']}" if result["error"] else ""
        print(f"{'up  ' if result['ok'] else 'DOWN'} {endpoint['key']} {endpoint['url']}{note}{error}")
        if result["hint"]:
            print(f"     {result['hint']}")


def run_dry(settings: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Check and print; returns the exit code."""
    state = fleet_state.fresh(state_file.read(args.state / "state.json"))
    results, changes, now = look(settings, state, args.completion)
    fleet_state.post(state, [notifier["name"] for notifier in settings["notify"]], changes, now)
    report(results, settings, args.json, {"changes": changes, "waiting": state["outbox"]})
    return 0 if all(result["ok"] for result in results.values()) else 1


def run(settings: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Check, remember and send changes; returns the exit code."""
    path = args.state / "state.json"
    args.state.mkdir(mode=0o755, parents=True, exist_ok=True)
    with one_at_a_time(args.state):
        state = read_state(path)
        results, changes, now = look(settings, state, args.completion)
        local = datetime.now().astimezone()
        beat = fleet_state.heartbeat(state, settings["heartbeat"], local)
        changes += [beat] if beat else []
        for change in changes:
            text = fleet_state.line(change, local.tzinfo or timezone.utc, now)
            say(text, 4 if change["what"] == fleet_state.DOWN else 6)
        fleet_state.post(state, [notifier["name"] for notifier in settings["notify"]], changes, now)
        state_file.write(path, state)  # before anything is sent, so that no result is lost
        quiet = fleet_state.is_quiet(settings["quiet"], local)
        errors = {} if quiet else tell(settings, state, path, now)
        save_checks(settings, results, args.state / CHECKS, now)
    report(results, settings, args.json, {"changes": changes, "undelivered": errors, "quiet": quiet})
    down = sorted(key for key, result in results.items() if not result["ok"])
    summary = f"{len(results) - len(down)} of {len(results)} endpoints are up"
    say(summary + (f"; down: {', '.join(down)}" if down else ""))
    return 3 if errors else 1 if down else 0


def save_checks(settings: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], path: Path, now: float) -> None:
    """Write the results for the live page; a failure is logged. path: of the file; now: seconds since 1970."""
    shown = ("ok", "error", "hint", "note")
    endpoints = {
        endpoint["key"]: {"url": endpoint["url"], **{name: results[endpoint["key"]][name] for name in shown}}
        for endpoint in settings["endpoints"]
    }
    try:
        state_file.write(path, {"at": now, "endpoints": endpoints})
    except OSError as error:
        say(f"warning: {path} cannot be written: {error}", 4)


def look(
    settings: Mapping[str, Any], state: dict[str, Any], all_completions: bool
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]], float]:
    """Check all endpoints; returns the results by endpoint, the changes, and the time."""
    every = 1 if all_completions else int(settings["completion_every"])
    endpoints = settings["endpoints"]
    completions = {
        endpoint["key"]: fleet_state.wants_completion(state, endpoint["key"], endpoint["models"], every)
        if endpoint["complete"]
        else None
        for endpoint in endpoints
    }
    checked = check_all(settings, completions)
    now = time.time()
    results = [
        Result(key, endpoint["url"], *(checked[key][field] for field in ("ok", "error", "hint", "completion")))
        for key, endpoint in ((endpoint["key"], endpoint) for endpoint in endpoints)
    ]
    return checked, fleet_state.judge(state, results, now, int(settings["failures"])), now


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark-fleet-monitor", description="Checks every endpoint of a fleet and sends what has changed."
    )
    parser.add_argument("--etc", type=Path, default=Path("/etc/dgxspark"), help="settings (default: %(default)s)")
    parser.add_argument(
        "--state", type=Path, default=Path("/var/lib/dgxspark/fleet_monitor"), help="state (default: %(default)s)"
    )
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
        if args.test:
            return test_message(settings)
        return run_dry(settings, args) if args.dry_run else run(settings, args)
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
