"""A run over real sites: what the coordinator fixes beside the plan, and the words that an order then holds."""

import json
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated, Self

from pydantic import Field, model_validator

from fedsmall.ends import Command
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.travel.journey import plan_above

# Keys of an order's config, beside those of fedsmall.wire.
RUN = "run"  # the run's name, as logs have it
RUN_ID = "run-id"  # with the name: what a site remembers is kept under both, and outlives Flower's own run
SITES = "sites"  # the names of the sites that the run is for

# Words of the questions before the first communication round.
TELL = "tell"  # in a handshake: of what a site is to tell sums with its answer, of SUMS and CLASSES
SUMS = "sums"  # sums of each feature, for the scaling
CLASSES = "classes"  # sums of each class, for weights
SCALING = "scaling"  # the second question, which brings what all agreed on
ROWS = "rows"  # in an answer to the handshake: how rows become samples, as JSON

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def key_of(run: str, ident: str, plan: str, sites: Iterable[str]) -> str:
    """The digest of all that a site is asked for by a run, which hospitals approve and coordinators sign."""
    return blake2b(json.dumps([run, ident, plan, sorted(sites)]).encode(), digest_size=16).hexdigest()


def text_of(plan: Plan) -> str:
    """A plan's text without what its sites agree on in the run itself: class weights, and the seed of routes."""
    recipe = plan.recipe.model_copy(update={"class_weights": None})
    return plan.model_copy(update={"recipe": recipe, "route_seed": None}).model_dump_json()


class Sheet(Frozen):
    """One run over real sites: who takes part, and how long anybody waits.

    ``sites`` must all be there at the start. ``round_deadline_s`` is how long a communication round waits for a site,
    ``quorum`` how many must answer (None: more than half), else the run stops. ``id`` tells runs of one name apart, and
    ``started`` is a coordinator's signed command, where the consortium has coordinators.
    """

    run: str
    id: str = ""
    about: str = ""
    sites: tuple[str, ...] = Field(min_length=1)
    round_deadline_s: Annotated[float, Field(gt=0)] = 600.0
    quorum: Annotated[int, Field(ge=1)] | None = None
    start_deadline_s: Annotated[float, Field(gt=0)] = 300.0
    started: Command | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not RUN_NAME.fullmatch(self.run):
            raise ValueError("a run's name has letters, digits, dots, hyphens and underscores")
        if self.quorum is not None and self.quorum > len(self.sites):
            raise ValueError(f"the quorum is {self.quorum}, but the run is for {len(self.sites)} sites")
        return self

    @property
    def everyone(self) -> tuple[str, ...]:
        """The sites that an order names as those of the run."""
        return self.sites

    @property
    def least_answers(self) -> int:
        """How many sites must answer at a communication round."""
        return self.quorum if self.quorum is not None else len(self.sites) // 2 + 1


class RunSheet(Sheet):
    """A run of models that travel, of one ``plan``.

    ``roll`` holds the sites' identities by name, where they encrypt. ``region`` is the one that is run here,
    of several servers; without it the ``sites`` are the regions, and this is the server above them.
    """

    plan: Plan
    roll: dict[str, str] = Field(default_factory=dict)
    region: str = ""

    @property
    def is_above(self) -> bool:
        """Whether the regions of the plan are the run's sites."""
        return self.plan.method.region_count > 1 and not self.region

    @property
    def led(self) -> Plan:
        """The plan by whose communication rounds the run goes; orders hold the whole one."""
        return plan_above(self.plan) if self.is_above else self.plan

    @property
    def everyone(self) -> tuple[str, ...]:
        """The sites of all regions, in one of them: a site's place among them decides what it draws."""
        return self.hospitals if self.region else self.sites

    @property
    def hospitals(self) -> tuple[str, ...]:
        """The sites that train, of all regions where there are several."""
        regions = self.plan.method.regions
        return self.sites if regions is None or regions.sites is None else regions.names
