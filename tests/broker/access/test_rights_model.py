"""A client gets nothing that the rules of the moment forbid, and everything that they allow."""

from __future__ import annotations

import pytest

from tests.broker.access.rights_model import run


@pytest.mark.parametrize("seed", range(4))
def test_what_clients_get_is_what_the_rules_of_the_moment_allow(tmp_path, seed):
    assert run(tmp_path, seed, 200) > 30
