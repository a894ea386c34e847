"""The connections of clients.

The modules:

    listeners   where clients connect: sockets, TLS handshakes
    admission   Admission: connections whose CONNECT isn't accepted yet, and those being closed
    connection  Connection: bytes to packets, and what each packet asks for
    websocket   WebSocket: a connection inside of WebSocket frames
    pace        Pace: when the next packets of a client are handled
    services    Services: the parts of the broker that a connection uses
    buffers     SharedBuffers: limits on bytes that all connections share
    peer        Peer: the address of a client
"""
