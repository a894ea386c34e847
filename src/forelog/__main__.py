"""`python -m forelog` is the command `forelog`."""

import sys

from forelog.cli import main

if __name__ == "__main__":
    sys.exit(main())
