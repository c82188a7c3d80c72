"""Research of a checkout, in no wheel."""
