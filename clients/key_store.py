"""A site's part of sealed handovers in one run, on its own disk: keys, transcript, and what it gave out.

What an envelope must never tell twice is on disk before it leaves: a summand's key and digest, the sites of a sum.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.numpy import load

from fedsmall.algorithm.gate import largest, size, too_large
from fedsmall.audit_log import digest_of
from fedsmall.clients.shelf import ARRAYS, Shelf, write_private
from fedsmall.codec import CodecError, unpack
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.sealing.envelopes import (
    IDENTITIES,
    SEED,
    Announcement,
    EnvelopeError,
    Mailbox,
    Transcript,
    announce,
    digest,
    halves,
    known_identities,
    roll_digest,
)
from fedsmall.sealing.masks import SEED as KEY_BYTES
from fedsmall.sealing.routing import RoutingTable, seed_of
from fedsmall.sealing.terms import PAIR, Order, check_drawn
from fedsmall.wire import SQUARES, Arrays, is_shaped_as, stack_of_one

FOLDER = "letters"  # in the run's folder at the site
SENT = 5  # models that are kept in case the one they went to is silent
ENDED = "ended"


class KeyStore:
    """One run's envelopes at ``site``; ``identity`` is the site's secret, ``run`` the run's name and id."""

    def __init__(self, folder: Path, site: str, run: str, identity: bytes) -> None:
        self.folder, self.site, self.run, self._identity = folder / FOLDER, site, run, identity
        self.shelf, self._sent = Shelf(self.folder), Shelf(self.folder / "sent")

    def announce(self) -> Announcement:
        """The site's announcement in this run: always the same one."""
        keys = self._own()
        return announce(self.site, self.run, self._identity, bytes.fromhex(keys["key"]), keys["nonce"])

    def take(self, announced: Mapping[str, Announcement], roll: Mapping[str, str], sites: Sequence[str]) -> str:
        """Keep the announcements of all ``sites``, and reveal this site's nonce; EnvelopeError where one is false."""
        if sorted(announced) != sorted(sites):
            raise EnvelopeError("what was announced is not of the sites of this run")
        for site, announcement in sorted(announced.items()):
            if announcement.site != site:
                raise EnvelopeError(f"what {announcement.site} announces was passed on as {site}'s")
            announcement.check(self.run, roll)
        if announced[self.site] != self.announce():
            raise EnvelopeError("what this site announced was changed on its way")
        announcements = {site: announcement.model_dump() for site, announcement in sorted(announced.items())}
        kept = {"announced": announcements, "roll": roll_digest(roll)}
        if (before := self.shelf.words("announced")) is not None and before != kept:
            raise EnvelopeError("other keys were announced in this run before")
        self.shelf.put("announced", words=kept)
        return str(self._own()["nonce"])

    def open(self, plan: Plan, order: Order) -> "SealedSession":
        """The store under a plan. EnvelopeError where its routes do not follow from all sites' committed nonces."""
        announced, roll = self.read_announced()
        if sorted(order.nonces) != sorted(announced):  # one more would be drawn by whoever sends the order
            raise EnvelopeError("what was drawn for the routes is not of the sites of this run")
        for site, announcement in announced.items():
            if digest("drawn", order.nonces[site]) != announcement.commitment:
                raise EnvelopeError(f"what {site} had drawn for the routes is not what it committed itself to")
        check_drawn(plan, seed_of(order.nonces, plan.seed))
        at = self.shelf.words("thread") or Transcript.start(self.run, roll, announced, order.nonces).at
        transcript = Transcript({int(t): digest_at for t, digest_at in at.items()})
        routes = RoutingTable(plan, tuple(sorted(announced)))
        return SealedSession(self, plan, order.nonces, self.mailbox(plan, announced), routes, transcript)

    def read_announced(self) -> tuple[dict[str, Announcement], str]:
        """The announcements of all sites and the digest of the roll. Raises EnvelopeError where there are none."""
        if (kept := self.shelf.words("announced")) is None:
            raise EnvelopeError("this site was never told the keys of this run")
        return {site: Announcement(**fields) for site, fields in kept["announced"].items()}, kept["roll"]

    def mailbox(self, plan: BaseModel, announced: Mapping[str, Announcement]) -> Mailbox:
        """Who writes and opens this site's envelopes under a plan."""
        key = bytes.fromhex(self._own()["key"])
        return Mailbox(self.site, self.run, self._identity, key, announced, digest("plan", plan.model_dump_json()))

    def classic_key(self) -> X25519PrivateKey:
        """The X25519 half of this site's key in this run."""
        return halves(bytes.fromhex(self._own()["key"]))[1]

    def keep_sent(self, t: int, content: bytes) -> None:
        """Keep a model as it was sealed after round ``t``, and delete the oldest."""
        # not flushed: without it a model is replaced, and none is lost
        self._sent.write(f"{t:09d}{ARRAYS}", content, flush=False)
        self._sent.keep_last(SENT)

    def sent(self, t: int) -> bytes:
        """The model sealed after round ``t``. Raises EnvelopeError where it is gone."""
        if (content := self._sent.read(f"{t:09d}{ARRAYS}")) is None:
            raise EnvelopeError(f"the circulating model of round {t} is not kept here any more")
        return content

    def write_pair_keys(self, mailbox: Mailbox, sites: Sequence[str]) -> Arrays:
        """Envelopes to the ``sites`` after this one, each with a key for the two of them: the same if asked again.

        It makes a stream for each sum, which one adds and the other takes away.
        """
        keys = self.shelf.words("pairs") or {}
        keys |= {site: secrets.token_hex(KEY_BYTES) for site in sites if site > self.site and site not in keys}
        self.shelf.put("pairs", words=keys)
        envelopes = {
            site: mailbox.write(PAIR, 0, site, "", bytes.fromhex(keys[site])) for site in sites if site > self.site
        }
        return {site: np.frombuffer(envelope, np.uint8) for site, envelope in envelopes.items()}

    def take_pair_keys(self, mailbox: Mailbox, sites: Sequence[str], envelopes: Mapping[str, np.ndarray]) -> None:
        """Keep the keys in the envelopes of all ``sites`` before this one. EnvelopeError for a missing or new one."""
        if sorted(envelopes) != [site for site in sorted(sites) if site < self.site]:
            raise EnvelopeError("the keys of masks are not those of the sites before this one")
        taken = {
            site: mailbox.open(PAIR, 0, site, "", envelope.tobytes()).hex() for site, envelope in envelopes.items()
        }
        keys = self.shelf.words("pairs") or {}
        if any(len(key) != 2 * KEY_BYTES or keys.get(site, key) != key for site, key in taken.items()):
            raise EnvelopeError("another key of masks than before, or none, was in an encrypted message")
        self.shelf.put("pairs", words=keys | taken)

    def pair_keys(self, sites: Sequence[str]) -> dict[str, bytes]:
        """The keys that this site has with others. Raises EnvelopeError where it has none with one of them."""
        keys = self.shelf.words("pairs") or {}
        if missing := [site for site in sites if site not in keys]:
            raise EnvelopeError(f"this site and {missing[0]} have no key for masks in this run")
        return {site: bytes.fromhex(keys[site]) for site in sites}

    def summand_key(self, t: int, summand: np.ndarray, of: str = "") -> bytes:
        """The key that hides the summand of round ``t``: the same for the same numbers; EnvelopeError for others.

        ``of`` names a sum of something else than models.
        """
        by_sum, mark, key = self.shelf.words("seeds") or {}, digest_of({"summand": summand}), _sum(of, t)
        kept = by_sum.setdefault(key, {"of": mark, "key": secrets.token_hex(KEY_BYTES)})
        if kept["of"] != mark:
            raise EnvelopeError(f"this site has answered with other numbers for the sum of round {t} before")
        self.shelf.put("seeds", words=by_sum)
        return bytes.fromhex(kept["key"])

    def note_help(self, t: int, group: int, sites: Sequence[str], of: str = "") -> None:
        """Write down for whose sum this site helps. EnvelopeError where it has helped for another set of sites."""
        helped = self.shelf.words("helped") or {}
        if helped.setdefault(f"{_sum(of, t)}.{group}", list(sites)) != list(sites):
            raise EnvelopeError(f"this site has helped to open the sum of round {t} before, of other sites")
        self.shelf.put("helped", words=helped)

    def count_readdressed(self, t: int, to: str, most: int) -> None:
        """Count a model that goes to another site than it was sealed for. Raises EnvelopeError beyond ``most``."""
        readdressed, mark = self.shelf.words("readdressed") or [], [t, to]
        if mark not in readdressed:
            if len(readdressed) >= most:
                raise EnvelopeError(f"{most} circulating models of this run were readdressed here, and no more will be")
            self.shelf.put("readdressed", words=[*readdressed, mark])

    def end(self) -> None:
        """Mark the run as over; its keys are deleted when another begins (:func:`destroy_ended`)."""
        if self.folder.exists():
            write_private(self.folder / ENDED, b"")

    def _own(self) -> dict[str, str]:
        if (keys := self.shelf.words("own")) is None:
            if self.folder.exists() and any(self.folder.iterdir()):
                raise EnvelopeError("this site's keys of this run are gone: it had ended; start a new run")
            keys = {"key": secrets.token_hex(SEED), "nonce": secrets.token_hex(32)}
            self.shelf.put("own", words=keys)
        return dict(keys)


