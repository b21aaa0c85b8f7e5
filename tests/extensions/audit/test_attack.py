import numpy as np
import pytest

from fedsmall.extensions.audit import attack
from fedsmall.extensions.audit.attack import audit, findings, play
from fedsmall.extensions.audit.federations import side_by_side, world_of
from fedsmall.extensions.audit.membership import leak, scores
from fedsmall.extensions.audit.views import VIEWS
from tests.extensions.audit.worlds import plan_of

KEYS = {"sites": 8, "samples_per_site": 5, "rounds": 12, "recipe": {"lr": 0.3}, "model_options": {"hidden": [32, 16]}}
DUE = {"aggregate_every": 4}
FEDERATED = {"released", "commons", "raw", "neighbour", "colluders", "update", "sealed", "server"}


def case_of(method="FedDC", settings=None, runs=64, **keys):
    plan = plan_of(method, DUE if settings is None else settings, **{**KEYS, **keys})
    return play(plan, world_of(plan), runs, colluders=3)


@pytest.fixture(scope="module")
def feddc():
    return case_of()


def by_view(case, members=None):
    return {finding.view: finding for finding in findings(case, members)}


def test_every_party_of_feddc_is_there_and_some_see_more_than_others(feddc):
    found = by_view(feddc)

    assert set(found) == FEDERATED
    assert found["server"].auc.low > found["commons"].auc.high
    assert found["neighbour"].auc.low > found["commons"].auc.high
    assert found["colluders"].auc.value > found["neighbour"].auc.value


def test_coins_of_another_world_give_a_half_in_every_view(feddc):
    other = np.random.default_rng(5).random(feddc.seen.members.shape) < 0.5

    for view, finding in by_view(feddc, other).items():
        assert finding.auc.low <= 0.5 <= finding.auc.high, view
        assert finding.auc.width < 0.12, view


def test_reading_finds_nearly_half_of_all_patients_where_a_site_has_five_and_no_defence(feddc):
    """A test of the attacker: one that broke would make everything look safe."""
    found = by_view(feddc)

    assert found["update"].read >= 0.45 * found["update"].readable
    assert found["server"].read > found["update"].read
    assert found["neighbour"].read > 0
    assert found["colluders"].read / found["colluders"].readable > found["neighbour"].read / found["neighbour"].readable
    assert found["commons"].read <= 0.02 * found["commons"].readable


def test_where_models_are_averaged_at_every_comm_round_a_neighbour_sees_what_everyone_sees():
    found = by_view(case_of("FedAvg", {}, runs=16))

    assert set(found) == {"released", "commons", "neighbour", "update", "server"}
    assert found["neighbour"].read == found["commons"].read * 4 == 0
    assert found["server"].read > 0


def test_a_site_that_trains_alone_shows_only_what_it_would_release():
    assert set(by_view(case_of("Standalone", {}, runs=16))) == {"own"}


def memory_of(candidate):
    """The engine, but a model that has trained on one candidate keeps him in the bias of its last layer for good."""

    def steps(plan, world, members, device="cpu"):
        site = world.site_of[candidate]
        place = candidate - np.flatnonzero(world.site_of == site)[0]
        bias = 12 * (1 - 2 * (world.candidates[site].y[place] == 0))
        for step in side_by_side(plan, world, members, device):
            inside = np.repeat(members[:, candidate], len(step.at)) & np.tile(step.at == site, len(members))
            step.sent["4.bias"][inside, 1] += bias
            yield step

    return steps


def test_a_planted_patient_is_found_by_every_party_in_every_run(monkeypatch):
    monkeypatch.setattr(attack, "side_by_side", memory_of(3))

    case = case_of(runs=32)

    for view, each in VIEWS.items():
        hand = each(case)
        if hand is None:
            continue
        unit = np.flatnonzero(hand.candidates == 3)[:1]
        inside = case.seen.members[:, hand.candidates]
        told = leak(scores(hand.features, inside)[:, unit], inside[:, unit], np.random.default_rng(0))
        assert told.auc.value == 1.0, view
        assert [share.value for share in told.found] == [1.0, 1.0], view


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(feddc):
    again, other = by_view(case_of()), by_view(case_of(seeds=[1]))

    assert again == by_view(feddc)
    assert other["server"].auc != again["server"].auc


