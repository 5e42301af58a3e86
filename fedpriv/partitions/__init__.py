"""Who holds which samples: one plug-in per file, chosen with `partition=<name>` (see conf/partition)."""

from fedpriv.partitions.base import Partition, Split, label_counts

__all__ = ["Partition", "Split", "label_counts"]
