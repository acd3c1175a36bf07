# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare the folders, files and units of a planned host for the module deploy.

A file has its C(content), or a C(template) of a role and its C(values), which the controller renders (plugin_utils/render.py).
This file reads nothing from a host and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from .._cluster.endpoints import bracketed
from .._common.file_syntax import environment_file, json_file
from .._common.reader import from_dict, to_dict
from .._host.host_state import HostState, merge
from .._runtime import hostmem, ranks
from . import host_programs
from .on_demand import PROXY_GIB
from .on_demand import STATE as ON_DEMAND
from .planned import File, PlannedService, RankSettings

LIBEXEC = "/usr/local/libexec/dgxspark"
LIBRARY = f"{LIBEXEC}/dgxspark_vllm"
"""Package that the programs of the host import; it lies beside them, where Python looks first."""
SYSTEM = "/etc/systemd/system"
HELPER = f"{LIBEXEC}/spark_unit.py"
SPEECH_ETC = "/etc/dgxspark/speech"
OLLAMA_ETC = "/etc/dgxspark/ollama"
# An account that nobody logs in to.
ACCOUNT = {"home": "/nonexistent", "shell": "/usr/sbin/nologin"}
# Variables of roles that the plan does not set, with the defaults of the roles.
DEFAULTS: dict[str, Any] = {
    "host_user": "dgxspark",
    "host_docker_users": [],
    "host_hf_home_owner": "root",
    "host_hf_home_group": "root",
    "service_user": "dgxspark",
    "speech_user": "dgxspark",
    "ollama_user": "dgxspark",
}
PARTS = {"services": "service", "live": "guard", "protection": "guard", "gpu_clocks": "guard", "power": "guard"}
"""Parts of the state document that parts of C(render) belong to, where the name is another."""


def _file(path: str, content: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "content": content, **more}


def _unit(unit: str, template: str, /, **values: Any) -> dict[str, Any]:
    """Return the file of a unit. template: ROLE/TEMPLATE.j2; values: by the names that it uses."""
    return {"path": f"{SYSTEM}/{unit}", "template": template, "values": values}


def _verified(file: Mapping[str, Any]) -> dict[str, Any]:
    return {**file, "validate": "systemd-analyze verify %s"}


def _copy(path: str, bundled: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "bundled": bundled, **more}


def _folders(*paths: str) -> list[dict[str, Any]]:
    return [{"path": path} for path in paths]


