"""The rules of the job server: no sockets, no files, no clocks.

    limits.py     what a job may be: sizes, times, names
    states.py     the states of a job
    wheel.py      timers by the million, and a clock that never goes back
    ordered.py    items in order, of which any slice is found fast
    queue.py      jobs, and the queues in which they wait
    registry.py   all queues by name
    ledger.py     the changes that the log does not have yet, and where the log has each job
    machine.py    what happens to jobs: added, leased, completed, failed, expired

Every module but `states` and `ordered` is compiled, with the types in the .pxd file beside it.
"""
