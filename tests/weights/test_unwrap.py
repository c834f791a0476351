"""Containers and prefixes around a state dict, as training scripts really write them."""

import time
from collections import OrderedDict

import pytest
import torch

from vitreous.weights.safety import CheckpointError
from vitreous.weights.unwrap import CONTAINERS, MAX_NESTING, unwrap


def weights(prefix="", value=0.0):
    names = ("cls_token", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight")
    return {prefix + name: torch.full((2,), value) for name in names}


PLAIN_NAMES = list(weights())
HEAD = torch.ones(7, 2)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_known_container_is_opened(container):
    found = unwrap({container: weights(), "epoch": 3})
    assert list(found.tensors) == PLAIN_NAMES
    assert found.wrappers == (container,)


def test_a_bare_state_dict_is_left_as_it_is():
    found = unwrap(OrderedDict(weights()))
    assert list(found.tensors) == PLAIN_NAMES
    assert (found.wrappers, found.ignored) == ((), ())


@pytest.mark.parametrize("average", ["state_dict_ema", "model_ema", "ema"])
def test_averaged_weights_are_preferred_and_the_raw_ones_reported(average):
    found = unwrap({"state_dict": weights(value=1), average: weights(value=2)})
    assert found.tensors["cls_token"].tolist() == [2, 2]
    assert found.wrappers == (average,)
    assert found.ignored == ("state_dict",)


@pytest.mark.parametrize("absent", [None, {}, {"decay": 0.9}, [torch.ones(1)], {"shadow": [torch.ones(1)]}])
def test_an_average_without_named_tensors_is_passed_over(absent):
    assert unwrap({"model_ema": absent, "model": weights(value=1)}).wrappers == ("model",)


def test_the_teacher_is_preferred_to_its_student():
    found = unwrap({"student": weights("module.", 1), "teacher": weights(value=2)})
    assert found.tensors["cls_token"].tolist() == [2, 2]
    assert (found.wrappers, found.ignored) == (("teacher",), ("student",))


def test_a_student_alone_is_read():
    assert unwrap({"student": weights("module.")}).wrappers == ("student", "module.")


def test_containers_inside_containers_are_opened():
    found = unwrap({"checkpoint": {"model": {"state_dict": weights("module.")}, "epoch": 9}, "arch": "vit"})
    assert list(found.tensors) == PLAIN_NAMES
    assert found.wrappers == ("checkpoint", "model", "state_dict", "module.")


def test_the_optimizer_is_never_taken_for_the_model():
    optimizer = {"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]}
    found = unwrap({"optimizer": optimizer, "my_vit": weights()})
    assert (found.wrappers, found.ignored) == (("my_vit",), ("optimizer",))


def test_two_unknown_containers_are_not_guessed_between():
    with pytest.raises(CheckpointError, match="which of left, right"):
        unwrap({"left": weights(), "right": weights()})


@pytest.mark.parametrize(
    "prefixes",
    [
        ("module.",),
        ("_orig_mod.",),
        ("module.", "_orig_mod."),
        ("_orig_mod.", "module."),
        ("module.", "model.", "backbone."),
        ("base_model.", "model."),
        ("_forward_module.", "model."),
        ("_fsdp_wrapped_module.",),
        ("module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."),
        ("timm_model.",),
        ("image_encoder.",),
        ("teacher.backbone.",),
    ],
)
def test_prefixes_that_all_names_share_come_off_in_any_order(prefixes):
    found = unwrap(weights("".join(prefixes)))
    assert list(found.tensors) == PLAIN_NAMES
    assert found.wrappers == prefixes


@pytest.mark.parametrize("part", ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_wrappers_of_single_blocks_come_off(part, prefix):
    wrapped = {name.replace("blocks.0.", f"blocks.0.{part}"): value for name, value in weights(prefix).items()}
    found = unwrap(wrapped)
    assert list(found.tensors) == PLAIN_NAMES
    assert part in found.wrappers
    with pytest.raises(CheckpointError, match=f"some tensors twice, with {part} in their names"):
        unwrap(wrapped | weights(prefix))


@pytest.mark.parametrize("prefix", ["encoder.", "vit.", "visual.", "vision_model.", "blocks."])
def test_prefixes_that_belong_to_a_library_stay(prefix):
    assert list(unwrap(weights(prefix)).tensors) == [prefix + name for name in PLAIN_NAMES]


def test_a_prefix_that_one_name_lacks_stays():
    tensors = {"model.weight": torch.ones(1), "bias": torch.ones(1)}
    assert list(unwrap(tensors).tensors) == list(tensors)


def test_a_name_that_is_only_a_prefix_keeps_it():
    assert list(unwrap({"module.": torch.ones(1)}).tensors) == ["module."]


def test_values_that_are_no_tensors_do_not_hold_a_prefix_back():
    found = unwrap(weights("module.") | {"version": 2})
    assert list(found.tensors) == PLAIN_NAMES


def test_dino_keeps_the_backbone_and_reports_the_projection_head():
    head = {"head.mlp.0.weight": torch.ones(1), "head.last_layer.weight_v": torch.ones(1)}
    found = unwrap({"teacher": weights("backbone.") | head, "student": weights("module.backbone.")})
    assert list(found.tensors) == PLAIN_NAMES
    assert found.wrappers == ("teacher", "backbone.")
    assert found.ignored == ("student", *head)


@pytest.mark.parametrize("head", ["fc.weight", "head.weight", "classifier.1.bias", "text.token_embedding.weight"])
def test_a_backbone_is_not_loaded_without_the_head_beside_it(head):
    with pytest.raises(CheckpointError, match=f"{head} beside it, which would be lost"):
        unwrap(weights("backbone.") | {head: torch.ones(1)})


@pytest.mark.parametrize("part", ["dino_head.mlp.0.weight", "ibot_head.last_layer.weight_g", "criterion.center"])
def test_what_only_training_needs_may_lie_beside_a_backbone(part):
    found = unwrap(weights("backbone.") | {part: torch.ones(1)})
    assert list(found.tensors) == PLAIN_NAMES
    assert found.ignored == (part,)


def test_lora_matrices_are_not_read_without_the_weights_that_they_change():
    names = ("base_model.model.blocks.0.attn.qkv.lora_A.weight", "base_model.model.blocks.0.attn.qkv.lora_B.weight")
    with pytest.raises(CheckpointError, match="holds a PEFT adapter's tensors .*lora_A.* merge them"):
        unwrap({name: torch.ones(1) for name in names})
    with pytest.raises(CheckpointError, match="holds a PEFT adapter's tensors .*base_layer.* merge them"):
        unwrap({f"base_model.model.blocks.0.attn.qkv.{name}": torch.ones(1) for name in ("base_layer.bias", "ia3_l.x")})


def test_the_counter_of_averaged_weights_is_left_out():
    average = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2))
    assert list(unwrap(average.state_dict()).tensors) == ["weight", "bias"]


def test_in_a_flat_file_the_teachers_backbone_is_preferred():
    flat = weights("student.backbone.", 1) | weights("teacher.backbone.", 2) | {"student.dino_head.w": torch.ones(1)}
    found = unwrap({"model": flat})
    assert found.tensors["cls_token"].tolist() == [2, 2]
    assert found.wrappers == ("model", "teacher.backbone.")
    assert "student.dino_head.w" in found.ignored
    assert "student.backbone.cls_token" in found.ignored


def test_a_backbone_that_is_no_transformer_keeps_its_neighbours():
    tensors = {"backbone.conv1.weight": torch.ones(1), "head.weight": torch.ones(1)}
    assert list(unwrap(tensors).tensors) == list(tensors)


def test_what_is_known_not_to_be_weights_is_ignored_and_reported():
    records = {
        "best_acc1": torch.ones(1),
        "scores": {"w": torch.ones(1)},
        "history": [torch.ones(3)],
        "prototypes": HEAD,
    }
    found = unwrap({"state_dict": weights()} | records)
    assert list(found.tensors) == PLAIN_NAMES
    assert found.ignored == tuple(records)


@pytest.mark.parametrize("name", ["head", "classifier", "fc", "net", "module"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_head_in_its_own_container_is_joined_under_its_name(name, prefix):
    head = {f"{prefix}weight": torch.ones(7, 2), f"{prefix}bias": torch.ones(7), f"{prefix}classes": 7}
    for loaded in ({"model": weights(prefix), name: head}, weights() | {name: head}):
        found = unwrap({"run": loaded, "epoch": 3})
        if name in CONTAINERS and "cls_token" in loaded:
            continue  # opened instead: the ViT around it is joined to it
        assert list(found.tensors) == [*PLAIN_NAMES, f"{name}.weight", f"{name}.bias"]
        assert found.ignored == ()


def test_tensors_beside_a_container_are_joined_to_its_own():
    found = unwrap({"state_dict": weights(), "fc.weight": torch.ones(7, 2), "fc.bias": torch.ones(7)})
    assert list(found.tensors) == [*PLAIN_NAMES, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"head": {"layers": {"weight": torch.ones(7, 2)}}}, "head.layers"),
        ({"head": [torch.ones(7, 2), torch.ones(7)]}, "head"),
        ({"net": {"head": {"weight": torch.ones(7, 2)}}}, "net.head"),
        ({"params": [torch.ones(7, 2)]}, "params"),
        ({"blocks.0.attn": {"qkv.weight": torch.ones(2)}}, "blocks.0.attn.qkv.weight"),
    ],
)
def test_a_part_that_cannot_be_joined_is_not_lost_in_silence(part, name):
    with pytest.raises(CheckpointError, match=f"has {name} beside the model's tensors, which would be lost"):
        unwrap({"model": weights()} | part)


