"""Something to try: scikit-learn's breast cancer as two parties would hold it, and a scenario over the two."""

from pathlib import Path

from sklearn.datasets import load_breast_cancer

from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for
from fedsmall.sim.runs.files import as_csv, write

SCENARIO = """\
name = "two_houses"
about = "Breast cancer: a hospital has ten measurements and the diagnosis, a laboratory twenty others."
task = {columns = {hospital = "hospital.csv", laboratory = "laboratory.csv"}, id = "patient", label = "diagnosis"}
boosting = {rounds = 3, least_samples = 5}

[[method]]
name = "Standalone"

[[method]]
name = "SecureBoostPlus"

[[method]]
name = "Central"
"""
TAKEN = 0.9  # the share of all patients whom each of the two knows


def write_sample(folder: Path) -> list[Path]:
    """Write hospital.csv, laboratory.csv and two_houses.toml into ``folder``; PlanError where one of them is there."""
    data = load_breast_cancer()
    label = [str(data.target_names[one]) for one in data.target]
    tables = {"hospital.csv": slice(0, 10), "laboratory.csv": slice(10, 30)}
    paths = [folder / name for name in (*tables, "two_houses.toml")]
    if taken := [path.name for path in paths if path.exists()]:
        raise PlanError(f"{taken[0]} is there already; it is not written over")
    for path, (name, columns) in zip(paths, tables.items(), strict=False):
        known = rng_for(0, "sample of columns", name).permutation(len(label))[: round(TAKEN * len(label))]
        last = ["diagnosis"] if name == "hospital.csv" else []
        head = ["patient", *(str(one) for one in data.feature_names[columns]), *last]
        rows = [[f"p{row:04d}", *data.data[row, columns].tolist(), *([label[row]] if last else [])] for row in known]
        write(path, as_csv([head, *rows]).encode())
    write(paths[-1], SCENARIO.encode())
    return paths
