"""Letters between the parties of split columns: a site announces its key of the run, and takes those of all."""

import json
from collections.abc import Mapping

from pydantic import ValidationError

from fedsmall.clients.columns.notebook import Notebook
from fedsmall.clients.sealing.desk import drawn
from fedsmall.sealing.letters import SEED, Announcement, LetterError, Post, announce, digest
from fedsmall.sealing.roll import roll_digest
from fedsmall.vertical.plan import ColumnPlan

ANNOUNCED = "announced.json"  # in the notebook: the announcements of all


class Correspondence:
    """The letters of one site in one run: bound to the run, its plan, the roll and the keys of all parties."""

    def __init__(self, post: Post, thread: str) -> None:
        self._post, self._thread = post, thread

    def write(self, kind: str, t: int, to: str, content: bytes) -> bytes:
        """A letter."""
        return self._post.write(kind, t, to, self._thread, content)

    def open(self, kind: str, t: int, sender: str, letter: bytes) -> bytes:
        """What a letter holds; LetterError where it is not the one that it should be."""
        return self._post.open(kind, t, sender, self._thread, letter)


class Introductions:
    """How one site comes to its letters: ``run`` is the run's name and id, ``identity`` the secret of the site's."""

    def __init__(self, notebook: Notebook, site: str, run: str, identity: bytes) -> None:
        self.notebook, self.site, self.run, self._identity = notebook, site, run, identity

    def announce(self) -> Announcement:
        """What the site announces in this run: the same however often it is asked."""
        key, nonce = self.notebook.draw("sealing", lambda: drawn(SEED)), self.notebook.draw("nonce", lambda: drawn(32))
        return announce(self.site, self.run, self._identity, bytes.fromhex(key), nonce)

    def take(self, told: object, roll: Mapping[str, str], plan: ColumnPlan) -> None:
        """Check what all parties announce against the ``roll``, and keep it.

        Raises LetterError that names the first party which is not who it should be.
        """
        announced = _read(told)
        if sorted(announced) != sorted(plan.parties):
            raise LetterError("what was announced is not of the parties of this run")
        for site, each in sorted(announced.items()):
            if each.site != site:
                raise LetterError(f"what {each.site} announces was passed on as {site}'s")
            each.check(self.run, roll)
        if announced[self.site] != self.announce():
            raise LetterError("what this site announced was changed on its way")
        kept = {site: each.model_dump() for site, each in sorted(announced.items())}
        self.notebook.keep(ANNOUNCED, json.dumps([roll_digest(roll), kept]).encode())

    def letters(self, plan: ColumnPlan) -> Correspondence:
        """The site's letters. LetterError where it was never told the keys of all."""
        if (kept := self.notebook.kept(ANNOUNCED)) is None:
            raise LetterError("this site was never told the keys of this run")
        roll, told = json.loads(kept)
        announced = _read(told)
        keys = [[site, each.sealing, each.commitment] for site, each in sorted(announced.items())]
        key = bytes.fromhex(self.notebook.draw("sealing", lambda: drawn(SEED)))
        post = Post(self.site, self.run, self._identity, key, announced, digest("plan", plan.model_dump_json()))
        return Correspondence(post, digest("columns", self.run, roll, keys))


def _read(told: object) -> dict[str, Announcement]:
    try:
        assert isinstance(told, Mapping)
        return {str(site): Announcement.model_validate(each) for site, each in told.items()}
    except (ValidationError, AssertionError):
        raise LetterError("the keys of this run were not told in a form that this version knows") from None
