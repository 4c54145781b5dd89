import java.time.Duration;
import java.time.LocalTime;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consumes, transforms and produces in transactions, until SIGKILL.
 *
 * <p>Arguments are those of tests/integration/transformer.py: bootstrap servers, source, sink, group, transactional id. After
 * an abortable error the application aborts, and goes on from the committed offsets with the same clients. After any other
 * error of Kafka's classes it makes new clients. It writes a line for each such event.
 */
public final class Application implements AutoCloseable {
    private static final int BATCH = 50; // the largest number of records in a transaction
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration WORK = Duration.ofMillis(20); // a transaction stays open as long: most faults meet one
    private static final Duration CLOSE = Duration.ofSeconds(5);
    private static final Duration PAUSE = Duration.ofMillis(500); // between clients that failed and the next ones
    private static final int LINGER_MS = 5;
    private static final int CALL_MS = 20_000;
    private static final int REQUEST_MS = 10_000;
    private static final int SESSION_MS = 10_000;
    private static final int TRANSACTION_MS = 30_000;

    private final String source;
    private final String sink;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;

    private Application(String bootstrap, String source, String sink, String group, String id) {
        this.source = source;
        this.sink = sink;
        producer = new KafkaProducer<>(
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "transactional.id", id,
                        "transaction.timeout.ms", TRANSACTION_MS,
                        "request.timeout.ms", REQUEST_MS,
                        "max.block.ms", CALL_MS,
                        "linger.ms", LINGER_MS),
                new StringSerializer(),
                new StringSerializer());
        consumer = new KafkaConsumer<>(
                Map.of(
                        "bootstrap.servers", bootstrap,
                        "group.id", group,
                        "auto.offset.reset", "earliest",
                        "enable.auto.commit", false,
                        "isolation.level", "read_committed",
                        "session.timeout.ms", SESSION_MS,
                        "request.timeout.ms", REQUEST_MS,
                        "default.api.timeout.ms", CALL_MS,
                        "max.poll.records", BATCH),
                new StringDeserializer(),
                new StringDeserializer());
    }

    public static void main(String[] arguments) throws InterruptedException {
        while (true) {
            try (var application =
                    new Application(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])) {
                application.run();
            } catch (KafkaException error) {
                tell("begins again", error);
            }
            Thread.sleep(PAUSE.toMillis());
        }
    }

    /** Run until an error that ends the producer. */
    private void run() throws InterruptedException {
        producer.initTransactions();
        tell("is initialized", null);
        consumer.subscribe(List.of(source));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(POLL);
            if (records.isEmpty()) {
                continue;
            }
            try {
                transact(records);
            } catch (ApplicationRecoverableException | AuthorizationException | OutOfOrderSequenceException error) {
                throw error; // no abort mends these
            } catch (KafkaException error) {
                tell("aborts", error);
                retried(producer::abortTransaction); // throws again what is fatal
                goBack();
            }
        }
    }

    private void transact(ConsumerRecords<String, String> records) throws InterruptedException {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> each : records) {
            String value = each.partition() + "/" + each.offset() + " " + each.value();
            producer.send(new ProducerRecord<>(sink, each.partition(), null, value)); // a commit throws what fails here
            offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
        }
        Thread.sleep(WORK.toMillis());
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        retried(producer::commitTransaction);
    }

    /** Repeat an end of a transaction that outlives max.block.ms: its outcome is open, and no other call is legal. */
    private static void retried(Runnable end) {
        while (true) {
            try {
                end.run();
                return;
            } catch (TimeoutException error) {
                tell("retries", error);
            }
        }
    }

    /** Go back to the group's committed offsets. */
    private void goBack() {
        for (var each : consumer.committed(consumer.assignment()).entrySet()) {
            if (each.getValue() == null) {
                consumer.seekToBeginning(List.of(each.getKey()));
            } else {
                consumer.seek(each.getKey(), each.getValue());
            }
        }
    }

    @Override
    public void close() {
        consumer.close(CloseOptions.timeout(CLOSE));
        producer.close(CLOSE);
    }

    private static void tell(String event, KafkaException error) {
        String cause = error == null ? "" : ": " + error + (error.getCause() == null ? "" : "; " + error.getCause());
        System.out.println(LocalTime.now().truncatedTo(ChronoUnit.SECONDS) + " " + event + cause);
    }
}
