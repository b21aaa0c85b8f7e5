"""Checks of replies before they are used: one bad model would poison a mean, or visit every site."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SType
from pydantic import ValidationError

from fedsmall.aggregation.aggregate import check_aggregator
from fedsmall.aggregation.combiners import Aggregate, Combiner, FoldTrees
from fedsmall.aggregation.server_optimizers import CORRECTIONS, parameters_of
from fedsmall.errors import PlanError, ReplyError
from fedsmall.plan import Plan
from fedsmall.strategies.records import array_records, shape_and_dtype
from fedsmall.wire import BLURRED, CARRIED, EXAMPLES, LOSS, METRICS, MODEL, PLAN, RULE, SQUARES, STEPS, read_npy

NPY_HEADER_BYTES = 4096  # far more than any header numpy writes
MOST = 10**9  # samples of a site, and its steps in a communication round, where nothing else is known
MOST_METRICS = 32
KNOWN = {MODEL, CARRIED, RULE}

Signature = dict[str, tuple[tuple[int, ...], str]]


class Limits(NamedTuple):
    """The most that a reply may say: ``examples`` as at the handshake, ``steps`` as ordered, and known ``metrics``."""

    examples: float = MOST
    steps: float = MOST
    metrics: frozenset[str] | None = None


def plan_in(config: Mapping[str, Any]) -> Plan | None:
    """The plan in the orders, or None: in other people's apps the word may mean anything."""
    try:
        return Plan.model_validate_json(str(config[PLAN])) if PLAN in config else None
    except ValidationError:
        return None


def plan_for(combiner: Combiner, config: Mapping[str, Any]) -> Plan | None:
    """The plan in the orders. Raises PlanError where the method's half at the sites needs a plan, and there is none."""
    plan, asked = plan_in(config), set()
    if plan is not None:
        of_trees = FoldTrees.half_of if plan.method.tree is not None else ""
        asked = {CORRECTIONS.get(plan.method.rule), CORRECTIONS.get(plan.method.server), of_trees}
    if combiner.half_of and combiner.half_of not in asked:
        raise PlanError(
            f"{combiner.half_of} has a half at the sites, which fedsmall's own clients do (fedsmall.clients.app) under "
            'a plan of that method: give train_config=ConfigRecord({"plan": plan.model_dump_json()}). With other '
            "clients take Averaging, FedDC, or a strategy of Flower's."
        )
    return plan


def check_enough(combiner: Combiner, models: int, model: Mapping[str, np.ndarray]) -> None:
    """Raise PlanError where there are fewer ``models`` than the aggregator needs for such a ``model``."""
    if isinstance(combiner, Aggregate):
        numbers = sum(model[name].size for name in parameters_of(model))
        check_aggregator(combiner.aggregator, models, numbers, options=combiner.options)


def samples_told(answer: Mapping[str, Any]) -> int:
    """The number of samples in a site's answer to the handshake; 0 where it said none."""
    count = answer.get(EXAMPLES)
    return count if isinstance(count, int) and 0 < count <= MOST else 0


def limits_of(plan: Plan | None, rounds: int, answers: Mapping[str, Mapping[str, Any]], site: str) -> Limits:
    """The limits of a site's reply: its samples at the handshake, and the steps of its order."""
    samples = samples_told(answers.get(site, {})) or MOST
    if plan is None:
        return Limits(samples)
    return Limits(samples, plan.recipe.count_steps(samples) * rounds, frozenset((EXAMPLES, LOSS, STEPS, BLURRED)))


class NotFinite(ReplyError):
    """A model that is not finite, perhaps by the doing of another site than its sender."""


def signature(arrays: Mapping[str, Any]) -> Signature:
    """Names, shapes and dtypes of a model, or of a record, whose numbers are not read."""
    return {name: (tuple(array.shape), str(array.dtype)) for name, array in arrays.items()}


