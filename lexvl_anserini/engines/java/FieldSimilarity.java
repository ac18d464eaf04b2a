package lexvl;

import org.apache.lucene.search.similarities.PerFieldSimilarityWrapper;
import org.apache.lucene.search.similarities.Similarity;

/** One similarity for one field, another for all others. */
public final class FieldSimilarity extends PerFieldSimilarityWrapper {
    private final String field;
    private final Similarity its;
    private final Similarity others;

    public FieldSimilarity(String field, Similarity its, Similarity others) {
        this.field = field;
        this.its = its;
        this.others = others;
    }

    @Override
    public Similarity get(String name) {
        return name.equals(field) ? its : others;
    }
}
