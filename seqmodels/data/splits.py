"""Splits that do not leak: made by entity, by time or by horizon, and proved disjoint.

Rows that overlap in time, or stem from one writer, patient or town, carry the same information;
a split that puts one into training and the other into the test flatters every model. A split here
is a dict from its name to the rows it holds, as ascending positions int64 [n]. `check` looks at
what the rows cover, whoever made the split; `complete` looks at which rows there are.

`shares` maps the splits' names to the parts of the whole they ask for, in order: positive numbers
that add up to 1.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer, Shaped

Parts = dict[str, Int[np.ndarray, "_"]]


class Spans(NamedTuple):
    """The steps that N rows cover, first and last one included: inputs and targets alike.

    entity  whose steps they are: integers or strings. Steps of two entities never meet
    ids     names of the rows, for messages; the same id in two splits is an offence too
    """

    entity: Shaped[np.ndarray, "N"]
    first: Integer[np.ndarray, "N"]
    last: Integer[np.ndarray, "N"]
    ids: Shaped[np.ndarray, "N"] | None = None


def by_entity(
    entities: Shaped[np.ndarray, "N"], shares: Mapping[str, float], seed: int = 0
) -> Parts:
    """All rows of an entity on one side, sizes within 1 entity of `shares` times all entities.

    Entities line up by a hash of (seed, name), so the order of the rows is without effect, and
    entities that come or go move few of the others: those next to a cut.

    Raises ValueError for impossible shares, or if a split is left without entities.
    """
    names, code = np.unique(entities, return_inverse=True)
    digests = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in names.tolist()]
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=digests.__getitem__)] = np.arange(len(names))
    part = _part(rank, np.full(len(names), len(names)), shares)
    return _rows(part[code], list(shares), f"{len(names)} entities")


def by_time(
    times: Integer[np.ndarray, "N"],
    shares: Mapping[str, float],
    entities: Shaped[np.ndarray, "N"] | None = None,
) -> Parts:
    """Earlier rows before later ones, cut at one time for all, or per entity where they are given.

    Rows of the same time stay together, so sizes are within 1 of the request counted in different
    times (of an entity). For rows that are single steps; windows overlap, see `by_horizon`.

    Raises ValueError for impossible shares, or if a split is left without rows.
    """
    code = np.zeros(len(times), np.int64)
    if entities is not None:
        code = np.unique(entities, return_inverse=True)[1]
    order = np.lexsort((times, code))
    starts = np.diff(code[order], prepend=-1) != 0  # of an entity
    new = starts | (np.diff(times[order].astype(np.int64), prepend=0) != 0)
    counted = np.cumsum(new)
    entity = np.cumsum(starts) - 1
    rank = counted - counted[starts][entity]
    total = np.diff(np.append(counted[starts], counted[-1:] + 1))[entity]
    part = np.empty(len(times), np.int64)
    part[order] = _part(rank, total, shares)
    return _rows(part, list(shares), f"{int(new.sum())} times")


def by_horizon(
    spans: Spans,
    cuts: Sequence[int | Integer[np.ndarray, "N"]],
    gap: int = 0,
    names: Sequence[str] = ("train", "valid", "test"),
) -> Parts:
    """Windows before, between and after the cuts, with `gap` unused steps behind each cut.

    A window belongs to a split if its last step, targets included, lies before the cut that ends
    the split, and its first step not before the cut that begins it plus the gap. All others, which
    touch two splits or a gap, go nowhere.

    cuts  the first step that no longer belongs to the split before it: one number for all
          windows, or one for each, such as the cut of its entity. One cut fewer than names

    Raises ValueError for a negative gap, a wrong number of cuts, cuts that do not ascend, or if a
    split is left without windows.
    """
    if len(names) != len(cuts) + 1:
        raise ValueError(
            f"{len(cuts)} cuts for splits {', '.join(names)}; allowed: {len(names) - 1}"
        )
    _check_gap(gap)
    if any(np.any(np.less(late, early)) for early, late in zip(cuts, cuts[1:], strict=False)):
        raise ValueError(f"cuts are {', '.join(map(str, cuts))}; allowed: in ascending order")
    first, last = spans.first.astype(np.int64), spans.last.astype(np.int64)
    part = np.full(len(first), -1)
    for index in range(len(names)):
        inside = np.ones(len(first), bool)
        if index > 0:
            inside &= first >= np.add(cuts[index - 1], gap, dtype=np.int64)
        if index < len(cuts):
            inside &= last < cuts[index]
        part[inside] = index
    return _rows(part, list(names), f"{len(first)} windows")


def check(splits: Mapping[str, Spans], *, gap: int = 0, share_entities: bool = True) -> None:
    """Proves that no step, id or, unless `share_entities`, entity belongs to two splits.

    gap  fewest unused steps between the rows of two splits of one entity

    Rows of one split may overlap. Takes N log N time. Raises ValueError for the first offending
    pair, in order of entity and first step, or for a span that is none.
    """
    _check_gap(gap)
    if not splits:
        raise ValueError("no splits were given; allowed: at least one")
    for name, spans in splits.items():
        _check_spans(name, spans)
    rows = _Stacked(splits)
    if rows.ids is not None and (pair := _shared(rows.ids, rows.split)):
        id = rows.ids[pair[0] : pair[0] + 1].tolist()[0]
        raise ValueError(f"{rows.describe(*pair)} share id {id!r}")
    code = np.unique(rows.entity, return_inverse=True)[1]
    if not share_entities and (pair := _shared(code, rows.split)):
        raise ValueError(f"{rows.describe(*pair)} share the entity")
    if pair := _closest(code, rows, gap, len(splits)):
        first, last = int(max(rows.first[[*pair]])), int(min(rows.last[[*pair]]))
        if first <= last:
            raise ValueError(f"{rows.describe(*pair)} share {_steps(first, last)}")
        free = first - last - 1
        raise ValueError(
            f"{rows.describe(*pair)} have {free} unused steps between them; allowed: {gap} or more"
        )


def complete(
    ids: Mapping[str, Shaped[np.ndarray, "_"]],
    everything: Shaped[np.ndarray, "N"],
    sizes: Mapping[str, float] | None = None,
) -> None:
    """Proves that each of `everything` is in one split, once, and nothing else in any.

    sizes  how many ids each split should have, to within 1: shares of the whole need not be whole

    Rows that go nowhere on purpose are one more entry of `ids`. Raises ValueError for the first
    id that is twice in the splits, is unknown or is missing, or for the first wrong size.
    """
    seen: dict[object, str] = {}
    known = set(everything.tolist())
    for name, here in ids.items():
        for row, id in enumerate(here.tolist()):
            place = f"{name} row {row}"
            if id in seen:
                raise ValueError(f"id {id!r} is in the splits twice: {seen[id]} and {place}")
            if id not in known:
                raise ValueError(f"{place} has id {id!r}, which is none of the {len(known)} given")
            seen[id] = place
    if len(seen) < len(known):
        missing = next(id for id in everything.tolist() if id not in seen)
        raise ValueError(f"{len(known) - len(seen)} ids are in no split, the first {missing!r}")
    for name, size in (sizes or {}).items():
        if name not in ids or abs(len(ids[name]) - size) > 1:
            found = f"has {len(ids[name])} ids" if name in ids else "is missing"
            raise ValueError(f"split {name!r} {found}; requested: {size:g}, to within 1")


# Making splits.


def ranges(total: int, shares: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Of `total` things in a row, the first one of each split and the one behind its last.

    Raises ValueError for impossible shares.
    """
    return dict(zip(shares, itertools.pairwise(_borders(total, shares).tolist()), strict=True))


