package lexvl;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.index.CodecReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.NoMergePolicy;
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.FSDirectory;

/**
 * Writes impact documents: a term's frequency is its impact. Whole pieces of shards come in one call each and are
 * sorted by threads of their own, while Python reads the next piece; in the end Lucene writes all of them once, and
 * beside it the slots of resident postings are written.
 */
public final class ImpactWriter {
    /** Per shard: documents, empty ones, postings. */
    private static final int COUNTS = 3;
    /** Pieces of this size together, roughly, are one task: a million postings. */
    private static final long TASK_BYTES = 1 << 23;
    /** Tasks that wait: enough to keep the threads busy, few enough to keep memory flat. */
    private static final int WAITING = 2;
    private static final String FIELD = "contents";
    /** Time between two checks whether the other side has failed. */
    private static final long PATIENCE_MS = 20;

    private final Directory directory;
    private final IndexWriter writer;
    private final ImpactCodec codec = new ImpactCodec(FIELD);
    private final Similarity similarity;
    private final Analyzer analyzer;
    private final int created;
    private final TermTable terms;
    private final boolean text;
    private final boolean storeText;
    private final boolean vectors;
    private final Map<String, String> metadata;
    private final BlockingQueue<Task> waiting = new ArrayBlockingQueue<>(WAITING);
    private final String resident;
    private SlotWriter slots;
    private IdCoder ids;
    private final Spill spill;
    private final Runs runs;
    private final int[] frequencies;
    private List<Piece> gathered = new ArrayList<>();
    private long gatheredBytes;
    private int tasks;
    private final Thread[] threads;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final AtomicLong documents = new AtomicLong();
    private final long[] counts;
    private volatile int failedShard = -1;
    private long impacts;
    private long maxImpact;

    /** Neighbouring pieces that one thread makes runs of; the last task has none. */
    private record Task(int number, List<Piece> pieces) {}

    /**
     * @param terms the vocabulary's terms, UTF-8, one after the other; {@code ends} where each ends (int32)
     * @param metadata type (keyword, long, double, date) of each metadata key to index
     * @param created major version of Lucene that counts as the creator of the index
     * @param resident the file of resident postings; null for none
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
            int threads,
            String resident)
            throws IOException {
        this.terms = new TermTable(terms, Bytes.ints(ends));
        this.text = text;
        this.storeText = storeText;
        this.vectors = vectors;
        this.metadata = metadata;
        counts = new long[shards * COUNTS];
        this.similarity = similarity;
        this.analyzer = analyzer;
        this.created = created;
        this.resident = resident;
        Path path = Path.of(folder);
        directory = FSDirectory.open(path);
        IndexWriterConfig config = config();
        config.setOpenMode(IndexWriterConfig.OpenMode.CREATE);
        config.setCodec(codec);
        writer = new IndexWriter(directory, config);
        spill = new Spill(path.resolve("impacts.tmp"));
        runs = new Runs(path.resolve("fields.tmp"), this::config);
        frequencies = new int[this.terms.size()];
        this.threads = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            this.threads[i] = new Thread(this::work, "lexvl-writer-" + i);
            this.threads[i].setDaemon(true);
            this.threads[i].start();
        }
    }

    /** Of any writer: all is merged by one call, and by nothing else. */
    private IndexWriterConfig config() {
        IndexWriterConfig config = new IndexWriterConfig(analyzer);
        config.setSimilarity(similarity);
        config.setUseCompoundFile(false);
        config.setMergePolicy(NoMergePolicy.INSTANCE);
        config.setMergeScheduler(new QuietMerges());
        config.setIndexCreatedVersionMajor(created);
        return config;
    }

