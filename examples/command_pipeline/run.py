"""Run the declarative pipeline in a folder of its own: `python -m examples.command_pipeline.run LOG FOLDER`.

It is `spark-pipelines run`, with what Spark 4.3 needs to run it more than once over a Python source:

- Only a catalog on disk remembers tables from one run to the next: `spark.sql.catalogImplementation=hive`, which
  comes with pyspark and keeps itself in the folder that the server is started in.
- When Python code has run on executors, the command's own client fails on a message about its accumulators
  *after* "Run is COMPLETED", and exits with 1. That one case counts as success; any other is a failure.

    FOLDER/spark-pipeline.yml, tables/    what is run
    FOLDER/storage/                       checkpoints: how far each streaming table is
    FOLDER/metastore_db/                  which tables exist
    FOLDER/spark-warehouse/gold/          the tables, as Parquet
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from examples.command_pipeline.server import connect_server, environment

HERE = Path(__file__).parent
COMPLETED = "Run is COMPLETED"
HARMLESS = ("UNKNOWN_RESPONSE", "__python_accumulator__")
SERVER = {"spark.sql.catalogImplementation": "hive"}


class PipelineFailed(Exception):
    """The run didn't complete; the text is all that it said."""


def run(log: str | Path, folder: str | Path) -> list[str]:
    """Bring the tables in a folder up to date with a log; what happened, a line each."""
    import pyspark

    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    spec = _lay_out(folder, Path(log).resolve())
    command = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    with connect_server(folder, **SERVER) as address:
        ended = subprocess.run(
            [command, "run", "--remote", address, "--spec", str(spec)],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if not completed(ended.returncode, ended.stdout):
        raise PipelineFailed(ended.stdout)
    return [line for line in ended.stdout.splitlines() if ": Flow " in line or ": Run " in line]


def completed(code: int, told: str) -> bool:
    """Whether a run came to its end, from the command's exit code and what it has told."""
    _, done, after = told.partition(COMPLETED)
    return bool(done) and (code == 0 or all(word in after for word in HARMLESS))


def _lay_out(folder: Path, log: Path) -> Path:
    """What is run, beside what it makes."""
    shutil.copytree(HERE / "tables", folder / "tables", dirs_exist_ok=True)
    spec = (HERE / "spark-pipeline.yml").read_text()
    target = folder / "spark-pipeline.yml"
    target.write_text(spec.replace("{folder}", str(folder)).replace("{log}", str(log)))
    return target


def main() -> int:
    try:
        print(*run(*sys.argv[1:3]), sep="\n")
    except PipelineFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
