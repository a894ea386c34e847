"""The engine: an embeddable, segmented, write-ahead log.

    stream.py      Stream: a log directory, and the ways to use it
    appender.py    Appender: writing, sync policies, rolling          commit.py    group commit
    recovery.py    opening to append after anything                   watermark.py how far it was synced
    cursor.py      Cursor: reading record by record, following        aio.py       the asyncio parts
    scan.py        Arrow record batches                               walk.py      the bulk path of all reading
    cleaner.py     Cleaner: forgetting                                rules.py     what may be forgotten
    rewrite.py     replacing a sealed segment safely                  seek.py      finding a time or a place
    segments.py    the files of a log                                 index.py     what is known of a sealed one
    verify.py      checking every byte, and repairing                 metrics.py   counters and timings
    position.py    Position, Record

It knows no format by name and no payload.
"""
