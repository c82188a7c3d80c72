"""Invalid or unusual inputs raise an error or give a defined result, but never NaN."""

import pytest
import torch
from helpers.tiny_models import HEADS, B, D, L, V, inputs_of, model_of

from fixedbert.model.unpadding_fixed_head_bert import CACHE


@pytest.mark.parametrize("unpad_inputs", [False, True])
@pytest.mark.parametrize(
    "change, message",
    [
        ({"attention_mask": torch.ones(B, L - 1)}, r"attention_mask has shape \(13, 6\) .* shape \(13, 7\)"),
        ({"attention_mask": torch.ones(B, 1, L)}, r"attention_mask has shape \(13, 1, 7\)"),
        ({"attention_mask": torch.ones(B, 1, L, L).long()}, "torch.int64; expected .* four dimensions and a boolean"),
        ({"input_ids": None}, "either input_ids or inputs_embeds"),
        ({"inputs_embeds": torch.zeros(B, L, D)}, "either input_ids or inputs_embeds"),
    ],
)
def test_inputs_that_would_give_a_wrong_result(change, message, unpad_inputs):
    """Inputs for which torch would silently compute a wrong result raise errors that name the shapes."""
    with pytest.raises(ValueError, match=message):
        model_of("Model", unpad_inputs=unpad_inputs)(**(inputs_of("Model") | change))


@pytest.mark.parametrize("unpad_inputs", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"token_type_ids": torch.zeros(B, 3, dtype=torch.long)},
        {"token_type_ids": torch.zeros(B, L + 2, dtype=torch.long)},
        {"position_ids": torch.zeros(2, L, dtype=torch.long)},
        {"input_ids": torch.full((B, L), V)},
        {"input_ids": torch.zeros(B, L)},
        {"input_ids": torch.ones(B, 12, dtype=torch.long), "token_type_ids": None, "attention_mask": None},
    ],
)
def test_invalid_ids(change, unpad_inputs):
    """Ids that are out of range or have inconsistent shapes raise errors, with and without unpadding."""
    with pytest.raises((RuntimeError, IndexError)):
        model_of("Model", unpad_inputs=unpad_inputs)(**(inputs_of("Model") | change))


def without_labels(head: str) -> dict[str, torch.Tensor]:
    """Returns inputs in which all labels are ignored."""
    inputs = inputs_of(head, labels=True)
    for name in ("labels", "next_sentence_label", "start_positions", "end_positions"):
        if name in inputs:
            inputs[name] = torch.full_like(inputs[name], L if name.endswith("positions") else -100)
    return inputs


@pytest.mark.parametrize("unpad_inputs", [False, True])
@pytest.mark.parametrize("head", HEADS[1:])
def test_no_label_gives_zero(head, unpad_inputs):
    """Loss and gradients are zero if all labels are ignored. One label makes the loss positive."""
    model = model_of(head, unpad_inputs=unpad_inputs, sparse_prediction=unpad_inputs).eval()
    inputs = without_labels(head)
    loss = model(**inputs).loss
    loss.backward()
    assert loss == 0
    if model.accepts_loss_kwargs:  # Trainer may count no label in any batch of a training step
        for count in (0, torch.tensor(0)):
            assert model(**inputs, num_items_in_batch=count).loss == 0
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) > 10 and all(gradient.abs().max() == 0 for gradient in gradients)
    if "labels" in inputs:
        inputs["attention_mask"][:] = 1
        inputs["labels"].view(-1)[1] = 1
        assert model(**inputs).loss > 0


@pytest.mark.parametrize("head", HEADS[1:])
def test_no_label_gives_zero_in_an_exported_graph(head):
    """The loss of an exported graph is zero if all labels are ignored, and equals the model's loss otherwise."""
    model = model_of(head, num_hidden_layers=1).eval()
    inputs = inputs_of(head, labels=True)
    exported = torch.export.export(model, (), inputs).module()
    assert exported(**without_labels(head)).loss == 0
    assert torch.allclose(exported(**inputs).loss, model(**inputs).loss)


