"""Writes text with a trained language model, symbol by symbol as it comes.

    python -m experiments.generate --workdir=runs/pydoc_topics_lstm --prompt="The for statement"

The run directory is enough: neither its data nor its config file is read. Exit status: 0, or 2 for
a mistake in the command, with one line.
"""

import json
import os
import sys
from pathlib import Path

from experiments import cli
from experiments.errors import UserError, blame

OPTIONS = {
    "prompt": cli.Option(str, "", "Text to go on from; empty: a new document, if there are any."),
    "length": cli.Option(int, 500, "Symbols at most; it ends earlier where a document ends."),
    "temperature": cli.Option(float, 0.7, "0: always the likeliest symbol; 1: as the model says."),
    "top_k": cli.Option(int, None, "Draw from the k likeliest symbols only."),
    "top_p": cli.Option(float, None, "Draw from the fewest symbols with this much probability."),
    "seed": cli.Option(int, 0, "Of what is drawn."),
    "run_seed": cli.Option(int, None, "Which seed of the run; default: its first."),
}


def main(
    workdir: Path,
    prompt: str,
    length: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    run_seed: int | None,
) -> int:
    import jax

    from experiments.build import check_fields
    from experiments.build_model import build_model
    from experiments.runs import TOKENIZER
    from experiments.trained import blame_config, read_config, read_params
    from experiments.writing import stream_text
    from seqmodels.data.tokenizers import load_tokenizer
    from seqmodels.types import Spec

    if not 0 <= seed < 2**32:
        raise UserError(f"--seed={seed} must be at least 0 and below 2**32")
    config = read_config(workdir)
    path = workdir / TOKENIZER
    if not path.exists():
        raise UserError(f"--workdir={workdir} is no run of a language model: no {TOKENIZER} there")
    with blame(str(path)):
        tokenizer = load_tokenizer(json.loads(path.read_text(encoding="utf-8")))
    size = tokenizer.size
    spec = Spec(size, True, size, True, "cross_entropy", "bits")
    with blame_config(workdir):
        check_fields(config)
        if config.model.readout is not None:
            raise UserError("no run of a language model: config.model.readout is not None")
        model = build_model(config.model, config.cell, spec)
    found = read_params(workdir, config, run_seed)
    if found.diverged:
        raise UserError(
            f"seed {found.seed} of --workdir={workdir} diverged by step {found.step}; "
            "choose another --run_seed, or train it with a lower learning rate"
        )
    with blame("--prompt"):
        tokenizer.encode(prompt)
    try:
        written = stream_text(
            model,
            found.params,
            tokenizer,
            prompt,
            jax.random.key(seed),
            length,
            temperature,
            top_k,
            top_p,
            _write,
        )
        print()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        field = "--" if str(error).split("=")[0] in OPTIONS else f"--workdir={workdir}: "
        raise UserError(f"{field}{error}") from error
    if not written.ended:
        print(f"(cut after --length={length} symbols)", file=sys.stderr)
    return 0


def _write(piece: str) -> None:
    print(piece, end="", flush=True)


if __name__ == "__main__":
    cli.start(main, workdir="runs/pydoc_topics_lstm", options=OPTIONS)
