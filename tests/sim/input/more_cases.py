"""Cases of hospitals' folders, of images and arrays, and of scenarios that cannot be run."""

import os

import numpy as np

from tests.sim.input.cases import (
    ARRAYS,
    GERMAN,
    GOOD,
    HEAD,
    SCANS,
    SITES,
    TABLE,
    WORDS,
    Case,
    X,
    Y,
    arrays,
    hospitals,
    linked,
    lone,
    png,
    rows,
    scans,
    scenario,
    table,
)

MORE = rows(line="{age},{dose},1,{ill}", head="age,dose,more,ill")
LESS = rows(line="{age},{ill}", head="age,ill")
BOTH = r", which is at 1 of 3 sites\. .* features = \[\"age\", \"dose\"\]"
AGE = r", which is at 2 of 3 sites\. .* features = \[\"age\"\]"
BY_COLUMN = 'task = {csv = "t.csv", label = "ill"}\npartition = {natural = "clinic"}\n'
CLINICS = rows(line="{age},{dose},{ill},c{row}", head="age,dose,ill,clinic")
for row in range(24):
    CLINICS = CLINICS.replace(f",c{row}\n", f",{'essen' if row % 4 < 2 else 'liege'}\n")
BY_WHO = 'task = {npz = "a.npz", patient = "who"}\nsites = 3\n'
DEEP = "range = \\[0, 4095\\]"

