package lexvl;

import java.util.Arrays;

/** Impacts of some documents, gathered by document, to be turned over to postings by term. */
final class ImpactBuffer {
    private final TermTable terms;
    // By document: postings of document i lie before ends[i].
    private int documents;
    private int empty;
    private int size;
    private int[] ends = new int[1024];
    private int[] ranks = new int[1 << 16];
    private int[] impacts = new int[1 << 16];
    // By term, used again for the next segment: arrays of this size would leave the heap larger each time.
    private int[] docs = {};
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

    void clear() {
        documents = 0;
        empty = 0;
        size = 0;
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
            ranks[size] = terms.rank(row.dimensions[i]);
            impacts[size++] = row.impacts[i];
        }
        empty += row.size == 0 ? 1 : 0;
        ends[documents++] = size;
    }

    boolean isEmpty(int document) {
        return start(document) == ends[document];
    }

    /** By term: a counting sort, which keeps the order of documents. What came before is overwritten. */
    Postings byTerm() {
        int[] counts = new int[terms.size() + 1];
        for (int i = 0; i < size; i++) {
            counts[ranks[i] + 1]++;
        }
        int[] dimensions = new int[terms.size()];
        int[] starts = new int[terms.size() + 1];
        int present = 0;
        for (int rank = 0; rank < terms.size(); rank++) {
            if (counts[rank + 1] > 0) {
                dimensions[present] = terms.dimensionOfRank(rank);
                starts[present++] = counts[rank];
            }
            counts[rank + 1] += counts[rank];
        }
        starts[present] = size;
        if (docs.length < size) {
            docs = new int[ranks.length];
            values = new int[ranks.length];
        }
        for (int document = 0; document < documents; document++) {
            for (int i = start(document); i < ends[document]; i++) {
                int to = counts[ranks[i]]++;
                docs[to] = document;
                values[to] = impacts[i];
            }
        }
        return new Postings(terms, dimensions, starts, present, docs, values, documents - empty);
    }

    /** One document's terms with its impacts, as a term vector; null if it has none. */
    Postings vector(int document) {
        int start = start(document);
        int length = ends[document] - start;
        if (length == 0) {
            return null;
        }
        long[] sorted = new long[length];
        for (int i = 0; i < length; i++) {
            sorted[i] = (long) ranks[start + i] << 32 | impacts[start + i];
        }
        Arrays.sort(sorted);
        int[] dimensions = new int[length];
        int[] starts = new int[length + 1];
        int[] values = new int[length];
        for (int i = 0; i < length; i++) {
            dimensions[i] = terms.dimensionOfRank((int) (sorted[i] >>> 32));
            values[i] = (int) sorted[i];
            starts[i + 1] = i + 1;
        }
        return new Postings(terms, dimensions, starts, length, new int[length], values, 1);
    }

    private int start(int document) {
        return document == 0 ? 0 : ends[document - 1];
    }
}
