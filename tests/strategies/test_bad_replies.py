"""Whatever a reply holds, it is used as it should be or set aside with a reason; none ends the run, none costs memory.

FEDSMALL_REPLIES sets how many mutated replies are tried (a few hundred by default).
"""

import contextlib
import os
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedsmall.errors import ReplyError
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.sim.engines.inprocess import act_as_server
from fedsmall.strategies.checks import MOST, Limits, check_reply, limits_of, signature
from fedsmall.strategies.server.grid import _digest
from fedsmall.wire import CARRIED, EXAMPLES, LOSS, METRICS, MODEL, RULE, STEPS

TRIES = int(os.environ.get("FEDSMALL_REPLIES", "400"))
SHAPES = {"0.weight": (3, 4), "0.bias": (3,), "1.running_mean": (3,), "1.num_batches_tracked": ()}


def model(rng):
    floats = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items() if "num" not in name}
    return floats | {"1.num_batches_tracked": np.array(5, np.int64)}


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def good(rng):
    metrics = MetricRecord({EXAMPLES: 12, LOSS: 0.5, "steps": 3})
    return RecordDict({MODEL: record(model(rng)), METRICS: metrics})


EXPECTED = signature(record(model(np.random.default_rng(0))))


def any_name(rng):
    return str(rng.choice(sorted(SHAPES)))


def with_array(content, name, array):
    content[MODEL] = ArrayRecord({**content[MODEL], name: array})
    return content


