"""The connections of clients.

The modules:

    listeners.py   where clients connect: sockets, TLS handshakes
    admission.py   Admission: connections whose CONNECT isn't accepted yet, and those being closed
    connection.py  Connection: bytes to packets, and what each packet asks for
    websocket.py   WebSocket: a connection inside of WebSocket frames
    inputs.py      Inputs: reads from sockets, in turns
    output.py      Output: what is sent to a client
    joined.py      Joined: small answers to a client whose socket is full
    pace.py        Pace: when the next packets of a client are handled
    services.py    Services: the parts of the broker that a connection uses
    buffers.py     SharedBuffers: limits on bytes that all connections share
    peer.py        Peer: the address of a client, and its socket
"""
