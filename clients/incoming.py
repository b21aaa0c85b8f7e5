"""What comes in to be trained on, held against the plan and against what this site knows of the run.

A server that crafts the model reads patients from what is trained on it: from units of one direction and many
thresholds (a ladder), where the difference of two neighbours is one patient, or from units that all see a patient alike
(Boenisch et al. 2023, "When the curious abandon honesty"; Fowl et al. 2022, "Robbing the fed"). Here are the signs of
the models that we know, at thresholds that no honest run of ours comes near
(tests/attacks/test_crafted.py). Who knows the signs can craft a model without them: what holds then is noise.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fedsmall.algorithm.gate import GATE, GROWTH, OF_MODEL, size
from fedsmall.clients.hospital import HospitalClient
from fedsmall.clients.memory import RoundMemory
from fedsmall.codec import encode_model, encode_own_model
from fedsmall.data.federation import Task
from fedsmall.errors import PolicyError
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.privacy.reading import records_read
from fedsmall.training.gradients.layers import halves
from fedsmall.travel.journey import starting
from fedsmall.travel.schedule import comm_rounds_of
from fedsmall.wire import MODEL, Arrays, is_shaped_as, join, split

FOLDER, MOVED = "incoming", "moved"  # in the folder of a run; and there, what the site has moved by
ALIKE = 1e-4  # of the first model: other machines draw its last digits otherwise
NEAR = 0.02  # sin**2 of the angle between units of one direction
CHANCE = 1e-3  # that two of a layer's units are so near by chance: with few inputs they must be nearer
MOST_IDLE = 0.75  # of a layer's units, that are on for one patient at most, at sites of enough patients
MOST_BIAS = 3.0  # times the size of a unit's weights, in the median of a layer; honest ones had up to .7 in any unit
ODDS = 3.0  # weights of an output count as so large: its threshold is a logarithm of odds, 9 for one in 8,000
FEW = 32  # patients, below which honest units are idle too: a chain over sites of 8 patients had up to all
UNITS = 4  # in a layer of which shares are taken
NEIGHBOURS = 4  # of a unit, with which its differences are taken
ROWS = 1024  # of units that are compared at once


class Known(NamedTuple):
    """The last global ``model`` that came, or the first of all, and how far this site has ``moved`` models since."""

    model: Arrays
    moved: float


class Incoming:
    """The models that come to one site in a run, whose ``folder`` remembers the last; as round ``t`` sees them."""

    def __init__(self, folder: Path, client: HospitalClient, t: int, sites: int) -> None:
        self._client, self._plan, self._sites, self._t = client, client.plan, sites, t
        self._memory = RoundMemory(folder / FOLDER, t)
        self._expected = _initial(client.plan.model_dump_json(), client.home.task)
        held = self._memory.read()
        self.known = Known(split(held, MODEL), float(held[MOVED])) if held else None

    def check_arrays(self, model: Arrays) -> None:
        """Raise PolicyError for a model whose arrays have other names, shapes or dtypes than the plan's."""
        if (model or self._plan.method.divergence is None) and not is_shaped_as(model, self._expected):
            raise PolicyError("the model that came is not that of the plan")

    def check(self, model: Arrays) -> None:
        """Raise PolicyError, in one line, for a model that no honest server of this plan sends here now."""
        if not model or not self._plan.method.trains_networks:
            return
        task, expected = self._client.home.task, self._expected
        if not all(np.isfinite(array).all() for array in model.values()):
            raise PolicyError("the model that came holds a number that is not finite")
        if self._t == comm_rounds_of(self._plan)[0].t:
            starts = _first_models(self._plan, task, self._sites, self._client)
            if not any(_are_alike(model, start) for start in starts):
                raise PolicyError("the first model that came is not the one with which the plan begins")
        elif apart := self._strays(model):
            raise PolicyError(apart)
        x = None if self._plan.has_own_models else self._client.trainer.seen(self._client.home.train.x)
        if sign := sign_of_craft(model, expected, self._plan, task, x):
            raise PolicyError(
                "the model that came looks crafted to read patients, or its training has diverged "
                f"(features not scaled, too large a rate): {sign}"
            )

    def keep(self, model: Arrays, is_global: bool, sent: Arrays) -> None:
        """Remember a model that came, where it ``is_global``, and how far what this site ``sent`` has moved it."""
        moved = distance(sent or self._client.trained, split(self._client.set_out, MODEL))
        if self.known is None or (model and is_global):
            self.known = Known(model or split(self._client.set_out, MODEL), 0.0)
        far = self.known.moved + (moved if np.isfinite(moved) else 0.0)
        self._memory.write({MOVED: np.array(far), **join(**{MODEL: self.known.model})})

    def _strays(self, model: Arrays) -> str:
        """Why a model may not follow what is known; empty where it may, or where nothing is."""
        if self.known is None:
            return ""
        apart = distance(model, self.known.model)
        times = 1.0 if follows_sites(self._plan) else OF_MODEL
        if apart <= max(GATE * self.known.moved, times * size(self.known.model)):
            return ""
        return (
            f"the model that came is further from the last global one than {GATE:g} times what was trained here since, "
            "and than that model is large"
        )


