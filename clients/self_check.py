"""A site attacks what it is about to send: it has the update and its own patients, which no other party has.

Who is found can be read; who is not may be, by a better attack: a count here is a lower bound. Tried are divisions of a
unit's changes, differences of neighbouring units, and where convolutions come first, the same in every dense layer
behind them, against what it sees of the patients; and in first layers what has the low rank of a small batch.
"""

import math
from typing import NamedTuple

import numpy as np

from fedsmall.clients.hospital import HospitalClient, key_for
from fedsmall.clients.incoming import inner_inputs, pairs_read
from fedsmall.clients.policy import Policy
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import SiteRequest, rounds_before
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PlanError, PolicyError
from fedsmall.features import check_features
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN
from fedsmall.planning.validation import check_task, leaving_comm_rounds
from fedsmall.privacy.discrete_gaussian import keyed_words
from fedsmall.privacy.patient_level import check_patient_level
from fedsmall.privacy.reading import distances_to_others, layers_read, records_read
from fedsmall.privacy.site_level import as_blur, check_private, privatise_one
from fedsmall.training.optimizers import learning_rate
from fedsmall.wire import MODEL, ROUND, Arrays, is_buffer, join, parts, split

CLOSE = 0.2  # a record counts as given away within this share of what sets it apart from the site's others
RANK, ZERO = 1e-5, 1e-4  # below these shares of the largest, a singular value and a slope are rounding's
MOST = 9  # patients of a batch from which on the draws below seldom find anybody
TRIES, ROUNDS = 4096, 4  # draws of units that are off for one patient: each with a chance of about 2**(1 - batch)
FIRST, LAST = 1.0, 8.0  # blur: from as large as the update, doubled as long as somebody can be read


class Blurred(NamedTuple):
    """The arrays that may leave, their blur ``kappa`` or 0, and how many patients could be ``read`` without."""

    sent: Arrays
    kappa: float
    read: int


def check_released(plan: Plan, raw: RawSite) -> int:
    """The numbers in a model of the plan. PlanError where its privacy does not hold, or exact sums are asked for."""
    model = initial_model(plan, raw.task)
    buffers = [name for name in model if is_buffer(name)]
    check_features(plan)
    check_task(plan, raw.task)
    check_private(plan, leaving_comm_rounds(plan), buffers)
    if plan.privacy.is_patient_level:
        check_patient_level(plan, buffers)
    if plan.privacy.counted and raw.scaled:
        raise PlanError(
            "the plan's privacy does not cover the exact sums by which features are scaled; state their public ranges "
            "in the task, as in ranges = {age = [0, 120]}"
        )
    return sum(array.size for array in model.values())


def patients_read(
    received: Arrays,
    sent: Arrays,
    plan: Plan,
    patients: np.ndarray,
    left: float = 1.0,
    within: float = CLOSE,
    inner: Arrays | None = None,
) -> int:
    """The number of a site's ``patients`` (patients, ...) that our attack reads from all it sends: a lower bound.

    ``received`` and ``sent`` are a communication round's arrays as on the wire ("arrays/0.weight"), ``left`` the share
    of the former that weight decay left. Moments and controls are gradients themselves: they are tried as they are, and
    against what came. ``inner`` is what dense layers behind convolutions see, {layer: (patients, inputs)}; trees: 0.
    """
    if not plan.method.trains_networks:
        return 0
    received_parts, start = parts(received), parts(received).get(MODEL, {})
    model, sizes = parts(sent).get(MODEL, {}), distances_to_others(patients)
    is_read = np.zeros(len(patients), dtype=bool)
    views = {layer: patients.reshape(len(patients), -1) for layer in layers_read(model, patients[0].size)}
    views |= inner or {}
    for share in {1.0, left}:
        origin = {name: share * array for name, array in start.items()}
        is_read |= records_read(origin, model, patients, within, sizes)
        for layer, seen in views.items():
            is_read |= _read_in(layer, origin, model, seen, within)
    for key, arrays in parts(sent).items():
        for prefix, group in _groups(arrays).items() if key != MODEL else ():
            before = _groups(received_parts.get(key, {})).get(prefix, {})
            for origin in _origins(group, before, start, plan):
                is_read |= records_read(origin, group, patients, within, sizes)
    return int(is_read.sum())


