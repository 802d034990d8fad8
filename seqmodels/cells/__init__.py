"""Recurrent cells: pure functions on parameters and carry, one file each."""

from seqmodels.cells.base import Cell
from seqmodels.cells.gru import GRU, MGU, GRUCarry
from seqmodels.cells.lstm import LSTM, LSTMCarry
from seqmodels.cells.rnn import RNN, RNNCarry
from seqmodels.cells.standard import StandardCell
from seqmodels.cells.wrapped import LearnedCarry, Zoneout

CELLS: dict[str, type[StandardCell]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
    "mgu": MGU,
}

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "MGU",
    "RNN",
    "Cell",
    "GRUCarry",
    "LSTMCarry",
    "LearnedCarry",
    "RNNCarry",
    "StandardCell",
    "Zoneout",
]