@lru_cache(maxsize=2)
def _initial(plan: str, task: Task) -> Arrays:
    return initial_model(Plan.model_validate_json(plan), task)


def follows_sites(plan: Plan) -> bool:
    """Whether a global model moves no further than the sites' own do, and all of them begin alike."""
    method = plan.method
    return method.server == "none" and method.rule != "feddyn" and plan.initial_models != "independent"


def distance(one: Arrays, other: Arrays) -> float:
    """The norm of the difference of two models, over their floats."""
    floats = [name for name in one if one[name].dtype.kind == "f" and name in other]
    return size({name: np.subtract(one[name], other[name], dtype=np.float64) for name in floats})


def _first_models(plan: Plan, task: Task, sites: int, client: HospitalClient) -> Iterator[Arrays]:
    """The models with which a plan may begin at a site: its own, or that of any group."""
    site = client.home.site
    if plan.initial_models == "independent" and not plan.method.grouped:
        yield encode_own_model(plan, initial_model(plan, task, site), site).read
        return
    draw: Callable[[str | None], Arrays] = lru_cache(lambda group: initial_model(plan, task, group))
    for group, start in enumerate(starting(plan, sites, draw)):
        yield encode_model(plan, start, 0, group).read


def _are_alike(model: Arrays, start: Arrays) -> bool:
    return all(
        np.allclose(model[n], a, rtol=ALIKE, atol=ALIKE * float(np.abs(a).max(initial=0))) for n, a in start.items()
    )


# -- signs of a crafted model


