import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * Source of numbers. Each task of {@code tasks.max} counts to {@code count}, from the offset that Connect stores for it; a
 * record's key is the task, its value the number.
 */
public final class NumbersSource extends SourceConnector {
    private static final ConfigDef CONFIG = new ConfigDef()
            .define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "topic of the records")
            .define("count", ConfigDef.Type.LONG, ConfigDef.Importance.HIGH, "numbers of each task");

    private Map<String, String> properties;

    @Override
    public void start(Map<String, String> properties) {
        this.properties = properties;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Numbers.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (int task = 0; task < most; task++) {
            Map<String, String> config = new HashMap<>(properties);
            config.put("number", Integer.toString(task));
            configs.add(config);
        }
        return configs;
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> properties) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        return CONFIG;
    }

    @Override
    public String version() {
        return "1";
    }

    /** Task: the partition of its offsets is its number, the offset the next number. */
    public static final class Numbers extends SourceTask {
        private static final int BATCH = 10;
        private static final int PAUSE_MS = 50;

        private String topic;
        private String number;
        private long count;
        private long next;

        @Override
        public void start(Map<String, String> properties) {
            topic = properties.get("topic");
            number = properties.get("number");
            count = Long.parseLong(properties.get("count"));
            Map<String, Object> stored = context.offsetStorageReader().offset(Map.of("task", number));
            next = stored == null ? 0 : (Long) stored.get("next");
            System.out.println("task " + number + " begins at " + next);
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(PAUSE_MS);
            List<SourceRecord> records = new ArrayList<>();
            while (records.size() < BATCH && next < count) {
                long value = next++;
                records.add(new SourceRecord(
                        Map.of("task", number), Map.of("next", next), topic, null,
                        Schema.STRING_SCHEMA, number, Schema.STRING_SCHEMA, Long.toString(value)));
            }
            return records.isEmpty() ? null : records;
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
