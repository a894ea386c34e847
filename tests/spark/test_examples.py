"""The example on Spark does what it says."""

from __future__ import annotations

import pytest


@pytest.mark.filterwarnings("ignore")
def test_what_sensors_publish_is_a_table(spark, capsys):
    pytest.importorskip("aiomqtt")
    import examples.telemetry as telemetry

    telemetry.main(spark)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "603 messages were acknowledged"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows == [
        ["topic", "messages", "lowest", "average", "highest"],
        ["home/attic/battery", "1", "97.0", "97.0", "97.0"],
        ["home/attic/temperature", "200", "24.0", "24.45", "24.9"],
        ["home/cellar/battery", "1", "97.0", "97.0", "97.0"],
        ["home/cellar/temperature", "200", "11.0", "11.45", "11.9"],
        ["home/kitchen/battery", "1", "97.0", "97.0", "97.0"],
        ["home/kitchen/temperature", "200", "21.0", "21.45", "21.9"],
    ]
