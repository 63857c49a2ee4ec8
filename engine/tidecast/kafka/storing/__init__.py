"""Writing to partitions of a Kafka cluster: each record once and in order, under one producer.

`fencing.fence` gives a transactional id a new epoch and brings it to each partition: what wrote
before, and what of it is still under way, is refused from then on. `fencing.count_stored` says how
many records that one had stored. `writer.PartitionWriter` writes a partition from there on.
"""
