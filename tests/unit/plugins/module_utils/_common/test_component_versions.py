"""Versions of components: each names one source, and they are what services run by default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._addons import clients, gateway, monitoring, ollama, speech
from ansible_collections.dgxspark.vllm.plugins.module_utils._cluster import clustering
from ansible_collections.dgxspark.vllm.plugins.module_utils._common import component_versions as those

ROOT = Path(__file__).resolve().parents[5]


@pytest.mark.parametrize("component", those.COMPONENTS, ids=lambda component: component.name)
def test_a_component_has_a_version_that_stays_and_a_source(component: those.Component) -> None:
    assert re.match(r"v?\d+\.\d+\.\d+", component.version)
    assert component.image or component.package or component.release
    assert not component.image or component.ref == f"{component.image}:{component.version}"


def test_services_run_them() -> None:
    assert gateway.KEYS["image"].default == those.LITELLM.ref
    assert clients.OPEN_WEBUI_KEYS["image"].default == those.OPEN_WEBUI.ref
    assert clients.HERMES_KEYS["version"].default == those.HERMES.version
    assert ollama.KEYS["image"].default == those.OLLAMA.ref
    assert {kind["image"] for kind in speech.KINDS.values()} == {those.PARAKEET.ref, those.CHATTERBOX.ref}
    assert monitoring.MONITORING_KEYS["grafana_image"].default == those.GRAFANA.ref
    assert monitoring.EXPORTERS_KEYS["gpu_version"].default == those.GPU_EXPORTER.version
    assert those.RAY.version == clustering.RAY_VERSION


def test_the_lists_of_packages_are_those_of_these_versions() -> None:
    for role, component in (("clients", those.HERMES), ("ray", those.RAY)):
        (listed,) = (ROOT / "roles" / role / "files").glob("*-[0-9]*.txt")
        assert f"{component.package}=={component.version} \\" in listed.read_text(encoding="utf-8").splitlines()
        assert component.version in listed.name
