"""`python -m chiplog` is the command `chiplog`."""

import sys

from chiplog.cli import main

if __name__ == "__main__":
    sys.exit(main())
