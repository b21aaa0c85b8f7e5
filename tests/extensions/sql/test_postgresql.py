"""A real PostgreSQL gives what SQLite does, and lets no query of a site write."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from examples.omop.sample import QUERY, fill
from fedsmall.data.table_files import read_table
from fedsmall.errors import DataError

pytestmark = pytest.mark.slow
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
PASSWORD = "n0b0dy-kn0ws"


def as_who() -> dict:
    """Whom the server runs as: it will not as root, so then as the user that Debian's package makes."""
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    import pwd

    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A PostgreSQL on the loopback alone, with a password; gives its URL, and that of its Unix socket."""
    initdb = shutil.which("initdb", path=os.pathsep.join([os.environ["PATH"], *map(str, BINARIES)]))
    if not initdb:
        pytest.skip("needs PostgreSQL (Debian: apt install postgresql), which is not here")
    who, binaries = as_who(), Path(initdb).resolve().parent
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True, **who).stdout.strip())
    given, data, port = folder / "password", folder / "data", free_port()
    given.write_text(PASSWORD)
    given.chmod(0o644)
    options = {"cwd": folder, "check": True, "capture_output": True, **who}
    subprocess.run([initdb, "-D", data, "-U", "owner", "-A", "scram-sha-256", f"--pwfile={given}"], **options)
    start = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
    control = [binaries / "pg_ctl", "-D", data, "-w"]
    subprocess.run([*control, "-o", start, "-l", folder / "log", "start"], **options)
    who_asks = f"postgresql+psycopg://owner:{PASSWORD}@"
    yield f"{who_asks}127.0.0.1:{port}/postgres", f"{who_asks}/postgres?host={folder}&port={port}"
    subprocess.run([*control, "-m", "immediate", "stop"], **options)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def filled(server):
    fill(server[0], "bonn")
    return server[0]


@pytest.fixture
def ask(filled, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMALL_DATABASE", filled)

    def query(text: str) -> Path:
        (tmp_path / "ward.sql").write_text(text)
        return tmp_path / "ward.sql"

    return query


READ = "import sys; from pathlib import Path; from fedsmall.data.table_files import read_table; "
READ += "print(len(read_table(Path(sys.argv[1]))))"


def test_a_data_process_without_a_network_asks_through_the_unix_socket(ask, server, monkeypatch):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root can take a program's network away")
    query = ask("SELECT person_id, year_of_birth FROM person")
    rows = len(read_table(query))
    alone = ["unshare", "--net", sys.executable, "-c", READ, query]

    by_port = subprocess.run(alone, capture_output=True, text=True)
    monkeypatch.setenv("FEDSMALL_DATABASE", server[1].replace("+psycopg", ""))
    by_socket = subprocess.run(alone, capture_output=True, text=True)

    assert rows > 100
    assert (by_port.returncode, by_port.stdout) == (1, "")
    assert (by_socket.returncode, by_socket.stdout) == (0, f"{rows}\n")


def test_the_omop_query_gives_the_same_rows_on_both_databases(ask, tmp_path, monkeypatch):
    ours = read_table(ask(QUERY.read_text()))
    monkeypatch.setenv("FEDSMALL_DATABASE", url := f"sqlite:///{tmp_path / 'bonn.sqlite'}")
    fill(url, "bonn")

    theirs = read_table(ask(QUERY.read_text()))

    pandas.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert len(ours) > 50


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM person",
        "SELECT 1; COMMIT; DELETE FROM person",
        "COMMIT; DELETE FROM person",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "WITH gone AS (DELETE FROM person RETURNING *) SELECT * FROM gone",
        "SELECT * INTO copied FROM person",
        "SELECT nextval('numbers')",
    ],
)
def test_postgresql_itself_refuses_what_writes_though_nothing_looks_at_the_words(ask, filled, monkeypatch, text):
    import sqlalchemy

    monkeypatch.setattr("fedsmall.extensions.sql.query", lambda path: text)
    engine = sqlalchemy.create_engine(filled, poolclass=sqlalchemy.NullPool)
    with engine.begin() as owner:  # who may write anything
        owner.exec_driver_sql("CREATE SEQUENCE IF NOT EXISTS numbers")

    with pytest.raises(DataError, match="database refuses the query"):
        read_table(ask("SELECT 1 AS one"))

    with engine.connect() as owner:
        assert owner.exec_driver_sql("SELECT count(*) FROM person").scalar() == 120
        assert owner.exec_driver_sql("SELECT to_regclass('copied') IS NULL").scalar()


def test_what_a_read_only_transaction_lets_pass_is_rolled_back(ask, filled):
    import sqlalchemy

    read_table(ask("SELECT lo_create(0) AS made"))  # which PostgreSQL 15 does not count as writing

    with sqlalchemy.create_engine(filled, poolclass=sqlalchemy.NullPool).connect() as owner:
        assert owner.exec_driver_sql("SELECT count(*) FROM pg_largeobject_metadata").scalar() == 0


def test_per_cent_signs_and_colons_are_the_querys_own(ask):
    frame = read_table(
        ask("SELECT person_id, 'a:b%s' AS remark FROM person WHERE 'a%b' LIKE 'a%' AND person_id % 2 = 0")
    )

    assert len(frame) == 60
    assert set(frame["remark"]) == {"a:b%s"}


def test_a_wrong_password_or_table_is_said_without_a_secret(ask, filled, monkeypatch):
    with pytest.raises(DataError, match=r"42P01\): it has no such table"):
        read_table(ask("SELECT * FROM nowhere"))
    with pytest.raises(DataError, match="22P02") as refusal:
        read_table(ask("SELECT CAST('Mueller' AS integer)"))
    assert "Mueller" not in str(refusal.value)
    monkeypatch.setenv("FEDSMALL_DATABASE", filled.replace(PASSWORD, wrong := "wr0ng"))
    with pytest.raises(DataError, match="does not let this account in") as refusal:
        read_table(ask("SELECT 1 AS one"))
    assert wrong not in str(refusal.value)
