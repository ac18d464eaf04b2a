package lexvl;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.PriorityQueue;
import java.util.Set;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.IndexFileNames;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.MultiBits;
import org.apache.lucene.index.MultiReader;
import org.apache.lucene.index.MultiTerms;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SegmentCommitInfo;
import org.apache.lucene.index.SegmentReader;
import org.apache.lucene.index.SortedDocValues;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.Bits;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.FixedBitSet;
import org.apache.lucene.util.StringHelper;

/** Questions about a whole index, each answered in one call; documents that are marked as deleted are none of it. */
public final class IndexCensus {
    private static final String ID = "id";

    private final DirectoryReader reader;

    public IndexCensus(DirectoryReader reader) {
        this.reader = reader;
    }

    /** Reads every file of the index and compares checksums. */
    public void checkIntegrity() throws IOException {
        for (LeafReaderContext leaf : reader.leaves()) {
            leaf.reader().checkIntegrity();
        }
    }

    /**
     * The segments in the order of documents: lines "documents deleted state live", deleted documents among the first
     * number; of one state all but what is deleted is the same. `live` is the file that says what is deleted, or "-".
     */
    public String segments() throws IOException {
        StringBuilder lines = new StringBuilder();
        for (LeafReaderContext leaf : reader.leaves()) {
            if (!(leaf.reader() instanceof SegmentReader segment)) {
                throw new IOException("a reader of a segment that is no segment");
            }
            SegmentCommitInfo info = segment.getSegmentInfo();
            boolean whole = !segment.hasDeletions();
            String live = whole ? "-" : IndexFileNames.fileNameFromGeneration(info.info.name, "liv", info.getDelGen());
            lines.append(segment.maxDoc()).append(' ').append(segment.numDeletedDocs()).append(' ');
            lines.append(StringHelper.idToString(info.info.getId())).append(' ').append(live).append('\n');
        }
        return lines.toString();
    }

    /** Numbers of documents, of those with terms, of postings, and the sum of frequencies, int64; of a field. */
    public byte[] counts(String field) throws IOException {
        long[] counts = {reader.numDocs(), 0, 0, 0};
        for (LeafReaderContext leaf : reader.leaves()) {
            Terms terms = leaf.reader().terms(field);
            if (terms == null) {
                continue;
            }
            counts[1] += terms.getDocCount();
            counts[2] += terms.getSumDocFreq();
            counts[3] += terms.getSumTotalTermFreq();
            int[] deleted = deleted(leaf.reader().getLiveDocs(), leaf.reader().maxDoc());
            FixedBitSet with = new FixedBitSet(deleted.length + 1);
            TermsEnum each = deleted.length == 0 ? TermsEnum.EMPTY : terms.iterator();
            PostingsEnum postings = null;
            while (each.next() != null) {
                postings = each.postings(postings, PostingsEnum.FREQS);
                for (int i = next(postings, deleted, 0); i < deleted.length; i = next(postings, deleted, i + 1)) {
                    with.set(i);
                    counts[2]--;
                    counts[3] -= postings.freq();
                }
            }
            counts[1] -= with.cardinality();
        }
        return Bytes.of(counts);
    }

    /** The documents that are not live, ascending. */
    private static int[] deleted(Bits live, int documents) {
        int[] deleted = {};
        int size = 0;
        for (int document = 0; live != null && document < documents; document++) {
            if (!live.get(document)) {
                deleted = size == deleted.length ? Arrays.copyOf(deleted, Math.max(16, 2 * size)) : deleted;
                deleted[size++] = document;
            }
        }
        return Arrays.copyOf(deleted, size);
    }

    /** Advances to the first of these documents, from a place on, that has a posting; its place, their number if none. */
    private static int next(PostingsEnum postings, int[] documents, int from) throws IOException {
        for (int i = from; i < documents.length; i++) {
            int at = postings.docID() < documents[i] ? postings.advance(documents[i]) : postings.docID();
            if (at == documents[i]) {
                return i;
            }
            if (at == DocIdSetIterator.NO_MORE_DOCS) {
                break;
            }
        }
        return documents.length;
    }

