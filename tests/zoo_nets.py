"""How torchvision's and timm's networks are built for tests: random weights, but signals that stay alive.

torchvision's wheel wants two operators that a CPU build of PyTorch does not have; they are declared (not implemented)
before the import, which is enough for its classifiers and for timm.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import torch
from torch import Tensor, nn

TORCHVISION_PATTERN = re.compile(
    "(alexnet|vgg|resnet|resnext|wide_resnet|densenet|mobilenet|efficientnet|mnasnet|regnet|shufflenet|squeezenet"
    "|googlenet|inception_v3|convnext)"
)
TIMM_NAMES = (
    "resnet50d resnet26t resnetv2_50 seresnet50 ecaresnet50t skresnet18 res2net50_26w_4s resnest14d cspresnet50 "
    "cspdarknet53 darknet53 dpn68 dla34 hrnet_w18_small regnety_004 tf_efficientnet_b0 tf_efficientnetv2_b0 "
    "mobilenetv3_large_100 mobilenetv4_conv_small ghostnet_100 mnasnet_100 convnext_atto convnextv2_atto repvgg_a0 "
    "xception41 nfnet_l0 vovnet39a selecsls42b inception_next_atto fasternet_t0 efficientvit_b0 mixnet_s"
)
TIMM = TIMM_NAMES.split()
EXTRA_NAMES = (
    "timm:resnet18 timm:resnetaa50 timm:resnetblur50 timm:resnetrs50 timm:gcresnet33ts timm:lambda_resnet26t "
    "timm:bat_resnext26ts timm:eca_nfnet_l0 timm:dm_nfnet_f0 timm:resnetv2_50d_gn timm:tresnet_m timm:densenet121 "
    "timm:densenetblur121d timm:dpn98 timm:dla60_res2next timm:cspresnext50 timm:darknetaa53 timm:ese_vovnet19b_dw "
    "timm:hardcorenas_a timm:fbnetc_100 timm:fbnetv3_b timm:spnasnet_100 timm:semnasnet_100 timm:tinynet_e "
    "timm:lcnet_050 timm:rexnet_100 timm:regnetz_b16 timm:ghostnetv2_100 timm:ghostnetv3_100 timm:repghostnet_050 "
    "timm:mobileone_s0 timm:repvit_m0_9 timm:fastvit_t8 timm:edgenext_xx_small timm:convmixer_768_32 "
    "timm:poolformer_s12 timm:caformer_s18 timm:focalnet_tiny_srf timm:hgnet_tiny timm:hgnetv2_b0 timm:starnet_s1 "
    "timm:legacy_senet154 "
    "timm:legacy_xception timm:inception_v4 timm:inception_resnet_v2 timm:nasnetalarge timm:pnasnet5large "
    "timm:vgg11_bn timm:efficientnet_b0 timm:efficientnet_lite0 timm:mixer_s32_224 timm:resmlp_12_224 timm:rdnet_tiny "
    "timm:xcit_nano_12_p16_224 timm:levit_128s timm:efficientformer_l1 timm:efficientformerv2_s0 timm:mobilevit_xxs "
    "timm:shvit_s1 timm:swiftformer_xs timm:tiny_vit_5m_224 timm:vit_tiny_patch16_224 timm:selecsls60 "
    "torchvision:regnet_y_128gf torchvision:swin_t torchvision:vit_b_32 torchvision:maxvit_t"
)
EXTRA = EXTRA_NAMES.split()

# Pixels a side of the example: enough for the strides of the network, no more. 64 where nothing is said.
SIZES = {
    "inception_v3": 299,  # the kernel of its auxiliary head fits no other size
    "inception_v4": 96,
    "inception_resnet_v2": 96,
    "maxvit_t": 224,
    "vit_b_32": 224,
    "caformer_s18": 96,
    "bat_resnext26ts": 256,
}
# Layers that start as a (near) identity would hide what the branch before them does.
BRANCH_SCALES = ("gamma", "layer_scale", "skipinit_gain", "ls")


def torchvision_models() -> Any:
    """torchvision.models, also where its compiled operators (built for CUDA) do not fit a PyTorch without CUDA."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:  # operator torchvision::nms does not exist
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", schema)
    return importlib.import_module("torchvision.models")


