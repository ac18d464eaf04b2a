package lexvl;

import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Terms;
import org.apache.lucene.util.BytesRef;

/** The terms of a field of impacts: frequencies without positions. */
abstract class ImpactTerms extends Terms {
    private final int documents;

    /** @param documents those that have a term */
    ImpactTerms(int documents) {
        this.documents = documents;
    }

    @Override
    public int getDocCount() {
        return documents;
    }

    @Override
    public boolean hasFreqs() {
        return true;
    }

    @Override
    public boolean hasOffsets() {
        return false;
    }

    @Override
    public boolean hasPositions() {
        return false;
    }

    @Override
    public boolean hasPayloads() {
        return false;
    }

    /** The documents of a term. */
    abstract static class Documents extends PostingsEnum {
        @Override
        public int nextPosition() {
            return -1;
        }

        @Override
        public int startOffset() {
            return -1;
        }

        @Override
        public int endOffset() {
            return -1;
        }

        @Override
        public BytesRef getPayload() {
            return null;
        }
    }
}
