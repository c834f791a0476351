import open_clip
import pytest
import torch
import torch.nn.functional as F
from two_towers import X, write_clip, write_open_clip, write_siglip

from vitreous.inside.text_similarity import text_similarity
from vitreous.models.text import with_sentences
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.words import with_target, with_words
from vitreous.weights.load import load

WORDS = ["a cat", "the bell tower of a church"]


@torch.no_grad()
def test_patches_are_projected_as_open_clip_projects_its_class_token(tmp_path):
    theirs = write_open_clip(tmp_path)
    theirs.visual.output_tokens = True
    _, tokens = theirs.visual(X)  # [b n d], after the last norm
    text = theirs.encode_text(open_clip.tokenizer.SimpleTokenizer()(WORDS), normalize=True)
    wanted = F.normalize(tokens @ theirs.visual.proj, dim=-1) @ text.T  # [b n s]
    found = text_similarity(with_words(load(tmp_path), WORDS), X)
    assert found.shape == (2, 2, 4, 4)
    assert torch.allclose(found.flatten(2).mT, wanted, atol=1e-5)


@torch.no_grad()
def test_patches_are_projected_as_transformers_projects_its_class_token(tmp_path):
    theirs = write_clip(tmp_path)
    model = with_words(load(tmp_path), WORDS)
    tokens = theirs.vision_model(pixel_values=X).last_hidden_state[:, 1:]
    seen = F.normalize(theirs.visual_projection(theirs.vision_model.post_layernorm(tokens)), dim=-1)
    wanted = seen @ model.head.sentences.T
    assert torch.allclose(text_similarity(model, X).flatten(2).mT, wanted, atol=1e-5)


@torch.no_grad()
def test_of_an_image_without_other_tokens_it_is_the_logit_over_the_scale(tmp_path):
    """The head reads the mean of one patch: that patch's cosine is the image's."""
    sizes = {"image_size": 8, "patch_size": 8, "width": 24, "depth": 2, "heads": 2, "classes": 12}
    model = ViT(ViTConfig(**sizes, class_token=False, pool="mean")).eval()
    torch.nn.init.normal_(model.head.weight)
    worded = with_sentences(model, torch.randn(3, 12), torch.tensor(1.5))
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(text_similarity(worded, x)[..., 0, 0] * torch.tensor(1.5).exp(), worded(x), atol=1e-5)


def test_a_siglip_and_a_classifier_have_none_and_say_why(tmp_path):
    write_siglip(tmp_path)
    with pytest.raises(ValueError, match="its attention pool reads all patches at once"):
        text_similarity(with_target(load(tmp_path), "a cat"), X)
    with pytest.raises(ValueError, match="its classes are not sentences"):
        text_similarity(load("packaged:cifar10"), X)
