package lexvl;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.AtomicLong;

/** A temporary file for what is too large for memory, until the index is written. Threads may append at once. */
final class Spill implements AutoCloseable {
    private final FileChannel channel;
    private final AtomicLong length = new AtomicLong();

    Spill(Path file) throws IOException {
        channel = FileChannel.open(
                file,
                StandardOpenOption.CREATE_NEW,
                StandardOpenOption.READ,
                StandardOpenOption.WRITE,
                StandardOpenOption.DELETE_ON_CLOSE);
    }

    static ByteBuffer buffer(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** Writes what the buffer holds; returns where it is. */
    long append(ByteBuffer bytes) throws IOException {
        long start = length.getAndAdd(bytes.remaining());
        for (long at = start; bytes.hasRemaining(); ) {
            at += channel.write(bytes, at);
        }
        return start;
    }

    /** Fills the rest of a buffer from {@code at}. */
    void read(ByteBuffer bytes, long at) throws IOException {
        for (int count = 0; bytes.hasRemaining(); at += count) {
            count = channel.read(bytes, at);
            if (count < 0) {
                throw new EOFException("a temporary file of the index is cut short");
            }
        }
    }

    @Override
    public void close() throws IOException {
        channel.close();
    }
}
