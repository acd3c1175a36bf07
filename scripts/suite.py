"""The test suite, in stages: `make test`, `make test-quick`, or one stage by its name.

A stage runs all of its checks and prints the output of failed ones. The suite stops after the first failed stage. The last
line is always the sum: N passed, N failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import scenarios
import yaml
from common import (
    BIN,
    CACHE,
    ROOT,
    Stopwatch,
    duration,
    environment,
    find_python,
    git,
    heading,
    pip_settings,
    tool_env,
    tracked_files,
)
from suite_checks import FEW, Check, Result, execute, failures, finish, simple, together
from suite_molecule import molecule

COLLECTION = Path("ansible_collections") / "dgxspark" / "vllm"
IN_CLONE = ROOT / "collections" / COLLECTION  # a symlink to ROOT under which imports and FQCNs resolve

# Supported ansible-core: the release to install and the controller Pythons it runs on, best first.
CORES = {
    "2.22": (">=2.22.0,<2.23", ("3.13", "3.14")),
    "2.21": (">=2.21.0,<2.22", ("3.13", "3.14", "3.12")),
    "2.20": (">=2.20.0,<2.21", ("3.13", "3.14", "3.12")),
    "2.19": (">=2.19.0,<2.20", ("3.13", "3.12", "3.11")),
}
# Pythons a managed host may have; modules are compiled and imported on each installed one.
HOST_PYTHONS = ("3.9", "3.10", "3.11", "3.12")
# Folders for pytest; scenarios and real programs have separate stages.
TESTS = ("tests/unit", "tests/repo", "tests/monitoring")
# Files for ansible-test: the collection as shipped. Unit tests are added at night, since pylint takes very long for them.
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
# pylint takes longer than all other tests of ansible-test; ruff and mypy find most of its errors on each change, ruff and yamllint find
# pep8 and yamllint. Imports are tested on the oldest Python of hosts, and by unit tests on the controller's.
NIGHTLY_SANITY = ("import", "pep8", "pylint", "yamllint")
# Inventories with which the syntax of playbooks is checked, and which are planned from an empty directory, on each change: add-on services
# on a separate host, and a cluster with a single Spark.
EXAMPLES_OF_EACH_CHANGE = ("duo", "pair_and_single")


def inventories(thorough: bool = True) -> list[Path]:
    """Return the example inventories that users copy; unless thorough, a few of them."""
    folders = sorted(path for path in ROOT.glob("inventories/*") if path.is_dir())
    return [path for path in folders if thorough or path.name in EXAMPLES_OF_EACH_CHANGE]


def playbooks() -> list[Path]:
    """Return every playbook, including the one at the root."""
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
        # Code for LiteLLM's container derives from classes that are not installed here.
        if re.fullmatch(r"roles/\w+/files/\w+\.py", name)
    ]
    libraries = CACHE / "host-libraries"
    libraries.mkdir(parents=True, exist_ok=True)
    if not (libraries / "dgxspark_vllm").is_symlink():
        # As roles install it; relative, so that a copied clone reads its own.
        (libraries / "dgxspark_vllm").symlink_to(os.path.relpath(ROOT / "plugins" / "module_utils", libraries))
    yaml_files = [name for name in tracked_files() if name.endswith((".yml", ".yaml")) or name == ".ansible-lint"]
    search = os.pathsep.join([str(libraries), *sorted({str(Path(name).parent) for name in programs})])
    ansible_lint = simple("ansible-lint", "ansible-lint", "--offline", "--strict", "--nocolor", "-q")
    # It lets ansible-playbook check the syntax of a hundred playbooks, each in a separate process.
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
                # Pytest caches compiled tests; otherwise each of its workers would compile them.
                simple("tests can be collected", "pytest", "--collect-only", "-qq", *TESTS),
                simple("ruff check", "ruff", "check", "."),
                simple("ruff format (make format)", "ruff", "format", "--check", "--output-format", "concise", "."),
                # By file: yamllint would follow the symlink under collections/ in a directory.
                simple("yamllint", "yamllint", "--strict", *yaml_files),
                simple("shellcheck", "shellcheck", *shell_files(), *workflow_scripts(CACHE / "workflow-scripts")),
                # Permissions of actions, and text of pull requests in scripts; without the network.
                simple("zizmor", "zizmor", "--offline", "--quiet", "--no-progress", ".github"),
            ]
        )


def shell_files() -> list[str]:
    """Return scripts for a shell, without templates and foreign scripts that tests read."""
    names = []
    for name in tracked_files():
        if not name.endswith(".j2") and "/fixtures/" not in name and (ROOT / name).is_file():
            with (ROOT / name).open("rb") as stream:
                if re.match(rb"#!.*\b(ba|da)?sh\b", stream.readline(200)):
                    names.append(name)
    return names


def workflow_scripts(folder: Path) -> list[str]:
    """Write each script of a workflow into a folder, as the runner's shell gets it; returns their paths."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = []
    for name in tracked_files(".github/workflows"):
        for job, settings in yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["jobs"].items():
            for number, step in enumerate(settings.get("steps", ())):
                if "run" in step:
                    path = folder / f"{Path(name).stem}-{job}-{number}.sh"
                    # Variables of the step come from outside, and expressions are replaced before the shell reads the script.
                    exports = "".join(f"export {key}=\n" for key in step.get("env", {}))
                    text = re.sub(r"\$\{\{.*?\}\}", "expression", step["run"])
                    path.write_text(f"#!/bin/bash\n{exports}{text}\n", encoding="utf-8")
                    paths.append(str(path))
    return paths


