"""What is known of the options that go to the machine's libraries as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_PROPORTION = "availableMemoryProportion"


def faults(name: str, options: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the values of options; the libraries have many, and all but a few are theirs to judge.

    Args:
      name: What the caller calls the options, for messages.
      options: The options, of text each.
    """
    proportion = options.get(_PROPORTION)
    if proportion is not None and not _is_share(proportion):
        yield (
            f"`{name}` has `{_PROPORTION!r}: {proportion!r}`, the share of an IPU's memory for temporary data; write a"
            f" number from 0 to 1 as text, such as `{_PROPORTION!r}: '0.6'`"
        )


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
