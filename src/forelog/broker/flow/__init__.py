"""The way of a message: from publishers into the log, and from the log to subscribers.

The modules:

    intake       Intake: what publishers sent, into the log with one write
    turns        Turns: write, acknowledge, deliver, in turns of the event loop
    routes       Routes: live cursors by topic
    delivery     Delivery: new messages to live cursors
    catchup      CatchUp: older messages to cursors that are behind
    retained     RetainedDelivery: retained messages to new subscribers
    sender       Sender: messages as packets to one client
    translation  a message of the log as a PUBLISH packet, and back
    slices       Slices: long work in short steps, a few for each client in turn
"""
