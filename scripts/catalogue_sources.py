# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read from the sources of a vLLM version what cannot be imported: adapters of models, paths of the server, variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path


class LayoutError(Exception):
    """The sources are not laid out as this program knows them."""


# --- LoRA adapters ------------------------------------------------------------------------------------------------

ADAPTERS = "SupportsLoRA"
"""The class that vLLM asks a model for before it takes LoRA adapters (vllm/v1/worker/lora_model_runner_mixin.py)."""
OTHER_DEVICES = ("amd", "cpu", "hw_agnostic", "rocm", "tpu", "xpu")
"""Folders of models that a GB10 has no use for; their classes have the same names as those for it (nvidia)."""


def without_adapters(root: Path, registry: dict[str, tuple[str, str]]) -> list[str]:
    """Return the architectures whose class takes no LoRA adapters.

    Read from the sources, as a model's imports need its real packages. root: of vllm. registry: architecture to module and class.
    """
    modules = {
        module_name(root, path): ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("model_executor/models", "models", "transformers_utils")
        for path in sorted((root / folder).rglob("*.py"))
    }
    known_modules = {name: (classes_of(tree), imports_of(tree, name, root)) for name, tree in modules.items()}
    architectures = []
    for architecture, (module, name) in registry.items():
        place = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
        if place not in known_modules:
            raise LayoutError(f"the module {place} of {architecture} was not found")
        if not takes_adapters(known_modules, place, name, set()):
            architectures.append(architecture)
    return sorted(architectures)


