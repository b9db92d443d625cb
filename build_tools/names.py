"""Writes the table of all names, which `python -m tensorflow_ipu --list --markdown` prints, into docs/porting.md.

With `--check`, it only compares the table with the page, and fails if they differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "porting.md"

# The table is between these lines of the page.
BEGIN = "<!-- All names: `make names` writes them. -->\n\n"
END = "\n\n<!-- End of all names. -->"


def main() -> None:
    """Writes the table into the page, or compares them."""
    page = PAGE.read_text()
    head, _, tail = page.partition(BEGIN)
    _, _, foot = tail.partition(END)
    if not foot:
        sys.exit(f"{PAGE} has no place for the table: insert `{BEGIN.strip()}` and `{END.strip()}`")
    command = [sys.executable, "-m", "tensorflow_ipu", "--list", "--markdown"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # The command runs from the sources, without kernels.
    table = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    updated = f"{head}{BEGIN}{table.strip()}{END}{foot}"
    if "--check" not in sys.argv:
        PAGE.write_text(updated)
    elif updated != page:
        sys.exit("the names in docs/porting.md differ from tensorflow_ipu/compat: run `make names`")


if __name__ == "__main__":
    main()
