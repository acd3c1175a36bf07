# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real LiteLLM under load: a backend is drained, restarted and admitted, and the configuration changed, and no request fails."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_site import Site, needs_litellm, until

pytestmark = needs_litellm


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.write()
        for name in ("heavy", "fast"):
            site.start_backend(name)
        site.serve()
        yield site
    finally:
        site.end()


def test_keys_open_what_they_are_for(site: Site) -> None:
    assert site.get(f"{site.url}/health/readiness")[0] == 200
    assert site.get(f"{site.url}/v1/models")[0] == 401
    assert site.get(f"{site.url}/v1/models", "key of hermez")[0] == 401
    names = {entry["id"] for entry in json.loads(site.get(f"{site.url}/v1/models", "key of master")[1])["data"]}
    assert names == {"both", "ordered", "only", "heavy", "fast"}
    names = {entry["id"] for entry in json.loads(site.get(f"{site.url}/v1/models", "key of hermes")[1])["data"]}
    assert names == {"only"}
    assert site.ask("only", "key of hermes")[0] == 200


def test_paths_and_bodies_that_are_refused(site: Site) -> None:
    for path in ("chat/completions", "messages"):
        assert site.ask("both", "key of hermes", path)[0] == 403
        assert site.ask("both", "key of master", path)[0] == 200
    status, text = site.ask("nothing")
    assert status in (400, 404) and "nothing" in text
    # LiteLLM's management paths need a database, which the gateway does not have.
    for path in ("key/generate", "model/new", "config/yaml", "ui", "routes", "health", "v1/files", ""):
        assert site.get(f"{site.url}/{path}", "key of master")[0] == 404, path
    size = 65 * 1024 * 1024
    status, text = site.get(f"{site.url}/v1/chat/completions", "key of master", "x" * size)
    assert status in (0, 413), text


def test_metrics_name_backends_and_clients_and_no_key(site: Site) -> None:
    assert site.ask("only", "key of hermes")[0] == 200
    lines = ['dgxspark_gateway_backend_healthy{backend="spark-1/heavy"} 1.0', 'api_key_alias="hermes"']
    text = until(
        lambda: next((t for t in [site.get(f"{site.url}/metrics")[1]] if all(w in t for w in lines)), ""), "metrics"
    )
    assert "key of" not in text and "key-of" not in text
    assert "litellm_deployment_success_responses_total{" in text
    environment = Path(f"/proc/{site.programs['gateway'].pid}/environ").read_bytes()
    assert b"key of" not in environment and b"key-of" not in environment


def test_what_a_run_left_drained_is_admitted_by_the_next(site: Site) -> None:
    """A start took longer than the run waited for: the backend came up, and nobody had it admitted."""
    site.helper("drain", "spark-1/heavy")
    site.stop("heavy")
    settled = site.helper("ready", site.url, "--admit")
    assert not settled["changed"] and settled["left"]["spark-1/heavy"].startswith("it does not answer: ")
    assert site.helper("status")["backends"]["spark-1/heavy"]["drained_since"]
    site.start_backend("heavy")
    settled = site.helper("ready", site.url, "--admit")
    assert settled["changed"] and settled["admitted"] == ["spark-1/heavy"] and settled["left"] == {}
    assert site.ask("only")[0] == 200
    assert not site.helper("ready", site.url, "--admit")["changed"]


@pytest.mark.nightly
def test_with_two_backends_one_is_restarted_and_no_request_fails_or_waits(site: Site) -> None:
    waited = site.waited()
    with site.load("both", "ordered") as result:
        until(lambda: site.helper("status")["backends"]["spark-1/heavy"]["running"] >= 50, "work for both")
        drained = site.helper("drain", "spark-1/heavy")
        assert drained["changed"] and drained["drained"] == ["spark-1/heavy"]
        before = site.count("fast")
        site.stop("heavy")
        # As many as there are clients.
        until(lambda: site.count("fast") >= before + 200, "work for the other backend")
        site.start_backend("heavy")
        assert site.count("heavy") == 0
        assert site.helper("admit", "spark-1/heavy")["changed"]
        until(lambda: site.count("heavy") > 50, "work for the backend that is back")
    assert result[0]["failed"] == 0, result
    assert result[0]["most_under_way"] == 200
    assert site.waited() == waited


def test_with_one_backend_all_requests_wait_while_it_is_restarted_and_none_fails(site: Site) -> None:
    waited = site.waited()
    with site.load("only") as result:
        until(lambda: site.helper("status")["backends"]["spark-1/heavy"]["running"] >= 50, "work")
        assert site.helper("drain", "spark-1/heavy")["changed"]
        site.stop("heavy")
        until(lambda: site.helper("status")["queued"] == 200, "the queue")
        assert site.helper("drain", "spark-1/heavy")["changed"] is False
        site.start_backend("heavy")
        assert site.count("heavy") == 0
        assert site.helper("admit", "spark-1/heavy")["changed"]
        until(lambda: site.count("heavy") >= 200, "answers to those that waited")
    assert result[0]["failed"] == 0, result
    assert result[0]["most_under_way"] == 200
    assert site.waited() >= waited + 200
    assert site.helper("status")["queued"] == 0


