"""
What others have found about depth, width and conditioning, as formulas, each with how sure its source is.

`EVIDENCE` says for each which part is proved, which was measured and by whom, and what contradicts it.
"""

import math

EVIDENCE = {
    "head size": "A head expresses every attention pattern over n linearly independent tokens, which takes a width "
    "of n, if its size is n - 1 or more (Bhojanapalli et al., 2020, Theorem 1 for n; n - 1 is fixedbert's, tested). "
    "It is about all patterns: those of bounded sparsity can be approximated with O(log n), for chosen inputs "
    "(Likhosherstov et al., 2021), and the paper's own models have heads of 128 for rows of 512.",
    "depth threshold": "Below log_3(width) layers depth gains doubly exponentially over width, in a network without "
    "softmax and feed-forward layers (Levine et al., 2020; its bounds are unverified here).",
    "depth law": "ln(width) = 5.039 + 0.0555 depth, fitted to causal language models (Levine et al., 2020, third "
    "version; coefficients as others quote them). For masked LMs with BERT's vocabulary it is an extrapolation. "
    "Kaplan et al. (2020), as others report, find that shape matters little over a wide range.",
    "conditioning": "(sqrt(D) + sqrt(N)) / |sqrt(D) - sqrt(N)| for N tokens and heads * head size D (Saratchandran "
    "et al., 2025, Theorem 3.2, as a review quotes it; the submission was withdrawn). It assumes independent Gaussian"
    " heads and sees D alone: it says nothing for more but smaller heads.",
}


def depth_threshold(width: float) -> float:
    """log_3(width): the number of layers below which depth is worth more than width."""
    return math.log(width, 3)


def best_depth(width: float) -> float:
    """Layers that fit `width` by the fitted law; negative below width 154, outside its range."""
    return (math.log(width) - 5.039) / 0.0555


def best_width(depth: float) -> float:
    """Width that fits `depth` layers by the fitted law."""
    return math.exp(5.039 + 0.0555 * depth)


def condition_number(inner: int, length: int) -> float:
    """Of `length` x `inner` independent Gaussian numbers, in the limit; infinite where the two are equal."""
    if inner == length:
        return math.inf
    return (math.sqrt(inner) + math.sqrt(length)) / abs(math.sqrt(inner) - math.sqrt(length))
