"""What happens to a row until a model takes it: its form, the scaling that sites agree on, and the record of both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsmall.data.image_files import EIGHT_BITS, Frames, Picture, Window, read_pictures, resample_volume, resize_image
from fedsmall.data.outcomes import Amount, Outcome, Survival
from fedsmall.data.table_files import NONE, check_no_text, is_missing, number_block, plain
from fedsmall.errors import DataError
from fedsmall.exact import exact_sum
from fedsmall.files import list_some
from fedsmall.methods import check_known
from fedsmall.parts import Frozen
from fedsmall.randomness import rng_for

if TYPE_CHECKING:
    from pandas import DataFrame, Series

COUNT_FLOOR = 5  # a sum over fewer patients says too much about each of them
FEW_VALUES = 4  # of a column, whose counts three sums over it give away
YES_OR_NO = "="  # in the name of a feature made of a category, "sex=f": its range is 0 to 1
FAR = 5.0  # standard deviations from the mean at which a value is worth a note
Row = tuple[float, ...]


@dataclass(frozen=True)
class Sums:
    """What one site says of its training samples, (features,) in float64 each."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True)
class Scaling:
    """The agreed ``mean`` and ``scale`` (standard deviation, 1 where there is none), of shape (features,), float64."""

    mean: np.ndarray
    scale: np.ndarray


def sums(x: np.ndarray, floor: int = COUNT_FLOOR, patients: np.ndarray | None = None) -> Sums:
    """The sums of ``x`` (samples, features), where NaN marks a missing value.

    A feature with values of fewer than ``floor`` samples, or ``patients`` (samples,), counts as if the site had none.
    """
    present = ~np.isnan(x)
    count = present.sum(axis=0).astype(np.float64)
    reported = patients_with(present, patients) >= max(floor, 1)
    values = np.where(present & reported, x, 0.0).astype(np.float64)
    return Sums(np.where(reported, count, 0.0), values.sum(axis=0), (values * values).sum(axis=0))


def tellable(
    x: np.ndarray, names: Sequence[str], floor: int, patients: np.ndarray | None = None, few: int = FEW_VALUES
) -> tuple[np.ndarray, np.ndarray]:
    """The values of ``x`` (samples, columns) of which sums may be told, NaN for others; and which columns, (columns,).

    Neither the ``patients`` who have a value nor those without are 1 to ``floor`` - 1: some values count as missing
    where too few are. Nor are those with another value than the commonest, if that is common, those with one of at most
    ``few`` values, nor those with none of the values of a category that are told.
    """
    values, is_told = x.astype(np.float64), np.ones(x.shape[1], dtype=bool)
    if floor <= 1:
        return values, is_told
    whose, categories = np.arange(len(x)) if patients is None else patients, dict[str, list[int]]()
    for k in _doubtful(values, floor, patients, few):
        column = (names[k] if names else str(k)).partition(YES_OR_NO)
        is_gap = np.isnan(values[:, k])
        without = np.unique(whose[is_gap])
        if 0 < len(without) < floor:
            more = rng_for(0, "describe", column[0]).permutation(np.setdiff1d(whose, without))
            is_gap |= np.isin(whose, more[: floor - len(without)])
            values[is_gap, k] = np.nan
        held, counts = np.unique(values[~is_gap, k], return_counts=True)
        with_each = [values[:, k] == value for value in held] if len(held) <= few else []
        others = [~is_gap & (values[:, k] != held[counts.argmax()])] if counts.max(initial=0) >= floor else []
        is_rare = any(0 < len(np.unique(whose[group])) < floor for group in [*others, *with_each])
        is_told[k] = len(np.unique(whose[~is_gap] if len(held) else whose)) >= floor and not is_rare
        if column[1]:
            categories.setdefault(column[0], []).append(k)
    for levels in categories.values():
        for k in sorted(filter(is_told.__getitem__, levels), key=lambda k: (np.nansum(x[:, k]), k)):
            of_none = np.nansum(values[:, [level for level in levels if is_told[level]]], axis=1) == 0
            is_told[k] = not 0 < len(np.unique(whose[of_none & ~np.isnan(values[:, k])])) < floor
    values[:, ~is_told] = np.nan
    return values, is_told


