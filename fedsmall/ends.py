"""Signed log heads: what coordinator and site tell each other of their logs, so that neither can be rewritten unseen.

An order names the coordinator's log line for it, and the site's last signed statement. A reply is a new statement: the
site's line and its digest, signed with the site's key. Lines are chained, so it speaks for the whole log up to it.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from pydantic import Field, ValidationError

from fedsmall.audit_log import FIRST
from fedsmall.parts import Frozen

KEY_FILE = "site.key"  # in a kit; its public half is beside it, with .pub
ENDS = "ends"  # in an order's config, and in an answer's words
STARTED = "started"  # in an order's config: the command that started its run
ALGORITHM = ec.ECDSA(SHA384())

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Sign = Callable[[bytes], str]


class Signed(Frozen):
    """Words with the signature of whoever holds a key; kinds differ in their ``prefix``."""

    prefix: ClassVar[bytes]
    signature: Annotated[str, Field(max_length=400)] = ""

    @property
    def content(self) -> bytes:
        """What is signed."""
        fields = self.model_dump(exclude={"signature"})
        return self.prefix + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def signed(self, sign: Sign) -> Self:
        """The same with its signature."""
        return self.model_copy(update={"signature": sign(self.content)})

    def is_by(self, public: bytes) -> bool:
        """Whether the holder of the key of which this is the public half, an OpenSSH line, has signed this."""
        try:
            key = load_ssh_public_key(public)
            if not isinstance(key, ec.EllipticCurvePublicKey):
                return False
            key.verify(base64.b64decode(self.signature, validate=True), self.content, ALGORITHM)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, binascii.Error):
            return False
        return True


class Statement(Signed):
    """A site's word on its log: ``head`` is the digest of ``line``, which tells of its answer in a run.

    ``seen`` and ``seen_head`` are the line of the coordinator's log for the order, as that said.
    """

    prefix = b"fedsmall: where a site's log stands\n"  # the key signs for Flower too; no text of the two is alike

    site: Annotated[str, Field(max_length=100)]
    run: Annotated[str, Field(max_length=100)]
    id: Annotated[str, Field(max_length=64)] = ""
    line: Annotated[int, Field(ge=1)]
    head: Digest
    seen: Annotated[int, Field(ge=0)] = 0
    seen_head: Digest = FIRST


class Command(Signed):
    """A coordinator's ``command`` with its ``words``: ``head`` is the digest of the line before it in their log.

    ``by`` is the coordinator's name, ``key`` the public half of its key, an OpenSSH line.
    """

    prefix = b"fedsmall: a coordinator's command\n"
    command: Annotated[str, Field(max_length=40)]
    by: Annotated[str, Field(max_length=63)]
    key: Annotated[str, Field(max_length=1000)]
    words: dict[str, Any]
    head: Digest

    @property
    def is_signed(self) -> bool:
        """Whether the holder of its key has signed this."""
        return self.is_by(self.key.encode())


class OrderEnds(Frozen):
    """What an order of run ``id`` says: the coordinator's log line for it, and what the site has signed last."""

    id: str = ""
    line: Annotated[int, Field(ge=1)]
    head: Digest
    held: Statement | None = None


def statement_of(fields: Any) -> Statement | None:
    """The statement in an answer's words; None where there is none that can be read."""
    try:
        return Statement(**fields) if isinstance(fields, Mapping) else None
    except (ValidationError, TypeError):
        return None


def fingerprint(public: bytes) -> str:
    """The fingerprint of an OpenSSH public key, as ``ssh-keygen -l`` prints it: what two people read to each other."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def signer(key: Path) -> Sign:
    """What signs with the private key in a file. Raises ValueError where it is none of `fedsmall site keygen`'s."""
    private = load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key.name} is no key that fedsmall makes")
    return lambda content: base64.b64encode(private.sign(content, ALGORITHM)).decode()
