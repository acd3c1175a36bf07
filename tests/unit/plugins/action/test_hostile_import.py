# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What import.yml prints of a stranger's launch, pasted into an inventory: Ansible itself reads it and evaluates none of it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.dgxspark.vllm.plugins.action.import_recipe import page, report, yaml_of
from ansible_collections.dgxspark.vllm.plugins.module_utils._plan import importer


def evaluated(folder: Path, text: str) -> Any:
    """Read an inventory file as Ansible does, templates trusted, and evaluate all of it."""
    file = folder / "vars.yml"
    file.write_text(text, encoding="utf-8")
    loader = DataLoader()
    data = loader.load_from_file(str(file), trusted_as_template=True)
    return Templar(loader=loader, variables={}).template(data)


def lines_of(mark: Path) -> dict[str, str]:
    """Launches with a command for the controller at every place that somebody may write to."""
    evil = f"{{{{ lookup('pipe', 'touch {mark}') }}}}"
    image = "vllm/vllm-openai:v0.24.0"
    json = '{"a": "' + evil + '"}'
    places = {
        "image": f"docker run {shlex.quote('registry/' + evil)} --model Qwen/Qwen3-8B",
        "name": f"docker run --name {shlex.quote(evil)} {image} --model Qwen/Qwen3-8B",
        "env": f"docker run -e {shlex.quote('VLLM_X=' + evil)} {image} --model Qwen/Qwen3-8B",
        "mount": f"docker run -v {shlex.quote('/srv/' + evil + ':/x')} {image} --model Qwen/Qwen3-8B",
        "option": f"docker run --label {shlex.quote(evil)} --ulimit {shlex.quote(evil)} {image} --model Qwen/Qwen3-8B",
        "model": f"docker run {image} --model {shlex.quote('Qwen/' + evil)}",
        "served name": f"docker run {image} --model Qwen/Qwen3-8B --served-model-name {shlex.quote(evil)}",
        "argument": f"docker run {image} --model Qwen/Qwen3-8B --chat-template {shlex.quote(evil)}",
        "json": f"docker run {image} --model Qwen/Qwen3-8B --override-generation-config {shlex.quote(json)}",
        "unknown": f"docker run {image} --model Qwen/Qwen3-8B --no-such-option {shlex.quote(evil)}",
        "statement": f"docker run {image} --model Qwen/Qwen3-8B --chat-template {shlex.quote('{% set x = ' + evil[2:-2] + ' %}')}",
        "comment": f"docker run {image} --model Qwen/Qwen3-8B --host {shlex.quote('x' + chr(10) + 'spark_x: ' + chr(34) + evil + chr(34))}",
        "delimiters": f"docker run {image} --model Qwen/Qwen3-8B --chat-template "
        + shlex.quote(
            f"#jinja2: variable_start_string:'[[', variable_end_string:']]'\n[[ lookup('pipe', 'touch {mark}') ]]"
        ),
    }
    return places


PLACES = list(lines_of(Path("/x")))


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_a_launch_is_evaluated(tmp_path: Path, place: str) -> None:
    mark = tmp_path / "touched"
    try:
        launch = importer.import_launch(lines_of(mark)[place])
    except ValueError as error:  # refused outright, which is as good
        assert not mark.exists(), error
        return
    text = yaml_of({**launch["host_vars"], "spark_services": [launch["service"]]})
    read = evaluated(tmp_path, page(text, report(launch)))
    assert not mark.exists()
    assert set(read) == {*launch["host_vars"], "spark_services"}
    assert read["spark_services"] == [launch["service"]]


def test_the_same_text_without_the_tag_would_be(tmp_path: Path) -> None:
    """The test above can fail: Ansible evaluates such a text without the mark !unsafe."""
    mark = tmp_path / "touched"
    evaluated(tmp_path, yaml_of({"x": f"{{{{ lookup('pipe', 'touch {mark}') }}}}"}).replace("!unsafe ", ""))
    assert mark.exists()


def test_texts_without_templates_are_written_as_ever() -> None:
    assert (
        yaml_of({"name": "chat", "args": {"a": '{"b": {"c": 1}}', "d": 5}})
        == 'name: chat\nargs:\n  a: \'{"b": {"c": 1}}\'\n  d: 5\n'
    )
