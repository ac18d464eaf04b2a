package lexvl;

import java.io.IOException;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.Scorer;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.TopFieldDocs;
import org.apache.lucene.search.Weight;
import org.apache.lucene.util.Bits;

/** Searches of any query, as static methods, which threads of Python may call at once. */
public final class TreeSearch {
    private TreeSearch() {}

    /** The best hits, with the values of the fields that order them. */
    public static TopFieldDocs top(IndexSearcher searcher, Query query, int hits, Sort order) throws IOException {
        return searcher.search(query, hits, order, false);
    }

    /** All documents that match and are not deleted: a bit for every document, the lowest bit of a byte first. */
    public static byte[] matching(IndexSearcher searcher, Query query) throws IOException {
        byte[] bits = new byte[(searcher.getIndexReader().maxDoc() + 7) / 8];
        Weight weight = searcher.createWeight(searcher.rewrite(query), ScoreMode.COMPLETE_NO_SCORES, 1f);
        for (LeafReaderContext leaf : searcher.getIndexReader().leaves()) {
            Scorer scorer = weight.scorer(leaf);
            if (scorer == null) {
                continue;
            }
            Bits live = leaf.reader().getLiveDocs();
            DocIdSetIterator documents = scorer.iterator();
            while (documents.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
                if (live == null || live.get(documents.docID())) {
                    int document = leaf.docBase + documents.docID();
                    bits[document >> 3] |= (byte) (1 << (document & 7));
                }
            }
        }
        return bits;
    }
}