HOSPITALS = {
    "two hospitals": hospitals({}, samples=48),
    "a hospital with other separators": hospitals({"graz.csv": GERMAN.replace("alter;dosis", "age;dose")}, samples=72),
    "a hospital in another encoding": hospitals({"graz.csv": rows(start=80).encode("utf-16")}, samples=72),
    "a hospital in its own order": hospitals(
        {"graz.csv": rows(line="{ill},{age},{dose}", head="ill,age,dose")}, samples=72
    ),
    "a hospital with a column more": hospitals({"graz.csv": MORE}, line=f"site 'graz' has a column 'more'{BOTH}"),
    "the first hospital with a column more": hospitals(
        {"bonn.csv": MORE}, line=f"site 'bonn' has a column 'more'{BOTH}"
    ),
    "a hospital with a column more, which is left out": hospitals(
        {"graz.csv": MORE}, SITES.replace('"ill"', '"ill", drop = ["more"]'), samples=72
    ),
    "a hospital with a column less": hospitals({"graz.csv": LESS}, line=f"site 'graz' has no column 'dose'{AGE}"),
    "the first hospital with a column less": hospitals(
        {"bonn.csv": LESS}, line=f"site 'bonn' has no column 'dose'{AGE}"
    ),
    "a hospital with a column less than features": hospitals(
        {"graz.csv": LESS},
        SITES.replace('"ill"', '"ill", features = ["age", "dose"]'),
        line=r"site 'graz': there is no column 'dose' \(a feature\)",
    ),
    "one hospital of two with a column more": Case(
        {"h/bonn.csv": MORE, "h/essen.csv": GOOD}, SITES, line="site 'bonn' has a column 'more', which is at 1 of 2"
    ),
    "a hospital with a column in another spelling": hospitals(
        {"graz.csv": GOOD.replace("dose", "Dose")}, line=r"site 'graz' has no column 'dose'.* Is 'Dose' the same\?"
    ),
    "a hospital without the label": hospitals(
        {"graz.csv": GOOD.replace("ill", "krank")}, line="site 'graz': there is no column 'ill'"
    ),
    "a hospital with a header only": hospitals({"graz.csv": HEAD + "\n"}, line="site 'graz': there is no row under"),
    "a hospital with an empty file": hospitals(
        {"graz.csv": ""}, line=r"graz\.csv: the file is not a table: it is empty"
    ),
    "a hospital with one patient": hospitals({"graz.csv": HEAD + "\n1,2,0\n"}, samples=49),
    "a hospital with one class": hospitals(
        {"graz.csv": HEAD + "\n1,2,0\n2,3,0\n"}, samples=50, note="samples of one class only"
    ),
    "a hospital with text among numbers": hospitals(
        {"graz.csv": GOOD.replace("16.5", "low")}, line="site 'graz': text where"
    ),
    "a hospital with another word for a class": hospitals(
        {"graz.csv": GOOD.replace(",1\n", ",yes\n")},
        samples=72,
        classes=3,
        note="Classes at one site alone: 'yes' at 'graz'. If one is",
    ),
    "a hospital with other words for all classes": hospitals({"graz.csv": WORDS}, line="have no class in common"),
    "a hospital with classes in another case": Case(
        {"h/essen.csv": WORDS, "h/graz.csv": WORDS.replace("yes", "Yes")}, SITES, line='"yes" = ["Yes"]'
    ),
    "a hospital with two files": hospitals({"essen.data": GOOD}, line="site 'essen' has two files"),
    "a hospital with a file in another case": hospitals(
        {"Essen.csv": GOOD}, line="has two files, Essen.csv and essen.csv"
    ),
    "a hospital with a folder": hospitals({"graz.csv/": None}, line=r"graz\.csv: it is no file that can be read"),
    "a folder among hospitals": hospitals({"old/": None}, samples=48),
    "a note among hospitals": hospitals({"README.txt": "by hand"}, samples=48),
    "a hidden file": hospitals({".hidden.csv": "x"}, samples=48),
    "a lock file of Excel": hospitals({"~$essen.xlsx": b"\x05owner"}, samples=48),
    "a lock file of LibreOffice": hospitals({".~lock.essen.csv#": "owner"}, samples=48),
    "what a Mac leaves": hospitals(
        {"._essen.csv": b"\x00\x05\x16\x07", ".DS_Store": b"\x00\x00", "__MACOSX/": None}, samples=48
    ),
    "a temporary file": hospitals({"essen.csv.tmp": "x", "essen.csv~": "x", "essen.csv.bak": "x"}, samples=48),
    "a link to another file": hospitals({}, samples=72, prepare=linked("h/graz.csv", "essen.csv")),
    "a link to nothing": hospitals({}, line="broken link", prepare=linked("h/graz.csv", "nobody.csv")),
    "a link to itself": hospitals({}, line="broken link", prepare=linked("h/graz.csv", "graz.csv")),
    "a folder that is a link to itself": Case(
        {}, SITES, line="there is no file or folder 'h' here", prepare=lambda folder: os.symlink("h", folder / "h")
    ),
    "a folder linked into itself": hospitals({}, samples=48, prepare=linked("h/again", ".")),
    "a folder of nothing": Case({"h/": None}, SITES, line="the folder holds no file that ends in"),
    "a folder of other files": Case({"h/a.txt": GOOD}, SITES, line="the folder holds no file that ends in"),
    "a folder that is not there": Case({}, SITES, line="there is no file or folder 'h' here"),
    "a hospital with blanks in its name": hospitals({"st. anna graz.csv": rows(start=80)}, samples=72),
    "a hospital in another script": hospitals({"大阪.csv": rows(start=80)}, samples=72),
    "a hospital with quotes in its name": hospitals({'o\'graz "2".csv': rows(start=80)}, samples=72),
    "a hospital with a line break in its name": hospitals({"gr\naz.csv": rows(start=80)}, samples=72),
    "a hospital with 200 letters": hospitals({"g" * 200 + ".csv": rows(start=80)}, samples=72),
    "a hospital without a name": hospitals({".csv": rows(start=80)}, samples=48),
    "hospitals dealt anew": hospitals(
        {}, 'task = {csv = "h", label = "ill"}\nsites = 6\nsamples_per_site = 3\n', samples=30
    ),
    "one hospital": Case({"h/essen.csv": GOOD}, SITES, samples=24),
    "a number of hospitals that is another": hospitals(
        {}, SITES + "sites = 3\n", line="come from 2 sites and sites = 3"
    ),
    "more a hospital than there are": hospitals(
        {}, SITES + "samples_per_site = 40\n", line="site 'essen' has 18 to train on"
    ),
    "a number held out of hospitals": hospitals({}, SITES + "test = 9\n", line="hold out a share: test = 0.2"),
    "hospitals in a column": Case({"t.csv": CLINICS}, BY_COLUMN, samples=24),
    "a column of hospitals that is not there": Case({"t.csv": GOOD}, BY_COLUMN, line="there is no column 'clinic'"),
    "a row without a hospital": Case(
        {"t.csv": CLINICS.replace(",essen\n", ",\n", 1)},
        BY_COLUMN,
        line="column 'clinic' names no site in 1 of 24 rows",
    ),
    "hospitals in two spellings": Case(
        {"t.csv": CLINICS.replace(",essen\n", ",Essen\n", 1)}, BY_COLUMN, line="look like one in two spellings"
    ),
    "hospitals with blanks around": Case({"t.csv": CLINICS.replace(",essen\n", ",essen \n", 1)}, BY_COLUMN, samples=24),
}