def test_a_copy_of_the_model_with_a_head_is_not_lost_for_one_without():
    with pytest.raises(CheckpointError, match=r"has head.weight in state_dict alone, which would be lost"):
        unwrap(
            {"state_dict_ema": weights(), "state_dict": weights("module.") | {"module.head.weight": torch.ones(7, 2)}}
        )
    mask = {"masked_embed": torch.ones(1, 2)}  # iBOT's student alone has it
    assert unwrap({"teacher": weights(), "student": weights() | mask}).ignored == ("student",)


def test_the_statement_of_timms_training_script_is_kept():
    kept = {"architecture": "vit_tiny", "model_args": {"act_layer": "relu", "global_pool": "avg"}, "num_classes": 7}
    args = {"model": "other", "model_kwargs": {"act_layer": "relu"}, "gp": "avg", "num_classes": 7, "lr": 0.1}
    assert unwrap({"arch": "vit_tiny", "args": args, "state_dict": weights()}).stated == kept
    assert unwrap({"args": args, "model": weights()}).stated["architecture"] == "other"
    assert unwrap({"arch": None, "args": {"lr": 1}, "model": weights()}).stated == {}
    with pytest.raises(CheckpointError, match="model_kwargs=7, expected an object"):
        unwrap({"arch": "vit_tiny", "args": {"model_kwargs": 7}, "state_dict": weights()})


