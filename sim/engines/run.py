"""Engines: what one plan is run on. Those that work site by site differ only in the Flower grid of the strategy."""

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from fedsmall import __version__
from fedsmall.data.federation import Federation, Task
from fedsmall.data.preparation import Preparation
from fedsmall.data.raw_site import BALANCED, agreed_weights, with_weights
from fedsmall.entry_points import import_extra
from fedsmall.errors import PlanError
from fedsmall.methods import nearest
from fedsmall.models.registry import completed, initial_model
from fedsmall.package.record import TrainedOn, count_samples
from fedsmall.plan import Plan
from fedsmall.planning.tasks import is_of_python
from fedsmall.planning.validation import among, check_run
from fedsmall.privacy.reading import Exposure, looks
from fedsmall.sim.engines.evaluation import CentralEvaluator, LastRound, LocalJudges, Unseen, predictions_of
from fedsmall.strategies.server.judging import Judge, Judging
from fedsmall.strategies.server.run_loop import Evaluation, Evaluator, Outcome, Progress, Stop, run_rounds
from fedsmall.training.batches import epsilons_spent
from fedsmall.training.device import choose_device, describe_device, keep_freed_memory, threads_of_kernel
from fedsmall.training.gradients.layers import as_trained
from fedsmall.training.kernel import describe_kernel
from fedsmall.training.trainer import Indices, OneModelTrainer, Trainer
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import RoundResult
from fedsmall.travel.schedule import CommRound
from fedsmall.wire import Arrays

if TYPE_CHECKING:
    from flwr.serverapp import Grid

Tell = Callable[[CommRound, Evaluation | None], None]


@dataclass(kw_only=True)
class RunRecord(Outcome):
    """The outcome of one plan on an engine, and with what it can be repeated.

    ``read`` is who could read whose data; ``predictions`` are the model's on the test samples
    (:func:`fedsmall.sim.engines.evaluation.predictions_of`), empty where there is none; ``unseen`` what it says of
    training samples that it had not seen, by which its ``thresholds`` are found, and its ``recalibration`` (intercept,
    slope, and metrics after it). ``own`` are the models that sites trained last, where asked for, and Central's;
    ``at_home`` losses at each site (:mod:`fedsmall.sim.engines.at_home`); ``importance`` what shuffling a column costs.
    """

    plan: Plan
    engine: str
    versions: dict[str, str] = field(default_factory=dict)
    path: str = ""
    device: str = ""
    unmet_need: str = ""
    read: dict[str, Any] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    own: dict[str, Arrays] = field(default_factory=dict)
    task: Task | None = None
    preparation: Preparation | None = None
    trained_on: dict[str, TrainedOn] = field(default_factory=dict)
    unseen: Unseen | None = None
    thresholds: dict[str, float] = field(default_factory=dict)
    recalibration: dict[str, Any] = field(default_factory=dict)
    importance: dict[str, list[float]] = field(default_factory=dict)
    at_home: dict[str, dict[str, float]] = field(default_factory=dict)


def whole_model(plan: Plan, task: Task, trained: Arrays) -> Arrays:
    """A model with its frozen layers, which do not travel."""
    return trained if plan.has_own_models else completed(plan, task, trained)


def versions() -> dict[str, str]:
    """The versions that a run's numbers may depend on."""
    built = {"cuda": torch.version.cuda, "kernel": describe_kernel()}
    known = {name: version for name, version in built.items() if version}
    return {"fedsmall": __version__, "python": platform.python_version(), **_installed(), **known}


@cache  # a package's whole description is read for it, and the plans of a run are many
def _installed() -> Mapping[str, str]:
    found = {}
    for name in ("flwr", "ray", "torch", "numpy", "scipy", "scikit-learn"):
        with suppress(PackageNotFoundError):  # ray is an extra's
            found[name] = version(name)
    return found


def run_plan(
    plan: Plan,
    federation: Federation,
    engine: str,
    *,
    progress: Progress | None = None,
    stop: Stop | None = None,
    options: dict[str, Any] | None = None,
    exposed: bool = False,
    own_models: bool = False,
) -> RunRecord:
    """Run one plan over the sites of ``federation``; with ``own_models`` those that sites trained last are kept.

    If ``exposed``, the patients that each party could read are counted (:mod:`fedsmall.privacy.reading`). After each
    communication round ``progress(round, rounds)`` is called and ``stop()`` asked. ``options`` are the engine's.
    """
    check_engine(engine, options or {})
    plan = plan.with_model_of(len(federation.names))
    trained_on = federation.pooled() if plan.method.is_central else federation
    engine_options = {"device": "cpu"} | (options or {})
    device = engine_options.pop("device")
    check_run(plan, federation)
    work = _Work(_agreed(plan, federation), trained_on, progress, stop, device, exposed, LastRound(own_models))
    if threads_of_kernel(device):
        work.unmet_need = "the engine cohort"  # whose trainer knows better
    return work.record(plan, federation, ENGINES[engine](work, engine_options), engine)


