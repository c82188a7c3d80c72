"""Token masking for pretraining, by token or by whole word."""

import numpy as np
from transformers import PreTrainedTokenizerBase


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
    inside_word: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Masks tokens as in BERT (Devlin et al., 2019, section 3.1).

    The targets are chosen at random. 80% of them are replaced by [MASK], 10% by a random token, and 10% are kept.

    Args:
        input_ids: Token ids (L,) of one row with L tokens.
        maskable: Indices (M,) of the M tokens that can become targets.
        probability: Fraction of the maskable tokens that become targets. At least one token becomes a target.
        inside_word: For whole-word masking, the boolean array (vocab_size,) from `tokens_inside_words`. With it, the
            targets are whole words, and the tokens of a word are either all masked, all replaced or all kept.

    Returns:
        The masked token ids (L,) and the labels (L,), which are -100 except at the targets.
    """
    count = target_count(len(maskable), probability)
    labels = np.full_like(input_ids, -100)
    masked = input_ids.copy()
    if not len(maskable):
        return masked, labels
    if inside_word is None:
        targets = rng.choice(maskable, size=count, replace=False)
        draw = rng.random(count)
    else:
        begins = ~inside_word[input_ids[maskable]]
        begins |= np.diff(maskable, prepend=-2) > 1  # a special token, which is not maskable, ends a word
        word = np.cumsum(begins) - 1  # (maskable,)
        chosen = choose_words(np.bincount(word), count, rng)
        targets = maskable[chosen[word]]
        draw = rng.random(len(chosen))[word[chosen[word]]]
    labels[targets] = input_ids[targets]
    masked[targets[draw < 0.8]] = mask_id
    replaced = targets[draw >= 0.9]
    masked[replaced] = rng.integers(vocab_size, size=len(replaced))
    return masked, labels


def choose_words(lengths: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Selects random words of at most `count` tokens in total, or else the shortest one. Returns booleans (words,)."""
    chosen = np.zeros(len(lengths), dtype=bool)
    room = count
    for word in rng.permutation(len(lengths)).tolist():
        if lengths[word] <= room:
            chosen[word] = True
            room -= lengths[word]
            if not room:
                break
    if room == count:
        chosen[lengths.argmin()] = True
    return chosen


def tokens_inside_words(tokenizer: PreTrainedTokenizerBase) -> np.ndarray | None:
    """Returns a boolean array (vocab_size,), True for tokens that continue a word ("##..."), or None if none do."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    inside = np.array([token is not None and token.startswith("##") for token in tokens])
    return inside if inside.any() else None
