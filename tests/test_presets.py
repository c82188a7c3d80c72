"""Presets: the paper's parameter counts, exactly to the printed million."""

import re
from pathlib import Path

import pytest
import torch

from fixedbert import PRESETS, FixedHeadBertForPreTraining, FixedHeadBertLMHeadModel, preset_config
from fixedbert.planning import DEVICES, KNOWN, UTILISATION

# Bhojanapalli et al., 2020: Tables 1, 2A, 2B and 3, millions of parameters.
PRINTED = {
    "standard-1024-8x128": 336,
    "standard-1024-16x64": 336,
    "standard-1024-32x32": 336,
    "fixed-512-8x128": 168,
    "fixed-512-12x128": 193,
    "fixed-512-16x128": 218,
    "fixed-512-32x128": 319,
    "fixed-512-8x32": 130,
    "fixed-512-8x64": 142,
    "fixed-512-8x256": 218,
    "fixed-768-8x128": 214,
    "fixed-768-12x128": 252,
    "fixed-768-16x128": 290,
    "fixed-768-20x128": 327,
}


def parameters(name: str) -> int:
    config = preset_config(name)
    with torch.device("meta"):
        model = FixedHeadBertLMHeadModel(config) if config.is_decoder else FixedHeadBertForPreTraining(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PRINTED)
def test_parameters_round_to_the_printed_million(name):
    """Guards: a preset of a table is the paper's model: counted with both pretraining heads, 30,522 tokens."""
    assert preset_config(name).vocab_size == 30522
    assert round(parameters(name) / 1e6) == PRINTED[name] == PRESETS[name].parameters


def test_every_row_of_the_tables_is_there():
    """Guards: 3 + 4 + 4 + 4 rows, of which 8 heads of 128 at width 512 stand in two tables."""
    assert {name for name, preset in PRESETS.items() if preset.source.startswith("Table")} == PRINTED.keys()
    assert len(PRINTED) == 14


def test_exact_counts_of_one_row_and_of_the_small_presets():
    """Guards: nothing is added to the model unnoticed; the first row of Table 2A by hand."""
    embeddings = (30522 + 512 + 2) * 512 + 2 * 512
    layer = 4 * 512 * 1024 + 3 * 1024 + 512 + 2 * 512 * 4096 + 4096 + 512 + 4 * 512
    heads = 512 * 512 + 512 + (512 * 512 + 512 + 2 * 512 + 30522) + (2 * 512 + 2)  # pooler, masked LM, next sentence
    assert parameters("fixed-512-8x128") == embeddings + 24 * layer + heads == 167_690_044
    assert parameters("mini") == 10_214_204
    assert parameters("tiny") == 1_107_202


def test_paper_models_have_the_recovered_feed_forward_width():
    """Guards: 4096 at d=512, 3072 at d=768, with which alone the printed counts come out."""
    widths = {(preset.hidden_size, preset.intermediate_size) for preset in PRESETS.values() if preset.parameters}
    assert widths == {(1024, 4096), (512, 4096), (768, 3072)}


def test_preset_takes_changes_and_names_the_known_ones():
    """Guards: any field can be changed, and a misspelt preset is answered with the list."""
    assert preset_config("tiny", attention_head_size=32).attention_head_size == 32
    with pytest.raises(KeyError, match="no preset 'tinny'.*tiny"):
        preset_config("tinny")


def test_rows_of_the_page_are_the_presets():
    """Guards: docs/paper.md has every preset of a table, with its feed-forward width, printed scores and hours."""
    page = (Path(__file__).parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
    number = r"([\d.]+)"
    shape = rf"\| [\dAB, ]+ \| {number} of {number} in {number}[^|]* \| {number} \| `(\S+)`[^|]*"
    row = re.compile(rf"{shape} \| {number} M \| {number} \| {number} ± [\d.]+ \| {number} ± [\d.]+ \|")
    rows = [found.groups() for found in map(row.match, page.splitlines()) if found]
    assert {name for _, _, _, _, name, *_ in rows} == PRINTED.keys() and len(rows) == len(PRINTED)
    for heads, size, width, neurons, name, millions, hours, f1, mnli in rows:
        config, preset = preset_config(name), PRESETS[name]
        assert (config.num_attention_heads, config.head_dim, config.hidden_size) == (int(heads), int(size), int(width))
        assert config.intermediate_size == int(neurons)
        assert (preset.parameters, preset.squad_f1, preset.mnli) == (int(millions), float(f1), float(mnli))
        assert round(KNOWN[name].paper_hours(DEVICES["h100"] * UTILISATION)) == int(hours)
