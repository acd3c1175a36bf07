# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which versions of `_common/component_versions.py`, and of the catalogue of vLLM, are not the newest any more.

Images are asked for at their registry, Python packages of the index that pip is configured with, releases at GitHub. A version counts as
newer when it is written like ours: `v1.2.3` for `v1.0.0`, never a candidate or another variant. Exit code: 0 all are the newest, 1 some are
not, 2 of some nobody said.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urljoin

from common import ROOT, tool_env

sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.component_versions import COMPONENTS, Component
from ansible_collections.dgxspark.vllm.plugins.module_utils._content import upstream
from ansible_collections.dgxspark.vllm.plugins.module_utils._vllm import catalogue

SECONDS = 30.0
MOST_PAGES = 50
MOST_BYTES = 8 << 20
NUMBERS = re.compile(r"\d+(?:\.\d+)+", re.ASCII)


class Row(NamedTuple):
    """The answer about a component: the newest version like ours, empty if ours is the newest; or the error."""

    name: str
    ours: str
    newest: str = ""
    unknown: str = ""


def key(version: str) -> tuple[str, tuple[int, ...], str] | None:
    """Return prefix, numbers and suffix of a version; None without numbers."""
    match = NUMBERS.search(version)
    return match and (
        version[: match.start()],
        tuple(int(part) for part in match.group().split(".")),
        version[match.end() :],
    )


def newest(ours: str, versions: Iterable[str]) -> str:
    """Return the newest of the versions that are written like ours, empty where none is newer."""
    own_key = key(ours)
    if own_key is None:
        return ""
    prefix, numbers, suffix = own_key
    best = (numbers, "")
    for version in versions:
        other = key(version)
        if not other or (other[0], other[2]) != (prefix, suffix):
            continue
        # A year in place of a number (2024.1.0) is another scheme, and more parts are builds.
        if len(other[1]) == len(numbers) and (other[1][0] < 1000) == (numbers[0] < 1000) and other[1] > best[0]:
            best = (other[1], version)
    return best[1]


def get(url: str, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an answer, its URL as C(url) among them. Raises OSError."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS) as answer:
        headers_lower = {name.lower(): value for name, value in answer.headers.items()}
        return answer.read(MOST_BYTES), {**headers_lower, "url": answer.url}


def tags(image: str) -> list[str]:
    """Return the tags that a registry has of an image. Raises OSError and ValueError."""
    url = re.sub(r"/manifests/[^/]+$", "/tags/list?n=1000", upstream.manifest_url(f"{image}:any"))
    headers: dict[str, str] = {}
    names: list[str] = []
    for _page in range(MOST_PAGES):
        try:
            body, answer_headers = get(url, headers)
        except urllib.error.HTTPError as error:
            token_url = upstream.token_url(error.headers.get("WWW-Authenticate", ""), f"{image}:any")
            if error.code != 401 or not token_url or headers:
                raise
            token = json.loads(get(token_url, {})[0])
            headers = {"Authorization": f"Bearer {token.get('token') or token.get('access_token')}"}
            body, answer_headers = get(url, headers)
        names += json.loads(body).get("tags") or []
        following = re.match(r'<([^>]+)>; *rel="?next', answer_headers.get("link", ""))
        if not following:
            break
        url = urljoin(url, following.group(1))
    return names


def packages(name: str) -> list[str]:
    """Return the versions of a package in pip's index. Raises ValueError with pip's message if the package is missing."""
    # For any Python: the package runs in an image or a separate environment.
    argv = [sys.executable, "-m", "pip", "index", "versions", name, "--ignore-requires-python"]
    argv += ["--disable-pip-version-check"]
    done = subprocess.run(argv, text=True, capture_output=True, env=tool_env(), check=False, timeout=SECONDS * 4)
    listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if not listed:
        raise ValueError((done.stderr.strip().splitlines() or ["pip says nothing"])[-1])
    return listed.group(1).split(", ")


def releases(repository: str) -> list[str]:
    """Return the latest release of a repository, without its v. Raises OSError."""
    _body, answer_headers = get(f"https://github.com/{repository}/releases/latest", {})
    return [answer_headers["url"].rpartition("/")[2].removeprefix("v")]


def ask(component: Component) -> Row:
    """Return what a component's makers have: by its image, by its package where no registry answers, or by its releases."""
    sources: list[tuple[Callable[[str], list[str]], str]] = [
        (tags, component.image),
        (packages, component.package),
        (releases, component.release),
    ]
    ours, unknown = component.version, ""
    for source, name in sources:
        if not name:
            continue
        try:
            versions = source(name)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            unknown = unknown or " ".join(str(error).split()) or type(error).__name__
            continue
        plain = ours if source is tags else ours.removeprefix("v")
        return Row(component.name, ours, newest(plain, versions))
    return Row(component.name, ours, unknown=unknown)


def report(rows: Iterable[Row]) -> tuple[str, int]:
    """Return the lines about components, and the exit code."""
    lines, code = [], 0
    for row in rows:
        state = f"not known: {row.unknown}" if row.unknown else f"{row.newest} is newer" if row.newest else "newest"
        lines.append(f"{row.name:<24} {row.ours:<14} {state}")
        code = max(code, 2 if row.unknown else 1 if row.newest else 0)
    return "\n".join(lines), code


def main() -> int:
    """Print a line for each; the exit code of the module's documentation."""
    vllm = Component("vLLM in the catalogue", str(catalogue.versions()[-1]), package="vllm")
    with ThreadPoolExecutor(max_workers=8) as pool:
        text, code = report(pool.map(ask, (*COMPONENTS, vllm)))
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