def sign_of_craft(model: Arrays, first: Arrays, plan: Plan, task: Task, x: np.ndarray | None) -> str:
    """What in a model shows that it was made to read patients ``x`` (patients, ...); empty where nothing does.

    ``first`` is the plan's initial model: what is in that is no sign. Without ``x`` no unit is tried on patients.
    """
    for name, array in model.items():
        if array.dtype.kind == "f" and array.size and np.abs(array).max() > GROWTH * _large(first[name]):
            return f"{name} holds numbers more than {GROWTH:,.0f} times as large as at the beginning"
    layers = [name for name in model if name.endswith("weight") and model[name].ndim > 1]
    for name in layers:
        twins = count_twins(model[name]) - count_twins(first[name])
        if twins > max(2, len(model[name]) // 64):
            return f"{twins} of {len(model[name])} units of {name} have the direction of another"
        bias = name.removesuffix("weight") + "bias"
        if bias in model and len(model[name]) >= UNITS:
            least = ODDS if name == layers[-1] else 0.0
            usual, before = (_usual_bias(held[name], held[bias], least) for held in (model, first))
            if usual > MOST_BIAS * max(1.0, before):
                return f"the thresholds of {bias} are {usual:.0f} times as large as the weights"
    if x is None or len(x) < FEW:
        return ""
    for number, idle in enumerate(idle_units(model, plan, task, x)):
        if len(idle) >= UNITS and idle.mean() > MOST_IDLE:
            return f"{idle.sum()} of {len(idle)} units of hidden layer {number + 1} are on for one patient here at most"
    return ""


def count_twins(weight: np.ndarray) -> int:
    """How many units, rows of (units, ...), have another's direction or its opposite, more nearly than by chance."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    inputs, norms = rows.shape[1], np.linalg.norm(rows, axis=1)
    rows = rows[norms > 0] / norms[norms > 0, None]
    if inputs < 3 or len(rows) < 2:
        return 0
    near = min(NEAR, (CHANCE / len(rows) ** 2) ** (2 / (inputs - 1)))
    count = 0
    for first in range(0, len(rows), ROWS):
        cosines = rows[first : first + ROWS] @ rows.T  # (rows, units)
        count += int(((1 - cosines**2 < near).sum(axis=1) > 1).sum())  # itself is one
    return count


def _usual_bias(weight: np.ndarray, bias: np.ndarray, least: float) -> float:
    norms = np.linalg.norm(weight.reshape(len(weight), -1).astype(np.float64), axis=1).clip(least)
    return float(np.median(np.abs(bias[norms > 0]) / norms[norms > 0])) if norms.any() else 0.0


def _large(array: np.ndarray) -> float:
    """The largest number of a first array, at least that of a unit of so many inputs."""
    return max(float(np.abs(array).max(initial=0)), 1 / max(1, array[0].size if array.ndim else 1) ** 0.5)


def idle_units(model: Arrays, plan: Plan, task: Task, x: np.ndarray) -> list[np.ndarray]:
    """For each ReLU, which units (channels, anywhere in an image) are on for one of the patients ``x`` at most."""
    seen = _inputs(model, plan, task, x, nn.ReLU).values()
    return [((s.flatten(2).amax(2) if s.dim() > 2 else s) > 0).sum(0).numpy() <= 1 for s in seen]  # (units,)


def inner_inputs(model: Arrays, plan: Plan, task: Task, x: np.ndarray) -> dict[str, np.ndarray]:
    """What each dense layer behind a convolution sees of the patients ``x``: {layer: (patients, inputs)}."""
    if not any(array.ndim > 2 for name, array in model.items() if name.endswith("weight")):
        return {}
    seen = _inputs(model, plan, task, x, nn.Linear)
    return {name: inputs.numpy() for name, inputs in seen.items() if inputs.dim() == 2}


def _inputs(model: Arrays, plan: Plan, task: Task, x: np.ndarray, kind: type[nn.Module]) -> dict[str, torch.Tensor]:
    """What the layers of a ``kind`` are given when a model answers ``x``, by their names, and calls."""
    found: dict[str, torch.Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda _, given: found.__setitem__(f"{name} {len(found)}" if name in found else name, given[0].clone())

    head = deepcopy(_head(plan.model_dump_json(), task))  # hooks are this call's own
    for name, module in head.named_modules():
        if isinstance(module, kind):
            module.register_forward_pre_hook(note(name))
    with torch.no_grad():
        state = {name: torch.from_numpy(np.array(array)) for name, array in model.items()}
        torch.func.functional_call(head, state, (torch.from_numpy(x.astype(plan.dtype)),))
    return found


@lru_cache(maxsize=2)
def _head(plan: str, task: Task) -> nn.Module:
    return halves(Plan.model_validate_json(plan), task).head.eval()


# -- what a crafted model tells


def pairs_read(
    start: Arrays, sent: Arrays, layer: str, records: np.ndarray, within: float, sizes: np.ndarray
) -> np.ndarray:
    """Which records of a dense ``layer`` can be read from differences of two neighbouring units, (patients,) of bool.

    Neighbours have nearly one direction and threshold, weighed by the next layer: who moves both alike falls out.
    """
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    if bias not in sent or len(sent[bias]) < 2:
        return np.zeros(len(records), dtype=bool)
    units = np.column_stack([start[weight].reshape(len(start[weight]), -1), start[bias]]).astype(np.float64)
    if not np.isfinite(units).all():
        return np.zeros(len(records), dtype=bool)
    one, other = _neighbours(units)
    moved = [np.subtract(sent[name], start[name], dtype=np.float64) for name in (weight, bias)]
    share = _shares(start, layer, one, other)
    apart = [array[one] - share.reshape(-1, *[1] * (array.ndim - 1)) * array[other] for array in moved]
    differences = dict(zip((weight, bias), apart, strict=True))
    return records_read({n: np.zeros_like(a) for n, a in differences.items()}, differences, records, within, sizes)


def _neighbours(units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of units, rows of weights and threshold (units, inputs + 1): each with the few that are nearest to it."""
    rows = units / np.maximum(np.linalg.norm(units[:, :-1], axis=1, keepdims=True), 1e-300)
    count, squares, nearest = min(NEIGHBOURS, len(rows) - 1), (rows**2).sum(axis=1), []
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        apart = squares - 2 * part @ rows.T  # (rows, units), but for what is the same for all of a row
        apart[np.arange(len(part)), np.arange(first, first + len(part))] = np.inf
        nearest.append(np.argpartition(apart, count - 1, axis=1)[:, :count])
    return np.repeat(np.arange(len(rows)), count), np.concatenate(nearest).ravel()


def _shares(start: Arrays, layer: str, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How much more the next dense layer listens to ``one`` unit than to the ``other``, (pairs,); 1 without such."""
    names = list(start)
    later = (start[name] for name in names[names.index(f"{layer}.bias") + 1 :] if name.endswith("weight"))
    following = next((w.astype(np.float64) for w in later if w.ndim == 2), None)
    if following is None or following.shape[1] != len(start[f"{layer}.bias"]):
        return np.ones(len(one))
    products = (following[:, one] * following[:, other]).sum(axis=0)
    squares = (following**2).sum(axis=0)[other]
    return np.asarray(np.divide(products, squares, out=np.ones(len(one)), where=squares > 0))
