"""One index in partitions: each holds some of the documents; the runner in use builds and searches them."""

from lexvl_anserini.doors.cluster.partitions.engine import PartitionsEngine

__all__ = ["PartitionsEngine"]
