import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;

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
 * Kafka's own log cleaner, one round for each command: a line {@code clean FOLDER MAP_BYTES NOW_MS} on standard input.
 *
 * <p>The log's segments are {@code *.segment} in the folder, in order of names. The response is a line
 * {@code = SECONDS CPU_SECONDS BYTES_AFTER}: the wall clock and the processor time of the process in the round alone,
 * without the making of the log, and the bytes of the cleaned log.
 */
public final class CleanerLoad {
    private static final int LEADER_EPOCH = 1;
    private static final int IO_BUFFER_BYTES = 1 << 19; // log.cleaner.io.buffer.size

    public static void main(String[] arguments) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            System.out.println(clean(new File(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3]), scheduler));
        }
        scheduler.shutdown();
    }

    private static String clean(File folder, int mapBytes, long nowMs, KafkaScheduler scheduler) throws Exception {
        File logFolder = new File(folder, "kafka-0");
        delete(logFolder.toPath());
        Files.createDirectory(logFolder.toPath());
        Map<String, String> configs = new HashMap<>();
        configs.put("cleanup.policy", "compact");
        UnifiedLog log = UnifiedLog.create(
                logFolder, new LogConfig(configs), 0L, 0L, scheduler, new BrokerTopicStats(), Time.SYSTEM,
                3_600_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1),
                true, Optional.empty());
        for (Path segment : segments(folder)) {
            ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(segment));
            log.appendAsFollower(MemoryRecords.readableRecords(bytes), LEADER_EPOCH);
            log.roll();
        }
        log.flush(true);
        log.updateHighWatermark(log.logEndOffset());
        Cleaner cleaner = new Cleaner(
                0, new SkimpyOffsetMap(mapBytes), IO_BUFFER_BYTES, 1 << 20, 0.9,
                new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
        long cpu = cpuNanos();
        long began = System.nanoTime();
        cleaner.doClean(new LogToClean(log, 0L, log.logEndOffset(), false), nowMs);
        double seconds = (System.nanoTime() - began) / 1e9;
        double cpuSeconds = (cpuNanos() - cpu) / 1e9;
        long after = 0;
        for (LogSegment segment : log.logSegments()) {
            after += segment.log().sizeInBytes();
        }
        log.close();
        delete(logFolder.toPath());
        return "= " + seconds + " " + cpuSeconds + " " + after;
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
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

    /** Deletes a log's folder, while Kafka's scheduler may still delete replaced segments in it. */
    private static void delete(Path folder) throws Exception {
        while (Files.exists(folder)) {
            try (Stream<Path> paths = Files.walk(folder)) {
                for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                    Files.deleteIfExists(path);
                }
            } catch (NoSuchFileException | UncheckedIOException gone) {
                Thread.onSpinWait(); // the scheduler was faster: look again
            }
        }
    }
}
