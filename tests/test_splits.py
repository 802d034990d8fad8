"""Splits: what makes them keeps its promises, and what proves them disjoint finds every leak."""

import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqmodels.data.splits import Spans, by_entity, by_horizon, by_time, check, complete, ranges

SHARES = {"train": 0.7, "valid": 0.1, "test": 0.2}


def spans(*rows, ids=None, dtype=np.int64) -> Spans:
    """Spans from (entity, first, last) each."""
    entity, first, last = zip(*rows, strict=True) if rows else ((), (), ())
    return Spans(
        np.array(entity, dtype="<U6"),
        np.array(first, dtype),
        np.array(last, dtype),
        None if ids is None else np.array(ids),
    )


@given(st.integers(0, 10**13))
def test_ranges_lie_behind_each_other_and_have_their_shares(total):
    found = ranges(total, SHARES)
    (begin, *starts), (*stops, end) = zip(*found.values(), strict=True)
    assert (begin, end) == (0, total) and starts == stops
    for split, (first, stop) in found.items():
        assert abs(stop - first - SHARES[split] * total) <= 1 + 1e-15 * total
    with pytest.raises(ValueError, match="shares are a 0.5; allowed: positive numbers that add up"):
        ranges(total, {"a": 0.5})


# Looking at splits.


@st.composite
def any_splits(draw):
    """Splits of up to 3 names; short spans of few entities, so that some leak and some do not."""
    row = st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 4))
    rows = st.lists(row.map(lambda r: (r[0], r[1], r[1] + r[2])), max_size=4)
    return {name: draw(rows) for name in ("train", "valid", "test")[: draw(st.integers(1, 3))]}


def leaks(one, other, gap):
    """Whether two spans, each (entity, first, last), are of one entity and nearer than the gap."""
    near = set(range(one[1] - gap, one[2] + gap + 1)) & set(range(other[1], other[2] + 1))
    return one[0] == other[0] and bool(near)


@settings(max_examples=300)
@given(any_splits(), st.integers(0, 5), st.sampled_from([np.int64, np.uint8, np.int32]))
def test_check_finds_a_leak_where_there_is_one(rows, gap, dtype):
    found = [
        (one, other)
        for left, right in combinations(rows, 2)
        for one in rows[left]
        for other in rows[right]
        if leaks(one, other, gap)
    ]
    splits = {name: spans(*here, dtype=dtype) for name, here in rows.items()}
    if not found:
        check(splits, gap=gap)
        return
    with pytest.raises(ValueError) as caught:
        check(splits, gap=gap)
    named = re.findall(r"(\w+) row (\d+) ", str(caught.value))  # the pair it names does leak
    one, other = (rows[split][int(row)] for split, row in named)
    assert (one, other) in found
    common = sorted(set(range(one[1], one[2] + 1)) & set(range(other[1], other[2] + 1)))
    if common:
        assert re.search(rf"steps? {common[0]}(-{common[-1]})?$", str(caught.value))
    else:
        free = max(one[1], other[1]) - min(one[2], other[2]) - 1
        assert str(caught.value).endswith(
            f" have {free} unused steps between them; allowed: {gap} or more"
        )


@given(any_splits())
def test_check_finds_entities_in_two_splits(rows):
    owners = [{entity for entity, _, _ in here} for here in rows.values()]
    shared = any(one & other for one, other in combinations(owners, 2))
    splits = {name: spans(*here) for name, here in rows.items()}
    if shared:
        with pytest.raises(
            ValueError, match=r"^(\w+ row \d+ \(entity '\w', step.*){2} share the e"
        ):
            check(splits, share_entities=False)
    else:
        check(splits, share_entities=False)


def test_the_message_names_rows_entity_and_steps():
    clean = [("berlin", 100 * n, 100 * n + 9) for n in range(1, 18)]
    train = spans(*clean, ("berlin", 40, 63))
    test = spans(("aachen", 40, 63), ("berlin", 70, 75), ("berlin", 60, 83))
    with pytest.raises(ValueError) as caught:
        check({"train": train, "test": test})
    assert str(caught.value) == (
        "train row 17 (entity 'berlin', steps 40-63) and test row 2 (entity 'berlin', "
        "steps 60-83) share steps 60-63"
    )


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("swap", [False, True])
def test_the_gap_counts_unused_steps_on_either_side(swap, dtype):
    here, there = spans(("a", 0, 2), dtype=dtype), spans(("a", 6, 9), dtype=dtype)
    splits = {"train": there, "test": here} if swap else {"train": here, "test": there}
    check(splits, gap=3)
    with pytest.raises(ValueError, match="have 3 unused steps between them; allowed: 4 or more$"):
        check(splits, gap=4)
    with pytest.raises(ValueError, match="have 3 unused steps between them; allowed: 9 or more$"):
        check(splits, gap=9)  # more than the later one's first step


