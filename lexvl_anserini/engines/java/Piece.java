package lexvl;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Some rows of one shard, as Python read them, in whatever form. */
interface Piece {
    /** Postings of one piece of columns: pieces are what the threads share. */
    int MAX_POSTINGS = 1 << 20;

    /** What takes the row that was just filled. */
    interface Sink {
        void take() throws IOException;
    }

    int shard();

    /** Size, roughly. */
    long bytes();

    /** Fills {@code row} again and again. */
    void rows(ImpactRow row, Sink sink) throws IOException;

    /** Whole lines of JSON. */
    static Piece json(int shard, byte[] lines, TermTable terms, boolean texts, boolean metadata) {
        return new Piece() {
            @Override
            public int shard() {
                return shard;
            }

            @Override
            public long bytes() {
                return lines.length;
            }

            @Override
            public void rows(ImpactRow row, Sink sink) throws IOException {
                JsonRows rows = new JsonRows(lines, terms, texts, metadata);
                while (rows.next(row)) {
                    sink.take();
                }
            }
        };
    }

    /** Columns, divided into pieces of rows. */
    static List<Piece> of(int shard, Columns columns, TermTable terms) {
        List<Piece> pieces = new ArrayList<>();
        int[] ends = columns.ends;
        for (int from = 0, to = 0; from < ends.length; from = to) {
            int start = columns.start(from);
            do {
                to++;
            } while (to < ends.length && ends[to] - start <= MAX_POSTINGS);
            pieces.add(columns.rows(shard, from, to, terms));
        }
        return pieces;
    }

    /**
     * Rows by columns. Where a byte array is followed by {@code ends}, row i lies before ends[i].
     *
     * @param ids UTF-8
     * @param dims int32, impacts int32
     * @param contents UTF-8, or null; metadata JSON objects, or null
     */
    record Columns(
            byte[] ids,
            int[] idEnds,
            int[] ends,
            byte[] dims,
            byte[] impacts,
            byte[] contents,
            int[] contentEnds,
            byte[] metadata,
            int[] metadataEnds) {

        int start(int row) {
            return row == 0 ? 0 : ends[row - 1];
        }

        Piece rows(int shard, int from, int to, TermTable terms) {
            return new Piece() {
                @Override
                public int shard() {
                    return shard;
                }

                @Override
                public long bytes() {
                    return 8L * (ends[to - 1] - start(from)) + 16L * (to - from);
                }

                @Override
                public void rows(ImpactRow row, Sink sink) throws IOException {
                    int first = start(from);
                    int[] dimension = Bytes.ints(dims, first, ends[to - 1]);
                    int[] impact = Bytes.ints(impacts, first, ends[to - 1]);
                    for (int i = from; i < to; i++) {
                        row.start();
                        row.id = text(ids, idEnds, i);
                        row.checkId();
                        for (int j = start(i) - first; j < ends[i] - first; j++) {
                            row.add(dimension[j], impact[j]);
                        }
                        if (contents != null) {
                            row.contents = text(contents, contentEnds, i);
                        }
                        if (metadata != null) {
                            int object = i == 0 ? 0 : metadataEnds[i - 1];
                            byte[] json = Arrays.copyOfRange(metadata, object, metadataEnds[i]);
                            new JsonRows(json, terms, false, true).metadata(row);
                        }
                        sink.take();
                    }
                }
            };
        }

        private static String text(byte[] bytes, int[] ends, int row) {
            return ImpactRow.text(bytes, row == 0 ? 0 : ends[row - 1], ends[row]);
        }
    }
}