@dataclass
class SealedSession:
    """A run's ``store`` under its plan: keys, routes and transcript. It holds for all orders of the run."""

    store: KeyStore
    plan: Plan
    nonces: Mapping[str, str]
    mailbox: Mailbox
    routes: RoutingTable
    transcript: Transcript
    starts: dict[int, Arrays] = field(default_factory=dict)  # the groups' first models, as far as they were asked for

    def is_for(self, store: KeyStore, plan: Plan, order: Order) -> bool:
        """Whether this is the open store of an order."""
        same = (self.store.folder, self.store.run) == (store.folder, store.run)
        return same and self.nonces == order.nonces and self.plan == plan and (store.folder / "announced.json").exists()


def _sum(of: str, t: int) -> str:
    return f"{of}.{t}" if of else str(t)


def destroy_ended(runs: Path, but: Path) -> None:
    """Delete the keys and models that were kept for envelopes of all runs that are over, but for that in ``but``."""
    for mark in set(runs.glob(f"*/{FOLDER}/{ENDED}")) - {but / FOLDER / ENDED}:
        for path in sorted(mark.parent.rglob("*")):
            if path.is_file() and path != mark:
                path.unlink()


def check_identities(home: Path, identities: Mapping[str, str], pinned: str | None) -> list[str]:
    """The new names among ``identities``, which are remembered in ``home``.

    Raises EnvelopeError where their digest is not the one ``pinned`` by the policy, or a site's identity has changed.
    """
    if pinned is not None and pinned.removeprefix("sha256:") != roll_digest(identities):
        raise EnvelopeError(
            f"the consortium's key list is sha256:{roll_digest(identities)}, and the policy here pins another (roll); "
            "compare `fedsmall site roll` with the other hospitals"
        )
    known = known_identities(home)
    for site, identity in sorted(identities.items()):
        if known.get(site, identity) != identity:
            raise EnvelopeError(
                f"{site} has another identity than the one that this site has met; ask that hospital: one that has "
                "lost its identity is admitted under a new name"
            )
    fresh = sorted(set(identities) - set(known))
    if fresh:
        write_private(home / IDENTITIES, json.dumps(known | dict(identities), indent=1).encode())
    return fresh


