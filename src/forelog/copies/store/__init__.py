"""A copy of a log as objects in an object store, or in any folder that fsspec reaches.

bucket.py      a folder of objects: written whole, read, listed, removed
manifest.py    which parts make up the copy; the names of all objects
register.py    which opening of the log writes here
merge.py       one larger part for many small ones
target.py      the copy as a target that a log is shipped to
fetch.py       from the objects to a log in a directory
"""
