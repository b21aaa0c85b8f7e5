"""Public data sets by name: those that come with libraries, and files under the data root."""

import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsmall.data.outcomes import ORDINAL, Amount, Findings, Survival
from fedsmall.data.preparation import Columns
from fedsmall.data.sources.arrays import as_inputs, from_arrays, read_npz
from fedsmall.data.sources.files import needed_root
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.data.sources.tables import Schema
from fedsmall.data.table_files import as_numbers, read_table
from fedsmall.entry_points import import_extra
from fedsmall.errors import DataError, PlanError, as_data_error
from fedsmall.methods import check_known

MISSING = "{} is not under the data root and could not be downloaded; put it there"
GRADED_AT = (100, 184)  # the thirds of all 442 patients; 100 and 184 belong to the lower grade


def _pool_of(bunch: Any, y: np.ndarray, **more: Any) -> Pool:
    names = tuple(map(str, bunch.feature_names))
    return Pool({NOWHERE: Part(bunch.data, y)}, feature_names=names, standardise=True, **more)


@cache  # a quarter of a second for the digits, for every seed
def _bunch(name: str, **options: Any) -> Any:
    from sklearn import datasets  # its import takes a second

    return getattr(datasets, f"load_{name}")(**options)


def breast_cancer(root: Path | None, seed: int) -> Pool:
    """569 real patients with 30 features of cell nuclei, malignant or benign (Wisconsin, 1995)."""
    bunch = _bunch("breast_cancer")
    return _pool_of(bunch, bunch.target, class_names=tuple(map(str, bunch.target_names)))


def diabetes(root: Path | None, seed: int) -> Pool:
    """442 real patients with 10 features, and how far their diabetes had gone a year later (Efron et al. 2004)."""
    bunch = _bunch("diabetes", scaled=False)
    return _pool_of(bunch, bunch.target[:, None], loss="mse", outcome=Amount(name="progression"))


