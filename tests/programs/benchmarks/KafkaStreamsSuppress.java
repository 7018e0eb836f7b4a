import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;

/**
 * Kafka Streams conflating a table: BOOTSTRAP INPUT OUTPUT INTERVAL-MS RECORDS DIRECTORY.
 *
 * <p>Exactly once, one thread, {@code suppress(untilTimeLimit)} with a buffer that is never full. Bytes go through as
 * they are: nothing is parsed, and no delta made. Tuned for throughput where that changes no promise: large fetches,
 * polls and batches, the same compression and time between commits as ours, the input as the table's changelog. The
 * table's store and cache are as shipped; the cache folds updates between two commits already. Prints one line of JSON
 * when so many records are processed, and ends when standard input does.
 */
public class KafkaStreamsSuppress {
  public static void main(String[] args) throws Exception {
    long records = Long.parseLong(args[4]);
    Properties config = new Properties();
    config.put("application.id", args[2]);
    config.put("bootstrap.servers", args[0]);
    config.put("processing.guarantee", "exactly_once_v2");
    config.put("num.stream.threads", 1);
    config.put("state.dir", args[5]);
    config.put("auto.offset.reset", "earliest");
    config.put("commit.interval.ms", 200);
    config.put("topology.optimization", "all");
    config.put("buffered.records.per.partition", 10_000);
    config.put("consumer.max.poll.records", 10_000);
    config.put("consumer.fetch.max.bytes", 32 << 20);
    config.put("consumer.max.partition.fetch.bytes", 8 << 20);
    config.put("producer.linger.ms", 5);
    config.put("producer.batch.size", 1_000_000);
    config.put("producer.buffer.memory", 256_000_000);
    config.put("producer.compression.type", "lz4");

    StreamsBuilder builder = new StreamsBuilder();
    builder.table(args[1], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
        .suppress(Suppressed.untilTimeLimit(Duration.ofMillis(Long.parseLong(args[3])), BufferConfig.unbounded()))
        .toStream()
        .to(args[2], Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
    KafkaStreams streams = new KafkaStreams(builder.build(config), config);
    streams.start();

    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    while (processed(streams) == 0) Thread.sleep(2);
    long beganNs = System.nanoTime(), cpuNs = system.getProcessCpuTime();
    while (processed(streams) < records) Thread.sleep(10);
    System.out.printf(
        "{\"seconds\": %.3f, \"cpu_s\": %.3f}%n",
        (System.nanoTime() - beganNs) / 1e9, (system.getProcessCpuTime() - cpuNs) / 1e9);
    System.out.flush();
    while (System.in.read() >= 0) {}
    streams.close();
    System.exit(0);
  }

  /** How many records the threads have processed. */
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