    /** An id that two documents have, or null. */
    public String duplicate() throws IOException {
        Terms ids = MultiTerms.getTerms(reader, ID);
        // In one segment the dictionary knows how many terms it has.
        if (ids == null || !reader.hasDeletions() && ids.size() == reader.numDocs()) {
            return null;
        }
        // The ids of a segment that has none twice are not read, if it is the largest: the others are looked up in it.
        List<LeafReader> segments = new ArrayList<>();
        reader.leaves().forEach(leaf -> segments.add(leaf.reader()));
        segments.sort((a, b) -> Integer.compare(b.maxDoc(), a.maxDoc()));
        Terms most = segments.get(0).terms(ID);
        boolean distinct = most != null && most.size() == segments.get(0).maxDoc();
        IndexReader[] others = segments.subList(distinct ? 1 : 0, segments.size()).toArray(new IndexReader[0]);
        Terms rest = MultiTerms.getTerms(new MultiReader(others, false), ID);
        TermsEnum each = rest == null ? TermsEnum.EMPTY : rest.iterator();
        Dictionary[] all = dictionaries(reader);
        for (BytesRef id = each.next(); id != null; id = each.next()) {
            int holders = 0;
            for (Dictionary dictionary : all) {
                holders += dictionary.holders(id);
            }
            if (holders > 1) {
                return id.utf8ToString();
            }
        }
        return null;
    }

    /** An id that a document of another index has too, or null. */
    public String common(DirectoryReader other) throws IOException {
        TermsEnum each = MultiTerms.getTerms(other, ID).iterator();
        Bits live = MultiBits.getLiveDocs(other);
        Dictionary[] ours = dictionaries(reader);
        for (BytesRef id = each.next(); id != null; id = each.next()) {
            if (holds(ours, id) && isLive(each, live)) {
                return id.utf8ToString();
            }
        }
        return null;
    }

    /** Which of these ids (UTF-8, a line each) no document has: lines. */
    public byte[] missing(byte[] ids) throws IOException {
        Dictionary[] ours = dictionaries(reader);
        StringBuilder missing = new StringBuilder();
        for (int from = 0, to = 0; to < ids.length; to++) {
            if (ids[to] == '\n') {
                BytesRef id = new BytesRef(ids, from, to - from);
                if (!holds(ours, id)) {
                    missing.append(id.utf8ToString()).append('\n');
                }
                from = to + 1;
            }
        }
        return missing.toString().getBytes(StandardCharsets.UTF_8);
    }

    /** The id of every document that has a value in a keyword field, and that value: "id value" lines. */
    public byte[] keywords(String field) throws IOException {
        ByteArrayOutputStream lines = new ByteArrayOutputStream();
        for (LeafReaderContext leaf : reader.leaves()) {
            BinaryDocValues ids = DocValues.getBinary(leaf.reader(), ID);
            SortedDocValues values = DocValues.getSorted(leaf.reader(), field);
            Bits live = leaf.reader().getLiveDocs();
            while (values.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
                if (live != null && !live.get(values.docID())) {
                    continue;
                }
                if (!ids.advanceExact(values.docID())) {
                    throw new IOException("document " + (leaf.docBase + values.docID()) + " has no id");
                }
                BytesRef id = ids.binaryValue();
                lines.write(id.bytes, id.offset, id.length);
                lines.write(' ');
                BytesRef value = values.lookupOrd(values.ordValue());
                lines.write(value.bytes, value.offset, value.length);
                lines.write('\n');
            }
        }
        return lines.toByteArray();
    }

