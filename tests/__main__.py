"""`python -m tests`: every test, those on Spark beside all others, because each half waits for much of its time.

Options are pytest's, and go to both. What the tests on Spark say is shown when the others are through.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

SPARK = "tests/spark"
NOTHING_COLLECTED = 5


def main(options: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *options]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        on_spark = subprocess.Popen([*pytest, SPARK], stdout=said, stderr=subprocess.STDOUT)
        try:
            others = subprocess.call([*pytest, "tests", "src", f"--ignore={SPARK}"])
            spark = on_spark.wait()
        finally:
            if on_spark.poll() is None:
                on_spark.terminate()
                on_spark.wait()
        said.seek(0)
        print(f"\n{SPARK}, meanwhile:\n{said.read()}")
    print(f"both in {time.monotonic() - began:.0f} s: {'passed' if _fine(others, spark) else 'FAILED'}")
    return 0 if _fine(others, spark) else 1


def _fine(*codes: int) -> bool:
    return all(code in (0, NOTHING_COLLECTED) for code in codes) and any(code == 0 for code in codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
