"""What the evidence for travelling groups is made of: methods, sets, rates and communication rounds, as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedsmall.data.federation import Task
from fedsmall.models.networks import cnn
from fedsmall.plan import Plan
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.runs.scenario import build

BUDGETS = ("few", "many")
SEARCH_SEEDS, FOLDS = (1000, 1001), 2
SNAPSHOTS = 10
VISIT = 5  # local steps at each visit of the one model that travels
GROUPED = ("TravellingGroups", "TravellingEnsemble")  # every group starts with a model of its own
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "FedAvg"},
    "FedAvg, moving average": {"name": "FedAvg", "ema": 0.95},
    "FedAvg, 10 snapshots": {"name": "FedAvg", "snapshots": SNAPSHOTS},
    "FedAvg, 5 steps": {"name": "FedAvg", "recipe": {"local_steps": 5}},
    "FedDC, b = 10": {"name": "FedDC"},
    "TravellingModel": {"name": "TravellingModel", "recipe": {"local_steps": VISIT}},
    "TravellingGroups, 2": {"name": "TravellingGroups", "groups": 2},
    "TravellingGroups, 5": {"name": "TravellingGroups", "groups": 5},
    "TravellingGroups, 10": {"name": "TravellingGroups", "groups": 10},
    "TravellingEnsemble": {"name": "TravellingEnsemble"},
    "Central": {"name": "Central"},
    "Central ensemble": {"name": "TravellingEnsemble", "permute_every": None},  # over copies of all data
    "Standalone ensemble": {"name": "TravellingEnsemble", "permute_every": None},
}
BASE = "FedAvg"
RIVALS = ("FedAvg", "FedAvg, moving average", "FedAvg, 10 snapshots", "Central")
METRICS = ("accuracy", "auc", "nll", "brier", "ece")
MEDICAL = ("breast cancer", "heart disease", "cardiotocography", "dermatology", "PneumoniaMNIST")


@dataclass(frozen=True)
class Design:
    """One table of evidence: its sets, and what every method on them is chosen from.

    ``comm_rounds``: many are the best of them, few the first. ``groups`` are the primary method's: the listed number
    that is nearest to a fifth of the sites, set by set where they differ. ``central`` is the number of central models
    in their ensemble. ``word`` begins the names of its file and of its tables.
    """

    word: str
    sets: Mapping[str, dict[str, Any]]
    rates: tuple[float, ...]
    comm_rounds: tuple[int, ...]
    groups: int
    groups_on: Mapping[str, int] = field(default_factory=dict)
    central: int = 10
    seeds: int = 20

    @property
    def kept(self) -> Path:
        """Where its values are kept."""
        return DOCS / "evidence" / f"{self.word}.json"

    def primary_groups(self, data: str) -> int:
        """The groups of the method whose gains are tested."""
        return self.groups_on.get(data, self.groups)

    def primary(self, data: str) -> str:
        """The method whose gains are tested."""
        return f"TravellingGroups, {self.primary_groups(data)}"

    def tested(self, data: str) -> tuple[str, ...]:
        """The method whose gains are tested, and those over which."""
        return (self.primary(data), *RIVALS)

    def methods(self, data: str) -> list[str]:
        """The methods that a set has enough sites for: half of them are left out while rates are chosen."""
        sites = self.sets[data].get("sites", 4)
        return [label for label, parts in METHODS.items() if parts.get("groups", 1) <= sites // 2]

    def order(self) -> list[tuple[str, str]]:
        """Every method on every set, those first that are tested."""
        everything = [(data, label) for data in self.sets for label in self.methods(data)]
        return sorted(everything, key=lambda one: one[1] not in self.tested(one[0]))

    def plan_of(self, data: str, label: str, lr: float, comm_rounds: int, seed: int, sites: int) -> Plan:
        """One run over ``sites``. One model that travels visits as many as equal local work allows, at less traffic."""
        parts = {key: value for key, value in METHODS[label].items() if key != "recipe"}
        recipe = {"lr": lr, "batch": 8, "local_steps": 1} | METHODS[label].get("recipe", {})
        own = {"initial_models": "independent"} if parts["name"] in GROUPED else {}
        rounds = max(1, comm_rounds * sites // VISIT) if label == "TravellingModel" else comm_rounds
        run = {"name": data, "seeds": [seed], "rounds": rounds, "recipe": recipe, "method": [parts | {"label": label}]}
        return build(dict(self.sets[data]) | own | run).plan(0, seed)


def halved_cnn(task: Task, *, norm: str = "batch") -> nn.Module:
    """The registry's small convolutional network on means of 2 x 2 pixels."""
    channels, height, width = task.input_shape
    half = replace(task, input_shape=(channels, height // 2, width // 2))
    return nn.Sequential(nn.AvgPool2d(2), *cnn(half, norm=norm))  # type: ignore[misc]


XRAYS, DIGITS, TWO_CLASSES = {"medmnist": "pneumoniamnist"}, {"task": "digits"}, {"partition": {"classes_per_site": 2}}
MLP_OF_32 = {"model": "mlp", "model_options": {"hidden": [32]}}
OF_50, OF_20 = ({"sites": sites, "samples_per_site": 16} for sites in (50, 20))
MLP = Design(
    "travelling-groups",
    {
        "breast cancer": MLP_OF_32 | OF_20 | {"task": "breast_cancer"},
        "heart disease": MLP_OF_32 | {"task": "heart_disease"},
        "cardiotocography": MLP_OF_32
        | {"task": {"csv": "fetal_health.csv", "label": "fetal_health"}, "sites": 50, "samples_per_site": 20},
        "dermatology": MLP_OF_32
        | {"task": {"csv": "dermatology.data", "label": "Classification"}, "sites": 20, "samples_per_site": 12},
        "PneumoniaMNIST": MLP_OF_32 | OF_50 | {"task": XRAYS},
        "digits": MLP_OF_32 | OF_50 | DIGITS,
        "digits, two classes a site": MLP_OF_32 | OF_50 | DIGITS | TWO_CLASSES,
    },
    rates=(0.03, 0.1, 0.3, 1.0, 3.0),
    comm_rounds=(30, 100, 300),
    groups=10,
    groups_on={"heart disease": 2, "breast cancer": 5, "dermatology": 5},
)
GROUPNORM = {"model_options": {"norm": "group"}}
CNN = Design(
    "travelling-groups-cnn",
    {
        "digits": GROUPNORM | OF_20 | DIGITS | {"model": "cnn"},
        "digits, two classes a site": GROUPNORM | OF_20 | DIGITS | TWO_CLASSES | {"model": "cnn"},
        "PneumoniaMNIST": GROUPNORM | OF_20 | {"task": XRAYS, "model": "examples.travelling_groups_sets:halved_cnn"},
    },
    rates=(0.01, 0.03, 0.1, 0.3),
    comm_rounds=(30, 100),
    groups=5,
    central=5,
)
