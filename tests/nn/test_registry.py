"""Quantizers by name."""

from collections.abc import Iterator

import pytest
import torch

from equalbits.nn import (
    BiHalf,
    IRNet,
    RBNNActivation,
    Sign,
    SignActivation,
    WeightQuantizer,
    input_quantizer_by_name,
    list_input_quantizers,
    list_quantizers,
    quantizer_by_name,
    register_input_quantizer,
    register_quantizer,
    registry,
)
from equalbits.nn.registry import input_quantizer_settings, quantizer_settings


@pytest.fixture
def tables_restored() -> Iterator[None]:
    tables = [registry._weights.factories, registry._inputs.factories]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("sign", Sign()),
        ("bihalf", BiHalf()),
        ("bihalf:p_pos=0.25", BiHalf(0.25)),
        ("bihalf:p_pos=0.25,estimator=clipped", BiHalf(0.25, estimator="clipped")),
        ("sign:estimator=clipped", Sign(estimator="clipped")),
        ("irnet", IRNet("learned")),
        ("irnet-stable", IRNet("fixed")),
        ("irnet-through", IRNet("through")),
        ("irnet-identity", IRNet("identity")),
        ("irnet: t_min = 0.001, t_max = 5", IRNet(t_min=0.001, t_max=5)),
    ],
)
def test_a_name_creates_the_weight_quantizer_with_its_settings(name: str, made: WeightQuantizer) -> None:
    assert repr(quantizer_by_name(name)) == repr(made)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("sign", SignActivation("clipped")),
        ("approx-sign", SignActivation("polynomial")),
        ("ede:t_min=0.001", SignActivation("decaying", t_min=0.001)),
        ("sign-straight", SignActivation("straight")),
        ("rbnn:t_max=5", RBNNActivation(t_max=5)),
    ],
)
def test_a_name_creates_the_input_quantizer_with_its_settings(name: str, made: SignActivation) -> None:
    assert repr(input_quantizer_by_name(name)) == repr(made)


def test_every_name_creates_a_quantizer_with_valid_symbols() -> None:
    latents = torch.randn(4, 18)
    for name in list_quantizers():
        quantizer = quantizer_by_name(name)
        quantizer.fit_(latents)
        assert set(quantizer.symbols(latents).unique().tolist()) <= {-1.0, 0.0, 1.0}, name
    for name in list_input_quantizers():
        inputs = input_quantizer_by_name(name)
        inputs.fit_inputs_(18, axis=-1)
        assert len(inputs(latents).unique()) == 2, name


def test_each_call_creates_a_new_quantizer() -> None:
    assert quantizer_by_name("bihalf") is not quantizer_by_name("bihalf")


@pytest.mark.parametrize(("word", "meant"), [("true", True), ("True", True), ("false", False), ("False", False)])
def test_booleans_are_parsed_in_python_and_toml_spelling(word: str, meant: bool) -> None:
    assert quantizer_by_name(f"xnor:centre={word}").centre is meant


def test_settings_are_listed_with_their_defaults() -> None:
    assert quantizer_settings("irnet") == {"t_min": 0.1, "t_max": 10.0}
    assert quantizer_settings("sign") == {"estimator": "straight"}
    assert quantizer_settings("bi-real") == input_quantizer_settings("sign") == {}
    assert input_quantizer_settings("hwgq") == {"bits": 1}
    with pytest.raises(ValueError, match="did you mean 'bihalf'"):
        quantizer_settings("bihlaf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bihlaf", "did you mean 'bihalf'"),
        ("zzz", "there are: .*'bihalf'"),
        ("bihalf:p=0.25", "setting 'p' is not known: there are: 'estimator', 'p_pos'"),
        ("bi-real:p_pos=0.25", "weight quantizer 'bi-real': setting 'p_pos' is not known: there is none to give"),
        ("bihalf:0.25", "write name=value"),
        ("bihalf:p_pos=", "write name=value"),
        ("bihalf:p_pos=half", "p_pos=half of 'bihalf:p_pos=half' must be a number, as in p_pos=0.5"),
        ("pruned-bihalf:ramp=half", "ramp=half of 'pruned-bihalf:ramp=half' must be a number"),
        ("irnet:t_max=half", "t_max=half of 'irnet:t_max=half' must be a number"),
        ("bihalf:p_pos=2", r"p_pos=2 is not a share: it must be a number in \[0, 1\]"),
    ],
)
def test_invalid_text_raises_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantizer_by_name(text)


def test_an_unused_setting_of_an_input_quantizer_raises() -> None:
    with pytest.raises(ValueError, match="'t_min' is not known"):
        input_quantizer_by_name("sign:t_min=0.1")


def test_a_missing_required_setting_is_named(tables_restored: None) -> None:
    register_quantizer("share")(lambda p_pos: BiHalf(p_pos))
    with pytest.raises(ValueError, match="p_pos"):
        quantizer_by_name("share")


def test_a_registered_method_is_found_by_its_name(tables_restored: None) -> None:
    @register_quantizer("all-ones")
    class AllOnes(WeightQuantizer):
        def __init__(self, value: float = 1.0) -> None:
            super().__init__()
            self.value = value

    @register_input_quantizer("nothing")
    class Nothing(torch.nn.Identity):
        pass

    made = quantizer_by_name("all-ones:value=-1")
    assert isinstance(made, AllOnes)
    assert made.value == -1
    assert isinstance(input_quantizer_by_name("nothing"), Nothing)
    assert "all-ones" in list_quantizers()
    assert "nothing" in list_input_quantizers()


@pytest.mark.parametrize("register", [register_quantizer, register_input_quantizer])
def test_a_taken_or_invalid_name_raises(register: object) -> None:
    with pytest.raises(ValueError, match="'sign' is taken"):
        register("sign")  # type: ignore[operator]
    with pytest.raises(ValueError, match="cannot name"):
        register("a:b")  # type: ignore[operator]
    with pytest.raises(ValueError, match="cannot name"):
        register(Sign)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bihalf:p_pos=0.25,p_pos=0.5", "p_pos is given twice"),
        ("xnor:centre=no", "centre=no of 'xnor:centre=no' must be true or false"),
        ("binaryconnect:stochastic=off", "stochastic=off of .* must be true or false"),
        ("pruned-bihalf:sparsity=90%", "sparsity=90% of .* must be a number, as in sparsity=0.5"),
        ("irnet:t_max=inf", "t_max=inf of 'irnet:t_max=inf' must be a number, as in t_max=10.0"),
        ("bnn-plus:beta=nan", "beta=nan of 'bnn-plus:beta=nan' must be a number, as in beta=5.0"),
    ],
)
def test_values_of_the_wrong_type_raise(name, message):
    with pytest.raises(ValueError, match=message):
        quantizer_by_name(name)
