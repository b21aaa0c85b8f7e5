"""Keys and identities that a server exchanges: a site knows whom it writes to, and nobody else reads its own."""

import json
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsmall.clients.shelf import secret
from fedsmall.planning.run_sheet import SCALING, SITES
from fedsmall.sealing.envelopes import IDENTITIES, IDENTITY, SEED, Announcement, announce, name_of, roll_digest
from fedsmall.sealing.tables import TABLES
from fedsmall.sealing.terms import ANNOUNCED, NONCE, ROLL, Opened
from tests.attacks.world import Heard, World, who_met

A, B, C = "site-000", "site-001", "site-002"
RUN = "trial 0123"
UNSIGNED = f"what {B} announces is not signed by its identity for this run"
ANOTHER = (
    f"{B} has another identity than the one that this site has met; ask that hospital: one that has lost its identity "
    "is admitted under a new name"
)
OTHERS = "what was announced is not of the sites of this run"


def announced(met: World) -> dict[str, Announcement]:
    """What the sites have announced."""
    roll = {h.site: h.header["config"] for h in met.heard if h.kind == "roll"}
    return {site: Announcement.model_validate_json(told[ANNOUNCED]) for site, told in sorted(roll.items())}


def second(met: World, told: Mapping[str, Announcement], **config: Any) -> Heard:
    """The second question to site A, as a server may put it."""
    question = met.once("roll", A)._replace(kind=SCALING, arrays={})
    return question.but(**{ANNOUNCED: Opened(announced=dict(told)).model_dump_json(), **config})


def made_up(site: str, identity: bytes | None = None, run: str = RUN) -> Announcement:
    """What somebody announces who has the identity, and keys that are not the site's."""
    return announce(site, run, identity or secrets.token_bytes(32), secrets.token_bytes(SEED), "00" * 32)


def identity(met: World, site: str) -> bytes:
    return secret(met.federation.folder / site / IDENTITY)


@pytest.mark.parametrize("part", ["sealing", "commitment"])
def test_a_key_that_its_site_has_not_signed_is_refused(met, part):
    told = announced(met)
    swapped = told[B].model_copy(update={part: getattr(made_up(B), part)})

    met.refuses(second(met, told | {B: swapped}), UNSIGNED)


def test_an_announcement_of_an_earlier_run_is_refused(met):
    old = made_up(B, identity(met, B), run="trial 0122")

    met.refuses(second(met, announced(met) | {B: old}), UNSIGNED)


def test_another_identity_than_the_rolls_is_refused(met):
    met.refuses(
        second(met, announced(met) | {B: made_up(B)}),
        f"{B} announces another identity than the one that is known here",
    )


def test_another_identity_than_the_site_has_met_is_refused_though_the_roll_says_so_too(met):
    fake = made_up(B)
    roll = json.dumps({**met.federation.roll, B: fake.identity})

    met.refuses(
        second(met, announced(met) | {B: fake}, **{ROLL: roll}),
        ANOTHER,
    )
    met.refuses(
        met.once("roll", A).but(**{ROLL: roll}),
        ANOTHER,
    )


def test_another_identity_for_the_site_itself_is_refused(met):
    roll = json.dumps({**met.federation.roll, A: made_up(A).identity})

    met.refuses(
        met.once("roll", A).but(**{ROLL: roll}),
        "the consortium's key list has another identity for this site; send the coordinator site.key.pub",
    )


def test_the_sites_own_key_comes_back_as_it_was_announced(met):
    met.refuses(
        second(met, announced(met) | {A: made_up(A, identity(met, A))}),
        "what this site announced was changed on its way",
    )


def test_a_site_that_announced_nothing_is_refused(met):
    told = announced(met)

    met.refuses(second(met, told | {"site-zzz": made_up("site-zzz")}), OTHERS)
    met.refuses(second(met, {site: told[site] for site in (A, B)}), OTHERS)


def test_one_sites_keys_are_not_anothers(met):
    told = announced(met)

    met.refuses(second(met, told | {B: told[C]}), f"what {C} announces was passed on as {B}'s")


def test_a_roll_too_few_is_refused(met):
    told = announced(met)

    met.refuses(
        second(met, {site: told[site] for site in (A, B)}, **{SITES: [A, B]}),
        "the federation has 2 sites; the policy here asks for 3 (least_sites)",
    )


@pytest.mark.parametrize("words", ["", "[]", '{"announced": 3}', '{"announced": {"a": {}}}', '{"announced": null}'])
def test_keys_in_no_form_are_refused(met, words):
    line = "the keys of this run were not told in a form that this version knows"

    met.refuses(second(met, {}).but(**{ANNOUNCED: words}), line)


@pytest.mark.parametrize("words", ["", "[]", "3", "{", None])
def test_a_roll_in_no_form_is_refused(met, words):
    met.refuses(met.once("roll", A).but(**{ROLL: words}), "the message does not say who belongs to the consortium")


def pin(folder: Path, roll: Mapping[str, str]) -> None:
    path = folder / "policy.toml"
    path.write_text(f'{path.read_text()}roll = "sha256:{roll_digest(roll)}"\n')


def test_a_policy_that_pins_the_roll_takes_no_site_more_and_no_less(met):
    folder, told, roll = met.federation.folder, announced(met), met.federation.roll
    kept = (folder / "policy.toml").read_text()
    pin(folder, roll)

    for wrong in (roll | {"site-zzz": "00" * 32}, {site: roll[site] for site in (A, B)}, roll | {B: "00" * 32}):
        line = (
            f"the consortium's key list is sha256:{roll_digest(wrong)}, and the policy here pins another (roll); "
            "compare `fedsmall site roll` with the other hospitals"
        )
        met.refuses(met.once("roll", A).but(**{ROLL: json.dumps(wrong)}), line)
        met.refuses(second(met, told, **{ROLL: json.dumps(wrong)}), line)
    (folder / "policy.toml").write_text(kept)


def test_a_site_that_nobody_has_met_is_in_the_log(tmp_path):
    world = who_met(tmp_path)
    roll = {**world.federation.roll, "site-zzz": name_of(bytes(32))}

    world.ask(world.once("roll", A).but(**{ROLL: json.dumps(roll)}))

    [first, last] = [line["reason"] for line in world.log(A) if line["event"] == "met"]

    assert first == f"{B}, {C}: compare `fedsmall site roll` with theirs"
    assert last == "site-zzz: compare `fedsmall site roll` with theirs"


def test_other_keys_are_not_taken_later_in_a_run(met):
    told = announced(met)
    header, _ = met.ask(second(met, told))

    assert list(header["config"]) == [NONCE, TABLES]
    met.refuses(second(met, told | {B: made_up(B, identity(met, B))}), "other keys were announced in this run before")
    assert met.ask(second(met, told))[0]["config"] == header["config"]


def test_what_a_site_keeps_for_envelopes_is_its_own_alone(world):
    for site in world.federation.names:
        home = world.federation.folder / site
        kept = [home / IDENTITY, home / IDENTITIES, *(home / "runs").rglob("*")]

        assert any(path.name == "own.json" for path in kept)
        assert any(path.parent.name == "sent" for path in kept)
        assert {_mode(path) for path in kept if path.is_file()} == {0o600}
        assert {_mode(path) for path in (home, *kept) if path.is_dir()} == {0o700}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
