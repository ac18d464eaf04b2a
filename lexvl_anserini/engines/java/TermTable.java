package lexvl;

import java.util.Arrays;
import java.util.stream.IntStream;
import org.apache.lucene.util.BytesRef;

/** The terms of a vocabulary as UTF-8, by dimension, and the dimension of a term: an open hash table over one array. */
final class TermTable {
    private final byte[] terms;
    private final int[] ends;
    private final int[] slots;
    private final int mask;
    // Ranks are places in the order of bytes, which is the order of terms in Lucene.
    private final int[] dimensionOfRank;
    private final int[] rank;

    /** @param ends where each term ends in {@code terms} */
    TermTable(byte[] terms, int[] ends) {
        this.terms = terms;
        this.ends = ends;
        int capacity = Integer.highestOneBit(Math.max(ends.length, 1)) * 4;
        slots = new int[capacity];
        mask = capacity - 1;
        for (int dimension = 0; dimension < ends.length; dimension++) {
            int slot = hash(terms, start(dimension), ends[dimension]) & mask;
            while (slots[slot] != 0) {
                slot = (slot + 1) & mask;
            }
            slots[slot] = dimension + 1;
        }
        dimensionOfRank = IntStream.range(0, ends.length).boxed().sorted(this::compare).mapToInt(i -> i).toArray();
        rank = new int[ends.length];
        for (int i = 0; i < rank.length; i++) {
            rank[dimensionOfRank[i]] = i;
        }
    }

    int rank(int dimension) {
        return rank[dimension];
    }

    int dimensionOfRank(int place) {
        return dimensionOfRank[place];
    }

    private int compare(int a, int b) {
        return Arrays.compareUnsigned(terms, start(a), ends[a], terms, start(b), ends[b]);
    }

    int size() {
        return ends.length;
    }

    /** Lets {@code term} point at the bytes of a dimension. */
    void point(BytesRef term, int dimension) {
        term.bytes = terms;
        term.offset = start(dimension);
        term.length = ends[dimension] - term.offset;
    }

    /** The dimension of bytes[from, to), or -1. */
    int dimension(byte[] bytes, int from, int to) {
        for (int slot = hash(bytes, from, to) & mask; slots[slot] != 0; slot = (slot + 1) & mask) {
            int dimension = slots[slot] - 1;
            if (Arrays.equals(bytes, from, to, terms, start(dimension), ends[dimension])) {
                return dimension;
            }
        }
        return -1;
    }

    private int start(int dimension) {
        return dimension == 0 ? 0 : ends[dimension - 1];
    }

    private static int hash(byte[] bytes, int from, int to) {
        int hash = 0;
        for (int i = from; i < to; i++) {
            hash = hash * 31 + bytes[i];
        }
        hash *= 0x9E3779B9;
        return hash ^ (hash >>> 15);
    }
}
