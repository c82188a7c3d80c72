"""Decoders: generation with every kind of cache, and causal attention."""

import pytest
import torch
from helpers.tiny_models import UNEQUAL, B, L, inputs_of, model_of
from transformers import ContinuousBatchingConfig, GenerationConfig, StaticCache, configuration_utils

from fixedbert.model.unpadding_fixed_head_bert import CACHE


@pytest.mark.parametrize(
    "variant",
    [{}, {"unpad_inputs": True}, {"head_embedding": "mul"}, {"head_embedding": "add", "qk_norm": True}, UNEQUAL],
)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_beams": 3},
        {"do_sample": True},
        {"cache_implementation": "static"},
        {"cache_implementation": "static", "prefill_chunk_size": 4},  # allocates the cache before the first token
    ],
    ids=str,
)
def test_generation_with_a_cache(how, variant):
    """Greedy, beam and sampled generation of left-padded rows yields the same tokens with and without a cache."""
    if "prefill_chunk_size" in how and variant is UNEQUAL and not hasattr(configuration_utils, "get_head_shapes"):
        pytest.skip("older transformers allocate one shape for all layers")
    model = model_of("LMHeadModel", max_position_embeddings=32, **variant).eval()
    ids = inputs_of("Model")["input_ids"][:3]
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    outputs = []
    for use_cache in (True, False):
        torch.manual_seed(4)
        asked = how if use_cache else {name: x for name, x in how.items() if name in ("num_beams", "do_sample")}
        asked = {"max_new_tokens": 9, "pad_token_id": 0, "use_cache": use_cache, **asked}
        outputs.append(model.generate(ids, attention_mask=mask, **asked))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("values, fits", [(None, True), ([9, 4, 6], False)])
def test_static_cache_allocated_before_the_first_token(values, fits):
    """A static cache works with the shapes in `per_layer_config`. A cache with other shapes raises an error."""
    model = model_of("LMHeadModel", **{**UNEQUAL, "value_head_size": values}).double().eval()
    config, ids = model.config, inputs_of("Model")["input_ids"]
    sizes_of_keys = [layer.qk_head_dim for layer in config.per_layer_config]
    assert sizes_of_keys == ([None] * 3 if fits else [3, 13, None]) and "qk_head_dim" not in config.to_dict()

    def logits(heads, sizes):
        cache = StaticCache(config=config, max_cache_len=11)
        cache.early_initialization(B, heads, sizes, torch.float64, "cpu")
        parts = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.split([4, 3], 1)]
        return torch.cat(parts, 1)

    by_layer = zip(*((layer.num_key_value_heads, layer.head_dim) for layer in config.per_layer_config), strict=True)
    heads, sizes = map(list, by_layer)
    with pytest.raises(RuntimeError, match="shape"):
        logits(config.num_key_value_heads, config.head_dim)
    if fits:
        assert torch.allclose(logits(heads, sizes), model(ids).logits, rtol=0, atol=1e-10)
    else:
        with pytest.raises(RuntimeError, match="shape"):
            logits(heads, sizes)


def test_compiled_decoder_creates_its_cache():
    """torch.compile captures a decoder in one graph, including the cache that the decoder creates."""
    model = model_of("LMHeadModel", **UNEQUAL).eval()
    ids = inputs_of("Model")["input_ids"]
    outputs = torch.compile(model, backend="eager", fullgraph=True)(ids)
    assert outputs[CACHE].get_seq_length() == L
    assert torch.allclose(outputs.logits, model(ids).logits, atol=1e-4)


@pytest.mark.xfail(CACHE == "cache", reason="transformers 5.24 fails for its own BERT, too", strict=True)
def test_continuous_batching():
    """Continuous batching generates the same tokens as `generate`, even if values are smaller than keys."""
    model = model_of("LMHeadModel", value_head_size=4, max_position_embeddings=32).eval()
    options = GenerationConfig(max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=-1)
    ids = inputs_of("Model")["input_ids"][:2]
    expected = model.generate(ids, generation_config=options)[:, L:].tolist()
    small = ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64)  # otherwise it allocates most of the memory
    found = model.generate_batch(ids.tolist(), generation_config=options, continuous_batching_config=small)
    assert [one.generated_tokens for one in found.values()] == expected