# --- documentation --------------------------------------------------------------------------------------------------


def docs_lint(thorough: bool) -> list[Result]:
    """Documentation of plugins and roles, the changelog, and all pages as a site, with its links. When thorough, the site is written, too."""
    site = simple("documentation site", sys.executable, "scripts/docs_site.py", *(() if thorough else ("--check",)))
    # Errors that rstcheck would find in generated pages also fail the site, which has the same pages.
    lint_docs = ["antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs", "all"]
    plugins = simple("antsibull-docs", *lint_docs, "--skip-rstcheck", ".")
    return together([plugins, simple("antsibull-changelog", "antsibull-changelog", "lint"), site])


# --- unit -----------------------------------------------------------------------------------------------------------


def unit(thorough: bool, *options: str) -> list[Result]:
    """pytest over tests/unit, tests/repo, and tests/monitoring with its real Prometheus."""
    # More workers than cores: the tests of the supervisors mostly wait. Idle workers take tests of others.
    spread = ("-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal")
    selection = options if thorough or options else ("-m", "not nightly")
    paths = (*selection, *TESTS)
    check = simple("pytest", "pytest", *spread, *paths)
    if thorough:
        check.env["HOSTILE_CASES"] = HOSTILE_CASES
    result = execute(check)
    if not result.ok and result.failed <= FEW:
        # Several workers share each core. A test that also fails alone is broken; a test that fails once is reported at the end.
        check = Check("pytest, what failed once more", [["pytest", "--last-failed", *paths]], env=check.env)
        first, result = result, execute(check)
        result.first_output = first.output
        result.passed += first.passed
    return [result]


# --- sanity ---------------------------------------------------------------------------------------------------------

# ansible-test downloads pip's installer from its own site.
# This script uses the Python's own copy and the configured index.
GET_PIP = """\
import subprocess, sys
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted]).returncode)
"""


def core_venv(core: str) -> tuple[Path | None, str]:
    """Return the cached environment of one ansible-core; or None with the reason why it is unavailable."""
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
    # uv is faster; only pip reads indexes that are configured for pip.
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
    if "No matching distribution" in done.stderr:
        return None, "no release to be had yet"
    return None, f"cannot be installed: {done.stderr.strip().splitlines()[-1]}"


