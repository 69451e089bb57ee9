"""Documents: their links lead somewhere, and the index knows every page."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(
        page
        for folder in ("benchmarks", "deploy", "docs")
        for page in ROOT.glob(f"{folder}/**/*.md")
    ),
]


def local_links(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_something(page: Path) -> None:
    assert [target for target in local_links(page) if not target.exists()] == []


def test_index_links_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    assert set(ROOT.glob("docs/*/*.md")) <= local_links(index)


def test_the_page_of_settings_is_what_the_settings_say() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "settings_page.py"))
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert script["page"]() == page
