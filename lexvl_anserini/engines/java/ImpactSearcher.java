package lexvl;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.TermState;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;

/**
 * Dot products over Lucene's postings, term by term into an array of sums: whole batches of queries in one call, on as
 * many threads as requested. Sums are doubles, hence exact for integers; a score is such a sum as a float, which is exact
 * below 2^24.
 */
public final class ImpactSearcher {
    /** Documents whose sums are gathered at a time: small enough to stay in a core's cache. */
    private static final int WINDOW = 1 << 15;
    /** Documents of which one flag says whether any has been touched. */
    private static final int CHUNK_BITS = 6;
    /** Posting lists that are read side by side; above, each is read to its end, and the window is the segment. */
    private static final int MAX_OPEN = 1 << 12;

    private final List<LeafReaderContext> leaves;
    private final Terms[] terms;
    private final ConcurrentLinkedQueue<Worker> idle = new ConcurrentLinkedQueue<>();
    // Terms by the number that Python uses for them; the list only grows.
    private volatile List<Term> known = new ArrayList<>();

    /** A term and where its postings lie in each segment (null: nowhere). */
    private static final class Term {
        final BytesRef bytes;
        final TermState[] states;
        int maxImpact = -1;

        Term(BytesRef bytes, int leaves) {
            this.bytes = bytes;
            states = new TermState[leaves];
        }
    }

    public ImpactSearcher(DirectoryReader reader, String field) throws IOException {
        leaves = reader.leaves();
        terms = new Terms[leaves.size()];
        for (LeafReaderContext leaf : leaves) {
            terms[leaf.ord] = leaf.reader().terms(field);
        }
    }

    /**
     * Looks terms up, once; their numbers continue those of earlier calls.
     *
     * @param names UTF-8, each followed by a zero byte
     */
    public static void know(ImpactSearcher searcher, byte[] names) throws IOException {
        searcher.learn(names);
    }

    private synchronized void learn(byte[] names) throws IOException {
        List<Term> longer = new ArrayList<>(known);
        TermsEnum[] dictionaries = new TermsEnum[terms.length];
        for (int i = 0; i < terms.length; i++) {
            dictionaries[i] = terms[i] == null ? null : terms[i].iterator();
        }
        for (int from = 0, to = 0; to < names.length; to++) {
            if (names[to] == 0) {
                Term term = new Term(new BytesRef(names, from, to - from), terms.length);
                for (int i = 0; i < terms.length; i++) {
                    if (dictionaries[i] != null && dictionaries[i].seekExact(term.bytes)) {
                        term.states[i] = dictionaries[i].termState();
                    }
                }
                longer.add(term);
                from = to + 1;
            }
        }
        known = longer;
    }

    /** Forgets all terms. */
    public static void forget(ImpactSearcher searcher) {
        synchronized (searcher) {
            searcher.known = new ArrayList<>();
        }
    }

    /** The greatest impact of each of these terms (int32 numbers): int32, 0 for a term without postings. */
    public static byte[] maxImpacts(ImpactSearcher searcher, byte[] numbers) throws IOException {
        return searcher.maxima(numbers);
    }

    private synchronized byte[] maxima(byte[] numbers) throws IOException {
        int[] wanted = Bytes.ints(numbers);
        int[] found = new int[wanted.length];
        PostingsEnum[] postings = new PostingsEnum[1];
        for (int i = 0; i < wanted.length; i++) {
            Term term = known.get(wanted[i]);
            if (term.maxImpact < 0) {
                int most = 0;
                for (int leaf = 0; leaf < terms.length; leaf++) {
                    if (term.states[leaf] != null) {
                        TermsEnum dictionary = terms[leaf].iterator();
                        dictionary.seekExact(term.bytes, term.states[leaf]);
                        postings[0] = dictionary.postings(null, PostingsEnum.FREQS);
                        while (postings[0].nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
                            most = Math.max(most, postings[0].freq());
                        }
                    }
                }
                term.maxImpact = most;
            }
            found[i] = term.maxImpact;
        }
        return Bytes.of(found);
    }

    /**
     * Answers a batch.
     *
     * @param ends int32: the terms of query i lie before ends[i]
     * @param numbers int32 terms
     * @param weights float32, above 0
     * @return for each query its hits as {@link Answer} writes them
     */
    public static byte[] search(
            ImpactSearcher searcher, byte[] ends, byte[] numbers, byte[] weights, int k, int threads)
            throws Throwable {
        return searcher.batch(ends, numbers, weights, k, threads);
    }

