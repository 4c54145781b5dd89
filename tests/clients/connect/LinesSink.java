import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/** Sink that appends a line "key value" for each record to {@code file}, shared by all tasks. At least once. */
public final class LinesSink extends SinkConnector {
    private static final ConfigDef CONFIG = new ConfigDef()
            .define("file", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "file of the lines");

    private Map<String, String> properties;

    @Override
    public void start(Map<String, String> properties) {
        this.properties = properties;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Lines.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        return Collections.nCopies(most, properties);
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

    /** Task: one write of whole lines for each batch of records. */
    public static final class Lines extends SinkTask {
        private Path file;

        @Override
        public void start(Map<String, String> properties) {
            file = Path.of(properties.get("file"));
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            var lines = new StringBuilder();
            records.forEach(each -> lines.append(each.key()).append(' ').append(each.value()).append('\n'));
            try {
                Files.writeString(file, lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
