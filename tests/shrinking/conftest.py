"""A text classifier with superfluous heads, and calibration rows for it."""

import random

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, WORDS, save
from helpers.tiny_models import model_of

import fixedbert


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A directory with 200 texts of two to fifteen words in rows.txt, and the same as pairs in pairs.csv."""
    draw, directory = random.Random(0), tmp_path_factory.mktemp("texts")
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 15))) for _ in range(200)]
    (directory / "rows.txt").write_text("\n".join(lines) + "\n")
    pairs = [f"{one},{other}" for one, other in zip(lines[::2], lines[1::2], strict=True)]
    (directory / "pairs.csv").write_text("\n".join(["sentence1,sentence2", *pairs]) + "\n")
    return directory


@pytest.fixture(scope="session")
def small():
    """A classifier whose predictions differ from text to text, with 5 heads of 6 and 37 neurons per layer."""
    return model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3).eval()


@pytest.fixture(scope="session")
def large(small, tmp_path_factory):
    """The directory of a model with the same function, but 7 heads of 8 and 48 neurons per layer."""
    directory = tmp_path_factory.mktemp("models") / "large"
    save(fixedbert.convert(small, attention_head_size=8, num_attention_heads=7, intermediate_size=48), directory)
    return str(directory)
