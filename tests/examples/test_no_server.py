"""The comparison without a server in small, from the scenario to the table."""

import numpy as np
import pytest

from examples.no_server import KEPT, Row, measure, table
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.runs.files import read_json
from fedsmall.sim.runs.scenario import load, scenarios

LABELS = ("FedDC, server", "FedDC, gossip", "FedDC, gossip, 20% lost")
SMALL = ("seeds=[0, 1]", "rounds=60", "sites=30", "recipe.lr=0.2")


@pytest.mark.thorough
def test_gossip_is_within_a_point_of_a_server_at_equal_bytes_and_near_it_where_messages_are_lost() -> None:
    rows = {row.label: row for row in measure(load(scenarios()["no_server"], SMALL))}
    served = rows["FedDC, server"]
    apart = {label: float(np.mean(np.subtract(row.counted, served.kept))) for label, row in rows.items()}

    assert np.mean(served.kept) > 0.75
    assert abs(apart["FedDC, gossip"]) < 0.01
    assert abs(apart["FedDC, gossip, 20% lost"]) < 0.03
    assert apart["FedAvg, gossip"] < apart["FedDC, gossip"] - 0.05, "an average of two exchanges is none"
    for label in ("FedDC, gossip", "FedDC, gossip, 20% lost", "FedDC, ring", "FedDC, ring, 20% lost"):
        assert 0.9 * served.megabytes < rows[label].megabytes <= served.megabytes, label


def test_the_page_shows_what_was_kept() -> None:
    rows = [Row(**row) for row in read_json(KEPT)]

    assert table(rows) in (DOCS / "no-server.md").read_text()
    served, gossip, lossy = (next(row for row in rows if row.label == label) for label in LABELS)
    assert abs(np.mean(np.subtract(gossip.sites, served.kept))) < 0.01
    assert abs(np.mean(np.subtract(lossy.sites, served.kept))) < 0.01
    assert max(gossip.megabytes, lossy.megabytes) <= served.megabytes


def test_the_table_says_whose_models_are_judged_and_what_is_kept() -> None:
    rows = [
        Row("FedDC, server", [0.9, 0.92], [0.5, 0.5], 10.0, 100),
        Row("FedDC, gossip", [0.91, 0.9], [0.88, 0.92], 9.5, 100),
        Row("Standalone", [], [0.2, 0.2], 0.0, 100),
    ]

    _, _, served, gossip, alone = table(rows).splitlines()

    assert served.startswith("| FedDC, server | 91.0 [")
    assert "(sites) | -1.0 [" in gossip
    assert gossip.endswith("| 90.5 | 9.5 | 100 |")
    assert "| none | 0.0 |" in alone
