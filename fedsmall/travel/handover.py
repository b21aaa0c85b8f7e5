"""What a region's server and the program that speaks for the region above hand each other: files of a run's folder.

Each file is one frame (:mod:`fedsmall.frames`), written whole, so that either may be killed and started again: "met" is
what the region's sites have said together, "agreed" what the sites of all regions agreed on; of every round in which
regions meet the region's own global model goes "up" and the united one comes "down".
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from fedsmall.audit_log import digest_of
from fedsmall.errors import PlanError
from fedsmall.files import write
from fedsmall.frames import FrameError, from_frame, to_frame
from fedsmall.wire import Arrays

FOLDER = "above"  # in the folder of a region's run
ORDER = "order"  # of the arrays: a block of them has its own


class Handed(NamedTuple):
    """One frame: words and arrays."""

    words: dict[str, Any]
    arrays: Arrays


class Handover:
    """The files of one run of a region, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def up(self, t: int) -> Path:
        """Where the region's global model after round ``t`` is, with the weight behind it."""
        return self.folder / f"{t:09d}.up"

    def down(self, t: int) -> Path:
        """Where the united model after round ``t`` is."""
        return self.folder / f"{t:09d}.down"

    @property
    def met(self) -> Path:
        """Where the region's sites have said what they are, and their sums."""
        return self.folder / "met"

    @property
    def agreed(self) -> Path:
        """Where scaling and class weights of all regions are."""
        return self.folder / "agreed"

    def last_down(self) -> int:
        """The last round of which a united model has come; 0 for none."""
        return max((int(path.stem) for path in self.folder.glob("*.down")), default=0)


def put(path: Path, words: dict[str, Any], arrays: Arrays) -> None:
    """Hand something over; it is on the disk before anybody sees it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(path, to_frame({**words, ORDER: list(arrays)}, arrays), flush=True, mode=0o600)


def put_once(path: Path, words: dict[str, Any], arrays: Arrays, what: str) -> None:
    """As :func:`put`, of what never changes. Raises PlanError where something else was handed over before."""
    before = read(path)
    if before is None:
        return put(path, words, arrays)
    if before.words != json.loads(json.dumps(words)) or digest_of(before.arrays) != digest_of(arrays):
        raise PlanError(f"{what} came already, and was another")


def read(path: Path) -> Handed | None:
    """What was handed over, None where nothing was yet. Raises PlanError where the file is damaged."""
    if not path.exists():
        return None
    try:
        words, arrays = from_frame(path.read_bytes())
        return Handed(words, {name: arrays[name] for name in words.pop(ORDER)})
    except (FrameError, LookupError) as error:
        raise PlanError(f"{path.name} in {FOLDER}/ of the region's run is damaged ({error}); delete it") from None
