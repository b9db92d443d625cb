"""Renders the templates of this folder. `page_of` renders the page of an object by the object's type."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import jinja2
from markupsafe import Markup, escape

from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.analysis.machine.text import count_text

_CODE = re.compile(r"`([^`]*)`")
# Styles of a page in a notebook: no margins, and a heading smaller than the notebook's.
_FRAMED = "main { padding: 2px 1px 10px; max-width: none; } h1 { font-size: 1.1rem; } body { background: var(--card); }"


def prose(text: object) -> Markup:
    """Returns a text as escaped HTML. Text between backticks becomes a `code` element."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def percent(share: float, digits: int = 0) -> str:
    return f"{share:.{digits}%}"


_FILTERS: dict[str, Callable[..., object]] = {
    "prose": prose,
    "percent": percent,
    "size": format_bytes,
    "time": format_seconds,
    "count": count_text,
}


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("tensorflow_ipu.analysis", "pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters.update(_FILTERS)
    return templates


def render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(values)


@functools.singledispatch
def page_of(value: object) -> str:
    """Returns the page of an object.

    Raises:
      ImportError: The page has a picture, and matplotlib is missing.
    """
    raise NotImplementedError(type(value).__name__)


def frame_of(value: object) -> str | None:
    """Returns the page in a frame, which separates its styles from the notebook's; None if matplotlib is missing."""
    try:
        page = page_of(value)
    except ImportError:
        return None
    return render("frame.html.jinja", page=page.replace("</style>", f"{_FRAMED}\n</style>", 1))
