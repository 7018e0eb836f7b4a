"""A member of a share group (KIP-932), on kafka-python's connections: the transport of queues.

Kafka's clients for Python have none that is finished: librdkafka 2.16 calls its own a preview. It leaves fetches that
contain nothing but the marker of a transaction without an answer, so that their partition stands still until the lease
ends; it rounds the number of records up to full batches; and it wants outcomes before the next fetch.

    share_reader     the calls of a consumer's thread
    share_member     the network thread: heartbeats, and a reader for each broker that leads partitions
      membership       the member's epoch and partitions                    (pure)
      leader_reader    the requests to one broker
        session          the share session: numbers and differences           (pure)
        record_batches   the leased records of a fetch, gaps and markers      (pure)
      lease_book       leases and outcomes, until the broker has answered   (pure)
      demand           the number of records that each broker is asked for  (pure)
      network          connections, leaders, the coordinator
    lease, answers   a leased record; the brokers' error codes

`share_reader` imports kafka-python, which takes a fifth of a second: import it where a queue is opened.
"""
