package lexvl;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.zip.CRC32;
import org.apache.lucene.util.BytesRef;

/**
 * Writes posting lists as the slots of a file of resident postings, and gathers its sections about them. Python's
 * engines/resident/layout.py describes the file, and adds the rest.
 */
public final class SlotWriter extends TermSink implements AutoCloseable {
    private static final int BLOCK = 1 << 16;
    private static final int COLUMN = 0;
    private static final int GAPS = 1;
    private static final int NUMBERS = 2;
    /**
     * A slot with this share of its block's documents or more is a column: adding all documents takes less time than
     * adding so many postings.
     */
    private static final int COLUMN_SHARE = 8;
    /** The greatest distance that an entry of gaps holds. */
    private static final int LARGEST_GAP = 255;

    private static final int LEAST_ALIGNMENT = 2;
    private static final int COLUMN_ALIGNMENT = 64;
    /** More than the largest slot has: impacts of 32 bits behind the zeros that align them. */
    private static final int LARGEST_SLOT = 4 * BLOCK + COLUMN_ALIGNMENT;

    private final OutputStream out;
    private final CRC32 checksum = new CRC32();
    private final int documents;
    private final int width;
    private final byte[] octets = new byte[4 * LARGEST_SLOT];
    private int size;
    private long written;
    private long postings;
    private int mostOfAll;
    /** Slots of the terms that are ended. */
    private int ended;
    // The slot that is not ended: its postings, and what its entries would be as gaps.
    private final int[] local = new int[BLOCK];
    private final int[] impact = new int[BLOCK];
    private int count;
    private int ofBlock;
    private int most;
    private int entries;
    // The file's sections about slots.
    private final Column slots = new Column(4);
    private final Column block = new Column(2);
    private final Column kind = new Column(1);
    private final Column counts = new Column(2);
    private final Column greatest;
    private final Column terms = new Column(1);

    /**
     * @param file to be written
     * @param documents of the index
     * @param width bytes of an impact
     */
    public SlotWriter(String file, int documents, int width) throws IOException {
        out = Files.newOutputStream(Path.of(file));
        this.documents = documents;
        this.width = width;
        greatest = new Column(width);
        slots.add(0);
    }

    /** The fewest bytes that hold impacts up to this one. */
    static int widthOf(int impact) {
        return impact < 1 << 8 ? 1 : impact < 1 << 16 ? 2 : 4;
    }

    @Override
    void add(int[] docs, int[] impacts, int from, int to) throws IOException {
        for (int i = from; i < to; i++) {
            int in = docs[i] >>> 16;
            if (in != ofBlock) {
                endSlot();
                ofBlock = in;
            }
            int here = docs[i] & BLOCK - 1;
            entries += (here - (count == 0 ? -1 : local[count - 1]) - 1) / LARGEST_GAP + 1;
            most = Math.max(most, impacts[i]);
            local[count] = here;
            impact[count++] = impacts[i];
        }
        postings += to - from;
    }

    @Override
    void end(BytesRef term) throws IOException {
        endSlot();
        if (block.count() > ended) {
            ended = block.count();
            slots.add(ended);
            terms.add(term.bytes, term.offset, term.length);
            terms.add(0);
        }
    }

    /** All slots are in the file then; int64: their bytes, the CRC-32 of these, postings, greatest impact, its width. */
    public byte[] finish() throws IOException {
        write();
        out.close();
        return Bytes.of(written, checksum.getValue(), postings, mostOfAll, width);
    }

    /** The bytes of a section, by its name. */
    public byte[] section(String name) {
        return switch (name) {
            case "slots" -> slots.bytes();
            case "block" -> block.bytes();
            case "kind" -> kind.bytes();
            case "counts" -> counts.bytes();
            case "most" -> greatest.bytes();
            case "terms" -> terms.bytes();
            default -> throw new IllegalArgumentException("no section of slots: " + name);
        };
    }

    @Override
    public void close() throws IOException {
        out.close();
    }

    private void write() throws IOException {
        out.write(octets, 0, size);
        checksum.update(octets, 0, size);
        written += size;
        size = 0;
    }

    private void endSlot() throws IOException {
        if (count == 0) {
            return;
        }
        if (size > octets.length - LARGEST_SLOT) {
            write();
        }
        int length = (int) Math.min(BLOCK, documents - (long) ofBlock * BLOCK);
        int form = NUMBERS;
        int size = count;
        if ((long) count * COLUMN_SHARE >= length) {
            form = COLUMN;
            putColumn(length * width);
        } else if (entries * (1 + width) <= count * (2 + width)) {
            form = GAPS;
            size = entries;
            putGaps();
        } else {
            putNumbers();
        }
        pad(Math.max(width, LEAST_ALIGNMENT));
        block.add(ofBlock);
        kind.add(form);
        counts.add(size - 1);
        greatest.add(most);
        mostOfAll = Math.max(mostOfAll, most);
        count = 0;
        most = 0;
        entries = 0;
    }

    /** Zeros up to the next multiple, so that the same index has the same file. */
    private void pad(int to) {
        while ((written + size) % to != 0) {
            octets[size++] = 0;
        }
    }

    private void putColumn(int bytes) {
        pad(COLUMN_ALIGNMENT);
        int start = size;
        Arrays.fill(octets, start, start + bytes, (byte) 0);
        for (int i = 0; i < count; i++) {
            size = start + local[i] * width;
            putImpact(impact[i]);
        }
        size = start + bytes;
    }

    private void putGaps() {
        int at = size;
        size += entries;
        pad(width);
        for (int i = 0, before = -1; i < count; before = local[i++]) {
            int gap = local[i] - before;
            for (; gap > LARGEST_GAP; gap -= LARGEST_GAP) {
                octets[at++] = (byte) LARGEST_GAP;
                putImpact(0);
            }
            octets[at++] = (byte) gap;
            putImpact(impact[i]);
        }
    }

    private void putNumbers() {
        for (int i = 0; i < count; i++) {
            octets[size++] = (byte) local[i];
            octets[size++] = (byte) (local[i] >>> 8);
        }
        pad(width);
        for (int i = 0; i < count; i++) {
            putImpact(impact[i]);
        }
    }

    private void putImpact(int value) {
        for (int i = 0; i < width; i++) {
            octets[size++] = (byte) (value >>> 8 * i);
        }
    }
}
