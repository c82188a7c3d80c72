"""Parameters and operations are counted exactly."""

import pytest
from small_models import B, L, config_of, inputs_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from fixedbert import PRESETS, FixedHeadBertModel, preset_config
from fixedbert.counts import forward_flops, parameters

STOCK = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=37)


@pytest.mark.parametrize(
    "config, model_class",
    [
        (config_of("Model"), FixedHeadBertModel),
        (config_of("Model", head_embedding="add"), FixedHeadBertModel),
        (config_of("Model", attention_head_size=[3, 13, 6]), FixedHeadBertModel),
        (STOCK, BertModel),  # whose head size is that of its width
    ],
    ids=["fixed", "shared", "by layer", "stock"],
)
def test_operations_are_the_profiler_s(config, model_class):
    """Guards: the formula counts what torch's counter sees, with heads * head size in the place of the width."""
    model = model_class(config, add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model(inputs_of("Model")["input_ids"])
    assert counter.get_total_flops() == B * L * forward_flops(config, L)


def test_parameters_of_a_preset_by_hand():
    """Guards: with both heads of pretraining it is the paper's count; the layers alone are what a layer is made of."""
    everything, layers = parameters(preset_config("fixed-512-8x128"))
    assert everything == 167_690_044
    assert layers == 24 * (4 * 512 * 1024 + 3 * 1024 + 512 + 2 * 512 * 4096 + 4096 + 512 + 4 * 512)
    for name, preset in PRESETS.items():
        if preset.parameters:
            assert round(parameters(preset_config(name))[0] / 1e6) == preset.parameters
