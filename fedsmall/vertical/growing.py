"""One tree in the making, at the party that has the labels: what it encrypts, reads, chooses and asks to be split.

Source: Cheng et al. 2021, algorithms 1 and 2; for what differs in SecureBoost+, Chen et al. 2021.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsmall.errors import ReplyError
from fedsmall.randomness import rng_for
from fedsmall.vertical.binning import binned
from fedsmall.vertical.encrypted.layout import Layout
from fedsmall.vertical.encrypted.paillier import PrivateKey
from fedsmall.vertical.fixed_point import broken, whole, width_for
from fedsmall.vertical.forest import Node, Split
from fedsmall.vertical.messages import Message, Talk
from fedsmall.vertical.objective import Objective
from fedsmall.vertical.party import Clock
from fedsmall.vertical.settings import Boosting, Turn, competing
from fedsmall.vertical.splits import Sums, best, candidates, drawn, weights

Choice = tuple[str, int, int]  # the party, and the place among its candidates; of the own columns, column and bin


@dataclass
class Ground:
    """What all trees of a forest are grown with: the active party's ``bins``, its key, and who else there is.

    ``names`` are all parties', the active one's first; ``sums_read`` counts what it has decrypted of others' columns.
    """

    names: tuple[str, ...]
    settings: Boosting
    key: PrivateKey
    objective: Objective
    records: list[Split]
    clock: Clock
    cuts: list[np.ndarray]
    bins: np.ndarray
    sums_read: int = 0


def ground_of(
    names: tuple[str, ...],
    values: np.ndarray,
    settings: Boosting,
    key: PrivateKey,
    objective: Objective,
    records: list[Split],
    clock: Clock,
) -> Ground:
    """The ground of a forest over the active party's ``values`` (rows, columns)."""
    return Ground(names, settings, key, objective, records, clock, *binned(values, settings.bins))


