"""Recurrent cells: pure functions on parameters and carry, one file each."""

from seqmodels.cells.base import Cell
from seqmodels.cells.gru import GRU, MGU, GRUCarry
from seqmodels.cells.linear import LinearCarry, LinearCell
from seqmodels.cells.lru import LRU, LRUCarry
from seqmodels.cells.lstm import LSTM, LSTMCarry
from seqmodels.cells.min_gru import MinGRU
from seqmodels.cells.min_lstm import MinLSTM
from seqmodels.cells.rnn import RNN, RNNCarry
from seqmodels.cells.standard import StandardCell
from seqmodels.cells.wrapped import LearnedCarry, Zoneout

CELLS: dict[str, type[Cell]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
    "mgu": MGU,
    "min_gru": MinGRU,
    "min_lstm": MinLSTM,
    "lru": LRU,
}

__all__ = [
    "CELLS",
    "GRU",
    "LRU",
    "LSTM",
    "MGU",
    "RNN",
    "Cell",
    "GRUCarry",
    "LRUCarry",
    "LSTMCarry",
    "LearnedCarry",
    "LinearCarry",
    "LinearCell",
    "MinGRU",
    "MinLSTM",
    "RNNCarry",
    "StandardCell",
    "Zoneout",
]
