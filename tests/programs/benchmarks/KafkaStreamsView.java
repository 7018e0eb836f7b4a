import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Views of Kafka Streams over JSON records: KIND BOOTSTRAP INPUT OUTPUT DIRECTORY COMMIT_MS LINGER_MS [LOOKUP].
 *
 * <p>Exactly once, one thread. KIND is one of
 *
 * <ul>
 *   <li>sums: {@code table().groupBy().aggregate()}, COUNT(*) and SUM(/qty) by /group;
 *   <li>extremes: the same with MIN(/qty) and MAX(/qty), from the list of a group's quantities;
 *   <li>latest: the greatest /number by /group; a record that is taken back is ignored, so it is wrong after a deletion;
 *   <li>join: a foreign-key join of each record by its /group with LOOKUP, whose /name it gets.
 * </ul>
 *
 * <p>Less is done than by a view: sums are longs, there are no deltas, versions or headers. Tuned for throughput where
 * that changes no promise: large fetches, polls and batches, the same compression as ours, the input as its table's
 * changelog. Stores and caches are as shipped, so several updates of a key between two commits are one. Ends when
 * standard input does.
 */
public class KafkaStreamsView {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static final Serde<byte[]> BYTES = Serdes.ByteArray();
  static final Serde<String> TEXT = Serdes.String();

  public static void main(String[] args) throws Exception {
    Properties config = new Properties();
    config.put("bootstrap.servers", args[1]);
    config.put("application.id", args[3]);
    config.put("state.dir", args[4]);
    config.put("commit.interval.ms", args[5]);
    config.put("producer.linger.ms", args[6]);
    config.put("processing.guarantee", "exactly_once_v2");
    config.put("num.stream.threads", 1);
    config.put("auto.offset.reset", "earliest");
    config.put("topology.optimization", "all");
    config.put("buffered.records.per.partition", 10_000);
    config.put("consumer.max.poll.records", 10_000);
    config.put("consumer.fetch.max.bytes", 32 << 20);
    config.put("consumer.max.partition.fetch.bytes", 8 << 20);
    config.put("producer.batch.size", 1_000_000);
    config.put("producer.buffer.memory", 256_000_000);
    config.put("producer.compression.type", "lz4");

    StreamsBuilder builder = new StreamsBuilder();
    KTable<byte[], byte[]> table = builder.table(args[2], Consumed.with(BYTES, BYTES));
    switch (args[0]) {
      case "sums" -> rows(groups(table, "qty"), 16, KafkaStreamsView::sum, "n", "qty", args[3]);
      case "extremes" -> rows(groups(table, "qty"), 0, KafkaStreamsView::list, "low", "high", args[3]);
      case "latest" -> rows(groups(table, "number"), 8, KafkaStreamsView::latest, "number", "number", args[3]);
      case "join" ->
          table
              .join(
                  builder.table(args[7], Consumed.with(TEXT, BYTES)),
                  record -> tree(record).get("group").asText(),
                  KafkaStreamsView::joined,
                  Materialized.with(BYTES, BYTES))
              .toStream()
              .to(args[3], Produced.with(BYTES, BYTES));
      default -> throw new IllegalArgumentException(args[0]);
    }
    KafkaStreams streams = new KafkaStreams(builder.build(config), config);
    streams.start();
    while (System.in.read() >= 0) {}
    streams.close();
    System.exit(0);
  }

  /** Changes a group's bytes by a value that it gains (1) or loses (-1). */
  interface Change {
    byte[] apply(byte[] group, int sign, long value);
  }

  /** The records' groups, with the number in this member. */
  static org.apache.kafka.streams.kstream.KGroupedTable<String, Long> groups(KTable<byte[], byte[]> table, String member) {
    return table.groupBy(
        (key, value) -> {
          JsonNode record = tree(value);
          return KeyValue.pair(record.get("group").asText(), record.get(member).asLong());
        },
        Grouped.with(TEXT, Serdes.Long()));
  }

  static void rows(
      org.apache.kafka.streams.kstream.KGroupedTable<String, Long> groups,
      int size,
      Change change,
      String first,
      String second,
      String output) {
    groups
        .aggregate(
            () -> new byte[size],
            (group, value, bytes) -> change.apply(bytes, 1, value),
            (group, value, bytes) -> change.apply(bytes, -1, value),
            Materialized.with(TEXT, BYTES))
        .toStream()
        .mapValues((group, bytes) -> row(group, bytes, first, second))
        .to(output, Produced.with(TEXT, BYTES));
  }

  static byte[] row(String group, byte[] bytes, String first, String second) {
    ByteBuffer numbers = ByteBuffer.wrap(bytes);
    long low = Long.MAX_VALUE, high = Long.MIN_VALUE, last = 0;
    boolean isList = first.equals("low");
    long head = isList || bytes.length == 0 ? 0 : numbers.getLong(0);
    while (numbers.hasRemaining()) {
      last = numbers.getLong();
      if (isList) {
        low = Math.min(low, last);
        high = Math.max(high, last);
      }
    }
    return json(MAPPER.createObjectNode().put("group", group).put(first, isList ? low : head).put(second, isList ? high : last));
  }

  static byte[] sum(byte[] totals, int sign, long value) {
    ByteBuffer old = ByteBuffer.wrap(totals);
    return ByteBuffer.allocate(16).putLong(old.getLong() + sign).putLong(old.getLong() + sign * value).array();
  }

  static byte[] latest(byte[] greatest, int sign, long value) {
    long old = ByteBuffer.wrap(greatest).getLong();
    return ByteBuffer.allocate(8).putLong(sign < 0 ? old : Math.max(old, value)).array();
  }

  /** Adds a number to a list of them, or removes it. */
  static byte[] list(byte[] numbers, int sign, long value) {
    if (sign > 0) {
      return ByteBuffer.allocate(numbers.length + 8).put(numbers).putLong(value).array();
    }
    ByteBuffer old = ByteBuffer.wrap(numbers), left = ByteBuffer.allocate(numbers.length - 8);
    boolean isFound = false;
    while (old.hasRemaining()) {
      long each = old.getLong();
      if (each == value && !isFound) isFound = true;
      else left.putLong(each);
    }
    return left.array();
  }

  static byte[] joined(byte[] record, byte[] partner) {
    JsonNode order = tree(record);
    return json(
        MAPPER.createObjectNode()
            .put("id", order.get("id").asLong())
            .put("qty", order.get("qty").asLong())
            .put("name", tree(partner).get("name").asText()));
  }

  static JsonNode tree(byte[] value) {
    try {
      return MAPPER.readTree(value);
    } catch (java.io.IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  static byte[] json(JsonNode row) {
    try {
      return MAPPER.writeValueAsBytes(row);
    } catch (java.io.IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }
}
