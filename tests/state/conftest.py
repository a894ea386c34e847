"""Processes that end with their test."""

from __future__ import annotations

import contextlib

import pytest


@pytest.fixture
def children():
    with contextlib.ExitStack() as stack:

        def start(kind, *args, **settings):
            child = kind(*args, **settings)
            stack.callback(child.close)
            return child

        yield start