def taken_over(site: Site, clients: int, *new: str) -> None:
    """Give the gateway further aliases while clients ask; each alias is new to it or there already."""
    before = site.helper("status")["supervisor"]
    with site.load("both", "only", clients=clients) as result:
        time.sleep(2)
        aliases = {"both": "spark-2/fast", "ordered": ["spark-1/heavy", "spark-2/fast"], "only": "spark-1/heavy"}
        assert site.helper("status")["stale"] == ""
        site.write(serve="none", aliases={**aliases, **dict.fromkeys(new, "spark-2/fast")}, queue_seconds=3)
        assert site.helper("status")["stale"] == "reload"
        done = site.reload()
        assert site.helper("status")["stale"] == ""
        assert done["generation"] > before["generation"]
        # The one before goes once its last stream has ended; the load goes on until then.
        until(lambda: not site.helper("status")["supervisor"]["leaving"], "the end of the process before")
    assert result[0]["failed"] == 0, result
    assert result[0]["most_under_way"] == clients
    names = {entry["id"] for entry in json.loads(site.get(f"{site.url}/v1/models", "key of master")[1])["data"]}
    assert names == {"both", "ordered", "only", *new}


def test_a_configuration_is_taken_over_while_clients_ask(site: Site) -> None:
    taken_over(site, 2, "new")


@pytest.mark.nightly
def test_a_configuration_is_taken_over_under_load(site: Site) -> None:
    taken_over(site, 200, "new", "newer")


def test_a_configuration_that_litellm_refuses_changes_nothing(site: Site) -> None:
    (site.config / "gateway.json").write_text("{", encoding="utf-8")
    error = site.reload(fails=True)
    assert "was not taken over" in error and "did not start" in error
    assert site.ask("new")[0] == 200
    site.write()  # for the helper; the gateway continues with its configuration


def test_a_stream_that_is_silent_gets_comments_before_its_first_token(site: Site) -> None:
    """An engine that reads a long prompt sends nothing; what counts the bytes of a connection must not take it for dead."""
    site.write(keepalive_seconds=1)
    site.reload()
    lines = site.stream("only", "prefill 5")
    first = next(at for at, line in lines if line.startswith("data: "))
    comments = [at for at, line in lines if line.startswith(":") and at < first]
    assert first >= 5 and len(comments) >= 3 and comments[0] < 3, lines
    assert lines[-1][1] == "data: [DONE]" and "heavy1" in str(lines)
    # A stream without pauses has no comments.
    assert not [line for _at, line in site.stream("only", "Hello") if line.startswith(":")]


@pytest.mark.nightly
def test_each_model_has_a_limit_of_its_own(site: Site) -> None:
    """A short timeout of one backend does not change the others, so that long prompts have enough time."""
    site.write(keepalive_seconds=0, retries=0)
    path = site.config / "litellm.yaml"
    config = json.loads(path.read_text(encoding="utf-8"))
    for entry in config["model_list"]:
        if entry["model_info"]["backend"] == "spark-2/fast":
            entry["litellm_params"].update(timeout=2, stream_timeout=2)
    path.write_text(json.dumps(config), encoding="utf-8")
    site.reload()
    at, line = site.stream("fast", "prefill 15")[-1]
    assert line.startswith("HTTP 408") and at < 10, (at, line)  # LiteLLM tries it more than once
    assert site.stream("heavy", "prefill 10")[-1][1] == "data: [DONE]"
    site.write()
    site.reload()


def test_a_backend_that_is_gone_costs_no_request(site: Site) -> None:
    """Nobody has drained it: requests go elsewhere before their first token, and later ones are not sent there at all."""
    until(lambda: not site.helper("status")["backends"]["spark-1/heavy"]["wrong"], "a healthy backend")
    site.stop("heavy")
    with site.load("ordered", clients=20) as result:
        until(lambda: site.helper("status")["backends"]["spark-1/heavy"]["wrong"], "the backend put aside")
        site.start_backend("heavy")
        until(lambda: not site.helper("status")["backends"]["spark-1/heavy"]["wrong"], "the backend back")
        until(lambda: site.count("heavy") > 20, "work for it")
    assert result[0]["failed"] == 0, result


@pytest.mark.nightly
def test_who_waits_for_ever_is_told_and_who_has_gone_is_forgotten(site: Site) -> None:
    site.write(queue_seconds=3)
    site.reload()
    site.helper("drain", "spark-1/heavy")
    status, text = site.ask("only")
    assert status == 503 and "drained" in text and "spark-1/heavy" in text
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        body = json.dumps({"model": "only", "messages": [{"role": "user", "content": "Hello"}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key of master\r\ncontent-length: {len(body)}"
        client.sendall(f"{head}\r\ncontent-type: application/json\r\n\r\n{body}".encode())
        until(lambda: site.helper("status")["queued"] == 1, "the one that waits")
    until(lambda: site.helper("status")["queued"] == 0, "the end of its waiting")
    error = site.helper("drain", "spark-1/hevy", fails=True)
    assert "did you mean spark-1/heavy?" in error
    site.helper("admit", "spark-1/heavy")
    assert site.ask("only")[0] == 200
