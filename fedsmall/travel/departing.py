"""Models on a stack as they leave their sites: rounded or cut, where the plan asks for it, and of how many bytes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedsmall.codec.check_wire import in_codes, top_share
from fedsmall.codec.differences import difference
from fedsmall.codec.known import Known
from fedsmall.codec.parcels import pack_stack
from fedsmall.codec.top import cut
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import at_contacts, make_private
from fedsmall.training.stack import Rows, Stack, Tensors, leaving
from fedsmall.travel.traffic import bytes_of_one
from fedsmall.wire import CARRIED, MODEL, Arrays


class Door:
    """Through which models come to the sites of a stack and leave them: noised first, then rounded, or cut.

    Where the largest changes alone leave, every site has what is left over, and bytes differ from model to model: they
    are counted contact by contact, by what sites are ``known`` to have.
    """

    def __init__(self, plan: Plan, names: Sequence[str], known: Known) -> None:
        self._plan, self._names, self._known = plan, names, known
        self._share = top_share(plan)
        self._left: Arrays = {}  # {name: (sites, ...)}
        self._after: Arrays = {}  # of the models of this contact, {name: (models, ...)}
        self._bytes_down, self._bytes_up = 0, np.zeros(0, dtype=np.int64)

    def arrive(self, stack: Stack, at: np.ndarray, common: np.ndarray) -> None:
        """Note what comes to the sites ``at`` which models are now; ``common`` says which are the common one."""
        if self._share is None:
            return
        rows, grounds = Rows(stack.state), [self._known.ground(self._names[site]) for site in at]
        alike: dict[int, int] = {}  # the common model is coded once for all that have the same
        for row, (ground, flag) in enumerate(zip(grounds, common, strict=True)):
            size = alike.get(ground.base) if flag else None
            size = size or _bytes(difference(rows.row(row), ground.reference))
            alike |= {ground.base: size} if flag else {}
            self._bytes_down += size

    def leave(self, stack: Stack, received: Callable[[], Stack], at: np.ndarray, t: int) -> None:
        """Make what leaves the sites ``at`` which models are after round ``t``, in place, what it is for others.

        ``received`` gives the models as they came to the sites.
        """
        names = [self._names[site] for site in at]
        if at_contacts(self._plan) is not None:
            make_private(self._plan, stack, received(), names, t)
        if self._share is not None:
            self._cut(stack, Rows(received().state).arrays(), at)
        make_small(self._plan, stack, names, t)

    def _cut(self, stack: Stack, came: Arrays, at: np.ndarray) -> None:
        models, left = Rows(stack.state).arrays(), {name: array[at] for name, array in self._left.items()}
        sent, self._after = cut(models, came, left, self._share or 1.0)
        each = ({name: array[row] for name, array in sent.items()} for row in range(len(at)))
        self._bytes_up = np.array(
            [_bytes(difference(one, {name: a[row] for name, a in came.items()})) for row, one in enumerate(each)]
        )
        _put(stack.state, sent)

    def close(self, at: np.ndarray, good: np.ndarray) -> int:
        """Take which models of the contact are used; gives the bytes of models in its orders and good answers."""
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
    for part, tensors in _parts(plan, stack) if in_codes(plan) else ():
        _put(tensors, pack_stack(plan, part, Rows(tensors).arrays(), names, t)[0])


def bytes_on_the_way(plan: Plan, stack: Stack) -> tuple[int, int]:
    """The bytes of the arrays of a model as it travels, and of what goes beside it: those of one that is packed.

    Of a model none where they differ from one to the other, and a :class:`Door` counts them.
    """
    if not in_codes(plan):
        return bytes_of_one(plan.recipe, stack)
    sizes = {part: pack_stack(plan, part, Rows(some).arrays([0]), [""], 0)[1] for part, some in _parts(plan, stack)}
    return sizes[MODEL] if top_share(plan) is None else 0, sizes.get(CARRIED, 0)


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _parts(plan: Plan, stack: Stack) -> list[tuple[str, Tensors]]:
    beside = leaving(plan.recipe, stack.optimizer)
    return [(MODEL, stack.state), *([(CARRIED, beside)] if beside else [])]


def _put(tensors: Tensors, arrays: Arrays) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(np.array(arrays[name])))
