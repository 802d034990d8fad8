import sys

if sys.argv[:1] == ["-m"]:  # a command, whose module Python has yet to import; never a notebook
    from experiments.signals import end_at_once

    end_at_once()
