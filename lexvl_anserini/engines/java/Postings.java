package lexvl;

import java.util.Arrays;
import java.util.stream.IntStream;
import org.apache.lucene.index.BaseTermsEnum;
import org.apache.lucene.index.ImpactsEnum;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SlowImpactsEnum;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.BytesRef;

/**
 * Terms in the order of their bytes, each with its postings, in plain arrays: term i is dimension dimensions[i] and its
 * postings are docs[starts[i]..starts[i + 1]) with impacts. This is what Lucene's merging reads, so that nothing is
 * hashed or sorted on the way in.
 */
final class Postings extends ImpactTerms {
    private final TermTable terms;
    private final int[] dimensions;
    private final int[] starts;
    private final int[] docs;
    private final int[] impacts;
    private final int size;

    Postings(TermTable terms, int[] dimensions, int[] starts, int size, int[] docs, int[] impacts, int documents) {
        super(documents);
        this.terms = terms;
        this.dimensions = dimensions;
        this.starts = starts;
        this.size = size;
        this.docs = docs;
        this.impacts = impacts;
    }

    /** One document's terms with its impacts, as a term vector. */
    static Postings ofOne(TermTable terms, int[] dimensions, int[] impacts) {
        int[] starts = IntStream.rangeClosed(0, dimensions.length).toArray();
        return new Postings(terms, dimensions, starts, dimensions.length, new int[dimensions.length], impacts, 1);
    }

    @Override
    public TermsEnum iterator() {
        return new Iterator();
    }

    @Override
    public long size() {
        return size;
    }

    @Override
    public long getSumTotalTermFreq() {
        long sum = 0;
        for (int i = starts[0]; i < starts[size]; i++) {
            sum += impacts[i];
        }
        return sum;
    }

    @Override
    public long getSumDocFreq() {
        return starts[size] - starts[0];
    }

    private final class Iterator extends BaseTermsEnum {
        private final BytesRef term = new BytesRef();
        private int at = -1;

        @Override
        public BytesRef next() {
            return ++at < size ? current() : null;
        }

        private BytesRef current() {
            terms.point(term, dimensions[at]);
            return term;
        }

        @Override
        public BytesRef term() {
            return term;
        }

        @Override
        public SeekStatus seekCeil(BytesRef wanted) {
            int low = 0;
            int high = size;
            while (low < high) {
                int middle = (low + high) >>> 1;
                terms.point(term, dimensions[middle]);
                if (term.compareTo(wanted) < 0) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            at = low;
            if (at == size) {
                return SeekStatus.END;
            }
            return current().equals(wanted) ? SeekStatus.FOUND : SeekStatus.NOT_FOUND;
        }

        @Override
        public void seekExact(long number) {
            at = (int) number;
            current();
        }

        @Override
        public long ord() {
            return at;
        }

        @Override
        public int docFreq() {
            return starts[at + 1] - starts[at];
        }

        @Override
        public long totalTermFreq() {
            long sum = 0;
            for (int i = starts[at]; i < starts[at + 1]; i++) {
                sum += impacts[i];
            }
            return sum;
        }

        @Override
        public PostingsEnum postings(PostingsEnum reuse, int flags) {
            Listed documents = reuse instanceof Listed ? (Listed) reuse : new Listed();
            documents.reset(docs, impacts, starts[at], starts[at + 1]);
            return documents;
        }

        @Override
        public ImpactsEnum impacts(int flags) {
            return new SlowImpactsEnum(postings(null, flags));
        }
    }

    private static final class Listed extends Documents {
        private int[] docs;
        private int[] impacts;
        private int end;
        private int at;
        private int doc;

        void reset(int[] docs, int[] impacts, int start, int end) {
            this.docs = docs;
            this.impacts = impacts;
            this.end = end;
            at = start - 1;
            doc = -1;
        }

        @Override
        public int nextDoc() {
            doc = ++at < end ? docs[at] : NO_MORE_DOCS;
            return doc;
        }

        @Override
        public int advance(int target) {
            int found = Arrays.binarySearch(docs, at + 1, end, target);
            at = (found < 0 ? -found - 1 : found) - 1;
            return nextDoc();
        }

        @Override
        public int docID() {
            return doc;
        }

        @Override
        public int freq() {
            return impacts[at];
        }

        @Override
        public long cost() {
            return end - at;
        }
    }
}
