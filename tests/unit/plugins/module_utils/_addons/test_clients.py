# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients: checks of spark_clients, the connection to gateway and speech, and findings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import addons, clients, servers
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import endpoints
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import client_checks

ROOT = Path(__file__).resolve().parents[5]


def gateway(host: str = "spark-1", listen: str = "192.168.1.11", **more: Any) -> clients.Gateway:
    made: dict[str, Any] = {
        "host": host,
        "address": "192.168.1.11",
        "port": 4000,
        "listen": listen,
        "keyed": True,
        "models": {"writer": 131072, "reviewer": 32768},
        "waits": {},
        "clients": {},
        **more,
    }
    return made  # type: ignore[return-value]


def planned(
    value: Mapping[str, Any],
    host: str = "spark-1",
    fleet: list[endpoints.Endpoint] | None = None,
    gateways: Mapping[str, clients.Gateway] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    settings, messages = clients.read(host, value)
    assert messages == []
    known_gateways = {"spark-1": gateway()} if gateways is None else gateways
    outcome, findings = clients.plan(host, settings, fleet or [], known_gateways)
    return outcome, {finding.rule: finding.message + " " + finding.fix for finding in findings}


ADMIN = {"email": "ada@example.org", "password_file": "/keys/ada"}
PAGE = {"key_file": "/keys/ui", "admin": ADMIN}


# --- reading ------------------------------------------------------------------------------------------------------


def test_nothing_wanted_is_nothing_planned() -> None:
    assert clients.read("h", {}) == ({"open_webui": {}, "hermes": {}}, [])
    outcome, findings = planned({}, gateways={})
    assert (outcome, findings) == ({"open_webui": {}, "hermes": {}}, {})


def test_defaults_are_filled_in() -> None:
    settings, messages = clients.read("h", {"open_webui": None, "hermes": {}})
    assert messages == []
    assert settings["open_webui"]["port"] == 3000
    assert settings["hermes"]["port"] == 8642
    assert settings["open_webui"]["image"].rpartition(":")[2].startswith("v")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be a mapping with open_webui or hermes, not a list"),
        ({"open_web_ui": {}}, "did you mean 'open_webui'?"),
        ({"open_webui": {"prot": 1}}, "did you mean 'port'?"),
        ({"open_webui": {"port": 70000}}, "'port' is 70000"),
        ({"open_webui": {"auth": "no"}}, "'auth' is a text; it must be a boolean"),
        ({"open_webui": {"image": "Has Blank"}}, "'image' is 'Has Blank'"),
        ({"open_webui": {"data_dir": "relative"}}, "must be an absolute path"),
        ({"open_webui": {"data_dir": "/"}}, "'data_dir' is '/', which is not a separate folder"),
        ({"open_webui": {"data_dir": "/etc/dgxspark/secrets"}}, "/etc is the system's own"),
        ({"hermes": {"data_dir": "/var/lib"}}, "shared with others"),
        ({"hermes": {"data_dir": "/var/lib/dgxspark"}}, "where others of the collection have their folders"),
        ({"hermes": {"data_dir": "/home/ada"}}, "somebody's whole home"),
        ({"hermes": {"data_dir": "/srv/x/../../etc"}}, "must be an absolute path"),
        ({"hermes": {"install_dir": "/"}}, "'install_dir' is '/', which is not a separate folder"),
        ({"hermes": {"version": "../../x", "requirements_file": "/x"}}, "must be a release of hermes-agent"),
        ({"hermes": {"version": "1.0/2", "requirements_file": "/x"}}, "must be a release of hermes-agent"),
        ({"hermes": {"config": {"agent": {"max_turns": float("nan")}}}}, "'config'.agent.max_turns is nan"),
        ({"hermes": {"memory_gib": 1e-9}}, "from 0.01 to 1000000"),
        ({"open_webui": {"command": []}}, "'command' is empty"),
        ({"open_webui": {"env": {"OPENAI_API_KEY": "sk-1"}}}, "looks like a secret"),
        ({"open_webui": {"env": {"PORT": 8080}}}, "which 'port' is there for"),
        ({"open_webui": {"admin": {"email": "ada"}}}, "'admin.email' is 'ada'; it must be an e-mail address"),
        ({"open_webui": {"admin": {"email": "a@b"}}}, "'admin.password_file' is missing"),
        ({"open_webui": {"admin": {**ADMIN, "pasword": "x"}}}, "unknown key of admin: 'pasword'"),
        ({"open_webui": {"admin": ADMIN, "auth": False}}, "which has no accounts"),
        ({"open_webui": {"model_list_timeout": 0}}, "'model_list_timeout' is 0"),
        ({"hermes": {"version": "0.20.0"}}, "name it as requirements_file"),
        ({"hermes": {"config": {"model": "x"}}}, "'config' has 'model'"),
        ({"hermes": {"config": {"web": {"tavily_api_key": "tv-1"}}}}, "web.tavily_api_key"),
        ({"hermes": {"memory_gib": 0}}, "'memory_gib' is 0"),
        ({"hermes": {"toolsets": ["web", True]}}, "'toolsets' must be a list of texts"),
    ],
)
def test_what_is_malformed_is_told_with_its_place(value: Any, message: str) -> None:
    _settings, messages = clients.read("h", value)
    assert any(message in refusal for refusal in messages), messages
    assert all(message.startswith("host h, spark_clients") for message in messages)


