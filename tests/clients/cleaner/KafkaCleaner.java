import java.io.File;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own log cleaner over logs that lie in files.
 *
 * <p>Arguments: the path of a folder, and delete.retention.ms. Each folder in it is a log: its segments are
 * {@code *.segment}, in order of names, each a run of record batches. The file {@code rounds} has a line for each round
 * of cleaning: first dirty offset, first uncleanable offset, time in milliseconds. The batches of the whole log after
 * round n are written to {@code after-n}.
 */
public final class KafkaCleaner {
    private static final int LEADER_EPOCH = 1_000_000;
    private static final int BUFFER_BYTES = 1 << 20;

    public static void main(String[] arguments) throws Exception {
        File[] cases = new File(arguments[0]).listFiles(File::isDirectory);
        Arrays.sort(cases);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (File folder : cases) {
            clean(folder, arguments[1], scheduler);
        }
        scheduler.shutdown();
        System.out.println("cleaned " + cases.length);
    }

    private static void clean(File folder, String deleteRetentionMs, KafkaScheduler scheduler) throws Exception {
        File logFolder = new File(folder, "topic-0");
        Files.createDirectory(logFolder.toPath());
        Map<String, String> configs = new HashMap<>();
        configs.put("cleanup.policy", "compact");
        configs.put("delete.retention.ms", deleteRetentionMs);
        UnifiedLog log = UnifiedLog.create(
                logFolder, new LogConfig(configs), 0L, 0L, scheduler, new BrokerTopicStats(), Time.SYSTEM,
                3_600_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1),
                true, Optional.empty());
        for (Path segment : segments(folder)) {
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(segment));
            log.appendAsFollower(MemoryRecords.readableRecords(bytes), LEADER_EPOCH);
            log.roll();
        }
        log.updateHighWatermark(log.logEndOffset());
        int number = 0;
        for (String line : Files.readAllLines(folder.toPath().resolve("rounds"))) {
            String[] fields = line.split(" ");
            long firstDirty = Long.parseLong(fields[0]);
            long firstUncleanable = Long.parseLong(fields[1]);
            Cleaner cleaner = new Cleaner(
                    0, new SkimpyOffsetMap(BUFFER_BYTES), BUFFER_BYTES, BUFFER_BYTES, 0.9,
                    new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
            cleaner.doClean(new LogToClean(log, firstDirty, firstUncleanable, false), Long.parseLong(fields[2]));
            try (OutputStream out = Files.newOutputStream(folder.toPath().resolve("after-" + number))) {
                write(log, Channels.newChannel(out));
            }
            number++;
        }
        log.close();
    }

    private static List<Path> segments(File folder) {
        List<Path> found = new ArrayList<>();
        for (File file : folder.listFiles()) {
            if (file.getName().endsWith(".segment")) {
                found.add(file.toPath());
            }
        }
        found.sort(null);
        return found;
    }

    private static void write(UnifiedLog log, WritableByteChannel out) throws Exception {
        for (LogSegment segment : log.logSegments()) {
            ByteBuffer bytes = ByteBuffer.allocate(segment.log().sizeInBytes());
            segment.log().readInto(bytes, 0);
            out.write(bytes);
        }
    }
}
