"""Loads the kernel out of a zip. Python by itself loads no compiled module from there.

`forelog.spark.package.package_zip` puts the compiled file into the zip, and beside it a module `_kernel` that
only calls `load`.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from zipimport import zipimporter

SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
"""How the names of compiled modules end. It tells the Python, the processor and the system."""


def load(name: str, importer: zipimporter, made_for: str) -> None:
    """Put the compiled module of this name into sys.modules. The zip has it for the suffix `made_for`.

    The file is extracted to a folder that nobody else can read, and removed once it is loaded.
    """
    if made_for != SUFFIX:
        raise ImportError(
            f"{importer.archive} has the kernel for {made_for[1:]}, and this Python is {SUFFIX[1:]}: make the zip "
            "with a Python of the same version and platform, or install forelog where it is used"
        )
    data = importer.get_data(f"{name.replace('.', '/')}{SUFFIX}")
    folder = tempfile.mkdtemp(prefix="forelog-kernel-")
    try:
        path = os.path.join(folder, f"kernel{SUFFIX}")
        with open(path, "wb") as file:
            file.write(data)
        loader = ExtensionFileLoader(name, path)
        module = module_from_spec(ModuleSpec(name, loader, origin=path))
        loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise ImportError(
            f"the kernel of {importer.archive} can't be loaded from {folder}: {error}. If programs can't run from "
            "there, set TMPDIR to a folder where they can; else install forelog where it is used"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.modules[name] = module
