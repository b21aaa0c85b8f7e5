"""A site's table as a whole, and whose homes have spent of its budget: one table has one, under whatever names.

The stations of one user note in a folder of theirs which home holds which table, as a sketch under a key that lies
there too (:mod:`fedsmall.sealing.tables`); each counts what the logs of other homes with such a table say was spent.
A home that was deleted counts no more, and two stations that charge at the same moment may both be let through once.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from fedsmall.audit_log import AuditLog
from fedsmall.clients.shelf import secret
from fedsmall.clients.site_log import STATE, LogState
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PolicyError
from fedsmall.sealing.tables import Rows, are_alike, rows_of, sketch


def table_of(raw: RawSite) -> Rows:
    """All samples of a site as the rows of one table, however they are split."""
    parts = [part for part in (raw.train, raw.held_out, raw.kept_back) if part is not None]
    return rows_of((part.x, part.y) for part in parts)


def mark_of(folder: Path, raw: RawSite) -> bytes:
    """The sketch of a site's table under the user's key; of one that says too little of its rows, of it as a whole."""
    table = table_of(raw)
    return sketch(table.rows if table.is_telling else [table.whole], secret(folder / "tables.key"))


def note_table(folder: Path, home: Path, mark: bytes) -> list[Path]:
    """Note in ``folder`` that a site which writes in ``home`` holds this table; returns the other homes that do."""
    home, log = home.resolve(), AuditLog(folder / "tables.jsonl")
    noted = {(Path(entry["home"]), bytes.fromhex(entry["table"])) for entry in log.entries()}
    if (home, mark) not in noted:
        log.write("table", home=str(home), table=mark.hex())
    return sorted({other for other, theirs in noted if other != home and are_alike(mark, theirs)})


def spent_beside(homes: list[Path]) -> Iterator[LogState]:
    """What the logs of these homes say was spent, as far as they are there. PolicyError for one that is damaged."""
    for home in homes:
        if (file := home / STATE).exists():
            try:
                yield LogState.model_validate_json(file.read_bytes())
            except ValidationError:
                raise PolicyError(
                    "another site of this user holds the same table, and the state beside its log is damaged"
                ) from None
