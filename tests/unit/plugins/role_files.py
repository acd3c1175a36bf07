# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of add-on services: the contents of the documents of their roles, and checks of these files against the plan."""

from __future__ import annotations

import atexit
import json
import re
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.dgxspark.vllm.plugins.plugin_utils import addon_documents

ROOT = Path(__file__).parents[3]


@cache
def _made(role: str, planned: str) -> tuple[dict[str, Any], ...]:
    return tuple(addon_documents.addon_document(role, json.loads(planned), {}).to_dict()["files"])


def files(role: str, planned: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files that a role is to put on a host.

    :param role: one of C(addon_documents.ROLES)
    :param planned: the part of the plan for this role; results are cached
    """
    return list(_made(role, json.dumps(planned, sort_keys=True)))


# --- checks of the files ------------------------------------------------------------------------------------------------


def settings_of(unit: str) -> list[tuple[str, str, str]]:
    """Return section, key and value of each setting of a unit; a line that is neither one, a section nor a comment fails."""
    settings, section = [], ""
    for line in re.sub(r"\\\n[ \t]*", " ", unit).split("\n"):
        if re.fullmatch(r"\[[A-Z][A-Za-z]+\]", line):
            section = line[1:-1]
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert section and equals and re.fullmatch(r"[A-Z][A-Za-z]+", key), line
            settings.append((section, key, value))
    return settings


ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[\\\"'ntr])")


def command_of(unit: str) -> list[str]:
    """Read ExecStart= of a unit as systemd.syntax(7) and systemd.service(5) say; strictly: unknown syntax fails."""
    (line,) = [value for _section, key, value in settings_of(unit) if key == "ExecStart"]
    return words_of(line)


def words_of(line: str) -> list[str]:
    """Read a command line of a unit, as C(command_of) does."""
    words = []
    remaining = line.strip(" ")
    while remaining:
        if remaining.startswith('"'):
            match = re.match(r'"((?:[^"\\]|\\.)*)"(?= |$)', remaining)
            assert match, remaining[:80]
            body = match[1]
            assert not re.search(r"\\", ESCAPE.sub("", body)), body
            word = ESCAPE.sub(
                lambda seen: (
                    chr(int(seen[1][1:], 16))
                    if seen[1][0] == "x"
                    else {"n": "\n", "t": "\t", "r": "\r"}.get(seen[1], seen[1])
                ),
                body,
            )
        else:
            match = re.match(r"[^ \"'\\;]+(?= |$)", remaining)
            assert match, remaining[:80]
            word = match[0]
        assert not re.search(r"%(?!%)", word.replace("%%", "")) and not re.search(r"\$", word.replace("$$", "")), word
        words.append(word.replace("%%", "%").replace("$$", "$"))
        remaining = remaining[match.end() :].lstrip(" ")
    return words


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LOOPED = {"ExecStartPre", "Environment"}
"""Settings of which a template may write several by a list of the plan; of all others as many as it says itself."""
_PLAIN = re.compile(r"[^\x00-\x1f\x7f%$\"'\\ ]+")
"""A value that systemd takes as it stands, as one word."""
_DURATION = re.compile(r"[1-9][0-9]*s")
_MEMORY = re.compile(r"[1-9][0-9]{0,9}[mM]")


def _yaml(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)  # one of the two safe ones


def check(addons: dict[str, Any]) -> None:
    """Make the files that roles put on a host for its add-on services, and compare them with the plan."""
    for role in CHECKS:
        if addons.get(role):
            _check(role, json.dumps(addons[role], allow_nan=False))


@cache
def _check(role: str, planned: str) -> None:
    """Cached, because most cases change one role of many."""
    plan = json.loads(planned)
    secrets = with_keys(plan)
    made = {file["path"]: file for file in files(role, plan)}
    for path, file in made.items():
        assert re.fullmatch(r"(/[\w.@-]+)+", path) and "/../" not in path, path
        if file.get("secret"):
            assert "/secrets/" in path and int(file["mode"], 8) & 0o022 == 0, file
        elif "content" in file:
            assert not [secret for secret in secrets if secret in file["content"]], path
            file["content"].encode()
        if path.endswith((".service", ".timer")):
            check_unit(role, path, file["content"])
    CHECKS[role](plan, made)


def with_keys(planned: dict[str, Any]) -> list[str]:
    """Have clients find keys and lists on this controller; returns the keys."""
    lines = []
    for client in planned.values():
        if isinstance(client, dict) and client.get("requirements_file"):
            client["requirements_file"] = str(_key_file("hermes-agent==1\n"))
        for secret in client.get("secrets", ()) if isinstance(client, dict) else ():
            for part in secret["parts"]:
                if "host" not in part and "text" not in part:
                    key = f"secret-of-{secret['name']}-{{{{ 7 * 7 }}}}"
                    part.clear()
                    part["controller"] = str(_key_file(key))
                    lines.append(key)
    return lines


@cache
def _folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="role-files-")
    atexit.register(made.cleanup)
    return Path(made.name)


@cache
def _key_file(text: str) -> Path:
    path = _folder() / f"key-{len(list(_folder().iterdir()))}"
    path.write_text(text, encoding="utf-8")
    return path


@cache
def _template(role: str, name: str) -> list[tuple[str, str, str]]:
    # A unit that several roles share has its template in one of them.
    folders = [ROOT / "roles" / role, *sorted((ROOT / "roles").iterdir())]
    path = next(path for folder in folders if (path := folder / "templates" / f"{name}.j2").is_file())
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\{% else %\}.*?(?=\{% endif)", "", text, flags=re.DOTALL)
    text = re.sub(r"\{#.*?#\}\n?|\{%.*?%\}\n?", "", text, flags=re.DOTALL)
    return settings_of(re.sub(r"\{\{.*?\}\}", "x", text, flags=re.DOTALL))


def check_unit(role: str, path: str, text: str) -> None:
    """A unit has the settings that its template has, each as often, and its commands are read as words."""
    text.encode()
    unit_settings = settings_of(text)
    template = _template(role, Path(path).name)

    def counted(settings: list[tuple[str, str, str]]) -> Counter[tuple[str, str]]:
        return Counter((section, key) for section, key, _value in settings if key not in _LOOPED)

    assert counted(unit_settings) == counted(template), path
    assert {key for _section, key, _value in unit_settings} <= {key for _section, key, _value in template}, path
    assert [section for section, _key, _value in unit_settings] == sorted(
        (section for section, _key, _value in unit_settings), key=["Unit", "Service", "Timer", "Install"].index
    )
    for _section, key, value in unit_settings:
        if key.startswith("Exec"):
            assert value == "/bin/kill -HUP $MAINPID" or words_of(value.lstrip("+-"))[0].startswith("/"), value
        elif key == "Environment":
            assert _PLAIN.fullmatch(value), value
        elif key != "Description":
            assert not value or all(_PLAIN.fullmatch(word) for word in value.strip(" ").split(" ")), value
        else:
            assert "%" not in value, value


def _words(made: dict[str, dict[str, Any]], unit: str) -> list[str]:
    return command_of(made[f"/etc/systemd/system/{unit}.service"]["content"])


def _environment(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.split("\n") if line and not line.startswith("#"))


def _image(words: list[str], image: str) -> list[str]:
    """Return what follows the image in a docker run; it stands where Docker reads an image, not an option."""
    place = words.index(image)
    assert image and not image.startswith("-"), image
    (memory,) = [words[index + 1] for index in range(place) if words[index] == "--memory"] or ["1m"]
    assert _MEMORY.fullmatch(memory), memory
    return words[place + 1 :]


def _gateway(planned: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
    assert _yaml(made["/etc/dgxspark/gateway/litellm.yaml"]["content"]) == planned["config"]
    assert json.loads(made["/etc/dgxspark/gateway/gateway.json"]["content"]) == planned["settings"]
    program = _image(_words(made, "spark-gateway"), planned["image"])
    assert program[1:5] == ["--listen", planned["listen"], "--port", str(planned["port"])]


def _clients(planned: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
    for client in (planned["hermes"], planned["open_webui"]):
        for secret in client.get("secrets", ()):
            parts = [
                made[part["host"]]["content"]
                if "host" in part
                else Path(part["controller"]).read_text(encoding="utf-8")
                if "controller" in part
                else part["text"]
                for part in secret["parts"]
            ]
            assert made[secret["path"]]["content"] == ";".join(parts)
            assert made[secret["path"]]["secret"] and made[secret["path"]]["mode"] == "0600"
    if page := planned["open_webui"]:
        assert _environment(made[page["env_file"]]["content"]) == page["env"]
        assert _words(made, "spark-open-webui") == page["argv"]
        _image(page["argv"], page["image"])
    if agent := planned["hermes"]:
        assert _yaml(made["/etc/dgxspark/hermes/config.yaml"]["content"]) == agent["config"]
        assert _environment(made["/etc/dgxspark/hermes/.env"]["content"]) == agent["env"]
        unit = settings_of(made["/etc/systemd/system/spark-hermes.service"]["content"])
        values = [(key, value) for _section, key, value in unit]
        folder = agent["data_dir"]
        for setting in (("WorkingDirectory", folder), ("ReadWritePaths", folder), ("Environment", f"HOME={folder}")):
            assert setting in values
        assert _MEMORY.fullmatch(dict(values)["MemoryMax"])
        environment = Path(_words(made, "spark-hermes")[1]).parent.parent
        assert environment.parent == Path(agent["install_dir"]), environment


def _exporters(planned: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
    settings = json.loads(made["/etc/dgxspark/agent/exporters.json"]["content"])
    same = ("planned_gib", "rails", "interval", "textfile_dir")
    assert {key: settings[key] for key in same} == {key: planned[key] for key in same}
    drop_in = settings_of(made["/etc/systemd/system/spark-agent.service.d/exporters.conf"]["content"])
    assert ("Service", "ReadWritePaths", f"-{planned['textfile_dir']}") in drop_in
    assert ("/etc/systemd/system/spark-node-exporter.service" in made) == (planned["node_exporter"] == "managed")
    assert ("/etc/systemd/system/spark-gpu-exporter.service" in made) == planned["gpu_exporter"]
    listening = r"--web\.listen-address=(\[[0-9a-fA-F:.]+\]|[\w.-]+):"
    if planned["node_exporter"] == "managed":
        node = _words(made, "spark-node-exporter")
        assert node[-1] == f"--collector.textfile.directory={planned['textfile_dir']}"
        assert re.fullmatch(f"{listening}{planned['node_port']}", node[1]), node
    if planned["gpu_exporter"]:
        gpu = _words(made, "spark-gpu-exporter")
        assert gpu[0] == f"/usr/local/libexec/dgxspark/nvidia_gpu_exporter-{planned['gpu_version']}"
        assert re.fullmatch(f"{listening}{planned['gpu_port']}", gpu[1]), gpu


def _monitoring(planned: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
    folder = "/etc/dgxspark/monitoring"
    settings = _yaml(made[f"{folder}/prometheus.yml"]["content"])
    assert [(scrape["job_name"], scrape["metrics_path"]) for scrape in settings["scrape_configs"]] == [
        (job["name"], job["path"]) for job in planned["jobs"]
    ]
    assert all(_DURATION.fullmatch(value) for value in settings["global"].values()), settings["global"]
    for job in planned["jobs"]:
        assert json.loads(made[f"{folder}/targets/{job['name']}.json"]["content"]) == job["targets"]
    words = _words(made, "spark-prometheus")
    options = dict(word.split("=", 1) for word in words[1:])
    assert options["--storage.tsdb.retention.time"] == planned["retention"]
    assert options.get("--web.external-url", "") == planned["external_url"]
    assert _names(made[f"{folder}/rules.yml"]["content"]) == _names(_usual_rules())
    if planned["alertmanager"]:
        alertmanager = _yaml(made[f"{folder}/alertmanager.yml"]["content"])
        assert [receiver["name"] for receiver in alertmanager["receivers"]][-len(planned["receivers"]) or 1 :] == [
            receiver["name"] for receiver in planned["receivers"]
        ]
    if planned["grafana"] == "image":
        assert _image(_words(made, "spark-grafana"), planned["grafana_image"]) == []
        (source,) = _yaml(made[f"{folder}/grafana/datasources/dgxspark.yml"]["content"])["datasources"]
        assert source["url"].endswith(f":{planned['prometheus_port']}")
        assert _DURATION.fullmatch(source["jsonData"]["timeInterval"])
    if planned["grafana"] == "package":
        dropin = settings_of(made["/etc/systemd/system/grafana-server.service.d/dgxspark.conf"]["content"])
        assert {section for section, _key, _value in dropin} == {"Service"}
        assert f"GF_SERVER_HTTP_ADDR={planned['listen']}" in [value for _section, _key, value in dropin]


@cache
def _names(text: str) -> tuple[tuple[str, str], ...]:
    rules = _yaml(text)
    return tuple(
        (group["name"], rule.get("alert") or rule["record"]) for group in rules["groups"] for rule in group["rules"]
    )


@cache
def _usual_rules() -> str:
    text = (ROOT / "roles/monitoring/templates/rules.yml.j2").read_text(encoding="utf-8")
    return re.sub(r"\[\[.*?\]\]", "1", text)


def _fleet_monitor(planned: dict[str, Any], made: dict[str, dict[str, Any]]) -> None:
    assert json.loads(made["/etc/dgxspark/fleet_monitor/settings.json"]["content"]) == planned["settings"]
    # Its timer keeps the unit loaded, and so systemd's count of starts: the sixth within 10 s would be refused.
    assert "StartLimitIntervalSec=0" in made["/etc/systemd/system/spark-fleet-monitor.service"]["content"].splitlines()
    timer = settings_of(made["/etc/systemd/system/spark-fleet-monitor.timer"]["content"])
    assert ("Timer", "OnUnitActiveSec", f"{planned['every_minutes']}min") in timer
    if planned["page"]:
        page = json.loads(made["/etc/dgxspark/fleet_monitor/status-page.json"]["content"])
        assert {key: page[key] for key in planned["page"]} == planned["page"]
        unit = settings_of(made["/etc/systemd/system/spark-status-page.service"]["content"])
        assert ("Service", "DynamicUser", "true") in unit


CHECKS = {
    "gateway": _gateway,
    "clients": _clients,
    "exporters": _exporters,
    "monitoring": _monitoring,
    "fleet_monitor": _fleet_monitor,
}
