"""Rules about units and docker commands: each has a text that fires it and a text that does not."""

from __future__ import annotations

import pytest
from written_fixture import check_unit

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.docker_run import (
    is_unit,
    read_docker_run,
    read_options,
    read_unit,
    split_words,
)
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.compat import UNIT_RULES
from ansible_collections.dgxspark.vllm.plugins.module_utils._compat.rules_unit import seconds

DROP = "/bin/sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'"
RUN = "/usr/bin/docker run --rm --name m --gpus all -p 127.0.0.1:8000:8000 -v /srv/hf:/root/.cache/huggingface"
RUN += " -e HF_HUB_OFFLINE=1"
IMAGE = "nvcr.io/nvidia/vllm:26.04-py3 vllm serve a/b"
GOOD = f"""\
[Unit]
After=docker.service network-online.target
Requires=docker.service
StartLimitIntervalSec=1800
StartLimitBurst=3
[Service]
ExecStartPre=-/usr/bin/docker rm -f m
ExecStartPre=+{DROP}
ExecStart={RUN} {IMAGE}
ExecStartPost=/usr/local/bin/ready http://127.0.0.1:8000/v1/completions
ExecStop=/usr/bin/docker stop -t 60 m
TimeoutStartSec=3000
TimeoutStopSec=120
Restart=always
RestartSec=30
[Install]
WantedBy=multi-user.target
"""


def unit(old: str = "", new: str = "") -> str:
    assert old in GOOD
    return GOOD.replace(old, new) if old else GOOD


def run(*words: str, image: str = IMAGE) -> str:
    return " ".join([RUN, *words, image])


# rule: (a text that fires it, a text next to it that does not)
CASES: dict[str, tuple[str, str]] = {
    "SPKU01": (unit("[Service]\n", "[Service]\nPermissionsStartOnly=true\n"), unit()),
    "SPKU02": (unit(" --rm", " --restart=unless-stopped"), run("--restart", "on-failure:3")),
    "SPKU03": (
        unit(" --rm", " -d --rm"),
        unit("[Service]\n", "[Service]\nType=oneshot\n").replace(" --rm", " -d --rm"),
    ),
    "SPKU04": (unit(f"ExecStartPre=+{DROP}\n"), unit()),
    "SPKU05": (
        unit(f"ExecStartPre=+{DROP}", f"User=vllm\nExecStartPre={DROP}"),
        unit(f"ExecStartPre=+{DROP}", f"User=vllm\nExecStartPre=+{DROP}"),
    ),
    "SPKU06": (unit("TimeoutStartSec=3000\n"), unit("TimeoutStartSec=3000", "TimeoutStartSec=30min")),
    "SPKU07": (unit("Requires=docker.service\n"), unit("Requires=", "BindsTo=")),
    "SPKU08": (unit("StartLimitBurst=3\n").replace("StartLimitIntervalSec=1800\n", ""), unit()),
    "SPKU09": (unit("Restart=always", "Restart=on-failure"), unit("Restart=always", "Restart=no")),
    "SPKU10": (
        unit("ExecStartPost=/usr/local/bin/ready http://127.0.0.1:8000/v1/completions\n"),
        unit(),
    ),
    "SPKU11": (unit("ExecStop=/usr/bin/docker stop -t 60 m\n"), unit()),
    "SPKU12": (unit("[Install]\nWantedBy=multi-user.target\n"), unit()),
    "SPKU13": (run("--memory", "100g"), run("--memory-swappiness", "0")),
    "SPKU14": (unit("ExecStartPre=-/usr/bin/docker rm -f m\n"), unit()),
    "SPKU15": (unit("RestartSec=30", "RestartSec=30 # long"), unit("RestartSec=30", "# long\nRestartSec=30")),
    "SPKU16": (unit("RestartSec=30", "RestartSec=30\nStartLimitIntervalSec=60"), unit()),
    "SPKU17": (unit("/usr/bin/docker stop -t 60 m", "/usr/bin/pkill -f 'vllm serve'"), unit()),
    "SPKU18": (
        run(image="a:1 -c 'pip install vllm[audio] && vllm serve a/b'"),
        run(image="a:1 -c 'vllm serve a/b'"),
    ),
    "SPKU19": (run().replace("--gpus all", ""), run().replace("--gpus all", "--runtime=nvidia")),
    "SPKU20": (
        run().replace("-v /srv/hf:/root/.cache/huggingface", ""),
        run().replace("-v /srv/hf:/root/.cache/huggingface", "--mount type=bind,src=/srv,dst=/models"),
    ),
    "SPKU21": (run("-e", "HF_TOKEN=hf_abc"), run("-e", "HF_TOKEN", "-e", "MAX_TOKENS=4", "-e", "HF_TOKEN=$HF_TOKEN")),
    "SPKU22": (run("-p", "8001:8000"), run()),
    "SPKU23": (unit("http://127.0.0.1:8000/v1/completions", "http://127.0.0.1:8000/health"), unit()),
    "SPKU24": (unit("TimeoutStopSec=120", "TimeoutStopSec=60"), unit()),
    "SPKU25": (unit(" -e HF_HUB_OFFLINE=1"), unit(" -e HF_HUB_OFFLINE=1", " --env-file /etc/m.env")),
}


def rules(text: str) -> list[str]:
    return [finding["rule"] for finding in check_unit(text)]


def test_every_rule_has_both_cases() -> None:
    assert sorted(CASES) == [rule.id for rule in UNIT_RULES]


def test_what_is_right_is_not_called_wrong() -> None:
    assert rules(GOOD) == []
    assert rules(run()) == []


