"""`WHOLE`, `BLOCK` and `POOL`: the names of a ViT's internals, with shapes and descriptions; the only list of them.

b images · t tokens · n patches · d width · h heads · k width of one head · q chosen queries · m MLP width
"""

WHOLE: dict[str, tuple[str, str]] = {
    "patches": ("[b n d]", "patch embeddings, before positions"),
    "embedding": ("[b t d]", "tokens with positions: the input of the first block"),
    "tokens": ("[b t d]", "tokens after the last block and the final norm"),
    "pooled": ("[b d]", "input of the head; a dense head reads outputs of blocks instead"),
    "logits": ("[b classes]", "output of the model; of a dense head for each pixel, [b classes H W]"),
}
BLOCK: dict[str, tuple[str, str]] = {
    "input": ("[b t d]", "tokens: the input of the block"),
    "norm1": ("[b t d]", "after the first norm: the input of attention"),
    "q": ("[b h t k]", "queries"),
    "k": ("[b h t k]", "keys"),
    "v": ("[b h t k]", "values"),
    "scores": ("[b h q t]", "q kᵀ / √k, before the softmax"),
    "attention": ("[b h q t]", "softmax of the scores: rows sum to 1, unless heads talk (CaiT)"),
    "mixed": ("[b h t k]", "attention × values, for each head"),
    "attention_output": ("[b t d]", "output of attention, before the residual is added"),
    "middle": ("[b t d]", "tokens after attention and its residual"),
    "norm2": ("[b t d]", "after the second norm: the input of the MLP"),
    "mlp_hidden": ("[b t m]", "hidden layer of the MLP, after the activation"),
    "mlp_output": ("[b t d]", "output of the MLP, before the residual is added"),
    "output": ("[b t d]", "tokens: the output of the block"),
}
POOL: dict[str, tuple[str, str]] = {  # of models that pool by attention; of CaiT's layers of class attention, the last
    "pool.q": ("[b h 1 k]", "attention pooling: the learned query, or the class token's"),
    "pool.k": ("[b h t k]", "attention pooling: keys of the tokens that are pooled"),
    "pool.v": ("[b h t k]", "attention pooling: values of these tokens"),
    "pool.scores": ("[b h 1 t]", "attention pooling: q kᵀ / √k, before the softmax"),
    "pool.attention": ("[b h 1 t]", "attention pooling: the share of each token, which sum to 1"),
    "pool.mixed": ("[b h 1 k]", "attention pooling: attention × values, for each head"),
}


def full_name(name: str, layer: int) -> str:
    """Write an internal's full name: its name in the glossary after the number of its block.

    >>> full_name("attention", 3)
    'blocks.3.attention'
    """
    return f"blocks.{layer}.{name}"
