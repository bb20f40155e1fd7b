"""Check an installed wheel: its native engine gives the stored logits of every network of the package, without torch,
and its web page can be written.

Run it with the Python of a new environment, from any directory: ``python -I tests/release/check_wheel.py``.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

import equalbits as eb
from equalbits.runtime import find_packed, list_zoo, web_page


def main() -> None:
    """Raise if the installed package does not work."""
    place = Path(eb.__file__)
    assert place.is_relative_to(sys.prefix), f"{place} is not the installed package"
    assert importlib.util.find_spec("torch") is None, "the environment has torch: the check is of one without"
    built = sorted(path.name for path in (place.parent / "runtime" / "native").glob("_native*.so"))
    assert len(built) == 1, f"the wheel holds the engines {built}, not one"
    assert list_zoo(), "the wheel holds no network"
    for name in list_zoo():
        with np.load(find_packed(f"zoo:{name}").with_suffix(".npz"), allow_pickle=False) as stored:
            images, expected = stored["images"], stored["logits"]
        model = eb.load_packed(f"zoo:{name}")
        assert model.engine.startswith("native"), f"the wheel runs {name} with {model.engine}"
        np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-3 * np.abs(expected).max())
        assert len(web_page(model, examples=images)) > 100_000, "the wheel holds no engine for web pages"
        print(f"equalbits {eb.__version__}: zoo:{name} gives the stored logits ({model.engine})")


if __name__ == "__main__":
    main()
