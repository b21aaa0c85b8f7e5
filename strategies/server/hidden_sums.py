"""What a server is told where the plan lets it see sums of all sites alone: before the first contact, and of models."""

from dataclasses import dataclass
from math import prod
from typing import Any

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.site_sums import sums_to_json
from fedsmall.federation import Task
from fedsmall.run_sheet import CLASSES, SUMS, TELL
from fedsmall.sealing.tallies import (
    JUDGED,
    SUMS_BEFORE,
    TOGETHER,
    UNSEEN,
    Shapes,
    apart,
    judged_shapes,
    judged_together,
    unseen_shapes,
)
from fedsmall.sealing.words import BEFORE
from fedsmall.stopping import TELLING
from fedsmall.strategies.checks import check_metrics
from fedsmall.strategies.records import to_record
from fedsmall.strategies.sealing.form import SealedModels
from fedsmall.strategies.sealing.tallies import Tally, opened, told_or_none
from fedsmall.strategies.server.remote import charges_in
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.strategies.server.validation import AskSites, Told
from fedsmall.travel.moments import Moment
from fedsmall.wire import CONFIG, EXAMPLES, MODEL, VALIDATE, split

PARTS = ("count", "total", "squares")


def sums_before(sealed: SealedModels, grid: Grid, tell: list[str], classes: int) -> dict[str, RecordDict]:
    """The sums of all sites together, as one site's answer to the roll holds them; PlanError where one tells none."""
    config = ConfigRecord({**sealed.words(0), TELL: tell})
    contents = {site: RecordDict({CONFIG: config}) for site in sealed.ways.names}
    tally = opened(sealed, grid, 0, SUMS_BEFORE, f"{MessageType.QUERY}.{BEFORE}", contents)
    if missing := sorted(set(contents) - set(tally.sites)):
        reasons = "; ".join(f"{event['site']}: {event['reason']}" for event in sealed.roster.events)
        raise PlanError(f"Not every site takes part. {', '.join(missing)} told no sums. {reasons[:1000]}")
    sizes = {CLASSES: classes} if CLASSES in tell else {}
    if SUMS in tell:
        sizes[SUMS] = len(tally.values) // len(PARTS) - sum(sizes.values())
    shapes = {f"{name}/{part}": (size,) for name, size in sizes.items() for part in PARTS}
    if sum(size for (size,) in shapes.values()) != len(tally.values) or min(sizes.values()) < 1:
        raise PlanError("The sums that sites tell are not those that they were asked for.")
    arrays = apart(tally.values, shapes)
    return {TOGETHER: RecordDict({name: to_record(split(arrays, name)) for name in sizes})}


def _numbers(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


@dataclass
class HiddenEvaluator:
    """Has all sites judge the common model, and reports what they say together; of no site more is known."""

    sealed: SealedModels
    grid: Grid
    task: Task

    def __call__(self, moment: Moment) -> Evaluation | None:
        """The metrics of the common model over all sites; None where there is none, or too few tell."""
        t = moment.contact.t
        if moment.common is None:
            return None
        content = RecordDict({MODEL: to_record(moment.common), CONFIG: self.sealed.words(t)})
        contents = dict.fromkeys(self.sealed.roster.sites, content)
        tally = told_or_none(self.sealed, self.grid, t, JUDGED, MessageType.EVALUATE, contents)
        if tally is None:
            return None
        told = self._charged(tally, t)
        shapes = judged_shapes(self.task)
        if _numbers(shapes) != len(tally.values):
            self.sealed.note(t, "all sites", "not told", "what sites tell of the model is not of its task")
            return Evaluation(t, None, {}, told=told) if told else None
        found = apart(tally.values, shapes)
        metrics, sums = judged_together(self.task, found)
        if metrics:
            told[TOGETHER] = {name: round(float(found[name])) for name in (TELLING, "samples")}
            told[TOGETHER] |= {"sums": sums_to_json(sums)} if sums else {}
        return Evaluation(t, metrics or None, {}, told=told) if told else None

    def _charged(self, tally: Tally, t: int) -> dict[str, dict[str, Any]]:
        """What each site was charged to its privacy budget, which it tells itself; it says nothing of its patients."""
        told: dict[str, dict[str, Any]] = {}
        for site, said in tally.said.items():
            spent = charges_in(said)
            try:
                check_metrics({**spent, EXAMPLES: 1})
            except ReplyError as error:
                self.sealed.note(t, site, "set aside", f"what it was charged: {error}")
                continue
            told |= {site: {"charged": spent}} if spent else {}
        return told


@dataclass
class HiddenAskSites:
    """Asks the sites for what models are worth on samples that they never saw, and is told of all together."""

    sealed: SealedModels
    ask: AskSites

    def __call__(self, moment: Moment) -> Told:
        """The sums of all sites under one name."""
        t, shapes = moment.contact.t, unseen_shapes(self.ask.plan, self.ask.task)
        contents = {site: self._with_words(t, content) for site, content in self.ask.contents(moment).items()}
        if not contents:
            return {}
        kind = f"{MessageType.EVALUATE}.{VALIDATE}"
        tally = told_or_none(self.sealed, self.ask.grid, t, UNSEEN, kind, contents)
        if tally is None or _numbers(shapes) != len(tally.values):
            return {}
        sums = apart(tally.values, shapes)
        return {TOGETHER: sums} if sums["count"] >= 1 else {}

    def _with_words(self, t: int, content: RecordDict) -> RecordDict:
        config = ConfigRecord({**content.config_records[CONFIG], **self.sealed.words(t)})
        return RecordDict({**content, CONFIG: config})