def module_name(root: Path, path: Path) -> str:
    """Return the name of a module from the place of its file."""
    parts = ("vllm", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def classes_of(tree: ast.Module) -> dict[str, tuple[list[str], bool | None]]:
    """Return the classes of a module: their bases and the value of C(supports_lora), None if unset."""
    classes = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            supports_lora = None
            for line in node.body:
                target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                value = getattr(line, "value", None)
                if isinstance(target, ast.Name) and target.id == "supports_lora" and isinstance(value, ast.Constant):
                    supports_lora = bool(value.value)
            bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
            classes[node.name] = (bases, supports_lora)
    return classes


def imports_of(tree: ast.Module, module: str, root: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the imported names of a module: their modules, those for other devices last, and their names there."""
    inside = root.parent.joinpath(*module.split("."))
    package = module if inside.is_dir() else module.rpartition(".")[0]
    imported: dict[str, list[tuple[str, str]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                imported.setdefault(name.asname or name.name, []).append((source, name.name))
    return {
        name: sorted(
            places,
            key=lambda place: ("nvidia" not in place[0], any(part in OTHER_DEVICES for part in place[0].split("."))),
        )
        for name, places in imported.items()
    }


def takes_adapters(
    known_modules: dict[str, tuple[dict[str, tuple[list[str], bool | None]], dict[str, list[tuple[str, str]]]]],
    module: str,
    name: str,
    seen: set[tuple[str, str]],
) -> bool:
    """Tell whether a class, or one of its bases, takes adapters. known_modules: modules with their classes and imports."""
    if name == ADAPTERS:
        return True
    if (module, name) in seen or module not in known_modules:
        return False
    seen.add((module, name))
    classes, imports = known_modules[module]
    if name in classes:
        bases, supports_lora = classes[name]
        return (
            any(takes_adapters(known_modules, module, base, seen) for base in bases)
            if supports_lora is None
            else supports_lora
        )
    places = [place for place in imports.get(name, ()) if place[0] in known_modules or place[1] == ADAPTERS]
    return bool(places) and takes_adapters(known_modules, *places[0], seen)


# --- paths of the server ------------------------------------------------------------------------------------------

HTTP_METHODS = ("get", "post", "put", "delete", "patch", "head", "route", "api_route", "websocket")
OTHER_SERVERS = ("api_server.py", "cli", "grpc_server.py", "llm.py")
"""Parts of C(vllm/entrypoints) that C(vllm serve) does not use."""
KINDS_OF_PATHS = ("always", "option", "dev")
"""A path behind several conditions has the last of their kinds."""


def http_paths(folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths of the server, C(PATH:KIND), and the prefixes of the paths that need its key.

    KIND is C(always), C(dev) for paths that VLLM_SERVER_DEV_MODE adds, or C(option) for paths that an option adds. Read from
    the sources, since the routers of a version need its real packages.
    """
    trees = {
        file.relative_to(folder): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.py"))
    }
    behind = imported_kinds(trees)
    paths: dict[str, str] = {}
    guarded: set[str] = set()
    for inside, tree in trees.items():
        if inside.parts[0] in OTHER_SERVERS:
            continue
        if any(isinstance(node, ast.ClassDef) and node.name == "AuthenticationMiddleware" for node in tree.body):
            guarded |= guarded_prefixes(tree)
        usual = "dev" if "dev" in inside.parts else behind.get(inside, "always")
        for path, kind in routes(tree, usual):
            paths[path] = min(kind, paths.get(path, "dev"), key=KINDS_OF_PATHS.index)
    if not guarded or "/health" not in paths:
        raise LayoutError("the paths of the server, or those that its key is asked for, were not found")
    return sorted(f"{path}:{kind}" for path, kind in paths.items()), sorted(guarded)


def worse(*kinds: str) -> str:
    """Return the kind of a path that is behind several conditions."""
    return max(kinds, key=KINDS_OF_PATHS.index)


def kind_of(test: ast.expr) -> str:
    """Return the kind of the paths below a condition; abilities of a model do not count as a condition."""
    text = ast.unparse(test)
    if "VLLM_SERVER_DEV_MODE" in text:
        return "dev"
    return "always" if "task" in text or "TYPE_CHECKING" in text else "option"


def with_kinds(node: ast.AST, kind: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes below a node, each with the kind of a path at its place. kind: at the node itself."""
    for child in ast.iter_child_nodes(node):
        yield child, kind
        yield from with_kinds(child, worse(kind, kind_of(child.test)) if isinstance(child, ast.If) else kind)


def guarded_prefixes(tree: ast.Module) -> set[str]:
    """Return the prefixes of the paths for which AuthenticationMiddleware asks for a key."""
    named = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.Constant))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    middleware = next(node for node in tree.body if getattr(node, "name", "") == "AuthenticationMiddleware")
    prefixes: set[str] = set()
    for node in ast.walk(middleware):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
            (argument,) = node.args
            value = named.get(argument.id) if isinstance(argument, ast.Name) else ast.literal_eval(argument)
            prefixes |= {value} if isinstance(value, str) else set(value or ())
    return prefixes


def imported_kinds(trees: Mapping[Path, ast.Module]) -> dict[Path, str]:
    """Return the kind of modules that are only imported below a condition, directly or through such a module."""
    importers = importers_of(trees)
    kinds: dict[Path, str] = {}
    for _round in trees:
        new = {
            target: min((worse(kind, kinds.get(by, "always")) for by, kind in ways), key=KINDS_OF_PATHS.index)
            for target, ways in importers.items()
        }
        if new == kinds:
            break
        kinds = new
    return kinds


def importers_of(trees: Mapping[Path, ast.Module]) -> dict[Path, list[tuple[Path, str]]]:
    """Return the modules that import each module, with the kind of the place of each import."""
    importers: dict[Path, list[tuple[Path, str]]] = {}
    for inside, tree in trees.items():
        for node, kind in with_kinds(tree, "always"):
            if not isinstance(node, ast.ImportFrom) or node.level > len(inside.parents):
                continue
            above = inside.parents[node.level - 1] if node.level else Path()
            name = (node.module or "").removeprefix("vllm.entrypoints").strip(".")
            if node.level or (node.module or "").startswith("vllm.entrypoints"):
                module = above.joinpath(*filter(None, name.split(".")))
                for target in (module.with_suffix(".py"), module / "__init__.py"):
                    if target in trees and target != inside:
                        importers.setdefault(target, []).append((inside, kind))
    return importers


def included_kinds(tree: ast.Module) -> dict[str, str]:
    """Return the kinds of a module's routers, by the functions that attach them."""
    kinds: dict[str, str] = {}

    def walk(body: list[ast.stmt], kind: str) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                inner = worse(kind, kind_of(statement.test))
                walk(statement.body, inner)
                walk(statement.orelse, inner)
                if any(isinstance(inner_statement, ast.Return) for inner_statement in statement.body):
                    kind = inner
                continue
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "include_router" and call.args:
                    name = ast.unparse(call.args[0])
                    kinds[name] = min(kind, kinds.get(name, "dev"), key=KINDS_OF_PATHS.index)

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            walk(node.body, "always")
    return kinds


def routes(tree: ast.Module, usual: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of a module, each with its kind. usual: kind of paths without a condition."""
    included = included_kinds(tree)
    for node, kind in with_kinds(tree, usual):
        for call in node.decorator_list if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ():
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in HTTP_METHODS and call.args:
                owner = ast.unparse(call.func).rpartition(".")[0]
                first = call.args[0]
                if owner.endswith(("router", "app")) and isinstance(first, ast.Constant):
                    yield str(first.value), worse(kind, included.get(owner, "always"))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Mount" and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield str(first.value), kind


# --- variables ----------------------------------------------------------------------------------------------------


def environment(root: Path) -> list[str]:
    """Return C(NAME kind=choices) for every variable of vllm/envs.py, read from its text.

    The annotation defines the kind, and calls of C(env_with_choices) and the like the choices.
    """
    kinds, variables = declared_variables(root)
    entries = []
    for name, choices in sorted(variables.items()):
        kind = next(
            (word for word in ("bool", "int", "float") if re.search(rf"\b{word}\b", kinds.get(name, ""))), "text"
        )
        entries.append(f"{name}:{kind}" + (f"={','.join(choices)}" if choices else ""))
    direct: set[str] = set()
    for path in sorted(root.glob("vllm/**/*.py")):
        direct.update(word for pair in READS.findall(path.read_text(encoding="utf-8")) for word in pair if word)
    return sorted([*entries, *(f"{name}:direct" for name in direct - variables.keys())])


def declared_variables(root: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return annotations and choices of the variables of vllm/envs.py, by name."""
    kinds: dict[str, str] = {}
    variables: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse((root / "vllm" / "envs.py").read_text(encoding="utf-8"))):
        if not isinstance(node, ast.AnnAssign):
            continue
        if isinstance(node.target, ast.Name) and node.target.id != "environment_variables":
            kinds.setdefault(node.target.id, ast.unparse(node.annotation))
        elif isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values):
                if isinstance(key, ast.Constant):
                    variables[str(key.value)] = env_choices(value)
    if not variables:
        raise LayoutError("vllm/envs.py has no environment_variables")
    return kinds, variables


# Variables that are read but missing in envs.py; vLLM itself calls them unknown.
READS = re.compile(
    r"""(?:environ\.get|getenv)\(\s*["'](VLLM_\w+)["']|environ\[\s*["'](VLLM_\w+)["']\s*\](?!\s*=[^=])""", re.ASCII
)


def env_choices(value: ast.expr) -> list[str]:
    """Return the choices in a call of env_with_choices, env_list_with_choices or env_set_with_choices."""
    if isinstance(value, ast.Call) and "with_choices" in ast.unparse(value.func):
        for argument in value.args[2:]:
            if isinstance(argument, (ast.List, ast.Tuple)):
                return [str(element.value) for element in argument.elts if isinstance(element, ast.Constant)]
    return []
