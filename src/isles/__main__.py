"""`python -m isles` is the command line."""

import sys

from isles.cli import main

if __name__ == "__main__":
    sys.exit(main())
