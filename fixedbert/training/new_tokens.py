"""Adds embeddings for tokens that are in the tokenizer's vocabulary, but not in the model's."""

import json
from typing import Any

import torch
from accelerate import PartialState
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase


@torch.no_grad()
def add_embeddings(model: Any, tokenizer: PreTrainedTokenizerBase):
    """
    Adds an embedding for each token id that is missing in the model's vocabulary, in place. If the model has output
    weights and biases, adds these too.

    A new row is the mean of the rows for the pieces into which the old vocabulary splits the token.
    """
    old = model.get_input_embeddings().weight.shape[0]
    pieces = pieces_of_new_tokens(tokenizer, old)
    PartialState().print(
        f"new tokens without an embedding: {len(pieces):,}, initialized with the mean of their pieces"
    )
    output = model.get_output_embeddings()
    # Untied models of transformers have a second, unused output bias, which it then shares or does not resize.
    biased = [part for part in model.modules() if output is not None and getattr(part, "decoder", None) is output]
    separate = [part for part in biased if getattr(part, "bias", output.bias) is not output.bias]
    model.resize_token_embeddings(old + len(pieces), mean_resizing=False)
    tables, output = [model.get_input_embeddings().weight], model.get_output_embeddings()
    if output is not None:
        tables += [table for table in (output.weight, output.bias) if table is not None]
    for table in tables:  # tied tables are filled twice, with the same values
        for token_id, ids in enumerate(pieces, old):
            table[token_id] = table[ids].float().mean(dim=0)
    for part in separate:
        part.bias = torch.nn.Parameter(tables[-1].clone())


def pieces_of_new_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> list[list[int]]:
    """
    Splits each token whose id is at least `size` into pieces, and returns a list of the pieces' ids for each token.

    The ids of the pieces are below `size`. If a token cannot be split, or an id belongs to no token, the list contains
    all ids below `size`.
    """
    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    added = {token["id"]: token["content"] for token in state["added_tokens"]}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < size]
    state |= {"truncation": None, "padding": None, "post_processor": None}
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: token_id for token, token_id in model["vocab"].items() if token_id < size}
    else:
        model["vocab"] = model["vocab"][:size]
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if "".join(pair) in model["vocab"]]
    old, prefix = Tokenizer.from_str(json.dumps(state)), model.get("continuing_subword_prefix") or ""
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items() if token_id >= size}
    pieces = []
    for token_id in range(size, max(tokens, default=-1) + 1):
        text = tokens.get(token_id, "")
        if token_id not in added and backend.decoder is not None:  # added tokens are not encoded as bytes
            text = backend.decoder.decode([text]).removeprefix(prefix)
        pieces.append(old.encode(text, add_special_tokens=False).ids or [*range(size)])
    return pieces