def not_finite(content, rng):
    name = str(rng.choice([n for n in SHAPES if "num" not in n]))
    values = content[MODEL][name].numpy().copy()
    values.flat[rng.integers(values.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return with_array(content, name, Array(values))


def wrong_shape(content, rng):
    name = any_name(rng)
    shapes = [(0,), (1, 1), (4, 3), (3, 4, 1), (7,)]
    return with_array(content, name, Array(np.zeros(shapes[rng.integers(len(shapes))], EXPECTED[name][1])))


def wrong_dtype(content, rng):
    name = any_name(rng)
    dtypes = [d for d in ("float64", "float16", "int32", "uint8", "bool", "complex64") if d != EXPECTED[name][1]]
    return with_array(content, name, Array(np.zeros(SHAPES[name], rng.choice(dtypes))))


def extra_array(content, rng):
    return with_array(content, f"extra{rng.integers(99)}", Array(np.zeros(2, np.float32)))


def missing_array(content, rng):
    gone = any_name(rng)
    content[MODEL] = ArrayRecord({name: array for name, array in content[MODEL].items() if name != gone})
    return content


def random_bytes(content, rng):
    name = any_name(rng)
    dtype, shape = EXPECTED[name][1], SHAPES[name]
    lie = Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=rng.bytes(int(rng.integers(0, 300))))
    return with_array(content, name, lie)


def flipped_bytes(content, rng):
    """Bytes of a real array changed in its header: the header may now promise terabytes, or name a pickle."""
    name = any_name(rng)
    data = bytearray(content[MODEL][name].data)
    for _ in range(int(rng.integers(1, 4))):
        if data:
            data[rng.integers(min(128, len(data)))] = rng.integers(256)
    lie = Array(dtype=EXPECTED[name][1], shape=SHAPES[name], stype="numpy.ndarray", data=bytes(data))
    return with_array(content, name, lie)


def huge_promise(content, rng):
    name = any_name(rng)
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    lie = Array(dtype=EXPECTED[name][1], shape=SHAPES[name], stype="numpy.ndarray", data=data)
    return with_array(content, name, lie)


def really_huge(content, rng):
    name = any_name(rng)
    return with_array(content, name, Array(np.zeros((1000, int(rng.integers(2, 200))), np.float32)))


def bad_count(content, rng):
    counts = [-1, 0, 10**15, float("nan"), float("inf"), -0.5]
    content[METRICS] = MetricRecord({EXAMPLES: counts[rng.integers(len(counts))], LOSS: 0.5})
    return content


def bad_metric(content, rng):
    content[METRICS] = MetricRecord({EXAMPLES: 3, "loss": float(rng.choice([np.nan, np.inf]))})
    return content


def no_metrics(content, rng):
    del content[METRICS]
    return content


def no_model(content, rng):
    del content[MODEL]
    return content


def extra_record(content, rng):
    content[f"more{rng.integers(9)}"] = record({"w": np.zeros(2)})
    return content


def bad_companion(content, rng):
    values = [np.full((3, 4), np.nan, np.float32), np.zeros((9, 9), np.float32), np.zeros(3, "U1")]
    content[CARRIED] = record({"momentum/0.weight": values[rng.integers(len(values))]})
    return content


NO_DTYPES = ["", "None", "zzz", ",", "f4,(", "(9999999999999999,)f4", "M8[99999999999999999999s]", "3", "object"]


def no_dtype(content, rng):
    """An array that names no dtype, in any record."""
    lie = Array(dtype=NO_DTYPES[rng.integers(len(NO_DTYPES))], shape=(3,), stype="numpy.ndarray", data=b"")
    if rng.integers(2):
        return with_array(content, "0.bias", lie)
    content[str(rng.choice([CARRIED, RULE]))] = ArrayRecord({"momentum/0.bias": lie})
    return content


def no_shape(content, rng):
    shapes = [(-3,), (10**30,), (3, -1), (True, 3)]
    lie = Array(dtype="float32", shape=shapes[rng.integers(len(shapes))], stype="numpy.ndarray", data=b"")
    if rng.integers(2):
        return with_array(content, "0.bias", lie)
    content[CARRIED] = ArrayRecord({"momentum/0.bias": lie})
    return content


def another_kind_of_array(content, rng):
    name = any_name(rng)
    array = content[MODEL][name]
    return with_array(content, name, Array(dtype=array.dtype, shape=array.shape, stype="pickle", data=array.data))


def long_name(content, rng):
    content[CARRIED] = record({f"{'x' * 5000}\n/0.bias": np.zeros(4)})
    return content


def bad_steps(content, rng):
    steps = [0, -1, float("nan"), float("inf"), 10**15, [1.0, 2.0], []]
    content[METRICS] = MetricRecord({EXAMPLES: 3, LOSS: 0.5, STEPS: steps[rng.integers(len(steps))]})
    return content


def several_losses(content, rng):
    content[METRICS] = MetricRecord({EXAMPLES: 3, LOSS: [0.5, 0.5]})
    return content


def many_metrics(content, rng):
    content[METRICS] = MetricRecord({EXAMPLES: 3, **{f"m{number}": 0.5 for number in range(40)}})
    return content


def several_numbers(content, rng):
    content[METRICS] = MetricRecord({EXAMPLES: 3, LOSS: [0.5, 0.5]})
    return content


def negative_squares(content, rng):
    content[CARRIED] = record({"exp_avg_sq/0.bias": np.array([1.0, -1e-9, 0.0], np.float32)})
    return content


def negative_steps(content, rng):
    content[CARRIED] = record({"step": np.array(-1)})
    return content


def metrics_of_another_kind(content, rng):
    content.pop(METRICS, None)  # Flower warns at every record that takes the place of one of another kind
    content[METRICS] = ConfigRecord({EXAMPLES: "twelve"})
    return content


MUTATIONS = [
    not_finite,
    wrong_shape,
    wrong_dtype,
    extra_array,
    missing_array,
    random_bytes,
    huge_promise,
    really_huge,
    bad_count,
    bad_metric,
    no_metrics,
    no_model,
    extra_record,
    bad_companion,
    no_dtype,
    no_shape,
    another_kind_of_array,
    long_name,
    bad_steps,
    several_losses,
    many_metrics,
    several_numbers,
    negative_squares,
    negative_steps,
    metrics_of_another_kind,
]


def reply_with(content):
    act_as_server()
    order = Message(RecordDict(), 5, "train")
    order.metadata.__dict__["_message_id"] = "m1"
    return Message(content, reply_to=order)


def test_a_good_reply_passes():
    check_reply(reply_with(good(np.random.default_rng(0))), EXPECTED)


@pytest.mark.parametrize("asked", [{}, {"local_steps": 3}, {"local_epochs": 2}])
@pytest.mark.parametrize("batch", [None, 1, 4])
def test_the_most_steps_are_those_of_the_samples_that_a_site_has_told(asked, batch):
    recipe = Recipe(batch=batch, **asked)
    plan = Plan(name="t", task="digits", recipe=recipe, method=method("FedAvg"))

    for samples in (1, 2, 3, 4, 9):
        assert limits_of(plan, 2, {"a": {EXAMPLES: samples}}, "a").steps == 2 * len(recipe.batch_sizes(samples))
    assert limits_of(plan, 2, {"a": {EXAMPLES: MOST}}, "a").steps <= 4 * MOST  # no list of so many


LIMITS = Limits(examples=12, steps=3, metrics=frozenset((EXAMPLES, LOSS, STEPS)))


def test_a_reply_within_its_limits_passes():
    check_reply(reply_with(good(np.random.default_rng(0))), EXPECTED, LIMITS)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({EXAMPLES: 13}, "'num-examples' is more than the site said at the handshake"),
        ({EXAMPLES: 10**9}, "'num-examples' is more than the site said at the handshake"),
        ({EXAMPLES: 3, STEPS: 4}, "'steps' is more than were ordered"),
        ({EXAMPLES: 3, "age": 71.0}, "metric 'age' is none that a site of this run has"),
    ],
)
def test_a_reply_that_says_more_than_it_may_is_set_aside(metrics, reason):
    content = good(np.random.default_rng(0))
    content[METRICS] = MetricRecord(metrics)

    with pytest.raises(ReplyError, match=reason):
        check_reply(reply_with(content), EXPECTED, LIMITS)


