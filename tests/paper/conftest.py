"""Settings so small that an item is measured in a second or two."""

import pytest

from equalbits.paper import Options

TINY = {"data.name": "synthetic:1x16x16:10:96", "data.limit": 0, "data.batch_size": 32, "epochs": 1}


@pytest.fixture(scope="session")
def tiny():
    """Quick options made smaller still; more settings, seeds and grids by name."""

    def make(settings=None, **options):
        return Options(**{"quick": True, "device": "cpu", "settings": {**TINY, **(settings or {})}, **options})

    return make


@pytest.fixture(scope="session")
def drawn():
    """Assert that an item left its pictures and rows."""

    def check(out, name):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.svg").read_text().count("<svg") == 1
        assert (out / "claims.md").read_text().startswith(f"# {name}: ")
        assert (out / "claims.json").exists()

    return check
