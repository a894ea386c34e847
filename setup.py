"""Builds the kernel. Everything else about the project is in pyproject.toml.

The extension is optional: where there is no C compiler the build goes on without it, and chiplog runs on
its plain-Python kernel.
"""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

kernel = Extension(
    "chiplog._kernel",
    ["src/chiplog/_kernel.pyx"],
    depends=[*glob("src/chiplog/*.h"), *glob("src/chiplog/_kernel_*.pxi")],
    include_dirs=["src/chiplog"],
    extra_compile_args=["-O3", "-fno-strict-aliasing"],
)
modules = cythonize([kernel])
for module in modules:
    module.optional = True  # said here, because cythonize makes new ones and forgets it

setup(ext_modules=modules)
