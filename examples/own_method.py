"""A method of one's own, beside those of fedsmall: a trainer that tells something more, and a combiner that heeds it.

    python -m examples.own_method    # FedAvg and FedFa on digits of two classes a site; seconds on one core

The method is FedFa: where the global model does badly at a site, and who takes part often, counts more in an average,
which moves the global model with momentum. Source: Huang, Li, Wang, Du and Zhang 2020, arXiv:2012.10069, by its
abstract; the formulas of the weights are those of other people's code for it, for the paper's own could not be read.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from fedsmall.aggregation.combiners import Aggregate, Combiner
from fedsmall.aggregation.server_optimizers import Updates, parameters_of
from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.data.federation import Federation
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.runs.scenario import build
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Rows, Stack
from fedsmall.training.trainer import Phase, Trainer, TrainInput, TrainResult
from fedsmall.travel.schedule import comm_rounds_of
from fedsmall.wire import Arrays

ACCURACY = "accuracy"  # of the model that came, on the site's training samples
LEAST = 1e-6  # of a share: who has nothing right tells much, not infinitely much


class TellingSites(Cohort):
    """Sites that send with each model how well the one that they were sent did on their own training samples."""

    def __init__(self, plan: Plan, federation: Federation) -> None:
        super().__init__(plan, federation.task, federation.names, federation.train)
        self._train = federation.train

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As :meth:`Trainer.walk`."""
        models = [Rows(stack.state).row(row) for row in range(len(stack))]
        sites = phases[0].sites.tolist()
        told = [self._accuracy(site, model) for site, model in zip(sites, models, strict=True)]
        return super().walk(stack, phases, inputs)._replace(rule={ACCURACY: np.array(told)})

    def _accuracy(self, site: int, model: Arrays) -> float:
        samples = self._train[site]
        return accuracy(self.predict_at(site, model, samples.x, {}), samples.y)


class FairMomentum(Combiner):
    """FedFa's server: v <- beta v + (1 - beta) delta, x <- x + v, where ``alpha`` is the share of the accuracies in the
    weights of delta; the rest is that of how often a site has taken part.
    """

    def __init__(self, alpha: float = 0.5, beta: float = 0.9) -> None:
        self.alpha, self.beta = alpha, beta
        self._times: Counter[str] = Counter()
        self._moved: Arrays = {}

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The next global model; running statistics are those of the plain mean."""
        self._times.update(updates.sites)
        times = np.array([self._times[site] for site in updates.sites])
        weights = fair_weights(updates.rule[ACCURACY], times, self.alpha)
        made = Aggregate().combine(global_model, updates, t)
        for name in parameters_of(global_model):
            delta = np.tensordot(weights, updates.stack[name] - global_model[name].astype(np.float64), axes=1)
            self._moved[name] = self.beta * self._moved.get(name, 0.0) + (1 - self.beta) * delta
            made[name] = (global_model[name] + self._moved[name]).astype(global_model[name].dtype)
        return made


def fair_weights(accuracies: np.ndarray, times: np.ndarray, alpha: float) -> np.ndarray:
    """How much each site counts, (sites,): ``alpha`` times the information of the accuracies, -log2 of a site's share
    in their sum, and 1 - alpha that of the participations, -log2 of 1 - its share; each scaled to sum to one.
    """
    by_accuracy = _shares(-np.log2(np.maximum(_shares(accuracies), LEAST)))
    by_times = _shares(-np.log2(np.maximum(1 - _shares(times), LEAST)))
    return alpha * by_accuracy + (1 - alpha) * by_times


def _shares(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    return np.asarray(values / total if total > 0 else np.full(len(values), 1 / len(values)))


def accuracy(outputs: np.ndarray, y: np.ndarray) -> float:
    """What share of samples is called right, by outputs of one number (two classes) or of one a class."""
    called = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(axis=1)
    return float((called == y).mean())


def accuracies(
    plan: Plan, federation: Federation, trainer: Trainer, combiner: Combiner | None = None
) -> Iterator[tuple[int, float]]:
    """The rounds after which models are averaged, and the accuracy of the global model on the test set after each."""
    topology = topology_for(plan, trainer, lambda site: initial_model(plan, federation.task, site), combiner)
    for result in daisy_chain(topology, comm_rounds_of(plan)):
        if result.global_model is not None:
            outputs = trainer.predict_at(0, result.global_model, federation.test.x, {})
            yield result.comm_round.t, accuracy(outputs, federation.test.y)


def main() -> None:
    """Print the accuracy of both methods every tenth round."""
    scenario = build(
        {
            "name": "digits",
            "task": "digits",
            "sites": 50,
            "samples_per_site": 8,
            "partition": {"classes_per_site": 2},
            "rounds": 100,
            "recipe": {"lr": 0.1, "batch": 8},
            "method": [
                {"name": "FedAvg"},
                {"name": "FedAvg", "label": "FedFa", "recipe": {"momentum": 0.9, "optimizer_state": "reset"}},
            ],
        }
    )
    averaging, fair = scenario.plans()
    federation = build_federation(averaging)
    plain = Cohort(averaging, federation.task, federation.names, federation.train)
    found = {
        "FedAvg": dict(accuracies(averaging, federation, plain)),
        "FedFa": dict(accuracies(fair, federation, TellingSites(fair, federation), FairMomentum())),
    }
    for t in range(10, averaging.rounds + 1, 10):
        print(f"round {t:3}: " + ", ".join(f"{name} {100 * values[t]:.1f}%" for name, values in found.items()))


if __name__ == "__main__":
    main()
