# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies on a host for a plan: folders, files and units as the module component takes them, written as systemd reads them.

A text of a plan reaches a file as it is: it is put there by Python, with the quotes of the file's own format, and nothing reads it on
the way. Nothing is read from a host and nothing is done here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._common.plain_data import CONTROL, NO_TEXT
from .._runtime import hostmem, ranks
from .on_demand import PROXY_GIB
from .on_demand import STATE as ON_DEMAND
from .planned import File, PlannedService, RankSettings, plain

LIBEXEC = "/usr/local/libexec/dgxspark"
LIBRARY = f"{LIBEXEC}/dgxspark_vllm"
"""Package of what programs of the host import; it lies beside them, where Python looks first."""
LIBRARIES: dict[str, dict[str, tuple[str, ...]]] = {
    "clients": {"_common": ("foreign_text",), "_runtime": ("endpoint",)},
    "exporters": {
        "_common": ("findings", "foreign_text", "redaction", "secret_rules"),
        "_host": ("docker_facts", "host_view", "machine", "network", "nvidia_smi", "units"),
        "_proof": ("receipts",),
        "_runtime": ("command", "hostmem"),
    },
    "fleet_monitor": {
        "_common": ("findings", "foreign_text", "sizes", "tables"),
        "_fleet": ("fleet_status", "status_page", "watched_status"),
        "_host": ("guard_account",),
        "_plan": ("page_parts", "picture"),
        "_runtime": ("command", "endpoint", "fleet_state", "guard", "metrics", "state_file", "systemd"),
    },
    "gateway": {"_common": ("foreign_text",), "_runtime": ("command", "endpoint", "state_file")},
    "guard": {
        "_common": ("foreign_text",),
        "_runtime": (
            "command",
            "endpoint",
            "guard",
            "hostmem",
            "load_guard",
            "metrics",
            "pins",
            "state_file",
            "systemd",
            "unloading",
        ),
    },
    "host": {
        "_common": ("foreign_text",),
        "_runtime": (
            "command",
            "compile_cache",
            "endpoint",
            "hostmem",
            "load_guard",
            "pins",
            "ranks",
            "ray_nodes",
            "start_stages",
            "state_file",
            "systemd",
            "unloading",
        ),
    },
    "ollama": {"_common": ("foreign_text",), "_runtime": ("command", "endpoint", "state_file")},
    "on_demand": {
        "_common": ("foreign_text", "redaction", "secret_rules"),
        "_runtime": (
            "command",
            "endpoint",
            "hostmem",
            "metrics",
            "on_demand",
            "pins",
            "start_stages",
            "state_file",
            "systemd",
        ),
    },
    "speech": {"_common": ("foreign_text",), "_runtime": ("command", "endpoint", "state_file")},
    "watchdog": {
        "_common": ("foreign_text",),
        "_runtime": ("command", "endpoint", "metrics", "state_file", "systemd", "wedge"),
    },
}
"""Files of the engine that the programs of each component import on the host, by package."""
SYSTEM = "/etc/systemd/system"
VERIFY = "systemd-analyze verify %s"
MANAGED = "#\n# Managed by Ansible: dgxspark.vllm\n#\n"
PAGE = "Documentation=https://github.com/dgxspark/ansible-vllm"
INSTALL = ("", "[Install]", "WantedBy=multi-user.target")
SERVICE = ("[Service]", "# A core dump holds keys.", "LimitCORE=0")
HELPER = f"/usr/bin/python3 {LIBEXEC}/spark_unit.py"
HEALTH = f"{LIBEXEC}/spark_health.py"
SPEECH_ETC = "/etc/dgxspark/speech"
SPEECH_KINDS = {"asr": "Speech to text", "tts": "Text to speech"}
OLLAMA_ETC = "/etc/dgxspark/ollama"
# An account that nobody logs in to.
ACCOUNT = {"home": "/nonexistent", "shell": "/usr/sbin/nologin"}
# What roles may be told beside the plan; the roles' own defaults are the same.
DEFAULTS: dict[str, Any] = {
    "host_user": "dgxspark",
    "host_docker_users": [],
    "host_hf_home_owner": "root",
    "host_hf_home_group": "root",
    "service_user": "dgxspark",
    "speech_user": "dgxspark",
    "ollama_user": "dgxspark",
}

PLAIN = re.compile(r"[A-Za-z0-9_@:,./+=~-]+")
ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


# --- systemd's syntax ---------------------------------------------------------------------------------------------------


def check(text: str) -> str:
    """Return a text that a unit can hold. Raises ValueError for one that systemd would skip."""
    found = NO_TEXT.search(text)
    if found:
        raise ValueError(f"{text!r} holds U+{ord(found[0]):04X}, which no file of systemd can hold; leave it out")
    return text


def specifiers(text: Any) -> str:
    """Return a text in which systemd finds no specifier, for one line of a unit. Raises ValueError for a control character."""
    if CONTROL.search(str(text)):
        raise ValueError(f"{text!r} holds a control character or a line break, which this line of a unit cannot hold")
    return check(str(text)).replace("%", "%%")


def quote(argument: str) -> str:
    """Quote one argument of a command line by systemd.syntax(7) and systemd.service(5). Raises ValueError, see C(check)."""
    escaped = check(argument).replace("%", "%%").replace("$", "$$")
    if PLAIN.fullmatch(argument):
        return escaped
    escaped = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + CONTROL.sub(lambda found: ESCAPES.get(found[0], f"\\x{ord(found[0]):02x}"), escaped) + '"'


def command_line(arguments: Sequence[Any]) -> str:
    """Return the value of an C(ExecStart=): an option starts a new line and keeps its values beside it.

    Raises ValueError for an empty list, and for what C(quote) refuses.
    """
    if not isinstance(arguments, (list, tuple)) or not arguments:
        raise ValueError("a command line needs a list with at least the program")
    lines: list[list[str]] = [[]]
    for argument in map(str, arguments):
        if argument.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(quote(argument))
    return " \\\n    ".join(" ".join(line) for line in lines)


def paths(*names: str) -> str:
    """Return a list of paths as C(RequiresMountsFor=) and its like read it. Raises ValueError for a control character."""
    return " ".join(
        specifiers(name)
        if PLAIN.fullmatch(name)
        else '"' + specifiers(name).replace("\\", "\\\\").replace('"', '\\"') + '"'
        for name in names
    )


def environment_file(variables: Mapping[str, Any]) -> str:
    """Return the file of C(docker run --env-file), which is read line by line: no quoting, no expansion.

    Raises ValueError for a value with a line break.
    """
    lines = []
    for name in sorted(variables):
        text = check(str(variables[name]))
        if CONTROL.search(text.replace("\t", "")):
            raise ValueError(f"{name} is set to {text!r}; a file of docker run --env-file holds no line breaks")
        lines.append(f"{name}={text}\n")
    return MANAGED + "".join(lines)


