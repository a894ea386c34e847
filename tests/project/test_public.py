"""What a user sees: the names, and what importing costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import forelog
from forelog import errors, testing

PUBLIC = """
Appender AppenderClosed AppenderFailed Backup BadCommand BadEvent BadPacket BadPosition BadReply BatchFailed
ForelogError CleanReport Cleaner ConnectionLost CorruptRecord Cursor Defect HeaderMismatch JobError JobNotFound
JobRefused JobTimeout KeepLast KeepLatest LockTimeout LogFull LogNotFound Metrics MissingExtra OlderThan Position
QueueFull Record RecordTooLarge Recovery Repair SegmentInfo ServerFailed ServerReadOnly SkipSegment Stream
SyncPolicy TargetTaken TimeOutOfRange UnknownFormat VerifyReport WriteFailed apply_repairs plan_repair
prometheus_collector verify
""".split()


def run(code: str, **environment: str) -> str:
    import os

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    return result.stdout.strip()


def test_the_public_names_are_these():
    assert sorted(forelog.__all__) == sorted(PUBLIC)
    assert all(hasattr(forelog, name) for name in PUBLIC)
    assert testing.__all__ == [
        "CrashDisk", "CrashState", "Explorer", "Fault", "Operation", "Report", "Sight", "Violation", "Writer",
        "all_histories", "all_readers", "random_history",
    ]  # fmt: skip


def test_everything_public_says_what_it_is_for():
    for name in PUBLIC:
        thing = getattr(forelog, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and inspect.isfunction(member):
                    assert inspect.getdoc(member), f"{name}.{attribute}"


def test_every_error_is_in_the_tree_and_under_the_base():
    drawn = errors.__doc__
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert name in drawn
        assert issubclass(kind, errors.ForelogError) or kind is errors.SkipSegment


def test_importing_forelog_loads_nothing_heavy():
    loaded = run("import sys, forelog; print(' '.join(sys.modules))").split()
    for heavy in ("numpy", "pyarrow", "asyncio", "rich", "prometheus_client", "ctypes", "argparse", "pyspark"):
        assert heavy not in loaded


def test_a_scan_doesnt_load_pandas(tmp_path):
    """Arrow would, with the first scalar that is made of a Python object: a quarter of a second."""
    code = """import sys
from forelog import Stream
stream = Stream(sys.argv[1])
with stream.appender() as log:
    log.append(b"one")
print([batch.num_rows for batch in stream.scan()], "pandas" in sys.modules)
"""
    assert run(code.replace("sys.argv[1]", repr(str(tmp_path)))) == "[1] False"
