"""What travels between the server and its clients."""

from fl_lightning.parts.exchange.base import Chain, Exchange
from fl_lightning.parts.exchange.buffers import BufferExchange, Buffers, ChangingBuffers
from fl_lightning.parts.exchange.clip import Clip
from fl_lightning.parts.exchange.personal import PersonalParameters

__all__ = ["BufferExchange", "Buffers", "Chain", "ChangingBuffers", "Clip", "Exchange", "PersonalParameters"]
