"""Recurrent cells: pure functions on parameters and carry, one file each."""

from seqmodels.cells.base import Cell
from seqmodels.cells.gru import GRU, GRUCarry
from seqmodels.cells.lstm import LSTM, LSTMCarry
from seqmodels.cells.rnn import RNN, RNNCarry

CELLS: dict[str, type[Cell]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
}

__all__ = ["CELLS", "GRU", "LSTM", "RNN", "Cell", "GRUCarry", "LSTMCarry", "RNNCarry"]
