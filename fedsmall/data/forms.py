"""What a row is before it is a sample: columns of a table, the pixels of an image, or numbers as they are.

A form turns rows as they were read into numbers, (rows, *shape), for training and for every prediction after it; it is
kept with a model. What cannot be used is said by column and count, never by value.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from fedsmall.data.cells import check_no_text, is_missing, number_block
from fedsmall.data.pictures.files import read_pictures
from fedsmall.data.pictures.picture import EIGHT_BITS, Frames, Picture, Window, resampled, resized
from fedsmall.data.sources.files import plain
from fedsmall.errors import DataError
from fedsmall.methods import nearest
from fedsmall.parts import Frozen

if TYPE_CHECKING:
    from pandas import DataFrame, Series


class Columns(Frozen):
    """Columns of a table by their names, in the order in which a model takes them.

    A column of ``categories`` becomes one feature of 0 and 1 for each of its values. A value that is not listed is none
    of them, 0 everywhere, where ``unlisted`` is "none"; else it is refused. A cell may be ``missing``, or is refused.
    ``never_zero`` are columns where 0 stands for a missing value. ``header`` names the columns of files that have no
    header; ``separator`` is found from the header unless given. ``markers`` are words and codes for a missing value,
    beside those that always are.
    """

    kind: Literal["table"] = "table"
    columns: tuple[str, ...]
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    unlisted: Literal["none", "refuse"] = "none"
    missing: bool = True
    never_zero: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    separator: str | None = None
    decimal: str = "."
    markers: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for each number of a sample."""
        names: list[str] = []
        for column in self.columns:
            values = self.categories.get(column)
            names += [column] if values is None else [f"{column}={value}" for value in values]
        return tuple(names)

    def numbers(self, frame: "DataFrame") -> np.ndarray:
        """The rows of a table, (rows, features) in float64, NaN where a value is missing; other columns are left alone.

        Raises DataError for a column that is not there, for text among numbers, and for what is refused.
        """
        need(frame, self.columns, "a feature")
        numeric = [column for column in self.columns if column not in self.categories]
        values, text = number_block(frame[numeric], self.markers)
        check_no_text(frame, numeric, text)
        for column, count in self.unlisted_cells(frame).items() if self.unlisted == "refuse" else ():
            raise DataError(
                f"column {column!r} holds a value that the model was not trained with, in {count} of {len(frame)} "
                f"rows; known: {', '.join(self.categories[column])}"
            )
        for column in set(numeric) & set(self.never_zero):
            place = numeric.index(column)
            values[:, place] = np.where(values[:, place] == 0, np.nan, values[:, place])
        x = self._features(frame, numeric, values)
        if not self.missing and np.isnan(x).any():
            raise DataError(f"{np.isnan(x).any(axis=1).sum()} of {len(x)} samples hold NaN or Inf")
        return x

    def unlisted_cells(self, frame: "DataFrame") -> dict[str, int]:
        """How many cells hold a category that is not listed, for the columns that have any."""
        counts = {column: int(self.is_unlisted(frame[column], column).sum()) for column in self.categories}
        return {column: count for column, count in counts.items() if count}

    def is_unlisted(self, cells: "Series", column: str) -> np.ndarray:
        """Which cells of a column hold a category that is not listed."""
        known = cells.map(plain).isin(self.categories[column]) | is_missing(cells, self.markers)
        return np.asarray(~known.to_numpy(dtype=bool))

    def _features(self, frame: "DataFrame", numeric: list[str], values: np.ndarray) -> np.ndarray:
        """Numbers, (rows, columns), and categories side by side in the order of the columns."""
        if len(numeric) == len(self.columns):
            return values
        places = {column: place for place, column in enumerate(numeric)}
        return np.concatenate(
            [
                values[:, [places[column]]] if column in places else self._hot(frame[column], column)
                for column in self.columns
            ],
            axis=1,
        )

    def _hot(self, cells: "Series", column: str) -> np.ndarray:
        """A column of categories as (rows, values) of 0 and 1, NaN where it is missing."""
        names = cells.map(plain).to_numpy()
        hot: np.ndarray = (names[:, None] == np.array(self.categories[column])[None, :]).astype(np.float64)
        hot[is_missing(cells, self.markers).to_numpy(dtype=bool)] = np.nan
        return hot


