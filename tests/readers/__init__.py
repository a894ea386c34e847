"""Readers beside writers that roll, run out of room, and are killed: `make readers`.

Each run has one reader and one writer. The writer notes in a ledger what it tries to append, and what becomes of
it; the reader notes what it gets. In the end the two are compared: what was acknowledged has reached the reader,
once, in order; what was refused has not; no position has had two records; and a reader with nothing to do rests.

    records.py       payloads that tell their number, and what a reader has seen
    ledger.py        what a writer has tried, and what came of it
    verdict.py       the two compared
    process.py       processes of a run, and the CPU time that they use
    room.py          a filesystem that is too small

    place.py         what a writer writes to: a log, or a state log with copies
    writer.py        a writer in a process of its own
    pair.py          a reader beside a writer: one run

    follower.py      a cursor that follows
    subscriber.py    a broker's durable subscriber, whose connection is cut again and again
    publisher.py     the publisher that it hears from
    spark_stream.py  a Spark stream
    table.py         a table that `forelog pipeline ingest` keeps up
    copies.py        copies of a state log, in a directory and on a replica server
"""
