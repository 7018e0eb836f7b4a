import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * Kafka Streams counting and summing by group: BOOTSTRAP INPUT OUTPUT RECORDS COUNT SUM DIRECTORY.
 *
 * <p>Exactly once, one thread, {@code table().groupBy().aggregate()}: COUNT(*) and SUM(/qty) by /group of JSON records.
 * Less is done than by a view: sums are longs, an aggregate is 16 bytes that nobody can read, there are no deltas,
 * versions or headers. Tuned for throughput where that changes no promise: large fetches, polls and batches, the same
 * compression and time between commits as ours, the input as its table's changelog. Stores and caches are as shipped,
 * so several updates of a key between two commits are one. Prints one line of JSON when so many records are processed
 * and all groups together have COUNT and SUM, and ends when standard input does.
 */
public class KafkaStreamsAggregate {
  static final ObjectMapper MAPPER = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    long records = Long.parseLong(args[3]), count = Long.parseLong(args[4]), sum = Long.parseLong(args[5]);
    Properties config = new Properties();
    config.put("application.id", args[2]);
    config.put("bootstrap.servers", args[0]);
    config.put("processing.guarantee", "exactly_once_v2");
    config.put("num.stream.threads", 1);
    config.put("state.dir", args[6]);
    config.put("auto.offset.reset", "earliest");
    config.put("commit.interval.ms", 200);
    config.put("topology.optimization", "all");
    config.put("buffered.records.per.partition", 10_000);
    config.put("consumer.max.poll.records", 10_000);
    config.put("consumer.fetch.max.bytes", 32 << 20);
    config.put("consumer.max.partition.fetch.bytes", 8 << 20);
    config.put("producer.linger.ms", 25);
    config.put("producer.batch.size", 1_000_000);
    config.put("producer.buffer.memory", 256_000_000);
    config.put("producer.compression.type", "lz4");

    StreamsBuilder builder = new StreamsBuilder();
    builder.table(args[1], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
        .groupBy(KafkaStreamsAggregate::part, Grouped.with(Serdes.String(), Serdes.Long()))
        .aggregate(
            () -> new byte[16],
            (group, qty, totals) -> change(totals, 1, qty),
            (group, qty, totals) -> change(totals, -1, -qty),
            Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as("totals")
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.ByteArray()))
        .toStream()
        .to(args[2], Produced.with(Serdes.String(), Serdes.ByteArray()));
    KafkaStreams streams = new KafkaStreams(builder.build(config), config);
    streams.start();

    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    while (processed(streams) == 0) Thread.sleep(2);
    long beganNs = System.nanoTime(), cpuNs = system.getProcessCpuTime();
    while (processed(streams) < records || !hasTotals(streams, count, sum)) Thread.sleep(20);
    System.out.printf(
        "{\"seconds\": %.3f, \"cpu_s\": %.3f}%n",
        (System.nanoTime() - beganNs) / 1e9, (system.getProcessCpuTime() - cpuNs) / 1e9);
    System.out.flush();
    while (System.in.read() >= 0) {}
    streams.close();
    System.exit(0);
  }

  /** The group and the quantity of a record. */
  static KeyValue<String, Long> part(byte[] key, byte[] value) {
    try {
      JsonNode record = MAPPER.readTree(value);
      return KeyValue.pair(record.get("group").asText(), record.get("qty").asLong());
    } catch (java.io.IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  static byte[] change(byte[] totals, long count, long sum) {
    ByteBuffer old = ByteBuffer.wrap(totals);
    return ByteBuffer.allocate(16).putLong(old.getLong() + count).putLong(old.getLong() + sum).array();
  }

  /** Whether all groups together have this count and this sum. */
  static boolean hasTotals(KafkaStreams streams, long count, long sum) {
    try {
      var query = StoreQueryParameters.fromNameAndType("totals", QueryableStoreTypes.<String, byte[]>keyValueStore());
      try (var groups = streams.store(query).all()) {
        while (groups.hasNext()) {
          ByteBuffer totals = ByteBuffer.wrap(groups.next().value);
          count -= totals.getLong();
          sum -= totals.getLong();
        }
      }
      return count == 0 && sum == 0;
    } catch (InvalidStateStoreException error) {
      return false; // A rebalance is under way.
    }
  }

  /** How many records the thread has processed, of the input and of the repartition topic. */
  static double processed(KafkaStreams streams) {
    double sum = 0;
    for (var metric : streams.metrics().values()) {
      var name = metric.metricName();
      if (name.name().equals("process-total") && name.group().equals("stream-thread-metrics"))
        sum += ((Number) metric.metricValue()).doubleValue();
    }
    return sum;
  }
}
