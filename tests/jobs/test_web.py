"""The programs of docs/jobs-web.md, on the frameworks that they are for."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "jobs-web.md").read_text()


def blocks(heading: str) -> list[str]:
    """The code in a section, and the outputs."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [part.partition("\n")[2] for part in section.split("```")[1::2]]


def test_the_program_for_fastapi_answers_while_its_job_waits_and_when_it_is_done():
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2")
    program, use, shown = blocks("FastAPI")
    module = ModuleType("page_fastapi")
    sys.modules[module.__name__] = module
    module.__dict__["__name__"] = module.__name__
    try:
        exec(program, module.__dict__)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(use, module.__dict__)
        assert out.getvalue() == shown
    finally:
        del sys.modules[module.__name__]


def test_the_program_for_django_adds_its_job_when_the_transaction_is_committed(tmp_path, monkeypatch):
    pytest.importorskip("django")
    from django.conf import settings

    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db.sqlite3"}},
        ROOT_URLCONF="page_django",
    )
    module = ModuleType("page_django")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.__dict__["__name__"] = module.__name__
    (program,) = blocks("Django")
    exec(program, module.__dict__)
    from django.db import connection, connections
    from django.test import Client

    with connection.cursor() as cursor:
        cursor.execute("create table orders (id integer primary key, customer text)")
    with module.jobs.testing():
        reply = Client().get("/orders", {"customer": "ada"})
        job = module.confirm.job(json.loads(reply.content)["job"])
        assert job.get(timeout=10) == "order 1 of ada is confirmed"
    connections.close_all()
