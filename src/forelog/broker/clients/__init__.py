"""What clients ask for, packet by packet.

The modules:

    lifecycle.py         Clients: CONNECT, takeover, DISCONNECT, expiry
    wills.py             Wills: published when a client is lost
    publications.py      Publications: messages that aren't plain
    acknowledgements.py  Acknowledgements: PUBACK, PUBREC, PUBREL, PUBCOMP
    subscriptions.py     Subscriptions: SUBSCRIBE, UNSUBSCRIBE, and sessions that come back
    groups.py            Groups: shared subscriptions
"""
