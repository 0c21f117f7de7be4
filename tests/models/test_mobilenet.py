from __future__ import annotations

from urllib.error import URLError

import pytest
import torch
from torchvision.models import mobilenet_v2

from fl_lightning.models import MobileNetV2Classifier

WEIGHTS_FILE = "mobilenet_v2-b0353104.pth"


@pytest.fixture
def weights_file(tmp_path):
    """A file of the right names and shapes, with random weights."""
    torch.manual_seed(7)
    path = tmp_path / "hub" / "checkpoints" / WEIGHTS_FILE
    path.parent.mkdir(parents=True)
    torch.save(mobilenet_v2(weights=None).state_dict(), path)
    return path


# Last bottleneck, 160 -> 960 -> 320: expand, depthwise 3x3, project, each with BatchNorm's scale and shift.
BOTTLENECK = (160 * 960 + 2 * 960) + (9 * 960 + 2 * 960) + (960 * 320 + 2 * 320)
LAST_CONVOLUTION, CLASSIFIER = 320 * 1280 + 2 * 1280, 1280 * 10 + 10


def test_trainable_parameters():
    for options, parameters in [
        ({}, BOTTLENECK + LAST_CONVOLUTION + CLASSIFIER),
        ({"trainable_from": "last_conv"}, LAST_CONVOLUTION + CLASSIFIER),
        ({"trainable_from": "classifier"}, CLASSIFIER),
    ]:
        module = MobileNetV2Classifier(weights=None, **options)
        trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        assert trained == parameters
        if not options:  # as in the experiments
            assert (trained, sum(p.numel() for p in module.prefix.parameters())) == (898_890, 1_337_792)
        assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
        logits = module.classifier[1]
        assert (logits.weight.std().item(), logits.bias.any().item()) == (pytest.approx(0.01, rel=0.05), False)


@pytest.mark.parametrize(("image_size", "side"), [(None, 20), (64, 32)])
def test_any_image_size(image_size, side):
    module = MobileNetV2Classifier(num_classes=3, weights=None, image_size=image_size).eval()
    assert module(torch.zeros(2, 3, side, side)).shape == (2, 3)
    resized = "Identity()" if image_size is None else "Upsample(size=(64, 64), mode='bilinear')"
    assert str(module.prefix.layers[0]) == resized


def test_equals_torchvision_s_network_up_to_the_classifier(weights_file):
    network = mobilenet_v2(weights=None).eval()
    network.load_state_dict(torch.load(weights_file, weights_only=True))
    module = MobileNetV2Classifier(weights=weights_file, reinitialize_tail=False).eval()
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(module.tail(module.prefix(x)), network.features(x), rtol=1e-4, atol=1e-5)


def test_imagenet_weights_come_from_torch_hub_s_cache_but_for_the_tail(weights_file, tmp_path, monkeypatch):
    monkeypatch.setenv("FL_LIGHTNING_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("TORCH_HOME", str(weights_file.parents[2]))
    torch.manual_seed(0)
    module = MobileNetV2Classifier()
    state = torch.load(weights_file, weights_only=True)
    assert torch.equal(module.prefix.layers[1][0].weight, state["features.0.0.weight"])
    assert not torch.equal(module.tail[1][0].weight, state["features.18.0.weight"])


@pytest.mark.parametrize(("folder", "variable"), [("weights", "elsewhere"), (".", None)])
def test_imagenet_weights_are_looked_for_among_the_data(folder, variable, weights_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(weights_file.parents[2]))  # which comes after the folder of the data
    monkeypatch.delenv("FL_LIGHTNING_DATA", raising=False)
    if variable is not None:
        monkeypatch.setenv("FL_LIGHTNING_DATA", variable)
    place = tmp_path / (variable or "data") / folder / WEIGHTS_FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    state = mobilenet_v2(weights=None).state_dict()
    torch.save(state, place)
    module = MobileNetV2Classifier()
    assert torch.equal(module.prefix.layers[1][0].weight, state["features.0.0.weight"])
    assert module.hparams["weights"] == "imagenet"  # what is recorded does not depend on the place
    place.write_bytes(b"")
    told = f"such as {WEIGHTS_FILE} from https://.*{place.relative_to(tmp_path)}. PyTorch says: "
    with pytest.raises(ValueError, match=told):
        MobileNetV2Classifier()


def test_failed_download_names_the_file_and_its_place(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        assert kwargs["check_hash"]
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("FL_LIGHTNING_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    place = f"data/weights/{WEIGHTS_FILE} .*FL_LIGHTNING_DATA"
    told = rf"{WEIGHTS_FILE} could .*no network.*Put the file from https://.*\.pth at {place}"
    with pytest.raises(RuntimeError, match=told):
        MobileNetV2Classifier()


@pytest.mark.realdata
def test_real_weights_run_forward(real_data):
    module = MobileNetV2Classifier(image_size=64, weights=real_data / "weights" / WEIGHTS_FILE).eval()
    with torch.no_grad():
        logits = module(torch.rand(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()
