"""`VIEWS`: every view by name. The command line, figures, the report and the explorer all read this table.

To add a view: write how it is computed and its words in a module of this folder, and add a line here
(docs/extend/view.md).
"""

import difflib
from collections.abc import Sequence

from vitreous.inside.text_similarity import NO_SENTENCES
from vitreous.views import answers, attention, evidence, maps, model, outputs, story, tokens, trust
from vitreous.views.inspection import Inspection
from vitreous.views.view import NO_CHOICE, ONE_CLASS, View

VIEWS: dict[str, View] = {
    "removal": maps.REMOVAL,
    "pruned-gradients": maps.PRUNED_GRADIENTS,
    "relevance": maps.RELEVANCE,
    "evidence": evidence.EVIDENCE,
    "predictions": answers.PREDICTIONS,
    "outputs": outputs.OUTPUTS,
    "gradient-attention": maps.GRADIENT_ATTENTION,
    "cam": maps.CAM,
    "grad-cam-plus-plus": maps.GRAD_CAM_PLUS_PLUS,
    "gradient-input": maps.GRADIENT_INPUT,
    "integrated-gradients": maps.INTEGRATED_GRADIENTS,
    "value-norms": maps.VALUE_NORMS,
    "text-similarity": maps.TEXT_SIMILARITY,
    "smooth-grad": maps.SMOOTH_GRAD,
    "occlusion": maps.OCCLUSION,
    "rise": maps.RISE,
    "attention-rows": attention.ROWS,
    "attention-maps": attention.MAPS,
    "rollout": attention.ROLLOUT,
    "similarity": tokens.PATCH_SIMILARITY,
    "lens": answers.LENS,
    "importance": answers.IMPORTANCE,
    "ablation": answers.ABLATION,
    "token-colours": tokens.COLOURS,
    "token-norms": tokens.NORMS,
    "registers": tokens.REGISTERS,
    "distance": attention.DISTANCE,
    "entropy": attention.ENTROPY,
    "attention-matrix": attention.MATRIX,
    "block-similarity": tokens.SIMILARITY,
    "positions": model.POSITIONS,
    "filters": model.FILTERS,
    "story": story.STORY,
    "input": model.SEEN,
    "patches": model.PATCHES,
    "architecture": story.ARCHITECTURE,
    "shapes": model.SHAPES,
    "card": model.CARD,
    "trust": trust.TRUST,
}


def choose_views(names: str | Sequence[str], inspection: Inspection) -> dict[str, View]:
    """Choose the views asked for by name: `all`, or names with commas between, or a list of them.

    `all` leaves out what the inspection cannot give and what is slow; a name that cannot be given is an error.
    """
    words = names.split(",") if isinstance(names, str) else names
    chosen: dict[str, View] = {}
    for name in filter(None, (part.strip() for part in words)):
        if name == "all":
            chosen |= {n: view for n, view in VIEWS.items() if not view.slow and view.missing(inspection) is None}
            continue
        if name not in VIEWS:
            close = difflib.get_close_matches(name, VIEWS, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the views are {', '.join(VIEWS)}"
            raise ValueError(f"no view is called {name!r}: {hint} (`vitreous views` says what each shows)")
        if (reason := VIEWS[name].missing(inspection)) is not None:
            raise ValueError(f"the view {name!r} cannot be computed: {reason}")
        chosen[name] = VIEWS[name]
    if not chosen:
        raise ValueError(f"no view was named: the views are {', '.join(VIEWS)}, or all")
    return dict(sorted(chosen.items(), key=lambda item: list(VIEWS).index(item[0])))


def missing_views(inspection: Inspection) -> dict[str, list[str]]:
    """List the views that `all` leaves out since the model or the inspection cannot give them: reason → names.

    Views of sentences are not listed if the classes are not sentences, nor those of other tasks if it is to classify.
    """
    found: dict[str, list[str]] = {}
    for name, view in VIEWS.items():
        reason = view.missing(inspection)
        if not view.slow and reason not in (None, NO_SENTENCES, ONE_CLASS, NO_CHOICE):
            found.setdefault(reason, []).append(name)
    return found
