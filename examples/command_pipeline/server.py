"""A Spark Connect server on this machine only, on a free port.

Without it Spark starts one that listens on port 15002 of every network. A second one can't start beside it, and
a client may find a server that was meant for another.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forelog.spark.java import java_home

STARTED = re.compile(r"Spark Connect server started at: .*:(\d+)")


class ServerFailed(Exception):
    """The server didn't start; the text is all that it said."""


@contextmanager
def connect_server(folder: Path, master: str = "local[2]", **settings: str) -> Iterator[str]:
    """The address of a server with these settings, until it is left."""
    import pyspark

    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        **settings,
    }
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    server = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    rest = threading.Thread(target=server.stderr.read, daemon=True)
    try:
        port = _port(server.stderr)
        rest.start()  # or the server would wait for a reader
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
        if rest.ident is not None:
            rest.join()
        server.stderr.close()


def _port(lines: Iterable[str]) -> str:
    said = []
    for line in lines:
        said.append(line)
        if match := STARTED.search(line):
            return match[1]
    raise ServerFailed("".join(said))


def environment() -> dict[str, str]:
    """What Spark's commands need to know."""
    found = {"SPARK_LOCAL_IP": "127.0.0.1", **os.environ, "PYSPARK_PYTHON": sys.executable}
    found.pop("SPARK_REMOTE", None)
    home = java_home()
    return found if home is None else {**found, "JAVA_HOME": home}
