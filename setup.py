"""Builds what is compiled. Everything else about the project is in pyproject.toml.

The kernel is written in Cython. Modules of the job server are Python that is compiled as it is, with the types
in the .pxd files beside it. Both need a C compiler: CC, or the one that Python names, or that of ziglang, a wheel.

    python setup.py build_ext --inplace    compiles what has changed, for a source tree that runs as it is
    python setup.py compiler               tells whether there is a C compiler, and if not how to get one
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob

COMPILING = {"bdist", "bdist_wheel", "build", "build_ext", "compiler", "develop", "editable_wheel", "install"}
TYPES = sorted(glob("src/forelog/jobs/**/*.pxd", recursive=True))
NO_COMPILER = (
    "forelog has to be compiled, and {why}: install a C compiler and Python's headers (apt install gcc "
    "python3-dev; on macOS xcode-select --install), or take a compiler from a wheel (pip install ziglang "
    "setuptools cython; then pip install with --no-build-isolation)."
)


def find_compiler() -> str | None:
    """Choose a compiler by setting CC, if Python's own doesn't work. Returns why there is none, or None."""
    why = compiler_defect(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if why is not None and "CC" not in os.environ and importlib.util.find_spec("ziglang"):
        # Without the second option it compiles for this machine's processor, and no other might run it.
        zig = f"{shlex.quote(sys.executable)} -m ziglang cc -mcpu=baseline"
        why = compiler_defect(zig)
        os.environ.update({"CC": zig, "LDSHARED": f"{zig} -shared"})
    return why


def compiler_defect(compiler: str) -> str | None:
    """What keeps this compiler from compiling an extension; None if nothing does."""
    words = shlex.split(compiler)
    if shutil.which(words[0]) is None:
        return f"there is no C compiler ({words[0]} isn't found)"
    with tempfile.TemporaryDirectory() as folder:
        source = f"{folder}/try.c"
        with open(source, "w") as file:
            file.write("#include <Python.h>\n")
        command = [*words, "-I", sysconfig.get_path("include"), "-c", source, "-o", f"{folder}/try.o"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    said = [line.partition("error: ")[2] for line in done.stderr.splitlines() if "error: " in line]
    what = said[0] if said else f"it ends with {done.returncode}"
    return f"{compiler} can't compile what includes Python.h ({what})"


compiling = bool(COMPILING & set(sys.argv[1:]))
if compiling:
    why = find_compiler()
    if why is not None:
        raise SystemExit(NO_COMPILER.format(why=why))
    if "compiler" in sys.argv:
        raise SystemExit

from Cython.Build import cythonize  # noqa: E402 - without a compiler there is no use for it
from setuptools import Extension, setup  # noqa: E402

kernel = Extension(
    "forelog.kernel._kernel",
    ["src/forelog/kernel/_kernel.pyx"],
    depends=[*glob("src/forelog/kernel/include/*.h"), *glob("src/forelog/kernel/**/*.pxi", recursive=True)],
    include_dirs=["src/forelog/kernel/include"],
    extra_compile_args=["-O3", "-g0", "-fno-strict-aliasing"],
)
jobs = [
    Extension(
        types.removeprefix("src/").removesuffix(".pxd").replace("/", "."),
        [types.replace(".pxd", ".py")],
        depends=TYPES,  # a module is compiled against the types of the others
        extra_compile_args=["-O2", "-g0", "-Wno-bool-compare", "-Wno-unknown-warning-option"],
    )
    for types in TYPES
]
modules = [kernel, *jobs]
if compiling:
    modules = cythonize([kernel], include_path=["src"]) + cythonize(
        jobs,
        include_path=["src"],
        nthreads=os.cpu_count() or 1,
        compiler_directives={"annotation_typing": False, "language_level": 3},
    )
setup(ext_modules=modules, options={"build_ext": {"parallel": os.cpu_count() or 1}})
