"""Which clients may come in, and what they may publish and subscribe to.

The modules:

    control.py    Access: the whole of it, as the rest of the broker asks for it
    passwords.py  the file of users and password hashes
    logins.py     Logins: checks passwords on a thread, and slows down guessing
    rules.py      Rules: the file of rules
    rights.py     Rights: what the rules mean for one client
"""