def run_on(grid: "Grid", plan: Plan, federation: Federation, tell: Tell) -> RunRecord:
    """Run one plan over a Flower grid whose clients hold the sites of ``federation``, as `flwr run` gives one.

    ``tell`` is called with each communication round at which models are evaluated, and their metrics.
    """
    plan = plan.with_model_of(len(federation.names))
    check_run(plan, federation)
    work = _Work(_agreed(plan, federation), federation, exposed=True)
    return work.record(plan, federation, work.on(grid, tell, in_pieces=False), "flower")


def _agreed(plan: Plan, federation: Federation) -> Plan:
    """The plan for so many sites, with the class weights on which they agree, if any."""
    plan = among(plan, len(federation.names))
    if plan.recipe.class_weights != BALANCED:
        return plan
    return with_weights(plan, agreed_weights(federation.class_sums, federation.task))


@dataclass
class _Work:
    plan: Plan
    federation: Federation
    progress: Progress | None = None
    stop: Stop | None = None
    device: str | torch.device = "cpu"
    exposed: bool = False
    last: LastRound = field(default_factory=LastRound)
    path: str = "loop"
    unmet_need: str = ""

    @cached_property
    def exposure(self) -> Exposure | None:
        """Who counts the patients that can be read: of networks that leave sites for one server, each time."""
        method, train = self.plan.method, self.federation.train
        is_counted = self.exposed and method.is_federated and method.trains_networks and method.has_one_server
        if not is_counted or method.is_dynamic:
            return None
        if not self.plan.has_own_models:
            train = as_trained(self.plan, self.federation.task, train)
        return Exposure(self.plan, self.federation.names, train, self.initial)

    def read(self) -> dict[str, Any]:
        """What was counted; empty where nothing was."""
        if self.exposure is None:
            return {}
        fewest = min(self.federation.train, key=len)
        numbers = sum(array.size for array in self.initial(None).values())
        estimate = looks(self.plan, numbers, len(fewest), fewest.x[0].size)
        return self.exposure.result() | ({} if estimate is None else {"looks": round(estimate, 3)})

    def trainer(self) -> Trainer:
        federation = self.federation
        return cohort_for(self.plan, federation.task, federation.names, federation.train, device=self.device)

    def device_of_one(self) -> torch.device:
        """The device for models that train one at a time."""
        return choose_device(self.device, sum(a.size for a in self.initial(None).values()), dtype=self.plan.dtype)

    def initial(self, site: str | None) -> Arrays:
        return initial_model(self.plan, self.federation.task, site)

    def record(self, plan: Plan, federation: Federation, outcome: Outcome, engine: str) -> RunRecord:
        """What came of the run, and what was seen in its last round."""
        t, task, last, model = outcome.chosen or outcome.rounds, federation.task, self.last, outcome.model
        outputs = last.outputs.get(t)
        ended = vars(self.with_patients(outcome)) | {"model": None if model is None else whole_model(plan, task, model)}
        return RunRecord(
            **ended,
            plan=plan,
            engine=engine,
            versions=versions(),
            path=self.path,
            device=describe_device(torch.device(self.device)),
            unmet_need=self.unmet_need,
            read=self.read(),
            predictions=predictions_of(outputs, federation) if outputs is not None and len(outputs) else {},
            own={site: whole_model(plan, task, model) for site, model in last.own.get(t, {}).items()},
            task=task,
            preparation=federation.preparation,
            trained_on=count_samples(federation),
            unseen=last.unseen.get(t),
            at_home=last.at_home.get(t, {}),
        )

    def with_patients(self, outcome: Outcome) -> Outcome:
        """What patient-level privacy has cost the sites, from least to most: a simulation knows all their sizes."""
        if self.plan.privacy.is_patient_level:
            train = self.federation.train
            epsilons = epsilons_spent(self.plan, train, outcome.rounds, Indices.of_all(len(train)))
            outcome.privacy = {
                "epsilon_least": min(epsilons),
                "epsilon": max(epsilons),
                "delta": self.plan.privacy.delta,
            }
        return outcome

    def on(self, grid: "Grid", tell: Tell | None = None, in_pieces: bool = True) -> Outcome:
        """Over a Flower grid, message by message; ``tell`` is called whenever models were judged."""
        from fedsmall.strategies.grid_trainer import GridTrainer  # brings flwr, and takes its time
        from fedsmall.strategies.server.site_judges import SiteJudges

        sites, task = GridTrainer(self.plan, grid), self.federation.task
        judge = self.evaluator(self.trainer(), SiteJudges(sites.roster, grid, self.plan, task), sites.roster.counts)

        def evaluator(result: RoundResult) -> Evaluation | None:
            evaluation = judge(result)
            if tell is not None:
                tell(result.comm_round, evaluation)
            return evaluation

        return self.through(sites, evaluator, in_pieces)

    def through(self, trainer: Trainer, evaluator: Evaluator, in_pieces: bool = True) -> Outcome:
        """The rounds of the plan with a ``trainer``."""
        return run_rounds(
            self.plan,
            trainer,
            self.initial,
            evaluator=evaluator,
            progress=self.progress,
            stop=self.stop,
            watcher=self.exposure,
            in_pieces=in_pieces,
        )

    def evaluator(self, trainer: Trainer, judge: Judge, sites: Callable[[], Mapping[str, int]]) -> Evaluator:
        """Who evaluates: this process on the common test set, the sites on all else, on all where they keep layers."""
        on_test = None
        if isinstance(trainer, OneModelTrainer):
            on_test = CentralEvaluator(self.plan, self.federation, trainer, self.last)
        judging = Judging(self.plan, self.federation.task, judge, sites, on_test)

        def judged(result: RoundResult) -> Evaluation | None:
            evaluation = judging(result)
            if evaluation is not None:
                self.last.narrow(evaluation)
            return evaluation

        return judged


