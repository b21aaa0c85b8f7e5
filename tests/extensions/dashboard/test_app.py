"""The page over HTTP: nothing without the token, nothing can be changed, and no word of a site is run."""

import json
import re
import stat

import httpx
import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.extensions.dashboard.app import application, token_of
from tests.extensions.dashboard.conftest import TOKEN
from tests.extensions.dashboard.folders import RUN, consortium
from tests.sim.consortium.real_run import NAMES

ADDRESSES = ("/", "/events", "/metrics")


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("given", ["", "?token=", "?token=no", f"?token={TOKEN}x", f"?other={TOKEN}", "?token=%C3%A9"])
def test_nothing_is_told_without_the_token(address, path, given):
    answer = httpx.get(address + path + given)

    assert answer.status_code == 403
    assert answer.text == "no: the address that `fedsmall dashboard` prints has a token\n"


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer {TOKEN}"])
def test_prometheus_brings_the_token_as_a_bearer(address, given):
    assert httpx.get(f"{address}/metrics", headers={"Authorization": given}).status_code == 200
    assert httpx.get(f"{address}/metrics", headers={"Authorization": given[:-1]}).status_code == 403


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ADDRESSES)
def test_nothing_can_be_changed(address, verb, path):
    assert httpx.request(verb, f"{address}{path}?token={TOKEN}").status_code == 405


def test_a_page_of_another_name_that_leads_here_is_refused(address):
    answer = httpx.get(f"{address}/?token={TOKEN}", headers={"Host": "evil.example"})

    assert answer.status_code == 400


def test_the_page_shows_sites_comm_rounds_models_loss_events_budget_and_log(address, folder):
    text = httpx.get(f"{address}/?token={TOKEN}").text
    *_, last = AuditLog(folder / "runs" / RUN / "log.jsonl").entries()

    for site in NAMES:
        assert f"<td>{site}</td>" in text
    for words in (
        "finished",
        "round 12 of 12",
        "12 communication rounds, first order",
        "loss of the global model",
        "no privacy:",
    ):
        assert words in text
    assert f"{last['n']} lines" in text
    assert last["digest"][:16] in text
    assert "its chain holds" in text
    assert text.count("<svg") == 6  # three communication rounds, their times, loss and accuracy


def test_words_of_sites_are_text_and_nothing_else(address):
    answer = httpx.get(f"{address}/?token={TOKEN}")

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
    assert not re.search(r"<script(?! nonce=)|<img|\x1b|\u202e", answer.text)
    nonce = re.search(r'<script nonce="([\w-]+)">', answer.text).group(1)
    policy = answer.headers["content-security-policy"]
    assert f"script-src 'nonce-{nonce}'" in policy
    assert policy.startswith("default-src 'none'")
    assert nonce not in httpx.get(f"{address}/?token={TOKEN}").text  # each page has its own


def test_no_answer_is_kept_or_tells_another_page_where_it_came_from(address):
    for path in ADDRESSES[::2]:
        headers = httpx.get(f"{address}{path}?token={TOKEN}").headers
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"


def first_events(address, count, then=lambda: None):
    """The first events of the page's stream; ``then`` is called after each."""
    told = []
    with httpx.stream("GET", f"{address}/events?token={TOKEN}", timeout=60) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
                then()
            if len(told) == count:
                return told
    return told


def test_what_happens_comes_by_itself(address, folder):
    log = AuditLog(folder / "runs" / RUN / "log.jsonl")

    before, after = first_events(address, 2, lambda: log.write("away", site="graz", reason="seen by a test"))

    assert "seen by a test" not in before
    assert "seen by a test" in after


def test_the_token_is_made_once_in_a_file_of_its_owners(tmp_path):
    home = consortium(tmp_path / "c", ())

    token = token_of(home)

    assert token_of(home) == token
    assert len(token) >= 40
    assert stat.S_IMODE((home / "server" / "dashboard.token").stat().st_mode) == 0o600


def test_the_program_listens_on_the_loopback_alone_and_writes_no_address_down(address, folder):
    from fedsmall.extensions.dashboard.app import server_of
    from fedsmall.extensions.dashboard.view import ConsortiumView

    settings = server_of(application(ConsortiumView(folder), TOKEN), 1).config

    assert settings.host == "127.0.0.1"
    assert settings.access_log is False
    with pytest.raises(httpx.ConnectError):
        httpx.get(address.replace("127.0.0.1", "127.0.0.2"))
