"""The test suite, in stages: `make test`, `make test-quick`, or one stage by its name.

A stage runs all of its checks and prints the output of those that failed. The suite stops after the first failed
stage. Whatever happens, the last line is the sum: N passed, N failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import scenarios
import yaml
from common import (
    BIN,
    CACHE,
    ROOT,
    SPARKSIM,
    Stopwatch,
    duration,
    environment,
    find_python,
    git,
    heading,
    pip_settings,
    run,
    tool_env,
    tracked_files,
)

COLLECTION = Path("ansible_collections") / "dgxspark" / "vllm"
IN_CLONE = ROOT / "collections" / COLLECTION  # a symlink to ROOT under which imports and FQCNs resolve

LOGS = CACHE / "test-logs"
LINES_SHOWN = 80  # of a failed check
PROGRESS = r"[.sxXFE]+ *\[ *\d+%\]"  # pytest's dots

FEW = 5  # tests that may have failed for want of a core
FAILURE_LINES, FAILURE_WIDTH = 8, 1000  # of what is said once more of a failed check, at the end
FATAL = re.compile(r"fatal: \[|\[ERROR\]: ")  # how Ansible begins what it says of a failed task

# Supported ansible-core: the release to install and the controller Pythons it runs on, best first.
CORES = {
    "2.22": (">=2.22.0,<2.23", ("3.13", "3.14")),
    "2.21": (">=2.21.0,<2.22", ("3.13", "3.14", "3.12")),
    "2.20": (">=2.20.0,<2.21", ("3.13", "3.14", "3.12")),
    "2.19": (">=2.19.0,<2.20", ("3.13", "3.12", "3.11")),
}
# Pythons a managed host may have; modules are compiled and imported on each of them that is at hand.
HOST_PYTHONS = ("3.9", "3.10", "3.11", "3.12")
# What pytest reads of this repository; scenarios and real programs have stages of their own.
TESTS = ("tests/unit", "tests/repo", "tests/monitoring")
# What ansible-test sees: the collection as shipped. Its unit tests, of which pylint takes longer than of all else, are for the night.
SANITY_PATHS = [
    "galaxy.yml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "changelogs",
    "docs",
    "meta",
    "playbooks",
    "plugins",
    "roles",
]
UNIT_TESTS = "tests/unit"
# pylint takes longer than all other tests of ansible-test. ruff and mypy see most of what it does on each change, ruff and yamllint what
# pep8 and yamllint do; what imports on the oldest Python of hosts, and in unit tests on that of the controller, imports.
NIGHTLY_SANITY = ("import", "pep8", "pylint", "yamllint")
# With which the syntax of playbooks is checked, and which are planned from an empty directory, on each change: services beside engines on
# a host of their own, and a cluster beside a Spark.
EXAMPLES_OF_EACH_CHANGE = ("duo", "pair_and_single")


@dataclass
class Result:
    """One check: what it printed, how long it took, how many tests it stands for."""

    label: str
    ok: bool
    seconds: float
    output: str = ""
    note: str = ""
    passed: int = 0
    failed: int = 0
    first_output: str = ""  # of an attempt that failed before this one


@dataclass
class Check:
    """One command of a stage. Several argv run one after the other and count as one check."""

    label: str
    commands: list[list[str]]
    cwd: Path = ROOT
    env: dict[str, str] = field(default_factory=tool_env)


def execute(check: Check) -> Result:
    """Run a check with its output kept, and say how it went."""
    watch, output, code = Stopwatch(), "", 0
    for argv in check.commands:
        done = subprocess.run(
            argv, cwd=check.cwd, env=check.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output += f"$ {textwrap.shorten(' '.join(argv), 300, placeholder=' ...')}\n{done.stdout}"
        code = code or done.returncode
    return finish(Result(check.label, code == 0, watch.seconds, output))


def finish(result: Result) -> Result:
    """Count, and print the line of a check (with its output when it failed)."""
    count_tests(result)
    print(
        f"   {'ok    ' if result.ok else 'FAILED'} {result.label} ({duration(result.seconds)}) {result.note}".rstrip(),
        flush=True,
    )
    if not result.ok:
        # Which tests failed comes first: a page that keeps only the beginning of a long log shows that much.
        lines = [line for line in result.output.rstrip().splitlines() if not re.fullmatch(PROGRESS, line)]
        failed = tests_named(result.output)
        lines = [line for line in lines if line not in failed]
        if len(lines) > LINES_SHOWN:
            log = LOGS / (re.sub(r"\W+", "-", result.label) + ".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(result.output, encoding="utf-8")
            lines = [
                f"... the last {LINES_SHOWN} of {len(lines)} lines; all are in {log.relative_to(ROOT)}",
                *lines[-LINES_SHOWN:],
            ]
        print("\n".join(f"   | {line}" for line in failed + lines), flush=True)
    return result


def tests_named(output: str) -> list[str]:
    """The lines in which pytest names the tests that failed, with what they said."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def failures(results: list[Result]) -> list[str]:
    """What to read first of the checks that failed, at last or at first: their tests, or the last that Ansible said of a task.

    It is printed last: a page that keeps only the end of a long log shows that much.
    """
    lines = []
    for result in results:
        if not result.ok:
            lines += [f"   FAILED {result.label}", *reasons(result.output)]
        elif result.first_output:
            lines += [f"   FAILED ONCE, then passed: {result.label}", *reasons(result.first_output)]
    return lines


