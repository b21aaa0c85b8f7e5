"""What a server computes from masked summands, alone and with decryptors: noise, until enough are with it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from fedsmall.aggregation.sums import SCALE
from fedsmall.audit_log import digest_of
from fedsmall.clients.key_store import KeyStore
from fedsmall.clients.runs import RUNS, own_folder
from fedsmall.clients.shelf import secret
from fedsmall.sealing.envelopes import IDENTITY, Transcript, after
from fedsmall.sealing.masks import BYTES, pair_signs, recover, seed_from, stream, threshold
from fedsmall.sealing.terms import HELP, KEY, SEALED, Average, Order
from fedsmall.wire import MODEL, ROUND, Arrays, join, split
from tests.attacks.world import NAMES, Heard, World

LIKE = 0.05  # correlation; of 17 thousand numbers chance makes .008
Summands = dict[str, Heard]  # what each site answered to an order of one round


def flat(model: Arrays) -> np.ndarray:
    return np.concatenate([model[name].ravel() for name in sorted(model)]).astype(np.float64)


def numbers(of: np.ndarray) -> np.ndarray:
    """What stands in a sum, were it one of models."""
    return of.view(np.int64).astype(np.float64) / SCALE


def like_a_model(world: World, computed: np.ndarray) -> float:
    """The largest correlation of what was computed with what any site has ever trained, or moved."""
    known = [model for each in world.trained for model in (flat(each.model), flat(each.model) - flat(each.received))]
    return max(abs(np.corrcoef(numbers(computed), model)[0, 1]) for model in known)


def masked(summands: Summands, site: str) -> np.ndarray:
    return summands[site].sent["arrays/masked"]


def first(world: World) -> Summands:
    return {site: world.once("train", site, 1) for site in world.federation.names}


def question(decryptor: str, sites: Iterable[str], summands: Summands) -> Heard:
    """What a server asks of a decryptor, that it may open the sum of these sites."""
    envelopes = {site: summands[site].sent[f"seeds/{decryptor}"] for site in sites}
    return summands[decryptor]._replace(kind=HELP, arrays=join(seeds=envelopes))


def desk_of(world: World, site: str) -> KeyStore:
    """The store of a site that gives all it has to the server."""
    home = world.federation.folder / site
    return KeyStore(own_folder(home / RUNS, "trial", "0123"), site, "trial 0123", secret(home / IDENTITY))


class Coalition:
    """The server with these ``traitors``, all of whom help; it takes every stream away of which it has the seed."""

    def __init__(self, world: World, summands: Summands, traitors: Sequence[str] = ()) -> None:
        self.world, self.summands, self.t = world, summands, summands[NAMES[0]].config[ROUND]
        self.shares: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)  # of (site, other), or "": its own
        self.known: dict[tuple[str, str], bytes] = {}
        for decryptor in traitors:
            session = desk_of(world, decryptor).open(world.plan, summands[decryptor].told)
            since, others = session.transcript.before(self.t), [name for name in NAMES if name != decryptor]
            for other, key in session.store.pair_keys(others).items():
                self.known[other, decryptor] = seed_from(key, KEY, self.t, since)
            for site in NAMES:
                envelope = summands[site].sent[f"seeds/{decryptor}"].tobytes()
                told = session.mailbox.open(KEY, self.t, site, since, envelope)
                self._take(decryptor, told, [(site, other) for other in ("", *NAMES) if other != site])

    def ask(self, decryptor: str, sites: Sequence[str]) -> None:
        """Have an honest decryptor's shares of what opens the sum of these sites."""
        header, sent = self.world.ask(question(decryptor, sites, self.summands))
        assert header["config"] == {}
        others = [name for name in ("", *NAMES) if name not in sites]
        self._take(decryptor, sent["shares/shares"].tobytes(), [(site, other) for site in sites for other in others])

    def _take(self, decryptor: str, told: bytes, of: Sequence[tuple[str, str]]) -> None:
        assert len(told) == BYTES * len(of)
        for k, pair in enumerate(of):
            self.shares[pair][NAMES.index(decryptor) + 1] = told[BYTES * k : BYTES * (k + 1)]

    def seed(self, site: str, other: str) -> bytes | None:
        """A seed that is a traitor's own, or of which there are shares enough from either of the two that have it."""
        for pair in ((site, other), (other, site)):
            if pair in self.known:
                return self.known[pair]
            if len(self.shares[pair]) >= threshold(len(NAMES)):
                return recover(self.shares[pair])[0]
        return None

    def left(self, sites: Iterable[str]) -> np.ndarray:
        """What is left of the sum of these sites' summands."""
        total = np.zeros_like(masked(self.summands, NAMES[0]))
        for site in sites:
            known = {other: seed for other in NAMES if other != site and (seed := self.seed(site, other))}
            own = self.seed(site, "")
            for sign, seed in [*pair_signs(site, known), *([(1, own)] if own else [])]:
                total -= np.uint64(sign % 2**64) * stream(seed, len(total))
            total += masked(self.summands, site)
        return total


def test_a_masked_summand_is_noise(unopened):
    summands = first(unopened)

    for site in NAMES:
        assert like_a_model(unopened, masked(summands, site)) < LIKE


