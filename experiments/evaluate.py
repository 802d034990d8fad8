"""Evaluates a trained run: by length, on other lengths than it was trained on, on any split.

    python -m experiments.evaluate --workdir=runs/parity_lstm --lengths=20,100,1000
    python -m experiments.evaluate --workdir=runs/movie_reviews_gru --widths=8,16,32,64

Tasks are drawn anew at each of --lengths; rows of a data set are grouped by --widths; a stream is
evaluated as a whole. Scores are means over what was scored, and their count stands beside them. The
same rows are written to evaluation.jsonl, null for what is not finite. Exit status: 0, or 2 for a
mistake in the command.
"""

from pathlib import Path

from experiments import cli

OPTIONS = {
    "split": cli.Option(str, "test", "Of a data set: train, valid or test."),
    "lengths": cli.Option(str, "", "Of a task, like 100,500; default: those of the config."),
    "widths": cli.Option(str, "", "Largest lengths of the groups of rows; default: powers of two."),
    "run_seed": cli.Option(int, None, "Which seed of the run; default: all."),
}


def main(workdir: Path, split: str, lengths: str, widths: str, run_seed: int | None) -> int:
    numbers = {"lengths": _numbers("lengths", lengths), "widths": _numbers("widths", widths)}
    from experiments.errors import blame
    from experiments.evaluation import evaluate, show
    from experiments.results import as_line, write_file

    rows = evaluate(workdir, split, **numbers, seed=run_seed)
    with blame(f"--workdir={workdir}"):
        write_file(workdir / "evaluation.jsonl", "".join(map(as_line, rows)))
    show(rows)
    return 0


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        numbers = (0,)
    if any(n < 1 for n in numbers):
        raise cli.UserError(f"--{flag}={text} must be lengths of at least 1, like 100,500")
    return numbers


if __name__ == "__main__":
    cli.start(main, workdir="runs/adding_lstm", options=OPTIONS)
