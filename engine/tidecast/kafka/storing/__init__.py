"""Writing to partitions of a Kafka cluster: each record once and in order, under one producer.

For durable topics that Kafka stores, and for mirrors to Kafka. `fencing.fence` gives a
transactional id a new epoch and brings it to each partition: from then on, brokers refuse the
writer of the older epoch, and its requests that are still under way. `fencing.count_stored` counts
the records that the older writer stored. `writer.PartitionWriter` writes a partition.
"""
