"""The parsers of nvidia_smi: processes that hold GPU memory."""

from __future__ import annotations

import pytest

from ansible_collections.dgxspark.vllm.plugins.module_utils._host import nvidia_smi
from ansible_collections.dgxspark.vllm.plugins.module_utils._runtime import command


def test_compute_apps_of_gb10() -> None:
    text = "197277, VLLM::Worker_TP0, 102625\n624869, VLLM::EngineCore, 31958\n41, a, b, [N/A]\nNo devices were found\n"
    assert nvidia_smi.parse_compute_apps(text) == [
        {"pid": 197277, "name": "VLLM::Worker_TP0", "used_mib": 102625},
        {"pid": 624869, "name": "VLLM::EngineCore", "used_mib": 31958},
        {"pid": 41, "name": "a, b", "used_mib": None},
    ]


def test_text_that_speaks_of_no_process_is_no_answer() -> None:
    assert nvidia_smi.parse_compute_apps("") == nvidia_smi.parse_compute_apps("No running processes found\n") == []
    with pytest.raises(command.NoAnswer, match="nvidia-smi printed 'Usage: nvidia-smi'"):
        nvidia_smi.parse_compute_apps("Usage: nvidia-smi\n")


def test_the_holders_of_memory_are_named_in_words() -> None:
    apps = [
        {"pid": number, "name": f"p{number}", "used_mib": mib} for number, mib in enumerate((4096, 512, None, 256, 1))
    ]
    assert nvidia_smi.name_holders(apps) == "used by p0 (pid 0) 4.00 GiB, p1 (pid 1) 0.50 GiB, p3 (pid 3) 0.25 GiB"
    assert nvidia_smi.name_holders([]).startswith("no GPU process uses memory")