    /** Whole lines of JSON. */
    public void addJson(int shard, byte[] lines) throws Throwable {
        add(Piece.json(shard, lines, terms, text || storeText, !metadata.isEmpty()));
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
        int[] contentEnd = contents == null ? null : Bytes.ints(contentEnds);
        int[] metadataEnd = metadata == null ? null : Bytes.ints(metadataEnds);
        Piece.Columns columns = new Piece.Columns(
                ids, Bytes.ints(idEnds), Bytes.ints(ends), dims, impacts, contents, contentEnd, metadata, metadataEnd);
        for (Piece piece : Piece.of(shard, columns, terms)) {
            add(piece);
        }
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
     * Waits for all pieces, writes the index as one segment, commits and closes.
     *
     * @return int64: documents, empty, postings of each shard; then the sum and the maximum of all impacts
     */
    public byte[] finish() throws Throwable {
        flush();
        put(new Task(tasks, List.of()));
        for (Thread thread : threads) {
            thread.join();
        }
        refuse();
        if (documents() > 0) {
            merge();
        }
        writer.commit();
        writer.close();
        release();
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
        if (slots != null) {
            slots.close();
        }
        release();
    }

    /** What {@code finish} wrote of the file of resident postings, to be closed; null without it or a document. */
    public SlotWriter slots() {
        return slots;
    }

    /** And what Python has to add about ids. */
    public IdCoder ids() {
        return ids;
    }

    private void release() throws IOException {
        runs.close();
        spill.close();
        directory.close();
    }

    /** With threads to spare, one joins postings and writes their slots, while Lucene's codec writes those before. */
    private void merge() throws IOException {
        CodecReader[] leaves = runs.leaves(FIELD, terms);
        if (resident != null) {
            slots = new SlotWriter(resident, (int) documents(), SlotWriter.widthOf((int) maxImpact));
            ids = new IdCoder((int) documents());
        }
        try (PostingStream stream = new PostingStream(runs.cursors(), terms, slots, threads.length > 1)) {
            int filled = 0;
            long postings = 0;
            for (int i = 0; i < counts.length; i += COUNTS) {
                filled += (int) (counts[i] - counts[i + 1]);
                postings += counts[i + 2];
            }
            codec.feed(postings == 0 ? null : new JoinedPostings(terms, frequencies, stream, filled), ids);
            writer.addIndexes(leaves);
        }
    }

    private void add(Piece piece) throws Throwable {
        refuse();
        gathered.add(piece);
        gatheredBytes += piece.bytes();
        if (gatheredBytes >= TASK_BYTES) {
            flush();
        }
    }

    private void flush() throws Throwable {
        if (!gathered.isEmpty()) {
            put(new Task(tasks++, gathered));
            gathered = new ArrayList<>();
            gatheredBytes = 0;
        }
    }

    private void put(Task task) throws Throwable {
        refuse();
        // The threads may fail while the queue is full; then no thread takes tasks from it.
        while (!waiting.offer(task, PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            refuse();
        }
    }

    private void refuse() throws Throwable {
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private void work() {
        Rows rows = new Rows();
        try {
            while (failure.get() == null) {
                Task task = waiting.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
                if (task != null && task.pieces.isEmpty()) {
                    waiting.put(task);
                    return;
                }
                if (task != null) {
                    runs.add(task.number, rows.runs(task.pieces));
                }
            }
        } catch (Throwable error) {
            if (failure.compareAndSet(null, error)) {
                failedShard = rows.shard;
            }
        }
    }

    /** Rows of one thread. */
    private final class Rows {
        private final ImpactRow row = new ImpactRow(terms);
        private final RunBuilder builder =
                new RunBuilder(ImpactWriter.this::config, terms, text, storeText, vectors, metadata, spill, frequencies);
        /** The shard whose rows are read, or -1. */
        private int shard = -1;

        List<Run> runs(List<Piece> pieces) throws IOException {
            List<Run> runs = new ArrayList<>();
            for (Piece piece : pieces) {
                shard = piece.shard();
                Tally tally = new Tally();
                piece.rows(row, () -> {
                    builder.add(row);
                    tally.count(row);
                    documents.incrementAndGet();
                    if (builder.isFull()) {
                        runs.add(builder.take());
                    }
                });
                add(shard, tally);
            }
            if (!builder.isEmpty()) {
                runs.add(builder.take());
            }
            shard = -1;
            return runs;
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
