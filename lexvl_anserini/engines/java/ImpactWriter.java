package lexvl;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.TieredMergePolicy;
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.FSDirectory;

/**
 * Writes impact documents: a term's frequency is its impact. Whole pieces of shards come in one call each and are
 * indexed by threads of their own, while Python reads the next piece.
 */
public final class ImpactWriter {
    /** Per shard: documents, empty ones, postings. */
    private static final int COUNTS = 3;
    /** Pieces that wait: enough to keep the threads busy, few enough to keep memory flat. */
    private static final int WAITING = 2;
    /** Segments that are merged at once. */
    private static final int MANY_SEGMENTS = 64;
    /** Time between two checks whether the other side has failed. */
    private static final long PATIENCE_MS = 20;

    private final Directory directory;
    private final IndexWriter writer;
    private final TermTable terms;
    private final boolean text;
    private final boolean storeText;
    private final boolean vectors;
    private final Map<String, String> metadata;
    private final BlockingQueue<Piece> waiting = new ArrayBlockingQueue<>(WAITING);
    private final Thread[] threads;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final AtomicLong documents = new AtomicLong();
    private final long[] counts;
    private volatile int failedShard = -1;
    private long impacts;
    private long maxImpact;

    /** Rows of one shard, in whatever form. */
    private interface Piece {
        int shard();

        void rows(ImpactRow row, Sink sink) throws IOException;
    }

    private interface Sink {
        void take() throws IOException;
    }

    private static final Piece END = new Piece() {
        @Override
        public int shard() {
            return -1;
        }

        @Override
        public void rows(ImpactRow row, Sink sink) {}
    };

