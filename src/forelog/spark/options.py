"""The options of readers and writers, checked. An error names the wrong option and the known ones."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from forelog.bounds import BYTES_MAX, COUNT_MAX
from forelog.errors import BadOption
from forelog.files.modes import check_mode
from forelog.log.position import Position
from forelog.log.walk import OnCorruption
from forelog.spark.ranges import EVERYTHING, Ranges
from forelog.times import parse_time

PARTITION_BYTES = 64 << 20
BATCH_ROWS = 16_384

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of `spark.read` and `spark.readStream`."""

    path: str
    """The log, or the folder of logs; the first one of several."""
    codec: str = "records"
    recursive: bool = False
    paths: tuple[str, ...] = ()
    """All of them, if there are several, or a pattern of paths."""
    since_ns: int | None = None
    until_ns: int | None = None
    ranges: Ranges = EVERYTHING
    """The rows that a query's filters leave. This only saves reading: Spark applies the filters to every row."""
    java: bool = False
    """Whether the part in Java can read for this query."""
    aggregates: str | None = None
    """The aggregates of a query that asks for nothing else, as JSON in the form that `totals.py` describes."""
    limit: int | None = None
    """How many rows the query needs. Any rows will do."""
    start: Position | None = None
    """The position to start at; None for the earliest."""
    latest: bool = False
    """Start a stream at the end."""
    on_corruption: OnCorruption = "raise"
    defects: bool = False
    """Read the damaged places in place of the records."""
    partition_bytes: int = PARTITION_BYTES
    partitions_min: int = 1
    """The least number of tasks, if there is enough to read."""
    batch_rows: int = BATCH_ROWS
    records_per_batch: int | None = None
    bytes_per_batch: int | None = None
    fail_on_data_loss: bool = True

    @property
    def names_logs(self) -> bool:
        """Whether rows say which log they are from."""
        return self.recursive or bool(self.paths)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of `df.write` and `df.writeStream`."""

    path: str
    key: str | None = None
    segment_bytes: int = 64 << 20
    magic: int | None = None
    version: int | None = None
    mode: int | None = None
    """Permissions of new files; None for those of the folder, or private if there is none."""


_READ = (
    "path", "codec", "recursive", "since", "until", "startingPosition", "onCorruption", "defects",
    "partitionBytes", "minPartitions", "batchRows", "maxRecordsPerBatch", "maxBytesPerBatch", "failOnDataLoss",
    "paths",
)  # fmt: skip
_OF_JAVA = (
    "forelog.ranges",
    "forelog.java",
    "forelog.aggregates",
    "forelog.limit",
)  # by which the part in Java says what a query needs
_WRITE = ("path", "key", "segmentBytes", "magic", "version", "fileMode", "checkpointLocation")
_OF_TABLES = (
    "owner", "provider", "location", "comment", "external", "is_managed_location", "collation", "table_type",
    "serialization.format", "transient_lastDdlTime",
)  # fmt: skip
"""What Spark says of a table from `CREATE TABLE ... USING forelog`."""
_OF_TABLE = "option."  # it gives the options of a table twice


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a reader, in any case of letters."""
    options = _named(given, _READ, _OF_JAVA)
    paths = _paths(options)
    start = options.get("startingPosition", "earliest")
    return ReadOptions(
        path=paths[0],
        paths=paths if len(paths) > 1 or is_pattern(paths[0]) else (),
        codec=options.get("codec", "records"),
        recursive=_flag(options, "recursive", default=False),
        since_ns=_time(options, "since"),
        until_ns=_time(options, "until"),
        ranges=Ranges.of_json(options.get("forelog.ranges", "{}")),
        java=_flag(options, "forelog.java", default=False),
        aggregates=options.get("forelog.aggregates"),
        limit=_size(options, "forelog.limit", None),
        start=None if start in ("earliest", "latest") else _position(start),
        latest=start == "latest",
        on_corruption=_on_corruption(options.get("onCorruption", "fail")),
        defects=_flag(options, "defects", default=False),
        partition_bytes=_size(options, "partitionBytes", PARTITION_BYTES),
        partitions_min=_size(options, "minPartitions", 1, COUNT_MAX),
        batch_rows=_size(options, "batchRows", BATCH_ROWS, COUNT_MAX),
        records_per_batch=_size(options, "maxRecordsPerBatch", None),
        bytes_per_batch=_size(options, "maxBytesPerBatch", None),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer, in any case of letters."""
    options = _named(given, _WRITE)
    return WriteOptions(
        path=_path(options),
        key=options.get("key"),
        segment_bytes=_size(options, "segmentBytes", 64 << 20),
        magic=_number(options, "magic"),
        version=_number(options, "version"),
        mode=_mode(options, "fileMode"),
    )


def _named(given: Mapping[str, str], known: tuple[str, ...], more: tuple[str, ...] = ()) -> dict[str, str]:
    """The options under their known names: Spark may have changed them to lower case."""
    names = {_plain(name): name for name in (*known, *more)}
    about_table = {_plain(name) for name in _OF_TABLES}
    found: dict[str, str] = {}
    for name, value in given.items():
        if _plain(name) == "location":
            found.setdefault("path", value)
        if _plain(name) in about_table or name.startswith(_OF_TABLE):
            continue
        if _plain(name) not in names:
            near = difflib.get_close_matches(_plain(name), map(_plain, known), n=1)
            hint = f": did you mean {names[near[0]]}?" if near else f"; there are {', '.join(known)}"
            raise BadOption(f"forelog has no option {name!r}{hint}")
        found[names[_plain(name)]] = value
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _path(options: Mapping[str, str]) -> str:
    if not options.get("path"):
        raise BadOption('which log? Give its path: .load("orders.log")')
    return _local(options["path"])


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """The path, or the list of them that `load([...])` gives, as JSON."""
    if "paths" not in options or options.get("path"):
        return (_path(options),)
    try:
        paths = json.loads(options["paths"])
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise BadOption(f"paths is {options['paths']!r}: expected a list of paths as JSON")
    return tuple(map(_local, dict.fromkeys(paths)))


def _local(path: str) -> str:
    if path.startswith("file:///"):
        return path.removeprefix("file://")
    return path.removeprefix("file:") if path.startswith("file:/") else path


def is_pattern(path: str) -> bool:
    """Whether a path is a pattern, as `logs/*`. One that exists as it is isn't."""
    return any(mark in path for mark in "*?[") and not os.path.exists(path)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise BadOption(f"{name} is {value!r}: expected true or false")
    return value == "true"


def _size(options: Mapping[str, str], name: str, default: int | None, most: int = BYTES_MAX) -> int:
    if name not in options:
        return default  # type: ignore[return-value]
    match = _SIZE.fullmatch(options[name].strip())
    value = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if value < 1:
        raise BadOption(f"{name} is {options[name]!r}: expected a number above 0, such as 1000 or 64m")
    if value > most:
        raise BadOption(f"{name} is {options[name]!r}: expected at most {most}")
    return value


def _number(options: Mapping[str, str], name: str) -> int | None:
    try:
        return int(options[name], 0) if name in options else None
    except ValueError:
        raise BadOption(f"{name} is {options[name]!r}: expected a number, such as 0x6370746e") from None


def _mode(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    try:
        return check_mode(int(options[name], 8))
    except ValueError:
        raise BadOption(f"{name} is {options[name]!r}: expected a mode of files, such as 600 or 640") from None


def _time(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    try:
        return parse_time(options[name])
    except ValueError as error:
        raise BadOption(f"{name}: {error}") from None


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError:
        raise BadOption(
            f"startingPosition is {text!r}: expected earliest, latest, or a position such as 000000007:1048576"
        ) from None


def _on_corruption(text: str) -> OnCorruption:
    choices: dict[str, OnCorruption] = {"fail": "raise", "raise": "raise", "stop": "stop", "skip": "skip"}
    if text not in choices:
        raise BadOption(f"onCorruption is {text!r}: expected fail, skip or stop")
    return choices[text]
