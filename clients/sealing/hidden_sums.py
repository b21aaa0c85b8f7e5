"""What a site tells in sums where nobody is to see its own: of its samples, and of what models are worth here."""

from typing import Any

import numpy as np

from fedsmall.clients.patients import Answer
from fedsmall.clients.sealing.letters import Letters
from fedsmall.clients.site_request import SiteRequest
from fedsmall.clients.telling.answers import Telling
from fedsmall.errors import PlanError
from fedsmall.sealing.tallies import JUDGED, SUMS_BEFORE, UNSEEN, judged, judged_shapes, shapes_in, unseen_shapes
from fedsmall.sealing.words import is_secure
from fedsmall.stopping import TELLING
from fedsmall.wire import CHARGED, HELD_OUT, KEEP, OUT_OF_FOLD, Arrays, split


def before_the_first(letters: Letters, telling: Telling, order: SiteRequest) -> Answer:
    """Sums of features and classes. Raises PlanError where the roll call has asked for them."""
    if not is_secure(order.plan):
        raise PlanError("sums are told with the answer to the roll, in a run that does not hide them")
    told = telling.before_the_first(order)
    return {"config": {}}, letters.tallied(order, SUMS_BEFORE, told, shapes_in(told))


def evaluation(letters: Letters, order: SiteRequest, header: dict[str, Any], told: Arrays) -> Answer:
    """What a common model is worth here, from an answer in the clear; what the budget was charged stays beside it."""
    if not is_secure(order.plan):
        return header, told
    said, task = header["metrics"], order.raw.task
    metrics = {"metrics": {name: value for name, value in said.items() if name.startswith(CHARGED)}}
    if order.config.get(KEEP):
        return metrics, {}
    tally = judged(task, said, split(told, HELD_OUT))
    return metrics, letters.tallied(order, JUDGED, tally, judged_shapes(task))


def unseen(letters: Letters, order: SiteRequest, header: dict[str, Any], told: Arrays) -> Answer:
    """What models are worth on samples that they never saw, from an answer in the clear."""
    if not is_secure(order.plan):
        return header, told
    sums = split(told, OUT_OF_FOLD)
    tally = {TELLING: np.array(float(bool(sums))), **sums}
    return header, letters.tallied(order, UNSEEN, tally, unseen_shapes(order.plan, order.raw.task))
