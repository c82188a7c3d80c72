"""BERT's masking, of tokens or of whole words."""

import numpy as np
from transformers import PreTrainedTokenizerBase


def target_count(maskable: int, probability: float) -> int:
    """How many of so many tokens become targets: the nearest number to this share, at least one."""
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
    Mask tokens as BERT does (Devlin et al., 2019, section 3.1): of the targets 80 % are replaced by [MASK], 10 % by a
    random token, and 10 % are kept.

    Args:
        input_ids: (L,).
        maskable: positions that can be targets.
        probability: the share of `maskable` that become targets, at least one.
        inside_word: whether each token continues a word, bool (vocab_size,). Then whole words become targets, as many
            as fit into that share, and the replacement is chosen once for a word.

    Returns:
        The input (L,), and the labels (L,), -100 where there is no target.
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
        begins |= np.diff(maskable, prepend=-2) > 1  # after a special token
        word = np.cumsum(begins) - 1  # (maskable,)
        lengths = np.bincount(word)
        order = rng.permutation(len(lengths))
        chosen = np.zeros(len(lengths), dtype=bool)
        room = count
        for one in order.tolist():
            if lengths[one] <= room:
                chosen[one] = True
                room -= lengths[one]
                if not room:
                    break
        if room == count:  # all words are longer than that: take the shortest
            chosen[lengths.argmin()] = True
        targets = maskable[chosen[word]]
        draw = rng.random(len(lengths))[word[chosen[word]]]
    labels[targets] = input_ids[targets]
    masked[targets[draw < 0.8]] = mask_id
    replaced = targets[draw >= 0.9]
    masked[replaced] = rng.integers(vocab_size, size=len(replaced))
    return masked, labels


def tokens_inside_words(tokenizer: PreTrainedTokenizerBase) -> np.ndarray | None:
    """
    Whether each token continues the word before it, bool (vocab_size,): in WordPiece such tokens begin with "##".
    None if there is no such token.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    inside = np.array([token is not None and token.startswith("##") for token in tokens])
    return inside if inside.any() else None
