# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The versions of programs that hosts get in addition to engines; ``scripts/newer_versions.py`` lists newer ones.

Recipes name the images of engines; Prometheus, Alertmanager and node_exporter are packages of the hosts' distribution.
"""

from __future__ import annotations

from typing import NamedTuple


class Component(NamedTuple):
    """A program that hosts get: its name, version and source."""

    name: str
    version: str
    image: str = ""
    """Repository of its image, whose tag is the version; empty without an image."""
    package: str = ""
    """Name of its Python package, which also lists its versions."""
    release: str = ""
    """Repository of its releases."""

    @property
    def ref(self) -> str:
        """The reference of its image."""
        return f"{self.image}:{self.version}"


LITELLM = Component("LiteLLM", "v1.108.14", image="ghcr.io/berriai/litellm", package="litellm")
OPEN_WEBUI = Component("Open WebUI", "v0.12.4", image="ghcr.io/open-webui/open-webui", package="open-webui")
GRAFANA = Component("Grafana", "12.4.2", image="docker.io/grafana/grafana")
OLLAMA = Component("Ollama", "0.33.3", image="ollama/ollama")
PARAKEET = Component("Parakeet", "0.8.0-int8", image="ghcr.io/achetronic/parakeet")
CHATTERBOX = Component("Chatterbox", "v1.0.1", image="travisvn/chatterbox-tts-api")
GPU_EXPORTER = Component("nvidia_gpu_exporter", "1.3.2", release="utkuozdemir/nvidia_gpu_exporter")
HERMES = Component("Hermes agent", "0.19.0", package="hermes-agent")
RAY = Component("Ray", "2.60.0", package="ray")

COMPONENTS = (LITELLM, OPEN_WEBUI, GRAFANA, OLLAMA, PARAKEET, CHATTERBOX, GPU_EXPORTER, HERMES, RAY)
