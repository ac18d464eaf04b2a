package lexvl;

import java.io.IOException;
import java.util.Map;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.LiveIndexWriterConfig;
import org.apache.lucene.index.NoMergePolicy;
import org.apache.lucene.store.ByteBuffersDirectory;

/**
 * Documents gathered in memory until they are worth a segment. Ids, texts and metadata go through Lucene's own writer;
 * the impacts, nearly all of the data, are turned over by a counting sort and handed to Lucene's merging as they are.
 */
final class Segment {
    /**
     * Postings of one segment, 16 bytes each while it is made: fewer segments are fewer postings to merge again. The last
     * document should not pass the power of two at which the arrays would double.
     */
    private static final int MAX_POSTINGS = (1 << 22) - (1 << 15);

    private static final int MAX_DOCUMENTS = 1 << 18;
    /** Of texts, ids and metadata, in chars. */
    private static final long MAX_TEXT = 1 << 25;
    /** More than those texts can come to: the side fields must be one segment, in the order of documents. */
    private static final double NEVER_FLUSH_MB = 1900;

    private final IndexWriter target;
    private final RowFields fields;
    private final ImpactBuffer impacts;
    private ByteBuffersDirectory directory;
    private IndexWriter side;
    private long text;

    /**
     * @param target the writer that receives the segments
     * @param metadata the type (keyword, long, double, date) of each key
     */
    Segment(
            IndexWriter target,
            TermTable terms,
            boolean text,
            boolean storeText,
            boolean vectors,
            Map<String, String> metadata) {
        this.target = target;
        fields = new RowFields(text, storeText, vectors, metadata);
        impacts = new ImpactBuffer(terms);
    }

    boolean isEmpty() {
        return impacts.documents() == 0;
    }

    boolean isFull() {
        return impacts.postings() >= MAX_POSTINGS || impacts.documents() >= MAX_DOCUMENTS || text >= MAX_TEXT;
    }

    void add(ImpactRow row) throws IOException {
        if (side == null) {
            directory = new ByteBuffersDirectory();
            LiveIndexWriterConfig wanted = target.getConfig();
            IndexWriterConfig config = new IndexWriterConfig(wanted.getAnalyzer());
            config.setSimilarity(wanted.getSimilarity());
            config.setIndexCreatedVersionMajor(wanted.getIndexCreatedVersionMajor());
            config.setMergePolicy(NoMergePolicy.INSTANCE);
            config.setRAMBufferSizeMB(NEVER_FLUSH_MB);
            config.setRAMPerThreadHardLimitMB((int) NEVER_FLUSH_MB);
            side = new IndexWriter(directory, config);
        }
        side.addDocument(fields.of(row));
        impacts.add(row);
        text += row.length();
    }

    /** Writes the segment and begins the next. */
    void flush() throws IOException {
        side.close();
        try (DirectoryReader reader = DirectoryReader.open(directory)) {
            if (reader.leaves().size() != 1) {
                throw new IllegalStateException(reader.leaves().size() + " segments of side fields, expected 1");
            }
            target.addIndexes(ImpactLeaf.of(reader.leaves().get(0).reader(), "contents", impacts));
        }
        discard();
    }

    /** Forgets what was gathered. */
    void discard() throws IOException {
        if (side != null) {
            side.rollback();
            directory.close();
        }
        side = null;
        text = 0;
        impacts.clear();
    }
}
