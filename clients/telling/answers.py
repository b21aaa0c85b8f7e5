"""What a station tells of its patients in sums, and never of a few more of them, or a few less, than it told before."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.patients import Answer
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import SiteRequest, named
from fedsmall.clients.telling.run_end import charged, keep_evaluation, tellable
from fedsmall.clients.telling.told_patients import ToldPatients
from fedsmall.clients.telling.told_sums import ToldSums, told_classes
from fedsmall.data.standardise import Sums
from fedsmall.errors import PlanError
from fedsmall.evaluation.site_sums import held_out_sums
from fedsmall.run_sheet import CLASSES, RUN, SUMS, TELL
from fedsmall.sealing.words import is_secure
from fedsmall.wire import EXAMPLES, HELD_OUT, OUT_OF_FOLD, ROUND, VALIDATE, Arrays, join

TOLD_SUMS, TOLD_PATIENTS, TOLD_HELD_OUT = "told_sums.json", "told_patients.json", "told_held_out.json"


@dataclass(frozen=True)
class Telling:
    """Answers in sums, with what the site has told in all its runs in ``home``; what it keeps back is in its log."""

    home: Path
    log: SiteLog

    def at_the_roll(self, order: SiteRequest) -> Arrays:
        """The sums that a roll call asks for, {"sums/count": (features,), "classes/count": (classes,), ...}.

        Raises PlanError where it asks for others, or for classes that the plan does not balance.
        """
        if is_secure(order.plan) and order.config.get(TELL):
            raise PlanError("this run's sums are hidden, and the roll call asks for them in the clear")
        return self.before_the_first(order)

    def before_the_first(self, order: SiteRequest) -> Arrays:
        """The same sums, where the question comes later and they go into a tally of all sites."""
        tellers = {CLASSES: self._classes, SUMS: self._features}  # first who may refuse: what is told is remembered
        asked = order.config.get(TELL, ())
        if not set(asked) <= set(tellers):
            raise PlanError("this site was asked for sums that it does not know")
        told = {name: teller(order) for name, teller in tellers.items() if name in asked}
        return join(**{name: vars(sums) for name, sums in told.items() if sums is not None})

    def _features(self, order: SiteRequest) -> Sums | None:
        """Sums of each feature, from which the sites agree on a scaling; None where nothing is scaled."""
        raw = replace(order.raw, floor=max(order.raw.floor, order.policy.count_floor))
        sums = raw.sums()
        if sums is None:
            return None
        memory = ToldSums(self.home / TOLD_SUMS)
        sums, again = memory.answer(sums, raw.told, raw.told_names, raw.floor)
        if again:
            reason = f"fewer than {raw.floor} new values of {again} features since sums were told: told as before"
            self.log.write("kept", run=str(order.config[RUN]), kind="sums", reason=reason)
        return sums

    def _classes(self, order: SiteRequest) -> Sums:
        """Sums of each class, from which the sites agree on its weight."""
        return told_classes(order.raw, order.plan, order.policy.count_floor, self.home / TOLD_SUMS)

    def out_of_fold(self, order: SiteRequest, client: HospitalClient) -> Answer:
        """Sums over the site's own patients, of models that never saw them: by routes, or as they are kept back."""
        routed, floor = order.plan.method.validation is not None, order.policy.count_floor
        part = order.raw.train if routed else order.raw.kept_back
        if part is None:
            raise PlanError("the plan does not ask sites to judge models on samples that these never saw")
        rows = ToldPatients(self.home / TOLD_PATIENTS).rows(part.x, part.y, floor)
        self._note_untold(order, VALIDATE, len(rows), len(part))
        told = client.validate(list(order.arrays.values()), {**order.config, **named(order)}, rows, floor)
        return {"config": {}}, join(**{OUT_OF_FOLD: told})

    def at_the_end(self, order: SiteRequest, client: HospitalClient, said: dict[str, Any], folder: Path) -> Answer:
        """The answer of a run's end: with sums, and with what the run was charged; what was answered is kept here."""
        told: Arrays = {}
        if not said[EXAMPLES]:  # for the site's own eyes
            client.evaluate(list(order.arrays.values()), named(order))
        elif (held := client.home.held_out) is not None:
            rows = tellable(order.raw, order.plan, order.policy, self.home / TOLD_HELD_OUT)
            if rows is not None:
                self._note_untold(order, "evaluate", len(rows), len(held))
                told = held_out_sums(client.answered[rows], held.y[rows], client.home.task) if len(rows) else {}
        keep_evaluation(folder, int(order.config[ROUND]), client.answered, order.raw, client.home)
        spent = charged(self.log, str(order.config[RUN]), order.plan, order.policy)
        return {"metrics": said | spent}, join(**{HELD_OUT: told})

    def _note_untold(self, order: SiteRequest, kind: str, told: int, there: int) -> None:
        """Write down where sums are of fewer patients than there are."""
        if told < there:
            whom = "the patients of before" if told else "nobody"
            reason = f"sums are told of {whom}: fewer than {order.policy.count_floor} are new"
            self.log.write("kept", run=str(order.config[RUN]), kind=kind, t=order.config[ROUND], reason=reason)
