"""Clients and workers of a job server.

client.py              Client, for threads: made from async_client.py, do not edit
async_client.py        AsyncClient, for tasks
management.py          its commands beyond workq: made from async_management.py, do not edit
async_management.py    those of an AsyncClient
connections.py         the connections of a Client: sockets
async_connections.py   the connections of an AsyncClient: streams of asyncio
endpoint.py            the address of a server, its TLS and token
requests.py            commands, as they are sent
lifecycle.py           those on a running job
administration.py      those on dead letters, queues and schedules
flags.py               the options of a new job, and their flags
backoff.py             how long a failed job waits before it is tried again
words.py               the words of a command, checked
replies.py             replies, as they are read
things.py              what a server shows of jobs, queues and schedules, as it is read
values.py              what a client gets: Leased, Result, JobInfo and others
exchange.py            which commands are sent again when a connection breaks
pipeline.py            many commands in one write
worker.py              Worker: functions that do jobs
crew.py                its threads
tasks.py               a worker whose functions are coroutines
shift.py               what both kinds of worker share: leases, outcomes, counters
attempt.py             Attempt: a job, as a function gets it
signals.py             Retry and Discard, which a function may raise
link.py                the connection of a worker's thread: outcomes and a lease in one write
keeper.py              heartbeats, and outcomes that have to be sent again
"""