def _of_own_files(name: str, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a running unit that is restarted for these files alone."""
    return {"name": name, "enabled": True, "restart_on": [file["path"] for file in files]}


def library(part: str) -> dict[str, list[dict[str, Any]]]:
    """Return the folders and files of the package C(dgxspark_vllm) that programs of a part import; see C(services).

    The modules run the same files, so a unit at boot decides as a play does.
    """
    names = host_programs.library_files(part)
    packages = sorted({name.partition("/")[0] for name in names})
    # Python writes __pycache__ into them.
    folders = [{"path": path, "remove": "whole"} for path in (LIBRARY, *(f"{LIBRARY}/{name}" for name in packages))]
    return {
        "folders": [*_folders(LIBEXEC), *folders],
        "files": [_copy(f"{LIBRARY}/{name}.py", f"plugins/module_utils/{name}.py") for name in names],
    }


def unit_helper() -> dict[str, list[dict[str, Any]]]:
    """Return the folders and files of the unit helper, for parts that need no other program of the part host; see C(services)."""
    rows = library("unit_helper")
    return {**rows, "files": [*rows["files"], _copy(HELPER, "roles/host/files/spark_unit.py")]}


def _secrets(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"path": entry["path"], "source": entry["source"], "mode": "0600", "secret": True} for entry in entries or []
    ]


# --- engines ------------------------------------------------------------------------------------------------------------


def services(
    planned: Sequence[Mapping[str, Any]], user: str, hf_home: str, speech_servers: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the folders, files and units of all services of a host.

    :param planned: services as a plan has them, in start order
    :param speech_servers: planned on the host; the sockets of those on demand belong to the same program as the sockets of engines
    :raises ValueError: for a value that no environment file can hold; the plan refuses that by name before
    """
    items = [from_dict(PlannedService, service) for service in planned]
    folders: list[Mapping[str, str]] = []
    for item in items:
        folders += [folder for folder in item.folders if folder not in folders]
    beside = on_demand(items, [server for server in speech_servers if server.get("on_demand")])
    created = [
        f"/var/lib/dgxspark/{folder}/{item.name}.json"
        for item in items
        for folder in ("receipts", "starts", *(["kv_files"] if item.kv_tiers else []))
    ]
    files = [file for item in items for file in _service_files(item, user, hf_home)]
    units = list(map(_service_state, items))
    kv_folders = {item.name: item.kv_tiers.folder for item in items if item.kv_tiers}
    if kv_folders:
        file, unit = _kv_keeper(kv_folders)
        files.append(file)
        units.append(unit)
    return {
        "folders": [*folders, *beside["folders"]],
        "files": [*files, *beside["files"]],
        "units": [*units, *beside["units"]],
        "created": [*created, *beside["created"]],
    }


KEEPER = "spark-kv-files.service"
"""Unit that keeps the files of KV caches in bounds."""
KEEPER_SECONDS = 15


def _kv_keeper(folders: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the file and the state of the unit C(KEEPER). folders: of KV files, by service."""
    values = {"helper": HELPER, "folders": list(folders.values()), "seconds": KEEPER_SECONDS}
    file = _verified(_unit(KEEPER, "service/kv-files.service.j2", **values))
    # It reads the settings of the services at its start.
    settings = [f"/etc/dgxspark/services/{name}.json" for name in folders]
    restart_on = [file["path"], HELPER, f"{LIBRARY}/_runtime/kv_files.py", *settings]
    return file, {"name": KEEPER, "enabled": True, "restart_on": restart_on}


def _own_files(item: PlannedService) -> list[File]:
    """Return the files that a service gets from the controller; files without a checksum belong to the checkpoint."""
    return [entry for entry in item.files if entry.sha256]


def controller_files(item: PlannedService) -> dict[str, list[dict[str, Any]]]:
    """Return the folders and files that a service gets from the controller, as C(deploy) takes them. item: a planned service."""
    files = [
        {"path": entry.host, "source": entry.source} if entry.content is None else _file(entry.host, entry.content)
        for entry in _own_files(item)
    ]
    folders = [dict(folder) for folder in item.folders if folder["path"] == f"/etc/dgxspark/files/{item.name}"]
    return {"folders": folders, "files": files}


def _service_files(item: PlannedService, user: str, hf_home: str) -> list[dict[str, Any]]:
    """Return the files of one service: settings of its helper, environment, unit, keys, and files for the engine."""
    return [
        _file(f"/etc/dgxspark/services/{item.name}.json", json_file(to_dict(item.settings))),
        _file(item.env_file, environment_file(item.env), owner=user, group=user, mode="0600"),
        _verified(engine_unit(item, user, hf_home)),
        *_secrets(map(to_dict, item.secrets)),
        *controller_files(item)["files"],
    ]


def _service_state(item: PlannedService) -> dict[str, Any]:
    """Return the unit of one service as C(deploy) takes it."""
    repositories = [part.repo for part in item.model.parts]
    return {
        "name": item.unit,
        # A service that its owner stopped, or whose exclusive set runs another one, stays installed and stays down after a boot.
        "state": "triggered" if item.on_demand and item.state == ON_DEMAND else item.state,
        "enabled": item.state == "started",
        # systemd starts each unit after the unit before it is active, which is when its model answers.
        "wait": False,
        "defer": True,
        # Its engine still runs from files of an earlier run that was interrupted.
        "outdated": item.stale,
        # Without the settings: the helper reads them at each start and stop. A repaired snapshot means that the engine loaded damaged weights.
        "restart_on": [
            item.env_file,
            f"{SYSTEM}/{item.unit}",
            # A socket cannot be started while its service runs.
            *([f"{SYSTEM}/spark-{item.name}.socket"] if _woken_rank(item) else []),
            *(secret.path for secret in item.secrets),
            *(f"/var/lib/dgxspark/models/{repo.replace('/', '--')}.repaired" for repo in repositories if repo),
            *(entry.host for entry in _own_files(item)),
        ],
    }


def _woken_rank(item: PlannedService) -> RankSettings | None:
    """Return the settings of a rank that starts by the datagrams of the first rank, None for another service."""
    return item.settings.rank if item.on_demand and item.state == ON_DEMAND and item.rank else None


def engine_unit(item: PlannedService, user: str, hf_home: str) -> dict[str, Any]:
    """Return the file of the unit of an engine of one host, or of one rank of an engine that spans hosts."""
    values = {name: getattr(item, name) for name in ("name", "port", "after", "cache_dir", "container")}
    values |= {"on_demand": item.on_demand is not None, "helper": HELPER, "hf_home": hf_home}
    rank = item.settings.rank
    if rank is None:
        return _unit(
            item.unit,
            "service/engine.service.j2",
            **values,
            user=user,
            argv=item.argv,
            limits=to_dict(item.limits),
            start_timeout=item.start_timeout,
            kv_folder=item.kv_tiers.folder if item.kv_tiers else "",
        )
    return _unit(
        item.unit,
        "service/rank.service.j2",
        **values,
        **{name: getattr(rank, name) for name in ("rank", "size", "cluster", "executor", "fingerprint")},
        containers=[part.container for part in rank.parts],
        supervisor=f"{LIBEXEC}/spark_rank.py",
        stop_seconds=item.limits.stop_seconds,
        stop_limit=rank_stop_seconds(item, rank),
    )


DEMAND_ETC = "/etc/dgxspark/on_demand"
DEMAND_STATE = "/var/lib/dgxspark/on_demand"
DEMAND_RUN = "/run/dgxspark/on_demand"
DEMAND_PROGRAM = f"{LIBEXEC}/spark_on_demand.py"
START_SLACK = 30
"""Seconds for a start that takes too long to end by its own limit, which tells the reason."""
RELEASE_SECONDS = round(hostmem.BACK_SECONDS) + 30
"""Seconds that a rank on demand takes at most, behind its containers, until the memory of all ranks is back."""
DEMAND_DRAIN_SECONDS = 300
"""Seconds that the program has for running requests before it ends."""


def on_demand(items: Sequence[PlannedService], servers: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the sockets of engines on demand, and the program that answers there and at the sockets of speech servers; see C(services).

    Ranks behind the first one have sockets at which the first one wakes them. The part of the speech servers has their sockets: it gives back the
    port of a server that is no longer on demand before the server listens there.
    """
    woken = {
        unit: _unit(unit, "service/rank.socket.j2", name=item.name, listen=f"{bracketed(rank.address)}:{rank.port}")
        for item in items
        if (rank := _woken_rank(item)) and (unit := f"spark-{item.name}.socket")
    }
    woken_files, woken_units = list(woken.values()), [_of_own_files(unit, [file]) for unit, file in woken.items()]
    waiting = [item for item in items if item.on_demand and item.state == ON_DEMAND and not _woken_rank(item)]
    names = [item.name for item in waiting]
    sockets = [f"spark-{name}.socket" for name in (*names, *map(itemgetter("name"), servers))]
    if not sockets:
        return {"folders": [], "files": woken_files, "units": woken_units, "created": []}
    imported = library("on_demand")
    files = [
        *imported["files"],
        *(_copy(f"{LIBEXEC}/{path.rpartition('/')[2]}", path) for path in host_programs.DEMAND_PROGRAMS),
        _file(f"{DEMAND_ETC}/settings.json", json_file(_demand_settings(waiting, servers))),
        *(socket_unit(item.name, item.host, item.port) for item in waiting),
        demand_unit(sockets),
    ]
    program = _of_own_files("spark-on-demand.service", [*files, *({"path": f"{SYSTEM}/{name}"} for name in sockets)])
    return {
        "folders": [*_folders(DEMAND_ETC), {"path": DEMAND_STATE, "remove": "whole"}, *imported["folders"]],
        "files": [*woken_files, *files],
        "units": [*woken_units, *map(_socket_state, names), program],
        "created": [DEMAND_RUN],
    }


def _socket_state(name: str) -> dict[str, Any]:
    """Return the unit of the socket of a service on demand. name: of the service."""
    unit = f"spark-{name}.socket"
    # Started by the unit of the program, to which systemd hands it; that one cannot take one more while it runs.
    return {**_of_own_files(unit, [{"path": f"{SYSTEM}/{unit}"}]), "state": "triggered"}


PLANNED = (
    *("engine", "set", "priority"),
    *("idle_seconds", "minimum_seconds", "hold_seconds", "while_loading", "retry_seconds"),
)
"""Settings of a service on demand that the program gets as they are planned."""


def _demand_settings(waiting: Sequence[PlannedService], servers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of the program that answers at the sockets."""
    rows: list[tuple[str, Mapping[str, Any], dict[str, Any]]] = []
    for item in waiting:
        length, rank = item.args.get("max-model-len"), item.settings.rank
        # Ranks wait for each other while their last run stops.
        meet = 0 if rank is None else rank.peer_timeout_seconds + rank_stop_seconds(item, rank)
        values = {
            "unit": item.unit,
            "model": item.served_model_name,
            "max_model_len": length if isinstance(length, int) else None,
            "api_key_file": item.probe.api_key_file,
            "start_seconds": item.start_timeout + round(meet) + START_SLACK,
        }
        rows.append((item.name, to_dict(item.on_demand), values))
    for server in servers:
        settings = server["settings"]
        values = {key: settings[key] for key in ("model", "health", "api_key_file")}
        values |= {"unit": server["unit"], "kind": server["kind"]}
        values["start_seconds"] = settings["start_seconds"] + START_SLACK
        rows.append((server["name"], server["on_demand"], values))
    roots = [*(item.settings.sysroot for item in waiting), *(server["settings"]["sysroot"] for server in servers)]
    return {
        "services": {name: {**values, **{key: planned[key] for key in PLANNED}} for name, planned, values in rows},
        "sets": {
            planned["set"]: {key: planned[key] for key in ("keep", "combinations")}
            for _name, planned, _values in rows
            if planned["set"]
        },
        "sysroot": roots[0],
        "run": DEMAND_RUN,
        "state": DEMAND_STATE,
    }


def socket_unit(name: str, address: str, port: int) -> dict[str, Any]:
    """Return the file of the socket at the port of a service that starts on demand."""
    listen = f"{bracketed(address)}:{port}"
    return _unit(f"spark-{name}.socket", "service/engine.socket.j2", name=name, port=port, listen=listen)


def demand_unit(sockets: Sequence[str]) -> dict[str, Any]:
    """Return the file of the unit of the program that answers at the sockets and has systemd start and stop the engines."""
    return _unit(
        "spark-on-demand.service",
        "service/spark-on-demand.service.j2",
        sockets=list(sockets),
        program=DEMAND_PROGRAM,
        stop_limit=DEMAND_DRAIN_SECONDS + 30,
        memory_mib=round(PROXY_GIB * 1024),
        state=DEMAND_STATE,
    )


def rank_stop_seconds(item: PlannedService, rank: RankSettings) -> int:
    """Return the seconds that a rank may take to stop; the first rank of a model on demand waits for the others."""
    seconds = round(ranks.stop_seconds(len(rank.parts), item.limits.stop_seconds))
    return seconds + (RELEASE_SECONDS if item.on_demand else 0)


# --- add-on services ------------------------------------------------------------------------------------------------------


def speech(planned: Sequence[Mapping[str, Any]], user: str) -> dict[str, Any]:
    """Return the folders, files and units of the speech servers of a host; see C(services)."""
    files: list[dict[str, Any]] = []
    folders: list[dict[str, Any]] = []
    if planned:
        files = unit_helper()["files"]
        folders = [{"path": SPEECH_ETC, "mode": "0750", "group": user}, *unit_helper()["folders"]]
    units = []
    for item in planned:
        folders += [folder for folder in item["folders"] if folder not in folders]
        name, is_on_demand = item["name"], bool(item.get("on_demand"))
        settings = f"{SPEECH_ETC}/{name}.json"
        unit = _unit(
            item["unit"],
            "speech/server.service.j2",
            **{key: item[key] for key in ("name", "kind", "port", "before", "container", "argv", "limits")},
            on_demand=is_on_demand,
            user=user,
            helper=HELPER,
            settings=settings,
            start_timeout=item["settings"]["start_seconds"] if is_on_demand else item["start_timeout"],
        )
        files += [
            _file(settings, json_file(item["settings"])),
            *([socket_unit(name, item["listen"], item["port"])] if is_on_demand else []),
            _file(item["env_file"], environment_file(item["env"]), group=user, mode="0640"),
            _verified(unit),
            *_secrets(item["secrets"]),
        ]
        units.append(
            {
                "name": item["unit"],
                "state": "triggered" if is_on_demand else "started",
                "enabled": not is_on_demand,
                # Without the settings: the helper reads them at each start.
                "restart_on": [item["env_file"], unit["path"], *(secret["path"] for secret in item["secrets"])],
            }
        )
        units += [_socket_state(name)] if is_on_demand else []
    state = "/var/lib/dgxspark/speech"
    return {
        "folders": folders,
        "files": files,
        "units": units,
        "created": [f"{state}/{item['name']}{end}" for item in planned for end in ("", ".proved.json")],
    }


def ollama(planned: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Return the folders, files and unit of Ollama; see C(services). planned: its part of the plan of add-on services."""
    unit, path = "spark-ollama.service", f"{OLLAMA_ETC}/ollama.json"
    settings = {
        "name": "ollama",
        "kind": "ollama",
        "unit": unit,
        "container": "spark-ollama",
        "url": planned["url"],
        "health": "/api/tags",
        "models": list(planned["models"]),
        "memory_gib": planned["memory_gib"],
        # It gives up a little before systemd would, so that the journal says why.
        "deadline_seconds": planned["start_timeout"] - 20,
    }
    values = {key: planned[key] for key in ("models_dir", "argv", "limits", "start_timeout")}
    text = _unit(unit, "ollama/spark-ollama.service.j2", user=user, helper=HELPER, settings=path, **values)
    environment = _file(f"{OLLAMA_ETC}/ollama.env", environment_file(planned["env"]), group=user, mode="0640")
    helper = unit_helper()
    return {
        "folders": [
            {"path": OLLAMA_ETC, "mode": "0750", "group": user},
            {"path": planned["models_dir"], "holds": "weights", "remove": "never"},
            *helper["folders"],
        ],
        "files": [
            *helper["files"],
            _file(path, json_file(settings)),
            # Units of engines use this URL to unload models.
            _file("/etc/dgxspark/ollama.json", json.dumps({"url": planned["url"]}) + "\n"),
            environment,
            _verified(text),
        ],
        # Other programs read the other files, at each start and stop.
        "units": [_of_own_files(unit, [environment, text])],
    }


PYTHON_STACKS = f"{LIBEXEC}/python_stacks.py"
"""A file that the watchdog of version 0.1.0 had."""
LIVE_FILES = f"{LIBEXEC}/live"
LIVE_NAMES = ("live.js", "uPlot.iife.min.js", "uPlot.min.css", "LICENSE.uPlot")
"""Files of the live page, for the agent and the fleet monitor."""
LIVE_KEY = "/etc/dgxspark/secrets/live-page/key"
AGENT_UNIT = "spark-agent.service"
AGENT_ETC = "/etc/dgxspark/agent"
AGENT_LOOPS = ("guard", "watchdog", "exporters", "live")
"""Loops of the agent, each with a settings file of its name, from the part of that name."""
AGENT_MIB = 64
"""C(MemoryMin) of the unit of the agent."""


def agent(loop: str, settings: Mapping[str, Any], writes: str = "") -> dict[str, Any]:
    """Return the folders, files and unit of the agent with one of its loops; see C(services).

    The rows of program and unit are the same for each loop, so the parts of the loops share them: the agent runs the loops whose part is deployed.
    loop: of C(AGENT_LOOPS). writes: a folder of the host that the loop writes to, beside its state.
    """
    program = f"{LIBEXEC}/spark_agent.py"
    imported = library("agent")
    unit = _verified(_unit(AGENT_UNIT, "guard/spark-agent.service.j2", program=program, memory_mib=AGENT_MIB))
    shared = [*imported["files"], _copy(program, "roles/guard/files/spark_agent.py"), unit]
    own = [_file(f"{AGENT_ETC}/{loop}.json", json_file(settings))]
    if writes:
        own.append(_unit(f"{AGENT_UNIT}.d/{loop}.conf", "guard/spark-agent.service.conf.j2", folder=writes))
    # Each part lists the files of all loops, so that its row of the unit is the same.
    patterns = (f"{AGENT_ETC}/%s.json", f"{SYSTEM}/{AGENT_UNIT}.d/%s.conf")
    of_loops = [pattern % name for name in AGENT_LOOPS for pattern in patterns]
    restart_on = [*(file["path"] for file in shared), *of_loops, LIVE_KEY]
    return {
        "folders": [*_folders(AGENT_ETC, *([f"{SYSTEM}/{AGENT_UNIT}.d"] if writes else [])), *imported["folders"]],
        "files": [*shared, *own],
        "units": [{"name": AGENT_UNIT, "enabled": True, "restart_on": restart_on}],
    }


def watchdog(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the watchdog, and what earlier versions left; see C(services). settings: its settings file."""
    rows = agent("watchdog", settings)
    rows["folders"].append({"path": "/var/lib/dgxspark/watchdog", "remove": "whole"})
    return {**rows, "removed": [PYTHON_STACKS]}


def guard(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the memory guard; see C(services). settings: its settings file."""
    sysroot = str(settings.get("sysroot") or "/")
    rows = agent("guard", settings, "" if sysroot == "/" else sysroot)
    rows["folders"].append({"path": "/var/lib/dgxspark/guard", "remove": "whole"})
    return rows


DROP_IN = "50-dgxspark.conf"
BOARD_WATCHDOG = "/dev/watchdog0"


def protection(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return drop-ins that keep a host in reach; see C(services).

    planned: C(ssh_mib), C(sessions_mib), C(journal_mib), C(hardware_watchdog_seconds), 0 or missing for none.
    """
    ssh, sessions, journal = (int(planned.get(f"{key}_mib") or 0) for key in ("ssh", "sessions", "journal"))
    seconds = int(planned.get("hardware_watchdog_seconds") or 0)
    # Folder, template, reserved size, values of the template.
    drop_ins = [
        ("/etc/systemd/system/ssh.service.d", "ssh.service", ssh, {"mib": ssh}),
        ("/etc/systemd/system/systemd-journald.service.d", "systemd-journald.service", journal, {"mib": journal}),
        ("/etc/systemd/system/system.slice.d", "slice", ssh + journal, {"mib": ssh + journal + AGENT_MIB}),
        ("/etc/systemd/system/user.slice.d", "slice", sessions, {"mib": sessions}),
        ("/etc/systemd/system.conf.d", "system", seconds, {"seconds": seconds}),
    ]
    files = [
        {"path": f"{folder}/{DROP_IN}", "template": f"guard/{name}.conf.j2", "values": values}
        # A board without a watchdog is not asked to use it.
        | ({"device": BOARD_WATCHDOG} if name == "system" else {})
        for folder, name, size, values in drop_ins
        if size
    ]
    return {
        "folders": _folders(*(folder for folder, _name, size, _values in drop_ins if size)),
        "files": files,
        "units": [],
    }


def gpu_clocks(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unit that keeps the clocks of the GPU below a limit; see C(services). planned: C(max_mhz), C(min_mhz)."""
    name = "spark-gpu-clocks.service"
    limits = {key: int(planned.get(key) or 0) for key in ("min_mhz", "max_mhz")}
    files = [_verified(_unit(name, "guard/spark-gpu-clocks.service.j2", **limits))]
    return {"folders": [], "files": files, "units": [_of_own_files(name, files)]}


def power(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the switches for an idle Spark; see C(services). planned: C(switches), names of C(power.IDLE)."""
    name, program, imported = "spark-power.service", f"{LIBEXEC}/spark_power.py", library("power")
    unit = _verified(_unit(name, "guard/spark-power.service.j2", program=program, switches=list(planned["switches"])))
    files = [*imported["files"], _copy(program, "roles/guard/files/spark_power.py"), unit]
    return {
        "folders": imported["folders"],
        "files": files,
        # Stopping it restores the state before, so that a removed row and a reset undo the switches.
        "units": [_of_own_files(name, [unit])],
        "created": ["/var/lib/dgxspark/power.json"],
    }


def host(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accounts, folders and files that every Spark needs before its services; see C(services). variables: of the role host, by name."""
    user = variables["host_user"]
    return {
        "accounts": {
            user: {**ACCOUNT, "remove": True},
            **{name: {} for name in variables["host_docker_users"] if name != user},
        },
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
            _copy(HELPER, "roles/host/files/spark_unit.py"),
            _copy(f"{LIBEXEC}/spark_rank.py", "roles/host/files/spark_rank.py"),
            _copy(f"{LIBEXEC}/with-secrets", "roles/host/files/with-secrets", mode="0755"),
        ],
        "units": [],
    }


def live(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the live page; see C(services). planned: of C(live.plan)."""
    rows = agent("live", planned["settings"])
    rows["folders"] += _folders(LIBEXEC, LIVE_FILES)
    rows["files"] += [_copy(f"{LIVE_FILES}/{name}", f"roles/guard/files/live/{name}") for name in LIVE_NAMES]
    if planned["key"]:
        folders = ("/etc/dgxspark/secrets", LIVE_KEY.rpartition("/")[0])
        rows["folders"] += [{"path": path, "mode": "0700"} for path in folders]
        rows["files"] += _secrets([{"path": LIVE_KEY, "source": planned["key"]}])
    return rows


# --- a host -------------------------------------------------------------------------------------------------------------


def render(
    planned: Mapping[str, Any],
    addons: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return what the roles that run on every Spark install on a host, by part.

    :param variables: variables of roles that are set for the host, by name; others have the defaults of the roles
    :returns: arguments of the module deploy: C(folders), C(files) with C(content), C(template), C(source), a file of the
        controller, or C(bundled), a file of this collection, C(units) and C(created); of the host C(accounts), too
    :raises ValueError: for a value that no environment file can hold; the plan refuses that by name before
    """
    settings, beside = planned["settings"], addons or {}
    role_variables = {
        **DEFAULTS,
        "host_hf_home": settings["hf_home"],
        "host_cache_dir": settings["cache_dir"],
        "service_hf_home": settings["hf_home"],
        **(variables or {}),
    }
    parts = {
        "host": host(role_variables),
        "services": services(
            planned.get("services") or [],
            role_variables["service_user"],
            role_variables["service_hf_home"],
            (beside.get("speech") or {}).get("services") or [],
        ),
    }
    if beside.get("speech"):
        parts["speech"] = speech(beside["speech"]["services"], role_variables["speech_user"])
    if beside.get("ollama") and beside["ollama"].get("state") == "present":
        parts["ollama"] = ollama(beside["ollama"], role_variables["ollama_user"])
    for name, rows in (("watchdog", watchdog), ("guard", guard)):
        if beside.get(name) and beside[name].get("state") == "present":
            parts[name] = rows(beside[name]["settings"])
    planned_guard = beside.get("guard") or {}
    makers = {"live": live, "protection": protection, "clocks": gpu_clocks, "power": power}
    parts |= {maker.__name__: maker(planned_guard[key]) for key, maker in makers.items() if planned_guard.get(key)}
    return parts


def planned_state(
    planned: Mapping[str, Any],
    addons: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> HostState:
    """Return the state document of a host; parts that are planned as absent have no rows.

    :param planned: see C(render) for the first three
    :param complete: fills in the contents of the files of a part
    """
    parts = render(planned, addons, variables)
    return merge(HostState.from_dict(complete(document), PARTS.get(name, name)) for name, document in parts.items())