    /** The terms of a field in most documents: "documents term" lines, most first, then by the bytes of terms. */
    public byte[] longest(String field, int lists) throws IOException {
        PriorityQueue<Object[]> best = new PriorityQueue<>(IndexCensus::compare);
        Terms terms = MultiTerms.getTerms(reader, field);
        TermsEnum each = terms == null ? TermsEnum.EMPTY : terms.iterator();
        int[] deleted = deleted(MultiBits.getLiveDocs(reader), reader.maxDoc());
        for (BytesRef term = each.next(); term != null; term = each.next()) {
            int documents = each.docFreq();
            if (best.size() < lists || documents > (Integer) best.peek()[0]) {
                PostingsEnum postings = each.postings(null, PostingsEnum.NONE);
                for (int i = next(postings, deleted, 0); i < deleted.length; i = next(postings, deleted, i + 1)) {
                    documents--;
                }
            }
            if (documents > 0 && (best.size() < lists || documents > (Integer) best.peek()[0])) {
                best.add(new Object[] {documents, BytesRef.deepCopyOf(term)});
                if (best.size() > lists) {
                    best.poll();
                }
            }
        }
        List<Object[]> sorted = new ArrayList<>(best);
        sorted.sort((a, b) -> compare(b, a));
        StringBuilder lines = new StringBuilder();
        for (Object[] entry : sorted) {
            lines.append(entry[0]).append(' ').append(((BytesRef) entry[1]).utf8ToString()).append('\n');
        }
        return lines.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static int compare(Object[] a, Object[] b) {
        int byDocuments = Integer.compare((Integer) a[0], (Integer) b[0]);
        return byDocuments != 0 ? byDocuments : ((BytesRef) b[1]).compareTo((BytesRef) a[1]);
    }

    /**
     * The greatest impact of all postings of a field, found by reading them.
     *
     * @param bound none is greater
     */
    public int maxImpact(String field, int bound) throws IOException {
        int most = 0;
        PostingsEnum postings = null;
        for (LeafReaderContext leaf : reader.leaves()) {
            Terms terms = leaf.reader().terms(field);
            TermsEnum each = terms == null ? TermsEnum.EMPTY : terms.iterator();
            Bits live = leaf.reader().getLiveDocs();
            while (most < bound && each.next() != null) {
                postings = each.postings(postings, PostingsEnum.FREQS);
                while (postings.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
                    if (postings.freq() > most && (live == null || live.get(postings.docID()))) {
                        most = postings.freq();
                    }
                }
            }
        }
        return most;
    }

    /** A stored text of a document as UTF-8, or null. */
    public static byte[] stored(LeafReader leaf, int document, String field) throws IOException {
        String text = leaf.storedFields().document(document, Set.of(field)).get(field);
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    /** Whether a document that has the current term is not deleted; `live` may be null. */
    static boolean isLive(TermsEnum term, Bits live) throws IOException {
        return holders(term, live) > 0;
    }

    private static int holders(TermsEnum term, Bits live) throws IOException {
        if (live == null) {
            return term.docFreq();
        }
        int found = 0;
        PostingsEnum postings = term.postings(null, PostingsEnum.NONE);
        while (postings.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
            found += live.get(postings.docID()) ? 1 : 0;
        }
        return found;
    }

    /** The ids of a segment. */
    private record Dictionary(TermsEnum ids, Bits live) {
        /** The number of documents with an id. */
        int holders(BytesRef id) throws IOException {
            return ids.seekExact(id) ? IndexCensus.holders(ids, live) : 0;
        }
    }

    private static Dictionary[] dictionaries(IndexReader reader) throws IOException {
        List<Dictionary> found = new ArrayList<>();
        for (LeafReaderContext leaf : reader.leaves()) {
            Terms terms = leaf.reader().terms(ID);
            if (terms != null) {
                found.add(new Dictionary(terms.iterator(), leaf.reader().getLiveDocs()));
            }
        }
        return found.toArray(new Dictionary[0]);
    }

    private static boolean holds(Dictionary[] dictionaries, BytesRef id) throws IOException {
        for (Dictionary dictionary : dictionaries) {
            if (dictionary.holders(id) > 0) {
                return true;
            }
        }
        return false;
    }
}
