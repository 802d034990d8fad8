"""The cells under contract, each with its oracle.

A new cell or option joins the contract suite by a line of ORACLES and one of FAST, RICH or ALONE.
"""

from typing import Any, NamedTuple

import probes
import reference

from seqmodels.cells import GRU, LRU, LSTM, MGU, RNN, Cell, LearnedCarry, MinGRU, MinLSTM, Zoneout

WIDTH = 8


class Entry(NamedTuple):
    cell: Cell
    oracle: Any = None  # None: only the plain scan to compare with
    slow: bool = False


ORACLES = {
    RNN: reference.rnn,
    LSTM: reference.lstm,
    GRU: reference.gru,
    MGU: reference.mgu,
    MinGRU: reference.min_gru,
    MinLSTM: reference.min_lstm,
    LRU: reference.lru,
    LearnedCarry: reference.learned_carry,
    Zoneout: reference.zoneout,
}


def entry(kind, inner=None, **options):
    """A cell and its oracle with the same options; `inner` is the entry of a wrapped cell."""
    if inner is None:
        return Entry(kind(WIDTH, **options), ORACLES[kind](**options))
    return Entry(kind(inner.cell, **options), ORACLES[kind](inner.oracle, **options))


# Every base cell, and options where they meet.
FAST = {
    "rnn tanh": entry(RNN),
    "rnn relu": entry(RNN, activation="relu"),
    "lstm": entry(LSTM),
    "gru reset after": entry(GRU),
    "gru reset before": entry(GRU, reset_after=False),
    "mgu": entry(MGU),
    "min gru": entry(MinGRU),
    "min lstm": entry(MinLSTM),
    "lru": entry(LRU),
    "rnn, rich": entry(RNN, activation="relu", heads=2, layer_norm=True, clip=1.5),
    "lstm, rich": entry(
        LSTM, heads=2, layer_norm=True, clip=0.8, hidden_dropout=0.3, candidate_dropout=0.4,
        peepholes=True, projection=4, cell_clip=0.7,
    ),
    "gru reset before, rich": entry(
        GRU, reset_after=False, heads=2, layer_norm=True, clip=1.2, hidden_dropout=0.3,
        candidate_dropout=0.4, dropout_per_step=True,
    ),
    "zoneout, learned, lstm": entry(
        Zoneout, entry(LearnedCarry, entry(LSTM, peepholes=True, projection=6)), h=0.2, c=0.4
    ),
}  # fmt: skip
# More combinations.
RICH = {
    "lstm, projection, heads": entry(LSTM, projection=12, heads=4),
    "lstm, coupled, rich": entry(
        LSTM, heads=4, layer_norm=True, clip=0.8, hidden_dropout=0.3, candidate_dropout=0.4,
        dropout_per_step=True, coupled=True, peepholes=True, projection=12, cell_clip=0.7,
    ),
    "gru reset after, rich": entry(
        GRU, heads=4, layer_norm=True, clip=1.2, hidden_dropout=0.3, candidate_dropout=0.4,
        z_keeps=False,
    ),
    "mgu, rich": entry(
        MGU, heads=2, layer_norm=True, clip=1.2, hidden_dropout=0.3, candidate_dropout=0.4,
        dropout_per_step=True,
    ),
    "zoneout gru, norm": entry(Zoneout, entry(GRU, layer_norm=True), h=0.3),
    "learned zoneout lstm": entry(LearnedCarry, entry(Zoneout, entry(LSTM), h=0.2, c=0.4)),
    "zoneout, dropout": entry(
        Zoneout, entry(GRU, reset_after=False, hidden_dropout=0.3, candidate_dropout=0.4), h=0.2
    ),
    "zoneout, dropout per step": entry(
        Zoneout, entry(LSTM, hidden_dropout=0.3, dropout_per_step=True), h=0.2, c=0.4
    ),
}  # fmt: skip
# Every option alone.
ALONE = {
    "rnn, no bias": entry(RNN, bias=False),
    "rnn, heads": entry(RNN, heads=4),
    "rnn, norm": entry(RNN, layer_norm=True),
    "rnn, norm, no bias": entry(RNN, layer_norm=True, bias=False),
    "rnn, clip": entry(RNN, clip=0.8),
    "rnn, hidden dropout": entry(RNN, hidden_dropout=0.3),
    "rnn, candidate dropout": entry(RNN, candidate_dropout=0.3),
    "rnn, dropout per step": entry(
        RNN, hidden_dropout=0.3, candidate_dropout=0.4, dropout_per_step=True
    ),
    "lstm, no bias": entry(LSTM, bias=False),
    "lstm, heads": entry(LSTM, heads=2),
    "lstm, norm": entry(LSTM, layer_norm=True),
    "lstm, norm, no bias": entry(LSTM, layer_norm=True, bias=False),
    "lstm, clip": entry(LSTM, clip=0.8),
    "lstm, hidden dropout": entry(LSTM, hidden_dropout=0.3),
    "lstm, candidate dropout": entry(LSTM, candidate_dropout=0.3),
    "lstm, coupled": entry(LSTM, coupled=True),
    "lstm, peepholes": entry(LSTM, peepholes=True),
    "lstm, coupled, peepholes": entry(LSTM, coupled=True, peepholes=True),
    "lstm, projection": entry(LSTM, projection=5),
    "lstm, cell clip": entry(LSTM, cell_clip=0.7),
    "gru, no bias": entry(GRU, bias=False),
    "gru, heads": entry(GRU, heads=2),
    "gru, norm": entry(GRU, layer_norm=True),
    "gru, norm, no bias": entry(GRU, layer_norm=True, bias=False),
    "gru, clip": entry(GRU, clip=0.8),
    "gru, hidden dropout": entry(GRU, hidden_dropout=0.3),
    "gru, candidate dropout": entry(GRU, candidate_dropout=0.3),
    "gru, z writes": entry(GRU, z_keeps=False),
    "gru before, no bias": entry(GRU, reset_after=False, bias=False),
    "gru before, heads": entry(GRU, reset_after=False, heads=4),
    "gru before, norm": entry(GRU, reset_after=False, layer_norm=True),
    "gru before, hidden dropout": entry(GRU, reset_after=False, hidden_dropout=0.3),
    "gru before, z writes": entry(GRU, reset_after=False, z_keeps=False),
    "mgu as flax, no bias": entry(MGU, reset_after=True, z_keeps=True, bias=False),
    "min gru, no bias": entry(MinGRU, bias=False),
    "min lstm, no bias": entry(MinLSTM, bias=False),
    "lru, ring": entry(LRU, least=0.5, most=0.9, phase=1.0),
    "learned lru": entry(LearnedCarry, entry(LRU)),
    "learned rnn": entry(LearnedCarry, entry(RNN)),
    "learned lstm": entry(LearnedCarry, entry(LSTM)),
    "zoneout rnn": entry(Zoneout, entry(RNN), h=0.3),
    "zoneout lstm, h": entry(Zoneout, entry(LSTM), h=0.3),
    "zoneout lstm, c": entry(Zoneout, entry(LSTM), c=0.3),
}  # fmt: skip
TABLE = FAST | {name: one._replace(slow=True) for name, one in (RICH | ALONE).items()}
PROBES = {
    "running sum": Entry(probes.RunningSum(WIDTH), reference.running_sum),
    "awkward": Entry(probes.Awkward(WIDTH)),
}
ALL = TABLE | PROBES
# Stand for the rest in fast tests of what costs more than it tells apart.
SAMPLE = {"gru reset before", "awkward"}
