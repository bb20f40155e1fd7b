"""Networks by name: those of the paper and of its experiments, one file per family."""

from equalbits.models import convnet, inception, resnet, shufflenet, vgg  # noqa: F401  (each registers its networks)
from equalbits.models.image_classifier import ImageClassifier, ImageShape
from equalbits.models.layer_factory import LayerFactory
from equalbits.models.pretrained_weights import RealWeights, load_real
from equalbits.models.registry import create_model, list_models, model_builder, model_options, register_model

__all__ = [
    "ImageClassifier",
    "ImageShape",
    "LayerFactory",
    "RealWeights",
    "create_model",
    "list_models",
    "load_real",
    "model_builder",
    "model_options",
    "register_model",
]
