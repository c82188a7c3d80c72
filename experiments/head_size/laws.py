"""What others have found about conditioning, as a formula, with how sure its source is."""

import math

EVIDENCE = (
    "(sqrt(D) + sqrt(N)) / |sqrt(D) - sqrt(N)| for N tokens and heads * head size D (Saratchandran et al., 2025, "
    "Theorem 3.2, as a review quotes it; the submission was withdrawn). It assumes independent Gaussian heads and "
    "sees D alone: it says nothing for more but smaller heads."
)


def condition_number(inner: int, length: int) -> float:
    """Condition number of `length` x `inner` Gaussian numbers, in the limit; infinite if the two are equal."""
    if inner == length:
        return math.inf
    return (math.sqrt(inner) + math.sqrt(length)) / abs(math.sqrt(inner) - math.sqrt(length))
