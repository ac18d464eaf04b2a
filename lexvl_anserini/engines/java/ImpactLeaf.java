package lexvl;

import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.lucene.index.CodecReader;
import org.apache.lucene.index.Fields;
import org.apache.lucene.index.FilterLeafReader;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.SlowCodecReaderWrapper;
import org.apache.lucene.index.StoredFields;
import org.apache.lucene.index.TermVectors;
import org.apache.lucene.index.Terms;

/** Runs as a segment to be merged: their side fields as Lucene wrote them, norms and term vectors of their impacts. */
final class ImpactLeaf extends FilterLeafReader {
    private final CodecReader side;
    private final String field;
    private final TermTable terms;
    private final List<Run> runs;
    // The run of the document that was asked for last, and the number of its first document.
    private int run;
    private int base;

    private ImpactLeaf(CodecReader side, String field, TermTable terms, List<Run> runs) {
        super(side);
        this.side = side;
        this.field = field;
        this.terms = terms;
        this.runs = runs;
    }

    /**
     * What IndexWriter.addIndexes takes, for one thread.
     *
     * @param side the runs' side fields, in their order
     */
    static CodecReader of(LeafReader side, String field, TermTable terms, List<Run> runs) throws IOException {
        return SlowCodecReaderWrapper.wrap(new ImpactLeaf((CodecReader) side, field, terms, runs));
    }

    private Run runOf(int document) {
        if (document < base) {
            run = 0;
            base = 0;
        }
        while (document >= base + runs.get(run).documents()) {
            base += runs.get(run++).documents();
        }
        return runs.get(run);
    }

    /** For reading in order, as merging does: otherwise a block is inflated again for each of its documents. */
    @Override
    public StoredFields storedFields() {
        return side.getFieldsReader().getMergeInstance();
    }

    /** As Anserini's similarity computes them: 1, and Lucene's 0 where there is no term. */
    @Override
    public NumericDocValues getNormValues(String name) throws IOException {
        return name.equals(field) ? new Norms() : super.getNormValues(name);
    }

    @Override
    public TermVectors termVectors() {
        return new TermVectors() {
            @Override
            public Fields get(int document) throws IOException {
                Postings vector = runOf(document).vector(document - base, terms);
                return vector == null ? null : new OneField(vector);
            }
        };
    }

    @Override
    public CacheHelper getCoreCacheHelper() {
        return null;
    }

    @Override
    public IndexReader.CacheHelper getReaderCacheHelper() {
        return null;
    }

    private final class OneField extends Fields {
        private final Terms vector;

        OneField(Terms vector) {
            this.vector = vector;
        }

        @Override
        public Iterator<String> iterator() {
            return Collections.singleton(field).iterator();
        }

        @Override
        public Terms terms(String name) {
            return name.equals(field) ? vector : null;
        }

        @Override
        public int size() {
            return 1;
        }
    }

    private final class Norms extends NumericDocValues {
        private int document = -1;

        @Override
        public long longValue() {
            return runOf(document).isEmpty(document - base) ? 0 : 1;
        }

        @Override
        public boolean advanceExact(int target) {
            document = target;
            return true;
        }

        @Override
        public int docID() {
            return document;
        }

        @Override
        public int nextDoc() {
            return advance(document + 1);
        }

        @Override
        public int advance(int target) {
            document = target < maxDoc() ? target : NO_MORE_DOCS;
            return document;
        }

        @Override
        public long cost() {
            return maxDoc();
        }
    }
}
