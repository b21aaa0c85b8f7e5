"""Sums of sites of which some are silent, some collude, and some are no decryptors: three to sixteen of them."""

from typing import Any

import numpy as np
import pytest

from fedsmall.plan import Plan
from fedsmall.sealing.masks import committee_size, least_in_sum, threshold
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import BEFORE, HELP, OF, PAIRS
from fedsmall.strategies.sealed_models import DecryptorError
from fedsmall.wire import CONFIG, PLAN, ROUND, join, split
from tests.attacks.test_envelopes import flipped
from tests.attacks.world import IMPATIENT, World, averages
from tests.sim.engines.harness import assert_equal_bits
from tests.sim.sealing.federation import Federation, run, simulated

SITES = [3, 4, 5, 16]
RARE = pytest.mark.thorough


def silent(who: set[str], kind: str = f"query.{HELP}", t: int | None = None) -> Any:
    """A network on which these sites do not hear questions of a kind."""

    def change(site: str, order: Any) -> Any:
        config = order.content.config_records.get(CONFIG, {})
        asked = order.metadata.message_type == kind and t in (None, config.get(ROUND))
        return None if site in who and asked else order

    return change


def spare(sites: int) -> int:
    """How many decryptors may be silent."""
    decryptors = committee_size(sites, 9)
    return decryptors - threshold(decryptors)


def events(outcome: Any) -> set[tuple[str, str]]:
    return {(event["site"], event["kind"]) for event in outcome.events}


class Lottery:
    """The committees of the run that is under way, once its routes are drawn."""

    def __init__(self, federation: Federation, quiet: int, of: str | None = None) -> None:
        self.federation, self.quiet, self.of = federation, quiet, of
        self.left_out: set[str] = set()

    def __call__(self, site: str, order: Any) -> Any:
        if order.metadata.message_type != f"query.{HELP}":
            return order
        config = order.content[CONFIG]
        if self.of not in (None, config.get(OF, "")):
            return order
        table = RoutingTable(Plan.model_validate_json(str(config[PLAN])), self.federation.names)
        who = table.decryptors(int(config[ROUND]), str(config.get(OF, "")))[: self.quiet]
        self.left_out |= set(who)
        return None if site in who else order


@pytest.mark.slow
@pytest.mark.parametrize("sites", SITES)
def test_as_many_silent_decryptors_as_may_be_cost_no_bit(tmp_path, monkeypatch, sites):
    federation = Federation(tmp_path, sites, monkeypatch)
    federation.change = lottery = Lottery(federation, spare(sites))

    outcome = run(federation, averages(sites), **IMPATIENT)

    assert spare(sites) == {3: 1, 4: 1, 5: 1, 16: 3}[sites]
    assert events(outcome) == {(site, "set aside") for site in lottery.left_out}
    assert {event["reason"] for event in outcome.events} == {
        "it does not help to open a sum: no answer before the deadline"
    }
    assert_equal_bits(outcome.model, simulated(federation).model)


@pytest.mark.slow
@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("of", ["sums", ""])
def test_one_silent_decryptor_too_many_stops_the_run_until_it_is_back(tmp_path, monkeypatch, sites, of):
    federation = Federation(tmp_path, sites, monkeypatch)
    federation.change, plan = Lottery(federation, spare(sites) + 1, of), averages(sites)
    decryptors = committee_size(sites, 9)

    with pytest.raises(DecryptorError) as told:
        run(federation, plan, **IMPATIENT)
    federation.change = None
    outcome = run(federation, plan)

    least = threshold(decryptors)
    assert f"stays closed, for {least - 1} of {decryptors} decryptors answer, and it takes {least}; site-" in str(
        told.value
    )
    assert_equal_bits(outcome.model, simulated(federation).model)


