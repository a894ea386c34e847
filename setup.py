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
    depends=["src/chiplog/_crc32c.h", *glob("src/chiplog/_kernel_*.pxi")],
    include_dirs=["src/chiplog"],
    extra_compile_args=["-O3", "-fno-strict-aliasing"],
    optional=True,
)

setup(ext_modules=cythonize([kernel], annotate=False))
