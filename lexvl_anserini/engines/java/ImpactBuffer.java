package lexvl;

import java.nio.ByteBuffer;
import java.util.Arrays;

/** Impacts of some documents, gathered by document, to be turned over to postings by term. One thread's. */
final class ImpactBuffer {
    /** The greatest impact that one byte holds. */
    static final int BYTE = 255;

    private final TermTable terms;
    // By document: postings of document i lie before ends[i].
    private int documents;
    private int size;
    private int most;
    private int[] ends = new int[1024];
    private int[] ranks = new int[1 << 16];
    private int[] impacts = new int[1 << 16];
    // By term, used again for the next run: arrays of this size would leave the heap larger each time.
    private char[] docs = {};
    private int[] values = {};

    ImpactBuffer(TermTable terms) {
        this.terms = terms;
    }

    int documents() {
        return documents;
    }

    int postings() {
        return size;
    }

    /** All impacts are at most 255. */
    boolean isSmall() {
        return most <= BYTE;
    }

    void clear() {
        documents = 0;
        size = 0;
        most = 0;
    }

    void add(ImpactRow row) {
        if (documents == ends.length) {
            ends = Arrays.copyOf(ends, 2 * documents);
        }
        if (size + row.size > ranks.length) {
            int capacity = Math.max(size + row.size, 2 * ranks.length);
            ranks = Arrays.copyOf(ranks, capacity);
            impacts = Arrays.copyOf(impacts, capacity);
        }
        for (int i = 0; i < row.size; i++) {
            int impact = row.impacts[i];
            ranks[size] = terms.rank(row.dimensions[i]);
            impacts[size++] = impact;
            most = Math.max(most, impact);
        }
        ends[documents++] = size;
    }

    /** Where the postings of each document end. */
    int[] ends() {
        return Arrays.copyOf(ends, documents);
    }

    /** By document: int32 rank and impact of each posting. */
    ByteBuffer byDocument() {
        ByteBuffer bytes = Spill.buffer(8 * size);
        for (int i = 0; i < size; i++) {
            bytes.putInt(ranks[i]).putInt(impacts[i]);
        }
        return bytes.flip();
    }

    /**
     * By term, in the order of ranks, in blocks of one term: int32 rank, int32 number of postings, uint16 documents,
     * impacts (uint8 if all are small, else int32). A counting sort keeps the order of documents.
     */
    ByteBuffer byTerm() {
        int[] counts = new int[terms.size() + 1];
        for (int i = 0; i < size; i++) {
            counts[ranks[i] + 1]++;
        }
        int present = 0;
        for (int rank = 0; rank < terms.size(); rank++) {
            present += counts[rank + 1] > 0 ? 1 : 0;
            counts[rank + 1] += counts[rank];
        }
        if (docs.length < size) {
            docs = new char[ranks.length];
            values = new int[ranks.length];
        }
        for (int document = 0, i = 0; document < documents; document++) {
            for (; i < ends[document]; i++) {
                int to = counts[ranks[i]]++;
                docs[to] = (char) document;
                values[to] = impacts[i];
            }
        }
        int blocks = present + size / Run.BLOCK;
        ByteBuffer bytes = Spill.buffer(Run.HEAD * blocks + (isSmall() ? Run.SMALL : Run.LARGE) * size);
        // Each count has moved to where its term ends.
        for (int rank = 0, start = 0; rank < terms.size(); start = counts[rank++]) {
            for (int from = start; from < counts[rank]; from += Run.BLOCK) {
                put(bytes, rank, from, Math.min(counts[rank], from + Run.BLOCK));
            }
        }
        return bytes.flip();
    }

    private void put(ByteBuffer bytes, int rank, int from, int to) {
        int count = to - from;
        bytes.putInt(rank).putInt(count);
        bytes.asCharBuffer().put(docs, from, count);
        bytes.position(bytes.position() + 2 * count);
        if (isSmall()) {
            for (int i = from; i < to; i++) {
                bytes.put((byte) values[i]);
            }
        } else {
            bytes.asIntBuffer().put(values, from, count);
            bytes.position(bytes.position() + 4 * count);
        }
    }

    /** Adds the number of documents of each term. */
    void count(int[] frequencies) {
        synchronized (frequencies) {
            for (int i = 0; i < size; i++) {
                frequencies[ranks[i]]++;
            }
        }
    }
}
