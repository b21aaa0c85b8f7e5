"""Membership and reading against the epsilon that each patient is promised, beside examples.patient_privacy.

    FEDSMALL_DATA=... python -m examples.patient_attacks "20 x 20"    # or other sets; kept in docs/evidence
    python -m examples.patient_attacks --show                         # the table of what is kept, put into the page too

Every method at every epsilon is attacked as `fedsmall audit` does it, at the learning rate that its accuracy was
measured with. Each cell holds, for the released model, for another hospital with all that it receives, and for the
server, the AUC of telling who was in the data, and the records that were read.
"""

import sys
from dataclasses import asdict, dataclass

from examples.patient_privacy import EPSILONS, KEPT, METHODS, SETS, Cell, label_of, scenario_of
from fedsmall.extensions.audit.attack import audit
from fedsmall.extensions.audit.federations import world_of
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.sim.tuning.search import with_rates

ATTACKED = DOCS / "evidence" / "patient-attacks.json"
RUNS = {"PneumoniaMNIST, 20 x 50": 8}  # federations; 32 of every other set
PARTIES = {"released": "released model", "neighbour": "another hospital", "server": "server"}


@dataclass(frozen=True)
class Attack:
    """What one party could tell: the AUC with its interval, and records read of those readable (None: none to try)."""

    data: str
    method: str
    epsilon: float | None
    party: str
    auc: float
    low: float
    high: float
    read: int | None
    readable: int | None


def attack(data: str, cells: list[Cell]) -> list[Attack]:
    """Attack all methods on one set, at the rates that its cells were measured with."""
    rates = {label_of(cell.method, cell.epsilon): cell.lr for cell in cells if cell.data == data}
    scenario, found = with_rates(scenario_of(data), rates), []
    plans = {scenario.plan(index, 0).method.label: scenario.plan(index, 0) for index in range(len(scenario.method))}
    world = world_of(next(iter(plans.values())))
    for method in METHODS:
        for epsilon in EPSILONS:
            plan = plans[label_of(method, epsilon)]
            for finding in audit(plan, world.under(plan), RUNS.get(data, 32)):
                if finding.view in PARTIES:
                    auc = finding.auc
                    seen = (auc.value, auc.low, auc.high, finding.read, finding.readable)
                    found.append(Attack(data, method, epsilon, finding.view, *seen))
            print(f"{data}: {method}, epsilon {epsilon}", flush=True)
    return found


def table(attacks: list[Attack]) -> str:
    """AUC of membership and records read, for every set, method and party, by epsilon."""
    heads = [f"epsilon {epsilon:g}" if epsilon else "no privacy" for epsilon in EPSILONS]
    lines = [f"| data | method | who | {' | '.join(heads)} |", "|" + "---|" * (3 + len(EPSILONS))]
    rows = dict.fromkeys((each.data, each.method, each.party) for each in attacks)
    for data, method, party in rows:
        mine = {each.epsilon: each for each in attacks if (each.data, each.method, each.party) == (data, method, party)}
        cells = " | ".join(_written(mine[epsilon]) for epsilon in EPSILONS)
        lines.append(f"| {data} | {method} | {PARTIES[party]} | {cells} |")
    return "\n".join(lines)


def _written(one: Attack) -> str:
    read = "" if one.read is None else f", {one.read} of {one.readable} read"
    return f"{one.auc:.2f} ({one.low:.2f} to {one.high:.2f}){read}"


def main(arguments: list[str]) -> None:
    """Attack the sets that are named, keep what was found, and print the table."""
    kept = [Attack(**each) for each in read_json(ATTACKED)] if ATTACKED.is_file() else []
    cells = [Cell(**cell) for cell in read_json(KEPT)]
    if arguments != ["--show"]:
        measured = {cell.data for cell in cells}
        for data in [name for name in SETS if name in measured and any(word in name for word in arguments)]:
            kept = [each for each in kept if each.data != data] + attack(data, cells)
            write_json(ATTACKED, [asdict(each) for each in sorted(kept, key=lambda each: list(SETS).index(each.data))])
    fill(DOCS, {"patient-attacks": table(kept)}.get)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
