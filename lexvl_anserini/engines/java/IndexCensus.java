package lexvl;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.PriorityQueue;
import java.util.Set;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.MultiReader;
import org.apache.lucene.index.MultiTerms;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SegmentCommitInfo;
import org.apache.lucene.index.SegmentReader;
import org.apache.lucene.index.SortedDocValues;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.StringHelper;

/** Questions about a whole index, each answered in one call. */
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

    /** The segments in the order of documents: "documents state" lines; one of the same state has the same content. */
    public String segments() throws IOException {
        StringBuilder lines = new StringBuilder();
        for (LeafReaderContext leaf : reader.leaves()) {
            if (!(leaf.reader() instanceof SegmentReader segment)) {
                throw new IOException("a reader of a segment that is no segment");
            }
            SegmentCommitInfo info = segment.getSegmentInfo();
            lines.append(segment.maxDoc()).append(' ').append(StringHelper.idToString(info.info.getId()));
            lines.append('.').append(info.getDelGen()).append('\n');
        }
        return lines.toString();
    }

    /** An id that two documents have, or null. */
    public String duplicate() throws IOException {
        Terms ids = MultiTerms.getTerms(reader, ID);
        // In one segment the dictionary knows how many terms it has.
        if (ids == null || ids.size() == reader.numDocs()) {
            return null;
        }
        // The ids of a segment that has none twice are not read, if it is the largest: the others are looked up in it.
        List<LeafReader> segments = new ArrayList<>();
        reader.leaves().forEach(leaf -> segments.add(leaf.reader()));
        segments.sort((a, b) -> Integer.compare(b.maxDoc(), a.maxDoc()));
        Terms most = segments.get(0).terms(ID);
        if (most == null || most.size() != segments.get(0).maxDoc()) {
            return duplicate(ids, null);
        }
        IndexReader[] others = segments.subList(1, segments.size()).toArray(new IndexReader[0]);
        Terms rest = MultiTerms.getTerms(new MultiReader(others, false), ID);
        return rest == null ? null : duplicate(rest, most.iterator());
    }

    /** An id that two documents have, or one and a dictionary (null for none), or null. */
    private static String duplicate(Terms ids, TermsEnum dictionary) throws IOException {
        TermsEnum each = ids.iterator();
        for (BytesRef id = each.next(); id != null; id = each.next()) {
            if (each.docFreq() > 1 || dictionary != null && dictionary.seekExact(id)) {
                return id.utf8ToString();
            }
        }
        return null;
    }

    /** An id that a document of another index has too, or null. */
    public String common(DirectoryReader other) throws IOException {
        Terms ids = MultiTerms.getTerms(other, ID);
        TermsEnum each = ids.iterator();
        TermsEnum[] ours = dictionaries(reader);
        for (BytesRef id = each.next(); id != null; id = each.next()) {
            if (holds(ours, id)) {
                return id.utf8ToString();
            }
        }
        return null;
    }

    /** Which of these ids (UTF-8, a line each) no document has: lines. */
    public byte[] missing(byte[] ids) throws IOException {
        TermsEnum[] ours = dictionaries(reader);
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
            while (values.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
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
        for (BytesRef term = each.next(); term != null; term = each.next()) {
            int documents = each.docFreq();
            if (best.size() < lists || documents > (Integer) best.peek()[0]) {
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

    /** The greatest impact of all postings of a field, found by reading them. */
    public int maxImpact(String field) throws IOException {
        int most = 0;
        PostingsEnum postings = null;
        for (LeafReaderContext leaf : reader.leaves()) {
            Terms terms = leaf.reader().terms(field);
            TermsEnum each = terms == null ? TermsEnum.EMPTY : terms.iterator();
            while (each.next() != null) {
                postings = each.postings(postings, PostingsEnum.FREQS);
                while (postings.nextDoc() != DocIdSetIterator.NO_MORE_DOCS) {
                    most = Math.max(most, postings.freq());
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

    private static TermsEnum[] dictionaries(IndexReader reader) throws IOException {
        List<TermsEnum> found = new ArrayList<>();
        for (LeafReaderContext leaf : reader.leaves()) {
            Terms terms = leaf.reader().terms(ID);
            if (terms != null) {
                found.add(terms.iterator());
            }
        }
        return found.toArray(new TermsEnum[0]);
    }

    private static boolean holds(TermsEnum[] dictionaries, BytesRef id) throws IOException {
        for (TermsEnum dictionary : dictionaries) {
            if (dictionary.seekExact(id)) {
                return true;
            }
        }
        return false;
    }
}
