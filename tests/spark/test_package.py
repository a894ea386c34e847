"""The package as a zip: what it holds, that it works by itself, and what it says where it can't."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import forelog
from forelog.kernel.zipped import SUFFIX
from forelog.spark.package import package_zip

CODE = """
import sys, forelog
from forelog import Stream, kernel
assert forelog.__file__.startswith(sys.argv[1]), forelog.__file__
with Stream("log").appender() as log:
    log.append_many([b"one", b"two"])
with Stream("log").cursor() as cursor:
    print([record.payload for record in cursor], kernel.crc32c(b"123456789"))
from forelog.jobs.machine import machine
assert machine.__file__.startswith(sys.argv[1])
"""


def run(package: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-S", "-c", CODE, package],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": package, "TMPDIR": str(folder / "tmp")},
    )


def repacked(package: str, target: Path, names: dict[str, str], texts: dict[str, tuple[str, str]]) -> str:
    """The zip with other names of files, and other words in them."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name in texts:
                old_text, new_text = texts[name]
                data = data.replace(old_text.encode(), new_text.encode())
            new.writestr(names.get(name, name), data)
    return str(target)


def test_the_zip_works_where_nothing_is_installed_and_leaves_no_files(tmp_path: Path) -> None:
    done = run(package_zip(str(tmp_path)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[b'one', b'two'] {0xE3069283}\n"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("version", "used"), [(None, "installed"), ("9.9.9", "zip")])
def test_the_zip_hides_no_installed_package_of_the_same_version(
    tmp_path: Path, version: str | None, used: str
) -> None:
    """The one that is installed has a kernel for where it is."""
    package = package_zip(str(tmp_path))
    place = tmp_path / "site" / "forelog"
    place.mkdir(parents=True)
    text = f'__version__ = "{version or forelog.__version__}"\nWHICH = "installed"\n'
    (place / "__init__.py").write_text(text)
    code = "import forelog; print(getattr(forelog, 'WHICH', 'zip'), forelog.__name__, forelog.__path__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([package, str(tmp_path / "site")])},
        check=True,
    )
    assert done.stdout.split()[:2] == [used, "forelog"]
    assert (str(place) in done.stdout) == (used == "installed")


def test_another_python_or_platform_is_told_so(tmp_path: Path) -> None:
    other = ".cpython-399-m68k-linux-gnu.so"
    package = repacked(
        package_zip(str(tmp_path)),
        tmp_path / "other.zip",
        {f"forelog/kernel/_kernel{SUFFIX}": f"forelog/kernel/_kernel{other}"},
        {"forelog/kernel/_kernel.py": (SUFFIX, other)},
    )
    done = run(package, tmp_path)
    assert done.returncode == 1
    assert "has the kernel for cpython-399-m68k-linux-gnu.so, and this Python is" in done.stderr
    assert "install forelog where it is used" in done.stderr


def test_a_kernel_that_cannot_be_loaded_says_what_to_do(tmp_path: Path) -> None:
    package = package_zip(str(tmp_path))
    name = f"forelog/kernel/_kernel{SUFFIX}"
    with zipfile.ZipFile(package) as archive:
        start = archive.read(name)[:4].decode("latin-1")
    broken = repacked(package, tmp_path / "broken.zip", {}, {name: (start, "????")}) if start.isascii() else None
    if broken is None:
        pytest.skip("a compiled file begins with other bytes here")
    done = run(broken, tmp_path)
    assert done.returncode == 1
    assert "set TMPDIR to a folder" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
