"""The README names every example, and the index of the documentation every page."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_names_every_example():
    readme = (ROOT / "README.md").read_text()
    missing = [file.name for file in sorted((ROOT / "examples").glob("*.py")) if f"`{file.name}`" not in readme]
    assert not missing, f"examples that README.md does not name: {missing}"


def test_the_index_of_the_documentation_names_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "index.md"]
    missing = [page for page in pages if f"({page})" not in index]
    assert not missing, f"pages that docs/index.md does not name: {missing}"
