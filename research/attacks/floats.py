"""What the last digits of noised numbers tell: whether anything was added to the noise at all.

The attacker is a server that sends weights of zero, so that what comes back is -lr * (gradient + noise) to the last
digit, and a model whose gradient is zero unless the patient asked about was there. It knows the noise's deviation and
the learning rate. A product deviation * z of two floats reaches only some of all floats, and a sum with a gradient
mostly others; noise on a grid of powers of two is safe where all that leaves is on that same grid.

Source: Mironov 2012, "On significance of the least significant bits for differential privacy"; Haney et al. 2022,
"Precision-based attacks and interval refining".
"""

from typing import NamedTuple

import numpy as np

NEIGHBOURS = 2  # floats on either side of a quotient from which a rounded product may have come


class LastDigits(NamedTuple):
    """How many numbers are ``off`` the grid of products, and the largest power of two of which all are multiples."""

    off: int
    step: float


def last_digits(numbers: np.ndarray, deviation: float, lr: float) -> LastDigits:
    """The last digits of ``numbers`` (any shape, float32 or float64) that left in the place of zeros.

    A zero gradient leaves none off the grid of lr * (deviation * z); any other some, where the noise is such a product.
    """
    flat = numbers.ravel()
    return LastDigits(int((~_is_product(flat, deviation, lr)).sum()), step_of(flat))


def step_of(numbers: np.ndarray) -> float:
    """The largest power of two of which all ``numbers`` are whole multiples; infinite where all are zero."""
    mantissas, exponents = np.frexp(numbers[numbers != 0].astype(np.float64))
    whole = (np.abs(mantissas) * 2.0**53).astype(np.int64)
    trailing = np.log2((whole & -whole).astype(np.float64))
    return float(2.0 ** (trailing + exponents - 53).min(initial=np.inf))


def _is_product(numbers: np.ndarray, deviation: float, lr: float) -> np.ndarray:
    """Which numbers are lr * (deviation * z) for some float z, both products rounded, as torch reckons them."""
    if lr != 1:
        found = np.zeros(len(numbers), dtype=bool)
        for product in _near(numbers, lr):
            found |= (_times(product, lr) == numbers) & _is_product(product, deviation, 1)
        return found
    return np.asarray(np.any([_times(normal, deviation) == numbers for normal in _near(numbers, deviation)], axis=0))


def _times(numbers: np.ndarray, by: float) -> np.ndarray:
    return np.asarray(numbers * numbers.dtype.type(by))


def _near(products: np.ndarray, by: float) -> list[np.ndarray]:
    """The floats that lie about products / ``by``."""
    low = high = products / products.dtype.type(by)
    near = [low]
    for _ in range(NEIGHBOURS):
        low, high = np.nextafter(low, low.dtype.type(-np.inf)), np.nextafter(high, high.dtype.type(np.inf))
        near += [low, high]
    return near
