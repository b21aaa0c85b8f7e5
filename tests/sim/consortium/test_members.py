"""Provisioning: what the coordinator writes, what the site makes itself, and what is refused."""

import re
import stat
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedsmall.ends import fingerprint
from fedsmall.sim.consortium import gate, keys, members, site


@pytest.fixture
def folder(tmp_path):
    members.create(tmp_path / "c", "rhine", "fed.example.org", 8443, listen="127.0.0.1", inner_port=18443, days=90)
    return tmp_path / "c"


@pytest.fixture
def key(tmp_path):
    keys.new_site_key(tmp_path / "essen.key")
    return tmp_path / "essen.key.pub"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_private_keys_are_their_owners_alone(folder, key):
    for path in (folder / "ca/ca.key", folder / "server/server.key", key.with_name("essen.key")):
        assert mode(path) == 0o600
    assert mode(folder / "ca") == 0o700


def test_the_server_certificate_holds_every_name_and_is_signed_by_the_authority(folder):
    authority = keys.load_certificate(folder / "ca/ca.crt")
    server = keys.load_certificate(folder / "server/server.crt")

    server.verify_directly_issued_by(authority)

    assert keys.certificate_hosts(server) == ["fed.example.org", "127.0.0.1", "localhost"]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert keys.days_left(server) in (89, 90)
    assert keys.days_left(server, datetime.now(UTC) + timedelta(days=100)) < 0


@pytest.mark.needs("openssl")
def test_openssl_accepts_the_chain(folder):
    command = "openssl verify -x509_strict -verify_hostname fed.example.org -CAfile ca/ca.crt server/server.crt"

    done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_host_the_certificate_does_not_hold_is_named_before_any_site_fails(folder):
    with pytest.raises(ValueError, match=r"good for fed\.example\.org.*dial other\.example\.org.*renew"):
        keys.check_host(keys.load_certificate(folder / "server/server.crt"), "other.example.org")


@pytest.mark.needs("ssh-keygen")
def test_fingerprints_are_those_of_ssh_keygen(key):
    told = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], capture_output=True, text=True, check=True).stdout

    assert fingerprint(keys.read_public_key(key)) in told


def test_flower_takes_our_keys(key):
    from flwr.cli.supernode.register import try_load_public_key

    assert try_load_public_key(key)


def test_a_kit_holds_no_key_and_no_secret(folder, key):
    members.add_site(folder, "essen", key, days=30)

    kit = folder / "kits/essen"

    assert sorted(path.name for path in kit.iterdir()) == ["ca.crt", "policy.toml", "site.json"]
    assert not any("PRIVATE" in path.read_text() for path in kit.iterdir())


def test_a_site_waits_for_its_key_then_is_admitted_then_revoked_for_good(folder, key):
    today = members.today()

    assert members.add_site(folder, "essen", None, days=30).standing(today) == "waiting for its key"
    member = members.add_site(folder, "essen", key, days=30)
    assert member.standing(today) == "admitted"
    assert member.standing(today + timedelta(days=31)) == "expired"
    assert members.revoke(folder, "essen").standing(today) == "revoked"
    with pytest.raises(ValueError, match="new name and a new key"):
        members.add_site(folder, "essen", key, days=30)


def test_a_key_is_of_one_site_and_a_site_of_one_key(folder, key, tmp_path):
    members.add_site(folder, "essen", key, days=30)
    keys.new_site_key(tmp_path / "other.key")

    with pytest.raises(ValueError, match="essen uses this key already"):
        members.add_site(folder, "bonn", key, days=30)
    with pytest.raises(ValueError, match="has the key SHA256"):
        members.add_site(folder, "essen", tmp_path / "other.key.pub", days=30)


def test_a_private_key_sent_by_mistake_is_refused(folder, key):
    with pytest.raises(ValueError, match="must never leave the site"):
        members.add_site(folder, "essen", key.with_name("essen.key"), days=30)


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        b"ssh-nothing AAAA",
    ],
    ids=["rsa", "ed25519", "garbage"],
)
def test_other_keys_are_refused(key, tmp_path):
    path = tmp_path / "k.pub"
    path.write_bytes(key)

    with pytest.raises(ValueError, match=r"NIST|OpenSSH public key"):
        keys.read_public_key(path)


def test_a_key_is_never_overwritten(key):
    with pytest.raises(FileExistsError):
        keys.new_site_key(key.with_name("essen.key"))


@pytest.mark.parametrize("name", ["", "Essen", "../essen", "a b", "-a", "ü", "a" * 64])
def test_names_that_could_not_be_folders_are_refused(folder, name):
    with pytest.raises(ValueError, match="lower-case letters"):
        members.add_site(folder, name, None, days=1)


def test_a_home_too_long_for_a_socket_is_refused_before_anything_starts(folder, tmp_path):
    members.add_site(folder, "essen", None, days=30)
    home = tmp_path / ("x" * 100)

    with pytest.raises(ValueError, match="--home"):
        site.up(site.Site(folder / "kits/essen", home), None, print, only="station")

    assert not home.exists()


def test_a_folder_holds_one_consortium(folder):
    with pytest.raises(ValueError, match="holds a consortium already"):
        members.create(folder, "x", "h", 1, listen="127.0.0.1", inner_port=2, days=1)
    with pytest.raises(ValueError, match="no consortium"):
        members.load(folder.parent)


def test_the_gate_passes_the_calls_of_a_site_and_nothing_else(folder):
    text = gate.configuration(members.load(folder), folder)

    assert "register-node" not in gate.FLEET_CALLS
    assert re.search(r"location / \{\s*add_header Fedsmall-Protocol \d+ always;\s*return 403;\s*\}", text)
    assert text.count("location") == 2
    assert "proxy_ssl_verify on" in text


def test_the_gate_knows_every_call_that_flowers_supernode_makes():
    from flwr.superlink.routers.fleet.router import router

    offered = {route.path.removeprefix("/v1/fleet/") for route in router.routes}

    assert offered - set(gate.FLEET_CALLS) == {"register-node", "unregister-node"}
