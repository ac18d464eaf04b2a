package lexvl;

import java.io.IOException;
import java.util.Arrays;
import org.apache.lucene.index.FilterLeafReader;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.BytesRef;

/** The sections about ids of a file of resident postings: documents by id, ids in their order, front-coded. */
public final class IdCoder extends TermSink {
    private static final int GROUP = 16;
    /** The rank of a document without an id: 2^32 - 1. */
    private static final int NO_RANK = -1;

    private final int[] rank;
    private final Column ids = new Column(1);
    private final Column ends = new Column(8);
    private byte[] before = {};
    private int[] holders = new int[1];
    private int held;
    private int place;
    private int longest;

    public IdCoder(int documents) {
        rank = new int[documents];
        clear();
    }

    private void clear() {
        Arrays.fill(rank, NO_RANK);
        ids.clear();
        ends.clear();
        held = 0;
        place = 0;
        longest = 0;
    }

    @Override
    void add(int[] documents, int[] impacts, int from, int to) {
        for (int i = from; i < to; i++) {
            add(documents[i]);
        }
    }

    private void add(int document) {
        if (held == holders.length) {
            holders = Arrays.copyOf(holders, 2 * held);
        }
        holders[held++] = document;
    }

    /** Of two documents with one id, both have it. */
    @Override
    void end(BytesRef term) {
        for (int i = 0; i < held; i++, place++) {
            int shared = 0;
            if (place % GROUP != 0) {
                int same = Arrays.mismatch(before, 0, before.length, term.bytes, term.offset, term.offset + term.length);
                shared = same < 0 ? term.length : same;
            } else if (place > 0) {
                ends.add(ids.count());
            }
            varying(shared);
            varying(term.length - shared);
            ids.add(term.bytes, term.offset + shared, term.length - shared);
            before = Arrays.copyOfRange(term.bytes, term.offset, term.offset + term.length);
            rank[holders[i]] = place;
            longest = Math.max(longest, term.length);
        }
        held = 0;
    }

    private void varying(int number) {
        for (; number >= 128; number >>>= 7) {
            ids.add(number & 127 | 128);
        }
        ids.add(number);
    }

    /** int64: number of ids, bytes of the longest. */
    public byte[] finish() {
        if (place > ends.count() * GROUP) {
            ends.add(ids.count());
        }
        return Bytes.of(place, longest);
    }

    /** The bytes of a section, by its name. */
    public byte[] section(String name) {
        return switch (name) {
            case "rank" -> Bytes.of(rank);
            case "ids" -> ids.bytes();
            case "id_ends" -> ends.bytes();
            default -> throw new IllegalArgumentException("no section of ids: " + name);
        };
    }

    /** The terms of ids, which are taken while they are read, all of them in their order. */
    Terms taking(Terms terms) {
        return new FilterLeafReader.FilterTerms(terms) {
            @Override
            public TermsEnum iterator() throws IOException {
                clear();
                return new Taking(in.iterator());
            }
        };
    }

    private final class Taking extends FilterLeafReader.FilterTermsEnum {
        private PostingsEnum postings;

        Taking(TermsEnum terms) {
            super(terms);
        }

        @Override
        public PostingsEnum postings(PostingsEnum reuse, int flags) throws IOException {
            postings = in.postings(postings, flags);
            return new FilterLeafReader.FilterPostingsEnum(postings) {
                @Override
                public int nextDoc() throws IOException {
                    int document = in.nextDoc();
                    if (document == NO_MORE_DOCS) {
                        end(term());
                    } else {
                        IdCoder.this.add(document);
                    }
                    return document;
                }
            };
        }
    }
}
