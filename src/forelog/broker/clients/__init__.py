"""What clients ask for, packet by packet.

The modules:

    lifecycle         Clients: CONNECT, takeover, DISCONNECT, expiry
    wills             Wills: published when a client is lost
    publications      Publications: messages that aren't plain
    acknowledgements  Acknowledgements: PUBACK, PUBREC, PUBREL, PUBCOMP
    subscriptions     Subscriptions: SUBSCRIBE, UNSUBSCRIBE, and sessions that come back
    groups            Groups: shared subscriptions
"""