def ansible_test_env(name: str, venv: Path) -> dict[str, str]:
    """Return an environment with a separate HOME for each ansible-test, which caches there and drops most variables."""
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
    """Copy our files to a real .../ansible_collections/dgxspark/vllm with git, as ansible-test needs; returns the folder."""
    tree = target / COLLECTION
    # Foreign scripts that tests read are not checked.
    for name in tracked_files(*paths):
        if "/fixtures/" in name and name.endswith(".sh"):
            continue
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    git("init", "--quiet", root=tree)
    git("add", "--all", root=tree)
    return tree


def sanity(thorough: bool) -> list[Result]:
    """ansible-test sanity without C(NIGHTLY_SANITY), and a syntax check, on the newest available core; modules on the oldest Python of hosts.

    If thorough, everything on each core, with the unit tests, and modules on each Python of hosts.
    """
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
            sanity_check, syntax_check = checks_of_core(core, venv, Path(temporary), thorough)
            checks.append(sanity_check)
            if not newest:
                newest = core
                imports, missing = imports_on_hosts(venv, Path(temporary), thorough)
                checks.append(imports)
                left_out += [f"host Python {python}: not on this machine" for python in missing]
            checks.append(syntax_check)
        results = together(checks)
    for line in left_out:
        print(f"   left out: {line}")
    if not newest:
        results.append(
            finish(Result("ansible-core", False, 0.0, "none of the supported versions can be installed here"))
        )
    return results


def imports_on_hosts(venv: Path, folder: Path, thorough: bool) -> tuple[Check, list[str]]:
    """Return the check that compiles and imports modules on Pythons of hosts, and the Pythons that are not installed."""
    others = [python for python in HOST_PYTHONS if python != controller_python(venv)]
    available = [python for python in others if find_python(python)]
    pythons = available if thorough else available[:1]
    tests = ["--test", "compile", "--test", "import"]
    commands = [[*ansible_test_sanity(venv), "--python", python, *tests] for python in pythons]
    tree = copy_collection(folder / "hosts", SANITY_PATHS)
    label = f"compile and import on Python {', '.join(pythons)}"
    missing = [python for python in others if python not in available]
    return Check(label, commands, tree, ansible_test_env("hosts", venv)), missing


def controller_python(venv: Path) -> str:
    """Return the version of the Python of an environment, such as 3.13."""
    return next(venv.glob("lib/python*")).name.removeprefix("python")


def ansible_test_sanity(venv: Path) -> list[str]:
    """Return the beginning of the command of ansible-test in an environment."""
    return [str(venv / "bin" / "ansible-test"), "sanity", "--color", "no"]