def _doubtful(x: np.ndarray, floor: int, patients: np.ndarray | None, few: int) -> np.ndarray:
    """The columns, by number, of which one value or another may be of fewer patients than ``floor``."""
    if patients is not None or len(x) < 2 * floor:
        return np.arange(x.shape[1])
    ordered = np.sort(x, axis=0)  # NaN comes last
    is_alike = ordered[floor - 1] == ordered[-floor]
    few_values = (ordered[1:] > ordered[:-1]).sum(axis=0) < few
    return np.flatnonzero(is_alike | few_values | np.isnan(ordered[-1]))


def patients_with(present: np.ndarray, patients: np.ndarray | None) -> np.ndarray:
    """How many patients, or samples where nobody says whose they are, are ``present``, (samples, features), in each."""
    if patients is None:
        return np.asarray(present.sum(axis=0))
    order = np.argsort(patients, kind="stable")
    begins = np.flatnonzero(np.diff(patients[order], prepend=patients.min(initial=0) - 1))
    return np.asarray(np.logical_or.reduceat(present[order], begins).sum(axis=0))


def agree(sites: Sequence[Sums]) -> Scaling:
    """Mean and standard deviation over all sites' samples, each sum rounded once; 0 and 1 where nobody may speak."""
    count = exact_sum([site.count for site in sites])
    known = np.maximum(count, 1.0)
    mean = exact_sum([site.total for site in sites]) / known
    mean_square = exact_sum([site.squares for site in sites]) / known
    variance = np.maximum(mean_square - mean * mean, 0.0)
    # sums of equal values leave a variance of rounding errors: that is no spread
    spread = variance > 1e-12 * np.maximum(mean_square, np.finfo(np.float64).tiny)
    return Scaling(mean, np.where(spread, np.sqrt(variance), 1.0))


def apply(scaling: Scaling, x: np.ndarray) -> np.ndarray:
    """``x`` (samples, features) at mean 0 and spread 1, in float64; a missing value becomes 0, the mean."""
    scaled: np.ndarray = (x - scaling.mean) / scaling.scale
    return np.where(np.isnan(scaled), 0.0, scaled)


