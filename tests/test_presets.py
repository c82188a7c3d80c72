"""Tests that compare the presets with the paper's parameter counts and scores."""

import re
from pathlib import Path

import pytest

from fixedbert import PRESETS, preset_config
from fixedbert.counts import parameters

TABLES = {name: preset for name, preset in PRESETS.items() if preset.source.startswith("Table")}


def test_parameters_round_to_the_printed_million():
    """Presets in the paper's tables have the printed parameters, with both pretraining heads and BERT's vocabulary."""
    for name, preset in TABLES.items():
        assert preset.vocab_size == 30522
        assert round(parameters(preset_config(name))[0] / 1e6) == preset.parameters


def test_preset_config():
    """Keyword arguments replace fields, and the error for an unknown preset lists the available presets."""
    assert preset_config("tiny", attention_head_size=32).attention_head_size == 32
    with pytest.raises(KeyError, match="preset 'tinny' not found.*tiny"):
        preset_config("tinny")


def test_table_in_the_documentation():
    """docs/paper.md lists all presets from the paper's tables, with their sizes and the printed scores."""
    page = (Path(__file__).parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
    number = r"([\d.]+)"
    shape = rf"\| [\dAB, ]+ \| {number} of {number} in {number}[^|]* \| {number} \| `(\S+)`[^|]*"
    row = re.compile(rf"{shape} \| {number} M \| [\d.]+ \| {number} ± [\d.]+ \| {number} ± [\d.]+ \|")
    rows = [match.groups() for match in map(row.match, page.splitlines()) if match]
    assert {name for _, _, _, _, name, *_ in rows} == TABLES.keys() and len(rows) == len(TABLES) == 14
    for heads, size, width, neurons, name, millions, f1, mnli in rows:
        config, preset = preset_config(name), PRESETS[name]
        assert (config.num_attention_heads, config.head_dim, config.hidden_size) == (int(heads), int(size), int(width))
        assert config.intermediate_size == int(neurons)
        assert (preset.parameters, preset.squad_f1, preset.mnli) == (int(millions), float(f1), float(mnli))
