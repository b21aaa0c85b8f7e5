"""Files of every kind, and each error that a user can meet in them."""

import gzip

import numpy as np
import pytest

from fedsmall.data.table_files import read_table
from fedsmall.errors import DataError, PlanError
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation

TABLE = "age,sex,dose,ill\n" + "".join(f"{30 + row},{'fm'[row % 2]},{row / 4},{row % 3 % 2}\n" for row in range(24))


def plan(task, **settings) -> Plan:
    return Plan(name="t", task=task, method=Method(name="FedAvg"), **({"sites": 3, "samples_per_site": 4} | settings))


def write(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_csv_becomes_a_federation(tmp_path):
    path = write(tmp_path, "a.csv", TABLE)

    federation = build_federation(plan({"csv": path, "label": "ill", "drop": ["sex"]}))

    assert federation.task.feature_names == ("age", "dose")
    assert federation.task.class_names == ("0", "1")
    assert [len(site) for site in federation.train] == [4, 4, 4]
    assert len(federation.test) == 6


def test_a_csv_is_found_under_the_data_root(tmp_path):
    write(tmp_path, "a.csv", TABLE)

    assert build_federation(plan({"csv": "a.csv", "label": "ill", "features": ["age"]}), tmp_path).task.classes == 2


def test_text_in_a_column_becomes_a_feature_for_each_value_where_the_plan_says_so(tmp_path):
    path = write(tmp_path, "a.csv", TABLE)

    found = build_federation(plan({"csv": path, "label": "ill", "categorical": ["sex"]}))
    told = build_federation(plan({"csv": path, "label": "ill", "categorical": {"sex": ["f", "m", "x"]}}))

    assert found.task.feature_names == ("age", "sex=f", "sex=m", "dose")
    assert told.task.feature_names == ("age", "sex=f", "sex=m", "sex=x", "dose")
    assert np.allclose(told.test.x[:, 3], told.test.x[0, 3])  # nobody is x


@pytest.mark.parametrize("write_as", ["semicolon", "bom", "latin", "gzip", "spaces"])
def test_a_csv_as_other_programs_write_it_is_the_same_table(tmp_path, write_as):
    text = "Größe,ill\n1.5,0\n2.5,1\n"
    path = tmp_path / ("a.csv.gz" if write_as == "gzip" else "a.csv")
    if write_as == "gzip":
        path.write_bytes(gzip.compress(text.encode()))
    elif write_as == "semicolon":
        path.write_text(text.replace(",", ";"), encoding="utf-8")
    elif write_as == "spaces":
        path.write_text(text.replace(",", " , "), encoding="utf-8")
    else:
        path.write_text(text, encoding="utf-8-sig" if write_as == "bom" else "cp1252")

    frame = read_table(path)

    assert frame.columns.tolist() == ["Größe", "ill"]
    assert [cell.strip() for cell in frame["Größe"]] == ["1.5", "2.5"]


def test_a_decimal_comma_is_read_where_the_plan_says_so(tmp_path):
    path = write(tmp_path, "a.csv", "x;ill\n1,5;0\n2,5;1\n3,5;0\n4,5;1\n")

    federation = build_federation(plan({"csv": path, "label": "ill", "decimal": ","}, sites=1, samples_per_site=2))

    assert sorted(federation.train[0].x.ravel().tolist()) == [-1.0, 1.0]


@pytest.mark.parametrize("missing", ["", "?", "NA", " nan ", "NULL"])
def test_a_missing_cell_becomes_the_mean(tmp_path, missing):
    path = write(tmp_path, "a.csv", f"x,ill\n1,0\n3,1\n{missing},0\n1,1\n3,0\n")

    federation = build_federation(plan({"csv": path, "label": "ill"}, sites=1, samples_per_site=None))

    assert np.isfinite(federation.train[0].x).all()
    assert set(np.concatenate([federation.train[0].x, federation.test.x]).ravel().round(6)) >= {0.0}


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TABLE, {"label": "il"}, r"no column 'il' \(the label\). Did you mean 'ill'"),
        (TABLE, {"label": "ill"}, r"column 'sex' \(24 of 24 rows\).*categorical"),
        (TABLE.replace(",0.5,", ",low,"), {"label": "ill", "drop": ["sex"]}, r"'dose' \(1 of 24 rows\)"),
        (TABLE.replace(",0.5,", ",inf,"), {"label": "ill", "drop": ["sex"]}, r"'dose' \(1 of 24 rows\)"),
        (TABLE, {"label": "ill", "features": ["dosis"]}, r"no column 'dosis' \(a feature\). Did you mean 'dose'"),
        (TABLE, {"label": "ill", "categorical": ["sexe"]}, "no column 'sexe'"),
        (TABLE, {"label": "ill", "drop": ["age", "sex", "dose"]}, "nothing to learn from"),
        ("x,ill\n1,0\n2,\n3,1\n", {"label": "ill"}, "'ill' is empty in 1 of 3 rows"),
        ("x,ill\n1,0\n2,0\n", {"label": "ill"}, "all samples have one label"),
        ("x,ill\n1,0\n2,1\n3,2\n", {"label": "ill", "classes": [0, 1]}, "1 of 3 labels are none of the classes 0, 1"),
        ("x,ill\n" + "".join(f"1,{row}\n" for row in range(101)), {"label": "ill"}, "101 different values"),
        ("", {"label": "ill"}, "not a table"),
        ("x,ill\n1,0\n1,2,3,4,5\n", {"label": "ill"}, "line 3 has 5 cells and the header 2"),
    ],
)
def test_a_csv_that_cannot_be_used_says_why_by_column_and_count(tmp_path, text, options, words):
    path = write(tmp_path, "patients.csv", text)

    with pytest.raises(DataError, match=words) as caught:
        build_federation(plan({"csv": path, **options}))

    assert "patients" not in caught.value.words
    assert "low" not in str(caught.value)


