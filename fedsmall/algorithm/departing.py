"""Models on a stack as they leave their sites: noised, rounded or cut where the plan says so, and of how many bytes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedsmall.codec import Known, cut, difference, pack_stack
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import noise_for_comm_round, privatise
from fedsmall.training.stack import Rows, Stack, Tensors, leaving_state
from fedsmall.wire import CARRIED, MODEL, Arrays


class Egress:
    """The egress of a stack: models that leave sites are noised, then compressed by what is ``known`` to sites."""

    def __init__(self, plan: Plan, names: Sequence[str], known: Known) -> None:
        self._plan, self._names, self._known = plan, names, known
        self._share = plan.method.top_share
        self._left: Arrays = {}  # {name: (sites, ...)}
        self._after: Arrays = {}  # of the models of this communication round, {name: (models, ...)}
        self._bytes_down, self._bytes_up = 0, np.zeros(0, dtype=np.int64)

    def arrive(self, stack: Stack, at: np.ndarray, is_global: np.ndarray) -> None:
        """Note what comes to the sites ``at`` which models are now; ``is_global`` flags the global one."""
        if self._share is None:
            return
        rows, versions = Rows(stack.state), [self._known.base_version(self._names[site]) for site in at]
        alike: dict[int, int] = {}  # the global model is coded once for all that have the same
        for row, (version, flag) in enumerate(zip(versions, is_global, strict=True)):
            size = alike.get(version.base) if flag else None
            size = size or _bytes(difference(rows.row(row), version.reference))
            alike |= {version.base: size} if flag else {}
            self._bytes_down += size

    def leave(self, stack: Stack, received: Callable[[], Stack], at: np.ndarray, t: int) -> None:
        """Change, in place, what leaves the sites ``at`` after round ``t``; ``received`` gives the models that came."""
        names = [self._names[site] for site in at]
        if self._plan.privacy.at_comm_rounds:
            make_private(self._plan, stack, received(), names, t)
        if self._share is not None:
            models, start = Rows(stack.state).arrays(), Rows(received().state).arrays()
            sent, self._after = cut(models, start, {name: array[at] for name, array in self._left.items()}, self._share)
            pairs = [
                [{name: array[row] for name, array in part.items()} for part in (sent, start)] for row in range(len(at))
            ]
            self._bytes_up = np.array([_bytes(difference(model, before)) for model, before in pairs])
            _put(stack.state, sent)
        make_small(self._plan, stack, names, t)

    def close(self, at: np.ndarray, good: np.ndarray) -> int:
        """Take which models of this round are used; gives the bytes of models in its orders and good answers."""
        if self._share is None:
            return 0
        total, self._bytes_down = self._bytes_down + int(self._bytes_up[good].sum()), 0
        if not self._left:
            shapes = {name: (len(self._names), *array.shape[1:]) for name, array in self._after.items()}
            self._left = {name: np.zeros(shape, self._after[name].dtype) for name, shape in shapes.items()}
        for name, array in self._after.items():
            self._left[name][at[good]] = array[good]
        return total


def make_small(plan: Plan, stack: Stack, names: Sequence[str], t: int) -> None:
    """Make what leaves the named sites after round ``t``, in place, what those read who get it; in full, itself."""
    for part, tensors in _parts(plan, stack) if plan.method.is_compressed else ():
        _put(tensors, pack_stack(plan, part, Rows(tensors).arrays(), names, t)[0])


def packed_bytes(plan: Plan, stack: Stack) -> tuple[int, int]:
    """The bytes of a compressed model on its way (0 where sizes differ), and of what goes beside it."""
    sizes = {part: pack_stack(plan, part, Rows(some).arrays([0]), [""], 0)[1] for part, some in _parts(plan, stack)}
    return sizes[MODEL] if plan.method.top_share is None else 0, sizes.get(CARRIED, 0)


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _parts(plan: Plan, stack: Stack) -> list[tuple[str, Tensors]]:
    beside = leaving_state(plan.recipe, stack.optimizer)
    return [(MODEL, stack.state), *([(CARRIED, beside)] if beside else [])]


def _put(tensors: Tensors, arrays: Arrays) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(np.array(arrays[name])))


def make_private(plan: Plan, stack: Stack, received: Stack, names: Sequence[str], t: int) -> None:
    """Clip and noise, or blur, in place, what leaves the named sites; ``received`` are the models as they came."""
    if plan.privacy.at_comm_rounds:
        rngs = [noise_for_comm_round(plan.seed, name, t) for name in names]
        _put(stack.state, privatise(Rows(stack.state).arrays(), Rows(received.state).arrays(), plan.privacy, rngs))
