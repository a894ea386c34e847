"""The rules of the job server: no sockets, no files, no clocks.

    limits.py     what a job may be: sizes, times, names
    states.py     the states of a job
    wheel.py      timers by the million, and a clock that never goes back
    ordered.py    items in order, of which any slice is found fast
    queue.py      jobs, and the queues in which they wait
    registry.py   all queues by name
    ledger.py     the changes that the log does not have yet, and where the log has each job
    terms.py      what a job has beyond workq: a backoff, a key, jobs that it waits for
    keys.py       unique jobs: which job has a key, and for how long
    rules.py      the settings of a queue
    dead.py       jobs that failed for good, and letters: those that are gone without being completed
    notebook.py   what the machine knows beyond workq, and the notes about it
    places.py     where jobs are: in queues, leased, among the dead; and who waits for them
    machine.py    what happens to jobs: added, leased, completed, failed, expired

Modules with a .pxd file beside them are compiled, with the types in that file.
"""
