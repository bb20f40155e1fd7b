"""Networks by name: the paper's, and those its experiments compare on. A file here is a family of them."""

from equalbits.models import convnet, inception, resnet, shufflenet, vgg  # noqa: F401  (each registers its networks)
from equalbits.models.image_classifier import Images, Network
from equalbits.models.layer_factory import BinaryLayers
from equalbits.models.registry import builder_of, create_model, list_models, model_options, register_model

__all__ = [
    "BinaryLayers",
    "Images",
    "Network",
    "builder_of",
    "create_model",
    "list_models",
    "model_options",
    "register_model",
]