class Pixels(Frozen):
    """Images of ``channels`` (1 is grey, 3 colour) and of one ``size``: (height, width), of volumes depth before them.

    Others are brought to it where ``resize`` says so, and else refused; ``size`` is None until images have been read.
    ``range`` are the values that become -1 and 1, None for 8 bits; ``stated`` where the scenario says them, and not the
    files' own depth. ``window`` says which values of a DICOM file count, ``slice`` which image of a
    volume is meant, ``frames`` which images of a DICOM file of several are. ``volume``: all of a volume is the
    sample.
    """

    kind: Literal["images"] = "images"
    channels: int
    size: tuple[int, int] | tuple[int, int, int] | None = None
    resize: bool = False
    range: tuple[float, float] | None = None
    stated: bool = False
    window: Window = None
    slice: str | None = None
    frames: Frames = None
    volume: bool = False

    def numbers(self, files: Sequence[Path]) -> np.ndarray:
        """The images in ``files``, (images, channels, *size); DataError where they are not all of one size.

        Images of 8 bits are uint8; others float32, with the values that the files hold.
        """
        return self.arrays([(path.name, picture) for path in files for picture in self.fitting(path)])

    def pictures(self, path: Path) -> list[Picture]:
        """The images in a file before they are brought to one size and range; volumes, being large, after it."""
        read = read_pictures(path, self.channels == 3, self.window, self.slice, self.frames, self.volume)
        return [each._replace(values=self._sized(each.values)) for each in read] if self.volume else read

    def fitting(self, path: Path) -> list[Picture]:
        """The images in a file for a model; DataError where they are of another depth than those of training."""
        pictures, shallow = self.pictures(path), (self.range or EIGHT_BITS) == EIGHT_BITS
        if not self.stated and any((picture.ends == EIGHT_BITS) != shallow for picture in pictures):
            low, high = self.range or EIGHT_BITS
            raise DataError(f"its values are of another depth than the model's, {low:g} to {high:g}", file=path.name)
        return pictures

    def arrays(self, pictures: Sequence[tuple[str, Picture]]) -> np.ndarray:
        """As :meth:`numbers`, of images that have been read."""
        held = [(name, self._sized(picture.values)) for name, picture in pictures]
        sides, what, some = (3, "volume", [16, 32, 32]) if self.volume else (2, "image", [28, 28])
        shapes = sorted({values.shape[:sides] for _, values in held})
        if self.size is not None and shapes != [self.size]:
            name, odd = next((name, values.shape[:sides]) for name, values in held if values.shape[:sides] != self.size)
            raise DataError(f"the {what} is {_times(odd)}, and the model takes {_times(self.size)}", file=name)
        if len(shapes) > 1:
            raise DataError(
                f"the {what}s have {len(shapes)} sizes, from {shapes[0]} to {shapes[-1]}; give one: size = {some}"
            )
        stacked = np.stack([values for _, values in held])
        grey = stacked.ndim == 1 + sides
        return stacked[:, None] if grey else np.ascontiguousarray(np.moveaxis(stacked, -1, 1))

    def _sized(self, values: np.ndarray) -> np.ndarray:
        if self.size is None or not self.resize:
            return values
        return resampled(values, self.size) if self.volume else resized(values, self.size)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """``x`` (images, channels, *size) from -1 to 1; what is beyond the range counts as its end."""
        if x.dtype == np.uint8 and (self.range or EIGHT_BITS) == EIGHT_BITS:
            return np.asarray((x / np.float32(255) - np.float32(0.5)) / np.float32(0.5))
        low, high = (np.float32(end) for end in self.range or EIGHT_BITS)
        values = np.clip(x.astype(np.float32), low, high)
        return np.asarray((values - low) / (high - low) * np.float32(2) - np.float32(1))


def _times(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


class Numbers(Frozen):
    """Arrays of numbers that are samples already."""

    kind: Literal["arrays"] = "arrays"


Form = Annotated[Columns | Pixels | Numbers, Field(discriminator="kind")]


def need(frame: "DataFrame", columns: Sequence[str], whose: str) -> None:
    """Raise DataError, with the nearest name, where a column is not in a table."""
    for column in columns:
        if column not in frame.columns:
            raise DataError(f"there is no column {column!r} ({whose}). {nearest(column, list(frame.columns))}")
