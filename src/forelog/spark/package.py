"""forelog for executors that don't have it installed.

The package as a zip, for `spark.sparkContext.addPyFile(...)`, `spark.submit.pyFiles`, or Spark Connect's
`addArtifacts(..., pyfile=True)`. The zip has the compiled kernel of the Python that makes it. Executors need the
same version of Python on the same platform, and say so if theirs differs: then install forelog on the workers, or
ship an environment with `spark.archives`. The modules of the job server are in the zip as plain Python.

Spark puts the zip first on the path. Where forelog is installed in the same version, that is used, and not the
zip: it has a kernel for the Python and the platform there.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import forelog
from forelog.kernel.zipped import SUFFIX

_INIT = """
def _use_installed():
    import re
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [path for path in sys.path if path != __loader__.archive]
    spec = PathFinder.find_spec("forelog", others)
    if spec is None or spec.origin is None or spec.has_location is False or ".zip" in spec.origin:
        return False
    with open(spec.origin, encoding="utf-8") as source:
        if re.search('^__version__ = "VERSION"$', source.read(), re.MULTILINE) is None:
            return False
    sys.modules["forelog"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return True


if not _use_installed():
    exec(compile(__loader__.get_data("forelog/_zipped.py"), __file__, "exec"))
"""
"""The zip's `__init__.py`: an installed forelog of the same version is imported in its place."""

_STUB = f"from forelog.kernel.zipped import load\n\nload(__name__, __loader__, {SUFFIX!r})\n"


def package_zip(folder: str | None = None) -> str:
    """Write the package to a zip, in a folder or a temporary one. Returns the zip's path."""
    source = Path(forelog.__file__).parent
    target = Path(folder or tempfile.mkdtemp(prefix="forelog-")) / f"forelog-{forelog.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*sorted(source.rglob("*.py")), source / "kernel" / f"_kernel{SUFFIX}"]:
            name = file.relative_to(source)
            archive.write(file, Path("forelog") / ("_zipped.py" if name == Path("__init__.py") else name))
        archive.writestr("forelog/__init__.py", _INIT.replace("VERSION", forelog.__version__))
        archive.writestr("forelog/kernel/_kernel.py", _STUB)
    return str(target)
