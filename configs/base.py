"""Every field of a run, with its unit and meaning. Other configs start from here.

None means "does not apply" or "the usual value", as the comment says. A setting that nothing
would read is refused rather than ignored.
"""

import difflib
from collections.abc import Iterable

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

CELLS = ("rnn", "lstm", "gru")
LINEAR = ("min_gru", "min_lstm", "lru")
"""Linear in their carry; `configs/linear.py` has them."""


def get_config(cell: str = "lstm", cells: tuple[str, ...] = CELLS) -> ConfigDict:
    known(cell, cells)
    gated = cell not in ("rnn", "lru")
    config = ConfigDict()
    config.label = cell  # name in tables and figures; the column `cell`

    config.task = ConfigDict()  # name of a task or data set, and that one's own settings
    config.task.name = "adding"
    config.task.length = 200  # of training rows; data sets have their own
    config.task.min_length = placeholder(int)  # rows uniform on min_length..length; None: all equal

    config.model = ConfigDict()
    config.model.cell = cell  # rnn, lstm, gru, min_gru, min_lstm, lru; mgu for gru
    config.model.activation = placeholder(str)  # rnn only: tanh, relu
    config.model.activation = "tanh" if cell == "rnn" else None
    config.model.features = 64  # H, width of each layer
    config.model.layers = 1
    config.model.bidirectional = False
    config.model.merge = placeholder(str)  # of both directions: concat, sum, mean, product
    config.model.input_dropout = 0.0  # on the inputs of the first layer, or their embedding
    config.model.layer_dropout = 0.0  # on each layer's output but the last
    config.model.head_dropout = 0.0  # before the linear head
    config.model.readout = placeholder(str)  # one answer a sequence: last, first, mean, max
    config.model.readout = "last"
    config.model.head_start = placeholder(str)  # of the head's bias; music: frequencies; None: 0
    config.model.embedding = placeholder(int)  # width of token vectors; tokens only
    config.model.tied = placeholder(bool)  # language models: the output shares the embedding
    config.model.init = placeholder(str)  # recurrent matrices: orthogonal, identity,
    config.model.init = None if cell in LINEAR else "orthogonal"  # uniform_by_width
    config.model.input_stddev = placeholder(float)  # input matrices N(0, this^2); None: Glorot
    config.model.gate_bias = placeholder(float)  # start of the forget or keep gate
    config.model.gate_bias = 1.0 if gated else None
    config.model.chrono_length = placeholder(int)  # T of the chrono start, instead of gate_bias
    config.model.dtype = "float32"  # of the forward products' operands: float32, bfloat16

    config.cell = ConfigDict()  # options of the cell; its docstring has their meaning and source
    config.cell.learned_carry = False
    if cell != "lru":
        config.cell.bias = True
        config.cell.zoneout_h = 0.0  # probability that a unit of h keeps its value
    if cell in CELLS:
        config.cell.heads = 1  # blocks of the recurrent kernel
        config.cell.layer_norm = False
        config.cell.clip = placeholder(float)  # bounds of the pre-activations
        config.cell.hidden_dropout = 0.0  # on h where it enters the recurrent product
        config.cell.candidate_dropout = 0.0  # on what is written to the memory
        config.cell.dropout_per_step = False  # a fresh mask each step, for both
    if cell == "lstm":
        config.cell.zoneout_c = 0.0
        config.cell.coupled = False  # input gate = 1 - forget gate
        config.cell.peepholes = False
        config.cell.projection = placeholder(int)  # width of h after a linear map
        config.cell.cell_clip = placeholder(float)  # bounds of c
    if cell == "gru":
        config.cell.reset_after = placeholder(bool)  # None: the cell's own; gru True, mgu False
        config.cell.z_keeps = placeholder(bool)  # likewise
    if cell == "lru":
        config.cell.least = 0.0  # radii between which its numbers start
        config.cell.most = 0.99
        config.cell.phase = 6.28  # their angles start between 0 and this

    config.optimizer = ConfigDict()
    config.optimizer.name = "adam"  # adam, adamw, rmsprop, sgd
    config.optimizer.learning_rate = 0.01
    config.optimizer.schedule = "constant"  # constant, cosine, linear; the latter two end at 0
    config.optimizer.warmup = 0  # updates with a rising rate
    config.optimizer.clip = placeholder(float)  # largest global norm of a gradient; None: no limit
    config.optimizer.clip = 1.0
    config.optimizer.weight_decay = 0.0  # adamw only; shrinks kernels and embeddings
    config.optimizer.momentum = 0.0  # sgd only
    config.optimizer.b1 = placeholder(float)  # adam, adamw; None: 0.9
    config.optimizer.b2 = placeholder(float)  # adam, adamw: None: 0.999; rmsprop: None: 0.9

    config.train = ConfigDict()
    config.train.seeds = 3  # how many, counted from `seed`
    config.train.seed = 0
    config.train.steps = 600  # updates at most
    config.train.batch = 20  # sequences
    config.train.weight_noise = 0.0  # std of Gaussian noise on every parameter, each step
    config.train.max_bad_steps = 1  # non-finite steps in a row that stop a seed
    config.train.shards = placeholder(int)  # devices that share each batch, where there are so
    # many; None: those that the seeds leave over, with 8 rows each at least
    config.train.accumulate = 1  # batches whose gradients make up one update
    config.train.shuffle = placeholder(bool)  # data sets: None: anew each epoch; False: in order
    config.train.buckets = ()  # data sets: widths T of batches of like length; (): one width
    config.train.chunk = placeholder(int)  # data sets: steps of truncated backpropagation along one
    # stream, the carry kept from chunk to chunk; None: whole rows
    config.train.workers = placeholder(int)  # streamed files: processes that read; None: a thread
    config.train.prefetch = placeholder(int)  # streamed files: batches read ahead; None: 4
    config.train.average = 0.0  # decay of a moving average of the parameters, to be evaluated
    config.train.eval_every = 50  # updates between validations
    config.train.steps_per_call = 50  # updates per compiled call, at most
    config.train.solved = placeholder(float)  # validation score that counts as solved; None: none
    config.train.stop_when_solved = False  # after a second, fresh set confirms it
    config.train.test = "last"  # which parameters are tested: last, best (on validation)
    config.train.patience = placeholder(int)  # validations without a better score, after which:
    config.train.drops = 0  # so many times back to the best with a lower rate, then stop
    config.train.drop_factor = placeholder(float)  # of the rate at each drop

    config.checkpoint = ConfigDict()
    config.checkpoint.seconds = 60.0  # between two; 0: after every compiled call
    config.checkpoint.keep = 2  # newest ones that stay; should one be damaged, the other serves

    config.eval = ConfigDict()
    config.eval.batch = 250  # sequences
    config.eval.valid_examples = 250  # drawn once per seed; tasks only
    config.eval.test_examples = 1000  # likewise; also size of the set that confirms "solved"
    config.eval.lengths = (200,)  # lengths tested, the first for the table; tasks only, else ()
    return config.lock()


def known(argument: str, allowed: Iterable[str]) -> None:
    """ValueError, with the nearest name, unless a config's argument is among `allowed`."""
    names = [*allowed]
    if argument in names:
        return
    near = difflib.get_close_matches(argument, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"argument {argument!r} is unknown{hint} (allowed: {', '.join(names)})")


def set_task(config: ConfigDict, name: str, lengths: tuple[int, ...] = (), **settings) -> None:
    """Puts another task or data set in place; `lengths` are those tested, for tasks only."""
    with config.unlocked():
        config.task = ConfigDict({"name": name, **settings})
        config.eval.lengths = lengths
        if not lengths:  # a data set brings its own splits
            del config.eval.valid_examples, config.eval.test_examples


def use_chrono(config: ConfigDict, length: int) -> None:
    """Chrono start of the gates for dependencies up to `length` steps, which must be known."""
    if config.model.cell != "rnn":
        config.model.gate_bias, config.model.chrono_length = None, length