def json_file(value: Any) -> str:
    """Return a value as the helpers of the units read it."""
    return json.dumps(value, indent=4, sort_keys=True) + "\n"


def _unit(lines: Iterable[str]) -> str:
    return MANAGED + "\n".join(lines) + "\n"


def _file(path: str, content: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "content": content, **more}


def _copy(path: str, bundled: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "bundled": bundled, **more}


def library(component: str) -> dict[str, list[dict[str, Any]]]:
    """Return the folders and files of the package C(dgxspark_vllm) that programs of a component import; see C(services).

    They are the very files that the modules run, so that a unit at boot judges as a play does.
    """
    names = [f"{package}/{name}" for package, files in LIBRARIES[component].items() for name in files]
    return {
        "folders": [
            {"path": path} for path in (LIBEXEC, LIBRARY, *(f"{LIBRARY}/{name}" for name in LIBRARIES[component]))
        ],
        "files": [_copy(f"{LIBRARY}/{name}.py", f"plugins/module_utils/{name}.py") for name in names],
    }


def _secrets(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"path": entry["path"], "source": entry["source"], "mode": "0600", "secret": True} for entry in entries or []
    ]


def yaml_file(value: Mapping[str, Any]) -> str:
    """Return settings as programs of others read them; every text is in quotes, and what is not ASCII is escaped."""
    return MANAGED + "".join(f"{line}\n" for line in _yaml(value))


def _yaml(value: Any) -> list[str]:
    """Return the lines of a value; keys are names that need no quotes."""
    lines = []
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            inside = _yaml(item)
            nested = isinstance(item, (Mapping, list)) and item
            lines += [f"{key}:", *(f"  {line}" for line in inside)] if nested else [f"{key}: {inside[0]}"]
        return lines
    if isinstance(value, list) and value:
        for item in value:
            first, *others = _yaml(item)
            lines += [f"- {first}", *(f"  {line}" for line in others)]
        return lines
    text = json.dumps(value, ensure_ascii=False)
    return [re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08X}", text)]


def keys(entries: Iterable[Mapping[str, Any]], folder: str, owner: str = "root") -> list[dict[str, Any]]:
    """Return the files of keys in a folder of the host, for their owner alone.

    :param entries: of each C(name), that of its file on the host, and C(source), the file on the controller
    :param folder: on the host
    :param owner: account that may read them
    :returns: files as the module component takes them
    """
    return [
        {
            "path": f"{folder}/{entry['name']}",
            "source": entry["source"],
            "owner": owner,
            "group": owner,
            "mode": "0600",
            "secret": True,
        }
        for entry in entries
    ]


# --- engines ------------------------------------------------------------------------------------------------------------


