package lexvl;

import java.io.IOException;
import java.util.Arrays;

/**
 * The best k hits seen so far, by score; hits that tie with the k-th stay until ids decide, smaller ids first.
 *
 * <p>A hit is one long: the bits of its float score (which order as the scores do), then its document number. Hits are
 * gathered until the buffer is full, and then cut at the k-th score, which becomes the bar for those to come.
 */
final class TopHits {
    /** Ties at the bar that are kept without asking for ids. */
    private static final int MANY_TIES = 1 << 16;

    private final Ids ids;
    private long[] hits = new long[4096];
    private int size;
    private int k;
    /** Scores below cannot be among the k best. */
    private float bar;

    TopHits(Ids ids) {
        this.ids = ids;
    }

    void start(int k) {
        this.k = k;
        size = 0;
        bar = Float.MIN_VALUE;
    }

    float bar() {
        return bar;
    }

    void add(int document, float score) throws IOException {
        if (size == hits.length) {
            cut();
            if (size > hits.length / 2) {
                hits = Arrays.copyOf(hits, 2 * hits.length);
            }
        }
        hits[size++] = (long) Float.floatToRawIntBits(score) << 32 | document;
    }

    static float score(long hit) {
        return Float.intBitsToFloat((int) (hit >>> 32));
    }

    static int document(long hit) {
        return (int) hit;
    }

    /** Drops what lies below the k-th score, and of many ties at it those with the greatest ids. */
    private void cut() throws IOException {
        if (size <= k) {
            return;
        }
        select(k - 1);
        int bits = (int) (hits[k - 1] >>> 32);
        bar = Float.intBitsToFloat(bits);
        int kept = 0;
        for (int i = 0; i < size; i++) {
            if ((int) (hits[i] >>> 32) >= bits) {
                hits[kept++] = hits[i];
            }
        }
        size = kept;
        if (size - k > MANY_TIES) {
            part();
        }
    }

    /** Leaves exactly the k best, ties parted by id. */
    private void part() throws IOException {
        if (size <= k) {
            return;
        }
        int bits = (int) (hits[k - 1] >>> 32);
        int above = 0;
        long[] tied = new long[size];
        int ties = 0;
        for (int i = 0; i < size; i++) {
            if ((int) (hits[i] >>> 32) > bits) {
                hits[above++] = hits[i];
            } else {
                tied[ties++] = hits[i];
            }
        }
        // Equal scores: this is the order of document numbers, in which ids are read.
        Arrays.sort(tied, 0, ties);
        Id[] named = new Id[ties];
        for (int i = 0; i < ties; i++) {
            named[i] = new Id(tied[i], ids.of(document(tied[i])));
        }
        Arrays.sort(named);
        for (int i = above; i < k; i++) {
            hits[i] = named[i - above].hit;
        }
        size = k;
    }

    /** Writes the hits in their order: score descending, then id ascending. */
    void finish(Answer answer) throws IOException {
        cut();
        part();
        Arrays.sort(hits, 0, size);
        Id[] named = new Id[size];
        // Ids are read in the order of document numbers.
        long[] byDocument = new long[size];
        for (int i = 0; i < size; i++) {
            byDocument[i] = (long) document(hits[i]) << 32 | (size - 1 - i);
        }
        Arrays.sort(byDocument);
        for (long entry : byDocument) {
            int place = (int) entry;
            named[place] = new Id(hits[size - 1 - place], ids.of((int) (entry >>> 32)));
        }
        for (int from = 0; from < size; ) {
            int to = from + 1;
            while (to < size && named[to].hit >>> 32 == named[from].hit >>> 32) {
                to++;
            }
            if (to - from > 1) {
                Arrays.sort(named, from, to);
            }
            from = to;
        }
        for (Id hit : named) {
            answer.add(score(hit.hit), hit.id);
        }
    }

    /** Hoare's selection: hits[place] becomes what it would be in descending order of scores. */
    private void select(int place) {
        int low = 0;
        int high = size - 1;
        while (low < high) {
            long pivot = hits[(low + high) >>> 1] >>> 32;
            int i = low;
            int j = high;
            while (i <= j) {
                while (hits[i] >>> 32 > pivot) {
                    i++;
                }
                while (hits[j] >>> 32 < pivot) {
                    j--;
                }
                if (i <= j) {
                    long swapped = hits[i];
                    hits[i++] = hits[j];
                    hits[j--] = swapped;
                }
            }
            if (place <= j) {
                high = j;
            } else if (place >= i) {
                low = i;
            } else {
                return;
            }
        }
    }

    private static final class Id implements Comparable<Id> {
        final long hit;
        final byte[] id;

        Id(long hit, byte[] id) {
            this.hit = hit;
            this.id = id;
        }

        /** UTF-8 orders as code points do. */
        @Override
        public int compareTo(Id other) {
            return Arrays.compareUnsigned(id, other.id);
        }
    }
}
