"""The engine: an embeddable, segmented, write-ahead log. It knows no format by name and no payload.

writing      appender.py   Appender: sync policies, what happens when the disk fails
             active.py     the segment that is appended to: synced, sealed, replaced by the next
             spare.py      the next segment, open before it is needed
             commit.py     group commit: many writers, one write and one sync
             recovery.py   opening to append after anything
             watermark.py  how far the log was synced
reading      cursor.py     Cursor: record by record, forward, backward, following
             scan.py       Arrow record batches
             walk.py       the bulk path under all reading; what a defect is
             seek.py       finding a time or a place
forgetting   cleaner.py    Cleaner: which records go
             rules.py      what may be forgotten, said without Python per record
             rewrite.py    replacing a sealed segment safely
the files    stream.py     Stream: a log directory, and the ways to use it
             segments.py   its files, and one segment open to read
             index.py      what is known of a sealed segment
             verify.py     checking every byte
             repair.py     mending, with evidence kept
besides      position.py   Position, Record
             metrics.py    counters and timings
             aio.py        what needs asyncio
"""