    private byte[] batch(byte[] ends, byte[] numbers, byte[] weights, int k, int threads) throws Throwable {
        int[] end = Bytes.ints(ends);
        int[] number = Bytes.ints(numbers);
        float[] weight = Bytes.floats(weights);
        byte[][] answers = new byte[end.length][];
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Runnable work = () -> {
            Worker worker = idle.poll();
            if (worker == null) {
                worker = new Worker();
            }
            try {
                for (int i = next.getAndIncrement(); i < end.length && failure.get() == null; i = next.getAndIncrement()) {
                    answers[i] = worker.search(number, weight, i == 0 ? 0 : end[i - 1], end[i], k);
                }
                // A worker that failed is not used again.
                idle.add(worker);
            } catch (Throwable error) {
                failure.compareAndSet(null, error);
            }
        };
        Thread[] others = new Thread[Math.min(threads, end.length) - 1];
        for (int i = 0; i < others.length; i++) {
            others[i] = new Thread(work, "lexvl-search-" + i);
            others[i].setDaemon(true);
            others[i].start();
        }
        work.run();
        for (Thread other : others) {
            other.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (byte[] answer : answers) {
            all.write(answer);
        }
        return all.toByteArray();
    }

    /** One thread's arrays and iterators. */
    private final class Worker {
        private final TopHits top = new TopHits(new Ids(leaves));
        private final Answer answer = new Answer();
        private final TermsEnum[] dictionaries = new TermsEnum[terms.length];
        private double[] sums = new double[WINDOW];
        private boolean[] touched = new boolean[WINDOW >> CHUNK_BITS];
        private PostingsEnum[] postings = new PostingsEnum[64];
        private int[] docs = new int[64];
        private float[] weights = new float[64];
        private Bits live;
        private int base;

        byte[] search(int[] numbers, float[] weight, int from, int to, int k) throws IOException {
            answer.start();
            top.start(k);
            List<Term> wanted = known;
            for (LeafReaderContext leaf : leaves) {
                if (terms[leaf.ord] == null) {
                    continue;
                }
                base = leaf.docBase;
                live = leaf.reader().getLiveDocs();
                int documents = leaf.reader().maxDoc();
                if (documents <= WINDOW || to - from > MAX_OPEN) {
                    wholeSegment(wanted, numbers, weight, from, to, leaf.ord, documents);
                } else {
                    windows(wanted, numbers, weight, from, to, leaf.ord, documents);
                }
            }
            top.finish(answer);
            return answer.bytes();
        }

        /** One posting list after the other, each to its end. */
        private void wholeSegment(
                List<Term> wanted, int[] numbers, float[] weight, int from, int to, int leaf, int documents)
                throws IOException {
            reserve(documents);
            for (int i = from; i < to; i++) {
                if (open(wanted.get(numbers[i]), leaf, 0)) {
                    add(postings[0], postings[0].nextDoc(), weight[i], 0, documents);
                }
            }
            collect(0, documents);
        }

        /** All posting lists side by side, one window of documents after the other. */
        private void windows(
                List<Term> wanted, int[] numbers, float[] weight, int from, int to, int leaf, int documents)
                throws IOException {
            int size = 0;
            int low = documents;
            for (int i = from; i < to; i++) {
                if (open(wanted.get(numbers[i]), leaf, size)) {
                    docs[size] = postings[size].nextDoc();
                    low = Math.min(low, docs[size]);
                    weights[size++] = weight[i];
                }
            }
            while (low < documents) {
                int start = low & -(1 << CHUNK_BITS);
                int end = Math.min(documents, start + WINDOW);
                low = documents;
                for (int i = 0; i < size; i++) {
                    if (docs[i] < end) {
                        docs[i] = add(postings[i], docs[i], weights[i], start, end);
                    }
                    low = Math.min(low, docs[i]);
                }
                collect(start, end);
            }
        }

        private boolean open(Term term, int leaf, int slot) throws IOException {
            if (term.states[leaf] == null) {
                return false;
            }
            if (dictionaries[leaf] == null) {
                dictionaries[leaf] = terms[leaf].iterator();
            }
            if (slot == postings.length) {
                postings = java.util.Arrays.copyOf(postings, 2 * slot);
                docs = java.util.Arrays.copyOf(docs, 2 * slot);
                weights = java.util.Arrays.copyOf(weights, 2 * slot);
            }
            dictionaries[leaf].seekExact(term.bytes, term.states[leaf]);
            postings[slot] = dictionaries[leaf].postings(postings[slot], PostingsEnum.FREQS);
            return true;
        }

        private void reserve(int documents) {
            if (documents > sums.length) {
                sums = new double[documents];
                touched = new boolean[(documents >> CHUNK_BITS) + 1];
            }
        }

        /** Adds a posting list's products from {@code document} to before {@code end}; the next document is returned. */
        private int add(PostingsEnum list, int document, double weight, int start, int end) throws IOException {
            while (document < end) {
                int at = document - start;
                sums[at] += weight * list.freq();
                touched[at >> CHUNK_BITS] = true;
                document = list.nextDoc();
            }
            return document;
        }

        /** Takes what can still be among the best, and leaves the sums at 0. */
        private void collect(int start, int end) throws IOException {
            int chunks = (end - start + (1 << CHUNK_BITS) - 1) >> CHUNK_BITS;
            float bar = top.bar();
            for (int chunk = 0; chunk < chunks; chunk++) {
                if (!touched[chunk]) {
                    continue;
                }
                touched[chunk] = false;
                int last = Math.min(end - start, (chunk + 1) << CHUNK_BITS);
                for (int at = chunk << CHUNK_BITS; at < last; at++) {
                    float score = (float) sums[at];
                    sums[at] = 0;
                    if (score >= bar && (live == null || live.get(start + at))) {
                        top.add(base + start + at, score);
                        bar = top.bar();
                    }
                }
            }
        }
    }
}
