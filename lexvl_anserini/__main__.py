"""`python -m lexvl_anserini` is the console script `lexvl`."""

from __future__ import annotations

from lexvl_anserini.cli import main

if __name__ == "__main__":
    main()
