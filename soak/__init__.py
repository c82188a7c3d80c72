"""Trials of fixedbert from outside: damaged files, killed runs, full disks, an hour of training. docs/trials.md."""
