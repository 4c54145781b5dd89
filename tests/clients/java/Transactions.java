import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The operations of the transaction tests: producers with transactional ids, known by their numbers, and a loop. */
final class Transactions {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final int READ_MAX = 500;

    private final Map<String, Object> common;
    private final long timeoutMs;
    private final Map<Integer, KafkaProducer<String, String>> producers = new HashMap<>();

    Transactions(Map<String, Object> common, long timeoutMs) {
        this.common = common;
        this.timeoutMs = timeoutMs;
    }

    Object answer(JsonNode asked) throws Exception {
        String operation = asked.get("op").asText();
        int number = asked.path("producer").asInt();
        String topic = asked.path("topic").asText();
        switch (operation) {
            case "txn_open" -> producers.put(number, open(asked.get("id").asText(), asked.get("txn_timeout_ms").asInt()));
            case "txn_begin" -> producers.get(number).beginTransaction();
            case "txn_send" -> send(producers.get(number), topic, asked.get("values"));
            case "txn_offsets" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                asked.get("offsets").fields().forEachRemaining(each -> offsets.put(
                        new TopicPartition(topic, Integer.parseInt(each.getKey())),
                        new OffsetAndMetadata(each.getValue().asLong())));
                producers.get(number).sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(asked.get("group").asText()));
            }
            case "txn_end" -> {
                if (asked.get("commit").asBoolean()) {
                    producers.get(number).commitTransaction();
                } else {
                    producers.get(number).abortTransaction();
                }
            }
            case "txn_close" -> producers.remove(number).close(Duration.ofMillis(timeoutMs));
            case "txn_read" -> {
                return read(asked);
            }
            case "txn_transform" -> {
                return transform(asked);
            }
            default -> throw new IllegalArgumentException("unknown operation " + asked);
        }
        return null;
    }

    private KafkaProducer<String, String> open(String id, int transactionTimeoutMs) {
        Map<String, Object> config = new HashMap<>(common);
        config.put("transactional.id", id);
        config.put("transaction.timeout.ms", transactionTimeoutMs);
        config.put("max.block.ms", timeoutMs);
        var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        try {
            producer.initTransactions();
        } catch (RuntimeException error) {
            producer.close(Duration.ZERO);
            throw error;
        }
        return producer;
    }

    private void send(KafkaProducer<String, String> producer, String topic, JsonNode values) throws Exception {
        List<Future<?>> sent = new ArrayList<>();
        values.fields().forEachRemaining(each -> each.getValue().forEach(value -> sent.add(
                producer.send(new ProducerRecord<>(topic, Integer.parseInt(each.getKey()), null, value.asText())))));
        for (Future<?> each : sent) {
            try {
                each.get(timeoutMs, TimeUnit.MILLISECONDS);
            } catch (ExecutionException error) {
                throw (Exception) error.getCause();
            }
        }
    }

    private KafkaConsumer<String, String> consumer(String group, boolean isCommitted, int most) {
        Map<String, Object> config = new HashMap<>(common);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("max.poll.records", most);
        config.put("isolation.level", isCommitted ? "read_committed" : "read_uncommitted");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    /** The values of each partition before the sentinel. */
    private Object read(JsonNode asked) {
        String sentinel = asked.get("sentinel").asText();
        Map<Integer, List<String>> found = new HashMap<>();
        Set<Integer> ended = new HashSet<>();
        List<TopicPartition> places = new ArrayList<>();
        for (int partition = 0; partition < asked.get("partitions").asInt(); partition++) {
            places.add(new TopicPartition(asked.get("topic").asText(), partition));
            found.put(partition, new ArrayList<>());
        }
        try (var consumer = consumer("reader", asked.get("committed").asBoolean(), READ_MAX)) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long deadline = deadline();
            while (ended.size() < places.size()) {
                for (ConsumerRecord<String, String> each : consumer.poll(POLL)) {
                    if (each.value().equals(sentinel)) {
                        ended.add(each.partition());
                    } else {
                        found.get(each.partition()).add(each.value());
                    }
                }
                require(deadline, "ended: " + ended);
            }
        }
        return found;
    }

    /** Consume, transform, produce, until so many records are committed; every few transactions one is aborted. */
    private int transform(JsonNode asked) {
        Map<TopicPartition, Long> next = new HashMap<>();
        int number = 0;
        int committed = 0;
        long deadline = deadline();
        try (var producer = open(asked.get("transactional_id").asText(), (int) timeoutMs);
                var consumer = consumer(asked.get("group").asText(), true, asked.get("batch").asInt())) {
            consumer.subscribe(List.of(asked.get("source").asText()));
            while (next.values().stream().mapToLong(each -> each).sum() < asked.get("count").asLong()) {
                require(deadline, "next: " + next);
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                number++;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                Map<TopicPartition, Long> first = new HashMap<>();
                for (ConsumerRecord<String, String> each : records) {
                    var place = new TopicPartition(each.topic(), each.partition());
                    first.putIfAbsent(place, each.offset());
                    offsets.put(place, new OffsetAndMetadata(each.offset() + 1));
                    String value = each.partition() + "/" + each.offset() + " " + each.value();
                    producer.send(new ProducerRecord<>(asked.get("sink").asText(), each.partition(), null, value));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (number % asked.get("abort_every").asInt() == 0) {
                    producer.flush(); // else the abort drops the batches that have not been sent
                    producer.abortTransaction();
                    first.forEach(consumer::seek);
                } else {
                    producer.commitTransaction();
                    committed++;
                    offsets.forEach((place, offset) -> next.put(place, offset.offset()));
                }
            }
        }
        return committed;
    }

    private long deadline() {
        return System.nanoTime() + timeoutMs * 1_000_000;
    }

    private static void require(long deadline, String what) {
        if (System.nanoTime() > deadline) {
            throw new IllegalStateException("not in time; " + what);
        }
    }
}