def _read_in(layer: str, start: Arrays, model: Arrays, seen: np.ndarray, within: float) -> np.ndarray:
    """Which patients one layer gives away, of whom it has ``seen`` (patients, inputs): by units, pairs and rank."""
    before, after = ({n: held[n] for n in held if n.rpartition(".")[0] == layer} for held in (start, model))
    sizes = distances_to_others(seen)
    alone = records_read(before, after, seen, within, sizes)
    found = read_low_rank(before, after, layer, np.random.default_rng(0))
    nearest = np.linalg.norm(found[:, None] - seen, axis=2).min(axis=0, initial=np.inf)
    return np.asarray(alone | pairs_read(start, model, layer, seen, within, sizes) | (nearest <= within * sizes))


def read_low_rank(start: Arrays, sent: Arrays, layer: str, rng: np.random.Generator) -> np.ndarray:
    """The records that a dense first ``layer`` was trained on, (found, features); none where its change has full rank.

    Of one step, or of several on the same few patients: their change is slopes @ records, of a rank no larger than the
    batch. A ReLU makes slopes sparse: directions in which many units did not move are single patients' (SPEAR, Dimitrov
    et al. 2024). Where one hidden layer ends in two classes all slopes behind a unit are alike, and few are read.
    """
    names = [f"{layer}.weight", f"{layer}.bias"]
    if not sent.keys() >= set(names):
        return np.empty((0, sent[names[0]].shape[1]))
    moved = np.column_stack([np.subtract(sent[name], start[name], dtype=float) for name in names])
    if not np.isfinite(moved).all():
        return np.empty((0, moved.shape[1] - 1))
    left, sizes, right = np.linalg.svd(moved, full_matrices=False)
    rank = int((sizes > RANK * sizes[0]).sum()) if sizes[0] else 0
    if not 0 < rank < min(MOST, *moved.shape):
        return np.empty((0, moved.shape[1] - 1))
    left, right = left[:, :rank] / np.linalg.norm(left[:, :rank], axis=1).max(), sizes[:rank, None] * right[:rank]
    found = _sparse_directions(left, rng)
    records = np.linalg.lstsq(found, right, rcond=None)[0] if len(found) == rank else np.empty((0, moved.shape[1]))
    return np.asarray(records[:, :-1] / records[:, -1:])


