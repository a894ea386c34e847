"""A world in a seed: machines with disks that crash, a network that cuts and delays, clocks that go wrong.

core.py       the true time, chance, what is due, and the trace
clocks.py     a machine's clocks
outside.py    time and chance as programs ask for them
mount.py      a process's view of its machine's disk
transport.py  one side of a connection
network.py    connections between processes
loop.py       the event loop of a process
process.py    a program that runs
machine.py    Machine: a disk, clocks, processes
world.py      World
faults.py     what goes wrong, and when
"""

from forelog.testing.world.faults import KINDS, Breaker, Fault, planned
from forelog.testing.world.machine import Machine
from forelog.testing.world.process import Process
from forelog.testing.world.world import World, WorldFailed

__all__ = ["KINDS", "Breaker", "Fault", "Machine", "Process", "World", "WorldFailed", "planned"]
