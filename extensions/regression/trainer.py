"""Sites that sum for Newton's steps, and a server that steps: the trainer of methods with a ``regression``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedsmall.aggregation.combiners import Combiner, check_enough
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.aggregation.sums import LEAST, whole_sum
from fedsmall.data.federation import Samples, Task, join
from fedsmall.data.splits import deal_patients
from fedsmall.errors import DataError, PlanError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.extensions.regression import chain, cox, newton, noised, terms
from fedsmall.extensions.regression import model as form
from fedsmall.extensions.regression.families import FAMILIES, LARGE, MOST_STEPS, Rows, coefficients, profiled_sums
from fedsmall.extensions.regression.inference import covariance_of, with_free
from fedsmall.extensions.regression.model import COEFFICIENTS, COVARIANCE, STATUS, SUMS, THETA
from fedsmall.extensions.regression.newton import Setup, State
from fedsmall.parts import Regression
from fedsmall.plan import Method, Plan
from fedsmall.privacy.patient_level import chance_for, protection_of, shares_of
from fedsmall.randomness import rng_for
from fedsmall.sealing.masks import least_in_sum
from fedsmall.training.stack import Stack, Tensors, stacked, tensors_of
from fedsmall.training.trainer import Indices, OneModelTrainer, Phase, TrainInput, TrainResult
from fedsmall.wire import Arrays

OPEN = (
    "the server sees each site's sums of products, which can be solved for the patients where a site has few; privacy "
    "= {secure = true} shows it sums over all sites alone"
)

__all__ = ["check", "combiner_for", "has_ended", "note_of", "note_of_end", "plan_among", "trainer_for"]


def plan_among(plan: Plan, sites: int) -> Plan:
    """The plan with the regression that so many sites fit; of noised sums it is one exchange, of a chain its passes."""
    plan = noised.in_one_exchange(plan) if plan.privacy.is_patient_level else plan
    passes = settings_of(plan).passes
    plan = plan if passes is None else plan.model_copy(update={"rounds": passes * sites})
    options = {"sites": sites if plan.method.is_federated else 1, **settings_of(plan).model_dump()}
    return plan.model_copy(update={"model": form.NAME, "model_options": options})


def combiner_for(plan: Plan) -> Combiner:
    """What makes the next global model."""
    return NewtonStep(plan) if settings_of(plan).passes is None else chain.LastOfChain()


def has_ended(plan: Plan, model: Arrays) -> bool:
    """Whether nothing would change any more."""
    return bool(model[STATUS][form.CONVERGED])


def note_of(method: Method) -> str:
    """That single sites' sums can be read, where they can."""
    if method.regression is not None and method.regression.passes is not None:
        return chain.OPEN
    covered = method.privacy is not None and method.privacy.is_patient_level
    return "" if method.hidden or covered or not method.is_federated else OPEN


def note_of_end(plan: Plan, model: Arrays, rounds: int) -> str:
    """That the fit has not converged, where it has not."""
    more = f"{plan.method.label}: not converged after {rounds} {'round' if rounds == 1 else 'rounds'}; give it more"
    return "" if has_ended(plan, model) else more


def check(plan: Plan, task: Task) -> None:
    """Raise PlanError, in one line, for a task or a schedule that regressions cannot have."""
    method, settings = plan.method, settings_of(plan)
    label = f"Method {method.label!r}"
    is_partial = method.aggregate_every != 1 or method.fraction < 1 or method.models is not None
    if settings.passes is None and method.is_federated and is_partial:
        raise PlanError(f"{label} sums over all sites in every round: take aggregate_every = 1 and all sites.")
    try:
        family = form.family_of(task, settings)
        terms.terms_of(task, settings)
    except PlanError as error:
        raise PlanError(f"{label}: {error}") from None
    if settings.passes is not None:
        return chain.check(plan, family)
    has_own = settings.intercepts != "common"
    if settings.cox and (settings.firth or settings.robust or has_own or plan.privacy.is_patient_level):
        raise PlanError(f"{label}: cox has a penalty that is a number, and no firth, robust, intercepts or epsilon.")
    more = settings.firth or settings.robust or settings.offset or settings.weights
    plain = settings.basis != "additive" and not (has_own or more)
    if plan.privacy.is_patient_level and not (family == "logistic" and plain):
        raise PlanError(f"{label}: sums are noised for two classes, on columns or random features, without more.")
    if settings.robust == "patients" and (settings.firth or has_own):
        raise PlanError(f'{label}: robust = "patients" is without firth and hospital intercepts.')
    if settings.firth and (family != "logistic" or settings.penalty not in ("cv", 0) or has_own):
        raise PlanError(f"{label}: firth is for two classes, without another penalty or hospital intercepts.")


