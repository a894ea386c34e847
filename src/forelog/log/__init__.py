"""The engine: an embeddable, segmented write-ahead log. It knows no format by name, and no payload.

The public names are in `forelog`; what builds on the engine starts at `stream.py`.

stream.py      Stream: a log, and the ways to use it
position.py    Position, Record
metrics.py     counters and timings

writing
appender.py    Appender: sync policies, and what happens when the disk fails
active.py      the segment that is appended to: written, synced, sealed, replaced by the next
commit.py      group commit: many writers, one write and one sync
recovery.py    opening to append after anything
aio.py         what needs asyncio

reading
cursor.py      Cursor: record by record, forward, backward, following
scan.py        records as Arrow columns
walk.py        the bulk path under all reading; what a defect is
seek.py        finding a time or a place
damage.py      a torn tail or damage, and where records continue after it

forgetting
cleaner.py     Cleaner: which records go
rules.py       what may be forgotten, decided without Python per record
rewrite.py     replacing a sealed segment safely

keeping whole
verify.py      checking every byte
repair.py      repairing, with evidence kept
backup.py      a copy as of one moment
made.py        a log that is made from another one

directory/     the files of a log, and each of the small ones beside the segments
"""