def test_an_error_is_told_in_one_line():
    with pytest.raises(ReplyError) as told:
        check_reply(reply_with(Error(code=2, reason="essen: no\n  Traceback")), EXPECTED)

    assert str(told.value) == "essen: no"


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_every_kind_of_bad_reply_is_set_aside_with_one_line(mutate):
    for seed in range(max(1, TRIES // 20)):
        rng = np.random.default_rng(seed)

        with pytest.raises(ReplyError) as told:
            check_reply(reply_with(mutate(good(rng), rng)), EXPECTED)

        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 500


def allocated_by(judge, reply):
    """What a check says, and the bytes it takes at its peak; traced only here, for tracing slows the rest most."""
    tracemalloc.start()
    try:
        said = judge(reply)
        return said, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def verdict(reply):
    try:
        check_reply(reply, EXPECTED)
    except ReplyError as error:
        return str(error)
    return "used"


def test_replies_mutated_at_random_never_crash_and_never_cost_memory():
    """Several mutations one after the other: each reply passes with a usable model, or is set aside."""
    outcome = Counter()
    rng = np.random.default_rng(12345)

    for _ in range(TRIES):
        content = good(rng)
        for mutate in rng.choice([flipped_bytes, *MUTATIONS], size=int(rng.integers(1, 4))):
            # a mutation may find nothing left to change, or itself believe what an earlier one promised
            with contextlib.suppress(Exception):
                content = mutate(content, rng)
        reply = reply_with(content)

        said, at_peak = allocated_by(verdict, reply)
        _, for_the_log = allocated_by(_digest, reply)

        assert max(at_peak, for_the_log) < 200_000
        assert "\n" not in said
        outcome["used" if said == "used" else "set aside"] += 1
        if said == "used":
            values = {name: array.numpy() for name, array in content[MODEL].items()}
            assert all(values[name].shape == shape for name, shape in SHAPES.items())
            assert all(np.isfinite(value).all() for value in values.values())
    assert outcome["set aside"] > 0.8 * TRIES
    assert sum(outcome.values()) == TRIES
