"""What all reports share: how they are saved and read, how their pages look, and how notebooks show those."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, ClassVar

from tensorflow_ipu._base import files

if TYPE_CHECKING:
    from typing_extensions import Self

_LOOKS = """\
:root { --page: #f4f5f7; --card: #ffffff; --ink: #1d2430; --soft: #5b6575; --line: #dfe3e9; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161c; --card: #1b212a; --ink: #e5e9f0; --soft: #a0abba; --line: #323b48; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 20px 16px 48px; display: grid; gap: 16px; }
main > * { min-width: 0; }
h1 { font-size: 1.45rem; line-height: 1.25; margin: 4px 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 1.02rem; margin: 0 0 8px; }
p { margin: 0 0 8px; }
p, li { overflow-wrap: anywhere; }
.soft, figcaption, summary { color: var(--soft); font-size: .88rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 14px 0 4px; }
.figures div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; }
.figures b { display: block; font-size: 1.3rem; line-height: 1.3; }
/* No panel scrolls: the page does. What is wide fits a desk, and goes sideways in its own box where there is less room. */
@media (max-width: 1020px) { .scrolls { overflow-x: auto; } }
svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif; }
.key { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: .85rem; margin: 8px 0 0; padding: 0; list-style: none; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; }
input[type=search] { width: min(100%, 340px); margin: 0 0 8px; padding: 5px 10px; font: inherit; color: var(--ink);
  background: var(--page); border: 1px solid var(--line); border-radius: 6px; }
code { font-size: .92em; background: var(--page); border-radius: 4px; padding: 0 .25em; }
"""

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$looks</style>
</head>
<body>
<main>
<header>
$head
</header>
$panels
</main>
$script</body>
</html>
""")


_CODE = re.compile(r"`([^`]*)`")


def prose(text: str) -> str:
    """Text of the package, with what it sets in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def page(title: str, head: str, panels: str, looks: str, script: str = "") -> str:
    """Puts a page together."""
    return _PAGE.substitute(title=title, head=head, panels=panels, looks=_LOOKS + looks, script=script)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> str:
    """A table of text, whose last columns, so many, are numbers."""

    def line(cells: Sequence[object], tag: str) -> str:
        kinds = [""] * (len(cells) - numbers) + [' class="n"'] * numbers
        return "".join(f"<{tag}{kind}>{prose(str(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    head = f"<thead><tr>{line(heads, 'th')}</tr></thead>" if any(heads) else ""
    body = "\n".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="scrolls"><table>{head}<tbody>{body}</tbody></table></div>'


def folded(summary: str, content: str) -> str:
    """What a click on its summary shows."""
    return f"<details><summary>{prose(summary)}</summary>{content}</details>"


def small_page(title: str, said: str, *content: str) -> str:
    """Returns the page of an object: what it is, a sentence on it, and elements below each other."""
    head = f"<h1>{escape(title)}</h1>\n" + f"<p>{prose(said)}</p>" * bool(said)
    return page(escape(title), head, "\n".join(content), "")


# As in a frame: without the margins of a window, and less loud than the heading of a notebook.
_FRAMED = (
    "main { padding: 2px 1px 10px; max-width: none; } h1 { font-size: 1.1rem; } body { background: var(--card); }\n"
)
_MOST_HIGH = 640
_FRAME = Template("""\
<iframe srcdoc="$page" style="width: 100%; height: 320px; border: 0"
 onload="this.style.height = Math.min($most, this.contentDocument.body.offsetHeight + 2) + 'px'"></iframe>""")


@functools.singledispatch
def page_of(value: object) -> str:
    """Returns the page of an object, of those whose classes know nothing of pages."""
    raise NotImplementedError(type(value).__name__)


class PageView:
    """What a notebook shows as a page."""

    def _page(self) -> str:
        """Returns the page."""
        return page_of(self)

    def _repr_html_(self) -> str | None:
        """Returns the page in a frame of its own, so that neither its styles nor the notebook's reach the other."""
        try:
            text = self._page()
        except ImportError:  # Pictures need matplotlib. Without, a notebook shows the line of text.
            return None
        return _FRAME.substitute(page=escape(text.replace("</style>", f"{_FRAMED}</style>", 1)), most=_MOST_HIGH)


class TextView(PageView, str):
    """Text that a notebook shows as a page, and IPython line by line."""

    _made: Callable[[], str]

    def __new__(cls, text: str, made: Callable[[], str]) -> Self:
        """Takes the text, and what makes the page."""
        self = super().__new__(cls, text)
        self._made = made
        return self

    def _page(self) -> str:
        return self._made()

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))


class SavedReport(PageView):
    """A report that is saved as JSON, and read again, or saved as a page for a browser."""

    _SCHEMA: ClassVar[int]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as what JSON can hold."""
        raise NotImplementedError

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        """Returns the report that `to_dict` gave, of this schema."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the report that `to_dict` gave.

        Raises:
          ValueError: It is of another schema, or is no report.
        """
        if values.get("schema") != cls._SCHEMA:
            raise ValueError(
                f"the report has schema {values.get('schema')!r}, and this version of the package reads schema"
                f" {cls._SCHEMA}: make the report again"
            )
        try:
            return cls._of(values)
        except KeyError as exc:
            raise ValueError(f"this is no report: it has no {exc}") from exc
        except (TypeError, ValueError, AttributeError) as exc:
            raise ValueError(f"this is no report: {exc}") from exc

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report to a `.json` file, which `load` reads, or as a page for a browser to an `.html` file.

        Raises:
          ValueError: `path` ends otherwise.
          OSError: It cannot be written.
          ImportError: A page needs matplotlib, which is missing.
        """
        target = Path(path)
        if target.suffix not in (".json", ".html"):
            raise ValueError(f"`path` must end in `.json` or `.html`, but is `{target}`")
        text = self._page() if target.suffix == ".html" else json.dumps(self.to_dict(), indent=1) + "\n"
        files.write(target, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a report that `save` wrote as JSON.

        Raises:
          OSError: There is no such file.
          ValueError: It is no report, or one of another schema.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as exc:
            raise ValueError(f"`{path}` is no report: it is no JSON ({exc})") from exc
        if not isinstance(values, dict):
            raise ValueError(f"`{path}` is no report: it holds no object")
        try:
            return cls.from_dict(values)
        except ValueError as exc:
            raise ValueError(f"`{path}`: {exc}") from exc
