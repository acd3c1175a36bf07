# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches that try to take for ever, or all memory: each ends within seconds and names the limit and the place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.dgxspark.vllm.plugins.action import import_recipe
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer

SECONDS = 6.0
"""Of processor time, on a slow machine; each took minutes or more, or ended in an error of Python."""
DOCKER = "docker run vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3-8B "
TENFOLD = [(f"A{level + 1}", f"$A{level}" * 10) for level in range(10)]
OPTION = DOCKER + "--override-generation-config "

LAUNCHES = {
    "variables in a script": (
        "A0=0123456789\n" + "".join(f'{name}="{text}"\n' for name, text in TENFOLD) + DOCKER + "--seed $A10",
        "line 6: with ${A4} its variables expand to more than 1024 KiB",
    ),
    "variables in a unit": (
        "[Service]\nEnvironment=A0=0123456789\n"
        + "".join(f"Environment={name}={text}\n" for name, text in TENFOLD)
        + f"ExecStart=/usr/bin/{DOCKER}",
        "its variables expand to more than 1024 KiB",
    ),
    "placeholders of a recipe": (
        "name: x\nmodel: Qwen/Qwen3-8B\ncontainer: vllm-node\ndefaults: {port: 8000, a0: '0123456789'"
        + "".join(f", a{level + 1}: '{f'{{a{level}}}' * 10}'" for level in range(9))
        + "}\ncommand: |\n  vllm serve {model} --port {port} --seed {a9}\n",
        "its variables expand to more than 1024 KiB",
    ),
    "references of Kubernetes": (
        f"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.24.0\n    env: [{{name: A, value: {'x' * 50_000}}}]\n"
        f"    command: [vllm, serve{', $(A)' * 3000}]\n",
        "its variables expand to more than 1024 KiB",
    ),
    "a replacement": (
        f"A={'x' * 4000}\nC={'y' * 100_000}\nB=${{A//x/$C}}\n{DOCKER}--seed $B",
        "line 3: a replacement in ${A} has more than 1024 KiB",
    ),
    "a cut": (f"A={'x' * 200_000}\nB=${{A##*y}}\n{DOCKER}--seed $B", None),
    "a product": (f"A=$(({'99999*' * 40_000}9))\n{DOCKER}--seed $A", None),
    "one long word": (DOCKER + "x" * 2_000_000, "it has more than 256 KiB"),
    "many options": (DOCKER + "--a " * 60_000, "its command has 60002 words; one of a launch has 500 at most"),
    "options that differ": (DOCKER + " ".join(f"--flag-{number}" for number in range(480)), None),
    "options of docker": (DOCKER.replace("run", "run" + " -e A=b" * 30_000), "words; one of a launch has 500 at most"),
    "calls": ("f() {\n# " + "x" * 200_000 + "\n:\n}\n" + "f\n" * 5000 + "vllm serve a/b", "are read too often"),
    "calls of calls": ("f() { g; g; }\ng() { h; h; }\nh() { :; }\n" + "f\n" * 3000 + DOCKER, "more than 4000 commands"),
    "here-documents": ("cat <<A\n" * 20_000 + "vllm serve a/b", "are read too often"),
    "defaults in defaults": ("X=" + "${A:-" * 20_000 + f"\n{DOCKER}", "nested too deeply"),
    "comments": ("#\n" * 120_000 + DOCKER, None),
    "JSON": (f"{OPTION}'{'[' * 100_000}'", None),
    "JSON that ends": (OPTION + "'" + '{"a":' * 500 + "1" + "}" * 500 + "'", None),
    "JSON of one key": (f"{DOCKER}--override-generation-config.a '{'[' * 50_000}'", None),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_ends(name: str) -> None:
    text, message = LAUNCHES[name]
    started = time.process_time()
    try:
        launch = importer.import_launch(text, import_recipe.document_of(text))
    except importer.Unreadable as error:
        assert message and message in str(error), error
    else:
        assert message is None and launch["service"]
    assert time.process_time() - started < SECONDS


def test_the_depth_of_json_is_told_with_its_option() -> None:
    launch = importer.import_launch(LAUNCHES["JSON that ends"][0])
    (omissions,) = [entry for entry in launch["left_out"] if entry["item"] == "--override-generation-config"]
    assert "it is nested more than 40 deep" in omissions["reason"] and len(omissions["reason"]) < 300


ALIASES = "a0: &a0 [x, x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}, *a{n}]\n" for n in range(20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services:\n  a:\n    command: " + "[" * 60 + "]" * 60, "As YAML it is broken: line 3: it is nested more than 40 deep"),
        ("services:\n  a:\n    command: " + "[" * 5000, "As YAML it is broken: line 3: it is nested more than 40 deep"),
        (f"{ALIASES}services: {{a: {{image: vllm/vllm-openai, command: *a20}}}}", "more than 100000 entries, those that aliases repeat"),
        ("services: &a {x: *a}", "its aliases are nested too deeply"),
        ("x" * 300_000, "it has more than 256 KiB"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(text, encoding="utf-8")
    args = dict.fromkeys(("name", "port", "image", "select", "variant", "features", "config"))
    args |= {"src": str(file), "form": "auto", "variables": {}, "catalogue": []}
    started = time.process_time()
    with pytest.raises(AnsibleActionFail) as refused:
        import_recipe.imported(args, *import_recipe.source_of(str(file), None))
    assert message in str(refused.value) and str(file) in str(refused.value)
    assert time.process_time() - started < SECONDS


def test_a_launch_that_has_no_end_is_not_read() -> None:
    with pytest.raises(AnsibleActionFail, match="no ordinary file"):
        import_recipe.source_of("/dev/zero", None)


def test_settings_that_a_script_reads_over_and_over(tmp_path: Path) -> None:
    (tmp_path / "x.env").write_text("A=" + "b" * 90_000)
    text = import_recipe.with_settings("source x.env\n" * 10_000, tmp_path)
    assert len(text) < 2 * importer.MOST_BYTES
