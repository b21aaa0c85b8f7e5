"""The record of an audit: a folder with ``audit.json``, the scenario that was attacked, and ``audit.html``."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedsmall.errors import PlanError
from fedsmall.privacy.membership import Estimate
from sim.audit.attack import Finding
from sim.runs.files import read_json, write, write_json
from sim.runs.scenario import Scenario

NAME = "audit.json"


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


def read(folder: Path) -> tuple[Audit, Mapping[str, Any]]:
    """An audit from its folder, and the scenario's table. PlanError where there is none."""
    if not (folder / NAME).is_file():
        raise PlanError(f"{folder} holds no audit; `fedsmall audit SCENARIO` makes one")
    told = read_json(folder / NAME)
    findings = [_finding(row) for row in told["findings"]]
    scenario = tomllib.loads((folder / "scenario.toml").read_text(encoding="utf-8"))
    return Audit(told["name"], told["about"], findings, told["left_out"]), scenario


def _finding(row: Mapping[str, Any]) -> Finding:
    found = tuple(Estimate(**each) for each in row["found"])
    return Finding(**{**row, "auc": Estimate(**row["auc"]), "found": found})
