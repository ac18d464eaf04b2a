package lexvl;

import java.io.IOException;
import java.util.List;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.ReaderUtil;
import org.apache.lucene.util.BytesRef;

/** Ids by document number, from doc values; fastest in ascending order. One thread's. */
final class Ids {
    private final List<LeafReaderContext> leaves;
    private BinaryDocValues values;
    private LeafReaderContext leaf;

    Ids(List<LeafReaderContext> leaves) {
        this.leaves = leaves;
    }

    byte[] of(int document) throws IOException {
        if (leaf == null || document < leaf.docBase || document >= leaf.docBase + leaf.reader().maxDoc()) {
            leaf = leaves.get(ReaderUtil.subIndex(document, leaves));
            values = DocValues.getBinary(leaf.reader(), "id");
        } else if (document - leaf.docBase <= values.docID()) {
            values = DocValues.getBinary(leaf.reader(), "id");
        }
        if (!values.advanceExact(document - leaf.docBase)) {
            throw new IOException("document " + document + " has no id");
        }
        BytesRef id = values.binaryValue();
        byte[] bytes = new byte[id.length];
        System.arraycopy(id.bytes, id.offset, bytes, 0, id.length);
        return bytes;
    }
}