def test_a_policy_of_docker_alone_restarts_without_dropping_the_page_cache() -> None:
    assert rules(run("--restart=unless-stopped")) == ["SPKU02", "SPKU04"]


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires_alone(rule: str) -> None:
    finding = check_unit(CASES[rule][0])
    expected = next(candidate for candidate in UNIT_RULES if candidate.id == rule)
    assert [entry["rule"] for entry in finding] == [rule]
    assert (finding[0]["severity"], finding[0]["source"]) == (expected.severity, expected.source)
    assert finding[0]["fix"] and "{" not in finding[0]["message"].replace("{}", "")


@pytest.mark.parametrize("rule", CASES)
def test_rule_keeps_silent(rule: str) -> None:
    assert rule not in rules(CASES[rule][1])


@pytest.mark.parametrize("text", ["[Unit]\nwhat is this\n", "docker run 'open"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no systemd unit has|closing quotation"):
        check_unit(text)


def test_a_unit_is_read_as_systemd_reads_it() -> None:
    text = "[Service]\nExecStart=/bin/a \\\n  # in between\n  b\n; also one\nEnvironment=A=1\nExecStart=\nExecStart=/bin/c\n"
    read = read_unit(text)
    assert is_unit(text) and not is_unit("docker run a")
    assert read.sections["Service"][0] == ("ExecStart", "/bin/a b")
    assert read.all("Service", "ExecStart") == ["/bin/c"]
    assert (read.last("Service", "Environment"), read.last("Unit", "After")) == ("A=1", None)
    assert read.run is None


def test_a_docker_run_inside_a_shell_is_found() -> None:
    text = GOOD.replace(f"ExecStart={RUN} {IMAGE}", f"ExecStart=/bin/bash -c 'exec {RUN} --memory 9g {IMAGE}'")
    assert rules(text) == ["SPKU13"]


def test_a_docker_run_is_read_as_docker_reads_it() -> None:
    words = split_words(
        "sudo docker run -itd --rm=true -eA=1 -e B --env=C='x y' -p8000:8000 \\\n --gpus=all -v /a:/b:ro "
        "--mount type=bind,source=/c,target=/d repo/image:1 --model m  # the rest"
    )
    read = read_docker_run(words)
    assert read is not None
    assert (read.image, read.command) == ("repo/image:1", ["--model", "m"])
    assert read.env == {"A": "1", "B": None, "C": "x y"}
    assert read.mounts == [("/a", "/b"), ("/c", "/d")]
    assert [read.has(name) for name in ("--interactive", "--tty", "--detach", "--rm", "--init")] == [True] * 4 + [False]
    assert (read.values("--publish"), read.values("--gpus")) == (["8000:8000"], ["all"])
    assert read_docker_run(["docker", "ps"]) is None
    assert read_options(["--gpus"])[0].values("--gpus") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90.0),
        ("2s 3sec", 5.0),
        ("500ms", 0.5),
        ("15min 1m", 960.0),
        ("1h 30min", 5400.0),
        ("2hr", 7200.0),
        ("1d", 86400.0),
        ("infinity", None),
        ("5 fortnights", None),
    ],
)
def test_times_of_systemd(text: str, expected: float | None) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("TimeoutStartSec=3000", "TimeoutStartSec=1799", ["SPKU06"]),
        ("TimeoutStartSec=3000", "TimeoutStartSec=1800", []),
        ("TimeoutStartSec=3000", "TimeoutStartSec=1", ["SPKU06"]),
        ("TimeoutStartSec=3000", "TimeoutStartSec=0", []),  # no limit
        ("StartLimitIntervalSec=1800", "StartLimitIntervalSec=0", ["SPKU08"]),  # no limit
        ("StartLimitIntervalSec=1800", "StartLimitIntervalSec=90", ["SPKU08"]),  # 3 starts, 30 s apart
        ("StartLimitIntervalSec=1800", "StartLimitIntervalSec=91", []),
        ("TimeoutStopSec=120", "TimeoutStopSec=61", []),
        ("docker stop -t 60 m\nTimeoutStartSec=3000\nTimeoutStopSec=120", "docker stop -t 90 m", ["SPKU24"]),
        ("docker stop -t 60 m\nTimeoutStartSec=3000\nTimeoutStopSec=120", "docker stop -t 89 m", []),
        (
            "docker stop -t 60 m\nTimeoutStartSec=3000\nTimeoutStopSec=120",
            "docker stop m\nTimeoutStopSec=10",
            ["SPKU24"],
        ),
        ("docker stop -t 60 m\nTimeoutStartSec=3000\nTimeoutStopSec=120", "docker stop m\nTimeoutStopSec=11", []),
    ],
)
def test_times_at_the_bounds_of_rules(old: str, new: str, expected: list[str]) -> None:
    if "TimeoutStartSec" in old and "TimeoutStartSec" not in new:
        new += "\nTimeoutStartSec=3000"
    assert rules(unit(old, new)) == expected


def test_a_stop_timeout_is_half_a_minute_longer_than_docker_waits() -> None:
    (finding,) = check_unit(unit("TimeoutStopSec=120", "TimeoutStopSec=60"))
    assert finding["fix"] == "Set TimeoutStopSec to 90 or more."


def test_a_drop_that_may_fail_leaves_the_cache_where_it_is() -> None:
    """The unit does not fail then, so that it is no error."""
    for line, expected in (
        (f"User=me\nExecStartPre={DROP}\n", {"SPKU05"}),
        (f"User=me\nExecStartPre=-{DROP}\n", {"SPKU04"}),
        (f"User=me\nExecStartPre=+{DROP}\n", set()),
        (f"User=me\nPermissionsStartOnly=true\nExecStartPre=-{DROP}\n", set()),
    ):
        assert {"SPKU04", "SPKU05"} & set(rules(unit(f"ExecStartPre=+{DROP}\n", line))) == expected
    assert rules(run("--restart=no")) == []