def test_a_column_names_the_site_of_each_row(tmp_path):
    rows = "".join(f"{row},{row % 2},{'north' if row < 8 else 'south'}\n" for row in range(20))
    path = write(tmp_path, "a.csv", "x,ill,clinic\n" + rows)

    federation = build_federation(
        plan({"csv": path, "label": "ill"}, partition={"natural": "clinic"}, sites=None, samples_per_site=None)
    )

    assert federation.names == ("north", "south")
    assert [len(site) for site in federation.train] == [6, 9]
    assert [len(held) for held in federation.held_out] == [2, 3]
    assert len(federation.test) == 5
    assert federation.task.feature_names == ("x",)


def test_a_site_column_that_is_not_there_or_is_empty_is_named(tmp_path):
    path = write(tmp_path, "a.csv", "x,ill,clinic\n1,0,north\n2,1,\n")

    with pytest.raises(DataError, match="Did you mean 'clinic'"):
        build_federation(plan({"csv": path, "label": "ill"}, partition={"natural": "klinic"}))
    with pytest.raises(DataError, match="names no site in 1 of 2 rows"):
        build_federation(plan({"csv": path, "label": "ill"}, partition={"natural": "clinic"}))


def test_a_folder_of_csvs_is_a_site_each_and_they_must_agree(tmp_path):
    for name in ("b", "a"):
        write(tmp_path, f"{name}.csv", TABLE)
    task = {"csv": str(tmp_path), "label": "ill", "drop": ["sex"]}

    federation = build_federation(plan(task, sites=None, samples_per_site=None))

    assert federation.names == ("a", "b")
    assert np.array_equal(federation.train[0].x[:0], federation.train[1].x[:0])
    write(tmp_path, "c.csv", TABLE.replace("dose", "dosis", 1))
    with pytest.raises(DataError, match=r"site 'c' has no column 'dose', .* Is 'dosis' the same\?"):
        build_federation(plan(task))


def test_the_samples_of_natural_sites_can_be_dealt_to_others(tmp_path):
    for name in ("b", "a"):
        write(tmp_path, f"{name}.csv", TABLE)

    federation = build_federation(plan({"csv": str(tmp_path), "label": "ill", "drop": ["sex"]}, sites=5))

    assert federation.names[-1] == "site-004"