def timm_models() -> Any:
    """timm, which imports torchvision itself."""
    torchvision_models()
    import timm

    return timm


def import_libraries() -> None:
    timm_models()


def torchvision_names() -> list[str]:
    """The 67 classification convnets."""
    models = torchvision_models()
    names = models.list_models(module=models)
    return [f"torchvision:{name}" for name in names if TORCHVISION_PATTERN.match(name) and "128gf" not in name]


def zoo_names() -> list[str]:
    return torchvision_names() + [f"timm:{name}" for name in TIMM]


def create(name: str) -> nn.Module:
    """A network by its full name, `torchvision:resnet18`, without trained weights."""
    library, short = name.split(":")
    if library == "timm":
        return timm_models().create_model(short)  # type: ignore[no-any-return]
    options = {"init_weights": False} if short in ("googlenet", "inception_v3") else {}
    return torchvision_models().get_model(short, weights=None, **options)  # type: ignore[no-any-return]


def example(name: str, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    short = name.split(":")[1]
    size = SIZES.get(short, 224 if re.search("_224$|^vit_", short) else 64)
    generator = torch.Generator().manual_seed(7)
    return torch.randn(batch, 3, size, size, dtype=dtype, generator=generator)


@torch.no_grad()
def randomise(model: nn.Module, image: Tensor, seed: int = 0) -> nn.Module:
    """Random weights and statistics such that every branch counts and rounding errors are not amplified.

    Convolutions are He-initialised, norms get random scales and offsets, the last norm of each residual branch is
    scaled by 0.2; statistics come from one forward on noise and are then shaken, so that signals keep their size.
    """
    torch.manual_seed(seed)
    for module in model.modules():
        shake(module)
    for norm in last_norms(model):
        norm.weight.mul_(0.2)
        norm.bias.mul_(0.2)
    settle(model, image)
    return model.eval()


def shake(module: nn.Module) -> None:
    layer = isinstance(module, (nn.modules.conv._ConvNd, nn.Linear))
    for name, parameter in module.named_parameters(recurse=False):
        if layer and name == "weight":
            parameter.normal_(0.0, (2.0 / max(parameter[0].numel(), 1)) ** 0.5)
        elif any(name.startswith(word) for word in BRANCH_SCALES):
            parameter.uniform_(0.1, 0.3)
        elif name in ("weight", "gain"):
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(0.0, 0.2)


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.weight is not None


def last_norms(model: nn.Module) -> list[nn.Module]:
    """The last norm of each module that holds a residual branch; by its class's name, as there is no other sign."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        kind = type(module).__name__
        if re.search("Bottle|BasicBlock|Residual|MBConv|ResBlock|ResBottleneck|Block$|Bottle2neck|PreAct", kind):
            branch = [m for n, m in module.named_modules() if is_norm(m) and not re.search("downsample|shortcut", n)]
            if branch and "Dense" not in kind:
                found[id(branch[-1])] = branch[-1]
    return list(found.values())


def settle(model: nn.Module, image: Tensor) -> None:
    """One forward in eval mode; each norm takes its statistics, shaken, from what enters it just then."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    handles = [norm.register_forward_pre_hook(take_statistics) for norm in norms]
    model.eval()
    try:
        model(image)
    finally:
        for handle in handles:
            handle.remove()


def take_statistics(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    x = arguments[0]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, noise = norm.running_mean, torch.randn_like(norm.running_mean)
    # One variance for all channels: a small map has channels that hardly vary, and dividing by that amplifies.
    variance = x.var(axes).nan_to_num().mean().clamp(min=0.01)
    norm.running_var.copy_(variance * torch.empty_like(mean).uniform_(0.7, 1.4))
    mean.copy_(x.mean(axes) + 0.2 * noise * variance.sqrt())
