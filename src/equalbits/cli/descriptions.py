"""A line about each name that ``equalbits list`` shows: what it is, and where several are alike, when to take which."""

#: By kind and name. A quantizer that joins by ``register_quantizer`` speaks for itself, by its docstring.
ABOUT: dict[str, dict[str, str]] = {
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
        "abc-net": "ABC-Net: each filter as a sum of `bases` binary ones; with one base it packs into a bit a weight",
        "adabin": "AdaBin: two values of each filter's own in place of ±1",
        "bi-real": "Bi-Real Net: signs times each filter's mean size, the gradient free of it",
        "bihalf": "the paper's: exactly half of every filter is +1, or exactly the share p_pos; the default",
        "binaryconnect": "BinaryConnect: the sign; no gradient for weights beyond ±1",
        "bits": "no real weights at all: the bits themselves, flipped by --set optimizer.name=bop or balanced-bop",
        "bnn": "another name for binaryconnect",
        "bnn-plus": "BNN+: a learned scale for each filter, and a gradient that turns negative away from 0",
        "dorefa": "DoReFa-Net in one bit: signs times the layer's mean size",
        "irnet": "IR-Net as published: take it where a batch norm follows each layer, not elsewhere",
        "irnet-identity": "IR-Net's balance without its gradient: to see what the balance alone does (table 1b)",
        "irnet-stable": "IR-Net without batch norm, as in conv2 to conv8: its gradient takes mean and spread as fixed",
        "irnet-through": "between irnet and irnet-stable: no batch norm needed, but a tenth of the usual lr",
        "least-squares": "signs times each filter's mean size, which the gradient takes as fixed",
        "mpt": "Multi-Prize Tickets: signs stay as they start, learned scores decide which weights are cut to 0",
        "pruned-bihalf": "bi-half with the share `sparsity` of zeros: exactly half of what is kept is +1",
        "pruned-sign": "sign with the smallest weights of each layer cut to 0",
        "rbnn": "RBNN: signs after a learned share of a rotation of each filter",
        "reactnet": "another name for bi-real: ReActNet's weights; its inputs are rsign",
        "recu": "ReCU: standardised filters, their tails clamped so that they can flip, and learned scales",
        "sign": "each weight by its own sign: the paper's baseline, no share of +1 promised",
        "xnor": "XNOR-Net: signs times each filter's mean size, both differentiated",
        "xnor-plus-plus": "XNOR-Net++: signs times a learned scale for each filter",
    },
    "compare-only": {
        "balanced-bop": "Bop that keeps each filter's half; in train: bits:p_pos=0.5 and optimizer.name=balanced-bop",
        "bop": "bits flip where their averaged gradient is strong; in train: bits and optimizer.name=bop",
        "real": "the same net with real weights: what there is to reach",
    },
    "inputs": {
        "adabin": "AdaBin's two learned values in place of ±1",
        "approx-sign": "the sign; its gradient is Bi-Real Net's polynomial (ApproxSign)",
        "bihalf": "in training exactly half of each channel is +1",
        "ede": "the sign; its gradient sharpens as training goes on, as in IR-Net",
        "hwgq": "0 or one positive value, three with bits=2: it stands in for a ReLU",
        "rbnn": "RBNN's sign, of each image's values after they are standardised",
        "rsign": "ReActNet's sign with a learned shift for each channel",
        "sign": "the sign; its gradient passes where inputs lie within ±1: the usual one",
        "sign-straight": "the sign; its gradient passes everywhere",
        "swish-sign": "the sign with BNN+'s gradient",
    },
    "data": {
        "fashion": "10,000 and 2,000 images of Fashion-MNIST that come with the package",
        "cifar10": "60,000 colour images of 32×32 in 10 classes; equalbits download cifar10 fetches them",
        "cifar100": "60,000 colour images of 32×32 in 100 classes; equalbits download cifar100 fetches them",
        "imagenet": "files of your own copy: train/CLASS/*.jpg and val/CLASS/*.jpg",
        "imagefolder": "files of any data set of yours: train/CLASS/*.jpg and test/CLASS/*.jpg",
        "synthetic": "made-up images to try things on, as in synthetic:3x32x32:10",
    },
}


def about(kind: str, name: str, made: object = None) -> str:
    """The line about a name; of one that is not ours, the first line of what it makes.

    >>> about("methods", "sign")
    "each weight by its own sign: the paper's baseline, no share of +1 promised"
    """
    if name in ABOUT[kind]:
        return ABOUT[kind][name]
    first, _, _ = (getattr(made, "__doc__", None) or "").strip().partition("\n")
    return first.replace("``", "").rstrip(".")
