package lexvl;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.store.Directory;

/** Some documents: their side fields in memory, as Lucene wrote them, their impacts by term in a temporary file. */
final class Run {
    /** Postings of a block, at most. */
    static final int BLOCK = 1024;
    /** Bytes before the postings of a block, and of each posting where all impacts fit in a byte, and where not. */
    static final int HEAD = 8;

    static final int SMALL = 3;
    static final int LARGE = 6;
    /** Bytes that a cursor reads at once. */
    private static final int WINDOW = 1 << 15;

    private final Directory directory;
    private final DirectoryReader side;
    private final Spill spill;
    private final long byTerm;
    private final int length;
    private final boolean small;
    private final long byDocument;
    private final int[] ends;

    /** @param vectors the impacts are kept by document too */
    Run(Directory directory, DirectoryReader side, ImpactBuffer impacts, boolean vectors, Spill spill)
            throws IOException {
        this.directory = directory;
        this.side = side;
        this.spill = spill;
        ByteBuffer postings = impacts.byTerm();
        length = postings.remaining();
        small = impacts.isSmall();
        byTerm = spill.append(postings);
        byDocument = vectors ? spill.append(impacts.byDocument()) : -1;
        ends = impacts.ends();
    }

    int documents() {
        return ends.length;
    }

    LeafReader side() {
        return side.leaves().get(0).reader();
    }

    /** Memory of the side fields, roughly. */
    long bytes() throws IOException {
        long bytes = 0;
        for (String file : directory.listAll()) {
            bytes += directory.fileLength(file);
        }
        return bytes;
    }

    /** Forgets the side fields. */
    void release() throws IOException {
        side.close();
        directory.close();
    }

    boolean isEmpty(int document) {
        return start(document) == ends[document];
    }

    private int start(int document) {
        return document == 0 ? 0 : ends[document - 1];
    }

    /** One document's terms with its impacts, as a term vector; null if it has none. */
    Postings vector(int document, TermTable terms) throws IOException {
        int size = ends[document] - start(document);
        if (size == 0) {
            return null;
        }
        ByteBuffer bytes = Spill.buffer(8 * size);
        spill.read(bytes, byDocument + 8L * start(document));
        bytes.flip();
        long[] sorted = new long[size];
        for (int i = 0; i < size; i++) {
            sorted[i] = (long) bytes.getInt() << 32 | bytes.getInt();
        }
        Arrays.sort(sorted);
        int[] dimensions = new int[size];
        int[] impacts = new int[size];
        for (int i = 0; i < size; i++) {
            dimensions[i] = terms.dimensionOfRank((int) (sorted[i] >>> 32));
            impacts[i] = (int) sorted[i];
        }
        return Postings.ofOne(terms, dimensions, impacts);
    }

    /** @param base the number of the first document in the index */
    Cursor cursor(int base) throws IOException {
        return new Cursor(base);
    }

    /** Reads the postings, in the order of ranks and documents. */
    final class Cursor {
        private final ByteBuffer window = Spill.buffer(WINDOW);
        private final long end = byTerm + length;
        private final int base;
        private long at = byTerm;
        private int rank;
        private int count;

        private Cursor(int base) throws IOException {
            this.base = base;
            window.limit(0);
            next();
        }

        /** The term of the next block; greater than all others at the end. */
        int rank() {
            return rank;
        }

        /** Postings of the next block. */
        int count() {
            return count;
        }

        /** Appends the block to a chunk. */
        void copy(Chunk chunk) throws IOException {
            need(count * (small ? SMALL : LARGE));
            int size = chunk.size;
            for (int i = 0; i < count; i++) {
                chunk.docs[size + i] = base + window.getChar();
            }
            for (int i = 0; i < count; i++) {
                chunk.impacts[size + i] = small ? window.get() & 0xFF : window.getInt();
            }
            chunk.size += count;
            next();
        }

        private void next() throws IOException {
            if (at == end && !window.hasRemaining()) {
                rank = Integer.MAX_VALUE;
            } else {
                need(HEAD);
                rank = window.getInt();
                count = window.getInt();
            }
        }

        private void need(int bytes) throws IOException {
            if (window.remaining() < bytes) {
                window.compact();
                window.limit((int) Math.min(WINDOW, window.position() + end - at));
                at += window.remaining();
                spill.read(window, at - window.remaining());
                window.flip();
            }
        }
    }
}
