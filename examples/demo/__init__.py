"""`make demo`: the main job, end to end, in less than three minutes.

A small factory. Its machines publish telemetry to a broker, its office gives jobs to a job server, its store
keeps the stock in a dict that survives, its meters write datapoints. All of it runs for a while, is ended with
kill -9 in the middle, started again, and asked for everything that it had acknowledged. Then Spark makes tables of
the four logs, and a page that can be looked at.

    __main__.py   the stages, one after the other
    factory.py    the processes: started, killed, started again, and ended whatever happens
    writers.py    the two that write logs of their own: stock and meters
    clients.py    what talks to the servers: publishers, a subscriber, an office, workers
    ledger.py     what was acknowledged, and when
    proof.py      what is there of it
    analysis.py   the logs on Spark: ingested, computed, written as Parquet and Delta
    tables.py     which tables there are of them
    page.py       report.html
    screen.py     how it looks while it runs
"""
