"""What a site remembers of a run over split columns: what it was asked, each question once, on its own disk.

A question has a number, and its answer is written down before it leaves. Asked again, the site says the same bytes;
asked otherwise under a number that is past, it refuses: who resumes a run again and again learns nothing twice. A
station that was killed takes up the last state of its party and asks it again what was asked since
(:meth:`Notebook.since`).
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from fedsmall.clients.memory import put
from fedsmall.clients.upkeep.at_rest import opened, seal
from fedsmall.errors import PlanError

FOLDER = "columns"  # in the run's folder at the site
QUESTION, STATE, ANSWER = "question", "state", "answer"
DIGEST = 32


class Notebook:
    """The notebook of one run, in the run's ``folder`` at the site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def check_plan(self, plan: str) -> None:
        """Raise PlanError where the run was begun with another plan."""
        if (before := self._read("plan")) is None:
            self._write("plan", plan.encode())
        elif before != plan.encode():
            raise PlanError("the plan is another than that with which this run was begun here")

    def plan(self) -> str | None:
        """The plan with which the run was begun; None where none was."""
        return None if (kept := self._read("plan")) is None else kept.decode()

    def draw(self, name: str, make: Callable[[], str]) -> str:
        """What was drawn by chance under a name; it is drawn once in a run."""
        drawn = self._read("drawn.json")
        kept = {} if drawn is None else json.loads(drawn)
        if name not in kept:
            kept[name] = make()
            self._write("drawn.json", json.dumps(kept).encode())
        return str(kept[name])

    def again(self, number: int, question: bytes) -> bytes | None:
        """What was answered to a question before; None where it is a new one. PlanError where it is neither."""
        last = self._last()
        if number > last:
            if self.is_over:
                raise PlanError("this run is over here; what was kept for it is gone")
            return None
        kept = self._read(f"{number:09d}.{ANSWER}") if number == last else None
        if kept is None or kept[:DIGEST] != hashlib.sha256(question).digest():
            raise PlanError(
                "this site has answered another question in this place of the run, and answers no second one"
            )
        return kept[DIGEST:]

    def note(self, number: int, question: bytes, answer: bytes, state: bytes | None) -> None:
        """Write down a question and its answer, and what was before it as far as ``state`` makes that needless.

        The answer comes last: until it is there, nothing was asked.
        """
        if state is None:
            self._write(f"{number:09d}.{QUESTION}", question)
        else:
            self._write(f"{number:09d}.{STATE}", state)
        self._write(f"{number:09d}.{ANSWER}", hashlib.sha256(question).digest() + answer)
        for path in self._numbered(ANSWER, *((QUESTION, STATE) if state is not None else ())):
            if _number(path) < number:
                path.unlink()

    def since(self) -> tuple[bytes | None, list[bytes]]:
        """The last state, None where there was none yet, and what was asked since, in order."""
        last = self._last()
        states = [path for path in self._numbered(STATE) if _number(path) <= last]
        begun = _number(states[-1]) if states else -1
        asked = [path for path in self._numbered(QUESTION) if begun < _number(path) <= last]
        return self._read(states[-1].name) if states else None, [opened(path.read_bytes()) for path in asked]

    @property
    def is_over(self) -> bool:
        """Whether the run has ended here."""
        return (self.folder / "over").exists()

    def end(self) -> None:
        """The run is over: its last answer stays, for who has not heard it, and nothing else does."""
        put(self.folder / "over", b"")
        for path in self.folder.glob("*"):
            if path.name not in ("over", "plan", f"{self._last():09d}.{ANSWER}"):
                path.unlink()

    def keep(self, name: str, content: bytes) -> None:
        """Keep something else until the run's end."""
        self._write(name, content)

    def kept(self, name: str) -> bytes | None:
        """What was kept by that name; None where nothing was."""
        return self._read(name)

    def _last(self) -> int:
        return max((_number(path) for path in self._numbered(ANSWER)), default=-1)

    def _numbered(self, *kinds: str) -> list[Path]:
        return sorted(path for kind in kinds for path in self.folder.glob(f"*.{kind}"))

    def _read(self, name: str) -> bytes | None:
        path = self.folder / name
        return opened(path.read_bytes()) if path.exists() else None

    def _write(self, name: str, content: bytes) -> None:
        put(self.folder / name, seal(content))


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])
