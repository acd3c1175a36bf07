# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook status.yml as a person runs it, on a pair that this machine plays: systemd is a script, the engine a little server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook_runs import LOST_SSH, ansible_playbook, python

from ansible_collections.dgxspark.vllm.plugins.action.status import CLEAR

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SYSTEMCTL = """\
#!/bin/sh
cat "$SPARK_TEST_HOST" 2>/dev/null
"""
WAITS = "waits for spark-1 (rank 0): no heartbeat for 320 s"


class Pair:
    """Two hosts that are this machine; each sees its own simulated systemd."""

    def __init__(self, folder: Path, engine: Any) -> None:
        self.folder, self.engine = folder, engine
        (folder / "bin").mkdir()
        self.script("bin/systemctl", SYSTEMCTL)
        for host in ("spark-1", "spark-2"):
            self.script(f"python-{host}", f'#!/bin/sh\nSPARK_TEST_HOST={folder}/{host} exec {python()} "$@"\n')

    def script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def unit(self, host: str, state: str, says: str = "") -> None:
        text = f"Id=spark-big.service\nType=notify\nLoadState=loaded\nActiveState={state}\nSubState=x\nNRestarts=4\n"
        (self.folder / host).write_text(f"{text}StatusText={says}\n")

    def lose(self, *hosts: str) -> None:
        """Have hosts reached by an ssh that does not get through, with a reason that has an address in it."""
        self.script("ssh", LOST_SSH)
        self.lost = hosts

    lost: tuple[str, ...] = ()

    def status(self, *options: str) -> tuple[int, str]:
        port = int(self.engine.url.rpartition(":")[2])
        recipe = "qwen3-235b-a22b-gptq-int4"
        service = {"name": "big", "recipe": recipe, "served_model_name": "big", "port": port}
        hosts = {
            host: {"ansible_connection": "local", "ansible_python_interpreter": str(self.folder / f"python-{host}")}
            for host in ("spark-1", "spark-2")
        }
        for host in self.lost:
            hosts[host] = {"ansible_connection": "ssh", "ansible_ssh_executable": str(self.folder / "ssh")}
        cluster = {"name": "pair_a", "services": [service]}
        settings = {"spark_cluster": cluster, "ansible_become": False, "spark_status_timeout": 2}
        sysroot = self.folder / "nothing"
        sysroot.mkdir(exist_ok=True)
        groups = {
            "sparks": {
                "children": {"pair_a": {"hosts": hosts, "vars": settings}},
                "vars": {"spark_sysroot": str(sysroot)},
            }
        }
        inventory = self.folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump(groups, sort_keys=False))
        ran = ansible_playbook(
            "-i",
            inventory,
            "dgxspark.vllm.status",
            *options,
            cwd=self.folder,
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
        )
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())


@pytest.fixture
def pair(tmp_path: Path, engine: Any) -> Pair:
    return Pair(tmp_path, engine.set(models=["big"]))


def test_a_pair_that_serves(pair: Pair) -> None:
    for host in ("spark-1", "spark-2"):
        pair.unit(host, "active", "serving with the other")
    code, text = pair.status()
    assert code == 0, text
    assert "rank 0 of 2 (mp)" in text and "rank 1 of 2 (mp)" in text
    paths = {path for path, _body in pair.engine.requests}
    assert paths == {"/v1/chat/completions"}


def test_the_status_as_a_page(pair: Pair) -> None:
    """The page is written below the inventory folder, even if the run fails; a write error is reported."""
    pair.unit("spark-1", "active")
    pair.lose("spark-2")
    code, text = pair.status("-e", "spark_status_page=.spark/status.html")
    assert code == 2, text
    page = (pair.folder / ".spark" / "status.html").read_text()
    assert "port 22: No route to host" in page
    assert "<h1>Status of DGX Sparks</h1>" in page and "big" in page
    code, text = pair.status("-e", f"spark_status_page={pair.folder}/hosts.yml/x.html")
    assert code == 2 and "the page cannot be written to" in text


