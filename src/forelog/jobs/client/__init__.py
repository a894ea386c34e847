"""Clients and workers of a job server.

client.py              Client, for threads: made from async_client.py, do not edit
async_client.py        AsyncClient, for tasks
connections.py         the connections of a Client: sockets
async_connections.py   the connections of an AsyncClient: streams of asyncio
endpoint.py            the address of a server, its TLS and token
requests.py            commands, as they are sent
replies.py             replies, as they are read
values.py              what a client gets: Leased, Result, JobInfo and others
exchange.py            which commands are sent again when a connection breaks
pipeline.py            many commands in one write
worker.py              Worker: functions that do jobs, on threads
tasks.py               a worker whose functions are coroutines
shift.py               what both kinds of worker share: attempts, outcomes, counters
"""
