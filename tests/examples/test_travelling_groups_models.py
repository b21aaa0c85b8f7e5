"""Models that are no networks on the tables of travelling groups: the same samples, and a table of what is kept."""

import numpy as np
import pytest

from examples.travelling_groups_models import (
    IMAGES,
    KEPT,
    ROWS,
    SETS,
    Cell,
    federation_of,
    nll_and_auc,
    probabilities,
    table,
    table_of_images,
)
from examples.travelling_groups_sets import MLP
from fedsmall.sim.runs.files import read_json


@pytest.mark.parametrize("model", ["Ridge", "FedHistogramXGB"])
def test_a_model_of_pooled_rows_answers_for_the_test_set_of_a_seed(model):
    part = federation_of("breast cancer", 0)
    trees = {"boosting": {"histogram": True, "depth": 1, "trees": 3, "learning_rate": 0.1}}

    shares, exchanges = probabilities(
        "breast cancer", model, {"regression": {"penalty": 10.0}} if model == "Ridge" else trees, part
    )

    assert shares.shape == (len(part.test), 2)
    assert np.allclose(shares.sum(axis=1), 1)
    assert nll_and_auc(shares, part)[1] > 0.9
    assert 3 < exchanges < 20


def test_what_is_kept_has_every_model_on_every_set_and_every_seed():
    cells = [Cell(**cell) for cell in read_json(KEPT)]

    of_tables = [cell for cell in cells if cell.data in SETS]
    assert {(cell.data, cell.model) for cell in of_tables} == {(data, model) for data in SETS for model in ROWS}
    assert {cell.data for cell in cells} == {*SETS, *IMAGES}
    assert all(len(cell.nll) == len(cell.auc) == MLP.seeds for cell in cells)
    assert table(of_tables).count("\n") == 1 + len(ROWS) + 4 + 1
    assert table_of_images([cell for cell in cells if cell.data in IMAGES]).count("| - ") == 2  # digits: too slow