class Growing:
    """One tree in the making; its gradients in whole numbers."""

    def __init__(self, ground: Ground, tree: int, when: tuple[int, int], g: np.ndarray, h: np.ndarray) -> None:
        self.ground, self.settings, self.tree = ground, ground.settings, tree
        self.t = when[0]
        self.rows, factors = drawn(g, self.settings.goss, rng_for(self.settings.seed, "goss", *when))
        self.most = float(factors.max(initial=1.0))
        self.drawn = np.zeros(len(g), bool)
        self.drawn[self.rows] = True
        self.sums = np.zeros((2, *g.shape), np.int64)  # 0 where a row was not drawn
        self.sums[0, self.rows] = whole(g[self.rows] * factors[:, None])
        self.sums[1, self.rows] = whole(h[self.rows] * factors[:, None])
        self.nodes: list[Node] = [Node()]
        self.at = np.zeros(len(g), np.int64)  # the node of each row, -1 once it is in a leaf
        self.leaf = np.zeros(len(g), np.int64)
        self.parents = {0: -1}

    def grow(self) -> Talk[None]:
        """Split level by level until nothing is gained or the tree is deep enough; a talk with the passive parties."""
        asked = {
            party
            for level in range(self.settings.depth)
            for party in competing(self.settings, self.ground.names, Turn(self.t, level))
        }
        yield from self._send_gradients([party for party in self.ground.names[1:] if party in asked])
        open_nodes = [0]
        for level in range(self.settings.depth):
            choices = yield from self._choose(open_nodes, level)
            for node in open_nodes:
                if node not in choices:
                    self._close(node)
            open_nodes = yield from self._split(choices)
            if not open_nodes:
                return
        for node in open_nodes:
            self._close(node)

    def _send_gradients(self, parties: Sequence[str]) -> Talk[None]:
        if not parties:
            return
        key, numbers = self.ground.key, 2 * self.sums.shape[2]
        self.layout = Layout.of(numbers, self._width(), key.public.bits, self.settings.packing)
        row_numbers = self.sums[:, self.rows].transpose(1, 2, 0).reshape(len(self.rows), numbers)  # g, h, g, h, ...
        with self.ground.clock.at("encrypting"):
            plain = [self.layout.plaintexts(row) for row in row_numbers.tolist()]
            chunks = [key.public.to_bytes(key.encrypt(row[k]) for row in plain) for k in range(self.layout.chunks)]
        words = {"tree": self.tree, "numbers": numbers, "width": self.layout.width}
        arrays = {"rows": self.rows, **{f"chunk{k}": one for k, one in enumerate(chunks)}}
        yield [Message(self.ground.names[0], one, "gradients", words, arrays) for one in parties]

    def _width(self) -> int:
        """Bits for any sum; from what gradients can be, not from what they are, where that is known."""
        bound = self.ground.objective.bound
        if bound is None:
            return width_for(len(self.rows), 2.0 ** np.ceil(np.log2(max(1.0, broken(np.abs(self.sums)).max()))))
        return width_for(len(self.rows), bound * self.most)

    def _choose(self, open_nodes: list[int], level: int) -> Talk[dict[int, Choice]]:
        """The best split of each node, where one gains enough; the first party in order where several are equal."""
        competitors = competing(self.settings, self.ground.names, Turn(self.t, level))
        passives = [party for party in competitors if party != self.ground.names[0]]
        words = {"tree": self.tree, "nodes": [[node, self.parents[node]] for node in open_nodes]}
        asked = [Message(self.ground.names[0], one, "sums", words, {"at": self.at}) for one in passives]
        replies = {one.sender: one for one in (yield asked)} if asked else {}
        theirs = {party: self._read(replies[party], len(open_nodes)) for party in passives}
        choices: dict[int, Choice] = {}
        for k, node in enumerate(open_nodes):
            gain, whole_node = -np.inf, self._total(node)
            for party in competitors:
                listed, left = self._own(node) if party == self.ground.names[0] else ([], theirs[party][k])
                found = best(left, whole_node, self.settings)
                if found is not None and found[0] > gain:
                    gain = found[0]
                    choices[node] = (party, *listed[found[1]]) if listed else (party, found[1], -1)
        return choices

    def _read(self, reply: Message, nodes: int) -> list[Sums]:
        """Decrypt a party's sums, by node."""
        counts = [int(one) for one in reply.words["counts"]]
        total, key = sum(counts), self.ground.key
        with self.ground.clock.at("decrypting"):
            chunks = [
                [key.decrypt(one) for one in key.public.from_bytes(reply.arrays[f"chunk{k}"])]
                for k in range(self.layout.chunks)
            ]
        wanted = -(-total // self.layout.splits)
        if len(counts) != nodes or any(len(one) != wanted for one in chunks):
            raise ReplyError(f"{reply.sender} answered with another number of sums than it says")
        self.ground.sums_read += total
        numbers = self.layout.sums(chunks, total).reshape(total, -1, 2)  # (splits, outputs, g and h)
        ends = np.cumsum(counts)[:-1]
        return [Sums(one[..., 0], one[..., 1]) for one in np.split(numbers, ends)]

    def _own(self, node: int) -> tuple[list[tuple[int, int]], Sums]:
        """The candidates of the own columns at a node, and the sums on their left."""
        rows = np.flatnonzero((self.at == node) & self.drawn)
        listed: list[tuple[int, int]] = []
        found = [np.zeros((2, 0, self.sums.shape[2]), np.int64)]
        for column, numbers in enumerate(self.ground.bins[rows].T):
            after = candidates(np.bincount(numbers, minlength=self.settings.bins), self.settings.least_samples)
            by_bin = np.zeros((self.settings.bins, 2, self.sums.shape[2]), np.int64)
            np.add.at(by_bin, numbers, self.sums[:, rows].swapaxes(0, 1))
            found.append(by_bin.cumsum(axis=0)[after].swapaxes(0, 1))
            listed += [(column, int(one)) for one in after]
        g, h = np.concatenate(found, axis=1)
        return listed, Sums(g, h)

    def _split(self, choices: dict[int, Choice]) -> Talk[list[int]]:
        """Have the chosen splits written down by their owners; returns the nodes below."""
        by_party: dict[str, list[list[int]]] = {}
        for node, (party, place, _) in choices.items():
            if party != self.ground.names[0]:
                by_party.setdefault(party, []).append([node, place])
        messages = [
            Message(self.ground.names[0], party, "split", {"tree": self.tree, "splits": asked})
            for party, asked in by_party.items()
        ]
        answers: dict[int, tuple[int, np.ndarray]] = {}
        for reply in (yield messages) if messages else ():
            asked = by_party[reply.sender]
            left = sides_of(reply.arrays["left"], (len(asked), len(self.at)))
            for (node, _), record, side in zip(asked, reply.words["records"], left, strict=True):
                answers[node] = (int(record), side)
        return [child for node, choice in choices.items() for child in self._divide(node, choice, answers.get(node))]

    def _divide(self, node: int, choice: Choice, answer: tuple[int, np.ndarray] | None) -> tuple[int, int]:
        party, column, after = choice
        if answer is None:
            self.ground.records.append(Split(column, float(self.ground.cuts[column][after])))
            answer = (len(self.ground.records) - 1, self.ground.bins[:, column] <= after)
        left, right = len(self.nodes), len(self.nodes) + 1
        self.nodes[node] = Node(party, answer[0], left, right)
        self.nodes += [Node(), Node()]
        self.parents |= {left: node, right: node}
        here = self.at == node
        self.at[here] = np.where(answer[1][here], left, right)
        return left, right

    def _close(self, node: int) -> None:
        """Make a node a leaf."""
        here = self.at == node
        self.nodes[node] = Node(weights=weights(self._total(node), self.settings))
        self.leaf[here], self.at[here] = node, -1

    def _total(self, node: int) -> Sums:
        return Sums(*self.sums[:, self.at == node].sum(axis=1))


def sides_of(left: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which rows go left, as another party says it; ReplyError where that is not what was asked."""
    if left.dtype != bool or left.shape != shape:
        raise ReplyError(f"a party was asked which rows go left, {shape}, and said {left.dtype} {left.shape}")
    return left
