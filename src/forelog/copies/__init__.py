"""Keep a log elsewhere too: in another directory, on a replica server, or in an object store.

    Owner: a log, its identity
      │   shipping.py: records as they are appended, and acknowledgements
      ▼
    Target ──▶ a directory · a replica server · an object store

A *copy* has the bytes of a log at the same positions. The process that has the log open is its *primary*. A copy
is *whole* once it has a *snapshot*, the last whole generation of the log, and everything after it. A *replica* is
a copy in a directory. There are two *slots* for it, because a new replica is made beside the old one. A
*destination* is a target with the thread that keeps it up to date.

    identity.py       whose log it is, and which of its openings is the younger
    lineage.py        the openings that a log's history consists of
    snapshot.py       where the snapshot is, and the file that says so
    transfers.py      what was sent to each copy
    shipping.py       Owner, Source, Target, and what moves records from one to the other
    claim.py          whether a primary may write to a copy
    replica.py        a copy in a directory
    slots.py          a directory with two slots for the replicas of one log
    wire.py           frames between a primary, a replica server and a follower
    targets.py        a directory and a replica server as targets
    store/            an object store as a target
    addresses.py      what an address means: which target, or what to restore from
    destinations.py   all destinations of a log, and how each is doing
    server/           the replica server
"""
