"""What the job server, the broker and the replica server share.

notices.py     log lines for operators, limited in number and length
shares.py      who holds how much of what all clients share
tls.py         TLS for servers and clients, and hints where one side doesn't speak it
heap.py        memory that nobody needs any more, given back to the system
loops.py       the event loop: uvloop, if it is installed
addresses.py   how addresses are written, and which are of this machine
lobby.py       where sockets wait until their TLS handshake is done
handshakes.py  TLS handshakes, a few at a time
"""