def test_another_version_of_the_agent_needs_a_list_of_packages() -> None:
    _settings, messages = clients.read("h", {"hermes": {"version": "0.20.0", "requirements_file": "/lists/hermes.txt"}})
    assert messages == []


def test_the_role_has_the_list_of_the_default_version() -> None:
    lines = (ROOT / f"roles/clients/files/hermes-{clients.HERMES_LOCKED}.txt").read_text(encoding="utf-8").splitlines()
    assert f"hermes-agent=={clients.HERMES_LOCKED} \\" in lines
    assert any(line.startswith("aiohttp==") for line in lines), "the API server needs it"


def test_what_they_hold_is_kept_by_the_plan() -> None:
    settings, _messages = clients.read("h", {"open_webui": {"memory_gib": 2}})
    sidecars = addons.sidecars({**dict.fromkeys(addons.SUBJECTS), "clients": settings})
    assert sidecars == [{"name": "open-webui", "memory_gib": 2.0, "unit": "spark-open-webui.service", "idle": False}]


# --- Open WebUI ---------------------------------------------------------------------------------------------------


def test_page_beside_the_gateway() -> None:
    outcome, findings = planned({"open_webui": PAGE}, gateways={"spark-1": gateway(listen="127.0.0.1")})
    page = outcome["open_webui"]
    assert findings == {}
    assert page["env"]["OPENAI_API_BASE_URLS"] == "http://127.0.0.1:4000/v1"
    assert page["env"]["ENABLE_PERSISTENT_CONFIG"] == "false"
    assert page["env"]["ENABLE_SIGNUP"] == "false", "there is an administrator"
    assert page["after"] == ["spark-gateway.service"]
    assert page["models"] == ["reviewer", "writer"]
    assert page["url"] == "http://127.0.0.1:3000"


def test_page_on_another_host_takes_the_address_of_the_gateway() -> None:
    outcome, findings = planned({"open_webui": PAGE}, host="ui", gateways={"spark-1": gateway(listen="0.0.0.0")})
    assert outcome["open_webui"]["env"]["OPENAI_API_BASE_URLS"] == "http://192.168.1.11:4000/v1"
    assert outcome["open_webui"]["after"] == []
    assert findings == {}


def test_the_container_shares_the_host_network_and_shows_no_key() -> None:
    page = planned({"open_webui": PAGE})[0]["open_webui"]
    argv = page["argv"]
    assert argv[argv.index("--network") + 1] == "host"
    assert argv[-3:] == [page["image"], "bash", "start.sh"]
    assert argv[argv.index("--entrypoint") + 1] == servers.WITH_SECRETS
    assert not any("KEY" in name or "PASSWORD" in name for name in page["env"])
    keys = {secret["name"]: secret["parts"] for secret in page["secrets"]}
    assert keys == {
        "WEBUI_SECRET_KEY": [{"generated": True}],
        "OPENAI_API_KEYS": [{"controller": "/keys/ui"}],
        "WEBUI_ADMIN_PASSWORD": [{"controller": "/keys/ada"}],
    }


def test_a_gateway_on_loopback_of_another_host_is_an_error() -> None:
    _outcome, findings = planned({"open_webui": PAGE}, host="ui", gateways={"spark-1": gateway(listen="127.0.0.1")})
    assert list(findings) == ["clients.gateway_loopback"]
    assert "spark_gateway.listen of spark-1" in findings["clients.gateway_loopback"]


