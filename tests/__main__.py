"""`python -m tests`: every test, in groups beside each other, because each waits for some of its time.

The groups take about as long as each other. Options are pytest's, and go to all. What one says is shown when it
and those before it are through.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time

GROUPS = (
    ("tests/spark", "tests/commitlog", "tests/testing"),
    ("tests/broker", "tests/jobs", "tests/state", "tests/faults", "tests/cli"),
)
NOTHING_COLLECTED = 5


def main(options: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", *options]
    began = time.monotonic()
    rest = ("tests", "src", *(f"--ignore={folder}" for group in GROUPS for folder in group))
    running = []
    codes = []
    try:
        for group in GROUPS:
            said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open for as long as the group runs
            running.append(
                (group, said, subprocess.Popen([*pytest, *group], stdout=said, stderr=subprocess.STDOUT))
            )
        codes.append(subprocess.call([*pytest, *rest]))
        for group, said, process in running:
            codes.append(process.wait())
            said.seek(0)
            print(f"\n{', '.join(group)}, after {time.monotonic() - began:.0f} s:\n{said.read()}", flush=True)
            if process.returncode < 0:  # pytest had no say in it
                print(f"it was ended by {signal.Signals(-process.returncode).name}", flush=True)
    finally:
        for _, said, process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()
            said.close()
    fine = all(code in (0, NOTHING_COLLECTED) for code in codes) and 0 in codes
    print(f"all in {time.monotonic() - began:.0f} s: {'passed' if fine else 'FAILED'}")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
