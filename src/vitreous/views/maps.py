"""Views of heat maps: where the evidence for a class lies, by removal, by gradients, and by the other cited methods.

`MAPS` holds the maps that follow an inspection's choice; every other name is one of `METHODS`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.figures.kinds import Map, Results
from vitreous.inside import rollout
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.methods import METHODS
from vitreous.inside.text_similarity import text_similarity
from vitreous.models.vit import ViT
from vitreous.views.inspection import Inspection
from vitreous.views.view import IMAGE_CLASSES, VIT_CLASSES, View


def _rollout(inspection: Inspection) -> Tensor:
    """Compute the heat map `rollout` of an inspection."""
    choice = inspection.choice
    return rollout.rollout_map(
        inspection.vit,
        inspection.x,
        query=None if choice.query is None else inspection.query,
        fusion=choice.fusion,
        discard=choice.discard,
        residual=choice.residual,
    )[0]


def _attention(inspection: Inspection) -> Tensor:
    """Compute the heat map `attention` of an inspection, of one block."""
    layout, rows = inspection.vit.layout, torch.from_numpy(inspection.attention[inspection.block])
    if inspection.keeps_attention:
        rows = rows[:, layout.prefix :].mean(dim=1) if inspection.query is None else rows[:, inspection.query]
    return layout.to_grid(rows.mean(dim=0))


def _cam(inspection: Inspection) -> Tensor:
    """Compute the heat map `cam` of an inspection, Grad-CAM."""
    options = {"layer": inspection.block} if isinstance(inspection.model, ViT) else {}
    return grad_cam(inspection.model, inspection.x, inspection.target, **options)[0]


MAPS: dict[str, Callable[[Inspection], Tensor]] = {  # → [rows columns]
    "attention": _attention,
    "rollout": _rollout,
    "removal": lambda i: i.removal.map[0],
    "relevance": lambda i: i.evidence.relevance[0],
    "gradient × attention": lambda i: i.evidence.gradient_attention[0],
    "CAM": _cam,
}


def heat_map(name: str, inspection: Inspection) -> Tensor:
    """Compute for a view the heat map of the method with this name, on the CPU: `[rows columns]`."""
    if name in MAPS:
        return MAPS[name](inspection).detach().float().cpu()
    return METHODS[name](inspection.model, inspection.x, inspection.target).cpu()


ENDS = ("none", "strong evidence for “{class}”")
"""The ends of the page's scale for maps whose values are evidence for a class."""


def _class_maps(
    inspection: Inspection, found: list[Tensor], title: str, label: str, signed: bool = False, **words: Any
) -> Map:
    """Compute the view of a method's heat maps for the target, and for the other likely classes that were computed."""
    rows, columns = found[0].shape
    return Map(
        torch.stack(found).flatten(1).numpy(),
        (rows, columns),
        title,
        ("class",),
        {"class": 0},
        {"class": [inspection.model.card.label(i) for i in inspection.classes[: len(found)]]},
        label=label,
        signed=signed,
        **inspection.left_out,
        **words,
    )


def relevance_maps(inspection: Inspection) -> Map:
    """Compute the view of heat maps by relevance, for the target and for the likeliest other classes."""
    found = inspection.evidence.relevance.float().cpu()
    return _class_maps(inspection, list(found), "Relevance for {class}", "relevance", ends=ENDS)


def removal_maps(inspection: Inspection) -> Results:
    """Compute the view of heat maps of what each patch adds to log-odds, by removal, with standard errors."""
    found, unit = inspection.removal, "log-odds per patch"
    passes = f"{found.passes} passes" + (", ranking stable" if found.stable else "")
    return {
        "": _class_maps(
            inspection,
            list(found.map),
            f"Removal for {{class}} ({passes})",
            unit,
            signed=True,
            ends=ENDS,
            says="Strongest: {place}; {change}.",
            points="{patch}, number {rank} of {count}: {change} ({number} log-odds){doubt}.",
        ),
        "error": _class_maps(inspection, list(found.error), "Standard error of removal for {class}", unit),
    }


def text_similarity_maps(inspection: Inspection) -> Map:
    """Compute the view whose heat maps compare patches with text: the cosine of each with each explained sentence."""
    found = text_similarity(inspection.vit, inspection.x)[0].float().cpu()
    maps = list(found[inspection.classes])
    return replace(_class_maps(inspection, maps, "Patches and “{class}”", "cosine"), from_zero=False)


def _method(
    name: str,
    title: str,
    label: str,
    read: str,
    beware: str,
    *,
    vit: bool = True,
    signed: bool = False,
    slow: bool = False,
    ends: tuple[str, str] | None = ENDS,
    heading: str = "",
) -> View:
    """Make the view of heat maps by a method, for the target class; `heading` for one that is alike for all classes."""
    return View(
        title,
        read,
        beware,
        lambda i: _class_maps(i, [heat_map(name, i)], heading or f"{title} for {{class}}", label, signed, ends=ends),
        group="Why",
        needs=VIT_CLASSES if vit else IMAGE_CLASSES,
        slow=slow,
        more=True,
    )


