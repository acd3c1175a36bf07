"""Making a release: the version, what keeps a tree from being released, and the files of one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import release
import tree

from ansible_collections.dgxspark.vllm.plugins.module_utils._common.component_versions import GRAFANA, HERMES


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with only the files of a release."""
    for name in [
        *tree.below("changelogs/", "meta/", "plugins/"),
        "galaxy.yml",
        "CHANGELOG.md",
        "README.md",
        "execution-environment.yml",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree.ROOT / name, tmp_path / name)
    (tmp_path / "changelogs/fragments").mkdir(exist_ok=True)
    (tmp_path / "changelogs/fragments/new.yml").write_text(
        "---\nbugfixes:\n  - plan - a thing that was wrong.\n", encoding="utf-8"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("how", "version"),
    [("major", "2.0.0"), ("minor", "1.3.0"), ("patch", "1.2.4"), ("1.2.10", "1.2.10"), ("2.0.0", "2.0.0")],
)
def test_the_next_version(how: str, version: str) -> None:
    assert release.bumped("1.2.3", how) == version


@pytest.mark.parametrize("how", ["1.2.3", "1.2.2", "v1.3.0", "1.3", "1.3.0-rc1", "01.3.0", "next", ""])
def test_what_is_no_next_version_is_refused(how: str) -> None:
    with pytest.raises(ValueError, match=r"no semantic version|not later"):
        release.bumped("1.2.3", how)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_bump_makes_the_tree_releasable(copy: Path) -> None:
    assert any("that no release has" in problem for problem in release.problems("", copy))
    version = release.bump("minor", copy)
    assert release.problems(f"v{version}", copy) == []
    assert release.fragments(copy) == []
    assert (copy / "execution-environment.yml").read_text(encoding="utf-8").count(f"-{version}.tar.gz") == 2
    assert "a thing that was wrong" in release.notes(copy).replace("\\", "")
    assert "First release" not in release.notes(copy)
    (wrong,) = release.problems("v9.9.9", copy)
    assert "v9.9.9" in wrong and f"v{version}" in wrong
    with pytest.raises(ValueError, match="nothing to release"):
        release.bump("patch", copy)


def test_a_version_without_a_changelog_is_not_released(copy: Path) -> None:
    (copy / "galaxy.yml").write_text(tree.read("galaxy.yml").replace("version: ", "version: 9"), encoding="utf-8")
    assert any("has no release 9" in problem for problem in release.problems("", copy))


@pytest.mark.slow
@pytest.mark.nightly
def test_the_files_of_a_release(tmp_path: Path) -> None:
    tarball, bill, sums = release.build(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", sums.name], cwd=tmp_path, check=True, capture_output=True)
    assert [line.split()[1] for line in sums.read_text(encoding="utf-8").splitlines()] == [bill.name, tarball.name]
    text = bill.read_text(encoding="utf-8")
    # Their import builds grammars, which takes seconds.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    read = json.loads(text)
    (itself,) = [read["metadata"]["component"]]
    assert itself["hashes"][0]["content"] == release.digest(tarball)
    names = {part["name"]: part for part in read["components"]}
    assert set(tree.below("plugins/", "roles/", "playbooks/", "docs/", suffix=".md")) <= set(names)
    assert names[GRAFANA.image]["version"] == GRAFANA.version
    assert names[GRAFANA.image]["scope"] == "optional"
    assert names[HERMES.package]["purl"] == f"pkg:pypi/{HERMES.package}@{HERMES.version}"
    assert len({part["bom-ref"] for part in read["components"]}) == len(read["components"]) > 500
    assert json.loads(json.dumps(release.sbom(tarball))) == read, "the same tarball has the same bill"


def test_the_collection_has_its_files_and_no_others() -> None:
    pages = {"README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md", "changelogs/changelog.yaml"}
    folders = (
        "plugins/",
        "roles/",
        "playbooks/",
        "docs/",
        "meta/",
        "extensions/awx/",
        "extensions/eda/",
        "extensions/mcp/",
    )
    tracked = set(tree.tracked())
    files = {name for name in tracked if name in pages or name.startswith(folders)} - {"docs/findings.yml"}
    assert tree.packed(tracked) == files
    foreign = {
        ".venv/bin/python",
        ".cache/key",
        "my-sparks/hosts.yml",
        "rack/.secrets/key",
        "roles/.secrets/key",
        "a.tar.gz",
    }
    assert tree.packed(foreign) == set()


def test_a_clone_is_installed_without_further_packages() -> None:
    assert "manifest" not in tree.load("galaxy.yml"), "ansible-galaxy needs distlib for it"


def test_galaxy_yml_says_all_that_galaxy_asks_for() -> None:
    about = tree.load("galaxy.yml")
    keys = {"namespace", "name", "version", "readme", "authors", "description", "license", "tags"}
    keys |= {"dependencies", "repository", "documentation", "homepage", "issues", "build_ignore"}
    assert set(about) == keys and all(about[key] for key in keys - {"dependencies"})
    assert release.VERSION.fullmatch(about["version"])
    assert len(about["tags"]) <= 20 and {"infrastructure"} & set(about["tags"]), "Galaxy wants one of its own tags"
