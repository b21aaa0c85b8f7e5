"""Training images changed at random each time they are seen: mirrored, moved, turned, made lighter or darker.

Unlike torchvision.transforms.v2, which draws from torch's global generator and changes a whole batch alike, every image
has draws of its own from the site's stream of the round, and all images of a step are changed at once, on their device,
with the same bits in any company. What moves in from beyond an edge is that edge.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError

DRAWS = 6  # uniform numbers an image takes, whatever is asked for, so that one operation more shifts no other's
Operation = Callable[[Tensor, np.ndarray, float], Tensor]


def check_augment(task: Task, body: bool) -> None:
    """Raise PlanError where images are to be changed and there is none to change; ``body``: it is frozen."""
    if len(task.input_shape) != 3:
        raise PlanError(f"augment changes images, and a sample has shape {task.input_shape}. Leave augment out.")
    if body:
        raise PlanError(
            "augment changes an image each time it is seen, and behind a frozen body features are worked out once. "
            'Leave augment out, or train = "all".'
        )


def augment_images(x: Tensor, chances: np.ndarray, asked: Mapping[str, float]) -> Tensor:
    """Images ``x`` (..., channels, height, width) changed by their numbers ``chances`` (..., DRAWS) from 0 to 1."""
    images, numbers = x.reshape(-1, *x.shape[-3:]), chances.reshape(-1, DRAWS)
    for name, (first, count, operation) in OPERATIONS.items():
        if name in asked:
            images = operation(images, numbers[:, first : first + count], asked[name])
    return images.reshape(x.shape)


def _flip(images: Tensor, numbers: np.ndarray, share: float) -> Tensor:
    mirrored = torch.from_numpy(numbers[:, 0] < share).to(images.device)
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def _shift(images: Tensor, numbers: np.ndarray, most: float) -> Tensor:
    """Moved down and right by whole pixels, from -most to most, each as likely."""
    down, right = (np.floor(numbers * (2 * most + 1)) - most).T
    height, width = images.shape[2:]
    rows, columns = np.arange(height) - down[:, None], np.arange(width) - right[:, None]
    return _take_pixels(images, rows[:, :, None].repeat(width, 2), columns[:, None].repeat(height, 1))


def _rotate(images: Tensor, numbers: np.ndarray, degrees: float) -> Tensor:
    height, width = images.shape[2:]
    angles = [math.radians(degrees) * (2 * number - 1) for number in numbers[:, 0].tolist()]
    # by the C library, one by one: numpy's vectors may differ in the last digit with how many there are
    cosines, sines = (np.array([of(angle) for angle in angles])[:, None, None] for of in (math.cos, math.sin))
    y, x = np.arange(height)[:, None] - (height - 1) / 2, np.arange(width)[None] - (width - 1) / 2
    rows = np.clip(cosines * y + sines * x + (height - 1) / 2, 0, height - 1)  # (images, height, width)
    columns = np.clip(cosines * x - sines * y + (width - 1) / 2, 0, width - 1)
    above, left = np.floor(rows), np.floor(columns)
    down, right = (_as(images, share)[:, None] for share in (rows - above, columns - left))
    upper = _take_pixels(images, above, left) * (1 - right) + _take_pixels(images, above, left + 1) * right
    lower = _take_pixels(images, above + 1, left) * (1 - right) + _take_pixels(images, above + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def _intensity(images: Tensor, numbers: np.ndarray, most: float) -> Tensor:
    """Values times 1 - most to 1 + most, and then up or down by so much; 0 is the middle of their range."""
    contrast, brightness = (_as(images, column)[:, None, None, None] for column in (most * (2 * numbers - 1)).T)
    return images * (1 + contrast) + brightness


OPERATIONS: dict[str, tuple[int, int, Operation]] = {  # the first of an image's numbers that it takes, and how many
    "flip": (0, 1, _flip),
    "shift": (1, 2, _shift),
    "rotate": (3, 1, _rotate),
    "intensity": (4, 2, _intensity),
}


def _take_pixels(images: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """The pixels at these places, (images, height, width) each; beyond an edge those of the edge."""
    count, channels, height, width = images.shape
    places = np.clip(rows, 0, height - 1) * width + np.clip(columns, 0, width - 1)
    index = torch.from_numpy(places.astype(np.int64)).to(images.device).reshape(count, 1, -1)
    return images.reshape(count, channels, -1).gather(2, index.expand(-1, channels, -1)).reshape(images.shape)


def _as(images: Tensor, numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(images.device, images.dtype)