def test_a_tensor_may_be_named_like_a_container():
    assert list(unwrap({"weights": torch.ones(1), "model": torch.ones(1)}).tensors) == ["weights", "model"]


def test_parameters_become_plain_tensors():
    found = unwrap({"w": torch.nn.Parameter(torch.ones(2))}).tensors["w"]
    assert type(found) is torch.Tensor
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        ({"epoch": 1, "arch": "vit"}, "no weights under epoch, arch"),
        ({"optimizer": {"state": torch.ones(1)}, "epoch": 1}, "no weights under optimizer, epoch"),
        ({}, "no weights under any key"),
        (torch.ones(1), "got a Tensor"),
        ([torch.ones(1)], "got a list"),
        ({0: torch.ones(1)}, "expected tensors with names, got 0"),
        ({"w": torch.ones(1, dtype=torch.complex64)}, "w, got torch.complex64"),
        ({"w": torch.eye(2).to_sparse()}, "w, got torch.float32, torch.sparse_coo"),
        ({"w": torch.empty(2, device="meta")}, "on meta"),
    ],
)
def test_what_holds_no_weights_is_refused_by_what_it_holds(loaded, reason):
    with pytest.raises(CheckpointError, match=reason):
        unwrap(loaded)


def test_nesting_is_bounded():
    nested = weights()
    for _ in range(MAX_NESTING - 1):
        nested = {"model": nested}
    assert len(unwrap(nested).wrappers) == MAX_NESTING - 1
    with pytest.raises(CheckpointError, match=f"over {MAX_NESTING} containers deep"):
        unwrap({"model": nested})


