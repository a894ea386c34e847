"""The kernel and the compiled job modules under sanitizers, and a search for inputs that break a parser.

    build.py        both compiled by gcc with address and undefined-behaviour sanitizers, into build/sanitize
    reached.h, callbacks.c, _reached.c
                    which places of the code an input reaches: of C by gcc's trace-pc, of Python by a tracer
    mutations.py    an input that is a little different from others
    target.py       what is searched: a function that takes bytes, what it may raise, and where to begin
    targets_*.py    all of them: the kernel and its oracle, what comes over a wire, what is read from files
    seeds.py        what the search begins with: files of the original programs, and logs written on the spot
    worker.py       the search in one target, in a process of its own
    __main__.py     `make sanitize`: builds, runs the kernel's tests, then searches all targets
    findings/       inputs that have broken something: the tests run them again

A search keeps each input that reaches a place that no input before has reached, and goes on from those, as
libFuzzer and AFL do. It is our own: so it needs nothing but gcc, and sees the parsers that are Python as well as
those in C.
"""
