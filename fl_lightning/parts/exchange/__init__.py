"""Exchanges: they decide what travels between the server and its clients."""

from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.exchange.buffers import BufferExchange, Buffers, ChangingBuffers
from fl_lightning.parts.exchange.chain import Chain
from fl_lightning.parts.exchange.clip import Clip
from fl_lightning.parts.exchange.compressor import Compressor
from fl_lightning.parts.exchange.low_rank import LowRank
from fl_lightning.parts.exchange.personal import PersonalParameters
from fl_lightning.parts.exchange.qsgd import QSGD
from fl_lightning.parts.exchange.random_k import RandomK
from fl_lightning.parts.exchange.secure_aggregation import SecureAggregation
from fl_lightning.parts.exchange.sign import SignSGD
from fl_lightning.parts.exchange.top_k import TopK

__all__ = [
    "QSGD",
    "BufferExchange",
    "Buffers",
    "Chain",
    "ChangingBuffers",
    "Clip",
    "Compressor",
    "Exchange",
    "LowRank",
    "PersonalParameters",
    "RandomK",
    "SecureAggregation",
    "SignSGD",
    "TopK",
]
