"""What a user sees: the names, and what importing costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import forelog
from forelog import errors, testing
from forelog.commitlog import AsyncCommitLog, CommitLog
from forelog.state import AsyncPersistentDict, PersistentDict

SOURCE = Path(forelog.__file__).parent
PUBLIC = """
Appender Backup CleanReport Cleaner Cursor Defect KeepLast KeepLatest Metrics OlderThan Position Record Recovery
Repair SegmentInfo Stream SyncPolicy VerifyReport apply_repairs plan_repair prometheus_collector verify

AppenderClosed AppenderFailed BadAccessFile BadCommand BadEvent BadFrame BadOption BadPacket BadPosition BadReply
BadTokens BatchFailed CatalogFailed ConnectionLost ConvertFailed CorruptRecord DataLoss ForelogError HeaderMismatch
JobError JobFailed JobNotFound JobRefused JobTimeout LockTimeout LogFull LogNotFound MissingExtra NotReplicated
PlaceTaken QueueFull ReadOnly RecordTooLarge ReplicaError RestoreFailed ServerFailed ServerReadOnly SkipSegment
SparkFailure StorageFailed Superseded TableDamaged TargetTaken TaskFailed TimeOutOfRange UnknownFormat WriteFailed
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


def test_a_misspelt_name_is_noticed_by_a_type_checker(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("".join(f"from forelog import {name}\n" for name in [*PUBLIC, "Straem"]))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)],
        capture_output=True,
        text=True,
    )
    assert 'Module "forelog" has no attribute "Straem"' in checked.stdout
    assert "Found 1 error" in checked.stdout, checked.stdout


def test_everything_public_says_what_it_is_for():
    for name in PUBLIC:
        thing = getattr(forelog, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and inspect.isfunction(member):
                    assert inspect.getdoc(member), f"{name}.{attribute}"


@pytest.mark.parametrize("package", ["log", "formats", "commitlog", "messages"])
def test_every_field_of_what_is_handed_out_says_what_it_is(package):
    for path in sorted((SOURCE / package).rglob("*.py")):
        for kind in ast.walk(ast.parse(path.read_text())):
            if not isinstance(kind, ast.ClassDef) or kind.name.startswith("_") or path.name == "fields.py":
                continue
            marks = map(ast.unparse, [*kind.decorator_list, *kind.bases])
            if not any("dataclass" in mark or mark == "NamedTuple" for mark in marks):
                continue
            for field, following in pairwise([*kind.body, ast.Pass()]):
                if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                    said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                    name = ast.unparse(field.target)
                    assert said or name.startswith("_"), f"{path.name}: {kind.name}.{name} has no docstring"


@pytest.mark.parametrize(
    ("plain", "awaited"), [(CommitLog, AsyncCommitLog), (PersistentDict, AsyncPersistentDict)]
)
def test_what_is_awaited_takes_and_returns_what_the_plain_method_does(plain, awaited):
    methods = inspect.getmembers(awaited, inspect.iscoroutinefunction)
    names = [name for name, _ in methods if not name.startswith("_") and name not in ("open", "transact")]
    assert len(names) > 4
    for name in names:
        ours, theirs = inspect.signature(getattr(plain, name)), inspect.signature(getattr(awaited, name))
        assert theirs.return_annotation == ours.return_annotation, name
        for left, right in zip(ours.parameters.values(), theirs.parameters.values(), strict=True):
            assert (right.name, right.kind, right.annotation) == (left.name, left.kind, left.annotation), name


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


@pytest.mark.parametrize("package", ["broker", "state", "state.log", "state.mapping"])
def test_only_a_log_with_copies_loads_what_reaches_them(package):
    loaded = run(f"import sys, forelog.{package}; print(' '.join(sys.modules))").split()
    for far in ("forelog.copies.server", "forelog.copies.store", "forelog.copies.wire", "forelog.state.follower"):
        assert far not in loaded


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