@pytest.mark.parametrize(
    ("more", "gateways", "message"),
    [
        ({}, {}, "no host of the inventory has a gateway"),
        ({}, {"spark-1": gateway(), "spark-2": gateway("spark-2")}, "2 hosts have a gateway, and none is named"),
        ({"gateway": "spark-3"}, {"spark-1": gateway()}, "did you mean 'spark-1'?"),
    ],
)
def test_no_gateway_that_it_could_mean(more: Any, gateways: dict[str, clients.Gateway], message: str) -> None:
    outcome, findings = planned({"open_webui": {**PAGE, **more}}, gateways=gateways)
    assert message in findings["clients.gateway"]
    assert outcome["open_webui"]["env"]["OPENAI_API_BASE_URLS"] == ""


def test_a_gateway_with_a_key_wants_one() -> None:
    _outcome, findings = planned({"open_webui": {"admin": ADMIN}})
    assert "401" in findings["clients.gateway_key"]
    outcome, findings = planned({"open_webui": {"admin": ADMIN}}, gateways={"spark-1": gateway(keyed=False)})
    assert findings == {}
    parts = {secret["name"]: secret["parts"] for secret in outcome["open_webui"]["secrets"]}
    assert parts["OPENAI_API_KEYS"] == [{"text": "none"}]


def test_who_may_come_in() -> None:
    assert "clients.first_account" in planned({"open_webui": {"key_file": "/k"}})[1]
    outcome, findings = planned({"open_webui": {"key_file": "/k", "auth": False}})
    assert (outcome["open_webui"]["listen"], findings) == ("127.0.0.1", {})
    assert "clients.open_door" in planned({"open_webui": {"key_file": "/k", "auth": False, "listen": "0.0.0.0"}})[1]
    assert "clients.persistent_config" in planned({"open_webui": {**PAGE, "persistent_config": True}})[1]


def test_tools_can_be_left_out_of_chats() -> None:
    assert "DEFAULT_MODEL_PARAMS" not in planned({"open_webui": PAGE})[0]["open_webui"]["env"]
    env = planned({"open_webui": {**PAGE, "tools": False}})[0]["open_webui"]["env"]
    assert json.loads(env["DEFAULT_MODEL_PARAMS"]) == {"function_calling": "legacy"}


def test_one_port_for_one_server() -> None:
    engine = endpoints.make("spark-1", "192.168.1.11", "heavy", "vllm", 3000, "0.0.0.0")
    _outcome, findings = planned({"open_webui": PAGE}, fleet=[engine])
    assert "spark-heavy.service" in findings["clients.port"]
    _outcome, findings = planned({"open_webui": {**PAGE, "port": 4000}})
    assert "spark-gateway.service" in findings["clients.port"]
    both = {"open_webui": {**PAGE, "port": 8642}, "hermes": {"key_file": "/k", "model": "writer"}}
    assert "spark-open-webui.service" in planned(both)[1]["clients.port"]
    elsewhere = endpoints.make("spark-2", "192.168.1.12", "heavy", "vllm", 3000, "0.0.0.0")
    assert planned({"open_webui": PAGE}, fleet=[elsewhere])[1] == {}


def test_a_client_that_the_gateway_knows_by_name_has_its_key_and_sees_its_models() -> None:
    access = gateway(clients={"open-webui": {"key_file": "/keys/by-name", "models": ["writer"]}})
    page = planned({"open_webui": {"admin": ADMIN}}, gateways={"spark-1": access})[0]["open_webui"]
    assert page["models"] == ["writer"]
    assert page["secrets"][1]["parts"] == [{"controller": "/keys/by-name"}]
    page = planned({"open_webui": PAGE}, gateways={"spark-1": access})[0]["open_webui"]
    assert page["models"] == ["reviewer", "writer"], "another key was given"


WAITS: dict[str, clients.Waits] = {
    "writer": {"answer": 3540, "silent": 2340},
    "reviewer": {"answer": 1800, "silent": 600},
}


