"""
Named model shapes from Bhojanapalli et al., 2020 (arXiv 2002.07028): all models in Tables 1, 2A, 2B and 3, and the
language models on LM1B in Figures 1 and 4 (Appendix C). "mini" and "tiny" are small shapes that we added.

The paper does not state the feed-forward widths for Tables 2 and 3. We inferred 4096 for width 512 and 3072 for width
768. With BERT's vocabulary of 30,522 tokens, these widths give the reported parameter counts to the nearest million.
"""

from dataclasses import dataclass

from .model.configuration_fixed_head_bert import FixedHeadBertConfig

SHAPE_FIELDS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "attention_head_size", "intermediate_size",
    "vocab_size", "max_position_embeddings", "is_decoder",
)  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """A model shape and the paper's results: millions of parameters, SQuAD 1.1 F1 and exact match, MNLI accuracy."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    attention_head_size: int | None  # None: hidden_size / num_attention_heads
    intermediate_size: int
    source: str
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    is_decoder: bool = False
    parameters: int | None = None
    squad_f1: float | None = None
    squad_em: float | None = None
    mnli: float | None = None


def paper_table(source: str, width: int, feed_forward: int, *rows: tuple) -> dict[str, Preset]:
    """
    Returns the presets for a table of 24-layer models.

    Each row contains heads, head size, millions of parameters, SQuAD F1, SQuAD exact match and MNLI accuracy.
    """
    return {
        f"{'fixed' if source != 'Table 1' else 'standard'}-{width}-{heads}x{size}": Preset(
            width, 24, heads, None if source == "Table 1" else size, feed_forward, source,
            parameters=parameters, squad_f1=f1, squad_em=em, mnli=mnli,
        )
        for heads, size, parameters, f1, em, mnli in rows
    }  # fmt: skip


def lm1b(width: int, heads: int, size: int | None, source: str) -> Preset:
    """Returns a language model from Appendix C: 6 layers, feed-forward 1024, 32,000 tokens, sequence length 256."""
    return Preset(width, 6, heads, size, 1024, source, vocab_size=32000, max_position_embeddings=256, is_decoder=True)


PRESETS: dict[str, Preset] = {
    **paper_table(
        "Table 1", 1024, 4096,
        (8, 128, 336, 90.89, 84.1, 85.0),
        (16, 64, 336, 90.61, 83.75, 84.5),
        (32, 32, 336, 90.45, 83.48, 84.4),
    ),
    **paper_table(
        "Table 2B", 512, 4096,
        (8, 32, 130, 88.53, 81.19, 82.5),
        (8, 64, 142, 89.51, 82.41, 83.4),
        (8, 256, 218, 90.33, 83.36, 83.9),
    ),
    **paper_table(
        "Table 2A", 512, 4096,  # the row with 8 heads of size 128 is also in Table 2B
        (8, 128, 168, 89.6, 82.73, 83.5),
        (12, 128, 193, 90.25, 83.18, 84.2),
        (16, 128, 218, 90.43, 83.59, 83.9),
        (32, 128, 319, 90.95, 84.4, 84.9),
    ),
    **paper_table(
        "Table 3", 768, 3072,
        (8, 128, 214, 90.35, 83.37, 84.4),
        (12, 128, 252, 90.48, 83.67, 84.4),
        (16, 128, 290, 90.92, 84.16, 84.7),
        (20, 128, 327, 90.89, 84.29, 85.1),
    ),
    # Figure 1 varies the number of heads in the fixed model. Figure 4 keeps width / heads = 32 in the standard model.
    **{f"lm1b-fixed-256-{h}x32": lm1b(256, h, 32, "Figure 1") for h in (4, 8, 16, 32, 70)},
    **{f"lm1b-standard-{32 * h}-{h}x32": lm1b(32 * h, h, None, "Figure 4") for h in (8, 16)},
    "mini": Preset(192, 6, 4, 128, 768, "ours"),
    "tiny": Preset(128, 2, 4, 64, 512, "ours", vocab_size=4096, max_position_embeddings=128),
}  # fmt: skip


def preset_config(name: str, **changes) -> FixedHeadBertConfig:
    """
    Returns the configuration for a preset. Keyword arguments replace fields of the configuration.

    Raises:
        KeyError: If the preset does not exist. The message lists all presets.
    """
    if name not in PRESETS:
        raise KeyError(f"preset {name!r} not found; available presets: {', '.join(PRESETS)}")
    shape = {field: getattr(PRESETS[name], field) for field in SHAPE_FIELDS}
    return FixedHeadBertConfig(**shape | changes)
