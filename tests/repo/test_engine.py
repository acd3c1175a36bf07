"""The engine is pure: its output follows from its input alone, on any machine, at any time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree

# What may look at the world, and at which part of it.
LOOKS_AT = {
    "lever_texts": "its own table, levers.yml, on the controller",
    "cleanup": "what lies on a host, below folders that it is given",
    "beneath": "files below a folder that it is given",
    "command": "programs of a host",
    "endpoint": "model servers, through their client, and the clock to wait by",
    "engine_client": "model servers, over HTTP, and the file of a key",
    "http_client": "servers, over HTTP, and the proxies of the environment",
    "parallel": "the clock to wait by",
    "unit_history": "the journal and systemd of a host through a view, its boot id and both clocks",
    "live_host": "what a host says of itself, below folders that it is given, programs, and engines, over HTTP",
    "live_agent": "settings and the key of the live page, programs that start, stop and drain services, pins, and the clock",
    "live_fleet": "agents, over HTTP, the results of the fleet monitor in a file, and the clock",
    "live_server": "readers, over HTTP, files of the page in a folder that it is given, and the clock",
    "accounts": "processes of the host, programs, and model servers, over HTTP, for the memory guard",
    "kv_files": "files of KV caches below a folder that it is given, which it removes, and the revisions of models",
    "kv_probe": "a model server, over HTTP, and the clock",
    "evidence": "processes and logs of the host, model servers, over HTTP, and files of evidence, which it writes",
    "figures": "what a host says of itself, below folders that it is given, and the page of metrics, which it writes",
    "loops": "processes and threads of the agent, and the clock",
    "memory": "a host's /proc, below a root that it is given, the clocks, programs, and its state, which it writes",
    "services": "settings of services, programs, and the clock to wait by",
    "questions": "model servers, over HTTP, the clocks, a program of the gateway, and its state, which it writes",
    "watch": "programs, model servers, over HTTP, the clocks, and its state, which it writes",
    "start_lock": "the start lock below a folder that it is given, and systemd",
    "client_checks": "chat clients, over HTTP, and the clock to wait by",
    "server_checks": "speech servers and Ollama, over HTTP, programs, and the clock to wait by",
    "engine_access": "owners, modes and ACLs below a folder that it is given",
    "engine_logs": "what Ray's workers wrote, below a folder that it is given, and programs through the module",
    "engines": "what a host says of its engines, below folders that it is given, over HTTP, and programs through the module",
    "descriptions": "the descriptions of add-on services in the roles of this collection, on the controller",
    "deploy": "whether paths are as a document says, through what it is given",
    "deploy_accounts": "accounts of the host, and programs through what it is given",
    "deploy_fill": "values of the host that contents of a document ask for: ports, accounts, files of keys",
    "deployed": "the record of what is deployed, which it writes, and what older records and unit files say",
    "reset": "what the collection put on a host, which it removes",
    "deploy_files": "files and folders that a document names, which it writes, and accounts of the host",
    "deploy_removal": "files and folders that a document names, which it removes",
    "deploy_units": "systemd, through the program that it is given, and the clock since boot",
    "deployment": "the folder of what lasts until the next boot, and accounts of the host",
    "file_times": "when files of a host were put in place, by a mark on them",
    "file_stream": "files of a folder that it is given, and one connection to another host",
    "compare_programs": "programs of a host through what it is given, whether it has ufw, and the drained backends of its gateway",
    "compare_contents": "files of a host below a root that it is given",
    "document_check": "files and accounts that a document names",
    "generation_host": "files of a host below a root that it is given, and programs through the module",
    "generation_records": "the folder of generations, which it writes, and the time of a record",
    "generation_restore": "files of a host below a root that it is given, which it writes, and its accounts",
    "unmanaged": "files of units, notes and processes of a host, and its programs through a view",
    "machine": "a host's /proc, /sys and /etc, below a root that it is given, and its accounts",
    "network": "a host's /proc, /sys and /etc, below a root that it is given",
    "host_facts": "the name and the programs of a host, and files of its settings",
    "host_view": "programs of a host, through what it is given, and its files, below a root that it is given",
    "host_report": "folders of a host that it is given",
    "cable_probe": "the QSFP interfaces of a host, by packet sockets and a clock, and its programs through a view",
    "controller": "the name of the machine and of the account that it runs on",
    "host_programs": "programs and files of this collection",
    "host_lock": "a lock and notes below a folder of the host, and a clock to wait by",
    "compile_cache": "the folder of a service's caches, and the notes of the host",
    "power_switches": "files of a host below a root that it is given, some of which it writes",
    "host_health": "logs, folders, accounts and clock of a host, its programs through a view, and model servers, over HTTP",
    "hostmem": "a host's /proc/meminfo and drop_caches, below a root that it is given",
    "speed_probe": "model servers, through their client, and the clock to measure by",
    "host_proof": "programs of a host and the files of receipts, through the module that it is given",
    "image_probe": "the folder of what images said, which it writes, and docker through the program that it is given",
    "image_looks": "the folder of what images said, which it is given, and docker through the program that it is given",
    "spread_access": "files of a distribution, which it writes below a folder that it is given",
    "spread_server": "files and images of a host, which it sends to other hosts, and the request in the environment",
    "spread_worker": "files and images of a host, which it takes from other hosts, and a clock to wait by",
    "incoming": "free space and folders of a host, at paths that it is given, and the login user",
    "image_archive": "docker save and docker load, and files in a folder that it is given, through programs that compress and cut",
    "image_probe_program": "the inside of an image, where it runs",
    "plan_probe_standins": "the inside of an image, where it runs",
    "plan_probe_program": "the inside of an image, where it runs",
    "collective_program": "the inside of an image, where it runs, and the network that its ranks talk over",
    "key_files": "files of keys, on the controller",
    "made": "what lies below folders of the host, as far as it was noted",
    "ray_nodes": "a Ray cluster, from inside one of its containers",
    "pins": "the file of a pin, which it writes",
    "readiness": "a model server, over HTTP, and programs through the module; and it waits",
    "receipt_file": "the file of a receipt, through the module that it is given",
    "model_files": "the models on a disk, below a folder that it is given",
    "file_sums": "the sums of files, which it keeps below a folder that it is given",
    "snapshots": "the models on a disk, below a folder that it is given",
    "state_file": "the file of a state, which it writes",
    "systemd": "the service manager, by its socket",
    "unloading": "an Ollama, over HTTP, and the file that says where it is; and it waits",
    "service_status": "model servers, over HTTP, records and receipts below folders that it is given, and the clocks",
    "staging": "files beside their place, and the clock for their age",
    "distribution": "folders that it is given, their disks, and programs of a host through a view",
    "spread_files": "the files of models on a disk, below a folder that it is given, and what is known of them",
    "unmanaged_state": "the note of a launch, which it writes, processes of a host, and programs through what it is given",
    "upstream": "registries and the hub, over HTTP",
    "units": "systemd, through the program that it is given, and the clock since boot",
}
# Enough of the standard library for arithmetic and texts, and nothing that reaches out.
PURE = {
    "__future__",
    "ast",
    "base64",
    "binascii",
    "collections",
    "contextlib",
    "contextvars",
    "copy",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    "fnmatch",
    "functools",
    "gzip",
    "hashlib",
    "html",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "random",  # with a seed
    "statistics",
    "operator",
    "pathlib.Pure",
    "posixpath",
    "re",
    "shlex",
    "string",
    "tarfile",
    "textwrap",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
    "zlib",
}
# Builtins that read or write, and methods of datetime that look at a clock.
REACHES_OUT = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint"}
CLOCKS = {"now", "utcnow", "today"}
FILES = [name for name in tree.below("plugins/module_utils/", suffix=".py") if "__init__" not in name]


def imports(syntax: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in a file."""
    for node in ast.walk(syntax):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = [alias.name for alias in node.names]
            # Of pathlib, the pure paths are names and no files.
            pure = module == "pathlib" and all(name.startswith("Pure") for name in names)
            yield "pathlib.Pure" if pure else module


