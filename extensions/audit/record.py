"""The record of an audit: a folder with ``audit.json``, the scenario that was attacked, and ``audit.html``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedsmall.errors import PlanError
from fedsmall.extensions.audit.membership import Estimate
from fedsmall.sim.runs.files import read_json, write, write_json
from fedsmall.sim.runs.scenario import Scenario

NAME = "audit.json"


@dataclass(frozen=True)
class Finding:
    """What one party can tell under one method.

    ``bound`` is the median over federations of the one-run lower bound on epsilon, ``highest`` the largest. ``read``
    records of ``readable`` could be read whole; None where this party cannot try, or the model has no layer to read.
    """

    method: str
    view: str
    auc: Estimate
    found: tuple[Estimate, ...]
    bound: float
    highest: float
    read: int | None
    readable: int | None

    def record(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self) | {"auc": self.auc._asdict(), "found": [each._asdict() for each in self.found]}


@dataclass(frozen=True)
class Audit:
    """What an audit found, and on what: ``about`` holds the sizes of the world, the number of runs and the seed.

    ``left_out`` says of the methods that were not attacked, why.
    """

    name: str
    about: Mapping[str, Any]
    findings: Sequence[Finding]
    left_out: Mapping[str, str]

    @property
    def methods(self) -> list[str]:
        """The labels of the methods that were attacked, in their order."""
        return list(dict.fromkeys(finding.method for finding in self.findings))

    def of(self, method: str) -> list[Finding]:
        """What was found under one method. PlanError where it was not attacked."""
        found = [finding for finding in self.findings if finding.method == method]
        if not found:
            raise PlanError(f"the audit did not attack {method!r}; it did: {', '.join(self.methods) or 'none'}")
        return found


def save(audit: Audit, scenario: Scenario, folder: Path) -> None:
    """Write an audit into its folder, with what repeats it."""
    table = scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    write(folder / "scenario.toml", tomli_w.dumps(table).encode())
    write_json(folder / NAME, asdict(audit) | {"findings": [finding.record() for finding in audit.findings]})


def read(folder: Path) -> Audit:
    """An audit from its folder. PlanError where there is none."""
    if not (folder / NAME).is_file():
        raise PlanError(f"{folder} holds no audit; `fedsmall audit SCENARIO` makes one")
    told = read_json(folder / NAME)
    return Audit(told["name"], told["about"], [_finding(row) for row in told["findings"]], told["left_out"])


def _finding(row: Mapping[str, Any]) -> Finding:
    found = tuple(Estimate(**each) for each in row["found"])
    return Finding(**{**row, "auc": Estimate(**row["auc"]), "found": found})