def _borders(
    total: int | Int[np.ndarray, "*N"], shares: Mapping[str, float]
) -> Int[np.ndarray, "_ *N"]:
    """Rounded sums of the shares, from 0 to the total."""
    if not all(share > 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-9:
        given = ", ".join(f"{name} {share:g}" for name, share in shares.items()) or "none"
        raise ValueError(f"shares are {given}; allowed: positive numbers that add up to 1")
    ends = np.cumsum([0.0, *shares.values()])
    return np.rint(np.multiply.outer(ends, total)).astype(np.int64)


def _part(
    rank: Int[np.ndarray, "N"], total: Int[np.ndarray, "N"], shares: Mapping[str, float]
) -> Int[np.ndarray, "N"]:
    """Which split place `rank` of `total` falls into: cut at the rounded sums of the shares."""
    return np.sum(rank >= _borders(total, shares)[1:-1], axis=0)


def _rows(part: Int[np.ndarray, "N"], names: list[str], of_what: str) -> Parts:
    rows = {name: np.flatnonzero(part == index) for index, name in enumerate(names)}
    for name, here in rows.items():
        if not len(here):
            raise ValueError(f"split {name!r} gets none of {of_what}")
    return rows


# Looking at splits.


class _Stacked:
    """The rows of all splits below each other."""

    def __init__(self, splits: Mapping[str, Spans]):
        parts = list(splits.values())
        self.names = list(splits)
        self.split = np.repeat(np.arange(len(parts)), [len(spans.first) for spans in parts])
        self.row = np.concatenate([np.arange(len(spans.first)) for spans in parts])
        self.entity = np.concatenate([spans.entity for spans in parts])
        self.first = np.concatenate([spans.first.astype(np.int64) for spans in parts])
        self.last = np.concatenate([spans.last.astype(np.int64) for spans in parts])
        ids = [spans.ids for spans in parts if spans.ids is not None]
        if ids and len(ids) < len(parts):
            raise ValueError("ids are given for some splits only; allowed: for all or for none")
        self.ids = np.concatenate(ids) if ids else None

    def describe(self, one: int, other: int) -> str:
        """A pair of rows in the words of a message, in the order of their splits."""
        return " and ".join(map(self._one, sorted((one, other))))

    def _one(self, at: int) -> str:
        facts = [] if self.ids is None else [f"id {self.ids[at : at + 1].tolist()[0]!r}"]
        facts += [f"entity {self.entity[at : at + 1].tolist()[0]!r}"]
        facts += [_steps(int(self.first[at]), int(self.last[at]))]
        return f"{self.names[self.split[at]]} row {self.row[at]} ({', '.join(facts)})"


def _shared(values: Shaped[np.ndarray, "N"], split: Int[np.ndarray, "N"]) -> tuple[int, int] | None:
    """Two rows of different splits with the same value, the smallest there is, or None."""
    code = np.unique(values, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    begins = np.diff(code[order], prepend=-1) != 0
    leader = order[begins][np.cumsum(begins) - 1]  # the first row with this row's value
    clashes = np.flatnonzero(split[order] != split[leader])
    return (int(leader[clashes[0]]), int(order[clashes[0]])) if len(clashes) else None


def _closest(
    code: Int[np.ndarray, "N"], rows: _Stacked, gap: int, splits: int
) -> tuple[int, int] | None:
    """Two rows of different splits with fewer than `gap` steps between them, or None.

    Walks through each entity's rows by first step. A row offends if any row of another split that
    began before it reaches up to it: one running maximum a split finds them all.
    """
    order = np.lexsort((rows.first, code))
    # Ranks in place of steps: sorted entities can then be laid end to end without overflow.
    both = np.concatenate([rows.first[order] - gap, rows.last[order]])
    rank = np.unique(both, return_inverse=True)[1] + 1
    offset = code[order].astype(np.int64) * (len(both) + 1)
    lower, upper = offset + rank[: len(order)], offset + rank[len(order) :]
    split = rows.split[order]
    offends = np.zeros(len(order), bool)
    for index in range(splits):
        own = split == index
        reach = np.maximum.accumulate(np.where(own, upper, 0))
        offends |= (reach >= lower) & ~own
    if not offends.any():
        return None
    late = int(offends.argmax())
    early: Bool[np.ndarray, "_"] = (upper[:late] >= lower[late]) & (split[:late] != split[late])
    return int(order[early.argmax()]), int(order[late])


def _steps(first: int, last: int) -> str:
    return f"steps {first}-{last}" if first < last else f"step {first}"


def _check_gap(gap: int) -> None:
    if gap < 0:
        raise ValueError(f"gap is {gap}; allowed: 0 or more steps")


def _check_spans(name: str, spans: Spans) -> None:
    counts = {len(field) for field in spans if field is not None}
    if len(counts) > 1:
        raise ValueError(f"spans of {name} have {sorted(counts)} entries; allowed: one a row")
    if len(backwards := np.flatnonzero(spans.last < spans.first)):
        row = backwards[0]
        raise ValueError(
            f"{name} row {row} covers steps {spans.first[row]}-{spans.last[row]}; "
            "allowed: a last step that is not before the first"
        )