@pytest.mark.parametrize("unpad_inputs", [False, True])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_cross_attention_is_rejected(is_decoder, unpad_inputs):
    """`encoder_hidden_states` raise an error, because they would have no effect."""
    model = model_of("Model", is_decoder=is_decoder, unpad_inputs=unpad_inputs)
    for mask in ({}, {"attention_mask": inputs_of("Model")["attention_mask"]}):
        with pytest.raises(ValueError, match="does not support cross-attention"):
            model(inputs_of("Model")["input_ids"], encoder_hidden_states=torch.zeros(B, L, D), **mask)


@pytest.mark.parametrize("dtype", [torch.float, torch.long])
def test_a_score_of_minus_100_is_a_score(dtype):
    """Regression treats a label of -100 as a score, not as an ignored label."""
    model = model_of("ForSequenceClassification", num_labels=1, problem_type="regression").eval()
    inputs = inputs_of("ForSequenceClassification")
    scores = torch.full((B,), -100, dtype=dtype)
    if dtype == torch.float:
        expected = (model(**inputs).logits.squeeze(-1) + 100).pow(2).mean()
        assert torch.allclose(model(**inputs, labels=scores).loss, expected)
    else:
        assert model(**inputs, labels=scores).loss > 5_000


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining"])
@pytest.mark.parametrize("sparse_prediction", [False, True])
@pytest.mark.parametrize("unpad_inputs", [False, True])
def test_invalid_labels(head, sparse_prediction, unpad_inputs):
    """Labels that are out of range or have an invalid shape raise errors."""
    model = model_of(head, sparse_prediction=sparse_prediction, unpad_inputs=unpad_inputs)
    inputs = inputs_of(head, labels=True)
    with pytest.raises((ValueError, RuntimeError), match=r"labels have shape \(13, 5\), but tokens|expanded size"):
        model(**inputs | {"labels": inputs["labels"][:, :5]})
    inputs["labels"][3, 4] = V
    inputs["attention_mask"][3] = 1
    with pytest.raises(IndexError, match=f"Target {V} is out of bounds"):
        model(**inputs)


def test_mask_that_does_not_cover_the_cache():
    """With a cache, the mask must cover the cached tokens."""
    model = model_of("LMHeadModel")
    ids = inputs_of("Model")["input_ids"]
    cache = model(ids[:, :4])[CACHE]
    with pytest.raises(ValueError, match=r"attention_mask has shape \(13, 3\) .* shape \(13, 7\)"):
        model(ids[:, 4:], attention_mask=torch.ones(B, 3), **{CACHE: cache})


def test_masks_of_four_dimensions():
    """A four-dimensional boolean mask has the same effect with every attention backend."""
    allowed = torch.ones(B, 1, L, L, dtype=torch.bool).tril()
    ids = inputs_of("Model")["input_ids"]
    causal = model_of("Model", is_decoder=True).double().eval()
    for implementation in ("eager", "sdpa"):
        model = model_of("Model", attn_implementation=implementation, unpad_inputs=True).double().eval()
        outputs = model(ids, attention_mask=allowed).last_hidden_state
        assert torch.allclose(outputs, causal(ids).last_hidden_state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("unpad_inputs", [False, True])
def test_inputs_without_readable_values(unpad_inputs):
    """The model runs on the meta device, and vmap over rows gives the same outputs as a batch."""
    model = model_of("ForMaskedLM", unpad_inputs=unpad_inputs, sparse_prediction=unpad_inputs).eval()
    inputs = inputs_of("ForMaskedLM", labels=True) | {"position_ids": torch.arange(L).repeat(B, 1)}
    del inputs["attention_mask"]  # transformers would read its elements
    labels = inputs.pop("labels")
    model.sparse_prediction = False
    expected = model(**inputs).logits
    state = dict(model.named_parameters())

    def logits(text):
        return torch.func.functional_call(model, state, (), {name: x[None] for name, x in text.items()}).logits[0]

    assert torch.allclose(torch.func.vmap(logits)(inputs), expected, atol=1e-4)
    on_meta = {name: x.to("meta") for name, x in inputs.items()}
    outputs = model.to("meta").train()(**on_meta, labels=labels.to("meta"))
    assert outputs.logits.shape == (B, L, V) and outputs.loss.shape == ()