def test_different_sets_for_different_decryptors_open_nothing(unopened):
    summands = first(unopened)
    few = dict(zip(NAMES, (NAMES, NAMES[1:], NAMES[:-1], NAMES[1:-1], NAMES[:3]), strict=True))
    server = Coalition(unopened, summands)
    for decryptor in few:
        server.ask(decryptor, few[decryptor])

    for sites in (*few.values(), *([site] for site in NAMES)):  # and of a late summand, with all that was ever told
        assert like_a_model(unopened, server.left(sites)) < LIKE
    for decryptor in NAMES[1:]:
        unopened.refuses(
            question(decryptor, NAMES, summands),
            "this site has helped to open the sum of round 1 before, of other sites",
        )


def test_one_decryptor_too_few_with_the_server_have_noise_though_the_sum_is_opened(unopened):
    """Three of five, and what the other two tell of the sum of all: what these two added stays one sum."""
    summands = trained_of(unopened, 4)
    server = Coalition(unopened, summands, NAMES[:3])

    for site in NAMES[3:]:
        assert like_a_model(unopened, server.left([site])) < LIKE
    for decryptor in NAMES[3:]:
        server.ask(decryptor, NAMES)
    assert server.seed(NAMES[3], "") is not None
    for site in NAMES[3:]:
        assert like_a_model(unopened, server.left([site])) < LIKE
    exact = sum(fixed(model_of(unopened, site, 4)) for site in NAMES[3:])
    np.testing.assert_array_equal(numbers(server.left(NAMES[3:])), exact)


def test_two_colluding_decryptors_of_five_open_one_sum_whatever_the_others_are_asked(unopened):
    summands = trained_of(unopened, 5)
    server = Coalition(unopened, summands, NAMES[:2])
    rest = [name for name in NAMES if name != NAMES[2]]
    for decryptor, sites in zip(NAMES[2:], (NAMES, rest, NAMES), strict=True):
        server.ask(decryptor, sites)

    assert server.seed(NAMES[2], "") is not None
    exact = sum(fixed(model_of(unopened, site, 5)) for site in NAMES)
    np.testing.assert_array_equal(numbers(server.left(NAMES)), exact)
    for site in NAMES[2:]:
        assert like_a_model(unopened, server.left([site])) < LIKE
        assert like_a_model(unopened, server.left(NAMES) - server.left(s for s in NAMES if s != site)) < LIKE


def test_three_colluding_decryptors_of_five_open_two_sums_and_have_their_difference(unopened):
    """A limit: twice the threshold less the decryptors. Each of the other two is asked for another set."""
    summands = trained_of(unopened, 6)
    server = Coalition(unopened, summands, NAMES[:3])
    server.ask(NAMES[3], NAMES)
    server.ask(NAMES[4], NAMES[:4])

    found = numbers(server.left([NAMES[3]]))

    np.testing.assert_array_equal(found, fixed(model_of(unopened, NAMES[3], 6)))
    assert 2 * threshold(len(NAMES)) - len(NAMES) == 3


@pytest.mark.parametrize("left", NAMES)
def test_as_many_decryptors_as_it_takes_and_the_server_have_every_model(unopened, left):
    """A limit, and the proof that the measure of the tests beside it sees a model where there is one."""
    traitors = [name for name in NAMES if name != left]
    server = Coalition(unopened, first(unopened), traitors)

    assert len(traitors) == threshold(len(NAMES))
    for site in NAMES:
        computed = server.left([site])
        assert like_a_model(unopened, computed) > 0.999
        np.testing.assert_array_equal(numbers(computed), fixed(model_of(unopened, site, 1)))


def model_of(world: World, site: str, t: int) -> np.ndarray:
    return flat(next(each.model for each in world.trained if (each.site, each.t) == (site, t)))


def fixed(model: np.ndarray) -> np.ndarray:
    return np.rint(model * SCALE) / SCALE


def test_the_same_common_model_twice_gives_one_site_by_subtraction(unopened):
    """A limit: whoever makes up global models has two sums of one update, and what a site adds is their difference.

    No site can tell a made-up average from a true one; noise for each patient is what helps.
    """
    all_of_them, but_one = summed(unopened, 2, NAMES), summed(unopened, 3, NAMES[1:])

    difference = numbers(all_of_them - but_one)

    np.testing.assert_allclose(difference, model_of(unopened, "site-000", 2), atol=1e-5)


def trained_of(world: World, t: int) -> Summands:
    """What all sites tell of a model that a server says is the average before round ``t``."""
    model = split(first(world)["site-000"].arrays, MODEL)
    begun = desk_of(world, "site-000").open(world.plan, first(world)["site-000"].told).transcript.at[0]
    thread, said = Transcript({0: begun}), digest_of(model)
    for last in range(1, t):
        average = Average(t=last, before=(before := thread.at[last - 1]), global_models=(said,))
        thread.at[last] = after(before, last, (said,))
    words = Order(average=average, nonces=first(world)["site-000"].told.nonces).model_dump_json(exclude_defaults=True)
    summands = {}
    for site, order in first(world).items():
        order = order._replace(arrays=join(arrays=model)).but(**{ROUND: t, SEALED: words})
        with pytest.MonkeyPatch.context() as patch:
            world.watch(patch)
            header, sent = world.ask(order)
        assert "error" not in header, header
        summands[site] = order._replace(header=header, sent=sent)
    return summands


def summed(world: World, t: int, sites: Sequence[str]) -> np.ndarray:
    """The sum of what these sites have trained for a round, as all decryptors open it."""
    server = Coalition(world, trained_of(world, t))
    for decryptor in NAMES:
        server.ask(decryptor, sites)
    return server.left(sites)
