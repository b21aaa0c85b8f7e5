"""The wire's words of sealed runs, beside those of :mod:`fedsmall.wire`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fedsmall.errors import PlanError
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.sealing.envelopes import Announcement, EnvelopeError, Hex32

# Keys of a message's config.
ROLL = "roll"  # names and identities of the consortium's sites, as JSON
ANNOUNCED = "announced"  # in an answer to the handshake: the site's announcement; in the second question those of all
NONCE = "nonce"  # in the answer to that: what the site had drawn
SEALED = "sealed"  # what an order of a sealed run says beside the plan (Order), as JSON
GROUP = "group"  # whose sum is to be opened
OF = "of"  # the tally that is to be opened, where it is not an average
WRITTEN = "written"  # the round in which an envelope was written that is to be written anew
REFUSED = "refused"  # in a reply's metrics: 1 where the site passes on what came to it, for it may not send its own
NOT_TAKEN = "not-taken"  # 1 where the site did not use the envelope that came to it

# Names of records, beside the model's.
SEEDS = "seeds"  # envelopes to decryptors, by the decryptor's name
SHARES = "shares"  # what a decryptor tells of a sum, (bytes,) uint8
TALLY = "tally"  # what a site adds to a sum of something else than models

# Names of the arrays in a record.
ENVELOPE = "letter"  # (bytes,) uint8
MASKED = "masked"  # (numbers,) uint64

# Actions of a query.
HELP, READDRESS, BEFORE = "help", "readdress", "before"  # the last: to tell the sums of before the first round
PAIRS = "pairs"  # to take the envelopes with the keys of pairs; in the answer to the second question, envelopes by name

# Kinds of envelopes.
MODEL_ENVELOPE, MOMENTS, KEY, PAIR = "traveller", "moments", "seed", "pair"


class Average(Frozen):
    """The last average, as a server says it: its round, the transcript before it, and the digests of all it made."""

    t: Annotated[int, Field(ge=1)]
    before: Hex32
    global_models: tuple[Hex32, ...] = Field(min_length=1)


class From(Frozen):
    """Whose envelope it is: ``site`` wrote it when it had trained for round ``t``."""

    site: Annotated[str, Field(max_length=100)]
    t: Annotated[int, Field(ge=1)]


class Order(Frozen):
    """What an order of a sealed run says beside its plan."""

    average: Average | None = None
    nonces: dict[str, Hex32]
    by: From | None = None  # who wrote the envelope with the model
    beside: From | None = None  # who wrote the envelope with the moments


class Opened(Frozen):
    """All announcements: what a site answers to the second question, and a server keeps for the run."""

    announced: dict[str, Announcement]


def remove_seal(plan: Plan) -> Plan:
    """The plan as all sites know it before they have drawn its routes."""
    return plan.model_copy(update={"route_seed": None})


def check_drawn(plan: Plan, seed: int) -> None:
    """Raise PlanError unless the plan's routes are drawn from the seed that its sites have made."""
    if plan.route_seed != seed:
        raise PlanError("the order's routes are not drawn from what all sites committed themselves to")


def order_in(config: Mapping[str, Any]) -> Order:
    """What an order says beside its plan. Raises EnvelopeError where that cannot be read."""
    try:
        return Order.model_validate_json(str(config.get(SEALED, "")))
    except ValidationError:
        raise EnvelopeError("the order does not say what an order of a sealed run says") from None
