"""The start of the gates decides as much as the cell: adding and order at T = 200.

    python -m experiments.compare --config=configs/ablation_bias.py

LSTM and GRU with the keep or forget gate started at 0, at 1 and by chrono (which uses the known
T), beside the tanh RNN and the ReLU RNN that starts as the identity (Le et al. 2015).
"""

from ml_collections import ConfigDict

from configs import adding, order

INPUT_STDDEV = {"adding": 0.1, "order": 0.03}  # of the identity RNN


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seeds = 3  # for every run
    config.match_params = 0.02  # how far parameter counts may differ inside a task; 1.0: any
    config.runs = ConfigDict()
    for task, module in (("adding", adding), ("order", order)):
        for cell in ("lstm", "gru"):
            for bias in (0.0, 1.0):
                run = module.get_config(cell)
                run.label = f"{cell} bias {bias:.0f}"
                run.model.gate_bias, run.model.chrono_length = bias, None
                config.runs[f"{task}_{cell}_bias{bias:.0f}"] = run
            run = module.get_config(cell)
            run.label = f"{cell} chrono"
            config.runs[f"{task}_{cell}_chrono"] = run
        config.runs[f"{task}_rnn"] = module.get_config("rnn")
        run = module.get_config("rnn")
        run.label = "irnn"
        run.model.activation, run.model.init = "relu", "identity"
        run.model.input_stddev = INPUT_STDDEV[task]
        config.runs[f"{task}_irnn"] = run
    for run in config.runs.values():
        run.train.seeds = config.get_ref("seeds")
        run.train.steps = 1500
    return config.lock()
