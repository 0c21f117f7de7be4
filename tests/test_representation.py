import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning.representation import ShowsArguments, represent, short


class Base(ShowsArguments):
    def __init__(self, rate=0.1, *, seed=0):
        self.rate = rate
        self.seed = seed


class Derived(Base):
    def __init__(self, name, **options):
        super().__init__(**options)
        self.name = name


class Seeded(Base):
    shown_always = ("seed",)


class Chain(ShowsArguments):
    def __init__(self, *parts, strict=False):
        self.parts = parts
        self.strict = strict


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        (Base(), "Base()"),
        (Base(0.1), "Base()"),
        (Base(0.2, seed=3), "Base(rate=0.2, seed=3)"),
        (Base(True), "Base(rate=True)"),
        (Seeded(), "Seeded(seed=0)"),
        (Derived("a", seed=1), "Derived(name='a', seed=1)"),  # the base's arguments, through **options
        (Chain(Base(), Base(1), strict=True), "Chain(Base(), Base(rate=1), strict=True)"),
    ],
)
def test_arguments_that_differ_from_their_defaults_are_shown(instance, text):
    assert repr(instance) == text


def test_a_default_that_is_a_whole_number_is_the_float_of_the_same_value():
    class WithFloat(ShowsArguments):
        def __init__(self, mu=1.0):
            self.mu = mu

    assert repr(WithFloat(1)) == "WithFloat()"


def test_facts_come_first_and_arguments_may_be_left_out():
    assert represent(Base(0.2, seed=3), "3 clients", leave_out=["rate"]) == "Base(3 clients, seed=3)"
    assert represent(Base(), "3 clients", always=["rate"]) == "Base(3 clients, rate=0.1)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((3, 4)), "<ndarray of shape (3, 4)>"),
        (torch.zeros(5, 2), "<Tensor of shape (5, 2)>"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (torch.tensor(2), "2"),
        (torch.relu, "relu"),
        (lambda x: x, "<lambda>"),
        (Base, "Base"),
        (functools.partial(torch.relu, 3), "partial(relu, ...)"),
        (Path("data/x"), "'data/x'"),
        ("a" * 100, repr("a" * 30 + "..." + "a" * 30)),
        (b"abc", "<bytes of length 3>"),
        ([1, 2], "[1, 2]"),
        ((1,), "(1,)"),
        ((), "()"),
        (list(range(100)), "[0, 1, 2, 3, ... 100 in all]"),
        ({"a": 1, "b": [2.5]}, "{'a': 1, 'b': [2.5]}"),
        (range(10), "range(0, 10)"),
        ([[[[1]]]], "[[[<list of length 1>]]]"),
        (object(), "<object>"),
        (nn.Linear(2, 3), "Linear(in_features=2, out_features=3, bias=True)"),
        (nn.Sequential(nn.Linear(2, 3)), "Sequential(...)"),  # its own text has several lines
        (None, "None"),
        (float("nan"), "nan"),
    ],
)
def test_values_are_short(value, text):
    assert short(value) == text


class Hostile:
    def __eq__(self, other):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")

    __hash__ = None


def test_nothing_makes_it_fail():
    class Lazy(ShowsArguments):
        def __init__(self, ready=1, hostile=None, array=0):
            self.hostile, self.array = hostile, array

        @property
        def ready(self):
            raise RuntimeError("not set up")

    assert repr(Lazy(hostile=Hostile(), array=np.zeros(2))) == "Lazy(hostile=<Hostile>, array=<ndarray of shape (2,)>)"
    assert short(torch.zeros((), device="meta")) == "<Tensor>"


def test_an_object_that_holds_itself_is_shown_once():
    base = Base()
    base.rate = [base]
    assert repr(base) == "Base(rate=[Base(...)])"