def test_an_id_may_be_in_one_split_only_and_names_the_row():
    train = spans(("a", 0, 4), ("a", 2, 6), ids=["x", "y"])
    check({"train": train, "test": spans(("b", 0, 0), ids=["z"])})
    with pytest.raises(ValueError) as caught:
        check({"test": spans(("b", 0, 0), ids=["y"]), "train": train})
    assert str(caught.value) == (
        "test row 0 (id 'y', entity 'b', step 0) and train row 1 (id 'y', entity 'a', steps 2-6) "
        "share id 'y'"
    )


def test_a_long_span_is_compared_with_all_it_covers():
    """The row that leaks is not the neighbour in the order of first steps."""
    train = spans(("a", 0, 100), ("a", 20, 21), ("a", 30, 31))
    with pytest.raises(ValueError, match="train row 0 .* and test row 0 .* share steps 50-51$"):
        check({"train": train, "test": spans(("a", 50, 51))})


def test_integer_entities_and_huge_steps_are_exact():
    start, entities = 2**62, np.arange(3)
    first = np.full(3, start)
    train = Spans(entities, first, first + 4)
    check({"train": train, "test": Spans(entities, first + 5, first + 9)})
    with pytest.raises(ValueError, match=f"entity 0, .* share step {start + 4}$"):
        check({"train": train, "test": Spans(entities, first + 4, first + 9)})


@pytest.mark.parametrize(
    "splits, options, message",
    [
        ({}, {}, "no splits were given"),
        ({"train": spans()}, {"gap": -1}, "gap is -1; allowed: 0 or more"),
        ({"train": spans(("a", 5, 4))}, {}, "train row 0 covers steps 5-4; allowed"),
        (
            {"train": spans(("a", 1, 2), ids=["x"]), "test": spans(("b", 1, 2))},
            {},
            "ids are given for some splits only",
        ),
        (
            {"train": Spans(np.array(["a"]), np.array([1, 2]), np.array([1, 2]))},
            {},
            r"spans of train have \[1, 2\] entries",
        ),
    ],
)
def test_what_is_no_span_is_refused(splits, options, message):
    with pytest.raises(ValueError, match=message):
        check(splits, **options)


def test_J03_complete_accepts_a_partition_and_names_what_is_wrong():
    everything = np.array(["a", "b", "c", "d", "e"])
    good = {"train": np.array(["c", "a", "e"]), "test": np.array(["b", "d"])}
    complete(good, everything)
    complete(good, everything, sizes={"train": 3.5, "test": 1.5})
    wrong = [
        (
            {"train": ["a", "b", "c"], "test": ["d", "b", "e"]},
            "'b' is .* train row 1 and test row 1",
        ),
        (
            {"train": ["a", "b", "a", "c"], "test": ["d", "e"]},
            "'a' is .* train row 0 and train row 2",
        ),
        ({"train": ["a", "b", "c"], "test": ["d", "f"]}, "test row 1 has id 'f', .* none of the 5"),
        ({"train": ["a", "b", "c"], "test": ["e"]}, "1 ids are in no split, the first 'd'"),
    ]
    for splits, message in wrong:
        with pytest.raises(ValueError, match=message):
            complete({name: np.array(ids) for name, ids in splits.items()}, everything)
    with pytest.raises(ValueError, match="split 'test' has 2 ids; requested: 0.9, to within 1"):
        complete(good, everything, sizes={"train": 4, "test": 0.9})
    with pytest.raises(ValueError, match="split 'valid' is missing; requested: 1, to within 1"):
        complete(good, everything, sizes={"valid": 1})


# Making splits.

shares = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda parts: {f"part{n}": part / sum(parts) for n, part in enumerate(parts)}
)
positions = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(st.integers(4, 60), shares, st.integers(0, 9), positions)
def test_J03_by_entity_keeps_entities_together_in_sizes_as_requested(count, shares, seed, rng):
    entities = rng.permutation(np.repeat(np.arange(count), rng.integers(1, 4, count)))
    try:
        parts = by_entity(entities, shares, seed)
    except ValueError as error:  # a share below half an entity
        assert "gets none of" in str(error) and min(shares.values()) * count < 1
        return
    complete(parts, np.arange(len(entities)))
    complete(
        {name: np.unique(entities[rows]) for name, rows in parts.items()},
        np.arange(count),
        {name: share * count for name, share in shares.items()},
    )
    for rows in parts.values():
        np.testing.assert_array_equal(rows, np.sort(rows))


