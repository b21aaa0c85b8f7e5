"""Models on a stack as they leave their sites: rounded or cut, where the plan asks for it, and of how many bytes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedsmall.codec.codes import difference
from fedsmall.codec.parcels import pack_stack
from fedsmall.codec.top import Known, cut
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import noise_rng, privatise
from fedsmall.training.stack import Rows, Stack, Tensors, leaving_state
from fedsmall.travel.schedule import Contact
from fedsmall.wire import CARRIED, MODEL, Arrays


class Door:
    """The egress of a stack: models that leave sites are noised first, then rounded or sparsified.

    Under top-k every site has an error feedback residual, and bytes differ from model to model: they are counted
    contact by contact, by what sites are ``known`` to have.
    """

    def __init__(self, plan: Plan, names: Sequence[str], known: Known) -> None:
        self._plan, self._names, self._known = plan, names, known
        self._share = plan.method.top_share
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
        """Apply, in place, noise and compression to the models that leave the sites ``at`` after round ``t``.

        ``received`` gives the models as they came to the sites.
        """
        names = [self._names[site] for site in at]
        if self._plan.privacy.at_contacts:
            make_private(self._plan, stack, received(), names, t)
        if self._share is not None:
            self._cut(stack, Rows(received().state).arrays(), at)
        make_small(self._plan, stack, names, t)

    def _cut(self, stack: Stack, start: Arrays, at: np.ndarray) -> None:
        models, left = Rows(stack.state).arrays(), {name: array[at] for name, array in self._left.items()}
        sent, self._after = cut(models, start, left, self._share or 1.0)
        moved = ({name: array[row] for name, array in sent.items()} for row in range(len(at)))
        self._bytes_up = np.array(
            [_bytes(difference(model, {name: a[row] for name, a in start.items()})) for row, model in enumerate(moved)]
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
    for part, tensors in _parts(plan, stack) if plan.method.is_compressed else ():
        _put(tensors, pack_stack(plan, part, Rows(tensors).arrays(), names, t)[0])


def bytes_on_the_way(plan: Plan, stack: Stack) -> tuple[int, int]:
    """The bytes of a travelling model, and of what goes beside it; 0 where sizes differ (:class:`Door`)."""
    if not plan.method.is_compressed:
        return bytes_of_one(plan.recipe, stack)
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


def bytes_of_one(recipe: Recipe, stack: Stack) -> tuple[int, int]:
    """The bytes of one of the stack's models, and of what goes along with it."""
    return Rows(stack.state).bytes_per_row, Rows(leaving_state(recipe, stack.optimizer)).bytes_per_row


def bytes_of_stretch(
    stretch: Sequence[Contact],
    before: Contact | None,
    order: int,
    reply: tuple[int, int],
    carries: np.ndarray,
    good: np.ndarray,
) -> tuple[int, np.ndarray]:
    """The bytes of a stretch of contacts after the one ``before``, and which travellers carry moments afterwards.

    An ``order`` goes out before a contact if models have travelled since the last training, with the moments of the
    travellers that ``carries`` flags, (travellers,); a ``reply``, of a model and its moments, comes after it if they
    will. ``good`` says whose last reply is used.
    """
    (model, moments), total = reply, 0
    for contact in stretch:
        if before is None or before.travels:
            total += len(carries) * order + int(carries.sum()) * moments
        accepted = good if contact is stretch[-1] else np.ones_like(good)
        if contact.travels:
            total += int(accepted.sum()) * (model + moments)
        carries = carries | (accepted & bool(moments))
        before = contact
    return total, carries


def make_private(plan: Plan, stack: Stack, received: Stack, names: Sequence[str], t: int) -> None:
    """Clip and noise, or blur, in place, what leaves the named sites, where the plan asks for it.

    ``received`` are the models as they came to the sites, a row each as in ``stack``.
    """
    if not plan.privacy.at_contacts:
        return
    rngs = [noise_rng(plan.seed, name, t) for name in names]
    sent = privatise(Rows(stack.state).arrays(), Rows(received.state).arrays(), plan.privacy, rngs)
    for name, tensor in stack.state.items():
        tensor.copy_(torch.from_numpy(sent[name]))
