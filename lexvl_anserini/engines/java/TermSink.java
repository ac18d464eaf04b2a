package lexvl;

import java.io.IOException;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.util.BytesRef;

/** Takes posting lists, a term after the other in the order of their bytes. */
public abstract class TermSink {
    /** The next postings of a term: those from {@code from} to {@code to}, in the order of documents. */
    abstract void add(int[] documents, int[] impacts, int from, int to) throws IOException;

    /** Ends a term; one without postings is none. */
    abstract void end(BytesRef term) throws IOException;

    /** Takes all lists of a field; see {@link PostingsExport}. */
    public final void export(DirectoryReader reader, String field, int segment) throws IOException {
        new PostingsExport(reader, field, segment).all(this);
    }

    /**
     * Takes lists that Python has: int32 numbers of postings and lengths of the names of terms, int32 documents and
     * impacts of postings, and the names, UTF-8, one after the other.
     */
    public final void lists(byte[] counts, byte[] lengths, byte[] documents, byte[] impacts, byte[] names)
            throws IOException {
        int[] sizes = Bytes.ints(counts);
        int[] named = Bytes.ints(lengths);
        int[] docs = Bytes.ints(documents);
        int[] values = Bytes.ints(impacts);
        for (int i = 0, at = 0, name = 0; i < sizes.length; at += sizes[i], name += named[i++]) {
            add(docs, values, at, at + sizes[i]);
            end(new BytesRef(names, name, named[i]));
        }
    }
}