@given(st.integers(0, 5), positions)
def test_by_entity_depends_on_names_and_seed_alone(seed, rng):
    names = np.array([f"town {n}" for n in range(40)])
    owner = by_entity(names, SHARES, seed)
    order = rng.permutation(40)
    shuffled = by_entity(names[order], SHARES, seed)
    for split, rows in owner.items():
        assert set(names[rows]) == set(names[order][shuffled[split]])

    def moved(other):
        return {n for n in names if split_of(owner, names, n) != split_of(*other, n)}

    more = np.append(names, "one more")
    assert len(moved((by_entity(more, SHARES, seed), more))) <= 2  # one at each cut
    assert len(moved((by_entity(names, SHARES, seed + 1), names))) > 5


def split_of(parts, names, name):
    return next(split for split, rows in parts.items() if name in names[rows])


def test_J03_by_entity_is_the_same_in_every_run_and_version():
    """Pinned: a changed split makes old scores incomparable, so it has to be seen."""
    parts = by_entity(np.array(list("abcdefghij")), {"train": 0.6, "valid": 0.2, "test": 0.2})
    found = {split: rows.tolist() for split, rows in parts.items()}
    assert found == {"train": [0, 3, 5, 6, 7, 9], "valid": [2, 8], "test": [1, 4]}


@given(shares, positions, st.booleans())
def test_J03_by_time_cuts_each_entity_or_all_at_once(shares, rng, per_entity):
    entities = rng.choice(np.array(["a", "b", "c"]), 90)
    times = rng.integers(-40, 40, 90)  # some twice
    parts = by_time(times, shares, entities if per_entity else None)
    complete(parts, np.arange(90))
    owners = (
        [entities == name for name in np.unique(entities)] if per_entity else [np.ones(90, bool)]
    )
    for mine in owners:
        seen = [np.unique(times[rows[mine[rows]]]) for rows in parts.values()]
        together = np.concatenate(seen)
        assert (np.diff(together) > 0).all()  # ascending, and no time in two splits
        for found, share in zip(seen, shares.values(), strict=True):
            assert abs(len(found) - share * len(together)) <= 1


@given(positions, st.integers(0, 8), st.booleans())
def test_by_horizon_leaves_the_gap_free_and_drops_only_what_touches_it(rng, gap, per_window):
    entity = rng.choice(np.array(["a", "b"]), 200)
    first = rng.integers(0, 100, 200)
    windows = Spans(entity, first, first + rng.integers(0, 12, 200))
    cuts = [np.where(entity == "a", 40, 45), np.where(entity == "a", 70, 77)]
    if not per_window:
        cuts = [40, 70]
    parts = by_horizon(windows, cuts, gap)
    check({name: Spans(*(f[rows] for f in windows[:3])) for name, rows in parts.items()}, gap=gap)
    owner = dict.fromkeys(range(200), "nowhere") | {
        int(row): name for name, rows in parts.items() for row in rows
    }
    for row in range(200):
        begin, end = (int(np.broadcast_to(cut, 200)[row]) for cut in cuts)
        steps = set(range(windows.first[row], windows.last[row] + 1))
        allowed = {
            "train": range(begin),
            "valid": range(begin + gap, end),
            "test": range(end + gap, 200),
        }
        inside = [name for name, free in allowed.items() if steps <= set(free)]
        assert [owner[row]] == (inside or ["nowhere"])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: by_entity(np.arange(3), {"a": 0.5, "b": 0.4}), "shares are a 0.5, b 0.4; allowed"),
        (
            lambda: by_entity(np.arange(3), {"a": 1.5, "b": -0.5}),
            "positive numbers that add up to 1",
        ),
        (lambda: by_entity(np.arange(3), {}), "shares are none; allowed: positive"),
        (lambda: by_entity(np.array(["x"] * 9), SHARES), "split 'valid' gets none of 1 entities"),
        (lambda: by_time(np.zeros(9, int), SHARES), "split 'valid' gets none of 1 times"),
        (lambda: by_time(np.zeros(0, int), {"all": 1.0}), "split 'all' gets none of 0 times"),
        (lambda: by_horizon(spans(("a", 0, 9)), [5, 4]), "cuts are 5, 4; allowed: in ascending"),
        (lambda: by_horizon(spans(("a", 0, 9)), [5]), "1 cuts for splits .*; allowed: 2"),
        (lambda: by_horizon(spans(("a", 0, 9)), [5, 6], gap=-2), "gap is -2; allowed"),
        (lambda: by_horizon(spans(("a", 0, 4)), [5, 9]), "split 'valid' gets none of 1 windows"),
    ],
)
def test_impossible_requests_are_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
