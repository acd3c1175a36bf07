# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the documentation as a site: the Markdown pages, and the reference of modules, filters, lookups and roles from their own texts.

    docs_site.py [FOLDER]        .cache/docs-site/html unless a folder is named
    docs_site.py --check         every page is read and every link followed, and nothing is written

The pages lie in the site as they lie in the repository, so that their links lead to the same places. A link to a page or heading that is not
there, and every other warning of the generator, fails the build.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import CACHE, ROOT, run, tracked_files

SOURCE = CACHE / "docs-site" / "source"
HTML = CACHE / "docs-site" / "html"
TREES = CACHE / "docs-site" / "doctrees"
COLLECTION = "dgxspark.vllm"
LARGEST = 1024 * 1024
"""Bytes of the largest page, its pictures apart: what a phone shows without a wait."""
# Links of pages to code of the repository, which the site does not contain, become paths.
LINK = re.compile(r"(?<!\!)\[(?P<text>[^\]\n]+)\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")
SECTIONS = (
    (
        "First steps",
        ("quickstart", "tutorials", "inventory", "importing", "troubleshooting", "known_failures", "glossary"),
    ),
    ("Reference", ("verbs", "models", "rules")),
    ("Memory and speed", ("memory", "speed", "benchmarks", "claims")),
    ("Several Sparks, one model", ("cluster", "fabric")),
    (
        "Add-on services",
        ("gateway", "clients", "speech", "monitoring", "agent"),
    ),
    (
        "Day-2 operations",
        ("on_demand", "health", "automation"),
    ),
    ("A fleet", ("fleet", "distribution")),
    ("Internals", ("security", "architecture", "testing")),
)
"""Pages of docs/ in the order of the menu; one that is not listed comes last."""
ANSIBLE = "https://docs.ansible.com/ansible/latest"
LABELS = {
    "common_return_values": ("Common return values", "reference_appendices/common_return_values.html"),
    "action_plugins": ("Action plugins", "plugins/action.html"),
    "callback_plugins": ("Callback plugins", "plugins/callback.html"),
    "ansible_configuration_settings": ("Configuration settings", "reference_appendices/config.html"),
}
"""Labels of Ansible's own documentation that generated pages refer to, with their titles and places there."""
BUILTIN = re.compile(r"<(ansible_collections\.ansible\.builtin\.(\w+)_module)>")
CONFIGURATION = """\
project = "dgxspark.vllm"
author = "dgxspark.vllm contributors"
copyright = "2026, " + author
extensions = ["myst_parser", "sphinx_antsibull_ext"]
# As GitHub makes them, so that one link works in both.
myst_heading_anchors = 6
html_theme = "alabaster"
html_theme_options = {"fixed_sidebar": False, "page_width": "1180px", "sidebar_width": "260px"}
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["style"]
html_css_files = ["pages.css"]
# Colours of code alone: the highlighter has no prompt for further lines of a quoted argument.
suppress_warnings = ["misc.highlighting_failure"]
# Two builds of the same pages are the same.
html_last_updated_fmt = None
antsibull_ext_color_scheme = "none"
"""
STYLE = Path(__file__).with_suffix(".css")


