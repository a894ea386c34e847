"""`python -m tests`: every test, in two halves beside each other, because each waits for much of its time.

One half is the tests on Spark and some others, so that both take about as long. Options are pytest's, and go to
both. What one half says is shown when the other is through.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

BESIDE = ("tests/spark", "tests/commitlog", "tests/faults", "tests/state")
NOTHING_COLLECTED = 5


def main(options: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *options]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        beside = subprocess.Popen([*pytest, *BESIDE], stdout=said, stderr=subprocess.STDOUT)
        try:
            others = subprocess.call([*pytest, "tests", "src", *(f"--ignore={folder}" for folder in BESIDE)])
            print(f"\nafter {time.monotonic() - began:.0f} s; the other half, {', '.join(BESIDE)}:", flush=True)
            found = beside.wait()
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
        said.seek(0)
        print(said.read())
    print(f"both in {time.monotonic() - began:.0f} s: {'passed' if _fine(others, found) else 'FAILED'}")
    return 0 if _fine(others, found) else 1


def _fine(*codes: int) -> bool:
    return all(code in (0, NOTHING_COLLECTED) for code in codes) and any(code == 0 for code in codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
