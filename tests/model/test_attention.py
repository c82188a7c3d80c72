"""Attention: every variant equals a naive reference with every backend, and satisfies the papers' identities."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import B, H, L, P, inputs_of, model_of
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from fixedbert import FixedHeadBertConfig, FixedHeadBertModel
from fixedbert.model import unpadding_fixed_head_bert
from fixedbert.model.unpadding_fixed_head_bert import SequenceLengths, packed_attention_forward

VARIANTS = [
    {},
    {"head_embedding": "add"},
    {"head_embedding": "mul"},
    {"qk_norm": True},
    {"head_embedding": "add", "qk_norm": True},
    {"value_head_size": 4},
    {"value_head_size": [9, 4, 6], "layer_attention_heads": [2, 5, 3]},
    {"attention_head_size": [3, P, 8], "value_head_size": P, "layer_attention_heads": [H, 1, H]},
    {"head_embedding": "add", "value_head_size": 9},
    {"head_embedding": "mul", "value_head_size": 4, "layer_attention_heads": [4, 5, 1]},
]


def reference_heads(x: np.ndarray, layer: dict[str, np.ndarray], allowed: np.ndarray, variant: dict) -> np.ndarray:
    """
    Returns the concatenated heads (L, H V) of one sequence x (L, D), computed as in the papers, query by query.

    `allowed` (L, L) is True for the keys of each query. Head embeddings follow Xue and Aletras (2023) literally: each
    head adds its own embeddings to queries, keys and values, or multiplies them by 1 + embedding.
    """
    embeds = {None: lambda y, e: y, "add": lambda y, e: y + e, "mul": lambda y, e: y * (1 + e)}
    embed = embeds[variant.get("head_embedding")]

    embeddings, value_embeddings = (layer.get(f"attention.self.{name}_embedding") for name in ("head", "value"))
    rows = {name: len(layer[f"attention.self.{name}.bias"]) for name in ("query", "key", "value")}
    heads = layer["attention.output.dense.weight"].shape[1] // rows["value"]  # 1 without a shared projection
    shared = embeddings is not None
    H = heads if shared else layer["num_attention_heads"]
    sizes = {name: number if shared else number // H for name, number in rows.items()}

    def head(name, i):
        weight, bias = layer[f"attention.self.{name}.weight"], layer[f"attention.self.{name}.bias"]
        part = slice(None) if shared else slice(i * sizes[name], (i + 1) * sizes[name])
        y = x @ weight[part].T + bias[part]
        if variant.get("qk_norm") and name != "value":
            root_mean_square = np.sqrt((y**2).mean(-1, keepdims=True) + 1e-12)
            y = y / root_mean_square * layer[f"attention.self.{name[0]}_norm.weight"]
        if not shared:
            return y
        if name == "value" and value_embeddings is not None:
            return embed(y, value_embeddings[i])
        return embed(y, embeddings[("query", "key", "value").index(name), i])

    P, V = sizes["query"], sizes["value"]
    outputs = np.zeros((len(x), H * V))
    for i in range(H):
        q, k, v = head("query", i), head("key", i), head("value", i)
        for row in range(len(x)):
            keys = np.flatnonzero(allowed[row])
            scores = np.array([q[row] @ k[key] / np.sqrt(P) for key in keys])
            weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            outputs[row, i * V : (i + 1) * V] = sum(w * v[key] for w, key in zip(weights, keys, strict=True))
    return outputs


def reference_layer(x: np.ndarray, layer: dict[str, np.ndarray], allowed: np.ndarray, variant: dict) -> np.ndarray:
    """Returns the outputs (L, D) of a layer for one sequence: heads, W_o, residual, post-LayerNorm, feed-forward."""

    def linear(name, y):
        return y @ layer[f"{name}.weight"].T + layer[f"{name}.bias"]

    def layer_norm(name, y):
        centred = y - y.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * layer[f"{name}.weight"] + layer[f"{name}.bias"]

    heads = reference_heads(x, layer, allowed, variant)
    x = layer_norm("attention.output.LayerNorm", linear("attention.output.dense", heads) + x)
    inner = linear("intermediate.dense", x)
    inner = inner * 0.5 * (1 + torch.erf(torch.from_numpy(inner) / 2**0.5).numpy())
    return layer_norm("output.LayerNorm", linear("output.dense", inner) + x)


def randomize_norms(model):
    """Sets the scales of norms to random numbers. Their initial value, one, would hide a missing norm."""
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "_norm" in name:
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_layers_equal_the_naive_reference(implementation, is_decoder, variant):
    """Every variant equals the papers' equations within 1e-10 in float64, with padding."""
    changes = {"attn_implementation": implementation, "is_decoder": is_decoder, **variant}
    model = randomize_norms(model_of("Model", **changes)).double().eval()
    inputs = inputs_of("Model")
    outputs = model(**inputs, output_hidden_states=True)
    for index, layer in enumerate(model.encoder.layer):
        weights = {name: value.detach().numpy() for name, value in layer.named_parameters()}
        weights["num_attention_heads"] = variant.get("layer_attention_heads", [H] * 3)[index]
        for row in range(B):
            real = inputs["attention_mask"][row].bool().numpy()
            allowed = np.tile(real, (L, 1)) & (np.tri(L, dtype=bool) if is_decoder else True)
            expected = reference_layer(outputs.hidden_states[index][row].detach().numpy(), weights, allowed, variant)
            actual = outputs.hidden_states[index + 1][row].detach().numpy()
            assert np.abs(actual - expected)[real].max() < 1e-10


