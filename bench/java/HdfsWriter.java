import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.protocol.datatransfer.PacketHeader;

/**
 * Hadoop's own client as a yardstick of storage: writes packets of one size into several files, a thread a file.
 *
 * <p>Commands come on standard input, a line each, and each has one line of response that begins with "=".  The same
 * commands as of bench/byte_movers.py; bench/mover.py sends them.
 *
 * <pre>
 *   open FOLDER FILES PACKET CHUNK REPLICAS BLOCK   creates the files, and writes and flushes one packet to each
 *   write PACKETS WINDOW                            writes so many packets to each file: "= SECONDS CPU_SECONDS".
 *                                                   WINDOW 1: hflush after each; else hflush after the last alone, and
 *                                                   the client has as many in flight as its default allows (80)
 *   close                                           closes the files, and removes the folder
 * </pre>
 */
public final class HdfsWriter {
  private static final int CHECKSUM_BYTES = 4;
  private final List<FSDataOutputStream> files = new ArrayList<>();
  private FileSystem fileSystem;
  private Path folder;
  private byte[] packet;

  public static void main(String[] arguments) throws Exception {
    HdfsWriter writer = new HdfsWriter();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      System.out.println("= " + writer.run(line.split(" ")));
    }
  }

  private String run(String[] words) throws Exception {
    switch (words[0]) {
      case "open":
        open(words);
        return "0";
      case "write":
        return write(Integer.parseInt(words[1]), Integer.parseInt(words[2]) == 1);
      case "close":
        for (FSDataOutputStream file : files) {
          file.close();
        }
        files.clear();
        fileSystem.delete(folder, true);
        fileSystem.close();
        return "0";
      default:
        throw new IllegalArgumentException("unknown command " + words[0]);
    }
  }

  private void open(String[] words) throws Exception {
    int chunk = Integer.parseInt(words[4]);
    int chunks = Integer.parseInt(words[3]) / chunk;
    Configuration settings = new Configuration();
    settings.setInt("dfs.bytes-per-checksum", chunk);
    settings.set("dfs.checksum.type", "CRC32C");
    settings.setInt(
        "dfs.client-write-packet-size", chunks * (chunk + CHECKSUM_BYTES) + PacketHeader.PKT_MAX_HEADER_LEN);
    fileSystem = FileSystem.newInstance(settings);
    folder = new Path(words[1]);
    packet = new byte[chunks * chunk];
    new Random(0).nextBytes(packet);
    for (int number = 0; number < Integer.parseInt(words[2]); number++) {
      Path path = new Path(folder, Integer.toString(number));
      FSDataOutputStream file =
          fileSystem.create(path, false, packet.length, Short.parseShort(words[5]), Long.parseLong(words[6]));
      file.write(packet);
      file.hflush();
      files.add(file);
    }
  }

  private String write(int packets, boolean isEachFlushed) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(files.size());
    OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long cpu = system.getProcessCpuTime();
    long begun = System.nanoTime();
    List<Future<?>> ends = new ArrayList<>();
    for (FSDataOutputStream file : files) {
      ends.add(threads.submit(() -> {
        for (int number = 1; number <= packets; number++) {
          file.write(packet);
          if (isEachFlushed || number == packets) {
            file.hflush();
          }
        }
        return null;
      }));
    }
    for (Future<?> end : ends) {
      end.get();
    }
    double seconds = (System.nanoTime() - begun) / 1e9;
    double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
    threads.shutdown();
    return seconds + " " + cpuSeconds;
  }
}