def _sparse_directions(left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Columns, (rank, rank), along which most rows of ``left`` (units, rank) are zero; fewer where none are found."""
    left = left[np.linalg.norm(left, axis=1) > ZERO]  # units that nobody moved say nothing
    units, rank = left.shape
    chosen = np.empty((rank, 0))
    for _ in range(ROUNDS):
        rows = rng.random((TRIES, units)).argpartition(rank - 1, axis=1)[:, : rank - 1]
        directions = np.linalg.svd(left[rows])[2][:, -1] if rank > 1 else np.ones((1, 1))
        zeros = (np.abs(left @ directions.T) < ZERO).sum(axis=0)
        for direction in directions[np.argsort(-zeros)][: (zeros > rank).sum()]:
            apart = direction - chosen @ np.linalg.lstsq(chosen, direction, rcond=None)[0]
            if np.linalg.norm(apart) > 0.01:
                chosen = np.column_stack([chosen, direction])
            if chosen.shape[1] == rank:
                return chosen
    return chosen


def check_leaving(log: SiteLog, order: SiteRequest, sent: Arrays, client: HospitalClient) -> tuple[Arrays, float]:
    """The arrays that may leave after the site has tried to read its own patients from them, and the blur."""
    if not sent:
        return sent, 0.0
    patients, key, start = client.trainer.seen(client.home.train.x), client.noise_key or b"", client.set_out
    networks = client.plan.method.trains_networks and not client.plan.has_own_models
    inner = inner_inputs(split(start, MODEL), client.plan, client.home.task, patients) if networks else {}
    left = left_by_decay(order.plan, int(order.config[ROUND]), client.steps)
    guard = blur_update(start, sent, order.plan, patients, left, order.policy, key, inner)
    if guard.kappa:
        found = "our patients could be read from the update (by our own attack, a lower bound)"
        reason = f"{found}: noise {guard.kappa:g} times as large was added"
        log.write("blurred", run=str(order.config[RUN]), kind="train", t=order.config[ROUND], reason=reason)
    return guard.sent, guard.kappa


def blur_update(
    received: Arrays,
    sent: Arrays,
    plan: Plan,
    patients: np.ndarray,
    left: float,
    policy: Policy,
    key: bytes,
    inner: Arrays | None = None,
) -> Blurred:
    """``sent``, its model blurred until no more patients can be read from it than the policy allows.

    What is at least as much by an epsilon or an exposure is left alone. The noise is drawn from the site's ``key`` for
    this very update; ``left`` and ``inner`` are as in :func:`patients_read`. Raises PolicyError where the policy
    refuses, and where no blur helps.
    """
    model, start = parts(sent).get(MODEL, {}), parts(received).get(MODEL, {})
    privacy, most = plan.privacy, policy.most_read
    if privacy.blur is None and as_blur(privacy, sum(a.size for a in model.values())) >= FIRST:
        return Blurred(sent, 0.0, 0)
    hidden = (privacy.blur or 0) >= FIRST
    if plan.recipe.augment and not hidden and most < len(patients) and layers_read(model, patients[0].size):
        raise PolicyError(
            "augment changes the images, and a layer sees each of them whole: what was changed could be read from the "
            "update, and would not be known again here; take a convolutional network, or privacy = {blur = 1}"
        )
    read = still = patients_read(received, sent, plan, patients, left, inner=inner)
    if read > most and policy.when_read == "refuse":
        raise PolicyError(
            "patients here could be read from the update, and the policy says to send none such (when_read); take "
            "larger batches, or write privacy = {exposure = 1.0} under the method"
        )
    kappa, now, noise = FIRST / 2, sent, keyed_words(key_for(key, sent))
    while still > most and kappa < LAST:
        kappa *= 2
        now = sent | join(**{MODEL: privatise_one(model, start, Privacy(blur=kappa), noise)})
        still = patients_read(received, now, plan, patients, left, inner=inner)
    if still > most:
        raise PolicyError(
            "patients here could be read under any blur, or from what goes beside the model without blur; take "
            'privacy = {exposure = 1.0}, optimizer_state = "reset", or a method that sends the model alone'
        )
    return Blurred(now, kappa if read > most else 0.0, read)


def left_by_decay(plan: Plan, t: int, steps: int) -> float:
    """The share of a model that weight decay leaves in so many steps up to round ``t``, where that alone moves it."""
    recipe, rounds = plan.recipe, rounds_before(plan).get(t, 1)
    rates = [learning_rate(recipe, now, plan.rounds) for now in range(t - rounds + 1, t + 1)]
    left = math.prod(max(0.0, 1 - rate * recipe.weight_decay) for rate in rates)
    return left ** (steps / rounds) if recipe.optimizer == "sgd" else 1.0


def _groups(arrays: Arrays) -> dict[str, Arrays]:
    """Arrays by their part of each layer: {"momentum": {"0.weight": ...}}."""
    groups: dict[str, Arrays] = {}
    for name, array in arrays.items():
        prefix, _, parameter = name.rpartition("/")
        groups.setdefault(prefix, {})[parameter] = array
    return groups


def _origins(group: Arrays, before: Arrays, start: Arrays, plan: Plan) -> list[Arrays]:
    """What an array beside a model may have set out from: zero, what came, that decayed, or a model."""
    alike = [{name: array for name, array in known.items() if name in group} for known in (before, start)]
    whole = [known for known in alike if known.keys() == group.keys()]
    decay = plan.recipe.betas[0] if plan.recipe.optimizer == "adam" else plan.recipe.momentum
    faded = [{name: decay * array for name, array in whole[0].items()}] if before and whole else []
    return [{name: np.zeros_like(array) for name, array in group.items()}, *whole, *faded]
