"""FedLoRA: adapters alone are trained and travel, and what their means lose."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import Descending, fit_clients, quiet_trainer
from helpers.watching import Results
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg, Federated, FedLoRA, TensorDataModule, VirtualClock, parts
from fl_lightning.diagnostics import VirtualTime
from fl_lightning.models import add_lora

MODES = ("average", "ffa", "svd")


class Linear(Descending):
    """A linear model of four inputs and three outputs, in float64."""

    lr = 0.05

    def __init__(self, rank: int | None, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 3, bias=False)).double()
        if rank is not None:
            add_lora(self, rank=rank)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.net(batch[0]) - batch[1]).square().sum() / len(batch[0])


_MAKE: dict[str, Any] = {"generator": torch.Generator().manual_seed(1), "dtype": torch.float64}
#: Two clients of 4 and 8 samples, which count 1/3 and 2/3.
CLIENTS = [(torch.randn(n, 4, **_MAKE), torch.randn(n, 3, **_MAKE)) for n in (4, 8)]


def train(callback: Any, module: Linear, rounds: int, *more: Any) -> None:
    """Train on batches of two samples."""
    fit_clients(callback, module, CLIENTS, rounds, *more, batch_size=2)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_trained_travels_and_nothing_else(mode: Any) -> None:
    callback, module = FedLoRA(mode, 1.0), Linear(rank=2)
    before = module.net[0].layer.weight.clone()
    train(callback, module, 3)
    traffic = callback.algorithm.traffic
    values = 3 * 2 if mode == "ffa" else 3 * 2 + 2 * 4  # B, and A, of 64 bits; two clients in three rounds
    assert traffic.bits_up == traffic.bits_down == 64 * values * 2 * 3
    assert torch.equal(module.net[0].layer.weight, before)
    train(FedLoRA(mode, 1.0, executor="vectorized"), stacked := Linear(rank=2), 3)
    one, other = (each.net[0].lora_B @ each.net[0].lora_A for each in (module, stacked))
    assert torch.allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_error_of_a_round(mode: Any) -> None:
    # clients of 4 and 8 samples count 1/3 and 2/3
    callback, kept, module = FedLoRA(mode, 1.0), Results(), Linear(rank=2, seed=3)
    train(callback, module, 1, kept)
    a, b = module.net[0].lora_A.detach(), module.net[0].lora_B.detach()
    shares = [result.num_samples / 12 for result in kept.seen]
    if mode == "ffa":
        factors = [(a, result.parameters.view(3, 2)) for result in kept.seen]
    else:
        factors = [(r.parameters[:8].view(2, 4), r.parameters[8:].view(3, 2)) for r in kept.seen]
    exact = sum(share * b_k @ a_k for share, (a_k, b_k) in zip(shares, factors, strict=True))
    error = float((exact - b @ a).norm())
    if mode == "ffa":  # there is none, and none is logged
        assert error < 1e-15
        assert "fed/lora_error" not in callback.algorithm.run.values()
        return
    assert callback.algorithm.run.values()["fed/lora_error"] == pytest.approx(error, abs=1e-14)
    if mode == "average":
        mean_a, mean_b = (sum(s * f[i] for s, f in zip(shares, factors, strict=True)) for i in (0, 1))
        assert torch.allclose(b @ a, mean_b @ mean_a, rtol=1e-12)
        assert error > 1e-4
    else:  # what is cut off: the third singular value
        assert error == pytest.approx(float(torch.linalg.svdvals(exact)[2]), abs=1e-12)
        assert error > 1e-5


def test_adapters_begin_as_those_of_the_paper() -> None:
    # A is uniform up to one by the root of the 400 inputs.
    layer: Any = add_lora(nn.Sequential(nn.Linear(400, 3)), rank=50).get_submodule("0")
    assert layer.lora_A.abs().max().item() == pytest.approx(1 / 20, rel=0.01)
    assert not layer.lora_B.any()


def test_layers_of_several_targets_get_adapters_and_a_frozen_factor_stays_frozen() -> None:
    layers: Any = add_lora(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))), ["0", "2"])
    layers[0].lora_A.requires_grad_(False)
    trained = [name for name, parameter in add_lora(layers, "1").named_parameters() if parameter.requires_grad]
    assert trained == ["0.lora_B", "1.lora_A", "1.lora_B", "2.lora_A", "2.lora_B"]


@pytest.mark.parametrize("mode", MODES)
def test_adapters_of_peft_train_as_those_of_add_lora(mode: Any) -> None:
    peft = pytest.importorskip("peft")
    ours, theirs = Linear(rank=2), Linear(rank=None)
    factor = ours.net[0].lora_A.detach().clone()
    theirs.net = peft.get_peft_model(theirs.net, peft.LoraConfig(r=2, lora_alpha=2, target_modules=["0"]))
    theirs.load_state_dict({"net.base_model.model.0.lora_A.default.weight": factor}, strict=False)
    errors = []
    for module in (ours, theirs):
        train(callback := FedLoRA(mode, 1.0, executor="vectorized"), module, 3)
        errors.append(callback.algorithm.run.values().get("fed/lora_error", 0.0))
    assert errors[1] == pytest.approx(errors[0], abs=1e-12)
    layer = ours.net[0]
    assert torch.allclose(
        theirs.net.merge_and_unload()[0].weight, layer.layer.weight + layer.lora_B @ layer.lora_A, rtol=1e-9
    )


@pytest.mark.parametrize(
    ("mode", "padding"),
    [("average", "zeros"), ("average", "counts"), ("ffa", "zeros"), ("ffa", "counts"), ("svd", "zeros")],
)
def test_clients_of_unequal_ranks_train_adapters_that_are_smaller(mode: Any, padding: Any) -> None:
    module = Linear(rank=2, seed=3)
    layer = module.net[0]
    base, a, b = (tensor.detach().clone() for tensor in (layer.layer.weight, layer.lora_A, layer.lora_B))
    for _ in range(3):
        models = []
        for rank, (x, y) in zip((2, 1), CLIENTS, strict=True):
            own_a, own_b = a[:rank].clone(), b[:, :rank].clone()
            factors = [own_b] if mode == "ffa" else [own_a, own_b]
            for factor in factors:
                factor.requires_grad_()
            for _ in range(2):
                loss = (x @ (base + own_b @ own_a).T - y).square().sum() / len(x)
                gradients = torch.autograd.grad(loss, factors)
                with torch.no_grad():
                    for factor, gradient in zip(factors, gradients, strict=True):
                        factor -= 0.05 * gradient
            models.append((own_a.detach(), own_b.detach()))
        (a_1, b_1), (a_2, b_2) = models
        # clients of 4 and 8 samples count 1/3 and 2/3; the second has the first rank alone
        if mode == "svd":
            u, values, v = torch.linalg.svd(b_1 @ a_1 / 3 + b_2 @ a_2 * 2 / 3, full_matrices=False)
            a, b = v[:2], u[:, :2] * values[:2]
        else:
            alone = 1.0 if padding == "counts" else 1 / 3
            if mode == "average":
                a = torch.stack([a_1[0] / 3 + a_2[0] * 2 / 3, a_1[1] * alone])
            b = torch.stack([b_1[:, 0] / 3 + b_2[:, 0] * 2 / 3, b_1[:, 1] * alone], dim=1)
    algorithm = FedLoRA(mode, 1.0, ranks=[2, 1], padding=padding, local_epochs=2)
    fit_clients(algorithm, module, CLIENTS, 3)
    assert torch.allclose(layer.lora_B @ layer.lora_A, b @ a, rtol=1e-12, atol=1e-14)
    values = 3 * 2 + 3 * 1 if mode == "ffa" else (3 + 4) * (2 + 1)
    traffic = algorithm.algorithm.traffic
    assert traffic.values_up == traffic.values_down == 3 * values


def test_nothing_is_lost_in_a_round_without_clients() -> None:
    callback = FedLoRA("average", sampler=parts.BernoulliSampler(1e-9))
    train(callback, Linear(rank=2), 1)
    assert callback.algorithm.run.values()["fed/lora_error"] == 0.0


@pytest.mark.parametrize("base_travels", [True, False])
def test_stacks_go_into_the_frozen_weights(base_travels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not base_travels:
        monkeypatch.setattr("fl_lightning.clients.state_vector._FEW", 0)
        monkeypatch.setattr("fl_lightning.clients.state_vector._FROZEN_SHARE", 0)
    module = Linear(rank=2, seed=3)
    layer = module.net[0]
    module.again = layer
    layer.scale = 0.5
    weight, first = layer.layer.weight.detach().clone(), layer.lora_A.detach().clone()
    algorithm, kept = FedLoRA("stack", 1.0, ranks=[2, 1]), Results()
    fit_clients(algorithm, module, CLIENTS, 3, kept)
    starts = []
    for number in range(3):
        products = []
        for client, (x, y) in enumerate(CLIENTS):
            [result] = [each for each in kept.seen if (each.task.round, each.client) == (number, client)]
            a, b = result.received[:8].view(2, 4), result.received[8:14].view(3, 2)
            assert not b.any()
            assert not a[2 - client :].any()
            own = [tensor.clone().requires_grad_() for tensor in (a[: 2 - client], b[:, : 2 - client])]
            loss = (x @ (weight + 0.5 * own[1] @ own[0]).T - y).square().sum() / len(x)
            ends = [t - 0.05 * g for t, g in zip(own, torch.autograd.grad(loss, own), strict=True)]
            products.append((ends[1] @ ends[0]).detach())
            starts.append(a[0])
        weight = weight + 0.5 * (products[0] / 3 + products[1] * 2 / 3)
    assert torch.allclose(layer.layer.weight, weight, rtol=1e-12, atol=1e-14)
    assert not layer.lora_B.any()
    if base_travels:
        run = algorithm.algorithm.run
        for model in (run.server.model, run.shown):
            assert torch.equal(run.federation.tensors(model)["net.0.layer.weight"], layer.layer.weight)
    # one A for all clients, and a new one in each round: the first is the module's
    assert torch.equal(starts[0], first[0])
    assert torch.equal(starts[2], starts[3])
    assert not torch.equal(starts[2], starts[4])
    assert layer.lora_A.abs().max() <= 0.5
    # adapters of 14 and 7 values; down, later, the stack of both, which is more than the product's 12 values
    traffic = algorithm.algorithm.traffic
    assert traffic.values_up == 3 * 21
    assert traffic.values_down == 21 + 2 * 2 * 12


def test_a_head_that_clients_keep_stays_theirs_where_stacks_are_folded() -> None:
    class Headed(Linear):
        def __init__(self) -> None:
            super().__init__(rank=2)
            self.head = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step((batch[0], batch[1] - self.head), batch_idx)

    personal, module = parts.PersonalParameters("head"), Headed()
    train(FedLoRA("stack", 1.0, exchange=personal), module, 2)
    heads = [personal.of_client(client)["head"] for client in range(2)]
    assert torch.allclose(module.head, (heads[0] + heads[1]) / 2, rtol=1e-12)
    assert (heads[0] - heads[1]).abs().min() > 1e-3


def tied() -> L.LightningModule:
    module = Linear(rank=None)
    module.net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).double()
    module.net[1].weight = module.net[0].weight
    return add_lora(module)  # type: ignore[return-value]


def stacks_alone() -> Federated:
    messages = parts.StackMessages()
    return Federated(1.0, exchange=messages, aggregation=parts.AdapterStack(messages))


class Factors(Linear):
    """Has factors by the names of adapters, and no adapter."""

    def __init__(self) -> None:
        super().__init__(rank=None)
        self.lora_A, self.lora_B = nn.Parameter(torch.ones(1, 4).double()), nn.Parameter(torch.ones(3, 1).double())


@pytest.mark.parametrize(
    ("callback", "module", "match"),
    [
        (FedLoRA(), Linear(rank=None), "`lora_A`.* got Linear without any"),
        (FedLoRA("average", 1.0, ranks=[3]), Linear(rank=2), r"`ranks` must be at most 2, .* got \[3\]"),
        (
            FedLoRA("svd", 1.0, exchange=parts.PersonalParameters("*lora_B")),
            Linear(rank=2),
            r"both factors, but of net\.0\.lora_A and net\.0\.lora_B only net\.0\.lora_A travels",
        ),
        (FedLoRA("stack", 1.0), tied(), r"not share them, but net\.0\..*weight and net\.1\..*weight are one"),
        (
            FedLoRA("stack", 1.0, exchange=parts.PersonalParameters("net.0.layer")),
            Linear(rank=2),
            r"changes the frozen 'net\.0\.layer\.weight'",
        ),
        (stacks_alone(), Linear(rank=2), "was not added"),
        (FedLoRA("stack", 1.0), Factors(), "adapters of `fl_lightning.models.add_lora`, got 'lora_A'"),
    ],
)
def test_adapters_that_the_module_lacks_or_the_parts_cannot_have(callback: Any, module: Any, match: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=match):
        train(callback, module, 2)


def test_stacks_have_no_time() -> None:
    with pytest.raises(ValueError, match=r"bandwidth.*StackMessages"):
        train(FedLoRA("stack", 1.0), Linear(rank=2), 1, VirtualTime(VirtualClock(1, bandwidth=1.0)))


def test_a_client_has_an_adapter_of_its_own_beside_the_shared_one() -> None:
    module = Linear(rank=2, seed=3)
    add_lora(module, "*.layer", rank=1)
    shared, own = module.net[0], module.net[0].layer
    base = own.layer.weight.detach().clone()
    kept = [[tensor.detach().clone() for tensor in (own.lora_A, own.lora_B)] for _ in range(2)]
    server = [tensor.detach().clone() for tensor in (shared.lora_A, shared.lora_B)]
    algorithm = FedLoRA("average", 1.0, exchange=parts.PersonalParameters("*.layer.lora_*"))
    fit_clients(algorithm, module, CLIENTS, 3)
    for _ in range(3):
        ends = []
        for client, (x, y) in enumerate(CLIENTS):
            factors = [tensor.clone().requires_grad_() for tensor in (*server, *kept[client])]
            weight = base + factors[1] @ factors[0] + factors[3] @ factors[2]
            gradients = torch.autograd.grad((x @ weight.T - y).square().sum() / len(x), factors)
            ends.append([factor.detach() - 0.05 * g for factor, g in zip(factors, gradients, strict=True)])
            kept[client] = ends[client][2:]
        server = [ends[0][place] / 3 + ends[1][place] * 2 / 3 for place in range(2)]
    assert torch.allclose(shared.lora_A, server[0], rtol=1e-12)
    assert torch.allclose(shared.lora_B, server[1], rtol=1e-12)
    personal = algorithm.algorithm.chain.members[1]
    for client in range(2):
        values = personal.of_client(client)
        for name, expected in zip(("lora_A", "lora_B"), kept[client], strict=True):
            assert torch.allclose(values[f"net.0.layer.{name}"], expected, rtol=1e-12)
    # 2 (4 + 3) values of the shared adapter
    assert algorithm.algorithm.traffic.values_up == 2 * 3 * 14


def test_an_adapter_of_a_lower_rank_is_whole_on_all_clients() -> None:
    add_lora(module := Linear(rank=2), "*.layer", rank=1)
    train(callback := FedLoRA("average", 1.0, ranks=[2, 1]), module, 1)
    # 4 + 3 values for each rank
    assert callback.algorithm.traffic.values_up == 7 * (2 + 1) + 7 * (1 + 1)


def test_names_of_peft() -> None:
    names = ["model.q.lora_A.default.weight", "model.q.lora_B.default.weight", "model.lora_A", "head.weight"]
    shapes = [(2, 4), (1, 2), (2, 2), (3,)]  # of one output: products have a lower rank than the adapter
    tensors = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in zip(names, shapes, strict=True)}
    layout = parts.Layout.of(tensors, num_trained=4)
    zeros = torch.zeros(layout.size, dtype=torch.float64)
    part = parts.AdapterMean(by_svd=True)
    part.begin_fit(parts.Federation(np.ones(2), zeros, layout))
    models = []
    for values in ([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]):
        models.append(torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(layout.lengths)))
    results = [
        parts.ClientResult(parts.Task(slot, slot, 1 + slot), zeros, model, 1) for slot, model in enumerate(models)
    ]
    merged = part.merge(zeros, results)
    assert merged is not None
    a, b, rest = merged[:8].view(2, 4), merged[8:10].view(1, 2), merged[10:]
    # all values of B A are 2 * 1 * 2 = 4 and 2 * 3 * 4 = 24; what has no partner is a parameter as others are
    assert torch.allclose(b @ a, torch.full((1, 4), (4 + 2 * 24) / 3).double())
    assert rest.tolist() == pytest.approx([(3 + 2 * 5) / 3] * 4 + [(4 + 2 * 6) / 3] * 3)
    assert part.values()["fed/lora_error"] < 1e-12


def test_where_adapters_are_put() -> None:
    net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), "head": nn.Linear(4, 2)})
    net["again"] = net["body"][0]
    x = torch.randn(5, 4)
    before = net["body"](x)
    assert add_lora(net, ["again", "body.2"], rank=2, alpha=4) is net
    assert torch.equal(net["body"](x), before)
    trained = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    assert trained == ["body.0.lora_A", "body.0.lora_B", "body.2.lora_A", "body.2.lora_B"]
    layer = net["body"][0]
    assert net["again"] is layer
    nn.init.ones_(layer.lora_B)
    expected = layer.layer(x) + 2 * x @ layer.lora_A.sum(0, keepdim=True).T
    assert torch.allclose(layer(x), expected.expand(5, 4), atol=1e-6)
    with pytest.raises(ValueError, match="targets"):
        add_lora(net, "tail")


@pytest.mark.parametrize("fails", [False, True])
def test_a_is_frozen_during_the_fit_alone(fails: bool) -> None:
    class Fails(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            assert not pl_module.net[0].lora_A.requires_grad
            if fails:
                raise ZeroDivisionError

    module = Linear(rank=2)
    first = module.net[0].lora_A.detach().clone()
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        train(FedLoRA("ffa", 1.0), module, 1, Fails())
    assert torch.equal(module.net[0].lora_A, first)
    train(FedAvg(1.0), module, 1)
    assert not torch.equal(module.net[0].lora_A, first)
    module.net[0].lora_A.requires_grad_(False)  # by the user
    train(FedLoRA("ffa", 1.0), module, 1)
    assert not module.net[0].lora_A.requires_grad


def test_a_test_beside_ffa_freezes_nothing() -> None:
    class Tested(Linear):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            assert self.net[0].lora_A.requires_grad

    data = DataLoader(TensorDataset(torch.ones(2, 4).double(), torch.ones(2, 3).double()))
    trainer = quiet_trainer(callbacks=[FedLoRA("ffa")])
    trainer.test(module := Tested(rank=2), data, verbose=False)
    assert module.net[0].lora_A.requires_grad


def test_the_mean_of_products_needs_both_factors() -> None:
    # the server knows no product, so that there is no error of one; it has the mean of A
    callback = FedLoRA("average", 1.0, exchange=parts.PersonalParameters("*lora_B"))
    kept = Results()
    module = Linear(rank=2)
    train(callback, module, 1, kept)
    factors = [result.vector[:8].view(2, 4) for result in kept.seen]
    assert torch.allclose(module.net[0].lora_A, (4 * factors[0] + 8 * factors[1]) / 12, rtol=1e-12)
    assert callback.algorithm.run.values()["fed/lora_error"] == 0.0


def test_adapters_in_the_encoder_layer_of_torch() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    with pytest.warns(UserWarning, match=r"self_attn \(MultiheadAttention\)"):
        add_lora(layer, "*", rank=2, alpha=6)
    for adapted in (layer.linear1, layer.linear2):
        nn.init.normal_(adapted.lora_B)
    x = torch.randn(3, 5, 8)
    # in eval mode torch reads `linear1.weight` instead of calling the layer
    with torch.no_grad():
        called, read = layer.train()(x), layer.eval()(x)
    assert torch.allclose(called, read, atol=1e-5)
    plain = copy.deepcopy(layer)
    for name in ("linear1", "linear2"):
        adapted = getattr(layer, name)
        merged = nn.Linear(adapted.in_features, adapted.out_features)
        merged.load_state_dict({"weight": adapted.layer.weight + 3 * adapted.lora_B @ adapted.lora_A,
                                "bias": adapted.layer.bias})  # fmt: skip
        setattr(plain, name, merged)
    with torch.no_grad():
        assert torch.allclose(plain(x), read, atol=1e-5)


@pytest.mark.parametrize("mode", [*MODES, "stack"])
def test_a_module_that_is_only_evaluated_needs_no_adapters_and_stays_as_it_is(mode: Any) -> None:
    class Evaluated(Linear):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.trained = [parameter.requires_grad for parameter in self.parameters()]

    other = Evaluated(rank=None)
    other.lora_A = nn.Parameter(torch.zeros(1))  # of no adapter
    clients = [(torch.ones(2, 4).double(), torch.ones(2, 3).double())]
    for module in (Evaluated(rank=None), Evaluated(rank=2), other):
        before = [parameter.requires_grad for parameter in module.parameters()]
        trainer = quiet_trainer(callbacks=[FedLoRA(mode, 1.0)])
        trainer.test(module, datamodule=TensorDataModule(clients, test=clients[0]), verbose=False)
        assert module.trained == before
