import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers of Kafka's Java client that send bundles of records, each bundle in a transaction or flushed.
 *
 * <p>Commands come on standard input, a line each, and each has one line of response that begins with "=".
 * bench/transactions_clients.py sends them.
 *
 * <pre>
 *   run BOOTSTRAP TOPIC PARTITIONS PRODUCERS RECORDS BYTES WARM_S SECONDS KIND
 * </pre>
 *
 * KIND is "transactions" or "flushes".  The response is "= BUNDLES SECONDS P50_US P99_US": the bundles that were begun
 * in the SECONDS after WARM_S, at least one a producer, the time until the last of them ended, and the time of their
 * commits, or of their flushes.  The time begins once each producer has ended a first bundle, which does not count.
 */
public final class TransactionLoad {
  private static final String TRANSACTIONS = "transactions";

  public static void main(String[] arguments) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      System.out.println("= " + run(line.split(" ")));
    }
  }

  private static String run(String[] words) throws Exception {
    if (words.length != 10 || !words[0].equals("run")) {
      throw new IllegalArgumentException("unknown command: " + String.join(" ", words));
    }
    String topic = words[2];
    int partitions = Integer.parseInt(words[3]);
    int producers = Integer.parseInt(words[4]);
    int records = Integer.parseInt(words[5]);
    byte[] value = new byte[Integer.parseInt(words[6])];
    long warmNs = (long) (Double.parseDouble(words[7]) * 1e9);
    long measuredNs = (long) (Double.parseDouble(words[8]) * 1e9);
    boolean isTransactional = words[9].equals(TRANSACTIONS);
    Arrays.fill(value, (byte) 'x');
    List<KafkaProducer<byte[], byte[]>> opened = new ArrayList<>();
    ExecutorService threads = Executors.newFixedThreadPool(producers);
    try {
      List<Future<?>> started = new ArrayList<>();
      for (int number = 0; number < producers; number++) {
        KafkaProducer<byte[], byte[]> producer = open(words[1], isTransactional);
        opened.add(producer);
        started.add(
            threads.submit(
                () -> {
                  if (isTransactional) {
                    producer.initTransactions();
                  }
                  return bundles(producer, topic, partitions, 0, 1, value, System.nanoTime(), 0, isTransactional);
                }));
      }
      for (Future<?> each : started) {
        each.get();
      }
      long begin = System.nanoTime() + warmNs;
      List<Future<long[]>> found = new ArrayList<>();
      for (int number = 0; number < producers; number++) {
        KafkaProducer<byte[], byte[]> producer = opened.get(number);
        int first = number;
        found.add(
            threads.submit(
                () -> bundles(producer, topic, partitions, first, records, value, begin, measuredNs, isTransactional)));
      }
      return result(found, begin);
    } finally {
      threads.shutdownNow();
      for (KafkaProducer<byte[], byte[]> producer : opened) {
        producer.close();
      }
    }
  }

  private static KafkaProducer<byte[], byte[]> open(String bootstrap, boolean isTransactional) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    properties.put("acks", "all");
    properties.put("key.serializer", ByteArraySerializer.class.getName());
    properties.put("value.serializer", ByteArraySerializer.class.getName());
    if (isTransactional) {
      properties.put("transactional.id", "bench-" + UUID.randomUUID());
    }
    return new KafkaProducer<>(properties);
  }

  /** Send a bundle, and more until the time is over; return the end of the last, and the nanoseconds of each commit or flush. */
  private static long[] bundles(
      KafkaProducer<byte[], byte[]> producer,
      String topic,
      int partitions,
      int first,
      int records,
      byte[] value,
      long begin,
      long measuredNs,
      boolean isTransactional)
      throws Exception {
    long[] times = new long[1024];
    int count = 1;
    int partition = first;
    List<Future<?>> sent = new ArrayList<>();
    long begun = System.nanoTime();
    do {
      sent.clear();
      if (isTransactional) {
        producer.beginTransaction();
      }
      for (int number = 0; number < records; number++) {
        sent.add(producer.send(new ProducerRecord<>(topic, partition++ % partitions, null, value)));
      }
      long ending = System.nanoTime();
      if (isTransactional) {
        producer.commitTransaction();
      } else {
        producer.flush();
      }
      long ended = System.nanoTime();
      for (Future<?> each : sent) {
        each.get();
      }
      if (begun - begin >= 0) {
        if (count == times.length) {
          times = Arrays.copyOf(times, 2 * count);
        }
        times[count++] = ended - ending;
        times[0] = ended;
      }
      begun = System.nanoTime();
    } while (begun - begin < measuredNs || count == 1);
    return Arrays.copyOf(times, count);
  }

  private static String result(List<Future<long[]>> found, long begin) throws Exception {
    long[] all = new long[0];
    long measuredNs = 0;
    for (Future<long[]> each : found) {
      long[] times = each.get();
      int at = all.length;
      all = Arrays.copyOf(all, at + times.length - 1);
      System.arraycopy(times, 1, all, at, times.length - 1);
      measuredNs = Math.max(measuredNs, times[0] - begin);
    }
    Arrays.sort(all);
    double p50 = all[all.length / 2] / 1e3;
    double p99 = all[(int) (all.length * 0.99)] / 1e3;
    return String.format(Locale.ROOT, "%d %.6f %.3f %.3f", all.length, measuredNs / 1e9, p50, p99);
  }
}
