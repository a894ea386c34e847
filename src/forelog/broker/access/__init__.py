"""Which clients may come in, and what they may publish and subscribe to.

The modules:

    control    Access: the whole of it, as the rest of the broker asks for it
    passwords  the file of users and password hashes
    logins     Logins: checks passwords on a thread, and slows down guessing
    rules      Rules: the file of rules
    rights     Rights: what the rules mean for one client
"""
