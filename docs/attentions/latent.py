"""
Keys and values of low rank, as in DeepSeek-V2 (2024, arXiv 2405.04434), without its rotary part: all heads read them
from one small vector for each token.
"""

from torch import nn


class LatentKeysAndValues(nn.Module):
    latent_size = 16

    def __init__(self, config, is_causal=False, layer_idx=None, is_cross_attention=False):
        super().__init__()
        heads, self.size, self.value_size = config.num_attention_heads, config.head_dim, config.value_head_sizes[0]
        self.all_head_size = heads * self.value_size
        self.query = nn.Linear(config.hidden_size, heads * self.size)
        self.latent = nn.Linear(config.hidden_size, self.latent_size, bias=False)
        self.key = nn.Linear(self.latent_size, heads * self.size)
        self.value = nn.Linear(self.latent_size, heads * self.value_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None, **kwargs):
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        latent = self.latent(source)  # (B, Lk, latent_size)
        query = self.query(hidden_states).unflatten(-1, (-1, self.size)).transpose(1, 2)  # (B, H, Lq, P)
        key = self.key(latent).unflatten(-1, (-1, self.size)).transpose(1, 2)  # (B, H, Lk, P)
        value = self.value(latent).unflatten(-1, (-1, self.value_size)).transpose(1, 2)  # (B, H, Lk, V)
        scores = query @ key.mT / self.size**0.5  # (B, H, Lq, Lk)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(dim=-1)
        output = self.dropout(weights) @ value  # (B, H, Lq, V)
        return output.transpose(1, 2).flatten(-2), weights
