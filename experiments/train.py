"""Trains one config, all its seeds, and tests them.

    python -m experiments.train --config=configs/adding.py:lstm --config.train.steps=2000

The same command goes on with seeds that are not finished. Exit status: 0, 2 for a mistake in the
command or config, 3 if a seed diverged.
"""

from pathlib import Path

from absl import flags

from experiments import cli

CONFIG = cli.define_config("configs/adding.py")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where results go. Default: runs/TASK_LABEL of the config."
)


def main() -> int:
    config = CONFIG.value
    workdir = Path(WORKDIR.value or f"runs/{config.task.name}_{config.label}".replace(" ", "_"))
    cli.use_cores(config.train.seeds)
    from experiments.runs import run_one

    sound = run_one(config, workdir)
    print(f"results in {workdir}")
    return 0 if sound else cli.DIVERGED


if __name__ == "__main__":
    cli.start(main)
