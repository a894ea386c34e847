"""Tasks: functions that are done by workers, and called as jobs.

app.py         App: tasks, queues, schedules, clients, workers
task.py        Task: delay, apply_async
home.py        what the parts of an app need of it
options.py     the options of queues, tasks and calls
handle.py      Job: the result of a call, its progress
envelope.py    calls, results and failures as JSON
arguments.py   arguments, checked and converted to their types
injection.py   Depends: what a task needs besides its arguments
middleware.py  Middleware: what is done around every call
runner.py      from the payload of a job to its result
steps.py       step: functions whose results are recorded
workflows.py   chain, group: jobs that wait for others
schedules.py   tasks that are called at the times of a schedule
processes.py   several processes of a worker
testing.py     an app in tests
"""
