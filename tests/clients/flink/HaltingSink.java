import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.api.connector.sink2.CommitterInitContext;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.kafka.sink.TwoPhaseCommittingStatefulSink;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.streaming.api.connector.sink2.CommittableMessage;
import org.apache.flink.streaming.api.connector.sink2.SupportsPostCommitTopology;
import org.apache.flink.streaming.api.datastream.DataStream;

/**
 * A sink of two phases whose process can die between the phases.
 *
 * <p>While the file {@code halt} exists, a commit does not reach the wrapped sink: the process ends at once, with code 137. The
 * checkpoint with the prepared transactions is whole then.
 */
final class HaltingSink<T, W, C, S extends TwoPhaseCommittingStatefulSink<T, W, C> & SupportsPostCommitTopology<C>>
        implements TwoPhaseCommittingStatefulSink<T, W, C>, SupportsPostCommitTopology<C> {
    private static final int KILLED = 137;

    private final S sink;
    private final String halt;

    HaltingSink(S sink, String halt) {
        this.sink = sink;
        this.halt = halt;
    }

    @Override
    public Committer<C> createCommitter(CommitterInitContext context) throws IOException {
        Committer<C> committer = sink.createCommitter(context);
        return new Committer<>() {
            @Override
            public void commit(Collection<CommitRequest<C>> requests) throws IOException, InterruptedException {
                if (!requests.isEmpty() && Files.exists(Path.of(halt))) {
                    Runtime.getRuntime().halt(KILLED);
                }
                committer.commit(requests);
            }

            @Override
            public void close() throws Exception {
                committer.close();
            }
        };
    }

    @Override
    public PrecommittingStatefulSinkWriter<T, W, C> createWriter(WriterInitContext context) throws IOException {
        return sink.createWriter(context);
    }

    @Override
    public PrecommittingStatefulSinkWriter<T, W, C> restoreWriter(WriterInitContext context, Collection<W> states)
            throws IOException {
        return sink.restoreWriter(context, states);
    }

    @Override
    public SimpleVersionedSerializer<C> getCommittableSerializer() {
        return sink.getCommittableSerializer();
    }

    @Override
    public SimpleVersionedSerializer<W> getWriterStateSerializer() {
        return sink.getWriterStateSerializer();
    }

    @Override
    public void addPostCommitTopology(DataStream<CommittableMessage<C>> committables) {
        sink.addPostCommitTopology(committables);
    }
}