def pages() -> list[str]:
    """Return the Markdown pages that a reader of the documentation comes to, as paths below the repository."""
    overview = tracked_files("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return [*tracked_files("docs/*.md", "roles/*/README.md"), *overview]


def without_code_links(text: str, page: str, site_files: set[str]) -> str:
    """Return a page with links to files that are no part of the site as their text; a link to nothing is left, and fails the build."""

    def written(match: re.Match[str]) -> str:
        target = (ROOT / page).parent.joinpath(match["path"]).resolve()
        inside = target.is_relative_to(ROOT) and target.relative_to(ROOT).as_posix() in site_files
        return match[0] if inside or not target.exists() else match["text"]

    return LINK.sub(written, text)


def write_pages() -> None:
    """Put the pages, their pictures and the menu into the source folder."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    names = pages()
    site_files = {*names, *tracked_files("docs/images/*", "docs/*.html")}
    for name in site_files:
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            (SOURCE / name).write_text(without_code_links(text, name, site_files), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, SOURCE / name)
    (SOURCE / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    (SOURCE / "style").mkdir()
    shutil.copyfile(STYLE, SOURCE / "style" / "pages.css")
    (SOURCE / "index.md").write_text("\n".join(menu(names)), encoding="utf-8")


def menu(names: Sequence[str]) -> Iterator[str]:
    """Return the lines of the first page: the README, and the menu of all pages."""
    listed = [f"docs/{stem}.md" for _title, stems in SECTIONS for stem in stems]
    sections = {
        "Overview": ["README", "CHANGELOG", "CONTRIBUTING"],
        **{title: [f"docs/{stem}" for stem in stems] for title, stems in SECTIONS},
        "More": [name.removesuffix(".md") for name in names if name.startswith("docs/") and name not in listed],
        "Modules and plugins": ["collections/index", "collections/ansible"],
        "Roles": [name.removesuffix(".md") for name in names if name.startswith("roles/")],
    }
    yield from (
        "# dgxspark.vllm",
        "",
        "Start with [what it is](README.md) or [the quick start](docs/quickstart.md), then [the tutorials](docs/tutorials.md).",
        "",
    )
    for title, entries in sections.items():
        if entries:
            yield from ("```{toctree}", ":maxdepth: 1", f":caption: {title}", "", *entries, "```", "")


MENDED = (
    (r'<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    (r"<h3>(Navigation|Related Topics)</h3>", r"<h2>\1</h2>"),
    (r'<h1 class="logo">(.*?)</h1>', r'<p class="logo">\1</p>'),
    (r'aria-labelledby="searchlabel"', 'aria-label="Search"'),
    (r' aria-role="button"', ""),
    (r"<pre>", '<pre tabindex="0">'),
    (r"<table class=", '<table tabindex="0" class='),
    (r'<div class="footer">', '<div class="footer" role="contentinfo">'),
)
"""What the theme lacks for people who do not see the page or use no mouse, by its places: what scrolls can be reached, headings have a level."""


def mend(folder: Path) -> None:
    """Put into the written pages what the theme lacks."""
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for pattern, better in MENDED:
            text = re.sub(pattern, better, text)
        path.write_text(text, encoding="utf-8")


def ansible_page(place: Path) -> str:
    """Return a page that leads to Ansible's own documentation, with the labels of it that pages of a folder refer to.

    They would come from an index of that site, which would make the build depend on the network.
    """
    referred = {match for path in place.glob("*.rst") for match in BUILTIN.findall(path.read_text(encoding="utf-8"))}
    targets = dict(LABELS)
    for label, name in sorted(referred):
        targets[label] = (f"ansible.builtin.{name} module", f"collections/ansible/builtin/{name}_module.html")
    title = "Ansible's own documentation"
    lines = [title, "=" * len(title), ""]
    for label, (words, path) in targets.items():
        lines += [f".. _{label}:", "", words, "-" * len(words), "", f"See `{words} <{ANSIBLE}/{path}>`__.", ""]
    return "\n".join(lines)


def main() -> int:
    """Build the site and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HTML)
    parser.add_argument("--check", action="store_true", help="write no page")
    options = parser.parse_args()
    folder = options.folder.resolve()
    write_pages()
    # The pages of modules, plugins and roles.
    place = SOURCE / "collections"
    place.mkdir(parents=True)
    antsibull = ["antsibull-docs", "collection", "--use-current", "--fail-on-error", "--squash-hierarchy"]
    code = run(*antsibull, "--no-add-antsibull-docs-version", "--dest-dir", place, COLLECTION)
    if code:
        return code
    (place / "ansible.rst").write_text(ansible_page(place), encoding="utf-8")
    sphinx = [sys.executable, "-m", "sphinx", "--builder", "dummy" if options.check else "html", "--doctree-dir", TREES]
    code = run(*sphinx, "--fresh-env", "--fail-on-warning", "--keep-going", "--quiet", SOURCE, folder)
    if code or options.check:
        return code
    mend(folder)
    html_files = list(folder.rglob("*.html"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(html_files)} pages, {size / 2**20:.1f} MiB: {folder / 'index.html'}")
    if large := [path for path in html_files if path.stat().st_size > LARGEST]:
        print("\n".join(f"{path}: more than {LARGEST / 2**20:.1f} MiB" for path in large))
    return int(bool(large))


if __name__ == "__main__":
    sys.exit(main())
