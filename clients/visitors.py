"""The last models that have trained at a real site, on its own disk: they outlive a kill, and never leave again.

A file for each visit, named by its round. A visit that is asked for again (its answer was lost, or the coordinator went
back to an earlier contact) writes the same file again, and forgets the visits after it, which will come anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load, save

from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.memory import put
from fedsmall.clients.upkeep.at_rest import opened, seal
from fedsmall.codec.parcels import pack, unpack
from fedsmall.evaluation.outputs import members_of
from fedsmall.plan import Plan
from fedsmall.travel.moments import together
from fedsmall.wire import KEPT, LEAVES, MODEL, ROUND, Arrays, join, split

FOLDER = "visitors"  # in the run's folder at the site


class KeptVisitors:
    """What one run has left at this site, in ``folder``; the last ``count`` visitors of it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def keep(self, t: int, model: Arrays) -> None:
        """Keep a model as it leaves after round ``t``, and let go of those that are too old."""
        put(self._path(t), seal(save({name: array.copy(order="C") for name, array in model.items()})))
        for later in [known for known in self.rounds() if known > t]:
            self._path(later).unlink()
        for old in self.rounds()[: -self.count]:
            self._path(old).unlink()

    def rounds(self) -> list[int]:
        """The rounds after which the kept visitors left, in order."""
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())

    def members(self) -> Arrays:
        """The visitors as one result with a leading axis of members, oldest first; empty where there is none."""
        kept = [load(opened(self._path(t).read_bytes())) for t in self.rounds()]
        return together(kept) if kept else {}

    def _path(self, t: int) -> Path:
        return self.folder / f"{t:09d}.safetensors"


def keep_visitor(run: Path, config: Mapping[str, Any], plan: Plan, sent: Arrays, site: str) -> None:
    """Keep what an order has just trained at ``site``, as those read it who get it, in the folder of its ``run``; where
    the plan asks for that.
    """
    if plan.method.keep_last and config.get(LEAVES, True):
        t, model = int(config[ROUND]), split(sent, MODEL)
        read = unpack(plan, pack(plan, join(**{MODEL: model}), site, t), model)
        KeptVisitors(run / FOLDER, plan.method.keep_last).keep(t, split(read, MODEL))


def worth_of_visitors(run: Path, config: Mapping[str, Any], client: HospitalClient) -> dict[str, float]:
    """What a run's last visitors are worth together on the samples held out here: told once, at the end of the run."""
    plan, held_out = client.plan, client.home.held_out
    if not plan.method.keep_last or int(config.get(ROUND, 0)) < plan.rounds or held_out is None:
        return {}
    kept = KeptVisitors(run / FOLDER, plan.method.keep_last).members()
    judged = client.judged(members_of(kept, True), held_out) if kept else {}
    return {f"{KEPT}{name}": value for name, value in judged.items()}
