"""Grouped-query attention (Ainslie et al., 2023, arXiv 2305.13245): several heads share their keys and values."""

from torch import nn


class GroupedQueries(nn.Module):
    key_value_heads = 2

    def __init__(self, config, is_causal=False, layer_idx=None, is_cross_attention=False):
        super().__init__()
        heads, self.size, self.value_size = config.num_attention_heads, config.head_dim, config.value_head_sizes[0]
        self.all_head_size = heads * self.value_size
        self.group = [head * self.key_value_heads // heads for head in range(heads)]  # of each head
        self.query = nn.Linear(config.hidden_size, heads * self.size)
        self.key = nn.Linear(config.hidden_size, self.key_value_heads * self.size)
        self.value = nn.Linear(config.hidden_size, self.key_value_heads * self.value_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None, **kwargs):
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = self.query(hidden_states).unflatten(-1, (-1, self.size)).transpose(1, 2)  # (B, H, Lq, P)
        key = self.key(source).unflatten(-1, (-1, self.size)).transpose(1, 2)[:, self.group]  # (B, H, Lk, P)
        value = self.value(source).unflatten(-1, (-1, self.value_size)).transpose(1, 2)[:, self.group]
        scores = query @ key.mT / self.size**0.5  # (B, H, Lq, Lk)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(dim=-1)
        output = self.dropout(weights) @ value  # (B, H, Lq, V)
        return output.transpose(1, 2).flatten(-2), weights


class OneGroup(GroupedQueries):
    """Multi-query attention (Shazeer, 2019, arXiv 1911.02150)."""

    key_value_heads = 1
