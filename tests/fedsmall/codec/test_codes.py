"""Models in fewer bits: nothing is lost on average, little at once, and the bytes are those of the codes."""

import numpy as np
import pytest

from fedsmall.codec import MOST, SCALES, CodecError, decode, encode
from fedsmall.randomness import rng_for

WIRES = ("half", "int8")
MODEL = {
    "0.weight": np.random.default_rng(0).standard_normal((5, 7)),
    "0.bias": np.array([1e-9, -3e-9, 0.0]),
    "1.running_var": np.array([1e-7, 4.0]),
    "1.num_batches_tracked": np.array(12),
    "temperature": np.array(0.3),
}


def stack_of(models: int, model: dict[str, np.ndarray] = MODEL) -> dict[str, np.ndarray]:
    return {name: np.repeat(array[None], models, axis=0) for name, array in model.items()}


def rngs(models: int) -> list[np.random.Generator]:
    return [rng_for(0, "quantise", number) for number in range(models)]


def both_ways(models: dict[str, np.ndarray], wire: str, like: dict[str, np.ndarray] = MODEL) -> dict[str, np.ndarray]:
    count = len(next(iter(models.values())))
    return decode(encode(models, wire, rngs(count)), wire, like, "float64")


def test_rounding_at_random_keeps_the_mean_where_rounding_to_the_nearest_would_not():
    draws = 4000
    read = both_ways(stack_of(draws), "int8")["0.weight"]

    step = np.abs(MODEL["0.weight"]).max() / MOST
    error = read.mean(axis=0) - MODEL["0.weight"]
    nearest = np.round(MODEL["0.weight"] / step) * step - MODEL["0.weight"]
    assert np.abs(error).max() < 5 * step / 2 / np.sqrt(draws)  # five standard errors of the widest two-point draw
    assert np.abs(nearest).max() > 5 * step / 2 / np.sqrt(draws)


@pytest.mark.parametrize(("wire", "steps"), [("half", 2**10), ("int8", MOST)])
def test_no_number_moves_by_more_than_a_step(wire, steps):
    read = both_ways(stack_of(3), wire)

    for name in ("0.weight", "0.bias"):
        step = np.abs(MODEL[name]).max() / steps
        assert np.abs(read[name] - MODEL[name]).max() <= step * (1 + 1e-6)


@pytest.mark.parametrize("wire", WIRES)
def test_buffers_counters_and_single_numbers_go_as_they_are(wire):
    read = both_ways(stack_of(2), wire)

    for name in ("1.running_var", "1.num_batches_tracked", "temperature"):
        np.testing.assert_array_equal(read[name][0], MODEL[name])
        assert read[name].dtype == MODEL[name].dtype


@pytest.mark.parametrize(("wire", "bits"), [("half", 16), ("int8", 8)])
def test_the_bytes_are_those_of_the_codes_and_a_scale_an_array(wire, bits):
    model = {"weight": np.ones((8, 9), np.float32), "bias": np.ones(3, np.float32)}

    sent = encode(stack_of(1, model), wire, rngs(1))

    assert sum(array.nbytes for array in sent.values()) == -(-72 * bits // 8) + -(-3 * bits // 8) + 2 * 4


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_is_rounded_alike_whatever_company_it_is_in(wire):
    together = both_ways(stack_of(4), wire)
    alone = decode(encode(stack_of(1), wire, [rngs(4)[2]]), wire, MODEL, "float64")

    for name in MODEL:
        np.testing.assert_array_equal(together[name][2], alone[name][0])


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_not_hidden(wire, bad):
    model = {"weight": np.array([1.0, bad, 2.0])}

    read = both_ways(stack_of(1, model), wire, model)

    assert not np.isfinite(read["weight"]).all()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [0.0, 5e-46, 1e-300, 3e38])
def test_the_smallest_and_the_largest_numbers_survive(wire, size):
    model = {"weight": np.array([size, -size, size / 2])}

    read = both_ways(stack_of(1, model), wire, model)

    assert np.isfinite(read["weight"]).all()
    np.testing.assert_allclose(read["weight"][0], model["weight"], atol=max(size / 100, 1.5e-45))


def test_small_squares_do_not_become_zero_for_the_step_divides_by_their_roots():
    squares = {"exp_avg_sq/0.weight": np.array([[1.0, 1e-12]]), "exp_avg/0.weight": np.array([[1.0, 1e-6]])}
    like = {"0.weight": np.zeros((1, 2))}

    read = both_ways(stack_of(1, squares), "half", like)
    ratio = read["exp_avg/0.weight"] / np.sqrt(read["exp_avg_sq/0.weight"])

    np.testing.assert_allclose(ratio, 1.0, atol=0.05)
    assert np.float16(1e-12) == 0  # as squares they would be gone


@pytest.mark.parametrize(
    "broken",
    [
        lambda sent: sent.pop(SCALES),
        lambda sent: sent.update({SCALES: sent[SCALES][:, :1]}),
        lambda sent: sent.update({SCALES: sent[SCALES].astype(np.float64)}),
        lambda sent: sent.update({"0.weight": sent["0.weight"].astype(np.int16)}),
        lambda sent: sent.update({"0.weight": sent["0.weight"][:, :2]}),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_codes_that_fit_no_model_are_refused(wire, broken):
    sent = encode(stack_of(1), wire, rngs(1))
    broken(sent)

    with pytest.raises(CodecError, match=r"expected"):
        decode(sent, wire, MODEL, "float32")
