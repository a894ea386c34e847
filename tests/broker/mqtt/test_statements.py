"""docs/mqtt.md says of every statement of the standard which test holds it, or why none does."""

from __future__ import annotations

from tests.broker.mqtt.statements import PAGE, WHY_NOT, covered, page_with, statements, table


def test_the_table_is_what_the_tests_say():
    assert PAGE.read_text() == page_with(table()), "run: python -m tests.broker.mqtt.statements"


def test_the_tests_name_statements_that_there_are():
    assert set(covered()) <= set(statements())


def test_every_statement_has_a_test_or_a_reason_why_not():
    tested, known = set(covered()), set(WHY_NOT)
    assert sorted(set(statements()) - tested - known) == []
    assert sorted(tested & known) == [], "there is a test now"