JOURNAL = """\
#!/bin/sh
echo "$@" >> "$SPARK_TEST_HOST.journal"
case "$*" in
  *--list-boots*) printf '  0 %s %s UTC %s UTC\n' "$(tr -d - < /proc/sys/kernel/random/boot_id)" "$(date -u '+%a %F %T')" "$(date -u '+%a %F %T')" ;;
  *PRIORITY=4*)
    up=$(cut -d. -f1 /proc/uptime)
    printf '{"_BOOT_ID": "%s", "__MONOTONIC_TIMESTAMP": "%s000000", "__REALTIME_TIMESTAMP": "1", "MESSAGE": "guard: memory is <short>"}\n' \
      "$(tr -d - < /proc/sys/kernel/random/boot_id)" "$((up - 1))" ;;
esac
"""


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_the_last_day_as_a_page(pair: Pair, options: tuple[str, ...]) -> None:
    """Also in check mode, since it changes no host; a silent host is unknown."""
    pair.unit("spark-1", "active")
    pair.lose("spark-2")
    pair.script("bin/journalctl", JOURNAL)
    code, text = pair.status("-e", "spark_status_timeline=.spark/day.html", *options)
    assert code == 2 and "port 22: No route to host" in text, text
    page = (pair.folder / ".spark" / "day.html").read_text()
    assert "<h1>The last day of DGX Sparks</h1>" in page and "guard: memory is &lt;short&gt;" in page
    assert "port 22: No route to host" in page and 'aria-label="unknown"' in page
    assert len((pair.folder / "spark-1.journal").read_text().splitlines()) == 3
    # Without the page nobody reads a journal.
    assert pair.status(*options)[0] == 2 and len((pair.folder / "spark-1.journal").read_text().splitlines()) == 3


def test_a_rank_that_waits_says_for_what(pair: Pair) -> None:
    pair.unit("spark-1", "active")
    pair.unit("spark-2", "activating", WAITS)
    code, text = pair.status()
    assert code != 0
    assert f"spark-2/big (rank 1 of 2 (mp)): {WAITS}" in text
    assert "1 of 1 services are not ready: pair_a/big" in text


def test_one_host_of_a_pair_is_judged_by_itself(pair: Pair) -> None:
    pair.unit("spark-1", "activating", WAITS)
    pair.unit("spark-2", "active")
    code, text = pair.status("--limit", "spark-2")
    assert code == 0, text
    assert "rank 1 of 2 (mp)" in text and "rank 0 of 2" not in text


def test_a_silent_host_is_a_row(pair: Pair) -> None:
    """Also when all are silent, which would end a play of plain tasks before anything was shown."""
    pair.unit("spark-1", "active")
    pair.lose("spark-2")
    code, text = pair.status()
    assert code == 2, text
    assert "spark-2/big (rank 1 of 2 (mp)): port 22: No route to host" in text
    assert "1 of 2 hosts did not answer: spark-2; 1 of 1 services are not ready: pair_a/big" in text
    pair.lose("spark-1", "spark-2")
    code, text = pair.status("-e", "spark_status_show=groups")
    assert code == 2, text
    assert "UNREACHABLE spark-1..2 (2): port 22: No route to host" in text
    assert "unreachable=0" in text


def test_a_host_that_cannot_be_asked_is_a_row(pair: Pair) -> None:
    pair.unit("spark-2", "active")
    pair.script("python-spark-1", "#!/bin/sh\necho 'no space left on device' >&2\nexit 1\n")
    code, text = pair.status("-e", "spark_status_show=groups")
    assert code == 2, text
    assert "UNKNOWN spark-1: " in text and "no space left on device" in text


def test_json_for_machines(pair: Pair) -> None:
    for host in ("spark-1", "spark-2"):
        pair.unit(host, "active")
    dest = pair.folder / "out" / "status.json"
    code, text = pair.status("-e", f"spark_status_file={dest}", "-e", "spark_status_show=none")
    assert code == 0, text
    report = json.loads(dest.read_text())
    assert report["healthy"] is True and report["counts"]["services"] == 1
    assert [row["host"] for row in report["services"]] == ["spark-1", "spark-2"]
    assert "rank 0 of 2" not in text
    pair.unit("spark-2", "failed")
    code, text = pair.status("-e", "spark_status_file=-", "-e", "spark_status_fail_on=never")
    assert code == 0, text
    assert '"reason": "1 of 1 services are not ready: pair_a/big"' in text


def test_one_task_reaches_the_hosts(pair: Pair) -> None:
    for host in ("spark-1", "spark-2"):
        pair.unit(host, "active")
        pair.script(
            f"python-{host}",
            f'#!/bin/sh\necho x >> {pair.folder}/calls-{host}\nSPARK_TEST_HOST={pair.folder}/{host} exec {python()} "$@"\n',
        )
    code, text = pair.status()
    assert code == 0, text
    assert [len((pair.folder / f"calls-{host}").read_text().split()) for host in ("spark-1", "spark-2")] == [1, 1]


@pytest.mark.nightly
def test_it_looks_again_until_the_last_look_which_decides(pair: Pair) -> None:
    pair.unit("spark-1", "active")
    pair.unit("spark-2", "activating", WAITS)
    code, text = pair.status("-e", "spark_status_watch=0.2", "-e", "spark_status_looks=3")
    assert code == 2 and text.count("TASK [Query the host]") == text.count("TASK [Show the status]") == 3, text
    assert CLEAR not in text
    # Of three looks at services that are not ready only the last fails.
    assert text.count("fatal: ") == 1 and "1 of 1 services are not ready: pair_a/big" in text