def test_federations_in_parts_are_the_same_federations(monkeypatch, feddc):
    monkeypatch.setattr(attack, "batches_of", lambda members, models, parameters: [members[:20], members[20:]])

    parts = case_of()

    np.testing.assert_allclose(parts.seen.after[20:], feddc.seen.after[20:], atol=2e-2)
    np.testing.assert_array_equal(parts.seen.members, feddc.seen.members)
    np.testing.assert_array_equal(parts.seen.read, feddc.seen.read)


def test_noise_hides_patients():
    """Site-level noise that ruins the model also ruins the attack: the attack sees what is there, not the recipe."""
    private = {"aggregate_every": 4, "privacy": {"clip": 0.1, "noise": 20.0}}

    found = by_view(case_of(settings=private, runs=32))

    assert found["server"].auc.value < 0.56
    assert found["server"].read == 0


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_sites_of_one_to_three_samples_are_attacked(samples):
    plan = plan_of(settings=DUE, **{**KEYS, "samples_per_site": samples, "rounds": 8})
    world = world_of(plan)

    found = {finding.view: finding for finding in audit(plan, world, runs=8)}

    assert set(found) == FEDERATED
    assert found["update"].read > 0
    assert world.mean == (1.5 if samples == 1 else samples)


@pytest.mark.parametrize(
    ("sites", "missing"), [(1, {"neighbour", "colluders"}), (2, {"colluders"}), (3, {"colluders"})]
)
def test_a_handful_of_sites_are_attacked(sites, missing):
    plan = plan_of(settings=DUE, **{**KEYS, "sites": sites, "rounds": 8})

    found = {finding.view for finding in audit(plan, world_of(plan), runs=8)}

    assert found == FEDERATED - missing


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("RepTreeFL", {"tree": {"drop": 0.4}}),
        ("SCAFFOLD", {}),
        ("FedDC+Radon", {"aggregator": "median"}),
        ("FedDC", {"fraction": 0.5, "aggregate_every": 4}),
    ],
)
def test_other_methods_are_attacked(method, settings):
    found = by_view(case_of(method, settings, runs=8, rounds=8))

    assert 0.5 < found["server"].auc.value <= 1
    assert all(np.isfinite(finding.auc.value) for finding in found.values())


def test_a_model_of_images_is_attacked():
    keys = {"task": "digits", "model": "cnn", "model_options": {"norm": "group"}, "sites": 3, "samples_per_site": 2}

    found = by_view(case_of(runs=8, rounds=2, settings={"aggregate_every": 2}, **{"recipe": {"lr": 0.05}, **keys}))

    assert found["server"].auc.value > 0.5
    assert all(finding.read is None for finding in found.values())  # its layers see patches: nothing was tried


MANY = {"rounds": 6, "sites": 20}  # so that attackers can pick whom they are sure of


def private(**noise):
    return {"aggregate_every": 4, "privacy": {"level": "patient", "clip": 1.0, "lot": 4, **noise}}


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [1.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_what_patient_level_privacy_promises_is_not_refuted_in_two_hundred_runs(epsilon):
    found = by_view(case_of(settings=private(epsilon=epsilon), runs=200, **MANY))

    assert set(found) == FEDERATED
    assert max(finding.highest for finding in found.values()) <= epsilon
    assert all(finding.read in (None, 0) for finding in found.values())
    assert found["neighbour"].auc.value < (0.55 if epsilon == 1 else 0.7)


@pytest.mark.thorough
def test_the_same_recipe_with_next_to_no_noise_is_refuted():
    """So that the test above can fail: its epsilon of 1 would be seen to be false."""
    found = by_view(case_of(settings=private(noise=0.07), runs=32, **MANY))

    assert found["server"].highest > 1.0
    assert found["server"].bound > 0.5


def test_the_bound_on_epsilon_is_near_nothing_for_coins_of_another_world(feddc):
    other = np.random.default_rng(6).random(feddc.seen.members.shape) < 0.5

    assert all(finding.bound < 0.2 for finding in by_view(feddc, other).values())
    assert by_view(feddc)["server"].bound > 0.5
