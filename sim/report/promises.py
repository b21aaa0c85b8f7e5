"""What the methods of a run promise the people in the data: epsilon, from the run's own ledgers."""

from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run


def promises(run: Run) -> list[str]:
    """A sentence for each method under differential privacy that was run to its end; none where no ledger is."""
    return [text for label, done in by_label(run.done).items() if (text := _promise(label, done))]


def _promise(label: str, done: list[PlanRun]) -> str:
    spent = [one.row["privacy"] for one in done if one.row.get("privacy")]
    privacy = done[0].plan.method.privacy
    if not spent or privacy is None:
        return ""
    most, delta = max(each["epsilon"] for each in spent), f"delta = {privacy.delta:g}"
    if privacy.level == "site":
        return f"{label} promises epsilon = {most:.3g} at {delta} to each site, against readers of the final model."
    least = min(each["epsilon_least"] for each in spent)
    whole = f"{most:.3g}" if f"{least:.3g}" == f"{most:.3g}" else f"{least:.3g} to {most:.3g}, by the site,"
    return f"{label} promises epsilon = {whole} at {delta} to each patient, whoever sees whatever the site sends."
