"""Tiny models with all task heads and large weights, and inputs with padding."""

import torch
import transformers

import fixedbert
from fixedbert import FixedHeadBertConfig
from fixedbert.model import configuration_fixed_head_bert

HEADS = list(configuration_fixed_head_bert.HEADS)
BERT_HEADS = [head for head in HEADS if hasattr(transformers, f"Bert{head}")]  # heads that transformers' BERT also has
# Batch size, length, width, heads, head size, neurons, vocabulary. All differ, so that swapped axes fail.
B, L, D, H, P, F, V = 13, 7, 32, 5, 6, 37, 99
SHAPE = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 3,
    "intermediate_size": F,
    "max_position_embeddings": 11,
    "initializer_range": 0.5,  # large, so that an incorrect mask or scale changes the outputs
}
# Layers with different head counts and head sizes, whose values are larger or smaller than their keys.
UNEQUAL = {"layer_attention_heads": [2, 5, 3], "attention_head_size": [3, 13, 6], "value_head_size": [9, 4, 6]}


def config_of(head: str, **changes) -> FixedHeadBertConfig:
    shape = {**SHAPE, "num_attention_heads": H, "attention_head_size": P, "is_decoder": head == "LMHeadModel"}
    return FixedHeadBertConfig(**{**shape, **changes})


def model_of(head: str, **changes):
    """Returns a FixedHeadBert with the task head `head`, such as ForMaskedLM."""
    torch.manual_seed(0)
    return getattr(fixedbert, f"FixedHeadBert{head}")(config_of(head, **changes))


def inputs_of(head: str, labels: bool = False, size: int = B) -> dict[str, torch.Tensor]:
    """Returns random inputs for `size` sequences of different lengths."""
    generator = torch.Generator().manual_seed(1)

    def ids(high, *shape):
        return torch.randint(high, shape, generator=generator)

    shape = (size, 3, L) if head == "ForMultipleChoice" else (size, L)
    lengths = ids(L, *shape[:-1]) + 1
    inputs = {
        "input_ids": ids(V, *shape),
        "token_type_ids": ids(2, *shape),
        "attention_mask": (torch.arange(L) < lengths[..., None]).long(),
    }
    if labels:
        tokens = torch.where(ids(2, size, L).bool(), ids(V, size, L), -100)
        labels_of_heads = {
            "ForPreTraining": {"labels": tokens, "next_sentence_label": ids(2, size)},
            "ForMaskedLM": {"labels": tokens},
            "LMHeadModel": {"labels": tokens},
            "ForNextSentencePrediction": {"labels": ids(2, size)},
            "ForSequenceClassification": {"labels": ids(2, size)},
            "ForMultipleChoice": {"labels": ids(3, size)},
            "ForTokenClassification": {"labels": ids(2, size, L)},
            "ForQuestionAnswering": {"start_positions": ids(L, size), "end_positions": ids(L, size)},
        }
        inputs |= labels_of_heads[head]
    return inputs


def bert_of(head: str, family: str = "Bert", **changes):
    """Returns a model of transformers, such as BertForMaskedLM or RobertaForMaskedLM."""
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{family}Config")
    if family != "Bert":
        head = "ForCausalLM" if head == "LMHeadModel" else head
        changes = {"pad_token_id": 1, "max_position_embeddings": 13, **changes}
    decoder = "LM" in head and "Masked" not in head
    config = config_class(**{**SHAPE, "num_attention_heads": 4, "is_decoder": decoder, **changes})
    model = getattr(transformers, f"{family}{head}")(config).eval()
    for name, parameter in model.named_parameters():  # because initial biases of 0 would hide errors
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    return model


@torch.no_grad()
def differences(first, second, inputs) -> float:
    """Returns the largest absolute difference between the outputs of two models."""
    outputs = (model(**inputs, return_dict=True).to_tuple() for model in (first, second))
    pairs = list(zip(*outputs, strict=True))
    assert any(isinstance(a, torch.Tensor) for a, _ in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs if isinstance(a, torch.Tensor))
