"""The command `tensorflow-ipu`, which is `python -m tensorflow_ipu` too."""
# PYTHON_ARGCOMPLETE_OK

import sys

from tensorflow_ipu.cli.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
