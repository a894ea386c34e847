"""forelog for executors that don't have it installed.

The package as a zip, for `spark.sparkContext.addPyFile(...)`, `spark.submit.pyFiles`, or Spark Connect's
`addArtifacts(..., pyfile=True)`. The zip has the compiled kernel of the Python that makes it. Executors need the
same version of Python on the same platform, and say so if theirs differs: then install forelog on the workers, or
ship an environment with `spark.archives`. The modules of the job server are in the zip as plain Python.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import forelog
from forelog.kernel.zipped import SUFFIX

_STUB = f"from forelog.kernel.zipped import load\n\nload(__name__, __loader__, {SUFFIX!r})\n"


def package_zip(folder: str | None = None) -> str:
    """Write the package to a zip, in a folder or a temporary one. Returns the zip's path."""
    source = Path(forelog.__file__).parent
    target = Path(folder or tempfile.mkdtemp(prefix="forelog-")) / f"forelog-{forelog.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*sorted(source.rglob("*.py")), source / "kernel" / f"_kernel{SUFFIX}"]:
            archive.write(file, Path("forelog") / file.relative_to(source))
        archive.writestr("forelog/kernel/_kernel.py", _STUB)
    return str(target)
