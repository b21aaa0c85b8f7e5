"""What each party keeps of a run, in a file of its own, and how they predict together with no more than those files.

The party with the labels keeps trees and leaves and knows of other parties' splits their numbers alone; a party without
keeps its columns and cuts.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.errors import DataError, PlanError
from fedsmall.sim.columns.execute import Done, World
from fedsmall.sim.columns.scenario import Columns
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.vertical.active import ActiveParty
from fedsmall.vertical.conducting import match_parties
from fedsmall.vertical.messages import Post, hold_talk
from fedsmall.vertical.party import Party, PassiveParty
from fedsmall.vertical.tables import read_party_table

PARTIES = "parties"


def file_of(folder: Path, party: str, label: str, seed: int) -> Path:
    """Where a party keeps its part of a forest."""
    return folder / PARTIES / party / f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', label)}-seed{seed}.json"


def keep(world: World, done: Done, folder: Path) -> None:
    """Write each party's part of a forest that was grown apart."""
    for party in world.parties if done.parts else ():
        write_json(file_of(folder, party.name, done.plan.label, done.plan.seed), done.parts[party.name])


def predict(folder: Path, scenario: Columns, label: str, seed: int, files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """What a forest says of the patients that all of ``files`` (one for each party) have, as rows for a CSV.

    Raises PlanError for a run or a party that is not there, DataError for tables that cannot be used.
    """
    if missing := [one for one in scenario.task.columns if one not in files]:
        raise PlanError(f"{missing[0]!r} has columns in this run, and no table was given for it: {missing[0]}=FILE")
    if unknown := [one for one in files if one not in scenario.task.columns]:
        raise PlanError(f"{unknown[0]!r} is no party of this run; there are {', '.join(scenario.task.columns)}")
    parts = {party: _part(folder, party, label, seed) for party in scenario.task.columns}
    parties = {party: _party(party, files[party], scenario, part) for party, part in parts.items()}
    active = parties[scenario.task.active]
    assert isinstance(active, ActiveParty)
    post = Post(parties)
    if not hold_talk(match_parties(list(parties)), post):
        raise DataError("no patient is in all of these tables")
    assert active.matched is not None
    scores = hold_talk(active.scores(np.arange(len(active.matched))), post)
    return active.prediction_rows(scenario.task.reading, scores)


def _part(folder: Path, party: str, label: str, seed: int) -> dict[str, Any]:
    path = file_of(folder, party, label, seed)
    if not path.exists():
        raise PlanError(f"{folder} holds no forest of {label!r} with seed {seed} at {party!r}")
    found: dict[str, Any] = read_json(path)
    return found


def _party(name: str, file: Path, scenario: Columns, part: Mapping[str, Any]) -> Party:
    table = read_party_table(file, scenario.task.reading, part["columns"])
    if name != scenario.task.active:
        return PassiveParty.from_part(name, table, part)
    return ActiveParty.from_part(name, table, part)
