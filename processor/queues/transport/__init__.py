"""A member of a share group (KIP-932), on kafka-python's connections: the transport of queues.

Kafka's clients for Python have none that is finished: librdkafka 2.16 calls its own a preview. It leaves fetches that
contain nothing but the marker of a transaction without an answer, so that their partition stands still until the lease
ends; it rounds the number of records up to full batches; and it wants outcomes before the next fetch.

    share_member     the calls of a consumer's thread, and the network thread: heartbeats, a reader for each leader
      share_session    membership, session and error codes, as the protocol has them   (pure)
      leader_reader    the requests to one broker
        record_batches   the leased records of a fetch, gaps and markers                 (pure)
      leases           leases, outcomes, and the number of records to ask for          (pure)
      network          connections, leaders, the coordinator
    share_offsets    where a group stands: DescribeShareGroupOffsets, which no client for Python has
    protocol/        the messages, as Kafka defines them

`share_member` imports kafka-python, which takes a fifth of a second: import it where a queue is opened.

Delete this folder when librdkafka's share consumer answers fetches that contain nothing but a marker.
"""
