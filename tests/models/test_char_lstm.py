from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_lightning.models import CharLSTM

CELLS = ["tensorflow", "torch"]


def small(**kwargs) -> CharLSTM:
    return CharLSTM(num_classes=7, embedding_dim=3, hidden_size=5, **kwargs)


def characters(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(7, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def gradients(module: CharLSTM, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def test_parameters_of_the_two_papers_networks():
    for arguments, parameters in [
        # embedding 80*8; gates 4*256*(8+256+1) and 4*256*(256+256+1); dense 256*80 + 80
        ({}, 640 + 271_360 + 525_312 + 20_560),
        # with two biases: gates 4*100*(8+100+2) and 4*100*(100+100+2)
        ({"hidden_size": 100, "cell": "torch"}, 640 + 44_000 + 80_800 + 8_080),
    ]:
        module = CharLSTM(**arguments)
        assert sum(parameter.numel() for parameter in module.parameters()) == parameters
        assert parameters in (817_872, 133_520)
        assert module(torch.zeros(2, 80, dtype=torch.uint8)).shape == (2, 80)


def test_tensorflow_cells_start_with_forget_bias_1_and_glorot_weights():
    torch.manual_seed(0)
    module = CharLSTM()
    for layer, inputs in zip(module.layers, (8, 256), strict=True):
        i, f, g, o = layer.bias_ih.chunk(4)
        assert f.tolist() == [1.0] * 256
        assert not torch.cat([i, g, o]).any()
        assert not layer.bias_hh.any()
        bound = math.sqrt(6 / (inputs + 256 + 1024))
        for weight in (layer.weight_ih, layer.weight_hh):
            assert weight.abs().max() <= bound
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert module.embedding.weight.abs().max() <= math.sqrt(6 / 88)
    assert module.logits.weight.std().item() == pytest.approx(math.sqrt(6 / 336) / math.sqrt(3), rel=0.02)
    assert not module.logits.bias.any()
    assert not any("bias_hh" in name for name in module.state_dict())


def test_torch_s_cells_start_as_those_of_nn_lstm():
    torch.manual_seed(0)
    for layer in CharLSTM(cell="torch").layers:
        for drawn in layer.parameters():
            assert drawn.abs().max() <= 1 / 16
            assert drawn.std().item() == pytest.approx(1 / 16 / math.sqrt(3), rel=0.05)


def test_one_step_by_hand():
    for recurrence in ["fused", "plain"]:
        module = CharLSTM(num_classes=2, embedding_dim=1, hidden_size=1, num_layers=1, recurrence=recurrence)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
            module.embedding.weight[1] = 1.0
            module.layers[0].weight_ih[:, 0] = torch.tensor([0.0, 0.0, 1.0, 0.0])  # the cell gate alone sees the input
            module.layers[0].bias_ih[1] = 1.0
            module.logits.weight[0] = 1.0
        # step 1: c = tanh(1)/2; step 2, input 0: c = sigmoid(1) tanh(1)/2 and h = tanh(c)/2
        cell = 1 / (1 + math.exp(-1)) * math.tanh(1) / 2
        assert module(torch.tensor([[1, 0]]))[0].tolist() == pytest.approx([math.tanh(cell) / 2, 0.0])


def test_it_computes_what_torchs_lstm_does():
    for cell in CELLS:
        module = small(cell=cell)
        reference = nn.LSTM(3, 5, num_layers=2, batch_first=True)
        with torch.no_grad():
            for number, layer in enumerate(module.layers):
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(reference, f"{name}_l{number}").copy_(getattr(layer, name))
        x = characters(4, 9)
        outputs, _ = reference(module.embedding(x.long()))
        assert torch.allclose(module(x), module.logits(outputs[:, -1]), atol=1e-6)


def test_plain_and_fused_recurrence_share_weights_outputs_and_gradients():
    for cell in CELLS:
        fused, plain = small(cell=cell), small(cell=cell, recurrence="plain")
        plain.load_state_dict(fused.state_dict())
        x, y = characters(6, 20), characters(6).long()
        assert torch.allclose(plain(x), fused(x), atol=1e-6)
        ours, theirs = gradients(plain, x, y), gradients(fused, x, y)
        assert ours.keys() == theirs.keys()
        for name, gradient in ours.items():
            assert torch.allclose(gradient, theirs[name], atol=1e-6), name


def test_weights_are_read_at_each_call():
    module, other = small(), small()
    x = characters(2, 5)
    assert torch.equal(functional_call(module, dict(other.named_parameters()), (x,)), other(x))
