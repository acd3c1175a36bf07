"""The documentation site has every page in its menu, and links that lead somewhere."""

from __future__ import annotations

from pathlib import Path

import docs_site
import pytest


def test_every_page_is_in_the_menu_once() -> None:
    listed = [f"docs/{stem}.md" for _title, stems in docs_site.SECTIONS for stem in stems]
    pages = [name for name in docs_site.pages() if name.startswith("docs/")]
    assert set(listed) == set(pages), "a page is to be in a section: SECTIONS of scripts/docs_site.py"
    menu = list(docs_site.menu([*docs_site.pages(), "docs/brand_new.md"]))
    assert [name for name in [*pages, "docs/brand_new.md"] if menu.count(name.removesuffix(".md")) != 1] == []
    assert "roles/gateway/README" in menu and "collections/index" in menu and ":caption: More" in menu


@pytest.mark.parametrize(
    ("text", "page_text"),
    [
        # Code is no part of the site: its name stays. Links to a page, an anchor and another site are unchanged.
        ("[a](../LICENSE) b", "a b"),
        ("[a](health.md#as-a-page)", "[a](health.md#as-a-page)"),
        ("[a](#here) [b](https://example.org/x)", "[a](#here) [b](https://example.org/x)"),
        ("![a](images/open-webui.png)", "![a](images/open-webui.png)"),
        # A link to nothing stays one, and the generator refuses it.
        ("[a](nowhere.md)", "[a](nowhere.md)"),
    ],
)
def test_links(text: str, page_text: str) -> None:
    pages = set(docs_site.pages())
    assert docs_site.without_code_links(text, "docs/health.md", pages) == page_text


def test_labels_of_ansible_have_a_place(tmp_path: Path) -> None:
    (tmp_path / "x.rst").write_text(":ref:`a <ansible_collections.ansible.builtin.copy_module>`\n")
    text = docs_site.ansible_page(tmp_path)
    assert ".. _common_return_values:" in text and ".. _ansible_collections.ansible.builtin.copy_module:" in text
    assert "/collections/ansible/builtin/copy_module.html>`__" in text


def test_what_the_theme_lacks_is_put_into_each_page(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "x.html"
    page.parent.mkdir()
    page.write_text(
        '<h3>Navigation</h3><p class="caption" role="heading">A</p><div class="highlight"><pre><span></span></pre></div>'
    )
    docs_site.mend(tmp_path)
    text = page.read_text()
    assert (
        text.startswith('<h2>Navigation</h2><p class="caption" role="heading" aria-level="2">')
        and '<pre tabindex="0">' in text
    )