RELEVANCE = View(
    "Relevance for a class",
    "The coloured patches are those whose attention raises the logit of the class: attention weighted by its gradient, through "
    "all blocks.",
    "Only evidence for the class is kept; evidence against it is cut off. A map exists even when the model is wrong: compare "
    "the trust view.",
    relevance_maps,
    group="Why",
    needs=VIT_CLASSES,
    more=True,
)
REMOVAL = View(
    "Removal of patches",
    "Coloured patches speak for the class: hide one, and the class becomes less likely. Measured by asking again with patches hidden "
    "at random. Negative values speak against the class.",
    "Patches are taken to add up: two that say the same share their effect. An effect below twice its standard error may be noise, "
    "and an image with hidden patches is unlike those that the model was trained on.",
    removal_maps,
    group="Why",
    needs=IMAGE_CLASSES,
)
PRUNED_GRADIENTS = _method(
    "pruned gradients",
    "Pruned gradients",
    "part of the logit",
    "Each patch's part in the logit of the class: gradient × token, with attention, norms and gates taken as constants, so that "
    "the parts add up. Negative parts lower the logit.",
    "What attention itself decides, where to look, is not counted as evidence.",
    signed=True,
)
GRADIENT_ATTENTION = _method(
    "gradient × attention",
    "Gradient × attention",
    "relevance",
    "The attention of one block, by default the last, weighted by the gradient of the class's logit.",
    "One block only: what earlier blocks gathered is already inside its tokens.",
)
CAM = _method(
    "CAM",
    "Class activation map",
    "activation",
    "Channels that raise the logit of the class, added up where they are active: at one block's first norm in a ViT (by default the last), at "
    "the last stage in a ResNet.",
    "A coarse map: one number for each patch.",
    vit=False,
)
GRAD_CAM_PLUS_PLUS = _method(
    "Grad-CAM++",
    "Grad-CAM++",
    "activation",
    "The class activation map with another weight of channels: only gradients that raise the logit count, those of strong "
    "activations most.",
    "Made for convolutions: after a ViT's last blocks any patch may hold what another one showed.",
    vit=False,
)
GRADIENT_INPUT = _method(
    "gradient × input",
    "Gradient × input",
    "part of the logit",
    "The gradient of the class's logit times the image, summed over each patch. Negative values lower the logit.",
    "The gradient holds for a tiny change of the image only, and it is noisy.",
    vit=False,
    signed=True,
)
INTEGRATED_GRADIENTS = _method(
    "integrated gradients",
    "Integrated gradients",
    "part of the logit",
    "Each patch's part in the logit of the class, on the way from a black image. Parts add up to the difference of the two "
    "logits, but for the error of 16 steps; negative ones lower the logit.",
    "It depends on the black image it starts from: a black object can hardly get a part.",
    signed=True,
)
VALUE_NORMS = _method(
    "value-norm rollout",
    "Value norms",
    "share of what is read",
    "Rollout of attention × the length of the vectors that it adds up: a token of high attention adds nothing if its value is "
    "short.",
    "The same map for every class.",
    ends=None,
    heading="Value norms",
)
TEXT_SIMILARITY = View(
    "Patches and words",
    "The cosine of each patch with the sentence, in the space that images and text share: the patch's token goes through the last norm "
    "and the projection, as the class token does.",
    "The model was trained to bring the class token near the text, not the patches. Patches of the background are often nearer than "
    "the thing that the sentence names: it is no evidence for the answer.",
    text_similarity_maps,
    group="Why",
    needs=VIT_CLASSES | {"sentences"},
    more=True,
)
SMOOTH_GRAD = _method(
    "SmoothGrad",
    "SmoothGrad",
    "size of the gradient",
    "The size of the gradient of the class's logit, averaged over 32 noisy copies of the image.",
    "It shows where a small change would move the logit, in either direction, not what the answer rests on.",
    vit=False,
    slow=True,
    ends=None,
)
OCCLUSION = _method(
    "occlusion",
    "Occlusion",
    "fall of the logit",
    "How much the logit of the class falls when one patch takes the mean colour. A negative value is a rise.",
    "One patch at a time: what two patches both show is not missed when one of them is hidden.",
    vit=False,
    signed=True,
    slow=True,
)
RISE = _method(
    "RISE",
    "RISE",
    "mean probability",
    "The mean probability of the class over 1,024 random soft masks that show the patch.",
    "Masks are coarse and random: small things are blurred, and another draw of masks gives a slightly different map.",
    vit=False,
    slow=True,
    ends=None,
)
