"""The error of forelog that is behind an error of Spark.

An error in a task reaches the driver as text: a Java exception with a Python traceback in it, whose last line is
the message.

>>> text = '''pyspark.errors...PythonException: Traceback (most recent call last):
...   File "walk.py", line 1, in walk
... forelog.errors.LogNotFound: there is no log at nowhere
... \tat org.apache.spark.api.python...'''
>>> find_failure(RuntimeError(text))
LogNotFound('there is no log at nowhere')
"""

from __future__ import annotations

import re
from importlib import import_module

from forelog.errors import ForelogError, SparkFailure

_OURS = re.compile(r"^\s*(?:\[\w+\][^\n]*?)?(forelog(?:\.\w+)*)\.([A-Z]\w+): (.+?)\s*$", re.MULTILINE)
_FILE = re.compile(r"^\s*(FileNotFoundError|PermissionError|OSError|NotADirectoryError): (.+?)\s*$", re.MULTILINE)
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\]\s*")


def find_failure(error: BaseException) -> ForelogError:
    """The error of forelog behind an error of Spark; else a SparkFailure with its first line."""
    if isinstance(error, ForelogError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    for module, name, message in reversed(found):
        return _made(module, name, message)
    if failed := _FILE.search(text):
        return SparkFailure(failed[2])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if not line.startswith(("An error occurred", ":"))), "") or text.strip()
    java = next((line[1:].strip() for line in lines if line.startswith(": ")), "")
    line = java.partition(": ")[2] or java or line
    return SparkFailure(f"Spark failed: {_CONDITION.sub('', line) or type(error).__name__}")


def _made(module: str, name: str, message: str) -> ForelogError:
    kind = getattr(import_module(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, ForelogError)):
        return ForelogError(message)
    # Some need more than a message; what is known of them here is what they said.
    error = kind.__new__(kind, message)
    error.args = (message,)
    return error