def impurities(text: str) -> list[str]:
    """What in a file reaches beyond its input."""
    syntax = ast.parse(text)
    lines = [
        f"imports {name}"
        for name in imports(syntax)
        if name not in PURE and name.split(".", 1)[0] not in PURE and not name.startswith(".")
    ]
    for node in ast.walk(syntax):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in REACHES_OUT:
            lines.append(f"calls {node.func.id}")
        if isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            lines.append(f"calls {node.func.attr}")
        # An archive in memory is opened by an object, one on a disk by a name.
        named = not any(keyword.arg == "fileobj" for keyword in node.keywords)
        if named and isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            lines.append("calls open")
    return lines


@tree.each(FILES)
def test_no_part_of_the_engine_knows_ansible(name: str) -> None:
    modules = [module for module in imports(ast.parse(tree.read(name))) if module.split(".", 1)[0] == "ansible"]
    assert modules == []


@tree.each(name for name in FILES if Path(name).stem not in LOOKS_AT)
def test_the_engine_reads_nothing_but_its_input(name: str) -> None:
    assert impurities(tree.read(name)) == []


def test_what_may_look_at_the_world_is_there_and_does() -> None:
    stems = {Path(name).stem: name for name in FILES}
    assert sorted(LOOKS_AT) == sorted(set(LOOKS_AT) & set(stems))
    looks = {stem for stem in LOOKS_AT if impurities(tree.read(stems[stem]))}
    assert looks == set(LOOKS_AT)


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from pathlib import Path",
        "def f():\n    import socket",
        "open('x')",
        "datetime.now()",
        "io.open('x')",
    ],
)
def test_what_reaches_out_is_found(text: str) -> None:
    assert impurities(text)
