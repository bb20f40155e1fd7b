"""One-line descriptions for ``equalbits list``: what a name is, and when to use which of similar ones."""

#: By kind and name. Registered models and quantizers that are not listed use the first line of their docstring.
DESCRIPTIONS: dict[str, dict[str, str]] = {
    "models": {
        "conv2": "the paper's shallow net: 2 convolutions, 3 linear layers, all binary, no batch norm by default",
        "conv4": "as conv2, with 4 convolutions",
        "conv6": "as conv2, with 6 convolutions",
        "conv8": "as conv2, with 8 convolutions",
        "imagenet_resnet18": "ResNet-18 for large images: a 7×7 stem, a max pool; first, last and shortcut layers real",
        "imagenet_resnet34": "as imagenet_resnet18, with 34 layers",
        "inception_v3": "Inception-v3 for small images: 94 convolutions in eleven blocks, no auxiliary classifier",
        "resnet18": "ResNet-18 for small images: a 3×3 stem, no pool; first, last and shortcut layers real",
        "resnet20": "IR-Net's ResNet-20 for small images: shortcuts without weights",
        "resnet34": "as resnet18, with 34 layers",
        "shufflenet": "ShuffleNet for small images: three stages of 4, 8 and 4 units",
        "vgg16": "VGG-16 for small images: 13 convolutions and 3 linear layers; the first and the last real",
    },
    "methods": {
        "abc-net": "ABC-Net: each filter is a sum of `bases` binary ones; one base packs to one bit per weight",
        "adabin": "AdaBin: two values per filter instead of ±1",
        "bi-real": "Bi-Real Net: signs times each filter's mean magnitude, which the gradient leaves out",
        "bihalf": "the paper's method: exactly half of each filter is +1, or the share p_pos; the default",
        "binaryconnect": "BinaryConnect: sign; no gradient for weights beyond ±1",
        "bits": "binary weights without latents, trained with optimizer.name=bop or balanced-bop",
        "bnn": "another name for binaryconnect",
        "bnn-plus": "BNN+: a learned scale per filter; the gradient becomes negative away from 0",
        "dorefa": "DoReFa-Net in one bit: signs times the layer's mean magnitude",
        "irnet": "IR-Net as published: use it only where a batch norm follows each layer",
        "irnet-identity": "IR-Net's balancing with an identity gradient, to study the balancing alone (table 1b)",
        "irnet-stable": "IR-Net without batch norm, as in conv2 to conv8: mean and std constant in the gradient",
        "irnet-through": "as irnet-stable, with the gradient through mean and std; needs a tenth of the usual lr",
        "least-squares": "signs times each filter's mean magnitude, a constant in the gradient",
        "mpt": "Multi-Prize Tickets: signs stay at their initial values, learned scores prune weights to 0",
        "pruned-bihalf": "bi-half with the share `sparsity` of zeros: exactly half of the kept weights are +1",
        "pruned-sign": "sign with the smallest weights of each layer pruned to 0",
        "rbnn": "RBNN: signs after a learned rotation of each filter",
        "reactnet": "another name for bi-real, which ReActNet uses for weights; its input quantizer is rsign",
        "recu": "ReCU: standardized filters with clamped tails, so that weights can flip, and learned scales",
        "sign": "the sign of each weight: the paper's baseline, no promised share of +1",
        "xnor": "XNOR-Net: signs times each filter's mean magnitude, both differentiated",
        "xnor-plus-plus": "XNOR-Net++: signs times a learned scale per filter",
        "zero-mean": "a control: two values per filter with zero mean and unit variance, whatever the share of +1",
    },
    "compare-only": {
        "balanced-bop": "Bop with exactly half +1 per filter; in train: bits:p_pos=0.5, optimizer.name=balanced-bop",
        "bop": "bits flip where their averaged gradient exceeds a threshold; in train: bits, optimizer.name=bop",
        "real": "the same network with real weights, as a reference",
    },
    "inputs": {
        "adabin": "AdaBin: two learned values instead of ±1",
        "approx-sign": "sign with the polynomial gradient of Bi-Real Net (ApproxSign)",
        "bihalf": "exactly half of each channel is +1 in training",
        "ede": "sign; its gradient sharpens during training, as in IR-Net",
        "horq": "HORQ: a sum of two scaled signs, the second of the residual that the first leaves",
        "hwgq": "HWGQ: 0 or one positive value (three with bits=2); replaces a ReLU",
        "rbnn": "RBNN: sign of the standardized values of each image",
        "rsign": "ReActNet: sign with a learned shift per channel",
        "sign": "sign; the gradient passes where the input is within ±1: the usual choice",
        "sign-straight": "sign; the gradient passes everywhere",
        "swish-sign": "sign with the gradient of BNN+",
    },
    "data": {
        "fashion": "10,000 training and 2,000 test images of Fashion-MNIST, part of the package",
        "cifar10": "60,000 color images of 32×32 in 10 classes; get it with equalbits download cifar10",
        "cifar100": "60,000 color images of 32×32 in 100 classes; get it with equalbits download cifar100",
        "imagenet": "your copy of ImageNet: train/CLASS/*.jpg and val/CLASS/*.jpg",
        "imagefolder": "any data set of image files: train/CLASS/*.jpg and test/CLASS/*.jpg",
        "synthetic": "random images for trying things out, such as synthetic:3x32x32:10",
    },
}


def describe(kind: str, name: str, documented: object = None) -> str:
    """Return the description of a name; for a registered one, the first docstring line of ``documented``.

    >>> describe("methods", "sign")
    "the sign of each weight: the paper's baseline, no promised share of +1"
    """
    if name in DESCRIPTIONS[kind]:
        return DESCRIPTIONS[kind][name]
    first, _, _ = (getattr(documented, "__doc__", None) or "").strip().partition("\n")
    return first.replace("``", "").rstrip(".")
