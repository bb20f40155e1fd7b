"""The methods one may compare, by name: what each sets in a recipe, and how each starts."""

import re

import torch
from torch import nn

from equalbits._text import unknown_name
from equalbits.nn import BinaryLayer, list_quantizers, quantizer_by_name
from equalbits.recipes.build import ImageSpec, make_model
from equalbits.recipes.recipe import Recipe

#: The net itself, nothing binary: what there is to reach.
REAL = "real"
#: Methods that are more than a quantizer. Bop's gamma and tau, and what trains the real parameters, are the recipe's.
_MORE = {
    "bop": {"model.weight_quantizer": "bits", "optimizer.name": "bop"},
    "balanced-bop": {"model.weight_quantizer": "bits:p_pos=0.5", "optimizer.name": "balanced-bop"},
    REAL: {"model.weight_quantizer": ""},
}
_SAME_AS_ANOTHER = {"bnn", "reactnet"}


def list_methods() -> list[str]:
    """Every method that can be compared, each once: of two names for the same weights only the older.

    >>> {"sign", "bihalf", "bop", "real"} <= set(list_methods())
    True
    """
    return [*sorted({*list_quantizers(), *_MORE} - _SAME_AS_ANOTHER - {"bits", REAL}), REAL]


def parse_methods(text: str) -> list[str]:
    """Read names parted by commas, ``all`` for every one there is; settings may follow a name's colon.

    >>> parse_methods("sign,bihalf:p_pos=0.25,irnet:t_min=0.1,t_max=5")
    ['sign', 'bihalf:p_pos=0.25', 'irnet:t_min=0.1,t_max=5']
    >>> parse_methods("bihlaf")
    Traceback (most recent call last):
    ValueError: method 'bihlaf' is not known: did you mean 'bihalf'? There are: ...
    """
    found = [name for word in split_values(text) if word for name in (list_methods() if word == "all" else [word])]
    if not found:
        raise ValueError(f"--methods {text!r} names none: write all, or names as in sign,bihalf")
    for method in found:
        check_method(method)
    return list(dict.fromkeys(found))


def split_values(text: str) -> list[str]:
    """Values parted by commas; those inside brackets, and those between settings of one method, part nothing.

    >>> split_values("sign,irnet:t_min=0.1,t_max=5")
    ['sign', 'irnet:t_min=0.1,t_max=5']
    >>> split_values("[10, 20],[30]")
    ['[10, 20]', '[30]']
    """
    found: list[str] = []
    for word in (part.strip() for part in re.split(r",(?![^\[]*\])", text)):
        if found and ":" in found[-1] and re.match(r"\w+\s*=", word):
            found[-1] += f",{word}"  # the second setting of one method
        else:
            found.append(word)
    return found


def check_method(method: str) -> None:
    """Refuse a name that is no method, and settings that it does not take."""
    name = method.partition(":")[0]
    if name not in {*list_methods(), *_SAME_AS_ANOTHER}:
        raise unknown_name("method", name, list_methods())
    if method in _MORE:
        return
    if name in _MORE:
        raise ValueError(f"method {name!r} takes no settings: write {name}, and set its optimizer's, if any, by --set")
    quantizer_by_name(method)


def recipe_for(method: str, recipe: Recipe) -> Recipe:
    """The recipe with this method and nothing else changed."""
    return recipe.with_settings(_MORE.get(method, {"model.weight_quantizer": method}))


def make_alike(recipe: Recipe, images: ImageSpec) -> nn.Module:
    """The recipe's model, its weights those that every method starts from with this seed.

    A method that draws numbers of its own (scores, rotations) while the net is made would move all that is drawn
    after it. So the weights are taken from a plain net, and each method then makes what it keeps anew from them.
    """
    model = make_model(recipe, images)
    plain = make_model(recipe.with_settings({"model.weight_quantizer": "sign"}), images)
    start = dict(plain.named_parameters())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        for name, parameter in model.named_parameters():
            if name in start:
                parameter.copy_(start[name])
        for layer in model.modules():
            if isinstance(layer, BinaryLayer):
                layer.weight_quantizer.fit_(layer.to_filters(layer.weight.detach()))
    return model
