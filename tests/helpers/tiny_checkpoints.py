"""Tiny model directories with a tokenizer, and texts in its vocabulary."""

from transformers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = [*SPECIAL, *"the cat sat on mat dog ran . where who of and".split(), *LETTERS, *(f"##{x}" for x in LETTERS)]
SHAPE = {"vocab_size": len(WORDS), "max_position_embeddings": 23}
TEXTS = ["the cat sat on the mat .", "the dog", "where", "who sat on the cat and ran ."]


def save(model, folder):
    """Saves a model and a tokenizer."""
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    BertTokenizer(vocab=vocabulary, model_max_length=23).save_pretrained(folder)
