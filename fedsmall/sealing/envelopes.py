"""Envelopes from site to site, which whoever passes them on can neither open nor change nor deliver elsewhere.

An envelope is the sender's signature (Ed25519, 64 bytes) and a box sealed to the receiver: HPKE (RFC 9180, base mode)
with ML-KEM-768 and X25519 together (models of patients live long, hence the half that outlives quantum computers),
HKDF-SHA256 and ChaCha20-Poly1305. It is bound to its run, kind, round, sender, receiver, and to all that the two have
seen of the run by then (:class:`Transcript`): where they were told different things, it does not open.

Identities outlive runs, and are what people compare (:func:`digest_words`). Sealing keys are of one run, and
deleted after it: recorded traffic stays closed to who steals a site's disk later.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric import ed25519, mlkem, x25519
from pydantic import Field

from fedsmall.errors import PolicyError
from fedsmall.parts import Frozen

VERSION = "fedsmall-letter-1"
SUITE = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
SIGNATURE, ML_KEM, X25519, SEED = 64, 1184, 32, 64 + 32
IDENTITY = "identity.key"  # in a site's kit: the secret half of its identity, which its data process alone reads
IDENTITIES = "identities.json"  # in a site's home: the identities of those that it has met
GROUPS, DIGITS = 12, 5
OVERHEAD = SIGNATURE + 1136  # bytes of an envelope beside what it holds

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Hex = Annotated[str, Field(pattern="^[0-9a-f]{2,4000}$")]


class EnvelopeError(PolicyError):
    """An envelope, or an announcement for it, that is not what it should be; one line that says which and whose."""


class Announcement(Frozen):
    """What a site announces before a run: the key that envelopes to it are sealed to, and a commitment to its draw.

    ``sealing`` is ML-KEM's public half and X25519's; ``commitment`` a digest; both signed by the site's ``identity``.
    """

    site: Annotated[str, Field(max_length=100)]
    identity: Hex32
    sealing: Hex
    commitment: Hex32
    signature: Hex

    @property
    def classic(self) -> str:
        """The X25519 half of the sealing key, by which two sites make a secret of theirs."""
        return self.sealing[2 * ML_KEM :]

    def check(self, run: str, identities: Mapping[str, str]) -> None:
        """Raise EnvelopeError unless this is of the site's known identity, and of this run."""
        if identities.get(self.site) != self.identity:
            raise EnvelopeError(f"{self.site} announces another identity than the one that is known here")
        message = canon(VERSION, "announce", run, self.site, self.sealing, self.commitment)
        try:
            _verify(self.identity, bytes.fromhex(self.signature), message)
            public(self.sealing)
        except (InvalidSignature, ValueError):
            raise EnvelopeError(f"what {self.site} announces is not signed by its identity for this run") from None


class Transcript:
    """The transcript of a run that a site has seen, as digests ``at`` the rounds of averages, 0 before the first."""

    def __init__(self, at: Mapping[int, str]) -> None:
        self.at = dict(at)

    @classmethod
    def start(cls, run: str, roll: str, announced: Mapping[str, Announcement], nonces: Mapping[str, str]) -> Self:
        """The transcript of a run of these sites: their identities (the digest ``roll``), keys and drawn parts."""
        keys = [[site, announced[site].sealing, announced[site].commitment] for site in sorted(announced)]
        return cls({0: digest("run", run, roll, keys, sorted(nonces.items()))})

    def before(self, t: int) -> str:
        """The digest that held while round ``t`` was trained: that of the last average before it."""
        return self.at[max(known for known in self.at if known < t)]


class Mailbox:
    """One site's mailbox for one run, under its ``plan``'s digest; ``others`` are checked announcements by site."""

    def __init__(
        self, site: str, run: str, identity: bytes, sealing: bytes, others: Mapping[str, Announcement], plan: str = ""
    ) -> None:
        self.site, self.run, self.plan = site, run, plan
        self._identity = ed25519.Ed25519PrivateKey.from_private_bytes(identity)
        self._sealing = private(sealing)
        self._others = dict(others)

    def write(self, kind: str, t: int, to: str, transcript: str, content: bytes) -> bytes:
        """An envelope of round ``t``; ``transcript`` is what this site has seen of the run when it trained for that."""
        info = self._bound(kind, t, self.site, to, transcript)
        box = SUITE.encrypt(content, public(self._others[to].sealing), info)
        return self._identity.sign(signed(info, box)) + box

    def open(self, kind: str, t: int, sender: str, transcript: str, envelope: bytes) -> bytes:
        """What an envelope holds. EnvelopeError, which names the sender, where it is not the one it should be."""
        info, box = self._bound(kind, t, sender, self.site, transcript), envelope[SIGNATURE:]
        try:
            _verify(self._others[sender].identity, envelope[:SIGNATURE], signed(info, box))
            return SUITE.decrypt(box, self._sealing, info)
        except (InvalidSignature, InvalidTag, ValueError):
            raise EnvelopeError(
                f"the {kind} message of round {t}, said to be from {sender}, does not open: it was changed, is of "
                "another run, round or receiver, or the two sites received different things"
            ) from None
        except KeyError:
            raise EnvelopeError(f"an encrypted message from {sender!r}, who is not in this run") from None

    def _bound(self, kind: str, t: int, sender: str, to: str, transcript: str) -> bytes:
        return canon(VERSION, kind, self.run, t, sender, to, transcript, self.plan)


