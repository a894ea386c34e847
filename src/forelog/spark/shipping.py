"""forelog for executors that don't have it installed.

The package as a zip, for `spark.sparkContext.addPyFile(...)`, `spark.submit.pyFiles`, or Spark Connect's
`addArtifacts(..., pyfile=True)`. A zip can't hold a compiled kernel: with it executors run on the plain-Python
one, which gives the same results many times slower. Where speed matters, install forelog on the workers, or
ship an environment with `spark.archives`.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import forelog


def package_zip(folder: str | None = None) -> str:
    """Write the package to a zip, in a folder or a temporary one; the zip's path."""
    source = Path(forelog.__file__).parent
    target = Path(folder or tempfile.mkdtemp(prefix="forelog-")) / f"forelog-{forelog.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.rglob("*.py")):
            archive.write(file, Path("forelog") / file.relative_to(source))
    return str(target)
