"""Small scenarios that the tests of the command line share."""

from pathlib import Path

SMALL = """
name = "small"
about = "Five hospitals with four patients each."
task = "breast_cancer"
model = "linear"
sites = 5
samples_per_site = 4
rounds = 6
seeds = [0, 1]
evaluate_every = 2
[recipe]
lr = 0.05
[[method]]
name = "Standalone"
[[method]]
name = "FedAvg"
label = "FedAvg, b = 3"
aggregate_every = 3
[[method]]
name = "FedAvg"
label = "FedAvg, b = 1"
[[method]]
name = "FedDC"
aggregate_every = 3
recipe = {lr = 0.1}
[[method]]
name = "Central"
"""


def write(folder: Path, text: str = SMALL, name: str = "small.toml") -> Path:
    """A scenario's file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
