"""Clients of engines on this host: one completion after the other, until a file appears; then says what failed, as JSON.

asker.py END NAME=PORT [NAME=PORT ...]
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from pathlib import Path


def ask(name: str, port: str) -> str:
    body = json.dumps({"model": name, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            json.load(answer)["choices"][0]["message"]
    except (OSError, ValueError, LookupError) as error:
        return str(error) or type(error).__name__
    return ""


def main(end: Path, services: list[str]) -> None:
    answers: dict[str, dict[str, object]] = {}

    def client(name: str, port: str) -> None:
        good, failed = 0, []
        while not end.exists():
            wrong = ask(name, port)
            good += not wrong
            failed += [[time.time(), wrong]] if wrong else []
            time.sleep(1.0)
        answers[name] = {"good": good, "failed": failed}

    threads = [threading.Thread(target=client, args=service.split("=")) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
