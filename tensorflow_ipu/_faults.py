"""All faults of one call, raised together."""

from __future__ import annotations


class Faults:
    """Collects faults and raises them as one exception of the first one's kind."""

    def __init__(self) -> None:
        self._found: list[tuple[type[Exception], str]] = []

    def add(self, kind: type[Exception], message: str) -> None:
        """Records one fault."""
        self._found.append((kind, message))

    def raise_any(self) -> None:
        """Raises what was recorded; returns if nothing was."""
        if not self._found:
            return
        kind = self._found[0][0]
        messages = [message for _, message in self._found]
        if len(messages) == 1:
            raise kind(messages[0])
        raise kind(f"{len(messages)} faults:\n" + "\n".join(f"  - {message}" for message in messages))
