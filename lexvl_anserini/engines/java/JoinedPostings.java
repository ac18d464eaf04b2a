package lexvl;

import java.io.IOException;
import org.apache.lucene.index.BaseTermsEnum;
import org.apache.lucene.index.ImpactsEnum;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.BytesRef;

/** The postings of a whole index as Lucene's codec reads them: once, each term's completely, in order. */
final class JoinedPostings extends ImpactTerms {
    private final TermTable terms;
    private final int[] frequencies;
    private final PostingStream stream;

    /**
     * @param frequencies documents of each term, by rank
     * @param documents those that have a term
     */
    JoinedPostings(TermTable terms, int[] frequencies, PostingStream stream, int documents) {
        super(documents);
        this.terms = terms;
        this.frequencies = frequencies;
        this.stream = stream;
    }

    @Override
    public TermsEnum iterator() {
        return new Iterator();
    }

    @Override
    public long size() {
        return -1;
    }

    @Override
    public long getSumTotalTermFreq() {
        throw new UnsupportedOperationException();
    }

    @Override
    public long getSumDocFreq() {
        throw new UnsupportedOperationException();
    }

    private final class Iterator extends BaseTermsEnum {
        private final BytesRef term = new BytesRef();
        private final Listed documents = new Listed();
        private int rank = -1;

        @Override
        public BytesRef next() throws IOException {
            if (documents.left != 0) {
                throw new IllegalStateException("postings of a term were not read");
            }
            do {
                rank++;
            } while (rank < frequencies.length && frequencies[rank] == 0);
            if (rank == frequencies.length) {
                return null;
            }
            documents.left = frequencies[rank];
            documents.doc = -1;
            terms.point(term, terms.dimensionOfRank(rank));
            return term;
        }

        @Override
        public BytesRef term() {
            return term;
        }

        @Override
        public int docFreq() {
            return frequencies[rank];
        }

        @Override
        public PostingsEnum postings(PostingsEnum reuse, int flags) {
            return documents;
        }

        @Override
        public SeekStatus seekCeil(BytesRef wanted) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void seekExact(long number) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long ord() {
            throw new UnsupportedOperationException();
        }

        @Override
        public long totalTermFreq() {
            throw new UnsupportedOperationException();
        }

        @Override
        public ImpactsEnum impacts(int flags) {
            throw new UnsupportedOperationException();
        }
    }

    private final class Listed extends Documents {
        private int[] docs = {};
        private int[] impacts = {};
        private int at;
        private int size;
        private int left;
        private int doc;
        private int freq;

        @Override
        public int nextDoc() throws IOException {
            if (left == 0) {
                doc = NO_MORE_DOCS;
                return doc;
            }
            if (at == size) {
                Chunk chunk = stream.next();
                docs = chunk.docs;
                impacts = chunk.impacts;
                size = chunk.size;
                at = 0;
            }
            left--;
            freq = impacts[at];
            doc = docs[at++];
            return doc;
        }

        @Override
        public int advance(int target) throws IOException {
            return slowAdvance(target);
        }

        @Override
        public int docID() {
            return doc;
        }

        @Override
        public int freq() {
            return freq;
        }

        @Override
        public long cost() {
            return left;
        }
    }
}
