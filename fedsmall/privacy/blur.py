"""Blur: noise as large as the update itself, on every update that leaves a site.

The standard deviation of each number is ``kappa`` * |update| / sqrt(numbers), so that at ``kappa`` = 1 the noise is as
long as what the site has learnt: nothing to tune, and small where little was learnt. Over the sites it averages out;
in a division of two numbers of one site (:mod:`fedsmall.privacy.reading`) it does not. It claims no epsilon: it hides
records, not membership, and who sees many updates of the same patients can average it away.

Noise of a size that follows the update's can feed on itself: a model that noise has thrown off learns back in larger
updates, which get larger noise. At ``kappa`` = 1 we have not seen it; at 2 a chain with a large learning rate ended so.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedsmall.parts import Privacy
from fedsmall.wire import Arrays, is_buffer

PROMISE = 10.0  # the epsilon above which a promise to patients is none
SHRINK = 10.0  # a running variance falls to no less than this part at one contact: noise could bring it to zero


def as_blur(privacy: Privacy | None, numbers: int) -> float:
    """The ``kappa`` that a plan's privacy is at least as much as, for a model of so many ``numbers``.

    Clipped updates are no longer than the clip, so that noise of deviation noise * clip is at least blur of
    noise * sqrt(numbers). Under patient-level privacy the same holds against what one patient adds to a step, which is
    what could be read; and an epsilon of :data:`PROMISE` or less is better than any blur.
    """
    if privacy is None:
        return 0.0
    if privacy.epsilon is not None:
        return math.inf if privacy.epsilon <= PROMISE else 0.0
    return privacy.noise * numbers**0.5 if privacy.blur is None else privacy.blur


def blurred(sent: Arrays, received: Arrays, kappa: float, rngs: Sequence[np.random.Generator]) -> Arrays:
    """The models that may leave: what was ``sent`` plus noise of deviation ``kappa`` * |update| / sqrt(numbers).

    Every array of ``sent`` and ``received`` has shape (models, ...); ``rngs`` holds one generator a model. Weights and
    running statistics each have noise of their own size; integers stay as they are.
    """
    if kappa == 0:
        return sent
    floats = [name for name in sorted(sent) if np.issubdtype(sent[name].dtype, np.floating)]
    weights = [name for name in floats if not is_buffer(name)]
    out = {name: array.copy() for name, array in sent.items() if name not in floats}
    for names in (weights, [name for name in floats if name not in weights]):
        if names:
            out |= _with_noise({name: sent[name] for name in names}, received, kappa, rngs)
    for name in floats:
        if name.endswith("running_var"):
            out[name] = np.maximum(out[name], received[name] / SHRINK).astype(sent[name].dtype)
    return {name: out[name] for name in sent}


def _with_noise(sent: Arrays, received: Arrays, kappa: float, rngs: Sequence[np.random.Generator]) -> Arrays:
    models, sizes = len(rngs), [array[0].size for array in sent.values()]
    squares = sum(
        np.square(np.subtract(array, received[name], dtype=np.float64)).reshape(models, -1).sum(axis=1)
        for name, array in sent.items()
    )
    deviation = kappa * np.sqrt(squares / sum(sizes))  # (models,)
    noise = np.stack([rng.standard_normal(sum(sizes)) for rng in rngs]) * deviation[:, None]
    pieces = np.split(noise, np.cumsum(sizes)[:-1], axis=1)
    return {
        name: (array + piece.reshape(array.shape)).astype(array.dtype)
        for (name, array), piece in zip(sent.items(), pieces, strict=True)
    }
