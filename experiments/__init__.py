"""The shell around the library: flags, files, clocks, progress, reports."""
