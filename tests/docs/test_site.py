"""The site has every page once, and every link into a page finds its heading; `make site` builds it strictly."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = sorted(DOCS.rglob("*.md"))


def pages_in(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages_in(part)


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """The names of a page's headings, as mkdocs makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[`*]|\]\(.*?\)|\[", "", heading) for heading in headings)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}


def test_every_page_stands_in_the_list_of_the_site_once():
    assert sorted(pages_in(SITE["nav"])) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_every_link_into_a_page_finds_its_heading():
    missing = []
    for page in (ROOT / "README.md", *PAGES):
        for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", without_code(page.read_text())):
            target = page.parent / file if file else page
            if target.suffix == ".md" and anchor not in anchors_of(target):
                missing.append(f"{page.relative_to(ROOT)}: {file}#{anchor}")
    assert missing == []


def test_links_of_the_site_stay_within_it():
    outside = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", without_code(page.read_text()))
        if "://" not in target and not (page.parent / target).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_the_site_is_built_strictly_and_asks_no_other_server_for_anything():
    assert SITE["strict"] is True
    assert SITE["validation"]["anchors"] == "warn"
    assert SITE["theme"]["font"] is False


def test_every_name_of_the_api_pages_is_exported():
    missing = []
    for page in (DOCS / "api").glob("*.md"):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            module, _, member = name.rpartition(".")
            if importlib.util.find_spec(module) is None or not hasattr(importlib.import_module(module), member):
                missing.append(name)
    assert missing == []


def test_marks_of_code_blocks_are_left_out_on_the_site():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.on_page_markdown("```python no-run\na b\n```\n") == "```python\na b\n```\n"
