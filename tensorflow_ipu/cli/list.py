"""The command `list`: prints the names of IPU TensorFlow and their state in this package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tensorflow_ipu.cli.parsers import add_json, make_parser, show, show_json


def parser() -> argparse.ArgumentParser:
    command_parser = make_parser(
        "list",
        "Prints all names of IPU TensorFlow, of `keras.ipu`, of the add-ons and of the other packages of the SDK, and all"
        " options of `IPUConfig`. Each line has a state and the place of the name here or a reason. The states are `works`,"
        " `recorded` (checked and recorded, but changes no result) and `cannot be` (not supported). The modules of `ipu.ops`"
        " and `ipu.optimizers` are also in `ipu` itself.",
        "0; 1 if no name contains any of the texts",
    )
    command_parser.add_argument("--markdown", action="store_true", help="print all names in Markdown")
    command_parser.add_argument(
        "text", metavar="TEXT", nargs="*", help="print only names that contain one of these texts"
    )
    add_json(command_parser)
    return command_parser


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    from tensorflow_ipu.compat import _listing

    if options.markdown:
        show(_listing.markdown())
        return 0
    chosen = _listing.chosen(options.text)
    if options.json:
        show_json([{"name": name.full, "state": name.state.value, "words": name.note} for name in chosen])
    else:
        show("\n".join(_listing.lines(chosen)))
    return int(not chosen)
