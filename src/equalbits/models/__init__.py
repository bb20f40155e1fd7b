"""Networks by name: those of the paper and of its experiments, one file per family."""

from equalbits.models import convnet, inception, resnet, shufflenet, vgg  # noqa: F401  (each registers its networks)
from equalbits.models.layer_factory import LayerFactory as LayerFactory
from equalbits.models.pretrained_weights import RealWeights as RealWeights
from equalbits.models.pretrained_weights import load_real as load_real
from equalbits.models.registry import create_model as create_model
from equalbits.models.registry import list_models as list_models
from equalbits.models.registry import model_builder as model_builder
from equalbits.models.registry import model_options as model_options
from equalbits.models.registry import register_model as register_model