def test_clients_wait_as_long_as_the_gateway_does() -> None:
    slow = {"spark-1": gateway(models={"writer": 1_100_000, "reviewer": 131072}, waits=WAITS)}
    page = planned({"open_webui": PAGE}, gateways=slow)[0]["open_webui"]
    assert page["env"]["AIOHTTP_CLIENT_TIMEOUT"] == "3540"
    agent = {"key_file": "/keys/h", "api_key_file": "/keys/a"}
    variables = {
        model: planned({"hermes": {**agent, "model": model}}, gateways=slow)[0]["hermes"]["config"]["providers"][
            "dgxspark"
        ]
        for model in WAITS
    }
    assert (
        variables["writer"]["request_timeout_seconds"] == 3540 and variables["writer"]["stale_timeout_seconds"] == 2340
    )
    assert (
        variables["reviewer"]["request_timeout_seconds"] == 1800
        and variables["reviewer"]["stale_timeout_seconds"] == 600
    )
    # What a person sets counts; and one key may not use the slow model.
    page = planned({"open_webui": {**PAGE, "request_timeout": 99}}, gateways=slow)[0]["open_webui"]
    assert page["env"]["AIOHTTP_CLIENT_TIMEOUT"] == "99"
    keys = {"open-webui": {"key_file": "/keys/ui", "models": ["reviewer"]}}
    few = {"spark-1": gateway(models={"writer": 1_100_000, "reviewer": 131072}, waits=WAITS, clients=keys)}
    page = planned({"open_webui": PAGE}, gateways=few)[0]["open_webui"]
    assert page["models"] == ["reviewer"] and page["env"]["AIOHTTP_CLIENT_TIMEOUT"] == "1800"


# --- speech -------------------------------------------------------------------------------------------------------


def speech_server(kind: str, host: str, listen: str, **more: Any) -> endpoints.Endpoint:
    return endpoints.make(host, "192.168.1.12", f"{kind}-1", kind, 8765, listen, models=[f"{kind}-model"], **more)


def test_speech_of_the_own_host_is_taken_before_that_of_others() -> None:
    fleet = [speech_server("asr", "spark-2", "0.0.0.0"), speech_server("asr", "spark-1", "127.0.0.1")]
    env = planned({"open_webui": PAGE}, fleet=fleet)[0]["open_webui"]["env"]
    assert env["AUDIO_STT_ENGINE"] == "openai"
    assert env["AUDIO_STT_MODEL"] == "asr-model"
    assert env["AUDIO_STT_OPENAI_API_BASE_URL"] == "http://127.0.0.1:8765/v1"
    assert not any(name.startswith("AUDIO_TTS") for name in env)


def test_speech_with_its_own_key() -> None:
    fleet = [speech_server("tts", "spark-2", "192.168.1.12", api_key_file="/keys/tts")]
    page = planned({"open_webui": {**PAGE, "voice": "nova"}}, fleet=fleet)[0]["open_webui"]
    assert page["env"]["AUDIO_TTS_OPENAI_API_BASE_URL"] == "http://192.168.1.12:8765/v1"
    assert page["env"]["AUDIO_TTS_VOICE"] == "nova"
    assert page["secrets"][-1]["parts"] == [{"controller": "/keys/tts"}]


def test_speech_by_the_gateway_where_it_has_the_model() -> None:
    fleet = [speech_server("tts", "spark-2", "127.0.0.1")]
    access = gateway(models={"writer": None, "tts-model": None})
    page = planned({"open_webui": PAGE}, fleet=fleet, gateways={"spark-1": access})[0]["open_webui"]
    assert page["env"]["AUDIO_TTS_OPENAI_API_BASE_URL"] == "http://192.168.1.11:4000/v1"
    assert page["secrets"][-1]["parts"] == [{"controller": "/keys/ui"}]


def test_speech_that_cannot_be_reached_is_told_and_left_out() -> None:
    fleet = [speech_server("asr", "spark-2", "127.0.0.1")]
    outcome, findings = planned({"open_webui": PAGE}, fleet=fleet)
    assert "spark-2/asr-1" in findings["clients.speech_loopback"]
    assert "AUDIO_STT_ENGINE" not in outcome["open_webui"]["env"]
    assert planned({"open_webui": {**PAGE, "speech": False}}, fleet=fleet)[1] == {}


# --- Hermes -------------------------------------------------------------------------------------------------------


def test_agent_with_a_page_beside_it() -> None:
    value = {"open_webui": PAGE, "hermes": {"key_file": "/keys/agent", "model": "writer"}}
    outcome, findings = planned(value)
    agent, page = outcome["hermes"], outcome["open_webui"]
    assert findings == {}
    assert agent["config"]["model"] == {
        "default": "writer",
        "provider": "custom:dgxspark",
        "context_length": 131072,
    }
    provider = agent["config"]["providers"]["dgxspark"]
    assert provider["base_url"] == "http://192.168.1.11:4000/v1"
    assert provider["key_env"] == agent["secrets"][0]["name"]
    assert "platform_toolsets" not in agent["config"]
    assert page["env"]["OPENAI_API_BASE_URLS"] == "http://192.168.1.11:4000/v1;http://127.0.0.1:8642/v1"
    keys = next(secret for secret in page["secrets"] if secret["name"] == "OPENAI_API_KEYS")
    assert keys["parts"] == [{"controller": "/keys/ui"}, {"host": agent["secrets"][1]["path"]}]
    assert page["models"] == ["reviewer", "writer", "hermes-agent"]
    assert "spark-hermes.service" in page["after"]
    value["open_webui"] = {**PAGE, "agents": False}
    assert planned(value)[0]["open_webui"]["env"]["OPENAI_API_BASE_URLS"] == "http://192.168.1.11:4000/v1"