def _batched(work: _Work, options: dict[str, Any]) -> Outcome:
    keep_freed_memory()
    trainer = work.trainer()
    samples = dict(zip(trainer.names, trainer.samples, strict=True))
    evaluator = work.evaluator(trainer, LocalJudges(work.plan, work.federation, trainer), lambda: samples)
    work.path, work.device, work.unmet_need = trainer.path, trainer.device, trainer.unmet_need
    with threads_for(trainer.path):
        return work.through(trainer, evaluator)


@contextmanager
def threads_for(path: str) -> Iterator[None]:
    """One thread within it, except for convolutions: on small matrices a second only waits, and takes a core for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if path in ("conv", "loop") else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_process(work: _Work, options: dict[str, Any]) -> Outcome:
    from fedsmall.clients.client_app import app_on
    from fedsmall.clients.site_data import give_federation
    from fedsmall.sim.engines.inprocess import InProcessGrid

    give_federation(work.plan, work.federation)
    work.device = work.device_of_one()
    return work.on(InProcessGrid(app_on(str(work.device)), len(work.federation.names)))


def _ray(work: _Work, options: dict[str, Any]) -> Outcome:
    from fedsmall.clients.site_data import give_federation
    from fedsmall.sim.engines.ray import with_ray_grid

    work.device = device = work.device_of_one()
    if is_of_python(work.plan.task):
        options = {**options, "prepare": partial(give_federation, work.plan, work.federation)}
    outcome: Outcome = with_ray_grid(len(work.federation.names), work.on, device=device, **options)
    return outcome


DEFAULT_ENGINE = "cohort"  # the fastest on one machine
ENGINES: dict[str, Callable[..., Outcome]] = {"cohort": _batched, "inprocess": _in_process, "ray": _ray}
OPTIONS = {"cohort": ("device",), "inprocess": ("device",), "ray": ("device", "cpus", "address")}


def check_engine(engine: str, options: Mapping[str, Any]) -> None:
    """Raise PlanError for an engine that does not exist, an option that it lacks, a cluster that does not answer."""
    if engine not in ENGINES:
        raise PlanError(f"There is no engine {engine!r}. {nearest(engine, list(ENGINES))}")
    for option in options:
        if option not in OPTIONS[engine]:
            able = ", ".join(name for name, known in OPTIONS.items() if option in known)
            raise PlanError(f"{option} is not for the engine {engine!r}; it is for: {able or 'none'}.")
    if engine == "ray":
        import_extra("ray", "ray")
    if options.get("address") is not None:
        from fedsmall.sim.engines.ray import connect

        connect(options["address"])
