"""How fast forelog is, beside its peers and the physical limits, all measured in one run.

    python -m benchmarks                  everything, in half an hour
    python -m benchmarks --only append    one figure, or a group: engine, state, spark, jobs, workers, broker
    python -m benchmarks --quick          smaller and rougher

What is where:

    measure.py     rounds, rates, ratios and goals
    suite.py       the figures by name

    appending.py   append, append_many                   peers.py     sqlite3, LMDB, RocksDB, persist-queue
    committing.py  sync="always", threads and tasks      limits.py    write, fdatasync, CRC-32C, memcpy
    reading.py     kernel scan, Arrow scan, cursor       child.py     what runs in a process of its own
    producing.py   CommitLog.write, threads and tasks    stores.py    what many threads can write to at once
    rotating.py    CommitLog.rotate_logs while writing
    decoding.py    M3's commit log to columns
    opening.py     bytes read by opening
    growth.py      1 GiB beside 100 MiB
    starting.py    import time, the command's start
    state.py       updates while enumerating, restoring
    spark.py       a log through Spark                   soak_spark.py  for ten minutes, by itself
    jobs.py        the job server                        cycles.c    its client, and beanstalkd's
    workers.py     job queues with workers      worker_child.py  their tasks
    broker.py      the broker                            broker_peers.py  mosquitto, NATS, Redis

    report.py      tables, JSON                          plot.py      the picture
    machine.py     what it ran on

A figure is a set of cases. Their rounds are interleaved, so that what slows the machine slows all of them,
and a ratio is the median over the rounds of one case's rate to another's in the same round.
"""