def settings_of(plan: Plan) -> Regression:
    """The settings of a plan that regresses."""
    assert plan.method.regression is not None
    return plan.method.regression


def setup_for(plan: Plan, model: Mapping[str, np.ndarray]) -> Setup:
    """What the plan fits, where ``model`` is any state of it."""
    predictors, columns = model[COEFFICIENTS].shape[-2:]
    family = list(FAMILIES)[int(model[STATUS].flat[form.FAMILY])]
    return form.setup_of(settings_of(plan), family, columns, predictors, int(plan.model_options["sites"]))


class NewtonStep(Combiner):
    """Moves the global model by a step of Newton's method, from the sum of what sites have summed.

    Of hidden models it is told the sum alone; whole numbers are summed exactly, so either gives the same bits.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The next global model; raises ReplyError for fewer than three sites, where sums are secure."""
        if self.plan.method.hidden:
            sites = int(self.plan.model_options["sites"])
            check_enough(
                len(updates.sites), t, least_in_sum(sites, noised=True) if self.plan.method.shares_noise else LEAST
            )
        hidden = updates.total
        total = updates.stack[SUMS].sum(axis=0) if hidden is None else whole_sum(self.plan, global_model, hidden, SUMS)
        made = {name: np.array(array) for name, array in global_model.items()}
        made[SUMS][...] = 0
        if "knots" in global_model and t == 1:
            made["knots"][...] = form.knots_from(total[: len(global_model["knots"]) * form.CELLS])
            return made
        setup = setup_for(self.plan, global_model)
        if self.plan.privacy.is_patient_level:
            self._fit_noised(made, setup, total / form.ONE, len(updates.sites))
            return made
        risk = cox.read_risk(setup, total[: setup.numbers]) if setup.family == "cox" else None
        sums = newton.read_sum(setup, total[: setup.numbers]) if risk is None else cox.exchange_of(risk)
        state = newton.advance(setup, State(**self.memory) if self.memory else newton.begin(setup), sums)
        self.memory = dict(state._asdict())
        self._write(made, setup, state, t >= self.plan.rounds)
        if risk is not None:
            hazards = np.diff(cox.baseline_hazard(risk), prepend=0.0)  # of each interval, (J,)
            made[COEFFICIENTS][:, -1] = np.log(np.maximum(hazards, cox.NEVER))
        return made

    def _fit_noised(self, made: Arrays, setup: Setup, sums: np.ndarray, sites: int) -> None:
        guard, columns = protection_of(self.plan, np.ones(1), 0, sites), setup.columns
        summands = sites * noised.share_of(self.plan, int(self.plan.model_options["sites"]))
        penalty = setup.penalties[0] or noised.penalty_for(guard.noise, columns, guard.clip, summands)
        b, left, _ = noised.fit(sums[: columns * (columns + 3) // 2], columns, guard.clip, penalty)
        made[COEFFICIENTS][...] = noised.log_odds_of(b, left)
        made[STATUS][form.CONVERGED] = 1

    def _write(self, made: Arrays, setup: Setup, state: State, is_last: bool) -> None:
        place = newton.chosen(setup, state)
        theta = state.last[place * (setup.folds + 1)]
        made[COEFFICIENTS][...] = coefficients(setup.family, theta, setup.columns, setup.predictors)
        made[THETA][...] = np.rint(np.clip(state.theta, -(2.0**14), 2.0**14) * form.ONE)
        done = newton.is_converged(setup, state)
        loss = round(min(float(state.loss[place]), LARGE) * form.ONE_OF_LOSS)
        made[STATUS][form.CHOSEN :] = place, done, 0, loss
        made[COVARIANCE][...] = 0
        if done or (newton.rests(setup, state) if setup.firth else is_last):  # at rest Firth's leverages are asked for
            covariance, freedom = covariance_of(setup, state, place)
            made[COVARIANCE][...] = with_free(setup, state, place, covariance)
            made[STATUS][form.FREEDOM] = round(freedom) if np.isfinite(freedom) else 0


def _with_absent(samples: Samples, task: Task) -> Samples:
    """The samples of who learns alone; a class that nobody there has counts as one, whose columns have their means."""
    if task.kind != "classes" or not len(samples):
        return samples
    absent = np.setdiff1d(np.arange(task.classes), samples.y).astype(samples.y.dtype)
    means = np.repeat(samples.x.mean(axis=0, keepdims=True), len(absent), axis=0)
    return join([samples, replace(samples[np.zeros(len(absent), dtype=int)], x=means, y=absent)])


class Regressors(OneModelTrainer):
    """Sites that sum gradients and Hessians of their patients at the parameters that came."""

    def __init__(self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], at: Indices) -> None:
        self.plan, self.task, self.names = plan_among(plan, at.sites), task, tuple(names)
        if plan.privacy.is_patient_level and noised.in_one_exchange(plan) != plan:  # a ledger would charge for another
            raise PlanError("noised sums are one exchange of all patients, and this plan asks for something else")
        self.samples, self._at = tuple(map(len, samples)), at
        exact = plan.method.is_federated or settings_of(plan).penalty == 0 or settings_of(plan).firth
        self._samples = tuple(samples if exact else (_with_absent(part, task) for part in samples))
        self._family, self._terms = form.family_of(task, settings_of(plan)), terms.terms_of(task, settings_of(plan))
        self.path, self.device = "exact sums", torch.device("cpu")

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of regressions; nothing else travels with them."""
        buffers = {name: tensor for name, tensor in state.items() if name != COEFFICIENTS}
        return Stack(tuple(state), {COEFFICIENTS: state[COEFFICIENTS]}, buffers)

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """Write what sites add into their rows' sums."""
        for phase in phases:
            for row, site in enumerate(phase.sites):
                model = {name: tensor[row].numpy() for name, tensor in stack.state.items()}
                if settings_of(self.plan).passes is not None:
                    setup, place = setup_for(self.plan, model), self._at.of_sites[site]
                    fitted = chain.visit(setup, model, self._rows(model, self._samples[site]), place)
                    stack.put(np.array([row]), self.stack_of(stacked([fitted], list(fitted))))
                elif self.plan.method.is_federated:
                    stack.buffers[SUMS][row] = torch.from_numpy(self._sums(model, int(site), phase.t))
                elif not model[STATUS][form.CONVERGED]:
                    fitted = self._fit_alone(model, int(site))
                    stack.put(np.array([row]), self.stack_of(stacked([fitted], list(fitted))))
        last = phases[-1]
        losses = np.full(len(last.sites), np.nan)
        if inputs.losses:
            losses = np.array([self._loss(stack, row, int(site)) for row, site in enumerate(last.sites)])
        steps = np.full(len(last.sites), last.rounds, dtype=np.int64)
        return TrainResult(losses, steps, np.array([self.samples[site] for site in last.sites]), {}, {})

    def _fit_alone(self, model: Arrays, site: int) -> Arrays:
        """The site's own regression, as if it were the only one."""
        server, fitted = NewtonStep(self.plan), model
        for t in range(1, MOST_STEPS + 1):
            sums = {SUMS: self._sums(fitted, site, t)[None]}
            fitted = server.combine(fitted, Updates((self.names[site],), sums, None, np.ones(1)), t)
            if has_ended(self.plan, fitted):
                break
        fitted[STATUS][form.CONVERGED] = 1  # as far as it goes
        return fitted

    def _sums(self, model: Arrays, site: int, t: int) -> np.ndarray:
        samples, sums = self._samples[site], np.zeros_like(model[SUMS])
        if self.plan.privacy.is_patient_level and t > 1:
            return sums  # the one exchange is over
        if "knots" in model and t == 1:
            made = form.cell_counts(form.terms_in(tensors_of(model), torch.from_numpy(samples.x).flatten(1)).numpy())
        elif self.plan.privacy.is_patient_level:
            made = self._noised(self._rows(model, samples), site, t)
        elif self._family == "cox":
            rows = self._rows(model, samples)
            made = cox.summand(form.theta_of(model)[0], rows, rows.offset.shape[1])
        else:
            setup = setup_for(self.plan, model)
            asked = setup.firth and model[COVARIANCE].any()
            inverse = model[COVARIANCE].astype(np.float64) if asked else None
            rows, theta = self._rows(model, samples), form.theta_of(model)
            made = newton.summand(setup, theta, rows, self._folds(site), inverse, samples.patients)
        sums[: len(made)] = made
        return sums

    def _targets(self, y: np.ndarray) -> np.ndarray:
        if self._family != "poisson":
            return y
        mean, scale = self.task.unit or (0.0, 1.0)
        counts = y.astype(np.float64) * scale + mean
        if counts.min(initial=0) < -1e-3:
            raise DataError("counts = true, and a number here is below 0")
        return np.maximum(counts, 0)

    def _noised(self, rows: Rows, site: int, t: int) -> np.ndarray:
        place, sites = self._at.of_sites[site], self._at.sites
        guard = protection_of(self.plan, np.ones(len(rows.y)), place, sites)
        chance = chance_for(self.plan.seed, self.names[site], t, self._at.secret)
        clean = noised.statistics(rows.x[:, :-1], 2.0 * rows.y - 1, guard.clip, shares_of(self._samples[site]))
        made = noised.noised(clean, guard.noise, chance, noised.share_of(self.plan, sites))
        return np.rint(made * form.ONE).astype(np.int64)

    def _rows(self, model: Arrays, samples: Samples) -> Rows:
        arrays, raw = tensors_of(model), torch.from_numpy(np.ascontiguousarray(samples.x)).flatten(1)
        x = form.columns_of(arrays, raw).numpy()
        weights = self.plan.recipe.class_weights
        weight = np.asarray(weights)[samples.y] if isinstance(weights, tuple) else np.ones(len(x))
        weight = weight * terms.weights_of(self._terms, raw.numpy())
        offset = np.zeros((len(x), model[COEFFICIENTS].shape[0]))
        offset += terms.offset_of(arrays["offset"], raw.double()).numpy() if "offset" in arrays else 0
        return Rows(x, self._targets(samples.y), weight, offset)

    def _folds(self, site: int) -> np.ndarray:
        """In which fold each sample of a site is left out: all in one, or its patients dealt to all."""
        folds, by_sites = newton.folds_for(int(self.plan.model_options["sites"]))
        if by_sites:
            order = rng_for(self.plan.seed, "folds of sites").permutation(self._at.sites)
            return np.full(self.samples[site], order[self._at.of_sites[site]] % folds)
        rng = rng_for(self.plan.seed, "folds of patients", self.names[site])
        return deal_patients(self._samples[site], rng) % folds

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """The outputs of every regression on the same samples: (models, samples, outputs)."""
        samples = torch.from_numpy(np.ascontiguousarray(x))
        made = []
        for row in range(len(stack)):
            arrays = {name: tensor[row] for name, tensor in stack.state.items()}
            made.append(form.outputs_of(form.predictors_of(arrays, samples), self.task, self._family).numpy())
        return np.stack(made)

    def predict_at(self, site: int, model: Arrays, x: np.ndarray, memory: Mapping[str, np.ndarray]) -> np.ndarray:
        """The outputs, (samples, outputs), at a site, which adds its own intercept where it has one."""
        outputs, setup = super().predict_at(site, model, x, memory), setup_for(self.plan, model)
        if setup.home is None:
            return outputs
        rows = self._rows(model, self._samples[site])
        fitted = form.theta_of(model)[int(model[STATUS][form.CHOSEN]) * (setup.folds + 1)]
        shift = torch.from_numpy(profiled_sums(setup.family, fitted, rows, setup.home)[1])
        eta = form.predictors_of(tensors_of(model), torch.from_numpy(x)) + shift
        return form.outputs_of(eta, self.task, setup.family).numpy()

    def _loss(self, stack: Stack, row: int, site: int) -> float:
        samples = self._samples[site]
        outputs = self.predict(stack.rows(np.array([row])), samples.x)[0]
        return float(evaluate(outputs, samples.y, self.task)["loss"])


trainer_for = Regressors
