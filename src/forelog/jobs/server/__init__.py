"""The job server.

    server.py       starts and stops it, and puts the parts together
    turns.py        what one turn of the event loop does: read, write, reply, ring timers
    connection.py   a connection of a client, between its socket and its session
    session.py      the protocol: bytes of a client in, replies out
    words.py        the words of a command line
    rare.py         commands of workq that are rarer than the others
    beyond.py       the commands and flags that workq doesn't know
    inspection.py   the command `inspect`
    replies.py      replies, as bytes
    clients.py      the connections there are: who may come in, who has to go
    door.py         clients without a token: how many, for how long, and what guessing costs
    pace.py         how many clients share a write, and when a thread has to do it
    writer.py       that thread
    outage.py       what happens while the log cannot be written
    archive.py      payloads and results that are only in the log
    schedule.py     when the log is cleaned
    tasks.py        the tasks that run beside the turns
    local.py        LocalServer: the same server on a thread of this process

Modules with a .pxd file beside them are compiled, with the types in that file.
"""
