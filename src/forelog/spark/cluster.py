"""What executors of a cluster need, in one file and a few settings.

    from forelog.spark import cluster_conf, environment_archive
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("spark://10.0.0.1:7077")
    for name, value in cluster_conf(environment_archive()).items():
        builder = builder.config(name, value)

The archive has forelog with its compiled kernel, and pyarrow. Executors unpack it into their own folder and need
nothing but the same version of Python on the same platform.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import forelog
from forelog.errors import MissingExtra
from forelog.spark.columnar import columnar_jar

__all__ = ["cluster_conf", "environment_archive"]

_FOLDER = "forelog-packages"
_LEFT_OUT = ("__pycache__", "tests", "include")


def environment_archive(folder: str | None = None, packages: Sequence[str] = ("forelog", "pyarrow")) -> str:
    """Write packages of this environment to an archive, in a folder or a temporary one. Returns its path.

    Packages that your own functions need on executors can be added by the names of their distributions.
    """
    name = f"forelog-{forelog.__version__}-py{sys.version_info.major}{sys.version_info.minor}.tar.gz"
    target = Path(folder or tempfile.mkdtemp(prefix="forelog-")) / name
    with tarfile.open(target, "w:gz", compresslevel=3) as archive:
        for package in packages:
            for path, place in _files(package):
                archive.add(path, place, recursive=False)
    return str(target)


def _files(package: str) -> Iterator[tuple[Path, str]]:
    """The files of an installed package, with their places in the archive."""
    if package == "forelog":  # also where it is used from its source tree
        yield from _below(Path(forelog.__file__).parent, "forelog")
        return
    try:
        listed = distribution(package).files or []
    except PackageNotFoundError as error:
        raise MissingExtra(f"{package} is not installed here, so it can't be sent to executors") from error
    for file in listed:
        path = Path(str(file.locate()))
        if ".." not in file.parts and not set(file.parts) & set(_LEFT_OUT) and path.is_file():
            yield path, str(file)


def _below(source: Path, name: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and "__pycache__" not in inside.parts and path.suffix not in (".c", ".pyx", ".pxi"):
            yield path, f"{name}/{inside}"


def cluster_conf(archive: str | None = None, *, python: str = "python3") -> dict[str, str]:
    """Settings of a session on a cluster: the jar, and with an archive what Python needs on executors.

    With an archive it also sets PYSPARK_PYTHON to `python`, the name of Python on the workers, unless that is set.
    And it adds this environment's packages to PYTHONPATH, for Spark's planner on this machine. Call it before the
    session starts. If the jar can't be made, a warning says so, and Python reads alone.
    """
    jar = columnar_jar()
    conf = {} if jar is None else {"spark.jars": jar}
    if archive is None:
        return conf
    found = find_spec("pyarrow")
    if found is None or found.origin is None:
        raise MissingExtra.needed("pyarrow", by="forelog.spark", extra="spark")
    os.environ.setdefault("PYSPARK_PYTHON", python)
    # Spark plans with the same Python on the driver's machine. There it finds what is installed for this one.
    here = [str(Path(one).parents[1]) for one in (forelog.__file__, found.origin)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return conf | {
        "spark.archives": f"{archive}#{_FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"./{_FOLDER}",
    }
