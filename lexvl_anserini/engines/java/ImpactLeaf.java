package lexvl;

import java.util.Collections;
import java.util.Iterator;
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

/** A segment in memory: its side fields as Lucene wrote them, its impacts as our arrays hold them. */
final class ImpactLeaf extends FilterLeafReader {
    private final CodecReader side;
    private final String field;
    private final ImpactBuffer impacts;
    private final Postings postings;

    private ImpactLeaf(CodecReader side, String field, ImpactBuffer impacts) {
        super(side);
        this.side = side;
        this.field = field;
        this.impacts = impacts;
        this.postings = impacts.byTerm();
    }

    /** What IndexWriter.addIndexes takes. */
    static CodecReader of(LeafReader side, String field, ImpactBuffer impacts) throws java.io.IOException {
        return SlowCodecReaderWrapper.wrap(new ImpactLeaf((CodecReader) side, field, impacts));
    }

    @Override
    public Terms terms(String name) throws java.io.IOException {
        return name.equals(field) ? postings : super.terms(name);
    }

    /** For reading in order, as merging does: otherwise a block is inflated again for each of its documents. */
    @Override
    public StoredFields storedFields() {
        return side.getFieldsReader().getMergeInstance();
    }

    /** As Anserini's similarity computes them: 1, and Lucene's 0 where there is no term. */
    @Override
    public NumericDocValues getNormValues(String name) throws java.io.IOException {
        return name.equals(field) ? new Norms() : super.getNormValues(name);
    }

    @Override
    public TermVectors termVectors() {
        return new TermVectors() {
            @Override
            public Fields get(int document) {
                Postings vector = impacts.vector(document);
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
            return impacts.isEmpty(document) ? 0 : 1;
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
