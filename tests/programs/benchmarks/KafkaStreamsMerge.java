import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.management.ManagementFactory;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams merging deltas: BOOTSTRAP INPUT SOW DELTA GUARANTEE RECORDS DIRECTORY.
 *
 * <p>One thread, the Processor API, RocksDB with its changelog, Jackson's tree. Less is done than by a worker: nothing is
 * compared, so a delta says what was sent and not what changed; no nulls, no headers, no versions, no checks. Tuned for
 * throughput where that changes no promise: large fetches, polls and batches, the same compression and time between
 * commits as ours; store and cache are as shipped. Prints one line of JSON when so many records are processed, and ends
 * when standard input does. To try other settings: -Dcached=true, and -Dstreams.NAME=VALUE for any of Kafka Streams'.
 * -Dfirst=N: the first N records fill its store, and are not measured. -Dloads=N: so many times RECORDS follow, each
 * measured by itself, with a line of its own.
 */
public class KafkaStreamsMerge {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static final AtomicLong DONE = new AtomicLong();

  public static void main(String[] args) throws Exception {
    long records = Long.parseLong(args[5]);
    Topology topology = new Topology();
    topology.addSource("input", new ByteArrayDeserializer(), new ByteArrayDeserializer(), args[1]);
    topology.addProcessor("merge", Merge::new, "input");
    var store = Stores.persistentKeyValueStore("records");
    var builder = Stores.keyValueStoreBuilder(store, Serdes.Bytes(), Serdes.ByteArray());
    topology.addStateStore(Boolean.getBoolean("cached") ? builder.withCachingEnabled() : builder, "merge");
    topology.addSink("sow", args[2], new ByteArraySerializer(), new ByteArraySerializer(), "merge");
    topology.addSink("delta", args[3], new ByteArraySerializer(), new ByteArraySerializer(), "merge");

    Properties config = new Properties();
    config.put("application.id", args[2]);
    config.put("bootstrap.servers", args[0]);
    config.put("processing.guarantee", args[4]);
    config.put("num.stream.threads", 1);
    config.put("state.dir", args[6]);
    config.put("auto.offset.reset", "earliest");
    config.put("commit.interval.ms", 200);
    config.put("buffered.records.per.partition", 10_000);
    config.put("consumer.max.poll.records", 10_000);
    config.put("consumer.fetch.max.bytes", 32 << 20);
    config.put("consumer.max.partition.fetch.bytes", 8 << 20);
    config.put("producer.linger.ms", 25);
    config.put("producer.batch.size", 1_000_000);
    config.put("producer.buffer.memory", 256_000_000);
    config.put("producer.compression.type", "lz4");
    for (String name : System.getProperties().stringPropertyNames()) {
      if (name.startsWith("streams.")) config.put(name.substring("streams.".length()), System.getProperty(name));
    }
    KafkaStreams streams = new KafkaStreams(topology, config);
    streams.start();

    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long first = Long.getLong("first", 0), loads = Long.getLong("loads", 1);
    for (long load = 0; load < loads; load++, first += records) {
      while (DONE.get() <= first) Thread.sleep(2);
      long beganNs = System.nanoTime(), cpuNs = system.getProcessCpuTime();
      while (DONE.get() < first + records) Thread.sleep(10);
      System.out.printf(
          "{\"seconds\": %.3f, \"cpu_s\": %.3f}%n",
          (System.nanoTime() - beganNs) / 1e9, (system.getProcessCpuTime() - cpuNs) / 1e9);
      System.out.flush();
    }
    while (System.in.read() >= 0) {}
    streams.close();
    System.exit(0);
  }

  static class Merge implements Processor<byte[], byte[], byte[], byte[]> {
    ProcessorContext<byte[], byte[]> context;
    KeyValueStore<Bytes, byte[]> store;

    @Override
    public void init(ProcessorContext<byte[], byte[]> context) {
      this.context = context;
      store = context.getStateStore("records");
    }

    @Override
    public void process(Record<byte[], byte[]> input) {
      try {
        Bytes key = Bytes.wrap(input.key());
        byte[] old = store.get(key), merged = input.value(), delta = input.value();
        ObjectNode change = (ObjectNode) MAPPER.readTree(input.value());
        if (old != null) {
          ObjectNode record = (ObjectNode) MAPPER.readTree(old);
          delta = MAPPER.writeValueAsBytes(merge(record, change));
          merged = MAPPER.writeValueAsBytes(record);
        }
        store.put(key, merged);
        context.forward(input.withValue(merged), "sow");
        context.forward(input.withValue(delta), "delta");
        DONE.incrementAndGet();
      } catch (java.io.IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
    }
  }

  /** Merges a change into a record, in place; what it set. */
  static ObjectNode merge(ObjectNode record, ObjectNode change) {
    ObjectNode set = MAPPER.createObjectNode();
    for (var field : change.properties()) {
      JsonNode old = record.get(field.getKey());
      if (field.getValue().isObject() && old != null && old.isObject()) {
        set.set(field.getKey(), merge((ObjectNode) old, (ObjectNode) field.getValue()));
      } else {
        record.set(field.getKey(), field.getValue());
        set.set(field.getKey(), field.getValue());
      }
    }
    return set;
  }
}
