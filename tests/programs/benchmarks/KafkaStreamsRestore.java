import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Kafka Streams restoring a table from its source topic: BOOTSTRAP TOPIC PARTITIONS THREADS DIRECTORY.
 *
 * <p>As shipped but for exactly once, the source topic as the changelog, and input offsets at the topic's end, so that
 * all of it is restored and none of it processed. Prints one line of JSON.
 */
public class KafkaStreamsRestore {
  static final class Watch implements StateRestoreListener {
    final CountDownLatch left;
    final AtomicLong records = new AtomicLong();
    volatile long beganNs = 0;
    volatile long endedNs = 0;

    Watch(int partitions) {
      left = new CountDownLatch(partitions);
    }

    @Override
    public synchronized void onRestoreStart(TopicPartition partition, String store, long start, long end) {
      if (beganNs == 0) beganNs = System.nanoTime();
    }

    @Override
    public void onBatchRestored(TopicPartition partition, String store, long end, long restored) {}

    @Override
    public void onRestoreEnd(TopicPartition partition, String store, long total) {
      records.addAndGet(total);
      endedNs = System.nanoTime();
      left.countDown();
    }
  }

  public static void main(String[] args) throws Exception {
    String topic = args[1], application = "restore-" + System.currentTimeMillis();
    int partitions = Integer.parseInt(args[2]);
    Properties config = new Properties();
    config.put("application.id", application);
    config.put("bootstrap.servers", args[0]);
    config.put("processing.guarantee", "exactly_once_v2");
    config.put("topology.optimization", "all");
    config.put("num.stream.threads", args[3]);
    config.put("state.dir", Path.of(args[4]).toString());
    commitEnds(args[0], application, topic, partitions);

    StreamsBuilder builder = new StreamsBuilder();
    builder.table(
        topic,
        Consumed.with(Serdes.Bytes(), Serdes.ByteArray()),
        Materialized.<Bytes, byte[], KeyValueStore<Bytes, byte[]>>as("records"));
    Watch watch = new Watch(partitions);
    KafkaStreams streams = new KafkaStreams(builder.build(config), config);
    streams.setGlobalStateRestoreListener(watch);
    CountDownLatch running = new CountDownLatch(1);
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.RUNNING && watch.left.getCount() == 0) running.countDown();
        });
    long startedNs = System.nanoTime();
    streams.start();
    watch.left.await();
    running.await();
    System.out.printf(
        "{\"records\": %d, \"seconds\": %.3f, \"running_s\": %.3f}%n",
        watch.records.get(), (watch.endedNs - watch.beganNs) / 1e9, (System.nanoTime() - startedNs) / 1e9);
    streams.close();
    System.exit(0);
  }

  static void commitEnds(String bootstrap, String group, String topic, int partitions) throws Exception {
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap))) {
      Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
      for (int number = 0; number < partitions; number++) asked.put(new TopicPartition(topic, number), OffsetSpec.latest());
      Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
      admin.listOffsets(asked).all().get().forEach((key, end) -> ends.put(key, new OffsetAndMetadata(end.offset())));
      admin.alterConsumerGroupOffsets(group, ends).all().get();
    }
  }
}