@pytest.mark.parametrize("uses_masks", [False, True])
@pytest.mark.parametrize("unpad_inputs", [False, True])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_registered_attention_function(variant, unpad_inputs, uses_masks, monkeypatch):
    """
    A function registered with transformers gets equal head sizes and, if it is also registered for masks, either a
    mask or unpadded rows. A function without masks, such as vLLM's, gets whole rows and tracks the sequences itself.
    """
    sequences = [slice(None)] if uses_masks else [slice(0, 3), slice(3, L)]
    masks, shapes = [], []

    def registered(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        assert query.shape[1] == key.shape[1] and query.shape[-1] == key.shape[-1] == value.shape[-1]
        masks.append(attention_mask)
        shapes.append((module.layer_idx, *query.shape))
        outputs = []
        for part in sequences:
            scores = scaling * query[:, :, part] @ key[:, :, part].mT
            if attention_mask is not None:
                scores = scores.masked_fill(~attention_mask, -torch.inf)
            outputs.append(scores.softmax(-1) @ value[:, :, part])
        return torch.cat(outputs, 2).transpose(1, 2), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "registered", registered)
    inputs = inputs_of("Model")
    if uses_masks:
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, "registered", sdpa_mask)
    else:
        inputs = {"input_ids": inputs["input_ids"][:1], "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])}
    real = inputs["attention_mask"].bool() if uses_masks else ...
    model = randomize_norms(model_of("Model", attn_implementation="eager", **variant)).double().eval()
    expected = model(**inputs).last_hidden_state[real]
    model.unpad_inputs = unpad_inputs
    model.set_attn_implementation("registered")
    assert torch.allclose(model(**inputs).last_hidden_state[real], expected, rtol=0, atol=1e-12)
    assert len(masks) >= 3 and all((mask is None) == (unpad_inputs or not uses_masks) for mask in masks)
    if not uses_masks:
        sizes = map(max, model.config.head_sizes, model.config.value_head_sizes)
        heads = zip(model.config.head_counts, sizes, strict=True)
        assert shapes == [(layer, 1, count, L, size) for layer, (count, size) in enumerate(heads)]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("unpad_inputs", [False, True])
def test_output_attentions_are_not_empty(implementation, unpad_inputs):
    """Attention probabilities are returned with every backend, whereas BERT returns an empty tuple with SDPA."""
    model = model_of("Model", attn_implementation=implementation, unpad_inputs=unpad_inputs).double().eval()
    inputs = inputs_of("Model")
    real = inputs["attention_mask"].bool()
    outputs = model(**inputs, output_attentions=True)
    assert [tuple(attention.shape) for attention in outputs.attentions] == [(B, H, L, L)] * 3
    for attention in outputs.attentions:
        by_query = attention.transpose(1, 2)[real]  # (T, H, L)
        assert torch.allclose(by_query.sum(-1), torch.ones(len(by_query), H, dtype=torch.float64))
        assert attention.masked_select(~real[:, None, None]).abs().max() == 0
    plain = model(**inputs).last_hidden_state
    assert torch.allclose(outputs.last_hidden_state[real], plain[real], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_flex_attention_computes_the_same():
    """Flex attention and SDPA agree for padded, unpadded and packed rows."""
    sizes = {"attention_head_size": [3, P], "value_head_size": [9, P], "layer_attention_heads": [2, H]}
    options = {"num_hidden_layers": 2, **sizes}
    model, flex = (
        model_of("Model", attn_implementation=name, **options).eval() for name in ("sdpa", "flex_attention")
    )
    inputs = inputs_of("Model")
    packed = {"input_ids": inputs["input_ids"], "position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 1]])}
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        for unpad_inputs in (False, True):
            flex.unpad_inputs = unpad_inputs
            expected, actual = (m(**inputs).last_hidden_state[real] for m in (model, flex))
            assert torch.allclose(actual, expected, atol=1e-4)
            expected, actual = (m(**packed).last_hidden_state for m in (model, flex))
            assert torch.allclose(actual, expected, atol=1e-4)


def sequences(causal: bool, dtype=torch.float64):
    """Returns a module, and queries, keys and values (1, H, T, P) of packed sequences. Some may have no queries."""
    module = model_of("Model", is_decoder=causal).encoder.layer[0].attention.self.eval()
    lengths_q, lengths_k = ([6, 1, 7], [6, 1, 7]) if causal else ([2, 0, 7], [6, 1, 7])
    generator = torch.Generator().manual_seed(3)
    query, key, value = (
        torch.randn(1, H, sum(lengths), P, dtype=dtype, generator=generator)
        for lengths in (lengths_q, lengths_k, lengths_k)
    )
    ends = (torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32) for lengths in (lengths_q, lengths_k))
    return module, query, key, value, SequenceLengths(*ends, 7, 7)


@pytest.mark.parametrize(
    "name, causal", [("looped_attention", False), ("looped_attention", True), ("bucketed_attention", False)]
)
def test_packed_sequences_of_unequal_length(name, causal):
    """Looped and bucketed attention to packed sequences equal attention to separate sequences."""
    module, query, key, value, lengths = sequences(causal)
    attend = getattr(unpadding_fixed_head_bert, name)
    kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]
    output = attend(kernel, module, query, key, value, lengths, dropout=0.0, scaling=P**-0.5)
    sizes_q, sizes_k = (x.diff().tolist() for x in (lengths.cu_seq_lens_q, lengths.cu_seq_lens_k))
    parts = zip(query[0].split(sizes_q, 1), key[0].split(sizes_k, 1), value[0].split(sizes_k, 1), strict=True)
    expected = []
    for q, k, v in parts:
        scores = P**-0.5 * q @ k.mT
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        expected.append((scores.softmax(-1) @ v).transpose(0, 1))
    assert torch.allclose(output, torch.cat(expected), rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_unpadding_on_a_gpu():
    """Unpadded bf16 on a GPU agrees with float32 on the CPU."""
    model = model_of("Model", unpad_inputs=True, initializer_range=0.05).eval()
    inputs = inputs_of("Model")
    expected = model(**inputs).last_hidden_state
    model = model.to("cuda", torch.bfloat16)
    actual = model(**{name: x.cuda() for name, x in inputs.items()}).last_hidden_state
    assert torch.allclose(actual.float().cpu(), expected, atol=0.05)


def test_flash_attention_gets_sequence_lengths(monkeypatch):
    """Flash attention gets a packed row without padding, with sequence lengths and without a mask."""
    seen = []

    def flash(module, query, key, value, attention_mask, **kwargs):
        seen.append((tuple(query.shape), attention_mask, kwargs["cu_seq_lens_q"].tolist(), kwargs["max_length_q"]))
        kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return packed_attention_forward(kernel, module, query, key, value, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", flash)
    model = model_of("Model", attn_implementation="sdpa", unpad_inputs=True).eval()
    inputs = inputs_of("Model")
    expected = model(**inputs).last_hidden_state
    model.config._attn_implementation = "flash_attention_2"
    assert torch.allclose(model(**inputs).last_hidden_state, expected, atol=1e-5)
    lengths = inputs["attention_mask"].sum(1)
    assert seen == [((1, H, int(lengths.sum()), P), None, [0, *lengths.cumsum(0).tolist()], int(lengths.max()))] * 3
    seen.clear()
    model(**inputs, output_mask=False)
    assert seen[2] == ((1, H, B, P), None, list(range(B + 1)), 1)


def test_parameter_counts_of_head_embeddings():
    """BERT-base with head embeddings has 8.875M attention parameters, the number in the paper."""

    def count(**changes) -> int:
        with torch.device("meta"):
            model = FixedHeadBertModel(FixedHeadBertConfig(**changes))
        names = [name for name, _ in model.named_parameters() if ".attention." in name and "LayerNorm" not in name]
        return sum(model.get_parameter(name).numel() for name in names if not name.endswith("bias"))

    assert count(attention_head_size=None) == 28_311_552
    for how in ("add", "mul"):
        assert count(attention_head_size=64, head_embedding=how) == 12 * (149_760 + 768 * 768) == 8_875_008
