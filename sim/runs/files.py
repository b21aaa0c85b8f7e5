"""Files of a run: written whole or not at all, and never over another run's."""

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall import files
from fedsmall.errors import PlanError


def check_free(folder: Path) -> None:
    """Raise PlanError where ``folder`` exists and holds anything."""
    if folder.is_file():
        raise PlanError(f"--out {folder} is a file; a run needs a folder")
    if folder.is_dir() and any(folder.iterdir()):
        what = "another run" if (folder / "run.json").exists() else "files already"
        raise PlanError(f"the folder {folder} holds {what}; choose another with --out, or remove it")


def free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """The first of runs/NAME, runs/NAME-2, ... that does not exist yet."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    names = chain([slug], (f"{slug}-{number}" for number in count(2)))
    return next(path for name in names if not (path := parent / name).exists())


def write(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file whole, in a folder that is made where it is not there; a new one gets ``mode``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content, mode=mode)


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Rows, the first of which names the columns, as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file whole."""
    write(path, csv_text(columns, rows).encode())


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV; a cell that is missing is empty, and what a cell holds is quoted where it must be."""
    return as_csv([columns, *([row.get(column, "") for column in columns] for row in rows)])


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole."""
    write(path, (json.dumps(content, indent=1, default=float) + "\n").encode())


def json_list(texts: Sequence[str]) -> str:
    """The file of a list whose items are JSON already, a line each."""
    return "[\n" + ",\n".join(texts) + "\n]\n" if texts else "[]\n"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays whole, as an .npz that nothing need be unpickled from."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write(path, content.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz; PlanError where it cannot be read. Nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file}
    except (OSError, ValueError, zipfile.BadZipFile):
        raise PlanError(f"{path} cannot be read: it is no .npz of plain arrays") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))
