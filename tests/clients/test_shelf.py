"""What is sealed is read with its key and no other; what a station keeps of a run is sealed where its policy asks."""

import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.kept import load_kept
from fedsmall.clients.runs import run_folder
from fedsmall.clients.shelf import KEY, NONCE, SEALED, Shelf, seal, sealed_by, unseal
from fedsmall.errors import PolicyError
from fedsmall.package.record import GLOBAL
from fedsmall.sim.cli.app import main
from fedsmall.sim.consortium import members
from fedsmall.wire import ROUND, split
from tests.clients.test_data_process import AS_IT_IS, config, files, order, plan, same, scaled

__all__ = ["files"]


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return str(tmp_path_factory.mktemp("key") / "rest.key")


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=300))
def test_what_is_sealed_comes_back_and_is_never_the_same_twice(key, content):
    with sealed_by(key):
        one, other = seal(content), seal(content)
        assert unseal(one) == unseal(other) == content
    assert one != other
    assert len(one) == len(SEALED) + NONCE + len(content) + 16


def test_it_is_aes_gcm_with_the_key_in_the_file(key, tmp_path):
    with sealed_by(key):
        sealed = seal(b"weights")

    written = (tmp_path / key).read_bytes()
    assert len(written) == KEY
    assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
    rest = sealed[len(SEALED) :]
    assert AESGCM(written).decrypt(rest[:NONCE], rest[NONCE:], SEALED) == b"weights"


def test_without_a_key_things_are_as_they_are_and_what_was_written_so_stays_readable(key):
    assert seal(b"x") == unseal(b"x") == b"x"
    with sealed_by(None):
        assert seal(b"x") == b"x"
    with sealed_by(key):
        assert unseal(b"x") == b"x"


def test_another_key_none_or_a_changed_bit_is_a_refusal(key, tmp_path):
    with sealed_by(key):
        sealed = seal(b"weights")
        for place in (len(SEALED), len(SEALED) + NONCE, len(sealed) - 1):
            changed = bytes([*sealed[:place], sealed[place] ^ 1, *sealed[place + 1 :]])
            with pytest.raises(PolicyError, match="sealed with another rest_key, or was changed"):
                unseal(changed)
        with pytest.raises(PolicyError, match="or was changed"):
            unseal(SEALED + b"short")
    with pytest.raises(PolicyError, match="its policy names no rest_key to open it"):
        unseal(sealed)
    with sealed_by(str(tmp_path / "other.key")), pytest.raises(PolicyError, match="another rest_key"):
        unseal(sealed)


def test_a_key_that_cannot_be_made_or_is_none_is_told(tmp_path):
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "file").touch()

    with pytest.raises(PolicyError, match="rest_key holds 3 bytes, a key has 32"), sealed_by(str(tmp_path / "short")):
        pass
    with pytest.raises(PolicyError, match="can be neither read nor made"), sealed_by(str(tmp_path / "file" / "key")):
        pass


def run_of(station, the_plan):
    """Two communication rounds and the last evaluation; what left, in order."""
    model = scaled(station, the_plan)
    left = [station.answer("train", order(t, the_plan=the_plan), model)[1] for t in (1, 2)]
    end = station.answer("evaluate", config(the_plan, **{ROUND: the_plan.rounds}), model)
    assert "error" not in end[0]
    return left, model


def arrays_on_disk(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".json", ".md")]


def test_a_station_with_a_key_gives_the_same_bits_and_keeps_nothing_that_can_be_read(tmp_path, files, key):
    the_plan = plan(2)
    (tmp_path / "open.toml").write_text(AS_IT_IS)
    (tmp_path / "sealed.toml").write_text(AS_IT_IS + f'rest_key = "{key}"\n')
    plain = DataProcess("essen", files["essen"], tmp_path / "plain", tmp_path / "open.toml")
    sealed = DataProcess("essen", files["essen"], tmp_path / "sealed", tmp_path / "sealed.toml")

    (one, model), (other, _) = run_of(plain, the_plan), run_of(sealed, the_plan)

    assert all(same(a, b) for a, b in zip(one, other, strict=True))
    folder = run_folder(tmp_path / "sealed" / "runs", "r")
    places = {str(path.relative_to(folder).parent) for path in arrays_on_disk(folder)}
    assert "kept" in places
    for path in arrays_on_disk(folder):
        if path.name != "agreed.json":  # the plan, which everybody knows
            assert path.read_bytes().startswith(SEALED), path.name
    assert not any(
        p.read_bytes().startswith(SEALED) for p in arrays_on_disk(run_folder(tmp_path / "plain" / "runs", "r"))
    )
    with pytest.raises(PolicyError, match="names no rest_key"):
        load_kept(folder, GLOBAL)
    with sealed_by(key):
        found = load_kept(folder, GLOBAL).weights
    assert all(np.array_equal(found[name], array) for name, array in split(model, "arrays").items())


def test_the_sites_own_commands_open_what_was_sealed(tmp_path, files, key, monkeypatch, capsys):
    members.create(tmp_path / "c", "rhine", "fed", 8443, listen="127.0.0.1", inner_port=1, days=9)
    members.add_site(tmp_path / "c", "essen", None, days=9)
    kit = tmp_path / "c" / "kits" / "essen"
    (kit / "policy.toml").write_text(AS_IT_IS + f'rest_key = "{key}"\n')
    run_of(DataProcess("essen", files["essen"], kit / "state", kit / "policy.toml"), plan(2))
    monkeypatch.chdir(tmp_path)

    for words, made in ((["package", "r"], "r-common/package.json"), (["report", "r"], "r-at-essen.html")):
        with pytest.raises(SystemExit) as left:
            main(["site", *words, "--kit", str(kit)])
        assert left.value.code == 0, capsys.readouterr().err
        assert not (tmp_path / made).read_bytes().startswith(SEALED)
    (kit / "policy.toml").write_text(AS_IT_IS)
    with pytest.raises(SystemExit) as left:
        main(["site", "package", "r", "--kit", str(kit), "--out", "other"])
    assert left.value.code == 2
    assert "its policy names no rest_key to open it" in capsys.readouterr().err


def test_a_shelf_of_the_last_release_is_read_and_a_damaged_item_is_refused_in_one_line(tmp_path):
    shelf, model = Shelf(tmp_path), {"w": np.arange(3.0)}
    words = {"kept": "2026-11-23T06:00:00+00:00", "t": "10", "said": '{"accuracy": 0.5}'}
    (tmp_path / "common.safetensors").write_bytes(save(model, words))
    (tmp_path / "000000010.safetensors").write_bytes(save(model))
    (tmp_path / "000000010.json").write_text('{"order": "a", "header": {}}')
    (tmp_path / "own.json").write_text("{")

    common, answer = shelf.get("common"), shelf.get(10)

    assert common is not None
    assert common.words == {**words, "t": 10, "said": {"accuracy": 0.5}}
    assert answer is not None
    assert answer.words["order"] == "a"
    assert answer.arrays["w"].tolist() == [0, 1, 2]
    assert shelf.rounds() == [10]
    with pytest.raises(PolicyError, match="put it back from a copy, or start a new run"):
        shelf.get("own")