def check_reply(reply: Message, expected: Signature, limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
    """Raise ReplyError, in one line without a number of the reply's data, unless the reply may be used.

    A model of the ``expected`` signature with companions, and metrics within ``limits``; else NotFinite or ReplyError.
    """
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines()
        raise ReplyError(lines[0][:300] if lines else "the site's program failed and gave no reason")
    check_content(reply.content, expected, limits)


def check_content(content: RecordDict, expected: Signature, limits: Limits) -> None:
    """As :func:`check_reply`, for an answer's content."""
    records, metrics = array_records(content), content.get(METRICS)
    if MODEL not in records:
        raise ReplyError(f"expected a record {MODEL!r} with the model; the reply has none")
    if unknown := records.keys() - KNOWN:
        raise ReplyError(f"expected the model and what travels with it; the reply has {len(unknown)} more records")
    for record in records.values():
        check_headers(record)
    if not isinstance(metrics, MetricRecord):
        raise ReplyError(f"expected a record {METRICS!r} with the sample count; the reply has none")
    check_record(records[MODEL], expected)
    for key in records.keys() - {MODEL}:
        _check_companion(records[key], expected)
    check_metrics(metrics, limits)


def check_headers(record: ArrayRecord) -> None:
    """Raise ReplyError where an array names no shape and dtype that numpy knows."""
    for name, array in record.items():
        if shape_and_dtype(array) is None:
            raise ReplyError(f"array {_cut(name)}: names no shape and dtype that numpy knows")


def check_record(record: ArrayRecord, expected: Signature) -> None:
    """Raise ReplyError unless a record with sound headers has these arrays; NotFinite for the numbers alone."""
    received = signature(record)
    if received.keys() != expected.keys():
        missing, extra = len(expected.keys() - received.keys()), len(received.keys() - expected.keys())
        raise ReplyError(f"expected {len(expected)} arrays by name; {missing} are missing and {extra} unknown")
    for name, (shape, dtype) in expected.items():
        if received[name] != (shape, dtype):
            raise ReplyError(f"array {_cut(name)}: expected {dtype} {shape}, came {_short(received[name])}")
    _check_numbers(record)


def _check_companion(record: ArrayRecord, expected: Signature) -> None:
    """Check what travels beside the model: ".../parameter" of that parameter's shape, or a single number."""
    for name, (shape, dtype) in signature(record).items():
        parameter = expected.get(name.rpartition("/")[2], ((), ""))
        if shape != parameter[0] or np.dtype(dtype).kind not in "fiu":
            raise ReplyError(f"array {_cut(name)}: came {_short((shape, dtype))}, which no part of this model has")
    _check_numbers(record)
    for name, array in record.items():
        counts = np.dtype(array.dtype).kind in "iu" or SQUARES in name.split("/")
        if counts and (read_npy(array.data) < 0).any():
            raise ReplyError(f"array {_cut(name)} holds a number below zero, which no count and no square is")


def _check_numbers(record: ArrayRecord) -> None:
    for name, array in record.items():
        values = read_array(name, array)
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            raise NotFinite(f"array {_cut(name)} holds a number that is not finite (NaN or Inf)")


def read_array(name: str, array: Array) -> np.ndarray:
    """The array's numbers. Raises ReplyError unless its bytes are those of what it names, before they are copied."""
    if (named := shape_and_dtype(array)) is None:
        raise ReplyError(f"array {_cut(name)}: names no shape and dtype that numpy knows")
    expected_bytes = math.prod(named[0]) * named[1].itemsize
    if not expected_bytes <= len(array.data) <= expected_bytes + NPY_HEADER_BYTES:
        raise ReplyError(f"array {_cut(name)}: {len(array.data)} bytes came where about {expected_bytes} were expected")
    try:
        values = read_npy(array.data)
    except Exception:
        # numpy raises many kinds of error on random bytes; none of them says more to a reader than this
        raise ReplyError(f"array {_cut(name)}: its bytes are no numpy array") from None
    if (values.shape, values.dtype, array.stype) != (*named, SType.NUMPY):
        raise ReplyError(f"array {_cut(name)}: its bytes are not of the shape and dtype that it names")
    return values


def checked_sums(record: ArrayRecord, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """A site's sums, of these ``shapes``. Raises ReplyError where they are not sums over one set of samples."""
    if set(record) != set(shapes):
        raise ReplyError(f"expected {len(shapes)} sums by name, and others came")
    sums = {name: read_array(name, array) for name, array in record.items()}
    for name, array in sums.items():
        if array.shape != shapes[name] or array.dtype != np.float64:
            raise ReplyError(f"{name!r} is not of the shape and dtype that was expected")
        if not np.isfinite(array).all() or (array < 0).any():
            raise ReplyError(f"{name!r} holds a number that is below zero or not finite")
    _check_counts(sums)
    return sums


def _check_counts(sums: Mapping[str, np.ndarray]) -> None:
    count, called = sums["count"], sums.get("called")
    whole = [sums[name] for name in ("count", "correct", "scores", "called") if name in sums]
    if any((array != np.round(array)).any() for array in whole) or count < 1:
        raise ReplyError("a count is no whole number, or there is nobody")
    binned = [sums["scores"].sum(axis=(1, 2))] if "scores" in sums else []
    binned += [sums["confidence"][0].sum()] if "confidence" in sums else []
    binned += [called.sum()] if called is not None else []
    wrong = any((np.asarray(count_of) != count).any() for count_of in binned) or sums.get("correct", count) > count
    if wrong or (called is not None and np.trace(called) != sums["correct"]):
        raise ReplyError("its counts do not add up to the number of its samples")


def check_metrics(metrics: Mapping[str, Any], limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
    """Raise ReplyError unless a reply's metrics are few, finite and known, and its counts within limits."""
    if len(metrics) > MOST_METRICS:
        raise ReplyError(f"expected {MOST_METRICS} metrics at most; {len(metrics)} came")
    for name, most in ((EXAMPLES, limits.examples), (STEPS, limits.steps)):
        count = metrics.get(name, 1 if name == STEPS else None)
        if not (isinstance(count, int | float) and 0 < count <= MOST):  # false for NaN too
            raise ReplyError(f"{name!r} is not a sane count")
        if count > most:
            limit = "the site said at the handshake" if name == EXAMPLES else "were ordered"
            raise ReplyError(f"{name!r} is more than {limit}")
    for name, value in metrics.items():
        if limits.metrics is not None and name not in limits.metrics:
            raise ReplyError(f"metric {_cut(name)} is none that a site of this run has")
        # other people's apps may tell lists of numbers, our own sites tell single ones
        may_list = limits.metrics is None and name not in (LOSS, EXAMPLES, STEPS, BLURRED)
        numbers = value if isinstance(value, list) and may_list else [value]
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ReplyError(f"metric {_cut(name)} is not one finite number")


def _cut(name: object) -> str:
    return repr(str(name)[:80])


def _short(seen: tuple[tuple[int, ...], str]) -> str:
    return f"{seen[1][:12]} {str(seen[0])[:40]}"


Note = Callable[[str, str, str], None]


def accept_replies(
    orders: Sequence[tuple[Message, str]], replies: Iterable[Message], note: Note, check: Callable[[str, Message], None]
) -> tuple[dict[str, Message], dict[str, str]]:
    """The good replies, by site in order; and why the models of other sites are not finite.

    The first reply counts. ``check(site, reply)`` raises ReplyError or NotFinite; ``note(site, kind, reason)`` hears.
    """
    sites = {order.metadata.message_id: site for order, site in orders}
    answered: dict[str, Message] = {}
    for reply in replies:
        site = sites.get(reply.metadata.reply_to_message_id)
        if site is None or site in answered:
            note(site or "?", "set aside", "answers no order of this communication round, or answers it twice")
        else:
            answered[site] = reply
    good: dict[str, Message] = {}
    spoilt: dict[str, str] = {}
    for site in sorted(answered):
        try:
            check(site, answered[site])
            good[site] = answered[site]
        except NotFinite as error:
            spoilt[site] = str(error)
        except ReplyError as error:
            note(site, "set aside", str(error))
    for site, reply in good.items():
        if kappa := reply.content.metric_records[METRICS].get(BLURRED):
            note(site, "blurred", f"patients could be read from its update: it added noise {kappa:g} times as large")
    for site in sorted({site for _, site in orders} - set(answered)):  # an order that was never sent has no id
        note(site, "silent", "no answer before the deadline")
    return good, spoilt


def leave_out_unusual(good: dict[str, Message], note: Note) -> None:
    """Remove the replies whose companions are not those of most sites."""
    records_of = {site: array_records(reply.content) for site, reply in good.items()}
    beside = {
        site: {key: signature(record) for key, record in sorted(records.items()) if key != MODEL and len(record)}
        for site, records in records_of.items()
    }
    usual = max(beside.values(), key=list(beside.values()).count, default={})
    for site in [site for site in good if beside[site] != usual]:
        note(site, "set aside", "what came beside the model is not what most sites sent")
        del good[site]
