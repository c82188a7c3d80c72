"""What every folder uses: errors, files, locks, figures."""
