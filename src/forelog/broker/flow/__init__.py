"""The way of a message: from publishers into the log, and from the log to subscribers.

The modules:

    intake.py       Intake: what publishers sent, into the log with one write
    turns.py        Turns: write, acknowledge, deliver, in turns of the event loop
    routes.py       Routes: live cursors by topic
    delivery.py     Delivery: new messages to live cursors
    catchup.py      CatchUp: older messages to cursors that are behind
    reads.py        Reads: who reads from disk now
    retained.py     RetainedDelivery: retained messages to new subscribers
    sender.py       Sender: messages as packets to one client
    translation.py  a message of the log as a PUBLISH packet, and back
    slices.py       Slices: long work in short steps, a few for each client in turn
"""
