import java.io.IOException;
import java.nio.file.FileVisitOption;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Copies the committed records of a topic, exactly once, until SIGTERM.
 *
 * <p>Arguments: bootstrap servers, application, source, sink, naming strategy of transactions, folder. A record of the source
 * goes to the same partition of the sink, with "copy of " before its value. Checkpoints are in the folder, and a start goes
 * on from the last one. SIGTERM stops the job with a savepoint, which commits all that was read. A job that ends by itself
 * ends the program with code 1.
 */
public final class Copies {
    private static final int PARALLELISM = 2;
    private static final String CHECKPOINT = "1s";

    /** Below the broker's transaction.max.timeout.ms (15 minutes), and far above what a test waits for. */
    private static final String TRANSACTION_MS = "600000";

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String application = arguments[1];
        Path folder = Path.of(arguments[5]);
        Path checkpoints = Files.createDirectories(folder.resolve("checkpoints"));

        var source = KafkaSource.<Tuple2<Integer, String>>builder()
                .setBootstrapServers(servers)
                .setTopics(arguments[2])
                .setGroupId(application)
                .setProperty("isolation.level", "read_committed")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setDeserializer(new PlacedValues())
                .build();
        var sink = KafkaSink.<Tuple2<Integer, String>>builder()
                .setBootstrapServers(servers)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(application)
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[4]))
                .setProperty("transaction.timeout.ms", TRANSACTION_MS)
                .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<Integer, String>>builder()
                        .setTopic(arguments[3])
                        .setPartitioner((placed, key, value, topic, partitions) -> placed.f0)
                        .setValueSerializationSchema(placed -> placed.f1.getBytes())
                        .build())
                .build();

        var environment = StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, configuration(checkpoints));
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "source")
                .uid("source")
                .map(placed -> Tuple2.of(placed.f0, "copy of " + placed.f1))
                .returns(PlacedValues.TYPE)
                .uid("map")
                .sinkTo(new HaltingSink<>(sink, folder.resolve("halt").toString()))
                .uid("sink");
        JobClient job = environment.executeAsync(application);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(job, folder.resolve("savepoint"))));
        try {
            job.getJobExecutionResult().get();
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static Configuration configuration(Path checkpoints) throws IOException {
        var configuration = new Configuration();
        configuration.setString(CheckpointingOptions.CHECKPOINTING_INTERVAL.key(), CHECKPOINT);
        configuration.setString(CheckpointingOptions.CHECKPOINTS_DIRECTORY.key(), checkpoints.toUri().toString());
        configuration.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        last(checkpoints).ifPresent(path -> {
            System.out.println("goes on from " + path);
            configuration.set(StateRecoveryOptions.SAVEPOINT_PATH, path.toUri().toString());
        });
        return configuration;
    }

    /** Returns the whole checkpoint with the highest number; a job counts on from the one that it went on from. */
    private static Optional<Path> last(Path checkpoints) throws IOException {
        try (var paths = Files.find(checkpoints, 3, (path, ignored) -> path.endsWith("_metadata"), new FileVisitOption[0])) {
            return paths.map(Path::getParent).max(Comparator.comparingLong(Copies::number));
        }
    }

    private static long number(Path checkpoint) {
        return Long.parseLong(checkpoint.getFileName().toString().substring("chk-".length()));
    }

    private static void stop(JobClient job, Path savepoints) {
        try {
            job.stopWithSavepoint(false, savepoints.toUri().toString(), SavepointFormatType.CANONICAL).get();
            job.getJobExecutionResult().get();
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    /** Values with the partitions that they come from. */
    private static final class PlacedValues implements KafkaRecordDeserializationSchema<Tuple2<Integer, String>> {
        static final TypeInformation<Tuple2<Integer, String>> TYPE = Types.TUPLE(Types.INT, Types.STRING);

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<Integer, String>> out) {
            out.collect(Tuple2.of(record.partition(), new String(record.value())));
        }

        @Override
        public TypeInformation<Tuple2<Integer, String>> getProducedType() {
            return TYPE;
        }
    }
}
