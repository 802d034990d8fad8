"""Writes text with a trained language model, symbol by symbol as it comes.

    python -m experiments.generate --workdir=runs/pydoc_topics_lstm --prompt="The for statement"

The run directory is enough: neither its data nor its config file is read. Exit status: 0, or 2 for
a mistake in the command, with one line.
"""

import json
import sys
from pathlib import Path

from experiments import cli
from experiments.errors import UserError, blame

OPTIONS = {
    "prompt": cli.Option(str, "", "Text to go on from; empty: a new document."),
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

    from experiments.build import build_model
    from experiments.runs import TOKENIZER
    from experiments.trained import read_config, read_params
    from experiments.writing import stream_text
    from seqmodels.data.tokenizers import load_tokenizer
    from seqmodels.types import Spec

    config = read_config(workdir)
    path = workdir / TOKENIZER
    if not path.exists():
        raise UserError(f"--workdir={workdir} is no run of a language model: no {TOKENIZER} there")
    with blame(str(path)):
        tokenizer = load_tokenizer(json.loads(path.read_text(encoding="utf-8")))
    size = tokenizer.size
    spec = Spec(size, True, size, True, "cross_entropy", "bits")
    model = build_model(config.model, spec)
    params, _, _ = read_params(workdir, config, run_seed)
    with blame("error"):
        written = stream_text(
            model,
            params,
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
    if not written.ended:
        print(f"(cut after --length={length} symbols)", file=sys.stderr)
    return 0


def _write(piece: str) -> None:
    print(piece, end="", flush=True)


if __name__ == "__main__":
    cli.start(main, workdir="runs/pydoc_topics_lstm", options=OPTIONS)
