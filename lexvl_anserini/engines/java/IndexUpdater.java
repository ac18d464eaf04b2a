package lexvl;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.MultiBits;
import org.apache.lucene.index.MultiTerms;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.FSDirectory;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;

/** Changes an index: documents deleted by id, other indexes added. */
public final class IndexUpdater {
    private static final int BATCH = 1 << 16;

    private final Directory directory;
    private final IndexWriter writer;

    /**
     * @param folder an index, or an empty folder
     * @param created major version of Lucene that counts as the creator of an index in an empty folder
     * @param marking segments may keep some deleted documents, which statistics of Lucene count
     */
    public IndexUpdater(String folder, Similarity similarity, int created, boolean marking) throws IOException {
        directory = FSDirectory.open(Path.of(folder));
        IndexWriterConfig config = new IndexWriterConfig();
        config.setSimilarity(similarity);
        config.setUseCompoundFile(false);
        config.setIndexCreatedVersionMajor(created);
        config.setOpenMode(IndexWriterConfig.OpenMode.CREATE_OR_APPEND);
        config.setMergePolicy(new TailMerges(marking));
        config.setMergeScheduler(new QuietMerges());
        writer = new IndexWriter(directory, config);
    }

    /** Deletes documents by id (UTF-8, a line each). */
    public void delete(byte[] ids) throws IOException {
        List<Term> terms = new ArrayList<>();
        for (int from = 0, to = 0; to < ids.length; to++) {
            if (ids[to] == '\n') {
                terms.add(new Term("id", new BytesRef(java.util.Arrays.copyOfRange(ids, from, to))));
                from = to + 1;
            }
        }
        writer.deleteDocuments(terms.toArray(new Term[0]));
    }

    /** Deletes the documents that have an id of another index. */
    public void deleteThoseOf(String folder) throws IOException {
        try (Directory other = FSDirectory.open(Path.of(folder));
                DirectoryReader reader = DirectoryReader.open(other)) {
            TermsEnum each = MultiTerms.getTerms(reader, "id").iterator();
            Bits live = MultiBits.getLiveDocs(reader);
            List<Term> terms = new ArrayList<>();
            for (BytesRef id = each.next(); id != null; id = each.next()) {
                if (!IndexCensus.isLive(each, live)) {
                    continue;
                }
                terms.add(new Term("id", BytesRef.deepCopyOf(id)));
                if (terms.size() == BATCH) {
                    writer.deleteDocuments(terms.toArray(new Term[0]));
                    terms.clear();
                }
            }
            writer.deleteDocuments(terms.toArray(new Term[0]));
        }
    }

    /** Adds all documents of another index, as they are. */
    public void add(String folder) throws IOException {
        try (Directory other = FSDirectory.open(Path.of(folder))) {
            writer.addIndexes(other);
        }
    }

    /**
     * Writes the segments again that have too many deleted documents, or documents behind them.
     *
     * @param merge leave one segment, without deleted documents
     */
    public void finish(boolean merge) throws IOException {
        writer.forceMerge(merge ? 1 : TailMerges.BY_RULE);
        writer.commit();
        writer.close();
        directory.close();
    }

    /** Discards the changes, and releases the folder. */
    public void abort() throws IOException {
        writer.rollback();
        directory.close();
    }
}