def identity_of(path: Path) -> bytes:
    """The secret half of a site's identity. Raises PlanError where it has none."""
    if not path.exists():
        raise PlanError(
            "this site has no identity for encrypted messages yet; `fedsmall site keygen` makes one, and its public "
            "half goes to the coordinator"
        )
    return path.read_bytes()


def arrays_in(content: bytes, who: str) -> Arrays:
    """The arrays in what ``who`` has sealed. Raises EnvelopeError where it cannot be read."""
    try:
        return dict(load(content))
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise EnvelopeError(f"what {who} sealed cannot be read") from None


def in_full(plan: Plan, held: Arrays, like: Arrays, who: str) -> Arrays:
    """The arrays of an envelope of ``who``, decompressed. EnvelopeError unless they fit a model ``like`` this."""
    try:
        return unpack(plan, held, like)
    except CodecError as error:
        raise EnvelopeError(f"what {who} sealed is no model of this run: {error}") from None


def check_model(model: Arrays, carried: Arrays, expected: Arrays, last: Arrays | None, who: str) -> None:
    """Raise EnvelopeError unless a model is as ``expected``, finite, and not absurdly large beside ``last``."""
    if not is_shaped_as(model, expected):
        raise EnvelopeError(f"what {who} sent is no model of this run")
    check_beside(model, carried, who)
    if not _finite(model):
        raise EnvelopeError(f"the model that {who} sent holds a number that is not finite")
    if last is not None and size(model) > largest(last):
        raise EnvelopeError(f"the model that {who} sent is absurdly large")


def check_beside(model: Arrays, carried: Arrays, who: str) -> None:
    """Raise EnvelopeError, naming the sender, unless the arrays beside a model fit it."""
    shapes = {name: array.shape for name, array in model.items()}
    if any(array.shape != shapes.get(name.rpartition("/")[2], ()) for name, array in carried.items()):
        raise EnvelopeError(f"what {who} sent beside its model fits no part of it")
    counts = [a for n, a in carried.items() if a.dtype.kind in "iu" or SQUARES in n.split("/")]
    if not _finite(carried) or any((array < 0).any() for array in counts):
        raise EnvelopeError(f"what {who} sent beside its model is not finite, or below zero where nothing can be")


def fault_of(model: Arrays, carried: Arrays, received: Arrays, last: Arrays, gate: float) -> str | None:
    """Why a model trained from ``received`` may not leave; None where it may. ``last`` is a global model."""
    if not (_finite(model) and _finite(carried)):
        return "it holds a number that is not finite"
    if not gate:
        return None
    return too_large(stack_of_one(model), stack_of_one(received), last, float(gate), alone=True).get(0)


def _finite(arrays: Arrays) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
