"""Puts all names into docs/porting.md, as `python -m tensorflow_ipu --list --markdown` prints it.

With `--check`, says whether they are there, and leaves the page alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "porting.md"

# Between these lines of the page.
BEGIN = "<!-- All names: `make names` writes them. -->\n\n"
END = "\n\n<!-- End of all names. -->"


def main() -> None:
    """Writes the table, or compares it with the page's."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, behind = rest.partition(END)
    if not behind:
        sys.exit(f"{PAGE} has no place for the table: put `{BEGIN.strip()}` and `{END.strip()}` where it belongs")
    command = [sys.executable, "-m", "tensorflow_ipu", "--list", "--markdown"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # The sources, without TensorFlow or kernels.
    table = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    new = f"{before}{BEGIN}{table.strip()}{END}{behind}"
    if "--check" not in sys.argv:
        PAGE.write_text(new)
    elif new != page:
        sys.exit("the names in docs/porting.md are not those of tensorflow_ipu/compat: run `make names`")


if __name__ == "__main__":
    main()
