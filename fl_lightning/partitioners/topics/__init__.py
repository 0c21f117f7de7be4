"""Clients that are topics of a hierarchy, picked by size and connected by relations."""

from fl_lightning.partitioners.topics.diffusion import diffuse, entropy_curve
from fl_lightning.partitioners.topics.graph import TopicGraph
from fl_lightning.partitioners.topics.partitioner import TopicGraphPartitioner
from fl_lightning.partitioners.topics.picking import pick_client_topics

__all__ = ["TopicGraph", "TopicGraphPartitioner", "diffuse", "entropy_curve", "pick_client_topics"]
