package lexvl;

import java.io.IOException;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.TopFieldDocs;

/** The search of any query, as a static method, which threads of Python may call at once. */
public final class TreeSearch {
    private TreeSearch() {}

    /** The best hits, with the values of the fields that order them. */
    public static TopFieldDocs top(IndexSearcher searcher, Query query, int hits, Sort order) throws IOException {
        return searcher.search(query, hits, order, false);
    }
}
