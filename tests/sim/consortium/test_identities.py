"""Identities of envelopes, from a hospital's keygen to the roll of a run."""

import stat

import pytest
from typer.testing import CliRunner

from fedsmall.clients.key_store import check_identities
from fedsmall.ends import fingerprint
from fedsmall.errors import PlanError
from fedsmall.sealing.envelopes import EnvelopeError, digest_words, known_identities, name_of, roll_digest
from fedsmall.sim.cli.consortium import app as consortium
from fedsmall.sim.cli.site import app as site
from fedsmall.sim.consortium import keys, members, runs
from fedsmall.sim.runs.scenario import build
from tests.sim.consortium.real_run import plan_of

NAMES = ("bonn", "essen", "ulm")


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "consortium"
    members.create(home, "trial", "localhost", 8443, listen="127.0.0.1", inner_port=18443, days=9)
    for name in NAMES:
        members.add_site(home, name, None, 9)
    return home


def told(app, *words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output or str(result.exception)


def admitted(folder, names=NAMES):
    for name in names:
        assert told(site, "keygen", "--kit", folder / "kits" / name)[0] == 0
        members.add_site(folder, name, folder / "kits" / name / "site.key.pub", 9)
    return members.roll_of(members.load(folder))


def test_keygen_makes_an_identity_whose_public_half_goes_with_the_key(folder):
    roll = admitted(folder)

    for name in NAMES:
        secret = folder / "kits" / name / "identity.key"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert roll[name] == name_of(secret.read_bytes())
        public = folder / "kits" / name / "site.key.pub"
        assert fingerprint(public.read_bytes()) == members.load(folder).members[name].fingerprint
        assert secret.read_bytes().hex() not in public.read_text()


def test_a_kit_of_before_is_given_an_identity_and_keeps_its_key(folder):
    kit = folder / "kits" / "bonn"
    keys.new_site_key(kit / "site.key")
    before = (kit / "site.key").read_bytes(), fingerprint((kit / "site.key.pub").read_bytes())
    members.add_site(folder, "bonn", kit / "site.key.pub", 9)

    roll = admitted(folder, ["bonn"])

    assert (kit / "site.key").read_bytes() == before[0]
    assert members.load(folder).members["bonn"].fingerprint == before[1]
    assert list(roll) == ["bonn"]
    code, words = told(site, "keygen", "--kit", kit)
    assert (code, "not overwritten" in words) == (1, True)


def test_another_identity_under_a_known_name_is_refused(folder):
    admitted(folder)
    kit = folder / "kits" / "bonn"
    (kit / "identity.key").unlink()
    told(site, "keygen", "--kit", kit)

    with pytest.raises(ValueError, match="bonn has another identity already; revoke it, and admit a new"):
        members.add_site(folder, "bonn", kit / "site.key.pub", 9)


def test_who_is_revoked_or_without_identity_is_not_in_the_roll(folder):
    admitted(folder, ["bonn", "essen"])
    members.revoke(folder, "essen")

    assert list(members.roll_of(members.load(folder))) == ["bonn"]


def test_both_ends_show_the_roll_with_one_number_to_read_to_each_other(folder):
    roll = admitted(folder)
    home = folder / "kits" / "ulm" / "state"
    check_identities(home, roll, None)

    shown = [told(consortium, "roll", "--folder", folder), told(site, "roll", "--kit", folder / "kits" / "ulm")]

    assert [code for code, _ in shown] == [0, 0]
    for _, words in shown:
        assert digest_words(roll) in words.replace("\n", " ")
        assert f'roll = "sha256:{roll_digest(roll)}"' in words.replace("\n", "")
    assert known_identities(home) == roll


@pytest.mark.parametrize("app", [consortium, site])
def test_where_nobody_is_known_both_say_what_to_do(folder, app):
    where = ("--folder", folder) if app is consortium else ("--kit", folder / "kits" / "ulm")

    code, words = told(app, "roll", *where)

    assert code == 1
    assert "keygen" in words or "consortium roll" in words


def test_a_run_with_envelopes_takes_sites_that_have_identities(folder):
    admitted(folder, ["bonn", "essen"])
    sealed = plan_of("method.0.privacy.sealed=true")

    line = "ulm has sent no identity for encrypted messages: `fedsmall site keygen` there"
    with pytest.raises(PlanError, match=line):
        runs.prepare(folder, "trial", sealed, NAMES)
    assert not (folder / "runs" / "trial").exists()
    admitted(folder, ["ulm"])
    home = runs.prepare(folder, "trial", sealed, NAMES)
    assert '"roll"' in (home / "sheet.json").read_text()


@pytest.mark.parametrize(
    ("settings", "sealed"),
    [
        ((), True),
        (("method.0.privacy.sealed=false",), False),
        (("method.0.name=FedAvg", "method.0.permute_every=1000"), True),
    ],
)
def test_what_is_handed_on_goes_in_envelopes_unless_the_scenario_says_otherwise(folder, settings, sealed):
    before = runs.hidden_where_possible(folder, plan_of(*settings), NAMES)
    admitted(folder)

    plan = runs.hidden_where_possible(folder, plan_of(*settings), NAMES)

    assert not before.method.privacy.sealed  # not every site has an identity
    assert plan.method.privacy.sealed is sealed
    assert plan.method.privacy.secure is False


@pytest.mark.parametrize(
    ("method", "sites", "secure"),
    [
        ({"name": "Ridge"}, NAMES, True),
        ({"name": "AdditiveRidge"}, NAMES, True),
        ({"name": "Ridge"}, NAMES[:2], False),  # too few for a sum
        ({"name": "Ridge", "privacy": {"blur": 0}}, NAMES, False),
        ({"name": "TravellingPosterior"}, NAMES, False),
        ({"name": "FedAvg", "aggregate_every": 1}, NAMES, False),
    ],
)
def test_a_regression_s_sums_are_secure_unless_the_scenario_says_something_of_privacy(folder, method, sites, secure):
    table = {"name": "t", "task": "breast_cancer", "samples_per_site": 20, "rounds": 30, "method": [method]}
    asked = build({**table, "sites": len(sites)}).plans()[0]
    before = runs.hidden_where_possible(folder, asked, sites)
    admitted(folder)

    plan = runs.hidden_where_possible(folder, asked, sites)

    assert not before.privacy.secure  # not every site has an identity
    assert plan.privacy.secure is secure


def test_a_site_holds_others_to_the_identities_that_it_has_met(tmp_path):
    roll = {"bonn": "aa" * 32, "essen": "bb" * 32}
    assert check_identities(tmp_path, roll, None) == ["bonn", "essen"]
    assert check_identities(tmp_path, {**roll, "ulm": "cc" * 32}, None) == ["ulm"]
    assert check_identities(tmp_path, roll, None) == []  # a roll may lack somebody

    with pytest.raises(EnvelopeError, match="essen has another identity than the one that this site has met"):
        check_identities(tmp_path, {**roll, "essen": "dd" * 32}, None)
    assert known_identities(tmp_path)["essen"] == "bb" * 32


def test_a_policy_that_pins_the_roll_takes_no_other(tmp_path):
    roll = {"bonn": "aa" * 32, "essen": "bb" * 32}
    pin = f"sha256:{roll_digest(roll)}"

    assert check_identities(tmp_path, roll, pin) == ["bonn", "essen"]
    with pytest.raises(EnvelopeError, match="and the policy here pins another"):
        check_identities(tmp_path, {**roll, "ulm": "cc" * 32}, pin)
    assert "ulm" not in known_identities(tmp_path)
