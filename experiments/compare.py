"""Compares cells on tasks: every run of a comparison, then the report.

    python -m experiments.compare
    python -m experiments.compare --config=configs/ablation_bias.py --workdir=runs/ablation

The same command goes on with runs that are not finished. Exit status: 0, 1 if a run failed (the
others still ran), 2 for a mistake in the command or config, 3 if a seed diverged.
"""

from pathlib import Path

from ml_collections import ConfigDict

from experiments import cli


def main(workdir: Path, config: ConfigDict) -> int:
    if "runs" not in config:
        raise cli.UserError("this config is one run; use experiments.train, or give it `runs`")
    cli.use_cores(*(run.train for run in config.runs.values()))
    from experiments.report import write_report
    from experiments.runs import run_many

    outcome = run_many(config, workdir)
    write_report(workdir)
    if "failed" in outcome.values():
        return cli.FAILED
    return cli.DIVERGED if "diverged" in outcome.values() else 0


if __name__ == "__main__":
    cli.start(main, workdir="runs/compare", config="configs/compare.py")
