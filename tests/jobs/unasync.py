"""Makes `forelog/jobs/client/client.py` from `async_client.py`, and `management.py` from `async_management.py`:
`python -m tests.jobs.unasync`.

The client for threads and the one for tasks differ in `await`, a few names and two texts. A test compares what is
made with the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "src" / "forelog" / "jobs" / "client"
NAMES = ("client", "management")
HEAD = "# Made from async_%s.py by `python -m tests.jobs.unasync`: edit that file.\n"
WORDS = (
    (r"\bAsync(Client|Connections|Iterator|Management)\b", r"\1"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\basync_(connections|management)\b", r"\1"),
)
TEXTS = (  # of the client
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


def made(name: str) -> str:
    """A module of the client for threads."""
    text = (FOLDER / f"async_{name}.py").read_text()
    for old, new in TEXTS if name == "client" else ():
        assert old in text, f"async_{name}.py no longer has this text: {old}"
        text = text.replace(old, new)
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    ruff = [sys.executable, "-m", "ruff"]
    where = ["--stdin-filename", str(FOLDER / f"{name}.py"), "-"]
    for command in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        text = subprocess.run(
            [*ruff, *command, *where], input=text, capture_output=True, text=True, check=True
        ).stdout
    return HEAD % name + text


if __name__ == "__main__":
    for one in NAMES:
        (FOLDER / f"{one}.py").write_text(made(one))
