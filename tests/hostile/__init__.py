"""Hostile clients against the real servers: what each of them costs the others. `make hostile`.

    figures    what a process uses: memory, processor, disk, files, threads
    servers    the broker, the job server and the replica server, each in a process of its own
    probe      a well-behaved client in a process of its own, which measures its own round trips all along
    site       what an attack works with: sockets, floods, counts of what was sent
    attacks    the list of attacks, and what each may cost
    siege      one attack against one server, measured against its bounds
    table      the figures of a run

Attacks are functions in broker_*.py, jobs_*.py and replica_*.py. Those in *_limits.py try each documented limit
from both sides. docs/testing.md has the bounds.
"""
