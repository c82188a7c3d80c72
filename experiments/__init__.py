"""Research code that works from a checkout and is not part of the wheel."""
