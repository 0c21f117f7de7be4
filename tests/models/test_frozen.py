from __future__ import annotations

import torch
from torch import nn

from fl_lightning.models.frozen import FrozenPrefix


def make_prefix(seed: int = 0, stride: int = 1) -> FrozenPrefix:
    torch.manual_seed(seed)
    return FrozenPrefix(
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=stride), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 6, 1))
    )


def test_is_frozen_and_stays_in_evaluation_mode():
    network = nn.Sequential(make_prefix(), nn.Flatten(), nn.LazyLinear(2))
    network.train()
    assert not any(part.training for part in network[0].modules())
    before = {name: tensor.clone() for name, tensor in network[0].state_dict().items()}
    network(torch.randn(4, 3, 5, 5)).sum().backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in network[0].state_dict().items())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in network[0].parameters())
    assert not network[0](torch.ones(1, 3, 5, 5, requires_grad=True)).requires_grad


def test_bypass_returns_the_input_and_keeps_state_and_fingerprint():
    prefix = make_prefix()
    names, fingerprint = list(prefix.state_dict()), prefix.fingerprint()
    prefix.bypass = True
    features = torch.randn(2, 5)
    assert prefix(features) is features
    assert (list(prefix.state_dict()), prefix.fingerprint()) == (names, fingerprint)


def test_an_output_does_not_depend_on_its_batch():
    for batch_size in [1, 3, 7, 16, 17, 50]:
        prefix = make_prefix()
        x = torch.randn(50, 3, 9, 9)
        assert torch.equal(torch.cat([prefix(batch) for batch in x.split(batch_size)]), prefix(x))
        assert prefix(x).is_contiguous()


def test_an_output_of_a_small_linear_layer_depends_on_its_batch_by_rounding_alone():
    for batch_size in [1, 3, 7]:
        prefix = FrozenPrefix(nn.Sequential(nn.Linear(6, 10)))
        x = torch.rand(64, 6)
        # weights and bias are below 1 / sqrt(6), so 6 products and a bias sum to less than 7 / sqrt(6) < 3; 6 products
        # and 6 sums round by at most 3 * 2**-24 each, in both orders
        apart = torch.cat([prefix(batch) for batch in x.split(batch_size)])
        assert (apart - prefix(x)).abs().max() <= 2 * 12 * 3 * 2.0**-24


def test_fingerprint_tells_weights_buffers_and_settings():
    prefix = make_prefix()
    assert prefix.fingerprint() == make_prefix().fingerprint()
    assert prefix.fingerprint() != make_prefix(seed=1).fingerprint()
    assert prefix.fingerprint() != make_prefix(stride=2).fingerprint()
    fingerprint = prefix.fingerprint()
    prefix.layers[1].running_mean[0] += 1e-6
    assert prefix.fingerprint() != fingerprint