def services(
    planned: Sequence[Mapping[str, Any]], user: str, hf_home: str, speech_servers: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return what all services of a host are made of.

    :param planned: services as a plan has them, in start order
    :param user: account that runs the units
    :param hf_home: folder of weights that has to be mounted
    :param speech_servers: of the host as its plan has them; the ports of those on demand are held with those of engines
    :returns: folders, files and units
    :raises ValueError: for what no unit can hold; the plan refuses that by name before
    """
    items = [PlannedService.read(each) for each in planned]
    folders: list[Mapping[str, str]] = []
    for item in items:
        folders += [folder for folder in item.folders if folder not in folders]
    beside = on_demand(items, [server for server in speech_servers if server.get("on_demand")])
    return {
        "folders": [*folders, *beside["folders"]],
        "files": [*(file for item in items for file in _service_files(item, user, hf_home)), *beside["files"]],
        "units": [*map(_service_state, items), *beside["units"]],
        # What is no longer planned goes; the ports of sockets, before an engine that is always there takes them.
        "instances": [
            *beside["instances"],
            {
                "marker": "/etc/dgxspark/services/*.json",
                "keep": [item.name for item in items],
                "units": ["spark-{name}.service"],
                # What belongs to a service beside its settings and its unit. Its keys go when the state without it is recorded as proven: a
                # run that fails before takes the host back to what needs them, and generations keep no keys.
                "paths": [
                    "/etc/dgxspark/env/{name}.env",
                    "/etc/dgxspark/files/{name}",
                    "/var/lib/dgxspark/receipts/{name}.json",
                    "/var/lib/dgxspark/starts/{name}.json",
                ],
            },
        ],
        # No engine is given these any more.
        "purge": [{"folder": "/etc/dgxspark/files"}],
    }


def _own_files(item: PlannedService) -> list[File]:
    """Return the files that a service is given; those without a sum are the checkpoint's own."""
    return [entry for entry in item.files if entry.sha256]


def given(item: PlannedService) -> dict[str, list[dict[str, Any]]]:
    """Return the folders and files of the host that a service is given, as C(component) takes them. item: a planned service."""
    files = [
        {"path": entry.host, "source": entry.source} if entry.content is None else _file(entry.host, entry.content)
        for entry in _own_files(item)
    ]
    folders = [dict(folder) for folder in item.folders if folder["path"] == f"/etc/dgxspark/files/{item.name}"]
    return {"folders": folders, "files": files}


def _service_files(item: PlannedService, user: str, hf_home: str) -> list[dict[str, Any]]:
    """Return the files of one service: what its helper reads, its environment, its unit, its keys, and what the engine is given."""
    text = rank_unit(item, item.settings.rank, hf_home) if item.settings.rank else service_unit(item, user, hf_home)
    return [
        _file(f"/etc/dgxspark/services/{item.name}.json", json_file(plain(item.settings))),
        _file(item.env_file, environment_file(item.env), owner=user, group=user, mode="0600"),
        _file(f"{SYSTEM}/{item.unit}", text, validate=VERIFY),
        *_secrets(map(plain, item.secrets)),
        *given(item)["files"],
    ]


def _service_state(item: PlannedService) -> dict[str, Any]:
    """Return the unit of one service as C(component) takes it."""
    return {
        "name": item.unit,
        # Stopped by its owner, or another one of its exclusive set runs: it stays in place, and down over a boot.
        "state": "triggered" if item.on_demand and item.state == ON_DEMAND else item.state,
        "enabled": item.state == "started",
        # systemd itself holds each unit back until the one before it is active, which is when it answers.
        "wait": False,
        "defer": True,
        # Its engine still runs from what was there before a run that was cut off.
        "outdated": item.stale,
        # The settings are read by the helper at each start and each stop, not by what runs.
        # Nor does an engine go on with what it has loaded from weights that turned out to be damaged.
        "restart_on": [
            item.env_file,
            f"{SYSTEM}/{item.unit}",
            # A socket cannot be started while what it wakes runs.
            *([f"{SYSTEM}/spark-{item.name}.socket"] if _is_woken(item) else []),
            *(secret.path for secret in item.secrets),
            *(
                f"/var/lib/dgxspark/models/{part.repo.replace('/', '--')}.repaired"
                for part in item.model.parts
                if part.repo
            ),
            *(entry.host for entry in _own_files(item)),
        ],
    }


def _is_woken(item: PlannedService) -> bool:
    """Tell whether it is a rank behind the first one, which the datagrams of that one start."""
    return item.on_demand is not None and item.state == ON_DEMAND and item.rank > 0


def _after(item: PlannedService) -> list[str]:
    if not item.after:
        return []
    return [
        "# Co-resident engines come up one after another: each of these is active only when its model has answered.",
        f"After={' '.join(item.after)}",
    ]


ON_DEMAND_BOUNDS = [
    "# It comes and goes with its requests; spark-on-demand.service does not repeat a start that failed.",
    "StartLimitIntervalSec=0",
]
ON_DEMAND_AGAIN = ["# The next request starts it again.", "Restart=no"]


def service_unit(item: PlannedService, user: str, hf_home: str) -> str:
    """Return the unit of an engine of one host.

    :param item: the service
    :param user: account that runs the unit
    :param hf_home: folder of weights that has to be mounted
    :returns: the text of the unit
    """
    container, limits = item.container, item.limits
    where = "on demand" if item.on_demand else f"on port {item.port}"
    bounds = [f"StartLimitIntervalSec={limits.start_interval}", f"StartLimitBurst={limits.starts}"]
    again = [
        "# Always: `vllm serve` exits with 0 when its engine dies. A stop on purpose stays a stop.",
        "Restart=always",
        f"RestartSec={limits.restart_seconds}",
    ]
    if item.on_demand:
        bounds, again = ON_DEMAND_BOUNDS, ON_DEMAND_AGAIN
    return _unit(
        [
            "[Unit]",
            f"Description=vLLM {specifiers(item.name)} {where} (dgxspark.vllm)",
            PAGE,
            "Requires=docker.service",
            "Wants=network-online.target",
            "After=docker.service network-online.target nvidia-persistenced.service",
            *_after(item),
            f"RequiresMountsFor={paths(hf_home, item.cache_dir)}",
            *bounds,
            "",
            *SERVICE,
            "Type=exec",
            f"User={specifiers(user)}",
            "SupplementaryGroups=docker",
            "# What the helper does meanwhile is in `systemctl status`.",
            "NotifyAccess=exec",
            "NoNewPrivileges=true",
            f"SyslogIdentifier={container}",
            f"ExecStartPre=-/usr/bin/docker rm --force {container}",
            "# Waits for its turn, gives the page cache back, and refuses to start an engine that would not find its memory.",
            f"ExecStartPre=+{HELPER} gate {item.name}",
            f"ExecStart={command_line(item.argv)}",
            "# Active means: the model has answered.",
            f"ExecStartPost=+{HELPER} ready {item.name}",
            f"ExecStop=/usr/bin/docker stop --time {limits.stop_seconds} {container}",
            f"ExecStopPost=-/usr/bin/docker rm --force {container}",
            f"ExecStopPost=+{HELPER} release {item.name}",
            *again,
            f"TimeoutStartSec={item.start_timeout}",
            f"TimeoutStopSec={limits.stop_seconds + 30}",
            *INSTALL,
        ]
    )


DEMAND_ETC = "/etc/dgxspark/on_demand"
DEMAND_STATE = "/var/lib/dgxspark/on_demand"
DEMAND_RUN = "/run/dgxspark/on_demand"
DEMAND_PROGRAM = f"{LIBEXEC}/spark_on_demand.py"
START_SLACK = 30
"""Seconds in which a start that takes too long ends by its own limit, with its own reason."""
RELEASE_SECONDS = round(hostmem.BACK_SECONDS) + 30
"""How long a rank on demand takes, at most, after its containers until its memory is back and the others have said so of theirs, with some slack."""
DEMAND_DRAIN_SECONDS = 300
"""How long the program finishes running requests before it ends."""


def on_demand(items: Sequence[PlannedService], servers: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return what starts engines, and speech servers, with their requests: a socket for each, and the program that answers there; see C(services).

    Without such an engine all of it goes. A rank behind the first one has a socket at which that one wakes it.
    """
    woken = [item for item in items if _is_woken(item)]
    waiting = [item for item in items if item.on_demand and item.state == ON_DEMAND and item not in woken]
    ports = {item.name: (item.host, item.port) for item in waiting}
    ports |= {server["name"]: (server["listen"], server["port"]) for server in servers}
    sockets = [f"spark-{name}.socket" for name in ports]
    settings, unit = f"{DEMAND_ETC}/settings.json", f"{SYSTEM}/spark-on-demand.service"
    found: dict[str, Any] = {
        "folders": [],
        "files": [_file(f"{SYSTEM}/spark-{item.name}.socket", rank_socket_unit(item)) for item in woken],
        "units": [
            {"name": f"spark-{item.name}.socket", "enabled": True, "restart_on": [f"{SYSTEM}/spark-{item.name}.socket"]}
            for item in woken
        ],
        "instances": [
            {
                "marker": f"{SYSTEM}/spark-*.socket",
                "keep": [*ports, *(item.name for item in woken)],
                "units": ["spark-{name}.socket"],
            },
            {
                "marker": f"{DEMAND_ETC}/*.json",
                "keep": ["settings"] if ports else [],
                "units": ["spark-on-demand.service"],
                "paths": [DEMAND_PROGRAM, f"{LIBRARY}/_runtime/on_demand.py", DEMAND_STATE, DEMAND_RUN],
            },
        ],
    }
    if not ports:
        return found
    own = library("on_demand")
    found["folders"] = [{"path": DEMAND_ETC}, {"path": DEMAND_STATE}, *own["folders"]]
    files = [
        *own["files"],
        _copy(DEMAND_PROGRAM, "roles/service/files/spark_on_demand.py"),
        _file(settings, json_file(_demand_settings(waiting, servers))),
        *(_file(f"{SYSTEM}/spark-{name}.socket", socket_unit(name, *place)) for name, place in ports.items()),
        _file(unit, demand_unit(sockets)),
    ]
    found["files"] += files
    found["units"] += [
        # Started by the program's unit, which systemd hands them to; it cannot take one more while it runs.
        *(
            {"name": name, "state": "triggered", "enabled": True, "restart_on": [f"{SYSTEM}/{name}"]}
            for name in sockets
        ),
        {"name": "spark-on-demand.service", "enabled": True, "restart_on": [file["path"] for file in files]},
    ]
    return found


KEPT_OF_SETTINGS = (
    "idle_seconds",
    "minimum_seconds",
    "priority",
    "set",
    "hold_seconds",
    "while_loading",
    "retry_seconds",
)
"""What the program is told of a service as the plan has it."""


def _demand_settings(waiting: Sequence[PlannedService], servers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the program goes by."""
    services: dict[str, dict[str, Any]] = {}
    sets = {}
    for item in waiting:
        own = item.on_demand
        if own is None:
            continue
        length = item.args.get("max-model-len")
        services[item.name] = {
            "unit": item.unit,
            "engine": own.engine,
            "model": item.served_model_name,
            "max_model_len": length if isinstance(length, int) else None,
            "api_key_file": item.probe.api_key_file,
            "start_seconds": _start_seconds(item),
            **{key: getattr(own, key) for key in KEPT_OF_SETTINGS},
        }
        if own.set:
            sets[own.set] = {"keep": own.keep, "combinations": plain(own.combinations)}
    for server in servers:
        said, settings = server["on_demand"], server["settings"]
        services[server["name"]] = {
            "unit": server["unit"],
            "engine": said["engine"],
            "kind": server["kind"],
            **{key: settings[key] for key in ("model", "health", "api_key_file")},
            "start_seconds": settings["start_seconds"] + START_SLACK,
            **{key: said[key] for key in KEPT_OF_SETTINGS},
        }
        if said["set"]:
            sets[said["set"]] = {"keep": said["keep"], "combinations": said["combinations"]}
    return {
        "services": services,
        "sets": sets,
        "sysroot": [*(item.settings.sysroot for item in waiting), *(each["settings"]["sysroot"] for each in servers)][
            0
        ],
        "run": DEMAND_RUN,
        "state": DEMAND_STATE,
    }


def socket_unit(name: str, address: str, port: int) -> str:
    """Return the socket at the port of a service that starts on demand.

    :param name: of the service
    :param address: that it listens on
    :param port: of its clients
    :returns: the text of the unit
    """
    host = f"[{address}]" if ":" in address else address
    return _unit(
        [
            "[Unit]",
            f"Description=Port {port} of {specifiers(name)}, which starts on demand (dgxspark.vllm)",
            PAGE,
            "",
            "[Socket]",
            f"ListenStream={specifiers(host)}:{port}",
            "# The address may come up later than the sockets.",
            "FreeBind=true",
            "NoDelay=true",
            "Backlog=4096",
            "Service=spark-on-demand.service",
            f"FileDescriptorName={specifiers(name)}",
            "",
            "[Install]",
            "WantedBy=sockets.target",
        ]
    )


def rank_socket_unit(item: PlannedService) -> str:
    """Return the socket of a rank behind the first one, which starts with the first datagram of that one."""
    rank = item.settings.rank
    if rank is None:
        raise ValueError(f"{item.name} is no rank")
    host = f"[{rank.address}]" if ":" in rank.address else rank.address
    return _unit(
        [
            "[Unit]",
            f"Description=Call of the first rank of {specifiers(item.name)}, which starts on demand (dgxspark.vllm)",
            PAGE,
            "",
            "[Socket]",
            f"ListenDatagram={specifiers(host)}:{rank.port}",
            "# The address may come up later than the sockets.",
            "FreeBind=true",
            "# What was said to a supervisor that has ended wakes no other one.",
            "FlushPending=true",
            "",
            "[Install]",
            "WantedBy=sockets.target",
        ]
    )


def demand_unit(sockets: Sequence[str]) -> str:
    """Return the unit of the program that answers at the sockets and has systemd start and stop the engines."""
    return _unit(
        [
            "[Unit]",
            "Description=Services on demand (dgxspark.vllm)",
            PAGE,
            "After=docker.service",
            "StartLimitIntervalSec=0",
            "",
            *SERVICE,
            "Type=notify",
            "NotifyAccess=main",
            "SyslogIdentifier=spark-on-demand",
            f"Sockets={' '.join(sockets)}",
            f"ExecStart=/usr/bin/python3 {DEMAND_PROGRAM}",
            "# The sockets stay: requests wait there until it is back.",
            "Restart=always",
            "RestartSec=1",
            "TimeoutStartSec=60",
            f"TimeoutStopSec={DEMAND_DRAIN_SECONDS + 30}",
            "# Requests of a whole team, each with a connection to its engine.",
            "LimitNOFILE=65536",
            "# The plan counts it.",
            f"MemoryMax={round(PROXY_GIB * 1024)}M",
            "OOMScoreAdjust=-500",
            "# systemd takes orders from root alone; of root's rights it needs none.",
            "CapabilityBoundingSet=",
            "NoNewPrivileges=true",
            "PrivateTmp=true",
            "PrivateDevices=true",
            "ProtectHome=true",
            "ProtectSystem=strict",
            "ProtectKernelTunables=true",
            "ProtectControlGroups=true",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
            "RestrictNamespaces=true",
            "LockPersonality=true",
            f"ReadWritePaths={DEMAND_STATE}",
            "RuntimeDirectory=dgxspark/on_demand",
            "RuntimeDirectoryPreserve=yes",
            *INSTALL,
        ]
    )


def _ray_folder(name: str) -> list[str]:
    """Return the lines that give a rank its folder for Ray."""
    return [
        "# Ray's session: new at every start, for root alone. It lies in memory, so nothing of earlier ones is kept.",
        f"RuntimeDirectory=dgxspark/ray/{name}",
        "RuntimeDirectoryMode=0700",
    ]


def _rank_again(item: PlannedService) -> list[str]:
    """Return the lines that say whether a rank that has ended comes back."""
    if item.on_demand:
        return ["# The next request starts the first rank again, and that one the others.", "Restart=no"]
    return [
        "# Always: the ranks of a model come back together. 78 is the supervisor's word for: not without a person.",
        "Restart=always",
        "RestartSec=5",
        "RestartPreventExitStatus=78",
        "# 1 is how a rank ends that has lost another one: it comes back, and is no failed unit when both are stopped at once.",
        "SuccessExitStatus=1",
    ]


def rank_stop_seconds(item: PlannedService, rank: RankSettings) -> int:
    """How long a rank may take to stop; the first one of a model on demand waits for the others that stop meanwhile."""
    own = round(ranks.stop_seconds(len(rank.parts), item.limits.stop_seconds))
    return own + (RELEASE_SECONDS if item.on_demand else 0)


def _start_seconds(item: PlannedService) -> int:
    """When the program on demand ends a start: later than systemd, and than ranks that meet while what ran before still stops."""
    rank = item.settings.rank
    meet = 0 if rank is None else rank.peer_timeout_seconds + rank_stop_seconds(item, rank)
    return item.start_timeout + round(meet) + START_SLACK


def rank_unit(item: PlannedService, rank: RankSettings, hf_home: str) -> str:
    """Return the unit of one rank of an engine that spans hosts.

    :param item: the service
    :param rank: what its supervisor goes by
    :param hf_home: folder of weights that has to be mounted
    :returns: the text of the unit
    """
    name, stop_seconds = item.name, item.limits.stop_seconds
    remove = "/usr/bin/timeout --kill-after=5 60 /usr/bin/docker rm --force " + " ".join(
        part.container for part in rank.parts
    )
    where = "" if rank.rank else ", on demand" if item.on_demand else f", on port {item.port}"
    stop_limit = rank_stop_seconds(item, rank)
    return _unit(
        [
            "[Unit]",
            f"Description=vLLM {specifiers(name)}, rank {rank.rank} of {rank.size} of {specifiers(rank.cluster)}{where} "
            "(dgxspark.vllm)",
            PAGE,
            "Requires=docker.service",
            "Wants=network-online.target",
            "After=docker.service network-online.target nvidia-persistenced.service",
            # Ranks on demand meet first, whatever else starts on their hosts; the start lock sees to who loads.
            *([] if item.on_demand else _after(item)),
            "# With the default dependencies multi-user.target would wait for this unit, and so for the other host.",
            "DefaultDependencies=no",
            "Requires=sysinit.target",
            "After=sysinit.target basic.target",
            "Conflicts=shutdown.target",
            "Before=shutdown.target",
            f"RequiresMountsFor={paths(hf_home, item.cache_dir)}",
            "# The supervisor has a bound of its own, which failures of the other host do not use up.",
            "StartLimitIntervalSec=0",
            "",
            *SERVICE,
            "# Active means: the model has answered. The supervisor says so on every host of the model, and what it waits for meanwhile.",
            "Type=notify",
            "NotifyAccess=main",
            "NoNewPrivileges=true",
            f"SyslogIdentifier={item.container}",
            "# Changes with what the ranks run, so that all of them are restarted when one of them has to be.",
            f"Environment=SPARK_FINGERPRINT={rank.fingerprint}",
            *(_ray_folder(name) if rank.executor == "ray" else []),
            f"ExecStartPre=-{remove}",
            f"ExecStart=/usr/bin/python3 {LIBEXEC}/spark_rank.py --stop-seconds {stop_seconds} {name}",
            f"ExecStopPost=-{remove}",
            f"ExecStopPost={HELPER} release {name}",
            *_rank_again(item),
            "# The supervisor ends its containers itself; what is left of it and of docker's clients is killed after that.",
            "KillMode=mixed",
            "# Waiting for another host is no failure; a start has a deadline in the supervisor.",
            "TimeoutStartSec=infinity",
            f"TimeoutStopSec={stop_limit}",
            "# A supervisor that stands still would leave its container in memory.",
            "WatchdogSec=120",
            "WatchdogSignal=SIGKILL",
            *INSTALL,
        ]
    )


# --- add-on services ------------------------------------------------------------------------------------------------------


def speech(planned: Sequence[Mapping[str, Any]], user: str) -> dict[str, Any]:
    """Return what the speech servers of a host are made of; see C(services)."""
    files: list[dict[str, Any]] = (
        [*library("speech")["files"], _copy(HEALTH, "roles/speech/files/spark_health.py")] if planned else []
    )
    folders: list[dict[str, Any]] = []
    if planned:
        folders = [{"path": SPEECH_ETC, "mode": "0750", "group": user}, *library("speech")["folders"]]
    units = []
    for item in planned:
        folders += [folder for folder in item["folders"] if folder not in folders]
        unit = f"{SYSTEM}/{item['unit']}"
        files += [
            _file(f"{SPEECH_ETC}/{item['name']}.json", json_file(item["settings"])),
            *([_file(f"{SPEECH_ETC}/{item['name']}.port", f"{item['port']}\n")] if item.get("on_demand") else []),
            _file(item["env_file"], environment_file(item["env"]), group=user, mode="0640"),
            _file(unit, speech_unit(item, user), validate=VERIFY),
            *_secrets(item["secrets"]),
        ]
        units.append(
            {
                "name": item["unit"],
                "state": "triggered" if item.get("on_demand") else "started",
                "enabled": not item.get("on_demand"),
                # The settings are read by the helper at each start, not by what runs.
                "restart_on": [item["env_file"], unit, *(secret["path"] for secret in item["secrets"])],
            }
        )
    return {
        "folders": folders,
        "files": files,
        "units": units,
        # The sockets of servers that are no longer on demand go before these take their ports; the role services has put them there.
        "ports": [
            {
                "marker": f"{SPEECH_ETC}/*.port",
                "keep": [item["name"] for item in planned if item.get("on_demand")],
                "units": ["spark-{name}.socket"],
            }
        ],
        "instances": [
            {
                "marker": f"{SPEECH_ETC}/*.json",
                "keep": [item["name"] for item in planned],
                "units": ["spark-{name}.service"],
                "paths": [
                    f"{SPEECH_ETC}/{{name}}.env",
                    "/etc/dgxspark/secrets/speech/{name}",
                    "/var/lib/dgxspark/speech/{name}",
                    "/var/lib/dgxspark/speech/{name}.proved.json",
                ],
            }
        ],
    }


def _server_unit(
    head: Sequence[str], user: str, container: str, argv: Sequence[str], ready: Sequence[str], limits: Mapping[str, Any],
    start_timeout: int, on_demand: str = "",
) -> str:  # fmt: skip
    """Return the unit of a server that is no engine. on_demand: its name where its requests start it."""
    bounds = [f"StartLimitIntervalSec={limits['start_interval']}", f"StartLimitBurst={limits['starts']}"]
    return _unit(
        [
            *head,
            *(ON_DEMAND_BOUNDS if on_demand else bounds),
            "",
            *SERVICE,
            "Type=exec",
            f"User={specifiers(user)}",
            "SupplementaryGroups=docker",
            "NoNewPrivileges=true",
            f"SyslogIdentifier={container}",
            f"ExecStartPre=-/usr/bin/docker rm --force {container}",
            # What it takes while it loads would be charged to an engine that measures itself meanwhile.
            *([f"ExecStartPre=+{HELPER} gate {on_demand}"] if on_demand else []),
            f"ExecStart={command_line(argv)}",
            *ready,
            *([f"ExecStartPost=+{HELPER} started {on_demand}"] if on_demand else []),
            f"ExecStop=/usr/bin/docker stop --time {limits['stop_seconds']} {container}",
            f"ExecStopPost=-/usr/bin/docker rm --force {container}",
            *([f"ExecStopPost=+{HELPER} release {on_demand}"] if on_demand else []),
            "# How a server without a handler for it ends when it is stopped.",
            "SuccessExitStatus=143",
            *(ON_DEMAND_AGAIN if on_demand else ["Restart=always", f"RestartSec={limits['restart_seconds']}"]),
            f"TimeoutStartSec={start_timeout}",
            f"TimeoutStopSec={limits['stop_seconds'] + 30}",
            *INSTALL,
        ]
    )


def speech_unit(item: Mapping[str, Any], user: str) -> str:
    """Return the unit of a speech server."""
    before = [
        "# Memory that it allocates while loading would be attributed to an engine that is profiling. One that fails does not block others.",
        f"Before={' '.join(item['before'])}",
    ]
    woken = bool(item.get("on_demand"))
    where = "on demand" if woken else f"on port {item['port']}"
    return _server_unit(
        [
            "[Unit]",
            f"Description={SPEECH_KINDS[item['kind']]} {specifiers(item['name'])} {where} (dgxspark.vllm)",
            PAGE,
            "Requires=docker.service",
            "Wants=network-online.target",
            "After=docker.service network-online.target nvidia-persistenced.service",
            *(before if item["before"] else []),
        ],
        user,
        item["container"],
        item["argv"],
        [
            "# Active means: its health endpoint has answered.",
            f"ExecStartPost=+/usr/bin/python3 {HEALTH} ready {SPEECH_ETC}/{item['name']}.json",
        ],
        item["limits"],
        item["settings"]["start_seconds"] if woken else item["start_timeout"],
        item["name"] if woken else "",
    )


def ollama(planned: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Return what Ollama is made of; see C(services). planned: its part of the plan of add-on services."""
    container, unit = "spark-ollama", "spark-ollama.service"
    settings = {
        "name": "ollama",
        "kind": "ollama",
        "unit": unit,
        "container": container,
        "url": planned["url"],
        "health": "/api/tags",
        "models": list(planned["models"]),
        "memory_gib": planned["memory_gib"],
        # It gives up a little before systemd would, so that the journal says why.
        "deadline_seconds": planned["start_timeout"] - 20,
    }
    text = _server_unit(
        [
            "[Unit]",
            "Description=Ollama, the fallback (dgxspark.vllm)",
            PAGE,
            "Requires=docker.service",
            "Wants=network-online.target",
            "# In no order with the engines: idle it holds no memory, and what it has loaded they unload before they start.",
            "After=docker.service network-online.target nvidia-persistenced.service",
            f"RequiresMountsFor={paths(planned['models_dir'])}",
        ],
        user,
        container,
        planned["argv"],
        [
            "# Active means: it has listed its models.",
            f"ExecStartPost=+/usr/bin/python3 {HEALTH} ready {OLLAMA_ETC}/ollama.json",
        ],
        planned["limits"],
        planned["start_timeout"],
    )
    return {
        "folders": [
            {"path": OLLAMA_ETC, "mode": "0750", "group": user},
            {"path": planned["models_dir"], "holds": "weights"},
            *library("ollama")["folders"],
        ],
        "files": [
            *library("ollama")["files"],
            _copy(HEALTH, "roles/speech/files/spark_health.py"),
            _file(f"{OLLAMA_ETC}/ollama.json", json_file(settings)),
            # Where units of engines read by which URL models are unloaded.
            _file("/etc/dgxspark/ollama.json", json.dumps({"url": planned["url"]}) + "\n"),
            _file(f"{OLLAMA_ETC}/ollama.env", environment_file(planned["env"]), group=user, mode="0640"),
            _file(f"{SYSTEM}/{unit}", text, validate=VERIFY),
        ],
        "units": [
            # The rest is read by others, at each start and each stop.
            {"name": unit, "enabled": True, "restart_on": [f"{OLLAMA_ETC}/ollama.env", f"{SYSTEM}/{unit}"]}
        ],
    }


def watchdog(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the watchdog is made of; see C(services). settings: what it reads at its start."""
    name, program = "spark-watchdog.service", f"{LIBEXEC}/spark_watchdog.py"
    text = _unit(
        [
            "[Unit]",
            "Description=Watchdog of the model servers (dgxspark.vllm)",
            PAGE,
            "After=docker.service",
            "StartLimitIntervalSec=0",
            "",
            *SERVICE,
            "Type=notify",
            "NotifyAccess=main",
            "SyslogIdentifier=spark-watchdog",
            f"ExecStart=/usr/bin/python3 {program}",
            "Restart=always",
            "RestartSec=10",
            "# A watchdog that stands still is started anew; probes and evidence of several servers take their time.",
            "WatchdogSec=300",
            "TimeoutStartSec=300",
            "TimeoutStopSec=20",
            "# It is small, and what it is for is a host that is in trouble.",
            "OOMScoreAdjust=-500",
            "NoNewPrivileges=true",
            "PrivateTmp=true",
            "ProtectHome=read-only",
            "ProtectSystem=strict",
            "ReadWritePaths=/var/lib/dgxspark/watchdog",
            *INSTALL,
        ]
    )
    return {
        "folders": [
            {"path": "/etc/dgxspark/watchdog"},
            {"path": "/var/lib/dgxspark/watchdog"},
            *library("watchdog")["folders"],
        ],
        # The process is restarted when any of them changes, whoever has put it there.
        "files": [
            *library("watchdog")["files"],
            _copy(f"{LIBEXEC}/python_stacks.py", "roles/watchdog/files/python_stacks.py"),
            _copy(program, "roles/watchdog/files/spark_watchdog.py"),
            _file("/etc/dgxspark/watchdog/settings.json", json_file(settings)),
            _file(f"{SYSTEM}/{name}", text),
        ],
        "units": [{"name": name, "enabled": True}],
    }


def guard(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the guard is made of; see C(services). settings: what it reads at its start."""
    name, program = "spark-guard.service", f"{LIBEXEC}/spark_guard.py"
    root = str(settings.get("sysroot") or "/")
    text = _unit(
        [
            "[Unit]",
            "Description=Guard of the memory while model servers run (dgxspark.vllm)",
            PAGE,
            "After=docker.service",
            "StartLimitIntervalSec=0",
            "",
            *SERVICE,
            "Type=notify",
            "NotifyAccess=main",
            "SyslogIdentifier=spark-guard",
            f"ExecStart=/usr/bin/python3 {program}",
            "Restart=always",
            "RestartSec=5",
            "WatchdogSec=120",
            "TimeoutStartSec=120",
            "TimeoutStopSec=20",
            "# What it is for is a host without memory: it is the last to be killed, stays in memory, and gets its turn.",
            "OOMScoreAdjust=-900",
            "MemoryMin=64M",
            "LimitMEMLOCK=infinity",
            "Nice=-10",
            "NoNewPrivileges=true",
            "PrivateTmp=true",
            "ProtectHome=read-only",
            "ProtectSystem=strict",
            "# Its state, and the list of drained backends of a gateway on this host.",
            "ReadWritePaths=/var/lib/dgxspark/guard",
            "ReadWritePaths=-/run/dgxspark",
            *([f"ReadWritePaths=-{paths(root)}"] if root != "/" else []),
            *INSTALL,
        ]
    )
    files = [
        *library("guard")["files"],
        _copy(program, "roles/guard/files/spark_guard.py"),
        _file("/etc/dgxspark/guard/settings.json", json_file(settings)),
        _file(f"{SYSTEM}/{name}", text, validate=VERIFY),
    ]
    return {
        "folders": [
            {"path": "/etc/dgxspark/guard"},
            {"path": "/var/lib/dgxspark/guard"},
            *library("guard")["folders"],
        ],
        "files": files,
        "units": [_of_own_files(name, files)],
    }


def _of_own_files(name: str, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A unit that runs, and is restarted for its own files alone where more is put in place beside them."""
    return {"name": name, "enabled": True, "restart_on": [file["path"] for file in files]}


DROP_IN = "50-dgxspark.conf"
BOARD_WATCHDOG = "/dev/watchdog0"


def protection(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return drop-ins that keep a host in reach; see C(services).

    planned: C(ssh_mib), C(sessions_mib), C(journal_mib), C(hardware_watchdog_seconds), 0 or missing for none. What is not wanted is in C(removed).
    """
    own = {key: int(planned.get(f"{key}_mib") or 0) for key in ("ssh", "sessions", "journal")}
    seconds = int(planned.get("hardware_watchdog_seconds") or 0)
    together = own["ssh"] + own["journal"]
    texts = {
        # sshd sees to its listener's score itself; one that is set here would be that of all that people start in their sessions.
        "system/ssh.service.d": [own["ssh"], "[Service]", f"MemoryMin={own['ssh']}M"],
        "system/systemd-journald.service.d": [
            own["journal"],
            "[Service]",
            f"MemoryMin={own['journal']}M",
            "OOMScoreAdjust=-900",
        ],
        # What a unit is promised counts only as far as its slice is promised it.
        "system/system.slice.d": [together, "[Slice]", f"MemoryMin={together + GUARD_MIB}M"],
        "system/user.slice.d": [own["sessions"], "[Slice]", f"MemoryMin={own['sessions']}M"],
        "system.conf.d": [seconds, "[Manager]", f"RuntimeWatchdogSec={seconds}s"],
    }
    wanted = {f"/etc/systemd/{folder}": lines for folder, lines in texts.items()}
    return {
        "folders": [{"path": folder} for folder, lines in wanted.items() if lines[0]],
        "files": [
            # A board without a watchdog is not asked to use it.
            {
                **_file(f"{folder}/{DROP_IN}", _unit(map(str, lines[1:]))),
                **({"device": BOARD_WATCHDOG} if folder.endswith("/system.conf.d") else {}),
            }
            for folder, lines in wanted.items()
            if lines[0]
        ],
        "removed": [f"{folder}/{DROP_IN}" for folder, lines in wanted.items() if not lines[0]],
        "units": [],
    }


GUARD_MIB = 64
"""What the unit of the guard is promised."""


def gpu_clocks(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unit that keeps the clocks of the GPU below a limit; see C(services). planned: C(max_mhz), C(min_mhz)."""
    name = "spark-gpu-clocks.service"
    limits = f"{int(planned.get('min_mhz') or 0)},{int(planned.get('max_mhz') or 0)}"
    text = _unit(
        [
            "[Unit]",
            "Description=Limit of the clocks of the GPU (dgxspark.vllm)",
            PAGE,
            "Wants=nvidia-persistenced.service",
            "After=nvidia-persistenced.service",
            "",
            "[Service]",
            "Type=oneshot",
            "RemainAfterExit=true",
            "# The driver forgets it at a reboot.",
            f"ExecStart=/usr/bin/nvidia-smi --lock-gpu-clocks={limits}",
            "ExecStop=/usr/bin/nvidia-smi --reset-gpu-clocks",
            "TimeoutStartSec=60",
            "TimeoutStopSec=60",
            *INSTALL,
        ]
    )
    files = [_file(f"{SYSTEM}/{name}", text, validate=VERIFY)]
    return {"folders": [], "files": files, "units": [_of_own_files(name, files)]}


def host(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every Spark has before its services; see C(services). With C(accounts), whom the host has to know.

    variables: those of the role host, by their names.
    """
    user = variables["host_user"]
    return {
        "accounts": {user: dict(ACCOUNT), **{name: {} for name in variables["host_docker_users"] if name != user}},
        "folders": [
            {
                "path": variables["host_hf_home"],
                "owner": variables["host_hf_home_owner"],
                "group": variables["host_hf_home_group"],
            },
            {"path": variables["host_cache_dir"]},
            {"path": "/etc/dgxspark/services"},
            {"path": "/etc/dgxspark/env", "group": user, "mode": "0750"},
            {"path": "/etc/dgxspark/secrets", "mode": "0700"},
            {"path": "/var/lib/dgxspark/receipts"},
            *library("host")["folders"],
        ],
        "files": [
            *library("host")["files"],
            _copy(f"{LIBEXEC}/spark_unit.py", "roles/host/files/spark_unit.py"),
            _copy(f"{LIBEXEC}/spark_rank.py", "roles/host/files/spark_rank.py"),
            _copy(f"{LIBEXEC}/with-secrets", "roles/host/files/with-secrets", mode="0755"),
        ],
        "units": [],
    }


# --- monitoring ---------------------------------------------------------------------------------------------------------

MONITORING = "/etc/dgxspark/monitoring"
MONITORING_SECRETS = "/etc/dgxspark/secrets/monitoring"
# What a receiver names files for.
RECEIVER_FILES = ("url_file", "token_file", "password_file")
INHIBIT = [
    # A host that is gone says nothing about what runs on it.
    (('alertname="SparkExporterGone"', 'job="node"'), 'alertname=~"SparkTargetDown|SparkCollectorStale"', ("host",)),
    (('alertname="SparkMemoryCritical"',), 'alertname="SparkMemoryLow"', ("host",)),
    (('alertname="SparkUnitFailed"',), 'alertname=~"SparkServiceNotUp|SparkTargetDown"', ("host", "service")),
]


def monitoring(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Prometheus and Alertmanager read; see C(services).

    planned: C(jobs), C(receivers), C(interval), C(scrape_timeout) and C(alertmanager), the HOST:PORT that Prometheus tells, or empty.
    C(restart_on) of the answer has the keys that each program reads at its start, C(jobs) and C(receivers), by their names on the host.
    """
    jobs, receivers = planned["jobs"], planned["receivers"]
    of_jobs = [{"name": f"{job['name']}.job", "source": job["token_file"]} for job in jobs if job.get("token_file")]
    of_receivers = [
        {"name": f"{receiver['name']}.{key}", "source": receiver[key]}
        for receiver in receivers
        for key in RECEIVER_FILES
        if receiver.get(key)
    ]
    files = [
        _file(
            f"{MONITORING}/prometheus.yml",
            yaml_file(_prometheus(planned)),
            # Without the files that it names: tokens are only there for the running unit.
            validate="/usr/bin/promtool check config --syntax-only %s",
        ),
        *(_file(f"{MONITORING}/targets/{job['name']}.json", json_file(job["targets"]).rstrip("\n")) for job in jobs),
    ]
    if planned["alertmanager"]:
        files.append(
            _file(
                f"{MONITORING}/alertmanager.yml",
                yaml_file(_alertmanager(receivers)),
                validate="/usr/bin/amtool check-config %s",
            )
        )
    return {
        "folders": [],
        "files": [*files, *keys([*of_receivers, *of_jobs], MONITORING_SECRETS)],
        "units": [],
        "restart_on": {
            "jobs": [f"{MONITORING_SECRETS}/{entry['name']}" for entry in of_jobs],
            "receivers": [f"{MONITORING_SECRETS}/{entry['name']}" for entry in of_receivers],
        },
    }


PLACES = ("host", "cluster")
"""Labels that say where a metric is from; the targets alone set them."""


def _prometheus(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of Prometheus: how often it asks whom, by which rules."""
    settings: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{planned['interval']}s",
            "scrape_timeout": f"{planned['scrape_timeout']}s",
            "evaluation_interval": f"{planned['interval']}s",
        },
        # Beside the rules of this collection, those of the owner; nothing is written there.
        "rule_files": [f"{MONITORING}/rules.yml", f"{MONITORING}/rules.d/*.yml"],
    }
    if planned["alertmanager"]:
        settings["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [planned["alertmanager"]]}]}]}
    settings["scrape_configs"] = [
        {
            "job_name": job["name"],
            "metrics_path": job["path"],
            **(
                {"authorization": {"credentials_file": f"/run/spark-prometheus/{job['name']}.job"}}
                if job.get("token_file")
                else {}
            ),
            "file_sd_configs": [{"files": [f"{MONITORING}/targets/{job['name']}.json"]}],
            # A target that has no cluster must not get one from its own metrics: an alert's host and cluster limit what is run for it.
            # Prometheus renames a metric's label only where the target has that label too.
            "relabel_configs": [
                {"source_labels": [label], "regex": "", "target_label": label, "replacement": "-"} for label in PLACES
            ],
            "metric_relabel_configs": [
                {"source_labels": [label], "regex": "-", "target_label": label, "replacement": ""} for label in PLACES
            ],
        }
        for job in planned["jobs"]
    ]
    return settings


def _alertmanager(receivers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of Alertmanager: who is told of what."""
    return {
        "route": {
            "receiver": "nobody",
            "group_by": ["alertname", "host"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "receiver": receiver["name"],
                    "matchers": [f'severity=~"{"|".join(receiver["severities"])}"'],
                    "continue": True,
                }
                for receiver in receivers
            ],
        },
        "inhibit_rules": [
            {"source_matchers": list(source), "target_matchers": [target], "equal": list(equal)}
            for source, target, equal in INHIBIT
        ],
        "receivers": [{"name": "nobody"}, *(_receiver(receiver) for receiver in receivers)],
    }


def _receiver(receiver: Mapping[str, Any]) -> dict[str, Any]:
    """Return one receiver as Alertmanager reads it."""
    secret = f"/run/spark-alertmanager/{receiver['name']}"
    if receiver["type"] == "telegram":
        told = {"bot_token_file": f"{secret}.token_file", "chat_id": receiver["chat_id"], "send_resolved": True}
        return {"name": receiver["name"], "telegram_configs": [told]}
    if receiver["type"] == "email":
        told = {key: receiver[key] for key in ("to", "from", "smarthost")} | {"send_resolved": True}
        if receiver["username"]:
            told |= {"auth_username": receiver["username"], "auth_password_file": f"{secret}.password_file"}
        return {"name": receiver["name"], "email_configs": [told]}
    if receiver["type"] == "ntfy":
        # ntfy makes a message of what Alertmanager posts by a template that it has (2.14 and later).
        server = receiver["server"].rstrip("/")
        told = {"url": f"{server}/{receiver['topic']}?template=alertmanager"}
    elif receiver["url_file"]:
        told = {"url_file": f"{secret}.url_file"}
    else:
        told = {"url": receiver["url"]}
    told["send_resolved"] = True
    if receiver["token_file"]:
        told["http_config"] = {"authorization": {"credentials_file": f"{secret}.token_file"}}
    return {"name": receiver["name"], "webhook_configs": [told]}


# --- a host -------------------------------------------------------------------------------------------------------------


def render(
    planned: Mapping[str, Any],
    addons: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return all that the roles of this collection which run on every Spark would put on a host, by component.

    :param planned: the host's part of a plan
    :param addons: the plan of add-on services
    :param variables: variables of roles that somebody has set, by their names; the others have the roles' defaults
    :returns: what the module component takes for each: C(folders), C(files) with C(content), C(source), a file of the controller, or
        C(bundled), a file of this collection, C(units), C(instances) and C(purge); of the host C(accounts), too
    :raises ValueError: for a text that no unit can hold
    """
    settings, beside = planned["settings"], addons or {}
    known = {
        **DEFAULTS,
        "host_hf_home": settings["hf_home"],
        "host_cache_dir": settings["cache_dir"],
        "service_hf_home": settings["hf_home"],
        **(variables or {}),
    }
    found = {
        "host": host(known),
        "services": services(
            planned.get("services") or [],
            known["service_user"],
            known["service_hf_home"],
            (beside.get("speech") or {}).get("services") or [],
        ),
    }
    if beside.get("speech"):
        found["speech"] = speech(beside["speech"]["services"], known["speech_user"])
    if beside.get("ollama") and beside["ollama"].get("state") == "present":
        found["ollama"] = ollama(beside["ollama"], known["ollama_user"])
    if beside.get("watchdog") and beside["watchdog"].get("state") == "present":
        found["watchdog"] = watchdog(beside["watchdog"]["settings"])
    return found | _kept_in_reach(beside.get("guard") or {})


def _kept_in_reach(planned: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the role guard puts on a host."""
    found = {}
    if planned.get("state") == "present":
        found["guard"] = guard(planned["settings"])
    if planned.get("protection"):
        found["protection"] = protection(planned["protection"])
    if planned.get("clocks"):
        found["gpu_clocks"] = gpu_clocks(planned["clocks"])
    return found