@pytest.mark.slow
@pytest.mark.parametrize("sites", [4, 5, 16])
def test_a_silent_summand_and_a_silent_decryptor_are_survived_together(tmp_path, monkeypatch, sites):
    """One site's model is missing at the first average and its help at the second; another is silent at both sums."""

    def change(site: str, order: Any) -> Any:
        late = silent({"site-001"}, "train", 1)(site, order) and silent({"site-001"}, t=2)(site, order)
        return late and silent({"site-002"} if sites > 5 else set())(site, order)

    federation = Federation(tmp_path, sites, monkeypatch, change=change)
    outcome = run(federation, averages(sites), **IMPATIENT)

    assert ("site-001", "silent") in events(outcome)
    questions = [order for _, order, _ in federation.passed if order.metadata.message_type == f"query.{HELP}"]
    first = [order for order in questions if order.content[CONFIG][ROUND] == 1 and not order.content[CONFIG].get(OF)]
    assert {"site-001" in order.content["seeds"] for order in first} == {False}
    assert outcome.model is not None
    assert all(np.isfinite(array).all() and np.abs(array).max() < 10 for array in outcome.model.values())


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Sixteen sites after one average, of which twelve help with each sum."""
    return World.walked(tmp_path_factory.mktemp("sixteen"), averages(16, rounds=1), 16)


@RARE
def test_of_sixteen_sites_twelve_help_and_the_others_refuse(sixteen):
    names = sixteen.federation.names
    for of, t in (("", 1), ("sums", 0), ("evaluate", 1)):
        decryptors = RoutingTable(sixteen.plan, names).decryptors(t, of)
        question = next(h for h in sixteen.heard if h.kind == HELP and h.config.get(OF, "") == of)

        assert len(decryptors) == 12
        for other in set(names) - set(decryptors):
            sixteen.refuses(question, f"by the plan this site is no decryptor of round {t}", to=other)


@RARE
@pytest.mark.parametrize("few", [3, 6])
def test_of_sixteen_sites_no_sum_is_opened_that_a_third_of_them_could_fill(sixteen, few):
    question = next(h for h in sixteen.heard if h.kind == HELP and not h.config.get(OF))
    envelopes = dict(sorted(split(question.arrays, "seeds").items())[:few])

    assert least_in_sum(16) == 7
    sixteen.refuses(
        question._replace(arrays=join(seeds=envelopes)),
        f"this site helps to open no sum of fewer than 7 sites, and {few} were given",
    )


# -- keys of pairs -----------------------------------------------------------------------------------------------------

LAST = "site-004"


def test_a_site_takes_the_keys_of_its_pairs_again_and_no_others(world):
    taken = world.once(PAIRS, LAST)
    envelopes = split(taken.arrays, PAIRS)

    assert sorted(envelopes) == [name for name in world.federation.names if name < LAST]
    assert world.ask(taken)[0]["config"] == {}
    few = {name: envelopes[name] for name in list(envelopes)[1:]}
    for wrong in ({}, few, {**envelopes, "site-zzz": envelopes["site-000"]}):
        world.refuses(
            taken._replace(arrays=join(pairs=wrong)),
            "the keys of masks are not those of the sites before this one",
        )


def test_no_key_of_a_pair_opens_elsewhere_or_when_changed(world):
    taken = world.once(PAIRS, LAST)
    envelopes = split(taken.arrays, PAIRS)
    broken = np.frombuffer(flipped(envelopes["site-000"].tobytes(), 500), np.uint8)

    for wrong in ({**envelopes, "site-000": broken}, {**envelopes, "site-000": envelopes["site-001"]}):
        header, sent = world.ask(taken._replace(arrays=join(pairs=wrong)))
        assert "the pair message of round 0, said to be from site-000, does not open" in header["error"]
        assert sent == {}


def test_without_the_keys_of_its_pairs_a_site_adds_to_no_sum(tmp_path, monkeypatch):
    """A server that passes none on, and goes on as if it had."""
    monkeypatch.setattr("fedsmall.strategies.server.handshake._pass_pair_keys_on", lambda *_: None)
    federation = Federation(tmp_path, 3, monkeypatch)

    with pytest.raises(DecryptorError, match="1 sites tell"):
        run(federation, averages(3), **IMPATIENT)

    refused = [reply for _, order, reply in federation.passed if order.metadata.message_type == f"query.{BEFORE}"]
    assert [reply.has_error() for reply in refused] == [False, True, True]
    assert "site-001: this site and site-000 have no key for masks in this run" in refused[1].error.reason


def test_a_run_does_not_begin_where_a_site_seals_no_key_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsmall.clients.key_store.KeyStore.write_pair_keys", lambda *_: {})
    federation = Federation(tmp_path, 3, monkeypatch)

    with pytest.raises(ValueError, match="site-000: it sends site-001 no key for the masks of secure sums"):
        run(federation, averages(3), **IMPATIENT)