IMAGES = {
    "two classes": scans(samples=16),
    "capital endings": scans({"ill/8.PNG": png(8), "well/8.Png": png(108)}, samples=18),
    "other kinds of files": scans({"ill/8.bmp": png(8, kind="BMP"), "well/8.tif": png(108, kind="TIFF")}, samples=18),
    "in colour, taken as grey": scans({"ill/8.png": png(8, mode="RGB")}, samples=17),
    "with transparency": scans({"ill/8.png": png(8, mode="RGBA")}, samples=17),
    "with a palette": scans({"ill/8.png": png(8, mode="P")}, samples=17),
    "for a printer": scans({"ill/8.jpg": png(8, mode="CMYK", kind="JPEG")}, samples=17),
    "black and white": scans({"ill/8.png": png(8, mode="1")}, samples=17),
    "of 16 bits among 8": scans({"ill/8.png": png(8, mode="deep")}, line="say which values count: range = "),
    "of 16 bits among 8, with a range": scans(
        {"ill/8.png": png(8, mode="deep")}, keys=SCANS.replace('"scans"', '"scans", range = [0, 4095]'), samples=17
    ),
    "of 12 bits in 16": Case(
        {
            f"scans/{label}/{k}.png": png(k + 50 * (label == "ill"), mode="deep")
            for label in ("ill", "well")
            for k in range(6)
        },
        SCANS,
        samples=12,
        note="would use the whole range",
    ),
    "a range that is none": scans(
        keys=SCANS.replace('"scans"', '"scans", range = [9, 1]'), line="range is the lowest and"
    ),
    "of two sizes": scans({"ill/8.png": png(8, (7, 7))}, line="the images have 2 sizes, from"),
    "of two sizes, with one said": scans(
        {"ill/8.png": png(8, (7, 7))}, keys=SCANS.replace('"scans"', '"scans", size = 6'), samples=17
    ),
    "a size of nothing": scans(keys=SCANS.replace('"scans"', '"scans", size = 0'), line="size is a side"),
    "a damaged image": scans({"ill/8.png": png(8)[:60]}, line=r"8\.png: .*is damaged"),
    "an image of no bytes": scans({"ill/8.png": b""}, line=r"8\.png: .*is damaged"),
    "text with an image's ending": scans({"ill/8.png": "by hand"}, line=r"8\.png: .*is none"),
    "a page for an image": scans({"ill/8.jpg": "<html>not found</html>"}, line=r"8\.jpg: .*is none"),
    "DICOM that is none": scans({"ill/8.dcm": "by hand"}, line=r"8\.dcm: .*DICOM"),
    "thumbnails of Windows": scans({"ill/Thumbs.db": b"\xd0\xcf", "ill/desktop.ini": "x"}, samples=16),
    "what a Mac leaves": scans(
        {"__MACOSX/ill/._0.png": b"\x00", ".DS_Store": b"\x00", "ill/._0.png": b"\x00"}, samples=16
    ),
    "a hidden folder": scans({".cache/8.png": png(8)}, samples=16),
    "an empty folder": scans({"maybe/": None}, samples=16),
    "a folder of other files": scans({"notes/a.txt": "by hand"}, samples=16),
    "an image beside the classes": scans({"8.png": png(8)}, samples=16),
    "a folder within a class": scans({"ill/more/8.png": png(8)}, line="a folder within that of a class holds 1 image"),
    "one class": Case({f"scans/ill/{k}.png": png(k) for k in range(9)}, SCANS, line="all samples have one label"),
    "classes in two spellings": scans({"Ill/8.png": png(8)}, line="look like one in two spellings"),
    "classes in two languages at two sites": Case(
        {
            f"scans/{site}/{label}/{k}.png": png(hash((site, label)) % 997 + k)
            for site, labels in (("essen", ("krank", "gesund")), ("liege", ("ill", "well")))
            for label in labels
            for k in range(4)
        },
        SCANS.replace("sites = 2", 'partition = {natural = "folder"}'),
        line="have no class in common",
    ),
    "no folder": Case({"scans/": None}, SCANS, line="holds one folder for each class; this one holds none"),
    "a table for images": Case(
        {"t.csv": GOOD}, SCANS.replace("scans", "t.csv"), line="holds one folder for each class"
    ),
    "a folder linked into itself": scans(samples=16, prepare=linked("scans/ill/again", "..")),
    "an image that is a link to nothing": scans(line=r"9\.png: ", prepare=linked("scans/ill/9.png", "none.png")),
    "an image that is a folder": scans({"ill/9.png/": None}, line=r"9\.png: "),
    "the same image twice": scans(
        {"ill/8.png": png(0)}, samples=17, note="Samples that equal another to the last bit: 1,"
    ),
    "channels that no image has": scans(
        keys=SCANS.replace('"scans"', '"scans", channels = 2'), line="channels = 1 is grey"
    ),
    "a class that is not listed": scans(keys=SCANS.replace('"scans"', '"scans", classes = ["ill"]'), line="classes"),
    "a name of 200 letters": scans({"ill/" + "n" * 200 + ".png": png(8)}, samples=17),
}

