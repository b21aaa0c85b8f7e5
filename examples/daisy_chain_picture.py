"""The picture of models on their way through hospitals that stands in the documentation, from a run of these hospitals.

python -m examples.daisy_chain_picture docs/daisy-chain.svg
"""

import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer

from fedsmall import run
from fedsmall.extensions.travels.picture import travel_file, travels
from fedsmall.randomness import rng_for

HOSPITALS = ("Aachen", "Basel", "Bonn", "Essen", "Graz", "Jena", "Kiel", "Linz", "Mainz", "Ulm")
PATIENTS = 12  # at each of them
CHAIN = {"name": "FedDC", "permute_every": 1, "aggregate_every": 10}


def picture() -> str:
    """The file: twelve patients at each of ten hospitals, models handed on every round and averaged every tenth."""
    x, y = load_breast_cancer(return_X_y=True)
    rows = rng_for(0, "hospitals").permutation(len(y))[: PATIENTS * len(HOSPITALS)].reshape(-1, PATIENTS)
    sites = {name: (x[own], y[own]) for name, own in zip(HOSPITALS, rows, strict=True)}
    made = run(sites=sites, methods=[CHAIN], seeds=[0], rounds=40, test=(x, y), recipe={"lr": 0.1}, progress=False)
    found = travels(made.run)
    assert found is not None
    return travel_file(found)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