class Columns(Frozen):
    """Columns of a table by their names, in the order in which a model takes them.

    One of ``categories`` becomes a feature of 0 and 1 for each value; ``unlisted`` values are none of them, or refused.
    A cell may be ``missing``, or is refused; ``markers`` are further words for that, and 0 is one in ``never_zero``.
    ``unscaled`` columns stay in their own unit. ``header`` names the columns of files without one.
    """

    kind: Literal["table"] = "table"
    columns: tuple[str, ...]
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    unlisted: Literal["none", "refuse"] = "none"
    missing: bool = True
    never_zero: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    separator: str | None = None
    decimal: str = "."
    markers: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name for each number of a sample."""
        made = {of: [f"{of}{YES_OR_NO}{value}" for value in values] for of, values in self.categories.items()}
        return tuple(name for column in self.columns for name in made.get(column, [column]))

    def of_features(self, columns: Iterable[str]) -> np.ndarray:
        """Which features are of these columns, (features,)."""
        widths = [len(self.categories.get(column, ("itself",))) for column in self.columns]
        return np.repeat([column in set(columns) for column in self.columns], widths)

    def numbers(self, frame: "DataFrame") -> np.ndarray:
        """The rows of a table, (rows, features) in float64, NaN where a value is missing; other columns are left alone.

        Raises DataError for a column that is not there, for text among numbers, and for what is refused.
        """
        need(frame, self.columns, "a feature")
        numeric = [column for column in self.columns if column not in self.categories]
        values, text = number_block(frame[numeric], self.markers)
        check_no_text(frame, numeric, text)
        if self.unlisted == "refuse":
            self._check_listed(frame)
        for column in set(numeric) & set(self.never_zero):
            place = numeric.index(column)
            values[:, place] = np.where(values[:, place] == 0, np.nan, values[:, place])
        if self.categories:
            blocks = dict(zip(numeric, values.T[..., None], strict=True))  # (rows, 1) each
            blocks |= {column: self._hot(frame[column], column) for column in self.columns if column not in blocks}
            values = np.concatenate([blocks[column] for column in self.columns], axis=1)
        if not self.missing and np.isnan(values).any():
            raise DataError(f"{np.isnan(values).any(axis=1).sum()} of {len(values)} samples hold NaN or Inf")
        return values

    def faults(self, frame: "DataFrame") -> list[str]:
        """Why each row of a table is refused, "" for one that is not; DataError for a column that is not there."""
        need(frame, self.columns, "a feature")
        numeric = [column for column in self.columns if column not in self.categories]
        values, text = number_block(frame[numeric], self.markers)
        odd = {f"{column} is no number": text[:, place] for place, column in enumerate(numeric)}
        if self.unlisted == "refuse":
            for column, known in self.categories.items():
                why = f"{column} is a category that the model was not trained with; known: {list_some(known, 6)}"
                odd[why] = self.is_unlisted(frame[column], column)
        if not self.missing:
            odd |= {f"{column} is missing": np.isnan(values[:, k]) & ~text[:, k] for k, column in enumerate(numeric)}
            odd |= {f"{column} is missing": self._is_gap(frame[column], column) for column in self.categories}
        return ["; ".join(why for why, rows in odd.items() if rows[row]) for row in range(len(frame))]

    def _check_listed(self, frame: "DataFrame") -> None:
        for column, known in self.categories.items():
            if count := int(self.is_unlisted(frame[column], column).sum()):
                raise DataError(
                    f"column {column!r} holds a value that the model was not trained with, in {count} of {len(frame)} "
                    f"rows; known: {', '.join(known)}"
                )

    def is_unlisted(self, cells: "Series", column: str) -> np.ndarray:
        """Which cells of a column hold a category that is not listed."""
        known = cells.map(plain).isin(self.categories[column]).to_numpy(dtype=bool)
        return np.asarray(~known & ~self._is_gap(cells, column))

    def _is_gap(self, cells: "Series", column: str) -> np.ndarray:
        names = np.array([plain(cell) for cell in cells], dtype=str)
        is_none = (np.char.lower(names) == NONE) & ~np.isin(names, self.categories[column])  # whatever others hold
        return np.asarray(is_missing(cells, self.markers).to_numpy(dtype=bool) | is_none)

    def _hot(self, cells: "Series", column: str) -> np.ndarray:
        names = cells.map(plain).to_numpy()
        hot: np.ndarray = (names[:, None] == np.array(self.categories[column])[None, :]).astype(np.float64)
        hot[self._is_gap(cells, column)] = np.nan
        return hot


class Pixels(Frozen):
    """Images of ``channels`` (1 or 3) and one ``size``: (height, width), of volumes depth before them.

    Others are resized where ``resize``, else refused; ``size`` is None until images have been read. ``range`` are the
    values that become -1 and 1, None for 8 bits, ``stated`` where the scenario says them. For ``window``, ``slice``,
    ``frames`` and ``volume`` see :mod:`fedsmall.data.image_files`.
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

    @property
    def ends(self) -> tuple[float, float]:
        """The values that become -1 and 1."""
        return self.range or EIGHT_BITS

    def numbers(self, files: Sequence[Path]) -> np.ndarray:
        """The images in ``files``, (images, channels, *size), uint8 or float32; DataError where sizes differ."""
        return self.arrays([(path.name, picture) for path in files for picture in self.fitting(path)])

    def pictures(self, path: Path) -> list[Picture]:
        """The images in a file before they are brought to one size and range; volumes, being large, after it."""
        read = read_pictures(path, self.channels == 3, self.window, self.slice, self.frames, self.volume)
        return [picture._replace(values=self._resize(picture.values)) for picture in read] if self.volume else read

    def fitting(self, path: Path) -> list[Picture]:
        """The images in a file for a model; DataError where they are of another depth than those of training."""
        pictures, shallow = self.pictures(path), self.ends == EIGHT_BITS
        if not self.stated and any((picture.ends == EIGHT_BITS) != shallow for picture in pictures):
            low, high = self.ends
            raise DataError(f"its values are of another depth than the model's, {low:g} to {high:g}", file=path.name)
        return pictures

    def arrays(self, pictures: Sequence[tuple[str, Picture]]) -> np.ndarray:
        """As :meth:`numbers`, of images that have been read."""
        held = [(name, self._resize(picture.values)) for name, picture in pictures]
        sides, what, example = (3, "volume", [16, 32, 32]) if self.volume else (2, "image", [28, 28])
        shapes = sorted({values.shape[:sides] for _, values in held})
        if self.size is not None and shapes != [self.size]:
            name, odd = next((name, values.shape[:sides]) for name, values in held if values.shape[:sides] != self.size)
            raise DataError(f"the {what} is {_times(odd)}, and the model takes {_times(self.size)}", file=name)
        if len(shapes) > 1:
            raise DataError(
                f"the {what}s have {len(shapes)} sizes, from {shapes[0]} to {shapes[-1]}; give one: size = {example}"
            )
        stacked = np.stack([values for _, values in held])
        grey = stacked.ndim == 1 + sides
        return stacked[:, None] if grey else np.ascontiguousarray(np.moveaxis(stacked, -1, 1))

    def _resize(self, values: np.ndarray) -> np.ndarray:
        if self.size is None or not self.resize:
            return values
        return resample_volume(values, self.size) if self.volume else resize_image(values, self.size)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """``x`` (images, channels, *size) from -1 to 1; what is beyond the range counts as its end."""
        if x.dtype == np.uint8 and self.ends == EIGHT_BITS:
            return _scale_bytes(x)
        low, high = map(np.float32, self.ends)
        values = np.clip(x.astype(np.float32), low, high)
        return np.asarray((values - low) / (high - low) * np.float32(2) - np.float32(1))


