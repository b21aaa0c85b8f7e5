"""Whose records could be read by whom in a simulation, as rows of a table and as lines on a terminal."""

from typing import Any, NamedTuple

from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run

HEADS = ("the server", "any next site", "one site (median, most)", "any site, from averages")
BLIND = (
    "its model has no layer that shows whole records to this attack, or trains on changed images, which says "
    "nothing of others"
)


class Read(NamedTuple):
    """One method: how many ``patients`` there were, and in words what each of :data:`HEADS` could read of them."""

    label: str
    patients: int
    cells: tuple[str, ...]
    read: dict[str, Any]

    @property
    def anybody(self) -> bool:
        """Whether some party could read somebody."""
        return any(self.read.get(party, 0) > 0 for party in ("server", "neighbours", "averages"))


def readers(run: Run) -> list[Read]:
    """The methods of a run on whose first seed it was counted who could be read; not where no model leaves a site."""
    rows = []
    for label, group in by_label(run.done).items():
        found = next((one.row["read"] for one in group if one.row.get("read")), None)
        if found is not None and not found.get("blind"):
            rows.append(Read(label, found["patients"], _cells(found), found))
    return rows


def blind(run: Run) -> list[str]:
    """The methods at whose models this attack has nothing to look."""
    return [label for label, group in by_label(run.done).items() if any(_is_blind(one) for one in group)]


def read_sentences(run: Run) -> list[str]:
    """What a terminal says of all this: a line for each method, and what to write where somebody could be read."""
    rows = readers(run)
    lines = [f"{row.label}: {_sentence(row)}" for row in rows]
    if lines:
        seed = run.plans[0].seed
        lines.insert(0, f"Patients whose whole record could be read from what was sent (within 1%, seed {seed}):")
    if any(row.anybody for row in rows):
        lines.append("privacy = {blur = 1} under a method hides records; docs/security.md says what it does not hide.")
    if names := blind(run):
        lines.append(f"{', '.join(names)}: {BLIND}.")
    return lines


def looked_at(rows: list[Read]) -> str:
    """At how many contacts the counts were taken, where those are not all."""
    few = [f"{row.read['looked']} of {row.read['contacts']} ({row.label})" for row in rows if _is_part(row)]
    return f"Contacts looked at: {', '.join(few)}; the rest was not, so more may be read." if few else ""


def _sentence(row: Read) -> str:
    """As "the server 151 of 160; any next site 140; one site 23 (median), 34 (most); any site, from averages 0"."""
    found = row.read
    told = [f"the server {found['server']} of {row.patients}"]
    if "neighbours" in found:
        median, most = found["curious"]
        told += [f"any next site {found['neighbours']}", f"one site {median:g} (median), {most} (most)"]
    part = f"; {found['looked']} of {found['contacts']} contacts looked at" if _is_part(row) else ""
    return "; ".join([*told, f"any site, from averages {found['averages']}{part}."])


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    median, most = found.get("curious", (None, None))
    one = "-" if median is None else f"{median:g}, {most}"
    return str(found["server"]), str(found.get("neighbours", "-")), one, str(found["averages"])


def _is_part(row: Read) -> bool:
    return bool(row.read["looked"] < row.read["contacts"])


def _is_blind(one: PlanRun) -> bool:
    return bool(one.row.get("read", {}).get("blind"))
