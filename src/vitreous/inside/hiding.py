"""Run a model on one image with patches hidden: blurred, in a plain colour, or their tokens left out.

A patch embedding sees each patch alone. So a ViT's image and its blurred copy are embedded once, and a masked image is
a choice between their tokens; leaving tokens out makes the sequence shorter, and the forward pass cheaper.

Shapes:  c colours · H W pixels · m masks · n patches · t tokens · d width
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inside.intervene import KnockOut, intervene, interventions_on
from vitreous.inside.pixel_gradients import black
from vitreous.models.last_block import read_last_block, rows_read
from vitreous.models.token_layout import to_pixels
from vitreous.models.vit import ViT

BASELINES = ("blur", "mean", "black")
"""What hidden patches can show."""
REMOVED = "removed"
"""The operator that leaves the tokens of hidden patches out, which needs a ViT."""


class HiddenPatches:
    """A model in front of one image `[1 c H W]`, whose patches of a `grid` can be hidden.

    `blocks` computes logits of a ViT's embedded tokens instead of the model, `[m t d]` → `[m classes]`: a faster copy.

    >>> from vitreous.models.variants import variant
    >>> model = ViT(variant("vit_femto_patch4_32")).eval()
    >>> hidden = HiddenPatches(model, torch.randn(1, 3, 32, 32), grid=(8, 8))
    >>> kept = torch.rand(5, 8, 8) > 0.5
    >>> hidden(kept, "blur").shape, hidden(kept, "removed").shape
    (torch.Size([5, 10]), torch.Size([5, 10]))
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        grid: tuple[int, ...],
        *,
        batch_size: int = 32,
        blocks: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if len(x) != 1:
            raise ValueError(f"expected one image [1 c H W], got {tuple(x.shape)}")
        self.model, self.x, self.grid, self.batch_size = model, x, grid, batch_size
        self.vit = model if isinstance(model, ViT) and model.layout.grid == tuple(grid) else None
        self.operators = ("blur", REMOVED) if self.vit is not None else ("blur",)  # what `removal` hides patches by
        self._faster = blocks
        self._embedded: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(
        self,
        kept: Tensor,
        operator: str | Tensor = "blur",
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> Tensor:
        """Run the model with patches hidden, all but those `kept`: bool `[m rows columns]` → logits `[m classes]`.

        Logits are in float32. `operator` is what hidden patches show, or "removed"; `progress` gets how many masks have
        run, and of how many.
        """
        kept = kept.to(self.x.device).flatten(1)  # [m n]
        removed = isinstance(operator, str) and operator == REMOVED
        order, parts = [], []
        for rows in self._equal_counts(kept) if removed else torch.arange(len(kept)).split(self.batch_size):
            order.append(rows)
            chosen = kept[rows.to(kept.device)]
            parts.append(self._without_tokens(chosen) if removed else self._shown(chosen, operator))
            progress(sum(map(len, order)), len(kept))
        if not len(kept):
            return torch.cat([self.model(self.x)[:0]]).float()
        back = torch.cat(order).argsort().to(kept.device)
        return torch.cat(parts).float()[back]

    def _equal_counts(self, kept: Tensor) -> Iterator[Tensor]:
        """Split masks of hidden patches into batches that keep equally many; the fewer are kept, the more at once."""
        counts = kept.sum(dim=1).cpu()
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero().flatten()
            yield from rows.split(self.batch_size * kept.shape[1] // max(count, 1))

    def _shown(self, kept: Tensor, baseline: str | Tensor) -> Tensor:
        if self.vit is None or self.vit.config.stem != "none":  # a stem's convolutions see beyond the edges of a patch
            shown = to_pixels(kept.view(-1, *self.grid), self.x.shape[-2:], self.model)
            hidden = hidden_image(self.model, self.x, baseline, self.grid)
            logits: Tensor = self.model(torch.where(shown, self.x, hidden))
            return logits
        patches = torch.where(kept[..., None], self._patches("image"), self._patches(baseline))
        return self._blocks(self.vit.assemble(patches, self.vit.pos_embed))

    def _without_tokens(self, kept: Tensor) -> Tensor:
        """Hide patches by leaving out their tokens: logits of masks that keep equally many patches."""
        if self.vit is None:
            raise ValueError("only a ViT has tokens to leave out: hide patches by blur")
        if not self.vit.config.class_token and not kept.any():
            raise ValueError("a ViT without class token reads the mean of its patches: keep at least one")
        tokens = self.vit.assemble(self._patches("image"), self.vit.pos_embed)  # [1 t d]
        if interventions_on(self.vit):  # which count patches and tokens of the whole sequence
            return torch.cat([self._removed(tokens, each) for each in kept])
        prefix = kept.new_ones(len(kept), self.vit.layout.prefix)
        seen = torch.cat([prefix, kept], dim=1)  # [m t]
        chosen = seen.nonzero()[:, 1].view(len(seen), -1)  # all masks keep equally many
        if self.vit.config.plain and self.vit.config.rope == "none":
            return self._blocks(tokens[0, chosen], seen)
        # attention itself knows positions (rotary, relative bias): all tokens run, none attends to those left out
        read = self.vit.run_blocks(tokens.expand(len(seen), -1, -1), seen[:, None, None])
        return self._head([each[seen].view(len(seen), -1, tokens.shape[-1]) for each in read], seen)

    def _removed(self, tokens: Tensor, kept: Tensor) -> Tensor:
        """Compute logits of one mask beside other interventions, which hides its patches `[n]` as they would."""
        assert self.vit is not None
        off = (~kept).nonzero().flatten().tolist()
        if len(off) < len(kept):
            change = intervene(self.vit, patches_off=off)
        elif self.vit.config.reads_patches:
            raise ValueError("the head reads patches, and none would be left: keep at least one")
        else:
            change = intervene(self.vit, knock_out=KnockOut(keys=[self.vit.layout.prefix + patch for patch in off]))
        with change:
            return self.vit.forward_head(*self.vit.run_blocks(tokens))

    def _head(self, read: list[Tensor], seen: Tensor | None) -> Tensor:
        """Compute logits with patches hidden; a dense head reads the mean of the tokens left where one is not."""
        assert self.vit is not None
        if self.vit.config.dense != "none" and seen is not None and not seen.all():
            read = [filled(each, seen, self.vit.layout.prefix) for each in read]
        return self.vit.forward_head(*read)

    def _patches(self, shown: str | Tensor) -> Tensor:
        """Embed the patches of the image, or of what hidden patches show: `[1 n d]`."""
        assert self.vit is not None
        keep = isinstance(shown, str) and not interventions_on(self.vit)  # a tensor may change, as do interventions
        if keep and shown in self._embedded:
            return self._embedded[str(shown)]
        whole = isinstance(shown, str) and shown == "image"
        embedded: Tensor = self.vit.patch_embed(self.x if whole else hidden_image(self.model, self.x, shown, self.grid))
        if keep:
            self._embedded[str(shown)] = embedded
        return embedded

    def _blocks(self, tokens: Tensor, seen: Tensor | None = None) -> Tensor:
        """Run blocks and head on the tokens that are not hidden, all or those `seen`: `[m t d]` → `[m classes]`."""
        assert self.vit is not None
        short = rows_read(self.vit) is not None  # not while hooks are active, which another network would not call
        if short and self._faster is not None:
            return self._faster(tokens)
        if not short:
            return self._head(self.vit.run_blocks(tokens), seen)
        for block in self.vit.blocks[:-1]:
            tokens = block(tokens)
        return read_last_block(self.vit, tokens)


def filled(tokens: Tensor, seen: Tensor, prefix: int) -> Tensor:
    """Put the tokens `[m k d]` that were not hidden where they are `seen`, bool `[m t]`, and their mean elsewhere.

    The mean is that of the patches, which follow a `prefix`; without any patch it is zero.

    >>> filled(torch.tensor([[[5.0], [1.0], [3.0]]]), torch.tensor([[True, True, False, True]]), prefix=1).flatten()
    tensor([5., 1., 2., 3.])
    """
    patches = tokens[:, prefix:]
    mean = patches.sum(dim=1, keepdim=True) / max(patches.shape[1], 1)  # [m 1 d]
    whole = mean.expand(-1, seen.shape[1], -1).clone()
    whole[seen] = tokens.flatten(0, 1)
    return whole


def hidden_image(model: nn.Module, x: Tensor, baseline: str | Tensor, grid: tuple[int, ...]) -> Tensor:
    """Make what hidden patches show, as large as the image: the blurred image, its mean colour, black, or a tensor."""
    if isinstance(baseline, Tensor):
        return baseline.to(x).expand_as(x)
    if baseline == "blur":
        return blurred(x, *(side / cells for side, cells in zip(x.shape[-2:], grid, strict=True)))  # as wide as a patch
    if baseline == "mean":
        return x.mean(dim=(-2, -1), keepdim=True).expand_as(x)
    if baseline == "black":
        return black(model).to(x).expand_as(x)
    raise ValueError(f"baseline must be one of {', '.join(BASELINES)}, {REMOVED} or a tensor, got {baseline!r}")


def blurred(x: Tensor, down: float, across: float) -> Tensor:
    """Blur images to hide patches `[b c H W]`, by a Gaussian of these standard deviations in pixels.

    Equal to torchvision's `gaussian_blur`, whose import takes a second and whose kernel of two dimensions far longer.
    """
    for dim, spread in ((2, down), (3, across)):
        reach = min(round(3 * spread), x.shape[dim] - 1)
        weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device) / spread) ** 2)
        shape = (x.shape[1], 1, -1, 1) if dim == 2 else (x.shape[1], 1, 1, -1)
        padded = F.pad(x, (0, 0, reach, reach) if dim == 2 else (reach, reach, 0, 0), mode="reflect")
        x = F.conv2d(padded, (weights / weights.sum()).expand(x.shape[1], -1).reshape(shape), groups=x.shape[1])
    return x


def log_odds(logits: Tensor, target: int | Sequence[int]) -> Tensor:
    """Compute a class's log-odds against all others from logits with patches hidden: `[… classes]` → `[…]`.

    Their sigmoid is the probability. Of several classes: `[… k]`.

    >>> log_odds(torch.zeros(2), 0)
    tensor(0.)
    """
    if not isinstance(target, int):
        return torch.stack([log_odds(logits, index) for index in target], dim=-1)
    others = torch.arange(logits.shape[-1], device=logits.device) != target
    return logits[..., target] - logits[..., others].logsumexp(dim=-1)
