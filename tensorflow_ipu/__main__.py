"""The command line `python -m tensorflow_ipu`, which is also installed as `tensorflow-ipu`."""
# PYTHON_ARGCOMPLETE_OK

import sys

from tensorflow_ipu.cli.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
