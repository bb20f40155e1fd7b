"""Runs in the layout of the Hub: writing, reading and refusals."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from small_recipe import own

import equalbits as eb
from equalbits.training import CheckpointError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return eb.run_recipe(own(), tmp_path_factory.mktemp("runs") / "a", device="cpu")


@pytest.fixture
def saved(run, tmp_path) -> Path:
    return eb.save_pretrained(run, tmp_path / "shared")


def test_a_shared_model_gives_the_outputs_of_the_run(run, saved):
    images = eb.load_run(run.out)
    loaded = eb.from_pretrained(saved)
    shape = json.loads((saved / "config.json").read_text())["images"]
    batch = torch.randn(4, shape["channels"], shape["size"], shape["size"])
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(batch), images.model(batch))
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_the_card_states_the_score_the_bits_and_the_recipe(run, saved):
    card, score = (saved / "README.md").read_text(), run.history.last.test
    assert card.startswith("---\nlibrary_name: equalbits\n")
    assert f"({score.correct:,} of {score.total:,} test images)" in card
    assert "filters are exact" in card
    assert run.recipe.to_toml().rstrip() in card


def test_the_card_has_a_header_that_the_hub_reads(run, saved):
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(saved / "README.md").data
    assert data.library_name == "equalbits"
    assert data.eval_results[0].metric_value == pytest.approx(run.history.last.test.accuracy, abs=0.01)


def test_uploading_creates_the_repository_and_sends_the_files(run, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    created = []
    monkeypatch.setattr(hub.HfApi, "create_repo", lambda self, name, **settings: created.append((name, settings)))
    monkeypatch.setattr(
        hub.HfApi, "upload_folder", lambda self, *, folder_path, **_: shutil.copytree(folder_path, tmp_path / "remote")
    )
    assert eb.push_to_hub(run.out, "me/net", private=True) == "https://huggingface.co/me/net"
    assert created == [("me/net", {"private": True, "exist_ok": True})]
    assert 'eb.from_pretrained("me/net")' in (tmp_path / "remote" / "README.md").read_text()
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str(tmp_path / "remote"))
    loaded = eb.from_pretrained("me/net")
    assert all(torch.equal(value, run.model.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_an_unreachable_hub_is_reported_in_one_line(run, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    monkeypatch.setattr(hub.HfApi, "create_repo", refuse)
    with pytest.raises(ValueError, match=r"^me/net could not be loaded from the Hub: no route to host$"):
        eb.from_pretrained("me/net")
    with pytest.raises(ValueError, match=r"^me/net could not be uploaded to the Hub: no route to host$"):
        eb.push_to_hub(run.out, "me/net")


def test_a_file_is_no_place_to_save_a_run_in(run, tmp_path):
    (tmp_path / "net").write_text("")
    with pytest.raises(ValueError, match=r"net is a file: give a directory"):
        eb.save_pretrained(run, tmp_path / "net")


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"recipe": 1, "images": 2}'])
def test_a_damaged_config_is_refused_in_one_line(saved, config):
    (saved / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"config\.json does not describe a model of equalbits"):
        eb.from_pretrained(saved)


def test_a_config_of_a_huge_network_is_refused_before_memory_is_taken(saved):
    facts = json.loads((saved / "config.json").read_text())
    facts["recipe"]["model"]["options"] = {"width": 100_000.0}  # the first layers take terabytes
    (saved / "config.json").write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=r"model.safetensors has no \S+ of the shape that config.json describes"):
        eb.from_pretrained(saved)


def test_a_name_of_any_length_is_refused_in_a_short_line(saved):
    facts = json.loads((saved / "config.json").read_text())
    facts["recipe"]["model"]["name"] = "x" * 100_000
    (saved / "config.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match="is not known") as refused:
        eb.from_pretrained(saved)
    assert len(str(refused.value)) < 1000


def test_other_places_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="does not exist: give a directory of save_pretrained, or OWNER/NAME"):
        eb.from_pretrained(tmp_path / "nothing")
    (saved / "config.json").unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        eb.from_pretrained(saved)


def test_a_recipe_trains_and_shares_a_network_of_timm(tmp_path):
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):
        pytest.skip("timm does not import")
    settings = {"model.name": "timm:test_resnet", "model.input_quantizer": "sign"}
    run = eb.run_recipe(own().with_settings(settings), tmp_path / "run", device="cpu")
    assert eb.audit(run.model).exact
    eb.save_pretrained(run.out, tmp_path / "shared")
    assert type(eb.from_pretrained(tmp_path / "shared")).__name__ == "ResNet"
    with pytest.raises(ValueError, match="timm has no model 'resnet1'"):
        eb.create_model("timm:resnet1")
