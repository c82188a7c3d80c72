"""Research code that runs only from a checkout, because it is not part of the wheel."""
