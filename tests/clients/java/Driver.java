import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Drives Kafka's own Java client through the client tests: one JSON object a line on standard input, one answer a line
 * on standard output. tests/integration/clients/drivers/program.py is the other side.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(50);
    private static final long STREAM_PAUSE_MS = 50;
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    private final JsonNode settings;
    private final long timeoutMs;
    private final Admin admin;
    private final Transactions transactions;

    private Driver(JsonNode settings) {
        this.settings = settings;
        this.timeoutMs = settings.get("timeout_ms").asLong();
        this.admin = Admin.create(common(Map.of()));
        this.transactions = new Transactions(common(Map.of()), timeoutMs);
    }

    public static void main(String[] arguments) throws IOException {
        var driver = new Driver(JSON.readTree(arguments[0]));
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", JSON.valueToTree(driver.answer(JSON.readTree(line))));
            } catch (Exception error) {
                answer.put("error", error.toString());
                error.printStackTrace();
            }
            output.println(JSON.writeValueAsString(answer));
        }
        driver.admin.close();
    }

    private Object answer(JsonNode asked) throws Exception {
        String topic = asked.path("topic").asText();
        String group = asked.path("group").asText();
        return switch (asked.get("op").asText()) {
            case "create_topic" -> {
                var made = new NewTopic(topic, Optional.of(asked.get("partitions").asInt()), Optional.empty());
                yield await(admin.createTopics(List.of(made)).all());
            }
            case "delete_topic" -> await(admin.deleteTopics(List.of(topic)).all());
            case "partitions" -> partitions(topic);
            case "produce" -> produce(topic, asked);
            case "stream" -> stream(topic, asked.get("seconds").asDouble());
            case "transactions" -> transactions(topic, group, asked.get("id").asText());
            case "consume" -> consume(asked);
            case "offsets_for_time" -> offsets(topic, OffsetSpec.forTimestamp(asked.get("timestamp").asLong()));
            case "first_offsets" -> offsets(topic, OffsetSpec.earliest());
            case "delete_records" -> deleteRecords(topic, asked.get("before"));
            case "rebalance" -> rebalance(topic, group, asked.get("assignor").asText());
            case "static_restart" -> staticRestart(topic, group);
            case "groups" -> await(admin.listGroups().all()).stream().map(GroupListing::groupId).toList();
            case "describe_group" -> {
                var found = await(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                yield Map.of("state", found.groupState().toString(), "members", found.members().size());
            }
            case "delete_group" -> await(admin.deleteConsumerGroups(List.of(group)).all());
            default -> transactions.answer(asked);
        };
    }

    /** With these settings, those of every client: the servers, and who it is. */
    private Map<String, Object> common(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", settings.get("bootstrap").asText());
        settings.path("properties").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        return config;
    }

    private <T> T await(Future<T> future) throws Exception {
        try {
            return future.get(timeoutMs, TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            throw (Exception) error.getCause();
        }
    }

    // --- topics and offsets ---

    private int partitions(String topic) throws Exception {
        if (!await(admin.listTopics().names()).contains(topic)) {
            return 0;
        }
        return await(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
    }

    private Map<Integer, Long> offsets(String topic, OffsetSpec spec) throws Exception {
        Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
        for (int partition = 0; partition < partitions(topic); partition++) {
            wanted.put(new TopicPartition(topic, partition), spec);
        }
        Map<Integer, Long> found = new HashMap<>();
        for (Map.Entry<TopicPartition, ListOffsetsResultInfo> each : await(admin.listOffsets(wanted).all()).entrySet()) {
            found.put(each.getKey().partition(), each.getValue().offset());
        }
        return found;
    }

    private Object deleteRecords(String topic, JsonNode before) throws Exception {
        Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
        before.fields().forEachRemaining(each -> wanted.put(
                new TopicPartition(topic, Integer.parseInt(each.getKey())),
                RecordsToDelete.beforeOffset(each.getValue().asLong())));
        return await(admin.deleteRecords(wanted).all());
    }

    // --- data ---

    private Object produce(String topic, JsonNode asked) throws Exception {
        Map<String, Object> config = common(Map.of(
                "compression.type", asked.get("codec").asText(),
                "enable.idempotence", asked.get("idempotent").asBoolean(),
                "acks", "all",
                "linger.ms", 20));
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (JsonNode each : asked.get("messages")) {
                var message = new ProducerRecord<>(
                        topic,
                        each.get("partition").asInt(),
                        each.get("timestamp").asLong(),
                        each.get("key").binaryValue(),
                        each.get("value").binaryValue());
                for (JsonNode header : each.get("headers")) {
                    message.headers().add(header.get("name").asText(), header.get("value").binaryValue());
                }
                sent.add(producer.send(message));
            }
            for (Future<?> each : sent) {
                await(each);
            }
        }
        return null;
    }

    /** How many records, "0", "1", …, were acknowledged one after the other, by one producer that lives for this long. */
    private Object stream(String topic, double seconds) throws Exception {
        Map<String, Object> config = common(Map.of("acks", "all", "max.block.ms", timeoutMs));
        int sent = 0;
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            long end = System.nanoTime() + (long) (seconds * 1e9);
            while (System.nanoTime() < end) {
                await(producer.send(new ProducerRecord<>(topic, 0, null, Integer.toString(sent).getBytes(StandardCharsets.UTF_8))));
                sent++;
                Thread.sleep(STREAM_PAUSE_MS);
            }
        }
        return sent;
    }

    /** A commit of "kept" and offset 5, an abort of "gone" and 9; then what a group and readers of both levels see. */
    private Object transactions(String topic, String group, String id) throws Exception {
        Map<String, Object> config = common(Map.of("transactional.id", id, "max.block.ms", timeoutMs));
        var offsets = new TopicPartition(topic, 1);
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (var each : List.of(Map.entry("kept", 5L), Map.entry("gone", 9L))) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, each.getKey().getBytes(StandardCharsets.UTF_8)));
                producer.sendOffsetsToTransaction(
                        Map.of(offsets, new OffsetAndMetadata(each.getValue())), new ConsumerGroupMetadata(group));
                producer.flush();
                if (each.getKey().equals("kept")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        Map<String, Object> found = new HashMap<>();
        try (var consumer = consumer(group, Map.of("isolation.level", "read_committed"))) {
            found.put("committed", consumer.committed(Set.of(offsets)).get(offsets).offset());
        }
        for (String level : List.of("read_committed", "read_uncommitted")) {
            found.put(level, readAll(new TopicPartition(topic, 0), level));
        }
        return found;
    }

    /** The values of a partition, up to the end at an isolation level. */
    private List<String> readAll(TopicPartition partition, String level) throws Exception {
        List<String> values = new ArrayList<>();
        try (var consumer = consumer("readers", Map.of("isolation.level", level))) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            poll(() -> {
                consumer.poll(POLL).forEach(each -> values.add(new String(each.value(), StandardCharsets.UTF_8)));
                return consumer.position(partition) >= end;
            });
        }
        return values;
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, Object> more) {
        Map<String, Object> config = common(Map.of(
                "group.id", group,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "session.timeout.ms", settings.get("session_timeout_ms").asInt(),
                "heartbeat.interval.ms", settings.get("heartbeat_ms").asInt()));
        config.putAll(more);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private ArrayNode consume(JsonNode asked) throws Exception {
        List<String> topics = new ArrayList<>();
        asked.get("topics").forEach(topic -> topics.add(topic.asText()));
        int count = asked.get("count").asInt();
        ArrayNode records = JSON.createArrayNode();
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        try (var consumer = consumer(asked.get("group").asText(), Map.of())) {
            consumer.subscribe(topics);
            poll(() -> {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) {
                    if (records.size() < count) {
                        records.add(toJson(each));
                        next.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
                    }
                }
                return records.size() >= count;
            });
            consumer.commitSync(next);
        }
        return records;
    }

    private static ObjectNode toJson(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode found = JSON.createObjectNode()
                .put("topic", record.topic())
                .put("partition", record.partition())
                .put("offset", record.offset())
                .put("key", record.key())
                .put("value", record.value())
                .put("timestamp", record.timestamp());
        ArrayNode headers = found.putArray("headers");
        for (Header header : record.headers()) {
            headers.addObject().put("name", header.key()).put("value", header.value());
        }
        return found;
    }

    // --- groups ---

    private Object rebalance(String topic, String group, String assignor) throws Exception {
        Set<Integer> everything = new TreeSet<>();
        for (int partition = 0; partition < partitions(topic); partition++) {
            everything.add(partition);
        }
        Map<String, Object> more = Map.of("partition.assignment.strategy", ASSIGNORS.get(assignor));
        Map<String, Object> moves = new HashMap<>();
        try (var first = new Member(consumer(group, more), topic)) {
            poll(() -> first.held().equals(everything));
            moves.put("alone", first.held());
            try (var second = new Member(consumer(group, more), topic)) {
                poll(() -> isShared(first.held(), second.held(), everything));
                moves.put("first", first.held());
                moves.put("second", second.held());
                first.close();
                poll(() -> second.held().equals(everything));
                moves.put("left", second.held());
            }
        }
        return moves;
    }

    /** Two static members; one goes without leaving and comes back under its name: the other keeps what it had. */
    private Object staticRestart(String topic, String group) throws Exception {
        int count = partitions(topic);
        Map<String, Object> moves = new HashMap<>();
        try (var first = new Member(consumer(group, Map.of("group.instance.id", "one")), topic)) {
            poll(() -> first.held().size() == count);
            Set<Integer> before;
            int joined;
            try (var second = new Member(consumer(group, Map.of("group.instance.id", "two")), topic)) {
                poll(() -> !second.held().isEmpty() && first.held().size() + second.held().size() == count);
                before = second.held();
                joined = first.joined;
            }
            try (var again = new Member(consumer(group, Map.of("group.instance.id", "two")), topic)) {
                poll(() -> !again.held().isEmpty());
                moves.put("before", before);
                moves.put("after", again.held());
            }
            moves.put("rebalances", first.joined - joined);
        }
        return moves;
    }

    private static boolean isShared(Set<Integer> first, Set<Integer> second, Set<Integer> everything) {
        Set<Integer> union = new TreeSet<>(first);
        union.addAll(second);
        return !first.isEmpty() && !second.isEmpty() && first.size() + second.size() == everything.size() && union.equals(everything);
    }

    private void poll(BooleanSupplier isDone) throws InterruptedException {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        while (!isDone.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not in time");
            }
            Thread.sleep(5);
        }
    }

    /** A member of a group, polled by a thread of its own, which alone touches the consumer. */
    private static final class Member implements AutoCloseable {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final Thread thread;
        private final Set<Integer> held = new TreeSet<>();
        private volatile boolean isEnding;
        volatile int joined;

        Member(KafkaConsumer<byte[], byte[]> consumer, String topic) {
            this.consumer = consumer;
            thread = new Thread(() -> run(topic));
            thread.start();
        }

        Set<Integer> held() {
            synchronized (held) {
                return new TreeSet<>(held);
            }
        }

        private void run(String topic) {
            consumer.subscribe(List.of(topic), new org.apache.kafka.clients.consumer.ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> added) {
                    joined++;
                    synchronized (held) {
                        added.forEach(each -> held.add(each.partition()));
                    }
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> lost) {
                    synchronized (held) {
                        lost.forEach(each -> held.remove(each.partition()));
                    }
                }
            });
            while (!isEnding) {
                consumer.poll(POLL);
            }
            consumer.close();
        }

        @Override
        public void close() throws InterruptedException {
            isEnding = true;
            thread.join();
        }
    }
}