def test_prefixes_are_bounded():
    found = unwrap({"module." * 10_000 + "w": torch.ones(1)})
    assert found.wrappers == ("module.",) * MAX_NESTING


def test_a_dict_that_holds_itself_is_read():
    loaded = {"model": weights()}
    loaded["again"] = loaded["model"]["again"] = loaded
    assert list(unwrap(loaded).tensors) == PLAIN_NAMES


@pytest.mark.slow
def test_one_list_under_many_names_is_searched_once():
    shared = list(range(10_000))
    started = time.process_time()
    found = unwrap({"model": weights()} | {f"extra{n}": [shared] * 1000 for n in range(1000)})
    assert list(found.tensors) == PLAIN_NAMES
    assert time.process_time() - started < 5


@pytest.mark.slow
def test_one_container_under_many_names_is_searched_once():
    shared = {f"k{n}": n for n in range(20_000)} | {"last": torch.ones(1)}
    started = time.process_time()
    found = unwrap({"model": weights()} | {f"loss_{n}": [shared] for n in range(20_000)})
    assert len(found.ignored) == 20_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("name", "count"),
    [("target_scaler", 3), ("temperature_scaler", 1), ("metric_head", 3), ("metric_fc2", 3), ("predictor", 3)],
)
def test_a_neighbour_that_may_belong_to_the_model_is_joined_to_it(name, count):
    found = unwrap({"model": weights(), name: {"weight": torch.ones(count)}})
    assert list(found.tensors) == [*PLAIN_NAMES, f"{name}.weight"]
    assert found.ignored == ()


@pytest.mark.parametrize("key", ["predictor.weight", "metric_fc.weight"])
def test_a_backbone_is_not_loaded_without_a_neighbour_that_may_be_its_head(key):
    with pytest.raises(CheckpointError, match=f"{key} beside it, which would be lost"):
        unwrap(weights("backbone.") | {key: HEAD})
    beside = {"projector.weight": HEAD, "predictor.weight": HEAD}
    assert unwrap(weights("backbone.") | beside).ignored == tuple(beside)


def test_the_predictor_of_pre_training_is_left_out():
    found = unwrap({"encoder": weights(), "target_encoder": weights(), "predictor": {"weight": HEAD}})
    assert (found.wrappers, found.ignored, found.left_out) == (("target_encoder",), ("predictor", "encoder"), ())


@pytest.mark.parametrize(
    "name",
    [
        *("scaler", "grad_scaler", "amp_scaler_state_dict", "loss_scaler", "fp16_scaler", "optimizer_head"),
        *("lr_scheduler", "dino_loss", "train_metrics", "criterion_state", "rng_state", "optimizers", "loss_history"),
    ],
)
def test_what_training_keeps_for_itself_needs_no_remark(name):
    found = unwrap({"model": weights(), name: {"state": torch.ones(3)}})
    assert (list(found.tensors), found.ignored, found.left_out) == (PLAIN_NAMES, (name,), ())


def test_a_decoder_beside_the_model_is_left_out_with_a_remark():
    found = unwrap({"model": weights(), "decoder": {"weight": HEAD}, "optimizer": {"state": torch.ones(3)}})
    assert (found.ignored, found.left_out) == (("decoder", "optimizer"), ("decoder",))
