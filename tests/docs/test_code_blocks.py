"""The Python blocks of each page run in order as one script and print the shown output; links are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorflow_ipu import compat

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\s*$")


def blocks(page: Path) -> list[tuple[str, int, list[str]]]:
    """Returns the fenced blocks of a page: the word after the fence, the number of the first line, and the lines."""
    fenced = []
    begin = language = None
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if begin is None:
            begin, language = number + 1, fence.group(1)
        else:
            fenced.append((language, begin, lines[begin:number]))
            begin = None
    assert begin is None, f"the block that begins in line {begin} of {page} does not end"
    return fenced


def script(page: Path) -> str:
    """Returns the Python blocks of a page with their line numbers of the page, so that errors name these lines."""
    lines = [""] * len(page.read_text().splitlines())
    for language, begin, code in blocks(page):
        if language == "python":
            lines[begin : begin + len(code)] = code
    return "\n".join(lines)


def shown(page: Path) -> list[str]:
    """Returns the output that a page shows, which is in `text` blocks directly below Python blocks."""
    output = []
    after_python = -1
    for language, begin, lines in blocks(page):
        # Between the blocks are a fence, an empty line and a fence.
        if language == "text" and begin == after_python + 3:
            output += lines
        if language == "python":
            after_python = begin + len(lines)
    return output


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if script(page).strip()], ids=lambda page: page.stem)
def test_the_python_blocks_of_a_page_run_and_print_what_it_shows(page, tmp_path, run_here):
    file = tmp_path / "page.py"
    file.write_text(script(page))
    try:
        output = run_here(file)
    finally:
        compat.uninstall()  # One page installs the compatibility layer.
    if shown(page):
        assert output == shown(page)


LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{path}#{anchor}"


@pytest.mark.parametrize(
    ("index", "files", "mention"), [("README.md", "examples/*.py", "`{}`"), ("docs/index.md", "docs/*.md", "({})")]
)
def test_an_index_names_every_file(index, files, mention):
    text = (ROOT / index).read_text()
    names = [file.name for file in sorted(ROOT.glob(files)) if file != ROOT / index]
    assert [name for name in names if mention.format(name) not in text] == []
