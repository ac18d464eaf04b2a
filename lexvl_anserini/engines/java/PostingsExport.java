package lexvl;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.MultiBits;
import org.apache.lucene.index.MultiTerms;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;

/**
 * A field's terms in the order of their bytes with their postings, some terms a call. Those of a whole index are without
 * deleted documents; those of a segment have them, so that they are the same whatever is deleted.
 */
public final class PostingsExport {
    private final TermsEnum terms;
    private final Bits live;
    private PostingsEnum postings;
    private boolean ended;
    private int[] documents = new int[1 << 16];
    private int[] frequencies = new int[1 << 16];
    private int[] counts = new int[1024];
    private int[] lengths = new int[1024];
    private byte[] names = new byte[1 << 14];

    /** @param segment the place of a segment, whose documents count from 0; -1 for all */
    public PostingsExport(DirectoryReader reader, String field, int segment) throws IOException {
        IndexReader from = segment < 0 ? reader : reader.leaves().get(segment).reader();
        Terms found = MultiTerms.getTerms(from, field);
        terms = found == null ? TermsEnum.EMPTY : found.iterator();
        live = segment < 0 ? MultiBits.getLiveDocs(from) : null;
    }

    /**
     * The next terms that have postings.
     *
     * @param most the call ends with the term that reaches this number of postings
     * @return int32 numbers of terms, postings and bytes of names (0, 0, 0 at the end); of each term its int32 number of
     *     postings; of each posting its int32 document; of each its int32 frequency; of each term the int32 length of its
     *     name; all names, UTF-8
     */
    public static byte[] next(PostingsExport export, int most) throws IOException {
        return export.some(most);
    }

    private synchronized byte[] some(int most) throws IOException {
        int found = 0;
        int size = 0;
        int bytes = 0;
        while (size < most && !ended) {
            BytesRef term = terms.next();
            if (term == null) {
                // What an enumeration does after its end is not defined.
                ended = true;
                break;
            }
            int before = size;
            size = read(size);
            if (size == before) {
                continue;
            }
            if (found == counts.length) {
                counts = Arrays.copyOf(counts, 2 * found);
                lengths = Arrays.copyOf(lengths, 2 * found);
            }
            if (bytes + term.length > names.length) {
                names = Arrays.copyOf(names, Math.max(bytes + term.length, 2 * names.length));
            }
            System.arraycopy(term.bytes, term.offset, names, bytes, term.length);
            bytes += term.length;
            lengths[found] = term.length;
            counts[found++] = size - before;
        }
        ByteBuffer all = ByteBuffer.allocate(12 + 8 * found + 8 * size + bytes).order(ByteOrder.LITTLE_ENDIAN);
        all.putInt(found).putInt(size).putInt(bytes);
        put(all, counts, found);
        put(all, documents, size);
        put(all, frequencies, size);
        put(all, lengths, found);
        all.put(names, 0, bytes);
        return all.array();
    }

    /** Gives all terms that have postings. */
    void all(TermSink sink) throws IOException {
        for (BytesRef term = terms.next(); term != null; term = terms.next()) {
            // Reading replaces the arrays where they are too short.
            int size = read(0);
            sink.add(documents, frequencies, 0, size);
            sink.end(term);
        }
    }

    /** Appends the postings of the current term; returns their number with those before. */
    private int read(int size) throws IOException {
        postings = terms.postings(postings, PostingsEnum.FREQS);
        for (int document = postings.nextDoc();
                document != DocIdSetIterator.NO_MORE_DOCS;
                document = postings.nextDoc()) {
            if (live != null && !live.get(document)) {
                continue;
            }
            if (size == documents.length) {
                documents = Arrays.copyOf(documents, 2 * size);
                frequencies = Arrays.copyOf(frequencies, 2 * size);
            }
            documents[size] = document;
            frequencies[size++] = postings.freq();
        }
        return size;
    }

    private static void put(ByteBuffer all, int[] numbers, int count) {
        all.asIntBuffer().put(numbers, 0, count);
        all.position(all.position() + 4 * count);
    }
}
