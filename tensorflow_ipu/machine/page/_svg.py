"""A figure of matplotlib as SVG inside of a page, in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page's colours, by the names of its CSS variables. matplotlib knows none: it draws with these, which are replaced.
NAMES = (
    "ink", "grid", "compute", "exchange", "sync", "links", "host", "always", "data", "stash", "code", "limit",
    "forward", "backward", "recompute", "update", "move",
)  # fmt: skip
COLOURS = {name: f"#fe{number:02x}fe" for number, name in enumerate(NAMES)}
_FONT_POINTS = 9.0
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_ADDRESSES = re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"')
_SIZE = re.compile(r'(<svg\b[^>]*?)\swidth="[^"]*"|(<svg\b[^>]*?)\sheight="[^"]*"')
_NAMED = re.compile(r'(\bid="|"#|url\(#)')


@contextmanager
def figure(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """An empty figure of so many inches with axes, in the colours of the page.

    Raises:
      ImportError: matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ImportError(
            "a report as HTML needs matplotlib, which is not installed; `pip install 'tensorflow-ipu[report]'` brings it,"
            " and `save` under a name that ends in `.json` needs nothing"
        ) from exc
    ink = COLOURS["ink"]
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "font.size": _FONT_POINTS,
        "font.family": ["sans-serif"],
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": COLOURS["grid"],
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "path.simplify": True,
    }
    with mpl.rc_context(settings):
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, made.add_subplot()


def inline(made: Figure, number: int, description: str) -> str:
    """The figure as an `svg` element of a page.

    Args:
      made: What `figure` gave, in its block.
      number: Another for each figure of the page, which has one name space.
      description: What is to be seen, for those who do not see it.
    """
    written = io.StringIO()
    made.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    text = _ADDRESSES.sub("", text).replace("xlink:href", "href")
    text = _SIZE.sub(r"\1\2", _SIZE.sub(r"\1\2", text, count=1), count=1)
    text = _NAMED.sub(rf"\g<1>p{number}-", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
