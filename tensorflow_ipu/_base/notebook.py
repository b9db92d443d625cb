"""Objects that notebooks show as pages, which `analysis.pages` makes when they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self


class Table(NamedTuple):
    """A table of a page. The last `numbers` columns are aligned to the right; a table with a `summary` is folded."""

    rows: Sequence[Sequence[object]]
    heads: Sequence[str] = ("", "")
    numbers: int = 0
    summary: str = ""


class Facts(NamedTuple):
    """The description of an object: a title, a sentence and tables. Texts may have code in backticks."""

    title: str
    text: str
    tables: Sequence[Table]


class NotebookView:
    """Shows an object in notebooks as a page in a frame, or as a line of text without matplotlib."""

    def _facts(self) -> Facts:
        """Returns the content of the page; reports have pages of their own instead."""
        raise NotImplementedError(type(self).__name__)

    def _repr_html_(self) -> str | None:
        from tensorflow_ipu.analysis import pages

        return pages.frame_of(self)


class NotebookText(NotebookView, str):
    """Text that notebooks show as the page of `content`, and IPython prints line by line."""

    content: object

    def __new__(cls, text: str, content: object) -> Self:
        self = super().__new__(cls, text)
        self.content = content
        return self

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))
