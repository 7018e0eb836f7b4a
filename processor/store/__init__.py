"""The last record of every key of a partition: a cache of its SOW topic, in RocksDB or in memory.

`store` is the contract, `rocks` and `memory` keep it, `layout` owns every byte on disk, `transactional` puts the
uncommitted and the not yet written changes in front of a store.
"""
