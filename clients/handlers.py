"""A site's handlers by the kind of a request.

They see requests in the clear: :meth:`fedsmall.clients.sealing.Letters.wrap` opens what comes and seals what leaves.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedsmall import __version__
from fedsmall.clients.hospital import fit_or_stay, stayed_model
from fedsmall.clients.kept import OWN_MODEL, keep, keep_visitor, worth_of_visitors
from fedsmall.clients.patients import check_affordable
from fedsmall.clients.runs import keep_scaling
from fedsmall.clients.self_check import check_leaving
from fedsmall.clients.session import Session
from fedsmall.clients.site_request import Answer, SiteRequest, with_names
from fedsmall.clients.telling import may_be_last
from fedsmall.errors import PlanError
from fedsmall.package.record import COMMON
from fedsmall.planning.run_sheet import ROWS, RUN, SCALING
from fedsmall.sealing.terms import BEFORE, HELP, READDRESS
from fedsmall.wire import BALANCE, BLURRED, EXAMPLES, KEEP, MODEL, ROUND, VALIDATE, split

Handler = Callable[[Session, SiteRequest], Answer]
HANDLERS: dict[str, Handler] = {}  # by the kind of a request


def answers(kind: str) -> Callable[[Handler], Handler]:
    """Register a handler of requests of this kind."""

    def register(handler: Handler) -> Handler:
        HANDLERS[kind] = handler
        return handler

    return register


@answers("roll")
def introduce_site(site: Session, order: SiteRequest) -> Answer:
    """The handshake: the site's properties, and the sums that a run begins with."""
    if order.plan.privacy.is_patient_level:
        check_affordable(site.log, *site.account(order), str(order.config.get(RUN, "")))
    properties = site.client(order, scaled=False).get_properties({})
    properties[EXAMPLES] = max(int(properties[EXAMPLES]), order.policy.count_floor)
    rows = order.raw.preparation.model_dump_json()  # how rows become samples, for whoever uses the model later
    words = {**properties, "version": __version__, "scaled": order.raw.scaled, ROWS: rows}
    return {"config": words}, site.telling.at_the_roll(order)


@answers("scaling")
def take_scaling(site: Session, order: SiteRequest) -> Answer:
    """Keep the scaling on which the sites have agreed."""
    agreed = split(order.arrays, SCALING)
    if order.raw.scaled and agreed:  # else keys alone came: sums are told in a tally
        keep_scaling(site.folder_of(order.config), agreed, order.raw.summed_values.shape[1:])
    return {"config": {}}, {}


@answers(BEFORE)
def tell_sums(site: Session, order: SiteRequest) -> Answer:
    """Sums of features and classes. Raises PlanError where the roll call has asked for them."""
    if not order.plan.privacy.secure:
        raise PlanError("sums are told with the answer to the roll, in a run that does not hide them")
    return {"config": {}}, site.telling.before_the_first(order)


@answers("train")
def train(site: Session, order: SiteRequest) -> Answer:
    """Train the model that came or stayed, check what would leave, and send it."""
    site.spend(order)
    client, folder = site.client(order), site.folder_of(order.config)
    leaving, examples, metrics = fit_or_stay(client, order.arrays, with_names(order))
    counted = {EXAMPLES: max(examples, order.policy.count_floor), **metrics}
    sent = dict(zip(client.sent_names, (np.asarray(array) for array in leaving), strict=True))
    if client.trained:
        keep(site.place_of_models(order), order.plan, OWN_MODEL, client.trained)
    sent, kappa = check_leaving(site.log, order, sent, client)
    keep_visitor(folder, order.config, order.plan, sent, site.name)
    return {"metrics": counted | ({BLURRED: kappa} if kappa else {}), "order": client.sent_names}, sent


@answers(BALANCE)
def send_stayed_model(site: Session, order: SiteRequest) -> Answer:
    """Send the model that has stayed here, which an average wants."""
    client = site.client(order, after=True)
    sent, _ = check_leaving(site.log, order, stayed_model(client, order.config), client)
    return {"order": list(sent)}, sent


@answers("evaluate")
def evaluate(site: Session, order: SiteRequest) -> Answer:
    """Evaluate a global model on the held-out patients; at a run's end keep it, and tell of it in sums."""
    samples = 0 if order.raw.held_out is None else len(order.raw.held_out)
    reported: dict[str, Any] = {EXAMPLES: 0}
    client, folder = site.client(order, after=True), site.folder_of(order.config)
    t = int(order.config.get(ROUND, 0))
    if samples >= order.policy.count_floor:  # a share of three patients is as good as their labels
        _, examples, metrics = client.evaluate(list(order.arrays.values()), with_names(order))
        reported = {EXAMPLES: examples, **metrics, **worth_of_visitors(folder, order.config, client)}
    if order.config.get(KEEP) or t == order.plan.rounds:
        keep(site.place_of_models(order), order.plan, COMMON, split(order.arrays, MODEL), reported)
    if may_be_last(order.plan, t):
        return site.telling.at_the_end(order, client, reported, folder)
    return {"metrics": reported}, {}


@answers(VALIDATE)
def validate(site: Session, order: SiteRequest) -> Answer:
    """Evaluate models on patients that they never saw."""
    return site.telling.out_of_fold(order, site.client(order, after=True))


@answers(HELP)
def help_open_sum(site: Session, order: SiteRequest) -> Answer:
    """The streams of one sum's masks."""
    return site.letters.help(order)


@answers(READDRESS)
def readdress(site: Session, order: SiteRequest) -> Answer:
    """A letter sealed anew, for its addressee is silent."""
    return site.letters.readdress(order)