def after(before: str, t: int, global_models: Sequence[str]) -> str:
    """The digest of a transcript after the average of round ``t`` has made the ``global_models``, by their digests."""
    return digest("average", before, t, list(global_models))


def _verify(identity: str, signature: bytes, content: bytes) -> None:
    ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)).verify(signature, content)


def announce(site: str, run: str, identity: bytes, sealing: bytes, nonce: str) -> Announcement:
    """A site's announcement, from its identity's secret, its sealing key's seed, and what it has drawn."""
    post_quantum, classic = halves(sealing)
    key = post_quantum.public_key().public_bytes_raw() + classic.public_key().public_bytes_raw()
    fields = {"site": site, "sealing": key.hex(), "commitment": digest("drawn", nonce)}
    signature = ed25519.Ed25519PrivateKey.from_private_bytes(identity).sign(
        canon(VERSION, "announce", run, *fields.values())
    )
    return Announcement(**fields, identity=name_of(identity), signature=signature.hex())


def name_of(identity: bytes) -> str:
    """The public half of an identity, as 64 hexadecimal digits."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw().hex()


def private(seed: bytes) -> Any:
    """The sealing key that follows from 96 random bytes."""
    if len(seed) != SEED:
        raise ValueError(f"a sealing key is made of {SEED} random bytes, not of {len(seed)}")
    return hpke.MLKEM768X25519PrivateKey(*halves(seed))


def public(text: str) -> Any:
    """The public half of a sealing key, as announced. Raises ValueError for anything else."""
    raw = bytes.fromhex(text)
    if len(raw) != ML_KEM + X25519:
        raise ValueError("no sealing key")
    post_quantum = mlkem.MLKEM768PublicKey.from_public_bytes(raw[:ML_KEM])
    return hpke.MLKEM768X25519PublicKey(post_quantum, x25519.X25519PublicKey.from_public_bytes(raw[ML_KEM:]))


def digest(*words: Any) -> str:
    """SHA-256 over words of JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(canon(VERSION, *words)).hexdigest()


def canon(*words: Any) -> bytes:
    """Words as bytes, in the one way that sender and receiver both make them."""
    return json.dumps(words, separators=(",", ":"), ensure_ascii=True).encode()


def signed(info: bytes, box: bytes) -> bytes:
    """What a sender signs: the box, and all that it is bound to."""
    return hashlib.sha256(len(info).to_bytes(8, "big") + info + box).digest()


def halves(seed: bytes) -> tuple[mlkem.MLKEM768PrivateKey, x25519.X25519PrivateKey]:
    """The two secret keys that follow from 96 random bytes."""
    return mlkem.MLKEM768PrivateKey.from_seed_bytes(seed[:64]), x25519.X25519PrivateKey.from_private_bytes(seed[64:])


def roll_digest(roll: Mapping[str, str]) -> str:
    """One digest of all names and identities, as 64 hexadecimal digits; what a site's policy pins as ``roll``."""
    return digest("roll", sorted(roll.items()))


def known_identities(home: Path) -> dict[str, str]:
    """The identities of the sites that the one which writes in ``home`` has met, by name."""
    path = home / IDENTITIES
    return dict(json.loads(path.read_text())) if path.exists() else {}


def digest_words(roll: Mapping[str, str]) -> str:
    """The roll as twelve groups of five digits, for one telephone call of all hospitals: nearly 200 bits of it."""
    number = int(roll_digest(roll), 16)
    groups = []
    for _ in range(GROUPS):
        number, group = divmod(number, 10**DIGITS)
        groups.append(f"{group:0{DIGITS}d}")
    return " ".join(groups)
