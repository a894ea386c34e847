"""`benchmarks` is a package of the repository, not of the distribution: found from here, however pytest is run."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
