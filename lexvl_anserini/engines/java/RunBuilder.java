package lexvl;

import java.io.IOException;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.store.ByteBuffersDirectory;

/**
 * Gathers documents in memory. Ids, texts and metadata go through Lucene's own writer; the impacts, nearly all of the
 * data, are turned over by a counting sort and handed to Lucene's merging as they are. One thread's.
 */
final class RunBuilder {
    /** Numbers of documents in a run have 16 bits. */
    private static final int MAX_DOCUMENTS = 1 << 16;
    /** Of texts, ids and metadata, in chars. */
    private static final long MAX_TEXT = 1 << 25;
    /** More than those texts can come to: the side fields must be one segment, in the order of documents. */
    private static final double NEVER_FLUSH_MB = 1900;

    private final Supplier<IndexWriterConfig> config;
    private final boolean vectors;
    private final Spill spill;
    private final int[] frequencies;
    private final RowFields fields;
    private final ImpactBuffer impacts;
    private ByteBuffersDirectory directory;
    private IndexWriter side;
    private long text;

    /**
     * @param config of a writer of side fields
     * @param metadata the type (keyword, long, double, date) of each key
     * @param spill where the impacts go
     * @param frequencies documents of each term, by rank, to be counted
     */
    RunBuilder(
            Supplier<IndexWriterConfig> config,
            TermTable terms,
            boolean text,
            boolean storeText,
            boolean vectors,
            Map<String, String> metadata,
            Spill spill,
            int[] frequencies) {
        this.config = config;
        this.spill = spill;
        this.frequencies = frequencies;
        this.vectors = vectors;
        fields = new RowFields(text, storeText, vectors, metadata);
        impacts = new ImpactBuffer(terms);
    }

    boolean isEmpty() {
        return impacts.documents() == 0;
    }

    boolean isFull() {
        return impacts.documents() >= MAX_DOCUMENTS || text >= MAX_TEXT;
    }

    void add(ImpactRow row) throws IOException {
        if (side == null) {
            directory = new ByteBuffersDirectory();
            IndexWriterConfig wanted = config.get();
            wanted.setRAMBufferSizeMB(NEVER_FLUSH_MB);
            wanted.setRAMPerThreadHardLimitMB((int) NEVER_FLUSH_MB);
            side = new IndexWriter(directory, wanted);
        }
        side.addDocument(fields.of(row));
        impacts.add(row);
        text += row.length();
    }

    /** The run, and begins the next. */
    Run take() throws IOException {
        side.close();
        DirectoryReader reader = DirectoryReader.open(directory);
        if (reader.leaves().size() != 1) {
            throw new IllegalStateException(reader.leaves().size() + " segments of side fields, expected 1");
        }
        impacts.count(frequencies);
        Run run = new Run(directory, reader, impacts, vectors, spill);
        side = null;
        text = 0;
        impacts.clear();
        return run;
    }
}
