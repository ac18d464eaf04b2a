package lexvl;

import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.lucene.index.CodecReader;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.FSDirectory;

/**
 * Runs on their way into one segment. Threads bring them in any order, and here they come into the order of the shards,
 * so that the index does not depend on the threads. Side fields beyond some memory go to a temporary index.
 */
final class Runs implements Closeable {
    /** Memory of side fields. */
    private static final long MANY_BYTES = 1 << 25;

    private final Path folder;
    private final Supplier<IndexWriterConfig> config;
    private final Map<Integer, List<Run>> early = new HashMap<>();
    private final List<Run> runs = new ArrayList<>();
    /** How many of the runs each segment of the temporary index has. */
    private final List<Integer> stored = new ArrayList<>();
    private Directory directory;
    private IndexWriter writer;
    private DirectoryReader reader;
    private int next;
    /** Runs whose side fields are in memory are those from here on. */
    private int first;
    private long bytes;

    /**
     * @param folder to be made if it is needed
     * @param config of a writer of side fields
     */
    Runs(Path folder, Supplier<IndexWriterConfig> config) {
        this.folder = folder;
        this.config = config;
    }

    /** Takes the runs of a task; tasks are numbered from 0 in the order of the shards. */
    synchronized void add(int task, List<Run> found) throws IOException {
        early.put(task, found);
        for (List<Run> now = early.remove(next); now != null; now = early.remove(next)) {
            next++;
            runs.addAll(now);
            for (Run run : now) {
                bytes += run.bytes();
            }
            if (bytes >= MANY_BYTES) {
                store();
            }
        }
    }

    private void store() throws IOException {
        if (writer == null) {
            directory = FSDirectory.open(folder);
            writer = new IndexWriter(directory, config.get());
        }
        List<Run> now = runs.subList(first, runs.size());
        CodecReader[] leaves = now.stream().map(run -> (CodecReader) run.side()).toArray(CodecReader[]::new);
        writer.addIndexes(leaves);
        for (Run run : now) {
            run.release();
        }
        stored.add(now.size());
        first = runs.size();
        bytes = 0;
    }

    /** All runs as segments to be merged into one. */
    synchronized CodecReader[] leaves(String field, TermTable terms) throws IOException {
        List<CodecReader> leaves = new ArrayList<>();
        int from = 0;
        if (writer != null) {
            writer.commit();
            reader = DirectoryReader.open(directory);
            for (int i = 0; i < stored.size(); from += stored.get(i++)) {
                LeafReader side = reader.leaves().get(i).reader();
                leaves.add(ImpactLeaf.of(side, field, terms, runs.subList(from, from + stored.get(i))));
            }
        }
        for (; from < runs.size(); from++) {
            leaves.add(ImpactLeaf.of(runs.get(from).side(), field, terms, runs.subList(from, from + 1)));
        }
        return leaves.toArray(CodecReader[]::new);
    }

    /** One for each run, in their order. */
    synchronized List<Run.Cursor> cursors() throws IOException {
        List<Run.Cursor> cursors = new ArrayList<>();
        int base = 0;
        for (Run run : runs) {
            cursors.add(run.cursor(base));
            base += run.documents();
        }
        return cursors;
    }

    /** Removes the temporary index. */
    @Override
    public synchronized void close() throws IOException {
        if (writer != null) {
            if (reader != null) {
                reader.close();
            }
            writer.rollback();
            directory.close();
            try (var files = Files.walk(folder)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }
}
