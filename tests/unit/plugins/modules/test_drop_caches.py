from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.dgxspark.vllm.plugins.modules import drop_caches


def run_module(capsys: Any, **args: Any) -> dict[str, Any]:
    with patch_module_args(args), pytest.raises(SystemExit):
        drop_caches.main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def dropped(tree: Any) -> bool:
    return bool((tree.root / "proc/sys/vm/drop_caches").read_text() == "3\n")


def test_drops(capsys: Any, tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drop_caches.hostmem, "SETTLE_SECONDS", 0)
    result = run_module(capsys, root=str(tree))
    assert result["changed"] is True and result["freed_mib"] == 0 and dropped(tree)
    assert result["before"]["page_cache_gib"] > 19


def test_small_cache_is_left_alone(capsys: Any, tree: Any) -> None:
    result = run_module(capsys, root=str(tree), threshold_gib=30)
    assert result["changed"] is False and result["freed_mib"] == 0 and not dropped(tree)


@pytest.mark.parametrize(("threshold", "changed"), [(1.0, True), (30.0, False)])
def test_check_mode_predicts_and_touches_nothing(capsys: Any, tree: Any, threshold: float, changed: bool) -> None:
    result = run_module(capsys, root=str(tree), threshold_gib=threshold, _ansible_check_mode=True)
    assert result["changed"] is changed and not dropped(tree)
    assert result["freed_mib"] == (int(result["before"]["page_cache_gib"] * 1024) if changed else 0)


def test_without_root_the_fix_is_named(capsys: Any, tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "/proc/sys/vm/drop_caches")

    monkeypatch.setattr(drop_caches.hostmem, "drop_caches", refuse)
    result = run_module(capsys, root=str(tree))
    assert result["failed"] is True and "become: true" in result["msg"] and "/proc/sys/vm/drop_caches" in result["msg"]


def test_tree_without_memory_fails_clearly(capsys: Any, tmp_path: Any) -> None:
    result = run_module(capsys, root=str(tmp_path))
    assert result["failed"] is True and "meminfo" in result["msg"]


def test_negative_threshold(capsys: Any, tree: Any) -> None:
    assert "cannot be negative" in run_module(capsys, root=str(tree), threshold_gib=-1)["msg"]
