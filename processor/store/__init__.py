"""The last record of every key of a partition: a cache of its SOW topic, in RocksDB or in memory.

`contract` is the interface, `rocksdb` and `memory` implement it, `layout` owns every byte on disk, and `layered_state`
keeps the uncommitted and the unwritten changes in front of a store, with `key_indexes` over them. `marks` are the
marks of a partition, and `inspection` reads a store that is not in use.
"""
