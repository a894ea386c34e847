"""Makes `forelog/jobs/client/client.py` from `async_client.py`: `python -m tests.jobs.unasync`.

The client for threads and the one for tasks differ in `await`, a few names and two texts. A test compares what is
made with the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "src" / "forelog" / "jobs" / "client"
SOURCE = FOLDER / "async_client.py"
MADE = FOLDER / "client.py"
HEAD = "# Made from async_client.py by `python -m tests.jobs.unasync`: edit that file.\n"
WORDS = (
    (r"\bAsync(Client|Connections|Iterator)\b", r"\1"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\basync_connections\b", "connections"),
)
TEXTS = (
    ("for tasks of an event loop.", "for threads."),
    (
        """        await asyncio.gather(*(client.add("mail", b"to: %d" % number) for number in range(100)))

Tasks of one event loop can share a client. A cancelled command costs its connection, since its reply would still
come; whether the command was done is unknown.
""",
        """        job = client.add("mail", b"to: you")
        leased = client.lease("mail")
        client.complete(leased.id, b"sent")
        print(client.result(job).result)

Threads can share a client, and so can processes that were forked. A command that waits has a connection to
itself; other commands use other connections, up to `connections` of them. After a connection broke, the next
command makes a new one. `forelog.jobs.client.exchange` says which commands are sent again.
""",
    ),
)


def made() -> str:
    """The client for threads."""
    text = SOURCE.read_text()
    for old, new in TEXTS:
        assert old in text, f"{SOURCE.name} no longer has this text: {old}"
        text = text.replace(old, new)
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    ruff = [sys.executable, "-m", "ruff"]
    where = ["--stdin-filename", str(MADE), "-"]
    for command in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        text = subprocess.run(
            [*ruff, *command, *where], input=text, capture_output=True, text=True, check=True
        ).stdout
    return HEAD + text


if __name__ == "__main__":
    MADE.write_text(made())