    /**
     * @param terms the vocabulary's terms, UTF-8, one after the other; {@code ends} where each ends (int32)
     * @param metadata type (keyword, long, double, date) of each metadata key to index
     * @param created major version of Lucene that counts as the creator of the index
     */
    public ImpactWriter(
            String folder,
            Similarity similarity,
            Analyzer analyzer,
            byte[] terms,
            byte[] ends,
            int shards,
            boolean text,
            boolean storeText,
            boolean vectors,
            Map<String, String> metadata,
            int created,
            int threads)
            throws IOException {
        this.terms = new TermTable(terms, Bytes.ints(ends));
        this.text = text;
        this.storeText = storeText;
        this.vectors = vectors;
        this.metadata = metadata;
        counts = new long[shards * COUNTS];
        directory = FSDirectory.open(Path.of(folder));
        IndexWriterConfig config = new IndexWriterConfig(analyzer);
        config.setSimilarity(similarity);
        config.setUseCompoundFile(false);
        config.setMergePolicy(lateMerges());
        config.setMergeScheduler(new QuietMerges());
        config.setIndexCreatedVersionMajor(created);
        config.setOpenMode(IndexWriterConfig.OpenMode.CREATE);
        writer = new IndexWriter(directory, config);
        this.threads = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            this.threads[i] = new Thread(this::work, "lexvl-writer-" + i);
            this.threads[i].setDaemon(true);
            this.threads[i].start();
        }
    }

    /** All segments become one in the end: until then, few merges of many, since each writes its postings again. */
    private static TieredMergePolicy lateMerges() {
        TieredMergePolicy policy = new TieredMergePolicy();
        policy.setSegmentsPerTier(MANY_SEGMENTS);
        policy.setMaxMergeAtOnce(MANY_SEGMENTS);
        return policy;
    }

    /** Whole lines of JSON. */
    public void addJson(int shard, byte[] lines) throws Throwable {
        put(new Piece() {
            @Override
            public int shard() {
                return shard;
            }

            @Override
            public void rows(ImpactRow row, Sink sink) throws IOException {
                JsonRows rows = new JsonRows(lines, terms, text || storeText, !metadata.isEmpty());
                while (rows.next(row)) {
                    sink.take();
                }
            }
        });
    }

    /**
     * Columns. Where a byte array is followed by {@code ends}, row i lies before ends[i] (int32).
     *
     * @param ids UTF-8
     * @param dims int32, impacts int32
     * @param contents UTF-8, or null; metadata JSON objects, or null
     */
    public void addColumns(
            int shard,
            byte[] ids,
            byte[] idEnds,
            byte[] ends,
            byte[] dims,
            byte[] impacts,
            byte[] contents,
            byte[] contentEnds,
            byte[] metadata,
            byte[] metadataEnds)
            throws Throwable {
        put(new Piece() {
            @Override
            public int shard() {
                return shard;
            }

            @Override
            public void rows(ImpactRow row, Sink sink) throws IOException {
                int[] end = Bytes.ints(ends);
                int[] idEnd = Bytes.ints(idEnds);
                int[] dimension = Bytes.ints(dims);
                int[] impact = Bytes.ints(impacts);
                int[] contentEnd = contents == null ? null : Bytes.ints(contentEnds);
                int[] metadataEnd = metadata == null ? null : Bytes.ints(metadataEnds);
                for (int i = 0; i < end.length; i++) {
                    row.start();
                    row.id = ImpactRow.text(ids, i == 0 ? 0 : idEnd[i - 1], idEnd[i]);
                    row.checkId();
                    for (int j = i == 0 ? 0 : end[i - 1]; j < end[i]; j++) {
                        row.add(dimension[j], impact[j]);
                    }
                    if (contents != null) {
                        row.contents = ImpactRow.text(contents, i == 0 ? 0 : contentEnd[i - 1], contentEnd[i]);
                    }
                    if (metadata != null) {
                        int from = i == 0 ? 0 : metadataEnd[i - 1];
                        byte[] object = java.util.Arrays.copyOfRange(metadata, from, metadataEnd[i]);
                        new JsonRows(object, terms, false, true).metadata(row);
                    }
                    sink.take();
                }
            }
        });
    }

    /** Documents indexed so far. */
    public long documents() {
        return documents.get();
    }

    /** The shard whose row could not be indexed, or -1. */
    public int failedShard() {
        return failedShard;
    }

    /**
     * Waits for all pieces, commits and closes.
     *
     * @param merge leave one segment: smaller and quicker to search
     * @return int64: documents, empty, postings of each shard; then the sum and the maximum of all impacts
     */
    public byte[] finish(boolean merge) throws Throwable {
        put(END);
        for (Thread thread : threads) {
            thread.join();
        }
        refuse();
        if (merge) {
            writer.forceMerge(1);
        }
        writer.commit();
        writer.close();
        directory.close();
        long[] all = java.util.Arrays.copyOf(counts, counts.length + 2);
        all[counts.length] = impacts;
        all[counts.length + 1] = maxImpact;
        return Bytes.of(all);
    }

    /** Discards what was written since the start, and releases the folder. */
    public void abort() throws IOException, InterruptedException {
        failure.compareAndSet(null, new IllegalStateException("aborted"));
        for (Thread thread : threads) {
            thread.join();
        }
        writer.rollback();
        directory.close();
    }

    private void put(Piece piece) throws Throwable {
        refuse();
        // The threads may fail while the queue is full; then no thread takes pieces from it.
        while (!waiting.offer(piece, PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            refuse();
        }
    }

    private void refuse() throws Throwable {
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private void work() {
        ImpactRow row = new ImpactRow(terms);
        Segment segment = new Segment(writer, terms, text, storeText, vectors, metadata);
        int shard = -1;
        try {
            while (failure.get() == null) {
                Piece piece = waiting.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
                if (piece == null) {
                    continue;
                }
                if (piece == END) {
                    waiting.put(END);
                    if (!segment.isEmpty()) {
                        segment.flush();
                    }
                    return;
                }
                shard = piece.shard();
                Tally tally = new Tally();
                piece.rows(row, () -> {
                    segment.add(row);
                    tally.count(row);
                    documents.incrementAndGet();
                    if (segment.isFull()) {
                        segment.flush();
                    }
                });
                add(shard, tally);
            }
        } catch (Throwable error) {
            if (failure.compareAndSet(null, error)) {
                failedShard = shard;
            }
        }
    }

    private synchronized void add(int shard, Tally tally) {
        counts[shard * COUNTS] += tally.documents;
        counts[shard * COUNTS + 1] += tally.empty;
        counts[shard * COUNTS + 2] += tally.postings;
        impacts += tally.impacts;
        maxImpact = Math.max(maxImpact, tally.maxImpact);
    }

    /** What one piece held. */
    private static final class Tally {
        long documents;
        long empty;
        long postings;
        long impacts;
        long maxImpact;

        void count(ImpactRow row) {
            documents++;
            empty += row.size == 0 ? 1 : 0;
            postings += row.size;
            for (int i = 0; i < row.size; i++) {
                impacts += row.impacts[i];
                maxImpact = Math.max(maxImpact, row.impacts[i]);
            }
        }
    }
}
