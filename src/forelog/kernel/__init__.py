"""The kernel: loops over bytes, compiled. It does no I/O but writes of an append, and knows no policy.

    _kernel.pyx    the functions; it includes the *.pxi, in log/, state/, m3/, messages/, jobs/ and broker/
    _kernel.pyi    their signatures, and what each of them does
    types.py       what they take and return
    zipped.py      loads the kernel where the package is a zip
    include        checksums and epoll, in C

Whatever the bytes say, nothing outside of a buffer is read, and nothing larger than it is allocated.
`tests/kernel/oracle` has all of it again in plain Python: an independent opinion for the tests.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("forelog.kernel._kernel") is None:
    raise ImportError(
        "forelog's kernel isn't compiled for this Python: install forelog with it, or in a source tree run "
        "python setup.py build_ext --inplace"
    )

from forelog.kernel import _kernel
from forelog.kernel._kernel import *  # noqa: F403 - all that is compiled

__all__ = [
    name
    for name, value in vars(_kernel).items()
    if not name.startswith("_") and getattr(value, "__module__", None) == _kernel.__name__
]
