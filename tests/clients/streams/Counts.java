import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts the records of a topic by their values, exactly once, until SIGTERM.
 *
 * <p>Arguments: bootstrap servers, application id, source, sink, state directory. Each record of the source goes through a
 * repartition topic to the store "counts" (with its changelog topic), and makes one record of the sink: the value and its
 * count so far. An error that Kafka Streams does not handle ends the program with code 1.
 */
public final class Counts {
    private static final int THREADS = 2;
    private static final int COMMIT_MS = 200;
    private static final int SESSION_MS = 6_000;
    private static final int TRANSACTION_MS = 8_000;
    private static final int PURGE_MS = 1_000;

    public static void main(String[] arguments) throws Exception {
        String source = arguments[2];
        String sink = arguments[3];
        var builder = new StreamsBuilder();
        builder.stream(source, Consumed.with(Serdes.String(), Serdes.String()))
                .groupBy((key, value) -> value, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(sink, Produced.with(Serdes.String(), Serdes.String()));

        var config = new Properties();
        config.putAll(Map.of(
                "bootstrap.servers", arguments[0],
                "application.id", arguments[1],
                "state.dir", arguments[4],
                "processing.guarantee", "exactly_once_v2",
                "num.stream.threads", THREADS,
                "commit.interval.ms", COMMIT_MS,
                "statestore.cache.max.bytes", 0, // a record of the sink for each record of the source
                "repartition.purge.interval.ms", PURGE_MS, // DeleteRecords on the repartition topic
                "consumer.session.timeout.ms", SESSION_MS,
                "producer.transaction.timeout.ms", TRANSACTION_MS));
        config.put("auto.offset.reset", "earliest");

        var streams = new KafkaStreams(builder.build(), config);
        var ended = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            System.out.println("state " + now);
            if (now == KafkaStreams.State.ERROR || now == KafkaStreams.State.NOT_RUNNING) {
                ended.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        ended.await();
        if (streams.state() == KafkaStreams.State.ERROR) {
            Runtime.getRuntime().halt(1);
        }
    }
}