def _scale_bytes(x: np.ndarray) -> np.ndarray:
    return np.asarray((x / np.float32(255) - np.float32(0.5)) / np.float32(0.5))


def _times(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


class Numbers(Frozen):
    """Arrays of numbers that are samples already."""

    kind: Literal["arrays"] = "arrays"


Form = Annotated[Columns | Pixels | Numbers, Field(discriminator="kind")]


def need(frame: "DataFrame", columns: Sequence[str], whose: str) -> None:
    """Raise DataError, with the nearest name, where a column is not in a table."""
    held = dict.fromkeys(frame.columns)
    for column in (column for column in columns if column not in held):
        check_known(column, held, f"there is no column {column!r} ({whose})", DataError)


class Ranges(Frozen):
    """Public ends of every feature, (features,): ``low`` and ``high``."""

    low: Row
    high: Row

    def ends(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The same as arrays of ``shape``."""
        return np.array(self.low).reshape(shape), np.array(self.high).reshape(shape)

    def scaling(self, shape: tuple[int, ...]) -> Scaling:
        """The middles of the ranges, and the spreads of what fills them, as arrays of ``shape``."""
        low, high = self.ends(shape)
        return Scaling((low + high) / 2, (high - low) / np.sqrt(12))


class Agreed(Frozen):
    """The scaling on which the sites agreed, (features,): ``mean`` and ``scale``."""

    mean: Row
    scale: Row

    def scaling(self, shape: tuple[int, ...]) -> Scaling:
        """The same as arrays of ``shape``."""
        return Scaling(np.array(self.mean).reshape(shape), np.array(self.scale).reshape(shape))


class Preparation(Frozen):
    """From rows as they were read to what a model takes.

    ``shape`` is a sample's. ``ranges`` are public, ``agreed`` is worked out by the sites (where ``scaled``): no feature
    has both. ``outcome`` is what is predicted, where that is no class.
    """

    form: Form
    shape: tuple[int, ...]
    scaled: bool = False
    ranges: Ranges | None = None
    agreed: Agreed | None = None
    dtype: Literal["float32", "float64"] = "float32"
    outcome: Outcome | None = None

    @property
    def agreeing(self) -> Amount | Survival | None:
        """What is predicted, where the sites have to agree on its scale; else None."""
        outcome = self.outcome
        return None if outcome is None or outcome.kind == "findings" or not outcome.agrees else outcome

    @property
    def agrees(self) -> bool:
        """Whether there is anything on which sites have to agree, of features or of what is predicted."""
        return self.scaled or self.agreeing is not None

    @property
    def scaling(self) -> Scaling | None:
        """By what features are scaled, public ranges or what the sites agreed on, each (*shape); None if by nothing."""
        scaled = self.ranges or self.agreed
        return None if scaled is None else scaled.scaling(self.shape)

    def summed_values(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The values of which a site reports sums, (samples, numbers): scaled features, and its outcome."""
        if self.agreeing is None:
            return x
        features = [x.reshape(len(x), -1)] if self.scaled else []
        return np.concatenate([*features, y[:, :1]], axis=1)  # of a time and its event the time

    def with_scaling(self, scaling: Scaling | None) -> "Preparation":
        """The same once the sites have agreed."""
        if scaling is None:
            return self
        mean, scale = scaling.mean.ravel().tolist(), scaling.scale.ravel().tolist()
        update: dict[str, Any] = {}
        if self.agreeing is not None:
            update["outcome"] = self.agreeing.with_scaling(mean.pop(), scale.pop())  # it comes after the features
        if self.scaled:
            plain = self.form.of_features(self.form.unscaled) if isinstance(self.form, Columns) else False
            mean, scale = np.where(plain, 0.0, mean).tolist(), np.where(plain, 1.0, scale).tolist()
            update["agreed"] = Agreed(mean=tuple(mean), scale=tuple(scale))
        return self.model_copy(update=update)

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """``x`` (samples, *shape) as a model takes it: images from -1 to 1, features scaled, nothing missing."""
        if isinstance(self.form, Pixels):
            ready = self.form.scaled(x)
        elif x.dtype == np.uint8:
            ready = _scale_bytes(x)
        else:
            within, scaling = x if self.ranges is None else np.clip(x, *self.ranges.ends(self.shape)), self.scaling
            ready = np.where(np.isnan(x), 0.0, x) if scaling is None else apply(scaling, within)
        return np.ascontiguousarray(ready, dtype=self.dtype)

    def unusual(self, x: np.ndarray) -> np.ndarray:
        """Which values of ``x`` (samples, *shape) are outside the public ranges, or far from the agreed mean.

        By the mean, for the smallest and largest value would be a patient's. Never of categories and unscaled columns.
        """
        if self.ranges is not None:
            low, high = self.ranges.ends(x.shape[1:])
            return np.asarray((x < low) | (x > high))
        if self.agreed is None:
            return np.zeros(x.shape, dtype=bool)
        scaling = self.agreed.scaling(x.shape[1:])
        with np.errstate(invalid="ignore"):
            far = np.abs(x - scaling.mean) > FAR * scaling.scale
        if isinstance(self.form, Columns):
            far &= ~self.form.of_features([*self.form.categories, *self.form.unscaled])
        return np.asarray(far)