def diabetes_grades(root: Path | None, seed: int) -> Pool:
    """The same patients in three grades by how far it had gone: slow, middle and fast, a third of them each."""
    bunch = _bunch("diabetes", scaled=False)
    y = np.searchsorted(GRADED_AT, bunch.target)
    return _pool_of(bunch, y, class_names=("slow", "middle", "fast"), loss=ORDINAL)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Images, (samples, 1, 8, 8) in float64, and their digits."""
    bunch = _bunch("digits")
    return bunch.images[:, None].astype(np.float64), bunch.target


def digits(root: Path | None, seed: int) -> Pool:
    """1,797 handwritten digits as grey images of 8 x 8, every pixel standardised as a feature."""
    return Pool({NOWHERE: Part(*_digits())}, class_names=tuple(map(str, range(10))), standardise=True)


PROPERTIES = {"even": (0, 2, 4, 6, 8), "above four": (5, 6, 7, 8, 9), "prime": (2, 3, 5, 7)}


def digit_properties(root: Path | None, seed: int) -> Pool:
    """The same digits with three labels each, of which several may be true: even, above four, prime."""
    images, truth = _digits()
    y = np.stack([np.isin(truth, digits) for digits in PROPERTIES.values()], axis=1)
    loss, outcome = "binary_cross_entropy", Findings(names=tuple(PROPERTIES))
    return Pool({NOWHERE: Part(images, y.astype(np.float64))}, standardise=True, loss=loss, outcome=outcome)


def synthetic(root: Path | None, seed: int) -> Pool:
    """The generated task of Kamp et al. 2023: 800 samples to train on, 400 to test, 100 features, two classes.

    It is that of the authors' notebook, whatever the seed: such tasks differ more between draws than methods do.
    """
    from sklearn.datasets import make_classification
    from sklearn.model_selection import train_test_split

    drawn = np.random.RandomState(42)  # the notebook's, used on for the split
    sizes = {"n_features": 100, "n_informative": 20, "n_redundant": 60, "n_repeated": 5, "n_classes": 2}
    form = {"n_clusters_per_class": 3, "flip_y": 0.02, "class_sep": 1.0, "shift": 1.0, "scale": 3.0}
    x, y = make_classification(1200, **sizes, **form, random_state=drawn)
    x, x_test, y, y_test = train_test_split(x, y, test_size=400, random_state=drawn)
    train, test = Part(x, y.astype(np.int64)), Part(x_test, y_test.astype(np.int64))
    return Pool({NOWHERE: train}, ("0", "1"), {NOWHERE: test}, tuple(f"x{index:02d}" for index in range(100)))


GRADES = {"I": 1.0, "II": 2.0, "III": 3.0}


def gbsg2(root: Path | None, seed: int) -> Pool:
    """686 women with breast cancer, days until recurrence or death (Schumacher et al. 1994)."""
    try:
        from sksurv.datasets import load_gbsg2
    except ImportError:
        raise PlanError("task 'gbsg2' comes with scikit-survival: pip install 'fedsmall[survival]'") from None
    frame, seen = load_gbsg2()
    columns = {
        "age": frame["age"],
        "hormone_therapy": frame["horTh"] == "yes",
        "after_menopause": frame["menostat"] == "Post",
        "tumour_size": frame["tsize"],
        "tumour_grade": frame["tgrade"].astype(str).map(GRADES),
        "positive_nodes": frame["pnodes"],
        "progesterone_receptor": frame["progrec"],
        "estrogen_receptor": frame["estrec"],
    }
    x = np.stack([np.asarray(values, dtype=np.float64) for values in columns.values()], axis=1)
    y = np.stack([seen["time"].astype(np.float64), seen["cens"].astype(np.float64)], axis=1)
    names, outcome = tuple(columns), Survival(name="days", event="recurrence")
    scaled: dict[str, Any] = {"standardise": True, "form": Columns(columns=names)}
    return Pool({NOWHERE: Part(x, y)}, feature_names=names, loss="hazard", outcome=outcome, **scaled)


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "disease",
)
HEART_CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
NEVER_ZERO = ("trestbps", "chol")  # blood pressure and cholesterol: hospitals wrote 0 where it was not measured


def heart_disease(root: Path | None, seed: int, *, file: str | Path | None = None) -> Pool:
    """UCI heart disease (Detrano et al. 1989): 920 patients of four hospitals; ``file`` is one hospital's."""
    if file is not None:
        files = {NOWHERE: Path(file)}
    else:
        folder = needed_root(root, "heart_disease") / "heart_disease"
        files = {name: folder / f"processed.{name}.data" for name in HOSPITALS}
    if not all(path.is_file() for path in files.values()):
        raise DataError("heart disease needs heart_disease/processed.{cleveland,hungarian,switzerland,va}.data")
    frames = {name: read_table(path, names=HEART_COLUMNS) for name, path in files.items()}
    for frame in frames.values():
        grade = as_numbers(frame["disease"])
        frame["disease"] = np.where(np.isnan(grade), "?", np.where(grade > 0, "1", "0"))
    reading = {"never_zero": NEVER_ZERO, "header": HEART_COLUMNS}
    schema = Schema.of(frames, "disease", classes=(0, 1), categorical=HEART_CATEGORIES, **reading)
    parts, form = {name: schema.part(frame) for name, frame in frames.items()}, schema.form
    return Pool(parts, ("healthy", "disease"), feature_names=form.feature_names, standardise=True, form=form)


SUSY = ("background", "signal")


def susy(root: Path | None, seed: int, which: str = "10Kn", *, features: int = 8, rows: int = 30_000) -> Pool:
    """UCI SUSY (Baldi et al. 2014): collisions, background or signal, for linear models with the hinge loss.

    "10Kn" is the normalised sample of 10,000 and 1,000; "full" the first ``rows`` of UCI's file, a third to test.
    """
    folder = needed_root(root, "susy")
    if which == "full":
        return _full_susy(folder, features, rows)
    if which != "10Kn" or features != 8:
        raise PlanError('susy is "10Kn" with 8 features, or {susy = "full", features = 18}')
    train, test = ({NOWHERE: _susy_part(folder / "susy", f"susy_10Kn_{split}")} for split in ("train", "test"))
    return Pool(train, SUSY, test, tuple(f"low{index}" for index in range(8)), loss="hinge")


