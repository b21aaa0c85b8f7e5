"""A run of real sites in envelopes, walked honestly, with all that they were asked; then the server turns on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import MessageType

from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.site_request import Answer
from fedsmall.ends import ENDS
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, RUN_ID, SCALING
from fedsmall.sealing.terms import HELP, OF, SEALED, Order
from fedsmall.strategies.sealed_models import DecryptorError
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.wire import CONFIG, MODEL, PLAN, ROUND, Arrays, split
from fedsmall.wire import NAMES as NAMES_OF
from tests.sim.sealing.federation import BOTH, Change, Federation, drawn, plan_of, run

MOMENTUM = {"recipe": {"lr": 0.1, "batch": 4, "momentum": 0.5}}
CHAIN = {"permute_every": 1, "aggregate_every": 3}
AVERAGE = {"aggregate_every": 1}
IMPATIENT: dict[str, Any] = {"start_deadline_s": 10, "round_deadline_s": 10}
LARGE = {"model_options": {"hidden": [512]}, "recipe": {"lr": 0.1}}  # and whole sites as batches
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


class Trained(NamedTuple):
    """What a site trained for a round, of what it received, on its ``patients`` (patients, features)."""

    site: str
    t: int
    received: Arrays
    model: Arrays
    patients: np.ndarray


def watch(patch: pytest.MonkeyPatch, heard: list[Heard], trained: list[Trained] | None = None) -> None:
    """Write down whatever any station is asked from now on, and its answer; and what no server should see."""
    answer, fit = DataProcess.answer, HospitalClient.fit

    def fitted(self: HospitalClient, parameters: Any, config: Any) -> Any:
        told = fit(self, parameters, config)
        received = split(dict(zip(config[NAMES_OF], parameters, strict=True)), MODEL)
        model = {name: array.copy() for name, array in self.trained.items()}
        if trained is not None:
            trained.append(Trained(self.home.site, config[ROUND], received, model, self.home.train.x))
        return told

    def watched(self: DataProcess, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        header, sent = answer(self, kind, config, arrays)
        heard.append(Heard(self.name, kind, dict(config), dict(arrays), header, sent))
        return header, sent

    patch.setattr(DataProcess, "answer", watched)
    patch.setattr(HospitalClient, "fit", fitted)


def without(kind: str) -> Change:
    """A network that loses questions of a kind."""
    return lambda _, order: None if kind in order.metadata.message_type else order


def _without_help(site: str, order: Any) -> Any:
    """A network on which no average is opened."""
    averages = HELP in order.metadata.message_type and not order.content[CONFIG].get(OF)
    return None if averages else order


def who_met(folder: Path, sites: int = 3) -> "World":
    """Sites that have answered the handshake of a run, and whose server then asked no further."""
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, heard := [])
        later = f"{MessageType.QUERY}.{SCALING}"
        federation = Federation(folder, sites, patch, change=without(later))
        with pytest.raises(PlanError, match="Not every site takes part"):
            run(federation, plan := averages(sites), **IMPATIENT)
    return World(federation, Outcome(), plan, heard)


@dataclass
class World:
    """Sites that live on after their run, what was ``heard`` of it, and its ``plan`` with the routes' seed."""

    federation: Federation
    outcome: Outcome
    plan: Plan
    heard: list[Heard] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)

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
        trained: list[Trained] = []
        with (patch or pytest.MonkeyPatch()).context() as inner:
            watch(inner, heard, trained)
            federation = Federation(folder, sites, inner, policy, change)
            outcome = run(federation, plan)
        return cls(federation, outcome, drawn(federation), heard, trained)

    @classmethod
    def unopened(cls, folder: Path, plan: Plan) -> "World":
        """A world whose server has the summands of the first average, and has asked no decryptor yet."""
        heard: list[Heard] = []
        trained: list[Trained] = []
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, heard, trained)
            federation = Federation(folder, len(NAMES), patch, change=_without_help)
            with pytest.raises(DecryptorError, match="the sum of round 1 stays closed"):
                run(federation, plan, **IMPATIENT)
        return cls(federation, Outcome(), drawn(federation), heard, trained)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Go on writing down what the sites train."""
        watch(patch, self.heard, self.trained)

    def once(self, kind: str, site: str | None = None, t: int | None = None) -> Heard:
        """The first question of a kind, to a site, of a round."""
        return next(
            h for h in self.heard if h.kind == kind and site in (None, h.site) and t in (None, h.config.get(ROUND))
        )

    def ask(self, question: Heard, to: str | None = None) -> Answer:
        """What a site answers now; a question that was put to another says nothing of where that one's log stood."""
        config = {key: value for key, value in question.config.items() if to is None or key != ENDS}
        return self.federation.there[to or question.site].answer(question.kind, config, question.arrays)

    def refuses(self, question: Heard, line: str, to: str | None = None) -> None:
        """Ask, and see that the answer is one line, and nothing else."""
        header, sent = self.ask(question, to)
        assert header == {"error": f"{to or question.site}: {line}"}
        assert sent == {}
        assert self.log(to or question.site)[-1]["event"] == "refused"

    def does_not_use(self, order: Heard, why: str, to: str | None = None) -> None:
        """Ask, and see that the site goes on with the last global model, says why in its log, and tells no model."""
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
