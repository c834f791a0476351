"""The names of a ViT's internals, what they are and their shapes; the same in code, captions and docs.

b images · t tokens · n patches · d width · h heads · k width of one head · q chosen queries · m MLP width
"""

WHOLE: dict[str, tuple[str, str]] = {
    "patches": ("[b n d]", "patch embeddings, before positions"),
    "embedding": ("[b t d]", "what enters the first block: tokens with positions"),
    "tokens": ("[b t d]", "what leaves the last block, after the final norm"),
    "pooled": ("[b d]", "what the head reads"),
    "logits": ("[b classes]", "what the model answers"),
}
BLOCK: dict[str, tuple[str, str]] = {
    "input": ("[b t d]", "tokens as they enter the block"),
    "norm1": ("[b t d]", "after the first norm: what attention reads"),
    "q": ("[b h t k]", "queries: what each token asks for"),
    "k": ("[b h t k]", "keys: what each token offers"),
    "v": ("[b h t k]", "values: what each token gives"),
    "scores": ("[b h q t]", "q kᵀ / √k, before the softmax"),
    "attention": ("[b h q t]", "softmax of the scores: rows sum to 1"),
    "mixed": ("[b h t k]", "attention × values, each head by itself"),
    "attention_output": ("[b t d]", "the attention half's result, before it is added"),
    "middle": ("[b t d]", "tokens after the attention half"),
    "norm2": ("[b t d]", "after the second norm: what the MLP reads"),
    "mlp_hidden": ("[b t m]", "the MLP's hidden layer, after its activation"),
    "mlp_output": ("[b t d]", "the MLP half's result, before it is added"),
    "output": ("[b t d]", "tokens as they leave the block"),
}


def full_name(name: str, layer: int) -> str:
    """A block's internal by its full name.

    >>> full_name("attention", 3)
    'blocks.3.attention'
    """
    return f"blocks.{layer}.{name}"
