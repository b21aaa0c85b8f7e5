"""The picture of a chain: what it counts, and that it stays small where sites are very many."""

import numpy as np
from matplotlib.figure import Figure

from fedsmall.sim.report import figures
from fedsmall.sim.report.figures import MOST_COUNTED, MOST_MARKED


def drawn(places: np.ndarray, sites: int) -> np.ndarray:
    axes = Figure().subplots()
    figures._seen(axes, np.arange(len(places)), places, sites)
    return np.asarray(axes.lines[0].get_ydata())


def test_the_sites_that_a_model_has_seen_are_counted_once_each() -> None:
    places = np.array([[0, 1, 2], [1, 1, 0], [0, 2, 1], [0, 2, 1]])

    assert drawn(places, 3).tolist() == [1, 5 / 3, 7 / 3]


def test_of_very_many_models_some_are_counted_and_their_sites_not_marked_one_by_one() -> None:
    places = np.stack([np.random.default_rng(t).permutation(4000) for t in range(5)])
    few, many = Figure().subplots(), Figure().subplots()
    for axes, sites in ((few, MOST_MARKED), (many, MOST_MARKED + 1)):
        figures._paths(axes, np.arange(5), places[:, :sites] % sites, sites, followed=3)

    assert len(few.collections) == 1
    assert not many.collections
    assert MOST_COUNTED < 4000
    assert drawn(places, 4000)[-1] == np.clip(drawn(places, 4000)[-1], 3.9, 4)