def reasons(output: str) -> list[str]:
    """What a failed check said of why, in a few lines."""
    lines = tests_named(output)
    lines = lines or [line for line in output.splitlines() if FATAL.search(line)][-2:]
    lines = lines or output.rstrip().splitlines()[-3:]
    return [f"   | {line[:FAILURE_WIDTH]}" for line in lines[:FAILURE_LINES]]


def count_tests(result: Result) -> None:
    """Take the numbers from pytest's closing lines; a check without one counts as a single test."""
    closing = [
        line
        for line in result.output.splitlines()
        if re.search(r"\d+ (passed|failed|error|skipped).* in [\d.]+s", line)
    ]
    for line in closing:
        result.passed += sum(int(n) for n in re.findall(r"(\d+) passed", line))
        result.failed += sum(int(n) for n in re.findall(r"(\d+) (?:failed|error)", line))
    if closing and not result.note:
        result.note = closing[-1].strip("= ")
    if not closing:
        result.passed = int(result.ok)
    if not result.ok:
        result.failed = max(result.failed, 1)


def together(checks: list[Check]) -> list[Result]:
    """Run independent checks, as many at once as there are cores (at most four)."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(execute, checks))


def simple(label: str, *argv: str) -> Check:
    """A check of one command in the repository."""
    return Check(label, [list(argv)])


def inventories(thorough: bool = True) -> list[Path]:
    """The example inventories that people copy; unless thorough, a few of them."""
    folders = sorted(path for path in ROOT.glob("inventories/*") if path.is_dir())
    return [path for path in folders if thorough or path.name in EXAMPLES_OF_EACH_CHANGE]


def playbooks() -> list[Path]:
    """Every playbook, the one at the root included."""
    paths = sorted(path for path in ROOT.glob("playbooks/*.yml") if not path.name.endswith(".meta.yml"))
    return [ROOT / "site.yml", *paths]


# --- lint -----------------------------------------------------------------------------------------------------------


def lint(thorough: bool) -> list[Result]:
    """Style, types, shell scripts and workflows. mypy sees plugins and programs of hosts under their import names, as strict as pyproject.toml says."""
    python = [
        name
        for name in tracked_files("scripts", "molecule/tutorial.py", "tests/bench", "tests/repo", "tests/monitoring")
        if name.endswith(".py")
    ]
    code = [
        str(IN_CLONE / f"plugins/{name}")
        for name in ("module_utils", "plugin_utils", "action", "callback", "filter", "lookup", "modules")
        if list((ROOT / "plugins" / name).rglob("*.py"))
    ]
    programs = [
        name
        for name in tracked_files("roles")
        # What runs in LiteLLM's container derives from classes that are not here.
        if re.fullmatch(r"roles/\w+/files/\w+\.py", name)
    ]
    libraries = CACHE / "host-libraries"
    libraries.mkdir(parents=True, exist_ok=True)
    if not (libraries / "dgxspark_vllm").is_symlink():
        # As roles install it; relative, so that a copied clone reads its own.
        (libraries / "dgxspark_vllm").symlink_to(os.path.relpath(ROOT / "plugins" / "module_utils", libraries))
    search = os.pathsep.join([str(libraries), *sorted({str(Path(name).parent) for name in programs})])
    ansible_lint = simple("ansible-lint", "ansible-lint", "--offline", "--strict", "--nocolor", "-q")
    # It has ansible-playbook read the syntax of a hundred playbooks, each in a process of its own.
    settings = tool_env(
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_COLLECTIONS_PATH=str(ROOT / "collections"),
        ANSIBLE_ROLES_PATH=str(ROOT / "roles"),
    )
    with scenarios.quick_ansible(settings, CACHE / "quick-lint", own_settings=False) as quick:
        ansible_lint.env["PATH"] = f"{quick}{os.pathsep}{ansible_lint.env['PATH']}"
        return together(
            [
                ansible_lint,
                Check("mypy", [["mypy", *code], ["mypy", "--explicit-package-bases", *python]]),
                Check("mypy of programs of hosts", [["mypy", *programs]], env=tool_env(MYPYPATH=search)),
                # Pytest keeps the tests as it compiled them; otherwise each of its workers would do that by itself.
                simple("tests can be collected", "pytest", "--collect-only", "-qq", *TESTS),
                simple("ruff check", "ruff", "check", "."),
                simple("ruff format (make format)", "ruff", "format", "--check", "--output-format", "concise", "."),
                simple("yamllint", "yamllint", "--strict", *yaml_files()),
                simple("shellcheck", "shellcheck", *shell_files(), *workflow_scripts(CACHE / "workflow-scripts")),
                # What an action may do, and what of a pull request becomes a part of a script; nothing is asked of the network.
                simple("zizmor", "zizmor", "--offline", "--quiet", "--no-progress", ".github"),
            ]
        )


def shell_files() -> list[str]:
    """Scripts for a shell, but for templates, and what tests read of others."""
    names = []
    for name in tracked_files():
        if not name.endswith(".j2") and "/fixtures/" not in name and (ROOT / name).is_file():
            with (ROOT / name).open("rb") as stream:
                if re.match(rb"#!.*\b(ba|da)?sh\b", stream.readline(200)):
                    names.append(name)
    return names


def workflow_scripts(folder: Path) -> list[str]:
    """Write each script of a workflow into a folder, as the runner's shell gets it; returns their paths.

    :param folder: is made anew
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = []
    for name in tracked_files(".github/workflows"):
        for job, settings in yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["jobs"].items():
            for number, step in enumerate(settings.get("steps", ())):
                if "run" in step:
                    path = folder / f"{Path(name).stem}-{job}-{number}.sh"
                    # Variables of the step come from outside, and expressions are filled in before a shell reads it.
                    exports = "".join(f"export {key}=\n" for key in step.get("env", {}))
                    text = re.sub(r"\$\{\{.*?\}\}", "expression", step["run"])
                    path.write_text(f"#!/bin/bash\n{exports}{text}\n", encoding="utf-8")
                    paths.append(str(path))
    return paths


