"""Decoders: generation with a cache."""

import pytest
import torch
from helpers.tiny_models import UNEQUAL, L, inputs_of, model_of

from fixedbert.model.unpadding_fixed_head_bert import CACHE


@pytest.mark.parametrize(
    "variant",
    [{}, {"unpad_inputs": True}, {"head_embedding": "mul"}, {"head_embedding": "add", "qk_norm": True}, UNEQUAL],
)
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
def test_generation_with_a_cache(how, variant):
    """Greedy, beam and sampled generation of left-padded rows yields the same tokens with and without a cache."""
    model = model_of("LMHeadModel", max_position_embeddings=32, **variant).eval()
    ids = inputs_of("Model")["input_ids"][:3]
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    outputs = []
    for use_cache in (True, False):
        torch.manual_seed(4)
        asked = {"max_new_tokens": 9, "pad_token_id": 0, "use_cache": use_cache, **how}
        outputs.append(model.generate(ids, attention_mask=mask, **asked))
    assert torch.equal(*outputs)


@pytest.mark.slow
def test_compiled_decoder_creates_its_cache():
    """torch.compile captures a decoder in one graph, including the cache that the decoder creates."""
    model = model_of("LMHeadModel", **UNEQUAL).eval()
    ids = inputs_of("Model")["input_ids"]
    outputs = torch.compile(model, backend="eager", fullgraph=True)(ids)
    assert outputs[CACHE].get_seq_length() == L
    assert torch.allclose(outputs.logits, model(ids).logits, atol=1e-4)


@pytest.mark.skipif(CACHE == "past_key_values", reason="transformers renamed the argument in 5.24")
def test_old_name_of_the_cache():
    """A cache passed under its old name is used, with transformers' warning, even if the new name is None."""
    model = model_of("LMHeadModel").double().eval()
    ids = inputs_of("Model")["input_ids"]
    expected = model(ids).logits[:, 4:]
    for new_name in ({}, {CACHE: None}):
        cache = model(ids[:, :4])[CACHE]
        with pytest.warns(FutureWarning, match="past_key_values") as warnings:
            logits = model(ids[:, 4:], past_key_values=cache, **new_name).logits
        assert torch.allclose(logits, expected, rtol=0, atol=1e-10) and len(warnings) == 1


@pytest.mark.parametrize("padding", ["right", "left"])
def test_logits_to_keep(padding):
    """Kept logits are those of the selected positions. With unpadding, they are zero at padding."""
    ids, mask = inputs_of("Model")["input_ids"], inputs_of("Model")["attention_mask"]
    mask = mask if padding == "right" else mask.flip(-1)
    permuted = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    logits = {}
    for unpad_inputs in (False, True):
        model = model_of("LMHeadModel", unpad_inputs=unpad_inputs).double().eval()
        asked = {"attention_mask": mask, "use_cache": False}
        logits[unpad_inputs] = model(ids, **asked).logits
        for positions, places in ((0, slice(None)), (1, [L - 1]), (permuted, permuted)):
            found = model(ids, **asked, logits_to_keep=positions).logits
            assert torch.allclose(found, logits[unpad_inputs][:, places], rtol=0, atol=1e-12)
    real = mask.bool()
    assert torch.allclose(logits[True][real], logits[False][real], rtol=0, atol=1e-10)
    assert not logits[True][~real].any() and logits[True][real].abs().amax(-1).min() > 0
