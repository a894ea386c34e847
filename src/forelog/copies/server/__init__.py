"""The replica server: it keeps copies of any number of logs, and sends them on to followers.

tokens.py       which token gives which right to which log
door.py         where connections wait until they have said hello
space.py        the disk space of all copies, and its limits
hosted_log.py   one log, its copies, and the connections to it
receiver.py     frames from a primary into a copy
server.py       ReplicaServer
"""
