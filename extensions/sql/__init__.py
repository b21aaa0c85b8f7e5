"""A site's table by a query: a file that ends in .sql is read wherever a file of CSV is.

The file holds one SELECT. Which database it is asked of, as an SQLAlchemy URL, says the file of the same name that ends
in .database (its owner's alone to read), or the environment variable FEDSMALL_DATABASE. Neither the URL nor what the
database itself says of a failure is ever in a message, for both may hold a secret or a patient's value. SQLite and
PostgreSQL are asked so that they cannot write; any other database is refused.
"""

import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsmall.errors import DataError
from fedsmall.files import check_is_regular

if TYPE_CHECKING:
    from pandas import DataFrame
    from sqlalchemy import URL, Engine

VARIABLE, ENDING = "FEDSMALL_DATABASE", ".database"
EXAMPLE = "postgresql://reader:password@localhost/omop"
MOST_ROWS = 1_000_000
MOST_SECONDS = 600
QUOTED = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\w*)\$.*?\$\1\$", re.DOTALL
)  # comments, text, names
READS = ("select", "with")
WRITES = {
    *("insert", "update", "delete", "merge", "into", "create", "drop", "alter", "truncate", "grant", "revoke", "call"),
    *("copy", "attach", "pragma", "vacuum", "set", "do", "execute", "lock", "begin", "commit", "rollback"),
}
REFUSED = {  # what a database gives as its reason: PostgreSQL's SQLSTATE, SQLite's name of an error
    "42P01": "it has no such table",
    "42703": "it has no such column",
    "42601": "it does not understand the query",
    "42501": "this account may not read all that the query asks for",
    "25006": "the query would write",
    "57014": f"the query took more than {MOST_SECONDS} s",
    "SQLITE_ERROR": "it has no such table or column, or does not understand the query",
    "SQLITE_READONLY": "the query would write",
    "SQLITE_CANTOPEN": "there is no such file, or it may not be read",
    "SQLITE_NOTADB": "the file is no database of SQLite",
}


def read(path: Path) -> "DataFrame":
    """The rows that a query gives, sorted by their cells, for a database gives them in any order.

    Raises DataError, in words that may leave the site, for no database, no single SELECT, and what is refused there.
    """
    import pandas

    from fedsmall.data.table_files import as_table

    names, rows = _ask(_database(path), query(path))
    if len(rows) > MOST_ROWS:
        raise DataError(f"the query gives more than {MOST_ROWS:,} rows")
    frame = as_table(pandas.DataFrame(rows, columns=names))
    is_sortable = len(set(frame.columns)) == frame.shape[1]  # else the header is refused
    return frame.sort_values(list(frame.columns), kind="stable", ignore_index=True) if is_sortable else frame


def query(path: Path) -> str:
    """The one SELECT in a file. Raises DataError for anything else: nothing else is ever sent."""
    check_is_regular(path)
    try:
        text = path.read_text(encoding="utf-8-sig").strip().removesuffix(";").strip()
    except UnicodeDecodeError:
        raise DataError("the query is no text in UTF-8") from None
    bare = QUOTED.sub(" ", text)
    words = re.findall(r"[a-z_]\w*", bare.lower())
    if ";" in bare or not words or words[0] not in READS:
        raise DataError("a site's query is one SELECT and nothing else (WITH may come before it)")
    if writes := sorted(WRITES & {*words}):
        raise DataError(f"a site's query only reads; {writes[0].upper()} is for what writes (quote a column's name)")
    return text


def _database(path: Path) -> str:
    beside = path.with_suffix(ENDING)
    if not beside.exists():
        if url := os.environ.get(VARIABLE, "").strip():
            return url
        raise DataError(
            f"no database is named: put its URL ({EXAMPLE}) into the environment variable {VARIABLE}, or into a file "
            f"beside the query that ends in {ENDING} instead of .sql"
        )
    check_is_regular(beside)
    if os.name == "posix" and beside.stat().st_mode & 0o077:
        raise DataError(f"others may read the file that ends in {ENDING}, which may hold a password: chmod 600")
    return beside.read_text(encoding="utf-8").strip()


def _ask(address: str, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of the columns and at most one row more than :data:`MOST_ROWS`."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
    except ImportError:
        raise DataError(
            "a query is asked by SQLAlchemy: pip install 'fedsmall[sql]', or save the table as CSV"
        ) from None
    try:
        url = make_url(address)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError):
        raise DataError(f"what names the database is no URL, as {EXAMPLE} is") from None
    if backend not in ENGINES:
        raise DataError(
            f"{backend} is not read, for only of {' and '.join(ENGINES)} is it known how to forbid writing; save the "
            "table as CSV or Parquet"
        )
    try:
        with ENGINES[backend](url).connect() as connection:
            result = connection.execution_options(no_parameters=True).exec_driver_sql(text)
            names, rows = list(result.keys()), [tuple(row) for row in result.fetchmany(MOST_ROWS + 1)]
    except ImportError:
        raise DataError(f"{backend} is asked by a driver that is not here: pip install 'fedsmall[sql]'") from None
    except DBAPIError as wrong:
        raise DataError(_reason(wrong.orig)) from None
    except SQLAlchemyError:
        raise DataError("the query gives no table") from None
    return names, rows


def _reason(wrong: object) -> str:
    code = str(getattr(wrong, "sqlstate", None) or getattr(wrong, "sqlite_errorname", None) or "")
    if not code or code.startswith(("08", "28")):  # SQLSTATE's classes of connections and of who may connect
        return "the database does not answer, or does not let this account in"
    words = REFUSED.get(code, "try the query with the database's own program")
    return f"the database refuses the query ({code}): {words}"


def _sqlite(url: "URL") -> "Engine":
    from sqlalchemy import NullPool, create_engine

    file = f"{Path(url.database or '').absolute().as_uri()}?mode=ro"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(file, uri=True), poolclass=NullPool)


def _postgresql(url: "URL") -> "Engine":
    """Every transaction is read-only; a prepared statement is one alone, so that no second can end the transaction."""
    from sqlalchemy import NullPool, create_engine

    options = f"-c default_transaction_read_only=on -c statement_timeout={MOST_SECONDS * 1000}"
    given = {"options": options, "prepare_threshold": 0, "connect_timeout": 10}
    return create_engine(url.set(drivername="postgresql+psycopg"), connect_args=given, poolclass=NullPool)


ENGINES: dict[str, Callable[["URL"], "Engine"]] = {"sqlite": _sqlite, "postgresql": _postgresql}
