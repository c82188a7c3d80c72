"""Tests of the presets, against the paper's parameter counts and scores."""

import re
from pathlib import Path

import pytest

from fixedbert import PRESETS, preset_config
from fixedbert.counts import parameters

# Millions of parameters, as printed in Tables 1, 2A, 2B and 3.
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


def test_parameters_round_to_the_printed_million():
    """Presets from the tables have the printed parameter counts, with both pretraining heads and BERT's vocabulary."""
    tables = {name: preset for name, preset in PRESETS.items() if preset.source.startswith("Table")}
    assert tables.keys() == PRINTED.keys()
    for name, preset in tables.items():
        assert preset.vocab_size == 30522
        assert round(parameters(preset_config(name))[0] / 1e6) == PRINTED[name] == preset.parameters


def test_small_presets():
    """The small presets have known parameter counts. Decoders are counted with their language-model head."""
    assert parameters(preset_config("mini"))[0] == 10_214_204
    assert parameters(preset_config("tiny"))[0] == 1_107_202
    assert preset_config("lm1b-standard-256-8x32").is_decoder
    assert parameters(preset_config("lm1b-standard-256-8x32"))[0] > 8_000_000


def test_preset_config():
    """Keyword arguments replace fields, and the error for an unknown preset lists the available presets."""
    assert preset_config("tiny", attention_head_size=32).attention_head_size == 32
    with pytest.raises(KeyError, match="preset 'tinny' not found.*tiny"):
        preset_config("tinny")


def test_table_in_the_documentation():
    """docs/paper.md lists all presets from the tables, with their sizes and the printed scores."""
    page = (Path(__file__).parents[1] / "docs" / "paper.md").read_text(encoding="utf-8")
    number = r"([\d.]+)"
    shape = rf"\| [\dAB, ]+ \| {number} of {number} in {number}[^|]* \| {number} \| `(\S+)`[^|]*"
    row = re.compile(rf"{shape} \| {number} M \| [\d.]+ \| {number} ± [\d.]+ \| {number} ± [\d.]+ \|")
    rows = [match.groups() for match in map(row.match, page.splitlines()) if match]
    assert {name for _, _, _, _, name, *_ in rows} == PRINTED.keys() and len(rows) == len(PRINTED)
    for heads, size, width, neurons, name, millions, f1, mnli in rows:
        config, preset = preset_config(name), PRESETS[name]
        assert (config.num_attention_heads, config.head_dim, config.hidden_size) == (int(heads), int(size), int(width))
        assert config.intermediate_size == int(neurons)
        assert (preset.parameters, preset.squad_f1, preset.mnli) == (int(millions), float(f1), float(mnli))
