"""A statement on a log is its signer's alone, word for word; what is none is no error, but none."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import ConfigRecord

from fedsmall.ends import Statement, signer, statement_of

DIGEST = "ab" * 32


def key_pair(path, private=None):
    private = private or ec.generate_private_key(ec.SECP384R1())
    form, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, none))
    ssh = serialization.PublicFormat.OpenSSH
    return private.public_key().public_bytes(serialization.Encoding.OpenSSH, ssh)


def statement(**more):
    return Statement(**{"site": "essen", "run": "r", "id": "0", "line": 7, "head": DIGEST, "seen": 3, **more})


def test_what_is_signed_is_known_by_the_public_key_and_by_no_other(tmp_path):
    public, other = key_pair(tmp_path / "a"), key_pair(tmp_path / "b")

    signed = statement().signed(signer(tmp_path / "a"))

    assert signed.is_by(public)
    assert not signed.is_by(other)
    assert not statement().is_by(public)
    assert signed.content.startswith(Statement.prefix)


@pytest.mark.parametrize(
    "change",
    [
        {"site": "bonn"},
        {"run": "s"},
        {"id": "1"},
        {"line": 8},
        {"head": "cd" * 32},
        {"seen": 4},
        {"seen_head": DIGEST},
        {"signature": "AAAA"},
        {"signature": "no base64"},
    ],
)
def test_every_word_of_it_is_signed(tmp_path, change):
    public = key_pair(tmp_path / "a")

    signed = statement().signed(signer(tmp_path / "a"))

    assert not signed.model_copy(update=change).is_by(public)


def test_a_key_of_another_kind_signs_nothing_and_proves_nothing(tmp_path):
    public = key_pair(tmp_path / "a", ed25519.Ed25519PrivateKey.generate())

    with pytest.raises(ValueError, match="is no key that fedsmall makes"):
        signer(tmp_path / "a")
    assert not statement(signature="AAAA").is_by(public)
    assert not statement(signature="AAAA").is_by(b"no key")


@pytest.mark.parametrize(
    "told",
    [None, 3, {}, {"line": 0}, {**statement().model_dump(), "head": "x"}, {**statement().model_dump(), "more": 1}],
)
def test_what_is_no_statement_is_none(told):
    assert statement_of(told) is None


def test_a_statement_comes_back_from_the_record_in_which_it_travels():
    assert statement_of(ConfigRecord(statement().model_dump())) == statement()
