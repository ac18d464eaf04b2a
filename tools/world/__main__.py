"""The demo's world: `python tools/world --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from world.commands import main  # noqa: E402

if __name__ == "__main__":
    main()
