"""Blur: noise as large as the update, on weights and running statistics alike."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedsmall.errors import PlanError
from fedsmall.features import check_features
from fedsmall.methods import method
from fedsmall.parts import NO_PRIVACY, Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.validation import check_real_sites
from fedsmall.privacy.reading import distances_to_others, records_read
from fedsmall.privacy.site_level import SHRINK, add_blur, as_blur, check_private, privatise, privatise_one
from fedsmall.wire import Arrays


def models(rng: np.random.Generator, count: int, size: int = 60) -> Arrays:
    return {
        "0.weight": rng.normal(size=(count, size, 20)).astype(np.float32),
        "0.bias": rng.normal(size=(count, size)).astype(np.float32),
        "1.running_var": rng.uniform(0.5, 2, size=(count, size)).astype(np.float32),
        "1.num_batches_tracked": np.arange(count, dtype=np.int64),
    }


def streams(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(i) for i in range(count)]


def length(one: Arrays, other: Arrays, row: int, *names: str) -> float:
    return float(np.linalg.norm(np.concatenate([(one[n][row] - other[n][row]).ravel() for n in names])))


@pytest.mark.parametrize("kappa", [0.1, 1.0, 5.0])
def test_the_noise_is_kappa_times_as_long_as_the_update_of_each_model(kappa: float) -> None:
    rng = np.random.default_rng(0)
    received = models(rng, 3)
    sent = {n: a + (10.0**-k * 0.1 if a.dtype == np.float32 else 0) for k, (n, a) in enumerate(received.items())}
    sent["0.weight"] = received["0.weight"] + np.array([1.0, 0.1, 0.0], dtype=np.float32)[:, None, None]
    sent["0.bias"] = received["0.bias"]

    out = add_blur(sent, received, kappa, streams(3))

    for row in (0, 1):
        update = length(sent, received, row, "0.weight", "0.bias")
        assert length(out, sent, row, "0.weight", "0.bias") == pytest.approx(kappa * update, rel=0.1)
    np.testing.assert_array_equal(out["0.weight"][2], sent["0.weight"][2])
    np.testing.assert_array_equal(out["1.num_batches_tracked"], sent["1.num_batches_tracked"])


def test_noise_averages_out_over_sites() -> None:
    rng = np.random.default_rng(0)
    received = {"w": np.zeros((400, 50))}
    sent = {"w": rng.normal(size=(400, 50))}

    out = add_blur(sent, received, 1.0, streams(400))

    assert np.abs((out["w"] - sent["w"]).mean(axis=0)).max() < 0.25


def test_a_running_variance_stays_above_zero_and_its_dtype_and_type_stay() -> None:
    received = models(np.random.default_rng(0), 2)
    sent = {n: (a * 0.01).astype(a.dtype) for n, a in received.items()}

    out = add_blur(sent, received, 5.0, streams(2))

    assert (out["1.running_var"] >= received["1.running_var"] / SHRINK * 0.999).all()
    assert {n: a.dtype for n, a in out.items()} == {n: a.dtype for n, a in sent.items()}
    assert list(out) == list(sent)


def test_one_model_at_a_hospital_gets_the_noise_that_it_gets_on_a_stack() -> None:
    received, sent = (models(np.random.default_rng(k), 3) for k in (0, 1))

    stack = privatise(sent, received, Privacy(blur=1.0), streams(3))
    one = privatise_one(
        {n: a[2] for n, a in sent.items()}, {n: a[2] for n, a in received.items()}, Privacy(blur=1.0), streams(3)[2]
    )

    for name, array in one.items():
        np.testing.assert_allclose(array, stack[name][2], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"blur": 1.0, "clip": 1.0}, "remove one"),
        ({"blur": 1.0, "noise": 1.0}, "remove one"),
        ({"blur": 1.0, "budget": 1.0}, "remove one"),
        ({"blur": -1.0}, "greater than or equal to 0"),
        ({"blur": float("nan")}, "finite"),
        ({}, "or {blur = 1}; give one"),
        ({"noise": 1.0}, "or {blur = 1}; give one"),
    ],
)
def test_blur_and_clip_exclude_each_other(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        Privacy(**values)


def plan(name: str = "FedDC", privacy: Privacy | None = None, **recipe: Any) -> Plan:
    return Plan(name="p", task="t", rounds=4, recipe=Recipe(**recipe), method=method(name, privacy=privacy))


def test_what_blur_does_not_cover_is_refused_unless_it_is_open() -> None:
    with pytest.raises(PlanError, match="nothing beside the model"):
        check_features(plan(privacy=Privacy(blur=1.0), momentum=0.9))
    check_features(plan(privacy=Privacy(blur=0.0), momentum=0.9))
    check_private(plan(privacy=Privacy(blur=1.0)), 4, ["1.running_mean"])


def test_models_that_are_handed_on_as_they_are_must_be_written_down() -> None:
    with pytest.raises(PlanError, match=r"FedDC hands over models.*\{exposure = 1\.0\}"):
        check_real_sites(plan())
    for privacy in (Privacy(blur=0.0), Privacy(blur=1.0), Privacy(clip=1.0, noise=1.0)):
        check_real_sites(plan(privacy=privacy))
    check_real_sites(plan("FedAvg"))


def test_noise_of_a_clip_counts_as_blur_by_its_length() -> None:
    assert as_blur(NO_PRIVACY, 100) == 0
    assert as_blur(Privacy(blur=0.5), 100) == 0.5
    assert as_blur(Privacy(clip=3.0, noise=0.2), 100) == pytest.approx(2.0)


def test_a_record_is_as_large_as_what_sets_it_apart() -> None:
    images = np.full((4, 10), 7.0)
    images[0, 0] += 3
    still = {"0.weight": np.zeros((1, 10)), "0.bias": np.zeros(1)}
    mean = {"0.weight": images.mean(axis=0)[None], "0.bias": np.ones(1)}

    assert records_read(still, mean, images, 0.2).all()
    assert distances_to_others(images)[0] == pytest.approx(3)
    assert not records_read(still, mean, images, 0.2, distances_to_others(images))[0]
    assert distances_to_others(images[:1])[0] == pytest.approx(np.linalg.norm(images[0]))
