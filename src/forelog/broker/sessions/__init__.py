"""What the broker knows of its clients, and keeps through a crash.

The modules:

    session.py   Session: subscriptions, positions in the log, messages in flight; Link: its connection
    group.py     Group: a shared subscription
    presence.py  Presence: open connections and groups
    quotas.py    SessionQuotas: how much memory each user's sessions take
    windows.py   Window: how many messages a session may have in flight
    retained.py  RetainedMessages: retained messages, found by filter
    events.py    a session as events of a log
    store.py     SessionStore: sessions, groups and retained messages, and the log that keeps them
"""