FILES_OF_ARRAYS = {
    "x and y": arrays(x=X, y=Y, samples=24),
    "a test set of its own": arrays(x=X, y=Y, x_test=X[:5] + 9, y_test=Y[:5], samples=29),
    "labels as words": arrays(x=X, y=np.array(["no", "yes"])[Y], samples=24),
    "labels in a column": arrays(x=X, y=Y[:, None], samples=24),
    "labels with a point": arrays(x=X, y=Y.astype(float), samples=24),
    "yes and no": arrays(x=X, y=Y.astype(bool), samples=24),
    "several labels each": arrays(x=X, y=np.stack([Y, Y], axis=1), line="no multi-label task"),
    "a label that is NaN": arrays(x=X, y=np.where(Y == 0, np.nan, 1.0), line="12 of 24 labels are NaN"),
    "no x": arrays(data=X, y=Y, line="holds no array 'x'"),
    "no y": arrays(x=X, line="holds no array 'y'"),
    "a label too few": arrays(x=X, y=Y[1:], line="24 samples and 23 labels"),
    "one label": arrays(x=X, y=Y * 0, line="all samples have one label"),
    "samples that are NaN": arrays(x=np.where(X > 1, np.nan, X), y=Y, line="samples hold NaN or Inf"),
    "samples of one number": arrays(x=X[:, 0], y=Y, line="samples are numbers of shape"),
    "samples as text": arrays(x=X.astype(str), y=Y, line="samples are numbers of shape"),
    "complex samples": arrays(x=X.astype(complex), y=Y, line="samples are numbers of shape"),
    "no sample": arrays(x=X[:0], y=Y[:0], line="label|sample"),
    "samples of no feature": arrays(x=X[:, :0], y=Y, line="feature|number"),
    "pickled objects": arrays(x=np.array([{}] * 24, dtype=object), y=Y, line="not an .npz of plain arrays"),
    "grey images": arrays(x=np.arange(24 * 30).reshape(24, 6, 5).astype(np.uint8), y=Y, samples=24),
    "patients": arrays(x=X, y=Y, patient=np.arange(24) // 3, note="Split by patients", samples=24),
    "patients as words": arrays(x=X, y=Y, patient=np.array(list("abcdefgh") * 3), note="Split by patients", samples=24),
    "patients by another name": arrays(
        x=X, y=Y, who=np.arange(24) // 3, keys=BY_WHO, note="Split by patients", samples=24
    ),
    "patients by a name that is not there": arrays(
        x=X, y=Y, whom=Y, keys=BY_WHO, line=r"holds no array 'who' \(whose each sample is\). Did you mean 'whom'"
    ),
    "patients by a name that is a number": arrays(
        x=X, y=Y, keys=BY_WHO.replace('"who"', "5"), line='patient names the array .* as in "patient"; got 5'
    ),
    "patients that are the labels": arrays(x=X, y=Y, keys=BY_WHO.replace("who", "y"), line="patient names the array"),
    "a patient too few": arrays(x=X, y=Y, patient=Y[1:], line=r"patients have shape \(23,\) and type int64; a number"),
    "patients in two columns": arrays(x=X, y=Y, patient=X[:, :2], line=r"patients have shape \(24, 2\)"),
    "patients that are missing": arrays(
        x=X, y=Y, patient=np.where(Y == 0, np.nan, 1.0), line="12 of 24 samples name no patient"
    ),
    "patients without a name": arrays(x=X, y=Y, patient=np.array(["", "a"])[Y], line="12 of 24 samples name no"),
    "patients that are complex": arrays(x=X, y=Y, patient=X[:, 0] * 1j, line="type complex128"),
    "a lone array called npz": Case({"a.npz": lone()}, ARRAYS, line=r"a\.npz: the file is not an \.npz"),
    "a table called npz": Case({"a.npz": GOOD}, ARRAYS, line=r"a\.npz: the file is not an \.npz"),
    "an array called npz": Case({"a.npz": b"\x93NUMPY\x01\x00v\x00"}, ARRAYS, line=r"a\.npz: "),
    "no bytes": Case({"a.npz": b""}, ARRAYS, line=r"a\.npz: the file is not an \.npz"),
    "sites of unequal widths": Case(
        {f"n/{name}.npz": arrays(x=X[:, :width], y=Y).files["a.npz"] for name, width in (("essen", 3), ("graz", 2))},
        'task = {npz = "n"}\npartition = {natural = "file"}\n',
        line="shapes|features",
    ),
}

SCENARIOS = {
    "class weights below 0": scenario(
        f"{TABLE}recipe.class_weights = [1, -2]\n", r"weights\.1: should be greater than 0"
    ),
    "methods for method": scenario(
        f'{TABLE}[[methods]]\nname = "FedDC"\n', "unknown key 'methods'. Did you mean 'method'"
    ),
    "words of a table beside the sites": scenario(
        f"{TABLE}categorical = ['a']\n", r"'categorical'\. It belongs to a task: task = \{categorical = "
    ),
    "a rate beside the sites": scenario(f"{TABLE}lr = 0.1\n", r"'lr'\. It belongs to a recipe: recipe = \{lr = "),
    "routes beside the sites": scenario(
        f"{TABLE}validate.routes = 3\n", r"'validate'\. It belongs to a method: validate = \.\.\. below \[\[method\]\]"
    ),
    "seeds below a method": scenario(
        f'name = "s"\n{TABLE}[[method]]\nname = "FedDC"\nseeds = [1]\n', r"'seeds'\. It belongs to the scenario: seeds"
    ),
    "rounds in a recipe": scenario(f"{TABLE}recipe.rounds = 3\n", r"'recipe.rounds'\. It belongs to the scenario: "),
    "sites by name": scenario(TABLE.replace("sites = 3", 'sites = ["essen"]'), "sites: should be a whole number"),
    "rounds in words": scenario(f'{TABLE}rounds = "ten"\n', r"rounds: should be a whole number \(got 'ten'\)"),
    "a metric by number": scenario(f"{TABLE}metric = 2\n", "metric: should be text in quotes"),
    "a tree without end": scenario(
        f"name = 's'\n{TABLE}[[method]]\nname = 'RepTreeFL'\ntree = {{fanout = 10, depth = 9}}\n",
        "10 replicas of each model over 9 generations are too many",
    ),
    "a round without end": scenario(
        f"{TABLE}recipe.local_steps = 1_000_000_000_000\n", "recipe.local_steps: should be at most 1000000"
    ),
    "a batch of none": scenario(f"{TABLE}recipe.batch = 0\n", "recipe.batch: should be at least 1"),
    "layers without end": scenario(
        f'{TABLE}model = "mlp"\nmodel_options = {{hidden = [1_000_000_000, 32]}}\n',
        "hidden of model 'mlp' comes to 10,000 at most; got 1,000,000,032",
    ),
    "layers as one number": scenario(
        f'{TABLE}model = "mlp"\nmodel_options = {{hidden = -8}}\n', r"at least 1, as in \[64, 32\]; got -8"
    ),
    "no task": scenario("sites = 3\n", "task"),
    "a task that nobody knows": scenario('task = "tables"\n', "There is no task 'tables'"),
    "two sources": scenario('task = {csv = "t.csv", npz = "a.npz", label = "ill"}\n', "names one source"),
    "no source": scenario('task = {label = "ill"}\n', "names one source"),
    "no label": scenario('task = {csv = "t.csv"}\nsites = 3\n', "needs 'label'|label"),
    "an option that nobody knows": scenario(TABLE.replace("label", "lable"), "has no option 'lable'"),
    "a task that is a number": scenario("task = 5\n", "task"),
    "a file that is a number": scenario('task = {csv = 5, label = "ill"}\nsites = 3\n', "csv|file"),
    "a label that is a number": scenario('task = {csv = "t.csv", label = 5}\nsites = 3\n', "label|no column"),
    "a file that is not there": scenario(TABLE.replace("t.csv", "u.csv"), "there is no file or folder 'u.csv' here"),
    "a path of 400 letters": scenario(TABLE.replace("t.csv", "t" * 400), r"t{60}\.\.\.t{50}"),
    "a name of 400 letters": scenario(f'{TABLE}name = "{"n" * 400}"\n', "400 letters"),
    "a name that is empty": scenario(f'{TABLE}name = ""\n', "name"),
    "no number of sites": scenario(TABLE.replace("sites = 3", ""), "say how many there are, as in sites = 10"),
    "no site": scenario(TABLE.replace("3", "0"), "sites"),
    "fewer than no site": scenario(TABLE.replace("3", "-3"), "sites"),
    "half a site": scenario(TABLE.replace("3", "2.5"), "sites"),
    "more sites than samples": scenario(TABLE.replace("3", "300"), "ask for 300 training samples and there are 18"),
    "more samples than there are": scenario(
        TABLE + "samples_per_site = 9\n", "ask for 27 training samples and there are 18"
    ),
    "no sample a site": scenario(TABLE + "samples_per_site = 0\n", "samples_per_site"),
    "a test of all": scenario(TABLE + "test = 24\n", "there are 24"),
    "a test of none": scenario(TABLE + "test = 0\n", "test is a number of samples"),
    "a test of its own that is not there": scenario(TABLE + 'test = "official"\n', "no test set of their own"),
    "a partition that nobody knows": scenario(TABLE + 'partition = "random"\n', "There is no partition 'random'"),
    "a partition of two kinds": scenario(TABLE + "partition = {dirichlet = 1.0, sizes = [1]}\n", "one thing"),
    "a partition without its value": scenario(TABLE + 'partition = "dirichlet"\n', "needs a value"),
    "a partition by fewer than no class": scenario(TABLE + "partition = {classes_per_site = 0}\n", "from 1 to"),
    "a partition by more classes than there are": scenario(
        TABLE + "partition = {classes_per_site = 3}\n", "the task's 2"
    ),
    "a Dirichlet of nothing": scenario(TABLE + "partition = {dirichlet = 0}\n", "dirichlet is a number above 0"),
    "sizes that are too large": scenario(TABLE + "partition = {sizes = [9, 9, 9]}\n", "ask for 27"),
    "sizes of nothing": scenario(TABLE + "partition = {sizes = [9, 0, 1]}\n", "whole numbers of at least 1"),
    "sizes for other sites": scenario(TABLE + "partition = {sizes = [1, 2]}\n", "make them agree"),
    "more folds than patients": scenario(TABLE + "folds = 30\n", "30 stratified folds need"),
    "one fold": scenario(TABLE + "folds = 1\n", "folds"),
    "a loss that nobody knows": scenario(TABLE.replace('"ill"', '"ill", loss = "l3"'), "There is no loss 'l3'"),
    "no rounds": scenario(TABLE + "rounds = 0\n", "rounds"),
    "a seed twice": scenario(TABLE + "seeds = [0, 0]\n", "a seed is listed twice"),
    "no seed": scenario(TABLE + "seeds = []\n", "a list of at least one"),
    "a key that nobody knows": scenario(TABLE + "site = 3\n", "site"),
    "a model that nobody knows": scenario(TABLE + 'model = "mpl"\n', "mpl"),
    "not TOML": scenario("task = {csv\n", "is not TOML"),
    "TOML with a key twice": scenario(TABLE + "sites = 4\n", "is not TOML.*given twice: keep one"),
}


def several_kinds() -> dict[str, Case]:
    """One table in Parquet and Excel; nothing where what writes them is not installed."""
    import io

    import pandas

    frame = pandas.read_csv(io.StringIO(GOOD))
    parquet = io.BytesIO()
    frame.to_parquet(parquet, index=False)
    files = {
        "Parquet": Case({"t.parquet": parquet.getvalue()}, TABLE.replace("t.csv", "t.parquet"), samples=24),
        "Parquet cut short": Case(
            {"t.parquet": parquet.getvalue()[:99]},
            TABLE.replace("t.csv", "t.parquet"),
            line="t.parquet: the file is not",
        ),
        "an old workbook": Case(
            {"t.xls": b"\xd0\xcf\x11\xe0"}, TABLE.replace("t.csv", "t.xls"), line="save it as .xlsx"
        ),
        "a workbook that is none": Case(
            {"t.xlsx": GOOD}, TABLE.replace("t.csv", "t.xlsx"), line="no Excel workbook|openpyxl"
        ),
        "a workbook that is protected": Case(
            {"t.xlsx": b"\xd0\xcf\x11\xe0rest"}, TABLE.replace("t.csv", "t.xlsx"), line="password|openpyxl"
        ),
        "a lock file by its name": Case(
            {"~$t.xlsx": b"\x05"}, TABLE.replace("t.csv", "~$t.xlsx"), line="what Excel leaves"
        ),
        "a column in no file": table(GOOD, label="krank", line="there is no column 'krank'"),
    }
    return files
