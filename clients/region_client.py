"""The program that speaks for a region in the federation above it, as a data process does for a hospital.

To the server above, a region is a site: its training is the region's own run up to the next round in which regions
meet, and its model the region's global one. The region's server exchanges models with it in a folder
(:mod:`fedsmall.travel.handover`), so either may be killed at any time.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsmall import __version__
from fedsmall.clients.consent import IS_PAUSED, Consent, WaitsError, is_paused
from fedsmall.clients.policy import Pace, load_policy
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import Answer, LoggedAnswers, check_comm_round, plan_of
from fedsmall.clients.socket_frames import serve
from fedsmall.data.raw_site import BALANCED
from fedsmall.ends import KEY_FILE
from fedsmall.errors import PlanError
from fedsmall.files import one_line
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, RUN_ID, RUN_NAME, SCALING, SITES, TELL, RunSheet
from fedsmall.travel.handover import FOLDER, Handed, Handover, put_once, read
from fedsmall.travel.journey import differences, plan_above
from fedsmall.wire import EXAMPLES, MODEL, PROTOCOL, ROUND, ROUNDS, STEPS, Arrays, join, parts, split

PATIENCE_S = 20.0  # how long an order waits here for the region; then it is asked again
POLL_S = 0.05


@dataclass
class RegionClient:
    """The client of the region ``name``, whose server keeps its runs in ``runs``; it writes to ``home``."""

    name: str
    runs: Path
    home: Path
    policy_file: Path
    patience_s: float = PATIENCE_S
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        log = SiteLog(self.home, self.name)
        public = self.policy_file.with_name(f"{KEY_FILE}.pub")
        self._door = LoggedAnswers(log, public, Consent(self.home, log).is_new, self._handle)

    def answer(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """The answer to one message; a refusal or a failure is an answer of one line."""
        return self._door.answer(kind, config, arrays)

    def _handle(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        handlers = {"roll": self._roll, "scaling": self._take_agreed, "train": self._train, "evaluate": self._take}
        if kind not in handlers:
            raise PlanError("this region was asked for something that it does not know")
        self.pace.check(load_policy(self.policy_file), arrays)
        if kind == "train" and is_paused(self.home):
            raise WaitsError(IS_PAUSED)
        home, plan = self._home_of(config), plan_of(config)
        self._check_plan(plan, home, config)
        check_comm_round(kind, plan_above(plan), config)
        return handlers[kind](home, config, arrays)

    def _home_of(self, config: Mapping[str, Any]) -> Path:
        """The folder of the region's run of the same name. Raises WaitsError where it was not started yet."""
        run = str(config.get(RUN, ""))
        if not RUN_NAME.fullmatch(run):
            raise PlanError("the order does not say of which run it is")
        if not (self.runs / run / "sheet.json").is_file():
            raise WaitsError(f"this region has not started its run {run!r} yet")
        return self.runs / run

    def _check_plan(self, asked: Plan, home: Path, config: Mapping[str, Any]) -> None:
        """Raise PlanError where the run above has another plan, other regions, or another id than before."""
        sheet = RunSheet.from_file(home / "sheet.json")
        if sheet.region != self.name or self.name not in config.get(SITES, ()):
            raise PlanError(f"the run here is one of region {sheet.region!r}, and {self.name!r} was asked")
        if differing := differences(sheet.plan, _as_begun(asked, sheet.plan)):
            raise PlanError(f"this region runs another plan than the server above: {'; '.join(differing[:3])}")
        ident = {"id": one_line(config.get(RUN_ID, ""), 64)}
        put_once(home / FOLDER / "run-above", ident, {}, "another run of that name above")

    def _roll(self, home: Path, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        met = read(Handover(home / FOLDER).met)
        if met is None:
            raise WaitsError(f"this region's own sites have not met yet{_ended(home)}")
        sums_by_kind = {name: sums for name, sums in parts(met.arrays).items() if name in config.get(TELL, ())}
        words = {**met.words, "site": self.name, "version": __version__, "protocol": PROTOCOL}
        return {"config": words}, join(**sums_by_kind)

    def _take_agreed(self, home: Path, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        weights = {"class_weights": plan_of(config).recipe.class_weights}
        put_once(Handover(home / FOLDER).agreed, weights, split(arrays, SCALING), "an agreement of the regions")
        return {"config": {}}, {}

    def _train(self, home: Path, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        handover, t = Handover(home / FOLDER), int(config[ROUND])
        if not handover.agreed.exists():  # nothing is scaled
            self._take_agreed(home, config, {})
        if before := t - int(config[ROUNDS]):
            self._come_down(handover, before, arrays)
        model = self._wait_for(handover, t, home)
        sent = join(**{MODEL: model.arrays})
        return {"metrics": {EXAMPLES: model.words["weight"], STEPS: 1}, "order": list(sent)}, sent

    def _take(self, home: Path, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        self._come_down(Handover(home / FOLDER), int(config[ROUND]), arrays)
        return {"metrics": {EXAMPLES: 0}}, {}

    def _come_down(self, handover: Handover, t: int, arrays: Arrays) -> None:
        put_once(handover.down(t), {"t": t}, split(arrays, MODEL), f"the united model of round {t}")

    def _wait_for(self, handover: Handover, t: int, home: Path) -> Handed:
        until = time.monotonic() + self.patience_s
        while (model := read(handover.up(t))) is None:
            if time.monotonic() > until:
                raise WaitsError(f"this region has not come to round {t} yet{_ended(home)}")
            time.sleep(POLL_S)
        return model


def _as_begun(asked: Plan, plan: Plan) -> Plan:
    """The plan above with balanced weights, which are numbers there once all sites have told theirs."""
    if plan.recipe.class_weights != BALANCED or asked.recipe.class_weights is None:
        return asked
    return asked.model_copy(update={"recipe": asked.recipe.model_copy(update={"class_weights": BALANCED})})


def _ended(home: Path) -> str:
    try:
        reason = json.loads((home / "failure.json").read_text())["reason"]
    except (OSError, ValueError, LookupError):
        return ""
    return one_line(f"; its run ended early: {reason}", 200)


def main(arguments: list[str]) -> None:
    """``-m fedsmall.clients.region_client NAME HOME POLICY SOCKET RUNS``, as `fedsmall site up --region` runs it."""
    name, home, policy, path, runs = arguments
    serve(Path(path), RegionClient(name, Path(runs), Path(home), Path(policy)).answer, f"data process {name}: ready")


if __name__ == "__main__":
    main(sys.argv[1:])
