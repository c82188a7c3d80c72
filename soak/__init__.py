"""Trials of fixedbert from outside: damage, habits, killed runs, full disks, an hour of training. soak/README.md."""
