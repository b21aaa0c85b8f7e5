"""One likelihood over all rounds reads past blur; what that takes is rounds, a large model, or knowing the others."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmall.extensions.audit.by_likelihood import Target, explain, targets_of
from fedsmall.extensions.audit.likelihood import Site, misfit, nearest_patients, public_batches, unexplained
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from tests.extensions.audit.worlds import plan_of

DATA = os.environ.get("FEDSMALL_DATA")
CHANCE = 1 / 150  # of naming a patient of the last of the four hospitals


def log_likelihood(site: Site, x: torch.Tensor, y: torch.Tensor, kappa: float) -> torch.Tensor:
    """The logarithm, (tries,), of how likely blur ``kappa`` made what is seen of such sites, but for a constant.

    Of one who knows all other patients, and asks of a single one: the model is then exactly Gaussian.
    """
    left, own = unexplained(site, x, y)
    variance = kappa**2 * own / site.seen.size
    return -(left / variance + site.seen.size * variance.log()).sum(0) / 2


def small_sites(blur: float, hidden: list[int], rounds: int, **keys: object) -> Plan:
    """40 hospitals with 4 patients each, whole sites as batches, an average after every round."""
    recipe = {"lr": 0.03, **keys.pop("recipe", {})}
    settings = {"aggregate_every": 1, "privacy": {"blur": blur}, **keys.pop("method", {})}
    shape = {"sites": 40, "samples_per_site": 4, "partition": "iid", "model_options": {"hidden": hidden}}
    return plan_of("FedAvg", settings, rounds=rounds, recipe=recipe, **shape, **keys)


@cache
def targets(blur: float, hidden: tuple[int, ...] = (1024,), rounds: int = 5) -> list[Target]:
    plan = small_sites(blur, list(hidden), rounds)
    return list(targets_of(plan, build_federation(plan), sites=2))


@pytest.mark.thorough
def test_a_wide_model_tells_most_records_in_five_rounds_of_blur():
    found = explain(small_sites(1.0, [1024], rounds=5), sites=1)

    assert found.patients == 4
    assert found.close >= 3
    assert found.named >= 3
    assert found.misfit < found.at_truth + 0.01  # the attack is at its end


@pytest.mark.thorough
def test_sixteen_times_as_much_blur_hides_all_of_them():
    found = explain(small_sites(16.0, [1024], rounds=5), sites=1)

    assert found.close == 0
    assert found.error > 0.5


@pytest.mark.thorough
@pytest.mark.parametrize(("exposure", "close"), [(1e6, 4), (1.0, 0)])
def test_a_limit_of_exposure_hides_what_the_same_attack_reads_without(exposure, close):
    """The attacker is told how large the noise of every communication round is."""
    found = explain(small_sites(0.0, [1024], rounds=3, method={"privacy": {"exposure": exposure}}), sites=1)

    assert found.close == close
    assert found.at_truth == pytest.approx(1, abs=0.01)


@pytest.mark.thorough
def test_a_run_that_noise_drove_away_is_said_to_have_diverged():
    chain = {"permute_every": 1, "aggregate_every": 10, "privacy": {"exposure": 1.0}}
    shape = {"sites": 40, "samples_per_site": 4, "partition": "iid", "model_options": {"hidden": [64]}}

    assert explain(plan_of("FedDC", chain, rounds=40, recipe={"lr": 0.1}, **shape), sites=1) == "it diverged"


def test_sites_that_took_part_in_nothing_give_nothing_away():
    few = small_sites(0.0, [4], rounds=2, method={"fraction": 0.05})

    assert explain(few) == "none of the first 2 sites took part"


@pytest.mark.slow
@pytest.mark.parametrize(("blur", "least", "most"), [(1.0, 11, 16), (16.0, 0, 0)])
def test_the_demo_of_200_rounds_gives_most_patients_away_under_blur_and_none_under_sixteen_times_as_much(
    blur, least, most
):
    found = explain(small_sites(blur, [32, 16], rounds=200), sites=4)

    assert least <= found.close <= most
    assert abs(found.at_truth - 1) < 0.01


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="takes the heart disease of four hospitals")
def test_patients_of_real_hospitals_are_named_from_batches_of_which_the_seed_is_public():
    settings = {"aggregate_every": 1, "privacy": {"blur": 1.0}}
    keys = {"recipe": {"lr": 0.05, "batch": 16, "local_steps": 1}, "model_options": {"hidden": [16]}}
    plan = plan_of("FedAvg", settings, task="heart_disease", sites=None, samples_per_site=None, rounds=200, **keys)

    found = explain(plan, Path(str(DATA)), sites=4)

    assert found.named / found.patients > 30 * CHANCE
    assert abs(found.at_truth - 1) < 0.01


@pytest.mark.parametrize("blur", [0.5, 1.0, 4.0])
def test_at_the_truth_the_misfit_is_one_per_number(blur):
    for target in targets(blur):
        at_truth = misfit(target.site, target.records[None], target.answers[None])
        elsewhere = misfit(target.site, 1.2 * target.records[None], target.answers[None])

        assert float(at_truth) == pytest.approx(1, abs=0.02)
        assert elsewhere > at_truth


def test_one_update_tells_who_knows_the_others_whether_a_patient_was_there():
    """The likelihood ratio: of the patients who were there, and of as many of another site in their place."""
    (site, records, answers), (_, others, of_others) = targets(1.0, rounds=1)
    told = []
    for k in range(len(records)):
        x, y = torch.stack([records] * 2), torch.stack([answers] * 2)
        x[1, k], y[1, k] = others[k], of_others[k]
        told.append(log_likelihood(site, x, y, 1.0))

    assert all(there - instead > 10 for there, instead in told)  # natural logarithms: e**10 to one


def test_no_blur_hides_from_who_knows_the_others_whether_a_patient_was_there():
    """Its size follows the update's length, which tells by itself: much more noise is no help."""
    (site, records, answers), (_, others, _) = targets(256.0, rounds=1)
    x = torch.stack([records] * 2)
    x[1, 0] = others[0]

    there, instead = log_likelihood(site, x, torch.stack([answers] * 2), 256.0)

    assert there - instead > 10


def test_the_smallest_angle_names_a_patient_whatever_the_length():
    records = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 8)))

    assert nearest_patients(3 * records[[2, 0, 4]], records).tolist() == [2, 0, 4]


def test_who_is_in_a_batch_follows_from_the_seed_of_the_plan():
    recipe = small_sites(1.0, [8], 1, recipe={"batch": 2, "local_steps": 1}).recipe

    rows, weights = public_batches(recipe, 7, "site", 5, [range(1, 2), range(2, 4)])

    assert rows[0, :2].tolist() == rng_for(7, "batches", "site", 1).permutation(5)[:2].tolist()
    assert weights.tolist() == [[0.015, 0.015, 0, 0], [0.015] * 4]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"method": {"privacy": {"sealed": True, "secure": True}}}, "no server sees single models"),
        ({"recipe": {"momentum": 0.5}}, "updates are not steps of plain gradient descent"),
        ({"method": {"privacy": {"clip": 1.0, "noise": 1.0}}}, "its noise is no blur"),
        ({"model_options": {"hidden": [8], "dropout": 0.5}}, "its model is no mlp"),
    ],
)
def test_what_is_not_attacked_so_is_said(keys, why):
    options = keys.pop("model_options", None)
    plan = small_sites(1.0, [8], rounds=2, **keys)
    plan = plan.model_copy(update={"model_options": options}) if options else plan

    assert explain(plan) == why