def _susy_part(folder: Path, name: str) -> Part:
    if not (folder / f"{name}.csv").is_file():
        raise DataError(f"SUSY needs susy/{name}.csv and susy/{name}_label.csv under the data root")
    x, y = (np.loadtxt(folder / f"{name}{ending}.csv", delimiter=",") for ending in ("", "_label"))
    return Part(x, (y > 0).astype(np.int64))


def _full_susy(folder: Path, features: int, rows: int) -> Pool:
    import pandas

    files = [path for path in (folder / "SUSY.csv", folder / "SUSY.csv.gz") if path.is_file()]
    if not files:
        raise DataError("the full SUSY needs UCI's SUSY.csv or SUSY.csv.gz under the data root")
    table = pandas.read_csv(files[0], header=None, nrows=rows).to_numpy(dtype=np.float64)
    part = Part(table[:, 1 : 1 + features], (table[:, 0] > 0).astype(np.int64))
    cut = len(table) * 2 // 3
    train, test = {NOWHERE: part[np.arange(cut)]}, {NOWHERE: part[np.arange(cut, len(table))]}
    names = tuple(f"x{index}" for index in range(features))
    return Pool(train, SUSY, test, names, standardise=True, loss="hinge")


def cifar10(root: Path | None, seed: int) -> Pool:
    """CIFAR-10 (Krizhevsky 2009): torchvision's files, else cifar10.npz under the data root, else downloaded."""
    folder = needed_root(root, "cifar10")
    if (file := folder / "cifar10.npz").is_file() and not (folder / "cifar-10-batches-py").is_dir():
        return from_arrays({NOWHERE: read_npz(file)}, classes=range(10))
    return _torchvision("CIFAR10", folder)


def mnist(root: Path | None, seed: int) -> Pool:
    """MNIST (LeCun et al. 1998) through torchvision, downloaded into the data root where it is not there."""
    return _torchvision("MNIST", needed_root(root, "mnist"))


def _torchvision(name: Literal["CIFAR10", "MNIST"], folder: Path) -> Pool:
    library = getattr(import_torchvision().datasets, name)
    with as_data_error(MISSING.format(name), OSError, RuntimeError):
        train, test = (library(str(folder), train=train, download=True) for train in (True, False))
    parts = [Part(as_inputs(np.asarray(half.data)), np.asarray(half.targets)) for half in (train, test)]
    return Pool({NOWHERE: parts[0]}, tuple(map(str, train.classes)), {NOWHERE: parts[1]})


_DECLARED: list[object] = []  # torch forgets an operator when its library object goes


def import_torchvision() -> Any:
    """The torchvision package; beside a CPU torch its wheel for CUDA lacks the schemas of two operators."""
    import torch

    try:
        import_extra("images", "torchvision.datasets")
    except RuntimeError:
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
        import_extra("images", "torchvision.datasets")
    return sys.modules["torchvision"]


def medmnist(root: Path | None, seed: int, flag: str) -> Pool:
    """A 2D task of MedMNIST v2 by its flag, from ``flag``.npz under the data root, downloaded where it is not there."""
    folder = needed_root(root, flag)
    file = folder / f"{flag}.npz"
    if not file.exists():
        _download(flag, folder)
    pool = from_arrays({NOWHERE: read_npz(file)})
    return Pool(pool.train, pool.class_names, pool.test, keep_unused=True)


def _download(flag: str, folder: Path) -> None:
    library = import_extra("images", "medmnist")
    info: dict[str, Any] = library.INFO
    check_known(flag, info, f"MedMNIST has no {flag!r}")
    folder.mkdir(parents=True, exist_ok=True)
    with as_data_error(MISSING.format(f"{flag}.npz"), OSError, RuntimeError):
        getattr(library, info[flag]["python_class"])(split="train", root=str(folder), download=True)


WITH_LIBRARIES = (breast_cancer, diabetes, diabetes_grades, digits, digit_properties, synthetic, gbsg2)
DATA_SETS = (*WITH_LIBRARIES, heart_disease, susy, cifar10, mnist)  # that need nothing but their name
