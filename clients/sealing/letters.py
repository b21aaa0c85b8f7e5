"""What a station does with letters: announce keys, take those of all, open and seal orders, help, and readdress."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsmall.clients.hospital import packed, unpacked
from fedsmall.clients.memory import RUNS, memories_of
from fedsmall.clients.patients import Answer
from fedsmall.clients.policy import Policy
from fedsmall.clients.sealing.desk import Desk, OpenDesk, check_identities, destroy_ended, identity_of
from fedsmall.clients.sealing.errand import Errand
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import SiteRequest
from fedsmall.errors import PlanError
from fedsmall.files import one_line
from fedsmall.run_sheet import RUN, RUN_ID, RUN_NAME, SITES
from fedsmall.sealing.letters import LetterError, name_of
from fedsmall.sealing.tallies import JUDGED, Shapes, flat
from fedsmall.sealing.words import (
    ANNOUNCED,
    GROUP,
    NONCE,
    NOT_TAKEN,
    OF,
    ROLL,
    SEEDS,
    WRITTEN,
    Opened,
    needs_letters,
    order_in,
)
from fedsmall.wire import COMMON, MODEL, ROUND, Arrays, split


@dataclass
class Letters:
    """The letters of all runs of one site, which writes in ``home``; ``folder_of`` is where it keeps a run's.

    ``identity`` is the file of its identity.
    """

    name: str
    home: Path
    log: SiteLog
    folder_of: Callable[[Mapping[str, Any]], Path]
    identity: Path
    _at_work: OpenDesk | None = None

    def announced(self, order: SiteRequest) -> dict[str, str]:
        """What the answer to a roll call says more, once the consortium's identities are as this site knows them."""
        sealed = needs_letters(order.plan)
        desk = self.desk(order.config) if sealed else None
        if sealed:
            self.known_roll(order.config, order.policy)
        destroy_ended(self.home / RUNS, self.folder_of(order.config))
        return {ANNOUNCED: desk.announce().model_dump_json()} if desk else {}

    def known_roll(self, config: Mapping[str, Any], policy: Policy) -> dict[str, str]:
        """The consortium's identities, as a message says them and this site knows them.

        Raises LetterError where they are others than it knows.
        """
        roll = self._roll(config)
        mine = name_of(identity_of(self.identity))
        if roll.get(self.name) != mine:
            raise LetterError(
                "the consortium's roll has another identity for this site; send the coordinator site.key.pub"
            )
        if fresh := [name for name in check_identities(self.home, roll, policy.roll) if name != self.name]:
            pinned = "as the policy pins it" if policy.roll else "compare `fedsmall site roll` with theirs"
            self.log.write("met", run=str(config[RUN]), kind="roll", reason=f"{', '.join(fresh)}: {pinned}")
        return roll

    def taken(self, order: SiteRequest) -> dict[str, str]:
        """What is answered to the announcements of all sites: what this one had drawn."""
        if not needs_letters(order.plan):
            return {}
        try:
            told = Opened.model_validate_json(str(order.config.get(ANNOUNCED, "")))
        except ValidationError:
            raise LetterError("the keys of this run were not told in a form that this version knows") from None
        sites = [str(site) for site in order.config[SITES]]
        return {NONCE: self.desk(order.config).take(told.announced, self.known_roll(order.config, order.policy), sites)}

    def errand(self, order: SiteRequest) -> Errand | None:
        """What an order asks for in a run with letters; None in others."""
        return self._errand(order) if needs_letters(order.plan) else None

    def opened(self, order: SiteRequest, errand: Errand | None) -> SiteRequest:
        """The order as its trainer takes it; a letter that may not be used is named in the site's log."""
        _, kept = memories_of(self.folder_of(order.config), int(order.config[ROUND]))
        came = unpacked(order.plan, order.raw.task, order.arrays, order.config, kept)
        if errand is None:
            return order._replace(arrays=came)
        arrays, common, why = errand.opened(came)
        if why:
            self.log.write("not used", run=str(order.config[RUN]), kind="train", t=order.config[ROUND], reason=why)
        config = {**order.config, COMMON: common, **({NOT_TAKEN: 1} if why else {})}
        return order._replace(arrays=arrays, config=config)

    def closed(self, order: SiteRequest, errand: Errand | None, header: dict[str, Any], sent: Arrays) -> Answer:
        """The answer as it may leave."""
        if errand is None:
            leaving = packed(order.plan, self.name, sent, {ROUND: order.config[ROUND]}, order.arrays)
            return {**header, "order": list(leaving)}, leaving
        if NOT_TAKEN in order.config:
            header = {**header, "metrics": {**header["metrics"], NOT_TAKEN: 1}}
        return errand.closed(order.arrays, header, sent)

    def help(self, order: SiteRequest) -> Answer:
        """The answer to a server that asks for the streams of one sum."""
        letters, of = split(order.arrays, SEEDS), one_line(order.config.get(OF, ""), 20)
        return self._errand(order, of).helped(int(order.config.get(GROUP, 0)), letters, order.policy)

    def tallied(self, order: SiteRequest, of: str, told: Arrays, shapes: Shapes) -> Arrays:
        """Sums of this site as they may leave, where the plan lets the server see those of all sites alone.

        LetterError where a server asks what another model is worth than the common one of this round.
        """
        errand = self._errand(order, of)
        if of == JUDGED:
            errand.check_judged(split(order.arrays, MODEL))
        return errand.tallied(flat(told, shapes))

    def readdress(self, order: SiteRequest) -> Answer:
        """The answer to a server that cannot deliver a letter, for its addressee is silent."""
        return self._errand(order).readdressed(int(order.config[WRITTEN]), order.policy, self.log)

    def end(self, order: SiteRequest) -> None:
        """Note that a run is over: its keys are deleted when another begins."""
        if needs_letters(order.plan):
            self.desk(order.config).end()

    def _errand(self, order: SiteRequest, of: str | None = None) -> Errand:
        if not needs_letters(order.plan):
            raise PlanError("the plan has no letters to open")
        desk, told = self.desk(order.config), order_in(order.config)
        if self._at_work is None or not self._at_work.is_for(desk, order.plan, told):
            self._at_work = desk.opened(order.plan, told)
        return Errand(self._at_work, told, order.raw.task, order.config, of)

    def desk(self, config: Mapping[str, Any]) -> Desk:
        """This site's letters of the run that a message is of."""
        if not RUN_NAME.fullmatch(str(config[RUN])):  # two runs could be told apart by where the name ends alone
            raise LetterError("a run's name has letters, digits, dots, hyphens and underscores")
        run = f"{config[RUN]} {one_line(config.get(RUN_ID, ''), 64)}"
        return Desk(self.folder_of(config), self.name, run, identity_of(self.identity))

    @staticmethod
    def _roll(config: Mapping[str, Any]) -> dict[str, str]:
        try:
            told = json.loads(str(config[ROLL]))
            return {str(site)[:100]: str(identity)[:64] for site, identity in told.items()}
        except (KeyError, ValueError, AttributeError):
            raise LetterError("the message does not say who belongs to the consortium") from None
