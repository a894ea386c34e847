"""forelog: a write-ahead log for Python. Write ahead, replay, forget.

    from forelog import Stream

    stream = Stream("orders.log")
    with stream.appender(sync="always") as log:
        position = log.append(b"one")
    with stream.cursor(start=position) as cursor:
        for record in cursor:
            print(record.position, record.time, record.payload)

What is where, each importing only from those before it (`docs/design.md` has the whole):

    errors       every error, as one tree under ForelogError
    lazy         what a package exports, loaded when it is first used
    closing      what is closed at the end of a with block
    kernel       loops over bytes, compiled
    bounds       what an option may be
    times        times as nanoseconds and as text
    files        the filesystem, and what stands for it in tests
    serving      what all servers share: TLS, limits, notices for operators
    formats      how bytes lie in a segment
    log          the engine: Stream, Appender, Cursor, Cleaner
    copies       keeping a log elsewhere: another directory, another machine, a store
    commitlog    many producers, one writer: a queue in front of a log
    conversion   from one format to another
    messages     a log of messages, by topic and by time
    state        keep a program's state in memory, and through crashes
    jobs         a job server whose memory is a command log
    broker       publish and subscribe over MQTT, with a log as the memory
    spark        logs as Spark tables, in batch and in streaming
    arrow        logs as tables for Polars, DuckDB and pandas, without Spark
    testing      a disk that crashes, lies, tears and fills up, for your own tests too
    cli          the command `forelog`
"""

from typing import TYPE_CHECKING

from forelog import errors
from forelog.errors import *  # noqa: F403 - all of them, and nothing else
from forelog.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:  # a type checker reads these, and refuses any other name
    from forelog.log.appender import Appender as Appender
    from forelog.log.appender import SyncPolicy as SyncPolicy
    from forelog.log.backup import Backup as Backup
    from forelog.log.cleaner import Cleaner as Cleaner
    from forelog.log.cleaner import CleanReport as CleanReport
    from forelog.log.cursor import Cursor as Cursor
    from forelog.log.metrics import Metrics as Metrics
    from forelog.log.metrics import prometheus_collector as prometheus_collector
    from forelog.log.position import Position as Position
    from forelog.log.position import Record as Record
    from forelog.log.recovery import Recovery as Recovery
    from forelog.log.repair import Repair as Repair
    from forelog.log.repair import apply_repairs as apply_repairs
    from forelog.log.repair import plan_repair as plan_repair
    from forelog.log.rules import KeepLast as KeepLast
    from forelog.log.rules import KeepLatest as KeepLatest
    from forelog.log.rules import OlderThan as OlderThan
    from forelog.log.stream import SegmentInfo as SegmentInfo
    from forelog.log.stream import Stream as Stream
    from forelog.log.verify import VerifyReport as VerifyReport
    from forelog.log.verify import verify as verify
    from forelog.log.walk import Defect as Defect

_loaded, _load = exports(
    __name__,
    {
        "forelog.log.appender": "Appender SyncPolicy",
        "forelog.log.backup": "Backup",
        "forelog.log.cleaner": "CleanReport Cleaner",
        "forelog.log.cursor": "Cursor",
        "forelog.log.metrics": "Metrics prometheus_collector",
        "forelog.log.position": "Position Record",
        "forelog.log.recovery": "Recovery",
        "forelog.log.repair": "Repair apply_repairs plan_repair",
        "forelog.log.rules": "KeepLast KeepLatest OlderThan",
        "forelog.log.stream": "SegmentInfo Stream",
        "forelog.log.verify": "VerifyReport verify",
        "forelog.log.walk": "Defect",
    },
)
__all__ = sorted([*errors.__all__, *_loaded])

if not TYPE_CHECKING:
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