def images(folder, size=(6, 5), classes=("ill", "well"), each=8):
    from PIL import Image

    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(each):
            pixels = np.full((*size, 3), 20 * place + index, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return str(folder)


@pytest.mark.parametrize(("options", "shape"), [({}, (1, 6, 5)), ({"colour": True, "size": [3, 4]}, (3, 3, 4))])
def test_a_folder_of_images_becomes_a_federation(tmp_path, options, shape):
    federation = build_federation(plan({"images": images(tmp_path), **options}))

    assert federation.task.input_shape == shape
    assert federation.task.class_names == ("ill", "well")
    assert federation.train[0].x.min() >= -1
    assert federation.test.x.max() < -0.7  # the brightest pixel is 27 of 255


def test_folders_of_images_can_be_sites(tmp_path):
    for site in ("south", "north"):
        images(tmp_path / site)

    federation = build_federation(
        plan({"images": str(tmp_path)}, partition={"natural": "folder"}, sites=None, samples_per_site=None)
    )

    assert federation.names == ("north", "south")
    assert [len(site) for site in federation.train] == [12, 12]


def test_images_that_cannot_be_used_say_why(tmp_path):
    images(tmp_path / "a")
    images(tmp_path / "a", (9, 9), ("other",), each=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "c" / "ill").mkdir(parents=True)
    (tmp_path / "c" / "well").mkdir(parents=True)
    write(tmp_path / "c" / "ill", "notes.txt", "no image")
    write(tmp_path / "c" / "well", "notes.txt", "no image")
    (tmp_path / "d" / "ill").mkdir(parents=True)
    (tmp_path / "d" / "well").mkdir(parents=True)
    write(tmp_path / "d" / "ill", "patient-7.png", "no image")
    write(tmp_path / "d" / "well", "8.png", "no image")

    images(tmp_path / "e", (8, 8), ("ill", "well"), each=2)
    images(tmp_path / "e" / "ill", (8, 8), ("patient-7", ".thumbnails"), each=1)

    refused = {"a": "2 sizes", "b": "this one holds none", "c": "hold no image", "d": "damaged", "e": "holds 1 image:"}
    for folder, words in refused.items():
        with pytest.raises(DataError, match=words) as caught:
            build_federation(plan({"images": str(tmp_path / folder)}))
        assert "patient" not in caught.value.words  # what may leave


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (np.random.default_rng(0).normal(size=(20, 3)), (3,)),
        (np.zeros((20, 4, 5), dtype=np.uint8), (1, 4, 5)),
        (np.zeros((20, 4, 5, 3), dtype=np.uint8), (3, 4, 5)),
        (np.zeros((20, 2, 4, 5), dtype=np.float32), (2, 4, 5)),
    ],
    ids=["table", "grey", "colour", "ready"],
)
def test_an_npz_becomes_a_federation(tmp_path, x, shape):
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20)[:, None] % 2)

    federation = build_federation(plan({"npz": str(tmp_path / "a.npz")}))

    assert federation.task.input_shape == shape
    assert len(federation.test) == 6


def test_a_folder_of_npz_files_is_a_site_each_with_its_own_test_set(tmp_path):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    np.savez(tmp_path / "b.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:3], y_test=y[:3])

    federation = build_federation(plan({"npz": str(tmp_path)}, sites=None, samples_per_site=None))

    assert federation.names == ("a", "b")
    assert [len(held) for held in federation.held_out] == [3, 2]
    assert [len(site) for site in federation.train] == [6, 6]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.array([[1.0], [np.nan]]), "y": np.arange(2)}, "1 of 2 samples hold NaN"),
        ({"x": np.ones((2, 1)), "y": np.array([0, np.nan])}, "1 of 2 labels are NaN"),
        ({"x": np.ones((2, 1)), "y": np.arange(3)}, "2 samples and 3 labels"),
        ({"x": np.ones((2, 1)), "y": np.ones((2, 4))}, "no multi-label task"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "samples are numbers"),
        ({"x": np.array([None, None]), "y": np.arange(2)}, "not an .npz of plain arrays"),
        ({"xs": np.ones((2, 1)), "y": np.arange(2)}, "no array 'x'. Did you mean 'xs'"),
    ],
)
def test_an_npz_that_cannot_be_used_says_why(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)

    with pytest.raises(DataError, match=words):
        build_federation(plan({"npz": str(tmp_path / "a.npz")}))


def test_a_file_that_is_no_npz_is_not_unpickled(tmp_path):
    with pytest.raises(DataError, match=r"not an \.npz"):
        build_federation(plan({"npz": write(tmp_path, "a.npz", "cos\nsystem\n")}))


