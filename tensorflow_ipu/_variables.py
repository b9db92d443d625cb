"""How the text of an environment variable is read: as a number, a switch, a word, JSON; or refused, by name and value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


def text_of(variable: str, environ: Mapping[str, str] | None) -> str:
    """What a variable holds, without white space around it; empty where it is unset."""
    return (os.environ if environ is None else environ).get(variable, "").strip()


def switch(variable: str, default: bool, environ: Mapping[str, str] | None) -> bool:
    """A variable that is on or off; `default` where it is unset or empty."""
    text = text_of(variable, environ).lower()
    if text not in FALSE | TRUE | {""}:
        raise ValueError(
            f"`{variable}={text}` is neither on nor off; set it to `1` or `0`, or unset it for `{int(default)}`"
        )
    return text in TRUE if text else default


def choice(variable: str, choices: tuple[str, str], advice: str, environ: Mapping[str, str] | None) -> str:
    """A variable that holds one of two words, in any case; the first one where it is unset or empty."""
    text = text_of(variable, environ).lower() or choices[0]
    if text not in choices:
        raise ValueError(f"`{variable}={text}` is neither `{choices[0]}` nor `{choices[1]}`; {advice}")
    return text


def positive_int(variable: str, default: int, most: int, environ: Mapping[str, str] | None) -> int:
    """A variable that holds a whole number from 1 to `most`; `default` where it is unset or empty.

    A `default` of 0 stands for what no number says, so that messages do not name it.
    """
    text = text_of(variable, environ)
    if not text:
        return default
    unset = f"or unset it{f' for {default}' if default else ''}"
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits:
        raise ValueError(
            f"`{variable}={text}` is not a positive whole number; set it to a number from 1 to {most}, {unset}"
        )
    # By its length first: Python reads no number of thousands of digits.
    if len(digits) > len(str(most)) or int(digits) > most:
        shown = text if len(text) < 40 else text[:20] + "..."
        raise ValueError(f"`{variable}={shown}` is too high; set it to a number from 1 to {most}, {unset}")
    return int(digits)


def json_object(variable: str, text: str, example: str) -> dict[str, Any]:
    """The JSON object that a variable holds."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"`{variable}={text}` is no JSON ({exc}); write it as in `{example}`") from exc
    if not isinstance(found, dict):
        raise ValueError(f"`{variable}={text}` is no JSON object; write it as in `{example}`")
    return found
