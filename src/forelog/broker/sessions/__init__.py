"""What the broker knows of its clients, and keeps through a crash.

The modules:

    session    Session: subscriptions, positions in the log, messages in flight; Link: its connection
    group      Group: a shared subscription
    presence   Presence: open connections and groups
    quotas     SessionQuotas: how much memory each user's sessions take
    retained   RetainedMessages: retained messages, found by filter
    events     a session as events of a log
    store      SessionStore: sessions, groups and retained messages, and the log that keeps them
"""
