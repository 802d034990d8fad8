"""Weights and settings from other libraries and back, one file a library.

    torch   RNN, LSTM, GRU: module or state_dict in, state_dict out
    keras   SimpleRNN, LSTM, GRU, Bidirectional
    flax    Linen's and NNX's recurrent cells
    onnx    RNN, LSTM and GRU nodes of a model file, in only

Every `from_...` returns what this project would build for the same settings, a layer of
`seqmodels.layers` or a cell, and its parameters. What does not fit, and what the other side cannot
express, is refused with its name (ValueError); nothing is dropped silently.

None of the other libraries is needed to import this package, only to use the file of its name:
`pip install 'seqmodels[interop]'` has all four.
"""