def test_the_model_of_the_agent() -> None:
    assert "has 2" in planned({"hermes": {"key_file": "/k"}})[1]["clients.model"]
    gateways = {"spark-1": gateway(models={"writer": None})}
    outcome, findings = planned({"hermes": {"key_file": "/k"}}, gateways=gateways)
    assert (outcome["hermes"]["model"], findings) == ("writer", {})
    assert "aliases: reviewer, writer" in planned({"hermes": {"key_file": "/k", "model": "big"}})[1]["clients.model"]
    small = planned({"hermes": {"key_file": "/k", "model": "reviewer"}})[1]
    assert "32768 tokens" in small["clients.context"]


def test_an_agent_that_others_reach_is_told_of() -> None:
    value = {"hermes": {"key_file": "/k", "model": "writer", "listen": "0.0.0.0", "toolsets": ["web"]}}
    outcome, findings = planned(value)
    assert "runs commands on spark-1 as spark-hermes" in findings["clients.agent_exposed"]
    assert outcome["hermes"]["config"]["platform_toolsets"] == {"api_server": ["web"]}
    assert outcome["hermes"]["url"] == "http://127.0.0.1:8642"


def test_further_settings_win_leaf_by_leaf() -> None:
    value = {"hermes": {"key_file": "/k", "model": "writer", "config": {"security": {"tirith_enabled": True}}}}
    assert planned(value)[0]["hermes"]["config"]["security"] == {"allow_lazy_installs": False, "tirith_enabled": True}


# --- the helper on the host ---------------------------------------------------------------------------------------


class Page(BaseHTTPRequestHandler):
    """What the helper asks of Open WebUI 0.12.4 and of an OpenAI server, with the answers that these give."""

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "")
        if self.path == "/health":
            self.answer(200, {"status": True})
        elif self.path == "/api/models":
            self.answer(*((200, {"data": [{"id": "writer"}]}) if token == "Bearer t0k" else (401, {})))
        elif self.path == "/v1/models":
            self.answer(*((200, {"data": [{"id": "reviewer"}]}) if token == "Bearer sk-1" else (401, {})))
        else:
            self.answer(503, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = body == {"email": "ada@example.org", "password": "s3cret"}
        self.answer(*((200, {"token": "t0k"}) if right else (400, {"detail": "wrong"})))

    def answer(self, code: int, body: Any) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_helper_lists_models_as_a_user_and_by_key(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text("sk-1;sk-2\n", encoding="utf-8")
    (tmp_path / "password").write_text("s3cret\n", encoding="utf-8")
    account = ["--email", "ada@example.org", "--password-file", str(tmp_path / "password")]
    assert client_checks.main(["ready", page, "--seconds", "5"]) == 0
    assert client_checks.main(["models", page, *account, "--expect", "writer", "--seconds", "5"]) == 0
    assert json.loads(capsys.readouterr().out) == {"models": ["writer"]}
    assert client_checks.main(["models", page, "--key-file", str(tmp_path / "keys"), "--expect=reviewer"]) == 0
    assert json.loads(capsys.readouterr().out) == {"models": ["reviewer"]}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--key-file", "KEY", "--expect", "writer", "--seconds", "0"], "lists reviewer, but not writer"),
        (["--key-file", "WRONG", "--seconds", "60"], "401"),
        (["--email", "ada@example.org", "--password-file", "WRONG", "--seconds", "60"], "account or password"),
    ],
)
def test_helper_says_what_is_wrong(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    (tmp_path / "KEY").write_text("sk-1", encoding="utf-8")
    (tmp_path / "WRONG").write_text("sk-none", encoding="utf-8")
    argv = [str(tmp_path / word) if word in ("KEY", "WRONG") else word for word in more]
    assert client_checks.main(["models", page, *argv]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "sk-" not in error


def test_helper_gives_up_on_what_is_not_ready(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert client_checks.main(["ready", page, "--path", "/ready", "--seconds", "0"]) == 1
    assert "503" in capsys.readouterr().err
