"""Token masking for pretraining."""

import numpy as np


def target_count(maskable: int, probability: float) -> int:
    """Returns the number of prediction targets among `maskable` tokens, at least one."""
    return max(1, round(probability * maskable))


def mask_tokens(
    input_ids: np.ndarray,
    maskable: np.ndarray,
    probability: float,
    mask_id: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Masks tokens as in BERT (Devlin et al., 2019, section 3.1).

    The targets are chosen at random. 80% of them are replaced by [MASK], 10% by a random token, and 10% are kept.

    Args:
        input_ids: Token ids (L,) of one row with L tokens.
        maskable: Indices (M,) of the M tokens that can become targets.
        probability: Fraction of the maskable tokens that become targets. At least one token becomes a target.

    Returns:
        The masked token ids (L,) and the labels (L,), which are -100 except at the targets.
    """
    count = target_count(len(maskable), probability)
    labels = np.full_like(input_ids, -100)
    masked = input_ids.copy()
    if not len(maskable):
        return masked, labels
    targets = rng.choice(maskable, size=count, replace=False)
    draw = rng.random(count)
    labels[targets] = input_ids[targets]
    masked[targets[draw < 0.8]] = mask_id
    replaced = targets[draw >= 0.9]
    masked[replaced] = rng.integers(vocab_size, size=len(replaced))
    return masked, labels
