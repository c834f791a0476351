"""`QVLinear`: projection to queries, keys and values whose keys have no bias (BEiT, Bao et al., 2022; EVA)."""

import torch
from torch import Tensor, nn


class QVLinear(nn.Linear):
    """A linear layer to queries, keys and values, side by side: queries and values have biases, keys have none.

    A bias of the keys would add the same number to all scores of a query, which the softmax takes away again.

    >>> layer = QVLinear(4)
    >>> layer(torch.zeros(1, 4)).shape, [name for name, _ in layer.named_parameters()]
    (torch.Size([1, 12]), ['weight', 'q_bias', 'v_bias'])
    """

    def __init__(self, width: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = width, 3 * width
        self.weight = nn.Parameter(torch.zeros(3 * width, width))
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))

    @property
    def bias(self) -> Tensor:  # type: ignore[override]  # read as nn.Linear's, and computed
        """The biases of queries, keys and values of a `QVLinear`: `[3d]`, zero for keys."""
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