def yaml_files() -> list[str]:
    """YAML that is ours; yamllint given a directory would follow the symlink under collections/."""
    return [name for name in tracked_files() if name.endswith((".yml", ".yaml")) or name == ".ansible-lint"]


# --- documentation --------------------------------------------------------------------------------------------------


def docs_lint(thorough: bool) -> list[Result]:
    """Documentation of plugins and roles, the changelog, and all pages as a site, with its links. When thorough, the site is written, too."""
    site = simple("documentation site", sys.executable, "scripts/docs_site.py", *(() if thorough else ("--check",)))
    # What rstcheck would find in generated pages fails the site, too, which is made of the same pages.
    lint_docs = [
        "antsibull-docs",
        "lint-collection-docs",
        "--plugin-docs",
        "--validate-collection-refs",
        "all",
        "--skip-rstcheck",
        ".",
    ]
    return together(
        [simple("antsibull-docs", *lint_docs), simple("antsibull-changelog", "antsibull-changelog", "lint"), site]
    )


# --- unit -----------------------------------------------------------------------------------------------------------


def unit(thorough: bool, *options: str) -> list[Result]:
    """pytest over tests/unit, tests/repo, and tests/monitoring with its real Prometheus.

    :param thorough: also the tests that are marked C(nightly), and more generated cases
    :param options: of pytest
    """
    # More than there are cores: the tests of the supervisors mostly wait. Who has none left takes some of the others'.
    spread = ("-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal")
    selection = options if thorough or options else ("-m", "not nightly")
    paths = (*selection, *TESTS)
    check = simple("pytest", "pytest", *spread, *paths)
    if thorough:
        check.env["HOSTILE_CASES"] = HOSTILE_CASES
    result = execute(check)
    if not result.ok and result.failed <= FEW:
        # Several workers share each core. A test that fails alone, too, is broken; one that fails beside others is said at the end.
        check = Check("pytest, what failed once more", [["pytest", "--last-failed", *paths]], env=check.env)
        first, result = result, execute(check)
        result.first_output = first.output
        result.passed += first.passed
    return [result]


def unit_quick(thorough: bool) -> list[Result]:
    """The same without playbooks and processes that mostly wait."""
    return unit(thorough, "-m", "not slow and not nightly")


# --- sanity ---------------------------------------------------------------------------------------------------------

# ansible-test downloads pip's installer from its own site.
# This makes do with the Python's own copy and the configured index.
GET_PIP = """\
import subprocess, sys
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted]).returncode)
"""


