"""The examples for Spark print what the pages show. They are marked `py`, so that other tests need no Spark."""

from __future__ import annotations

import contextlib
import io

import pytest

from tests.project.test_docs import FENCE, ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("page", ["README.md", "docs/spark.md", "docs/tutorial.md"])
def test_every_block_for_spark_prints_what_is_shown(spark, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A relative path is one of the process that Spark was started in: give blocks the one that they mean.
    blocks = FENCE.findall((ROOT / page).read_text().replace('.load("', f'.load("{tmp_path}/'))
    blocks = [(language, _placed(code, tmp_path)) for language, code in blocks]
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown = 0
    for i, (language, code) in enumerate(blocks):
        if language not in ("python", "py"):
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{page}, block {i + 1}", "exec"), namespace)
        if language == "py" and i + 1 < len(blocks) and blocks[i + 1][0] == "text":
            assert out.getvalue() == blocks[i + 1][1]
            shown += 1
    assert shown


def _placed(code: str, folder) -> str:
    for name in ('"table"', '"checkpoint"'):
        code = code.replace(name, f'"{folder}/{name[1:]}')
    return code
