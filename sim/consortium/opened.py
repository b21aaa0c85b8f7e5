"""The folder of a run that a command is given; one over real sites is first made what a simulation's is."""

from pathlib import Path


def opened(folder: Path) -> Path:
    """The folder itself. PlanError where it is of a run over real sites that is not finished."""
    if (folder / "sheet.json").is_file() and not (folder / "run.json").is_file():
        from fedsmall.sim.consortium.records.finished import complete  # brings torch, which the others do without

        complete(folder)
    return folder
