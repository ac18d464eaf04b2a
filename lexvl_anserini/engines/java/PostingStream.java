package lexvl;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.lucene.util.BytesRef;

/**
 * The postings of runs, joined: by term, and of a term by document, a chunk at a time. A sink takes them too, in the
 * thread that reads them.
 */
final class PostingStream implements AutoCloseable {
    /** Chunks that wait. */
    private static final int AHEAD = 4;
    /** Time between two checks whether the other side has failed. */
    private static final long PATIENCE_MS = 20;

    private final List<Run.Cursor> cursors;
    private final TermTable terms;
    private final TermSink sink;
    private final BytesRef term = new BytesRef();
    private final BlockingQueue<Chunk> read = new ArrayBlockingQueue<>(AHEAD);
    private final BlockingQueue<Chunk> free = new ArrayBlockingQueue<>(AHEAD + 2);
    private final Thread thread;
    private volatile Throwable failure;
    private volatile boolean closed;
    private int rank;
    private int cursor;
    private Chunk current;

    /**
     * @param cursors in the order of documents
     * @param sink may be null
     * @param ahead read in a thread of its own
     */
    PostingStream(List<Run.Cursor> cursors, TermTable terms, TermSink sink, boolean ahead) {
        this.cursors = cursors;
        this.terms = terms;
        this.sink = sink;
        thread = ahead ? new Thread(this::work, "lexvl-postings") : null;
        if (ahead) {
            thread.setDaemon(true);
            thread.start();
        }
    }

    /** The next chunk, which is not empty; the one before is used again. */
    Chunk next() throws IOException {
        if (thread == null) {
            current = current == null ? new Chunk() : current;
            fill(current);
            return current;
        }
        try {
            if (current != null) {
                free.add(current);
            }
            current = null;
            while (current == null) {
                if (failure != null) {
                    throw new IOException(failure);
                }
                current = read.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
            }
            return current;
        } catch (InterruptedException error) {
            throw new IOException(error);
        }
    }

    private void work() {
        try {
            while (!closed) {
                Chunk chunk = free.poll();
                chunk = chunk == null ? new Chunk() : chunk;
                fill(chunk);
                if (chunk.size == 0) {
                    return;
                }
                while (!closed && !read.offer(chunk, PATIENCE_MS, TimeUnit.MILLISECONDS)) {}
            }
        } catch (Throwable error) {
            failure = error;
        }
    }

    private void fill(Chunk chunk) throws IOException {
        chunk.size = 0;
        for (; rank < terms.size(); rank++, cursor = 0) {
            for (; cursor < cursors.size(); cursor++) {
                for (Run.Cursor run = cursors.get(cursor); run.rank() == rank; ) {
                    int from = chunk.size;
                    if (from + run.count() > Chunk.CAPACITY) {
                        return;
                    }
                    run.copy(chunk);
                    if (sink != null) {
                        sink.add(chunk.docs, chunk.impacts, from, chunk.size);
                    }
                }
            }
            if (sink != null) {
                terms.point(term, terms.dimensionOfRank(rank));
                sink.end(term);
            }
        }
    }

    @Override
    public void close() throws IOException {
        closed = true;
        try {
            if (thread != null) {
                thread.join();
            }
        } catch (InterruptedException error) {
            throw new IOException(error);
        }
    }
}
