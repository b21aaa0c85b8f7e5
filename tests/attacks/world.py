"""A run of real sites in letters, walked honestly, with all that they were asked; then the server turns on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clients.patients import Answer
from clients.station import Station
from fedsmall.ends import ENDS
from fedsmall.plan import Plan
from fedsmall.run_sheet import RUN, RUN_ID
from fedsmall.sealing.words import SEALED, Order
from fedsmall.wire import PLAN, ROUND, Arrays
from strategies.server.run_loop import Outcome
from tests.sim.sealing.federation import BOTH, Change, Federation, drawn, plan_of, run

MOMENTUM = {"recipe": {"lr": 0.1, "batch": 4, "momentum": 0.5}}
CHAIN = {"permute_every": 1, "aggregate_every": 3}
AVERAGE = {"aggregate_every": 1}
NAMES = tuple(f"site-{k:03d}" for k in range(5))


class Heard(NamedTuple):
    """What a site was asked, and what it answered."""

    site: str
    kind: str
    config: dict[str, Any]
    arrays: Arrays
    header: dict[str, Any]
    sent: Arrays

    @property
    def told(self) -> Order:
        return Order.model_validate_json(self.config[SEALED])

    @property
    def plan(self) -> Plan:
        return Plan.model_validate_json(self.config[PLAN])

    def but(self, **config: Any) -> "Heard":
        """The same question with other words."""
        return self._replace(config={**self.config, **config})

    def but_told(self, **words: Any) -> "Heard":
        """The same question that says otherwise what an order of a sealed run says."""
        return self.but(**{SEALED: json.dumps(json.loads(self.config[SEALED]) | words)})

    def but_plan(self, **fields: Any) -> "Heard":
        """The same question under a plan that was written over."""
        return self.but(**{PLAN: self.plan.model_copy(update=fields).model_dump_json()})

    def but_run(self, name: str, ident: str) -> "Heard":
        """The same question, said to be of another run."""
        return self.but(**{RUN: name, RUN_ID: ident})


def watch(patch: pytest.MonkeyPatch, heard: list[Heard]) -> None:
    """Write down whatever any station is asked from now on, and its answer."""
    answer = Station.answer

    def watched(self: Station, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        header, sent = answer(self, kind, config, arrays)
        heard.append(Heard(self.name, kind, dict(config), dict(arrays), header, sent))
        return header, sent

    patch.setattr(Station, "answer", watched)


@dataclass
class World:
    """Sites that live on after their run, what was ``heard`` of it, and its ``plan``, with the routes that were drawn."""

    federation: Federation
    outcome: Outcome
    plan: Plan
    heard: list[Heard] = field(default_factory=list)

    @classmethod
    def walked(
        cls,
        folder: Path,
        plan: Plan,
        sites: int = len(NAMES),
        *,
        policy: str = "",
        change: Change | None = None,
        patch: pytest.MonkeyPatch | None = None,
    ) -> "World":
        """A world whose run is over; what is patched for it is undone before anybody else runs."""
        heard: list[Heard] = []
        with (patch or pytest.MonkeyPatch()).context() as inner:
            watch(inner, heard)
            federation = Federation(folder, sites, inner, policy, change)
            outcome = run(federation, plan)
        return cls(federation, outcome, drawn(federation), heard)

    def once(self, kind: str, site: str | None = None, t: int | None = None) -> Heard:
        """The first question of a kind, to a site, of a round."""
        return next(
            h for h in self.heard if h.kind == kind and site in (None, h.site) and t in (None, h.config.get(ROUND))
        )

    def ask(self, question: Heard, to: str | None = None) -> Answer:
        """What a site answers to a question now; one that was put to another says nothing of where that one's log stood."""
        config = {key: value for key, value in question.config.items() if to is None or key != ENDS}
        return self.federation.there[to or question.site].answer(question.kind, config, question.arrays)

    def refuses(self, question: Heard, line: str, to: str | None = None) -> None:
        """Ask, and see that the answer is one line, and nothing else."""
        header, sent = self.ask(question, to)
        assert header == {"error": f"{to or question.site}: {line}"}
        assert sent == {}
        assert self.log(to or question.site)[-1]["event"] == "refused"

    def does_not_use(self, order: Heard, why: str, to: str | None = None) -> None:
        """Ask, and see that the site goes on with the last common model, says why in its log, and tells no model."""
        header, sent = self.ask(order, to)
        assert header["metrics"]["not-taken"] == 1
        assert list(sent) == ["arrays/letter"]
        assert self.log(to or order.site)[-2] | {"event": "not used", "reason": why} == self.log(to or order.site)[-2]

    def log(self, site: str) -> list[dict[str, Any]]:
        """The lines of a site's own log."""
        return self.federation.there[site].log.entries()


def chain(**more: Any) -> Plan:
    """A chain of five sites, whose moments travel too; averages after rounds 3 and 6."""
    return plan_of("FedDC", len(NAMES), BOTH, method=CHAIN, **{**MOMENTUM, **more})


def averages(sites: int = len(NAMES), **more: Any) -> Plan:
    """Averages after every round."""
    return plan_of("FedAvg", sites, BOTH, method=AVERAGE, **{"rounds": 2, **more})
