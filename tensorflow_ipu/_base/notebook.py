"""Base classes of objects that notebooks show as pages. `analysis.pages` renders them when they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self


class Table(NamedTuple):
    """A table of a page. The last `numbers` columns are aligned to the right. A table with a `summary` is collapsed."""

    rows: Sequence[Sequence[object]]
    heads: Sequence[str] = ("", "")
    numbers: int = 0
    summary: str = ""


class Facts(NamedTuple):
    """The content of an object's page: a title, a sentence and tables. Texts may contain code in backticks."""

    title: str
    text: str
    tables: Sequence[Table]


class NotebookView:
    """Makes notebooks show an object as a page in a frame, or as a line of text if matplotlib is missing."""

    def _facts(self) -> Facts:
        """Returns the content of the page. Reports do not override this, since they have other pages."""
        raise NotImplementedError(type(self).__name__)

    def _repr_html_(self) -> str | None:
        from tensorflow_ipu.analysis import pages

        return pages.frame_of(self)


class NotebookText(NotebookView, str):
    """Text that notebooks show as the page of `content`, and that IPython prints without quotes."""

    content: object

    def __new__(cls, text: str, content: object) -> Self:
        self = super().__new__(cls, text)
        self.content = content
        return self

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))
