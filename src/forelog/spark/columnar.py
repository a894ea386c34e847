"""The part of the source that runs in Java, where Spark's interface for Python handles only rows.

With it a query reads only the columns that it needs, and nothing that its filters rule out. Java decodes and
checks the records itself; Python plans, and reads whatever isn't whole, right records. The code is in `jvm/`. It
is compiled at first use, by the compiler that every Spark has, and kept in the user's cache. If that fails, the
source in Python is used alone, with the same rows.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import subprocess
from pathlib import Path

from forelog.errors import MissingExtra
from forelog.spark.java import cache_folder, java_home

__all__ = ["columnar_jar"]

_SOURCES = Path(__file__).parent / "jvm"
_SECONDS_MAX = 120

logger = logging.getLogger("forelog")


@functools.cache
def columnar_jar() -> str | None:
    """The jar for `spark.jars`; None if it can't be made for this Spark. A line in the log says why."""
    try:
        import pyspark

        target = cache_folder() / f"columnar-{pyspark.__version__}-{_digest()}.jar"
        if not target.exists():
            _build(Path(pyspark.__file__).parent / "jars", target)
    except (ImportError, MissingExtra, OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning("Spark reads logs row by row, several times slower: %s", _reason(error))
        return None
    return str(target)


def _digest() -> str:
    """A digest of the sources, which is part of the jar's name."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_SOURCES.iterdir()))).hexdigest()[:12]


def _build(jars: Path, target: Path) -> None:
    """Compile to a file beside the target, and rename it when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    sources = [path for path in sorted(_SOURCES.iterdir()) if path.name != "Build.java"]
    home = java_home()
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"
    command = [
        java,
        "-cp",
        f"{jars}/*",
        "org.codehaus.janino.SimpleCompiler",
        str(_SOURCES / "Build.java"),
        "Build",
    ]
    try:
        subprocess.run(
            [*command, *map(str, sources), str(part)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
        )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    """The reason in one line; of a Java stack trace, the innermost cause."""
    if isinstance(error, subprocess.CalledProcessError):
        causes = [
            line for line in error.stderr.splitlines() if line.startswith(("Caused by:", "Error", "Exception"))
        ]
        return causes[-1] if causes else f"the compiler ended with {error.returncode}"
    return str(error)
