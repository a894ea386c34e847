"""The package as a zip: what it holds, that it works by itself, and what it says where it can't."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import forelog
from forelog.errors import MissingExtra
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


def test_an_archive_has_the_kernel_and_pyarrow_and_settings_that_name_it(tmp_path, monkeypatch) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from forelog.spark import cluster

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "none")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(cluster, "columnar_jar", lambda: "/tmp/f.jar")
    path = cluster.environment_archive(str(tmp_path), packages=["forelog", "py4j"])
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "packages", filter="data")
    code = "import forelog, forelog.kernel, py4j; print(forelog.__file__, forelog.kernel.crc32c(b'123456789'))"
    bare = [sys.executable, "-S", "-c", code]
    environment = {"PYTHONPATH": str(tmp_path / "packages"), "PATH": os.environ["PATH"]}
    told = subprocess.run(bare, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert told == [str(tmp_path / "packages" / "forelog" / "__init__.py"), str(0xE3069283)]
    assert cluster.cluster_conf() == {"spark.jars": "/tmp/f.jar"}
    assert "PYSPARK_PYTHON" not in os.environ, "Python isn't needed there"
    conf = cluster.cluster_conf(path, python="python3.11")
    assert conf["spark.archives"] == f"{path}#{conf['spark.executorEnv.PYTHONPATH'].removeprefix('./')}"
    assert os.environ["PYSPARK_PYTHON"] == "python3.11"
    with pytest.raises(MissingExtra, match="no-such-package is not installed"):
        cluster.environment_archive(str(tmp_path), packages=["no-such-package"])
