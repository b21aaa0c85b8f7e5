"""A threshold is found on patients whom the model has not seen: what it promises holds on others."""

import numpy as np
import pytest

from fedsmall.evaluation.clinical import at_threshold, least_sensitivity
from fedsmall.sim.api import Result, run

ASKED = {"sensitivity": 0.8}
MODEL = {"model": "mlp", "model_options": {"hidden": [64]}, "rounds": 60, "recipe": {"lr": 0.5}}  # learns by heart


def patients(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = (np.arange(count) % 3 == 0).astype(int)
    return (rng.normal(size=(count, 20)) + 0.4 * y[:, None]).astype(np.float32), y


def result_of(seed: int, sites: int = 4, each: int = 30, **settings) -> Result:
    rng = np.random.default_rng(seed)
    held = {f"site-{k}": patients(each, rng) for k in range(sites)}
    whole = {**MODEL, "methods": ["FedAvg"], "seeds": [seed], **settings}
    return run(sites=held, test=patients(3000, rng), progress=False, **whole)


@pytest.mark.thorough
def test_a_sensitivity_that_is_asked_for_holds_on_others_and_would_not_by_training_samples():
    out_of_fold, by_heart = [], []
    for seed in range(6):
        result = result_of(seed, threshold=ASKED)
        (done,) = result.run.done
        found = result.run.predictions_of(done)
        p, positive = found["probabilities"][:, 1], found["labels"] == 1
        out_of_fold.append(at_threshold(p, positive, done.row["thresholds"]["sensitivity"]).sensitivity.value)
        rng = np.random.default_rng(seed)
        x, y = map(np.concatenate, zip(*(patients(30, rng) for _ in range(4)), strict=True))
        seen = result.predict(x)["p_1"].to_numpy()
        by_heart.append(at_threshold(p, positive, least_sensitivity(seen, y == 1, 0.8)).sensitivity.value)

    assert np.mean(out_of_fold) > 0.75
    assert np.mean(by_heart) < 0.65


def test_without_a_threshold_asked_for_none_is_found_on_training_samples():
    assert "thresholds" not in result_of(0, rounds=2).run.done[0].row


def test_where_samples_are_held_out_for_the_stop_they_decide():
    result = result_of(0, rounds=8, evaluate_every=4, stop={"patience": 2, "hold_out": 0.3}, threshold="youden")

    assert set(result.run.done[0].row["thresholds"]) == {"youden", "sensitivity"}


@pytest.mark.parametrize("sites", [1, 2, 3])
def test_too_few_patients_give_even_odds_and_the_package_says_why(sites):
    result = result_of(0, sites=sites, each=3, rounds=2, threshold=ASKED)

    (stored,) = result.run.packages_of(result.run.done[0])
    assert stored.package.threshold == 0.5
    assert stored.package.threshold_from == "even odds: too few samples that the model had not seen for sensitivity 0.8"
