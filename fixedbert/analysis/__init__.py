"""What head size means: the theory, and what a shape costs."""
