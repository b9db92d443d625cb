"""The command `list`, which prints the names of IPU TensorFlow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tensorflow_ipu.cli.parsers import add_json, make_parser, show, show_json


def parser() -> argparse.ArgumentParser:
    made = make_parser(
        "list",
        "Prints all names of IPU TensorFlow, of `keras.ipu`, of the add-ons and of the packages beside them, and all options"
        " of `IPUConfig`, with what each is here, and where or why: `works`; `recorded`, which is checked and written down and"
        " changes no result; `cannot be`. The modules of `ipu.ops` and `ipu.optimizers` are in `ipu` itself as well.",
        "0; 1 if no name has any of the texts",
    )
    made.add_argument("--markdown", action="store_true", help="print all names in Markdown")
    made.add_argument("text", metavar="TEXT", nargs="*", help="print names that have this in them alone")
    add_json(made)
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    from tensorflow_ipu.compat import _listing

    if options.markdown:
        show(_listing.markdown())
        return 0
    chosen = _listing.chosen(options.text)
    if options.json:
        show_json([{"name": one.full, "state": one.state.value, "words": one.words} for one in chosen])
    else:
        show("\n".join(_listing.lines(chosen)))
    return int(not chosen)