def checks_of_core(core: str, venv: Path, folder: Path, thorough: bool) -> tuple[Check, Check]:
    """Return the sanity check and the syntax check of one ansible-core."""
    env = ansible_test_env(core, venv)
    tree = copy_collection(folder / core, [*SANITY_PATHS, UNIT_TESTS] if thorough else SANITY_PATHS)
    minor = controller_python(venv)
    skipped = [] if thorough else [word for test in NIGHTLY_SANITY for word in ("--skip-test", test)]
    commands = [[*ansible_test_sanity(venv), "--python", minor, *skipped]]
    syntax = [str(venv / "bin" / "ansible-playbook"), "--syntax-check", *map(str, playbooks())]
    examples = inventories(thorough)
    return Check(f"ansible-test sanity, core {core} on Python {minor}", commands, tree, env), Check(
        f"syntax of {len(playbooks())} playbooks with {len(examples)} inventories, core {core}",
        [[*syntax, "-i", str(inventory)] for inventory in examples],
        env={**env, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )


def core(thorough: bool, version: str = "", minor: str = "") -> list[Result]:
    """Check one ansible-core on one Python, a row of CI's matrix: unit tests that do not wait, sanity and syntax.

    The newest core, and its first Python, by default.
    """
    version = version or next(iter(CORES))
    release, pythons = CORES[version]
    minor = minor or pythons[0]
    label = f"ansible-core {version} on Python {minor}"
    python = find_python(minor)
    if minor not in pythons:
        return [finish(Result(label, False, 0.0, f"it runs on Python {', '.join(pythons)}"))]
    if python is None:
        return [finish(Result(label, False, 0.0, "that Python is not on this machine"))]
    venv = CACHE / f"dev-{version}-{minor}"
    subprocess.run([python, "-m", "venv", "--clear", venv], check=True)
    # All tools come from the lock, except this core. Of an unreleased core, the release candidate.
    override = venv / "override.txt"
    install: list[str | Path] = [BIN / "uv", "pip", "install", "-q", "--python", venv / "bin" / "python"]
    install += ["--override", override, "-r", ROOT / "requirements-dev.txt"]
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
    with tempfile.TemporaryDirectory(prefix="core-") as temporary:
        results += together(list(checks_of_core(f"{version}-{minor}", venv, Path(temporary), thorough=True)))
    return results


# --- artifact -------------------------------------------------------------------------------------------------------


def artifact(thorough: bool) -> list[Result]:
    """Build the collection, check the tarball, install it in an empty environment, and use it from an empty directory.

    If thorough, with every example, and with Galaxy's own importer.
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
        install = ["ansible-galaxy", "collection", "install", "--offline", "-p", str(place / "collections")]
        results = [build, execute(Check("install in an empty place", [[*install, str(tarball)]], place, env))]
        results.append(finish(shipped_files(place / "collections" / COLLECTION)))
        if thorough:
            python = environment("galaxy", ROOT / "tests" / "galaxy" / "requirements.txt")
            settings = place / "galaxy-importer.cfg"
            # Lint has its ansible-lint already.
            settings.write_text("[galaxy-importer]\nRUN_ANSIBLE_LINT = False\n", encoding="utf-8")
            galaxy = tool_env(GALAXY_IMPORTER_CONFIG=str(settings), HOME=str(place), PYTHONPATH="")
            galaxy["PATH"] = f"{python.parent}{os.pathsep}{galaxy['PATH']}"
            importer = [str(python), "-m", "galaxy_importer.main", str(tarball)]
            results.append(execute(Check("galaxy-importer", [importer], place, galaxy)))
        module_files = sorted(path for path in ROOT.glob("plugins/modules/*.py") if path.name != "__init__.py")
        modules = [f"dgxspark.vllm.{path.stem}" for path in module_files]
        checks = [Check(f"ansible-doc of {len(modules)} modules", [["ansible-doc", *modules]], place, env)]
        # What `make demo` makes for its inventory: the test model.
        scripted = place / ".cache" / "sim" / "models" / "scripted"
        scripted.mkdir(parents=True, exist_ok=True)
        (scripted / "config.json").write_text("{}\n", encoding="utf-8")
        for inventory in inventories(thorough):
            copied = place / "inventories" / inventory.name
            shutil.copytree(inventory, copied)
            # By its folder and by its file; keys and plans in the folder must not become hosts.
            verbs = ["dgxspark.vllm.plan", "dgxspark.vllm.keys", "dgxspark.vllm.plan"]
            source = next(path for path in sorted(copied.iterdir()) if path.suffix == ".yml")
            play = ["ansible-playbook", "-i"]
            runs = [[*play, str(copied), *verbs], [*play, str(source), *verbs[1:]]]
            label = f"keys and plan of inventory {inventory.name} from an empty directory"
            checks.append(Check(label, runs, place / "inventories", env))
        typed = "README, quick start and what the tutorials plan, typed in an empty home"
        checks.append(simple(typed, sys.executable, "scripts/newcomer.py"))
        results += together(checks)
        return [*results, *(finish(same_hosts(path, place, env)) for path in inventories(thorough))]


def same_hosts(inventory: Path, place: Path, env: dict[str, str]) -> Result:
    """Check that a used copy of an inventory lists the same hosts as the example."""
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


def shipped_files(installed: Path) -> Result:
    """Check that the artifact contains the product and nothing else."""
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


# --- programs -------------------------------------------------------------------------------------------------------


def programs(thorough: bool) -> list[Result]:
    """Real programs, each in a separate environment: LiteLLM under load in front of stand-in engines, ansible-rulebook, an MCP client.

    If thorough, also the tests that are marked C(nightly), Open WebUI, and the pages of plan and status in a browser.
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
    mcp = environment("mcp", ROOT / "tests" / "mcp" / "requirements.txt")
    argv = [str(mcp), "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "tests/mcp"]
    checks.append(Check("MCP server with its SDK's client", [argv], env=tool_env()))
    if thorough:
        run_webui = (sys.executable, "tests/webui/run.py")
        pages = "plan.html, fabric.html, status.html and the served page in a browser"
        checks += [simple("Open WebUI in a browser", *run_webui), simple(pages, *run_webui, "--pages")]
    return [execute(check) for check in checks]


# --- the runner -----------------------------------------------------------------------------------------------------

STAGES: dict[str, Callable[..., list[Result]]] = {
    "lint": lint,
    "docs-lint": docs_lint,
    "unit": unit,
    # Without playbooks and processes that mostly wait.
    "unit-quick": lambda thorough: unit(thorough, "-m", "not slow and not nightly"),
    "sanity": sanity,
    "core": core,
    "artifact": artifact,
    "programs": programs,
    "molecule": molecule,
}
# Stages of a line run at the same time, since each mostly uses one core. `unit-quick` and `core` are part of others.
EVERY = [["lint", "docs-lint"], ["unit", "programs"], ["sanity", "artifact"], ["molecule"]]
# Each change proves every feature once. Older cores, other programs, random faults and rates are tested at night.
SUITES = {"test": EVERY, "all": EVERY, "quick": [["lint", "docs-lint"], ["unit-quick"]]}
THOROUGH = ("all", "sanity", "artifact", "programs", "molecule")
HOSTILE_CASES = "12000"  # generated inventories and launches in place of 500


def main() -> int:
    """Run the requested stages; returns 0 if every check passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*SUITES, *STAGES])
    parser.add_argument("--scenario", default="", help="with molecule: this scenario alone")
    parser.add_argument("--core", default="", choices=["", *CORES], help="with core: this ansible-core")
    parser.add_argument("--python", default="", help="with core: this Python of the controller, 3.13")
    options = parser.parse_args()

    thorough = options.what in THOROUGH
    watch = Stopwatch()
    rows: list[tuple[str, str, float, int, int]] = []  # stage, state, seconds, passed and failed tests
    failed: list[str] = []
    reasons: list[str] = []

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
            reasons += failures(results)
            passed, not_passed = sum(result.passed for result in results), sum(result.failed for result in results)
            rows.append((name, "ok" if good else "FAILED", seconds, passed, not_passed))

    print_summary(rows, failed, reasons, watch)
    return 1 if failed else 0


def print_summary(
    rows: list[tuple[str, str, float, int, int]], failed: list[str], reasons: list[str], watch: Stopwatch
) -> None:
    """Print a line per stage, the failed stages and their reasons, and the sum of tests as the last line."""
    heading("summary")
    for name, state, seconds, passed, not_passed in rows:
        figures = "" if state == "not run" else f"{duration(seconds):>13}   {passed} passed, {not_passed} failed"
        print(f"   {state:<8} {name:<10} {figures}".rstrip())
    print(f"   {'FAILED in ' + ' and '.join(failed) if failed else 'All good'} after {watch}.")
    print("\n".join([*reasons, f"{sum(row[3] for row in rows)} passed, {sum(row[4] for row in rows)} failed"]))


if __name__ == "__main__":
    sys.exit(main())
