"""Saves tiny models with a tokenizer, and defines texts for its vocabulary."""

import json
import random
from pathlib import Path

from transformers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = [*SPECIAL, *"the cat sat on mat dog ran . where who of and".split(), *LETTERS, *(f"##{x}" for x in LETTERS)]
SHAPE = {"vocab_size": len(WORDS), "max_position_embeddings": 23}
# Pooling configuration from an earlier version of sentence-transformers, as text-embeddings-inference requires it.
MEAN = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
MEAN |= {f"pooling_mode_{mode}": False for mode in ("cls_token", "max_tokens", "mean_sqrt_len_tokens")}
TEXTS = ["the cat sat on the mat .", "the dog", "where", "who sat on the cat and ran ."]


def save(model, directory, **options):
    """Saves a model with a tokenizer."""
    model.save_pretrained(directory)
    vocabulary = {word: token_id for token_id, word in enumerate(WORDS)}
    BertTokenizer(vocab=vocabulary, **{"model_max_length": 23} | options).save_pretrained(directory)


def save_sentence_model(model, directory: Path, *kinds, pooling=MEAN, settings=None, prompts=None, **options):
    """Saves a sentence-transformers model with the modules `kinds` after the encoder."""
    save(model, directory, **options)
    modules = []
    for number, kind in enumerate(["Transformer", *kinds]):
        path = f"{number}_{kind}" if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
        (directory / path).mkdir(exist_ok=True)
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 17} | (settings or {})))
    if prompts is not None:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))


def write_texts(directory: Path) -> Path:
    """Writes 200 texts of 2 to 15 words in rows.txt, and the same texts as pairs in pairs.csv."""
    draw = random.Random(0)
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 15))) for _ in range(200)]
    (directory / "rows.txt").write_text("\n".join(lines) + "\n")
    pairs = [f"{one},{other}" for one, other in zip(lines[::2], lines[1::2], strict=True)]
    (directory / "pairs.csv").write_text("\n".join(["sentence1,sentence2", *pairs]) + "\n")
    return directory
