"""Fixtures: a text classifier with superfluous heads and neurons, and calibration texts for it."""

import pytest
import torch
from helpers.tiny_checkpoints import SHAPE, save, write_texts
from helpers.tiny_models import model_of

from fixedbert.conversion.growing import to_fixed_head_bert


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def small():
    """A classifier with 5 heads of size 6 and 37 neurons per layer. Its predictions vary between texts."""
    return model_of("ForSequenceClassification", **SHAPE, initializer_range=0.3).eval()


@pytest.fixture(scope="session")
def large(small, tmp_path_factory):
    """The directory of a model with the same outputs as `small`, but 7 heads of size 8 and 48 neurons per layer."""
    directory = tmp_path_factory.mktemp("models") / "large"
    save(to_fixed_head_bert(small, attention_head_size=8, num_attention_heads=7, intermediate_size=48), directory)
    return str(directory)