def core_venv(core: str) -> tuple[Path | None, str]:
    """The cached environment of one ansible-core; or None with the reason why it cannot be had."""
    release, pythons = CORES[core]
    python = find_python(*pythons)
    if python is None:
        return None, f"needs Python {' or '.join(pythons)}"
    venv = CACHE / f"core-{core}"
    stamp = venv / "stamp"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == f"{release} {python}":
        return venv, ""
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([python, "-m", "venv", venv], check=True)
    # uv is quicker; pip sees indexes that are configured for pip alone.
    installers: list[list[str | Path]] = [
        [BIN / "uv", "pip", "install", "-q", "--prerelease", "disallow", "--python", venv / "bin" / "python"],
        [venv / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"],
    ]
    for installer in installers:
        done = subprocess.run(
            [*installer, f"ansible-core{release}"], text=True, capture_output=True, env=tool_env(), check=False
        )
        if done.returncode == 0:
            stamp.write_text(f"{release} {python}", encoding="utf-8")
            return venv, ""
    shutil.rmtree(venv, ignore_errors=True)
    missing = "No matching distribution" in done.stderr
    return (
        None,
        "no release to be had yet" if missing else f"cannot be installed: {done.stderr.strip().splitlines()[-1]}",
    )


def ansible_test_env(name: str, venv: Path) -> dict[str, str]:
    """A HOME of its own for each ansible-test, which keeps its caches there and drops most of the environment."""
    home = CACHE / "at" / name  # short: the paths of its environments end up in #! lines
    pip_conf = home / ".config" / "pip" / "pip.conf"
    pip_conf.parent.mkdir(parents=True, exist_ok=True)
    pip_conf.write_text(pip_settings(), encoding="utf-8")
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    requirements = next(venv.glob("lib/python*/site-packages/ansible_test/_internal/python_requirements.py"))
    for version in set(re.findall(r"pip='([\d.]+)'", requirements.read_text(encoding="utf-8"))):
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(GET_PIP, encoding="utf-8")
    pythons = [str(Path(path).parent) for path in map(find_python, HOST_PYTHONS) if path]
    path = os.pathsep.join([str(venv / "bin"), *pythons, os.environ["PATH"]])  # ahead of pyenv's shims
    return {**tool_env(), "HOME": str(home), "PATH": path, "PYTHONPATH": ""}


def copy_collection(target: Path, paths: list[str]) -> Path:
    """A copy of our files at a real .../ansible_collections/dgxspark/vllm with git, as ansible-test wants it."""
    tree = target / COLLECTION
    # Scripts of others that tests read are no scripts of ours.
    for name in [
        file_name
        for file_name in tracked_files(*paths)
        if not ("/fixtures/" in file_name and file_name.endswith(".sh"))
    ]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    git("init", "--quiet", root=tree)
    git("add", "--all", root=tree)
    return tree


def sanity(thorough: bool) -> list[Result]:
    """ansible-test sanity without what lint has (C(NIGHTLY_SANITY)), and a syntax check, on the newest core at hand; modules on the oldest Python of hosts.

    When thorough, all of it on each core, with the unit tests, and modules on each Python of hosts.
    """
    paths = [*SANITY_PATHS, UNIT_TESTS] if thorough else SANITY_PATHS
    checks: list[Check] = []
    left_out: list[str] = []
    newest = ""
    with tempfile.TemporaryDirectory(prefix="sanity-") as temporary:
        for core in CORES:
            if newest and not thorough:
                break
            venv, reason = core_venv(core)
            if venv is None:
                left_out.append(f"ansible-core {core}: {reason}")
                continue
            env = ansible_test_env(core, venv)
            tree = copy_collection(Path(temporary) / core, paths)
            minor = next(venv.glob("lib/python*")).name.removeprefix("python")
            ansible_test = [str(venv / "bin" / "ansible-test"), "sanity", "--color", "no"]
            skipped = [] if thorough else [word for test in NIGHTLY_SANITY for word in ("--skip-test", test)]
            commands = [[*ansible_test, "--python", minor, *skipped]]
            checks.append(Check(f"ansible-test sanity, core {core} on Python {minor}", commands, tree, env))
            if not newest:
                newest = core
                at_hand = [python for python in HOST_PYTHONS if python != minor and find_python(python)]
                left_out += [
                    f"host Python {python}: not on this machine"
                    for python in HOST_PYTHONS
                    if python not in (minor, *at_hand)
                ]
                checked_pythons = at_hand if thorough else at_hand[:1]
                imports = [
                    [*ansible_test, "--python", python, "--test", "compile", "--test", "import"]
                    for python in checked_pythons
                ]
                beside = copy_collection(Path(temporary) / "hosts", SANITY_PATHS)
                label = f"compile and import on Python {', '.join(checked_pythons)}"
                checks.append(Check(label, imports, beside, ansible_test_env("hosts", venv)))
            syntax = [str(venv / "bin" / "ansible-playbook"), "--syntax-check", *map(str, playbooks())]
            examples = inventories(thorough)
            checks.append(
                Check(
                    f"syntax of {len(playbooks())} playbooks with {len(examples)} inventories, core {core}",
                    [[*syntax, "-i", str(inventory)] for inventory in examples],
                    env={**env, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
                )
            )
        results = together(checks)
    for line in left_out:
        print(f"   left out: {line}")
    if not newest:
        results.append(
            finish(Result("ansible-core", False, 0.0, "none of the supported versions can be installed here"))
        )
    return results


def core(thorough: bool, version: str = "", minor: str = "") -> list[Result]:
    """One ansible-core on one Python, as a row of CI's matrix has them: unit tests that do not wait, sanity and syntax.

    :param version: a key of CORES; the newest when left out
    :param minor: the controller's Python; the first of the core's when left out
    """
    version = version or next(iter(CORES))
    release, pythons = CORES[version]
    minor = minor or pythons[0]
    label = f"ansible-core {version} on Python {minor}"
    python = find_python(minor)
    if python is None or minor not in pythons:
        why = (
            f"it runs on Python {', '.join(pythons)}" if minor not in pythons else "that Python is not on this machine"
        )
        return [finish(Result(label, False, 0.0, why))]
    venv = CACHE / f"dev-{version}-{minor}"
    subprocess.run([python, "-m", "venv", "--clear", venv], check=True)
    # All tools are those of the lock; this core takes the place of the one that it has. Of one that is not out yet, the candidate.
    override = venv / "override.txt"
    install: list[str | Path] = [
        BIN / "uv",
        "pip",
        "install",
        "-q",
        "--python",
        venv / "bin" / "python",
        "--override",
        override,
    ]
    install += ["-r", ROOT / "requirements-dev.txt"]
    for specifier in (release, release.replace(".0,", ".0rc0,")):
        override.write_text(f"ansible-core{specifier}\n", encoding="utf-8")
        done = subprocess.run(install, text=True, capture_output=True, env=tool_env(), check=False)
        if done.returncode == 0:
            break
    else:
        return [finish(Result(label, False, 0.0, done.stderr))]
    env = tool_env()
    env["PATH"] = f"{venv / 'bin'}{os.pathsep}{env['PATH']}"
    pytest = [str(venv / "bin" / "python"), "-m", "pytest", "-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal"]
    results = [execute(Check(f"pytest, {label}", [[*pytest, "-m", "not slow", "tests/unit", "tests/repo"]], env=env))]
    test_env = ansible_test_env(f"{version}-{minor}", venv)
    syntax = [str(venv / "bin" / "ansible-playbook"), "--syntax-check", *map(str, playbooks())]
    with tempfile.TemporaryDirectory(prefix="core-") as temporary:
        tree = copy_collection(Path(temporary), [*SANITY_PATHS, UNIT_TESTS])
        sanity_argv = [str(venv / "bin" / "ansible-test"), "sanity", "--color", "no", "--python", minor]
        results += together(
            [
                Check(f"ansible-test sanity, {label}", [sanity_argv], tree, test_env),
                Check(
                    f"syntax of {len(playbooks())} playbooks, {label}",
                    [[*syntax, "-i", str(inventory)] for inventory in inventories()],
                    env={**test_env, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
                ),
            ]
        )
    return results


# --- artifact -------------------------------------------------------------------------------------------------------


def artifact(thorough: bool) -> list[Result]:
    """Build, look into the tarball, install it in an empty environment, and use it from an empty directory.

    When thorough, with every example, and Galaxy's own importer reads it, too.
    """
    with tempfile.TemporaryDirectory(prefix="artifact-") as temporary:
        place = Path(temporary)
        (place / "ansible.cfg").write_text("", encoding="utf-8")  # keeps /etc/ansible/ansible.cfg out of it
        env = tool_env(
            ANSIBLE_COLLECTIONS_PATH=str(place / "collections"),
            ANSIBLE_CONFIG=str(place / "ansible.cfg"),
            HOME=temporary,
            PYTHONPATH="",
        )
        build = execute(
            Check("build", [["ansible-galaxy", "collection", "build", "--output-path", temporary]], env=env)
        )
        tarball = next(place.glob("*.tar.gz"), None)
        if tarball is None:
            return [build]
        install = [
            "ansible-galaxy",
            "collection",
            "install",
            "--offline",
            "-p",
            str(place / "collections"),
            str(tarball),
        ]
        results = [build, execute(Check("install in an empty place", [install], place, env))]
        results.append(finish(shipped_files(place / "collections" / COLLECTION)))
        if thorough:
            results.append(execute(imported_by_galaxy(place, tarball)))
        modules = [f"dgxspark.vllm.{path.stem}" for path in module_files()]
        checks = [Check(f"ansible-doc of {len(modules)} modules", [["ansible-doc", *modules]], place, env)]
        # What `make demo` makes for its inventory: the test model.
        for name in ("sim/models/scripted/config.json",):
            (place / ".cache" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / ".cache" / name).write_text("{}\n", encoding="utf-8")
        for inventory in inventories(thorough):
            copied = place / "inventories" / inventory.name
            shutil.copytree(inventory, copied)
            # By its folder and by its file; keys and plans that lie there then are no hosts of it.
            verbs = ["dgxspark.vllm.plan", "dgxspark.vllm.keys", "dgxspark.vllm.plan"]
            source = next(path for path in sorted(copied.iterdir()) if path.suffix == ".yml")
            runs = [
                ["ansible-playbook", "-i", str(copied), *verbs],
                ["ansible-playbook", "-i", str(source), *verbs[1:]],
            ]
            label = f"keys and plan of inventory {inventory.name} from an empty directory"
            checks.append(Check(label, runs, place / "inventories", env))
        checks.append(
            simple(
                "README, quick start and what the tutorials plan, typed in an empty home",
                sys.executable,
                "scripts/newcomer.py",
            )
        )
        results += together(checks)
        return [*results, *(finish(same_hosts(path, place, env)) for path in inventories(thorough))]


def imported_by_galaxy(place: Path, tarball: Path) -> Check:
    """What Galaxy itself does with a tarball that is published: its own importer, without the network.

    :param place: a folder for its settings and results
    :param tarball: the collection
    """
    python = environment("galaxy", ROOT / "tests" / "galaxy" / "requirements.txt")
    settings = place / "galaxy-importer.cfg"
    # Lint has its ansible-lint already.
    settings.write_text("[galaxy-importer]\nRUN_ANSIBLE_LINT = False\n", encoding="utf-8")
    env = tool_env(GALAXY_IMPORTER_CONFIG=str(settings), HOME=str(place), PYTHONPATH="")
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    return Check("galaxy-importer", [[str(python), "-m", "galaxy_importer.main", str(tarball)]], place, env)


def same_hosts(inventory: Path, place: Path, env: dict[str, str]) -> Result:
    """Whether a copy that was used lists what the example lists, and nothing else."""
    watch = Stopwatch()
    copied = place / "inventories" / inventory.name
    seen = []
    for source in (inventory, copied):
        argv = ["ansible-inventory", "-i", str(source), "--graph"]
        done = subprocess.run(
            argv, cwd=place, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        seen.append(done.stdout)
    text = f"{inventory}:\n{seen[0]}\n{copied}:\n{seen[1]}"
    same = seen[0] == seen[1] and "sparks" in seen[0]
    return Result(f"the hosts of inventory {inventory.name}, used", same, watch.seconds, text)


def module_files() -> list[Path]:
    """The collection's modules."""
    return sorted(path for path in ROOT.glob("plugins/modules/*.py") if path.name != "__init__.py")


def shipped_files(installed: Path) -> Result:
    """The artifact holds the product and nothing else."""
    manifest = json.loads((installed / "FILES.json").read_text(encoding="utf-8"))
    names = {entry["name"] for entry in manifest["files"] if entry["ftype"] == "file"}
    allowed = ("plugins/", "roles/", "playbooks/", "docs/", "meta/", "extensions/", "changelogs/changelog.yaml")
    pages = ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md")
    extra = {name for name in names if not name.startswith(allowed) and name not in pages}
    extra |= {
        name for name in names if re.search(r"(^|/)(__pycache__|\.cache|\.[a-z]+_cache|molecule|tests)/|\.pyc$", name)
    }
    shipped = ("plugins", "roles", "playbooks", "meta", "extensions/awx", "extensions/eda")
    missing = {name for name in tracked_files(*shipped) if name not in names}
    problems = [f"should not be shipped: {name}" for name in sorted(extra)] + [
        f"not shipped: {name}" for name in sorted(missing)
    ]
    return Result(f"{len(names)} files in the artifact", not problems, 0.0, "\n".join(problems))


# --- molecule -------------------------------------------------------------------------------------------------------

# Sets of nodes, each with scenarios of its own under way: half of what a scenario takes is waiting.
LANES = ("test", "test2", "test3")
# Four nodes in a ring of cables, which no lane has; it takes longest, so it runs every night alone, on nodes of its own.
RING = "ring4"
RING_SECONDS = 9000  # an attempt is ended then; alone on two cores it takes a third of it
# On two nodes as the others, but every night alone: what is cut off at many points, what mostly waits, what applies what others show, and
# the second executor of a model over several hosts.
NIGHTLY = ("document_000", "faults", "guard", "pair_ray", "quickstart", "tutorials")
# Modules start as they do on a Spark in this step; in others they are forked of a Python that has imported the standard library.
REAL_PYTHON = ("site", "converge")
# These come first, so that the lanes end together.
SLOWEST = (
    *("site", "roles", "document_002", "pair_mp", "on_demand", "verbs"),
    *("fabric", "spread", "rollout", "lock", "firewall"),
)


def lane_env(lane: str) -> dict[str, str]:
    """What keeps the runs of lanes apart."""
    subnet = {"test": "10.88", "test2": "10.86", "test3": "10.85", "ring": "10.84"}[lane]
    return tool_env(
        MOLECULE_GLOB="molecule/*/molecule.yml",
        MOLECULE_EPHEMERAL_DIRECTORY=str(CACHE / "molecule" / lane),
        SPARKSIM_SET=lane,
        SPARKSIM_SUBNET=subnet,
        NO_COLOR="1",
        PYTEST_ADDOPTS="--durations=8 --durations-min=5",
    )


def molecule(thorough: bool, only: str = "") -> list[Result]:
    """Every scenario on simulated Sparks, as many at once as there are lanes.

    :param thorough: also the tests that are marked C(nightly), by molecule itself
    :param only: the name of one scenario, which then runs alone
    """
    order = {name: position for position, name in enumerate(SLOWEST)}
    if only == RING:
        return [ring_run()]
    names = [only] if only else scenarios_of(thorough)
    waiting = sorted(names, key=lambda name: (order.get(name, len(order)), name))
    lanes = LANES[: len(waiting)]
    watch = Stopwatch()
    # Directly, so that a first build is seen as it goes. What scenarios show of a real engine a stand-in cannot.
    code = run(SPARKSIM, "build", "--require-real-engine")
    results = [finish(Result("images of the simulated Sparks", code == 0, watch.seconds, "see above"))]
    if not results[0].ok:
        return results
    try:
        with ExitStack() as stack:
            if thorough:
                runs = functools.partial(scenario_runs, waiting=waiting, attempt=molecule_run)
            else:
                env = {**lane_env(LANES[0]), **scenarios.environment(waiting[0])}
                quick = stack.enter_context(scenarios.quick_ansible(env, CACHE / "quick"))
                runs = functools.partial(scenario_runs, waiting=waiting, attempt=functools.partial(direct_run, quick))
            for done in stack.enter_context(ThreadPoolExecutor(max_workers=len(lanes))).map(runs, lanes):
                results += done
    finally:
        for lane in lanes:
            run(SPARKSIM, "down", "--set", lane)
    return [*results, ring_run()] if thorough and not only else results


def scenarios_of(thorough: bool) -> list[str]:
    """The scenarios that lanes share, those of the night alone only when thorough."""
    return [name for name in scenarios.names() if name != RING and (thorough or name not in NIGHTLY)]


def ring_run() -> Result:
    """The scenario on four nodes that cables join, when the others have given their memory back; once more if it fails, as the others."""
    result = ring_attempt()
    if not result.ok:
        first, result = result, ring_attempt()
        result.first_output = first.output
    return finish(result)


def ring_attempt() -> Result:
    """Run it on new nodes."""
    watch = Stopwatch()
    try:
        run(SPARKSIM, "down", "--set", "ring")
        if run(SPARKSIM, "up", "--set", "ring", "--nodes", "4"):
            return Result(f"scenario {RING}", False, watch.seconds, "its simulated Sparks are not up: see above")
        result = molecule_run(RING, "ring", RING_SECONDS)
        result.seconds = watch.seconds
        return result
    finally:
        run(SPARKSIM, "down", "--set", "ring")


def scenario_runs(lane: str, waiting: list[str], attempt: Callable[[str, str], Result]) -> list[Result]:
    """Run scenarios on a lane as long as there are any that wait, each on nodes that are new.

    All nodes share this machine's cores. What fails twice, the second time alone on new nodes again, is broken; what
    fails once is said at the end.
    """
    results = []
    while waiting:
        name = waiting.pop(0)
        result = on_new_nodes(lane, name, attempt)
        if not result.ok:
            first, result = result, on_new_nodes(lane, name, attempt)
            result.first_output = first.output
        results.append(result)
    return results


def on_new_nodes(lane: str, name: str, attempt: Callable[[str, str], Result]) -> Result:
    """Run a scenario on nodes of its own: making them takes less than undoing what the one before did."""
    watch = Stopwatch()
    if any(run(SPARKSIM, verb, "--set", lane) for verb in ("down", "up")):
        return finish(Result(f"scenario {name}", False, watch.seconds, "its simulated Sparks are not up: see above"))
    result = attempt(name, lane)
    result.seconds = watch.seconds
    count_tests(result)
    print(f"   {'ok    ' if result.ok else 'FAILED'} scenario {name} ({watch}) {result.note}", flush=True)
    return result


def direct_run(quick: Path, name: str, lane: str) -> Result:
    """The steps of a scenario, without those of its tests that are marked C(nightly)."""
    env = {**lane_env(lane), **scenarios.environment(name)}
    env["PATH"] = f"{quick}{os.pathsep}{env['PATH']}"
    env["PYTEST_ADDOPTS"] += " -m 'not nightly'"
    forked = {**env, "SPARKSIM_PYTHON": "/usr/local/bin/spark-sim-python"}
    output, ok = "", True
    Path(env["MOLECULE_EPHEMERAL_DIRECTORY"]).mkdir(parents=True, exist_ok=True)  # molecule makes its own
    with tempfile.TemporaryDirectory(prefix="ssh-") as connections:
        env["SPARKSIM_SSH"] = forked["SPARKSIM_SSH"] = connections
        for step in scenarios.steps(name):
            # Molecule cleans up behind a failed scenario, too.
            if not ok and step.name != "cleanup":
                continue
            watch = Stopwatch()
            used = env if (name, step.name) == REAL_PYTHON else forked
            code, text = shown(step.argv, f"{lane} {name}", cwd=scenarios.MOLECULE / name, env=used)
            print(f"{lane} {name} | -- {step.name} took {watch}", flush=True)
            ok = step.holds(code, text) and ok
            output += text
    return Result(f"scenario {name}", ok, 0.0, output)


def molecule_run(name: str, lane: str, seconds: float | None = None) -> Result:
    """A scenario as molecule runs it, with all of its tests. seconds: after which it is ended."""
    env = lane_env(lane)
    # Molecule takes one scenario's preparation for that of all on shared nodes: let it forget.
    shutil.rmtree(env["MOLECULE_EPHEMERAL_DIRECTORY"], ignore_errors=True)
    argv = [str(BIN / "molecule"), "test", "-s", name, "--destroy", "never", "--no-command-borders"]
    with tempfile.TemporaryDirectory(prefix="ssh-") as connections:
        env["SPARKSIM_SSH"] = connections
        code, output = shown(argv, f"{lane} {name}", cwd=ROOT, env=env, seconds=seconds)
        if code:  # molecule leaves a failed one as it is
            run(BIN / "molecule", "cleanup", "-s", name, env=env)
    return Result(f"scenario {name}", code == 0, 0.0, output)


def shown(argv: list[str], label: str, cwd: Path, env: dict[str, str], seconds: float | None = None) -> tuple[int, str]:
    """Run a command whose output is shown as it comes, behind a label; returns its exit code and the output.

    seconds: after which it is killed, with all that it started.
    """
    output, ended = "", threading.Event()
    with subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=seconds is not None,
    ) as process:
        assert process.stdout is not None

        def end() -> None:
            ended.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds or 0, end)
        if seconds is not None:
            timer.start()
        for line in process.stdout:
            print(f"{label} | {line}", end="", flush=True)
            output += line
        timer.cancel()
    if ended.is_set():
        output += f"it was ended after {duration(seconds or 0)}\n"
    return process.returncode, output


# --- programs -------------------------------------------------------------------------------------------------------


def programs(thorough: bool) -> list[Result]:
    """Real programs, each in an environment of its own: LiteLLM under load before stand-in engines, and ansible-rulebook.

    When thorough, also the tests that are marked C(nightly), Open WebUI, and the pages of plan and status in a browser.
    """
    python = environment("gateway", ROOT / "tests" / "sim" / "gateway" / "requirements.txt")
    selection = [] if thorough else ["-m", "not nightly"]
    load = Check(
        "LiteLLM under load", [["pytest", *selection, "tests/gateway"]], env=tool_env(GATEWAY_PYTHON=str(python))
    )
    checks = [load]
    events = environment("eda", ROOT / "tests" / "eda" / "requirements.txt")
    if shutil.which("java"):
        env = tool_env(EDA_PYTHON=str(events))
        checks.append(Check("ansible-rulebook and ansible-navigator", [["pytest", *selection, "tests/eda"]], env=env))
    else:
        print("   left out: ansible-rulebook, which needs a Java of this machine")
    if thorough:
        checks.append(simple("Open WebUI in a browser", sys.executable, "tests/webui/run.py"))
        checks.append(
            simple(
                "plan.html, fabric.html, status.html and the served page in a browser",
                sys.executable,
                "tests/webui/run.py",
                "--pages",
            )
        )
    return [execute(check) for check in checks]


# --- the runner -----------------------------------------------------------------------------------------------------

STAGES: dict[str, Callable[..., list[Result]]] = {
    "lint": lint,
    "docs-lint": docs_lint,
    "unit": unit,
    "unit-quick": unit_quick,
    "sanity": sanity,
    "core": core,
    "artifact": artifact,
    "programs": programs,
    "molecule": molecule,
}
# Stages of a line run side by side: of each of them most of the time one core does the work. `unit-quick` and `core` are part of others.
EVERY = [["lint", "docs-lint"], ["unit", "programs"], ["sanity", "artifact"], ["molecule"]]
# What runs on each change proves every feature once. The rest (older cores, other programs, faults at random, rates) is for the night.
SUITES = {"test": EVERY, "all": EVERY, "quick": [["lint", "docs-lint"], ["unit-quick"]]}
THOROUGH = ("all", "sanity", "artifact", "programs", "molecule")
HOSTILE_CASES = "12000"  # generated inventories and launches in place of 500


def main() -> int:
    """Run the stages asked for; 0 when every check passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*SUITES, *STAGES])
    parser.add_argument("--scenario", default="", help="with molecule: this scenario alone")
    parser.add_argument("--core", default="", choices=["", *CORES], help="with core: this ansible-core")
    parser.add_argument("--python", default="", help="with core: this Python of the controller, 3.13")
    options = parser.parse_args()

    thorough = options.what in THOROUGH
    watch = Stopwatch()
    rows: list[tuple[str, str, float, int, int]] = []
    failed: list[str] = []
    reasons_of_failures: list[str] = []

    def stage(name: str) -> tuple[list[Result], float]:
        stage_watch = Stopwatch()
        more = {"molecule": (options.scenario,), "core": (options.core, options.python)}.get(name, ())
        return STAGES[name](thorough, *more), stage_watch.seconds

    for names in SUITES.get(options.what, [[options.what]]):
        if failed:
            rows += [(name, "not run", 0.0, 0, 0) for name in names]
            continue
        heading(" and ".join(names))
        with ThreadPoolExecutor(len(names)) as pool:
            ended = list(pool.map(stage, names))
        for name, (results, seconds) in zip(names, ended, strict=True):
            good = all(result.ok for result in results)
            failed += [] if good else [name]
            reasons_of_failures += failures(results)
            passed, not_passed = sum(result.passed for result in results), sum(result.failed for result in results)
            rows.append((name, "ok" if good else "FAILED", seconds, passed, not_passed))

    heading("summary")
    for name, state, seconds, passed, not_passed in rows:
        figures = "" if state == "not run" else f"{duration(seconds):>13}   {passed} passed, {not_passed} failed"
        print(f"   {state:<8} {name:<10} {figures}".rstrip())
    print(f"   {'FAILED in ' + ' and '.join(failed) if failed else 'All good'} after {watch}.")
    print(
        "\n".join([*reasons_of_failures, f"{sum(row[3] for row in rows)} passed, {sum(row[4] for row in rows)} failed"])
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