def test_samples_of_different_shapes_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.arange(4) % 2)
    np.savez(tmp_path / "b.npz", x=np.ones((4, 3)), y=np.arange(4) % 2)

    with pytest.raises(DataError, match="cannot go into one model"):
        build_federation(plan({"npz": str(tmp_path)}))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("brest_cancer", "Did you mean 'breast_cancer'"),
        ({"name": "digits", "lable": 1}, "no option 'lable'. Known: loss"),
        ({"csv": "x.csv", "label": "y", "npz": "z"}, "this one names 2"),
        ({"label": "y"}, "this one names 0"),
        ({"csv": "x.csv", "label": "y"}, "no file or folder 'x.csv'"),
        ({"name": "digits", "loss": "hinge"}, "this task has 10"),
        ({"name": "digits", "loss": "crossentropy"}, "Did you mean 'cross_entropy'"),
        ({"source": "no.such:thing"}, "written as module:function"),
        ("heart_disease", "--data-root, or in FEDSMALL_DATA"),
    ],
)
def test_a_task_that_is_not_known_says_why(task, words, monkeypatch):
    monkeypatch.delenv("FEDSMALL_DATA", raising=False)

    with pytest.raises(PlanError, match=words):
        build_federation(plan(task))


def test_a_medmnist_file_is_read_from_the_data_root(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in {"train": 40, "val": 5, "test": 12}.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 3)[:, None]
    np.savez(tmp_path / "bloodmnist.npz", **arrays)

    federation = build_federation(plan({"medmnist": "bloodmnist"}), tmp_path)

    assert (federation.task.name, federation.task.input_shape, federation.task.classes) == ("bloodmnist", (3, 8, 8), 3)
    assert len(federation.test) == 12
    assert [(name, len(extra)) for name, extra in federation.extra] == [("unused training samples", 28)]


def test_an_unknown_medmnist_flag_names_the_nearest(tmp_path):
    pytest.importorskip("medmnist")

    with pytest.raises(PlanError, match="Did you mean 'pneumoniamnist'"):
        build_federation(plan({"medmnist": "pneumonamnist"}), tmp_path)


def test_the_full_susy_is_read_where_it_lies(tmp_path):
    rng = np.random.default_rng(0)
    table = np.hstack([rng.integers(0, 2, (90, 1)), rng.normal(size=(90, 18))])
    np.savetxt(tmp_path / "SUSY.csv", table, delimiter=",")

    federation = build_federation(plan({"susy": "full", "features": 18, "rows": 60}), tmp_path)

    assert federation.task.input_shape == (18,)
    assert (federation.task.loss, federation.task.outputs, len(federation.test)) == ("hinge", 1, 20)
    with pytest.raises(PlanError, match=r'susy is "10Kn"'):
        build_federation(plan({"susy": "10Kn", "features": 18}), tmp_path)


@pytest.mark.thorough
def test_torchvision_can_be_imported_beside_any_torch():
    pytest.importorskip("PIL")
    from fedsmall.data.sources.public import import_torchvision

    assert hasattr(import_torchvision().datasets, "CIFAR10")


@pytest.mark.thorough
def test_mnist_comes_through_torchvision_from_the_data_root(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in {"train": 30, "t10k": 10}.items():
        head = lambda kind, *sizes: bytes([0, 0, 8, kind]) + b"".join(size.to_bytes(4, "big") for size in sizes)  # noqa: E731
        pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head(3, count, 28, 28) + pixels.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head(1, count) + bytes(row % 10 for row in range(count)))

    federation = build_federation(plan("mnist"), tmp_path)

    assert (federation.task.input_shape, federation.task.classes, len(federation.test)) == ((1, 28, 28), 10, 10)


def own_source(root, seed, *, width=2):
    from fedsmall.data.sources.pool import NOWHERE, Part, Pool

    x = np.random.default_rng(seed).normal(size=(20, width))
    return Pool({NOWHERE: Part(x, np.arange(20) % 2)}, ("a", "b"))


def test_a_source_of_ones_own_is_a_function():
    federation = build_federation(plan({"source": f"{__name__}:own_source", "width": 5}))

    assert federation.task.input_shape == (5,)
