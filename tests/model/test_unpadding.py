"""Unpadding and packed rows: padding is skipped, and no result changes."""

from itertools import product

import pytest
import torch
from helpers.tiny_models import HEADS, UNEQUAL, B, D, L, V, inputs_of, model_of
from transformers import Trainer, TrainingArguments

from fixedbert.model import unpadding_fixed_head_bert
from fixedbert.model.modeling_fixed_head_bert import FixedHeadBertLayer
from fixedbert.model.unpadding_fixed_head_bert import PackedBatch

VARIANTS = [{"head_embedding": "add"}, {"head_embedding": "mul", "qk_norm": True}, {"is_decoder": True}, UNEQUAL]
EMPTY = {"layer_attention_heads": [0, 5, 0], "intermediate_size": [0, 7, 0]}
CASES = [*product(HEADS, [{}]), *product(["Model", "ForPreTraining", "LMHeadModel"], VARIANTS)]


def padded_inputs(head: str, side: str) -> dict[str, torch.Tensor]:
    """Returns inputs padded on the right, left or with gaps. No label is at padding or predicted from padding."""
    inputs = inputs_of(head, labels=head != "Model")
    mask = inputs["attention_mask"]
    if side == "left":
        mask = mask.flip(-1)
    elif side == "gaps":
        mask = (torch.rand(mask.shape, generator=torch.Generator().manual_seed(3)) > 0.4).long()
        mask[..., 2] = 1
    inputs["attention_mask"] = mask
    if "labels" in inputs and inputs["labels"].shape == mask.shape:
        inputs["labels"] = inputs["labels"].masked_fill(mask == 0, -100)
        if head == "LMHeadModel":
            inputs["labels"][:, 1:] = inputs["labels"][:, 1:].masked_fill(mask[:, :-1] == 0, -100)
    return inputs


def pair_of(head: str, **changes):
    """Returns a padded model with eager attention, and an unpadded one with SDPA and the same weights, in float64."""
    plain = model_of(head, attn_implementation="eager", **changes).double().eval()
    sparse = head in ("ForPreTraining", "ForMaskedLM")
    unpadded = model_of(head, unpad_inputs=True, sparse_prediction=sparse, **changes).double().eval()
    unpadded.load_state_dict(plain.state_dict())
    return plain, unpadded


@pytest.mark.parametrize("side", ["right", "left", "gaps"])
@pytest.mark.parametrize("head, variant", CASES, ids=str)
def test_unpadding_changes_no_result(head, side, variant):
    """Unpadding changes only the outputs at padding, to zero or the lowest number, and the span loss (see below)."""
    plain, unpadded = pair_of(head, **variant)
    inputs = padded_inputs(head, side)
    real = inputs["attention_mask"].bool()
    asked = {"use_cache": False} if head in ("Model", "LMHeadModel") else {}
    expected, actual = (model(**inputs, **asked) for model in (plain, unpadded))
    by_token = {"Model": ["last_hidden_state"], "ForTokenClassification": ["logits"], "LMHeadModel": ["logits"]}
    by_token["ForQuestionAnswering"] = ["start_logits", "end_logits"]
    for name in by_token.get(head, ()):
        assert torch.allclose(actual[name][real], expected[name][real], rtol=0, atol=1e-10)
        lowest = torch.finfo(torch.float64).min if head == "ForQuestionAnswering" else 0  # zero might be the maximum
        assert (actual[name][~real] == lowest).all()
    if head == "Model":
        assert torch.allclose(actual.pooler_output, expected.pooler_output, rtol=0, atol=1e-10)
    elif head != "ForQuestionAnswering":  # BERT's loss depends on padding there, see below
        assert torch.allclose(actual.loss, expected.loss, rtol=0, atol=1e-10)
        expected.loss.backward()
        actual.loss.backward()
        for (name, one), (_, other) in zip(plain.named_parameters(), unpadded.named_parameters(), strict=True):
            if one.grad is not None or other.grad is not None:
                assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("side", ["right", "left", "gaps"])
