"""Saves tiny models with a tokenizer, and contains texts for its vocabulary."""

from transformers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = [*SPECIAL, *"the cat sat on mat dog ran . where who of and".split(), *LETTERS, *(f"##{x}" for x in LETTERS)]
SHAPE = {"vocab_size": len(WORDS), "max_position_embeddings": 23}
TEXTS = ["the cat sat on the mat .", "the dog", "where", "who sat on the cat and ran ."]


def save(model, directory):
    """Saves a model with a tokenizer."""
    model.save_pretrained(directory)
    vocabulary = {word: token_id for token_id, word in enumerate(WORDS)}
    BertTokenizer(vocab=vocabulary, model_max_length=23).save_pretrained(directory)
