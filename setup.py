"""Builds what is compiled. Everything else about the project is in pyproject.toml.

Extensions are optional: where there is no C compiler the build goes on without them, and forelog runs on plain
Python. The kernel has a twin in Python; the modules of the job server are compiled from their Python source as it
is, with the types in the .pxd files beside it.
"""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILED = sorted(glob("src/forelog/jobs/**/*.pxd", recursive=True))

kernel = Extension(
    "forelog.kernel._kernel",
    ["src/forelog/kernel/_kernel.pyx"],
    depends=[*glob("src/forelog/kernel/include/*.h"), *glob("src/forelog/kernel/*/*.pxi")],
    include_dirs=["src/forelog/kernel/include"],
    extra_compile_args=["-O3", "-g0", "-fno-strict-aliasing"],
)
jobs = [
    Extension(
        types.removeprefix("src/").removesuffix(".pxd").replace("/", "."),
        [types.replace(".pxd", ".py")],
        depends=COMPILED,  # a module is compiled against the types of the others
        extra_compile_args=["-O2", "-g0", "-Wno-bool-compare"],
    )
    for types in COMPILED
]
modules = cythonize([kernel], include_path=["src"])
modules += cythonize(
    jobs,
    include_path=["src"],
    nthreads=os.cpu_count() or 1,
    compiler_directives={"annotation_typing": False, "language_level": 3},
)
for module in modules:
    module.optional = True  # said here, because cythonize makes new ones and forgets it

setup(ext_modules=modules, options={"build_ext": {"parallel": os.cpu_count() or 1}})