@pytest.mark.parametrize("head", ["ForPreTraining", "ForMaskedLM", "LMHeadModel", "ForTokenClassification"])
def test_labels_at_padding_are_ignored(head, side):
    """Neither labels at padding nor unpadding nor sparse prediction change loss or gradients. Logits become zero."""
    inputs = padded_inputs(head, side)
    padding = inputs["attention_mask"].eq(0)
    labeled = inputs_of(head, labels=True)["labels"]
    assert (labeled.ne(-100) & padding).any()
    losses, gradients, dense = [], [], []
    for unpad_inputs, sparse_prediction in product((False, True), repeat=2):
        model = model_of(head, unpad_inputs=unpad_inputs, sparse_prediction=sparse_prediction).double().eval()
        for labels in (inputs["labels"], labeled):
            loss, logits, *_ = model(**inputs | {"labels": labels}).to_tuple()
            if sparse_prediction and hasattr(model, "sparse_prediction"):
                assert logits.shape == (inputs["labels"].ne(-100).sum(), V)
            else:
                dense.append(logits)
                assert not unpad_inputs or not logits[padding].any()
            gradients.append(torch.autograd.grad(loss, model.base_model.encoder.layer[0].output.dense.weight)[0])
            losses.append(loss)
    for loss, gradient in zip(losses, gradients, strict=True):
        assert torch.allclose(loss, losses[0], rtol=0, atol=1e-10)
        assert torch.allclose(gradient, gradients[0], rtol=0, atol=1e-9)
    assert all(torch.allclose(logits[~padding], dense[0][~padding], rtol=0, atol=1e-10) for logits in dense)


def test_span_loss_equals_stock_without_padding():
    """With unpadding, the span loss is BERT's with padding left out of the softmax. Answers in padding are ignored."""
    plain, unpadded = pair_of("ForQuestionAnswering")
    inputs = inputs_of("ForQuestionAnswering", labels=True)
    real = inputs["attention_mask"].bool()
    inputs["start_positions"] %= real.sum(1)
    inputs["end_positions"] %= real.sum(1)
    outputs, loss = plain(**inputs), unpadded(**inputs).loss
    padding = [
        (logits.logsumexp(1) - logits.masked_fill(~real, -torch.inf).logsumexp(1)).mean()
        for logits in (outputs.start_logits, outputs.end_logits)
    ]
    assert torch.allclose(outputs.loss - sum(padding) / 2, loss, rtol=0, atol=1e-10)
    shortest = int(real.sum(1).argmin())
    others, logits, cross_entropy = torch.arange(B) != shortest, unpadded(**inputs), torch.nn.functional.cross_entropy
    assert not real[shortest].all()
    for position in (L, L - 1):  # outside the row, as for a truncated answer, and at padding
        inputs["start_positions"][shortest] = position
        start_loss = cross_entropy(logits.start_logits[others], inputs["start_positions"][others])
        end_loss = cross_entropy(logits.end_logits, inputs["end_positions"])
        assert torch.allclose(unpadded(**inputs).loss, (start_loss + end_loss) / 2, rtol=0, atol=1e-10)


def test_only_non_padding_tokens_are_computed(monkeypatch):
    """Layers compute outputs only for non-padding tokens, the last layer only for those that the task head reads."""
    shapes = []
    original = FixedHeadBertLayer.feed_forward_chunk
    monkeypatch.setattr(
        FixedHeadBertLayer, "feed_forward_chunk", lambda self, x: shapes.append(tuple(x.shape)) or original(self, x)
    )
    for head, last in (("Model", None), ("ForSequenceClassification", B), ("ForPreTraining", "labeled")):
        shapes.clear()
        model = model_of(head, unpad_inputs=True, sparse_prediction=True).eval()
        inputs = padded_inputs(head, "right")
        model(**inputs)
        T, D = int(inputs["attention_mask"].sum()), model.config.hidden_size
        if last == "labeled":
            wanted = inputs["labels"] != -100
            wanted[:, 0] = True  # for the pooler
            last = int(wanted.sum())
        assert shapes == [(1, T, D), (1, T, D), (1, last or T, D)]


@pytest.mark.parametrize("tokens, longest, ends", [(7, 3, [10, 13, 16]), (32, 9, []), (1000, 31, [1024])])
def test_rounded_batches(tokens, longest, ends):
    """Additional sequences are at most as long as the others, and no token of theirs is read."""
    lengths = torch.tensor([0, longest, tokens], dtype=torch.int32)
    batch = PackedBatch(torch.arange(tokens), lengths, longest, torch.tensor([0]), lengths.clamp(max=1), 1).round_up()
    assert batch.cu_seqlens.tolist() == [0, longest, tokens, *ends]
    assert batch.query_cu_seqlens.tolist() == [0, 1, 1, *(1 for _ in ends)]


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification", "ForPreTraining", "LMHeadModel"])
def test_rounding_the_number_of_tokens(head, monkeypatch):
    """In bfloat16 inference, layers compute a multiple of 16 tokens. The additional tokens change no result."""
    plain, unpadded = pair_of(head)
    sizes = []
    for layer in unpadded.base_model.encoder.layer:
        layer.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[1]))
    for rows, is_full in (slice(0, 1), False), (slice(1, 4), True), (slice(None), False):
        inputs = {name: x[rows] for name, x in padded_inputs(head, "gaps").items() if "label" not in name}
        inputs |= {"use_cache": False} if head == "LMHeadModel" else {}
        inputs["attention_mask"] |= is_full
        real = inputs["attention_mask"].bool()
        expected = plain(**inputs)[0]
        sizes.clear()
        with torch.no_grad(), monkeypatch.context() as context:
            context.setattr(unpadding_fixed_head_bert, "should_round", lambda *_: True)
            actual = unpadded(**inputs)[0]
        if actual.shape[:2] == real.shape:
            assert not actual[~real].any()
            actual, expected = actual[real], expected[real]
        assert torch.allclose(actual, expected, rtol=0, atol=1e-10)
        assert {*sizes} == {-(-int(real.sum()) // 16) * 16}
    unpadded.bfloat16()
    errors, found = [], []
    for grad_enabled in (False, True):  # with gradients, nothing is rounded
        sizes.clear()
        with torch.set_grad_enabled(grad_enabled):
            output = unpadded(**inputs)[0]
        errors.append((output[real] if output.shape[:2] == real.shape else output).sub(expected).abs().max())
        found += {*sizes}
    assert found == [-(-int(real.sum()) // 16) * 16, int(real.sum())]
    assert errors[0] < 2 * errors[1] + 0.1


def test_decoders_keep_their_cache():
    """A decoder in bfloat16 caches no additional tokens, even in training mode, in which it returns a cache."""
    model = model_of("LMHeadModel", unpad_inputs=True, is_decoder=True).bfloat16().train()
    with torch.no_grad():
        cache = model(inputs_of("LMHeadModel")["input_ids"][:1], use_cache=True)[1]
    assert cache.get_seq_length() == L


@pytest.mark.parametrize("unpad_inputs", [False, True])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_packed_sequences_are_independent(is_decoder, implementation, unpad_inputs):
    """Sequences packed in one row with restarting position_ids have the same outputs as separate sequences."""
    model = model_of("Model", is_decoder=is_decoder, attn_implementation=implementation, unpad_inputs=unpad_inputs)
    model = model.double().eval()
    ids = inputs_of("Model")["input_ids"][:2]
    rows = [[0, 1, 2, 0, 1, 0, 1], [0, 1, 0, 1, 2, 5, 0]]  # a skipped position does not start a new sequence
    outputs = model(input_ids=ids, position_ids=torch.tensor(rows)).last_hidden_state
    for row, starts in enumerate(([0, 3, 5, 7], [0, 2, 6, 7])):
        for start, end in zip(starts, starts[1:], strict=False):
            places = torch.tensor([rows[row][start:end]])
            alone = model(input_ids=ids[row : row + 1, start:end], position_ids=places).last_hidden_state
            assert torch.allclose(outputs[row : row + 1, start:end], alone, rtol=0, atol=1e-12)


def test_data_collator_with_flattening():
    """Batches from DataCollatorWithFlattening work without flash attention."""
    from transformers import DataCollatorWithFlattening

    model = model_of("Model", attn_implementation="eager").double().eval()
    rows = [{"input_ids": list(range(1, 1 + n))} for n in (3, 5, 2)]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")(rows)
    batch.pop("labels")
    outputs = model(**batch).last_hidden_state
    alone = [model(input_ids=torch.tensor([row["input_ids"]])).last_hidden_state for row in rows]
    assert torch.allclose(outputs, torch.cat(alone, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification", "ForTokenClassification"])
def test_sequence_lengths_from_the_caller(head):
    """Sequence lengths from the caller separate packed sequences, with and without unpadding."""
    lengths = torch.tensor([0, 30, 70], dtype=torch.int32)
    packed = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 40, "max_length_k": 40}
    ids = torch.randint(V, (1, 70), generator=torch.Generator().manual_seed(1))  # too long for SHORT_TEXT
    positions = torch.arange(70)[None]  # these do not restart
    for unpad_inputs, implementation in product((False, True), ("eager", "sdpa")):
        changes = {"max_position_embeddings": 70, "attn_implementation": implementation}
        model = model_of(head, unpad_inputs=unpad_inputs, **changes).double().eval()
        found = model(ids, position_ids=positions, **packed)[0]
        parts = zip(ids.split([30, 40], 1), positions.split([30, 40], 1), strict=True)
        alone = [model(part, position_ids=places)[0] for part, places in parts]
        expected = alone[0] if head == "ForSequenceClassification" else torch.cat(alone, 1)
        assert torch.allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, L])
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_chunks_of_the_feed_forward_network(head, size):
    """`chunk_size_feed_forward` changes no result, also with unpadding, which it turns off."""
    inputs = inputs_of(head)
    real = ... if head == "ForSequenceClassification" else inputs["attention_mask"].bool()
    expected = model_of(head).double().eval()(**inputs)[0][real]
    chunks: list[torch.Tensor] = []
    for unpad_inputs in (False, True):
        model = model_of(head, unpad_inputs=unpad_inputs, chunk_size_feed_forward=size).double().eval()
        model.base_model.encoder.layer[0].intermediate.register_forward_pre_hook(lambda _, x: chunks.append(x[0]))
        assert torch.allclose(model(**inputs)[0][real], expected, rtol=0, atol=1e-10)
        assert max(chunk.shape[1] for chunk in chunks) <= size
        chunks.clear()


@pytest.mark.parametrize("use_reentrant, variant", [(False, {}), (True, {}), (False, UNEQUAL), (False, EMPTY)])
def test_gradient_checkpointing_changes_no_gradient(use_reentrant, variant):
    """Gradient checkpointing changes no gradient with unpadding and dropout."""
    model = model_of("ForPreTraining", unpad_inputs=True, sparse_prediction=True, **variant).double().train()
    inputs = padded_inputs("ForPreTraining", "left")
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        torch.manual_seed(5)
        model.zero_grad()
        model(**inputs).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("unpad_inputs", [False, True])
def test_rows_that_are_all_padding(unpad_inputs, implementation):
    """Outputs for rows that are all padding are finite (zero with unpadding), and do not affect other rows."""
    model = model_of("Model", unpad_inputs=unpad_inputs, attn_implementation=implementation).eval()
    inputs = inputs_of("Model")
    expected = model(**inputs).last_hidden_state
    inputs["attention_mask"][3] = 0
    actual = model(**inputs).last_hidden_state
    assert actual.isfinite().all() and (not unpad_inputs or actual[3].abs().max() == 0)
    others = inputs["attention_mask"].bool()
    assert torch.allclose(actual[others], expected[others], atol=1e-5)
    inputs["attention_mask"][:] = 0
    outputs = model(**inputs)
    assert outputs.last_hidden_state.isfinite().all() and outputs.pooler_output.isfinite().all()
    assert not unpad_inputs or outputs.last_hidden_state.abs().max() == 0


def test_pooled_output_of_left_padded_rows():
    """Left padding does not change the logits of a text classifier."""
    for unpad_inputs in (False, True):
        model = model_of("ForSequenceClassification", unpad_inputs=unpad_inputs).double().eval()
        ids = inputs_of("Model")["input_ids"][:1]
        positions = torch.tensor([[0, 0, 0, 0, 1, 2, 3]])
        mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
        padded = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        assert torch.allclose(padded, model(input_ids=ids[:, 3:]).logits, rtol=0, atol=1e-12)


def test_inputs_embeds_are_unpadded():
    """Unpadding works with inputs_embeds, and with position ids of shape (1, L)."""
    plain, unpadded = pair_of("Model")
    inputs = inputs_of("Model")
    inputs["inputs_embeds"] = plain.embeddings.word_embeddings(inputs.pop("input_ids"))
    inputs["position_ids"] = torch.arange(L)[None] + 2
    real = inputs["attention_mask"].bool()
    expected, actual = (model(**inputs).last_hidden_state[real] for model in (plain, unpadded))
    assert torch.allclose(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("head, variant", [*product(HEADS, [{"num_hidden_layers": 1}]), ("LMHeadModel", UNEQUAL)])
def test_export(head, variant):
    """Models with unpadding can be exported with torch.export, for any batch size and length."""
    model = model_of(head, unpad_inputs=True, **variant).eval()
    inputs = inputs_of(head) | ({"use_cache": False} if head == "LMHeadModel" else {})
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=11)
    axes = {0: batch} if head == "ForMultipleChoice" else {0: batch, 1: length}  # BERT's export also fixes the length
    shapes = {name: axes if isinstance(x, torch.Tensor) else None for name, x in inputs.items()}
    exported = torch.export.export(model, (), inputs, dynamic_shapes=shapes).module()
    shorter = L if head == "ForMultipleChoice" else 5
    fewer = {name: x[:3, ..., :shorter] if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    for given in (inputs, fewer):
        for one, other in zip(exported(**given).values(), model(**given).values(), strict=True):
            assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.slow
def test_compile_and_trace():
    """torch.compile captures a model with unpadding in one graph, and torch.jit.trace works."""
    model = model_of("Model", unpad_inputs=True, **UNEQUAL).eval()
    inputs = inputs_of("Model")
    expected = model(**inputs).last_hidden_state
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(**inputs).last_hidden_state, expected, atol=1e-4)
    names = ("input_ids", "attention_mask", "token_type_ids")
    traced = torch.jit.trace(model, tuple(inputs[name] for name in names), strict=False)
    outputs = traced(*(inputs[name] for name in names))
    assert torch.allclose(outputs["last_hidden_state"], expected, atol=1e-4)


def test_neftune_noise(tmp_path):
    """NEFTune noise is scaled by the padded length, not by the length of the packed row."""
    model = model_of("ForMaskedLM", unpad_inputs=True)
    inputs = inputs_of("ForMaskedLM", labels=True)
    inputs["labels"][inputs["attention_mask"] == 0] = -100
    table, noises = model.get_input_embeddings(), []

    class Watched(Trainer):
        def training_step(self, *args, **kwargs):  # Trainer has registered its hook by now
            def watch(_, ids, output):
                noises.append(output - table.weight[ids[0]])

            handle = table.register_forward_hook(watch)
            loss = super().training_step(*args, **kwargs)
            handle.remove()
            return loss

    settings = {"max_steps": 1, "per_device_train_batch_size": B, "use_cpu": True, "report_to": "none"}
    arguments = TrainingArguments(str(tmp_path), neftune_noise_alpha=5.0, save_strategy="no", **settings)
    rows = [{name: x[row] for name, x in inputs.items()} for row in range(B)]
    Watched(model, arguments, train_dataset=rows).train()
    assert noises[0].shape == (B, L, D)
    assert float(noises[0].detach().abs().max()) == pytest.approx(5 / (L * D) ** 0.5, rel=0.01)
    lengths = []
    table.register_forward_hook(lambda _, ids, output: lengths.append(ids[0].shape))
    model(**inputs)
    assert lengths == [(1, int(inputs["attention_mask"].sum()))]


@pytest.mark.parametrize("head", HEADS)
def test_half_precision_has_finite_gradients_at_padding(head):
    """Gradients are finite in float16, although the gradient of LayerNorm at padding would not be."""
    model = model_of(head, unpad_inputs=True).half().eval()
    outputs = model(**inputs_of(head, labels=head != "Model"))
    (outputs.last_hidden_state.float().mean() if head == "Model" else outputs.loss).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients) and len(gradients) > 40
